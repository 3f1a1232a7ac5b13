"""The watch: a thread that judges the runs that end and sends alerts to webhooks, until it is closed.

Any number of processes may keep one: positions in the journal are shared, a webhook has a lease, and an alert
that is raised twice is still one. What fails is tried again, after a pause that doubles.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Self

from treering.errors import TreeringError
from treering.views.alerting.alert import log

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from treering.views.alerting.alerts import Alerts

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 300.0


class Watch:
    """Use it in a ``with`` statement, or `start` and `close` it."""

    def __init__(self, alerts: Alerts, *, seconds: float, first_pause: float = FIRST_PAUSE_SECONDS) -> None:
        self._alerts = alerts
        self._seconds = seconds
        self._first_pause = first_pause
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._pauses: dict[str, float] = {}
        self._not_before: dict[str, float] = {}

    def start(self) -> Self:
        """Begin to watch."""
        if self._thread is None:
            self._end.clear()
            self._thread = threading.Thread(target=self._work, name="treering-watch", daemon=True)
            self._thread.start()
        return self

    def close(self) -> None:
        """Finish what is being sent, then stop."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def look(self) -> None:
        """One round: judge what ended, send what is new; what failed a moment ago is left to rest."""
        self._try("rules", self._examine)
        for webhook in self._webhooks():
            self._try(webhook, lambda name=webhook: self._deliver(name))

    @property
    def is_waiting(self) -> bool:
        """Whether something failed and is to be tried again."""
        return bool(self._not_before)

    def _work(self) -> None:
        while not self._end.is_set():
            self.look()
            self._end.wait(self._next())

    def _webhooks(self) -> list[str]:
        try:
            return [webhook.name for webhook in self._alerts.webhooks()]
        except TreeringError as error:
            log.warning("webhooks cannot be read: %s", error)
            return []

    def _examine(self) -> str | None:
        self._alerts.examine()
        return None

    def _deliver(self, name: str) -> str | None:
        return self._alerts.deliver(name).error

    def _try(self, name: str, work: Callable[[], str | None]) -> None:
        """Do it unless it is resting after a failure."""
        if time.monotonic() < self._not_before.get(name, 0.0):
            return
        try:
            error = work()
        except TreeringError as failure:
            error = str(failure)
        if error is None:
            self._pauses.pop(name, None)
            self._not_before.pop(name, None)
            return
        pause = min(self._pauses.get(name, self._first_pause / 2) * 2, LONGEST_PAUSE_SECONDS)
        self._pauses[name] = pause
        self._not_before[name] = time.monotonic() + pause
        log.warning("%s: %s; trying again in %.0f s", name, error, pause)

    def _next(self) -> float:
        """How long to rest: until the next look, or the first retry if that is sooner."""
        now = time.monotonic()
        return max(min([self._seconds, *(at - now for at in self._not_before.values())]), 0.01)

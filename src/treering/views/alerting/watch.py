"""The watch: a thread that judges the runs that end and sends alerts to webhooks, until it is closed.

Any number of processes may keep one: positions in the journal are shared, a webhook has a lease, and an alert
that is raised twice is still one. What fails is tried again, after a pause that doubles. Each webhook is sent
to by a thread of its own, so a receiver that takes its time keeps nobody waiting but itself.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final, Self

from treering.errors import TreeringError
from treering.views.alerting.alert import log

if TYPE_CHECKING:
    from types import TracebackType

    from treering.views.alerting.alerts import Alerts

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 300.0
GOODBYE_SECONDS: Final = 5.0
"""How long closing waits for answers; what is not answered by then is sent again by the next watch."""
SENDING_AT_ONCE: Final = 8
"""How many webhooks are sent to at the same time; the others wait for a turn."""
_RULES: Final = "rules"


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
        self._sending: dict[str, threading.Thread] = {}
        self._owed: dict[str, None] = {}
        """Webhooks that may have something to get and had no turn at the last look, in order."""

    def start(self) -> Self:
        """Begin to watch."""
        if self._thread is None:
            self._end.clear()
            self._thread = threading.Thread(target=self._work, name="treering-watch", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Begin nothing more."""
        self._end.set()

    def close(self, *, seconds: float = GOODBYE_SECONDS) -> None:
        """Finish what is being sent, for so many seconds, then stop."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        latest = time.monotonic() + seconds
        for thread in self._sending.values():
            thread.join(max(latest - time.monotonic(), 0.0))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def look(self) -> None:
        """One round: judge what ended, begin to send what is new; what failed just now is left to rest."""
        if self._is_due(_RULES):
            self._examine()
        before, self._owed = list(self._owed), {}
        self._sending = {name: thread for name, thread in self._sending.items() if thread.is_alive()}
        webhooks = self._webhooks()
        turns = dict.fromkeys([*(name for name in before if name in webhooks), *webhooks])
        for webhook in turns:
            if not self._is_due(_named(webhook)):
                continue
            if webhook in self._sending or len(self._sending) >= SENDING_AT_ONCE:
                self._owed[webhook] = None
                continue
            thread = threading.Thread(
                target=self._send, args=(webhook,), name="treering-webhook", daemon=True
            )
            self._sending[webhook] = thread
            thread.start()

    @property
    def is_waiting(self) -> bool:
        """Whether something could not be done and is to be tried again."""
        return bool(self._not_before or self._owed)

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

    def _examine(self) -> None:
        try:
            self._alerts.examine()
        except TreeringError as error:
            self._rest(_RULES, str(error))
        else:
            self._wake(_RULES)

    def _send(self, webhook: str) -> None:
        """In a thread of its own: everything that one webhook has not got yet."""
        try:
            delivery = self._alerts.deliver(webhook, stop=self._end)
        except TreeringError as error:
            self._rest(_named(webhook), str(error))
        except Exception:  # noqa: BLE001 - a bug of ours must not end the sending
            log.exception("sending to webhook %r failed", webhook)
            self._rest(_named(webhook), "a bug of treering")
        else:
            if delivery.error is not None:
                self._rest(_named(webhook), delivery.error)
                return
            self._wake(_named(webhook))
            if delivery.is_busy:  # and whoever sends may die of it
                self._owed[webhook] = None

    def _is_due(self, name: str) -> bool:
        return time.monotonic() >= self._not_before.get(name, 0.0)

    def _wake(self, name: str) -> None:
        self._pauses.pop(name, None)
        self._not_before.pop(name, None)

    def _rest(self, name: str, error: str) -> None:
        """Leave it alone for a while: longer each time."""
        pause = min(self._pauses.get(name, self._first_pause / 2) * 2, LONGEST_PAUSE_SECONDS)
        self._pauses[name] = pause
        self._not_before[name] = time.monotonic() + pause
        log.warning("%s: %s; trying again in %.0f s", name, error, pause)

    def _next(self) -> float:
        """How long to rest: until the next look, or the first retry if that is sooner."""
        now = time.monotonic()
        return max(min([self._seconds, *(at - now for at in list(self._not_before.values()))]), 0.01)


def _named(webhook: str) -> str:
    return f"webhook {webhook}"

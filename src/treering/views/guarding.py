"""The guard of a recording: looks at the store's budgets before a call of a model or a tool begins.

Budgets are read again every few seconds; while none concerns the caller, a call costs one look at the clock.
With some, what was recorded so far is made durable first: what the store does not have it cannot count.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from treering.core.clock import day_of
from treering.errors import TreeringError
from treering.views.alerting.alert import LEDGER, Alert, alert_id, log, raise_alert
from treering.views.shared_budgets import SharedBudgets, Subject
from treering.views.thread_keys import thread_of_key

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.views.recording.origin import Origin
    from treering.views.recording.recorder import Recorder
    from treering.views.shared_budgets import SharedBudget, Standing

REFRESH_SECONDS: Final = 5.0
_MOST_TOLD: Final = 10_000


class Guard:
    """Holds the calls of one store's runs against its budgets."""

    def __init__(self, engine: Engine, space: str, recorder: Recorder, *, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._recorder = recorder
        self._clock = clock
        self._shared = SharedBudgets(engine, space, clock=clock)
        self._budgets: tuple[SharedBudget, ...] = ()
        self._read_again_at = 0.0
        self._told: set[str] = set()

    def admit(self, origin: Origin, agent: str | None) -> None:
        """Raise `BudgetExceeded` if the call must not be made; warn when a budget runs out."""
        if time.monotonic() >= self._read_again_at:
            self._read()
        if not self._budgets:
            return
        subject = Subject(run=origin.run, thread=origin.thread, agent=agent)
        concerned = [budget for budget in self._budgets if budget.concerns(subject)]
        if not concerned:
            return
        self._recorder.flush()
        for budget in concerned:
            standing = self._shared.of(budget, subject)
            if standing is not None and standing.share >= budget.warn_at:
                self._tell(standing, subject, origin.scope)
                if standing.is_used_up and budget.action == "stop":
                    raise standing.error()

    def forget_what_is_known(self) -> None:
        """Read the budgets again at the next call: someone just changed them."""
        self._read_again_at = 0.0

    def _read(self) -> None:
        self._read_again_at = time.monotonic() + REFRESH_SECONDS
        try:
            self._budgets = self._shared.list()
        except TreeringError as error:  # recording never fails a run; those known so far still hold
            log.warning("budgets cannot be read: %s", error)

    def _tell(self, standing: Standing, subject: Subject, scope: str) -> None:
        budget = standing.budget
        state = "used up" if standing.is_used_up else f"used by {standing.share:.0%}"
        now_us = self._clock.now_us()
        limits = [f"{name}={limit}" for name, limit in sorted(standing.limits.items())]
        alert = alert_id(
            "budget", budget.name, standing.key or "", day_of(now_us), standing.is_used_up, *limits
        )
        if alert in self._told:
            return
        if len(self._told) >= _MOST_TOLD:
            self._told.clear()  # the journal takes an alert once, however often it is raised
        self._told.add(alert)
        is_private = budget.per in ("run", "thread")
        thread, namespace = thread_of_key(subject.thread if is_private else None)
        raised = Alert(
            id=alert,
            ts_us=now_us,
            level="critical" if standing.is_used_up else "warning",
            rule=f"budget/{budget.name}",
            message=f"budget {standing.told()}, {state}",
            run=subject.run if is_private else None,
            thread=thread,
            namespace=namespace,
            agent=subject.agent if is_private or budget.per == "agent" else budget.agent,
            figures={"used": standing.used, "limits": standing.limits, "currency": budget.currency},
        )
        raise_alert(self._engine, self._space, raised, scope=scope if is_private else LEDGER)

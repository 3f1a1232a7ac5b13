"""Budgets of money, tokens and tool calls, for each run, thread or agent, or for the whole store.

Usage is read from the roll-ups, so all processes that record into a store share its budgets, and there is no
counter that could drift from what was recorded. Budgets are checked before a model or tool call starts.
Running calls are not interrupted, so concurrent calls may exceed a budget by what they use. **Invariant:** a
call starts only if no budget with action ``stop`` is used up by everything that was committed before.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.core.batch import ANY, Draft
from treering.core.clock import day_of, to_datetime
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import Scope, check_id, thread_key, thread_of_key
from treering.core.query import SumQuery, each_ref
from treering.errors import BudgetExceeded, Corrupt, InvalidInput, TreeringError
from treering.runs.cost import cost_of
from treering.runs.money import check_currency, from_nanos, to_nanos
from treering.runs.span import SPAN

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.runs.recorder import Recorder
    from treering.runs.span import RunContext


BUDGETS: Final = "budget/"
_SCOPE: Final = str(Scope("", "ledger", "budgets"))
_TOOL: Final = SPAN + "tool"

Per = Literal["run", "thread", "agent", "store"]
Every = Literal["day", "month"]
Action = Literal["stop", "warn"]
Measure = Literal["money", "tokens", "tool_calls"]

log: Final = logging.getLogger("treering.alerts")


class SharedBudget(msgspec.Struct, frozen=True, kw_only=True):
    """What each run, thread or agent, or the whole store, may use. Unset limits do not apply."""

    name: str
    per: Per
    every: Every | None = None
    """Resets every UTC day or month; ``None`` for never."""
    agent: str | None = None
    """Applies to this agent only."""
    money_nanos: int | None = None
    currency: str | None = None
    tokens: int | None = None
    tool_calls: int | None = None
    action: Action = "stop"
    warn_at: float = 0.8
    """The used share at which a warning is raised."""

    def applies_to(self, caller: Caller) -> bool:
        """Whether the budget applies to a caller."""
        if self.agent is not None and caller.agent != self.agent:
            return False
        return self.per == "store" or caller.key(self.per) is not None

    @property
    def money(self) -> Decimal | None:
        """The limit as an amount of ``currency``."""
        return None if self.money_nanos is None else from_nanos(self.money_nanos)


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who is about to make a call; ``thread`` is the key of a thread."""

    run: str | None = None
    thread: str | None = None
    agent: str | None = None

    def key(self, per: Per) -> str | None:
        """What a budget of this kind counts the caller as; ``None`` for the whole store."""
        return None if per == "store" else getattr(self, per)


class BudgetUsage(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a budget is used. ``key`` is the run, ``<namespace>/<thread>`` or the agent."""

    budget: SharedBudget
    key: str | None
    used: dict[Measure, int]
    limits: dict[Measure, int]
    unpriced_tokens: int = 0
    """Tokens without a price, which no budget of money counts."""

    @property
    def share(self) -> float:
        """The largest used share of any limit; 1 or more when it is used up."""
        return max(
            (self.used[name] / limit if limit else 1.0 for name, limit in self.limits.items()), default=0.0
        )

    @property
    def worst(self) -> Measure:
        """The limit with the largest used share."""
        return max(self.limits, key=lambda name: self.used[name] / (self.limits[name] or 1))

    @property
    def is_used_up(self) -> bool:
        """Whether a limit is reached."""
        return any(self.used[name] >= limit for name, limit in self.limits.items())

    def describe(self) -> str:
        """Return it as text: ``daily of agent 'writer': 4.20 of 5.00 USD``."""
        name = self.worst
        owner = "" if self.key is None else f" of {self.budget.per} {self.key.removeprefix('/')!r}"
        return f"{self.budget.name}{owner}: {_amount(self, name)}"

    def error(self) -> BudgetExceeded:
        """Return the error for the next call."""
        name = self.worst
        retry = {
            "day": "wait for the next day (UTC)",
            "month": "wait for the next month (UTC)",
            None: "use another budget",
        }
        return BudgetExceeded(
            f"the call was not made: budget {self.describe()} is used up; "
            f"{retry[self.budget.every]}, or raise it with store.budgets.set({self.budget.name!r}, ...)",
            budget=self.budget.name,
            limit=self.limits[name],
            count=self.used[name],
        )


class SharedBudgets:
    """The budgets of one space. ``changed`` is called after each change."""

    def __init__(
        self, engine: Engine, space: str, *, clock: Clock, changed: Callable[[], None] | None = None
    ) -> None:
        self._engine = engine
        self._space = space
        self._clock = clock
        self._changed = changed

    def set(
        self,
        name: str,
        *,
        per: Per,
        every: Every | None = None,
        agent: str | None = None,
        money: Decimal | float | str | None = None,
        currency: str = "USD",
        tokens: int | None = None,
        tool_calls: int | None = None,
        action: Action = "stop",
        warn_at: float = 0.8,
    ) -> SharedBudget:
        """Create or replace a budget. Every process applies it within seconds."""
        budget = SharedBudget(
            name=check_id(name, "budget name"),
            per=per,
            every=every,
            agent=agent,
            money_nanos=None if money is None else to_nanos(money),
            currency=None if money is None else check_currency(currency),
            tokens=tokens,
            tool_calls=tool_calls,
            action=action,
            warn_at=warn_at,
        )
        _validate(budget)
        draft = Draft(self._space)
        plain = {key: value for key, value in msgspec.structs.asdict(budget).items() if value is not None}
        draft.set_ref(BUDGETS + name, encode_json(plain), scope=_SCOPE, expect=ANY)
        self._commit(draft)
        return budget

    def remove(self, name: str) -> bool:
        """Remove a budget; return whether it existed."""
        if BUDGETS + name not in self._engine.refs(self._space, [BUDGETS + name]):
            return False
        draft = Draft(self._space)
        draft.delete_ref(BUDGETS + name, scope=_SCOPE)
        self._commit(draft)
        return True

    def list(self) -> tuple[SharedBudget, ...]:
        """List budgets by name."""
        return tuple(_budget_from_ref(ref) for ref in each_ref(self._engine, self._space, BUDGETS))

    def usage(
        self,
        *,
        run: str | None = None,
        thread: str | None = None,
        namespace: str = "",
        agent: str | None = None,
    ) -> tuple[BudgetUsage, ...]:
        """Return the usage of the budgets that apply to a run, thread and agent, and of those of the store.

        ``namespace`` is that of the thread.
        """
        caller = Caller(run=run, thread=thread_key(thread, namespace), agent=agent)
        return tuple(usage for budget in self.list() if (usage := self.usage_of(budget, caller)) is not None)

    def check(
        self,
        *,
        run: str | None = None,
        thread: str | None = None,
        namespace: str = "",
        agent: str | None = None,
    ) -> None:
        """Raise `BudgetExceeded` if a budget that stops is used up. Recording does so before each call."""
        for usage in self.usage(run=run, thread=thread, namespace=namespace, agent=agent):
            if usage.is_used_up and usage.budget.action == "stop":
                raise usage.error()

    def usage_of(self, budget: SharedBudget, caller: Caller) -> BudgetUsage | None:
        """Return the usage of a budget by a caller; ``None`` if it does not apply."""
        if not budget.applies_to(caller):
            return None
        key = caller.key(budget.per)
        since_day, until_day = self._days(budget.every)
        query = SumQuery(
            grain="run" if budget.per == "run" else "thread" if budget.per == "thread" else "day",
            by=("kind", "currency", "kind", "day"),
            key=key if budget.per in ("run", "thread") else None,
            agent=key if budget.per == "agent" else budget.agent,
            since_day=since_day,
            until_day=until_day,
        )
        sums = self._engine.sums(self._space, query)
        cost = cost_of(None, sums, budget.currency)
        used: dict[Measure, int] = {
            "money": 0 if budget.currency is None else cost.nanos.get(budget.currency, 0),
            "tokens": cost.tokens,
            "tool_calls": sum(each.events for each in sums if each.group[0] == _TOOL),
        }
        limits = _limits(budget)
        return BudgetUsage(
            budget=budget,
            key=key,
            used={name: used[name] for name in limits},
            limits=limits,
            unpriced_tokens=cost.unpriced_tokens,
        )

    def _commit(self, draft: Draft) -> None:
        self._engine.commit(draft.batch())
        if self._changed is not None:
            self._changed()

    def _days(self, every: Every | None) -> tuple[int | None, int | None]:
        if every is None:
            return None, None
        today = day_of(self._clock.now_us())
        if every == "day":
            return today, today
        return today - to_datetime(self._clock.now_us()).day + 1, today


def _limits(budget: SharedBudget) -> dict[Measure, int]:
    limits: dict[Measure, int | None] = {
        "money": budget.money_nanos,
        "tokens": budget.tokens,
        "tool_calls": budget.tool_calls,
    }
    return {name: limit for name, limit in limits.items() if limit is not None}


def _amount(usage: BudgetUsage, name: Measure) -> str:
    used, limit = usage.used[name], usage.limits[name]
    if name == "money":
        spent, allowed = from_nanos(used).normalize(), from_nanos(limit).normalize()
        return f"{spent:f} of {allowed:f} {usage.budget.currency}"
    return f"{used} of {limit} {name.replace('_', ' ')}"


def _validate(budget: SharedBudget) -> None:
    choices: Any = {"per": (budget.per, Per), "action": (budget.action, Action)}
    if budget.every is not None:
        choices["every"] = (budget.every, Every)
    for what, (given, allowed) in choices.items():
        if given not in allowed.__args__:
            raise InvalidInput(f"{what}={given!r} is invalid; use {', '.join(allowed.__args__)}")
    limits = _limits(budget)
    if not limits:
        raise InvalidInput(f"budget {budget.name!r} has no limit; pass money=, tokens= or tool_calls=")
    for name, limit in limits.items():
        given: Any = limit
        if type(given) is not int or given < 0:
            shown = budget.money if name == "money" else repr(given)
            raise InvalidInput(f"{name}={shown} is not a valid limit; use a number from 0")
    if not 0 < budget.warn_at <= 1:
        raise InvalidInput(
            f"warn_at={budget.warn_at} is not a valid share; use a number above 0 and up to 1, such as 0.8"
        )


def _budget_from_ref(ref: Ref) -> SharedBudget:
    try:
        return msgspec.convert(decode_json(ref.value), SharedBudget)
    except (msgspec.ValidationError, ValueError) as error:
        raise Corrupt(f"budget {ref.name!r} is corrupt ({error}); set it again") from None


REFRESH_SECONDS: Final = 5.0
_PATIENCE_SECONDS: Final = 2.0
"""How long a store may fail to write before a call goes on without counting what was just recorded."""
_MAX_RAISED: Final = 10_000


class Guard:
    """Checks the store's budgets before the model and tool calls of its runs. See `CallGate`.

    Budgets are read again every few seconds. While none applies to a caller, a call costs one look at the
    clock; otherwise everything recorded so far is flushed first, because the store only counts what it has.
    """

    def __init__(self, engine: Engine, space: str, recorder: Recorder, *, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._recorder = recorder
        self._clock = clock
        self._shared = SharedBudgets(engine, space, clock=clock)
        self._budgets: tuple[SharedBudget, ...] = ()
        self._refresh_at = 0.0
        self._raised: set[str] = set()

    def admit(self, context: RunContext, agent: str | None) -> None:
        """Raise `BudgetExceeded` if the call must not be made; raise an alert when a budget runs out."""
        if time.monotonic() >= self._refresh_at:
            self._refresh()
        if not self._budgets:
            return
        caller = Caller(run=context.writer.run, thread=context.writer.thread, agent=agent)
        applicable = [budget for budget in self._budgets if budget.applies_to(caller)]
        if not applicable:
            return
        try:
            self._recorder.flush(patience=_PATIENCE_SECONDS)
        except TreeringError as error:  # the budgets apply to what is committed
            log.warning("what was recorded cannot be written, so budgets do not count it yet: %s", error)
        for budget in applicable:
            try:
                usage = self._shared.usage_of(budget, caller)
            except TreeringError as error:
                log.warning("budget %s cannot be checked, so the call is made: %s", budget.name, error)
                continue
            if usage is not None and usage.share >= budget.warn_at:
                self._raise_alert(usage, caller, context.writer.scope)
                if usage.is_used_up and budget.action == "stop":
                    raise usage.error()

    def refresh_soon(self) -> None:
        """Read the budgets again at the next call, because they were just changed."""
        self._refresh_at = 0.0

    def _refresh(self) -> None:
        self._refresh_at = time.monotonic() + REFRESH_SECONDS
        try:
            self._budgets = self._shared.list()
        except TreeringError as error:  # recording never fails a run; the last known budgets still apply
            log.warning("budgets cannot be read: %s", error)

    def _raise_alert(self, usage: BudgetUsage, caller: Caller, scope: str) -> None:
        from treering.limits.alerts import (  # rarely needed, slow to import
            LEDGER,
            Alert,
            alert_id,
            raise_alert,
        )

        budget = usage.budget
        now_us = self._clock.now_us()
        limits = [f"{name}={limit}" for name, limit in sorted(usage.limits.items())]
        alert = alert_id("budget", budget.name, usage.key or "", day_of(now_us), usage.is_used_up, *limits)
        if alert in self._raised:
            return
        if len(self._raised) >= _MAX_RAISED:
            self._raised.clear()  # the journal stores an alert once, however often it is raised
        self._raised.add(alert)
        is_private = budget.per in ("run", "thread")
        thread, namespace = thread_of_key(caller.thread if is_private else None)
        state = "used up" if usage.is_used_up else f"used by {usage.share:.0%}"
        raised = Alert(
            id=alert,
            ts_us=now_us,
            level="critical" if usage.is_used_up else "warning",
            rule=f"budget/{budget.name}",
            message=f"budget {usage.describe()}, {state}",
            run=caller.run if is_private else None,
            thread=thread,
            namespace=namespace,
            agent=caller.agent if is_private or budget.per == "agent" else budget.agent,
            figures={"used": usage.used, "limits": usage.limits, "currency": budget.currency},
        )
        try:
            raise_alert(self._engine, self._space, raised, scope=scope if is_private else LEDGER)
        except TreeringError as error:  # it is raised again at the next call
            self._raised.discard(alert)
            log.warning("alert %s cannot be recorded: %s", raised.message, error)

"""Budgets that are kept in the store: money, tokens and tool calls, of runs, threads, agents or everything.

What was spent is what the roll-ups say, so all processes that record into one store share a budget, and no
counter can drift from what was recorded. A budget is looked at before a call of a model or a tool begins;
calls that are under way are not interrupted, so several of them at once may go beyond it by what they take.
**Invariant:** a call begins only if, of everything that was recorded and acknowledged before, no budget that
stops is used up.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.core.batch import ANY, Draft
from treering.core.clock import day_of, to_datetime
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import Scope, check_id, thread_key, thread_of_key
from treering.core.money import check_currency, from_nanos, to_nanos
from treering.core.paging import each_ref
from treering.core.query import SumQuery
from treering.errors import BudgetExceeded, Corrupt, InvalidInput, TreeringError
from treering.limits.alert import LEDGER, Alert, alert_id, log, raise_alert
from treering.runs.cost import cost_of
from treering.runs.span import SPAN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


class SharedBudget(msgspec.Struct, frozen=True, kw_only=True):
    """What each run, thread or agent, or the store as a whole, may use; what is left out is not limited."""

    name: str
    per: Per
    every: Every | None = None
    """Begins again every UTC day or month; ``None``: never."""
    agent: str | None = None
    """Counts and concerns this agent only."""
    money_nanos: int | None = None
    currency: str | None = None
    tokens: int | None = None
    tool_calls: int | None = None
    action: Action = "stop"
    warn_at: float = 0.8
    """The share from which on there is a warning."""

    def concerns(self, subject: Subject) -> bool:
        """Whether a subject's calls count."""
        if self.agent is not None and subject.agent != self.agent:
            return False
        return self.per == "store" or subject.key(self.per) is not None

    @property
    def money(self) -> Decimal | None:
        """The limit as an amount of ``currency``."""
        return None if self.money_nanos is None else from_nanos(self.money_nanos)


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Who is about to make a call; ``thread`` is a thread's key."""

    run: str | None = None
    thread: str | None = None
    agent: str | None = None

    def key(self, per: Per) -> str | None:
        """By which name a budget of this kind counts it; the store as a whole has none."""
        return None if per == "store" else getattr(self, per)


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a budget is used, by whom (``key``: the run, ``<namespace>/<thread>`` or the agent)."""

    budget: SharedBudget
    key: str | None
    used: dict[Measure, int]
    limits: dict[Measure, int]
    unpriced_tokens: int = 0
    """Tokens that have no price, so no budget of money can count them."""

    @property
    def share(self) -> float:
        """The largest used part of any limit; 1 and more means that it is used up."""
        return max(
            (self.used[name] / limit if limit else 1.0 for name, limit in self.limits.items()), default=0.0
        )

    @property
    def worst(self) -> Measure:
        """The limit that is used most."""
        return max(self.limits, key=lambda name: self.used[name] / (self.limits[name] or 1))

    @property
    def is_used_up(self) -> bool:
        """Nothing more fits."""
        return any(self.used[name] >= limit for name, limit in self.limits.items())

    def told(self) -> str:
        """In words: ``daily of agent 'writer': 4.20 of 5.00 USD``."""
        name = self.worst
        whom = "" if self.key is None else f" of {self.budget.per} {self.key.removeprefix('/')!r}"
        return f"{self.budget.name}{whom}: {_amount(self, name)}"

    def error(self) -> BudgetExceeded:
        """What the caller of the next call is told."""
        name = self.worst
        when = {
            "day": "wait for the next day (UTC)",
            "month": "wait for the next month (UTC)",
            None: "use another one",
        }
        return BudgetExceeded(
            f"the call was not made: budget {self.told()} is used up; "
            f"{when[self.budget.every]}, or raise it with store.budgets.set({self.budget.name!r}, ...)",
            budget=self.budget.name,
            limit=self.limits[name],
            count=self.used[name],
        )


class SharedBudgets:
    """The budgets of one space."""

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
        """Make a budget, or change the one of this name. It holds for every process within seconds."""
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
        _check(budget)
        draft = Draft(self._space)
        plain = {key: value for key, value in msgspec.structs.asdict(budget).items() if value is not None}
        draft.set_ref(BUDGETS + name, encode_json(plain), scope=_SCOPE, expect=ANY)
        self._commit(draft)
        return budget

    def remove(self, name: str) -> bool:
        """Lift a budget; says whether it was there."""
        if BUDGETS + name not in self._engine.refs(self._space, [BUDGETS + name]):
            return False
        draft = Draft(self._space)
        draft.delete_ref(BUDGETS + name, scope=_SCOPE)
        self._commit(draft)
        return True

    def list(self) -> tuple[SharedBudget, ...]:
        """All budgets, by name."""
        return tuple(_budget(ref) for ref in self._refs())

    def standing(
        self,
        *,
        run: str | None = None,
        thread: str | None = None,
        namespace: str = "",
        agent: str | None = None,
    ) -> tuple[Standing, ...]:
        """How the budgets stand that concern this run, thread and agent, and those of the store.

        ``namespace`` is that of the thread.
        """
        subject = Subject(run=run, thread=thread_key(thread, namespace), agent=agent)
        return tuple(standing for budget in self.list() if (standing := self.of(budget, subject)) is not None)

    def check(
        self,
        *,
        run: str | None = None,
        thread: str | None = None,
        namespace: str = "",
        agent: str | None = None,
    ) -> None:
        """Raise `BudgetExceeded` if a budget that stops is used up. Recording does this before each call."""
        for standing in self.standing(run=run, thread=thread, namespace=namespace, agent=agent):
            if standing.is_used_up and standing.budget.action == "stop":
                raise standing.error()

    def of(self, budget: SharedBudget, subject: Subject) -> Standing | None:
        """How one budget stands for a subject; ``None`` when it does not concern it."""
        if not budget.concerns(subject):
            return None
        key = subject.key(budget.per)
        since_day, until_day = self._days(budget.every)
        query = SumQuery(
            grain="run" if budget.per == "run" else "thread" if budget.per == "thread" else "day",
            by=("kind", "currency", "day"),
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
        return Standing(
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

    def _refs(self) -> Iterator[Ref]:
        return each_ref(self._engine, self._space, BUDGETS)


def _limits(budget: SharedBudget) -> dict[Measure, int]:
    every: dict[Measure, int | None] = {
        "money": budget.money_nanos,
        "tokens": budget.tokens,
        "tool_calls": budget.tool_calls,
    }
    return {name: limit for name, limit in every.items() if limit is not None}


def _amount(standing: Standing, name: Measure) -> str:
    used, limit = standing.used[name], standing.limits[name]
    if name == "money":
        spent, allowed = from_nanos(used).normalize(), from_nanos(limit).normalize()
        return f"{spent:f} of {allowed:f} {standing.budget.currency}"
    return f"{used} of {limit} {name.replace('_', ' ')}"


def _check(budget: SharedBudget) -> None:
    words: Any = {"per": (budget.per, Per), "action": (budget.action, Action)}
    if budget.every is not None:
        words["every"] = (budget.every, Every)
    for what, (given, allowed) in words.items():
        if given not in allowed.__args__:
            raise InvalidInput(f"{what}={given!r} is not acceptable; use {', '.join(allowed.__args__)}")
    limits = _limits(budget)
    if not limits:
        raise InvalidInput(f"budget {budget.name!r} limits nothing; give it money=, tokens= or tool_calls=")
    for name, limit in limits.items():
        given: Any = limit
        if type(given) is not int or given < 0:
            told = budget.money if name == "money" else repr(given)
            raise InvalidInput(f"{name}={told} is no limit; use a number from 0 on")
    if not 0 < budget.warn_at <= 1:
        raise InvalidInput(
            f"warn_at={budget.warn_at} is no share of a budget; use a number up to 1, like 0.8"
        )


def _budget(ref: Ref) -> SharedBudget:
    try:
        return msgspec.convert(decode_json(ref.value), SharedBudget)
    except (msgspec.ValidationError, ValueError) as error:
        raise Corrupt(f"budget {ref.name!r} cannot be read ({error}); set it again") from None


# -----------------------------------------------------------------------------------------------------------
# The guard of a recording: looks at the store's budgets before a call of a model or a tool begins.
#
# Budgets are read again every few seconds; while none concerns the caller, a call costs one look at the
# clock. With some, what was recorded so far is made durable first: what the store does not have it cannot
# count.


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

    def admit(self, context: RunContext, agent: str | None) -> None:
        """Raise `BudgetExceeded` if the call must not be made; warn when a budget runs out."""
        if time.monotonic() >= self._read_again_at:
            self._read()
        if not self._budgets:
            return
        subject = Subject(run=context.run, thread=context.thread, agent=agent)
        concerned = [budget for budget in self._budgets if budget.concerns(subject)]
        if not concerned:
            return
        self._recorder.flush()
        for budget in concerned:
            standing = self._shared.of(budget, subject)
            if standing is not None and standing.share >= budget.warn_at:
                self._tell(standing, subject, context.scope)
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

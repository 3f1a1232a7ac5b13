"""Budgets of money, tokens and tool calls, for each run, thread or agent, or for the whole store.

Usage is read from the roll-ups, so all processes that record into a store share its budgets, and there is no
counter that could drift from what was recorded. Budgets are checked before a model or tool call starts.
Running calls are not interrupted, so concurrent calls may exceed a budget by what they use. **Invariant:** a
call starts only if no budget with action ``stop`` is used up by everything that was committed before.

A *strict* budget is never exceeded. A call first reserves what it may use at most: a commit that adds it to
the reservations in a ref, and that fails if another process reserved in between. The call starts only if what
is recorded and what is reserved leave room. A reservation counts until the row of its span is in the journal,
so one whose process died counts as used, because its call may have been made.
"""

from __future__ import annotations

import logging
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.core.batch import ABSENT, ANY, Backoff, Draft
from treering.core.clock import DAY_US, day_of, to_datetime
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import Scope, check_id, thread_key, thread_of_key
from treering.core.query import EventQuery, SumQuery, collecting, each_record, each_ref, readable
from treering.errors import BudgetExceeded, Corrupt, InvalidInput, RefMoved, TreeringError
from treering.runs.cost import cost_of
from treering.runs.money import check_currency, from_nanos, to_nanos
from treering.runs.span import SPAN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from decimal import Decimal

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.runs.recorder import Recorder
    from treering.runs.span import RunContext, Span


BUDGETS: Final = "budget/"
RESERVED: Final = "budget.reserved/"
"""Prefix of the refs with reservations. Whoever records writes them, not only who may change budgets."""
_SHARDS: Final = 16
"""Over how many refs the reservations of a budget are spread, by run, thread or agent."""
_STALE_US: Final = 3_600_000_000
"""How old a reservation is that `SharedBudgets.set` removes."""
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
    strict: bool = False
    """Whether calls reserve what they may use, so that the budget is never exceeded."""
    call_money_nanos: int | None = None
    """What a model call may cost at most, which it reserves of a strict budget."""
    call_tokens: int | None = None
    """How many tokens a model call may use at most, which it reserves of a strict budget."""

    def applies_to(self, caller: Caller) -> bool:
        """Whether the budget applies to a caller."""
        if self.agent is not None and caller.agent != self.agent:
            return False
        return self.per == "store" or caller.key(self.per) is not None

    @property
    def money(self) -> Decimal | None:
        """The limit as an amount of ``currency``."""
        return None if self.money_nanos is None else from_nanos(self.money_nanos)

    def needs(self, kind: str) -> dict[Measure, int]:
        """What a call of this kind, ``llm`` or ``tool``, reserves."""
        if kind == "tool":
            return {} if self.tool_calls is None else {"tool_calls": 1}
        given: dict[Measure, int | None] = {"money": self.call_money_nanos, "tokens": self.call_tokens}
        return {name: amount for name, amount in given.items() if amount is not None}


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
    reserved: dict[Measure, int] = {}
    """Of a strict budget: what calls have reserved and not yet recorded."""

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

    def error(self, lacking: Measure | None = None) -> BudgetExceeded:
        """Return the error for the next call, which there is no room for."""
        name = lacking or self.worst
        is_reserved = self.reserved.get(name, 0) > 0
        retry = {
            "day": "wait for the next day (UTC)",
            "month": "wait for the next month (UTC)",
            None: "use another budget",
        }
        return BudgetExceeded(
            f"the call was not made: budget {self.describe()} is used up"
            f"{' with what running calls have reserved' if is_reserved else ''}; "
            f"{retry[self.budget.every]}, or raise it with store.budgets.set({self.budget.name!r}, ...)",
            budget=self.budget.name,
            limit=self.limits[name],
            count=self.used[name] + self.reserved.get(name, 0),
        )


class _Reservation(msgspec.Struct, frozen=True, kw_only=True):
    key: str | None
    at_us: int
    amounts: dict[Measure, int]


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
        strict: bool = False,
        call_money: Decimal | float | str | None = None,
        call_tokens: int | None = None,
    ) -> SharedBudget:
        """Create or replace a budget. Every process applies it within seconds.

        Args:
            strict: Never exceed it, however many processes make calls: each call first reserves what it may
                use, at the cost of a commit. Reservations that are older than an hour are removed.
            call_money: What a model call may cost at most. A strict budget of money requires it.
            call_tokens: How many tokens a model call may use at most, likewise.
        """
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
            strict=strict,
            call_money_nanos=None if call_money is None else to_nanos(call_money),
            call_tokens=call_tokens,
        )
        _validate(budget)
        draft = Draft(self._space)
        plain = {key: value for key, value in msgspec.structs.asdict(budget).items() if value is not None}
        draft.set_ref(BUDGETS + name, encode_json(plain), scope=_SCOPE, expect=ANY)
        self._commit(draft)
        stale_us = self._clock.now_us() - _STALE_US
        for ref in each_ref(self._engine, self._space, f"{RESERVED}{name}/"):
            self._change(
                ref.name, lambda held: {span: each for span, each in held.items() if each.at_us > stale_us}
            )
        return budget

    def remove(self, name: str) -> bool:
        """Remove a budget; return whether it existed."""
        if BUDGETS + name not in self._engine.refs(self._space, [BUDGETS + name]):
            return False
        draft = Draft(self._space)
        draft.delete_ref(BUDGETS + name, scope=_SCOPE)
        for ref in each_ref(self._engine, self._space, f"{RESERVED}{name}/"):
            draft.delete_ref(ref.name, scope=_SCOPE)
        self._commit(draft)
        return True

    def list(self) -> tuple[SharedBudget, ...]:
        """List budgets by name."""
        return tuple(readable(each_ref(self._engine, self._space, BUDGETS), _budget_from_ref))

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
        held = self._held(_ref_of(budget, key))[0] if budget.strict else {}
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
            reserved=_total(held, key, limits) if budget.strict else {},
        )

    def reserve(self, budget: SharedBudget, caller: Caller, span: str, kind: str) -> BudgetUsage | None:
        """Reserve what a call may use; return the usage before, or ``None`` if the budget does not apply.

        Raises:
            BudgetExceeded: There is no room for it.
        """
        backoff = Backoff()
        name = _ref_of(budget, caller.key(budget.per))
        while True:
            current = self._engine.refs(self._space, [BUDGETS + budget.name]).get(BUDGETS + budget.name)
            if current is None:
                return None
            budget = _budget_from_ref(current)
            # What is read first may be recorded meanwhile, and is then counted twice, but never not at all.
            held, version = self._held(name)
            usage = self.usage_of(msgspec.structs.replace(budget, strict=False), caller)
            if usage is None or not budget.strict:
                return usage
            usage = msgspec.structs.replace(usage, reserved=_total(held, usage.key, usage.limits))
            needs = budget.needs(kind)
            for measure, limit in usage.limits.items():
                need, used = needs.get(measure, 0), usage.used[measure]
                if used < limit and used + usage.reserved[measure] + need <= limit:
                    continue
                if used < limit and not held.keys() <= self._held(name)[0].keys():
                    break  # one of them was recorded meanwhile: look again
                raise usage.error(measure)
            else:
                if not needs:
                    return usage
                held[span] = _Reservation(key=usage.key, at_us=self._clock.now_us(), amounts=needs)
                try:
                    self._write_held(name, held, version)
                except RefMoved:
                    backoff.wait()
                else:
                    return usage

    def release(self, budget: SharedBudget, caller: Caller, span: str) -> None:
        """Give a reservation back whose call is not made."""
        self._change(
            _ref_of(budget, caller.key(budget.per)),
            lambda held: {name: each for name, each in held.items() if name != span},
        )

    def _held(self, name: str) -> tuple[dict[str, _Reservation], int]:
        """Return the reservations in a ref whose spans are not in the journal, and the version of the ref."""
        ref = self._engine.refs(self._space, [name]).get(name)
        if ref is None:
            return {}, 0
        held = _reservations(ref)
        if not held:
            return {}, ref.version
        query = EventQuery(
            ids=tuple(held),
            since_us=min(each.at_us for each in held.values()) - DAY_US,
            until_us=self._clock.now_us() + DAY_US,
        )
        recorded = {
            record.event.id
            for record in each_record(self._engine, self._space, query)
            if record.event.kind.startswith(SPAN)
        }
        return {span: each for span, each in held.items() if span not in recorded}, ref.version

    def _change(
        self, name: str, change: Callable[[dict[str, _Reservation]], dict[str, _Reservation]]
    ) -> None:
        backoff = Backoff()
        while True:
            held, version = self._held(name)
            if not version:
                return
            try:
                self._write_held(name, change(held), version)
            except RefMoved:
                backoff.wait()
            else:
                return

    def _write_held(self, name: str, held: dict[str, _Reservation], version: int) -> None:
        draft = Draft(self._space)
        value = encode_json({span: msgspec.to_builtins(each) for span, each in held.items()})
        draft.set_ref(name, value, scope=_SCOPE, expect=version or ABSENT)
        self._engine.commit(draft.batch())

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


def _ref_of(budget: SharedBudget, key: str | None) -> str:
    """Return the ref with the reservations for a key."""
    return f"{RESERVED}{budget.name}/{zlib.crc32((key or '').encode()) % _SHARDS}"


def _reservations(ref: Ref) -> dict[str, _Reservation]:
    try:
        return msgspec.convert(decode_json(ref.value), dict[str, _Reservation])
    except (msgspec.ValidationError, ValueError) as error:
        raise Corrupt(f"the reservations {ref.name!r} are corrupt ({error}); remove the budget") from None


def _total(held: dict[str, _Reservation], key: str | None, limits: dict[Measure, int]) -> dict[Measure, int]:
    own = [each.amounts for each in held.values() if each.key == key]
    return {measure: sum(amounts.get(measure, 0) for amounts in own) for measure in limits}


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
    if budget.strict:
        _validate_strict(budget, limits)
    elif budget.call_money_nanos is not None or budget.call_tokens is not None:
        raise InvalidInput("call_money= and call_tokens= are for strict budgets; pass strict=True with them")
    if not 0 < budget.warn_at <= 1:
        raise InvalidInput(
            f"warn_at={budget.warn_at} is not a valid share; use a number above 0 and up to 1, such as 0.8"
        )


def _validate_strict(budget: SharedBudget, limits: dict[Measure, int]) -> None:
    if budget.action != "stop":
        raise InvalidInput("a strict budget stops calls; leave out action=, or strict=True")
    amounts: dict[Measure, int | None] = {"money": budget.call_money_nanos, "tokens": budget.call_tokens}
    for measure, amount in amounts.items():
        if (amount is not None) != (measure in limits):
            raise InvalidInput(
                f"a strict budget takes {measure}= and call_{measure}= together: the limit, and what a model "
                "call may use at most"
            )
        if amount is not None and (type(amount) is not int or amount <= 0):
            raise InvalidInput(f"call_{measure} must be more than 0: it is what a model call reserves")


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

    def admit(self, context: RunContext, call: Span) -> None:
        """Raise `BudgetExceeded` if the call must not be made; raise an alert when a budget runs out.

        A call that a strict budget cannot be checked for, because the store fails, raises that error.
        """
        if time.monotonic() >= self._refresh_at:
            self._refresh()
        if not self._budgets:
            return
        caller = Caller(run=context.writer.run, thread=context.writer.thread, agent=call.agent)
        applicable = [budget for budget in self._budgets if budget.applies_to(caller)]
        if not applicable:
            return
        try:
            self._recorder.flush(patience=_PATIENCE_SECONDS)
        except TreeringError as error:  # the budgets apply to what is committed
            log.warning("what was recorded cannot be written, so budgets do not count it yet: %s", error)
        for budget in applicable:
            if budget.strict:
                continue  # reserved below, if the others agree
            try:
                usage = self._shared.usage_of(budget, caller)
            except TreeringError as error:
                log.warning("budget %s cannot be checked, so the call is made: %s", budget.name, error)
                continue
            if usage is not None and usage.share >= budget.warn_at:
                self._raise_alert(usage, caller, context.writer.scope)
                if usage.is_used_up and budget.action == "stop":
                    raise usage.error()
        strict = [budget for budget in applicable if budget.strict]
        if strict:
            self._reserve(strict, caller, call, context.writer.scope)

    def _reserve(self, budgets: Sequence[SharedBudget], caller: Caller, call: Span, scope: str) -> None:
        """Reserve of all of these budgets, or of none."""
        reserved: list[SharedBudget] = []
        try:
            for budget in budgets:
                usage = self._shared.reserve(budget, caller, call.id, call.kind)
                reserved.append(budget)
                if usage is not None and usage.share >= budget.warn_at:
                    self._raise_alert(usage, caller, scope)
        except BaseException as error:
            for budget in reserved:
                with suppress(TreeringError):  # it then counts, although nothing is used
                    self._shared.release(budget, caller, call.id)
            if isinstance(error, BudgetExceeded):
                usage = self._shared.usage_of(budgets[len(reserved)], caller)
                if usage is not None and usage.share >= budgets[len(reserved)].warn_at:
                    self._raise_alert(usage, caller, scope)
            raise

    def refresh_soon(self) -> None:
        """Read the budgets again at the next call, because they were just changed."""
        self._refresh_at = 0.0

    def _refresh(self) -> None:
        self._refresh_at = time.monotonic() + REFRESH_SECONDS
        try:
            with collecting() as unreadable:
                found = self._shared.list()
            for each in unreadable.values():
                log.warning("budget %r cannot be read: %s", each.name, each.problem)
            # One that cannot be read any more still applies as it was last known.
            known = (each for each in self._budgets if BUDGETS + each.name in unreadable)
            self._budgets = (*found, *known)
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

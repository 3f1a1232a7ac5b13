"""Alerts of one space: what was raised, the rules that raise them, and where they are sent."""

from __future__ import annotations

import threading
import time
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

import msgspec

from treering.core.batch import ABSENT, Draft
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import check_id
from treering.core.money import from_nanos
from treering.core.paging import each_ref
from treering.core.query import EventQuery, SumQuery
from treering.core.rollups import ERROR
from treering.errors import Corrupt, InvalidInput, NotFound, RefMoved, TreeringError
from treering.limits.alert import Alert, AlertPage, alert_id, log, newest_alerts, raise_alert
from treering.limits.webhooks import (
    SCOPE,
    SENT,
    WEBHOOKS,
    Delivery,
    Webhook,
    begin_at,
    check_webhook,
    deliver,
    webhook_of,
)
from treering.runs.directory import Runs
from treering.runs.run import CRASHED, RUN, RunInfo, run_info, run_ref, run_scope

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from threading import Event
    from types import TracebackType

    from treering.core.batch import Expect
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref


# -----------------------------------------------------------------------------------------------------------
# Rules about runs: one that fails, and one that is unlike those before it.
#
# A rule looks at a run when it is over. What "unlike" means is decided by the runs that the same agent
# finished before: more than so many times their median, of money, tokens or time. Too few runs before it,
# or a median of nothing, and there is no judgement.


RULES: Final = "alerts/rule/"

What = Literal["failed", "failures", "cost", "tokens", "duration"]
"""Each failed run; too many of the last ones; or more money, tokens or time than usual."""

_FAILED: Final = frozenset({ERROR, CRASHED})
_SECOND_US: Final = 1_000_000
_LONGEST_REASON: Final = 300


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """When a run is worth an alert."""

    name: str
    what: What
    agent: str | None = None
    """Only runs of this agent; ``None``: of each agent by itself."""
    times: float = 3.0
    """``cost``, ``tokens``, ``duration``: more than so many times the median."""
    share: float = 0.5
    """``failures``: more than this share of the last runs."""
    runs: int = 20
    """How many of the agent's last runs are looked at."""
    at_least: int = 5
    """With fewer runs before it, nothing is said."""


def rule_of(ref: Ref) -> Rule:
    """A rule out of its ref."""
    try:
        return msgspec.convert(decode_json(ref.value), Rule)
    except (msgspec.ValidationError, ValueError) as error:
        raise Corrupt(f"alert rule {ref.name!r} cannot be read ({error}); set it again") from None


def check_rule(rule: Rule) -> Rule:
    """A rule that can be stored."""
    words: Any = What
    if rule.what not in words.__args__:
        raise InvalidInput(f"what={rule.what!r} is not acceptable; use {', '.join(words.__args__)}")
    if not rule.times > 0 or not 0 <= rule.share < 1 or rule.runs < 1 or not 1 <= rule.at_least <= rule.runs:
        raise InvalidInput(
            f"rule {rule.name!r} is not acceptable: times above 0, share from 0 to below 1, and at_least "
            "from 1 up to runs"
        )
    return rule


def judge(engine: Engine, space: str, rule: Rule, run: RunInfo, before: Sequence[RunInfo]) -> Alert | None:
    """What a rule says about a finished run; ``before`` are the agent's earlier ones, newest first."""
    if rule.agent not in (None, run.agent):
        return None
    if rule.what == "failed":
        if run.status not in _FAILED:
            return None
        return _alert(rule, run, f"run {run.id} of {_who(run)} ended as {run.status}{_reason(run)}", {})
    earlier = before[: rule.runs]
    if len(earlier) < rule.at_least:
        return None
    if rule.what == "failures":
        return _failures(rule, run, [run, *earlier][: rule.runs])
    mine = _measures(engine, space, rule.what, run)
    others = [_measures(engine, space, rule.what, each) for each in earlier]
    for unit, amount in mine.items():
        usual = median(each.get(unit, 0) for each in others)
        if usual > 0 and amount > rule.times * usual:
            words = f"{_shown(rule.what, unit, amount)} where {_shown(rule.what, unit, usual)} is usual"
            figures = {
                "what": rule.what,
                "value": amount,
                "median": usual,
                "unit": unit,
                "runs": len(earlier),
            }
            return _alert(rule, run, f"run {run.id} of {_who(run)} took {words}", figures)
    return None


def _failures(rule: Rule, run: RunInfo, last: Sequence[RunInfo]) -> Alert | None:
    failed = sum(each.status in _FAILED for each in last)
    if run.status not in _FAILED or failed <= rule.share * len(last):
        return None
    message = f"{failed} of the last {len(last)} runs of {_who(run)} failed"
    return _alert(rule, run, message, {"failed": failed, "runs": len(last)})


def _measures(engine: Engine, space: str, what: What, run: RunInfo) -> dict[str, int]:
    """Money by currency, or the one number that is asked for."""
    if what == "duration":
        return {"us": run.duration_us or 0}
    sums = engine.sums(space, SumQuery(grain="run", by=("currency",), key=run.id))
    if what == "tokens":
        return {"tokens": sum(each.usage.total for each in sums)}
    return {str(each.group[0]): each.cost_nanos for each in sums if each.group[0]}


def _alert(rule: Rule, run: RunInfo, message: str, figures: dict[str, Any]) -> Alert:
    return Alert(
        id=alert_id("rule", rule.name, rule.what, run.id),
        ts_us=run.ended_at_us or run.started_at_us,
        level="critical" if rule.what in ("failed", "failures") else "warning",
        rule=rule.name,
        message=message,
        run=run.id,
        agent=run.agent,
        thread=run.thread,
        namespace=run.namespace,
        figures=figures,
    )


def _reason(run: RunInfo) -> str:
    """What the run's exception was, if it is known."""
    error: Any = run.meta.get("error")
    if not isinstance(error, dict):
        return ""
    told = cast("dict[str, Any]", error)
    return f": {told.get('type')}: {told.get('message')}"[:_LONGEST_REASON]


def _who(run: RunInfo) -> str:
    return "no agent" if run.agent is None else repr(run.agent)


def _shown(what: What, unit: str, amount: float) -> str:
    if what == "cost":
        return f"{from_nanos(round(amount)).normalize():f} {unit}"
    if what == "duration":
        return f"{amount / _SECOND_US:.1f} s"
    return f"{amount:.0f} tokens"


# -----------------------------------------------------------------------------------------------------------
# The watch: a thread that judges the runs that end and sends alerts to webhooks, until it is closed.
#
# Any number of processes may keep one: positions in the journal are shared, a webhook has a lease, and an
# alert that is raised twice is still one. What fails is tried again, after a pause that doubles. Each
# webhook is sent to by a thread of its own, so a receiver that takes its time keeps nobody waiting but
# itself.


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


# -----------------------------------------------------------------------------------------------------------

EXAMINED: Final = "alerts/examined"
_PAGE: Final = 500
_LOOKED_AT: Final = 100
"""How many runs of an agent are read to find those that ended before the one that is judged."""


class Alerts:
    """What someone should know about one space."""

    def __init__(self, engine: Engine, space: str, *, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._clock = clock

    def page(self, *, first: int = 100, cursor: str | None = None) -> AlertPage:
        """Alerts that were raised, newest first."""
        return newest_alerts(self._engine, self._space, first=first, cursor=cursor)

    # Rules
    def set_rule(
        self,
        name: str,
        what: What,
        *,
        agent: str | None = None,
        times: float = 3.0,
        share: float = 0.5,
        runs: int = 20,
        at_least: int = 5,
    ) -> Rule:
        """Make a rule, or change the one of this name; it is for runs that end from now on.

        ``failed``: each run that fails. ``failures``: more than ``share`` of the agent's last ``runs`` did.
        ``cost``, ``tokens``, ``duration``: more than ``times`` the median of the agent's last ``runs``.
        """
        rule = check_rule(
            Rule(
                name=check_id(name, "rule name"),
                what=what,
                agent=agent,
                times=times,
                share=share,
                runs=runs,
                at_least=at_least,
            )
        )
        draft = Draft(self._space)
        self._begin(draft)
        self._set(draft, RULES + name, rule)
        self._engine.commit(draft.batch())
        return rule

    def rules(self) -> tuple[Rule, ...]:
        """All rules, by name."""
        return tuple(rule_of(ref) for ref in self._refs(RULES))

    def remove_rule(self, name: str) -> bool:
        """Lift a rule; says whether it was there."""
        return self._remove(RULES + name)

    def examine(self) -> list[Alert]:
        """Judge the runs that ended since this was last done, here or elsewhere; gives the new alerts."""
        rules = self.rules()
        raised: list[Alert] = []
        while rules:
            seq, version = self._examined()
            page = self._engine.scan(self._space, EventQuery(kinds=(RUN,)), after=str(seq), limit=_PAGE)
            if not page.records:
                break
            ended = [record.event.run for record in page.records if record.event.run is not None]
            for run in self._infos(ended):
                raised += self._judge(rules, run)
            draft = Draft(self._space)
            draft.set_ref(EXAMINED, encode_json({"seq": page.records[-1].seq}), scope=SCOPE, expect=version)
            try:
                self._engine.commit(draft.batch())
            except RefMoved:
                continue  # someone else examines too; what both raised is one alert
        return raised

    # Webhooks
    def set_webhook(self, name: str, url: str, *, secret_env: str | None = None) -> Webhook:
        """Send alerts to a URL from now on, or change where they go.

        ``secret_env`` names the environment variable that holds the key of the signature.
        """
        webhook = check_webhook(Webhook(name=check_id(name, "webhook name"), url=url, secret_env=secret_env))
        draft = Draft(self._space)
        self._set(draft, WEBHOOKS + name, webhook)
        if SENT + name not in self._engine.refs(self._space, [SENT + name]):
            begin_at(draft, webhook, self._last_seq())
        self._engine.commit(draft.batch())
        return webhook

    def webhooks(self) -> tuple[Webhook, ...]:
        """All webhooks, by name."""
        return tuple(webhook_of(ref) for ref in self._refs(WEBHOOKS))

    def remove_webhook(self, name: str) -> bool:
        """Send nothing there any more; says whether it was there."""
        self._remove(SENT + name)
        return self._remove(WEBHOOKS + name)

    def deliver(self, webhook: str, *, stop: Event | None = None) -> Delivery:
        """Send one webhook what it has not got yet; stops at the first alert that is not taken.

        Once ``stop`` is set, nothing more is begun.
        """
        found = self._engine.refs(self._space, [WEBHOOKS + webhook]).get(WEBHOOKS + webhook)
        if found is None:
            raise NotFound(f"there is no webhook {webhook!r}; alerts.webhooks() lists them")
        return deliver(self._engine, self._space, webhook_of(found), clock=self._clock, stop=stop)

    def watch(self, *, seconds: float = 1.0) -> Watch:
        """A thread that examines and delivers, every so many seconds: ``with store.alerts.watch(): ...``."""
        return Watch(self, seconds=seconds)

    def _judge(self, rules: tuple[Rule, ...], run: RunInfo) -> list[Alert]:
        before = self._before(run, max(rule.runs for rule in rules))
        judged = (judge(self._engine, self._space, rule, run, before) for rule in rules)
        return [
            alert
            for alert in judged
            if alert is not None and raise_alert(self._engine, self._space, alert, scope=run_scope(run))
        ]

    def _before(self, run: RunInfo, count: int) -> list[RunInfo]:
        """The agent's runs that were over when this one ended, newest first."""
        runs = Runs(self._engine, self._space, clock=self._clock, namespace=run.namespace)
        page = runs.page(first=count + _LOOKED_AT, agent=run.agent)
        end_us = run.ended_at_us or run.started_at_us
        return [
            each
            for each in page.runs
            if each.id != run.id and each.agent == run.agent
            if each.ended_at_us is not None and each.ended_at_us <= end_us
        ][:count]

    def _infos(self, ids: list[str]) -> list[RunInfo]:
        names = list(map(run_ref, ids))
        refs = self._engine.refs(self._space, names)
        return [run_info(refs[name]) for name in names if name in refs]

    def _begin(self, draft: Draft) -> None:
        """The first rule, also the first after a time without any, is for runs that end from now on."""
        if self._examined()[1] == ABSENT or not self.rules():
            draft.set_ref(EXAMINED, encode_json({"seq": self._last_seq()}), scope=SCOPE)

    def _examined(self) -> tuple[int, Expect]:
        found = self._engine.refs(self._space, [EXAMINED]).get(EXAMINED)
        if found is None:
            return 0, ABSENT
        return int(decode_json(found.value)["seq"]), found.version

    def _last_seq(self) -> int:
        return self._engine.wait(self._space, -1, seconds=0)

    def _set(self, draft: Draft, name: str, value: Any) -> None:
        plain = {key: each for key, each in msgspec.structs.asdict(value).items() if each is not None}
        draft.set_ref(name, encode_json(plain), scope=SCOPE)

    def _remove(self, name: str) -> bool:
        if name not in self._engine.refs(self._space, [name]):
            return False
        draft = Draft(self._space)
        draft.delete_ref(name, scope=SCOPE)
        self._engine.commit(draft.batch())
        return True

    def _refs(self, prefix: str) -> Iterator[Ref]:
        return each_ref(self._engine, self._space, prefix)

"""Alerts: budgets that run out, runs that fail, and runs that are unlike earlier ones.

An alert is an event of the journal, so everyone who follows the journal sees it at once. Its id is made from
what it is about: raised again, by this process or another one, it is the same alert. An alert about a run or
a thread is in their scope and is forgotten with them; an entry in a ledger, which holds only the id, lists
it.

Rules judge runs when they end. "Unlike" is measured against the runs that the same agent finished before:
more than so many times their median of money, tokens or time. With too few earlier runs, or a median of zero,
a rule raises nothing. An `AlertWatch` applies the rules and sends alerts to webhooks until it is closed.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime
from hashlib import sha256
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast

import msgspec

from treering.core.batch import ABSENT, Draft
from treering.core.batch import Event as JournalEvent
from treering.core.clock import to_datetime
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import Scope, check_id, thread_key, thread_of_key
from treering.core.query import EventQuery, SumQuery, each_ref, last_seq, readable
from treering.core.rollups import ERROR
from treering.errors import Closed, Corrupt, InvalidInput, NotFound, RefMoved, TreeringError
from treering.limits.webhooks import (
    ALERT_REFS,
    SCOPE,
    SENT,
    WEBHOOKS,
    Webhook,
    WebhookDelivery,
    deliver,
    set_position,
    validate_webhook,
    webhook_from_ref,
)
from treering.runs.listing import Runs
from treering.runs.money import from_nanos
from treering.runs.run import CRASHED, RUN, RunInfo, run_from_ref, run_ref

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from threading import Event
    from types import TracebackType

    from treering.core.batch import Expect
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref

ALERT: Final = "alert"
"""The kind of the row of an alert."""
LISTED: Final = "alert.listed"
"""The kind of a ledger entry for an alert that is in another scope."""
LEDGER: Final = str(Scope("", "ledger", "alerts"))
RULES: Final = f"{ALERT_REFS}rule/"
EXAMINED: Final = f"{ALERT_REFS}examined"

Level = Literal["warning", "critical"]
What = Literal["failed", "failures", "cost", "tokens", "duration"]
"""Every failed run; too many failures among the last runs; more money, tokens or time than usual."""

_LISTED_SUFFIX: Final = ":listed"
_FAILED: Final = frozenset({ERROR, CRASHED})
_SECOND_US: Final = 1_000_000
_MAX_REASON: Final = 300
_PAGE: Final = 500
_EXTRA_RUNS: Final = 100
"""How many more runs of an agent are read to find those that ended before the judged one."""

log: Final = logging.getLogger("treering.alerts")


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person should know. ``rule`` names the budget or the rule that raised it."""

    id: str
    ts_us: int
    level: Level
    rule: str
    message: str
    run: str | None = None
    agent: str | None = None
    thread: str | None = None
    namespace: str = ""
    """The namespace of the thread."""
    figures: dict[str, Any] = {}

    @property
    def ts(self) -> datetime:
        """In UTC."""
        return to_datetime(self.ts_us)


class AlertPage(msgspec.Struct, frozen=True, kw_only=True):
    """Alerts, newest first, and the cursor of the next page; ``None`` if there is none."""

    alerts: tuple[Alert, ...]
    cursor: str | None


class AlertRule(msgspec.Struct, frozen=True, kw_only=True):
    """When to raise an alert about a run that has ended."""

    name: str
    what: What
    agent: str | None = None
    """Only runs of this agent; ``None`` for each agent separately."""
    times: float = 3.0
    """For ``cost``, ``tokens`` and ``duration``: how many times the median is too much."""
    share: float = 0.5
    """For ``failures``: which share of the last runs is too much."""
    runs: int = 20
    """How many of the agent's last runs to compare with."""
    at_least: int = 5
    """How many earlier runs the rule needs."""


class Alerts:
    """The alerts, rules and webhooks of one space."""

    def __init__(self, engine: Engine, space: str, *, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._clock = clock

    def page(self, *, first: int = 100, cursor: str | None = None) -> AlertPage:
        """List alerts, newest first."""
        query = EventQuery(scope=LEDGER, kinds=(ALERT, LISTED), newest_first=True)
        page = self._engine.scan(self._space, query, after=cursor, limit=first)
        alerts = (self._alert(record) for record in page.records)
        return AlertPage(alerts=tuple(alert for alert in alerts if alert is not None), cursor=page.cursor)

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
    ) -> AlertRule:
        """Create or replace a rule, which applies to runs that end from now on.

        ``failed``: each run that fails. ``failures``: more than ``share`` of the agent's last ``runs``
        failed. ``cost``, ``tokens``, ``duration``: more than ``times`` the median of the last ``runs``.
        """
        rule = _validate_rule(
            AlertRule(
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
        if self._examined()[1] == ABSENT or not self.rules():  # skip the runs that ended before this rule
            draft.set_ref(EXAMINED, encode_json({"seq": last_seq(self._engine, self._space)}), scope=SCOPE)
        self._set(draft, RULES + name, rule)
        self._engine.commit(draft.batch())
        return rule

    def rules(self) -> tuple[AlertRule, ...]:
        """List rules by name."""
        return tuple(readable(each_ref(self._engine, self._space, RULES), _rule_from_ref))

    def remove_rule(self, name: str) -> bool:
        """Remove a rule; return whether it existed."""
        return self._remove(RULES + name)

    def examine(self) -> list[Alert]:
        """Judge the runs that ended since the last call, in any process; return the new alerts."""
        rules = self.rules()
        raised: list[Alert] = []
        while rules:
            seq, version = self._examined()
            page = self._engine.scan(self._space, EventQuery(kinds=(RUN,)), after=str(seq), limit=_PAGE)
            if not page.records:
                break
            ended = [record.event.run for record in page.records if record.event.run is not None]
            for run in self._runs(ended):
                raised += self._judge(rules, run)
            draft = Draft(self._space)
            draft.set_ref(EXAMINED, encode_json({"seq": page.records[-1].seq}), scope=SCOPE, expect=version)
            try:
                self._engine.commit(draft.batch())
            except RefMoved:
                continue  # another process examines too; an alert that both raised is one alert
        return raised

    def set_webhook(self, name: str, url: str, *, secret_env: str | None = None) -> Webhook:
        """Send alerts to a URL from now on, or change the URL of a webhook.

        ``secret_env`` names the environment variable that holds the signing key; it begins with
        ``TREERING_WEBHOOK_SECRET``. Addresses that are not public have to be allowed where alerts are sent
        from, with ``TREERING_WEBHOOK_ALLOW``.
        """
        webhook = validate_webhook(
            Webhook(name=check_id(name, "webhook name"), url=url, secret_env=secret_env)
        )
        draft = Draft(self._space)
        self._set(draft, WEBHOOKS + name, webhook)
        if SENT + name not in self._engine.refs(self._space, [SENT + name]):
            set_position(draft, webhook, last_seq(self._engine, self._space))
        self._engine.commit(draft.batch())
        return webhook

    def webhooks(self) -> tuple[Webhook, ...]:
        """List webhooks by name."""
        return tuple(readable(each_ref(self._engine, self._space, WEBHOOKS), webhook_from_ref))

    def remove_webhook(self, name: str) -> bool:
        """Remove a webhook; return whether it existed."""
        self._remove(SENT + name)
        return self._remove(WEBHOOKS + name)

    def deliver(self, webhook: str, *, stop: Event | None = None) -> WebhookDelivery:
        """Send a webhook the alerts that it has not received, up to the first failure.

        After ``stop`` is set, no further request is started.
        """
        ref = self._engine.refs(self._space, [WEBHOOKS + webhook]).get(WEBHOOKS + webhook)
        if ref is None:
            raise NotFound(f"webhook {webhook!r} not found. List webhooks with: treering alerts rules")
        return deliver(
            self._engine,
            self._space,
            webhook_from_ref(ref),
            alerts_after=self._alerts_after,
            clock=self._clock,
            stop=stop,
        )

    def watch(self, *, seconds: float = 1.0) -> AlertWatch:
        """Return a thread that examines and delivers every so often: ``with store.alerts.watch(): ...``."""
        return AlertWatch(self, seconds=seconds)

    def _alerts_after(self, seq: int) -> Iterator[tuple[int, Alert | None]]:
        """The next alerts in commit order, with their sequence numbers; ``None`` for forgotten ones."""
        query = EventQuery(scope=LEDGER, kinds=(ALERT, LISTED))
        for record in self._engine.scan(self._space, query, after=str(seq), limit=_PAGE).records:
            yield record.seq, self._alert(record)

    def _alert(self, record: Record) -> Alert | None:
        """Return the alert of a ledger entry; ``None`` if it was forgotten."""
        event = record.event
        if event.kind == LISTED:
            query = EventQuery(
                ids=(event.id.removesuffix(_LISTED_SUFFIX),),
                since_us=event.ts_us,
                until_us=event.ts_us + 1,
            )
            found = self._engine.scan(self._space, query, limit=1).records
            if not found:
                return None
            event = found[0].event
        data: dict[str, Any] = {} if event.data is None else decode_json(event.data)
        thread, namespace = thread_of_key(event.thread)
        return Alert(
            id=event.id,
            ts_us=event.ts_us,
            level="critical" if event.status == "critical" else "warning",
            rule=event.name or "",
            message=data.get("message", ""),
            run=event.run,
            agent=event.agent,
            thread=thread,
            namespace=namespace,
            figures=data.get("figures", {}),
        )

    def _judge(self, rules: tuple[AlertRule, ...], run: RunInfo) -> list[Alert]:
        earlier = self._earlier_runs(run, max(rule.runs for rule in rules))
        alerts = (judge(self._engine, self._space, rule, run, earlier) for rule in rules)
        return [
            alert
            for alert in alerts
            if alert is not None and raise_alert(self._engine, self._space, alert, scope=run.scope)
        ]

    def _earlier_runs(self, run: RunInfo, count: int) -> list[RunInfo]:
        """The agent's runs that ended before this one, newest first."""
        runs = Runs(self._engine, self._space, clock=self._clock, namespace=run.namespace)
        page = runs.page(first=count + _EXTRA_RUNS, agent=run.agent)
        end_us = run.ended_at_us or run.started_at_us
        return [
            each
            for each in page.runs
            if each.id != run.id and each.agent == run.agent
            if each.ended_at_us is not None and each.ended_at_us <= end_us
        ][:count]

    def _runs(self, ids: list[str]) -> list[RunInfo]:
        names = list(map(run_ref, ids))
        refs = self._engine.refs(self._space, names)
        return [run_from_ref(refs[name]) for name in names if name in refs]

    def _examined(self) -> tuple[int, Expect]:
        """The sequence number up to which runs were judged, and the version of its ref."""
        ref = self._engine.refs(self._space, [EXAMINED]).get(EXAMINED)
        if ref is None:
            return 0, ABSENT
        return int(decode_json(ref.value)["seq"]), ref.version

    def _set(self, draft: Draft, name: str, value: AlertRule | Webhook) -> None:
        plain = {key: each for key, each in msgspec.structs.asdict(value).items() if each is not None}
        draft.set_ref(name, encode_json(plain), scope=SCOPE)

    def _remove(self, name: str) -> bool:
        if name not in self._engine.refs(self._space, [name]):
            return False
        draft = Draft(self._space)
        draft.delete_ref(name, scope=SCOPE)
        self._engine.commit(draft.batch())
        return True


def alert_id(*about: str | int) -> str:
    """Return the id of an alert about this; the same for the same values."""
    return "al_" + sha256("\0".join(map(str, about)).encode()).hexdigest()[:24]


def raise_alert(engine: Engine, space: str, alert: Alert, *, scope: str = LEDGER) -> bool:
    """Write an alert to the journal and the log; return whether it is new."""
    draft = Draft(space)
    draft.event(
        JournalEvent(
            id=alert.id,
            kind=ALERT,
            ts_us=alert.ts_us,
            scope=scope,
            run=alert.run,
            thread=thread_key(alert.thread, alert.namespace),
            agent=alert.agent,
            name=alert.rule,
            status=alert.level,
            data=encode_json({"message": alert.message, "figures": alert.figures}),
        )
    )
    if scope != LEDGER:
        draft.event(JournalEvent(id=alert.id + _LISTED_SUFFIX, kind=LISTED, ts_us=alert.ts_us, scope=LEDGER))
    is_new = engine.commit(draft.batch()).new_events > 0
    if is_new:
        log.log(logging.ERROR if alert.level == "critical" else logging.WARNING, "%s", alert.message)
    return is_new


def _rule_from_ref(ref: Ref) -> AlertRule:
    try:
        return msgspec.convert(decode_json(ref.value), AlertRule)
    except (msgspec.ValidationError, ValueError) as error:
        raise Corrupt(f"alert rule {ref.name!r} is corrupt ({error}); set it again") from None


def _validate_rule(rule: AlertRule) -> AlertRule:
    choices: Any = What
    if rule.what not in choices.__args__:
        raise InvalidInput(f"what={rule.what!r} is invalid; use {', '.join(choices.__args__)}")
    if not rule.times > 0 or not 0 <= rule.share < 1 or rule.runs < 1 or not 1 <= rule.at_least <= rule.runs:
        raise InvalidInput(
            f"rule {rule.name!r} is invalid: use times above 0, share from 0 to below 1, and at_least "
            "from 1 to runs"
        )
    return rule


def judge(
    engine: Engine, space: str, rule: AlertRule, run: RunInfo, earlier: Sequence[RunInfo]
) -> Alert | None:
    """Apply a rule to an ended run. ``earlier`` are the agent's earlier runs, newest first."""
    if rule.agent not in (None, run.agent):
        return None
    if rule.what == "failed":
        if run.status not in _FAILED:
            return None
        message = f"run {run.id} of {_agent(run)} ended as {run.status}{_reason(run)}"
        return _alert(rule, run, message, {})
    compared = earlier[: rule.runs]
    if len(compared) < rule.at_least:
        return None
    if rule.what == "failures":
        return _judge_failures(rule, run, [run, *compared][: rule.runs])
    amounts = _measure(engine, space, rule.what, run)
    others = [_measure(engine, space, rule.what, each) for each in compared]
    for unit, amount in amounts.items():
        usual = median(each.get(unit, 0) for each in others)
        if usual > 0 and amount > rule.times * usual:
            message = (
                f"run {run.id} of {_agent(run)} took {_format(rule.what, unit, amount)}, "
                f"usual is {_format(rule.what, unit, usual)}"
            )
            figures = {
                "what": rule.what,
                "value": amount,
                "median": usual,
                "unit": unit,
                "runs": len(compared),
            }
            return _alert(rule, run, message, figures)
    return None


def _judge_failures(rule: AlertRule, run: RunInfo, last: Sequence[RunInfo]) -> Alert | None:
    failed = sum(each.status in _FAILED for each in last)
    if run.status not in _FAILED or failed <= rule.share * len(last):
        return None
    message = f"{failed} of the last {len(last)} runs of {_agent(run)} failed"
    return _alert(rule, run, message, {"failed": failed, "runs": len(last)})


def _measure(engine: Engine, space: str, what: What, run: RunInfo) -> dict[str, int]:
    """Return money by currency, or a single number by its unit."""
    if what == "duration":
        return {"us": run.duration_us or 0}
    sums = engine.sums(space, SumQuery(grain="run", by=("currency",), key=run.id))
    if what == "tokens":
        return {"tokens": sum(each.usage.total for each in sums)}
    return {str(each.group[0]): each.cost_nanos for each in sums if each.group[0]}


def _alert(rule: AlertRule, run: RunInfo, message: str, figures: dict[str, Any]) -> Alert:
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
    """Return the run's exception as text, if it is known."""
    error: Any = run.meta.get("error")
    if not isinstance(error, dict):
        return ""
    fields = cast("dict[str, Any]", error)
    return f": {fields.get('type')}: {fields.get('message')}"[:_MAX_REASON]


def _agent(run: RunInfo) -> str:
    return "no agent" if run.agent is None else repr(run.agent)


def _format(what: What, unit: str, amount: float) -> str:
    if what == "cost":
        return f"{from_nanos(round(amount)).normalize():f} {unit}"
    if what == "duration":
        return f"{amount / _SECOND_US:.1f} s"
    return f"{amount:.0f} tokens"


FIRST_RETRY_SECONDS: Final = 1.0
MAX_RETRY_SECONDS: Final = 300.0
CLOSE_SECONDS: Final = 5.0
"""How long closing waits for webhooks to answer; the next watch sends again what was not answered."""
MAX_SENDING: Final = 8
"""How many webhooks are sent to at the same time."""
_RULES_TASK: Final = "rules"
_WEBHOOKS_TASK: Final = "webhooks"


class AlertWatch:
    """A thread that applies the rules and sends alerts. Use it in a ``with`` statement, or `start` and
    `close`.

    Any number of processes may run one: positions in the journal are shared, a webhook is sent to under a
    lease, and an alert raised twice is one alert. What fails is retried with exponential backoff. Each
    webhook has a thread of its own, so a slow receiver delays nobody else.
    """

    def __init__(self, alerts: Alerts, *, seconds: float, first_retry: float = FIRST_RETRY_SECONDS) -> None:
        self._alerts = alerts
        self._seconds = seconds
        self._first_retry = first_retry
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pauses: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}
        self._sending: dict[str, threading.Thread] = {}
        self._pending: dict[str, None] = {}
        """Webhooks that may have alerts to receive and had no turn in the last round, in order."""

    def start(self) -> Self:
        """Start the thread."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._work, name="treering-watch", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Start nothing more."""
        self._stop.set()

    def close(self, *, seconds: float = CLOSE_SECONDS) -> None:
        """Stop, and wait up to ``seconds`` for what is being sent."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        deadline = time.monotonic() + seconds
        for thread in self._sending.values():
            thread.join(max(deadline - time.monotonic(), 0.0))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run_once(self) -> None:
        """Do one round: judge ended runs, and start sending new alerts. What failed recently is skipped."""
        if self._is_due(_RULES_TASK):
            self._examine()
        pending, self._pending = list(self._pending), {}
        self._sending = {name: thread for name, thread in self._sending.items() if thread.is_alive()}
        webhooks = self._webhooks()
        # Those that had no turn come first.
        turns = dict.fromkeys([*(name for name in pending if name in webhooks), *webhooks])
        for webhook in turns:
            if not self._is_due(_task(webhook)):
                continue
            if webhook in self._sending or len(self._sending) >= MAX_SENDING:
                self._pending[webhook] = None
                continue
            thread = threading.Thread(
                target=self._send, args=(webhook,), name="treering-webhook", daemon=True
            )
            self._sending[webhook] = thread
            thread.start()

    @property
    def is_waiting(self) -> bool:
        """Whether something is to be retried or is still to be sent."""
        return bool(self._retry_at or self._pending)

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self.run_once()
            except Closed:
                log.warning("the store of the alerts was closed; nothing more is sent")
                return
            self._stop.wait(self._next_seconds())

    def _webhooks(self) -> list[str]:
        if not self._is_due(_WEBHOOKS_TASK):
            return []
        try:
            names = [webhook.name for webhook in self._alerts.webhooks()]
        except Closed:
            raise
        except TreeringError as error:
            self._back_off(_WEBHOOKS_TASK, str(error))
            return []
        self._reset(_WEBHOOKS_TASK)
        return names

    def _examine(self) -> None:
        try:
            self._alerts.examine()
        except Closed:
            raise
        except TreeringError as error:
            self._back_off(_RULES_TASK, str(error))
        else:
            self._reset(_RULES_TASK)

    def _send(self, webhook: str) -> None:
        """Send a webhook all that it has not received; runs in a thread of its own."""
        try:
            delivery = self._alerts.deliver(webhook, stop=self._stop)
        except Closed:
            return  # the watch itself says so
        except TreeringError as error:
            self._back_off(_task(webhook), str(error))
        except Exception:
            log.exception("sending to webhook %r failed", webhook)
            self._back_off(_task(webhook), "internal error")
        else:
            if delivery.error is not None:
                self._back_off(_task(webhook), delivery.error)
                return
            self._reset(_task(webhook))
            if delivery.is_busy:  # the process that sends now may die
                self._pending[webhook] = None

    def _is_due(self, task: str) -> bool:
        return time.monotonic() >= self._retry_at.get(task, 0.0)

    def _reset(self, task: str) -> None:
        self._pauses.pop(task, None)
        self._retry_at.pop(task, None)

    def _back_off(self, task: str, error: str) -> None:
        """Retry later, after twice the previous pause."""
        pause = min(self._pauses.get(task, self._first_retry / 2) * 2, MAX_RETRY_SECONDS)
        self._pauses[task] = pause
        self._retry_at[task] = time.monotonic() + pause
        log.warning("%s: %s; retrying in %.0f s", task, error, pause)

    def _next_seconds(self) -> float:
        """How long to wait: until the next round, or the first retry if that is sooner."""
        now = time.monotonic()
        return max(min([self._seconds, *(at - now for at in list(self._retry_at.values()))]), 0.01)


def _task(webhook: str) -> str:
    return f"webhook {webhook}"

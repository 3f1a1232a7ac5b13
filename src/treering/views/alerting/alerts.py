"""Alerts of one space: what was raised, the rules that raise them, and where they are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import ABSENT
from treering.core.draft import Draft
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import check_id
from treering.core.pages import each_ref
from treering.core.query import EventQuery
from treering.errors import NotFound, RefMoved
from treering.views.alerting.alert import Alert, AlertPage, newest_alerts, raise_alert
from treering.views.alerting.rules import RULES, Rule, What, check_rule, judge, rule_of
from treering.views.alerting.watch import Watch
from treering.views.alerting.webhooks import (
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
from treering.views.recording.runs import RUN, RunInfo, run_info, run_ref, run_scope
from treering.views.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from threading import Event

    from treering.core.batch import Expect
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref

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

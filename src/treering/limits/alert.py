"""Alerts: that a budget runs out, that a run failed or was unlike those before it.

An alert is an event of the journal, so whoever follows the journal sees it at once, and nothing that was
told is lost. Its id follows from what it is about: raised again, by this process or by another one, it is
still the same alert. One about a run or a thread lies in their scope and is forgotten with them; a line in a
ledger, which holds nothing but the id, lists it.
"""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.core.batch import Draft, Event
from treering.core.clock import to_iso
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import Scope, thread_key, thread_of_key
from treering.core.query import EventQuery

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.engine import Engine
    from treering.core.records import Record

ALERT: Final = "alert"
LISTED: Final = "alert.listed"
LEDGER: Final = str(Scope("", "ledger", "alerts"))

log: Final = logging.getLogger("treering.alerts")
_SUFFIX: Final = ":listed"

Level = Literal["warning", "critical"]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person should know. ``rule`` names the budget or the rule that found it."""

    id: str
    ts_us: int
    level: Level
    rule: str
    message: str
    run: str | None = None
    agent: str | None = None
    thread: str | None = None
    namespace: str = ""
    """That of the thread."""
    figures: dict[str, Any] = {}

    @property
    def ts(self) -> str:
        """ISO 8601 with offset."""
        return to_iso(self.ts_us)


class AlertPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some alerts, newest first, and where the next page begins (``None``: nothing more)."""

    alerts: tuple[Alert, ...]
    cursor: str | None


def alert_id(*about: str | int) -> str:
    """The id of an alert about this; two alerts about the same have the same."""
    return "al_" + sha256("\0".join(map(str, about)).encode()).hexdigest()[:24]


def raise_alert(engine: Engine, space: str, alert: Alert, *, scope: str = LEDGER) -> bool:
    """Write an alert into the journal and the log; says whether it is new."""
    draft = Draft(space)
    draft.event(
        Event(
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
        draft.event(Event(id=alert.id + _SUFFIX, kind=LISTED, ts_us=alert.ts_us, scope=LEDGER))
    is_new = engine.commit(draft.batch()).new_events > 0
    if is_new:
        log.log(logging.ERROR if alert.level == "critical" else logging.WARNING, "%s", alert.message)
    return is_new


def newest_alerts(engine: Engine, space: str, *, first: int, cursor: str | None) -> AlertPage:
    """Alerts, newest first."""
    query = EventQuery(scope=LEDGER, kinds=(ALERT, LISTED), newest_first=True)
    page = engine.scan(space, query, after=cursor, limit=first)
    alerts = (alert_at(engine, space, record) for record in page.records)
    return AlertPage(alerts=tuple(alert for alert in alerts if alert is not None), cursor=page.cursor)


def listed_after(engine: Engine, space: str, seq: int, *, limit: int) -> Sequence[Record]:
    """The next lines of the ledger, in commit order."""
    query = EventQuery(scope=LEDGER, kinds=(ALERT, LISTED))
    return engine.scan(space, query, after=str(seq), limit=limit).records


def alert_at(engine: Engine, space: str, record: Record) -> Alert | None:
    """The alert that a line of the ledger lists; ``None`` when it was forgotten."""
    event = record.event
    if event.kind == LISTED:
        query = EventQuery(
            ids=(event.id.removesuffix(_SUFFIX),), since_us=event.ts_us, until_us=event.ts_us + 1
        )
        found = engine.scan(space, query, limit=1).records
        if not found:
            return None
        event = found[0].event
    told: dict[str, Any] = {} if event.data is None else decode_json(event.data)
    thread, namespace = thread_of_key(event.thread)
    return Alert(
        id=event.id,
        ts_us=event.ts_us,
        level="critical" if event.status == "critical" else "warning",
        rule=event.name or "",
        message=told.get("message", ""),
        run=event.run,
        agent=event.agent,
        thread=thread,
        namespace=namespace,
        figures=told.get("figures", {}),
    )

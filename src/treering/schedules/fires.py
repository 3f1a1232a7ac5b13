"""Fires: what a handler gets, and what the journal keeps of each occurrence.

An occurrence is claimed (perhaps several times, when workers die on it) and finished, or it is skipped; each
of these is an event in the task's scope and thread. Skipped occurrences in a row are one event with a count.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.core.batch import Event
from treering.core.clock import to_datetime, to_iso
from treering.core.encoding import decode, decode_json, encode, encode_json
from treering.errors import Unencodable
from treering.schedules.planning import Skip
from treering.schedules.tasks import OpenFire, Task, zone
from treering.threads.ids import thread_key

if TYPE_CHECKING:
    from treering.core.batch import Draft
    from treering.core.engine import Engine
    from treering.core.records import Record

CHANGED: Final = "schedule.changed"
OPENED: Final = "fire.opened"
CLAIMED: Final = "fire.claimed"
FINISHED: Final = "fire.finished"
SKIPPED: Final = "fire.skipped"
LOST: Final = "fire.lost"
FIRE_KINDS: Final = (FINISHED, SKIPPED)
TASK_KINDS: Final = (CHANGED, OPENED, CLAIMED, FINISHED, SKIPPED, LOST)
"""Every kind that goes with a change of a task's record."""

Outcome = Literal["ok", "error", "skipped"]


class Fire(msgspec.Struct, frozen=True, kw_only=True):
    """One occurrence of a task, for the handler: what to do, for whom, and which try this is."""

    task_id: str
    prompt: str
    channel: str
    chat_id: str
    namespace: str
    scheduled_at: datetime
    """When it was due, in the task's time zone."""
    scheduled_at_us: int
    attempt: int
    """1, or more when workers were lost on it: then some of the work may have been done."""
    token: int
    """Grows with every claim of the task: whoever is handed a lower one than before may refuse."""
    thread_id: str
    """``scheduler_{task_id}``, the thread to write to."""
    run_id: str | None = None
    """The run that records what the handler does."""
    manual: bool = False
    metadata: dict[str, Any] = {}


class FireReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an occurrence, or of ``count`` skipped ones in a row."""

    task_id: str
    outcome: Outcome
    scheduled_at_us: int
    last_scheduled_at_us: int
    count: int = 1
    reason: str = ""
    """Why it was skipped, or what went wrong."""
    result: Any = None
    attempt: int = 0
    token: int = 0
    run_id: str | None = None
    ended_at_us: int
    duration_us: int = 0
    manual: bool = False

    @property
    def scheduled_at(self) -> str:
        """When it was due, ISO 8601 with offset."""
        return to_iso(self.scheduled_at_us)


def fire_of(task: Task, fire: OpenFire, run_id: str | None) -> Fire:
    """What the handler gets."""
    return Fire(
        task_id=task.id,
        prompt=task.prompt,
        channel=task.channel,
        chat_id=task.chat_id,
        namespace=task.namespace,
        scheduled_at=to_datetime(fire.at_us).astimezone(zone(task.tz)),
        scheduled_at_us=fire.at_us,
        attempt=fire.attempt,
        token=fire.token,
        thread_id=task.thread_id,
        run_id=run_id,
        manual=fire.manual,
        metadata=task.metadata,
    )


def tell(
    draft: Draft,
    task: Task,
    kind: str,
    now_us: int,
    facts: dict[str, Any],
    *,
    number: int = 0,
    **columns: Any,
) -> None:
    """An event about a task; ``number`` tells apart those of one kind in one batch."""
    draft.event(
        Event(
            id=f"{draft.id}:{kind}:{number}",
            kind=kind,
            ts_us=now_us,
            scope=task.scope,
            name=task.id,
            thread=thread_key(task.thread_id, task.namespace),
            data=encode_json(facts),
            **columns,
        )
    )


def tell_skips(draft: Draft, task: Task, skips: tuple[Skip, ...], now_us: int, *, number: int = 0) -> None:
    """What was left out, and why; ``number`` is how many events the batch has already."""
    for place, skip in enumerate(skips, number):
        facts = msgspec.structs.asdict(skip)
        tell(draft, task, SKIPPED, now_us, facts, number=place, status="skipped")


def tell_finish(
    draft: Draft,
    task: Task,
    fire: Fire,
    *,
    began_us: int,
    now_us: int,
    result: Any,
    problem: str | None,
    number: int = 0,
) -> None:
    """What came of a fire."""
    facts: dict[str, Any] = {"at_us": fire.scheduled_at_us, "attempt": fire.attempt, "token": fire.token}
    if fire.manual:
        facts["manual"] = True
    if problem is not None:
        facts["problem"] = problem
    tell(
        draft,
        task,
        FINISHED,
        now_us,
        facts,
        number=number,
        run=fire.run_id,
        status="ok" if problem is None else "error",
        duration_us=max(now_us - began_us, 0),
        body=None if result is None else draft.put(_content(result), scope=task.scope),
    )


def report_of(engine: Engine, space: str, record: Record) -> FireReport:
    """What an event says of an occurrence."""
    event = record.event
    facts: dict[str, Any] = decode_json(event.data or b"{}")
    if event.kind == SKIPPED:
        return FireReport(
            task_id=event.name or "",
            outcome="skipped",
            scheduled_at_us=facts["first_us"],
            last_scheduled_at_us=facts["last_us"],
            count=facts["count"],
            reason=facts["reason"],
            ended_at_us=event.ts_us,
            manual=facts["manual"],
        )
    result = None if event.body is None else decode(engine.get(space, [event.body])[0])
    return FireReport(
        task_id=event.name or "",
        outcome="ok" if event.status == "ok" else "error",
        scheduled_at_us=facts["at_us"],
        last_scheduled_at_us=facts["at_us"],
        reason=facts.get("problem", ""),
        result=result,
        attempt=facts["attempt"],
        token=facts["token"],
        run_id=event.run,
        ended_at_us=event.ts_us,
        duration_us=event.duration_us or 0,
        manual=facts.get("manual", False),
    )


def _content(result: Any) -> Any:
    try:
        return encode(result, keep_order=True)
    except Unencodable:
        return encode(repr(result)[:2000])

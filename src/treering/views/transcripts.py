"""Transcripts: what was said in a thread, event by event, as an append-only log.

The events lie in the journal, in the order in which they were executed. With an ``outputs`` folder every one
of them is also a line of ``<outputs>/transcripts/<thread>.jsonl``, in the format of Agentry Lab, which grows
while the agents talk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

import msgspec

from treering.core.encoding import encode_json
from treering.core.ids import check_id, file_name
from treering.errors import InvalidInput
from treering.files import Drafts, opened_folder, translated
from treering.views.actions import Actions, read_actions
from treering.views.line_files import LineFile
from treering.views.logs import Entry, Log

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine

KIND: Final = "transcript"
Role = Literal["agent", "moderator", "summarizer", "advisor", "user"]


class TranscriptEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a transcript; one that failed has an ``error`` in place of its content."""

    t: float
    """Seconds since 1970, UTC."""
    iter: int
    agent_id: str
    role: str
    content: Any = None
    metadata: dict[str, Any] | None = None
    actions: Actions | None = None
    latency_ms: float | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the file."""
        plain: dict[str, Any] = {"t": self.t, "iter": self.iter, "agent_id": self.agent_id, "role": self.role}
        if self.error is not None:
            return {**plain, "error": self.error}
        plain |= {"content": self.content, "metadata": self.metadata}
        plain["actions"] = None if self.actions is None else msgspec.structs.asdict(self.actions)
        if self.latency_ms is not None:
            plain["latency_ms"] = self.latency_ms
        return plain


class Transcript:
    """The log of one thread."""

    def __init__(
        self,
        engine: Engine,
        space: str,
        thread_id: str,
        namespace: str,
        *,
        clock: Clock,
        outputs: Path | None = None,
    ) -> None:
        self._log = Log(engine, space, thread_id, namespace, kind=KIND)
        self._thread_id = thread_id
        self._clock = clock
        self._file: LineFile | None = None
        if outputs is not None:
            path = outputs / "transcripts" / f"{file_name(thread_id)}.jsonl"
            self._file = LineFile(path, self._lines)

    @property
    def thread_id(self) -> str:
        """The thread that was talked in."""
        return self._thread_id

    @property
    def path(self) -> Path | None:
        """The file that grows along, if there is one."""
        return None if self._file is None else self._file.path

    def append(
        self,
        agent_id: str,
        content: Any,
        *,
        iter: int,
        role: Role = "agent",
        metadata: Mapping[str, Any] | None = None,
        actions: Actions | Mapping[str, Any] | None = None,
        latency_ms: float | None = None,
    ) -> TranscriptEvent:
        """Add what an agent said, a str or a dict; durable when this returns."""
        return self._append(
            TranscriptEvent(
                t=self._clock.now_us() / 1e6,
                iter=iter,
                agent_id=agent_id,
                role=role,
                content=content,
                metadata=dict(metadata) if metadata is not None else None,
                actions=None if actions is None else read_actions(actions),
                latency_ms=latency_ms,
            )
        )

    def append_error(
        self, agent_id: str, error: BaseException | str, *, iter: int, role: Role = "agent"
    ) -> TranscriptEvent:
        """Add that an agent failed."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        now = self._clock.now_us() / 1e6
        return self._append(TranscriptEvent(t=now, iter=iter, agent_id=agent_id, role=role, error=text))

    def read(self, *, last: int | None = None, first: int | None = None) -> list[TranscriptEvent]:
        """The events in order: all, the last ones or the first ones."""
        if last is not None and first is not None:
            raise InvalidInput("say first= or last=, not both: they are the two ends")
        if last is not None:
            return [_event(entry) for entry in self._log.last(last)]
        return [_event(entry) for entry in islice(self._log.each(), first)]

    def by_iter(self) -> dict[int, list[TranscriptEvent]]:
        """The events of each iteration, in order."""
        grouped: dict[int, list[TranscriptEvent]] = {}
        for entry in self._log.each():
            event = _event(entry)
            grouped.setdefault(event.iter, []).append(event)
        return grouped

    def export(self, path: str | Path) -> int:
        """Write the whole transcript as JSON lines; the file is there whole or not at all. Says how many."""
        target = Path(path).expanduser().absolute()
        lines = [line + b"\n" for _, line in self._lines()]
        with (
            translated(str(target), writing=True),
            Drafts(target.parent, clock=self._clock).write(lines) as draft,
            opened_folder(target.parent) as folder,
        ):
            draft.publish(folder, target.name)
        return len(lines)

    def delete(self) -> int:
        """Remove the transcript and its file for good; checkpoints stay. Says how many events there were."""
        removed = self._log.erase()
        if self._file is not None:
            self._file.remove()
        return removed

    def _append(self, event: TranscriptEvent) -> TranscriptEvent:
        self._log.append(event.content, **columns_of(event))
        if self._file is not None:
            self._file.catch_up()
        return event

    def _lines(self, *, skip: int = 0, after: str | None = None) -> Iterator[tuple[str, bytes]]:
        for entry in islice(self._log.each(after=after), skip, None):
            yield entry.cursor, encode_json(_event(entry).to_dict(), keep_order=True)


def columns_of(event: TranscriptEvent) -> dict[str, Any]:
    """How a log keeps an event, apart from its content; `InvalidInput` for one that is not acceptable."""
    _check(event)
    plain = event.to_dict()
    return {
        "data": {name: value for name, value in plain.items() if name not in _COLUMNS and value is not None},
        "ts_us": round(event.t * 1e6),
        "agent": event.agent_id,
        "role": event.role,
        "status": None if event.error is None else "error",
    }


_COLUMNS: Final = frozenset({"t", "agent_id", "role", "content"})


def _event(entry: Entry) -> TranscriptEvent:
    row, rest = entry.event, entry.data
    actions = rest.get("actions")
    return TranscriptEvent(
        t=row.ts_us / 1e6,
        iter=rest.get("iter", 0),
        agent_id=row.agent or "",
        role=row.role or "agent",
        content=entry.content,
        metadata=rest.get("metadata"),
        actions=None if actions is None else read_actions(actions),
        latency_ms=rest.get("latency_ms"),
        error=rest.get("error"),
    )


def _check(event: TranscriptEvent) -> None:
    check_id(event.agent_id, "agent id")
    if event.role not in get_args(Role):
        raise InvalidInput(f"role is {event.role!r}; use one of {', '.join(get_args(Role))}")
    if type(event.iter) is not int or event.iter < 0:
        raise InvalidInput(f"iter is {event.iter!r}; iterations are counted from 0")
    if event.error is None and not isinstance(cast("object", event.content), str | dict):
        raise InvalidInput(
            f"content is of type {type(event.content).__name__}; a transcript takes a str or a dict"
        )

"""Transcripts: what agents said in a thread, event by event, as an append-only log.

The events are in the journal, in the order in which they were executed. With an ``outputs`` folder, each is
also a line of ``<outputs>/transcripts/<thread>.jsonl`` in the format of Agentry Lab, written while the agents
talk (see `line_files`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

import msgspec

from treering.core.encoding import encode_json
from treering.core.ids import check_id
from treering.errors import InvalidInput
from treering.files import Drafts, open_folder, translate_os_errors
from treering.threads.line_files import (
    TRANSCRIPT,
    LineFile,
    LineFormat,
    LogEntry,
    ThreadLog,
    line_file_name,
)
from treering.threads.thread import Actions, parse_actions

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.threads.removal import Cleaned


Role = Literal["agent", "moderator", "summarizer", "advisor", "user"]


class TranscriptEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a transcript; the event of a failure has an ``error``, and seldom anything else."""

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
    extra: dict[str, Any] = {}
    """Further keys of a line that another program wrote."""

    def to_dict(self) -> dict[str, Any]:
        """Return the event as it is written to the file."""
        plain: dict[str, Any] = {"t": self.t, "iter": self.iter, "agent_id": self.agent_id, "role": self.role}
        actions = None if self.actions is None else msgspec.structs.asdict(self.actions)
        said = {"content": self.content, "metadata": self.metadata, "actions": actions}
        if self.error is not None:
            said = {"error": self.error, **{name: each for name, each in said.items() if each is not None}}
        if self.latency_ms is not None:
            said["latency_ms"] = self.latency_ms
        return {**plain, **said, **self.extra}


class TranscriptPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a transcript, and the cursor of the next page; ``None`` if there is none now."""

    events: tuple[TranscriptEvent, ...]
    cursor: str | None


class Transcript:
    """The transcript of one thread."""

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
        self._log = ThreadLog(engine, space, thread_id, namespace, kind=TRANSCRIPT)
        self._thread_id = thread_id
        self._clock = clock
        self._file: LineFile | None = None
        if outputs is not None:
            path = outputs / "transcripts" / line_file_name(thread_id, namespace, space)
            self._file = LineFile(path, self._log, LINES)

    @property
    def thread_id(self) -> str:
        """The thread of this transcript."""
        return self._thread_id

    @property
    def path(self) -> Path | None:
        """The file that the transcript is also written to, if any."""
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
        """Add what an agent said (a str or a dict). It is durable when this returns."""
        return self._append(
            TranscriptEvent(
                t=self._clock.now_us() / 1e6,
                iter=iter,
                agent_id=agent_id,
                role=role,
                content=content,
                metadata=dict(metadata) if metadata is not None else None,
                actions=None if actions is None else parse_actions(actions),
                latency_ms=latency_ms,
            )
        )

    def append_error(
        self, agent_id: str, error: BaseException | str, *, iter: int, role: Role = "agent"
    ) -> TranscriptEvent:
        """Add an event that says that an agent failed."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        now = self._clock.now_us() / 1e6
        return self._append(TranscriptEvent(t=now, iter=iter, agent_id=agent_id, role=role, error=text))

    def append_event(self, event: TranscriptEvent) -> TranscriptEvent:
        """Add an event as it is, with its own time."""
        return self._append(event)

    def read(self, *, last: int | None = None, first: int | None = None) -> list[TranscriptEvent]:
        """Return the events in order: all, the last ones or the first ones."""
        if last is not None and first is not None:
            raise InvalidInput("give first= or last=, not both")
        if last is not None:
            return [_event(entry) for entry in self._log.last(last)]
        return [_event(entry) for entry in islice(self._log.each(), first)]

    def page(self, *, first: int = 1000, cursor: str | None = None) -> TranscriptPage:
        """Return a page of the events, oldest first, and the cursor of the next one."""
        if first < 1:
            raise InvalidInput(f"first={first}; request at least one event")
        entries = list(islice(self._log.each(after=cursor), first + 1))
        following = entries[first - 1].cursor if len(entries) > first else None
        return TranscriptPage(events=tuple(map(_event, entries[:first])), cursor=following)

    def by_iter(self) -> dict[int, list[TranscriptEvent]]:
        """Return the events of each iteration, in order."""
        grouped: dict[int, list[TranscriptEvent]] = {}
        for entry in self._log.each():
            event = _event(entry)
            grouped.setdefault(event.iter, []).append(event)
        return grouped

    def export(self, path: str | Path) -> int:
        """Write the whole transcript to a file of JSON lines, atomically; return the number of lines."""
        target = Path(path).expanduser().absolute()
        lines = [_render(entry) + b"\n" for entry in self._log.each()]
        with (
            translate_os_errors(str(target), writing=True),
            Drafts(target.parent, clock=self._clock).write(lines) as draft,
            open_folder(target.parent) as folder,
        ):
            draft.publish(folder, target.name)
        return len(lines)

    def delete(self) -> Cleaned:
        """Erase the transcript and its lines in files, but no checkpoints."""
        return self._log.erase()

    def _append(self, event: TranscriptEvent) -> TranscriptEvent:
        self._log.append(event.content, **columns_of(event))
        if self._file is not None:
            self._file.catch_up()
        return event


def columns_of(event: TranscriptEvent) -> dict[str, Any]:
    """Return the columns of an event in the log. Raise `InvalidInput` if the event is invalid."""
    _check(event)
    plain = msgspec.structs.replace(event, extra={}).to_dict()
    data = {name: value for name, value in plain.items() if name not in _COLUMNS and value is not None}
    return {
        "data": {**data, "extra": event.extra} if event.extra else data,
        "ts_us": round(event.t * 1e6),
        "agent": event.agent_id,
        "role": event.role,
        "status": None if event.error is None else "error",
    }


_COLUMNS: Final = frozenset({"t", "agent_id", "role", "content"})


def _event(entry: LogEntry) -> TranscriptEvent:
    row, rest = entry.event, entry.data
    actions = rest.get("actions")
    return TranscriptEvent(
        t=row.ts_us / 1e6,
        iter=rest.get("iter", 0),
        agent_id=row.agent or "",
        role=row.role or "agent",
        content=entry.content,
        metadata=rest.get("metadata"),
        actions=None if actions is None else parse_actions(actions),
        latency_ms=rest.get("latency_ms"),
        error=rest.get("error"),
        extra=rest.get("extra", {}),
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


def _render(entry: LogEntry) -> bytes:
    return encode_json(_event(entry).to_dict(), keep_order=True)


def event_of_line(line: bytes) -> TranscriptEvent:
    """Read a line of a file; keys that only another program knows become ``extra``."""
    try:
        event = msgspec.json.decode(line, type=TranscriptEvent)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"not an event of a transcript: {error}") from None
    known = set(TranscriptEvent.__struct_fields__) - {"extra"}
    extra = {name: each for name, each in msgspec.json.decode(line).items() if name not in known}
    return msgspec.structs.replace(event, extra=extra)


def _parse(line: bytes) -> tuple[Any, dict[str, Any]]:
    event = event_of_line(line)
    return event.content, columns_of(event)


LINES: Final = LineFormat(kind=TRANSCRIPT, render=_render, parse=_parse)

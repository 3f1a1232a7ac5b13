"""Transcripts: what agents said in a thread, event by event, as an append-only log.

The events are in the journal, in the order in which they were executed. With an ``outputs`` folder, each is
also a line of ``<outputs>/transcripts/<thread>.jsonl`` in the format of Agentry Lab, written while the agents
talk.

The journal is the record; such a file is a copy that can be tailed, searched and carried away. Whatever
happens to it is repaired at the next append: a torn last line is cut off (the next line would be glued to
it), and missing lines are written. **Invariant:** after an append the file holds the journal's lines in the
journal's order, each whole and each once, however many processes write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_UN, flock
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, cast, get_args

import msgspec

from treering.core.batch import Draft, Event
from treering.core.encoding import decode, decode_json, encode, encode_json
from treering.core.ids import Scope, check_id, file_name, thread_key
from treering.core.query import Erasure, EventQuery, encode_cursor, record_pages
from treering.errors import InvalidInput
from treering.files import Drafts, open_folder, read_range, translate_os_errors
from treering.threads.thread import Actions, parse_actions

if TYPE_CHECKING:
    from collections.abc import Generator

    from treering.core.clock import Clock
    from treering.core.engine import Engine


_PAGE: Final = 500


class LogEntry:
    """One event of a log: its columns, its data and content, and the cursor behind it."""

    __slots__ = ("content", "cursor", "data", "event", "seq")

    def __init__(self, event: Event, seq: int, cursor: str, content: Any) -> None:
        self.event = event
        self.seq = seq
        self.cursor = cursor
        self.data: dict[str, Any] = decode_json(event.data) if event.data is not None else {}
        self.content = content


class ThreadLog:
    """The events of one kind in one thread, in commit order; forgotten with the thread."""

    def __init__(self, engine: Engine, space: str, thread_id: str, namespace: str, *, kind: str) -> None:
        self._engine = engine
        self._space = space
        self._kind = kind
        self._key = thread_key(check_id(thread_id, "thread id"), namespace)
        self._scope = str(Scope(namespace, "thread", thread_id))

    def append(
        self,
        content: Any,
        data: Mapping[str, Any],
        *,
        ts_us: int,
        role: str,
        agent: str | None = None,
        status: str | None = None,
    ) -> None:
        """Add an event; durable when this returns."""
        draft = Draft(self._space)
        self.put(draft, content, data, id=draft.id, ts_us=ts_us, role=role, agent=agent, status=status)
        self._engine.commit(draft.batch())

    def put(
        self,
        draft: Draft,
        content: Any,
        data: Mapping[str, Any],
        *,
        id: str,
        ts_us: int,
        role: str,
        agent: str | None = None,
        status: str | None = None,
    ) -> None:
        """Add an event to a batch; an event whose id is stored already has no effect."""
        body = draft.put(encode(content, keep_order=True), scope=self._scope)
        draft.event(
            Event(
                id=id,
                kind=self._kind,
                ts_us=ts_us,
                scope=self._scope,
                thread=self._key,
                data=encode_json(data, keep_order=True),
                role=role,
                agent=agent,
                status=status,
                body=body,
            )
        )

    def each(self, *, newest_first: bool = False, after: str | None = None) -> Iterator[LogEntry]:
        """Iterate over the events in order, reading a page at a time."""
        query = EventQuery(kinds=(self._kind,), thread=self._key, newest_first=newest_first)
        for records in record_pages(self._engine, self._space, query, after=after, limit=_PAGE):
            bodies = [record.event.body for record in records if record.event.body is not None]
            contents = iter(self._engine.get(self._space, bodies) if bodies else [])
            for record in records:
                event = record.event
                content = decode(next(contents)) if event.body is not None else None
                yield LogEntry(event, record.seq, encode_cursor(query, event.ts_us, record.seq), content)

    def last(self, count: int) -> list[LogEntry]:
        """Return the newest events in order, without reading those before them."""
        return list(islice(self.each(newest_first=True), count))[::-1]

    def erase(self) -> int:
        """Erase all events; return how many there were."""
        seqs = tuple(entry.seq for entry in self.each())
        if seqs:
            self._engine.erase(self._space, Erasure(event_seqs=seqs, secure=True))
        return len(seqs)


_BLOCK: Final = 1 << 20


class LineSource(Protocol):
    """Where the lines of a file come from."""

    def __call__(self, *, skip: int = 0, after: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Iterate over lines, each with its cursor: those after a cursor, or all but the first ``skip``."""
        ...


class _FileState(NamedTuple):
    """A file as we last wrote it: its size, its number of lines, and the cursor of the last one."""

    size: int
    lines: int
    cursor: str | None


class LineFile:
    """A file of JSON lines that follows a part of the journal."""

    def __init__(self, path: Path, source: LineSource) -> None:
        self.path = path
        self._source = source
        self._state: _FileState | None = None

    def catch_up(self) -> None:
        """Write the lines that the journal has and the file has not."""
        with translate_os_errors(str(self.path), writing=True), self._locked() as file:
            size, count, cursor = self._whole_lines(file)
            lines = self._source(after=cursor) if cursor is not None else self._source(skip=count)
            for position, line in lines:
                piece = line + b"\n"
                while piece:
                    written = os.pwrite(file, piece, size)
                    size += written
                    piece = piece[written:]
                count += 1
                cursor = position
            self._state = _FileState(size, count, cursor)

    def remove(self) -> None:
        """Delete the file, if it exists."""
        with translate_os_errors(str(self.path), writing=True):
            self.path.unlink(missing_ok=True)
        self._state = None

    @contextmanager
    def _locked(self) -> Generator[int]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            flock(file, LOCK_EX)
            yield file
        finally:
            flock(file, LOCK_UN)
            os.close(file)

    def _whole_lines(self, file: int) -> _FileState:
        """Cut the file after its last whole line; return its state then."""
        size = os.fstat(file).st_size
        if self._state is not None and self._state.size == size:
            return self._state
        count, end = 0, 0
        for start in range(0, size, _BLOCK):
            block = read_range(file, start, min(start + _BLOCK, size))
            count += block.count(b"\n")
            if (last := block.rfind(b"\n")) >= 0:
                end = start + last + 1
        if end < size:
            os.ftruncate(file, end)
        return _FileState(end, count, None)


KIND: Final = "transcript"
Role = Literal["agent", "moderator", "summarizer", "advisor", "user"]


class TranscriptEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a transcript; the event of a failure has an ``error`` and no content."""

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
        """Return the event as it is written to the file."""
        plain: dict[str, Any] = {"t": self.t, "iter": self.iter, "agent_id": self.agent_id, "role": self.role}
        if self.error is not None:
            return {**plain, "error": self.error}
        plain |= {"content": self.content, "metadata": self.metadata}
        plain["actions"] = None if self.actions is None else msgspec.structs.asdict(self.actions)
        if self.latency_ms is not None:
            plain["latency_ms"] = self.latency_ms
        return plain


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
        self._log = ThreadLog(engine, space, thread_id, namespace, kind=KIND)
        self._thread_id = thread_id
        self._clock = clock
        self._file: LineFile | None = None
        if outputs is not None:
            path = outputs / "transcripts" / f"{file_name(thread_id)}.jsonl"
            self._file = LineFile(path, self._lines)

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

    def read(self, *, last: int | None = None, first: int | None = None) -> list[TranscriptEvent]:
        """Return the events in order: all, the last ones or the first ones."""
        if last is not None and first is not None:
            raise InvalidInput("give first= or last=, not both")
        if last is not None:
            return [_event(entry) for entry in self._log.last(last)]
        return [_event(entry) for entry in islice(self._log.each(), first)]

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
        lines = [line + b"\n" for _, line in self._lines()]
        with (
            translate_os_errors(str(target), writing=True),
            Drafts(target.parent, clock=self._clock).write(lines) as draft,
            open_folder(target.parent) as folder,
        ):
            draft.publish(folder, target.name)
        return len(lines)

    def delete(self) -> int:
        """Erase the transcript and its file, but no checkpoints; return how many events there were."""
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
    """Return the columns of an event in the log. Raise `InvalidInput` if the event is invalid."""
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

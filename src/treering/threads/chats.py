"""Chats: successive conversations with the same person, each in a thread of its own.

A counter (a ref) holds how often a chat was reset, and the id of the current thread contains that number. A
reset moves the counter by compare-and-swap and writes an event in the same batch, so two processes never get
the same number. **Invariant:** a number is used once. Before an object first relies on the counter, the
counter is raised to the highest number that the journal or any thread knows, so that a counter that was lost,
or restored from an older copy, never leads back into an existing thread.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import ABSENT, Draft, Event
from treering.core.clock import from_datetime, to_datetime, to_iso
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import Scope, check_id, namespace_prefix, parse_scope, thread_scope
from treering.core.query import Erasure, EventQuery, each_ref, each_scope
from treering.errors import Corrupt, RefMoved, TreeringError
from treering.threads.chat_ids import ChatId, chat_id_of, parse_thread_id
from treering.threads.history import CHAT_DELETED, LEDGER
from treering.threads.line_files import (
    CHAT_LINE,
    LineFile,
    LineFormat,
    LogEntry,
    ThreadLog,
    erase_with_files,
    line_file_name,
)
from treering.threads.removal import Cleaned
from treering.threads.thread import Thread
from treering.threads.writer import head_ref, heads_prefix

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.threads.thread import ThreadContext


_RESET: Final = "chat.reset"
_SYNCHRONISED: Final = "chat.synchronised"


class ChatLine(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a chat."""

    role: str
    content: Any
    ts_us: int
    channel: str
    user_id: str | None
    extra: dict[str, Any] = {}
    """Further keys of a line that another program wrote."""

    @property
    def ts(self) -> datetime:
        """In UTC."""
        return to_datetime(self.ts_us)


class ChatLog:
    """The session log of one chat thread: who wrote what, when and where, for a person to read.

    Each message is one line, ``{"role", "content", "ts", "channel", "user_id"}``, in the journal and, with a
    folder, in ``<folder>/<thread>.jsonl``. **Invariant:** a message never fails because of its log; a failure
    to log is a warning.
    """

    def __init__(
        self,
        engine: Engine,
        space: str,
        thread_id: str,
        namespace: str,
        *,
        channel: str,
        clock: Clock,
        folder: Path | None = None,
    ) -> None:
        self._log = ThreadLog(engine, space, thread_id, namespace, kind=CHAT_LINE)
        self._channel = channel
        self._clock = clock
        self._file: LineFile | None = None
        if folder is not None:
            path = folder / line_file_name(thread_id, namespace, space)
            self._file = LineFile(path, self._log, LINES)

    @property
    def path(self) -> Path | None:
        """The file that the log is also written to, if any."""
        return None if self._file is None else self._file.path

    def append(self, role: str, content: Any, *, user_id: str | None = None) -> bool:
        """Add a message. Returns ``False``, with a warning that says why, if it could not be logged."""
        try:
            self._log.append(
                content,
                {"channel": self._channel, "user_id": user_id},
                ts_us=self._clock.now_us(),
                role=role,
            )
            if self._file is not None:
                self._file.catch_up()
        except TreeringError as error:
            warnings.warn(
                f"a message of {self._channel!r} was not logged: {error}", RuntimeWarning, stacklevel=2
            )
            return False
        return True

    def read(self, *, last: int | None = None) -> list[ChatLine]:
        """Return all messages in order, or the last ones."""
        return [_line(entry) for entry in (self._log.each() if last is None else self._log.last(last))]


def _line(entry: LogEntry) -> ChatLine:
    return ChatLine(
        role=entry.event.role or "",
        content=entry.content,
        ts_us=entry.event.ts_us,
        channel=entry.data.get("channel", ""),
        user_id=entry.data.get("user_id"),
        extra=entry.data.get("extra", {}),
    )


class _FileLine(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    content: Any
    ts: str
    channel: str = ""
    user_id: str | int | None = None


def _parse(line: bytes) -> tuple[Any, dict[str, Any]]:
    """Read a line of a file, also one that another program wrote."""
    read = msgspec.json.decode(line, type=_FileLine)
    user = None if read.user_id is None else str(read.user_id)
    data = {"channel": read.channel, "user_id": user}
    known = _FileLine.__struct_fields__
    extra = {name: each for name, each in msgspec.json.decode(line).items() if name not in known}
    return read.content, {
        "data": {**data, "extra": extra} if extra else data,
        "ts_us": from_datetime(datetime.fromisoformat(read.ts)),
        "role": check_id(read.role, "role"),
    }


def _render(entry: LogEntry) -> bytes:
    line = _line(entry)
    fields = {
        "role": line.role,
        "content": line.content,
        "ts": to_iso(line.ts_us),
        "channel": line.channel,
        "user_id": line.user_id,
    }
    return encode_json(fields | line.extra, keep_order=True)


LINES: Final = LineFormat(kind=CHAT_LINE, render=_render, parse=_parse)


class Chat:
    """One chat of a channel: its current thread, and `reset` to begin a new one."""

    def __init__(self, context: ThreadContext, channel: str, chat_id: str | int, namespace: str) -> None:
        self._id = chat_id_of(channel, chat_id)
        self._namespace = check_id(namespace, "namespace") if namespace else ""
        self._context = context
        self._engine = context.engine
        self._space = context.space
        self._clock = context.clock
        self._ref = f"chat/{namespace_prefix(self._namespace)}{self._id.base}"
        self._scope = str(Scope(self._namespace, "chat", self._id.base))
        self._is_synchronised = False

    def __repr__(self) -> str:
        return f"Chat({self.channel!r}, {self.chat_id!r})"

    @property
    def channel(self) -> str:
        """Where the chat takes place: ``telegram``, ``slack``."""
        return self._id.channel

    @property
    def chat_id(self) -> str:
        """Which chat of the channel."""
        return self._id.chat_id

    @property
    def namespace(self) -> str:
        """The namespace of its threads; empty for none."""
        return self._namespace

    @property
    def resets(self) -> int:
        """How often it was reset, by any process."""
        if not self._is_synchronised:
            return self.synchronise()
        return self._number(self._counter())

    @property
    def thread(self) -> Thread:
        """The current thread."""
        return self._thread(self.resets)

    def threads(self) -> Iterator[Thread]:
        """Iterate over the threads that were saved, highest number first."""
        for number in sorted(self._saved_numbers(), reverse=True):
            yield self._thread(number)

    def log(self, folder: str | Path | None = None) -> ChatLog:
        """Return the session log of the current thread; with a folder, it is also written to a file there."""
        return ChatLog(
            self._engine,
            self._space,
            self.thread.id,
            self._namespace,
            channel=self.channel,
            clock=self._clock,
            folder=None if folder is None else Path(folder),
        )

    def reset(self) -> Thread:
        """Leave the current thread as it is and begin a new one; no other process gets the same one."""
        if not self._is_synchronised:
            self.synchronise()
        while True:
            counter = self._counter()
            number = self._number(counter) + 1
            if number <= self._last_recorded() or self._is_taken(number):
                self.synchronise()
            elif self._move(counter, number, _RESET):
                return self._thread(number)

    def delete(self, *, cascade: bool = False) -> Cleaned:
        """Delete all its threads, their session logs and its counter.

        The journal keeps that a chat was deleted, not which. Raises `Conflict` if forks share their past,
        unless ``cascade`` deletes them as well.
        """
        threads = tuple(self._thread_scopes())
        if not threads and not self._exists():
            return Cleaned()
        scopes = (self._scope, *threads)
        plan = Erasure(scopes=scopes, cascade=cascade, secure=True)
        erased = erase_with_files(self._engine, self._space, plan, threads=threads)
        draft = Draft(self._space)
        data = encode_json({"threads": len(threads)})
        draft.event(
            Event(id=draft.id, kind=CHAT_DELETED, ts_us=self._clock.now_us(), scope=LEDGER, data=data)
        )
        self._engine.commit(draft.batch())
        self._is_synchronised = False
        return Cleaned(bytes=erased.bytes, kept=dict(erased.kept))

    def synchronise(self, *, at_least: int = 0) -> int:
        """Raise the counter to the highest number that is known anywhere, or ``at_least``, and return it."""
        while True:
            counter = self._counter()
            number = self._number(counter)
            highest = max(number, at_least, self._last_recorded(), *self._saved_numbers())
            if highest == number or self._move(counter, highest, _SYNCHRONISED):
                self._is_synchronised = True
                return highest

    def _move(self, counter: Ref | None, number: int, kind: str) -> bool:
        """Set the counter and record that, unless another process moved it first."""
        draft = Draft(self._space)
        draft.event(
            Event(
                id=draft.id,
                kind=kind,
                ts_us=self._clock.now_us(),
                scope=self._scope,
                data=encode_json({"number": number}),
            )
        )
        expect = ABSENT if counter is None else counter.version
        draft.set_ref(self._ref, b"%d" % number, scope=self._scope, expect=expect)
        try:
            self._engine.commit(draft.batch())
        except RefMoved:
            return False
        return True

    def _counter(self) -> Ref | None:
        return self._engine.refs(self._space, [self._ref]).get(self._ref)

    def _number(self, counter: Ref | None) -> int:
        if counter is None:
            return 0
        try:
            return int(counter.value)
        except ValueError:
            raise Corrupt(
                f"the counter of {self!r} is {counter.value[:40]!r}, which is not a number; "
                "run verify, then restore it from a backup"
            ) from None

    def _exists(self) -> bool:
        return self._counter() is not None or bool(
            self._engine.scan(self._space, EventQuery(scope=self._scope), limit=1).records
        )

    def _last_recorded(self) -> int:
        """Return the newest number in the journal, which is also the highest."""
        query = EventQuery(kinds=(_RESET, _SYNCHRONISED), scope=self._scope, newest_first=True)
        for record in self._engine.scan(self._space, query, limit=1).records:
            data: dict[str, Any] = decode_json(record.event.data or b"{}")
            return data["number"]
        return 0

    def _saved_numbers(self) -> Iterator[int]:
        """Yield the numbers of the threads that exist."""
        if self._is_taken(0):
            yield 0
        prefix = heads_prefix(self._namespace)
        for ref in each_ref(self._engine, self._space, f"{prefix}{self._id.base}_s"):
            parsed = parse_thread_id(ref.name[len(prefix) :])
            if isinstance(parsed, ChatId) and parsed.base == self._id.base:
                yield parsed.resets

    def _thread_scopes(self) -> Iterator[str]:
        """Yield the scopes of its threads, also of those that have a session log and no checkpoint."""
        for scope in each_scope(self._engine, self._space, thread_scope(self._id.base, self._namespace)):
            parsed = parse_thread_id(parse_scope(scope).id)
            if isinstance(parsed, ChatId) and parsed.base == self._id.base:
                yield scope

    def _is_taken(self, number: int) -> bool:
        name = head_ref(self._thread_id(number), self._namespace)
        return name in self._engine.refs(self._space, [name])

    def _thread_id(self, number: int) -> str:
        return ChatId(self.channel, self.chat_id, number).thread_id

    def _thread(self, number: int) -> Thread:
        return Thread(self._context, self._thread_id(number), self._namespace)

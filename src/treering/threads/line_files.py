"""Files that threads are also written to: transcripts and session logs line by line, states as rows.

The journal is the record (`ThreadLog`); such a file is a copy that can be tailed, searched and carried away.
Whatever happens to it is repaired at the next append: a torn last line is cut off (the next line would be
glued to it), and missing lines are written. Lines that did not come from this thread (of an older store, of
another program, of a person) stay where they are. **Invariant:** after an append the file holds every event
of the journal, each whole and each once, however many processes write.

The store remembers the files of a thread (`register_file`), so whatever erases the thread also erases its
lines there (`erase_with_files`), or says which file it could not touch. Files stay locked until the events
are erased as well, and the erasure starts over if a file was registered meanwhile, so no writer brings a line
back.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_UN, flock
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from treering.core.batch import ABSENT, Draft, Event
from treering.core.clock import SystemClock
from treering.core.encoding import decode, decode_json, encode, encode_json
from treering.core.ids import check_id, file_name, thread_key, thread_scope
from treering.core.query import Erasure, EventQuery, each_record, each_ref, encode_cursor, record_pages
from treering.errors import Conflict, InvalidInput, RefMoved, TreeringError
from treering.files import Drafts, host_name, make_folder, open_folder, read_range, translate_os_errors
from treering.threads.checkpoint import KIND as CHECKPOINT
from treering.threads.checkpoint import read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Generator

    from treering.core.engine import Engine
    from treering.core.records import Erased, Ref
    from treering.threads.removal import Cleaned


TRANSCRIPT: Final = "transcript"
CHAT_LINE: Final = "chat.line"
LINE_KINDS: Final = (TRANSCRIPT, CHAT_LINE)
"""The kinds of events that have line files."""
CHECKPOINT_ROW: Final = "checkpoint.row"
FILE_KINDS: Final = (*LINE_KINDS, CHECKPOINT_ROW)
"""The kinds of files, the rows of `checkpoint_file` among them."""

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
        self._thread_id = check_id(thread_id, "thread id")
        self._namespace = namespace
        self._key = thread_key(thread_id, namespace)
        self._scope = thread_scope(thread_id, namespace)

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

    def register_file(self, path: Path) -> None:
        """Remember a file that the events are also written to."""
        register_file(self._engine, self._space, path, self._thread_id, self._namespace, self._kind)

    def erase(self) -> Cleaned:
        """Erase all events, also from the files that they were written to."""
        from treering.threads.removal import Cleaned

        seqs = tuple(entry.seq for entry in self.each())
        if not seqs:
            return Cleaned()
        plan = Erasure(event_seqs=seqs, secure=True)
        erased = erase_with_files(
            self._engine, self._space, plan, threads=(self._scope,), kinds=(self._kind,)
        )
        return Cleaned(transcript_events=len(seqs), bytes=erased.bytes, kept=dict(erased.kept))


_BLOCK: Final = 1 << 20
_TAIL: Final = 256
_MAX_HELD: Final = 100
"""Files that one erasure keeps locked at a time; a process may not open many more."""
_MAX_ABSENT: Final = 1000
_PER_COMMIT: Final = 500
_MAX_NAME: Final = 200
_MAX_SLUG: Final = 120
FILE_REFS: Final = "file/"
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LineFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How the events of one kind look in a file."""

    kind: str
    render: Callable[[LogEntry], bytes]
    parse: Callable[[bytes], tuple[Any, dict[str, Any]]]
    """Returns content and columns (see `ThreadLog.append`) of a line, also one that another program wrote."""

    def name_of(self, line: bytes) -> bytes:
        """Return what names the event of a line: two lines of one event have the same name."""
        try:
            content, columns = self.parse(line)
            return _name(content, **columns)
        except (TreeringError, msgspec.MsgspecError, ValueError, RecursionError):
            return sha256(line).digest()


def _name(
    content: Any,
    data: Mapping[str, Any],
    ts_us: int,
    role: str | None,
    agent: str | None = None,
    status: str | None = None,
) -> bytes:
    return sha256(encode_json([content, data, ts_us, role, agent, status])).digest()


def line_file_name(thread_id: str, namespace: str, space: str) -> str:
    """Return the name of a thread's line file; no other thread of any namespace or tenant has it."""
    parts = [file_name(thread_id)]
    if namespace or space != "default":
        parts.append(file_name(namespace) if namespace else "")
    if space != "default":
        parts.append(file_name(space))
    name = "@".join(parts)
    if len(name) > _MAX_NAME:
        name = f"{name[:_MAX_SLUG]}@~{sha256(name.encode()).hexdigest()[:32]}"
    return f"{name}.jsonl"


class _FileState(NamedTuple):
    """A file as we last left it, and the cursor of the newest event in it."""

    inode: int
    size: int
    mtime_ns: int
    tail: bytes
    cursor: str | None


class LineFile:
    """A file of JSON lines that follows the events of one kind in one thread.

    Lines are compared with events by what they say (`LineFormat.name_of`), not counted: whatever else is in
    the file stays, and is never taken for an event of ours.
    """

    def __init__(self, path: Path, log: ThreadLog, format: LineFormat) -> None:
        self.path = path.expanduser().absolute()
        self._log = log
        self._format = format
        self._state: _FileState | None = None

    def catch_up(self) -> None:
        """Write the lines that the journal has and the file has not."""
        with translate_os_errors(str(self.path), writing=True):
            make_folder(self.path.parent)
            with _locked(self.path) as file:
                end = _repair_end(file)
                state = self._state
                if state is None or not _is_continued(file, state):
                    self._log.register_file(self.path)
                    state = _FileState(0, 0, 0, b"", None)
                cursor = state.cursor
                for position, line in self._compared(_lines(file, state.size, end), cursor):
                    piece = line
                    while piece:
                        piece = piece[os.write(file, piece) :]
                    cursor = position
                now = os.fstat(file)
                tail = read_range(file, max(now.st_size - _TAIL, 0), now.st_size)
                self._state = _FileState(now.st_ino, now.st_size, now.st_mtime_ns, tail, cursor)

    def strip(self, held: ExitStack) -> tuple[int, int]:
        """Remove our lines; return how many there were, and how many other lines stay.

        A file without other lines is deleted. The file stays locked until ``held`` is closed.
        """
        with translate_os_errors(str(self.path), writing=True):
            try:  # a file that is not there is locked as well: a writer may be about to make it
                file = held.enter_context(_locked(self.path))
            except FileNotFoundError:
                return 0, 0
            names = {name_of(entry) for entry in self._log.each()}
            lines = list(_lines(file, 0, _repair_end(file)))
            others = [line + b"\n" for line in lines if self._format.name_of(line) not in names]
            if not others:
                os.ftruncate(file, 0)
                held.callback(self.path.unlink)  # only then: until the end, the lock keeps writers out
            elif len(others) == len(lines):
                os.utime(file)  # so that writers look at it anew
            else:
                # The new file is locked as long as the draft is open.
                draft = held.enter_context(Drafts(self.path.parent, clock=SystemClock()).write(others))
                with open_folder(self.path.parent) as folder:
                    draft.publish(folder, self.path.name)
                self.path.chmod(0o600)
            return len(lines) - len(others), len(others)

    def _compared(self, there: Iterator[bytes], after: str | None) -> Iterator[tuple[str, bytes]]:
        """Yield the cursor of each event, with its line if that is not ``there`` (else nothing).

        While both are in step, as they normally are, no line is collected and hardly one is parsed.
        """
        rest: Counter[bytes] | None = None
        named = self._format.name_of
        for entry in self._log.each(after=after):
            line = self._format.render(entry)
            if rest is None:
                found = next(there, None)
                if found is not None and (found == line or named(found) == name_of(entry)):
                    yield entry.cursor, b""
                    continue
                rest = Counter(map(named, () if found is None else chain((found,), there)))
            name = name_of(entry) if rest else b""
            if rest[name]:
                rest[name] -= 1
                yield entry.cursor, b""
            else:
                yield entry.cursor, line + b"\n"


def name_of(entry: LogEntry) -> bytes:
    """Return what names an event: that of its line in any file."""
    event = entry.event
    return _name(entry.content, entry.data, event.ts_us, event.role, event.agent, event.status)


@contextmanager
def _locked(path: Path) -> Generator[int]:
    """Open or make a file and lock it. A file that was deleted or replaced meanwhile is opened anew."""
    while True:
        file = os.open(path, _FLAGS, 0o600)
        try:
            opened = os.fstat(file)
            if not S_ISREG(opened.st_mode):
                raise InvalidInput(f"{path} is not a file; choose another folder, or remove it")
            flock(file, LOCK_EX)
            try:
                named: os.stat_result | None = path.lstat()
            except FileNotFoundError:
                named = None
            if named is not None and (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino):
                yield file
                return
        finally:
            flock(file, LOCK_UN)  # closing is not enough: a child forked meanwhile has a copy
            os.close(file)


def _is_continued(file: int, state: _FileState) -> bool:
    """Return whether a file is as we left it, apart from lines that others added."""
    now = os.fstat(file)
    if now.st_ino != state.inode or now.st_size < state.size:
        return False
    if now.st_size == state.size:
        return now.st_mtime_ns == state.mtime_ns
    return read_range(file, state.size - len(state.tail), state.size) == state.tail


def _repair_end(file: int) -> int:
    """Make the file end with a whole line, and return its size: a torn line is cut off."""
    size = os.fstat(file).st_size
    start, tail = size, b""
    while start and b"\n" not in tail:
        start = max(start - _BLOCK, 0)
        tail = read_range(file, start, start + _BLOCK) + tail
    last = tail[tail.rfind(b"\n") + 1 :]
    if not last:
        return size
    try:
        msgspec.json.decode(last)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        os.ftruncate(file, size - len(last))
        return size - len(last)
    os.write(file, b"\n")
    return size + 1


def _lines(file: int, start: int, stop: int) -> Iterator[bytes]:
    """Iterate over the lines that are not blank."""
    rest = b""
    for at in range(start, stop, _BLOCK):
        *lines, rest = (rest + read_range(file, at, min(at + _BLOCK, stop))).split(b"\n")
        for line in lines:
            if line.strip():
                yield line


class ThreadFile(Protocol):
    """A file outside of the store that holds what a thread holds."""

    def catch_up(self) -> None:
        """Write what the file lacks."""
        ...

    def strip(self, held: ExitStack) -> tuple[int, int]:
        """Remove what is the thread's; return how much that was, and how much else stays."""
        ...


class ThreadFilePlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a thread is also written to."""

    path: str
    host: str


class _Files(msgspec.Struct, frozen=True, kw_only=True):
    """What the store remembers of the files of one kind: the value of a ref in the scope of the thread."""

    thread: str
    namespace: str
    kind: str
    files: tuple[ThreadFilePlace, ...]


def register_file(
    engine: Engine,
    space: str,
    path: Path,
    thread_id: str,
    namespace: str,
    kind: str,
    *,
    anew: bool = False,
) -> None:
    """Remember a file, so that erasing the thread finds it. Called while the file is locked.

    With ``anew``, an erasure that has removed the file's content meanwhile starts over. A file that stays
    locked until the end of an erasure does not need that.
    """
    scope = thread_scope(thread_id, namespace)
    name = _files_ref(scope, kind)
    place = ThreadFilePlace(path=str(path), host=host_name())
    while True:
        ref = engine.refs(space, [name]).get(name)
        files = () if ref is None else msgspec.json.decode(ref.value, type=_Files).files
        if place in files and not anew:
            return
        value = _Files(
            thread=thread_id,
            namespace=namespace,
            kind=kind,
            files=(*(each for each in files if each != place), place),
        )
        draft = Draft(space)
        expect = ABSENT if ref is None else ref.version
        draft.set_ref(name, msgspec.json.encode(value), scope=scope, expect=expect)
        with suppress(RefMoved):
            engine.commit(draft.batch())
            return


def erase_with_files(
    engine: Engine,
    space: str,
    plan: Erasure,
    *,
    threads: Collection[str],
    kinds: Collection[str] = FILE_KINDS,
) -> Erased:
    """Erase what belongs to these threads (scopes), in the store and in the files that hold it as well.

    ``kinds`` are the kinds of files; those of forks that a cascade takes along lose everything. The receipt
    names what had to stay, and why. If the erasure fails, nothing was erased, and the files are as before.
    """
    while True:
        with ExitStack() as held:
            found = _registered(engine, space, threads, kinds, cascade=plan.cascade)
            names = [_files_ref(scope, kind) for scope in threads for kind in kinds][:_MAX_ABSENT]
            stripped: list[ThreadFile] = []
            try:
                kept = _strip(engine, space, found, held, stripped)
                _unregister(engine, space, found)
                absent = (*plan.absent, *names)
                erased = engine.erase(space, msgspec.structs.replace(plan, absent=absent))
            except BaseException as error:
                # A writer who opened another file in the meantime has registered it; it is erased next time.
                again = isinstance(error, Conflict) and (
                    isinstance(error, RefMoved) or bool(engine.refs(space, names))
                )
                held.close()
                for file in stripped:
                    file.catch_up()
                if not again:
                    raise
                continue
        return msgspec.structs.replace(erased, kept={**erased.kept, **kept})


def warn_of_kept_files(erased: Erased) -> None:
    """Warn of files that still hold what was erased, for callers who return no receipt."""
    for name, why in erased.kept.items():
        if name.startswith("/"):
            warnings.warn(f"{name} still holds what was erased: {why}", RuntimeWarning, stacklevel=3)


def _strip(
    engine: Engine, space: str, found: list[Ref], held: ExitStack, stripped: list[ThreadFile]
) -> dict[str, str]:
    """Remove the lines of all these files, and return what had to stay. The files stay locked."""
    kept: dict[str, str] = {}
    places = [
        (files, place)
        for files in (msgspec.json.decode(ref.value, type=_Files) for ref in found)
        for place in files.files
    ]
    for files, place in places:
        file = _file_of(engine, space, files, place)
        is_here = place.host == host_name()
        with ExitStack() as lock:
            try:
                count, others = file.strip(lock)
            except TreeringError as error:
                kept[place.path] = f"{error}; remove its lines by hand"
                continue
            if count:
                stripped.append(file)
            if others:
                lines = "1 line in it was" if others == 1 else f"{others} lines in it were"
                kept[place.path] = f"{lines} not written by this thread"
            elif not count and not is_here:
                kept[place.path] = f"it was written on host {place.host!r}; delete it there"
            if len(places) <= _MAX_HELD:
                held.push(lock.pop_all())
    return kept


def _unregister(engine: Engine, space: str, found: list[Ref]) -> None:
    for start in range(0, len(found), _PER_COMMIT):
        draft = Draft(space)
        for ref in found[start : start + _PER_COMMIT]:
            draft.delete_ref(ref.name, scope=ref.scope, expect=ref.version)
        engine.commit(draft.batch())


def _registered(
    engine: Engine, space: str, threads: Collection[str], kinds: Collection[str], *, cascade: bool
) -> list[Ref]:
    names = [_files_ref(scope, kind) for scope in threads for kind in kinds]
    if not cascade and len(names) <= _PER_COMMIT:
        return list(engine.refs(space, names).values())
    refs = list(each_ref(engine, space, FILE_REFS))
    wanted = set(names)
    if cascade:
        others = {ref.scope for ref in refs}.difference(threads)
        taken = {scope for scope in others if _depends(engine, space, scope, threads)}
        wanted.update(_files_ref(scope, kind) for scope in taken for kind in FILE_KINDS)
    return [ref for ref in refs if ref.name in wanted]


def _depends(engine: Engine, space: str, scope: str, on: Collection[str]) -> bool:
    """Return whether a thread shares lists with others, so that erasing those takes it along."""
    seen: set[str] = set()
    for record in each_record(engine, space, EventQuery(scope=scope, kinds=(CHECKPOINT,))):
        for prefix in read_checkpoint(engine, space, record).lists.values():
            if prefix.list not in seen:
                seen.add(prefix.list)
                if any(info.scope in on for info in engine.lineage(space, prefix.list)):
                    return True
    return False


def _file_of(engine: Engine, space: str, files: _Files, place: ThreadFilePlace) -> ThreadFile:
    from treering.threads import chats, transcripts

    if files.kind == CHECKPOINT_ROW:
        from treering.threads.checkpoint_file import CheckpointRow

        return CheckpointRow(engine, space, files.thread, files.namespace, path=Path(place.path))
    lines = chats.LINES if files.kind == CHAT_LINE else transcripts.LINES
    log = ThreadLog(engine, space, files.thread, files.namespace, kind=files.kind)
    return LineFile(Path(place.path), log, lines)


def _files_ref(scope: str, kind: str) -> str:
    return f"{FILE_REFS}{sha256(scope.encode()).hexdigest()[:32]}/{kind}"

"""Push and pull: bring threads from one store to another, with their files, runs and costs.

    treering.push("./.treering", "team://support/alice")

A thread is moved as its exported history (`jsonl_export`) and imported on the other side (`jsonl_import`), so
ids, times and forks stay what they are. The files of its snapshots are staged first, children before the
folders that name them. The target notes up to which event of the source it has the thread, so that the next
push reads only what came later. **Invariant:** every step is idempotent, the head of a thread moves when all
of it is stored, and the note is written after that: a push that was killed is finished by the next one.

Nothing of a thread is sent if its lines or files hold what looks like a key or password
(`treering.secret_scan`), unless that is allowed.

The note names an event and its sequence number. If the source has another event there (it is another store,
or was restored from a backup), the whole thread is compared again.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import IO, TYPE_CHECKING, Final, NamedTuple, Self

import msgspec

from treering.adapters.shared import Opened, StoreOrUrl
from treering.aio import AsyncStore
from treering.core import failpoints
from treering.core.batch import Draft
from treering.core.content import Address, Content, ObjectAddress, object_address, parse_address
from treering.core.ids import thread_scope
from treering.core.query import EventQuery
from treering.core.text import readable
from treering.core.tree import FileEntry, FolderEntry, decode_tree
from treering.errors import InvalidInput, NotFound
from treering.importers.history_writer import HistoryWriter
from treering.importers.jsonl_export import Existing, ExportReport, export_jsonl
from treering.importers.jsonl_import import import_jsonl
from treering.importers.remotes import parse_address as parse_remote
from treering.importers.remotes import remote as remote_named
from treering.secret_scan import FoundSecret, refuse_secrets, scan_secrets
from treering.store import Store
from treering.threads.directory import all_threads, thread_info

if TYPE_CHECKING:
    from treering.threads.directory import ThreadInfo

Target = str | Store | AsyncStore
"""The other side: an address such as ``team://project/thread``, or an open store."""

_NOTES: Final = "transfer/"
_IN_MEMORY: Final = 8_000_000
_BATCH_BYTES: Final = 4 * 1024 * 1024
_BATCH_OBJECTS: Final = 500
_NAMES: Final = 10_000

_STAGED: Final = failpoints.declare("transfer.staged", "some files of a pushed thread were staged")
_STORED: Final = failpoints.declare(
    "transfer.stored", "a pushed thread is stored, the note is not written yet"
)


class ThreadTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """What was new of one thread in the target; all zero if it had everything."""

    thread: str
    namespace: str
    checkpoints: int = 0
    events: int = 0
    """Spans and messages of runs, transcripts, and what the tasks of graphs wrote."""
    runs: int = 0
    files: int = 0
    """Objects of files that the target did not have."""
    bytes: int = 0
    """The size of all that was sent."""
    is_ahead: bool = False
    """The target has checkpoints behind those of the source, and keeps its head."""
    left_out: dict[str, int] = {}
    """Events that cannot be taken along, by kind."""
    secrets: tuple[FoundSecret, ...] = ()
    """What looks like keys and passwords, and was sent because that is allowed."""

    @property
    def is_new(self) -> bool:
        """Whether the target got anything."""
        return bool(self.checkpoints or self.events or self.runs or self.files)


class TransferReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a push or a pull, thread by thread."""

    source: str
    target: str
    threads: tuple[ThreadTransfer, ...]
    dry_run: bool = False

    @property
    def bytes(self) -> int:
        """The size of all that was sent."""
        return sum(each.bytes for each in self.threads)


class TransferProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a push or a pull is: the thread, and the bytes sent so far, of all threads."""

    thread: str
    number: int
    of_threads: int
    bytes: int


OnTransfer = Callable[[TransferProgress], None]


def push(
    store: StoreOrUrl | None,
    remote: Target,
    thread: str | None = None,
    *,
    namespace: str = "",
    allow_secrets: bool = False,
    dry_run: bool = False,
    on_progress: OnTransfer | None = None,
) -> TransferReport:
    """Bring a thread of ``store`` (or all of them) to a remote; what is there already is not sent again.

    Args:
        store: Your store (``None``: the default one).
        remote: ``team://project/thread``, ``team://project`` for all threads, or an open store.
        thread: The thread, if ``remote`` does not name it.
        namespace: The namespace of the threads within the store: a user or project.
        allow_secrets: Send what looks like keys and passwords as well; the report names them.
        dry_run: Report what is new, and change nothing.
        on_progress: Called as data is sent.

    Raises:
        Conflict: The thread was continued on both sides. Nothing of it was changed.
        SecretsFound: It seems to hold keys or passwords. Nothing of it was sent.
    """
    options = _Options(namespace, allow_secrets, dry_run, on_progress)
    with _Sides(store, remote, thread) as sides:
        return _Mover(sides.own, sides.other, options).run(sides.thread)


def pull(
    store: StoreOrUrl | None,
    remote: Target,
    thread: str | None = None,
    *,
    namespace: str = "",
    allow_secrets: bool = False,
    dry_run: bool = False,
    on_progress: OnTransfer | None = None,
) -> TransferReport:
    """Bring a thread of a remote (or all of them) to ``store``: `push` in the other direction."""
    options = _Options(namespace, allow_secrets, dry_run, on_progress)
    with _Sides(store, remote, thread) as sides:
        return _Mover(sides.other, sides.own, options).run(sides.thread)


async def push_async(
    store: StoreOrUrl | None,
    remote: Target,
    thread: str | None = None,
    *,
    namespace: str = "",
    allow_secrets: bool = False,
    dry_run: bool = False,
    on_progress: OnTransfer | None = None,
) -> TransferReport:
    """`push` for asyncio: it runs in a thread, where ``on_progress`` is called as well."""
    return await asyncio.to_thread(
        push,
        store,
        remote,
        thread,
        namespace=namespace,
        allow_secrets=allow_secrets,
        dry_run=dry_run,
        on_progress=on_progress,
    )


async def pull_async(
    store: StoreOrUrl | None,
    remote: Target,
    thread: str | None = None,
    *,
    namespace: str = "",
    allow_secrets: bool = False,
    dry_run: bool = False,
    on_progress: OnTransfer | None = None,
) -> TransferReport:
    """`pull` for asyncio: it runs in a thread, where ``on_progress`` is called as well."""
    return await asyncio.to_thread(
        pull,
        store,
        remote,
        thread,
        namespace=namespace,
        allow_secrets=allow_secrets,
        dry_run=dry_run,
        on_progress=on_progress,
    )


class _Options(NamedTuple):
    namespace: str
    allow_secrets: bool
    dry_run: bool
    on_progress: OnTransfer | None


class _Sides:
    """The two stores of a transfer, and the thread; what was opened here is closed at the end."""

    def __init__(self, store: StoreOrUrl | None, remote: Target, thread: str | None) -> None:
        self.thread = thread
        self._other: Store | None = None
        if isinstance(remote, str):
            address = parse_remote(remote)
            if thread is not None and address.thread not in (None, thread):
                raise InvalidInput(f"{remote!r} names thread {address.thread!r}, and thread is {thread!r}")
            self.thread = thread or address.thread
            self._other = self.other = remote_named(address.remote).open(address.project)
        else:
            self.other = remote.sync if isinstance(remote, AsyncStore) else remote
        try:
            self._opened = Opened(store)
        except BaseException:
            self._close_other()
            raise
        self.own = self._opened.store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
        self._close_other()

    def _close_other(self) -> None:
        if self._other is not None:
            self._other.close()


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """Up to where a target has a thread of a source: one of its events, and the number that it has there."""

    seq: int
    event: str


class _InTarget(Existing):
    """What the target of a transfer has already."""

    def __init__(self, source: Store, target: Store) -> None:
        self._source = source
        self._target = target
        self._histories = HistoryWriter(target)

    def after(self, thread: ThreadInfo) -> str | None:
        note = self.note(thread)
        return None if note is None else str(note.seq)

    def note(self, thread: ThreadInfo) -> _Note | None:
        """Return the note of the last transfer, if the source is still the store that it is about."""
        name = self.note_name(thread)
        ref = self._target.engine.refs(self._target.space, [name]).get(name)
        if ref is None:
            return None
        note = msgspec.json.decode(ref.value, type=_Note)
        query = EventQuery(scope=thread_scope(thread.id, thread.namespace), brief=True)
        page = self._source.engine.scan(self._source.space, query, after=str(note.seq - 1), limit=1)
        is_same = any((each.seq, each.event.id) == (note.seq, note.event) for each in page.records)
        return note if is_same else None

    def note_name(self, thread: ThreadInfo) -> str:
        """Return the ref with the note about a thread of this source."""
        place = f"{self._source.url} {self._source.space}".encode()
        digest = blake2b(place, digest_size=12).hexdigest()
        return f"{_NOTES}{digest}/{thread_scope(thread.id, thread.namespace)}"

    def head(self, thread: ThreadInfo) -> str | None:
        there = self.thread(thread)
        if there is None or thread.head == there.head:
            return None if there is None else there.head
        known = HistoryWriter(self._source).owners([there.head])
        return there.head if known.get(there.head) == (thread.id, thread.namespace) else None

    def thread(self, thread: ThreadInfo) -> ThreadInfo | None:
        """Return the thread as it is in the target."""
        return thread_info(self._target.engine, self._target.space, thread.id, thread.namespace)

    def checkpoints(self, ids: Iterable[str]) -> set[str]:
        return set(self._histories.owners(ids))

    def list_length(self, list_id: str) -> int:
        return self._histories.list_length(list_id)


class _Mover:
    """Moves the threads of one transfer, one after the other."""

    def __init__(self, source: Store, target: Store, options: _Options) -> None:
        self._source = source
        self._target = target
        self._options = options
        self._existing = _InTarget(source, target)

    def run(self, thread: str | None) -> TransferReport:
        self._source.flush()
        engine, space = self._source.engine, self._source.space
        if thread is None:
            threads = list(all_threads(engine, space, namespace=self._options.namespace))
        else:
            info = thread_info(engine, space, thread, self._options.namespace)
            if info is None:
                raise NotFound(
                    f"thread {thread!r} not found in {self._source.url}. List threads with: treering threads"
                )
            threads = [info]
        moved: list[ThreadTransfer] = []
        total = 0
        for number, each in enumerate(threads, 1):
            moved.append(self._move(each, number, len(threads), before=total))
            total += moved[-1].bytes
        return TransferReport(
            source=self._source.url,
            target=self._target.url,
            threads=tuple(moved),
            dry_run=self._options.dry_run,
        )

    def _move(self, thread: ThreadInfo, number: int, of_threads: int, *, before: int) -> ThreadTransfer:
        sent = 0

        def count(size: int) -> None:
            nonlocal sent
            sent += size
            if self._options.on_progress is not None:
                self._options.on_progress(
                    TransferProgress(
                        thread=thread.id, number=number, of_threads=of_threads, bytes=before + sent
                    )
                )

        count(0)
        there = self._existing.thread(thread)
        newest, note = self._newest_event(thread), self._existing.note(thread)
        files = _MissingFiles(self._source, self._target)
        with tempfile.SpooledTemporaryFile(_IN_MEMORY) as lines:
            exported = export_jsonl(self._source, [thread], lines.write, existing=self._existing)
            size = lines.tell()
            checked = self._import(lines, dry_run=True)  # before anything is sent
            for snapshot in exported.snapshots:
                files.add(snapshot)
            secrets = (*exported.secrets, *files.secrets())
            if not self._options.allow_secrets:
                refuse_secrets(secrets, what=f"nothing of thread {thread.id!r} was sent")
            if self._options.dry_run:
                return self._result(thread, there, exported, checked, secrets, files=files.count, sent=0)
            files.stage(count)
            if any(checked.values()):
                self._import(lines, dry_run=False)
                count(size)
        failpoints.hit(_STORED)
        if newest != note:
            self._save_note(thread, newest)
        return self._result(thread, there, exported, checked, secrets, files=files.count, sent=sent)

    def _result(
        self,
        thread: ThreadInfo,
        there: ThreadInfo | None,
        exported: ExportReport,
        checked: Mapping[str, int],
        secrets: tuple[FoundSecret, ...],
        *,
        files: int,
        sent: int,
    ) -> ThreadTransfer:
        return ThreadTransfer(
            thread=thread.id,
            namespace=thread.namespace,
            checkpoints=checked.get("checkpoints", 0) + checked.get("revisions", 0),
            events=checked.get("events", 0) + checked.get("rewinds", 0),
            runs=checked.get("runs", 0),
            files=files,
            bytes=sent,
            is_ahead=there is not None and there.head != thread.head and not checked.get("threads"),
            left_out=exported.left_out,
            secrets=secrets,
        )

    def _import(self, lines: IO[bytes], *, dry_run: bool) -> dict[str, int]:
        report = import_jsonl(lines, self._target, dry_run=dry_run, strict=True)
        return {each.holds: each.new for each in report.files}

    def _newest_event(self, thread: ThreadInfo) -> _Note:
        query = EventQuery(scope=thread_scope(thread.id, thread.namespace), newest_first=True, brief=True)
        (newest,) = self._source.engine.scan(self._source.space, query, limit=1).records
        return _Note(seq=newest.seq, event=newest.event.id)

    def _save_note(self, thread: ThreadInfo, note: _Note) -> None:
        draft = Draft(self._target.space)
        draft.set_ref(
            self._existing.note_name(thread),
            msgspec.json.encode(note),
            scope=thread_scope(thread.id, thread.namespace),
        )
        self._target.commit(draft)


def _secrets_in(path: str, pieces: Iterable[bytes]) -> Iterator[FoundSecret]:
    for each in scan_secrets(pieces):
        yield FoundSecret(path=path, rule=each.rule, line=each.line, hint=each.hint)


class _MissingFiles:
    """The files of snapshots that a target does not have: found first, then staged.

    A folder that is in the target has all that is below it, since garbage collection deletes a folder before
    what it names, and staging puts it there afterwards.
    """

    def __init__(self, source: Store, target: Store) -> None:
        self._source = source
        self._target = target
        self._sizes: dict[str, int] = {}
        """The missing pieces of files, with about their sizes."""
        self._below: dict[str, tuple[str, ...]] = {}
        """The missing folders, with the folders in them."""
        self._files: list[tuple[str, tuple[str, ...]]] = []
        """The paths of files that are not there as a whole, with all of their pieces."""
        self._found: list[FoundSecret] = []
        """Secrets in the files that missing folders keep themselves."""
        self._seen: set[str] = set()

    @property
    def count(self) -> int:
        """How many objects are missing."""
        return len(self._sizes) + len(self._below)

    def add(self, snapshot: str) -> None:
        """Look for what is missing of a snapshot."""
        place = parse_address(snapshot)
        level = dict.fromkeys(self._missing([place.name]), "") if isinstance(place, ObjectAddress) else {}
        while level:
            files: dict[str, FileEntry] = {}
            folders: dict[str, str] = {}
            for name, content in self._read(list(level)):
                below: list[str] = []
                for each in decode_tree(content).entries:
                    path = f"{level[name]}{readable(each.name)}"
                    if isinstance(each, FolderEntry):
                        below.append(each.tree)
                        folders.setdefault(each.tree, path + "/")
                    elif isinstance(each, FileEntry):
                        if each.data is None:
                            files[path] = each
                        else:
                            self._found += _secrets_in(path, [each.data])
                self._below[name] = tuple(below)
            self._add_files(files)
            level = {name: folders[name] for name in self._missing(folders)}

    def _add_files(self, files: Mapping[str, FileEntry]) -> None:
        sizes = {name: each.size // len(each.content) for each in files.values() for name in each.content}
        missing = set(self._missing(sizes))
        self._sizes.update({name: size for name, size in sizes.items() if name in missing})
        for path, each in files.items():
            if not missing.isdisjoint(each.content):
                self._files.append((path, each.content))

    def secrets(self) -> Iterator[FoundSecret]:
        """Yield what looks like keys and passwords in files that are not there as a whole."""
        yield from self._found
        for path, names in self._files:
            yield from _secrets_in(path, (content.data for _, content in self._read(names)))

    def stage(self, count: Callable[[int], None]) -> None:
        """Stage what is missing, children first; ``count`` is told the size of each part."""
        for names in self._batches():
            contents = [content for _, content in self._read(names)]
            self._target.engine.stage(self._target.space, contents)
            count(sum(len(content.data) for content in contents))
            failpoints.hit(_STAGED)

    def _missing(self, names: Iterable[str]) -> list[str]:
        new = [each for each in names if each not in self._seen]
        self._seen.update(new)
        missing: list[str] = []
        for start in range(0, len(new), _NAMES):
            some = new[start : start + _NAMES]
            gone = self._target.engine.missing(self._target.space, some)
            missing += [each for each in some if each in gone]
        return missing

    def _read(self, names: Sequence[str]) -> Iterator[tuple[str, Content]]:
        for start in range(0, len(names), _BATCH_OBJECTS):
            some = names[start : start + _BATCH_OBJECTS]
            addresses: list[Address] = [object_address(each) for each in some]
            yield from zip(some, self._source.engine.get(self._source.space, addresses), strict=True)

    def _batches(self) -> Iterator[list[str]]:
        batch: list[str] = []
        size = 0
        for name in (*self._sizes, *self._folders()):
            batch.append(name)
            size += self._sizes.get(name, 0)
            if size >= _BATCH_BYTES or len(batch) >= _BATCH_OBJECTS:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _folders(self) -> Iterator[str]:
        """Yield the missing folders, each after those in it."""
        done: set[str] = set()
        for root in self._below:
            stack = [(root, False)]
            while stack:
                name, is_left = stack.pop()
                if name in done or name not in self._below:
                    continue
                if is_left:
                    done.add(name)
                    yield name
                else:
                    stack.append((name, True))
                    stack.extend((each, False) for each in self._below[name])

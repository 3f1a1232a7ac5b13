"""Workspaces: versions of an agent's files, next to its conversation.

A snapshot is cheap enough to take after every tool call: unchanged files are not read, and known content is
not stored again. The methods here take snapshot ids; `Checkpoint.restore` restores the snapshot of a
checkpoint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from treering.core.batch import Draft, Event
from treering.core.clock import day_of, to_datetime
from treering.core.content import is_object_name, object_address
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import Scope, check_id, only_match, short_id
from treering.core.query import EventQuery, records_by_id
from treering.core.text import readable
from treering.errors import InvalidInput, NotFound
from treering.runs.span import current_node
from treering.secret_scan import FoundSecret
from treering.workspaces.browse import (
    SnapshotCheck,
    SnapshotEntry,
    check_snapshot,
    ls,
    select,
    snapshot_secrets,
    stat,
    stream,
)
from treering.workspaces.diff import FileChange, compare
from treering.workspaces.restore import LinkPolicy, RestoreResult, download, preview, restore
from treering.workspaces.scan import FileProgress, LeftOut, Limits, StatCache
from treering.workspaces.snapshot import (
    LISTED,
    Snapshot,
    SnapshotWriter,
    StagedSnapshot,
    resolve_folder,
    secrets_to_json,
    target_folder,
)
from treering.workspaces.virtual_fs import MountAccess, VirtualFiles

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Record

T = TypeVar("T")

SNAPSHOT: Final = "snapshot"
LISTED_SNAPSHOT: Final = "snapshot.listed"
"""An entry of the ledger, which lists the snapshots of all folders in order. It holds nothing but the id."""
LEDGER: Final = str(Scope("", "ledger", "snapshots"))
_LISTED: Final = ":listed"
_EVENT: Final = "snap_"
_BEGINNING: Final = re.compile("[0-9a-f]{6,63}")
_PAGE: Final = 250


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot as the journal records it.

    ``workspace`` is the name that the snapshots of one folder share (by default its path). ``files`` and
    ``size_bytes`` are what a full restore writes. ``secrets`` are what looks like keys and passwords in
    them; the journal has the first 100.
    """

    id: str
    workspace: str
    taken_at_us: int
    files: int
    size_bytes: int
    read_files: int
    note: str | None = None
    tags: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    changed: tuple[str, ...] = ()
    secrets: tuple[FoundSecret, ...] = ()

    @property
    def taken_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.taken_at_us)


class SnapshotPage(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshots, newest first, and the cursor of the next page; ``None`` if there is none."""

    snapshots: tuple[SnapshotInfo, ...]
    cursor: str | None


class Workspace:
    """The snapshots of one space, as `Store.workspace` returns it.

    ``folder`` is the folder of a local store.
    """

    def __init__(self, engine: Engine, space: str, *, folder: Path | None, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._folder = folder
        self._clock = clock
        self._cache = StatCache(_cache_folder(engine, space, folder))
        self._background: ThreadPoolExecutor | None = None

    def __repr__(self) -> str:
        return f"<Workspace {self._engine.url} space={self._space!r}>"

    def snapshot(
        self,
        folder: str | Path,
        *,
        exclude: Iterable[str] = (),
        include: Iterable[str] = (),
        name: str | None = None,
        note: str | None = None,
        tags: Iterable[str] = (),
        limits: Limits | None = None,
        seconds: float | None = None,
        allow_home: bool = False,
        on_progress: Callable[[FileProgress], None] | None = None,
        on_done: Callable[[SnapshotInfo], None] | None = None,
    ) -> str:
        """Take a snapshot of a folder; return its id, the SHA-256 name of the root tree.

        A snapshot has files, modes, links and empty folders; not sockets, pipes, devices, and what the rules
        exclude. ``exclude`` and ``include`` are patterns in .gitignore syntax, in addition to the folder's
        own ``.treeringignore``.

        Args:
            name: What `gc` groups snapshots by; by default the folder's path.
            seconds: A deadline; past it, `TimedOut` is raised and no snapshot is taken.
            on_progress: Called with the progress.
            on_done: Called with the result, which lists what was left out.
        """
        real = resolve_folder(folder, allow_home=allow_home, what="snapshot")
        workspace = check_id(name, "workspace name") if name is not None else _label(real)
        given_tags = tuple(tags)
        info = self.writer().stage_and_commit(
            real,
            lambda staged: self._commit(staged, workspace=workspace, note=note, tags=given_tags),
            exclude=exclude,
            include=include,
            limits=limits,
            seconds=seconds,
            on_progress=on_progress,
        )
        if on_done is not None:
            on_done(info)
        return info.id

    def submit(
        self,
        folder: str | Path,
        *,
        exclude: Iterable[str] = (),
        include: Iterable[str] = (),
        name: str | None = None,
        note: str | None = None,
        tags: Iterable[str] = (),
        limits: Limits | None = None,
        seconds: float | None = None,
    ) -> Future[str]:
        """Take a snapshot in the background; the future returns the id when the snapshot is stored.

        Snapshots are taken one at a time, in the order of the calls.
        """
        if self._background is None:
            self._background = ThreadPoolExecutor(1, "treering-snapshot")
        return self._background.submit(
            self.snapshot,
            folder,
            exclude=exclude,
            include=include,
            name=name,
            note=note,
            tags=tags,
            limits=limits,
            seconds=seconds,
        )

    def restore(
        self,
        id: str,
        target: str | Path,
        *,
        delete: bool = False,
        keep_before: bool = True,
        links: LinkPolicy = "preserve",
        limits: Limits | None = None,
        dry_run: bool = False,
        allow_home: bool = False,
        on_progress: Callable[[FileProgress], None] | None = None,
    ) -> RestoreResult:
        """Make a folder (new or existing) equal to a snapshot; only what differs is written.

        Other files in the folder stay, unless ``delete`` is set; files that the snapshot's rules exclude are
        never touched. Every object is read and verified against its hash before anything in the folder
        changes, and each file is replaced atomically. A restore that fails leaves the folder as it was.

        Args:
            keep_before: Take a snapshot of the previous content first (`RestoreResult.before`), to undo the
                restore. Without it, that content is lost.
            links: Restore symbolic links as they are ("preserve"), only those that cannot lead out of the
                folder ("inside"), or none ("drop").
        """
        snapshot = self._snapshot(id, limits)
        if dry_run and not os.path.lexists(Path(target).expanduser()):
            return preview(snapshot, links=links)
        with target_folder(target) as folder:
            real = resolve_folder(folder, allow_home=allow_home, what="restore into")
            return restore(
                self.writer(),
                snapshot,
                real,
                commit_before=(lambda staged: self._commit_before(staged, real, id)) if keep_before else None,
                delete=delete,
                links=links,
                dry_run=dry_run,
                on_progress=on_progress,
            )

    def diff(self, before: str | None, after: str | None, *, text: bool = True) -> list[FileChange]:
        """List what differs between two snapshots, by path, with a unified diff of small text files.

        ``None`` stands for an empty folder.
        """
        return list(self.changes(before, after, text=text))

    def changes(self, before: str | None, after: str | None, *, text: bool = True) -> Iterator[FileChange]:
        """Iterate over what `diff` lists."""
        if before != after:
            old = None if before is None else self._snapshot(before)
            new = None if after is None else self._snapshot(after)
            yield from compare(old, new, text=text)

    def ls(self, id: str, path: str = "", *, recursive: bool = False) -> Iterator[SnapshotEntry]:
        """List a folder of a snapshot without restoring it."""
        yield from ls(self._snapshot(id), path, recursive=recursive)

    def cat(self, id: str, path: str) -> bytes:
        """Return the bytes of one file of a snapshot; `stream` reads a large one piece by piece."""
        return b"".join(stream(self._snapshot(id), path))

    def stat(self, id: str, path: str) -> SnapshotEntry:
        """Return one file, folder or link of a snapshot."""
        return stat(self._snapshot(id), path)

    def stream(self, id: str, path: str, *, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Iterate over the bytes of one file of a snapshot, from ``start`` up to ``stop`` or its end.

        The pieces are those in which the file is stored, so a file of any size takes a few megabytes.
        """
        yield from stream(self._snapshot(id), path, start=start, stop=stop)

    def download(
        self,
        id: str,
        files: str | Iterable[str],
        target: str | Path,
        *,
        overwrite: bool = False,
        on_progress: Callable[[FileProgress], None] | None = None,
    ) -> tuple[str, ...]:
        """Write some files of a snapshot into a folder, under their own paths; return these paths.

        ``files`` are paths (a folder selects everything in it) and patterns in .gitignore syntax. Each must
        select something, else `NotFound`. An existing file raises `Conflict`, unless ``overwrite`` is set.
        """
        snapshot = self._snapshot(id)
        selected = select(snapshot, files)
        with target_folder(target) as folder:
            return download(
                snapshot, selected, folder.resolve(), overwrite=overwrite, on_progress=on_progress
            )

    def check(self, id: str, *, on_progress: Callable[[FileProgress], None] | None = None) -> SnapshotCheck:
        """Read and verify every object of a snapshot; report what cannot be restored."""
        return check_snapshot(self._snapshot(id), on_progress=on_progress)

    def secrets(
        self, id: str, *, on_progress: Callable[[FileProgress], None] | None = None
    ) -> list[FoundSecret]:
        """Read every file of a snapshot, and list what looks like keys, tokens and passwords in them.

        `snapshot` does the same with what it reads, and `SnapshotInfo.secrets` has the result.
        `treering.secret_scan.refuse_secrets` turns it into an error.
        """
        return list(snapshot_secrets(self._snapshot(id), on_progress=on_progress))

    def snapshots(self, *, name: str | Path | None = None, last: int | None = None) -> Iterator[SnapshotInfo]:
        """Iterate over snapshots, newest first; those that belong to checkpoints are not included."""
        stop = None if last is None else max(last, 0)
        yield from islice(self._each(name, _PAGE if stop is None else min(max(stop, 1), _PAGE)), stop)

    def snapshot_page(
        self, *, name: str | Path | None = None, first: int = 100, cursor: str | None = None
    ) -> SnapshotPage:
        """Return one page of `snapshots`, in the same time however many there are."""
        page = self._engine.scan(self._space, self._query(name), after=cursor, limit=first)
        return SnapshotPage(snapshots=tuple(self._found(page.records)), cursor=page.cursor)

    def _each(self, name: str | Path | None, limit: int) -> Iterator[SnapshotInfo]:
        cursor = None
        while True:
            page = self.snapshot_page(name=name, first=limit, cursor=cursor)
            yield from page.snapshots
            if page.cursor is None:
                return
            cursor = page.cursor

    def _query(self, name: str | Path | None) -> EventQuery:
        if name is None:
            return EventQuery(kinds=(LISTED_SNAPSHOT,), scope=LEDGER, newest_first=True)
        label = _label(name.resolve()) if isinstance(name, Path) else name
        scope = str(Scope("", "workspace", label))
        return EventQuery(kinds=(SNAPSHOT,), scope=scope, newest_first=True)

    def _found(self, records: Sequence[Record]) -> Iterator[SnapshotInfo]:
        """Yield the snapshots of rows, and of entries of the ledger unless they were dropped since."""
        days: dict[int, list[Event]] = {}
        for record in records:
            if record.event.kind == LISTED_SNAPSHOT:
                days.setdefault(day_of(record.event.ts_us), []).append(record.event)
        found: dict[str, Event] = {}
        for events in days.values():
            times = [event.ts_us for event in events]
            ids = tuple(event.id.removesuffix(_LISTED) for event in events)
            query = EventQuery(ids=ids, since_us=min(times), until_us=max(times) + 1)
            page = self._engine.scan(self._space, query, limit=len(ids))
            found.update((record.event.id, record.event) for record in page.records)
        for record in records:
            event = record.event
            if event.kind == LISTED_SNAPSHOT:
                event = found.get(event.id.removesuffix(_LISTED), event)
            if event.kind == SNAPSHOT:
                yield _from_event(event)

    def files(
        self, root: str | Path, *, mounts: Mapping[str, tuple[str | Path, MountAccess]] | None = None
    ) -> VirtualFiles:
        """Return files for an agent's tools: a virtual root that no path leaves, with mounted folders.

        ``mounts={"host/documents": (path, "ro")}`` mounts a folder at that path, read-only or ("rw")
        writable.
        """
        return VirtualFiles(root, mounts=mounts)

    def find(self, text: str) -> str:
        """Return the id of the snapshot that a text names: its id, a unique beginning of it of at least six
        digits, or the id of its event (``snap_...``).
        """
        name = text.removeprefix("o:")
        if is_object_name(name):
            return name
        if name.startswith(_EVENT):
            events = records_by_id(self._engine, self._space, name, kinds=(SNAPSHOT,))
            found = {each.event.id: _from_event(each.event).id for each in events}
            match = only_match(found, name, "snapshot")
            if match is not None:
                return found[match]
        elif _BEGINNING.fullmatch(name):
            match = only_match((each.id for each in self.snapshots()), name, "snapshot")
            if match is not None:
                return match
        else:
            raise InvalidInput(
                f"{text[:80]!r} is not a snapshot id; expected the 64 hex digits of snapshot(), or at least "
                "the first 6"
            )
        raise NotFound(f"snapshot {text[:80]!r} not found. List snapshots with: treering snapshots")

    def _snapshot(self, id: str, limits: Limits | None = None) -> Snapshot:
        return Snapshot(self._engine, self._space, self.find(id), limits=limits)

    def _commit_before(self, staged: StagedSnapshot, folder: Path, id: str) -> None:
        self._commit(staged, workspace=_label(folder), note=f"before the restore of {short_id(id)}", tags=())

    def _commit(
        self, staged: StagedSnapshot, *, workspace: str, note: str | None, tags: tuple[str, ...]
    ) -> SnapshotInfo:
        draft = Draft(self._space)
        info = SnapshotInfo(
            id=staged.root,
            workspace=workspace,
            taken_at_us=self._clock.now_us(),
            files=staged.files,
            size_bytes=staged.size_bytes,
            read_files=staged.read_files,
            note=note,
            tags=tags,
            left_out=staged.left_out,
            changed=staged.changed,
            secrets=staged.secrets,
        )
        draft.require(*staged.requires)
        span = current_node.get()
        draft.event(
            Event(
                id=f"{_EVENT}{draft.id}",
                kind=SNAPSHOT,
                ts_us=info.taken_at_us,
                scope=str(Scope("", "workspace", workspace)),
                run=None if span is None else span.run_id,
                span=None if span is None else span.span_id,
                agent=None if span is None else span.agent,
                name=note,
                data=encode_json(_to_json(info)),
                links=(object_address(staged.root),),
            )
        )
        draft.event(
            Event(
                id=f"{_EVENT}{draft.id}{_LISTED}", kind=LISTED_SNAPSHOT, ts_us=info.taken_at_us, scope=LEDGER
            )
        )
        self._engine.commit(draft.batch())
        return info

    def stage_and_commit(
        self,
        folder: str | Path,
        commit: Callable[[StagedSnapshot], T],
        *,
        exclude: Iterable[str] = (),
        include: Iterable[str] = (),
    ) -> T:
        """Stage a folder and let ``commit`` write the batch that names it, as a checkpoint does."""
        real = resolve_folder(folder, allow_home=False, what="save")
        return self.writer().stage_and_commit(real, commit, exclude=exclude, include=include)

    def clear_stat_cache(self) -> None:
        """Drop the stat caches, which contain file names; part of erasing data.

        The next snapshot is slower.
        """
        self._cache.clear()

    def writer(self) -> SnapshotWriter:
        """Return the writer of snapshots, for those that commit them together with something else."""
        return SnapshotWriter(self._engine, self._space, self._cache, avoid=self._avoided())

    def _avoided(self) -> frozenset[tuple[int, int]]:
        """The folder of the store itself, which is never part of a snapshot."""
        if self._folder is None:
            return frozenset()
        try:
            stat = self._folder.stat()
        except OSError:
            return frozenset()
        return frozenset({(stat.st_dev, stat.st_ino)})


def _to_json(info: SnapshotInfo) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "snapshot": info.id,
        "workspace": info.workspace,
        "files": info.files,
        "size_bytes": info.size_bytes,
        "read_files": info.read_files,
    }
    if info.tags:
        fields["tags"] = list(info.tags)
    if info.left_out:
        fields["left_out"] = [[readable(each.path), each.reason] for each in info.left_out[:LISTED]]
        fields["left_out_count"] = len(info.left_out)
    if info.changed:
        fields["changed"] = [readable(each) for each in info.changed[:LISTED]]
        fields["changed_count"] = len(info.changed)
    if info.secrets:
        fields |= secrets_to_json(info.secrets)
    return fields


def _from_event(event: Event) -> SnapshotInfo:
    fields: dict[str, Any] = decode_json(event.data or b"{}")
    return SnapshotInfo(
        id=fields["snapshot"],
        workspace=fields["workspace"],
        taken_at_us=event.ts_us,
        files=fields["files"],
        size_bytes=fields["size_bytes"],
        read_files=fields["read_files"],
        note=event.name,
        tags=tuple(fields.get("tags", ())),
        left_out=tuple(LeftOut(path, reason) for path, reason in fields.get("left_out", ())),
        changed=tuple(fields.get("changed", ())),
        secrets=tuple(
            FoundSecret(path=path, rule=rule, line=line, hint=hint)
            for path, rule, line, hint in fields.get("secrets", ())
        ),
    )


def _cache_folder(engine: Engine, space: str, folder: Path | None) -> Path | None:
    """Return where stat caches are: next to a local store, else in the user's cache folder."""
    if folder is not None:
        return folder / "workspaces" / space
    if not engine.caps.durable:
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - may lack a home
    key = sha256(f"{engine.url}\0{space}".encode()).hexdigest()[:32]
    return Path(base) / "treering" / "workspaces" / key if Path(base).is_absolute() else None


def _label(folder: Path) -> str:
    """Return the name for a folder's snapshots: its path, or a hash if the path is not a valid name."""
    try:
        return check_id(str(folder), "workspace name")
    except InvalidInput:
        return f"folder-{sha256(os.fsencode(folder)).hexdigest()[:32]}"

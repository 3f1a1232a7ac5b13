"""Workspaces: an agent's files, kept step by step like its conversation.

A snapshot is cheap enough to be taken after every tool call: what did not change is not read, what was seen
before is not stored again. Everything here takes the id of a snapshot; a checkpoint that has one is restored
by `Checkpoint.restore`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from treering.core.batch import Draft, Event
from treering.core.content import object_address
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import Scope, check_id
from treering.core.paging import each_record
from treering.core.query import EventQuery
from treering.core.text import readable
from treering.errors import InvalidInput
from treering.runs.span import current_node
from treering.workspaces.browse import Entry, cat, chosen, ls, plan_of
from treering.workspaces.diff import FileChange, compare
from treering.workspaces.restore import Restored, download, foreseen, restore
from treering.workspaces.restore_plan import LinkPolicy
from treering.workspaces.scan import FileProgress, LeftOut, Limits, Shelf
from treering.workspaces.snapshot import LISTED, Camera, Snapshot, Taken, made_folder, real_folder
from treering.workspaces.verify import SnapshotCheck, check
from treering.workspaces.virtual_fs import Access, Files

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine

T = TypeVar("T")

SNAPSHOT: Final = "snapshot"
_PAGE: Final = 250


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the journal says of a snapshot.

    ``workspace`` is the name that snapshots of one folder share (its path, unless another was given),
    ``files`` and ``size_bytes`` are what a restore would write.
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


class Workspace:
    """The files of one space. `Store.workspace` gives it; ``folder`` is where a local store lies."""

    def __init__(self, engine: Engine, space: str, *, folder: Path | None, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._folder = folder
        self._clock = clock
        self._shelf = Shelf(_cache(engine, space, folder))
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
        """Keep a folder as it is; gives the snapshot's id, the SHA-256 name of its root tree.

        Files, modes, links and empty folders are kept; what `rules` lists is not, nor are sockets, pipes and
        devices. ``exclude`` and ``include`` are patterns as in .gitignore, on top of the folder's own
        ``.treeringignore``. Snapshots of one ``name`` (without one, the folder's path) are kept and dropped
        together by `gc`. ``seconds`` is a deadline: past it `TimedOut` is raised and nothing is kept.
        ``on_progress`` hears how far it is, ``on_done`` what was kept and what was left out.
        """
        real = real_folder(folder, allow_home=allow_home, what="snapshot")
        workspace = check_id(name, "workspace name") if name is not None else _label(real)
        given_tags = tuple(tags)
        info = self.camera().keeping(
            real,
            lambda taken: self._commit(taken, workspace=workspace, note=note, tags=given_tags),
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
        """As `snapshot`, in the background: the agent's turn goes on, the future has the id when it is kept.

        One snapshot is taken after the other, in the order of the calls.
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
    ) -> Restored:
        """Make a folder (a new one, or one with files) into a snapshot; only what differs is written.

        What the folder has besides stays, unless ``delete`` is given; what the snapshot's rules left out is
        never touched. What was there is kept as a snapshot first (``Restored.before``), so a restore can be
        undone; without ``keep_before`` it is gone. Every object is checked against its hash, and each file
        appears whole or not at all. ``links`` says what becomes of symbolic links: all as they are
        ("preserve"), only those that cannot lead out of the folder ("inside"), or none ("drop").
        """
        snapshot = self._snapshot(id, limits)
        place = Path(target).expanduser()
        if not dry_run:
            made_folder(place)
        elif not os.path.lexists(place):
            return foreseen(snapshot, links=links)
        real = real_folder(place, allow_home=allow_home, what="restore into")
        return restore(
            self.camera(),
            snapshot,
            real,
            keep=(lambda taken: self._keep_before(taken, real, id)) if keep_before else None,
            delete=delete,
            links=links,
            dry_run=dry_run,
            on_progress=on_progress,
        )

    def diff(self, before: str | None, after: str | None, *, text: bool = True) -> list[FileChange]:
        """What differs between two snapshots, by path; for small text files with a unified diff.

        ``None`` stands for a folder with nothing in it.
        """
        if before == after:
            return []
        old = None if before is None else self._snapshot(before)
        new = None if after is None else self._snapshot(after)
        return list(compare(old, new, text=text))

    def ls(self, id: str, path: str = "", *, recursive: bool = False) -> Iterator[Entry]:
        """What a folder of a snapshot holds, without restoring it."""
        yield from ls(self._snapshot(id), path, recursive=recursive)

    def cat(self, id: str, path: str) -> bytes:
        """The bytes of one file of a snapshot."""
        return cat(self._snapshot(id), path)

    def download(
        self,
        id: str,
        files: str | Iterable[str],
        target: str | Path,
        *,
        overwrite: bool = False,
        on_progress: Callable[[FileProgress], None] | None = None,
    ) -> tuple[str, ...]:
        """Write some files of a snapshot into a folder, under their own paths; which ones.

        ``files`` are paths (a folder stands for all that is in it) and patterns as in .gitignore. Each must
        choose something, else `NotFound`. A file that is there already is a `Conflict`, unless ``overwrite``.
        """
        snapshot = self._snapshot(id)
        plan = plan_of(snapshot, chosen(snapshot, files))
        place = made_folder(target).resolve()
        return download(snapshot, plan, place, overwrite=overwrite, on_progress=on_progress)

    def check(self, id: str, *, on_progress: Callable[[FileProgress], None] | None = None) -> SnapshotCheck:
        """Read everything that a snapshot names and rehash it; says what could not be restored."""
        return check(self._snapshot(id), on_progress=on_progress)

    def snapshots(self, *, name: str | Path | None = None, last: int | None = None) -> Iterator[SnapshotInfo]:
        """The snapshots that were taken by themselves (of one workspace, if given), newest first."""
        scope = None
        if name is not None:
            label = _label(name.resolve()) if isinstance(name, Path) else name
            scope = str(Scope("", "workspace", label))
        query = EventQuery(kinds=(SNAPSHOT,), scope=scope, newest_first=True)
        stop = None if last is None else max(last, 0)
        for record in islice(each_record(self._engine, self._space, query, limit=_PAGE), stop):
            yield _read_info(record.event)

    def files(
        self, root: str | Path, *, mounts: Mapping[str, tuple[str | Path, Access]] | None = None
    ) -> Files:
        """Files for an agent's tools: a virtual root that no path leaves, with folders mounted into it.

        ``mounts={"host/documents": (path, "ro")}`` shows a folder under that path, read-only or ("rw") not.
        """
        return Files(root, mounts=mounts)

    def _snapshot(self, id: str, limits: Limits | None = None) -> Snapshot:
        return Snapshot(self._engine, self._space, id, limits=limits)

    def _keep_before(self, taken: Taken, folder: Path, id: str) -> None:
        self._commit(taken, workspace=_label(folder), note=f"before the restore of {id[:12]}", tags=())

    def _commit(
        self, taken: Taken, *, workspace: str, note: str | None, tags: tuple[str, ...]
    ) -> SnapshotInfo:
        draft = Draft(self._space)
        info = _info(taken, workspace=workspace, at_us=self._clock.now_us(), note=note, tags=tags)
        draft.require(*taken.requires)
        place = current_node.get()
        draft.event(
            Event(
                id=f"snap_{draft.id}",
                kind=SNAPSHOT,
                ts_us=info.taken_at_us,
                scope=str(Scope("", "workspace", workspace)),
                run=None if place is None else place.run_id,
                span=None if place is None else place.span_id,
                agent=None if place is None else place.agent,
                name=note,
                data=encode_json(_told(info)),
                links=(object_address(taken.root),),
            )
        )
        self._engine.commit(draft.batch())
        return info

    def keeping(
        self,
        folder: str | Path,
        commit: Callable[[Taken], T],
        *,
        exclude: Iterable[str] = (),
        include: Iterable[str] = (),
    ) -> T:
        """Stage a folder and let ``commit`` name it in a batch of its own, as a checkpoint does."""
        real = real_folder(folder, allow_home=False, what="keep")
        return self.camera().keeping(real, commit, exclude=exclude, include=include)

    def unlearn(self) -> None:
        """Drop the stat caches, which name files: whoever erases something calls this. Costs time only."""
        self._shelf.clear()

    def camera(self) -> Camera:
        """What takes the snapshots; threads use it to keep files together with a checkpoint."""
        return Camera(self._engine, self._space, self._shelf, avoid=self._avoided())

    def _avoided(self) -> frozenset[tuple[int, int]]:
        """The store's own folder: a workspace may hold it, its snapshot never does."""
        if self._folder is None:
            return frozenset()
        try:
            stat = self._folder.stat()
        except OSError:
            return frozenset()
        return frozenset({(stat.st_dev, stat.st_ino)})


def _info(
    taken: Taken, *, workspace: str, at_us: int, note: str | None, tags: tuple[str, ...]
) -> SnapshotInfo:
    return SnapshotInfo(
        id=taken.root,
        workspace=workspace,
        taken_at_us=at_us,
        files=taken.files,
        size_bytes=taken.size_bytes,
        read_files=taken.read_files,
        note=note,
        tags=tags,
        left_out=taken.left_out,
        changed=taken.changed,
    )


def _told(info: SnapshotInfo) -> dict[str, Any]:
    told: dict[str, Any] = {
        "snapshot": info.id,
        "workspace": info.workspace,
        "files": info.files,
        "size_bytes": info.size_bytes,
        "read_files": info.read_files,
    }
    if info.tags:
        told["tags"] = list(info.tags)
    if info.left_out:
        told["left_out"] = [[readable(each.path), each.reason] for each in info.left_out[:LISTED]]
        told["left_out_count"] = len(info.left_out)
    if info.changed:
        told["changed"] = [readable(each) for each in info.changed[:LISTED]]
        told["changed_count"] = len(info.changed)
    return told


def _read_info(event: Event) -> SnapshotInfo:
    told: dict[str, Any] = decode_json(event.data or b"{}")
    return SnapshotInfo(
        id=told["snapshot"],
        workspace=told["workspace"],
        taken_at_us=event.ts_us,
        files=told["files"],
        size_bytes=told["size_bytes"],
        read_files=told["read_files"],
        note=event.name,
        tags=tuple(told.get("tags", ())),
        left_out=tuple(LeftOut(path, reason) for path, reason in told.get("left_out", ())),
        changed=tuple(told.get("changed", ())),
    )


def _cache(engine: Engine, space: str, folder: Path | None) -> Path | None:
    """Where stat caches are: beside a local store, else where the user keeps caches."""
    if folder is not None:
        return folder / "workspaces" / space
    if not engine.caps.durable:
        return None
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - may lack a home
    key = sha256(f"{engine.url}\0{space}".encode()).hexdigest()[:32]
    return Path(base) / "treering" / "workspaces" / key if Path(base).is_absolute() else None


def _label(folder: Path) -> str:
    """The name of a folder's snapshots: its path, or a hash of a path that cannot be a name."""
    try:
        return check_id(str(folder), "workspace name")
    except InvalidInput:
        return f"folder-{sha256(os.fsencode(folder)).hexdigest()[:32]}"

"""A sandbox's files as one tree: its workspace, and the settings of its agent beside it.

The two are looked at apart, because they may lie apart and have rules of their own: of the home only the
agent's folders are kept, of the workspace everything but what its rules leave out. Put together they are one
snapshot, as if the home held both: ``workspace/...`` and ``.claude/...``. **Invariant:** the root's name
depends on the kept files alone, not on where they lay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from treering.core.tree import (
    MODE_BITS,
    FileEntry,
    FolderEntry,
    LinkEntry,
    Tree,
    TreeEntry,
    encode_tree,
)
from treering.errors import Corrupt, MissingObjects, NotFound, TreeringError
from treering.workspaces.browse import SnapshotCheck, SnapshotProblem, check_snapshot, select
from treering.workspaces.ignore import Rules, make_rules
from treering.workspaces.restore import download, restore
from treering.workspaces.scan import CachedFolder, LeftOut
from treering.workspaces.snapshot import ObjectStore, Snapshot, SnapshotWriter, StagedSnapshot, load_rules

T = TypeVar("T")

WORKSPACE: Final = "workspace"
_MODE: Final = 0o755
_TRIES: Final = 3


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sandbox's files are, and which of them count.

    ``settings`` are the agent's folders, relative to the home; one that is missing is fine.
    """

    home: Path
    workspace: Path
    settings: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """Files that are staged, and what the commit that names them must require."""

    root: str
    roots: tuple[str, ...]
    """What the commit keeps alive: the root, and the home's own, by which the next look goes faster."""
    requires: tuple[str, ...]
    files: int
    size_bytes: int
    left_out: tuple[LeftOut, ...]


class Archive:
    """Puts sandboxes into a store, and takes them out again."""

    def __init__(self, contents: ObjectStore, space: str, writer: SnapshotWriter) -> None:
        self._contents = contents
        self._space = space
        self._writer = writer

    def keep(self, place: Place, commit: Callable[[Archived], T]) -> T:
        """Stage what is new of a sandbox and let ``commit`` write what names it."""
        for tries_left in reversed(range(_TRIES)):
            work = self._writer.stage(
                place.workspace, load_rules(place.workspace, exclude=place.exclude, include=place.include)
            )
            home = self._writer.stage(place.home, settings_rules(place.settings))
            try:
                done = commit(self._together(work, home))
            except MissingObjects:  # a collection was faster: read everything again
                self._writer.cache.drop(str(place.workspace))
                self._writer.cache.drop(str(place.home))
                if not tries_left:
                    raise
            else:
                self._writer.cache.save(str(place.workspace), work.cached)
                self._writer.cache.save(str(place.home), home.cached)
                return done
        raise AssertionError("the last try returned or raised")

    def restore(self, root: str, place: Place) -> None:
        """Bring a sandbox's files back: the workspace becomes what it was, the settings are written.

        Links that could lead out of the settings are left out: whoever wrote the checkpoint must not have
        treering itself follow them.
        """
        whole = self.snapshot(root)
        work = next((each for each in whole.top.entries if each.name == WORKSPACE), None)
        if not isinstance(work, FolderEntry):
            raise Corrupt(f"checkpoint tree {root} has no folder {WORKSPACE!r}; it is no sandbox's")
        place.workspace.mkdir(parents=True, exist_ok=True)
        place.home.mkdir(parents=True, exist_ok=True)
        settings = [
            each.name
            for each in whole.top.entries
            if each.name != WORKSPACE and isinstance(each, FolderEntry)
        ]
        if settings:
            wanted = [each for each in select(whole, settings) if _stays(each.entry)]
            download(whole, wanted, place.home, overwrite=True)
        restore(
            self._writer,
            Snapshot(self._contents, self._space, work.tree),
            place.workspace,
            commit_before=None,
            delete=True,
        )

    def check(self, root: str) -> SnapshotCheck:
        """Read and rehash everything that a checkpoint names, and say what could not be restored."""
        whole = self.snapshot(root)
        problems: list[SnapshotProblem] = []
        files = size = 0
        for top in whole.top.entries:
            if isinstance(top, FolderEntry) and top.name == WORKSPACE:
                found = check_snapshot(Snapshot(self._contents, self._space, top.tree))
                files, size = files + found.files, size + found.size_bytes
                problems += [
                    SnapshotProblem(f"{WORKSPACE}/{each.path}", each.message) for each in found.problems
                ]
            elif isinstance(top, FolderEntry):
                for path, read in _read_all(whole, top):
                    files += 1
                    if isinstance(read, TreeringError):
                        problems.append(SnapshotProblem(path, str(read)))
                    else:
                        size += read
        return SnapshotCheck(id=root, files=files, size_bytes=size, problems=tuple(problems))

    def snapshot(self, root: str) -> Snapshot:
        """The files of a checkpoint, to look into; `Corrupt` when not even their names are to be found."""
        try:
            return Snapshot(self._contents, self._space, root)
        except NotFound:
            raise Corrupt(
                f"the files of tree {root} are not to be found, though a checkpoint names them; "
                "an index may be lost: reindex() builds it again"
            ) from None

    def _together(self, work: StagedSnapshot, home: StagedSnapshot) -> Archived:
        entries = [*_entries(home.cached.folder), FolderEntry(name=WORKSPACE, mode=_MODE, tree=work.root)]
        tree = encode_tree(Tree(entries=tuple(entries)))
        self._contents.stage(self._space, [tree])
        return Archived(
            root=tree.name,
            roots=(tree.name, home.root),
            requires=tuple(dict.fromkeys((tree.name, *work.requires, *home.requires))),
            files=work.files + home.files,
            size_bytes=work.size_bytes + home.size_bytes,
            left_out=(*_below(WORKSPACE, work.left_out), *home.left_out),
        )


def settings_rules(settings: Iterable[str]) -> Rules:
    """Rules by which a home keeps nothing but these folders."""
    folders = [folder.strip("/").split("/") for folder in settings]
    above = {tuple(names[:depth]) for names in folders for depth in range(1, len(names))}
    lines = ["/*"]
    for names in sorted(above, key=lambda names: (len(names), names)):  # the last line that matches decides
        lines += [f"!/{'/'.join(names)}/", f"/{'/'.join(names)}/*"]
    lines += [f"!/{'/'.join(names)}/" for names in folders]
    return make_rules(ignore_lines=lines)


def _read_all(snapshot: Snapshot, folder: FolderEntry) -> Iterator[tuple[str, int | TreeringError]]:
    try:
        for each in snapshot.walk(folder, folder.name):
            if isinstance(each.entry, FileEntry):
                try:
                    yield each.path, sum(map(len, snapshot.read(each.entry, each.path)))
                except TreeringError as error:
                    yield each.path, error
    except TreeringError as error:  # a folder that cannot be read
        yield folder.name, error


def _entries(folder: CachedFolder) -> list[TreeEntry]:
    entries: list[TreeEntry] = [
        FileEntry(name=name, mode=each.stamp[4] & MODE_BITS, size=each.size, content=each.content)
        for name, each in folder.files.items()
    ]
    entries += [
        FolderEntry(name=name, mode=each.mode, tree=each.tree) for name, each in folder.folders.items()
    ]
    entries += [LinkEntry(name=name, target=target) for name, target in folder.links.items()]
    return entries


def _stays(entry: TreeEntry) -> bool:
    """Whether an entry cannot lead elsewhere: links that point up or to a whole path may."""
    if not isinstance(entry, LinkEntry):
        return True
    return not entry.target.startswith("/") and ".." not in entry.target.split("/")


def _below(folder: str, left_out: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    return tuple(LeftOut(f"{folder}/{each.path}", each.reason) for each in left_out)

"""Looking into a snapshot without restoring it: what is there, one file's bytes, some files into a folder."""

from __future__ import annotations

import os
import stat as stats
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from treering.core.tree import FileEntry, FolderEntry, LinkEntry, TreeEntry
from treering.errors import InvalidInput, NotFound
from treering.workspaces.restore_plan import FolderPlan
from treering.workspaces.snapshot import Placed, Snapshot, split

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_WILD = frozenset("*?[")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One path of a snapshot. ``hash`` is the object of a small file or the tree of a folder."""

    path: str
    kind: Literal["file", "folder", "link"]
    mode: int
    size: int = 0
    target: str | None = None
    hash: str | None = None

    @property
    def mode_text(self) -> str:
        """The mode as ``ls -l`` writes it."""
        bits = {"file": stats.S_IFREG, "folder": stats.S_IFDIR, "link": stats.S_IFLNK}[self.kind]
        return stats.filemode(bits | self.mode)


def ls(snapshot: Snapshot, path: str, *, recursive: bool) -> Iterator[Entry]:
    """What a folder of the snapshot holds; a file or a link is listed as itself."""
    found = snapshot.find(path)
    if found is not None and not isinstance(found, FolderEntry):
        yield to_entry("/".join(split(path)), found)
        return
    above = "/".join(split(path))
    if recursive:
        yield from (to_entry(each.path, each.entry) for each in snapshot.walk(found, above))
        return
    tree = snapshot.top if found is None else snapshot.folder(found.tree)
    for each in tree.entries:
        yield to_entry(f"{above}/{each.name}" if above else each.name, each)


def cat(snapshot: Snapshot, path: str) -> bytes:
    """The bytes of one file."""
    found = snapshot.find(path)
    if not isinstance(found, FileEntry):
        what = "a link" if isinstance(found, LinkEntry) else "a folder"
        raise InvalidInput(f"{path!r} is {what} in snapshot {snapshot.root[:12]}; cat reads files")
    return b"".join(snapshot.read(found, path))


def chosen(snapshot: Snapshot, wanted: str | Iterable[str]) -> list[Placed]:
    """The entries that paths and patterns choose: a path takes what is below it, too.

    A text with ``*``, ``?`` or ``[`` is first looked for as it stands (``[id].tsx`` is a name), then as a
    pattern as in .gitignore. Each must choose something.
    """
    asked = [wanted] if isinstance(wanted, str) else list(wanted)
    found: dict[str, TreeEntry] = {}
    patterns: list[str] = []
    for each in asked:
        try:
            entry = snapshot.find(each)
        except NotFound:
            if not _WILD & set(each):
                raise
            patterns.append(each)
            continue
        path = "/".join(split(each))
        if entry is not None:
            found[path] = entry
        if entry is None or isinstance(entry, FolderEntry):
            found.update({below.path: below.entry for below in snapshot.walk(entry, path)})
    if patterns:
        found.update(_matching(snapshot, patterns))
    return [Placed(path, entry) for path, entry in found.items()]


def plan_of(snapshot: Snapshot, placed: Iterable[Placed]) -> FolderPlan:
    """The plan that writes only these entries, in folders that are new."""
    root = FolderPlan("", "", 0o755, "", None)
    root.is_new = False
    folders = {"": root}
    for each in sorted(placed, key=lambda each: os.fsencode(each.path)):
        entry = each.entry
        if isinstance(entry, FolderEntry):
            _folder(folders, each.path, entry.mode)
            continue
        plan = _folder(folders, each.path.rpartition("/")[0], None, snapshot)
        if isinstance(entry, FileEntry):
            plan.files.append(entry)
        else:
            plan.links.append(entry)
    return root


def to_entry(path: str, entry: TreeEntry) -> Entry:
    """An entry as it is shown."""
    if isinstance(entry, FileEntry):
        only = entry.content[0] if len(entry.content) == 1 else None
        return Entry(path=path, kind="file", mode=entry.mode, size=entry.size, hash=only)
    if isinstance(entry, FolderEntry):
        return Entry(path=path, kind="folder", mode=entry.mode, hash=entry.tree)
    return Entry(path=path, kind="link", mode=0o777, target=entry.target, size=len(os.fsencode(entry.target)))


def _matching(snapshot: Snapshot, patterns: list[str]) -> dict[str, TreeEntry]:
    from pathspec import GitIgnoreSpec

    specs: list[tuple[str, GitIgnoreSpec]] = [(each, GitIgnoreSpec.from_lines([each])) for each in patterns]
    found: dict[str, TreeEntry] = {}
    unmatched = dict.fromkeys(patterns)
    for each in snapshot.walk():
        asked = each.path + "/" if isinstance(each.entry, FolderEntry) else each.path
        for pattern, spec in specs:
            if spec.match_file(asked):
                found[each.path] = each.entry
                unmatched.pop(pattern, None)
    if unmatched:
        raise NotFound(f"snapshot {snapshot.root[:12]} has nothing like {next(iter(unmatched))!r}")
    return found


def _folder(
    folders: dict[str, FolderPlan], path: str, mode: int | None, snapshot: Snapshot | None = None
) -> FolderPlan:
    """The plan of a folder, with those above it; modes that nobody gave come from the snapshot."""
    known = folders.get(path)
    if known is not None:
        if mode is not None:
            known.mode = mode
        return known
    above, _, name = path.rpartition("/")
    if mode is None and snapshot is not None and isinstance(entry := snapshot.find(path), FolderEntry):
        mode = entry.mode
    plan = FolderPlan(name, f"{path}/", 0o755 if mode is None else mode, "", None)
    _folder(folders, above, None, snapshot).folders.append(plan)
    folders[path] = plan
    return plan

"""Compare two snapshots: the paths that differ, and a unified diff of small text files.

Equal folders have equal names and are not read, so the cost of a comparison is proportional to what differs.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from treering.core.tree import Change, FileEntry, FolderEntry, Tree, TreeEntry, diff
from treering.errors import Corrupt
from treering.workspaces.browse import SnapshotEntry, to_entry
from treering.workspaces.snapshot import Snapshot

TEXT_BYTES: Final = 256 * 1024
"""Larger files are reported as changed, without a text diff."""

_NO_NEWLINE: Final = "\n\\ No newline at end of file\n"


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """A path that differs; ``None`` on the side that lacks it. ``text`` is a unified diff."""

    path: str
    change: Literal["added", "removed", "changed"]
    before: SnapshotEntry | None
    after: SnapshotEntry | None
    text: str | None = None


def compare(before: Snapshot | None, after: Snapshot | None, *, text: bool) -> Iterator[FileChange]:
    """Yield the differences in the order of paths; an added or removed folder is followed by its content.

    ``None`` stands for an empty folder.
    """
    one = before or after
    if one is None:
        return
    for each in (before, after):
        if each is not None:
            each.check_entries()
    old, new = Tree() if before is None else before.top, Tree() if after is None else after.top
    yield from _Comparison(before or one, after or one, text=text).folders(old, new, "", 0)


class _Comparison:
    def __init__(self, before: Snapshot, after: Snapshot, *, text: bool) -> None:
        self._before = before
        self._after = after
        self._text = text
        self._count = 0

    def folders(self, before: Tree, after: Tree, above: str, depth: int) -> Iterator[FileChange]:
        limits = self._after.limits
        if depth > limits.depth:
            raise Corrupt(f"entry {above[:80]!r}... is nested deeper than {limits.depth} folders; refused")
        for each in diff(before, after):
            self._count += 1
            if self._count > limits.entries:
                raise Corrupt(f"more than {limits.entries:,} paths differ; refused")
            old, new = each.before, each.after
            path = above + each.name
            if _differs(each):
                yield self._change(path, old, new)
            yield from self.folders(
                self._before.folder(old.tree) if isinstance(old, FolderEntry) else Tree(),
                self._after.folder(new.tree) if isinstance(new, FolderEntry) else Tree(),
                path + "/",
                depth + 1,
            )

    def _change(self, path: str, old: TreeEntry | None, new: TreeEntry | None) -> FileChange:
        return FileChange(
            path=path,
            change="added" if old is None else "removed" if new is None else "changed",
            before=None if old is None else to_entry(path, old),
            after=None if new is None else to_entry(path, new),
            text=self._text_of(path, old, new) if self._text else None,
        )

    def _text_of(self, path: str, old: TreeEntry | None, new: TreeEntry | None) -> str | None:
        lines = self._lines(self._before, path, old), self._lines(self._after, path, new)
        if lines[0] is None or lines[1] is None:
            return None
        names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
        text = difflib.unified_diff(lines[0], lines[1], *names)
        return "".join(line if line.endswith("\n") else line + _NO_NEWLINE for line in text)

    def _lines(self, snapshot: Snapshot, path: str, entry: TreeEntry | None) -> list[str] | None:
        if entry is None:
            return []
        if not isinstance(entry, FileEntry) or entry.size > TEXT_BYTES:
            return None
        data = b"".join(snapshot.read(entry, path))
        try:
            return None if b"\0" in data else data.decode().splitlines(keepends=True)
        except UnicodeDecodeError:
            return None


def _differs(change: Change) -> bool:
    """Return whether the entry itself differs, not just the content of the folder that it is."""
    old, new = change.before, change.after
    if isinstance(old, FolderEntry) and isinstance(new, FolderEntry):
        return old.mode != new.mode
    return True

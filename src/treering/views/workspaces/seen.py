"""What a walk saw of a folder, and the trees that follow from it once all objects have their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treering.core.content import Content
from treering.core.tree import FileEntry, FolderEntry, LinkEntry, Tree, TreeEntry, encode_tree
from treering.views.workspaces.known import KnownFile, KnownFolder, Stamp
from treering.views.workspaces.rules import RESERVED, Rules

_RULES_MODE: Final = 0o600


class Fresh:
    """A file that was read: its objects are the ``count`` contents from the ``start``-th on."""

    __slots__ = ("count", "cuts", "size", "stamp", "start")

    def __init__(self, start: int, count: int, size: int, stamp: Stamp, cuts: tuple[int, ...]) -> None:
        self.start = start
        self.count = count
        self.cuts = cuts
        self.size = size
        self.stamp = stamp


class Seen:
    """A folder that was walked and is not as it was known."""

    __slots__ = ("files", "folders", "links", "mode")

    def __init__(self, mode: int) -> None:
        self.mode = mode
        self.files: dict[str, KnownFile | Fresh] = {}
        self.links: dict[str, str] = {}
        self.folders: dict[str, Seen | KnownFolder] = {}


def settled(
    root: Seen | KnownFolder, names: Sequence[str], rules: Rules
) -> tuple[KnownFolder, list[Content]]:
    """The folder as it is known now, and the trees that are new, those below before those above.

    ``names`` are those of the contents in the order in which they were read; the root keeps the rules.
    """
    if isinstance(root, KnownFolder):
        return root, []
    trees: list[Content] = []
    entries: list[TreeEntry] = []
    if (kept := rules.to_bytes()) is not None:
        trees.append(Content("bytes", kept))
        content = (trees[0].name,)
        entries.append(FileEntry(name=RESERVED, mode=_RULES_MODE, size=len(kept), content=content))
    return _settled(root, names, trees, entries), trees


def _settled(
    seen: Seen | KnownFolder, names: Sequence[str], trees: list[Content], entries: list[TreeEntry]
) -> KnownFolder:
    if isinstance(seen, KnownFolder):
        return seen
    files: dict[str, KnownFile] = {}
    size = 0
    for name, each in seen.files.items():
        known = each
        if isinstance(known, Fresh):
            content = tuple(names[known.start : known.start + known.count])
            known = KnownFile(known.stamp, known.size, content, known.cuts)
        files[name] = known
        size += known.size
        mode = known.stamp[4] & 0o777
        entries.append(FileEntry(name=name, mode=mode, size=known.size, content=known.content))
    folders = {name: _settled(each, names, trees, []) for name, each in seen.folders.items()}
    entries += [FolderEntry(name=name, mode=each.mode, tree=each.tree) for name, each in folders.items()]
    entries += [LinkEntry(name=name, target=target) for name, target in seen.links.items()]
    tree = encode_tree(Tree(entries=tuple(entries)))
    trees.append(tree)
    return KnownFolder(
        tree=tree.name,
        mode=seen.mode,
        files=files,
        links=seen.links,
        folders=folders,
        count=len(files) + len(seen.links) + sum(each.count for each in folders.values()),
        size=size + sum(each.size for each in folders.values()),
    )

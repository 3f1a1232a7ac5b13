"""A snapshot as it is stored: its folders are read when someone asks, each hash checked on the way.

Trees may come from a store that someone else wrote, so nothing in them is taken for granted: names are
checked by the tree format itself, depth and number of entries by `Limits`. Folders that name the same folder
twice, level below level, cost a few bytes and would unfold without end; the count ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.address import is_object_name, object_address
from treering.core.tree import FileEntry, FolderEntry, LinkEntry, Tree, TreeEntry, decode_tree
from treering.errors import Corrupt, InvalidInput, NotFound
from treering.views.workspaces.contents import Far
from treering.views.workspaces.rules import RESERVED, Rules, read_rules
from treering.views.workspaces.scanning import Limits

if TYPE_CHECKING:
    from treering.core.content import Content
    from treering.views.workspaces.contents import Contents

_TREES_AT_ONCE: Final = 256
_RULES_BYTES: Final = 1024 * 1024


class Placed(msgspec.Struct, frozen=True):
    """An entry and its path in the snapshot."""

    path: str
    entry: TreeEntry


class Snapshot:
    """One stored snapshot."""

    def __init__(self, engine: Contents, space: str, root: str, *, limits: Limits | None = None) -> None:
        if not is_object_name(root):
            raise InvalidInput(
                f"not a snapshot: {root[:80]!r}; expected the 64 hex digits that snapshot() gave"
            )
        self.root = root
        self.limits = limits or Limits()
        self._engine = engine
        self._space = space
        try:
            (tree,) = self._trees([root])
        except NotFound:
            raise NotFound(f"there is no snapshot {root}; snapshots() shows what there is") from None
        kept = [each for each in tree.entries if each.name == RESERVED]
        self.top = Tree(entries=tuple(each for each in tree.entries if each.name != RESERVED))
        self._kept = kept[0] if kept else None
        self._rules: Rules | None = None

    @property
    def rules(self) -> Rules:
        """The rules that the snapshot was taken by."""
        if self._rules is None:
            self._rules = read_rules(self._rules_bytes())
        return self._rules

    def folder(self, tree: str) -> Tree:
        """One folder below the root, by the name of its tree."""
        (found,) = self._trees([tree])
        return _without_rules(found)

    def folders(self, trees: Iterable[str]) -> dict[str, Tree]:
        """Several folders, in few reads."""
        names = list(dict.fromkeys(trees))
        found: dict[str, Tree] = {}
        for at in range(0, len(names), _TREES_AT_ONCE):
            some = names[at : at + _TREES_AT_ONCE]
            found.update(zip(some, map(_without_rules, self._trees(some)), strict=True))
        return found

    def find(self, path: str) -> TreeEntry | None:
        """The entry at a path; ``None`` stands for the root itself. Raises `NotFound`."""
        names = split(path)
        tree, entry = self.top, None
        for depth, name in enumerate(names):
            if depth:
                if not isinstance(entry, FolderEntry):
                    break
                tree = self.folder(entry.tree)
            entry = next((each for each in tree.entries if each.name == name), None)
            if entry is None:
                break
        else:
            return entry
        raise NotFound(f"snapshot {self.root[:12]} has no {path!r}; ls() shows what it has")

    def walk(self, entry: TreeEntry | None = None, path: str = "") -> Iterator[Placed]:
        """Everything below a folder (without one, the root); each folder is followed by what is in it."""
        first = self.top if entry is None else self.folder(_folder(entry).tree)
        above = f"{path}/" if path else ""
        count = 0
        stack = [(iter(first.entries), self._inner(first), above)]
        while stack:
            entries, inner, above = stack[-1]
            each = next(entries, None)
            if each is None:
                stack.pop()
                continue
            count += 1
            if count > self.limits.entries:
                raise Corrupt(f"snapshot {self.root} has more than {self.limits.entries:,} entries; refused")
            yield Placed(above + each.name, each)
            if isinstance(each, FolderEntry):
                if len(stack) > self.limits.depth:
                    raise Corrupt(f"entry {above[:80]!r}... is deeper than {self.limits.depth}; refused")
                below = inner[each.tree]
                stack.append((iter(below.entries), self._inner(below), f"{above}{each.name}/"))

    def _inner(self, tree: Tree) -> dict[str, Tree]:
        return self.folders(each.tree for each in tree.entries if isinstance(each, FolderEntry))

    def read(self, entry: FileEntry, path: str) -> Iterator[bytes]:
        """The bytes of a file, piece by piece."""
        size = 0
        for name in entry.content:
            (content,) = self._engine.get(self._space, [object_address(name)])
            size += len(content.data)
            if size > entry.size:
                break
            yield content.data
        if size != entry.size:
            raise Corrupt(f"file {path!r} has {size} bytes, not the {entry.size} that the snapshot says")

    def expect(self, names: Sequence[str]) -> None:
        """Let a store that is far away begin to fetch what will be asked for soon."""
        if isinstance(self._engine, Far):
            self._engine.expect(names)

    def contents(self, names: Sequence[str]) -> dict[str, Content]:
        """Contents by name, verified."""
        unique = list(dict.fromkeys(names))
        found = self._engine.get(self._space, [object_address(each) for each in unique])
        return dict(zip(unique, found, strict=True))

    def _trees(self, names: list[str]) -> list[Tree]:
        contents = self._engine.get(self._space, [object_address(each) for each in names])
        for name, content in zip(names, contents, strict=True):
            if content.kind != "tree":
                raise InvalidInput(f"object {name} is not a folder of a snapshot, but {content.kind}")
        return [decode_tree(content) for content in contents]

    def _rules_bytes(self) -> bytes | None:
        if self._kept is None:
            return None
        if not isinstance(self._kept, FileEntry) or self._kept.size > _RULES_BYTES:
            raise Corrupt(f"snapshot {self.root} has an entry {RESERVED!r} that holds no rules; refused")
        return b"".join(self.read(self._kept, RESERVED))


def split(path: str) -> list[str]:
    """The names in a path within a snapshot; ``""``, ``"."`` and ``"/"`` are its root."""
    names = [each for each in path.split("/") if each not in ("", ".")]
    if ".." in names or "\0" in path:
        raise InvalidInput(f"{path[:80]!r} is not a path in a snapshot: give names with / between them")
    return names


def _without_rules(tree: Tree) -> Tree:
    """A folder without the rules of a snapshot: a root has them, and one may lie in another."""
    if not any(map(_is_rules, tree.entries)):
        return tree
    return Tree(entries=tuple(each for each in tree.entries if not _is_rules(each)))


def _is_rules(entry: TreeEntry) -> bool:
    return entry.name == RESERVED and isinstance(entry, FileEntry)


def _folder(entry: TreeEntry) -> FolderEntry:
    if isinstance(entry, FolderEntry):
        return entry
    what = "a link" if isinstance(entry, LinkEntry) else "a file"
    raise InvalidInput(f"{entry.name!r} is {what}, not a folder")

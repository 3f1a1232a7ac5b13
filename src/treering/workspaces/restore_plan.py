"""What a restore would do: the difference between a folder as it is and a snapshot, made into steps.

Nothing is written here, so all refusals come before the first change: entries that the snapshot's own rules
leave out (a tree that someone made by hand may hold them), things in the way that no snapshot holds, folders
in the way of files, too many entries, too deep. Folders that are equal are not looked into.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from treering.core.tree import FileEntry, FolderEntry, LinkEntry, Tree
from treering.errors import Conflict, Corrupt
from treering.workspaces.ignore import Rules
from treering.workspaces.scan import KnownFolder
from treering.workspaces.snapshot import Snapshot

_AT_ONCE: Final = 256

LinkPolicy = Literal["preserve", "inside", "drop"]
"""Links as they are, only those that cannot lead out of the target, or none."""


class FolderPlan:
    """What happens in one folder, and in those below it."""

    __slots__ = (
        "chmods",
        "current",
        "files",
        "folders",
        "is_exact",
        "is_new",
        "links",
        "mode",
        "name",
        "path",
        "removed_files",
        "removed_folders",
        "tree",
    )

    def __init__(self, name: str, path: str, mode: int, tree: str, current: KnownFolder | None) -> None:
        self.name = name
        self.path = path
        self.mode = mode
        self.tree = tree
        self.current = current
        self.is_new = current is None
        self.is_exact = True
        """Whether the folder is afterwards as the snapshot says, with nothing besides."""
        self.removed_files: list[str] = []
        self.removed_folders: dict[str, KnownFolder] = {}
        self.files: list[FileEntry] = []
        self.chmods: list[FileEntry] = []
        self.links: list[LinkEntry] = []
        self.folders: list[FolderPlan] = []

    def walk(self) -> Iterator[FolderPlan]:
        """This folder and all below it, in the order in which they are written."""
        waiting: list[FolderPlan] = [self]
        while waiting:
            plan = waiting.pop()
            yield plan
            waiting += reversed(plan.folders)

    @property
    def does_nothing(self) -> bool:
        """Whether the folder stays as it is, those below it aside."""
        return not (
            self.is_new
            or self.removed_files
            or self.removed_folders
            or self.files
            or self.chmods
            or self.links
            or any(each.is_new for each in self.folders)
            or (self.path and self.current is not None and self.current.mode != self.mode)
        )


class Planner:
    """Makes the plan of one restore."""

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        delete: bool = False,
        links: LinkPolicy = "preserve",
        in_the_way: frozenset[str] = frozenset(),
    ) -> None:
        self._snapshot = snapshot
        self._rules: Rules = snapshot.rules
        self._delete = delete
        self._links = links
        self._in_the_way = in_the_way
        self._entries = 0
        self.left_links: list[str] = []

    def plan(self, current: KnownFolder) -> FolderPlan:
        """What it takes to make the folder that is ``current`` into the snapshot."""
        root = FolderPlan("", "", current.mode, self._snapshot.root, current)
        plans: list[FolderPlan] = []
        level, depth = [root], 0
        while level:  # level by level, so that many folders are read together
            plans += level
            below: list[FolderPlan] = []
            for at in range(0, len(level), _AT_ONCE):
                some = level[at : at + _AT_ONCE]
                trees = self._snapshot.folders(each.tree for each in some if each is not root)
                for plan in some:
                    tree = self._snapshot.top if plan is root else trees[plan.tree]
                    below += self._fill(plan, tree, depth)
            level, depth = below, depth + 1
        for plan in reversed(plans):
            plan.is_exact = plan.is_exact and all(inner.is_exact for inner in plan.folders)
        return root

    def _fill(self, plan: FolderPlan, tree: Tree, depth: int) -> list[FolderPlan]:
        """Plan one folder; those below it that have to be looked into."""
        limits = self._snapshot.limits
        if depth > limits.depth:
            raise Corrupt(f"entry {plan.path[:80]!r}... is deeper than {limits.depth}; nothing was written")
        self._entries += len(tree.entries)
        if self._entries > limits.entries:
            raise Corrupt(
                f"snapshot {self._snapshot.root} has more than {limits.entries:,} entries "
                f"(seen up to {plan.path!r}); nothing was written"
            )
        known_files = {} if plan.current is None else plan.current.files
        for entry in tree.entries:
            if isinstance(entry, FileEntry):
                known = known_files.get(entry.name)
                if known is None:
                    self._file(plan, entry, plan.path + entry.name)
                elif known.content != entry.content or known.size != entry.size:
                    plan.files.append(entry)
                elif known.stamp[4] & 0o7777 != entry.mode:
                    plan.chmods.append(entry)
                continue
            path = plan.path + entry.name
            self._check(path, is_folder=isinstance(entry, FolderEntry))
            if isinstance(entry, LinkEntry):
                self._link(plan, entry, path, depth)
            elif (inner := self._folder(plan, entry, path)) is not None:
                plan.folders.append(inner)
        self._extras(plan, tree)
        return plan.folders

    def _check(self, path: str, *, is_folder: bool) -> None:
        if reason := self._rules.reason(path, is_folder=is_folder):
            raise Corrupt(
                f"entry {path!r} is in snapshot {self._snapshot.root[:12]}, but its own rules leave it out "
                f"({reason}); nothing was written. Single files can be had by `download`"
            )
        if path in self._in_the_way:
            raise Conflict(f"{path!r} is in the way and in no snapshot; move it first. Nothing was written")

    def _file(self, plan: FolderPlan, entry: FileEntry, path: str) -> None:
        """A file that is not there; what is there was let through by the same rules."""
        self._check(path, is_folder=False)
        self._clear(plan, entry.name, path)
        plan.files.append(entry)

    def _link(self, plan: FolderPlan, entry: LinkEntry, path: str, depth: int) -> None:
        if self._links == "drop" or (self._links == "inside" and not stays_inside(entry.target, depth)):
            self.left_links.append(path)
            plan.is_exact = False
            return
        if plan.current is not None:
            self._clear(plan, entry.name, path)
            if plan.current.links.get(entry.name) == entry.target:
                return
        plan.links.append(entry)

    def _folder(self, plan: FolderPlan, entry: FolderEntry, path: str) -> FolderPlan | None:
        known = None
        if plan.current is not None:
            if entry.name in plan.current.files or entry.name in plan.current.links:
                plan.removed_files.append(entry.name)
            known = plan.current.folders.get(entry.name)
            if known is not None and known.tree == entry.tree and known.mode == entry.mode:
                return None
        return FolderPlan(entry.name, f"{path}/", entry.mode, entry.tree, known)

    def _clear(self, plan: FolderPlan, name: str, path: str) -> None:
        """Make way for a file or a link where a folder is."""
        known = plan.current.folders.get(name) if plan.current is not None else None
        if known is None:
            return
        if not self._delete:
            raise Conflict(
                f"{path!r} is a folder and should become a file; restore with delete=True, or move it. "
                "Nothing was written"
            )
        plan.removed_folders[name] = known

    def _extras(self, plan: FolderPlan, tree: Tree) -> None:
        """What is there and not in the snapshot: removed if that was asked for."""
        if plan.current is None:
            return
        wanted = {entry.name for entry in tree.entries}
        files = [name for name in (*plan.current.files, *plan.current.links) if name not in wanted]
        folders = {name: each for name, each in plan.current.folders.items() if name not in wanted}
        if self._delete:
            plan.removed_files += files
            plan.removed_folders.update(folders)
        elif files or folders:
            plan.is_exact = False


def stays_inside(target: str, depth: int) -> bool:
    """Whether a link that lies ``depth`` folders deep cannot lead out, whatever other such links there are.

    Going up is allowed only at the beginning: behind a name that is itself a link it would go anywhere.
    """
    names = [each for each in target.split("/") if each not in ("", ".")]
    ups = next((at for at, each in enumerate(names) if each != ".."), len(names))
    return not target.startswith("/") and ups <= depth and ".." not in names[ups:]

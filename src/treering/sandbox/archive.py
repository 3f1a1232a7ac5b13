"""A sandbox's files as one snapshot: its workspace, and the settings of its agent beside it.

The two are scanned separately, since they may be in different places and have different rules: of the home
only the agent's folders are saved, of the workspace everything that its rules do not exclude. Together they
form one tree, as if the home contained both: ``workspace/...`` and ``.claude/...``. **Invariant:** the name
of the root depends on the saved files alone, not on where they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from treering.core.tree import FolderEntry, LinkEntry, Tree, TreeEntry, encode_tree
from treering.errors import Corrupt, MissingObjects, NotFound, TreeringError
from treering.secret_scan import FoundSecret
from treering.workspaces.browse import SnapshotCheck, SnapshotProblem, check_snapshot, select
from treering.workspaces.ignore import DEFAULT_EXCLUDES, RESERVED, Rules, make_rules
from treering.workspaces.restore import download, restore
from treering.workspaces.scan import LeftOut
from treering.workspaces.snapshot import ObjectStore, Snapshot, SnapshotWriter, StagedSnapshot, load_rules

T = TypeVar("T")

WORKSPACE: Final = "workspace"
_MODE: Final = 0o755
_TRIES: Final = 3


class SandboxFolders(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sandbox's files are, and which of them are saved.

    ``settings`` are the agent's folders, relative to the home; missing ones are fine.
    """

    home: Path
    workspace: Path
    settings: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()


class StagedSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """Files that are staged, and what the commit that names them must require."""

    root: str
    roots: tuple[str, ...]
    """What the commit must keep alive: the root, and the home's own root, which the stat cache relies on."""
    requires: tuple[str, ...]
    files: int
    size_bytes: int
    left_out: tuple[LeftOut, ...]
    secrets: tuple[FoundSecret, ...]


class SandboxArchive:
    """Saves sandboxes to an object store, and restores them."""

    def __init__(self, contents: ObjectStore, space: str, writer: SnapshotWriter) -> None:
        self._contents = contents
        self._space = space
        self._writer = writer

    def save(self, folders: SandboxFolders, commit: Callable[[StagedSandbox], T]) -> T:
        """Stage what is new in a sandbox and let ``commit`` write what names it."""
        cache = self._writer.cache
        for tries_left in reversed(range(_TRIES)):
            rules = load_rules(folders.workspace, exclude=folders.exclude, include=folders.include)
            workspace = self._writer.stage(folders.workspace, rules)
            home = self._writer.stage(folders.home, settings_rules(folders.settings))
            try:
                result = commit(self._combine(workspace, home))
            except MissingObjects:  # garbage was collected in between
                cache.drop(str(folders.workspace))
                cache.drop(str(folders.home))
                if not tries_left:
                    raise
            else:
                cache.save(str(folders.workspace), workspace.cached)
                cache.save(str(folders.home), home.cached)
                return result
        raise AssertionError("the last try returned or raised")

    def restore(
        self, root: str, folders: SandboxFolders, *, before_switch: Callable[[], None] | None = None
    ) -> None:
        """Restore a sandbox: the settings are written, then the workspace becomes what it was.

        ``before_switch`` is called in between, when every object has been read and verified. If it raises, or
        anything before it, the workspace has not changed.

        Links in the settings that could lead out are dropped: treering itself must not follow the links of
        whoever wrote the checkpoint.
        """
        whole = self.snapshot(root)
        workspace = next((each for each in whole.top.entries if each.name == WORKSPACE), None)
        if not isinstance(workspace, FolderEntry):
            raise Corrupt(f"tree {root} has no folder {WORKSPACE!r}, so it is not the tree of a sandbox")
        folders.workspace.mkdir(parents=True, exist_ok=True)
        folders.home.mkdir(parents=True, exist_ok=True)
        settings = [
            each.name
            for each in whole.top.entries
            if each.name != WORKSPACE and isinstance(each, FolderEntry)
        ]
        if settings:
            wanted = [each for each in select(whole, settings) if _stays_inside(each.entry)]
            download(whole, wanted, folders.home, overwrite=True)
        restore(
            self._writer,
            Snapshot(self._contents, self._space, workspace.tree),
            folders.workspace,
            commit_before=None,
            before_switch=before_switch,
            delete=True,
        )

    def check(self, root: str) -> SnapshotCheck:
        """Read and verify every object of a checkpoint; report what cannot be restored."""
        problems: list[SnapshotProblem] = []
        files = size = 0
        for top in self.snapshot(root).top.entries:
            if isinstance(top, FolderEntry):
                try:
                    folder = Snapshot(self._contents, self._space, top.tree)
                except TreeringError as error:
                    problems.append(SnapshotProblem(top.name, str(error)))
                    continue
                found = check_snapshot(folder, check_rules=top.name == WORKSPACE)
                files, size = files + found.files, size + found.size_bytes
                problems += [
                    SnapshotProblem(f"{top.name}/{each.path}", each.message) for each in found.problems
                ]
        return SnapshotCheck(id=root, files=files, size_bytes=size, problems=tuple(problems))

    def snapshot(self, root: str) -> Snapshot:
        """Return the files of a checkpoint; raise `Corrupt` if not even their names can be read."""
        try:
            return Snapshot(self._contents, self._space, root)
        except NotFound:
            raise Corrupt(
                f"the files of tree {root} are missing, although a checkpoint names them; "
                "restore the storage from a backup or a copy"
            ) from None

    def _combine(self, workspace: StagedSnapshot, home: StagedSnapshot) -> StagedSandbox:
        folder = FolderEntry(name=WORKSPACE, mode=_MODE, tree=workspace.root)
        top = home.top
        if top is None:  # an unchanged home was not scanned, and a prune may have come since
            try:
                top = Snapshot(self._contents, self._space, home.root).top
            except NotFound:
                raise MissingObjects((home.root,)) from None
        entries = [each for each in top.entries if each.name != RESERVED]
        tree = encode_tree(Tree(entries=(*entries, folder)))
        self._contents.stage(self._space, [tree])
        left_out = (LeftOut(f"{WORKSPACE}/{each.path}", each.reason) for each in workspace.left_out)
        secrets = (
            msgspec.structs.replace(each, path=f"{WORKSPACE}/{each.path}") for each in workspace.secrets
        )
        return StagedSandbox(
            root=tree.name,
            roots=(tree.name, home.root),
            requires=tuple(dict.fromkeys((tree.name, *workspace.requires, *home.requires))),
            files=workspace.files + home.files,
            size_bytes=workspace.size_bytes + home.size_bytes,
            left_out=(*left_out, *home.left_out),
            secrets=(*secrets, *home.secrets),
        )


def settings_rules(settings: Iterable[str]) -> Rules:
    """Return rules that exclude everything in a home except these folders, and in them what is in any folder.

    A folder of an agent that is itself below a default exclusion (``.cache/agent``) is saved as a whole.
    """
    defaults = make_rules()
    plain: list[list[str]] = []
    inside: list[list[str]] = []
    for folder in settings:
        names = folder.strip("/").split("/")
        paths = ("/".join(names[: depth + 1]) for depth in range(len(names)))
        is_excluded = any(defaults.reason(path, is_folder=True) == "ignored" for path in paths)
        (inside if is_excluded else plain).append(names)
    anywhere = [each for each in DEFAULT_EXCLUDES if not each.startswith("/")]
    return make_rules(ignore_lines=["/*", *_only(plain), *anywhere, *_only(inside)])


def _only(folders: list[list[str]]) -> list[str]:
    """Return patterns that bring back these folders, but not what is beside them."""
    above = {tuple(names[:depth]) for names in folders for depth in range(1, len(names))}
    lines: list[str] = []
    for names in sorted(above, key=lambda names: (len(names), names)):  # the last match wins
        lines += [f"!/{'/'.join(names)}/", f"/{'/'.join(names)}/*"]
    return lines + [f"!/{'/'.join(names)}/" for names in folders]


def _stays_inside(entry: TreeEntry) -> bool:
    """Return whether an entry cannot lead elsewhere, as links with ``..`` or absolute targets may."""
    if not isinstance(entry, LinkEntry):
        return True
    return not entry.target.startswith("/") and ".." not in entry.target.split("/")

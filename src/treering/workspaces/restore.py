"""Restore a snapshot: make a folder equal to it, touching only what differs.

1. **Scan** the target by the snapshot's own rules, and stage it as a snapshot, so that the restore can be
   undone.
2. **Plan**: compare the scan with the snapshot, folder by folder; equal folders are not read. Every refusal
   comes here: entries that the snapshot's own rules exclude (a hand-made tree may have them), unsaved files
   in the way, folders in place of files, too many entries, too deep.
3. **Stage** all files, links and new folders in a hidden folder of the target. Their contents are read and
   verified here, so damage and a full disk are found before anything has changed.
4. **Switch**: commit the snapshot of the previous content, then move what is staged into place. These are
   renames on one file system; if one fails, those before it are undone.

The target may be hostile. Every step is relative to a descriptor of the folder it happens in, one name at a
time, and follows no link: whatever is swapped in below the target meanwhile, nothing outside of it is
written, changed or removed.

**Invariant:** a restore that fails leaves the target as it was. At any moment, each file is either as it was
or as the snapshot says, so a process that dies during the switch leaves whole files; restore again to finish
it. What a dead restore has staged is removed by the next one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat as stats
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from treering.core import failpoints
from treering.core.tree import FileEntry, FolderEntry, LinkEntry, Tree
from treering.errors import Conflict, Corrupt, StoreFull
from treering.secret_scan import SecretMatch
from treering.workspaces.ignore import LISTS_DIGEST, TEMPORARY, Rules
from treering.workspaces.restore_files import (
    ContentSource,
    FileBatch,
    FileWriter,
    StagedFolder,
    StagingArea,
    errors_for,
)
from treering.workspaces.safe_open import ConfinedFolder
from treering.workspaces.scan import (
    FILE_FLAGS,
    FOLDER_FLAGS,
    CachedFile,
    CachedFolder,
    CachedWorkspace,
    FileProgress,
    FileStamp,
    cached_folder,
    file_stamp,
    trusted_stamp,
    untrusted_stamp,
)
from treering.workspaces.snapshot import Snapshot, SnapshotPath, StagedSnapshot, open_folder
from treering.workspaces.virtual_fs import remove_tree

if TYPE_CHECKING:
    from treering.workspaces.snapshot import SnapshotWriter

LinkPolicy = Literal["preserve", "inside", "drop"]
"""Restore symbolic links as they are, only those that cannot lead out of the target, or none."""

_FOLDERS_AT_ONCE: Final = 256
_MAY_WRITE: Final = 0o300
_OWNER_WRITES: Final = 0o200
_PERMISSIONS: Final = 0o777
_FOLDERS_AHEAD: Final = 64
"""How many folders may wait for their files; each has two descriptors."""
_LINK_SECONDS: Final = 60

_STAGED: Final = failpoints.declare(
    "restore.staged", "everything is staged; nothing of the target has changed"
)
_SWITCHED: Final = failpoints.declare(
    "restore.switched", "everything is in place; what was replaced is still in the staging area"
)


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did, or would do with ``dry_run``.

    ``before`` is the snapshot of the previous content, to undo the restore; ``None`` if the folder was empty
    or nothing had to be done. Paths of folders end with ``/``. ``left_links`` are the links that ``links=``
    dropped.
    """

    id: str
    written: tuple[str, ...]
    removed: tuple[str, ...]
    bytes_written: int
    before: str | None = None
    left_links: tuple[str, ...] = ()
    dry_run: bool = False


def restore(
    writer: SnapshotWriter,
    snapshot: Snapshot,
    target: Path,
    *,
    commit_before: Callable[[StagedSnapshot], None] | None,
    before_switch: Callable[[], None] | None = None,
    delete: bool = False,
    links: LinkPolicy = "preserve",
    dry_run: bool = False,
    on_progress: Callable[[FileProgress], None] | None = None,
) -> RestoreResult:
    """Make a folder equal to a snapshot, or leave it as it is and raise.

    ``commit_before`` commits the snapshot of the previous content; with ``None`` that content is not saved.
    It and ``before_switch`` are called when everything is staged; if one raises, nothing has changed.
    """
    before = None
    if commit_before is None or dry_run:
        current, left_out, stale = writer.inspect(target, snapshot.rules, limits=snapshot.limits)
    else:
        before = writer.stage(target, snapshot.rules, limits=snapshot.limits)
        current, left_out, stale = before.cached.folder, before.left_out, before.stale_temporaries
        if before.root == snapshot.root or not (current.files or current.links or current.folders):
            before = None  # nothing to save
    in_the_way = frozenset(each.path for each in left_out)
    planner = RestorePlanner(snapshot, delete=delete, links=links, in_the_way=in_the_way)
    plan = planner.plan(current)
    if dry_run:
        return _planned(snapshot.root, plan, planner)
    _remove_stale(target, stale)

    def prepare() -> None:
        if before is not None and commit_before is not None:
            commit_before(before)
            writer.cache.remember(str(target), before.cached)  # written to disk when the restore is done
        if before_switch is not None:
            before_switch()

    with open_folder(target) as folder:
        _check_names(plan, folder)
        _check_space(plan, folder)
        applier = PlanApplier(snapshot, now_ns=time.time_ns, before_switch=prepare, on_progress=on_progress)
        cached = applier.apply(plan, folder)
    if before is not None or plan.is_exact:
        roots = (snapshot.root,) if before is None else (snapshot.root, before.root)
        writer.cache.save(
            str(target),
            CachedWorkspace(roots=roots, patterns=snapshot.rules.patterns, lists=LISTS_DIGEST, folder=cached),
        )
    else:  # the target has content that is stored nowhere
        writer.cache.drop(str(target))
    return RestoreResult(
        id=snapshot.root,
        written=tuple(_written(plan)),
        removed=tuple(applier.removed),
        bytes_written=applier.bytes,
        before=None if before is None else before.root,
        left_links=tuple(planner.left_links),
    )


def preview(snapshot: Snapshot, *, links: LinkPolicy) -> RestoreResult:
    """Return what a restore into a folder that does not exist yet would do."""
    planner = RestorePlanner(snapshot, delete=False, links=links, in_the_way=frozenset())
    return _planned(snapshot.root, planner.plan(cached_folder("", 0)), planner)


def download(
    snapshot: Snapshot,
    selected: Iterable[SnapshotPath],
    target: Path,
    *,
    overwrite: bool,
    on_progress: Callable[[FileProgress], None] | None = None,
) -> tuple[str, ...]:
    """Write some entries of a snapshot into a folder that may have other files; return the written paths."""
    plan = _plan_selection(snapshot, selected)
    existing = [path for path in _paths(plan) if os.path.lexists(target / path)]
    if existing and not overwrite:
        raise Conflict(
            f"{existing[0]!r} already exists ({len(existing)} in all); pass overwrite=True, "
            "or choose another folder"
        )
    with open_folder(target) as folder:
        _check_names(plan, folder)
        _check_space(plan, folder)
        applier = PlanApplier(snapshot, now_ns=time.time_ns, joins=True, on_progress=on_progress)
        applier.apply(plan, folder)
    return tuple(path for path in _written(plan) if not path.endswith("/"))


def _paths(plan: FolderPlan) -> Iterator[str]:
    for each in plan.walk():
        yield from (each.path + entry.name for entry in (*each.files, *each.links))


def _planned(root: str, plan: FolderPlan, planner: RestorePlanner) -> RestoreResult:
    removed: list[str] = []
    size = 0
    for each in plan.walk():
        removed += [each.path + name for name in each.removed_files]
        removed += [f"{each.path}{name}/" for name in each.removed_folders]
        size += sum(entry.size for entry in each.files)
    return RestoreResult(
        id=root,
        written=tuple(_written(plan)),
        removed=tuple(removed),
        bytes_written=size,
        left_links=tuple(planner.left_links),
        dry_run=True,
    )


def _written(plan: FolderPlan) -> Iterator[str]:
    for each in plan.walk():
        if each.is_new:
            yield each.path
        yield from (each.path + entry.name for entry in (*each.files, *each.chmods, *each.links))


def _check_space(plan: FolderPlan, folder: int) -> None:
    """Refuse early what does not fit on the disk. A chunk that repeats within a file is likely a hole."""
    needed = sum(
        entry.size * len(set(entry.content)) // len(entry.content) if entry.content else entry.size
        for each in plan.walk()
        for entry in each.files
    )
    disk = os.fstatvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise StoreFull(
            f"the restore needs {needed:,} bytes but the disk has {free:,} free; nothing was written"
        )


def _check_names(plan: FolderPlan, folder: int) -> None:
    """Refuse names that differ only by case on a file system that ignores case."""
    for each in plan.walk():
        names: dict[str, str] = {}
        for entry in (*each.files, *each.links, *each.folders):
            twin = names.setdefault(entry.name.casefold(), entry.name)
            if twin != entry.name and _ignores_case(folder):
                raise Conflict(
                    f"{each.path + twin!r} and {entry.name!r} are one name on this file system; "
                    "restore to one that is case-sensitive. Nothing was written"
                )


def _ignores_case(folder: int) -> bool:
    name = f"{TEMPORARY}case"
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        os.stat(name.upper(), dir_fd=folder, follow_symlinks=False)
        return True
    except FileNotFoundError:
        return False
    finally:
        os.close(file)
        os.unlink(name, dir_fd=folder)


class FolderPlan:
    """What a restore does in one folder, and in those below it."""

    __slots__ = (
        "before",
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

    def __init__(self, name: str, path: str, mode: int, tree: str, current: CachedFolder | None) -> None:
        self.name = name
        self.path = path
        self.mode = mode
        self.tree = tree
        self.current = current
        self.before: dict[str, CachedFile] = {} if current is None else current.files
        """Its files as they were scanned."""
        self.is_new = current is None
        self.is_exact = True
        """Whether the folder will equal the snapshot, with nothing else in it."""
        self.removed_files: list[str] = []
        self.removed_folders: dict[str, CachedFolder] = {}
        self.files: list[FileEntry] = []
        self.chmods: list[FileEntry] = []
        self.links: list[LinkEntry] = []
        self.folders: list[FolderPlan] = []

    def walk(self) -> Iterator[FolderPlan]:
        """Iterate over this folder and all below it, in the order they are written."""
        waiting: list[FolderPlan] = [self]
        while waiting:
            plan = waiting.pop()
            yield plan
            waiting += reversed(plan.folders)

    @property
    def does_nothing(self) -> bool:
        """Whether the folder itself stays as it is."""
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


class RestorePlanner:
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

    def plan(self, current: CachedFolder) -> FolderPlan:
        """Return the plan that makes the folder ``current`` equal to the snapshot."""
        self._snapshot.check_entries()
        root = FolderPlan("", "", current.mode, self._snapshot.root, current)
        plans: list[FolderPlan] = []
        level, depth = [root], 0
        while level:  # level by level, so that many folders are read together
            plans += level
            next_level: list[FolderPlan] = []
            for at in range(0, len(level), _FOLDERS_AT_ONCE):
                some = level[at : at + _FOLDERS_AT_ONCE]
                trees = self._snapshot.folders(each.tree for each in some if each is not root)
                for plan in some:
                    tree = self._snapshot.top if plan is root else trees[plan.tree]
                    next_level += self._plan_folder(plan, tree, depth)
            level, depth = next_level, depth + 1
        for plan in reversed(plans):
            plan.is_exact = plan.is_exact and all(inner.is_exact for inner in plan.folders)
        return root

    def _plan_folder(self, plan: FolderPlan, tree: Tree, depth: int) -> list[FolderPlan]:
        """Plan one folder; return its subfolders that differ."""
        limits = self._snapshot.limits
        if depth > limits.depth:
            raise Corrupt(
                f"entry {plan.path[:80]!r}... is deeper than {limits.depth} folders; nothing was written"
            )
        self._entries += len(tree.entries)
        if self._entries > limits.entries:
            raise Corrupt(
                f"snapshot {self._snapshot.root} has more than {limits.entries:,} entries "
                f"(counted up to {plan.path!r}); nothing was written"
            )
        cached_files = plan.before
        for entry in tree.entries:
            if isinstance(entry, FileEntry):
                cached = cached_files.get(entry.name)
                if cached is None:
                    self._plan_new_file(plan, entry, plan.path + entry.name)
                elif cached.content != entry.hashes or cached.size != entry.size:
                    plan.files.append(entry)
                elif cached.stamp[4] & 0o7777 != entry.mode:
                    plan.chmods.append(entry)
                continue
            path = plan.path + entry.name
            self._check(path, is_folder=isinstance(entry, FolderEntry))
            if isinstance(entry, LinkEntry):
                self._plan_link(plan, entry, path, depth)
            elif (inner := self._plan_subfolder(plan, entry, path)) is not None:
                plan.folders.append(inner)
        self._plan_extras(plan, tree)
        return plan.folders

    def _check(self, path: str, *, is_folder: bool) -> None:
        if reason := self._rules.reason(path, is_folder=is_folder):
            raise Corrupt(
                f"entry {path!r} is in snapshot {self._snapshot.root[:12]}, but the snapshot's own rules "
                f"exclude it ({reason}); nothing was written. `download` can fetch single files"
            )
        if path in self._in_the_way:
            raise Conflict(
                f"{path!r} is in the way and not in any snapshot; move it first. Nothing was written"
            )

    def _plan_new_file(self, plan: FolderPlan, entry: FileEntry, path: str) -> None:
        # Only new files are checked: existing ones have passed the same rules in the scan.
        self._check(path, is_folder=False)
        self._clear(plan, entry.name, path)
        plan.files.append(entry)

    def _plan_link(self, plan: FolderPlan, entry: LinkEntry, path: str, depth: int) -> None:
        if self._links == "drop" or (self._links == "inside" and not stays_inside(entry.target, depth)):
            self.left_links.append(path)
            plan.is_exact = False
            return
        if plan.current is not None:
            self._clear(plan, entry.name, path)
            if plan.current.links.get(entry.name) == entry.target:
                return
        plan.links.append(entry)

    def _plan_subfolder(self, plan: FolderPlan, entry: FolderEntry, path: str) -> FolderPlan | None:
        cached = None
        if plan.current is not None:
            if entry.name in plan.before or entry.name in plan.current.links:
                plan.removed_files.append(entry.name)
            cached = plan.current.folders.get(entry.name)
            if cached is not None and cached.tree == entry.tree and cached.mode == entry.mode:
                return None
        return FolderPlan(entry.name, f"{path}/", entry.mode, entry.tree, cached)

    def _clear(self, plan: FolderPlan, name: str, path: str) -> None:
        """Remove a folder where a file or a link has to go."""
        cached = plan.current.folders.get(name) if plan.current is not None else None
        if cached is None:
            return
        if not self._delete:
            raise Conflict(
                f"{path!r} is a folder and would become a file; restore with delete=True, or move it. "
                "Nothing was written"
            )
        plan.removed_folders[name] = cached

    def _plan_extras(self, plan: FolderPlan, tree: Tree) -> None:
        """With ``delete``, remove what exists and is not in the snapshot."""
        if plan.current is None:
            return
        wanted = {entry.name for entry in tree.entries}
        files = [name for name in (*plan.before, *plan.current.links) if name not in wanted]
        folders = {name: each for name, each in plan.current.folders.items() if name not in wanted}
        if self._delete:
            plan.removed_files += files
            plan.removed_folders.update(folders)
        elif files or folders:
            plan.is_exact = False


def stays_inside(target: str, depth: int) -> bool:
    """Return whether a link ``depth`` folders deep cannot lead out, whatever other such links exist.

    ``..`` is only allowed at the start: behind a name that is itself a link it could go anywhere.
    """
    names = [each for each in target.split("/") if each not in ("", ".")]
    ups = next((at for at, each in enumerate(names) if each != ".."), len(names))
    return not target.startswith("/") and ups <= depth and ".." not in names[ups:]


def _plan_selection(snapshot: Snapshot, selected: Iterable[SnapshotPath]) -> FolderPlan:
    """Return the plan that writes only these entries, into new folders."""
    root = FolderPlan("", "", 0o755, "", None)
    root.is_new = False
    folders = {"": root}

    def folder_at(path: str, mode: int | None) -> FolderPlan:
        existing = folders.get(path)
        if existing is not None:
            existing.mode = existing.mode if mode is None else mode
            return existing
        above, _, name = path.rpartition("/")
        if mode is None and isinstance(entry := snapshot.find(path), FolderEntry):
            mode = entry.mode
        plan = FolderPlan(name, f"{path}/", 0o755 if mode is None else mode, "", None)
        folder_at(above, None).folders.append(plan)
        folders[path] = plan
        return plan

    for each in sorted(selected, key=lambda each: os.fsencode(each.path)):
        entry = each.entry
        if isinstance(entry, FolderEntry):
            folder_at(each.path, entry.mode)
        elif isinstance(entry, FileEntry):
            folder_at(each.path.rpartition("/")[0], None).files.append(entry)
        else:
            folder_at(each.path.rpartition("/")[0], None).links.append(entry)
    return root


class _OpenFolder:
    """A folder whose files are being staged, with its descriptors."""

    def __init__(self, plan: FolderPlan, *, existing: int = -1, staged: int = -1, mode: int = 0) -> None:
        self.plan = plan
        self.path = plan.path
        self.existing = existing
        self.staged = staged
        self.mode = mode
        self.place: StagedFolder | None = None
        """What is staged for an existing folder. A new one is staged as a whole, with the folder above it."""
        self.cached = plan.before
        self.stamps: dict[str, FileStamp] = {}
        self.cuts: dict[str, tuple[int, ...]] = {}
        self.secrets: dict[str, tuple[SecretMatch, ...]] = {}
        self.batches: dict[FileBatch, None] = {}

    @property
    def is_ready(self) -> bool:
        """Whether finishing it does not wait for a large file."""
        return all(batch.is_ready for batch in self.batches)

    def close(self) -> None:
        """Close its descriptors."""
        for each in (self.existing, self.staged):
            if each >= 0:
                os.close(each)
        self.existing = self.staged = -1


class PlanApplier:
    """Applies one plan below one open folder: stages everything, then switches.

    ``before_switch`` is called in between. With ``joins``, new folders of the plan may exist already.
    """

    def __init__(
        self,
        source: ContentSource,
        *,
        now_ns: Callable[[], int],
        joins: bool = False,
        before_switch: Callable[[], None] | None = None,
        on_progress: Callable[[FileProgress], None] | None = None,
    ) -> None:
        self._files = FileWriter(source, on_progress=None if on_progress is None else self._report)
        self._joins = joins
        self._now_ns = now_ns
        self._before_switch = before_switch
        self._on_progress = on_progress
        self._folders: dict[FolderPlan, _OpenFolder] = {}
        self._waiting: deque[_OpenFolder] = deque()
        self._of_files = 0
        self._of_bytes = 0
        self.removed: list[str] = []
        self.bytes = 0

    def apply(self, plan: FolderPlan, folder: int) -> CachedFolder:
        """Apply the plan; return the target as it is afterwards, for the stat cache."""
        files = [entry for each in plan.walk() for entry in each.files] if self._on_progress else []
        self._of_files, self._of_bytes = len(files), sum(entry.size for entry in files)
        self._area = area = StagingArea(folder)
        try:
            with self._files:
                self._stage(_OpenFolder(plan, existing=os.dup(folder)))
                self._finish_folders(0)
            failpoints.hit(_STAGED)
            if self._before_switch is not None:
                self._before_switch()
            try:
                self._switch(plan, folder)
                failpoints.hit(_SWITCHED)
            except BaseException as error:
                if failed := area.undo():
                    error.add_note(f"{len(failed)} changes could not be undone, one of them in {failed[0]!r}")
                raise
        finally:
            for each in self._folders.values():
                each.close()
            area.close()
        return self._cached_after(plan, now_ns=self._now_ns())

    def _report(self, files: int, size: int) -> None:
        if self._on_progress is not None:
            self._on_progress(FileProgress(files, size, self._of_files, self._of_bytes))

    # Staging
    def _stage(self, folder: _OpenFolder) -> None:
        plan = folder.plan
        self._folders[plan] = folder
        with errors_for(plan.path or "the target"):
            if folder.existing >= 0:
                self._prepare(folder)
            for link in plan.links:
                os.symlink(link.target, link.name, dir_fd=folder.staged)
        for entry in plan.files:
            folder.batches[self._files.add(folder, entry)] = None
        for each in plan.folders:
            self._stage(self._enter(each, folder))
        self._waiting.append(folder)
        self._finish_folders(_FOLDERS_AHEAD)

    def _prepare(self, folder: _OpenFolder) -> None:
        """Create a folder in the staging area for what goes into an existing one."""
        plan = folder.plan
        if self._joins:
            for each in plan.folders:
                each.is_new = not _exists(each.name, folder.existing)
        if not plan.path or plan.removed_files or plan.removed_folders:
            self._area.prepare(folder.existing)
        if plan.files or plan.links or any(each.is_new for each in plan.folders):
            folder.place = self._area.new_folder(folder.existing)
            folder.staged = folder.place.open()

    def _enter(self, plan: FolderPlan, above: _OpenFolder) -> _OpenFolder:
        with errors_for(plan.path):
            if not plan.is_new:
                return _OpenFolder(plan, existing=os.open(plan.name, FOLDER_FLAGS, dir_fd=above.existing))
            os.mkdir(plan.name, 0o700, dir_fd=above.staged)
            # Moving a folder elsewhere requires write access to it.
            mode = plan.mode if above.existing < 0 else plan.mode | _OWNER_WRITES
            return _OpenFolder(plan, staged=os.open(plan.name, FOLDER_FLAGS, dir_fd=above.staged), mode=mode)

    def _finish_folders(self, ahead: int) -> None:
        """Finish folders until at most ``ahead`` are left; those that wait for a large file come last."""
        while len(self._waiting) > ahead:
            ready = next((each for each in self._waiting if each.is_ready), None)
            if ready is None:
                self._files.wait()
                continue
            self._waiting.remove(ready)
            with errors_for(ready.path or "the target"):
                self._finish(ready)

    def _finish(self, folder: _OpenFolder) -> None:
        for batch in folder.batches:
            self._files.finish(batch)
        folder.batches.clear()
        for entry in folder.plan.files:
            self.bytes += entry.size
        if folder.existing < 0:
            os.fchmod(folder.staged, folder.mode)
        folder.close()

    # Switching
    def _switch(self, plan: FolderPlan, folder: int) -> None:
        """Change an existing folder, and those below it."""
        current = plan.current if plan.path else None  # the mode of the target itself is the user's
        if current is not None and current.mode & _MAY_WRITE != _MAY_WRITE and not plan.does_nothing:
            self._chmod_folder(folder, current.mode | 0o700, plan.path)
        for name in plan.removed_files:
            self._take_away(name, folder, plan.path)
        for name, cached in plan.removed_folders.items():
            self._remove_folder(name, cached, folder, plan.path)
        self._place_all(plan, folder)
        for entry in plan.chmods:
            with errors_for(plan.path + entry.name):
                before = _chmod(entry.name, entry.mode, folder)
                self._area.log(plan.path, partial(_chmod, entry.name, before))
        for each in plan.folders:
            if not each.is_new:
                with errors_for(each.path):
                    below = os.open(each.name, FOLDER_FLAGS, dir_fd=folder)
                try:
                    self._switch(each, below)
                finally:
                    os.close(below)
        if current is not None:
            self._chmod_folder(folder, plan.mode, plan.path)

    def _place_all(self, plan: FolderPlan, folder: int) -> None:
        """Move what is staged for an existing folder into it."""
        staged = self._folders[plan]
        if staged.place is None:
            return
        there = set[str]()
        if plan.current is not None:
            there = (plan.before.keys() | plan.current.links.keys()) - set(plan.removed_files)
        source = staged.place.open()
        try:
            for name in _placed_names(plan):
                with errors_for(plan.path + name):
                    exists = self._joins or name in there
                    self._area.place(name, staged.place, source, folder, plan.path, exists=exists)
                    if (
                        name in staged.stamps
                    ):  # a rename moves ctime; any other difference is someone's change
                        before, now = staged.stamps[name], file_stamp(_lstat(name, folder))
                        staged.stamps[name] = now if now[:3] == before[:3] else untrusted_stamp(now[4])
            for each in plan.folders:
                if each.is_new and not each.mode & _OWNER_WRITES:
                    with errors_for(each.path):
                        before = _chmod(each.name, each.mode, folder)
                        self._area.log(plan.path, partial(_chmod, each.name, before))
        finally:
            os.close(source)

    def _take_away(self, name: str, folder: int, path: str) -> None:
        with errors_for(path + name), contextlib.suppress(FileNotFoundError):
            self._area.take_away(name, folder, path)
            self.removed.append(path + name)

    def _remove_folder(self, name: str, cached: CachedFolder, above: int, above_path: str) -> None:
        """Remove a folder and the content that was scanned; content that the rules exclude keeps it alive."""
        path = f"{above_path}{name}/"
        with errors_for(path):
            try:
                folder = os.open(name, FOLDER_FLAGS, dir_fd=above)
            except FileNotFoundError:
                return
            try:
                self._chmod_folder(folder, cached.mode | 0o700, path)
                for each in (*cached.files, *cached.links):
                    self._take_away(each, folder, path)
                for each, inner in cached.folders.items():
                    self._remove_folder(each, inner, folder, path)
            finally:
                os.close(folder)
            with contextlib.suppress(OSError):  # not empty: it has excluded files
                os.rmdir(name, dir_fd=above)
                self._area.log(above_path, lambda into: os.mkdir(name, 0o700, dir_fd=into))
                self.removed.append(path)

    def _chmod_folder(self, folder: int, mode: int, path: str) -> None:
        before = stats.S_IMODE(os.fstat(folder).st_mode)
        self._area.log(path, lambda into: os.fchmod(into, before))
        if before & _PERMISSIONS != mode:
            os.fchmod(folder, mode)

    def _cached_after(self, plan: FolderPlan, *, now_ns: int) -> CachedFolder:
        """Return a folder as the plan has left it."""
        before = plan.current
        files: dict[str, CachedFile] = {}
        links: dict[str, str] = {}
        folders: dict[str, CachedFolder] = {}
        if before is not None:
            gone = {*plan.removed_files, *plan.removed_folders}
            files = {name: each for name, each in plan.before.items() if name not in gone}
            links = {name: each for name, each in before.links.items() if name not in gone}
            folders = {name: each for name, each in before.folders.items() if name not in gone}
        staged = self._folders[plan]
        for entry in plan.files:
            stamp = trusted_stamp(staged.stamps[entry.name], read_at_ns=now_ns)
            cuts, secrets = staged.cuts.get(entry.name, ()), staged.secrets.get(entry.name)
            files[entry.name] = CachedFile(
                stamp, entry.size, entry.hashes, cuts, secrets, entry.data is not None
            )
            links.pop(entry.name, None)
        for entry in plan.chmods:
            files[entry.name] = CachedFile(
                untrusted_stamp(entry.mode), entry.size, entry.hashes, (), None, entry.data is not None
            )
            links.pop(entry.name, None)
        for link in plan.links:
            links[link.name] = link.target
            files.pop(link.name, None)
        folders.update({each.name: self._cached_after(each, now_ns=now_ns) for each in plan.folders})
        return cached_folder(
            plan.tree if plan.is_exact else "", plan.mode, files=files, links=links, folders=folders
        )


def _placed_names(plan: FolderPlan) -> Iterator[str]:
    """Return what is staged for an existing folder."""
    yield from (each.name for each in (*plan.files, *plan.links))
    yield from (each.name for each in plan.folders if each.is_new)


def _lstat(name: str, folder: int) -> os.stat_result:
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _chmod(name: str, mode: int, folder: int) -> int:
    """Set the mode of an entry; return the previous one."""
    # chmod by name would follow a link that was swapped in; O_PATH cannot be fchmod-ed, so open for reading.
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except PermissionError:
        raise Conflict(
            f"the mode of {name!r} cannot be changed: the file cannot be opened; check its permissions"
        ) from None
    try:
        before = stats.S_IMODE(os.fstat(file).st_mode)
        os.fchmod(file, mode)
    finally:
        os.close(file)
    return before


def _remove_stale(root: Path, paths: Iterable[str]) -> None:
    """Remove what dead restores left half-written; a running restore holds a lock on its own."""
    confined = ConfinedFolder(root)
    try:
        for path in paths:
            *above, name = path.split("/")
            with contextlib.suppress(OSError):
                folder = confined.open(above, FOLDER_FLAGS)
                try:
                    _remove_unlocked(folder, name)
                finally:
                    os.close(folder)
    finally:
        confined.close()


def _remove_unlocked(folder: int, name: str) -> None:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stats.S_ISLNK(found.st_mode):  # links cannot be locked, but are renamed within moments
        if time.time() - found.st_ctime > _LINK_SECONDS:
            os.unlink(name, dir_fd=folder)
        return
    file = os.open(name, FILE_FLAGS, dir_fd=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stats.S_ISDIR(found.st_mode):
            remove_tree(folder, name, force=True)
        else:
            os.unlink(name, dir_fd=folder)
    finally:
        os.close(file)

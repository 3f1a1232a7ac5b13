"""Restore a snapshot: make a folder equal to it, touching only what differs.

1. **Scan** the target by the snapshot's own rules, and store it as a snapshot, so that the restore can be
   undone.
2. **Plan**: compare the scan with the snapshot, folder by folder; equal folders are not read. Nothing is
   written here, so every refusal comes before the first change: entries that the snapshot's own rules exclude
   (a hand-made tree may have them), unsaved files in the way, folders in place of files, too many entries,
   too deep.
3. **Apply** the plan below a folder that may be hostile. Every step is relative to a descriptor of the folder
   it happens in, one name at a time, and follows no link: whatever is swapped in below the target meanwhile,
   nothing outside of it is written, changed or removed. Folders are opened, created and named here, in the
   order of the plan; `restore_files` writes the files of several of them together, so a folder is finished
   some steps after it was opened. A new folder is filled under a temporary name and renamed when its files
   are complete.

**Invariant:** at any moment, each file of the target is either as it was or as the snapshot says. Every
object is verified against its name. To finish an interrupted restore, restore again: files that are complete
are not written twice, and temporary files that a dead restore left behind are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat as stats
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from treering.core.tree import FileEntry, FolderEntry, LinkEntry, Tree
from treering.errors import Conflict, Corrupt, StoreFull
from treering.workspaces.ignore import LISTS_DIGEST, TEMPORARY, Rules
from treering.workspaces.restore_files import (
    ContentSource,
    FileBatch,
    FileWriter,
    errors_for,
    temporary_names,
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
_STEPS_AHEAD: Final = 128
"""How many steps may wait for their files; each may hold a descriptor."""
_LINK_SECONDS: Final = 60


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
    delete: bool = False,
    links: LinkPolicy = "preserve",
    dry_run: bool = False,
    on_progress: Callable[[FileProgress], None] | None = None,
) -> RestoreResult:
    """Make a folder equal to a snapshot.

    ``commit_before`` commits the snapshot of the previous content; with ``None`` that content is not saved.
    """
    rules = snapshot.rules
    current, before, in_the_way = _scan_target(
        writer, snapshot, target, commit_before=commit_before, dry_run=dry_run
    )
    planner = RestorePlanner(snapshot, delete=delete, links=links, in_the_way=in_the_way)
    plan = planner.plan(current)
    if dry_run:
        return _planned(snapshot.root, plan, planner)
    with open_folder(target) as folder:
        _check_names(plan, folder)
        _check_space(plan, folder)
        applier = PlanApplier(snapshot, now_ns=time.time_ns, on_progress=on_progress)
        cached = applier.apply(plan, folder)
    roots = (snapshot.root,) if before is None else (snapshot.root, before)
    if before is not None or plan.is_exact:
        writer.cache.save(
            str(target),
            CachedWorkspace(roots=roots, patterns=rules.patterns, lists=LISTS_DIGEST, folder=cached),
        )
    else:  # the target has content that is stored nowhere
        writer.cache.drop(str(target))
    return RestoreResult(
        id=snapshot.root,
        written=tuple(applier.written),
        removed=tuple(applier.removed),
        bytes_written=applier.bytes,
        before=before,
        left_links=tuple(planner.left_links),
    )


def preview(snapshot: Snapshot, *, links: LinkPolicy) -> RestoreResult:
    """Return what a restore into a folder that does not exist yet would do."""
    planner = RestorePlanner(snapshot, delete=False, links=links, in_the_way=frozenset())
    return _planned(snapshot.root, planner.plan(CachedFolder("", 0, {}, {}, {}, 0, 0)), planner)


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
    return tuple(path for path in applier.written if not path.endswith("/"))


def _paths(plan: FolderPlan) -> Iterator[str]:
    for each in plan.walk():
        yield from (each.path + entry.name for entry in (*each.files, *each.links))


def _scan_target(
    writer: SnapshotWriter,
    snapshot: Snapshot,
    target: Path,
    *,
    commit_before: Callable[[StagedSnapshot], None] | None,
    dry_run: bool,
) -> tuple[CachedFolder, str | None, frozenset[str]]:
    """Return the target as it is, the snapshot of it (if there is content to save), and the unsaved paths."""
    if commit_before is None or dry_run:
        current, left_out, stale = writer.inspect(target, snapshot.rules, limits=snapshot.limits)
        if not dry_run:
            _remove_stale(target, stale)
        return current, None, frozenset(each.path for each in left_out)
    staged = writer.stage(target, snapshot.rules, limits=snapshot.limits)
    _remove_stale(target, staged.stale_temporaries)
    in_the_way = frozenset(each.path for each in staged.left_out)
    current = staged.cached.folder
    if staged.root == snapshot.root or not (current.files or current.links or current.folders):
        return current, None, in_the_way
    commit_before(staged)
    writer.cache.remember(str(target), staged.cached)  # written to disk when the restore is done
    return current, staged.root, in_the_way


def _planned(root: str, plan: FolderPlan, planner: RestorePlanner) -> RestoreResult:
    written: list[str] = []
    removed: list[str] = []
    size = 0
    for each in plan.walk():
        if each.is_new:
            written.append(each.path)
        written += [each.path + entry.name for entry in (*each.files, *each.chmods, *each.links)]
        removed += [each.path + name for name in each.removed_files]
        removed += [f"{each.path}{name}/" for name in each.removed_folders]
        size += sum(entry.size for entry in each.files)
    return RestoreResult(
        id=root,
        written=tuple(written),
        removed=tuple(removed),
        bytes_written=size,
        left_links=tuple(planner.left_links),
        dry_run=True,
    )


def _check_space(plan: FolderPlan, folder: int) -> None:
    """Refuse early what does not fit on the disk. A chunk that repeats within a file is likely a hole."""
    needed = sum(
        entry.size * len(set(entry.content)) // max(1, len(entry.content))
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
        cached_files = {} if plan.current is None else plan.current.files
        for entry in tree.entries:
            if isinstance(entry, FileEntry):
                cached = cached_files.get(entry.name)
                if cached is None:
                    self._plan_new_file(plan, entry, plan.path + entry.name)
                elif cached.content != entry.content or cached.size != entry.size:
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
            if entry.name in plan.current.files or entry.name in plan.current.links:
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
        files = [name for name in (*plan.current.files, *plan.current.links) if name not in wanted]
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
    """A folder of the target, from when it is opened until it and all below it are finished."""

    def __init__(
        self, plan: FolderPlan, folder: int, above: _OpenFolder | None, temporary: str | None
    ) -> None:
        self.plan = plan
        self.path = plan.path
        self.folder = folder
        self.above = above
        self.temporary = temporary
        self.is_new = temporary is not None
        self.was_made_writable = False
        self.is_filled = False
        self.cached: dict[str, CachedFile] = {} if plan.current is None else plan.current.files
        self.stamps: dict[str, FileStamp] = {}
        self.cuts: dict[str, tuple[int, ...]] = {}
        self.batches: dict[FileBatch, None] = {}
        self.below: list[_OpenFolder] = []
        self.after: CachedFolder | None = None


_Step = Callable[[_OpenFolder], None]


class PlanApplier:
    """Applies one plan below one open folder. With ``joins``, new folders of the plan may exist already."""

    def __init__(
        self,
        source: ContentSource,
        *,
        now_ns: Callable[[], int],
        joins: bool = False,
        on_progress: Callable[[FileProgress], None] | None = None,
    ) -> None:
        self._files = FileWriter(source)
        self._joins = joins
        self._now_ns = now_ns
        self._on_progress = on_progress
        self._temporary = temporary_names()
        self._steps: list[tuple[_Step, _OpenFolder]] = []
        self._open: dict[_OpenFolder, None] = {}
        self.written: list[str] = []
        self.removed: list[str] = []
        self.bytes = 0

    def apply(self, plan: FolderPlan, folder: int) -> CachedFolder:
        """Apply the plan; return the target as it is afterwards, for the stat cache."""
        root = _OpenFolder(plan, folder, None, None)
        try:
            with self._files:
                self._visit(root)
                self._run_steps(0)
        except BaseException:
            for each in reversed(self._open):
                _abandon(each)
            raise
        assert root.after is not None  # noqa: S101 - set by the last step
        return root.after

    def _visit(self, folder: _OpenFolder) -> None:
        plan = folder.plan
        with errors_for(plan.path or "the target"):
            _make_writable(folder)
        for name in plan.removed_files:
            self._unlink(name, folder.folder, plan.path + name)
        for name, cached in plan.removed_folders.items():
            self._remove_folder(name, cached, folder.folder, plan.path + name)
        for entry in plan.files:
            folder.batches[self._files.add(folder, entry)] = None
        self._schedule(self._finish_files, folder)
        for each in plan.folders:
            below = self._enter(each, folder)
            folder.below.append(below)
            self._visit(below)
        self._schedule(self._close, folder)

    def _schedule(self, step: _Step, folder: _OpenFolder) -> None:
        self._steps.append((step, folder))
        self._run_steps(_STEPS_AHEAD)

    def _run_steps(self, ahead: int) -> None:
        """Run steps until at most ``ahead`` are left: in order, except those that wait for a large file."""
        while len(self._steps) > ahead:
            for at, (step, folder) in enumerate(self._steps):
                if self._is_ready(step, folder):
                    del self._steps[at]
                    with errors_for(folder.path or "the target"):
                        step(folder)
                    break
            else:
                self._files.wait()

    def _is_ready(self, step: _Step, folder: _OpenFolder) -> bool:
        if step == self._finish_files:
            return all(batch.is_ready for batch in folder.batches)
        return folder.is_filled and all(below.after is not None for below in folder.below)

    def _enter(self, plan: FolderPlan, above: _OpenFolder) -> _OpenFolder:
        """Open a subfolder. A new one is created under a temporary name, and locked."""
        with errors_for(plan.path):
            if not plan.is_new or (self._joins and _exists(plan.name, above.folder)):
                opened = _OpenFolder(plan, os.open(plan.name, FOLDER_FLAGS, dir_fd=above.folder), above, None)
                self._open[opened] = None
                return opened
            temporary = next(self._temporary)
            os.mkdir(temporary, 0o700, dir_fd=above.folder)
            opened = _OpenFolder(
                plan, os.open(temporary, FOLDER_FLAGS, dir_fd=above.folder), above, temporary
            )
            self._open[opened] = None
            fcntl.flock(opened.folder, fcntl.LOCK_EX)
            return opened

    def _finish_files(self, folder: _OpenFolder) -> None:
        """Complete the files of a folder, then give a new folder its name."""
        plan = folder.plan
        for batch in folder.batches:
            self._files.finish(batch)
        for entry in plan.files:
            self.bytes += entry.size
            self.written.append(plan.path + entry.name)
            if self._on_progress is not None:
                self._on_progress(FileProgress(len(self.written), self.bytes))
        for entry in plan.chmods:
            with errors_for(plan.path + entry.name):
                _chmod(entry, folder.folder)
            self.written.append(plan.path + entry.name)
        if folder.temporary is not None and folder.above is not None:
            above = folder.above.folder
            os.rename(folder.temporary, plan.name, src_dir_fd=above, dst_dir_fd=above)
            folder.temporary = None
            self.written.append(plan.path)
        folder.is_filled = True

    def _close(self, folder: _OpenFolder) -> None:
        """Everything below is done: write the links, set the mode, close."""
        plan = folder.plan
        for link in plan.links:
            self._write_link(link, folder.folder, plan.path + link.name)
        folder.after = _cached_after(folder, now_ns=self._now_ns())
        folder.below.clear()
        if folder.above is not None:
            has_other_mode = plan.current is not None and plan.current.mode != plan.mode
            if folder.is_new or folder.was_made_writable or has_other_mode:
                os.fchmod(folder.folder, plan.mode)
            del self._open[folder]
            os.close(folder.folder)

    def _write_link(self, entry: LinkEntry, folder: int, path: str) -> None:
        temporary = next(self._temporary)
        with errors_for(path):
            os.symlink(entry.target, temporary, dir_fd=folder)
            try:
                os.rename(temporary, entry.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
        self.written.append(path)

    def _unlink(self, name: str, folder: int, path: str) -> None:
        with errors_for(path), contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
            self.removed.append(path)

    def _remove_folder(self, name: str, cached: CachedFolder, above: int, path: str) -> None:
        """Remove a folder and the content that was scanned; content that the rules exclude keeps it alive."""
        with errors_for(path):
            try:
                folder = os.open(name, FOLDER_FLAGS, dir_fd=above)
            except FileNotFoundError:
                return
            try:
                if cached.mode & _MAY_WRITE != _MAY_WRITE:
                    os.fchmod(folder, cached.mode | 0o700)
                for each in (*cached.files, *cached.links):
                    self._unlink(each, folder, f"{path}/{each}")
                for each, inner in cached.folders.items():
                    self._remove_folder(each, inner, folder, f"{path}/{each}")
            finally:
                os.close(folder)
            with contextlib.suppress(OSError):  # not empty: it has excluded files
                os.rmdir(name, dir_fd=above)
                self.removed.append(path + "/")


def _make_writable(folder: _OpenFolder) -> None:
    """Make a read-only folder writable while something changes in it."""
    current = folder.plan.current
    if current is None or folder.above is None or current.mode & _MAY_WRITE == _MAY_WRITE:
        return
    if not folder.plan.does_nothing:
        os.fchmod(folder.folder, current.mode | 0o700)
        folder.was_made_writable = True


def _abandon(folder: _OpenFolder) -> None:
    """Restore a folder to its previous state, as far as possible."""
    with contextlib.suppress(OSError):
        if folder.temporary is not None and folder.above is not None:
            remove_tree(folder.above.folder, folder.temporary)
        elif folder.was_made_writable and folder.plan.current is not None:
            os.fchmod(folder.folder, folder.plan.current.mode)
    os.close(folder.folder)


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _chmod(entry: FileEntry, folder: int) -> None:
    # chmod by name would follow a link that was swapped in; O_PATH cannot be fchmod-ed, so open for reading.
    try:
        file = os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except PermissionError:
        raise Conflict(
            f"the mode of {entry.name!r} cannot be changed: the file cannot be opened; check its permissions"
        ) from None
    try:
        os.fchmod(file, entry.mode)
    finally:
        os.close(file)


def _cached_after(folder: _OpenFolder, *, now_ns: int) -> CachedFolder:
    """Return the folder as the plan has left it."""
    plan = folder.plan
    before = plan.current
    files: dict[str, CachedFile] = {}
    links: dict[str, str] = {}
    folders: dict[str, CachedFolder] = {}
    if before is not None:
        gone = {*plan.removed_files, *plan.removed_folders}
        files = {name: each for name, each in before.files.items() if name not in gone}
        links = {name: each for name, each in before.links.items() if name not in gone}
        folders = {name: each for name, each in before.folders.items() if name not in gone}
    for entry in plan.files:
        stamp = trusted_stamp(folder.stamps[entry.name], read_at_ns=now_ns)
        files[entry.name] = CachedFile(stamp, entry.size, entry.content, folder.cuts.get(entry.name, ()))
        links.pop(entry.name, None)
    for entry in plan.chmods:
        files[entry.name] = CachedFile(untrusted_stamp(entry.mode), entry.size, entry.content)
        links.pop(entry.name, None)
    for link in plan.links:
        links[link.name] = link.target
        files.pop(link.name, None)
    folders.update({each.plan.name: each.after for each in folder.below if each.after is not None})
    return CachedFolder(
        tree=plan.tree if plan.is_exact else "",
        mode=plan.mode,
        files=files,
        links=links,
        folders=folders,
        count=len(files) + len(links) + sum(each.count for each in folders.values()),
        size=sum(each.size for each in files.values()) + sum(each.size for each in folders.values()),
    )


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
            remove_tree(folder, name)
        else:
            os.unlink(name, dir_fd=folder)
    finally:
        os.close(file)

"""Restoring: a folder becomes what a snapshot says, and only what differs is touched.

The target is looked at first, by the rules of the snapshot, and kept as a snapshot of its own, so that a
restore can be undone. Then everything that will happen is planned; what cannot be done is refused before
anything is. Each object is checked against its name on the way. A restore that was interrupted is finished by
restoring again: files that are there already are not written twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat as stats
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.tree import FileEntry, LinkEntry
from treering.errors import Conflict, StoreFull
from treering.workspaces.ignore import LISTS, TEMPORARY
from treering.workspaces.restore_files import Filler, Portion, Source, temporary_names, where
from treering.workspaces.restore_plan import FolderPlan, LinkPolicy, Planner
from treering.workspaces.safe_open import Beneath
from treering.workspaces.scan import (
    FILE_FLAGS,
    FOLDER_FLAGS,
    FileProgress,
    Known,
    KnownFile,
    KnownFolder,
    Stamp,
    trusted,
    untrusted,
)
from treering.workspaces.snapshot import Taken, opened
from treering.workspaces.virtual_fs import remove

if TYPE_CHECKING:
    from treering.workspaces.snapshot import Camera, Snapshot


# -----------------------------------------------------------------------------------------------------------
# Carrying out a plan below a folder that may be hostile.
#
# Every step is relative to a descriptor of the folder that it happens in, one name at a time, and no link
# is followed: whatever is swapped in below the target while this runs, nothing is written, changed or
# removed outside of it. Folders are opened, made and named here, in the order of the plan; `filling` writes
# the files of several of them together, so a folder is only finished some steps after it was opened. A
# folder that is new is filled under a temporary name and gets its own when its files are in it.
# **Invariant:** at any moment each file of the target is as it was, or as the snapshot says.


_MAY_WRITE: Final = 0o300
_AHEAD: Final = 128
"""So many steps wait for files at most; each may hold a descriptor."""


class _Site:
    """A folder that is being filled, from when it is opened until all in it and below it is done."""

    def __init__(self, plan: FolderPlan, folder: int, above: _Site | None, temporary: str | None) -> None:
        self.plan = plan
        self.path = plan.path
        self.folder = folder
        self.above = above
        self.temporary = temporary
        self.is_nameless = temporary is not None
        self.was_opened_up = False
        self.is_settled = False
        self.known: dict[str, KnownFile] = {} if plan.current is None else plan.current.files
        self.stamps: dict[str, Stamp] = {}
        self.cuts: dict[str, tuple[int, ...]] = {}
        self.portions: dict[Portion, None] = {}
        self.below: list[_Site] = []
        self.after: KnownFolder | None = None


_Step = Callable[[_Site], None]


class Placer:
    """Carries out one plan below one open folder.

    One that ``joins`` puts files into folders that may be there already.
    """

    def __init__(
        self,
        source: Source,
        *,
        now_ns: Callable[[], int],
        joins: bool = False,
        on_progress: Callable[[FileProgress], None] | None = None,
    ) -> None:
        self._filler = Filler(source)
        self._joins = joins
        self._now_ns = now_ns
        self._on_progress = on_progress
        self._temporary = temporary_names()
        self._steps: list[tuple[_Step, _Site]] = []
        self._open: dict[_Site, None] = {}
        self.written: list[str] = []
        self.removed: list[str] = []
        self.bytes = 0

    def place(self, plan: FolderPlan, folder: int) -> KnownFolder:
        """Do everything; what is known of the target afterwards."""
        root = _Site(plan, folder, None, None)
        try:
            with self._filler:
                self._visit(root)
                self._catch_up(0)
        except BaseException:
            for site in reversed(self._open):
                _abandon(site)
            raise
        assert root.after is not None  # noqa: S101 - the last step closed it
        return root.after

    def _visit(self, site: _Site) -> None:
        plan = site.plan
        with where(plan.path or "the target"):
            _open_up(site)
        for name in plan.removed_files:
            self._unlink(name, site.folder, plan.path + name)
        for name, known in plan.removed_folders.items():
            self._remove(name, known, site.folder, plan.path + name)
        for entry in plan.files:
            site.portions[self._filler.add(site, entry)] = None
        self._later(self._settle, site)
        for each in plan.folders:
            below = self._entered(each, site)
            site.below.append(below)
            self._visit(below)
        self._later(self._close, site)

    def _later(self, step: _Step, site: _Site) -> None:
        self._steps.append((step, site))
        self._catch_up(_AHEAD)

    def _catch_up(self, ahead: int) -> None:
        """Do steps until few are left, in their order but for those that wait for a large file."""
        while len(self._steps) > ahead:
            for at, (step, site) in enumerate(self._steps):
                if self._is_ready(step, site):
                    del self._steps[at]
                    with where(site.path or "the target"):
                        step(site)
                    break
            else:
                self._filler.wait()

    def _is_ready(self, step: _Step, site: _Site) -> bool:
        if step == self._settle:
            return all(portion.is_at_hand for portion in site.portions)
        return site.is_settled and all(below.after is not None for below in site.below)

    def _entered(self, plan: FolderPlan, above: _Site) -> _Site:
        """A folder below another one, opened; a new one is made under a temporary name, and locked."""
        with where(plan.path):
            if not plan.is_new or (self._joins and _is_there(plan.name, above.folder)):
                site = _Site(plan, os.open(plan.name, FOLDER_FLAGS, dir_fd=above.folder), above, None)
                self._open[site] = None
                return site
            temporary = next(self._temporary)
            os.mkdir(temporary, 0o700, dir_fd=above.folder)
            site = _Site(plan, os.open(temporary, FOLDER_FLAGS, dir_fd=above.folder), above, temporary)
            self._open[site] = None
            fcntl.flock(site.folder, fcntl.LOCK_EX)
            return site

    def _settle(self, site: _Site) -> None:
        """The files of a folder are in it: a new one gets its name."""
        plan = site.plan
        for portion in site.portions:
            self._filler.settle(portion)
        for entry in plan.files:
            self.bytes += entry.size
            self.written.append(plan.path + entry.name)
            if self._on_progress is not None:
                self._on_progress(FileProgress(len(self.written), self.bytes))
        for entry in plan.chmods:
            with where(plan.path + entry.name):
                _chmod(entry, site.folder)
            self.written.append(plan.path + entry.name)
        if site.temporary is not None and site.above is not None:
            above = site.above.folder
            os.rename(site.temporary, plan.name, src_dir_fd=above, dst_dir_fd=above)
            site.temporary = None
            self.written.append(plan.path)
        site.is_settled = True

    def _close(self, site: _Site) -> None:
        """All below a folder is done: what is left are its links and its mode."""
        plan = site.plan
        for link in plan.links:
            self._link(link, site.folder, plan.path + link.name)
        site.after = _known_after(site, now_ns=self._now_ns())
        site.below.clear()
        if site.above is not None:
            if site.is_nameless or site.was_opened_up or (plan.current and plan.current.mode != plan.mode):
                os.fchmod(site.folder, plan.mode)
            del self._open[site]
            os.close(site.folder)

    def _link(self, entry: LinkEntry, folder: int, path: str) -> None:
        temporary = next(self._temporary)
        with where(path):
            os.symlink(entry.target, temporary, dir_fd=folder)
            try:
                os.rename(temporary, entry.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=folder)
                raise
        self.written.append(path)

    # Removing
    def _unlink(self, name: str, folder: int, path: str) -> None:
        with where(path), contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
            self.removed.append(path)

    def _remove(self, name: str, known: KnownFolder, above: int, path: str) -> None:
        """Remove a folder with what is known to be in it; what the rules leave out keeps it."""
        with where(path):
            try:
                folder = os.open(name, FOLDER_FLAGS, dir_fd=above)
            except FileNotFoundError:
                return
            try:
                if known.mode & _MAY_WRITE != _MAY_WRITE:
                    os.fchmod(folder, known.mode | 0o700)
                for each in (*known.files, *known.links):
                    self._unlink(each, folder, f"{path}/{each}")
                for each, inner in known.folders.items():
                    self._remove(each, inner, folder, f"{path}/{each}")
            finally:
                os.close(folder)
            with contextlib.suppress(OSError):  # not empty: it holds what was left out
                os.rmdir(name, dir_fd=above)
                self.removed.append(path + "/")


def _open_up(site: _Site) -> None:
    """A folder that may not be written to may be, while something happens in it."""
    current = site.plan.current
    if current is None or site.above is None or current.mode & _MAY_WRITE == _MAY_WRITE:
        return
    if not site.plan.does_nothing:
        os.fchmod(site.folder, current.mode | 0o700)
        site.was_opened_up = True


def _abandon(site: _Site) -> None:
    """Leave a folder as it was, as far as that can be done."""
    with contextlib.suppress(OSError):
        if site.temporary is not None and site.above is not None:
            remove(site.above.folder, site.temporary)
        elif site.was_opened_up and site.plan.current is not None:
            os.fchmod(site.folder, site.plan.current.mode)
    os.close(site.folder)


def _is_there(name: str, folder: int) -> bool:
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
        raise Conflict(f"the mode of {entry.name!r} cannot be changed: it cannot be opened") from None
    try:
        os.fchmod(file, entry.mode)
    finally:
        os.close(file)


def _known_after(site: _Site, *, now_ns: int) -> KnownFolder:
    plan = site.plan
    was = plan.current
    files: dict[str, KnownFile] = {}
    links: dict[str, str] = {}
    folders: dict[str, KnownFolder] = {}
    if was is not None:
        gone = {*plan.removed_files, *plan.removed_folders}
        files = {name: each for name, each in was.files.items() if name not in gone}
        links = {name: each for name, each in was.links.items() if name not in gone}
        folders = {name: each for name, each in was.folders.items() if name not in gone}
    for entry in plan.files:
        stamp = trusted(site.stamps[entry.name], read_at_ns=now_ns)
        files[entry.name] = KnownFile(stamp, entry.size, entry.content, site.cuts.get(entry.name, ()))
        links.pop(entry.name, None)
    for entry in plan.chmods:
        files[entry.name] = KnownFile(untrusted(entry.mode), entry.size, entry.content)
        links.pop(entry.name, None)
    for link in plan.links:
        links[link.name] = link.target
        files.pop(link.name, None)
    folders.update({each.plan.name: each.after for each in site.below if each.after is not None})
    return KnownFolder(
        tree=plan.tree if plan.is_exact else "",
        mode=plan.mode,
        files=files,
        links=links,
        folders=folders,
        count=len(files) + len(links) + sum(each.count for each in folders.values()),
        size=sum(each.size for each in files.values()) + sum(each.size for each in folders.values()),
    )


# -----------------------------------------------------------------------------------------------------------
# Sweeping: what a restore that died left half-written goes away, what a running one is writing stays.


_LINK_SECONDS: Final = 60


def sweep(root: Path, litter: Iterable[str]) -> None:
    """Remove what restores that died left half-written; those that still run keep theirs."""
    beneath = Beneath(root)
    try:
        for path in litter:
            *above, name = path.split("/")
            with contextlib.suppress(OSError):
                folder = beneath.open(above, FOLDER_FLAGS)
                try:
                    _sweep_one(folder, name)
                finally:
                    os.close(folder)
    finally:
        beneath.close()


def _sweep_one(folder: int, name: str) -> None:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if stats.S_ISLNK(found.st_mode):  # cannot be locked, but lives for a moment only
        if time.time() - found.st_ctime > _LINK_SECONDS:
            os.unlink(name, dir_fd=folder)
        return
    file = os.open(name, FILE_FLAGS, dir_fd=folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stats.S_ISDIR(found.st_mode):
            remove(folder, name)
        else:
            os.unlink(name, dir_fd=folder)
    finally:
        os.close(file)


# -----------------------------------------------------------------------------------------------------------


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did, or with ``dry_run`` would do.

    ``before`` is the snapshot of what was there, to undo it; ``None`` when the folder was empty or nothing
    was to be done. Folders end with ``/``. ``left_links`` were left out by the policy for links.
    """

    id: str
    written: tuple[str, ...]
    removed: tuple[str, ...]
    bytes_written: int
    before: str | None = None
    left_links: tuple[str, ...] = ()
    dry_run: bool = False


def restore(
    camera: Camera,
    snapshot: Snapshot,
    target: Path,
    *,
    keep: Callable[[Taken], None] | None,
    delete: bool = False,
    links: LinkPolicy = "preserve",
    dry_run: bool = False,
    on_progress: Callable[[FileProgress], None] | None = None,
) -> Restored:
    """Make a folder into a snapshot; ``keep`` commits what was there before (``None``: it is not kept)."""
    rules = snapshot.rules
    current, before, in_the_way = _look(camera, snapshot, target, keep=keep, dry_run=dry_run)
    planner = Planner(snapshot, delete=delete, links=links, in_the_way=in_the_way)
    plan = planner.plan(current)
    if dry_run:
        return _told(snapshot.root, plan, planner)
    with opened(target) as folder:
        _check_names(plan, folder)
        _check_space(plan, folder)
        placer = Placer(snapshot, now_ns=time.time_ns, on_progress=on_progress)
        known = placer.place(plan, folder)
    roots = (snapshot.root,) if before is None else (snapshot.root, before)
    if before is not None or plan.is_exact:
        camera.shelf.save(str(target), Known(roots=roots, patterns=rules.patterns, lists=LISTS, folder=known))
    else:  # some of what is there is stored nowhere
        camera.shelf.drop(str(target))
    return Restored(
        id=snapshot.root,
        written=tuple(placer.written),
        removed=tuple(placer.removed),
        bytes_written=placer.bytes,
        before=before,
        left_links=tuple(planner.left_links),
    )


def foreseen(snapshot: Snapshot, *, links: LinkPolicy) -> Restored:
    """What a restore into a folder that is not there yet would do."""
    planner = Planner(snapshot, delete=False, links=links, in_the_way=frozenset())
    return _told(snapshot.root, planner.plan(KnownFolder("", 0, {}, {}, {}, 0, 0)), planner)


def download(
    snapshot: Snapshot,
    plan: FolderPlan,
    target: Path,
    *,
    overwrite: bool,
    on_progress: Callable[[FileProgress], None] | None = None,
) -> tuple[str, ...]:
    """Write the files of a plan into a folder that may have others; their paths."""
    taken = [path for path in _paths(plan) if os.path.lexists(target / path)]
    if taken and not overwrite:
        raise Conflict(
            f"{taken[0]!r} is there already ({len(taken)} in all); say overwrite=True, "
            "or choose another folder"
        )
    with opened(target) as folder:
        _check_names(plan, folder)
        _check_space(plan, folder)
        placer = Placer(snapshot, now_ns=time.time_ns, joins=True, on_progress=on_progress)
        placer.place(plan, folder)
    return tuple(path for path in placer.written if not path.endswith("/"))


def _paths(plan: FolderPlan) -> Iterator[str]:
    for each in plan.walk():
        yield from (each.path + entry.name for entry in (*each.files, *each.links))


def _look(
    camera: Camera,
    snapshot: Snapshot,
    target: Path,
    *,
    keep: Callable[[Taken], None] | None,
    dry_run: bool,
) -> tuple[KnownFolder, str | None, frozenset[str]]:
    """The target as it is, the snapshot of it if there is something to keep, and what no snapshot holds."""
    if keep is None or dry_run:
        seen, left_out, litter = camera.look(target, snapshot.rules, limits=snapshot.limits)
        if not dry_run:
            sweep(target, litter)
        return seen, None, frozenset(each.path for each in left_out)
    taken = camera.take(target, snapshot.rules, limits=snapshot.limits)
    sweep(target, taken.litter)
    in_the_way = frozenset(each.path for each in taken.left_out)
    seen = taken.known.folder
    if taken.root == snapshot.root or not (seen.files or seen.links or seen.folders):
        return seen, None, in_the_way
    keep(taken)
    camera.shelf.note(str(target), taken.known)  # written down when all is done
    return seen, taken.root, in_the_way


def _told(root: str, plan: FolderPlan, planner: Planner) -> Restored:
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
    return Restored(
        id=root,
        written=tuple(written),
        removed=tuple(removed),
        bytes_written=size,
        left_links=tuple(planner.left_links),
        dry_run=True,
    )


def _check_space(plan: FolderPlan, folder: int) -> None:
    """Refuse early what the disk cannot hold; a piece that repeats within a file is likely a hole."""
    needed = sum(
        entry.size * len(set(entry.content)) // max(1, len(entry.content))
        for each in plan.walk()
        for entry in each.files
    )
    disk = os.fstatvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise StoreFull(
            f"the restore needs {needed:,} bytes and the disk has {free:,}; nothing was written, "
            "free some space"
        )


def _check_names(plan: FolderPlan, folder: int) -> None:
    """Refuse names that differ only by case where the file system does not tell them apart."""
    for each in plan.walk():
        names: dict[str, str] = {}
        for entry in (*each.files, *each.links, *each.folders):
            twin = names.setdefault(entry.name.casefold(), entry.name)
            if twin != entry.name and _ignores_case(folder):
                raise Conflict(
                    f"{each.path + twin!r} and {entry.name!r} are one name on this file system; "
                    "restore on one that tells upper from lower case. Nothing was written"
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

"""Writing files into a folder that may be hostile.

Every step is relative to a descriptor of the folder that it happens in, one name at a time, and no link is
followed: whatever is swapped in below the target while this runs, nothing is written, changed or removed
outside of it. A file is written beside its place under a name of its own and renamed when it is complete and
has its mode, so under its own name it is always whole; a folder that is new is filled with its files under
such a name. Runs of zeros in large files become holes again.
**Invariant:** at any moment each file of the target is as it was, or as the snapshot says.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat as stats
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Final

from treering.core import failpoints
from treering.core.chunking import WHOLE_BYTES
from treering.core.ids import new_id
from treering.core.tree import FileEntry, LinkEntry
from treering.errors import Conflict, Corrupt
from treering.files import translated
from treering.views.workspaces.beneath import Beneath
from treering.views.workspaces.exchanging import swap
from treering.views.workspaces.known import KnownFile, KnownFolder, Stamp, stamp_of, trusted, untrusted
from treering.views.workspaces.planning import FolderPlan
from treering.views.workspaces.progress import FileProgress
from treering.views.workspaces.rules import TEMPORARY
from treering.views.workspaces.scanning import FILE_FLAGS, FOLDER_FLAGS
from treering.views.workspaces.virtual_paths import remove

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_HOLE: Final = 4096
_LINK_SECONDS: Final = 60
_MAY_WRITE: Final = 0o300

_WRITTEN: Final = failpoints.declare(
    "restore.file_written", "a restored file is complete under a temporary name"
)
_PLACED: Final = failpoints.declare("restore.file_placed", "a restored file has its name, others do not yet")


class Placer:
    """Carries out one plan below one open folder.

    ``take`` gives the bytes of a file in pieces; it is asked for files in the order of the plan. One that
    ``joins`` puts files into folders that may be there already.
    """

    def __init__(
        self,
        take: Callable[[FileEntry], Iterator[bytes]],
        *,
        now_ns: Callable[[], int],
        joins: bool = False,
        on_progress: Callable[[FileProgress], None] | None = None,
    ) -> None:
        self._take = take
        self._joins = joins
        self._now_ns = now_ns
        self._on_progress = on_progress
        self._umask = _umask()
        self._temporary = f"{TEMPORARY}{new_id()}"
        self.written: list[str] = []
        self.removed: list[str] = []
        self.bytes = 0

    def place(self, plan: FolderPlan, folder: int) -> KnownFolder:
        """Do everything; what is known of the target afterwards."""
        return self._folder(plan, folder)

    def _folder(self, plan: FolderPlan, folder: int, stamps: dict[str, Stamp] | None = None) -> KnownFolder:
        with _where(plan.path or "the target"), self._writable(plan, folder):
            if stamps is None:
                stamps = self._own(plan, folder)
            inner = {each.name: self._below(each, folder) for each in plan.folders}
            for link in plan.links:
                self._link(link, folder, plan.path + link.name)
        return _known_after(plan, stamps, inner)

    def _own(self, plan: FolderPlan, folder: int, *, is_made: bool = False) -> dict[str, Stamp]:
        for name in plan.removed_files:
            self._unlink(name, folder, plan.path + name)
        for name, known in plan.removed_folders.items():
            self._remove(name, known, folder, plan.path + name)
        stamps: dict[str, Stamp] = {}
        place = self._file_in_new if is_made else self._file
        known = {} if plan.current is None else plan.current.files
        path = plan.path
        try:
            for entry in plan.files:
                path = plan.path + entry.name
                stamps[entry.name] = place(entry, folder, path, replaces=entry.name in known)
        except OSError as error:  # not a context manager around each: there are many
            with _where(path):
                raise error from None
        for entry in plan.chmods:
            with _where(plan.path + entry.name):
                _chmod(entry, folder)
            stamps[entry.name] = untrusted(entry.mode)
            self.written.append(plan.path + entry.name)
        now_ns = self._now_ns()
        return {name: trusted(stamp, read_at_ns=now_ns) for name, stamp in stamps.items()}

    def _below(self, plan: FolderPlan, above: int) -> KnownFolder:
        with _where(plan.path):
            is_made = plan.is_new and not (self._joins and _is_there(plan.name, above))
            inner = self._make(above) if is_made else os.open(plan.name, FOLDER_FLAGS, dir_fd=above)
        try:
            stamps = self._filled(plan, inner, above) if is_made else None
            known = self._folder(plan, inner, stamps)
            with _where(plan.path):
                if is_made or (plan.current is not None and plan.current.mode != plan.mode):
                    os.fchmod(inner, plan.mode)
        finally:
            os.close(inner)
        return known

    def _filled(self, plan: FolderPlan, folder: int, above: int) -> dict[str, Stamp]:
        """Put its files into a new folder, then give it its name."""
        try:
            stamps = self._own(plan, folder, is_made=True)
            with _where(plan.path):
                os.rename(self._temporary, plan.name, src_dir_fd=above, dst_dir_fd=above)
        except BaseException:
            with contextlib.suppress(OSError):
                remove(above, self._temporary)
            raise
        self.written.append(plan.path)
        return stamps

    def _make(self, above: int) -> int:
        """A new folder under a temporary name, locked: it gets its own when its files are in it."""
        os.mkdir(self._temporary, 0o700, dir_fd=above)
        folder = os.open(self._temporary, FOLDER_FLAGS, dir_fd=above)
        fcntl.flock(folder, fcntl.LOCK_EX)
        return folder

    @contextlib.contextmanager
    def _writable(self, plan: FolderPlan, folder: int) -> Generator[None]:
        """A folder that may not be written to may be, while this does."""
        mode = plan.current.mode if plan.current is not None and plan.path else _MAY_WRITE
        if mode & _MAY_WRITE == _MAY_WRITE or plan.does_nothing:
            yield
            return
        os.fchmod(folder, mode | 0o700)
        try:
            yield
        finally:
            os.fchmod(folder, mode)

    # Files
    def _file_in_new(self, entry: FileEntry, folder: int, path: str, *, replaces: bool) -> Stamp:  # noqa: ARG002
        """A file of a folder that has no name yet needs no temporary one itself."""
        file = os.open(entry.name, _NEW_FILE, entry.mode | 0o200, dir_fd=folder)
        try:
            size = _fill(file, self._take(entry), entry, path)
            if (entry.mode | 0o200) & ~self._umask != entry.mode:
                os.fchmod(file, entry.mode)
            stamp = stamp_of(os.fstat(file))
        finally:
            os.close(file)
        failpoints.hit(_WRITTEN)
        self._wrote(path, size)
        return stamp

    def _wrote(self, path: str, size: int) -> None:
        self.bytes += size
        self.written.append(path)
        if self._on_progress is not None:
            self._on_progress(FileProgress(len(self.written), self.bytes))

    def _file(self, entry: FileEntry, folder: int, path: str, *, replaces: bool) -> Stamp:
        file = os.open(self._temporary, _NEW_FILE, entry.mode | 0o200, dir_fd=folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)  # while its writer lives, nobody takes it for litter
            size = _fill(file, self._take(entry), entry, path)
            if (entry.mode | 0o200) & ~self._umask != entry.mode:
                os.fchmod(file, entry.mode)
            written = os.fstat(file)
            failpoints.hit(_WRITTEN)
            if not (replaces and swap(self._temporary, entry.name, folder)):
                os.rename(self._temporary, entry.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary, dir_fd=folder)
            raise
        finally:
            os.close(file)
        failpoints.hit(_PLACED)
        self._wrote(path, size)
        # Renaming moves ctime; everything else is as it was when the file was closed, or someone was faster.
        stamp = stamp_of(os.stat(entry.name, dir_fd=folder, follow_symlinks=False))
        return stamp if stamp[:3] == stamp_of(written)[:3] else untrusted(stamp[4])

    def _link(self, entry: LinkEntry, folder: int, path: str) -> None:
        with _where(path):
            os.symlink(entry.target, self._temporary, dir_fd=folder)
            try:
                os.rename(self._temporary, entry.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(self._temporary, dir_fd=folder)
                raise
        self.written.append(path)

    # Removing
    def _unlink(self, name: str, folder: int, path: str) -> None:
        with _where(path), contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
            self.removed.append(path)

    def _remove(self, name: str, known: KnownFolder, above: int, path: str) -> None:
        """Remove a folder with what is known to be in it; what the rules leave out keeps it."""
        with _where(path):
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


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _fill(file: int, pieces: Iterator[bytes], entry: FileEntry, path: str) -> int:
    size = 0
    has_holes = False
    for piece in pieces:
        size += len(piece)
        if size > entry.size:
            break
        if entry.size > WHOLE_BYTES and len(piece) >= _HOLE and not piece[0] and piece.count(0) == len(piece):
            os.lseek(file, len(piece), os.SEEK_CUR)
            has_holes = True
            continue
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(file, rest) :]
    if size != entry.size:
        raise Corrupt(
            f"file {path!r} has not the {entry.size} bytes that the snapshot says; it was not written"
        )
    if has_holes:
        os.ftruncate(file, size)
    return size


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


def _known_after(plan: FolderPlan, stamps: dict[str, Stamp], inner: dict[str, KnownFolder]) -> KnownFolder:
    was = plan.current
    files: dict[str, KnownFile] = {}
    links: dict[str, str] = {}
    folders: dict[str, KnownFolder] = {}
    if was is not None:
        gone = {*plan.removed_files, *plan.removed_folders}
        files = {name: each for name, each in was.files.items() if name not in gone}
        links = {name: each for name, each in was.links.items() if name not in gone}
        folders = {name: each for name, each in was.folders.items() if name not in gone}
    for entry in (*plan.files, *plan.chmods):
        files[entry.name] = KnownFile(stamps[entry.name], entry.size, entry.content)
        links.pop(entry.name, None)
    for link in plan.links:
        links[link.name] = link.target
        files.pop(link.name, None)
    folders.update(inner)
    return KnownFolder(
        tree=plan.tree if plan.is_exact else "",
        mode=plan.mode,
        files=files,
        links=links,
        folders=folders,
        count=len(files) + len(links) + sum(each.count for each in folders.values()),
        size=sum(each.size for each in files.values()) + sum(each.size for each in folders.values()),
    )


def _umask() -> int:
    """This process's umask. Asking for it by setting it would race with other threads."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123
            for line in status:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except (OSError, ValueError):
        pass
    return 0o777  # unknown: every file gets its mode explicitly


@contextlib.contextmanager
def _where(path: str) -> Generator[None]:
    with translated(f"entry {path!r}", writing=True):
        yield

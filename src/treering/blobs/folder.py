"""Blobs as files in a folder: a name is a path, and a file holds exactly the bytes of its blob.

A blob is written as a draft, synced and renamed (see `treering.files`). Renames and deletes happen under one
lock of the folder, which is never held while bytes are written; a conditional write checks the current blob
under the same lock. The ETag of a blob is the hash of its content, so it survives copying the folder, and
restoring an earlier content restores its ETag. **Invariant:** of several racing conditional writes with the
same expectation, exactly one succeeds, among all processes of a machine. On a network file system this
depends on its `flock`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Generator, Iterable
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final

from treering.blobs.blob import check_folder, check_name, check_range, is_name, pieces_of
from treering.core.clock import Clock, SystemClock
from treering.core.storage import BlobData, BlobInfo, ETag, VersionedBlob
from treering.errors import Conflict, NotFound
from treering.files import Drafts, open_folder, read_range, translate_os_errors

# Without O_NONBLOCK, opening a named pipe planted in the folder would block.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FolderBlobs:
    """The blobs below a folder, which is created by the first write."""

    def __init__(self, path: str | Path, *, clock: Clock | None = None) -> None:
        self._root = Path(path).absolute()
        self._url = self._root.as_uri()
        self._drafts = Drafts(self._root, clock=clock or SystemClock())

    @property
    def url(self) -> str:
        """The folder as a URL."""
        return self._url

    @property
    def conditional(self) -> bool:
        """Conditional writes are always supported."""
        return True

    def put(self, name: str, data: BlobData, *, if_absent: bool = False) -> None:
        """See `treering.core.storage.Blobs`."""
        self._write(name, data, allowed=lambda: not if_absent or self.stat(name) is None)

    def put_if(self, name: str, data: bytes, *, expect: ETag | None) -> ETag:
        """See `treering.core.storage.Blobs`."""
        self._write(name, data, allowed=lambda: self._etag(name) == expect)
        return _etag_of(data)

    def get(self, name: str, *, start: int = 0, stop: int | None = None) -> bytes:
        """See `treering.core.storage.Blobs`."""
        check_range(name, start, stop)
        with self._opened(name) as file:
            if file is None:
                raise NotFound(f"{self._url} has no blob {name!r}")
            return read_range(file, start, os.fstat(file).st_size if stop is None else stop)

    def read(self, name: str) -> VersionedBlob | None:
        """See `treering.core.storage.Blobs`."""
        with self._opened(name) as file:
            if file is None:
                return None
            data = read_range(file, 0, os.fstat(file).st_size)
        return VersionedBlob(data=data, etag=_etag_of(data))

    def stat(self, name: str) -> BlobInfo | None:
        """See `treering.core.storage.Blobs`."""
        with self._opened(name) as file:
            return None if file is None else _info(name, os.fstat(file))

    def list(self, folder: str = "", *, after: str | None = None, limit: int = 1000) -> list[BlobInfo]:
        """See `treering.core.storage.Blobs`. All names are sorted by their UTF-8 bytes."""
        with (
            translate_os_errors(f"{self._url}/{folder}", writing=False),
            contextlib.closing(self._walk(check_folder(folder), after or "")) as blobs,
        ):
            return list(islice(blobs, limit))

    def delete(self, names: Iterable[str]) -> None:
        """See `treering.core.storage.Blobs`. Also removes the drafts of dead writers."""
        changed: set[tuple[str, ...]] = set()
        for name in names:
            *folders, last = check_name(name)
            with (
                translate_os_errors(f"{self._url}/{name}", writing=True),
                contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError),
                open_folder(self._root, folders) as folder,
                self._drafts.lock(),
            ):
                os.unlink(last, dir_fd=folder)
                changed.add(tuple(folders))
        for folders in changed:
            with translate_os_errors(self._url, writing=True), open_folder(self._root, folders) as folder:
                os.fsync(folder)
        with translate_os_errors(self._url, writing=True):
            self._drafts.clear()

    def _write(self, name: str, data: BlobData, *, allowed: Callable[[], bool]) -> None:
        *folders, last = check_name(name)
        self._expect(name, allowed)  # checked again under the lock; failing early saves the write
        with (
            translate_os_errors(f"{self._url}/{name}", writing=True),
            self._drafts.write(pieces_of(data)) as draft,
            open_folder(self._root, folders, make=True) as folder,
        ):
            with self._drafts.lock():
                self._expect(name, allowed)
                draft.rename(folder, last)
            os.fsync(folder)

    def _expect(self, name: str, allowed: Callable[[], bool]) -> None:
        if not allowed():
            raise Conflict(f"{self._url}: blob {name!r} has changed; read it again")

    def _etag(self, name: str) -> ETag | None:
        held = self.read(name)
        return None if held is None else held.etag

    @contextlib.contextmanager
    def _opened(self, name: str) -> Generator[int | None]:
        *folders, last = check_name(name)
        with translate_os_errors(f"{self._url}/{name}", writing=False):
            try:
                with open_folder(self._root, folders) as folder:
                    file = os.open(last, _READ, dir_fd=folder)
            except (FileNotFoundError, NotADirectoryError):
                yield None
                return
            try:
                yield file if stat.S_ISREG(os.fstat(file).st_mode) else None
            finally:
                os.close(file)

    def _walk(self, parts: tuple[str, ...], after: str) -> Generator[BlobInfo]:
        """Yield every blob below a folder after a name, in order."""
        try:
            with open_folder(self._root, parts) as folder:
                for name in _names(folder, "".join(f"{part}/" for part in parts)):
                    if name.endswith("/"):
                        # All names below share this prefix, so the whole folder sorts before or after.
                        if name > after or after.startswith(name):
                            yield from self._walk(tuple(name.split("/")[:-1]), after)
                    elif name > after and (info := _stat_in(folder, name)) is not None:
                        yield info
        except (FileNotFoundError, NotADirectoryError):
            return


def _names(folder: int, prefix: str) -> list[str]:
    """Return the blobs and subfolders of a folder; subfolders end with a slash.

    With the slash, sorting one level at a time gives the order of full names.
    """
    with os.scandir(folder) as entries:
        return sorted(
            prefix + entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
            for entry in entries
            if is_name(prefix + entry.name)
            and (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False))
        )


def _stat_in(folder: int, name: str) -> BlobInfo | None:
    try:
        return _info(name, os.stat(name.rpartition("/")[2], dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:  # deleted since the folder was read
        return None


def _etag_of(data: bytes) -> ETag:
    return ETag(sha256(data).hexdigest())


def _info(name: str, found: os.stat_result) -> BlobInfo:
    return BlobInfo(name=name, size=found.st_size, modified_us=found.st_mtime_ns // 1000)

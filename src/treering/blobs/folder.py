"""Blobs as files of one folder: names are paths, and what is on disk is what was put.

A blob is written as a draft, synced and renamed (see `treering.files`). Every rename and every delete
happens under one lock of the folder, which is held for that moment only and never while bytes are written;
a conditional write looks at the current blob under the same lock. The etag of a blob is the hash of its
content, so it survives a copy of the folder, and a value that came back counts as the value expected.
**Invariant:** among processes of one machine, of any number of conditional writes with the same
expectation one succeeds. Over a network file system this holds as far as its `flock` does.
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
from treering.files import Drafts, opened_folder, read_range, translated

# Without O_NONBLOCK, opening a named pipe that someone planted would wait for its other end.
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FolderBlobs:
    """The blobs below one folder, which is made at the first write."""

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
        """Conditions are always honoured."""
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
                raise NotFound(f"{self._url} holds no blob {name!r}")
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
        """See `treering.core.storage.Blobs`. Names come in the order of their UTF-8 bytes throughout."""
        with (
            translated(f"{self._url}/{folder}", writing=False),
            contextlib.closing(self._walk(check_folder(folder), after or "")) as found,
        ):
            return list(islice(found, limit))

    def delete(self, names: Iterable[str]) -> None:
        """See `treering.core.storage.Blobs`. What writers that died left behind goes as well."""
        changed: set[tuple[str, ...]] = set()
        for name in names:
            *folders, last = check_name(name)
            with (
                translated(f"{self._url}/{name}", writing=True),
                contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError),
                opened_folder(self._root, folders) as folder,
                self._drafts.lock(),
            ):
                os.unlink(last, dir_fd=folder)
                changed.add(tuple(folders))
        for folders in changed:
            with translated(self._url, writing=True), opened_folder(self._root, folders) as folder:
                os.fsync(folder)
        with translated(self._url, writing=True):
            self._drafts.clear()

    def _write(self, name: str, data: BlobData, *, allowed: Callable[[], bool]) -> None:
        *folders, last = check_name(name)
        self._expect(name, allowed)  # asked again under the lock: this one only saves the writing
        with (
            translated(f"{self._url}/{name}", writing=True),
            self._drafts.write(pieces_of(data)) as draft,
            opened_folder(self._root, folders, make=True) as folder,
        ):
            with self._drafts.lock():
                self._expect(name, allowed)
                draft.rename(folder, last)
            os.fsync(folder)

    def _expect(self, name: str, allowed: Callable[[], bool]) -> None:
        if not allowed():
            raise Conflict(f"{self._url}: blob {name!r} is not as expected; read it again")

    def _etag(self, name: str) -> ETag | None:
        held = self.read(name)
        return None if held is None else held.etag

    @contextlib.contextmanager
    def _opened(self, name: str) -> Generator[int | None]:
        *folders, last = check_name(name)
        with translated(f"{self._url}/{name}", writing=False):
            try:
                with opened_folder(self._root, folders) as folder:
                    file = os.open(last, _READ, dir_fd=folder)
            except (FileNotFoundError, NotADirectoryError):
                yield None
                return
            try:
                yield file if stat.S_ISREG(os.fstat(file).st_mode) else None
            finally:
                os.close(file)

    def _walk(self, parts: tuple[str, ...], after: str) -> Generator[BlobInfo]:
        """Every blob below a folder that comes after a name, in order."""
        try:
            with opened_folder(self._root, parts) as folder:
                for name in _names(folder, "".join(f"{part}/" for part in parts)):
                    if name.endswith("/"):
                        # The names below begin with this one, so the whole folder lies before or behind.
                        if name > after or after.startswith(name):
                            yield from self._walk(tuple(name.split("/")[:-1]), after)
                    elif name > after and (info := _stat_in(folder, name)) is not None:
                        yield info
        except (FileNotFoundError, NotADirectoryError):
            return


def _names(folder: int, prefix: str) -> list[str]:
    """What could be blobs in one folder, and its folders with a slash behind them.

    With the slash, sorting one level at a time gives the order of whole names.
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

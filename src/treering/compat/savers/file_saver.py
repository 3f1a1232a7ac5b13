"""Checkpoints as files in a folder: nothing to install, nothing to run, readable by any process.

::

    .agent/checkpoints/
      head/conversation-1                    which checkpoint is the newest
      data/conversation-1/ckpt_...           one file for each checkpoint
      data/conversation-1/m-...              the messages that a save added
      @alice/head/..., @alice/data/...       the same for namespace alice

A save writes its new messages, then its checkpoint, then replaces the head, each file whole or not at all: a
process that dies in between leaves the previous checkpoint as it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from treering.compat.savers.checkpoint import check_keep, check_namespace
from treering.compat.savers.kv_saver import KeyValueStorage
from treering.compat.savers.saver import Saver
from treering.core.clock import Clock, SystemClock
from treering.core.content import seal, unseal
from treering.core.retention import Keep
from treering.errors import InvalidInput
from treering.files import FILE_MODE, Drafts, open_folder, read_range, translate_os_errors
from treering.threads.hooks import HooksLike

_LOCKS: Final = 64
_LOCK_FOLDER: Final = ".locks"
_LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEVER: Final = 1 << 62
_WORTH_IT: Final = 512
"""Files below this size are one block on disk in any case."""


class FileSaver(Saver):
    """Checkpoints as files, safe for any number of processes of one machine.

    Each thread keeps its newest ``max_checkpoints`` (``None``: all), or what ``keep`` says instead.
    ``compress`` applies to new files; both kinds can be read.
    """

    def __init__(
        self,
        directory: str | Path,
        max_checkpoints: int | None = 100,
        compress: bool = True,  # noqa: FBT001, FBT002 - agent-sdk passes it by position
        *,
        namespace: str = "",
        hooks: HooksLike | None = None,
        keep: Keep | None = None,
        clock: Clock | None = None,
    ) -> None:
        given: Any = directory
        if not isinstance(given, (str, Path)) or not str(given):
            raise InvalidInput(f"directory is {given!r}; give the folder to keep checkpoints in")
        root = Path(given).expanduser().absolute()
        clock = clock or SystemClock()
        keep = check_keep(keep)
        if keep is None and max_checkpoints is not None:
            keep = Keep(last=max_checkpoints)
        storage = KeyValueStorage(
            NestedFolderStore(root, compress=compress, clock=clock),
            namespace=check_namespace(namespace),
            keep=keep,
            clock=clock,
        )
        super().__init__(storage, hooks=hooks)


class NestedFolderStore:
    """A key-value store in which the key ``head/conversation-1`` is a file of that name below a folder.

    The parts of a key are names that `treering.core.ids.file_name` made, so ordinary ids are file names as
    they are. A file holds one frame with a checksum, compressed if the store was opened so (either kind can
    be read). Files are published as `treering.files` describes. **Invariant:** a file under its own name is
    whole, or reading it raises `Corrupt` and names it; and no key leads out of the folder.
    """

    def __init__(self, directory: Path, *, compress: bool, clock: Clock) -> None:
        self._root = directory
        self._drafts = Drafts(directory, clock=clock)
        self._compress_from = _WORTH_IT if compress else _NEVER

    def get(self, key: str) -> str | None:
        """Return the text under a key, or None."""
        *folders, name = _path(key)
        where = str(self._root / key)
        with translate_os_errors(where, writing=False):
            try:
                with open_folder(self._root, folders) as folder:
                    file = os.open(name, _READ, dir_fd=folder)
            except FileNotFoundError:
                return None
            try:
                raw = read_range(file, 0, os.fstat(file).st_size)
            finally:
                os.close(file)
        return unseal(raw, where).decode(errors="replace")

    def set(self, key: str, value: str) -> None:
        """Store a text under a key; it survives a loss of power once this returned."""
        *folders, name = _path(key)
        raw = seal(value.encode(), compress_from=self._compress_from)
        with (
            translate_os_errors(str(self._root / key), writing=True),
            self._drafts.write([raw]) as draft,
            open_folder(self._root, folders, make=True) as folder,
        ):
            draft.publish(folder, name)

    def delete(self, key: str) -> None:
        """Delete a key; one that does not exist is no error."""
        *folders, name = _path(key)
        with (
            translate_os_errors(str(self._root / key), writing=True),
            contextlib.suppress(FileNotFoundError),
            open_folder(self._root, folders) as folder,
        ):
            os.unlink(name, dir_fd=folder)
            os.fsync(folder)

    def delete_folder(self, prefix: str) -> None:
        """Delete all keys below a folder, and the folder."""
        *folders, name = _path(prefix.removesuffix("/"))
        with (
            translate_os_errors(str(self._root / prefix), writing=True),
            contextlib.suppress(FileNotFoundError),
            open_folder(self._root, folders) as above,
        ):
            with open_folder(self._root, (*folders, name)) as folder:
                for each in os.listdir(folder):  # noqa: PTH208 - by descriptor, which a Path has none of
                    os.unlink(each, dir_fd=folder)
            os.rmdir(name, dir_fd=above)
            os.fsync(above)

    def list(self, prefix: str = "") -> Iterator[str]:
        """Return the keys directly below a folder, in order."""
        folders = _path(prefix.removesuffix("/"))
        with translate_os_errors(str(self._root / prefix), writing=False):
            try:
                with open_folder(self._root, folders) as folder:
                    names = os.listdir(folder)  # noqa: PTH208 - by descriptor, which a Path has none of
            except FileNotFoundError:
                return
        yield from (f"{'/'.join(folders)}/{name}" for name in sorted(names))

    @contextlib.contextmanager
    def locked(self, name: str) -> Generator[None]:
        """Keep out all other threads and processes that lock this name. Names share locks: hold only one."""
        with translate_os_errors(str(self._root / _LOCK_FOLDER), writing=True):
            with open_folder(self._root, (_LOCK_FOLDER,), make=True) as folder:
                number = f"{crc32(name.encode()) % _LOCKS:02}"
                file = os.open(number, _LOCK_FLAGS, FILE_MODE, dir_fd=folder)
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Closing is not enough: a child that was forked meanwhile holds a copy of the descriptor.
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)


def _path(key: str) -> list[str]:
    parts = key.split("/")
    if any(not part or part.startswith(".") for part in parts):
        raise InvalidInput(f"{key[:80]!r} is no key of a saver's folder; its parts must be ordinary names")
    return parts

"""Reading a store where nothing can be written: a read-only mount, a folder of somebody else, a full disk.

SQLite's write-ahead log needs shared memory in a file beside the database, and readers flush pending commits
(`commit_log`), so neither works where no file can be created or grow. There a process reads a private copy of
the database and its log, in the folder for temporary files, as they were when it opened the store; packs are
read where they are. Everything that only reads works on the copy as on any other store. Everything that
writes raises `ReadOnly` or `StoreFull`.

The copy is made by SQLite, under its locks, if it can read the original. If it cannot, no process has the
store open, because shared memory would exist otherwise; then the files are copied. **Invariant:** a copy is
of one moment: files that changed while they were copied are copied again.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
import weakref
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from treering.engines.sqlite.engine import SqliteEngine
from treering.errors import ReadOnly, StoreFull, TreeringError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from treering.core.batch import Batch, Receipt
    from treering.core.content import Content
    from treering.core.engine import Caps, OnWork
    from treering.core.query import Erasure
    from treering.core.records import Erased, Lease, Slice, SweepProgress, Swept
    from treering.core.storage import Blobs
    from treering.engines.sqlite.commit_log import LastCommit
    from treering.engines.sqlite.connection import SqliteDatabase

_TRIES: Final = 5
_SPARE_BYTES: Final = 16 * 1024 * 1024
"""What reading may add to the copy: a flush, an index."""
_PLACES: Final = (Path("/dev/shm"), Path("/var/tmp"))  # noqa: S108 - the copy goes into a new folder there
"""Where the copy goes if the folder for temporary files is full as well."""


class DatabaseCopy:
    """A private copy of a database that cannot be written, removed with the engine that reads it."""

    def __init__(self, original: Path, reason: TreeringError) -> None:
        self.original = original
        self.reason = reason
        self.folder = _new_folder(original, reason)
        self.path = self.folder / original.name
        self._finalizer = weakref.finalize(self, _remove, self.folder, os.getpid())
        try:
            _copy(original, self.path)
        except (sqlite3.Error, OSError) as error:
            self.remove()
            raise type(reason)(f"{reason}. It could not be copied for reading either: {error}") from error

    def remove(self) -> None:
        """Remove the copy."""
        self._finalizer()


class ReadingEngine(SqliteEngine):
    """An engine on a copy of a store: it reads, and refuses to write."""

    def __init__(self, database: SqliteDatabase, blobs: Blobs, last: LastCommit, copy: DatabaseCopy) -> None:
        super().__init__(database, blobs, last)
        self._copy = copy

    @property
    def caps(self) -> Caps:
        """Those of any SQLite store, except for leases."""
        from msgspec import structs

        return structs.replace(super().caps, claim=False)

    @property
    def url(self) -> str:
        """The folder of the original."""
        return f"sqlite:///{self._copy.original.parent}"

    def _opener(self) -> None:
        """Nothing: the copy is this process's."""

    def _refuse(self) -> NoReturn:
        if isinstance(self._copy.reason, StoreFull):
            raise StoreFull(
                f"{self._copy.original}: the disk was full when this store was opened; "
                "it can only be read. Free space and open it again"
            )
        raise ReadOnly(
            f"{self._copy.original} cannot be written, so it can only be read, as it was when it was opened; "
            "check the mount and the permissions of its folder"
        )

    def commit(self, batch: Batch) -> Receipt:
        """Refuse."""
        del batch
        self._refuse()

    def submit(self, batch: Batch) -> Future[Receipt]:
        """Refuse."""
        del batch
        self._refuse()

    def stage(self, space: str, contents: Iterable[Content]) -> list[str]:
        """Refuse."""
        del space, contents
        self._refuse()

    def claim(self, space: str, name: str, *, holder: str, seconds: float) -> Lease | None:
        """Refuse."""
        del space, name, holder, seconds
        self._refuse()

    def heartbeat(self, lease: Lease, *, seconds: float) -> Lease | None:
        """Refuse."""
        del lease, seconds
        self._refuse()

    def release(self, lease: Lease) -> None:
        """Refuse."""
        del lease
        self._refuse()

    def erase(self, space: str, plan: Erasure) -> Erased:
        """Refuse."""
        del space, plan
        self._refuse()

    def sweep(
        self,
        space: str,
        *,
        dry_run: bool = False,
        grace_seconds: float = 3600.0,
        on_progress: Callable[[SweepProgress], None] | None = None,
    ) -> Swept:
        """Refuse, unless it is only to be reported what would be removed."""
        if not dry_run:
            self._refuse()
        return super().sweep(space, dry_run=True, grace_seconds=grace_seconds, on_progress=on_progress)

    def reindex(self, space: str, *, on_progress: OnWork | None = None) -> None:
        """Refuse."""
        del space, on_progress
        self._refuse()

    def load(self, space: str, part: Slice) -> None:
        """Refuse."""
        del space, part
        self._refuse()

    def sql_connection(self) -> sqlite3.Connection:
        """Open a connection to the copy for SQL queries."""
        connection = super().sql_connection()
        connection.execute("PRAGMA query_only = ON")
        return connection

    def close(self) -> None:
        """Close the connections, and remove the copy."""
        super().close()
        self._copy.remove()


def _new_folder(original: Path, reason: TreeringError) -> Path:
    """Create the folder for a copy where there is enough space."""
    needed = sum(_size(file) for file in (original, _log_of(original))) + _SPARE_BYTES
    places = [Path(tempfile.gettempdir()), *_PLACES]
    for place in places:
        with suppress(OSError):
            if shutil.disk_usage(place).free > needed:
                return Path(tempfile.mkdtemp(prefix="treering-read-", dir=place))
    raise type(reason)(
        f"{reason}. Reading it needs a copy of {needed:,} bytes, for which none of "
        f"{', '.join(map(str, places))} has space; set TMPDIR to a folder that does"
    ) from reason


def _copy(original: Path, target: Path) -> None:
    try:
        with (
            closing(sqlite3.connect(f"{original.as_uri()}?mode=ro", uri=True, timeout=30)) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = WAL").fetchall()
    except sqlite3.Error:
        target.unlink(missing_ok=True)
        _copy_files(original, target)


def _copy_files(original: Path, target: Path) -> None:
    log = _log_of(original)
    for _ in range(_TRIES):
        before = (_stamp(original), _stamp(log))
        shutil.copyfile(original, target)
        _log_of(target).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            shutil.copyfile(log, _log_of(target))
        if (_stamp(original), _stamp(log)) == before:
            os.chmod(target, 0o600)  # noqa: PTH101
            return
    raise OSError(errno.EBUSY, "it keeps changing")


def _log_of(database: Path) -> Path:
    return database.with_name(database.name + "-wal")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _stamp(file: Path) -> Any:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)

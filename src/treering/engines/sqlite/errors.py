"""The one place where errors of sqlite3 become ours."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from treering.errors import Busy, Corrupt, ReadOnly, StoreFull, TreeringError, Unreachable

FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite3 raises; the latter if bytes of a damaged database get into an error message."""

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_CANNOT_GROW: Final = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_SHMMAP,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_WRITE,
    }
)
"""SQLite's errors when a file cannot be created or grow; only plain writes report a full disk as such."""

_MIN_FREE_BYTES: Final = 64 * 1024
"""With less than this, a file that cannot grow means a full disk: shared memory grows by half of it."""


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds the lock, so that a retry may succeed."""
    return _code(error) in _BUSY


def translate(error: sqlite3.Error | UnicodeDecodeError, where: str) -> TreeringError:
    """Return our error for one of sqlite3; ``where`` names the database."""
    code = _code(error)
    if isinstance(error, UnicodeDecodeError) or (isinstance(error, sqlite3.OperationalError) and code < 0):
        return damaged(where, str(error))  # no SQLite code: the module failed to decode a text
    if code in _BUSY:
        return Busy(f"{where} is locked by other writers; retry")
    if code == sqlite3.SQLITE_FULL or (_extended_code(error) in _CANNOT_GROW and _is_full(where)):
        return StoreFull(f"{where}: the disk is full; nothing was written. Free space and retry")
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return damaged(where, str(error))
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}:
        return ReadOnly(f"{where} cannot be written ({error}); check the permissions of file and folder")
    if code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR}:
        return Unreachable(f"{where} cannot be read or written ({error}); check the disk and the path")
    return TreeringError(f"{where}: SQLite reports {error}")


def damaged(where: str, damage: str) -> Corrupt:
    """Return our error for a database that is not as SQLite wrote it."""
    return Corrupt(f"{where} is damaged ({damage}); restore it from a backup, or run `treering verify`")


def _code(error: Exception) -> int:
    extended = _extended_code(error)
    return extended & 0xFF if extended >= 0 else extended


def _extended_code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", -1)


def _is_full(where: str) -> bool:
    try:
        disk = os.statvfs(Path(where).parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _MIN_FREE_BYTES

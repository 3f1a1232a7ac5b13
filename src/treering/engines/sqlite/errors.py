"""The one place where errors of sqlite3 become ours."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from treering.errors import Busy, Corrupt, ReadOnly, StoreFull, TreeringError, Unreachable

FAILURES: Final = (sqlite3.Error, UnicodeDecodeError)
"""What sqlite3 raises. The latter, where a damaged database makes its way into the words of an error."""

_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_GROWING: Final = frozenset(
    {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_IOERR_FSYNC,
        sqlite3.SQLITE_IOERR_SHMMAP,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_WRITE,
    }
)
"""What SQLite says when a file cannot be made or grow; only of plain writes it says that the disk is full."""

_ROOM: Final = 64 * 1024
"""Where less is left, a file that cannot grow means a full disk: shared memory grows by half of this."""


def is_busy(error: sqlite3.Error) -> bool:
    """Someone else holds the lock; the same call may work in a moment."""
    return _code(error) in _BUSY


def translate(error: sqlite3.Error | UnicodeDecodeError, where: str) -> TreeringError:
    """Our error for a driver's; ``where`` names the database."""
    code = _code(error)
    if isinstance(error, UnicodeDecodeError) or (isinstance(error, sqlite3.OperationalError) and code < 0):
        return damaged(where, str(error))  # no code of SQLite: the module stumbles over a text
    if code in _BUSY:
        return Busy(f"{where} stayed locked by other writers; try again")
    if code == sqlite3.SQLITE_FULL or (_extended_code(error) in _GROWING and _is_full(where)):
        return StoreFull(f"{where}: the disk is full; nothing of this write was kept. Free space and retry")
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
        return damaged(where, str(error))
    if code in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}:
        return ReadOnly(f"{where} cannot be written ({error}); check the permissions of file and folder")
    if code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR}:
        return Unreachable(f"{where} cannot be read or written ({error}); check the disk and the path")
    return TreeringError(f"{where}: SQLite says {error}")


def damaged(where: str, damage: str) -> Corrupt:
    """Our error for a database that is not as SQLite wrote it."""
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
    return disk.f_bavail * disk.f_frsize < _ROOM

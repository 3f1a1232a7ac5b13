"""Is there a store, and of which version? Looked up without making or changing anything.

Opening a store makes it, and migrates it. Where that is not wanted (a command that only reads, a report of
what a migration did) this looks first. **Invariant:** "not there" is said only when it is certain; whatever
else is wrong is left to opening, which has the better words for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a store is there, and the version of its tables if that could be read."""

    there: bool
    version: str | None = None


def in_folder(folder: Path) -> Presence:
    """Look into the folder of a local store. Nothing in this process may have it open."""
    import sqlite3
    from contextlib import closing

    from treering.engines.schema import SQLITE_FILE

    file = folder / SQLITE_FILE
    if not file.is_file():
        return Presence(there=False)
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=60)) as connection:
            for (version,) in connection.execute(_VERSION):
                return Presence(there=True, version=str(version))
    except sqlite3.Error:
        pass
    return Presence(there=True)


def in_postgres(url: str) -> Presence:
    """Look into a PostgreSQL database."""
    try:
        import psycopg
    except ImportError:
        return Presence(there=True)
    try:
        with psycopg.connect(url) as connection:
            for (version,) in connection.execute(_VERSION):
                return Presence(there=True, version=str(version))
    except psycopg.errors.UndefinedTable:
        return Presence(there=False)
    except psycopg.Error:
        pass
    return Presence(there=True)


_VERSION: Final = "SELECT version_num FROM alembic_version"

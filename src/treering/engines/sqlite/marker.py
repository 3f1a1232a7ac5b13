"""What a folder knows about its store outside of the database: which store it is, and how far it had come.

SQLite takes a missing or empty database for a new one, and a damaged write-ahead log for one that ends
before the damage: commits that were acknowledged would silently be gone. Two small files beside the database
tell the difference.

``store.json`` is written when the store is created, after its tables, and says which store the folder holds.
A folder that has it (or a log, or packs) is not begun anew, but refused. ``treering.db-last`` holds the
number of the last acknowledged commit. It is written after each commit and never synced, because a sync would
double the cost of a commit. Opening and `verify` compare it with the database.

**Invariant:** the number is never higher than what is durable, so it raises no false alarm: it is written
once the commit is. With durability ``fast``, power loss may take commits that were acknowledged, so a number
written in that mode counts only until the machine restarts. What cannot be noticed: the loss of the newest
commits together with this file, or of the whole folder; and after a power loss, that of commits whose number
had not reached the disk yet.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from treering import files
from treering.core.clock import to_iso
from treering.core.failpoints import declare, hit
from treering.errors import Corrupt, TreeringError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from treering.core.clock import Clock

MARKER: Final = "store.json"
LAST: Final = "-last"
"""Appended to the name of the database."""

CREATED: Final = declare("store.created", "the tables of a new store are durable, its marker is not written")

_LAST_NO: Final = (
    "SELECT max((SELECT coalesce(max(no), 0) FROM commits), (SELECT coalesce(max(no), 0) FROM fresh))"
)
_LEFT_BEHIND: Final = {"blobs/objects": "*/*/*/*.pack", "workspaces": "*/*.known"}
"""What only a store writes, by folder; a user's own folder may have such a name."""
_RESTORE: Final = (
    "restore the folder from a backup; to begin a new store, choose another folder or remove this one"
)


def store_of(folder: Path) -> str | None:
    """Return the id of the store that a folder holds, by its marker; ``None`` if it has none."""
    path = folder / MARKER
    try:
        found: Any = json.loads(path.read_bytes())
        return str(found["store"])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Corrupt(
            f"{path} cannot be read ({error.strerror}); check the permissions and the disk"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(
            f"{path} is damaged; if the database beside it is the right one, remove this file"
        ) from error


def traces_of(folder: Path) -> list[str]:
    """Return what shows that a folder held a store, besides the database and its log.

    (A log alone may be left of a store whose creation was interrupted, in which nothing was committed.)
    """
    if os.path.lexists(folder / MARKER):
        return [MARKER]
    return [name for name, files in _LEFT_BEHIND.items() if any(folder.glob(f"{name}/{files}"))]


def refuse_lost(path: Path, traces: Sequence[str]) -> None:
    """Raise `Corrupt` if the database is missing or empty in a folder that held a store.

    ``traces`` were looked for before: another process may just be creating the store.
    """
    if traces and not (path.exists() and path.stat().st_size):
        raise lost(path, "is empty" if path.exists() else "is missing", traces)


def lost(path: Path, what: str, traces: Sequence[str]) -> Corrupt:
    """Return the error for a database that holds nothing."""
    return Corrupt(f"{path} {what}, but its folder held a store ({', '.join(traces)}); {_RESTORE}")


def mark(path: Path, store_id: str, clock: Clock, *, writable: bool) -> None:
    """Write the marker of a store that has none; raise `Corrupt` if the folder is that of another store."""
    found = store_of(path.parent)
    if found is None:
        if not writable:
            return
        hit(CREATED)
        data = json.dumps({"store": store_id, "marked_at": to_iso(clock.now_us())}).encode() + b"\n"
        files.write_durably(path.with_name(MARKER), data)
    elif found != store_id:
        raise Corrupt(
            f"{path} holds store {store_id}, but {MARKER} beside it says {found}: the database was replaced. "
            f"Restore the whole folder from a backup, or, if this database is the right one, remove {MARKER}"
        )


class LastCommit:
    """The number of the last commit that this store acknowledged, in a file beside the database."""

    def __init__(self, path: Path, *, is_durable: bool) -> None:
        self._database = path
        self._path = path.with_name(path.name + LAST)
        self._is_durable = is_durable
        self._file: int | None = None
        self._no = 0

    def record(self, no: int) -> None:
        """Note that a commit was made durable. Failing to is no error: then less is noticed later."""
        if no <= self._no:
            return
        self._no = no
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(self._file, _line(no, "disk" if self._is_durable else _boot_id()), 0)
        except OSError:
            return

    def recorded(self) -> int:
        """Return the number in the file; 0 if there is none that counts."""
        try:
            return _number_in(self._path.read_bytes())
        except OSError:
            return 0

    def missing(self, connection: sqlite3.Connection, recorded: int) -> str | None:
        """Say how many commits are missing from a database, of those recorded before it was read."""
        ((found,),) = connection.execute(_LAST_NO).fetchall()
        if found >= recorded:
            return None
        return (
            f"{recorded - found} acknowledged commits are missing: the last one was {recorded}, the database "
            f"ends with {found}, so its log was damaged, or an older database was put in its place"
        )

    def refuse(self, damage: str) -> Corrupt:
        """Return the error for a database that lost commits, and keep what is left of its log."""
        log = self._database.with_name(self._database.name + "-wal")
        kept = log.with_name(log.name + "-damaged")
        with suppress(OSError):
            if log.stat().st_size and not kept.exists():
                shutil.copyfile(log, kept)
        return Corrupt(
            f"{self._database}: {damage}. Restore the store from a backup, or keep what there is: "
            f"treering doctor --accept-loss --store {self._database.parent}"
        )

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def accept_loss(path: Path) -> bool:
    """Forget how far a database had come, so that it opens as it is; return whether that was known."""
    last = path.with_name(path.name + LAST)
    try:
        last.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise TreeringError(f"{last} cannot be removed: {error.strerror}; check its permissions") from error
    return True


@cache
def _boot_id() -> str:
    """Return what changes when the machine restarts; without such a thing, what matches nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _line(no: int, holds_on: str) -> bytes:
    text = f"{no:020d} {holds_on}".encode()
    return text + b" %08x\n" % crc32(text)


def _number_in(line: bytes) -> int:
    text, _, check = line.partition(b"\n")[0].rpartition(b" ")
    no, _, holds_on = text.partition(b" ")
    if check != b"%08x" % crc32(text) or holds_on.decode("ascii", "replace") not in ("disk", _boot_id()):
        return 0
    return int(no) if holds_on != b"unknown" else 0

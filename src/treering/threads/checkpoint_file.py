"""``checkpoints.db``: the newest state of each thread, in a SQLite file beside the store.

Programs written for Agentry Lab read this file: one table, one row per thread, with a JSON payload, never a
pickle. The store is the record, and keeps all checkpoints. **Invariant:** the row of a thread follows the
store: it has what the head has, and it goes when the thread's checkpoints are erased (see `line_files`).
Rows that this store did not write stay.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from treering.core.clock import SystemClock
from treering.core.encoding import encode_json
from treering.errors import Unreachable
from treering.files import FILE_MODE, make_folder, translate_os_errors
from treering.threads.checkpoint import MESSAGES, Checkpoint
from treering.threads.head import Head
from treering.threads.line_files import CHECKPOINT_ROW, register_file
from treering.threads.state_object import attributes

if TYPE_CHECKING:
    from contextlib import ExitStack

    from treering.core.engine import Engine

CHECKPOINTS: Final = "checkpoints.db"
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS checkpoints (thread_id TEXT PRIMARY KEY, payload BLOB, updated_at REAL)"
)
_UPSERT: Final = (
    "INSERT INTO checkpoints (thread_id, payload, updated_at) VALUES (?, ?, ?) "
    "ON CONFLICT (thread_id) DO UPDATE SET payload = excluded.payload, updated_at = excluded.updated_at"
)
_DELETE: Final = "DELETE FROM checkpoints WHERE thread_id = ?"
_BUSY_SECONDS: Final = 60


class CheckpointRow:
    """The row of one thread, a `treering.threads.line_files.ThreadFile`."""

    def __init__(self, engine: Engine, space: str, thread_id: str, namespace: str, *, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self._engine = engine
        self._space = space
        self._thread_id = thread_id
        self._namespace = namespace

    def catch_up(self) -> None:
        """Write what the head of the thread has."""
        with _opened(self.path) as database:
            # An erasure that has removed the row before starts over, and one that is over left no head.
            register_file(
                self._engine, self._space, self.path, self._thread_id, self._namespace, CHECKPOINT_ROW,
                anew=True,
            )  # fmt: skip
            head = Head(self._engine, self._space, self._thread_id, self._namespace, clock=SystemClock())
            record = head.see()
            if record is None:
                database.execute(_DELETE, (self._thread_id,))
            else:
                database.execute(_UPSERT, _row(Checkpoint(self._engine, self._space, record)))

    def strip(self, held: ExitStack) -> tuple[int, int]:  # noqa: ARG002 - `catch_up` needs no lock that stays
        """Delete the row; return how many there were, and 0: rows of other threads are not looked at."""
        return (delete_row(self.path, self._thread_id), 0) if self.path.exists() else (0, 0)


def write_rows(path: Path, checkpoints: list[Checkpoint]) -> None:
    """Insert or replace the rows of these threads in one transaction."""
    with _opened(path) as database:
        database.executemany(_UPSERT, map(_row, checkpoints))


def delete_row(path: Path, thread_id: str) -> int:
    """Delete the row of a thread, and its bytes; return how many there were."""
    with _opened(path) as database:
        return database.execute(_DELETE, (thread_id,)).rowcount


def payload(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the state of a checkpoint as Agentry Lab keeps it, with the messages of other threads."""
    found = attributes(checkpoint)
    return {**found, MESSAGES: checkpoint.items(MESSAGES)} if checkpoint.message_count else found


def _row(checkpoint: Checkpoint) -> tuple[str, bytes, float]:
    data = encode_json(payload(checkpoint), keep_order=True)
    return checkpoint.thread_id, data, checkpoint.record.created_at_us / 1e6


@contextmanager
def _opened(path: Path) -> Generator[sqlite3.Connection]:
    """Open or make the file, and begin a transaction that keeps other writers out."""
    with translate_os_errors(str(path), writing=True):
        make_folder(path.parent)
        with suppress(FileExistsError):  # SQLite would make it readable by others
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE))
    try:
        connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        with closing(connection) as database:
            database.execute("PRAGMA secure_delete = ON")
            database.execute("BEGIN IMMEDIATE")
            database.execute(_TABLE)
            yield database
            database.execute("COMMIT")
    except sqlite3.Error as error:
        raise Unreachable(f"{path} cannot be written as a database of checkpoints ({error})") from error

"""Transcripts and checkpoints of Agentry Lab, by its names, in a store and below its ``outputs`` folder.

    lab = Lab(store, thread_id="debate")
    lab.append({"iter": 0, "agent_id": "pro", "role": "agent", "content": "Yes."})
    lab.save_checkpoint("debate", state)

The store is the record. Beside it, each event is a line of ``outputs/transcripts/<thread>.jsonl``, and the
newest state of each thread a row of ``outputs/checkpoints.db``, as other programs expect them. A payload is
JSON, never a pickle. **Invariant:** a file follows the store: what it has of a thread of this store is
replaced by what the store has, what it has of other threads stays.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from treering.api import open as open_store
from treering.core.encoding import encode_json
from treering.errors import InvalidInput, Unreachable
from treering.files import FILE_MODE, make_folder, translate_os_errors
from treering.store import Store
from treering.threads.checkpoint import MESSAGES
from treering.threads.state_object import attributes
from treering.threads.transcripts import event_of_line

if TYPE_CHECKING:
    from treering.threads.checkpoint import Checkpoint
    from treering.threads.removal import Cleaned
    from treering.threads.transcripts import Transcript, TranscriptEvent

OUTPUTS: Final = "outputs"
CHECKPOINTS: Final = "checkpoints.db"
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS checkpoints (thread_id TEXT PRIMARY KEY, payload BLOB, updated_at REAL)"
)
_UPSERT: Final = (
    "INSERT INTO checkpoints (thread_id, payload, updated_at) VALUES (?, ?, ?) "
    "ON CONFLICT (thread_id) DO UPDATE SET payload = excluded.payload, updated_at = excluded.updated_at"
)


class Lab:
    """The persistence of Agentry Lab. ``thread_id`` is its current thread."""

    def __init__(
        self,
        store: Store | str | Path | None = None,
        *,
        thread_id: str | None = None,
        outputs: str | Path = OUTPUTS,
    ) -> None:
        self._is_ours = not isinstance(store, Store)
        self._store = store if isinstance(store, Store) else open_store(store)
        self._outputs = Path(outputs).expanduser()
        self._file = CheckpointFile(self._outputs / CHECKPOINTS)
        self.thread_id = thread_id

    @property
    def store(self) -> Store:
        """The store of all threads."""
        return self._store

    def transcript(self, thread_id: str | None = None) -> Transcript:
        """Return the transcript of a thread, by default of the current one."""
        return self._store.transcript(self._chosen(thread_id), outputs=self._outputs)

    def append(self, event: Mapping[str, Any], thread_id: str | None = None) -> TranscriptEvent:
        """Append an event in the form of a transcript's line; without ``t`` it happened now."""
        log = self.transcript(thread_id)
        now = self._store.clock.now_us() / 1e6
        return log.append_event(event_of_line(encode_json({"t": now, **event}, keep_order=True)))

    def save_checkpoint(self, thread_id: str, state: Any) -> Checkpoint:
        """Save the attributes of an object, or the items of a dict. All earlier checkpoints stay."""
        checkpoint = self._store.thread(thread_id).snapshot_state(state)
        self._file.put(checkpoint)
        return checkpoint

    def load_checkpoint(self, thread_id: str) -> dict[str, Any] | None:
        """Return the newest state of a thread; ``None`` if it was never saved."""
        checkpoint = self._store.thread(thread_id).get()
        return None if checkpoint is None else payload(checkpoint)

    def list_threads(self) -> list[str]:
        """Return the ids of all threads, newest first."""
        return [each.id for each in self._store.threads()]

    def clean(
        self,
        thread_id: str | None = None,
        *,
        delete_transcript: bool = True,
        delete_checkpoint: bool = True,
    ) -> Cleaned:
        """Delete the transcript and/or the checkpoints of a thread, in the store and in the files."""
        chosen = self._chosen(thread_id)
        cleaned = self._store.thread(chosen).clean(
            delete_transcript=delete_transcript, delete_checkpoint=delete_checkpoint
        )
        if delete_checkpoint:
            self._file.delete(chosen)
        return cleaned

    def close(self) -> None:
        """Close the store, if it was opened here."""
        if self._is_ours:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _chosen(self, thread_id: str | None) -> str:
        chosen = thread_id or self.thread_id
        if chosen is None:
            raise InvalidInput("this lab has no current thread; give a thread_id")
        return chosen


class CheckpointFile:
    """A ``checkpoints.db``: the newest state of each thread, as JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def put(self, *checkpoints: Checkpoint) -> None:
        """Insert or replace the rows of these threads, in one transaction."""
        with self._opened() as database:
            database.executemany(
                _UPSERT,
                [
                    (
                        each.thread_id,
                        encode_json(payload(each), keep_order=True),
                        each.record.created_at_us / 1e6,
                    )
                    for each in checkpoints
                ],
            )

    def delete(self, thread_id: str) -> None:
        """Delete the row of a thread, and its bytes."""
        if self.path.exists():
            with self._opened() as database:
                database.execute("DELETE FROM checkpoints WHERE thread_id = ?", (thread_id,))

    @contextmanager
    def _opened(self) -> Generator[sqlite3.Connection]:
        with translate_os_errors(str(self.path), writing=True):
            make_folder(self.path.parent)
            with suppress(FileExistsError):  # SQLite would make it readable by others
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE))
        try:
            with closing(sqlite3.connect(self.path, timeout=60)) as database, database:
                database.execute("PRAGMA secure_delete = ON")
                database.execute(_TABLE)
                yield database
        except sqlite3.Error as error:
            raise Unreachable(
                f"{self.path} cannot be written ({error}); the store has the checkpoint, and the next one "
                "writes the row again"
            ) from error


def payload(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the state of a checkpoint as Agentry Lab keeps it, with the messages of other threads."""
    found = attributes(checkpoint)
    return {**found, MESSAGES: checkpoint.items(MESSAGES)} if checkpoint.message_count else found

"""Transcripts and checkpoints of Agentry Lab, by its names, in a store and below its ``outputs`` folder.

    lab = Lab(store, thread_id="debate")
    lab.append({"iter": 0, "agent_id": "pro", "role": "agent", "content": "Yes."})
    lab.save_checkpoint("debate", state)

The store is the record. Beside it, each event is a line of ``outputs/transcripts/<thread>.jsonl``, and the
newest state of each thread a row of ``outputs/checkpoints.db``, as other programs expect them. A payload is
JSON, never a pickle. **Invariant:** a file follows the store: what it has of a thread of this store is
replaced by what the store has, and erased with it; what it has of other threads stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from treering.api import open as open_store
from treering.core.encoding import encode_json
from treering.errors import InvalidInput, Unreachable
from treering.store import Store
from treering.threads.checkpoint_file import CHECKPOINTS, CheckpointRow, delete_row, payload
from treering.threads.transcripts import event_of_line

if TYPE_CHECKING:
    from treering.threads.checkpoint import Checkpoint
    from treering.threads.removal import Cleaned
    from treering.threads.transcripts import Transcript, TranscriptEvent

OUTPUTS: Final = "outputs"


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
        self._file = self._outputs / CHECKPOINTS
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
        row = CheckpointRow(self._store.engine, self._store.space, thread_id, "", path=self._file)
        try:
            row.catch_up()
        except Unreachable as error:
            raise Unreachable(
                f"{error}; the store has the checkpoint, and the next one writes the row again"
            ) from error
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
        if delete_checkpoint and self._file.exists():
            delete_row(self._file, chosen)  # also one that the store never had
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

"""A notebook: takes the notes of runs that are over long since, and writes them in few commits.

It stands where a recorder stands, so that importing writes the very rows that recording does. Its clock
shows whatever time it is set to: that of the line which is being read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treering.core.draft import Draft

if TYPE_CHECKING:
    from treering.store import Store
    from treering.views.recording.recorder import Note

_NOTES_A_COMMIT: Final = 400


class Notebook:
    """Notes in the order in which they were taken. Also the clock of the runs that it is for."""

    def __init__(self) -> None:
        self.at_us = 0
        """The time that the clock shows."""
        self._notes: list[Note] = []

    @property
    def id(self) -> None:
        """Nobody's process: whether such a run goes on, only its source knows."""
        return

    def now_us(self) -> int:
        """The time that was set."""
        return self.at_us

    def take(self, note: Note) -> None:
        """A note to be written."""
        self._notes.append(note)

    def flush(self) -> None:
        """Nothing: `write` is what makes notes durable."""

    def __len__(self) -> int:
        return len(self._notes)

    def write(self, store: Store, *last: Note, whole: bool = False) -> None:
        """Commit everything, a part at a time or as a ``whole``; ``last`` goes into the last commit."""
        notes, self._notes = [*self._notes, *last], []
        at_once = len(notes) if whole else _NOTES_A_COMMIT
        for start in range(0, len(notes), at_once or 1):
            draft = Draft(store.space)
            for note in notes[start : start + at_once]:
                note(draft)
            if not draft.is_empty:
                store.commit(draft)

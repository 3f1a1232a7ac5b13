"""What an import says when it is done: a count per file, of what was found, what is new and what was there.

In a dry run the numbers are the same as in the real run that would follow; only nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from treering.importers.tally import Spent

Progress = Callable[[int, int | None], None]
"""Called now and then with how much is done and, where it is known, of how much."""


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One file (or table, or folder of files) of a source."""

    path: str
    """Its place inside the source."""
    holds: str
    """What is counted, in the plural: ``checkpoints``, ``counters``."""
    found: int
    new: int = 0
    """Written now (in a dry run: would be written)."""
    known: int = 0
    """In the store already, from an earlier import."""
    left_out: int = 0
    """Found and not imported; ``note`` says why."""
    note: str = ""


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """One import, file by file."""

    importer: str
    source: str
    dry_run: bool
    files: tuple[FileReport, ...]
    lines: int = 0
    """Lines that were read; those of files that have not changed since are not read again."""
    seconds: float = 0.0
    """How long it took, where that is counted."""
    unknown: dict[str, int] = {}
    """Lines of types that are not known, which were kept as they are."""
    bad: tuple[str, ...] = ()
    """Lines that could not be read and were passed over: file, number and reason."""
    spent: tuple[Spent, ...] = ()
    """What everything in the source took, by project and day."""

    @property
    def new(self) -> int:
        """How much was written, over all files; 0 when everything was there already."""
        return sum(each.new for each in self.files)

"""Importing many sessions: those that have changed since are read, all are counted and summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from treering.errors import InvalidInput
from treering.importers.report import FileReport, ImportReport
from treering.importers.sessions import Session, Stamp, Turn, is_quiet, stamp_of
from treering.importers.tally import Tally

if TYPE_CHECKING:
    from treering.store import Store


class Reading(Protocol):
    """The files of one session, when they were read."""

    lines: int
    known: int
    left: int
    bad: list[str]
    unknown: Counter[str]
    turns: list[Turn]
    is_over: bool

    def read(self) -> None:
        """Read them."""
        ...

    @property
    def state(self) -> dict[str, Any]:
        """What a moment of the thread says beside its messages."""
        ...


Reader = Callable[[Session, dict[Path, int], bool], Reading]
"""Makes the reading of a session out of the sizes of its files, and whether nobody writes to them."""


class SessionImport:
    """Takes one session after the other, and sums up. ``is_over`` says that nobody adds to them any more."""

    def __init__(self, tool: str, store: Store, *, dry_run: bool, is_over: bool = False) -> None:
        self._tool = tool
        self._store = store
        self._dry_run = dry_run
        self._is_over = is_over
        self._tally = Tally()
        self._counts: dict[str, dict[str, Counter[str]]] = {}
        self._unknown: Counter[str] = Counter()
        self._bad: list[str] = []
        self._moved: Counter[str] = Counter()
        self._foreign: Counter[str] = Counter()
        self._lines = 0

    def take(self, group: str, id: str, files: Sequence[Path], reader: Reader) -> None:
        """Import one session, if its files have changed; ``group`` is what it is counted under.

        Lines of unknown types are kept beside others; a file of nothing else is not of this tool.
        """
        session = Session(self._store, self._tool, id)
        paths = stamp_of(files)
        quiet = self._is_over or is_quiet(paths, self._store.clock.now_us())
        before = session.stamp()
        if before is not None and before.files == paths and (before.is_over or not quiet):
            self._skip(group, before)
            return
        sizes = {path: paths[path.name][0] for path in files}
        reading = reader(session, sizes, quiet)
        reading.read()
        self._bad += [f"{group}/{each}" for each in reading.bad]
        if before is None and (reading.lines or reading.bad) and reading.unknown.total() == reading.lines:
            self._foreign[group] += 1
            self._count(group, "sessions", found=1, left=1)
            return
        new = reading.lines - reading.known - reading.left
        if not self._dry_run:
            stamp = Stamp(
                files=paths, lines=reading.lines, is_over=reading.is_over, spent=session.tally.spent
            )
            if not session.write_thread(reading.turns, reading.state):
                self._moved[group] += 1
            session.write(stamp)  # last, so that an import that was cut off is known to be so
        self._add(group, session.tally, sessions=(before is None, before is not None))
        self._count(group, "lines", found=reading.lines, new=new, known=reading.known, left=reading.left)
        self._lines += reading.lines
        self._unknown.update(reading.unknown)

    def _skip(self, group: str, before: Stamp) -> None:
        self._add(group, Tally(before.spent), sessions=(False, True))
        self._count(group, "lines", found=before.lines, known=before.lines)

    def _add(self, group: str, tally: Tally, *, sessions: tuple[bool, bool]) -> None:
        for each in tally.spent:
            self._tally.add(each)
        new, known = sessions
        self._count(group, "sessions", found=1, new=int(new), known=int(known))

    def _count(self, group: str, holds: str, **counts: int) -> None:
        self._counts.setdefault(group, {}).setdefault(holds, Counter()).update(counts)

    def report(self, source: str, *, seconds: float) -> ImportReport:
        """What was found, what is new, and what it took; `InvalidInput` when nothing was of this tool."""
        sessions = sum(kinds["sessions"]["found"] for kinds in self._counts.values())
        if sessions and self._foreign.total() == sessions:
            raise InvalidInput(
                f"{source} has no line that {self._tool} writes; nothing was imported. "
                "`treering import --help` lists whose files can be"
            )
        bad = Counter(each.partition("/")[0] for each in self._bad)
        reports: list[FileReport] = []
        for project, kinds in sorted(self._counts.items()):
            for holds, counts in sorted(kinds.items(), reverse=True):
                report = FileReport(
                    path=project,
                    holds=holds,
                    found=counts["found"],
                    new=counts["new"],
                    known=counts["known"],
                    left_out=counts["left"],
                    note="not finished yet: import again later" if counts["left"] else "",
                )
                if holds == "sessions":
                    notes = {
                        "threads went on here and stay as they are": self._moved[project],
                        f"have no line that {self._tool} writes": self._foreign[project],
                    }
                    told = "; ".join(f"{count} {note}" for note, count in notes.items() if count)
                    report = msgspec.structs.replace(report, note=told)
                if holds == "lines" and bad[project]:
                    report = msgspec.structs.replace(
                        report,
                        found=report.found + bad[project],
                        left_out=report.left_out + bad[project],
                        note=f"{bad[project]} cannot be read",
                    )
                reports.append(report)
        return ImportReport(
            importer=self._tool,
            source=source,
            dry_run=self._dry_run,
            files=tuple(reports),
            lines=self._lines,
            seconds=seconds,
            unknown=dict(self._unknown),
            bad=tuple(self._bad),
            spent=self._tally.spent,
        )

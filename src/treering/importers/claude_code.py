"""Importing what Claude Code leaves behind: ``~/.claude/projects``, all sessions of all projects.

A session becomes the thread ``claude-code/<session>`` with a moment for each prompt, and each prompt a run
with its messages, tool calls and subagents, at the times when they happened and at the prices of that day.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from treering.errors import NotFound
from treering.importers.claude_sessions import ClaudeSession, Files, found_files
from treering.importers.report import FileReport, ImportReport
from treering.importers.sessions import Session, Stamp, is_quiet, stamp_of
from treering.importers.tally import Tally

if TYPE_CHECKING:
    from treering.importers.report import Progress
    from treering.store import Store

TOOL: Final = "claude-code"
DEFAULT: Final = "~/.claude/projects"


def import_claude_code(
    source: str | Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
) -> ImportReport:
    """Import a folder of projects, the folder of one project, or the file of one session."""
    path = Path(source).expanduser()
    if not path.exists():
        raise NotFound(f"there is nothing at {str(source)!r}; Claude Code keeps its sessions in {DEFAULT}")
    began = time.perf_counter()
    found = [files for files in found_files(path) if files.paths]
    if not found:
        raise NotFound(f"{path} holds no session of Claude Code (files <session>.jsonl); give {DEFAULT}")
    importing = _Import(store, path if path.is_dir() else path.parent, dry_run=dry_run)
    for done, files in enumerate(found, 1):
        importing.take(files)
        if on_progress is not None:
            on_progress(done, len(found))
    return importing.report(str(path), seconds=time.perf_counter() - began)


class _Import:
    def __init__(self, store: Store, root: Path, *, dry_run: bool) -> None:
        self._store = store
        self._root = root
        self._dry_run = dry_run
        self._tally = Tally()
        self._counts: dict[str, dict[str, Counter[str]]] = {}
        self._unknown: Counter[str] = Counter()
        self._bad: list[str] = []
        self._notes: Counter[str] = Counter()
        self._lines = 0

    def take(self, files: Files) -> None:
        session = Session(self._store, TOOL, files.id)
        paths = stamp_of(files.paths, self._root)
        quiet = is_quiet(paths, self._store.clock.now_us())
        before = session.stamp()
        if before is not None and before.files == paths and (before.is_over or not quiet):
            self._skip(files, before)
            return
        sizes = {self._root / name: size for name, (size, _) in paths.items()}
        reading = ClaudeSession(session, files, sizes, is_quiet=quiet)
        reading.read()
        new = reading.lines - reading.known - reading.left
        if not self._dry_run:
            stamp = Stamp(
                files=paths, lines=reading.lines, is_over=reading.is_over, spent=session.tally.spent
            )
            session.write(stamp)
            if not session.write_thread(reading.turns, reading.state):
                self._notes["threads went on here since"] += 1
        self._add(files, session.tally, sessions=(before is None, before is not None))
        self._count(files, "lines", found=reading.lines, new=new, known=reading.known, left=reading.left)
        self._lines += reading.lines
        self._unknown.update(reading.unknown)
        self._bad += [f"{files.project}/{each}" for each in reading.bad]

    def _skip(self, files: Files, before: Stamp) -> None:
        self._add(files, Tally(before.spent), sessions=(False, True))
        self._count(files, "lines", found=before.lines, known=before.lines)

    def _add(self, files: Files, tally: Tally, *, sessions: tuple[bool, bool]) -> None:
        for each in tally.spent:
            self._tally.add(each)
        new, known = sessions
        self._count(files, "sessions", found=1, new=int(new), known=int(known))

    def _count(self, files: Files, holds: str, **counts: int) -> None:
        self._counts.setdefault(files.project, {}).setdefault(holds, Counter()).update(counts)

    def report(self, source: str, *, seconds: float) -> ImportReport:
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
                if holds == "lines" and bad[project]:
                    report = msgspec.structs.replace(
                        report,
                        found=report.found + bad[project],
                        left_out=report.left_out + bad[project],
                        note=f"{bad[project]} cannot be read",
                    )
                reports.append(report)
        return ImportReport(
            importer=TOOL,
            source=source,
            dry_run=self._dry_run,
            files=tuple(reports),
            lines=self._lines,
            seconds=seconds,
            unknown=dict(self._unknown),
            bad=tuple(self._bad),
            spent=self._tally.spent,
        )

"""Importing what Claude Code leaves behind: ``~/.claude/projects``, all sessions of all projects.

A session becomes the thread ``claude-code/<session>`` with a moment for each prompt, and each prompt a run
with its messages, tool calls and subagents, at the times when they happened and at the prices of that day.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from treering.errors import NotFound
from treering.importers.claude_sessions import ClaudeSession, Files, found_files
from treering.importers.session_import import SessionImport

if TYPE_CHECKING:
    from treering.importers.report import ImportReport, Progress
    from treering.importers.sessions import Session
    from treering.store import Store

TOOL: Final = "claude-code"
DEFAULT: Final = "~/.claude/projects"


def import_claude_code(
    source: str | Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    is_over: bool = False,
) -> ImportReport:
    """Import a folder of projects, the folder of one project, or the file of one session.

    ``is_over`` says that nobody writes to them any more, so that nothing needs to wait for its end.
    """
    path = Path(source).expanduser()
    if not path.exists():
        raise NotFound(f"there is nothing at {str(source)!r}; Claude Code keeps its sessions in {DEFAULT}")
    began = time.perf_counter()
    found = [files for files in found_files(path) if files.paths]
    if not found:
        raise NotFound(f"{path} holds no session of Claude Code (files <session>.jsonl); give {DEFAULT}")
    importing = SessionImport(TOOL, store, dry_run=dry_run, is_over=is_over)
    for done, files in enumerate(found, 1):
        importing.take(files.project, files.id, files.paths, partial(_reading, files))
        if on_progress is not None:
            on_progress(done, len(found))
    return importing.report(str(path), seconds=time.perf_counter() - began)


def _reading(files: Files, session: Session, sizes: dict[Path, int], is_quiet: bool) -> ClaudeSession:  # noqa: FBT001
    return ClaudeSession(session, files, sizes, is_quiet=is_quiet)

"""Importing what Codex leaves behind: ``~/.codex/sessions``, one rollout file a session.

A session becomes the thread ``codex/<session>`` with a moment for each turn, and each turn a run with its
messages and tool calls, at the times when they happened and at the prices of that day.
"""

from __future__ import annotations

import re
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from treering.errors import NotFound
from treering.importers.codex_sessions import CodexSession
from treering.importers.session_import import SessionImport

if TYPE_CHECKING:
    from treering.importers.report import ImportReport, Progress
    from treering.importers.sessions import Session
    from treering.store import Store

TOOL: Final = "codex"
DEFAULT: Final = "~/.codex/sessions"

_NAME: Final = re.compile(r"rollout-(?:[0-9T-]{19}-)?(.+)")


def import_codex(
    source: str | Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
) -> ImportReport:
    """Import a folder of sessions, or the file of one."""
    path = Path(source).expanduser()
    if not path.exists():
        raise NotFound(f"there is nothing at {str(source)!r}; Codex keeps its sessions in {DEFAULT}")
    began = time.perf_counter()
    below = (each for each in path.rglob("rollout-*.jsonl") if each.is_file())
    found = [path] if path.is_file() else sorted(below)
    if not found:
        raise NotFound(f"{path} holds no session of Codex (files rollout-*.jsonl); give {DEFAULT}")
    root = path if path.is_dir() else path.parent
    importing = SessionImport(TOOL, store, dry_run=dry_run)
    for done, each in enumerate(found, 1):
        importing.take(root.name or "sessions", session_id(each), [each], partial(_reading, each))
        if on_progress is not None:
            on_progress(done, len(found))
    return importing.report(str(path), seconds=time.perf_counter() - began)


def session_id(path: Path) -> str:
    """What Codex calls the session of a rollout file, by which it can be resumed."""
    named = _NAME.fullmatch(path.stem)
    return path.stem if named is None else named[1]


def _reading(path: Path, session: Session, sizes: dict[Path, int], is_quiet: bool) -> CodexSession:  # noqa: FBT001
    return CodexSession(session, path, sizes[path], is_quiet=is_quiet)

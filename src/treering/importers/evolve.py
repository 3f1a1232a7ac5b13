"""Importing what Evolve leaves behind: its session logs, and the metadata of its checkpoints.

A session log becomes the thread ``evolve/<tag>`` with a run for each prompt. A checkpoint's metadata (a JSON
file with ``id``, ``hash`` and ``tag``) becomes an event of that thread; the archive itself stays where it is.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import Event
from treering.core.draft import Draft
from treering.core.encoding import encode_json
from treering.core.query import EventQuery
from treering.errors import NotFound
from treering.importers.claude_lines import time_us
from treering.importers.evolve_sessions import EvolveSession, Meta, read_meta
from treering.importers.report import FileReport, ImportReport
from treering.importers.session_import import SessionImport
from treering.importers.sessions import Session

if TYPE_CHECKING:
    from treering.importers.report import Progress
    from treering.store import Store

TOOL: Final = "evolve"
DEFAULT: Final = "~/.evolve-sdk/observability/sessions"
CHECKPOINT: Final = "evolve.checkpoint"

_AT_ONCE: Final = 200


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The metadata of one checkpoint, as Evolve keeps it in a bucket."""

    id: str
    hash: str
    tag: str
    timestamp: str
    size_bytes: int | None = None
    agent_type: str | None = None
    model: str | None = None
    workspace_mode: str | None = None
    parent_id: str | None = None
    comment: str | None = None


def import_evolve(
    source: str | Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
) -> ImportReport:
    """Import session logs (``*.jsonl``) and checkpoint metadata (``*.json``) below a folder, or one file."""
    path = Path(source).expanduser()
    if not path.exists():
        raise NotFound(f"there is nothing at {str(source)!r}; Evolve keeps its session logs in {DEFAULT}")
    began = time.perf_counter()
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*.json*") if each.is_file())
    logs = [(each, meta) for each in files if each.suffix == ".jsonl" and (meta := read_meta(each))]
    infos = [info for each in files if each.suffix == ".json" and (info := _info(each)) is not None]
    if not logs and not infos:
        raise NotFound(f"{path} holds no session log and no checkpoint of Evolve; give {DEFAULT}")
    root = path if path.is_dir() else path.parent
    importing = SessionImport(TOOL, store, dry_run=dry_run)
    for done, (each, meta) in enumerate(logs, 1):
        importing.take(root.name or "sessions", meta.tag, [each], partial(_reading, each, meta))
        if on_progress is not None:
            on_progress(done, len(logs))
    report = importing.report(str(path), seconds=time.perf_counter() - began)
    if infos:
        counted = _load_infos(store, infos, dry_run=dry_run)
        report = msgspec.structs.replace(report, files=(*report.files, counted))
    return report


def _reading(
    path: Path,
    meta: Meta,
    session: Session,
    sizes: dict[Path, int],
    is_quiet: bool,  # noqa: FBT001
) -> EvolveSession:
    return EvolveSession(session, path, sizes[path], meta=meta, is_quiet=is_quiet)


def _info(path: Path) -> CheckpointInfo | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=CheckpointInfo)
    except (OSError, msgspec.DecodeError):
        return None


def _load_infos(store: Store, infos: list[CheckpointInfo], *, dry_run: bool) -> FileReport:
    known: set[str] = set()
    for start in range(0, len(infos), _AT_ONCE):
        ids = tuple(info.id for info in infos[start : start + _AT_ONCE])
        query = EventQuery(ids=ids, kinds=(CHECKPOINT,))
        known.update(record.event.id for record in store.engine.scan(store.space, query).records)
    new = [info for info in infos if info.id not in known]
    for start in range(0, 0 if dry_run else len(new), _AT_ONCE):
        draft = Draft(store.space)
        for info in new[start : start + _AT_ONCE]:
            draft.event(_event(store, info))
        store.commit(draft)
    return FileReport(
        path="checkpoints",
        holds="checkpoints",
        found=len(infos),
        new=len(new),
        known=len(infos) - len(new),
        note="their metadata; the archives stay where they are",
    )


def _event(store: Store, info: CheckpointInfo) -> Event:
    session = Session(store, TOOL, info.tag)
    told: dict[str, Any] = {
        name: each for name, each in msgspec.structs.asdict(info).items() if each is not None
    }
    return Event(
        id=info.id,
        kind=CHECKPOINT,
        ts_us=time_us(info.timestamp) or 0,
        scope=session.scope,
        thread=session.key,
        agent=info.agent_type,
        model=info.model,
        name=info.comment or "checkpoint",
        data=encode_json(told),
    )

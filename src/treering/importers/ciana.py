"""Import the ``data`` and ``workspace`` folders of a CianaParrot agent.

- ``checkpoints.db``: conversations in a LangGraph database. Thread ids are kept, so `store.chat` continues
  them.
- ``session_counters.json``: how often each chat was reset. **Invariant:** a counter is never lowered.
- ``scheduled_tasks.json``: tasks keep their ids and continue with their next occurrence from now; earlier
  ones are not caught up. A task that exists in the store is not changed.
- ``cc_user_states.json``: sessions, stored for ``store.state.sessions(UserSession)``. A user who has a
  session in the store keeps that one: it is newer than the file.
- ``IDENTITY.md``, ``AGENT.md``, ``MEMORY.md`` and ``skills/*/SKILL.md``: documents; the first three load
  into every context. A file that was edited since the last import becomes a new version; a document that was
  changed in the store is left alone and reported.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.batch import NUMBER_BITS
from treering.core.clock import SystemClock, from_datetime
from treering.core.ids import check_id, namespace_prefix
from treering.errors import InvalidInput
from treering.importers.lines import BadLines, read_json
from treering.importers.registry import FileReport, ImportReport, Progress, import_folder
from treering.memory.documents import MemoryDocument, Provenance
from treering.memory.markdown import read_markdown
from treering.schedules.tasks import Task, task_ref
from treering.schedules.timing import TaskType, Timing, parse_timing
from treering.state.user_sessions import UserSession
from treering.threads.chat_ids import ChatId, parse_thread_id

if TYPE_CHECKING:
    from treering.importers.registry import Root
    from treering.store import Store

_SKILL_FILE: Final = "SKILL.md"
_SOURCE: Final = "imported from CianaParrot: "


def import_ciana(
    source: str | Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    strict: bool = False,
    workspace: str | Path | None = None,
) -> ImportReport:
    """Import a ``data`` folder; with ``workspace``, the memory files there as well."""
    roots: dict[Root, Path] = {"data": Path(source)}
    if workspace is not None:
        roots["workspace"] = Path(workspace)
    return import_folder("ciana", roots, store, on_progress=on_progress, dry_run=dry_run, strict=strict)


def load_checkpoints(
    path: Path, store: Store, *, on_progress: Progress | None = None, dry_run: bool = False
) -> tuple[FileReport, ...]:
    """Import ``checkpoints.db``, written by LangGraph's AsyncSqliteSaver."""
    from treering.importers.langgraph import import_langgraph

    return import_langgraph(path, store, on_progress=on_progress, dry_run=dry_run).files


def load_counters(
    path: Path, store: Store, *, on_progress: Progress | None = None, dry_run: bool = False
) -> list[FileReport]:
    """Import ``session_counters.json``: ``{"telegram_123456": 3}``."""
    counters = _read_counters(path)
    new, known, bad = 0, 0, BadLines()
    for done, (base, value) in enumerate(counters.items(), 1):
        chat_id, count = None, 0
        with bad.skipping(f"counter {base!r}"):
            chat_id, count = _parse_counter(base, value)
        if chat_id is None:
            continue
        if _stored_count(store, chat_id) < count:
            new += 1
            if not dry_run:
                store.chat(chat_id.channel, chat_id.chat_id).synchronise(at_least=count)
        else:
            known += 1
        if on_progress is not None:
            on_progress(done, len(counters))
    return [
        FileReport(
            path=str(path),
            holds="counters",
            found=len(counters),
            new=new,
            known=known,
            left_out=bad.count,
            note=f"{bad.count} cannot be read" if bad.count else "",
            bad=bad.named,
        )
    ]


def _read_counters(path: Path) -> dict[str, Any]:
    counters: Any = read_json(path)
    if not isinstance(counters, dict):
        raise InvalidInput(f"{path} is not a JSON object of counters")
    return cast("dict[str, Any]", counters)


def _stored_count(store: Store, chat_id: ChatId) -> int:
    """Return the stored counter; creating a `Chat` would update it, which a dry run must not do."""
    name = f"chat/{namespace_prefix('')}{chat_id.base}"
    ref = store.engine.refs(store.space, [name]).get(name)
    return 0 if ref is None else int(ref.value)


def _parse_counter(base: str, count: Any) -> tuple[ChatId, int]:
    parsed = parse_thread_id(base)
    if not isinstance(parsed, ChatId) or parsed.resets:
        raise InvalidInput("not the name of a chat")
    if type(count) is not int or not 0 <= count < 1 << NUMBER_BITS:
        raise InvalidInput(f"{count!r} is not a whole number")
    return parsed, count


def load_tasks(
    path: Path, store: Store, *, on_progress: Progress | None = None, dry_run: bool = False
) -> list[FileReport]:
    """Import ``scheduled_tasks.json``, an array of tasks; invalid ones are skipped and reported."""
    entries: Any = read_json(path)
    if not isinstance(entries, list):
        raise InvalidInput(f"{path} is not a JSON array of tasks")
    tasks = cast("list[Any]", entries)
    now_us = SystemClock().now_us()
    new = known = 0
    bad = BadLines()
    for number, entry in enumerate(tasks, 1):
        task = None
        with bad.skipping(f"task {number}"):
            task = _parse_task(entry, now_us)
        if task is None:
            continue
        name = task_ref(task.id, task.namespace)
        if name in store.engine.refs(store.space, [name]):
            known += 1
        else:
            new += 1
            if not dry_run:
                store.schedules.put(task)
        if on_progress is not None:
            on_progress(number, len(tasks))
    return [
        FileReport(
            path=str(path),
            holds="scheduled tasks",
            found=len(tasks),
            new=new,
            known=known,
            left_out=bad.count,
            note=f"{bad.count} cannot be read" if bad.count else "",
            bad=bad.named,
        )
    ]


class _TaskEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A task in ``scheduled_tasks.json``."""

    id: str
    prompt: str
    type: TaskType
    value: str | int | float
    channel: str = ""
    chat_id: str | int = ""
    created_at: datetime | None = None
    last_run: datetime | None = None
    active: bool = True


def _parse_task(value: Any, now_us: int) -> Task:
    entry = msgspec.convert(value, _TaskEntry)
    created_us = now_us if entry.created_at is None else from_datetime(entry.created_at)
    if entry.type == "once":
        # A past time would be rejected for a new task. Here it is done, or it was missed and runs late.
        timing = Timing(type="once", value=_parse_iso(entry.value), anchor_us=created_us)
        next_us = timing.next_after(0)
    else:
        parsed = parse_timing(entry.type, entry.value, "UTC", now_us=created_us)
        timing = msgspec.structs.replace(parsed, anchor_us=created_us)
        next_us = timing.next_after(now_us)
    inactive = "done" if entry.type == "once" and entry.last_run else "cancelled"
    return Task(
        id=check_id(entry.id, "task id"),
        prompt=entry.prompt,
        type=timing.type,
        value=timing.value,
        channel=entry.channel,
        chat_id=str(entry.chat_id),
        created_at_us=created_us,
        last_run_us=None if entry.last_run is None else from_datetime(entry.last_run),
        next_run_us=next_us if entry.active else None,
        status="active" if entry.active else inactive,
    )


def _parse_iso(value: Any) -> str:
    try:
        return datetime.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        raise InvalidInput(f"{value!r} is not an ISO 8601 time") from None


def load_user_states(
    path: Path, store: Store, *, on_progress: Progress | None = None, dry_run: bool = False
) -> list[FileReport]:
    """Import ``cc_user_states.json``: ``{"123456": {"mode": "claude_code", ...}}``.

    Entries in the default mode are skipped, as they are never stored.
    """
    entries: Any = read_json(path)
    if not isinstance(entries, dict):
        raise InvalidInput(f"{path} is not a JSON object of sessions by user id")
    states = cast("dict[str, Any]", entries)
    sessions = store.state.sessions(UserSession)
    existing = set(sessions.users())
    new = known = 0
    default, bad = 0, BadLines()
    for done, (user_id, value) in enumerate(states.items(), 1):
        session = None
        with bad.skipping(f"user {user_id!r}"):
            session = msgspec.convert(value, UserSession)
        if session is None:
            continue
        if session.mode == UserSession().mode:
            default += 1
        elif user_id in existing:
            known += 1
        else:
            new += 1
            if not dry_run:
                sessions.save(user_id, session)
        if on_progress is not None:
            on_progress(done, len(states))
    return [
        FileReport(
            path=str(path),
            holds="user states",
            found=len(states),
            new=new,
            known=known,
            left_out=bad.count + default,
            note="; ".join(
                f"{count} {what}"
                for count, what in ((bad.count, "cannot be read"), (default, "in the default mode"))
                if count
            ),
            bad=bad.named,
        )
    ]


def load_memory_file(
    path: Path, store: Store, *, on_progress: Progress | None = None, dry_run: bool = False
) -> list[FileReport]:
    """Import one Markdown file with its front matter."""
    is_skill = path.name == _SKILL_FILE
    name = f"skills/{path.parent.name}" if is_skill else path.stem
    file = read_markdown(path.parent, path.name).document
    metadata = {"auto_load": not is_skill} | file.metadata
    document = MemoryDocument(id=name, content=file.content, metadata=metadata)
    before = store.memory.get(name, include_expired=True)
    new = known = skipped = 0
    note = ""
    if before is not None and _is_same(before, document):
        known = 1
    elif before is not None and not _is_imported(before):
        skipped, note = 1, f"{name!r} was changed in the store since the import; merge the two by hand"
    else:
        new = 1
        if not dry_run:
            version = 0 if before is None else before.version
            source = Provenance(source=_SOURCE + path.name)
            store.memory.save(document, if_version=version, provenance=source)
    if on_progress is not None:
        on_progress(1, 1)
    return [
        FileReport(
            path=str(path),
            holds="memory files",
            found=1,
            new=new,
            known=known,
            left_out=skipped,
            note=note,
        )
    ]


def _is_imported(document: MemoryDocument) -> bool:
    provenance = document.provenance
    return provenance is not None and (provenance.source or "").startswith(_SOURCE)


def _is_same(stored: MemoryDocument, file: MemoryDocument) -> bool:
    times = {"created_at", "updated_at"}
    stored_metadata = {key: value for key, value in stored.metadata.items() if key not in times}
    file_metadata: dict[str, Any] = {"tags": list[str]()}
    file_metadata |= {key: value for key, value in file.metadata.items() if key not in times}
    return stored.content == file.content and stored_metadata == file_metadata

"""Importing the ``data`` folder of a CianaParrot agent: its conversations, and how often each chat was reset.

The conversations are a LangGraph database, imported as such; thread ids keep their text, so `store.chat`
goes on with them. A counter only ever rises: one that is lower than what the store knows changes nothing.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.clock import SystemClock, from_datetime
from treering.core.ids import check_id, namespace_prefix
from treering.errors import InvalidInput
from treering.importers.registry import import_folder, read_json
from treering.importers.report import FileReport, ImportReport, Progress
from treering.memory.documents import MemoryDocument, Provenance
from treering.memory.markdown import read_markdown
from treering.schedules.tasks import Task, task_ref
from treering.schedules.timing import TaskType, Timing, parse_timing
from treering.state.user_sessions import UserSession
from treering.threads.chat_ids import ChatId, parse_thread_id

if TYPE_CHECKING:
    from treering.importers.registry import Root
    from treering.store import Store


def import_ciana(
    source: str | Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    workspace: str | Path | None = None,
) -> ImportReport:
    """Import a ``data`` folder; with ``workspace``, look at the memory files there as well."""
    roots: dict[Root, Path] = {"data": Path(source)}
    if workspace is not None:
        roots["workspace"] = Path(workspace)
    return import_folder("ciana", roots, store, on_progress=on_progress, dry_run=dry_run)


def load_checkpoints(
    path: Path, store: Store, *, on_progress: Progress | None = None, dry_run: bool = False
) -> tuple[FileReport, ...]:
    """Import ``checkpoints.db``, which LangGraph's AsyncSqliteSaver wrote."""
    from treering.importers.langgraph import import_langgraph

    return import_langgraph(path, store, on_progress=on_progress, dry_run=dry_run).files


def load_counters(
    path: Path, store: Store, *, on_progress: Progress | None = None, dry_run: bool = False
) -> list[FileReport]:
    """Import ``session_counters.json``: ``{"telegram_123456": 3}``."""
    counters = _counters(path)
    new, left_out = 0, [base for base in counters if _chat(base) is None]
    for done, (base, count) in enumerate(counters.items(), 1):
        chat_id = _chat(base)
        if chat_id is None:
            continue
        if _counted(store, chat_id) < count:
            new += 1
            if not dry_run:
                store.chat(chat_id.channel, chat_id.chat_id).synchronise(at_least=count)
        if on_progress is not None:
            on_progress(done, len(counters))
    note = f"not the name of a chat: {', '.join(map(repr, left_out[:5]))}" if left_out else ""
    known = len(counters) - new - len(left_out)
    return [
        FileReport(
            path=str(path),
            holds="counters",
            found=len(counters),
            new=new,
            known=known,
            left_out=len(left_out),
            note=note,
        )
    ]


def _counters(path: Path) -> dict[str, int]:
    counters: Any = read_json(path)
    if not isinstance(counters, dict):
        raise InvalidInput(f"{path} is not an object of counters; nothing was imported")
    for base, count in cast("dict[str, Any]", counters).items():
        if type(count) is not int or count < 0:
            raise InvalidInput(
                f"{path}: the counter of {base!r} is {count!r}, which is no count; nothing was imported"
            )
    return cast("dict[str, int]", counters)


def _counted(store: Store, chat_id: ChatId) -> int:
    """What the counter says now; a `Chat` would bring it up to date, which a dry run must not."""
    name = f"chat/{namespace_prefix('')}{chat_id.base}"
    ref = store.engine.refs(store.space, [name]).get(name)
    return 0 if ref is None else int(ref.value)


def _chat(base: str) -> ChatId | None:
    parsed = parse_thread_id(base)
    return parsed if isinstance(parsed, ChatId) and not parsed.resets else None


# -----------------------------------------------------------------------------------------------------------
# Importing what a CianaParrot agent is and knows: ``IDENTITY.md``, ``AGENT.md``, ``MEMORY.md`` and skills.
#
# The first three become documents of these names that load into every context, a skill becomes
# ``skills/<name>``. A file that was edited since the last import is taken over as a new version; a document
# that was changed in the store since then is left as it is, and the report says so.


_SKILL: Final = "SKILL.md"
_SOURCE: Final = "imported from CianaParrot: "


def load_memory_file(
    path: Path, store: Store, *, on_progress: Progress | None = None, dry_run: bool = False
) -> list[FileReport]:
    """Import one Markdown file, with its front matter."""
    is_skill = path.name == _SKILL
    name = f"skills/{path.parent.name}" if is_skill else path.stem
    read = read_markdown(path.parent, path.name).document
    document = MemoryDocument(
        id=name, content=read.content, metadata={"auto_load": not is_skill} | read.metadata
    )
    memory = store.memory
    before = memory.get(name, include_expired=True)
    new = known = left_out = 0
    note = ""
    if before is not None and _says_the_same(before, document):
        known = 1
    elif before is not None and not _is_imported(before):
        left_out, note = 1, f"{name!r} was changed in the store since; merge them by hand"
    else:
        new = 1
        if not dry_run:
            version = 0 if before is None else before.version
            memory.save(document, if_version=version, provenance=Provenance(source=_SOURCE + path.name))
    if on_progress is not None:
        on_progress(1, 1)
    return [
        FileReport(
            path=str(path),
            holds="memory files",
            found=1,
            new=new,
            known=known,
            left_out=left_out,
            note=note,
        )
    ]


def _is_imported(document: MemoryDocument) -> bool:
    origin = document.provenance
    return origin is not None and (origin.source or "").startswith(_SOURCE)


def _says_the_same(there: MemoryDocument, read: MemoryDocument) -> bool:
    times = {"created_at", "updated_at"}
    kept = {key: value for key, value in there.metadata.items() if key not in times}
    given: dict[str, Any] = {"tags": list[str]()}
    given |= {key: value for key, value in read.metadata.items() if key not in times}
    return there.content == read.content and kept == given


# -----------------------------------------------------------------------------------------------------------
# Importing what a CianaParrot agent knew of its users: ``cc_user_states.json``.
#
# The sessions go where ``store.state.sessions(UserSession)`` looks for them. A user whom the store knows
# already keeps what the store has: it is newer than the file.


def load_user_states(
    path: Path, store: Store, *, on_progress: Progress | None = None, dry_run: bool = False
) -> list[FileReport]:
    """Import ``{"123456": {"mode": "claude_code", ...}}``; entries in the default mode are left out."""
    read: Any = read_json(path)
    if not isinstance(read, dict):
        raise InvalidInput(f"{path} is not an object of sessions by user id; nothing was imported")
    entries = cast("dict[str, Any]", read)
    sessions = store.state.sessions(UserSession)
    there = set(sessions.users())
    new = known = 0
    notes: list[str] = []
    for done, (user_id, plain) in enumerate(entries.items(), 1):
        try:
            session = msgspec.convert(plain, UserSession)
        except msgspec.ValidationError as error:
            notes.append(f"user {user_id!r} is no session: {error}")
            continue
        if session.mode == UserSession().mode:
            notes.append(f"user {user_id!r} is in the default mode")
        elif user_id in there:
            known += 1
        else:
            new += 1
            if not dry_run:
                sessions.save(user_id, session)
        if on_progress is not None:
            on_progress(done, len(entries))
    return [
        FileReport(
            path=str(path),
            holds="user states",
            found=len(entries),
            new=new,
            known=known,
            left_out=len(notes),
            note="; ".join(notes[:5]),
        )
    ]


# -----------------------------------------------------------------------------------------------------------
# Importing the scheduled tasks of a CianaParrot agent: ``scheduled_tasks.json``.
#
# Tasks keep their ids. What was due while the file lay there is not caught up: a task goes on with its next
# occurrence from now. A task that the store knows already stays as the store has it.


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the file has it."""

    id: str
    prompt: str
    type: TaskType
    value: str | int | float
    channel: str = ""
    chat_id: str | int = ""
    created_at: datetime | None = None
    last_run: datetime | None = None
    active: bool = True


def load_tasks(
    path: Path, store: Store, *, on_progress: Progress | None = None, dry_run: bool = False
) -> list[FileReport]:
    """Import an array of tasks; one that is not valid is left out and named."""
    read: Any = read_json(path)
    if not isinstance(read, list):
        raise InvalidInput(f"{path} is not an array of tasks; nothing was imported")
    entries = cast("list[Any]", read)
    now_us = SystemClock().now_us()
    new = known = 0
    notes: list[str] = []
    for done, plain in enumerate(entries, 1):
        try:
            task = _task(plain, now_us)
        except (msgspec.ValidationError, InvalidInput) as error:
            notes.append(f"task {done} is not valid: {error}")
            continue
        name = task_ref(task.id, task.namespace)
        if name in store.engine.refs(store.space, [name]):
            known += 1
        else:
            new += 1
            if not dry_run:
                store.schedules.put(task)
        if on_progress is not None:
            on_progress(done, len(entries))
    return [
        FileReport(
            path=str(path),
            holds="scheduled tasks",
            found=len(entries),
            new=new,
            known=known,
            left_out=len(notes),
            note="; ".join(notes[:5]),
        )
    ]


def _task(plain: Any, now_us: int) -> Task:
    told = msgspec.convert(plain, _Told)
    created_us = now_us if told.created_at is None else from_datetime(told.created_at)
    is_over = not told.active
    if told.type == "once" and not is_over:
        # Once in the past is what a store would refuse; here it was missed, and a worker shall say so.
        timing = Timing(type="once", value=_iso(told.value), anchor_us=created_us)
        following = timing.next_after(created_us)
    else:
        checked = parse_timing(told.type, told.value, "UTC", now_us=created_us)
        timing = msgspec.structs.replace(checked, anchor_us=created_us)
        following = timing.next_after(now_us)
    return Task(
        id=check_id(told.id, "task id"),
        prompt=told.prompt,
        type=timing.type,
        value=timing.value,
        channel=told.channel,
        chat_id=str(told.chat_id),
        created_at_us=created_us,
        last_run_us=None if told.last_run is None else from_datetime(told.last_run),
        next_run_us=None if is_over else following,
        status="active" if told.active else "done" if told.type == "once" and told.last_run else "cancelled",
    )


def _iso(value: Any) -> str:
    try:
        return datetime.fromisoformat(value).isoformat()
    except (TypeError, ValueError):
        raise InvalidInput(f"{value!r} is no ISO time") from None

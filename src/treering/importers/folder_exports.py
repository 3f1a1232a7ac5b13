"""Write the folders of Agentry Lab and CianaParrot, as their own programs and `import` read them.

``outputs``: transcripts and the newest state of each thread, as JSON. ``data``: counters of chats, scheduled
tasks, user states and session logs. A thread whose id is no file name is named in ``threads.json`` beside its
file. **Invariant:** the folder appears when it is whole: it is written beside its place and then renamed, so
it must not exist yet, or be empty.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.encoding import encode_json
from treering.core.ids import namespace_prefix, new_id, parse_scope, thread_scope
from treering.core.query import each_ref, each_scope
from treering.errors import Conflict
from treering.files import FOLDER_MODE, make_folder, open_private, translate_os_errors, write_durably
from treering.importers.logs import NAMES, ThreadName
from treering.secret_scan import FoundSecret, scan_folder
from treering.state.user_sessions import UserSession
from treering.threads import chats, transcripts
from treering.threads.checkpoint_file import CHECKPOINTS, write_rows
from treering.threads.line_files import LineFormat, ThreadLog, line_file_name

if TYPE_CHECKING:
    from treering.store import Store

_ROWS_PER_COMMIT: Final = 500
_UTC: Final = ("UTC", "Etc/UTC")


class ExportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file (or folder of files) that was written, and how much it holds."""

    path: str
    holds: str
    count: int
    note: str = ""


class FolderExport(msgspec.Struct, frozen=True, kw_only=True):
    """What an export has written, file by file, and what looks like keys and passwords in it."""

    folder: str
    files: tuple[ExportedFile, ...]
    secrets: tuple[FoundSecret, ...] = ()


def export_agentry(store: Store, outputs: str | Path, *, namespace: str = "") -> FolderExport:
    """Write an ``outputs`` folder with all threads of a namespace."""
    target = Path(outputs).expanduser()
    with _whole_folder(target) as draft:
        events, threads = _write_logs(store, draft / "transcripts", namespace, transcripts.LINES)
        file, rows = draft / CHECKPOINTS, 0
        page: list[str] = []
        for info in store.threads(namespace=namespace):
            page.append(info.id)
            if len(page) == _ROWS_PER_COMMIT:
                rows += _put_rows(store, file, page, namespace)
        rows += _put_rows(store, file, page, namespace)
        secrets = tuple(scan_folder(draft))
    files = [
        ExportedFile(
            path="transcripts", holds="transcript events", count=events, note=f"of {threads} threads"
        ),
        ExportedFile(path=CHECKPOINTS, holds="checkpoints", count=rows),
    ]
    return FolderExport(folder=str(target), files=tuple(files), secrets=secrets)


def export_ciana(store: Store, data: str | Path, *, namespace: str = "") -> FolderExport:
    """Write a ``data`` folder with everything but the conversations, which stay in the store."""
    target = Path(data).expanduser()
    prefix = f"chat/{namespace_prefix(namespace)}"
    counters = {
        ref.name[len(prefix) :]: int(ref.value) for ref in each_ref(store.engine, store.space, prefix)
    }
    tasks = store.schedules.in_namespace(namespace).list_tasks(all=True)
    restored = store.state.sessions(UserSession).restore()
    states = {user: msgspec.to_builtins(session) for user, session in restored.sessions.items()}
    with _whole_folder(target) as draft:
        _write_json(draft / "session_counters.json", counters)
        _write_json(draft / "scheduled_tasks.json", [task.to_dict() for task in tasks])
        _write_json(draft / "cc_user_states.json", states)
        lines, threads = _write_logs(store, draft / "sessions", namespace, chats.LINES)
        secrets = tuple(scan_folder(draft))
    zoned = sum(task.type == "cron" and task.tz not in _UTC for task in tasks)
    broken = len(restored.problems)
    files = [
        ExportedFile(path="session_counters.json", holds="counters", count=len(counters)),
        ExportedFile(
            path="scheduled_tasks.json",
            holds="scheduled tasks",
            count=len(tasks),
            note=f"{zoned} have a time zone, which the file cannot express" if zoned else "",
        ),
        ExportedFile(
            path="cc_user_states.json",
            holds="user states",
            count=len(states),
            note=f"{broken} cannot be read" if broken else "",
        ),
        ExportedFile(path="sessions", holds="session log entries", count=lines, note=f"of {threads} threads"),
    ]
    return FolderExport(folder=str(target), files=tuple(files), secrets=secrets)


def _put_rows(store: Store, file: Path, page: list[str], namespace: str) -> int:
    """Write the newest states of these threads, and empty the list."""
    found = [store.thread(thread_id, namespace).get() for thread_id in page]
    rows = [checkpoint for checkpoint in found if checkpoint is not None]
    write_rows(file, rows)
    page.clear()
    return len(rows)


def _write_logs(store: Store, folder: Path, namespace: str, format: LineFormat) -> tuple[int, int]:
    """Write one kind of log of all threads; return how many events of how many threads."""
    make_folder(folder)
    names: dict[str, ThreadName] = {}
    events = threads = 0
    for thread_id in _thread_ids(store, namespace):
        log = ThreadLog(store.engine, store.space, thread_id, namespace, kind=format.kind)
        name = line_file_name(thread_id, "", "default")
        count = _write_lines(folder / name, (format.render(entry) + b"\n" for entry in log.each()))
        if not count:
            continue
        events, threads = events + count, threads + 1
        if name != f"{thread_id}.jsonl":
            names[name] = ThreadName(thread=thread_id)
    if names:
        _write_json(folder / NAMES, msgspec.to_builtins(names))
    return events, threads


def _thread_ids(store: Store, namespace: str) -> Iterator[str]:
    """Yield the ids of all threads, also of those that have a log and no checkpoint."""
    for scope in each_scope(store.engine, store.space, thread_scope("", namespace)):
        yield parse_scope(scope).id


def _write_lines(path: Path, lines: Iterator[bytes]) -> int:
    first = next(lines, None)
    if first is None:
        return 0
    count = 1
    with open_private(path, "xb") as file:
        file.write(first)
        for line in lines:
            file.write(line)
            count += 1
    return count


def _write_json(path: Path, value: object) -> None:
    data = msgspec.json.format(encode_json(value, keep_order=True), indent=2)
    write_durably(path, data + b"\n")


@contextmanager
def _whole_folder(target: Path) -> Generator[Path]:
    """Yield a folder to write to, which gets its name at the end."""
    with translate_os_errors(str(target), writing=True):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise Conflict(f"{target} exists already; choose another folder, or move it away")
        make_folder(target.parent)
        draft = target.absolute().with_name(f".{target.absolute().name}.{new_id()}")
        draft.mkdir(FOLDER_MODE)
        try:
            yield draft
            os.sync()  # the name must not be there before the bytes are
            draft.rename(target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise

"""Importing the ``data`` folder of a CianaParrot agent: its conversations, and how often each chat was reset.

The conversations are a LangGraph database, imported as such; thread ids keep their text, so `store.chat`
goes on with them. A counter only ever rises: one that is lower than what the store knows changes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from treering.core.scopes import namespace_prefix
from treering.errors import InvalidInput
from treering.importers.folders import import_folder, read_json
from treering.importers.report import FileReport, ImportReport, Progress
from treering.views.chat_ids import ChatId, parse_thread_id

if TYPE_CHECKING:
    from treering.importers.table import Root
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

"""Import the ``outputs`` folder of Agentry Lab: the latest state of each thread, from ``checkpoints.db``.

A JSON row becomes a checkpoint like those of `Thread.snapshot_state`, so `restore_state` can restore it. A
pickled row is rejected, because reading a pickle can run arbitrary code; to import one from a trusted file,
pass an ``unpickler``. **Invariant:** all rows are read before the first one is written; one that cannot be
read is skipped and reported.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.batch import NUMBER_BITS
from treering.core.clock import SECOND_US
from treering.core.ids import check_id
from treering.errors import InvalidInput, NotFound
from treering.importers.history_writer import HistoryWriter, ImportedCheckpoint, ImportedHead, ImportedList
from treering.importers.lines import BadLines, refuse_bad
from treering.importers.registry import (
    FileReport,
    ImportReport,
    Progress,
    import_folder,
    report_of,
)
from treering.importers.sessions import derived_checkpoint_id
from treering.threads.checkpoint_file import payload
from treering.threads.directory import thread_info
from treering.threads.state_object import CapturedState, capture

if TYPE_CHECKING:
    from treering.store import Store
    from treering.threads.checkpoint import Checkpoint

Unpickler = Callable[[bytes], Any]

_MAX_SHOWN: Final = 5
_NOTE: Final = "imported from Agentry Lab"


def import_agentry(
    source: str | Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    strict: bool = False,
    unpickler: Unpickler | None = None,
    skip_pickled: bool = False,
) -> ImportReport:
    """Import an ``outputs`` folder, or only its ``checkpoints.db``.

    ``unpickler`` receives the bytes of each pickled row and returns the state, a dict or an object.
    """
    path = Path(source)
    if path.is_dir():
        rows: list[_Row] = []
        with suppress(InvalidInput, NotFound):  # a file that cannot be read is reported below
            rows = _read_rows(path / "checkpoints.db", BadLines())
        if not skip_pickled and unpickler is None:
            _refuse_pickled(path, rows)
        return import_folder(
            "agentry",
            {"data": path},
            store,
            on_progress=on_progress,
            dry_run=dry_run,
            strict=strict,
            options={"unpickler": unpickler, "skip_pickled": skip_pickled},
        )
    load = partial(load_checkpoints, path, store, unpickler=unpickler, skip_pickled=skip_pickled)
    if strict:
        refuse_bad(report_of("agentry", str(path), load(dry_run=True)))
    files = load(on_progress=on_progress, dry_run=dry_run)
    return report_of("agentry", str(path), files, dry_run=dry_run)


def load_checkpoints(
    path: Path,
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    unpickler: Unpickler | None = None,
    skip_pickled: bool = False,
) -> list[FileReport]:
    """Import the rows of one ``checkpoints.db``."""
    bad = BadLines()
    rows = _read_rows(path, bad)
    if unpickler is None and not skip_pickled:
        _refuse_pickled(path, rows)
    pickled = 0 if unpickler is not None else sum(not row.is_json for row in rows)
    states: list[tuple[_Row, CapturedState]] = []
    for row in rows:
        if row.is_json or unpickler is not None:
            with bad.skipping(f"row of thread {row.thread!r}"):
                states.append((row, _read_state(row, unpickler)))
    new, known, older = 0, 0, 0
    for done, (row, state) in enumerate(states, 1):
        outcome = _save(row, state, store, dry_run=dry_run)
        new += outcome == "new"
        known += outcome == "known"
        older += outcome == "older"
        if on_progress is not None:
            on_progress(done, len(states))
    notes = [f"{bad.count} cannot be read"] if bad.count else []
    notes += [f"{pickled} pickled rows were skipped"] if pickled else []
    notes += [f"{older} threads have newer checkpoints in the store"] if older else []
    return [
        FileReport(
            path=str(path),
            holds="checkpoints",
            found=new + known + older + bad.count + pickled,
            new=new,
            known=known,
            left_out=older + bad.count + pickled,
            note="; ".join(notes),
            bad=bad.named,
        )
    ]


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    thread: str
    payload: bytes
    updated_at_us: int

    @property
    def is_json(self) -> bool:
        return self.payload.lstrip()[:1] == b"{"

    @property
    def checkpoint_id(self) -> str:
        return derived_checkpoint_id(self.updated_at_us, "agentry", self.thread, self.payload)


def _read_rows(path: Path, bad: BadLines) -> list[_Row]:
    if not path.is_file():
        raise NotFound(
            f"file {str(path)!r} not found; pass the outputs folder of Agentry Lab, or its checkpoints.db"
        )
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute(
                "SELECT thread_id, payload, updated_at FROM checkpoints ORDER BY updated_at"
            )
            rows: list[_Row] = []
            for thread, payload, updated_at in found:
                with bad.skipping(f"row of thread {thread!r}"):
                    rows.append(_parse_row(thread, payload, updated_at))
            return rows
    except sqlite3.Error as error:
        raise InvalidInput(
            f"{path} is not a checkpoints.db of Agentry Lab ({error}); "
            "expected a table checkpoints with the columns thread_id, payload and updated_at"
        ) from None


def _refuse_pickled(path: Path, rows: Sequence[_Row]) -> None:
    pickled = [row.thread for row in rows if not row.is_json]
    if pickled:
        some = ", ".join(map(repr, pickled[:_MAX_SHOWN])) + (", ..." if len(pickled) > _MAX_SHOWN else "")
        raise InvalidInput(
            f"{path}: {len(pickled)} of {len(rows)} rows are pickled ({some}), and reading a pickle can run "
            "any code; nothing was imported. If you trust the file, pass unpickler= (--unpickler "
            "MODULE:FUNCTION), a function from bytes to the state; to import only the other rows, pass "
            "skip_pickled= (--skip-pickled)"
        )


def _parse_row(thread: Any, payload: Any, updated_at: Any) -> _Row:
    data = payload.encode() if isinstance(payload, str) else payload
    if (
        not isinstance(data, bytes)
        or not data
        or not isinstance(updated_at, (int, float))
        or not 0 <= updated_at * SECOND_US < 1 << NUMBER_BITS
    ):
        raise InvalidInput(
            f"it has no payload, or updated_at ({updated_at!r}) is not a time in seconds since 1970"
        )
    return _Row(
        thread=check_id(thread, "thread id"),
        payload=data,
        updated_at_us=round(updated_at * SECOND_US),
    )


def _read_state(row: _Row, unpickler: Unpickler | None) -> CapturedState:
    state: Any
    if row.is_json:
        try:
            state = msgspec.json.decode(row.payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(f"not valid JSON ({error})") from None
    else:
        try:
            state = unpickler(row.payload) if unpickler is not None else {}
        except Exception as error:
            raise InvalidInput(f"the unpickler failed: {error!r}") from error
    return capture(state)


def _save(row: _Row, state: CapturedState, store: Store, *, dry_run: bool) -> str:
    """Append a row to its thread; return ``new``, ``known``, or ``older`` than the head of the thread."""
    histories = HistoryWriter(store)
    if row.checkpoint_id in histories.owners([row.checkpoint_id]):
        info = thread_info(store.engine, store.space, row.thread, "")
        if info is not None:
            return "known"
    head = store.thread(row.thread).head
    if head is not None and payload(head) == {**state.state, **state.lists}:
        return "known"  # it was exported from here
    if head is not None and head.id > row.checkpoint_id:
        return "older"
    if dry_run:
        return "new"
    if row.checkpoint_id not in histories.owners([row.checkpoint_id]):
        histories.add(
            ImportedCheckpoint(
                id=row.checkpoint_id,
                thread=row.thread,
                namespace="",
                parent=None if head is None else head.id,
                step=0 if head is None else head.step + 1,
                created_at_us=row.updated_at_us,
                lists={name: _new_items(head, name, items) for name, items in state.lists.items()},
                state=state.state,
                metadata=state.metadata(None),
                note=_NOTE,
            )
        )
    histories.set_head(
        ImportedHead(
            thread=row.thread,
            namespace="",
            checkpoint=row.checkpoint_id,
            first_us=row.updated_at_us,
            checkpoints={row.checkpoint_id} | (set() if head is None else {head.id}),
            rewinds=histories.rewinds(row.thread, ""),
        )
    )
    return "new"


def _new_items(head: Checkpoint | None, name: str, items: Sequence[Any]) -> ImportedList:
    before = [] if head is None else head.items(name)
    keep = 0
    while keep < min(len(before), len(items)) and before[keep] == items[keep]:
        keep += 1
    return ImportedList(keep=keep, add=items[keep:])

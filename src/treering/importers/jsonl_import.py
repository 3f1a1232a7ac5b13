"""Import histories that were exported as JSON Lines (see `jsonl_format`).

The file is read twice. The first pass (`Inspection`) checks every line against the file and the store, writes
nothing, and reports all bad lines together. The second pass stores them. Values are decoded in the first pass
as they will be stored, so a line that passes can be written.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from treering.core.batch import Event, Usage
from treering.core.clock import day_of, from_datetime
from treering.core.content import Address, SlotAddress, list_address, object_address, parse_address
from treering.core.encoding import encode_json
from treering.core.ids import check_id, thread_scope
from treering.errors import Conflict, Corrupt, InvalidInput, NotFound, TreeringError, Unreachable
from treering.graphs.step import subgraph_refs
from treering.importers.history_writer import (
    COLUMNS,
    HistoryWriter,
    ImportedCheckpoint,
    ImportedHead,
    ImportedList,
)
from treering.importers.jsonl_format import (
    NOTHING,
    VERSION,
    CheckpointLine,
    End,
    EventLine,
    Line,
    RefLine,
    RewindLine,
    Start,
    ThreadLine,
    content_of,
    read_line,
    value_of,
)
from treering.importers.registry import FileReport, ImportReport, Progress
from treering.store import Store
from treering.threads.checkpoint import KIND, created_at_us
from treering.threads.history import REWIND

_MAX_INDEX: Final = 100_000


def checkpoint_of(line: CheckpointLine) -> ImportedCheckpoint:
    """Return the checkpoint of a line."""
    state = line.state
    metadata: object = value_of(line.metadata)
    return ImportedCheckpoint(
        id=line.id,
        thread=line.thread,
        namespace=line.namespace,
        parent=line.parent,
        step=line.step,
        created_at_us=time_us(line.created_at),
        lists={
            name: ImportedList(keep=change.keep, add=[value_of(each) for each in change.add])
            for name, change in line.lists.items()
        },
        state={name: value_of(each) for name, each in state.set.items()},
        whole=state.whole,
        dropped=state.drop,
        changed={
            name: ({key: value_of(each) for key, each in change.set.items()}, change.drop)
            for name, change in state.change.items()
        },
        pending_interrupt=value_of(line.pending_interrupt),
        metadata=metadata if isinstance(metadata, dict) else {},  # pyright: ignore[reportUnknownArgumentType]
        note=line.note,
        tags=line.tags,
        snapshot=line.snapshot,
    )


def rewind_of(line: RewindLine) -> Event:
    """Return the event of a rewind."""
    return Event(
        id=line.id,
        kind=REWIND,
        ts_us=time_us(line.at),
        scope=thread_scope(line.thread, line.namespace),
        data=encode_json(value_of(line.data)),
    )


def event_of(line: EventLine) -> Event:
    """Return the event of any other line. Raise `InvalidInput` if it refers to content that is not in the
    line.
    """
    if line.type in (KIND, REWIND):
        raise InvalidInput(f"an event cannot be a {line.type}")
    for address, each in line.slots.items():
        content_of(each)
        place = parse_address(address)
        if not isinstance(place, SlotAddress) or place.index > _MAX_INDEX:
            raise InvalidInput(f"content cannot have the address {address!r}")
    brought = set(line.slots)
    brought |= {object_address(content_of(each).name) for each in line.objects}
    brought |= {list_address(check_id(each, "list id")) for each in line.lists}
    if missing := {*line.links, *([line.body] if line.body is not None else [])} - brought:
        raise InvalidInput(f"the event lacks its content {min(missing)!r}")
    columns: dict[str, Any] = dict(line.columns)
    usage = columns.pop("usage", None)
    if unknown := columns.keys() - set(COLUMNS):
        raise InvalidInput(f"an event has no column {min(unknown)!r}")
    event = Event(
        id=check_id(line.id, "event id"),
        kind=check_id(line.type, "event kind"),
        ts_us=time_us(line.at),
        scope=thread_scope(check_id(line.thread, "thread id"), line.namespace),
        usage=None if usage is None else msgspec.convert(usage, Usage),
        data=None if line.data == NOTHING else bytes(line.data),
        body=None if line.body is None else Address(line.body),
        links=tuple(map(Address, line.links)),
        **columns,
    )
    return msgspec.convert(msgspec.to_builtins(event, builtin_types=(bytes,)), Event)


def check_values(line: CheckpointLine) -> None:
    """Raise `InvalidInput` or `Corrupt` if a value of a checkpoint cannot be stored."""
    for change in line.lists.values():
        for item in change.add:
            value_of(item)
    for value in line.state.set.values():
        value_of(value)
    for changed in line.state.change.values():
        for value in changed.set.values():
            value_of(value)
    value_of(line.pending_interrupt)
    if not isinstance(value_of(line.metadata), dict):
        raise InvalidInput("metadata is not an object")


def time_us(text: str) -> int:
    """Return an ISO time as microseconds."""
    return from_datetime(datetime.fromisoformat(text))


_SHOWN: Final = 20


def numbered(lines: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, from the start of the file, with their numbers."""
    lines.seek(0)
    for number, text in enumerate(lines, 1):
        if stripped := text.strip():
            yield number, stripped


class Inspection:
    """The first pass: what the file holds, checked to be storable."""

    def __init__(self, lines: IO[bytes], name: str, histories: HistoryWriter) -> None:
        self._history = histories
        self._bad: list[str] = []
        self._bad_count = 0
        self._lengths: dict[str, dict[str, int]] = {}
        self._owners: dict[str, tuple[str, str]] = {}
        self._parents: list[tuple[int, str]] = []
        self._rewinds: dict[str, tuple[str, str]] = {}
        self._events: dict[str, tuple[str, str]] = {}
        self._threads: dict[tuple[str, str], tuple[int, ThreadLine]] = {}
        self._end: End | None = None
        self._is_started = False
        for number, text in numbered(lines):
            try:
                self._line(number, read_line(text))
            except (msgspec.MsgspecError, TreeringError, ValueError) as error:
                self._complain(number, str(error))
                if not self._is_started:
                    break
        self._check_whole(name)
        self._refuse_bad(name)
        self.stored = self._stored()
        self.new = self._owners.keys() - self.stored
        self.new_rewinds = self._rewinds.keys() - {
            each for key in set(self._rewinds.values()) for each in histories.rewinds(*key)
        }
        self.new_events = self._events.keys() - {
            each for key in set(self._events.values()) for each in histories.events(*key)
        }
        self.heads = [self._head(line) for _, line in self._threads.values()]
        self.moving = sum(histories.head_moves(head) for head in self.heads)

    @property
    def count(self) -> int:
        """How many lines the second pass goes through."""
        return len(self._owners) + len(self._rewinds) + len(self._events)

    def report(self, name: str) -> tuple[FileReport, ...]:
        """Return what was found, and how much of it is new."""
        found, known = len(self._owners), len(self.stored)
        threads = len(self._threads)
        reports = [
            FileReport(
                path=name, holds="threads", found=threads, new=self.moving, known=threads - self.moving
            ),
            FileReport(path=name, holds="checkpoints", found=found, new=found - known, known=known),
        ]
        for holds, all_of, new in (
            ("rewinds", self._rewinds, self.new_rewinds),
            ("events", self._events, self.new_events),
        ):
            if all_of:
                known = len(all_of) - len(new)
                reports.append(
                    FileReport(path=name, holds=holds, found=len(all_of), new=len(new), known=known)
                )
        return tuple(reports)

    def _line(self, number: int, line: Line) -> None:
        if isinstance(line, Start):
            if line.version != VERSION:
                raise InvalidInput(f"format {line.version} is newer than this treering; upgrade it")
            self._is_started = True
            return
        if not self._is_started:
            raise InvalidInput("not a history exported by `treering export`")
        if self._end is not None:
            raise InvalidInput("there are lines after the end of the history")
        match line:
            case ThreadLine():
                check_id(line.thread, "thread id")
                time_us(line.created_at)
                self._threads[line.thread, line.namespace] = number, line
            case CheckpointLine():
                self._checkpoint(number, line)
            case RewindLine():
                check_id(line.id, "event id")
                time_us(line.at)
                value_of(line.data)
                self._rewinds[line.id] = line.thread, line.namespace
            case EventLine():
                event_of(line)
                self._lists(line)
                self._events[line.id] = line.thread, line.namespace
            case RefLine():
                if not line.name.startswith(subgraph_refs(line.thread, line.namespace)):
                    raise InvalidInput(
                        f"{line.name!r} is not the head of a subgraph of thread {line.thread!r}"
                    )
                if self._owners.get(line.checkpoint) != (line.thread, line.namespace):
                    raise InvalidInput(f"the head {line.checkpoint!r} is not a checkpoint of an earlier line")
            case End():
                self._end = line

    def _checkpoint(self, number: int, line: CheckpointLine) -> None:
        check_id(line.thread, "thread id")
        if line.id in self._owners:
            raise InvalidInput(f"checkpoint {line.id!r} is in the file twice")
        if day_of(created_at_us(line.id)) != day_of(time_us(line.created_at)):
            raise InvalidInput(f"checkpoint {line.id!r} has an id of another day")
        known = self._lengths.get(line.parent or "", {})
        if line.parent is not None:
            if line.parent >= line.id:
                raise InvalidInput(f"checkpoint {line.id!r} is older than its parent")
            if line.parent not in self._owners:
                self._parents.append((number, line.parent))
        for name, change in line.lists.items():
            if change.keep < 0 or (line.parent in self._lengths and change.keep > known.get(name, 0)):
                raise InvalidInput(
                    f"list {name!r} keeps {change.keep} items, its parent has {known.get(name, 0)}"
                )
        check_values(line)
        if line.snapshot is not None:
            parse_address(line.snapshot)
        self._owners[line.id] = line.thread, line.namespace
        self._lengths[line.id] = {name: each.keep + len(each.add) for name, each in line.lists.items()}

    def _lists(self, line: EventLine) -> None:
        for each in line.lists.values():
            length = self._lengths.get(each.checkpoint, {}).get(each.name, 0)
            if not 0 <= each.length <= length:
                raise InvalidInput(
                    f"the event needs {each.length} items of list {each.name!r} of checkpoint "
                    f"{each.checkpoint!r}, which has {length} so far"
                )

    def _check_whole(self, name: str) -> None:
        for number, line in self._threads.values():
            if line.head not in self._owners:
                self._complain(number, f"the head {line.head!r} of thread {line.thread!r} is not in the file")
        if self._bad_count:
            return
        if not self._is_started:
            raise InvalidInput(f"{name} is empty; nothing was imported")
        if self._end is None:
            raise InvalidInput(
                f"{name} ends early: its last line is missing; nothing was imported, export again"
            )
        if (self._end.threads, self._end.checkpoints) != (len(self._threads), len(self._owners)):
            raise InvalidInput(
                f"{name} should hold {self._end.checkpoints} checkpoints of {self._end.threads} threads and "
                f"has {len(self._owners)} of {len(self._threads)}; nothing was imported, export again"
            )
        if self._parents:
            there = self._history.owners(parent for _, parent in self._parents)
            for number, parent in self._parents:
                if parent not in there:
                    self._complain(
                        number, f"the parent {parent!r} is neither in an earlier line nor in the store"
                    )

    def _complain(self, number: int, why: str) -> None:
        self._bad_count += 1
        if len(self._bad) < _SHOWN:
            self._bad.append(f"  line {number}: {why}")

    def _refuse_bad(self, name: str) -> None:
        if self._bad_count:
            more = [f"  ... and {self._bad_count - _SHOWN} more"] if self._bad_count > _SHOWN else []
            raise InvalidInput(
                "\n".join([f"{name}: {self._bad_count} bad line(s), nothing was imported", *self._bad, *more])
            )

    def _stored(self) -> set[str]:
        there = self._history.owners(self._owners)
        for checkpoint_id, owner in there.items():
            if owner != self._owners[checkpoint_id]:
                raise Conflict(
                    f"checkpoint {checkpoint_id!r} belongs to thread {owner[0]!r} here and to "
                    f"{self._owners[checkpoint_id][0]!r} in the file; nothing was imported"
                )
        return set(there)

    def _head(self, line: ThreadLine) -> ImportedHead:
        key = line.thread, line.namespace
        return ImportedHead(
            thread=line.thread,
            namespace=line.namespace,
            checkpoint=line.head,
            first_us=time_us(line.created_at),
            checkpoints=self._owners.keys(),
            rewinds={each for each, owner in self._rewinds.items() if owner == key},
        )


def import_jsonl(
    source: str | Path | IO[bytes],
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
) -> ImportReport:
    """Import the histories of a file, given by path or as a binary stream. What is stored already stays as it
    is.

    Raises `InvalidInput` with the numbers of bad lines before anything is written.
    """
    with _opened(source) as (lines, name):
        histories = HistoryWriter(store)
        checked = Inspection(lines, name, histories)
        if not dry_run and (checked.new or checked.new_rewinds or checked.new_events or checked.moving):
            _Import(lines, checked, histories, on_progress).run()
        return ImportReport(importer="jsonl", source=name, dry_run=dry_run, files=checked.report(name))


@contextmanager
def _opened(source: str | Path | IO[bytes]) -> Generator[tuple[IO[bytes], str]]:
    """Open the source for reading twice; yield it with its name."""
    if not isinstance(source, (str, Path)):
        if source.seekable():
            source.seek(0)
            yield source, _name_of(source)
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(source, copy)
            yield copy, _name_of(source)
        return
    path = Path(source)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise NotFound(f"file {str(path)!r} not found; give the path of an exported history, or -") from None
    except OSError as error:
        raise Unreachable(f"{path} cannot be read: {error.strerror or error}") from error
    with file:
        yield file, str(path)


def _name_of(source: IO[bytes]) -> str:
    name: Any = getattr(source, "name", None)
    return name.strip("<>") if isinstance(name, str) else "stdin"


class _Import:
    """The second pass: stores what is new."""

    def __init__(
        self, lines: IO[bytes], checked: Inspection, histories: HistoryWriter, on_progress: Progress | None
    ) -> None:
        self._lines = lines
        self._checked = checked
        self._history = histories
        self._on_progress = on_progress

    def run(self) -> None:
        done = 0
        for _, text in numbered(self._lines):
            line = read_line(text)
            if isinstance(line, CheckpointLine):
                if line.id in self._checked.new:
                    self._history.add(checkpoint_of(line), size=len(text))
            elif isinstance(line, RewindLine):
                if line.id in self._checked.new_rewinds:
                    self._history.add_event(rewind_of(line))
            elif isinstance(line, EventLine):
                if line.id in self._checked.new_events:
                    self._history.add_event(
                        event_of(line),
                        slots={address: content_of(each) for address, each in line.slots.items()},
                        objects=[content_of(each) for each in line.objects],
                        lists={each: (there.checkpoint, there.name) for each, there in line.lists.items()},
                        by_index=line.by_index,
                    )
            elif isinstance(line, RefLine):
                self._history.set_further_head(line.name, line.thread, line.namespace, line.checkpoint)
                continue
            else:
                continue
            done += 1
            if self._on_progress is not None:
                self._on_progress(done, self._checked.count)
        self._history.finish()
        missing = self._checked.new - self._history.owners(self._checked.new).keys()
        if missing:
            raise Corrupt(
                f"{len(missing)} checkpoints are missing after the import, {min(missing)!r} first; try again"
            )
        for head in self._checked.heads:
            self._history.set_head(head)

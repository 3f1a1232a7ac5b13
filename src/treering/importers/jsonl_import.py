"""Import histories that were exported as JSON Lines (see `jsonl_format`).

The file is read twice. The first pass (`Inspection`) checks every line against the file and the store, and
writes nothing. The second pass stores the lines that passed. Values are decoded in the first pass as they
will be stored, so a line that passes can be written. A file that was cut off is refused: export it again.
"""

from __future__ import annotations

import os
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
from treering.core.content import (
    Address,
    ListAddress,
    SlotAddress,
    list_address,
    object_address,
    parse_address,
)
from treering.core.encoding import encode_json
from treering.core.ids import Scope, check_id, thread_scope
from treering.errors import Conflict, Corrupt, InvalidInput, NotFound, Unreachable
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
    ItemsLine,
    Line,
    RefLine,
    RewindLine,
    RunLine,
    Start,
    ThreadLine,
    content_of,
    read_line,
    value_of,
)
from treering.importers.lines import BadLines, refuse_bad
from treering.importers.registry import FileReport, ImportReport, Progress, report_of
from treering.runs.exchanges import EXCHANGE
from treering.runs.run import RunInfo, validate_run
from treering.store import Store
from treering.threads.checkpoint import KIND, REVISION, SavedIn, created_at_us
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
        saved_in=SavedIn(run=line.run, span=line.span, agent=line.agent),
        revision=line.revision,
    )


def run_of(line: RunLine) -> RunInfo:
    """Return the run of a line. Raise `InvalidInput` if it is not one of its thread."""
    try:
        info = msgspec.convert(value_of(line.state), RunInfo)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the run cannot be read: {error}") from None
    if (info.id, info.thread, info.namespace) != (check_id(line.run, "run id"), line.thread, line.namespace):
        raise InvalidInput(f"the state of run {line.run!r} is that of another run")
    return validate_run(info)


def scope_of(line: EventLine) -> str:
    """Return what an event is forgotten with."""
    if line.own_run is not None:
        return str(Scope(line.namespace, "run", check_id(line.own_run, "run id")))
    return thread_scope(check_id(line.thread, "thread id"), line.namespace)


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
    if line.type in (KIND, REWIND, REVISION):
        raise InvalidInput(f"an event cannot be a {line.type}")
    for address, each in line.slots.items():
        content_of(each)
        place = parse_address(address)
        if not isinstance(place, SlotAddress) or place.index > _MAX_INDEX:
            raise InvalidInput(f"content cannot have the address {address!r}")
    brought = set(line.slots)
    brought |= {object_address(content_of(each).name) for each in line.objects}
    brought |= {list_address(check_id(each, "list id")) for each in line.lists}
    if line.type.startswith(EXCHANGE):
        brought |= {each for each in line.links if isinstance(parse_address(each), ListAddress)}
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
        scope=scope_of(line),
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


def numbered(lines: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, from the start of the file, with their numbers."""
    lines.seek(0)
    for number, text in enumerate(lines, 1):
        if stripped := text.strip():
            yield number, stripped


def _ends_a_line(lines: IO[bytes]) -> bool:
    """Return whether the last line is complete, however bad it is."""
    lines.seek(-1, os.SEEK_END)
    return lines.read(1) == b"\n"


class Inspection:
    """The first pass: what the file holds, checked to be storable.

    A bad line costs whatever depends on it: the checkpoints that follow a bad one, the events that need them.
    A thread whose head is lost that way ends with the newest checkpoint that could be read.
    """

    def __init__(self, lines: IO[bytes], name: str, histories: HistoryWriter) -> None:
        self.bad = BadLines()
        self.bad_numbers: set[int] = set()
        self._history = histories
        self._lengths: dict[str, dict[str, int]] = {}
        self._owners: dict[str, tuple[str, str]] = {}
        self._places: dict[str, tuple[int, str | None]] = {}
        """Line number and parent of each checkpoint, in the order of the file."""
        self._values: dict[str, frozenset[str]] = {}
        """The names of the state values of each checkpoint that are dicts, whose keys a line may change."""
        self._unchecked: dict[str, frozenset[str]] = {}
        """The state values whose keys a checkpoint changes, if its parent is in no earlier line."""
        self._rewinds: dict[str, tuple[str, str]] = {}
        self._events: dict[str, tuple[tuple[str, str], int]] = {}
        """Thread and time of each event."""
        self._revisions: dict[str, tuple[int, CheckpointLine]] = {}
        self._runs: dict[str, RunInfo] = {}
        self._lists: set[str] = set()
        """The lists of recorded requests."""
        self._needs: list[tuple[int, EventLine | RefLine]] = []
        """Lines that refer to checkpoints of earlier lines, with their numbers."""
        self._threads: dict[tuple[str, str], tuple[int, ThreadLine]] = {}
        self._end: End | None = None
        self._is_started = self._is_cut_off = False
        self._read(lines)
        self._check_whole(name)
        self._drop_orphans()
        self._find_heads()
        self._drop_dependents()
        self.stored = self._stored()
        self.new = self._owners.keys() - self.stored
        self.new_rewinds = self._rewinds.keys() - {
            each for key in set(self._rewinds.values()) for each in histories.rewinds(*key)
        }
        self.new_events = self._events.keys() - histories.stored_events(
            {each: ts_us for each, (_, ts_us) in self._events.items()}
        )
        self.new_revisions = self._revisions.keys() - histories.stored_events(
            {each: time_us(line.created_at) for each, (_, line) in self._revisions.items()}
        )
        self.new_runs = {each for each, info in self._runs.items() if histories.run_changes(info)}
        self.heads = [self._head(line) for _, line in self._threads.values()]
        self.moving = sum(histories.head_moves(head) for head in self.heads)

    @property
    def count(self) -> int:
        """How many lines the second pass goes through."""
        return len(self._owners) + len(self._rewinds) + len(self._events) + len(self._runs)

    def is_new(self, line: Line) -> bool:
        """Return whether a line that passed is to be stored; items and heads are compared when they are."""
        match line:
            case CheckpointLine():
                return line.id in self.new if line.revision is None else line.revision in self.new_revisions
            case RewindLine():
                return line.id in self.new_rewinds
            case EventLine():
                return line.id in self.new_events
            case RunLine():
                return line.run in self.new_runs
            case _:
                return isinstance(line, (ItemsLine, RefLine))

    @property
    def has_new(self) -> bool:
        """Whether there is anything to write."""
        new = (self.new, self.new_rewinds, self.new_events, self.new_revisions, self.new_runs)
        return any(new) or bool(self.moving)

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
            ("revisions", self._revisions, self.new_revisions),
            ("runs", self._runs, self.new_runs),
        ):
            if all_of:
                known = len(all_of) - len(new)
                reports.append(
                    FileReport(path=name, holds=holds, found=len(all_of), new=len(new), known=known)
                )
        if self.bad.count:
            count = self.bad.count
            reports.append(
                FileReport(path=name, holds="bad lines", found=count, left_out=count, bad=self.bad.named)
            )
        return tuple(reports)

    def _read(self, lines: IO[bytes]) -> None:
        last = 0
        for number, text in numbered(lines):
            last, before = number, self.bad.count
            with self.bad.skipping("", number):
                self._line(number, read_line(text))
            if self.bad.count > before:
                self.bad_numbers.add(number)
                if not self._is_started:
                    return
        self._is_cut_off = self._end is None and not (last in self.bad_numbers and _ends_a_line(lines))

    def _line(self, number: int, line: Line) -> None:
        if isinstance(line, Start):
            if line.version != VERSION:
                raise InvalidInput(f"format {line.version} is newer than this treering; upgrade it")
            self._is_started = True
            return
        if not self._is_started:
            raise InvalidInput("not a history exported by `treering export jsonl`")
        if self._end is not None:
            raise InvalidInput("there are lines after the end of the history")
        if isinstance(line, End):
            self._end = line
        elif isinstance(line, ThreadLine):
            check_id(line.thread, "thread id")
            time_us(line.created_at)
            created_at_us(line.head)
            self._threads[line.thread, line.namespace] = number, line
        elif isinstance(line, CheckpointLine):
            self._checkpoint(number, line)
        else:
            self._part(number, line)

    def _part(self, number: int, line: RewindLine | EventLine | ItemsLine | RunLine | RefLine) -> None:
        """Check a line of what a thread has besides its checkpoints."""
        match line:
            case RewindLine():
                check_id(line.id, "event id")
                time_us(line.at)
                value_of(line.data)
                self._rewinds[line.id] = line.thread, line.namespace
            case EventLine():
                event_of(line)
                self._check_lists(line)
                if line.lists:
                    self._needs.append((number, line))
                self._events[line.id] = (line.thread, line.namespace), time_us(line.at)
            case ItemsLine():
                self._items(line)
            case RunLine():
                self._runs[line.run] = run_of(line)
            case RefLine():
                if not line.name.startswith(subgraph_refs(line.thread, line.namespace)):
                    raise InvalidInput(
                        f"{line.name!r} is not the head of a subgraph of thread {line.thread!r}"
                    )
                owner = line.thread, line.namespace
                if self._owners.get(line.checkpoint) != owner and (
                    self._history.owners([line.checkpoint]).get(line.checkpoint) != owner
                ):
                    raise InvalidInput(f"the head {line.checkpoint!r} is not a checkpoint of an earlier line")
                self._needs.append((number, line))

    def _checkpoint(self, number: int, line: CheckpointLine) -> None:
        check_id(line.thread, "thread id")
        if line.id in self._owners and line.revision is None:
            raise InvalidInput(f"checkpoint {line.id!r} is in the file twice")
        if day_of(created_at_us(line.id)) != day_of(time_us(line.created_at)):
            raise InvalidInput(f"checkpoint {line.id!r} has an id of another day")
        if line.parent is not None:
            created_at_us(line.parent)
        known = self._lengths.get(line.parent or "", {})
        if line.parent is not None and line.parent >= line.id:
            raise InvalidInput(f"checkpoint {line.id!r} is older than its parent")
        for name, change in line.lists.items():
            is_known = line.parent is None or line.parent in self._lengths
            if change.keep < 0 or (is_known and change.keep > known.get(name, 0)):
                raise InvalidInput(
                    f"list {name!r} keeps {change.keep} items, its parent has {known.get(name, 0)}"
                )
        check_values(line)
        starts_anew = line.parent is None or line.state.whole
        values = frozenset[str]() if starts_anew else self._values.get(line.parent or "", frozenset())
        is_known = starts_anew or line.parent in self._values
        if is_known and (lost := line.state.change.keys() - values):
            raise InvalidInput(f"it changes keys of the state value {min(lost)!r}, which its parent lacks")
        if line.state.change and not is_known:
            self._unchecked[line.id] = frozenset(line.state.change)
        if line.state.whole or line.state.set or line.state.drop:
            dicts = {name for name, value in line.state.set.items() if isinstance(value_of(value), dict)}
            values = values.difference(line.state.set, line.state.drop) | dicts
        self._values[line.id] = values
        if line.snapshot is not None:
            parse_address(line.snapshot)
        self._lengths[line.id] = {name: each.keep + len(each.add) for name, each in line.lists.items()}
        if line.revision is not None:
            self._revisions[check_id(line.revision, "revision id")] = number, line
            return
        self._places[line.id] = number, line.parent
        self._owners[line.id] = line.thread, line.namespace

    def _items(self, line: ItemsLine) -> None:
        check_id(line.list_id, "list id")
        check_id(line.thread, "thread id")
        for each in line.add:
            content_of(each)
        before = (line.list_id, line.parent)
        if line.at and not any(each and (each in self._lists or self._is_list(each)) for each in before):
            raise InvalidInput(f"the first {line.at} items of list {line.list_id!r} are in no earlier line")
        self._lists.add(line.list_id)

    def _is_list(self, list_id: str) -> bool:
        return self._history.list_length(list_id) > 0

    def _check_lists(self, line: EventLine) -> None:
        if line.type.startswith(EXCHANGE):
            for address in line.links:
                place = parse_address(address)
                if isinstance(place, ListAddress) and not (
                    place.list in self._lists or self._is_list(place.list)
                ):
                    raise InvalidInput(f"the event needs list {place.list!r}, which is in no earlier line")
        for each in line.lists.values():
            length = self._lengths.get(each.checkpoint, {}).get(each.name, 0)
            if not 0 <= each.length <= length:
                raise InvalidInput(
                    f"the event needs {each.length} items of list {each.name!r} of checkpoint "
                    f"{each.checkpoint!r}, which has {length} so far"
                )

    def _check_whole(self, name: str) -> None:
        if not self._is_started:
            why = f" ({self.bad.named[0]})" if self.bad.count else ""
            raise InvalidInput(f"{name} is not a history exported by `treering export jsonl`{why}")
        if self._is_cut_off:
            raise InvalidInput(
                f"{name} ends early: its last line is missing; nothing was imported, export again"
            )
        found = len(self._threads), len(self._owners)
        if (
            self._end is not None
            and not self.bad.count
            and (self._end.threads, self._end.checkpoints) != found
        ):
            raise InvalidInput(
                f"{name} should hold {self._end.checkpoints} checkpoints of {self._end.threads} threads and "
                f"has {len(self._owners)} of {len(self._threads)}; nothing was imported, export again"
            )

    def _drop_orphans(self) -> None:
        """Leave out checkpoints whose parent is nowhere."""
        elsewhere = {parent for _, parent in self._places.values() if parent}
        there = self._history.owners(elsewhere)
        revised = {line.id for _, line in self._revisions.values()} - self._owners.keys()
        known = self._history.owners(revised) if revised else {}
        for revision, (number, line) in list(self._revisions.items()):
            if line.id not in self._owners and known.get(line.id) != (line.thread, line.namespace):
                self._drop(number, f"checkpoint {line.id!r}, which it revises, is not in the store")
                del self._revisions[revision]
        for checkpoint, (number, parent) in self._places.items():
            is_earlier = parent in self._owners and self._places[parent][0] < number
            if parent is not None and not is_earlier and parent not in there:
                self._drop(number, f"the parent {parent!r} is neither in an earlier line nor in the store")
                del self._owners[checkpoint]
            elif parent is not None and (changed := self._unchecked.get(checkpoint)):
                lost = changed - self._history.dicts_in_state(parent, changed)
                if lost:
                    why = f"it changes keys of the state value {min(lost)!r}, which its parent lacks"
                    self._drop(number, why)
                    del self._owners[checkpoint]

    def _find_heads(self) -> None:
        newest = {key: checkpoint for checkpoint, key in self._owners.items()} if self.bad.count else {}
        lines = self._threads.values()
        heads = {line.head for _, line in lines if line.head not in self._owners}
        stored = self._history.owners(heads) if heads else {}
        for key, (number, line) in list(self._threads.items()):
            if key in (self._owners.get(line.head), stored.get(line.head)):
                continue
            why = (
                f"the head {line.head!r} of thread {line.thread!r} is not one of its checkpoints in the file"
            )
            head = newest.get(key)
            if head is None:
                self._drop(number, f"{why}; the thread is left out")
                del self._threads[key]
            else:
                self._drop(number, f"{why}; the thread ends with {head!r}")
                self._threads[key] = number, msgspec.structs.replace(line, head=head)

    def _drop_dependents(self) -> None:
        """Leave out threads without a head, and what needs a checkpoint that cannot be read."""
        if not self.bad.count:
            return
        past: set[str | None] = {line.head for _, line in self._threads.values()}
        for checkpoint, (_, parent) in reversed(self._places.items()):
            if checkpoint in past or self._owners.get(checkpoint) in self._threads:
                past.add(parent)
            else:
                self._owners.pop(checkpoint, None)
        for number, line in self._needs:
            is_event = isinstance(line, EventLine)
            needed = {each.checkpoint for each in line.lists.values()} if is_event else {line.checkpoint}
            if lost := needed - self._owners.keys() - self._history.owners(needed).keys():
                self._drop(number, f"it needs the checkpoint {min(lost)!r}, which cannot be read")
                if is_event:
                    del self._events[line.id]
        kept = {*self._owners.values(), *self._threads}
        self._events = {each: place for each, place in self._events.items() if place[0] in kept}
        self._rewinds = {each: key for each, key in self._rewinds.items() if key in kept}

    def _drop(self, number: int, why: str) -> None:
        self.bad_numbers.add(number)
        self.bad.add(f"line {number}", why)

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
            checkpoints={*self._owners, *([line.continues] if line.continues else [])},
            rewinds={*line.rewinds, *(each for each, owner in self._rewinds.items() if owner == key)},
        )


def import_jsonl(
    source: str | Path | IO[bytes],
    store: Store,
    *,
    on_progress: Progress | None = None,
    dry_run: bool = False,
    strict: bool = False,
) -> ImportReport:
    """Import the histories of a file, given by path or as a binary stream. What is stored already stays as it
    is.

    A line that cannot be read is skipped, with what depends on it, and reported; with ``strict``, it raises
    `InvalidInput` before anything is written.
    """
    with _opened(source) as (lines, name):
        histories = HistoryWriter(store)
        checked = Inspection(lines, name, histories)
        report = report_of("jsonl", name, checked.report(name), dry_run=dry_run)
        if strict:
            refuse_bad(report)
        if not dry_run and checked.has_new:
            _Import(lines, checked, histories, on_progress).run()
        return report


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
        for number, text in numbered(self._lines):
            if number in self._checked.bad_numbers:
                continue
            line = read_line(text)
            if self._checked.is_new(line):
                self._store(line, len(text))
            if isinstance(line, (CheckpointLine, RewindLine, EventLine, RunLine)):
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

    def _store(self, line: Line, size: int) -> None:
        match line:
            case CheckpointLine():
                self._history.add(checkpoint_of(line), size=size)
            case RewindLine():
                self._history.add_event(rewind_of(line))
            case EventLine():
                self._history.add_event(
                    event_of(line),
                    slots={address: content_of(each) for address, each in line.slots.items()},
                    objects=[content_of(each) for each in line.objects],
                    lists={each: (there.checkpoint, there.name) for each, there in line.lists.items()},
                    by_index=line.by_index,
                )
            case ItemsLine():
                self._history.add_items(
                    line.list_id,
                    [content_of(each) for each in line.add],
                    at=line.at,
                    parent=line.parent,
                    scope=thread_scope(line.thread, line.namespace),
                )
            case RunLine():
                self._history.add_run(run_of(line))
            case RefLine():
                self._history.set_further_head(line.name, line.thread, line.namespace, line.checkpoint)
            case _:
                pass

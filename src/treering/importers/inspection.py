"""The first reading of an exported history: what it holds, and that all of it can be stored.

Nothing is written. Bad lines are collected and reported together, with their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Final

import msgspec

from treering.core.address import parse_address
from treering.core.clock import day_of
from treering.core.ids import check_id
from treering.errors import Conflict, InvalidInput, TreeringError
from treering.importers.histories import HeadMade, Histories, further_heads
from treering.importers.lines import (
    VERSION,
    CheckpointLine,
    End,
    EventLine,
    Line,
    RefLine,
    RewindLine,
    Start,
    ThreadLine,
    read_line,
    value_of,
)
from treering.importers.meanings import check_values, event_of, time_us
from treering.importers.report import FileReport
from treering.views.checkpoints import created_at_us

_SHOWN: Final = 20


def numbered(lines: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, from the beginning, with their numbers."""
    lines.seek(0)
    for number, text in enumerate(lines, 1):
        if stripped := text.strip():
            yield number, stripped


class Inspection:
    """The first reading: what the file holds, and that all of it can be stored."""

    def __init__(self, lines: IO[bytes], name: str, histories: Histories) -> None:
        self._histories = histories
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
        """How many lines there will be to store."""
        return len(self._owners) + len(self._rewinds) + len(self._events)

    def report(self, name: str) -> tuple[FileReport, ...]:
        """What was found, and what of it is new."""
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
            raise InvalidInput("it does not begin as a history exported by `treering export`")
        if self._end is not None:
            raise InvalidInput("there is more behind the end of the history")
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
                value_of(line.told)
                self._rewinds[line.id] = line.thread, line.namespace
            case EventLine():
                event_of(line)
                self._lists(line)
                self._events[line.id] = line.thread, line.namespace
            case RefLine():
                if not line.name.startswith(further_heads(line.thread, line.namespace)):
                    raise InvalidInput(f"{line.name!r} is no head of thread {line.thread!r}")
                if self._owners.get(line.checkpoint) != (line.thread, line.namespace):
                    raise InvalidInput(f"the head {line.checkpoint!r} is no checkpoint above it")
            case End():
                self._end = line

    def _checkpoint(self, number: int, line: CheckpointLine) -> None:
        check_id(line.thread, "thread id")
        if line.id in self._owners:
            raise InvalidInput(f"checkpoint {line.id!r} is in the file twice")
        if day_of(created_at_us(line.id)) != day_of(time_us(line.created_at)):
            raise InvalidInput(f"checkpoint {line.id!r} was not made on the day that its id says")
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
                    f"{each.checkpoint!r}, of which there are {length} above it"
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
            there = self._histories.owners(parent for _, parent in self._parents)
            for number, parent in self._parents:
                if parent not in there:
                    self._complain(number, f"the parent {parent!r} is neither above it nor in the store")

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
        there = self._histories.owners(self._owners)
        for checkpoint_id, owner in there.items():
            if owner != self._owners[checkpoint_id]:
                raise Conflict(
                    f"checkpoint {checkpoint_id!r} belongs to thread {owner[0]!r} here and to "
                    f"{self._owners[checkpoint_id][0]!r} in the file; nothing was imported"
                )
        return set(there)

    def _head(self, line: ThreadLine) -> HeadMade:
        key = line.thread, line.namespace
        return HeadMade(
            thread=line.thread,
            namespace=line.namespace,
            checkpoint=line.head,
            first_us=time_us(line.created_at),
            moments=self._owners.keys(),
            rewinds={each for each, owner in self._rewinds.items() if owner == key},
        )

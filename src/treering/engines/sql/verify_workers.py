"""Verification in several processes: most units of `verify` run in workers, beside the walk along all links.

A worker is a program of its own that opens the same database, gets one unit at a time over a pipe, and sends
back the problems of each page and how much it has read. It needs no blob store: links and packs, which do,
stay in this process, which also compares what only the whole tells (links to slots with the number of slots).
Problems are kept in a spill file and reported at the end, in the order in which one process reports them.
**Invariant:** a check ends only if every unit was finished; a worker that dies is an error.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections import deque
from contextlib import closing
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.records import Checked, Problem
from treering.engines.sql.spill import SpillDatabase
from treering.engines.sql.verify import UNITS, Check, Reported, Unit
from treering.errors import TreeringError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from treering.engines.sql.engine import SqlEngine
    from treering.engines.sql.objects import Objects
    from treering.engines.sql.search import TextIndex
    from treering.engines.sql.session import Database

_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from treering.engines.sql.verify_workers import work; work()"
)
_ORDER: Final = [unit.name for unit in UNITS]
_TOGETHER: Final = {
    "lists": ("lists", "refs", "texts"),  # all three need what the commits say about them
    "events": ("events", "roll-ups"),  # the totals are those of the events that were counted
}
_SHARES: Final = 2
"""Parts of the commits, and of the objects, for each worker: so none waits long for the last."""
_PAGE: Final = 500
_POLL_SECONDS: Final = 1.0


class _Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has to know."""

    open: Callable[[], SqlEngine]
    space: int
    read_content: bool
    since: int


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has found in a page."""

    check: str
    problems: list[Problem]
    counts: list[tuple[int, int]]
    """Numbers of slots by the keys of bodies."""
    checked: Checked


def check_in_processes(
    database: Database,
    objects: Objects,
    texts: TextIndex,
    space: int,
    *,
    open: Callable[[], SqlEngine],
    processes: int,
    read_content: bool = True,
    since: int = 0,
) -> Iterator[Problem | Checked]:
    """Verify a space with so many workers; yield a `Checked` regularly, and problems at the end."""
    with database.reading() as session:
        ((seq,),) = session.rows("SELECT seq FROM space WHERE no = ?", (space,))
    setup = _Setup(open=open, space=space, read_content=read_content, since=since)
    with SpillDatabase() as spill:
        own = Check(database, objects, texts, space, spill=spill, read_content=read_content, since=since)
        found = _Found(spill)
        workers = _Workers(setup, _units(processes, since, seq), processes)
        try:
            # Objects that were written since are those that the walk finds.
            for name in ("links", "objects", "packs") if since else ("links", "packs"):
                for problems in own.pages(Unit(name)):
                    found.add(name, 0, problems)
                    yield from _taken(workers.received(0), own, found, workers)
            while workers.is_busy:
                yield from _taken(workers.received(_POLL_SECONDS), own, found, workers)
        finally:
            workers.stop()
        for problems in own.pages(Unit("slots")):
            found.add("slots", 0, problems)
        reported = Reported(spill)
        for problems in found.in_order():
            yield from reported.new(problems)
        yield _sum([own.checked(), *workers.checked.values()])


def _taken(pages: list[tuple[int, _Page]], own: Check, found: _Found, workers: _Workers) -> Iterator[Checked]:
    for number, page in pages:
        own.slots.add(page.counts)
        found.add(page.check, number, page.problems)
    if pages:
        yield _sum([own.checked(), *workers.checked.values()])


def _sum(parts: list[Checked]) -> Checked:
    fields = Checked.__struct_fields__
    return Checked(**{name: sum(getattr(each, name) for each in parts) for name in fields})


def _units(processes: int, since: int, seq: int) -> list[Unit]:
    """Cut the checks into parts; the longest come first."""
    count = processes * _SHARES
    ends = [since + (seq - since) * number // count for number in range(count + 1)]
    commits = [
        Unit("commits", after, upto) for after, upto in zip(ends[:-1], [*ends[1:-1], None], strict=True)
    ]
    names = [bytes([255 * number // count]) for number in range(1, count)]
    objects = [
        Unit("objects", after, upto) for after, upto in zip([None, *names], [*names, None], strict=True)
    ]
    return [
        Unit("lists"), Unit("events"), *commits, *([] if since else objects), Unit("numbers"), Unit("runs"),
    ]  # fmt: skip


class _Found:
    """The problems by unit, on disk until they are reported."""

    def __init__(self, spill: SpillDatabase) -> None:
        self._spill = spill
        spill.rows("CREATE TABLE found (place INTEGER, unit INTEGER, no INTEGER, problem BLOB)")
        self._no = 0

    def add(self, check: str, unit: int, problems: list[Problem]) -> None:
        """Keep problems."""
        place = _ORDER.index(check)
        rows = [(place, unit, self._no + at, msgspec.json.encode(each)) for at, each in enumerate(problems)]
        self._no += len(rows)
        self._spill.many("INSERT INTO found VALUES (?, ?, ?, ?)", rows)

    def in_order(self) -> Iterator[list[Problem]]:
        """Yield all problems, a page at a time, in the order of one process."""
        self._spill.rows("CREATE INDEX found_order ON found (place, unit, no)")
        after: tuple[Any, ...] = (-1, -1, -1)
        while page := self._spill.rows(
            "SELECT place, unit, no, problem FROM found WHERE (place, unit, no) > (?, ?, ?) "
            "ORDER BY place, unit, no LIMIT ?",
            (*after, _PAGE),
        ):
            after = page[-1][:3]
            yield [msgspec.json.decode(each, type=Problem) for *_, each in page]


class _Workers:
    """The processes, and what they have left to do."""

    def __init__(self, setup: _Setup, units: list[Unit], count: int) -> None:
        self._todo = deque(enumerate(units))
        self._busy: dict[Connection, tuple[subprocess.Popen[bytes], Connection, int, Unit]] = {}
        self._all: list[tuple[subprocess.Popen[bytes], Connection, Connection]] = []
        self.checked: dict[int, Checked] = {}
        """How much was read, by the number of the unit."""
        try:
            for _ in range(min(count, len(units))):
                self._start(setup)
        except BaseException:
            self.stop()
            raise

    def _start(self, setup: _Setup) -> None:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
        to_worker = Connection(os.dup(process.stdin.fileno()), readable=False)
        from_worker = Connection(os.dup(process.stdout.fileno()), writable=False)
        process.stdin.close()
        process.stdout.close()
        self._all.append((process, to_worker, from_worker))
        try:
            to_worker.send(setup)
        except BrokenPipeError as error:
            raise _dead(process, None) from error
        self._give(process, to_worker, from_worker)

    def _give(self, process: subprocess.Popen[bytes], to_worker: Connection, from_worker: Connection) -> None:
        """Hand a worker its next unit, if there is one."""
        self._busy.pop(from_worker, None)
        if not self._todo:
            return
        number, unit = self._todo.popleft()
        try:
            to_worker.send(unit)
        except BrokenPipeError as error:
            raise _dead(process, unit) from error
        self._busy[from_worker] = process, to_worker, number, unit

    @property
    def is_busy(self) -> bool:
        """Whether anything is left."""
        return bool(self._busy)

    def received(self, seconds: float) -> list[tuple[int, _Page]]:
        """Wait for workers; return the pages that have come, with the numbers of their units."""
        pages: list[tuple[int, _Page]] = []
        for connection in wait(list(self._busy), seconds):
            assert isinstance(connection, Connection)  # noqa: S101 - nothing else was passed
            process, to_worker, number, unit = self._busy[connection]
            try:
                message = connection.recv()
            except (EOFError, OSError) as error:
                raise _dead(process, unit) from error
            if isinstance(message, BaseException):
                raise message
            if message is None:
                self._give(process, to_worker, connection)
            else:
                self.checked[number] = message.checked
                pages.append((number, message))
        return pages

    def stop(self) -> None:
        """End all workers."""
        for process, to_worker, from_worker in self._all:
            process.kill()
            process.wait()
            to_worker.close()
            from_worker.close()


def _dead(process: subprocess.Popen[bytes], unit: Unit | None) -> Unreachable:
    what = "starting" if unit is None else f"checking {unit.name}"
    return Unreachable(
        f"a process of verify ended with exit code {process.wait()} while {what}, so the store was not "
        "checked; run it again, with processes=1 if there is too little memory"
    )


def work() -> None:
    """Be a worker: run units until there are no more."""
    requests = Connection(os.dup(0), writable=False)
    replies = Connection(os.dup(1), readable=False)
    os.dup2(2, 1)  # whatever prints must not reach the pipe
    try:
        setup: _Setup = requests.recv()
        with closing(cast("Any", setup.open())) as engine:
            while True:
                unit: Unit = requests.recv()
                for page in _pages(engine, setup, unit):
                    replies.send(page)
                replies.send(None)
    except (EOFError, BrokenPipeError):  # the check was given up
        return
    except TreeringError as error:
        replies.send(_portable(error))


def _pages(engine: SqlEngine, setup: _Setup, unit: Unit) -> Iterator[_Page]:
    with SpillDatabase() as spill:
        checking = engine.checking(
            setup.space, spill=spill, read_content=setup.read_content, since=setup.since
        )
        if unit.name == "lists":
            checking.read_notes()
        for name in _TOGETHER.get(unit.name, (unit.name,)):
            for problems in checking.pages(unit._replace(name=name)):
                yield _Page(
                    check=name, problems=problems, counts=checking.slots.take(), checked=checking.checked()
                )


def _portable(error: TreeringError) -> BaseException:
    """Return the error as it can be sent, or one of its class that can."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - just made
    except Exception:  # noqa: BLE001 - whatever its attributes cannot do
        return TreeringError(str(error))
    return error

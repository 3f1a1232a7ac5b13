"""Cells: projects of one store in different PostgreSQL databases.

The first database, the *home*, is what everybody opens. Its directory (refs in the space ``treering.cells``)
says which projects live elsewhere: ``project -> URL``. `CellEngine` sends each call to the database of its
space, so that nothing above it knows of cells; spaces of treering's own (keys, the directory) stay at home.

A project moves while it is used (`engines.postgres.move` copies its rows, `move_project` directs it):

1. The directory says *moving*. From `KNOWN_SECONDS` later on, no process acts on an older entry, and every
   call looks first whether the space has left its old database.
2. The rows are copied, then what has changed meanwhile, until little is left.
3. The row of the space is locked, the rest is copied, the new copy is made writable, and the old row is
   marked as left, which commits the move. Writers that waited for the lock get `Moved`, and `CellEngine`
   sends their batches to the new place. Their ids make that safe.
4. The directory names the new place for good, and the rows at the old one are deleted.

**Invariant:** at any time one database takes commits of a space, and no call that begins after a commit was
acknowledged reads a place that does not have it. A move that is interrupted before the lock is released has
changed nothing; afterwards it has happened. Running it again finishes it.
"""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from treering.core.batch import ANY, Draft
from treering.core.ids import RESERVED, Scope, project_of
from treering.core.query import each_ref
from treering.errors import Busy, InvalidInput, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from treering.core.batch import Batch, Receipt

DIRECTORY: Final = f"{RESERVED}cells"
_SCOPE: Final = str(Scope("", "cells", "all"))
FRESH_SECONDS: Final = 0.5
"""How old an entry of the directory may be that a process acts on."""
UNUSED_SECONDS: Final = 5.0
"""The same while the directory is empty: a store without cells asks this often whether it has any."""
_RETRY_SECONDS: Final = 0.01
_MOVING_SECONDS: Final = 30.0
"""How long a call waits for a move to be over."""


class Moved(Busy):
    """A space is no longer in this database. `CellEngine` goes on in the one that has it."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Where a project lives: the URL of a database, empty for the home. ``to`` is set while it moves."""

    url: str = ""
    to: str | None = None


class CellStore(Protocol):
    """What `CellEngine` needs of the engine of a database, beyond the contract."""

    def has_left(self, space: str) -> bool:
        """Whether a space has moved to another database."""
        ...


class CellEngine:
    """The engine of a store whose projects may live in several databases; otherwise, that of the home."""

    def __init__(self, home: Any, open_cell: Callable[[str], Any]) -> None:
        self.home = home
        self._open_cell = open_cell
        self._lock = threading.Lock()
        self._cells: dict[str, Any] = {"": home}
        self._known: dict[str, tuple[float, Cell]] = {}
        self._is_used = False
        self._check_use_at = 0.0
        self._late: ThreadPoolExecutor | None = None
        self._waiting: dict[str, int] = {}
        """How many submitted batches of a project wait for a move to be over."""

    def __getattr__(self, name: str) -> Any:
        """Return what the home has; a method that names a space goes to the database of that space."""
        found = getattr(self.home, name)
        if name not in _ROUTED:
            return found

        def routed(first: Any, *rest: Any, **options: Any) -> Any:
            space = first if isinstance(first, str) else first.space
            return self._call(space, lambda engine: getattr(engine, name)(first, *rest, **options))

        self.__dict__[name] = routed  # found at once from now on
        return routed

    def engine_of(self, space: str) -> Any:
        """Return the engine of the database that has a space."""
        if space.startswith(RESERVED):
            return self.home
        cell = self.cell(project_of(space))
        if cell.to is not None and self.engine_at(cell.url).has_left(project_of(space)):
            return self.engine_at(cell.to)
        return self.engine_at(cell.url)

    def cell(self, project: str) -> Cell:
        """Return where a project lives, as of at most `FRESH_SECONDS` ago."""
        now = time.monotonic()
        if not self._is_used:
            if now < self._check_use_at:
                return _HOME
            self._is_used = bool(self.home.scan_refs(DIRECTORY, "", limit=1))
            self._check_use_at = now + UNUSED_SECONDS
            if not self._is_used:
                return _HOME
        until, cell = self._known.get(project, (0.0, _HOME))
        if now < until:
            return cell
        ref = self.home.refs(DIRECTORY, [project]).get(project)
        cell = _HOME if ref is None else msgspec.json.decode(ref.value, type=Cell)
        # While a project moves, every call asks.
        self._known[project] = (0.0 if cell.to is not None else now + FRESH_SECONDS, cell)
        return cell

    def set_cell(self, project: str, cell: Cell) -> None:
        """Write where a project lives."""
        draft = Draft(DIRECTORY)
        draft.set_ref(project, msgspec.json.encode(cell), scope=_SCOPE, expect=ANY)
        self.home.commit(draft.batch())
        self._is_used = True
        self._known.pop(project, None)

    def cells(self) -> dict[str, Cell]:
        """Return the directory: projects that do not live at home, or move, or came back."""
        found = each_ref(self.home, DIRECTORY, "")
        return {ref.name: msgspec.json.decode(ref.value, type=Cell) for ref in found}

    def engine_at(self, url: str) -> Any:
        """Return the engine of a database, opened if necessary; the home's for an empty URL."""
        with self._lock:
            if url not in self._cells:
                self._cells[url] = self._open_cell(url)
            return self._cells[url]

    def _call(self, space: str, call: Callable[[Any], Any]) -> Any:
        deadline = time.monotonic() + _MOVING_SECONDS
        while True:
            try:
                return call(self.engine_of(space))
            except Moved:
                if time.monotonic() > deadline:
                    raise
                self._known.pop(project_of(space), None)
                self._check_use_at = 0.0
                time.sleep(_RETRY_SECONDS)

    def submit(self, batch: Batch) -> Future[Receipt]:
        """Commit a batch in the background.

        While its project moves, batches are committed one by one: those that find it gone would be overtaken
        by those that are submitted later.
        """
        project = project_of(batch.space)
        outer: Future[Receipt] = Future()
        if self.cell(project).to is not None or self._waiting.get(project, 0) > 0:
            self._commit_late(project, batch, outer)
            return outer

        def done(inner: Future[Receipt]) -> None:
            error = inner.exception()
            if isinstance(error, Moved):
                self._commit_late(project, batch, outer)
            elif error is not None:
                outer.set_exception(error)
            else:
                outer.set_result(inner.result())

        self.engine_of(batch.space).submit(batch).add_done_callback(done)
        return outer

    def _commit_late(self, project: str, batch: Batch, outer: Future[Receipt]) -> None:
        def commit() -> None:
            try:
                outer.set_result(self._call(batch.space, lambda engine: engine.commit(batch)))
            except Exception as error:  # noqa: BLE001 - for whoever waits
                outer.set_exception(error)
            finally:
                with self._lock:
                    self._waiting[project] -= 1

        with self._lock:
            self._waiting[project] = self._waiting.get(project, 0) + 1
            if self._late is None:
                self._late = ThreadPoolExecutor(1, thread_name_prefix="treering-moved")
            self._late.submit(commit)

    def wait(self, space: str, after_seq: int, *, seconds: float) -> int:
        """Block until the space's last sequence number is past ``after_seq``, wherever it moves."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            step = min(left, 1.0 if self._is_used else UNUSED_SECONDS)
            last = self.engine_of(space).wait(space, after_seq, seconds=step)
            if last > after_seq or step == left:
                return last

    def spaces(self) -> list[str]:
        """List the spaces of all databases."""
        urls = {""} | {cell.url for cell in self.cells().values()}
        urls |= {cell.to for cell in self.cells().values() if cell.to is not None}
        return sorted({space for url in urls for space in self.engine_at(url).spaces()})

    @property
    def cell_engine(self) -> CellEngine:
        """This engine, for those who have it behind another one."""
        return self

    def close(self) -> None:
        """Close the engines of all databases."""
        if self._late is not None:
            self._late.shutdown()
        for engine in self._cells.values():
            engine.close()


_HOME: Final = Cell()
_PASSWORD: Final = re.compile(r"//[^/@?]*:[^/@?]*@|[?&]password=", re.IGNORECASE)
_ROUTED: Final = frozenset(
    {
        "commit", "stage", "claim", "heartbeat", "release", "missing", "get", "list_info", "lineage",
        "read_list", "refs", "scan_refs", "list_refs", "scan", "sums", "search", "scan_scopes", "erase",
        "sweep", "check", "commit_digests", "reindex", "stats", "export", "load", "drop_archived",
        "forget_archived",
    }
)  # fmt: skip
"""Methods of the engine contract whose first argument is a space, or has one."""


class MoveReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a move did: where the project was and is, and for how long its writers waited."""

    project: str
    source: str
    target: str
    spaces: tuple[str, ...]
    rows: int
    bytes: int
    pause_seconds: float
    seconds: float


class SpaceMover(Protocol):
    """Copies the rows of spaces between two databases (`engines.postgres.move`)."""

    def copy(self) -> None:
        """Copy all rows, then what changed meanwhile, until little is left."""
        ...

    def switch(self) -> float:
        """Copy the rest while writers wait, and let them go on in the other database; return the seconds."""
        ...

    def clean_up(self) -> None:
        """Delete what is left at the old place."""
        ...

    @property
    def rows(self) -> int:
        """How many rows were copied."""
        ...

    @property
    def bytes(self) -> int:
        """How many bytes were copied."""
        ...


def move_project(
    engine: CellEngine,
    project: str,
    url: str,
    make_mover: Callable[..., AbstractContextManager[SpaceMover]],
) -> MoveReport:
    """Move a project to another database while it is used; an empty URL moves it home.

    Raises:
        NotFound: Nothing was ever written to the project.
        InvalidInput: It lives there already, or the URL contains a password.
    """
    begun = time.monotonic()
    if _PASSWORD.search(url):
        raise InvalidInput(
            "the URL contains a password, which the directory would show; put it into ~/.pgpass or "
            "PGPASSWORD of all processes that open the store"
        )
    if project.startswith(RESERVED) or project_of(project) != project:
        raise InvalidInput(f"{project!r} is not a project; treering's own spaces stay at home")
    cell = engine.cell(project)
    if cell.to is not None and cell.to != url:
        raise InvalidInput(f"project {project!r} is on its way elsewhere; finish that move first")
    if cell.to is None and cell.url == url:
        raise InvalidInput(f"project {project!r} lives there already")
    was_used = bool(engine.cells())
    source, target = engine.engine_at(cell.url), engine.engine_at(url)
    found = {*_spaces_of(project, source), *_spaces_of(project, target)}
    if not found:
        raise NotFound(f"project {project!r} not found; nothing was ever written to it")
    spaces = sorted({project, *found})  # the project's own says for all whether they have left
    with make_mover(source, target, spaces, resumes=cell.to == url) as mover:
        engine.set_cell(project, Cell(url=cell.url, to=url))
        known_at = time.monotonic() + 2 * (FRESH_SECONDS if was_used else UNUSED_SECONDS)
        pause = 0.0
        if not source.has_left(project):  # otherwise an interrupted move got this far
            mover.copy()
            time.sleep(max(known_at - time.monotonic(), 0.0))  # by then every process looks before each call
            pause = mover.switch()
        engine.set_cell(project, Cell(url=url))
        time.sleep(2 * FRESH_SECONDS)
        mover.clean_up()
    if late := _spaces_of(project, source):  # namespaces whose first write began before the switch
        with make_mover(source, target, late, resumes=False) as mover:
            mover.copy()
            mover.switch()
            mover.clean_up()
    return MoveReport(
        project=project,
        source=source.url,
        target=target.url,
        spaces=tuple(spaces),
        rows=mover.rows,
        bytes=mover.bytes,
        pause_seconds=round(pause, 3),
        seconds=round(time.monotonic() - begun, 3),
    )


def _spaces_of(project: str, engine: Any) -> list[str]:
    return [space for space in engine.spaces() if project_of(space) == project]

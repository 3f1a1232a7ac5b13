"""The recorder: from an agent's hot path into the journal, without making the agent wait.

Whoever records only puts a note into a queue, which takes about a microsecond. One thread turns notes into
batches and commits them, many at a time. The queue is bounded: when the store cannot keep up, the agent
waits for it. **Invariant:** a note that was taken is written before `flush` or `close` returns and before
the process exits in order (SIGTERM included), or the failure is raised there and warned about at once;
nothing is dropped in silence.

The thread also keeps a lease for its process. A run names the recorder that writes it, so a run whose
recorder's lease has ended is known to have crashed.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import signal
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, cast

from treering.core.batch import Draft
from treering.core.ids import new_id
from treering.errors import InvalidInput, TreeringError
from treering.runs.span import current_node

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from treering.core.engine import Engine
    from treering.core.records import Lease
    from treering.runs.run import Run
    from treering.runs.span import Span


QUEUE_LIMIT: Final = 50_000
"""Notes that wait at most; whoever brings another waits too."""
BATCH_LIMIT: Final = 2_000
LINGER_SECONDS: Final = 0.02
"""How long the first note of a batch waits for others."""
LEASE_SECONDS: Final = 30.0
_BEAT_SECONDS: Final = LEASE_SECONDS / 3
_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 2.0
_CLOSE_SECONDS: Final = 30.0


RowWriter = Callable[[Draft], None]
"""Puts something into a batch. May be called again when the batch did not commit."""


class RecordSink(Protocol):
    """Who takes the notes of a run: a recorder, or an importer that writes them down itself."""

    @property
    def id(self) -> str | None:
        """Whose lease says that the run goes on; ``None`` when nobody's does."""
        ...

    def take(self, note: RowWriter) -> None:
        """A note to be written."""
        ...

    def flush(self) -> None:
        """Return when everything that was taken before is durable."""
        ...


class Recorder:
    """The queue of one store and the thread behind it, which is started by the first note."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space
        self._start()
        _recorders.add(self)

    def _start(self) -> None:
        self.id: str = new_id()
        self._notes: deque[RowWriter] = deque()
        self._bell = threading.Event()
        self._has_rung = False  # as the bell says, for those who have no time to ask it
        self._room = threading.Condition()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._hurry = False
        self._lease: Lease | None = None
        self._beat_at = 0.0
        self._lost: list[Exception] = []

    # What agents call
    def take(self, note: RowWriter) -> None:
        """Queue a note; waits only while the queue is full."""
        notes = self._notes
        if len(notes) >= QUEUE_LIMIT:
            self._wait_for_room()
        notes.append(note)
        if self._thread is None:
            self._begin()
        if not self._has_rung:
            self._has_rung = True
            self._bell.set()

    def flush(self) -> None:
        """Return when everything that was taken before is durable; raises what could not be written."""
        if self._thread is not None:
            done = _Flushed()
            self._notes.append(done)
            self._hurry = True
            self._bell.set()
            done.event.wait()
        self._raise_what_was_lost()

    def close(self) -> None:
        """Write what is left, then stop."""
        thread = self._thread
        if thread is not None:
            self._is_closed = True
            self._bell.set()
            thread.join()
            self._thread = None
            self._is_closed = False
        self._raise_what_was_lost()

    def abandon(self) -> None:
        """In a forked child: what waits is the parent's to write."""
        self._start()

    def _wait_for_room(self) -> None:
        if threading.current_thread() is self._thread:
            return
        with self._room:
            while len(self._notes) >= QUEUE_LIMIT and self._thread is not None:
                self._room.wait(0.1)

    def _begin(self) -> None:
        with self._starting:
            if self._thread is None:
                _catch_sigterm()
                thread = threading.Thread(target=self._work, name="treering-recorder", daemon=True)
                self._thread = thread
                thread.start()

    def _raise_what_was_lost(self) -> None:
        if self._lost:
            first, self._lost = self._lost[0], []
            raise first

    # The thread
    def _work(self) -> None:
        while True:
            rang = self._bell.wait(_BEAT_SECONDS)
            if rang and not self._hurry and not self._is_closed:
                time.sleep(LINGER_SECONDS)
            self._bell.clear()
            self._has_rung = False  # before looking at the notes: who sees it set has put a note there
            self._hurry = False
            self._keep_lease()
            while self._notes:
                self._write_some()
            if self._is_closed and not self._notes:
                self._drop_lease()
                return

    def _write_some(self) -> None:
        notes = [self._notes.popleft() for _ in range(min(len(self._notes), BATCH_LIMIT))]
        self._write(notes)
        with self._room:
            self._room.notify_all()
        for note in notes:
            if isinstance(note, _Flushed):
                note.event.set()

    def _write(self, notes: Sequence[RowWriter]) -> None:
        pause = _PAUSE_SECONDS
        deadline = time.monotonic() + _CLOSE_SECONDS
        draft = Draft(self._space)
        while True:
            try:
                for note in notes:
                    note(draft)
                if not draft.is_empty:
                    self._engine.commit(draft.batch())
            except Exception as error:  # noqa: BLE001 - the thread must live, and the loss must be told
                retryable = isinstance(error, TreeringError) and error.retryable
                if retryable and not (self._is_closed and time.monotonic() > deadline):
                    time.sleep(pause)
                    pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                    draft = Draft(self._space, id=draft.id)
                    continue
                if len(notes) == 1:
                    self._lose(error)
                else:  # one of them is to blame, and the others shall not suffer for it
                    for note in notes:
                        self._write([note])
            return

    def _lose(self, error: Exception) -> None:
        self._lost.append(error)
        warnings.warn(f"an event could not be recorded: {error}", RuntimeWarning, stacklevel=2)

    def _keep_lease(self) -> None:
        now = time.monotonic()
        if now < self._beat_at or not self._engine.caps.claim:
            return
        try:
            self._lease = self._engine.claim(
                self._space, lease_name(self.id), holder=self.id, seconds=LEASE_SECONDS
            )
            self._beat_at = now + _BEAT_SECONDS
        except TreeringError:
            self._beat_at = now + 1.0  # the store is away; the notes wait, and so does this

    def _drop_lease(self) -> None:
        if self._lease is not None:
            try:
                self._engine.release(self._lease)
            except TreeringError:
                return  # it ends by itself
            finally:
                self._lease = None
                self._beat_at = 0.0


class _Flushed:
    """A note that says how far the thread has come."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self, draft: Draft) -> None:
        """Nothing to write."""


def lease_name(recorder_id: str) -> str:
    """The lease that a recorder holds while its process lives."""
    return f"recorder/{recorder_id}"


# Exits: in order, by SIGTERM, and into a forked child.
_recorders: Final[weakref.WeakSet[Recorder]] = weakref.WeakSet()


def _drain() -> None:
    for recorder in list(_recorders):
        try:
            recorder.close()
        except TreeringError:
            continue  # it was warned about when it happened


def _catch_sigterm() -> None:
    """Drain before SIGTERM ends the process, where nobody else handles it and we may."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, _frame: FrameType | None) -> Any:
    _drain()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder.abandon()


atexit.register(_drain)
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


# -----------------------------------------------------------------------------------------------------------
# Recording a function each time it is called: what went in, what came out, how long it took.
#
# Inside a run a call becomes a span below whatever is running. An agent that is called outside of any run
# begins one; a tool that is called outside of any run is simply called.


P = ParamSpec("P")
R = TypeVar("R")


def recording(
    name: str | Callable[..., Any] | None, *, kind: str, new_run: Callable[[str], Run] | None
) -> Callable[..., Any]:
    """A decorator that calls a function by this name, or by its own; or the function itself, decorated."""
    if callable(name):
        return recording(None, kind=kind, new_run=new_run)(name)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        own = name or getattr(function, "__name__", type(function).__name__)
        return recorded(function, name=own, kind=kind, new_run=new_run)

    return decorate


def recorded(
    function: Callable[P, R], *, name: str, kind: str, new_run: Callable[[str], Run] | None
) -> Callable[P, R]:
    """The function, recorded; ``new_run`` makes the run for a call that is in none."""
    signature = inspect.signature(function)

    def given(arguments: Any, options: Any) -> Any:
        return dict(signature.bind(*arguments, **options).arguments)

    def opened(stack: ExitStack, arguments: Any, options: Any) -> Span | None:
        place = current_node.get()
        if place is None:
            if new_run is None:
                return None
            place = stack.enter_context(new_run(name))
        return stack.enter_context(place.span(name, kind=kind, input=given(arguments, options)))

    @functools.wraps(function)
    def plain(*arguments: P.args, **options: P.kwargs) -> R:
        with ExitStack() as stack:
            span = opened(stack, arguments, options)
            result = function(*arguments, **options)
            if span is not None:
                span.output = result
            return result

    @functools.wraps(function)
    async def awaited(*arguments: P.args, **options: P.kwargs) -> Any:
        with ExitStack() as stack:
            span = opened(stack, arguments, options)
            result = await cast("Any", function(*arguments, **options))
            if span is not None:
                span.output = result
            return result

    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(
            f"{name!r} is a generator, which runs in pieces; record it with run.span(...) in its body"
        )
    return cast("Callable[P, R]", awaited) if inspect.iscoroutinefunction(function) else plain

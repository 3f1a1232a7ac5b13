"""The recorder: writes what an agent does into the journal, without making the agent wait.

Recording only puts a function into a queue, which takes about a microsecond. A thread calls the queued
functions to fill batches, and commits many of them at once. The queue is bounded: when the store cannot keep
up, the agent waits. **Invariant:** everything queued is written before `flush` or `close` returns and before
the process exits normally (including by SIGTERM), or those calls raise the error, which is also warned about
immediately. Nothing is dropped silently.

A store that cannot be written now (a full disk, a server that is away) stops no agent. What was recorded
waits in the queue and is written once that succeeds; meanwhile `flush` raises the store's error when it has
been failing for half a minute. If the queue is full by then, what is recorded further is lost, and reported.

The thread also holds a lease for its process. A run names the recorders that write to it, so a running run
whose recorders' leases have expired is known to have crashed (`treering.runs.listing` has the rule).
"""

from __future__ import annotations

import _thread
import atexit
import functools
import inspect
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, Protocol, TypeVar, cast, overload

from treering.core.batch import Draft
from treering.core.ids import new_id
from treering.errors import InvalidInput, TreeringError
from treering.runs.exchanges import intercept_tool
from treering.runs.span import current_node

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from treering.core.engine import Engine
    from treering.core.records import Lease
    from treering.runs.run import Run
    from treering.runs.span import Span


QUEUE_LIMIT: Final = 50_000
"""How many writes may be queued; `Recorder.put` blocks beyond that."""
BATCH_LIMIT: Final = 2_000
LINGER_SECONDS: Final = 0.02
"""How long the first write of a batch waits for others."""
LEASE_SECONDS: Final = 30.0
_RENEW_SECONDS: Final = LEASE_SECONDS / 3
_LOOK_SECONDS: Final = 0.1
"""How often a thread that waits looks whether the store is failing."""
_FIRST_RETRY_SECONDS: Final = 0.05
_MAX_RETRY_SECONDS: Final = 2.0
_GIVE_UP_SECONDS: Final = 30.0
"""How long a store may fail before `Recorder.flush` and `Recorder.close` raise its error."""
_MOST_FAILURES: Final = 100
"""Errors kept for the next flush; they are all of one kind when a store fails for long."""


RowWriter = Callable[[Draft], None]
"""Adds rows to a batch. Called again, with a new batch, when a commit has failed."""


class RecordSink(Protocol):
    """Where the rows of a run go: a `Recorder`, or an importer that commits them itself."""

    @property
    def id(self) -> str | None:
        """The recorder whose lease shows that the run is alive; ``None`` if there is none."""
        ...

    def put(self, write: RowWriter) -> None:
        """Queue rows to be written."""
        ...

    def flush(self) -> None:
        """Wait until everything queued before is durable."""
        ...


class Recorder:
    """The queue of one store, and the thread that empties it. The first write starts the thread."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space
        self._start()
        _recorders.add(self)

    def _start(self) -> None:
        self.id: str = new_id()
        self._queue: deque[RowWriter] = deque()
        self._wake_up = threading.Event()
        self._is_woken = False  # mirrors the event, because reading an attribute is much faster
        self._has_room = threading.Condition()
        self._start_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._flush_requested = False
        self._lease: Lease | None = None
        self._renew_at = 0.0
        self._failures: list[Exception] = []
        self._failing: _Failing | None = None
        """``None`` if the last attempt to write succeeded."""
        self._retry_now = threading.Event()
        self._events = 0
        """Events that were committed and not counted as indexed yet."""

    def put(self, write: RowWriter) -> None:
        """Queue rows to be written. Blocks only while the queue is full."""
        if self._thread is None and sys.is_finalizing():
            return  # an abandoned generator ends its span at exit, when no thread can be started or joined
        queue = self._queue
        if len(queue) >= QUEUE_LIMIT and not self._wait_for_room():
            return
        queue.append(write)
        if self._thread is None:
            self._start_thread()
        if not self._is_woken:
            self._is_woken = True
            self._wake_up.set()

    def stay_alive(self) -> str:
        """Hold the lease of this process from now on, also while nothing is queued, and return the id."""
        if self._lease is None:
            self._renew_lease()
        if self._thread is None:
            self._start_thread()
        return self.id

    def flush(self, *, patience: float = _GIVE_UP_SECONDS) -> None:
        """Wait until everything queued before is durable; raise what could not be written.

        If the store has been failing for ``patience`` seconds, raise its error (`StoreFull`, say). What was
        recorded stays queued, and is written once that succeeds.
        """
        if self._thread is not None:
            marker = _FlushMarker()
            began = time.monotonic()
            self._queue.append(marker)
            self._flush_requested = True
            self._wake_up.set()
            self._retry_now.set()
            while not marker.reached.wait(_LOOK_SECONDS):
                if (error := self._failed_for(patience, again_after=began)) is not None:
                    count = len(self._queue)
                    raise type(error)(f"{error} ({count:,} writes wait in memory and are retried)") from error
        self._raise_failure()

    def _failed_for(self, seconds: float, *, again_after: float = 0.0) -> TreeringError | None:
        """Return the store's error if every attempt to write failed for so long, the last one just now."""
        failing = self._failing
        if failing is None or failing.last < again_after or time.monotonic() - failing.first < seconds:
            return None
        return failing.error

    def close(self) -> None:
        """Write what is queued, then stop; raise what could not be written."""
        thread = self._thread
        if thread is not None:
            self._is_closing = True
            self._wake_up.set()
            thread.join()
            self._thread = None
            self._is_closing = False
        self._raise_failure()

    def reset_after_fork(self) -> None:
        """Start empty in a forked child; the parent writes what it had queued."""
        self._start()

    def _wait_for_room(self) -> bool:
        """Wait until the queue has room; ``False`` if the store has been failing for too long."""
        if threading.current_thread() is self._thread:
            return True
        with self._has_room:
            while len(self._queue) >= QUEUE_LIMIT and self._thread is not None:
                if (error := self._failed_for(_GIVE_UP_SECONDS)) is not None:
                    self._report_loss(error)
                    return False
                self._has_room.wait(_LOOK_SECONDS)
        return True

    def _start_thread(self) -> None:
        if sys.is_finalizing():  # a span that the last garbage collection ends: no thread can start any more
            self._queue.clear()
            return
        with self._start_lock:
            if self._thread is None:
                _catch_sigterm()
                thread = threading.Thread(target=self._work, name="treering-recorder", daemon=True)
                self._thread = thread
                thread.start()

    def _raise_failure(self) -> None:
        if self._failures:
            first, self._failures = self._failures[0], []
            raise first

    def _work(self) -> None:
        """Run the thread: wait, let a batch gather, renew the lease, write."""
        while True:
            was_woken = self._wake_up.wait(_RENEW_SECONDS)
            if was_woken and not self._flush_requested and not self._is_closing:
                time.sleep(LINGER_SECONDS)
            self._wake_up.clear()
            self._is_woken = False  # before reading the queue: a `put` that sees True is already queued
            self._flush_requested = False
            self._renew_lease()
            while self._queue:
                self._write_next()
            self._index_a_page()
            if self._is_closing and not self._queue:
                self._release_lease()
                return

    def _index_a_page(self) -> None:
        """Index for search once there are events for a page of the index, and nothing else to do."""
        from treering.runs.search import PAGE, EventIndex

        if self._events < PAGE or self._is_closing or self._failing is not None:
            return
        self._events -= PAGE
        with suppress(TreeringError):  # whoever indexes next indexes these events too
            EventIndex(self._engine, self._space).catch_up(pages=1)
        if self._events >= PAGE:
            self._wake_up.set()

    def _write_next(self) -> None:
        writes = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_LIMIT))]
        self._commit(writes)
        with self._has_room:
            self._has_room.notify_all()
        for write in writes:
            if isinstance(write, _FlushMarker):
                write.reached.set()

    def _commit(self, writes: Sequence[RowWriter]) -> None:
        """Commit writes together, with retries; when one of them is bad, commit each by itself."""
        pause = _FIRST_RETRY_SECONDS
        draft = Draft(self._space)
        while True:
            began = time.monotonic()
            try:
                for write in writes:
                    write(draft)
                if not draft.is_empty:
                    batch = draft.batch()
                    self._engine.commit(batch)
                    self._events += len(batch.events)
                    self._failing = None
            except Exception as error:  # noqa: BLE001 - the thread must survive, and the loss be reported
                is_retryable = isinstance(error, TreeringError) and error.retryable
                if isinstance(error, TreeringError) and is_retryable:
                    now = time.monotonic()
                    first = now if self._failing is None else self._failing.first
                    self._failing = _Failing(first, began, error)
                gives_up = self._is_closing and self._failed_for(_GIVE_UP_SECONDS) is not None
                if is_retryable and not gives_up:
                    self._retry_now.wait(pause)
                    self._retry_now.clear()
                    pause = min(pause * 2, _MAX_RETRY_SECONDS)
                    draft = Draft(self._space, id=draft.id)
                    continue
                if len(writes) == 1 or is_retryable:
                    self._report_loss(error, len(writes))
                else:
                    for write in writes:
                        self._commit([write])
            return

    def _report_loss(self, error: Exception, count: int = 1) -> None:
        if len(self._failures) < _MOST_FAILURES:
            self._failures.append(error)
        what = "an event" if count == 1 else f"{count:,} events"
        with suppress(RuntimeWarning):  # it may be turned into an error, which would end the thread
            warnings.warn(f"{what} could not be recorded: {error}", RuntimeWarning, stacklevel=2)

    def _renew_lease(self) -> None:
        now = time.monotonic()
        if now < self._renew_at or not self._engine.caps.claim:
            return
        try:
            self._lease = self._engine.claim(
                self._space, lease_name(self.id), holder=self.id, seconds=LEASE_SECONDS
            )
            self._renew_at = now + _RENEW_SECONDS
        except TreeringError:
            self._renew_at = now + 1.0  # the store is unavailable

    def _release_lease(self) -> None:
        if self._lease is not None:
            try:
                self._engine.release(self._lease)
            except TreeringError:
                return  # it expires by itself
            finally:
                self._lease = None
                self._renew_at = 0.0


class _Failing(NamedTuple):
    """Attempts to write that failed, without one in between that succeeded."""

    first: float
    last: float
    """When the last one began."""
    error: TreeringError


class _FlushMarker:
    """Writes nothing; signals when the recorder has written everything queued before it."""

    def __init__(self) -> None:
        self.reached = threading.Event()

    def __call__(self, draft: Draft) -> None:
        """Do nothing."""


def lease_name(recorder_id: str) -> str:
    """Return the name of the lease that a recorder holds while its process is alive."""
    return f"recorder/{recorder_id}"


# Process exit: normal, by SIGTERM, and the child of a fork.
_recorders: Final[weakref.WeakSet[Recorder]] = weakref.WeakSet()


def _close_all() -> None:
    for recorder in list(_recorders):
        try:
            recorder.close()
        except TreeringError:
            continue  # reported by a warning when it happened


def _catch_sigterm() -> None:
    """Write what is queued before SIGTERM ends the process, unless the program handles SIGTERM itself."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, _frame: FrameType | None) -> Any:
    """Handle SIGTERM. What it interrupts may hold a lock of a recorder (`put`, `flush`), so a thread closes
    the recorders, and then sends the signal again. `threading` would start it with locks of its own.
    """
    if number in _closed_for:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    else:
        _thread.start_new_thread(_close_and_end, (number,))


_closed_for: Final[set[int]] = set()
"""The signals for which all recorders were closed."""


def _close_and_end(number: int) -> None:
    try:
        _close_all()
    finally:
        _closed_for.add(number)
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def _after_fork() -> None:
    for recorder in list(_recorders):
        recorder.reset_after_fork()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


# The decorators `Store.agent` and `Store.tool`: a span for each call of a function, with arguments and
# result.

P = ParamSpec("P")
R = TypeVar("R")


class RecordDecorator(Protocol):
    """A decorator with or without a name. The function keeps its signature."""

    @overload
    def __call__(self, name: Callable[P, R], /) -> Callable[P, R]: ...

    @overload
    def __call__(self, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def record_calls(kind: str, new_run: Callable[[str], Run] | None = None) -> RecordDecorator:
    """Return a decorator that records calls of a function, by a name or by the function's own.

    A call becomes a span below the current one. Outside of a run, ``new_run`` starts one; without
    ``new_run`` such a call is not recorded.
    """

    def decorator(name: str | Callable[..., Any] | None = None) -> Callable[..., Any]:
        if callable(name):
            return decorator()(name)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            own_name = name or getattr(function, "__name__", type(function).__name__)
            return _record_function(function, name=own_name, kind=kind, new_run=new_run)

        return decorate

    return cast("RecordDecorator", decorator)


def _record_function(
    function: Callable[P, R], *, name: str, kind: str, new_run: Callable[[str], Run] | None
) -> Callable[P, R]:
    signature = inspect.signature(function)

    def called() -> Callable[..., Any]:
        return intercept_tool(name, function, bind) if kind == "tool" else function

    def bind(*arguments: Any, **options: Any) -> dict[str, Any]:
        return dict(signature.bind(*arguments, **options).arguments)

    def open_span(stack: ExitStack, arguments: Any, options: Any) -> Span | None:
        node = current_node.get()
        if node is None:
            if new_run is None:
                return None
            node = stack.enter_context(new_run(name))
        return stack.enter_context(node.span(name, kind=kind, input=bind(*arguments, **options)))

    @functools.wraps(function)
    def recorded(*arguments: P.args, **options: P.kwargs) -> R:
        with ExitStack() as stack:
            span = open_span(stack, arguments, options)
            result = called()(*arguments, **options)
            if span is not None:
                span.output = result
            return result

    @functools.wraps(function)
    async def recorded_async(*arguments: P.args, **options: P.kwargs) -> Any:
        with ExitStack() as stack:
            span = open_span(stack, arguments, options)
            result = await called()(*arguments, **options)
            if span is not None:
                span.output = result
            return result

    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"{name!r} is a generator and cannot be decorated; use run.span(...) in its body")
    return cast("Callable[P, R]", recorded_async) if inspect.iscoroutinefunction(function) else recorded

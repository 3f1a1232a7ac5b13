"""Group commit: callers who arrive while one commit is being made durable share the next one.

There is no writer thread to hand over to. Whoever finds the door free goes in and takes along everyone
who is waiting; each of the others sleeps at a gate of its own until its work is done, or until it is
called to the door to lead the next group. (If they queued at the door itself, those whose work is done
would have to pass it one by one, and groups would stay small.) A lone writer therefore pays no change of
thread, and sixty-four of them pay for a handful of fsyncs. Only `submit`, which must not block, needs a
thread of its own, and that is started when it is first used. **Invariant:** whenever the door is let go,
nobody is left waiting whom the next one at the door would not find.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from treering.errors import Busy, Closed, Corrupt, ReadOnly, StoreFull, TreeringError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from treering.core.batch import Receipt
    from treering.engines.sql.commit.encode import EncodedBatch

    Outcome = Receipt | Exception
    Write = Callable[[Sequence[EncodedBatch]], list[Outcome]]

GROUP_LIMIT: Final = 256
"""How many batches one transaction takes at most."""

_OF_THE_STORE: Final = (Busy, Closed, Corrupt, ReadOnly, StoreFull, Unreachable)
"""Failures that no single batch is to blame for; the whole group shares them."""


class _Ticket:
    __slots__ = ("called", "encoded", "future", "gate", "outcome")

    def __init__(self, encoded: EncodedBatch, future: Future[Receipt] | None) -> None:
        self.encoded = encoded
        self.future = future
        self.outcome: Outcome | None = None
        self.called = False
        self.gate = threading.Lock()
        self.gate.acquire()

    def settle(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.future is None:
            if not self.called:
                self.gate.release()
        elif isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class GroupCommit:
    """Gathers batches into groups for ``write``, which commits a group and says how each batch fared."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._closed = False
        self._start()
        _open_groups.add(self)

    def _start(self) -> None:
        self._waiting: deque[_Ticket] = deque()
        self._door = threading.Lock()
        self._calling = threading.Lock()
        self._bell = threading.Condition()
        self._thread: threading.Thread | None = None

    def commit(self, encoded: EncodedBatch) -> Receipt:
        """Commit in the calling thread, alone or with others; returns when it is durable."""
        self._check_open()
        if not self._waiting and self._door.acquire(blocking=False):
            # The ordinary case, a lone writer: nobody waits for it, so it needs no ticket.
            try:
                (outcome,) = self._outcomes([encoded])
            finally:
                self._leave()
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        return self._wait_with_others(encoded)

    def _wait_with_others(self, encoded: EncodedBatch) -> Receipt:
        ticket = _Ticket(encoded, None)
        self._waiting.append(ticket)
        if self._door.acquire(blocking=False):
            ticket.called = True
        else:
            self._sleep(ticket)
        if ticket.called:
            try:
                while ticket.outcome is None:
                    self._serve()
            finally:
                self._leave()
        assert ticket.outcome is not None  # noqa: S101 - who was not called was served
        if isinstance(ticket.outcome, Exception):
            raise ticket.outcome
        return ticket.outcome

    def _sleep(self, ticket: _Ticket) -> None:
        """Until the work is done or the door is ours; an interrupted sleeper is not called any more."""
        try:
            ticket.gate.acquire()
        except BaseException:
            with self._calling, suppress(ValueError):
                self._waiting.remove(ticket)
            if ticket.called:
                self._leave()
            raise

    def _leave(self) -> None:
        """Give the door to the first sleeper, or let it go when there is none."""
        while True:
            if self._waiting:
                with self._calling:
                    sleeper = self._first_sleeper()
                    if sleeper is not None:
                        sleeper.called = True
                        sleeper.gate.release()
                        return
            self._door.release()
            # Who came in the meantime found the door taken, and sleeps. (What was submitted has its thread.)
            if not self._waiting or self._first_sleeper() is None or not self._door.acquire(blocking=False):
                return

    def _first_sleeper(self) -> _Ticket | None:
        return next((ticket for ticket in list(self._waiting) if ticket.future is None), None)

    def submit(self, encoded: EncodedBatch) -> Future[Receipt]:
        """Commit in the background."""
        self._check_open()
        future: Future[Receipt] = Future()
        future.set_running_or_notify_cancel()
        self._waiting.append(_Ticket(encoded, future))
        with self._bell:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="treering-commit", daemon=True)
                self._thread.start()
            self._bell.notify()
        return future

    def close(self) -> None:
        """Commit what was submitted, then take no more."""
        with self._bell:
            self._closed = True
            self._bell.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()
        self._door.acquire()
        try:
            while self._waiting:
                self._serve()
        finally:
            self._leave()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store was closed; open it again")

    def abandon(self) -> None:
        """In a forked child: the thread is gone, it may hold the locks, and what waits is the parent's."""
        self._start()

    def _work(self) -> None:
        while True:
            with self._bell:
                while not self._waiting and not self._closed:
                    self._bell.wait()
                if not self._waiting:
                    return
            self._door.acquire()
            try:
                self._serve()
            finally:
                self._leave()

    def _serve(self) -> None:
        """Commit one group. Runs behind the door."""
        group: list[_Ticket] = []
        while self._waiting and len(group) < GROUP_LIMIT:
            group.append(self._waiting.popleft())
        if not group:
            return
        try:
            outcomes = self._outcomes([ticket.encoded for ticket in group])
        except BaseException as error:
            # An interrupt in the middle: nobody may be left waiting for an answer that never comes.
            unknown = TreeringError(
                f"the commit was interrupted ({error!r}); send the batch again to learn its fate"
            )
            for ticket in group:
                ticket.settle(unknown)
            raise
        for ticket, outcome in zip(group, outcomes, strict=True):
            ticket.settle(outcome)

    def _outcomes(self, group: list[EncodedBatch]) -> list[Outcome]:
        try:
            return self._write(group)
        except _OF_THE_STORE as error:
            return [error] * len(group)
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            if len(group) == 1:
                return [error]
            # Something in one of them broke the transaction of all: each gets its own.
            return [outcome for encoded in group for outcome in self._outcomes([encoded])]


_open_groups: Final[weakref.WeakSet[GroupCommit]] = weakref.WeakSet()


def _after_fork() -> None:
    for group in list(_open_groups):
        group.abandon()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)

"""The lane: batches that were submitted, sent in their order, together.

One thread sends, and has one request on its way at a time; what is submitted meanwhile goes into the next
one. So a hundred small commits cost a handful of round trips, and the order of submission is the order of
commit.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from treering.core.batch import Receipt
from treering.errors import Closed

GROUP_BATCHES: Final = 256


Outcome = Receipt | Exception
Send = Callable[[str, list[bytes]], list[Outcome]]


class _Parcel:
    """An encoded batch on its way."""

    __slots__ = ("data", "future", "space")

    def __init__(self, space: str, data: bytes) -> None:
        self.space = space
        self.data = data
        self.future: Future[Receipt] = Future()
        self.future.set_running_or_notify_cancel()


class Lane:
    """Sends what is submitted with ``send``, which says how each batch of a group fared.

    A group has about ``group_bytes`` at most, if it has more than one batch.
    """

    def __init__(self, send: Send, *, group_bytes: int) -> None:
        self._send = send
        self._group_bytes = group_bytes
        self._closed = False
        self._start()
        _lanes.add(self)

    def _start(self) -> None:
        self._waiting: deque[_Parcel] = deque()
        self._under_way = 0
        self._bell = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def is_free(self) -> bool:
        """Whether nothing that was submitted is still on its way; also for what its own thread calls back."""
        if threading.current_thread() is self._thread:
            return True
        return not self._waiting and not self._under_way

    def submit(self, space: str, data: bytes) -> Future[Receipt]:
        """Send a batch behind those that were submitted before."""
        parcel = _Parcel(space, data)
        with self._bell:
            if self._closed:
                raise Closed("the store was closed; open it again")
            self._waiting.append(parcel)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="treering-remote", daemon=True)
                self._thread.start()
            self._bell.notify()
        return parcel.future

    def close(self) -> None:
        """Send what was submitted, then take no more."""
        with self._bell:
            self._closed = True
            self._bell.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def abandon(self) -> None:
        """In a forked child: the thread is gone, and what waits is the parent's."""
        self._start()

    def _work(self) -> None:
        while True:
            with self._bell:
                self._under_way = 0
                while not self._waiting and not self._closed:
                    self._bell.wait()
                if not self._waiting:
                    return
                group = self._next_group()
                self._under_way = len(group)
            try:
                outcomes = self._send(group[0].space, [parcel.data for parcel in group])
            except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
                outcomes = [error] * len(group)
            for parcel, outcome in zip(group, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    parcel.future.set_exception(outcome)
                else:
                    parcel.future.set_result(outcome)

    def _next_group(self) -> list[_Parcel]:
        """What can go together: batches of one space, within limits."""
        group = [self._waiting.popleft()]
        size = len(group[0].data)
        while self._waiting and len(group) < GROUP_BATCHES:
            size += len(self._waiting[0].data)
            if size > self._group_bytes or self._waiting[0].space != group[0].space:
                break
            group.append(self._waiting.popleft())
        return group


_lanes: Final[weakref.WeakSet[Lane]] = weakref.WeakSet()


def _after_fork() -> None:
    for lane in list(_lanes):
        lane.abandon()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)

"""From a caller to a transaction: a batch is encoded in the caller's thread, then waits for its group.

Compressing, checksumming and extracting text are the expensive part of a commit and need no database. They
happen before the batch takes the lock, so that writers hold the one lock of the store only for the inserts
themselves. What the batch refers to, its `Dependencies`, is collected here too.

Callers that arrive while one commit is being made durable share the next one. There is no writer thread. A
caller that finds the door (a lock) free becomes the leader and commits for everyone who is waiting. The
others sleep at a gate of their own until their batch is done, or until they are called to lead the next
group. (If they queued at the door itself, those whose batch is done would still have to pass through it one
by one, and groups would stay small.) So a lone writer pays for no thread switch, and sixty-four writers pay
for a handful of fsyncs. Only `submit`, which must not block, needs a thread, started on first use.

**Invariant:** whenever the door is released, no caller is left asleep whom the next leader would not find.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from treering.core.batch import content_links, validate_batch
from treering.core.content import (
    KIND_NUMBERS,
    ListAddress,
    ObjectAddress,
    SlotAddress,
    pack_body,
    parse_address,
    seal,
)
from treering.core.rollups import deltas
from treering.core.text import text_of
from treering.errors import Busy, Closed, Corrupt, ReadOnly, StoreFull, TreeringError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from treering.core.batch import Batch, Receipt
    from treering.core.content import Address, Content, ParsedAddress
    from treering.core.rollups import Measures, RollupKey

    Outcome = Receipt | Exception
    Write = Callable[[Sequence["EncodedBatch"]], list[Outcome]]


class Dependencies:
    """The names of everything that a group of batches refers to. The dicts are ordered sets."""

    __slots__ = ("batches", "leases", "linked", "lists", "objects", "refs", "scopes", "slots")

    def __init__(self) -> None:
        self.batches: list[str] = []
        self.scopes: set[str] = set()
        self.refs: set[str] = set()
        self.lists: set[str] = set()
        """Lists to look up: those that grow, are branched from, or are linked to."""
        self.leases: set[str] = set()
        self.objects: dict[str, None] = {}
        """Objects that have to exist, because the batch does not contain them."""
        self.slots: dict[tuple[str, int], None] = {}
        """Bodies of other commits that have to exist: batch and part."""
        self.linked: dict[str, None] = {}
        """Lists that have to exist, because the batch does not create them."""


def dependencies_of(batch: Batch, named: Iterable[ParsedAddress]) -> Dependencies:
    """Return what a batch changes, and what it links to without containing it."""
    dependencies = Dependencies()
    dependencies.batches.append(batch.id)
    scopes = dependencies.scopes
    for part in batch.parts:
        scopes.add(part.scope)
    for event in batch.events:
        scopes.add(event.scope)
    for text in batch.texts:
        scopes.add(text.scope)
    for change in batch.refs:
        scopes.add(change.scope)
        dependencies.refs.add(change.name)
    for fence in batch.fences:
        dependencies.leases.add(fence.lease)
    for name in batch.requires:
        dependencies.objects[name] = None
    for place in named:
        if isinstance(place, ListAddress):
            dependencies.lists.add(place.list)
            dependencies.linked[place.list] = None
        elif isinstance(place, ObjectAddress):
            dependencies.objects[place.name] = None
        else:
            dependencies.slots[place.batch, place.part] = None
    for append in batch.lists:
        scopes.add(append.scope)
        dependencies.linked.pop(append.list, None)
        dependencies.lists.add(append.list)
        if append.parent is not None:
            dependencies.lists.add(append.parent)
    for name in batch.objects:
        dependencies.objects.pop(name, None)
    return dependencies


def merge_dependencies(parts: Sequence[Dependencies]) -> Dependencies:
    """Return the dependencies of a group of batches."""
    if len(parts) == 1:
        return parts[0]
    merged = Dependencies()
    for dependencies in parts:
        merged.batches += dependencies.batches
        merged.scopes |= dependencies.scopes
        merged.refs |= dependencies.refs
        merged.lists |= dependencies.lists
        merged.leases |= dependencies.leases
        merged.objects |= dependencies.objects
        merged.slots |= dependencies.slots
    return merged


EncodedItem = tuple[int | None, bytes | None, str | None]
"""An item as it is stored: kind and frame of content, or an address."""


class EncodedBatch(NamedTuple):
    """A validated batch and everything that can be computed from it alone."""

    batch: Batch
    dependencies: Dependencies
    bodies: list[bytes]
    items: list[list[EncodedItem]]
    objects: list[tuple[bytes, int, int, bytes]]
    """name, kind, size, frame"""
    words: list[str | None]
    """The text to index for each of the batch's texts, if the batch contains its source."""
    deltas: dict[RollupKey, Measures]
    item_links: str | None
    """What its list items and texts link to, so that a concurrent mark finds it by the commit."""


def encode_batch(batch: Batch) -> EncodedBatch:
    """Validate a batch and encode its content."""
    dependencies = dependencies_of(batch, validate_batch(batch))
    links: list[Address] = []
    items: list[list[EncodedItem]] = []
    for append in batch.lists:
        sealed: list[EncodedItem] = []
        for item in append.items:
            if isinstance(item, str):
                links.append(item)
                sealed.append((None, None, item))
            else:
                if item.kind == "tree":
                    links += content_links(item)
                sealed.append((KIND_NUMBERS[item.kind], seal(item.data), None))
        items.append(sealed)
    words: list[str | None] = []
    for text in batch.texts:
        words.append(_words(batch, text.source))
        if text.source is not None:
            links.append(text.source)
    return EncodedBatch(
        batch,
        dependencies,
        [seal(pack_body(part.slots)) for part in batch.parts] if batch.parts else [],
        items,
        [
            (bytes.fromhex(name), KIND_NUMBERS[content.kind], len(content.data), seal(content.data))
            for name, content in batch.objects.items()
        ]
        if batch.objects
        else [],
        words,
        deltas(batch.events),
        "\n".join(links) if links else None,
    )


def own_content(batch: Batch, address: Address) -> Content | None:
    """Return the content at an address, if the batch contains it."""
    match parse_address(address):
        case ObjectAddress(name):
            return batch.objects.get(name)
        case SlotAddress(batch.id, part, index):
            return batch.parts[part].slots[index]
        case _:
            return None


def _words(batch: Batch, source: Address | None) -> str | None:
    content = own_content(batch, source) if source is not None else None
    return text_of(content) if content is not None else None


GROUP_LIMIT: Final = 256
"""The most batches in one transaction."""

_STORE_ERRORS: Final = (Busy, Closed, Corrupt, ReadOnly, StoreFull, Unreachable)
"""Failures that are not the fault of a single batch; the whole group shares them."""


class _Ticket:
    __slots__ = ("called", "encoded", "future", "gate", "outcome")

    def __init__(self, encoded: EncodedBatch, future: Future[Receipt] | None) -> None:
        self.encoded = encoded
        self.future = future
        self.outcome: Outcome | None = None
        self.called = False
        self.gate = threading.Lock()
        self.gate.acquire()

    def resolve(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self.future is None:
            if not self.called:
                self.gate.release()
        elif isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class GroupCommit:
    """Collects batches into groups for ``write``, which commits a group and returns the outcome of each."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._closed = False
        self._reset()
        _open_groups.add(self)

    def _reset(self) -> None:
        self._waiting: deque[_Ticket] = deque()
        self._door = threading.Lock()
        self._calling = threading.Lock()
        self._submitted = threading.Condition()
        self._thread: threading.Thread | None = None

    def commit(self, encoded: EncodedBatch) -> Receipt:
        """Commit in the calling thread, alone or with others; returns when it is durable."""
        self._check_open()
        if not self._waiting and self._door.acquire(blocking=False):
            # A lone writer: nobody waits, so it needs no ticket.
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
        assert ticket.outcome is not None  # noqa: S101 - a ticket that was not called is done
        if isinstance(ticket.outcome, Exception):
            raise ticket.outcome
        return ticket.outcome

    def _sleep(self, ticket: _Ticket) -> None:
        """Sleep until the batch is done or the door is ours. An interrupted sleeper is never called."""
        try:
            ticket.gate.acquire()
        except BaseException:
            with self._calling, suppress(ValueError):
                self._waiting.remove(ticket)
            if ticket.called:
                self._leave()
            raise

    def _leave(self) -> None:
        """Hand the door to the first sleeper, or release it if there is none."""
        while True:
            if self._waiting:
                with self._calling:
                    sleeper = self._first_sleeper()
                    if sleeper is not None:
                        sleeper.called = True
                        sleeper.gate.release()
                        return
            self._door.release()
            # Callers that came meanwhile found the door locked and sleep. (Submitted batches have their
            # thread.)
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
        with self._submitted:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="treering-commit", daemon=True)
                self._thread.start()
            self._submitted.notify()
        return future

    def close(self) -> None:
        """Commit what was submitted, then accept no more."""
        with self._submitted:
            self._closed = True
            self._submitted.notify_all()
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
        """In a forked child: start over. The thread does not exist, and what waits is the parent's."""
        self._reset()

    def _work(self) -> None:
        while True:
            with self._submitted:
                while not self._waiting and not self._closed:
                    self._submitted.wait()
                if not self._waiting:
                    return
            self._door.acquire()
            try:
                self._serve()
            finally:
                self._leave()

    def _serve(self) -> None:
        """Commit one group, holding the door."""
        group: list[_Ticket] = []
        while self._waiting and len(group) < GROUP_LIMIT:
            group.append(self._waiting.popleft())
        if not group:
            return
        try:
            outcomes = self._outcomes([ticket.encoded for ticket in group])
        except BaseException as error:
            # An interrupt: nobody may be left waiting for a result that never comes.
            unknown = TreeringError(
                f"the commit was interrupted ({error!r}); submit the batch again to learn its outcome"
            )
            for ticket in group:
                ticket.resolve(unknown)
            raise
        for ticket, outcome in zip(group, outcomes, strict=True):
            ticket.resolve(outcome)

    def _outcomes(self, group: list[EncodedBatch]) -> list[Outcome]:
        try:
            return self._write(group)
        except _STORE_ERRORS as error:
            return [error] * len(group)
        except Exception as error:  # noqa: BLE001 - the waiting callers have to get it
            if len(group) == 1:
                return [error]
            # One of them made the transaction of all fail: each gets its own.
            return [outcome for encoded in group for outcome in self._outcomes([encoded])]


_open_groups: Final[weakref.WeakSet[GroupCommit]] = weakref.WeakSet()


def _after_fork() -> None:
    for group in list(_open_groups):
        group.abandon()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)

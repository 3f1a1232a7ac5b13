"""The remote engine: the engine contract over the gateway of a treering server.

Every read is one request, a list or a page at a time. Commits are idempotent by the ids of their batches, so
a lost answer is asked for again; what is submitted travels in groups (`lane`). Large objects of a batch are
staged ahead of it, in requests of bounded size. **Invariant:** whatever a local engine promises to its
caller holds here, by the same suite; what a server cannot promise for its clients is denied in ``caps``.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from treering.core.batch import Batch, Receipt, validate_batch
from treering.core.content import Address, Content
from treering.core.engine import Caps
from treering.core.ids import check_id, check_space
from treering.core.query import Erasure, EventQuery, SearchQuery, SumQuery, check_limit
from treering.core.records import (
    Checked,
    Erased,
    Lease,
    ListInfo,
    Page,
    Problem,
    Ref,
    SearchResult,
    Slice,
    SpaceStats,
    Sum,
    Swept,
)
from treering.engines.remote import protocol
from treering.engines.remote.protocol import METHODS
from treering.engines.remote.transport import Connections, error_of, place_of
from treering.errors import Closed, InvalidInput, MissingObjects, TooLarge, TreeringError, Unsupported

# -----------------------------------------------------------------------------------------------------------
# The lane: batches that were submitted, sent in their order, together.
#
# One thread sends, and has one request on its way at a time; what is submitted meanwhile goes into the next
# one. So a hundred small commits cost a handful of round trips, and the order of submission is the order of
# commit.


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


# -----------------------------------------------------------------------------------------------------------
# Pieces of a slice: a copy that is too large for one request, cut between its rows.
#
# A slice is bounded by what its rows take in storage, where they are compressed; unfolded they may be many
# times larger. **Invariant:** the pieces hold the rows of the slice, each once and in their order, so that
# they can be loaded one behind the other just as the slice can.


_SECTIONS: Final = ("objects", "commits", "bodies", "records", "lists", "items", "texts", "refs")


def cut(part: Slice, *, size: int) -> Iterator[Slice]:
    """The slice itself if it has at most ``size`` bytes, else pieces; a larger one holds a single row."""
    if len(msgspec.msgpack.encode(part)) <= size or not any(getattr(part, name) for name in _SECTIONS):
        yield part
        return
    empty = Slice(position=part.position, last_seq=part.last_seq, committed_at_us=part.committed_at_us)
    for section in _SECTIONS:
        rows: list[Any] = []
        taken = 0
        for row in getattr(part, section):
            length = len(msgspec.msgpack.encode(row))
            if rows and taken + length > size:
                yield msgspec.structs.replace(empty, **{section: tuple(rows)})
                rows, taken = [], 0
            rows.append(row)
            taken += length
        if rows:
            yield msgspec.structs.replace(empty, **{section: tuple(rows)})


# -----------------------------------------------------------------------------------------------------------

OPENING_SECONDS: Final = 3.0
"""How long a server that does not answer is tried when a store is opened."""
GROUP_BYTES: Final = 16 * 1024 * 1024
"""What travels together holds about this much; a batch with more in its objects has them staged first."""
GROUP_CONTENTS: Final = 4096
_STAGINGS: Final = 3

T = TypeVar("T")

_encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final[dict[str, msgspec.msgpack.Decoder[Any]]] = {
    method.name: msgspec.msgpack.Decoder(method.reply) for method in METHODS.values()
}


class RemoteEngine:
    """A store behind a server. Any number of threads may use it, and a forked child, too."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._hello: protocol.Hello = self._ask_hello()
        # Room is left for the names and numbers around the contents.
        self._group_bytes = min(GROUP_BYTES, self._hello.max_request_bytes * 3 // 4)
        self._lane = Lane(self._send_group, group_bytes=self._group_bytes)

    @property
    def caps(self) -> Caps:
        """Those of the server's own engine; its clients may always be several, and a backup is a copy."""
        return self._hello.caps

    @property
    def url(self) -> str:
        """Where the server is. The key is not in it."""
        return self._connections.where

    @property
    def project(self) -> str:
        """The project that the key belongs to."""
        return self._hello.project

    @property
    def scope(self) -> str:
        """What the key is good for: ``read``, ``write`` or ``admin``."""
        return self._hello.scope

    # Writing
    def submit(self, batch: Batch) -> Future[Receipt]:
        """Commit a batch in the background, in the order of submission."""
        validate_batch(batch)
        self._connections.check_open()
        slim = self._stage_large(batch)
        return self._lane.submit(batch.space, _packed(slim))

    def commit(self, batch: Batch) -> Receipt:
        """Commit a batch: atomic, idempotent, durable when it returns (if the server's engine is durable)."""
        validate_batch(batch)
        for _ in range(_STAGINGS):
            slim = self._stage_large(batch)
            try:
                return self._commit(slim)
            except MissingObjects as error:
                # A sweep was quicker than the commit of what had been staged for it.
                if slim is batch or not set(error.hashes) & batch.objects.keys():
                    raise
        return self._commit(self._stage_large(batch))

    def stage(self, space: str, contents: Iterable[Content]) -> list[str]:
        """Store objects ahead of the commit that will require them, some at a time."""
        check_space(space)
        self._connections.check_open()
        names: list[str] = []
        group: list[bytes] = []
        size = 0
        for content in contents:
            if group and (size + len(content.data) > self._group_bytes or len(group) == GROUP_CONTENTS):
                names += self._stage(space, group)
                group, size = [], 0
            group.append(protocol.frame(protocol.MESSAGE, _packed(content)))
            size += len(content.data)
        return names + (self._stage(space, group) if group else [])

    def claim(self, space: str, name: str, *, holder: str, seconds: float) -> Lease | None:
        """Take or renew a lease; return ``None`` while another holder has it."""
        check_id(name, "lease name")
        check_id(holder, "holder")
        return _local(
            space, self._call("claim", space, protocol.Claim(name=name, holder=holder, seconds=seconds))
        )

    def heartbeat(self, lease: Lease, *, seconds: float) -> Lease | None:
        """Extend a lease; return ``None`` if it was lost."""
        return _local(
            lease.space, self._call("heartbeat", lease.space, protocol.Held(lease=lease, seconds=seconds))
        )

    def release(self, lease: Lease) -> None:
        """Release a lease if it is still held."""
        self._call("release", lease.space, protocol.Held(lease=lease))

    # Reading
    def missing(self, space: str, names: Sequence[str]) -> set[str]:
        """Return the objects that are not stored."""
        return set(self._call("missing", space, protocol.Names(tuple(names)))) if names else set()

    def get(self, space: str, addresses: Sequence[Address]) -> list[Content]:
        """Verified content, in the order asked for."""
        if not addresses:
            return []
        return self._call_all("get", space, protocol.Addresses(tuple(addresses)))

    def list_info(self, space: str, list_id: str) -> ListInfo | None:
        """Return the length and parent of a list."""
        line = self.lineage(space, list_id)
        return line[0] if line else None

    def lineage(self, space: str, list_id: str) -> list[ListInfo]:
        """Return a list and its ancestors, starting with itself."""
        return self._call("lineage", space, protocol.OneList(list=list_id))

    def read_list(self, space: str, list_id: str, start: int, stop: int) -> list[Content]:
        """Return the items from ``start`` up to ``stop`` (or the end), including those of its parents."""
        return self._call_all("read_list", space, protocol.OneList(list=list_id, start=start, stop=stop))

    def refs(self, space: str, names: Sequence[str]) -> dict[str, Ref]:
        """Return the refs that exist among these names."""
        self._connections.check_open()
        if not names:
            return {}
        found: list[Ref] = self._call("refs", space, protocol.Names(tuple(names)))
        return {ref.name: ref for ref in found}

    def scan_refs(self, space: str, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[Ref]:
        """Refs under a prefix, by name."""
        return self._call(
            "scan_refs", space, protocol.Prefix(prefix=prefix, after=after, limit=check_limit(limit))
        )

    def scan(self, space: str, query: EventQuery, *, after: str | None = None, limit: int = 1000) -> Page:
        """Return a page of events in order."""
        return self._call("scan", space, protocol.Scan(query=query, after=after, limit=check_limit(limit)))

    def wait(self, space: str, after_seq: int, *, seconds: float) -> int:
        """Block until the space's last sequence number is past ``after_seq``, or time is up."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            asked = protocol.Wait(after_seq=after_seq, seconds=min(left, protocol.MAX_WAIT_SECONDS))
            last_seq: int = self._call("wait", space, asked)
            if last_seq > after_seq or time.monotonic() >= deadline:
                return last_seq

    def sums(self, space: str, query: SumQuery) -> list[Sum]:
        """Return totals from the roll-ups."""
        return self._call("sums", space, query)

    def search(self, space: str, query: SearchQuery) -> SearchResult:
        """Return matching texts, best first."""
        return self._call("search", space, query)

    def scan_scopes(
        self, space: str, prefix: str, *, after: str | None = None, limit: int = 1000
    ) -> list[str]:
        """Erasure scopes that anything is stored under."""
        return self._call(
            "scan_scopes", space, protocol.Prefix(prefix=prefix, after=after, limit=check_limit(limit))
        )

    def spaces(self) -> list[str]:
        """The namespaces of the project that were ever written to, by name."""
        return self._call("spaces", protocol.DEFAULT_NAMESPACE, protocol.Nothing())

    # Maintenance
    def erase(self, space: str, plan: Erasure) -> Erased:
        """Remove what the plan names, and the unshared content behind it."""
        return self._call("erase", space, plan)

    def sweep(self, space: str, *, dry_run: bool = False, grace_seconds: float = 3600.0) -> Swept:
        """Mark everything reachable from refs and events, and remove the rest."""
        return self._call("sweep", space, protocol.Sweep(dry_run=dry_run, grace_seconds=grace_seconds))

    def check(self, space: str, *, read_content: bool = True) -> Iterator[Problem | Checked]:
        """Verify everything, on the server; what it finds comes as it is found."""
        body = [_message(protocol.Check(read_content=read_content))]
        for message in self._connections.stream(METHODS["check"], check_space(space), body):
            for found in _decoders["check"].decode(message):
                yield found.problem if isinstance(found, protocol.Found) else found.checked

    def reindex(self, space: str) -> None:
        """Rebuild all that is derived."""
        self._call("reindex", space, protocol.Nothing())

    def stats(self, space: str) -> SpaceStats:
        """Measure the space."""
        stats: SpaceStats = self._call("stats", space, protocol.Nothing())
        return msgspec.structs.replace(stats, space=space)

    def export(self, space: str, *, after: str | None = None) -> Iterator[Slice]:
        """Everything in the space as slices in a loadable order; a request for every few of them."""
        while part := self._call_all("export", space, protocol.Behind(after=after)):
            yield from part
            after = part[-1].position

    def load(self, space: str, part: Slice) -> None:
        """Take a slice of another engine's `export`, in pieces that a request has room for."""
        for piece in cut(part, size=self._group_bytes):
            self._call("load", space, piece)

    def snapshot_to(self, folder: Path) -> None:
        """Not offered: a backup of what a key opens is a copy."""
        raise Unsupported(
            f"{self.url} cannot write a snapshot to {folder}; store.backup copies, or back up on the server"
        )

    def close(self) -> None:
        """Finish what was submitted, then let go of everything."""
        self._lane.close()
        self._connections.close()

    # Calls
    def _ask_hello(self) -> protocol.Hello:
        hello: protocol.Hello = self._connections.call(
            METHODS["hello"],
            protocol.DEFAULT_NAMESPACE,
            [_message(protocol.Nothing())],
            lambda messages: _one("hello", messages),
            patience_seconds=OPENING_SECONDS,
        )
        if hello.protocol != protocol.VERSION:
            raise Unsupported(
                f"{self.url} speaks version {hello.protocol} of the gateway's protocol, this treering "
                f"version {protocol.VERSION}; upgrade the older one (the server is treering {hello.version})"
            )
        return hello

    def _call(self, name: str, space: str, args: msgspec.Struct) -> Any:
        """Call a method whose answer is one message."""
        return self._send(name, space, [_message(args)], lambda messages: _one(name, messages))

    def _call_all(self, name: str, space: str, args: msgspec.Struct) -> list[Any]:
        """Call a method whose answer is a list in pieces."""
        decode = _decoders[name].decode
        return self._send(
            name,
            space,
            [_message(args)],
            lambda messages: [item for piece in messages for item in decode(piece)],
        )

    def _send(self, name: str, space: str, body: list[bytes], read: Callable[[Iterator[bytes]], T]) -> T:
        size = sum(map(len, body))
        if size > self._hello.max_request_bytes:
            raise TooLarge(
                f"{self.url} takes {self._hello.max_request_bytes:,} bytes at once, {name} has {size:,}; "
                "cut large contents into pieces, or batches into smaller ones (nothing was written)"
            )
        return self._connections.call(METHODS[name], check_space(space), body, read)

    def _commit(self, batch: Batch) -> Receipt:
        data = _packed(batch)
        if not self._lane.is_free:  # behind what this caller may have submitted before
            return self._lane.submit(batch.space, data).result()
        outcome = self._send_group(batch.space, [data])[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _send_group(self, space: str, batches: list[bytes]) -> list[Outcome]:
        """Commit encoded batches in their order, with one request; how each of them fared."""
        body = [
            protocol.frame(
                protocol.MESSAGE, _encoder.encode({"batches": [msgspec.Raw(data) for data in batches]})
            )
        ]
        outcomes: tuple[protocol.Done | protocol.Failure, ...] = self._send(
            "commit", space, body, lambda messages: _one("commit", messages)
        )
        return [each.receipt if isinstance(each, protocol.Done) else error_of(each) for each in outcomes]

    def _stage(self, space: str, contents: list[bytes]) -> list[str]:
        body = [_message(protocol.Nothing()), *contents]
        return self._send("stage", space, body, lambda messages: _one("stage", messages))

    def _stage_large(self, batch: Batch) -> Batch:
        """The batch, its objects staged ahead if they are too large to travel with it."""
        if sum(len(content.data) for content in batch.objects.values()) <= self._group_bytes:
            return batch
        self.stage(batch.space, batch.objects.values())
        requires = dict.fromkeys((*batch.requires, *batch.objects))
        return msgspec.structs.replace(batch, requires=tuple(requires), objects={})


def open_remote(url: str, *, api_key: str | None = None) -> RemoteEngine:
    """Open the store behind a server; it says at once if the key or the protocol does not fit."""
    if api_key is not None and not (
        api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key
    ):
        raise InvalidInput("the API key holds characters that no key has; copy it again, without line breaks")
    return RemoteEngine(Connections(place_of(url, with_key=api_key is not None), api_key=api_key))


def _message(args: msgspec.Struct) -> bytes:
    return protocol.frame(protocol.MESSAGE, _packed(args))


def _packed(value: msgspec.Struct) -> bytes:
    try:
        return _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError, TypeError, ValueError) as error:
        raise InvalidInput(f"this cannot be sent to a server: {error}; nothing was written") from error


def _one(name: str, messages: Iterator[bytes]) -> Any:
    """The one message of an answer."""
    found = list(messages)
    if len(found) != 1:
        raise TreeringError(f"the server answered {name} with {len(found)} messages instead of one")
    try:
        return _decoders[name].decode(found[0])
    except msgspec.DecodeError as error:
        raise Unsupported(
            f"the server's answer to {name} cannot be read ({error}); upgrade the older side"
        ) from None


def _local(space: str, lease: Lease | None) -> Lease | None:
    """A lease under the name that this side has for the space."""
    return None if lease is None else msgspec.structs.replace(lease, space=space)

"""The remote engine: the engine contract over the gateway of a treering server.

Every read is one request, for a list or a page. Commits are idempotent by their batch ids, so they are
retried after a lost response. Submitted batches are sent by one thread in order, one request at a time, each
with everything submitted meanwhile: a hundred small commits take a handful of round trips. Large objects are
staged ahead of their batch, in requests of limited size. **Invariant:** this engine keeps every promise of a
local one and passes the same suite; what a server cannot promise to its clients is excluded by ``caps``.
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
from typing import Any, Final, TypeVar, cast

import msgspec

from treering.core.batch import Batch, Receipt, validate_batch
from treering.core.content import Address, Content
from treering.core.encoding import decode_json
from treering.core.engine import Caps, OnWork
from treering.core.failpoints import declare, hit
from treering.core.ids import check_id, check_space
from treering.core.query import (
    Erasure,
    EventQuery,
    ListQuery,
    SearchQuery,
    SqlQuery,
    SqlResult,
    SumQuery,
    check_limit,
)
from treering.core.records import (
    Archive,
    Archived,
    Checked,
    CommitDigest,
    Erased,
    Lease,
    ListInfo,
    Page,
    Problem,
    Ref,
    RefPage,
    SearchResult,
    Slice,
    SpaceStats,
    Sum,
    SweepProgress,
    Swept,
)
from treering.engines.remote import protocol
from treering.engines.remote.protocol import METHODS
from treering.engines.remote.transport import ConnectionPool, error_from_failure, parse_server_url
from treering.errors import Closed, InvalidInput, MissingObjects, TooLarge, TreeringError, Unsupported

GROUP_BATCHES: Final = 256

SENDING: Final = declare("remote.sending", "batches are ready to be sent to a server, nothing was sent")
ANSWERED: Final = declare("remote.answered", "a server has committed batches, no caller has its receipt")

Outcome = Receipt | Exception
Send = Callable[[str, list[bytes]], list[Outcome]]


class _PendingBatch:
    """An encoded batch that was submitted."""

    __slots__ = ("data", "future", "space")

    def __init__(self, space: str, data: bytes) -> None:
        self.space = space
        self.data = data
        self.future: Future[Receipt] = Future()
        self.future.set_running_or_notify_cancel()


class BatchSender:
    """Sends submitted batches in order, in groups; ``send`` returns the outcome of each batch in a group.

    A group of several batches has at most about ``group_bytes``.
    """

    def __init__(self, send: Send, *, group_bytes: int) -> None:
        self._send = send
        self._group_bytes = group_bytes
        self._closed = False
        self._start()
        _senders.add(self)

    def _start(self) -> None:
        self._waiting: deque[_PendingBatch] = deque()
        self._sending = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def is_free(self) -> bool:
        """Whether nothing is waiting or being sent. Always true on its own thread (in callbacks)."""
        if threading.current_thread() is self._thread:
            return True
        return not self._waiting and not self._sending

    def submit(self, space: str, data: bytes) -> Future[Receipt]:
        """Send a batch after all submitted ones."""
        pending = _PendingBatch(space, data)
        with self._changed:
            if self._closed:
                raise Closed("the store is closed; open it again")
            self._waiting.append(pending)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="treering-remote", daemon=True)
                self._thread.start()
            self._changed.notify()
        return pending.future

    def close(self) -> None:
        """Send what was submitted and accept no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def abandon(self) -> None:
        """Start over in a forked child: the thread is gone, and waiting batches belong to the parent."""
        self._start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._sending = 0
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                group = self._next_group()
                self._sending = len(group)
            try:
                outcomes = self._send(group[0].space, [pending.data for pending in group])
            except Exception as error:  # noqa: BLE001 - passed to the futures
                outcomes = [error] * len(group)
            for pending, outcome in zip(group, outcomes, strict=True):
                if isinstance(outcome, Exception):
                    pending.future.set_exception(outcome)
                else:
                    pending.future.set_result(outcome)

    def _next_group(self) -> list[_PendingBatch]:
        """Take the next batches of one space, within the limits of a group."""
        group = [self._waiting.popleft()]
        size = len(group[0].data)
        while self._waiting and len(group) < GROUP_BATCHES:
            size += len(self._waiting[0].data)
            if size > self._group_bytes or self._waiting[0].space != group[0].space:
                break
            group.append(self._waiting.popleft())
        return group


_senders: Final[weakref.WeakSet[BatchSender]] = weakref.WeakSet()


def _after_fork() -> None:
    for sender in list(_senders):
        sender.abandon()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


_SECTIONS: Final = ("objects", "commits", "bodies", "events", "lists", "items", "texts", "refs")


def split_slice(part: Slice, *, size: int) -> Iterator[Slice]:
    """Split a slice into pieces of at most ``size`` bytes, except for single larger rows.

    A slice is limited by the stored size of its rows, which may be compressed. **Invariant:** the pieces
    contain the rows of the slice once and in order, so loading them in order equals loading the slice.
    """
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


OPENING_SECONDS: Final = 3.0
"""How long opening a store retries a server that does not respond."""
GROUP_BYTES: Final = 16 * 1024 * 1024
"""Approximate size of a request; a batch with larger objects has them staged first."""
GROUP_CONTENTS: Final = 4096
_STAGINGS: Final = 3

T = TypeVar("T")
Name = TypeVar("Name", bound=str)

_encoder: Final = msgspec.msgpack.Encoder()
_decoders: Final[dict[str, msgspec.msgpack.Decoder[Any]]] = {
    method.name: msgspec.msgpack.Decoder(method.reply) for method in METHODS.values()
}


class RemoteEngine:
    """A store on a server. Thread-safe, and usable in forked children."""

    def __init__(self, connections: ConnectionPool) -> None:
        self._connections = connections
        self._hello: protocol.Hello = self._handshake()
        # Leave room for the names and numbers around the contents.
        self._group_bytes = min(GROUP_BYTES, self._hello.max_request_bytes * 3 // 4)
        self._sender = BatchSender(self._send_group, group_bytes=self._group_bytes)

    @property
    def caps(self) -> Caps:
        """Those of the server's engine, with shared writers and without snapshots."""
        return self._hello.caps

    @property
    def url(self) -> str:
        """The URL of the server, without the key."""
        return self._connections.where

    @property
    def project(self) -> str:
        """The project of the key."""
        return self._hello.project

    @property
    def scope(self) -> str:
        """The permission of the key: ``read``, ``write`` or ``admin``."""
        return self._hello.scope

    # Writing
    def submit(self, batch: Batch) -> Future[Receipt]:
        """Commit a batch in the background, in the order of submission."""
        validate_batch(batch)
        self._connections.check_open()
        slim = self._stage_large(batch)
        return self._sender.submit(batch.space, _packed(slim))

    def commit(self, batch: Batch) -> Receipt:
        """Commit a batch: atomic, idempotent, durable when it returns (if the server's engine is durable)."""
        validate_batch(batch)
        for _ in range(_STAGINGS):
            slim = self._stage_large(batch)
            try:
                return self._commit(slim)
            except MissingObjects as error:
                # A sweep removed staged objects before this commit.
                if slim is batch or not set(error.hashes) & batch.objects.keys():
                    raise
        return self._commit(self._stage_large(batch))

    def stage(self, space: str, contents: Iterable[Content]) -> list[str]:
        """Store objects ahead of the commit that requires them, in groups."""
        check_space(space)
        self._connections.check_open()
        names: list[str] = []
        group: list[bytes] = []
        size = 0
        for content in contents:
            if group and (size + len(content.data) > self._group_bytes or len(group) == GROUP_CONTENTS):
                names += self._stage(space, group)
                group, size = [], 0
            group.append(protocol.frame(protocol.MESSAGE, _packed(Content(content.kind, content.data))))
            size += len(content.data)
        return names + (self._stage(space, group) if group else [])

    def claim(self, space: str, name: str, *, holder: str, seconds: float) -> Lease | None:
        """Take or renew a lease; return ``None`` while another holder has it."""
        check_id(name, "lease name")
        check_id(holder, "holder")
        return _local(
            space,
            self._call("claim", space, protocol.ClaimRequest(name=name, holder=holder, seconds=seconds)),
        )

    def heartbeat(self, lease: Lease, *, seconds: float) -> Lease | None:
        """Extend a lease; return ``None`` if it was lost."""
        return _local(
            lease.space,
            self._call("heartbeat", lease.space, protocol.LeaseRequest(lease=lease, seconds=seconds)),
        )

    def release(self, lease: Lease) -> None:
        """Release a lease if it is still held."""
        self._call("release", lease.space, protocol.LeaseRequest(lease=lease))

    # Reading
    def missing(self, space: str, names: Sequence[str]) -> set[str]:
        """Return the objects that are not stored."""
        found: set[str] = set()
        for some in _groups(names):
            found.update(self._call("missing", space, protocol.NamesRequest(some)))
        return found

    def get(self, space: str, addresses: Sequence[Address]) -> list[Content]:
        """Return verified content in the given order."""
        found: list[Content] = []
        for some in _groups(addresses):
            found += self._call_all("get", space, protocol.AddressesRequest(some))
        return found

    def list_info(self, space: str, list_id: str) -> ListInfo | None:
        """Return the length and parent of a list."""
        line = self.lineage(space, list_id)
        return line[0] if line else None

    def lineage(self, space: str, list_id: str) -> list[ListInfo]:
        """Return a list and its ancestors, starting with itself."""
        return self._call("lineage", space, protocol.ListRequest(list=list_id))

    def read_list(self, space: str, list_id: str, start: int, stop: int) -> list[Content]:
        """Return the items from ``start`` up to ``stop`` (or the end), including those of its parents."""
        return self._call_all("read_list", space, protocol.ListRequest(list=list_id, start=start, stop=stop))

    def refs(self, space: str, names: Sequence[str]) -> dict[str, Ref]:
        """Return the refs that exist among these names."""
        self._connections.check_open()
        found: dict[str, Ref] = {}
        for some in _groups(names):
            found.update((ref.name, ref) for ref in self._call("refs", space, protocol.NamesRequest(some)))
        return found

    def scan_refs(self, space: str, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[Ref]:
        """Return the next ``limit`` refs with a prefix, by name, behind ``after``."""
        return self._call(
            "scan_refs", space, protocol.PrefixRequest(prefix=prefix, after=after, limit=check_limit(limit))
        )

    def list_refs(
        self, space: str, query: ListQuery, *, after: str | None = None, limit: int = 1000
    ) -> RefPage:
        """Return a page of the refs of a list, by the time at which they are listed."""
        asked = protocol.ListRefsRequest(query=query, after=after, limit=check_limit(limit))
        return self._call("list_refs", space, asked)

    def scan(self, space: str, query: EventQuery, *, after: str | None = None, limit: int = 1000) -> Page:
        """Return a page of events in order."""
        return self._call(
            "scan", space, protocol.ScanRequest(query=query, after=after, limit=check_limit(limit))
        )

    def wait(self, space: str, after_seq: int, *, seconds: float) -> int:
        """Wait until the space's last sequence number exceeds ``after_seq``, or time is up; return it."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            asked = protocol.WaitRequest(after_seq=after_seq, seconds=min(left, protocol.MAX_WAIT_SECONDS))
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
        """Return the next ``limit`` scopes with a prefix, by name, behind ``after``."""
        return self._call(
            "scan_scopes", space, protocol.PrefixRequest(prefix=prefix, after=after, limit=check_limit(limit))
        )

    def spaces(self) -> list[str]:
        """List the namespaces of the project that were ever written to, by name."""
        return self._call("spaces", protocol.DEFAULT_NAMESPACE, protocol.NoArguments())

    # Maintenance
    def erase(self, space: str, plan: Erasure) -> Erased:
        """Remove what the plan names, and the unshared content behind it."""
        return self._call("erase", space, plan)

    def sweep(
        self,
        space: str,
        *,
        dry_run: bool = False,
        grace_seconds: float = 3600.0,
        on_progress: Callable[[SweepProgress], None] | None = None,  # noqa: ARG002 - nothing to report
    ) -> Swept:
        """Mark everything reachable from refs and events, and remove the rest."""
        return self._call("sweep", space, protocol.SweepRequest(dry_run=dry_run, grace_seconds=grace_seconds))

    def check(
        self, space: str, *, read_content: bool = True, since: int = 0, processes: int = 1
    ) -> Iterator[Problem | Checked]:
        """Verify everything on the server, with processes there; yield problems as they are found."""
        args = protocol.CheckRequest(read_content=read_content, since=since, processes=processes)
        body = [_message(args)]
        for message in self._connections.stream(METHODS["check"], check_space(space), body):
            for found in _decoders["check"].decode(message):
                yield found.problem if isinstance(found, protocol.ProblemFound) else found.checked

    def commit_digests(self, space: str, *, after_seq: int = 0, limit: int = 1000) -> list[CommitDigest]:
        """Return the next commits behind a sequence number, in order."""
        args = protocol.DigestsRequest(after_seq=after_seq, limit=check_limit(limit))
        return self._call("commit_digests", space, args)

    def query(self, space: str, asked: SqlQuery) -> SqlResult:
        """Answer a query in SQL on the server."""
        reply: protocol.QueryReply = self._call("query", space, asked)
        rows = tuple(tuple(row) for row in cast("list[list[Any]]", decode_json(reply.rows)))
        return SqlResult(
            columns=reply.columns,
            types=reply.types,
            rows=rows,
            truncated=reply.truncated,
            seconds=reply.seconds,
        )

    def archive_info(self, space: str) -> Archive:
        """Return the archived files of a space."""
        return self._call("archive_info", space, protocol.NoArguments())

    def archive_before(self, space: str, before_us: int) -> Archived:
        """Archive what runs recorded before a moment, on the server."""
        return self._call("archive_before", space, protocol.ArchiveRequest(before_us=before_us))

    def reindex(self, space: str, *, on_progress: OnWork | None = None) -> None:
        """Rebuild all derived data: roll-ups and search index. The server does not report its progress."""
        del on_progress
        self._call("reindex", space, protocol.NoArguments())

    def stats(self, space: str) -> SpaceStats:
        """Measure the space."""
        stats: SpaceStats = self._call("stats", space, protocol.NoArguments())
        return msgspec.structs.replace(stats, space=space)

    def export(self, space: str, *, after: str | None = None) -> Iterator[Slice]:
        """Yield everything in the space behind a position, as slices; each request returns a few."""
        while part := self._call_all("export", space, protocol.ExportRequest(after=after)):
            yield from part
            after = part[-1].position

    def load(self, space: str, part: Slice) -> None:
        """Load a slice of another engine's `export`, in pieces that fit into a request."""
        for piece in split_slice(part, size=self._group_bytes):
            self._call("load", space, piece)

    def snapshot_to(self, folder: Path, *, on_progress: OnWork | None = None) -> None:
        """Not supported: `backup` copies a remote store."""
        del on_progress
        raise Unsupported(
            f"{self.url} cannot write a snapshot to {folder}; use store.backup, or back up on the server"
        )

    def close(self) -> None:
        """Finish submitted work and close all connections."""
        self._sender.close()
        self._connections.close()

    # Calls
    def _handshake(self) -> protocol.Hello:
        hello: protocol.Hello = self._connections.call(
            METHODS["hello"],
            protocol.DEFAULT_NAMESPACE,
            [_message(protocol.NoArguments())],
            lambda messages: _one("hello", messages),
            retry_seconds=OPENING_SECONDS,
        )
        if hello.protocol != protocol.VERSION:
            raise Unsupported(
                f"{self.url} uses version {hello.protocol} of the gateway protocol, this treering "
                f"version {protocol.VERSION}; upgrade the older one (the server is treering {hello.version})"
            )
        return hello

    def _call(self, name: str, space: str, args: msgspec.Struct) -> Any:
        """Call a method whose response is one message."""
        return self._send(name, space, [_message(args)], lambda messages: _one(name, messages))

    def _call_all(self, name: str, space: str, args: msgspec.Struct) -> list[Any]:
        """Call a method whose response is a list in pieces."""
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
                f"{self.url} accepts {self._hello.max_request_bytes:,} bytes at once, {name} has {size:,}; "
                "split large contents into chunks, or use smaller batches (nothing was written)"
            )
        return self._connections.call(METHODS[name], check_space(space), body, read)

    def _commit(self, batch: Batch) -> Receipt:
        data = _packed(batch)
        if not self._sender.is_free:  # keep the order of earlier submissions
            return self._sender.submit(batch.space, data).result()
        outcome = self._send_group(batch.space, [data])[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _send_group(self, space: str, batches: list[bytes]) -> list[Outcome]:
        """Commit encoded batches in order with one request; return the outcome of each."""
        body = [
            protocol.frame(
                protocol.MESSAGE, _encoder.encode({"batches": [msgspec.Raw(data) for data in batches]})
            )
        ]
        hit(SENDING)
        outcomes: tuple[protocol.Committed | protocol.Failure, ...] = self._send(
            "commit", space, body, lambda messages: _one("commit", messages)
        )
        hit(ANSWERED)
        return [
            each.receipt if isinstance(each, protocol.Committed) else error_from_failure(each)
            for each in outcomes
        ]

    def _stage(self, space: str, contents: list[bytes]) -> list[str]:
        body = [_message(protocol.NoArguments()), *contents]
        return self._send("stage", space, body, lambda messages: _one("stage", messages))

    def _stage_large(self, batch: Batch) -> Batch:
        """Stage the objects of a batch if they are too large to be sent with it; return the rest."""
        if sum(len(content.data) for content in batch.objects.values()) <= self._group_bytes:
            return batch
        self.stage(batch.space, batch.objects.values())
        requires = dict.fromkeys((*batch.requires, *batch.objects))
        return msgspec.structs.replace(batch, requires=tuple(requires), objects={})


def open_remote(url: str, *, api_key: str | None = None) -> RemoteEngine:
    """Open the store on a server; fails immediately if the key or the protocol version is wrong."""
    if api_key is not None and not (
        api_key.isascii() and api_key.isprintable() and api_key.strip() == api_key
    ):
        raise InvalidInput("the API key contains invalid characters; copy it again, without line breaks")
    return RemoteEngine(ConnectionPool(parse_server_url(url, with_key=api_key is not None), api_key=api_key))


def _message(args: msgspec.Struct) -> bytes:
    return protocol.frame(protocol.MESSAGE, _packed(args))


def _packed(value: msgspec.Struct) -> bytes:
    try:
        return _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError, TypeError, ValueError) as error:
        raise InvalidInput(f"cannot encode this for a server: {error}; nothing was written") from error


def _one(name: str, messages: Iterator[bytes]) -> Any:
    """Return the only message of a response."""
    found = list(messages)
    if len(found) != 1:
        raise TreeringError(f"the server sent {len(found)} messages for {name} instead of one")
    try:
        return _decoders[name].decode(found[0])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unsupported(f"cannot decode the response to {name} ({error}); upgrade the older side") from None


def _local(space: str, lease: Lease | None) -> Lease | None:
    """Return a lease with this side's name of the space."""
    return None if lease is None else msgspec.structs.replace(lease, space=space)


def _groups(names: Sequence[Name]) -> Iterator[tuple[Name, ...]]:
    """Split names into as many as a request may have."""
    for start in range(0, len(names), protocol.MAX_NAMES):
        yield tuple(names[start : start + protocol.MAX_NAMES])

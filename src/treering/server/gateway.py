"""The methods of the gateway: how each call of a remote engine is executed on the server's engine.

**Invariant:** the space of a call is derived only from the key's project and the namespace, and no namespace
leads out of the project: ``default`` is the project's own space, any other one a side space whose name starts
with the project's. A space named in a record is overwritten. What a batch, a lease or a read may touch
follows from the caller's scope (`server.permissions`).

`CommitWaiters` lets any number of clients wait for commits with one thread per space. **Invariant:** a client
that waits for a commit after a sequence number is notified of the first one, even if it happens while the
client is being registered.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec
from anyio import to_thread

import treering
from treering import errors
from treering.core.batch import Batch, Receipt
from treering.core.clock import to_datetime
from treering.core.content import Content
from treering.core.encoding import encode_json
from treering.core.engine import Engine
from treering.core.ids import MAX_SPACE_CHARS, SIDE, check_space, side_of
from treering.core.query import Erasure, SearchQuery, SqlQuery, SumQuery, collecting
from treering.core.records import Archived, Lease, Problem, Ref, Slice
from treering.engines.remote import protocol
from treering.errors import Corrupt, Forbidden, InvalidInput, TreeringError
from treering.server import permissions
from treering.server.auth import Access
from treering.server.http import problem_of
from treering.store import Store

_MAX_SECONDS: Final = 366 * 86_400.0
MAX_QUERY_SECONDS: Final = 60.0
"""The longest time that a query in SQL may take on a server."""
_FIRST_STEP: Final = 64
"""How many contents are read first, before their size is known."""
_log: Final = logging.getLogger("treering.server")


class GatewayTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What a call works on: the engine, the caller's project, and a namespace in it."""

    engine: Engine
    access: Access
    namespace: str
    max_request_bytes: int

    @property
    def space(self) -> str:
        """The space on the engine."""
        return space_of(self.access.project, self.namespace)


def space_of(project: str, namespace: str) -> str:
    """Return the space of a namespace of a project, unique for each pair."""
    if project.startswith(SIDE):
        raise Forbidden(
            f"projects whose names start with {SIDE!r} cannot use the gateway; rename the project"
        )
    if namespace == protocol.DEFAULT_NAMESPACE:
        return project
    if namespace == project:
        raise InvalidInput(
            f"the key belongs to project {project!r}, so namespace={namespace!r} would be a second one "
            "inside of it; omit the namespace to use the project itself"
        )
    space = side_of(project) + check_space(namespace)
    if len(space) > MAX_SPACE_CHARS:
        room = MAX_SPACE_CHARS - len(side_of(project))
        raise InvalidInput(
            f"namespace {namespace[:40]!r}... is too long for this project; use {room} characters"
        )
    return space


def namespaces_of(project: str, spaces: Sequence[str]) -> list[str]:
    """Return the namespaces of a project among all spaces of an engine, by name."""
    side = side_of(project)
    found = [space.removeprefix(side) for space in spaces if space.startswith(side)]
    return sorted([*found, protocol.DEFAULT_NAMESPACE] if project in spaces else found)


def _hello(target: GatewayTarget, _: protocol.NoArguments) -> protocol.Hello:
    return protocol.Hello(
        protocol=protocol.VERSION,
        version=treering.__version__,
        caps=msgspec.structs.replace(target.engine.caps, shared_writers=True, backup=False),
        project=target.access.project,
        scope=target.access.scope,
        max_request_bytes=target.max_request_bytes,
    )


# Writing
def _commit(
    target: GatewayTarget, args: protocol.CommitRequest
) -> tuple[protocol.Committed | protocol.Failure, ...]:
    if len(args.batches) == 1:  # avoids switching threads
        return (_outcome(lambda: target.engine.commit(_validated(target, args.batches[0]))),)
    results: list[Callable[[], Receipt]] = []
    for batch in args.batches:
        try:
            results.append(target.engine.submit(_validated(target, batch)).result)
        except Exception as error:  # noqa: BLE001 - concerns only this batch
            results.append(_raiser(error))
    return tuple(map(_outcome, results))


def _validated(target: GatewayTarget, batch: Batch) -> Batch:
    for name, content in batch.objects.items():
        if content.name != name:
            raise InvalidInput(f"object {name[:12]} does not match its name; nothing was written")
    permissions.check_batch(target.access, batch)
    return msgspec.structs.replace(batch, space=target.space)


def _outcome(result: Callable[[], Receipt]) -> protocol.Committed | protocol.Failure:
    try:
        return protocol.Committed(result())
    except TreeringError as error:
        return failure_of(error)
    except Exception as error:  # noqa: BLE001 - other batches of the request are not affected
        reference = secrets.token_hex(4)
        _log.error("a commit failed [%s]", reference, exc_info=error)
        return protocol.Failure(
            kind=TreeringError.__name__, detail=f"the server failed; see its log for {reference}"
        )


def _raiser(error: Exception) -> Callable[[], Receipt]:
    def result() -> Receipt:
        raise error

    return result


def failure_of(error: TreeringError) -> protocol.Failure:
    """Return an error as a message, with the nearest class that clients know."""
    problem = problem_of(error)
    kind = next(each for each in type(error).__mro__ if getattr(errors, each.__name__, None) is each)
    return protocol.Failure(kind=kind.__name__, detail=problem.detail, more=problem.more)


def _stage(target: GatewayTarget, contents: list[Content]) -> list[str]:
    return target.engine.stage(target.space, contents)


def _claim(target: GatewayTarget, args: protocol.ClaimRequest) -> Lease | None:
    permissions.check_name(target.access, args.name)
    return target.engine.claim(
        target.space, args.name, holder=args.holder, seconds=_seconds(args.seconds, "a lease")
    )


def _heartbeat(target: GatewayTarget, args: protocol.LeaseRequest) -> Lease | None:
    return target.engine.heartbeat(
        _local_lease(target, args.lease), seconds=_seconds(args.seconds, "a lease")
    )


def _release(target: GatewayTarget, args: protocol.LeaseRequest) -> None:
    target.engine.release(_local_lease(target, args.lease))


def _local_lease(target: GatewayTarget, lease: Lease) -> Lease:
    permissions.check_name(target.access, lease.name)
    return msgspec.structs.replace(lease, space=target.space)


def _seconds(seconds: float, what: str) -> float:
    if not math.isfinite(seconds) or not 0 <= seconds <= _MAX_SECONDS:
        raise InvalidInput(f"{what} of {seconds} seconds is invalid; use 0 to {_MAX_SECONDS:.0f}")
    return seconds


# Reading
def _refs(target: GatewayTarget, args: protocol.NamesRequest) -> list[Ref]:
    permissions.check_read(target.access, args.names)
    return list(target.engine.refs(target.space, args.names).values())


def _get(target: GatewayTarget, args: protocol.AddressesRequest) -> Iterator[list[Content]]:
    def read(start: int, stop: int) -> list[Content]:
        return target.engine.get(target.space, args.addresses[start:stop])

    return _pieces(read, 0, len(args.addresses))


def _read_list(target: GatewayTarget, args: protocol.ListRequest) -> Iterator[list[Content]]:
    def read(start: int, stop: int) -> list[Content]:
        return target.engine.read_list(target.space, args.list, start, stop)

    return _pieces(read, max(args.start, 0), args.stop)


def _pieces(read: Callable[[int, int], list[Content]], start: int, stop: int) -> Iterator[list[Content]]:
    """Yield contents in pieces, reading only a few before the client has taken the ones before.

    How many are read at once depends on the size of those before.
    """
    step = _FIRST_STEP
    while True:
        contents = read(start, min(start + step, stop))
        piece: list[Content] = []
        size = 0
        for content in contents:
            piece.append(content)
            size += len(content.data)
            if size >= protocol.PIECE_BYTES:
                yield piece
                piece, size = [], 0
        yield piece
        start += step
        if start >= stop or len(contents) < step:
            return
        total = sum(len(each.data) for each in contents) + 1
        step = max(1, min(step * protocol.PIECE_BYTES // total, step * 8))


# Maintenance
def _check(
    target: GatewayTarget, args: protocol.CheckRequest
) -> Iterator[list[protocol.ProblemFound | protocol.Progress]]:
    processes = min(args.processes, os.cpu_count() or 1)
    for found in target.engine.check(
        target.space, read_content=args.read_content, since=args.since, processes=processes
    ):
        yield [
            protocol.ProblemFound(problem=found)
            if isinstance(found, Problem)
            else protocol.Progress(checked=found)
        ]


def _export(target: GatewayTarget, args: protocol.ExportRequest) -> Iterator[list[Slice]]:
    """Yield a few slices; the client requests the ones after the last."""
    size = 0
    for part in target.engine.export(target.space, after=args.after):
        yield [part]
        size += _encoded_size(part)
        if size >= protocol.PIECE_BYTES:
            return


def _encoded_size(part: Slice) -> int:
    """Return the approximate encoded size of a slice."""
    contents = [*part.objects, *(slot for body in part.bodies for slot in body.slots)]
    contents += [row.item for row in part.items if not isinstance(row.item, str)]
    rows = len(part.commits) + len(part.events) + len(part.lists) + len(part.items) + len(part.refs)
    return sum(len(content.data) for content in contents) + 200 * rows


def _query(target: GatewayTarget, asked: SqlQuery) -> protocol.QueryReply:
    found = store_of(target).query(
        asked.sql, asked.params, max_rows=asked.max_rows, seconds=min(asked.seconds, MAX_QUERY_SECONDS)
    )
    return protocol.QueryReply(
        columns=found.columns,
        types=found.types,
        rows=encode_json([list(row) for row in found.rows]),
        truncated=found.truncated,
        seconds=found.seconds,
    )


def _archive(target: GatewayTarget, args: protocol.ArchiveRequest) -> Archived:
    try:
        before = to_datetime(args.before_us)
    except OverflowError:
        raise InvalidInput(f"before_us={args.before_us} is no date; pass microseconds since 1970") from None
    return store_of(target).archive(before=before)


def store_of(target: GatewayTarget) -> Store:
    """Return the store of the caller's namespace, for methods that are more than a call of the engine."""
    return Store(target.engine, space=target.space)


def _reindex(target: GatewayTarget, _: protocol.NoArguments) -> None:
    target.engine.reindex(target.space)


def _erase(target: GatewayTarget, plan: Erasure) -> Any:
    return target.engine.erase(target.space, plan)


def _sweep(target: GatewayTarget, args: protocol.SweepRequest) -> Any:
    if not math.isfinite(args.grace_seconds) or args.grace_seconds < 0:
        raise InvalidInput(f"a grace of {args.grace_seconds} seconds is invalid; use 0 or more")
    return target.engine.sweep(target.space, dry_run=args.dry_run, grace_seconds=args.grace_seconds)


def _sums(target: GatewayTarget, query: SumQuery) -> Any:
    return target.engine.sums(target.space, query)


Found = TypeVar("Found")


def _whole(read: Callable[[], Found]) -> Found:
    """Return a list, or raise `Corrupt` if something was left out of it: the client could not know."""
    with collecting() as unreadable:
        found = read()
    for each in unreadable.values():
        raise Corrupt(each.problem)
    return found


def _search(target: GatewayTarget, query: SearchQuery) -> Any:
    return target.engine.search(target.space, query)


STREAMED: Final[dict[str, Callable[[GatewayTarget, Any], Iterator[Any]]]] = {
    "get": _get,
    "read_list": _read_list,
    "check": _check,
    "export": _export,
}
"""Methods whose response is several messages."""

SINGLE: Final[dict[str, Callable[[GatewayTarget, Any], Any]]] = {
    "hello": _hello,
    "commit": _commit,
    "stage": _stage,
    "claim": _claim,
    "heartbeat": _heartbeat,
    "release": _release,
    "missing": lambda target, args: sorted(target.engine.missing(target.space, args.names)),
    "lineage": lambda target, args: target.engine.lineage(target.space, args.list),
    "refs": _refs,
    "scan_refs": lambda target, args: _whole(
        lambda: permissions.scan_refs(
            target.access, target.engine, target.space, args.prefix, after=args.after, limit=args.limit
        )
    ),
    "list_refs": lambda target, args: _whole(
        lambda: permissions.list_refs(
            target.access, target.engine, target.space, args.query, after=args.after, limit=args.limit
        )
    ),
    "scan": lambda target, args: target.engine.scan(
        target.space, args.query, after=args.after, limit=args.limit
    ),
    "sums": _sums,
    "search": _search,
    "scan_scopes": lambda target, args: target.engine.scan_scopes(
        target.space, args.prefix, after=args.after, limit=args.limit
    ),
    "spaces": lambda target, _: namespaces_of(target.access.project, target.engine.spaces()),
    "stats": lambda target, _: target.engine.stats(target.space),
    "erase": _erase,
    "sweep": _sweep,
    "commit_digests": lambda target, args: target.engine.commit_digests(
        target.space, after_seq=args.after_seq, limit=args.limit
    ),
    "reindex": _reindex,
    "query": _query,
    "archive_info": lambda target, _: store_of(target).archived(),
    "archive_before": _archive,
    "load": lambda target, part: target.engine.load(target.space, part),
}
"""Methods whose response is one message."""


MAX_THREADS: Final = 256
"""Maximum number of spaces with a thread; clients that wait for further spaces poll."""

_POLL_SECONDS: Final = 1.0
"""How often a thread checks for remaining clients, and how often clients without a thread poll."""


class _Waiter(msgspec.Struct, frozen=True, eq=False):
    after_seq: int
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[int]


class _SpaceWaiters:
    """The clients that wait for one space, and its last known sequence number."""

    def __init__(self, last_seq: int) -> None:
        self.last_seq = last_seq
        self.waiters: list[_Waiter] = []


class CommitWaiters:
    """All clients that wait for commits, with one thread per space."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._watches: dict[str, _SpaceWaiters] = {}

    async def wait(self, space: str, after_seq: int, *, seconds: float) -> int:
        """Wait until the last sequence number of a space exceeds ``after_seq``, or time is up; return it."""
        last_seq = await to_thread.run_sync(self._now, space)
        if last_seq > after_seq or seconds <= 0:
            return last_seq
        waiter = _Waiter(after_seq, asyncio.get_running_loop(), asyncio.get_running_loop().create_future())
        with self._lock:
            watch = self._watches.get(space)
            if watch is not None and watch.last_seq > after_seq:
                return watch.last_seq
            if watch is None and len(self._watches) < MAX_THREADS:
                watch = self._watches[space] = _SpaceWaiters(last_seq)
                threading.Thread(
                    target=self._watch, args=(space, watch), name="treering-commit-waiters", daemon=True
                ).start()
            if watch is not None:
                watch.waiters.append(waiter)
        if watch is None:
            return await self._poll(space, after_seq, seconds)
        try:
            return await asyncio.wait_for(waiter.done, seconds)
        except TimeoutError:
            return await to_thread.run_sync(self._now, space)
        finally:
            with self._lock:
                if waiter in watch.waiters:
                    watch.waiters.remove(waiter)

    async def _poll(self, space: str, after_seq: int, seconds: float) -> int:
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            await asyncio.sleep(max(0.0, min(left, _POLL_SECONDS)))
            last_seq = await to_thread.run_sync(self._now, space)
            if last_seq > after_seq or left <= _POLL_SECONDS:
                return last_seq

    def _now(self, space: str) -> int:
        return self._engine.wait(space, 0, seconds=0)

    def _watch(self, space: str, watch: _SpaceWaiters) -> None:
        while True:
            error: Exception | None = None
            last_seq = watch.last_seq
            try:
                last_seq = self._engine.wait(space, watch.last_seq, seconds=_POLL_SECONDS)
            except Exception as caught:  # noqa: BLE001 - passed to the waiting clients
                error = caught
            with self._lock:
                watch.last_seq = max(watch.last_seq, last_seq)
                ready = [each for each in watch.waiters if error is not None or each.after_seq < last_seq]
                watch.waiters = [each for each in watch.waiters if each not in ready]
                is_done = error is not None or not watch.waiters
                if is_done:
                    del self._watches[space]
            for waiter in ready:
                waiter.loop.call_soon_threadsafe(_resolve, waiter.done, last_seq, error)
            if is_done:
                return


def _resolve(done: asyncio.Future[int], last_seq: int, error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(last_seq)
    else:
        done.set_exception(error)

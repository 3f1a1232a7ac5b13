"""The gateway's methods: what each call of a remote engine does on the engine here.

**Invariant:** which space a call works on follows from the key's project and the namespace alone, and no
namespace leads out of the project: ``default`` is the project's own space, any other one a side space of the
project, whose name begins with the project's. Whatever a record says about its space is overwritten.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
from anyio import to_thread

import treering
from treering import errors
from treering.core.batch import Batch, Receipt
from treering.core.content import Content
from treering.core.engine import Engine
from treering.core.ids import MAX_SPACE_CHARS, check_space
from treering.core.query import Erasure, SearchQuery, SumQuery
from treering.core.records import Lease, Problem, Slice
from treering.engines.remote import protocol
from treering.errors import Forbidden, InvalidInput, TreeringError
from treering.server.auth import Access
from treering.server.http import problem_of

SIDE: Final = "side."
"""Where names of side spaces begin. No project that begins so has a gateway."""

_LONGEST_SECONDS: Final = 366 * 86_400.0
_log: Final = logging.getLogger("treering.server")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Where a call works: the engine, the caller's project, and the namespace in it."""

    engine: Engine
    access: Access
    namespace: str
    max_request_bytes: int

    @property
    def space(self) -> str:
        """The space on the engine."""
        return space_of(self.access.project, self.namespace)


def space_of(project: str, namespace: str) -> str:
    """The space of a namespace of a project. Different pairs never have the same one."""
    if project.startswith(SIDE):
        raise Forbidden(f"projects whose names begin with {SIDE!r} have no gateway; rename the project")
    if namespace == protocol.DEFAULT_NAMESPACE:
        return project
    if namespace == project:
        raise InvalidInput(
            f"the key belongs to project {project!r}, so namespace={namespace!r} would be another one inside "
            "of it; leave the namespace out to work in the project itself"
        )
    space = _side(project) + check_space(namespace)
    if len(space) > MAX_SPACE_CHARS:
        room = MAX_SPACE_CHARS - len(_side(project))
        raise InvalidInput(
            f"namespace {namespace[:40]!r}... is too long for this project; use {room} characters"
        )
    return space


def namespaces_of(project: str, spaces: Sequence[str]) -> list[str]:
    """The namespaces of a project among all spaces of an engine, by name."""
    side = _side(project)
    found = [space.removeprefix(side) for space in spaces if space.startswith(side)]
    return sorted([*found, protocol.DEFAULT_NAMESPACE] if project in spaces else found)


def _side(project: str) -> str:
    return f"{SIDE}{len(project)}.{project}."


def _hello(site: Site, _: protocol.Nothing) -> protocol.Hello:
    return protocol.Hello(
        protocol=protocol.VERSION,
        version=treering.__version__,
        caps=msgspec.structs.replace(site.engine.caps, shared_writers=True, backup=False),
        project=site.access.project,
        scope=site.access.scope,
        max_request_bytes=site.max_request_bytes,
    )


# Writing
def _commit(site: Site, args: protocol.Commits) -> tuple[protocol.Done | protocol.Failure, ...]:
    if len(args.batches) == 1:  # without a change of thread
        return (_outcome(lambda: site.engine.commit(_own(site, args.batches[0]))),)
    under_way: list[Callable[[], Receipt]] = []
    for batch in args.batches:
        try:
            under_way.append(site.engine.submit(_own(site, batch)).result)
        except Exception as error:  # noqa: BLE001 - it is of this batch alone
            under_way.append(_raiser(error))
    return tuple(map(_outcome, under_way))


def _own(site: Site, batch: Batch) -> Batch:
    for name, content in batch.objects.items():
        if content.name != name:
            raise InvalidInput(
                f"object {name[:12]} holds other bytes than its name says; nothing was written"
            )
    return msgspec.structs.replace(batch, space=site.space)


def _outcome(result: Callable[[], Receipt]) -> protocol.Done | protocol.Failure:
    try:
        return protocol.Done(result())
    except TreeringError as error:
        return failure_of(error)
    except Exception as error:  # noqa: BLE001 - the neighbours in the request are not to blame
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
    """An error as it travels inside of a message: by the nearest class that clients know."""
    problem = problem_of(error)
    kind = next(each for each in type(error).__mro__ if getattr(errors, each.__name__, None) is each)
    return protocol.Failure(kind=kind.__name__, detail=problem.detail, more=problem.more)


def _stage(site: Site, contents: list[Content]) -> list[str]:
    return site.engine.stage(site.space, contents)


def _claim(site: Site, args: protocol.Claim) -> Lease | None:
    return site.engine.claim(
        site.space, args.name, holder=args.holder, seconds=_seconds(args.seconds, "a lease")
    )


def _heartbeat(site: Site, args: protocol.Held) -> Lease | None:
    return site.engine.heartbeat(_own_lease(site, args.lease), seconds=_seconds(args.seconds, "a lease"))


def _release(site: Site, args: protocol.Held) -> None:
    site.engine.release(_own_lease(site, args.lease))


def _own_lease(site: Site, lease: Lease) -> Lease:
    return msgspec.structs.replace(lease, space=site.space)


def _seconds(seconds: float, what: str) -> float:
    if not math.isfinite(seconds) or not 0 <= seconds <= _LONGEST_SECONDS:
        raise InvalidInput(f"{what} of {seconds} seconds is not acceptable; use 0 to {_LONGEST_SECONDS:.0f}")
    return seconds


# Reading
def _get(site: Site, args: protocol.Addresses) -> Iterator[list[Content]]:
    return _pieces(site.engine.get(site.space, args.addresses))


def _read_list(site: Site, args: protocol.OneList) -> Iterator[list[Content]]:
    return _pieces(site.engine.read_list(site.space, args.list, args.start, args.stop))


def _pieces(contents: list[Content]) -> Iterator[list[Content]]:
    piece: list[Content] = []
    size = 0
    for content in contents:
        piece.append(content)
        size += len(content.data)
        if size >= protocol.PIECE_BYTES:
            yield piece
            piece, size = [], 0
    yield piece


# Looking after it
def _check(site: Site, args: protocol.Check) -> Iterator[list[protocol.Found | protocol.Progress]]:
    for found in site.engine.check(site.space, read_content=args.read_content):
        yield [
            protocol.Found(problem=found) if isinstance(found, Problem) else protocol.Progress(checked=found)
        ]


def _export(site: Site, args: protocol.Behind) -> Iterator[list[Slice]]:
    """Some slices: the caller asks for those behind the last one."""
    size = 0
    for part in site.engine.export(site.space, after=args.after):
        yield [part]
        size += _weight(part)
        if size >= protocol.PIECE_BYTES:
            return


def _weight(part: Slice) -> int:
    """About how many bytes a slice has on the wire."""
    contents = [*part.objects, *(slot for body in part.bodies for slot in body.slots)]
    contents += [row.item for row in part.items if not isinstance(row.item, str)]
    rows = len(part.commits) + len(part.records) + len(part.lists) + len(part.items) + len(part.refs)
    return sum(len(content.data) for content in contents) + 200 * rows


def _reindex(site: Site, _: protocol.Nothing) -> None:
    site.engine.reindex(site.space)


def _erase(site: Site, plan: Erasure) -> Any:
    return site.engine.erase(site.space, plan)


def _sweep(site: Site, args: protocol.Sweep) -> Any:
    if not math.isfinite(args.grace_seconds) or args.grace_seconds < 0:
        raise InvalidInput(f"a grace of {args.grace_seconds} seconds is not acceptable; use 0 or more")
    return site.engine.sweep(site.space, dry_run=args.dry_run, grace_seconds=args.grace_seconds)


def _sums(site: Site, query: SumQuery) -> Any:
    return site.engine.sums(site.space, query)


def _search(site: Site, query: SearchQuery) -> Any:
    return site.engine.search(site.space, query)


IN_PIECES: Final[dict[str, Callable[[Site, Any], Iterator[Any]]]] = {
    "get": _get,
    "read_list": _read_list,
    "check": _check,
    "export": _export,
}
"""Methods whose answer is several messages."""

AT_ONCE: Final[dict[str, Callable[[Site, Any], Any]]] = {
    "hello": _hello,
    "commit": _commit,
    "stage": _stage,
    "claim": _claim,
    "heartbeat": _heartbeat,
    "release": _release,
    "missing": lambda site, args: sorted(site.engine.missing(site.space, args.names)),
    "lineage": lambda site, args: site.engine.lineage(site.space, args.list),
    "refs": lambda site, args: list(site.engine.refs(site.space, args.names).values()),
    "scan_refs": lambda site, args: site.engine.scan_refs(
        site.space, args.prefix, after=args.after, limit=args.limit
    ),
    "scan": lambda site, args: site.engine.scan(site.space, args.query, after=args.after, limit=args.limit),
    "sums": _sums,
    "search": _search,
    "scan_scopes": lambda site, args: site.engine.scan_scopes(
        site.space, args.prefix, after=args.after, limit=args.limit
    ),
    "spaces": lambda site, _: namespaces_of(site.access.project, site.engine.spaces()),
    "stats": lambda site, _: site.engine.stats(site.space),
    "erase": _erase,
    "sweep": _sweep,
    "reindex": _reindex,
    "load": lambda site, part: site.engine.load(site.space, part),
}
"""Methods whose answer is one message."""


# -----------------------------------------------------------------------------------------------------------
# Waiting for news without a thread for everyone who waits.
#
# One thread looks after all who wait for the same space; it begins with the first of them and ends with the
# last. **Invariant:** whoever waits behind a number hears of the first commit past it, also of one that came
# while they were signing in.


MAX_THREADS: Final = 256
"""For so many spaces a thread looks on; those who wait for further ones look by themselves, now and then."""

_LOOK_SECONDS: Final = 1.0
"""How often a thread looks whether anybody is still waiting, and how often those without one look."""


class _Waiter(msgspec.Struct, frozen=True, eq=False):
    after_seq: int
    loop: asyncio.AbstractEventLoop
    news: asyncio.Future[int]


class _Watch:
    """Those who wait for one space, and the last number that was seen there."""

    def __init__(self, last_seq: int) -> None:
        self.last_seq = last_seq
        self.waiters: list[_Waiter] = []


class Waits:
    """Everyone who waits for an engine's spaces."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._watches: dict[str, _Watch] = {}

    async def wait(self, space: str, after_seq: int, *, seconds: float) -> int:
        """The last sequence number of a space once it is past ``after_seq``, or when time is up."""
        last_seq = await to_thread.run_sync(self._now, space)
        if last_seq > after_seq or seconds <= 0:
            return last_seq
        waiter = _Waiter(after_seq, asyncio.get_running_loop(), asyncio.get_running_loop().create_future())
        with self._lock:
            watch = self._watches.get(space)
            if watch is not None and watch.last_seq > after_seq:
                return watch.last_seq
            if watch is None and len(self._watches) < MAX_THREADS:
                watch = self._watches[space] = _Watch(last_seq)
                threading.Thread(
                    target=self._look, args=(space, watch), name="treering-waits", daemon=True
                ).start()
            if watch is not None:
                watch.waiters.append(waiter)
        if watch is None:
            return await self._poll(space, after_seq, seconds)
        try:
            return await asyncio.wait_for(waiter.news, seconds)
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
            await asyncio.sleep(max(0.0, min(left, _LOOK_SECONDS)))
            last_seq = await to_thread.run_sync(self._now, space)
            if last_seq > after_seq or left <= _LOOK_SECONDS:
                return last_seq

    def _now(self, space: str) -> int:
        return self._engine.wait(space, 0, seconds=0)

    def _look(self, space: str, watch: _Watch) -> None:
        while True:
            error: Exception | None = None
            last_seq = watch.last_seq
            try:
                last_seq = self._engine.wait(space, watch.last_seq, seconds=_LOOK_SECONDS)
            except Exception as caught:  # noqa: BLE001 - it belongs to those who wait
                error = caught
            with self._lock:
                watch.last_seq = max(watch.last_seq, last_seq)
                told = [each for each in watch.waiters if error is not None or each.after_seq < last_seq]
                watch.waiters = [each for each in watch.waiters if each not in told]
                is_done = error is not None or not watch.waiters
                if is_done:
                    del self._watches[space]
            for waiter in told:
                waiter.loop.call_soon_threadsafe(_tell, waiter.news, last_seq, error)
            if is_done:
                return


def _tell(news: asyncio.Future[int], last_seq: int, error: Exception | None) -> None:
    if news.done():
        return
    if error is None:
        news.set_result(last_seq)
    else:
        news.set_exception(error)

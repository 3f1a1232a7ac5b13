"""Live streams: one reader of the journal for each project, however many look on.

The reader's thread follows the journal and puts events, in order, into a ring that all subscribers share; a
subscriber is a position in it and nothing else. It takes everything behind its position at once, so a reader
that is a little slow gets larger pieces, and one that is so slow that the ring has moved on is cut off and
told where to go on. **Invariant:** a subscriber gets every event that it wants, once and in order, up to
where it is cut off; memory is bounded by the ring, whatever subscribers do, and none makes another one wait.

A subscriber that begins further back than the ring reads the journal itself until it has caught up.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import msgspec
from anyio import to_thread

from treering.core.engine import Engine
from treering.core.query import EventQuery
from treering.errors import TreeringError
from treering.runs.follow import LiveEvent, Selection, last_seq, live_event

RING_EVENTS: Final = 8192
RING_BYTES: Final = 16 << 20
PIECE_EVENTS: Final = 500
PIECE_BYTES: Final = 512 << 10
"""The most that a subscriber takes at once."""
HEARTBEAT_SECONDS: Final = 15.0
_PAGE: Final = 1000
_WAIT_SECONDS: Final = 0.5
_GOODBYE_SECONDS: Final = 1.0
_encode: Final = msgspec.json.Encoder().encode
log: Final = logging.getLogger("treering.server")


class Delivery:
    """An event on its way; it is encoded once, when the first subscriber wants it."""

    __slots__ = ("_json", "event", "size")

    def __init__(self, event: LiveEvent, size: int) -> None:
        self.event = event
        self.size = size
        self._json: bytes | None = None

    @property
    def json(self) -> bytes:
        """The event in JSON."""
        if self._json is None:
            self._json = _encode(self.event)
        return self._json


class Piece(msgspec.Struct, frozen=True):
    """What a subscriber gets at once; empty ones come now and then, to show that it is still followed.

    ``seq`` is where to go on behind it. The last piece of a subscriber says why there are no more.
    """

    seq: int
    deliveries: Sequence[Any] = ()
    end: str | None = None
    """``cut``: too slow; ``end``: the server stops; ``None``: there will be more."""


class Feed:
    """The ring of one project. All of it but `_read` runs on the event loop."""

    def __init__(self, engine: Engine, space: str, *, most: int = RING_EVENTS) -> None:
        self._engine = engine
        self._space = space
        self._most = most
        self._ring: deque[Delivery] = deque()
        self._bytes = 0
        self._dropped = 0
        """How many events have left the ring: the number of its first one."""
        self._complete_from = 0
        """The ring holds every event behind this sequence number."""
        self._position = 0
        self._changed = asyncio.Event()
        self._subscribers = 0
        self._thread: threading.Thread | None = None
        self._starting = asyncio.Lock()
        self._is_over = False

    async def subscribe(
        self, wanted: Selection, *, after: int | None, heartbeat_seconds: float = HEARTBEAT_SECONDS
    ) -> AsyncGenerator[Piece]:
        """Pieces for one subscriber, behind a sequence number.

        Only what is new comes behind ``None``, and behind a number that this journal has not given yet.
        """
        self._subscribers += 1
        try:
            await self._run()
            position = self._position if after is None else after
            if position > self._position:  # another server is ahead, or it is no place of this journal
                position = min(position, await to_thread.run_sync(last_seq, self._engine, self._space))
            yield Piece(position)
            while position < self._complete_from and not self._is_over:
                piece = await to_thread.run_sync(self._catch_up, wanted, position)
                position = piece.seq
                yield piece
            number = self._number_behind(position)
            while not self._is_over:
                if number < self._dropped:
                    yield Piece(position, end="cut")
                    return
                piece, number = self._take(wanted, number, position)
                if number < self._dropped + len(self._ring) or piece.deliveries:
                    position = piece.seq
                    if piece.deliveries:
                        yield piece
                    continue
                position = max(position, self._position)
                if not await self._wait(heartbeat_seconds):
                    yield Piece(position)
            yield Piece(position, end="end")
        finally:
            self._subscribers -= 1
            if self._is_over:
                self._wake()

    @property
    def is_over(self) -> bool:
        """Whether it lets everyone go, because the server stops or because it cannot read any further."""
        return self._is_over

    def end(self) -> None:
        """Let all subscribers go."""
        self._is_over = True
        self._wake()

    async def left(self) -> None:
        """Return when there are no subscribers any more."""
        while self._subscribers:
            changed = self._changed
            await changed.wait()

    def _take(self, wanted: Selection, number: int, position: int) -> tuple[Piece, int]:
        """What is wanted of the events from ``number`` on, and the number behind them."""
        some: list[Delivery] = []
        room = PIECE_BYTES
        for each in islice(self._ring, number - self._dropped, number - self._dropped + PIECE_EVENTS):
            some.append(each)
            room -= each.size
            if room < 0:
                break
        found = [each for each in some if each.event.seq > position and wanted.holds(each.event)]
        return Piece(max(position, some[-1].event.seq if some else 0), found), number + len(some)

    def _number_behind(self, position: int) -> int:
        """The number of the first event behind a sequence number."""
        for index, each in enumerate(self._ring):
            if each.event.seq > position:
                return self._dropped + index
        return self._dropped + len(self._ring)

    def _catch_up(self, wanted: Selection, position: int) -> Piece:
        edge = self._complete_from  # committed before this looks, so it is seen
        page = self._engine.scan(self._space, wanted.query, after=str(position), limit=PIECE_EVENTS)
        found = [Delivery(event, 0) for event in map(live_event, page.records) if wanted.holds(event)]
        if page.cursor is None:
            seen = page.records[-1].seq if page.records else position
            return Piece(max(seen, edge), found)
        return Piece(page.records[-1].seq, found)

    async def _wait(self, seconds: float) -> bool:
        """Whether something came within so many seconds."""
        changed = self._changed
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return False
        return True

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _run(self) -> None:
        """See that the reader runs; the first one begins with what is committed from now on."""
        async with self._starting:
            if self._thread is not None:
                return
            start = await to_thread.run_sync(last_seq, self._engine, self._space)
            self._dropped += len(self._ring)
            self._ring.clear()
            self._bytes = 0
            self._complete_from = self._position = start
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(
            target=self._read,
            args=(self._position, asyncio.get_running_loop()),
            name="treering-live",
            daemon=True,
        )
        self._thread.start()

    def _stopped(self, *, failed: bool) -> None:
        """The reader has stopped, because nobody looked on or because it cannot go on."""
        self._thread = None
        if self._subscribers and not self._is_over:
            if failed:
                self.end()
            else:  # somebody came just then
                self._start()

    def _add(self, events: Sequence[Delivery], position: int, taken: threading.Event) -> None:
        self._ring.extend(events)
        self._bytes += sum(each.size for each in events)
        while len(self._ring) > self._most or (self._bytes > RING_BYTES and self._ring):
            gone = self._ring.popleft()
            self._bytes -= gone.size
            self._dropped += 1
            self._complete_from = gone.event.seq
        self._position = position
        taken.set()
        self._wake()

    # The reader's thread
    def _read(self, position: int, loop: asyncio.AbstractEventLoop) -> None:
        failed = False
        while not self._is_over and self._subscribers:
            try:
                last = self._engine.wait(self._space, position, seconds=_WAIT_SECONDS)
                if last <= position:
                    continue
                page = self._engine.scan(self._space, EventQuery(), after=str(position), limit=_PAGE)
                events = [
                    Delivery(live_event(each), 500 + len(each.event.data or b"")) for each in page.records
                ]
            except Exception as error:
                if isinstance(error, TreeringError) and error.retryable:
                    time.sleep(_WAIT_SECONDS)
                    continue
                log.exception("the journal of %r cannot be followed behind %d", self._space, position)
                failed = True  # those who look on are told where to go on, and may come again
                break
            seen = page.records[-1].seq if page.records else 0
            position = seen if page.cursor is not None else max(last, seen)
            taken = threading.Event()
            if not _post(loop, lambda: self._add(events, position, taken)):  # noqa: B023 - it is waited for
                return
            while not taken.wait(_WAIT_SECONDS):
                if loop.is_closed():
                    return
        _post(loop, lambda: self._stopped(failed=failed))


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> bool:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # the loop was closed
        return False
    return True


class Streams:
    """The feeds of all projects of a server."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._feeds: dict[str, Feed] = {}
        self._is_over = False

    def of(self, space: str) -> Feed:
        """The feed of a project; called on the event loop."""
        feed = self._feeds.get(space)
        if feed is None or (feed.is_over and not self._is_over):
            feed = self._feeds[space] = Feed(self._engine, space)
            if self._is_over:
                feed.end()
        return feed

    async def end(self) -> None:
        """Let all subscribers go, because the server stops; waits a moment for them to be told."""
        self._is_over = True
        for feed in self._feeds.values():
            feed.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await asyncio.gather(*(feed.left() for feed in self._feeds.values()))

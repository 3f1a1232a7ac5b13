"""Live streams: one reader of the journal for each project, whatever the number of subscribers.

The reader's thread follows the journal and appends events, in order, to a ring that all subscribers share; a
subscriber is only a position in it. It takes everything after its position at once, so a client that is a bit
slow gets larger batches, and one that is so slow that the ring has moved on is cut off and told where to
resume. **Invariant:** a subscriber gets every matching event once and in order, up to where it is cut off.
Memory is bounded by the ring, and no subscriber delays another one. A row is encoded once for each shape that
subscribers ask for: as a row of the journal, or as the events that a timeline makes of it.

A subscriber that starts further back than the ring reads the journal itself until it has caught up. Only a
few do so at once, and each keeps no more of a page than it sends next.
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
from typing import Final, Literal

import msgspec
from anyio import to_thread

from treering.core.engine import Engine
from treering.core.query import EventQuery, last_seq
from treering.core.records import Record
from treering.core.text import plain
from treering.errors import TooMany, TreeringError
from treering.runs.follow import LiveFilter, live_event
from treering.runs.timeline import event_to_dict, timeline_events

RING_EVENTS: Final = 8192
RING_BYTES: Final = 16 << 20
BATCH_EVENTS: Final = 500
BATCH_BYTES: Final = 128 << 10
"""The most that a subscriber takes at once: a client that stops reading keeps the server from freeing it."""
MAX_SUBSCRIBERS: Final = 200
"""How many may follow a project at once."""
CATCHING_UP: Final = 2
"""How many subscribers of a project read the journal at once."""
HEARTBEAT_SECONDS: Final = 15.0
_PAGE: Final = 250
_FIRST_ROWS: Final = 16
_ROW_BYTES: Final = 500
"""About what a row takes besides its data."""
_WAIT_SECONDS: Final = 0.5
_CLOSE_SECONDS: Final = 1.0
_encode: Final = msgspec.json.Encoder().encode
log: Final = logging.getLogger("treering.server")


Shape = Literal["journal", "timeline", "timeline-all"]
"""How rows are sent: as they are, or as the usual or all events of a timeline."""


class FeedEvent:
    """A row of the journal in the ring. It is encoded once a shape, when the first subscriber needs it."""

    __slots__ = ("_json", "_record", "event", "size")

    def __init__(self, record: Record, size: int) -> None:
        self.event = live_event(record)
        self.size = size
        self._record = record
        self._json: dict[Shape, tuple[bytes, ...]] = {}

    def json(self, shape: Shape) -> tuple[bytes, ...]:
        """The row as JSON; in a timeline it may be no event, one or two."""
        encoded = self._json.get(shape)
        if encoded is None:
            if shape == "journal":
                encoded = (_encode(plain(self.event)),)
            else:
                events = timeline_events(self._record, everything=shape == "timeline-all")
                encoded = tuple(_encode(event_to_dict(each)) for each in events)
            self._json[shape] = encoded
        return encoded


class StreamBatch(msgspec.Struct, frozen=True):
    """Events for a subscriber; an empty batch is a heartbeat.

    ``seq`` is the number to resume after. The last batch says why there are no more.
    """

    seq: int
    events: Sequence[FeedEvent] = ()
    end: str | None = None
    """``cut``: too slow; ``end``: the server stops; ``None``: more will follow.

    `treering.server.routes.live` adds ``revoked``.
    """


class Feed:
    """The ring of one project. Everything but `_read` runs on the event loop."""

    def __init__(self, engine: Engine, space: str, *, most: int = RING_EVENTS) -> None:
        self._engine = engine
        self._space = space
        self._most = most
        self._ring: deque[FeedEvent] = deque()
        self._bytes = 0
        self._dropped = 0
        """How many events have left the ring; this is the number of its first event."""
        self._complete_from = 0
        """The ring has every event after this sequence number."""
        self._position = 0
        self._changed = asyncio.Event()
        self._subscribers = 0
        self._thread: threading.Thread | None = None
        self._starting = asyncio.Lock()
        self._reading = asyncio.Semaphore(CATCHING_UP)
        self._is_over = False

    async def subscribe(
        self, live_filter: LiveFilter, *, after: int | None, heartbeat_seconds: float = HEARTBEAT_SECONDS
    ) -> AsyncGenerator[StreamBatch]:
        """Iterate over batches for one subscriber, after a sequence number.

        With ``None``, or a number that this journal has not reached, only new events are sent.
        """
        self._subscribers += 1
        try:
            await self._run()
            position = self._position if after is None else after
            if position > self._position:  # another server is ahead, or the number is not of this journal
                position = min(position, await to_thread.run_sync(last_seq, self._engine, self._space))
            yield StreamBatch(position)
            rows = _FIRST_ROWS
            while position < self._complete_from and not self._is_over:
                async with self._reading:
                    batch, rows = await to_thread.run_sync(self._catch_up, live_filter, position, rows)
                position = batch.seq
                yield batch
            number = self._number_after(position)
            while not self._is_over:
                if number < self._dropped:
                    yield StreamBatch(position, end="cut")
                    return
                batch, number = self._take(live_filter, number, position)
                if number < self._dropped + len(self._ring) or batch.events:
                    position = batch.seq
                    if batch.events:
                        yield batch
                    continue
                position = max(position, self._position)
                if not await self._wait(heartbeat_seconds):
                    yield StreamBatch(position)
            yield StreamBatch(position, end="end")
        finally:
            self._subscribers -= 1
            if self._is_over:
                self._wake()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, because the server stops or the journal cannot be read."""
        return self._is_over

    def check_room(self) -> None:
        """Raise `TooMany` if there can be no other subscriber."""
        if self._subscribers >= MAX_SUBSCRIBERS:
            raise TooMany(
                f"{self._subscribers} clients follow this project already; close some, or retry later",
                retry_after=HEARTBEAT_SECONDS,
            )

    def end(self) -> None:
        """End all subscriptions."""
        self._is_over = True
        self._wake()

    async def wait_until_empty(self) -> None:
        """Wait until there are no subscribers."""
        while self._subscribers:
            changed = self._changed
            await changed.wait()

    def _take(self, live_filter: LiveFilter, number: int, position: int) -> tuple[StreamBatch, int]:
        """Return the matching events from ``number`` on, and the number after them."""
        some: list[FeedEvent] = []
        room = BATCH_BYTES
        for each in islice(self._ring, number - self._dropped, number - self._dropped + BATCH_EVENTS):
            some.append(each)
            room -= each.size
            if room < 0:
                break
        found = [each for each in some if each.event.seq > position and live_filter.matches(each.event)]
        return StreamBatch(max(position, some[-1].event.seq if some else 0), found), number + len(some)

    def _number_after(self, position: int) -> int:
        """Return the number of the first event after a sequence number."""
        for index, each in enumerate(self._ring):
            if each.event.seq > position:
                return self._dropped + index
        return self._dropped + len(self._ring)

    def _catch_up(self, live_filter: LiveFilter, position: int, limit: int) -> tuple[StreamBatch, int]:
        """Return what comes after ``position``, and how many rows to read the next time."""
        edge = self._complete_from  # committed before this scan, so the scan sees it
        page = self._engine.scan(self._space, live_filter.query, after=str(position), limit=limit)
        found: list[FeedEvent] = []
        room = BATCH_BYTES
        for count, record in enumerate(page.records, 1):
            row = _feed_event(record)
            if live_filter.matches(row.event):
                found.append(row)
                room -= row.size
                if room < 0:
                    return StreamBatch(record.seq, found), count
        more = min(limit * 4, BATCH_EVENTS)
        if page.cursor is None:
            seen = page.records[-1].seq if page.records else position
            return StreamBatch(max(seen, edge), found), more
        return StreamBatch(page.records[-1].seq, found), more

    async def _wait(self, seconds: float) -> bool:
        """Wait for an event; return whether one came within so many seconds."""
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
        """Start the reader if necessary, at the end of the journal."""
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

    def _reader_stopped(self, *, failed: bool) -> None:
        """Handle the end of the reader: nobody was subscribed, or reading failed."""
        self._thread = None
        if self._subscribers and not self._is_over:
            if failed:
                self.end()
            else:  # somebody subscribed just then
                self._start()

    def _add(self, events: Sequence[FeedEvent], position: int, taken: threading.Event) -> None:
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

    def _read(self, position: int, loop: asyncio.AbstractEventLoop) -> None:
        """Run the reader's thread."""
        failed = False
        while not self._is_over and self._subscribers:
            try:
                last = self._engine.wait(self._space, position, seconds=_WAIT_SECONDS)
                if last <= position:
                    continue
                page = self._engine.scan(self._space, EventQuery(), after=str(position), limit=_PAGE)
                events = [_feed_event(each) for each in page.records]
            except Exception as error:
                if isinstance(error, TreeringError) and error.retryable:
                    time.sleep(_WAIT_SECONDS)
                    continue
                log.exception("the journal of %r cannot be followed after %d", self._space, position)
                failed = True  # subscribers are told where to resume, and may reconnect
                break
            seen = page.records[-1].seq if page.records else 0
            position = seen if page.cursor is not None else max(last, seen)
            taken = threading.Event()
            if not _post(loop, lambda: self._add(events, position, taken)):  # noqa: B023 - runs before the next round
                return
            while not taken.wait(_WAIT_SECONDS):
                if loop.is_closed():
                    return
        _post(loop, lambda: self._reader_stopped(failed=failed))


def _feed_event(record: Record) -> FeedEvent:
    return FeedEvent(record, _ROW_BYTES + len(record.event.data or b""))


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
        """Return the feed of a project. Call it on the event loop. Raises `TooMany` if it is full."""
        feed = self._feeds.get(space)
        if feed is None or (feed.is_over and not self._is_over):
            feed = self._feeds[space] = Feed(self._engine, space)
            if self._is_over:
                feed.end()
        feed.check_room()
        return feed

    async def end(self) -> None:
        """End all subscriptions because the server stops, and wait briefly until they are told."""
        self._is_over = True
        for feed in self._feeds.values():
            feed.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.gather(*(feed.wait_until_empty() for feed in self._feeds.values()))

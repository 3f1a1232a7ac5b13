"""Follow the journal live: ``/live`` (server-sent events) and ``/ws`` (WebSocket).

Both start at any sequence number, and every event carries the number to resume after. A client that reads
nothing for half a minute is disconnected. One that cannot keep up gets a ``cut`` event with the number to
resume after, and all clients get ``end`` when the server stops. A stream whose key was revoked ends within
seconds, with ``revoked``. With ``shape=timeline``, events have the form
of the routes of timelines, so that one client shows what happened and what happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from anyio import to_thread
from msgspec import Struct
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from treering.errors import InvalidInput, TreeringError
from treering.runs.follow import LiveEvent, LiveFilter
from treering.server.auth import STREAM_SECONDS
from treering.server.endpoints import Call, endpoint
from treering.server.http import respond

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.types import Receive, Scope, Send

    from treering.server.endpoints import ServerState
    from treering.server.streams import Shape, StreamBatch

SEND_TIMEOUT_SECONDS: Final = 30.0
"""How long a client may take to read one batch."""
_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}
_TRY_AGAIN_LATER: Final = 1013
_GOING_AWAY: Final = 1001
_POLICY_VIOLATION: Final = 1008
REVOKED: Final = "revoked"
_REASON: Final = "the API key was revoked; create another one with: treering keys create"


class LiveQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to start, and which events to send. ``kinds`` may be repeated or separated by commas.

    ``namespace`` is that of the thread. ``shape=timeline`` sends the events of `/runs/{id}/timeline` instead
    of rows of the journal; ``types=all`` then sends more than the five usual types.
    """

    after: int | None = None
    run: str | None = None
    thread: str | None = None
    namespace: str = ""
    agent: str | None = None
    kinds: list[str] = []
    shape: Literal["journal", "timeline"] = "journal"
    types: Literal["all"] | None = None

    def to_shape(self) -> Shape:
        """Return how rows are sent."""
        if self.types is not None and self.shape != "timeline":
            raise InvalidInput("types=all selects events of a timeline; pass shape=timeline with it")
        return "timeline-all" if self.types == "all" else self.shape

    def to_filter(self) -> LiveFilter:
        """Return the filter of the request."""
        if self.after is not None and self.after < 0:
            raise InvalidInput(f"after={self.after}; pass a sequence number, or leave it out for new events")
        kinds = tuple(each for value in self.kinds for each in value.split(",") if each)
        return LiveFilter(
            run=self.run, thread=self.thread, namespace=self.namespace, agent=self.agent, kinds=kinds
        )


@endpoint("GET", "/live", tag="live", events=LiveEvent)
async def live(call: Call[LiveQuery, None]) -> Response:
    """Follow the journal by server-sent events, after ``Last-Event-ID`` or ``after``, or from now on."""
    after = call.query.after
    last_id = call.request.headers.get("last-event-id", "").strip()
    if last_id:
        if not last_id.isdecimal():
            raise InvalidInput(f"Last-Event-ID is {last_id[:40]!r}; send the id of the last event")
        after = int(last_id)
    live_filter, shape = call.query.to_filter(), call.query.to_shape()
    feed = call.request.app.state.treering.streams.of(call.store.space)
    return EventStream(feed.subscribe(live_filter, after=after), shape, revoked=revoked(call.request))


ENDPOINTS: Final = (live,)


def routes(state: ServerState) -> Sequence[BaseRoute]:
    """Return the route of the WebSocket."""

    async def answer(socket: WebSocket) -> None:
        try:
            access = await to_thread.run_sync(state.gate.admit, socket)
            access.check("read")
            query = _query(socket)
            live_filter, shape = query.to_filter(), query.to_shape()
            feed = state.streams.of(access.project)
        except TreeringError as error:
            await socket.send_denial_response(respond(error))
            return
        await socket.accept()
        batches = feed.subscribe(live_filter, after=query.after)
        await _stream(socket, batches, shape, revoked=revoked(socket))

    return [WebSocketRoute("/ws", answer, name="live.ws")]


async def revoked(connection: HTTPConnection) -> None:
    """Return when a connection would no longer be admitted."""
    gate = connection.app.state.treering.gate
    while await to_thread.run_sync(gate.still_admits, connection):  # noqa: ASYNC110 - asks the store
        await asyncio.sleep(STREAM_SECONDS)


async def _until_first(
    sending: Coroutine[Any, Any, None], gone: Coroutine[Any, Any, None], revoked: Coroutine[Any, Any, None]
) -> bool:
    """Send until the client leaves or its key is revoked; return whether it was revoked."""
    tasks = [asyncio.ensure_future(each) for each in (sending, gone, revoked)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[2].done() and not any(each.done() for each in tasks[:2])
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, OSError, TimeoutError, RuntimeError, WebSocketDisconnect):
                await task


class EventStream(Response):
    """A response of server-sent events that lasts until the client leaves, or is no longer admitted."""

    def __init__(
        self,
        batches: AsyncGenerator[StreamBatch],
        shape: Shape = "journal",
        *,
        revoked: Coroutine[Any, Any, None],
    ) -> None:
        self._batches = batches
        self._shape: Shape = shape
        self._revoked = revoked
        self.status_code = 200
        self.background = None
        self.init_headers(_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send batches until there are no more, or the client leaves."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if await _until_first(self._send(send), _gone(receive), self._revoked):
            body = b"event: %b\ndata: %b\n\n" % (REVOKED.encode(), msgspec.json.encode({"reason": _REASON}))
            await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send(self, send: Send) -> None:
        async with aclosing(self._batches) as batches:
            async for batch in batches:
                async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                    body = sse(batch, self._shape)
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def sse(batch: StreamBatch, shape: Shape) -> bytes:
    """Return a batch as server-sent events; one without events only moves the number to resume after.

    Of two events that a row gives, only the last has an id, so that a client resumes with both or neither.
    """
    parts: list[bytes] = []
    for each in batch.events:
        *first, last = each.json(shape) or (b"",)
        parts += [b"data: %b\n\n" % data for data in first]
        if last:
            parts.append(b"id: %d\ndata: %b\n\n" % (each.event.seq, last))
    if batch.end is not None:
        parts.append(
            b'id: %d\nevent: %b\ndata: {"resume":%d}\n\n' % (batch.seq, batch.end.encode(), batch.seq)
        )
    elif not parts:
        parts.append(b": following\nid: %d\n\n" % batch.seq)
    return b"".join(parts)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stream(
    socket: WebSocket,
    batches: AsyncGenerator[StreamBatch],
    shape: Shape,
    *,
    revoked: Coroutine[Any, Any, None],
) -> None:
    if await _until_first(_send_batches(socket, batches, shape), _closed(socket), revoked):
        await socket.close(_POLICY_VIOLATION, _REASON)


async def _send_batches(socket: WebSocket, batches: AsyncGenerator[StreamBatch], shape: Shape) -> None:
    async with aclosing(batches) as followed:
        async for batch in followed:
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                await socket.send_text(message(batch, shape))
            if batch.end is not None:
                await socket.close(_TRY_AGAIN_LATER if batch.end == "cut" else _GOING_AWAY, batch.end)


def message(batch: StreamBatch, shape: Shape) -> str:
    """Return a batch as one message: its events, and the sequence number to resume after."""
    events = b",".join([data for each in batch.events for data in each.json(shape)])
    end = b"" if batch.end is None else b',"end":"%b"' % batch.end.encode()
    return (b'{"seq":%d%b,"events":[%b]}' % (batch.seq, end, events)).decode()


async def _closed(socket: WebSocket) -> None:
    while True:
        received: Any = await socket.receive()
        if received["type"] == "websocket.disconnect":
            return


def _query(socket: WebSocket) -> LiveQuery:
    values: dict[str, Any] = {"kinds": []}
    for name, value in socket.query_params.multi_items():
        if name == "kinds":
            values["kinds"].append(value)
        elif name != "api_key":
            values[name] = value
    try:
        return msgspec.convert(values, LiveQuery, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the query is invalid: {error}") from None

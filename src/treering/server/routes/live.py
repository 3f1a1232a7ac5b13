"""Live: ``/live`` (server-sent events) and ``/ws`` (WebSocket), the journal as it grows.

Both follow from any sequence number and say with every event where to go on behind it. SSE is written by
hand: what waits is sent as one piece. A reader that takes nothing for half a minute is left; one that cannot
keep up is cut off with a ``cut`` that names its place; when the server stops, ``end`` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from anyio import to_thread
from msgspec import Struct
from starlette.responses import Response
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from treering.errors import InvalidInput, TreeringError
from treering.runs.follow import Selection
from treering.server.endpoints import Call, endpoint
from treering.server.http import respond

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from treering.server.state import ServerState
    from treering.server.streams import Piece

STUCK_SECONDS: Final = 30.0
"""How long a reader may take for one piece."""
_HEADERS: Final = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}
_TRY_AGAIN: Final = 1013
_GOING_AWAY: Final = 1001


class LiveQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to begin, and what is wanted; ``kinds`` may come several times, or with commas.

    ``namespace`` is that of the thread.
    """

    after: int | None = None
    run: str | None = None
    thread: str | None = None
    namespace: str = ""
    agent: str | None = None
    kinds: list[str] = []

    def selection(self) -> Selection:
        """What is wanted."""
        if self.after is not None and self.after < 0:
            raise InvalidInput(
                f"after is {self.after}; give a sequence number, or leave it out for new events"
            )
        kinds = tuple(each for given in self.kinds for each in given.split(",") if each)
        return Selection(
            run=self.run, thread=self.thread, namespace=self.namespace, agent=self.agent, kinds=kinds
        )


@endpoint("GET", "/live", tag="live")
async def live(call: Call[LiveQuery, None]) -> Response:
    """Follow the journal by server-sent events, from ``Last-Event-ID`` or ``after`` on, or what is new."""
    after = call.query.after
    told = call.request.headers.get("last-event-id", "").strip()
    if told:
        if not told.isdecimal():
            raise InvalidInput(f"Last-Event-ID is {told[:40]!r}; send the id of the last event")
        after = int(told)
    feed = call.request.app.state.treering.streams.of(call.store.space)
    return EventStream(feed.subscribe(call.query.selection(), after=after))


ENDPOINTS: Final = (live,)


def routes(state: ServerState) -> Sequence[BaseRoute]:
    """The WebSocket's route."""

    async def answer(socket: WebSocket) -> None:
        try:
            access = await to_thread.run_sync(state.gate.admit, socket)
            access.check("read")
            query = _query(socket)
            wanted = query.selection()
        except TreeringError as error:
            await socket.send_denial_response(respond(error))
            return
        await socket.accept()
        feed = state.streams.of(access.project)
        await _stream(socket, feed.subscribe(wanted, after=query.after))

    return [WebSocketRoute("/ws", answer, name="live.ws")]


class EventStream(Response):
    """Server-sent events for as long as the client stays."""

    def __init__(self, pieces: AsyncGenerator[Piece]) -> None:
        self._pieces = pieces
        self.status_code = 200
        self.background = None
        self.init_headers(_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """Send pieces until there are no more, or nobody takes them."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, OSError, TimeoutError):
                    await task

    async def _send(self, send: Send) -> None:
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                async with asyncio.timeout(STUCK_SECONDS):
                    await send({"type": "http.response.body", "body": sse(piece), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def sse(piece: Piece) -> bytes:
    """A piece as server-sent events; one without events only moves the place to go on from."""
    parts = [b"id: %d\ndata: %b\n\n" % (each.event.seq, each.json) for each in piece.deliveries]
    if piece.end is not None:
        parts.append(
            b'id: %d\nevent: %b\ndata: {"resume":%d}\n\n' % (piece.seq, piece.end.encode(), piece.seq)
        )
    elif not parts:
        parts.append(b": following\nid: %d\n\n" % piece.seq)
    return b"".join(parts)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stream(socket: WebSocket, pieces: AsyncGenerator[Piece]) -> None:
    sending = asyncio.ensure_future(_send_pieces(socket, pieces))
    gone = asyncio.ensure_future(_closed(socket))
    try:
        await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, gone):
            task.cancel()
            with suppress(asyncio.CancelledError, OSError, TimeoutError, RuntimeError, WebSocketDisconnect):
                await task


async def _send_pieces(socket: WebSocket, pieces: AsyncGenerator[Piece]) -> None:
    async with aclosing(pieces) as followed:
        async for piece in followed:
            async with asyncio.timeout(STUCK_SECONDS):
                await socket.send_text(message(piece))
            if piece.end is not None:
                await socket.close(_TRY_AGAIN if piece.end == "cut" else _GOING_AWAY, piece.end)


def message(piece: Piece) -> str:
    """A piece as one message: its events, and the sequence number to go on from."""
    events = b",".join([each.json for each in piece.deliveries])
    end = b"" if piece.end is None else b',"end":"%b"' % piece.end.encode()
    return (b'{"seq":%d%b,"events":[%b]}' % (piece.seq, end, events)).decode()


async def _closed(socket: WebSocket) -> None:
    while True:
        received: Any = await socket.receive()
        if received["type"] == "websocket.disconnect":
            return


def _query(socket: WebSocket) -> LiveQuery:
    given: dict[str, Any] = {"kinds": []}
    for name, value in socket.query_params.multi_items():
        if name == "kinds":
            given["kinds"].append(value)
        elif name != "api_key":
            given[name] = value
    try:
        return msgspec.convert(given, LiveQuery, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the query is not acceptable: {error}") from None

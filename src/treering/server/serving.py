"""Run the server until it is told to stop.

`Connection` limits what a client can use up before it has shown a key: the bytes of a head, and the
time until it is complete.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from treering.errors import Unreachable
from treering.server.app import Application, create_app
from treering.server.auth import Gate
from treering.server.background import Background, tune_memory
from treering.server.http import MEDIA_TYPE, Problem
from treering.server.settings import Settings
from treering.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD_BYTES: Final = 64 * 1024
"""How many bytes in a row a client may send that are not part of a body."""
HEAD_SECONDS: Final = 10.0
"""How long the head of a request may take, from the connection or its first byte on."""
MAX_MESSAGE: Final = 64 * 1024
"""Size limit of a message to the WebSocket, which expects none."""
_SHUTDOWN_SECONDS: Final = 5


def serve(
    store: Store,
    settings: Settings,
    *,
    on_ready: Callable[[str], None] | None = None,
    on_grpc_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve requests until SIGTERM or Ctrl-C, then finish the running ones.

    ``on_ready`` is called with the URL once connections are accepted, ``on_grpc_ready`` with that of OTLP
    over gRPC, if the settings have a port for it. Port 0 picks a free port.
    """
    Gate(store.engine, settings, clock=store.clock).check_binding()
    listening = _listen(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    app = create_app(store, settings)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=Connection,
        ws_max_size=MAX_MESSAGE,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    tune_memory()
    address = f"http://{host}:{listening.getsockname()[1]}"
    link = (settings.public_url or address) if settings.dashboard else None
    with Background(store, search=settings.search, link=link), ExitStack() as stack:
        if settings.grpc_port is not None:
            from treering.server.otlp_grpc import serving_grpc

            grpc_port = stack.enter_context(serving_grpc(app.treering, settings.grpc_port))
            if on_grpc_ready is not None:
                on_grpc_ready(f"http://{host}:{grpc_port}")
        if on_ready is not None:
            on_ready(address)
        Server(config, app).run(sockets=[listening])


class Connection(HttpToolsProtocol):
    """A connection that is closed if the head of a request is too long or takes too long.

    All bytes since the last ones of a body are counted, not only those of heads, which also covers trailers
    and the sizes of chunks.
    """

    _bytes = 0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Expect a head."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the time limit."""
        self._head_is_complete()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, a piece at a time, until there is too much of it."""
        for start in range(0, len(data), HEAD_BYTES):
            piece = data[start : start + HEAD_BYTES]
            self._bytes += len(piece)
            super().data_received(piece)
            if self._bytes > HEAD_BYTES and not self.transport.is_closing():
                self._refuse(431, f"the head of the request is larger than {HEAD_BYTES:,} bytes")
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                break  # refused, or a WebSocket from now on

    def on_message_begin(self) -> None:
        """Expect the rest of a head."""
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """Start the request."""
        self._head_is_complete()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of the body."""
        self._bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the body."""
        self._bytes = 0
        super().on_message_complete()

    def _expect_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self._take_too_long)

    def _head_is_complete(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take_too_long(self) -> None:
        self._timer = None
        if not self._bytes:
            self.transport.close()
        elif not self.transport.is_closing():
            self._refuse(408, f"the head of the request took longer than {HEAD_SECONDS:.0f} seconds")

    def _refuse(self, status: int, detail: str) -> None:
        """Answer, if no answer to an earlier request is under way, and close the connection."""
        if not self.cycle or self.cycle.response_complete:  # there is none before the first request
            title = HTTPStatus(status).phrase
            body = msgspec.json.encode(Problem(type="about:blank", title=title, status=status, detail=detail))
            head = (
                f"HTTP/1.1 {status} {title}\r\ncontent-type: {MEDIA_TYPE}\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


class Server(uvicorn.Server):
    """A uvicorn server that ends live streams before it waits for the remaining requests."""

    def __init__(self, config: uvicorn.Config, app: Application) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections and finish the running requests."""
        await self._app.end_streams()
        await super().shutdown(sockets)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Name the protocol: asyncio disables Nagle's delay (40 ms a response) only on sockets marked as TCP.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise Unreachable(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another --port"
        ) from None
    return listening

"""Run the server until it is told to stop.

`Connection` limits what a client can use up before it has shown a key: the bytes of a head, and the
time until it is complete.

`serve_workers` runs several processes that accept connections of one listening socket, and starts one that
died again. It opens no store itself. **Invariant:** workers do not outlive it, however it ends: each reads a
pipe that only the supervisor can write to, and stops when that is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, nullcontext, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode

from treering.errors import Unreachable, Unsupported
from treering.server.app import Application, create_app
from treering.server.auth import Gate
from treering.server.background import Background, tune_memory
from treering.server.http import MEDIA_TYPE, Problem
from treering.server.settings import Settings
from treering.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

log: Final = logging.getLogger("treering.server")
HEAD_BYTES: Final = 64 * 1024
"""How many bytes in a row a client may send that are not part of a body."""
HEAD_SECONDS: Final = 10.0
"""How long the head of a request may take, from the connection or its first byte on."""
STALL_SECONDS: Final = 60
"""How long a client may take nothing of what it is sent, and how long a connection may take to close."""
LISTENER_BYTES: Final = 4 * 1024
LISTENER_SECONDS: Final = 60.0
"""A client of the WebSocket only listens: it sends no more than this in that time, for pings and pongs."""
_SHUTDOWN_SECONDS: Final = 5
_SWITCH_SECONDS: Final = 0.0005
"""After how long a worker thread lets the event loop run. Python's default is ten times as long."""


def serve(
    store: Store,
    settings: Settings,
    *,
    on_ready: Callable[[str], None] | None = None,
    on_grpc_ready: Callable[[str], None] | None = None,
    listening: socket.socket | None = None,
) -> None:
    """Serve requests until SIGTERM or Ctrl-C, then finish the running ones.

    ``on_ready`` is called with the URL once connections are accepted, ``on_grpc_ready`` with that of OTLP
    over gRPC, if the settings have a port for it. Port 0 picks a free port. ``listening`` is a socket that
    other processes accept connections of too.
    """
    Gate(store.engine, settings, clock=store.clock).check_binding()
    listening = listening or _listen(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    app = create_app(store, settings)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=Connection,
        ws=Listener,
        ws_max_size=LISTENER_BYTES,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    tune_memory()
    sys.setswitchinterval(_SWITCH_SECONDS)
    address = f"http://{host}:{listening.getsockname()[1]}"
    link = (settings.public_url or address) if settings.dashboard else None
    background = None
    if settings.background:
        background = Background(
            store, search=settings.search, link=link, archive_after=settings.archive_after
        )
    with background or nullcontext(), ExitStack() as stack:
        if settings.grpc_port is not None:
            from treering.server.otlp_grpc import serving_grpc

            grpc_port = stack.enter_context(serving_grpc(app.treering, settings.grpc_port))
            if on_grpc_ready is not None:
                on_grpc_ready(f"http://{host}:{grpc_port}")
        if on_ready is not None:
            on_ready(address)
        Server(config, app).run(sockets=[listening])


WORKER: Final = "TREERING_WORKER"
"""In the environment of a worker: its number, and the descriptors that it inherits."""
_RESTART_SECONDS: Final = 1.0
"""A worker that died is started again no sooner than this after its last start."""
_STOP_SECONDS: Final = 20.0
"""How long workers may take to finish their requests before they are killed."""


def serve_workers(settings: Settings, *, workers: int, command: Sequence[str]) -> int:
    """Run ``command`` several times, as workers that share a socket, until SIGTERM or Ctrl-C.

    Each has to call `Worker.of_this_process`. Returns the exit code: that of the first worker if it could not
    start, which has said why.
    """
    if sys.platform == "win32":
        raise Unsupported("on Windows processes cannot share a socket; leave out --workers")
    changed, stopping = threading.Event(), threading.Event()

    def on_signal(number: int, _: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            stopping.set()
        changed.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, on_signal)
    with _listen(settings) as listening:
        ready, tell = os.pipe()
        running = [_WorkerProcess(0, command, listening, tell)]
        os.close(tell)
        try:
            with open(ready, "rb") as first:  # noqa: PTH123 - a descriptor
                if not first.read(1):  # it ended, and has said why
                    return running[0].process.wait()
            running += [_WorkerProcess(each, command, listening) for each in range(1, workers)]
            while not stopping.is_set():
                changed.wait()
                changed.clear()
                for number, worker in enumerate(running):
                    if (code := worker.process.poll()) is not None and not stopping.is_set():
                        log.warning("worker %d ended with %d; starting it again", number, code)
                        stopping.wait(worker.started_at + _RESTART_SECONDS - time.monotonic())
                        running[number] = _WorkerProcess(number, command, listening)
        finally:
            for worker in running:
                worker.process.terminate()
            deadline = time.monotonic() + _STOP_SECONDS
            for worker in running:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(deadline - time.monotonic(), 0.0))
                worker.process.kill()
                worker.process.wait()
    return 0


class _WorkerProcess:
    """A worker as its supervisor sees it. Its standard input is the pipe that ends with the supervisor."""

    def __init__(
        self, number: int, command: Sequence[str], listening: socket.socket, tell: int | None = None
    ) -> None:
        shared = (listening.fileno(), *(() if tell is None else (tell,)))
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(  # noqa: S603 - this program again
            command,
            stdin=subprocess.PIPE,
            pass_fds=shared,
            env={**os.environ, WORKER: " ".join(map(str, (number, *shared)))},
            start_new_session=True,  # Ctrl-C goes to the supervisor, which tells the workers
        )


class Worker:
    """A worker as it sees itself: one of several processes that `serve_workers` started."""

    def __init__(self, number: int, listening: socket.socket, tell: int | None = None) -> None:
        self.number = number
        self.listening = listening
        self._tell = tell

    @classmethod
    def of_this_process(cls) -> Worker | None:
        """Return what this process is to its supervisor; ``None`` if it was not started by one."""
        given = os.environ.pop(WORKER, None)
        if given is None:
            return None
        number, listening, *tell = map(int, given.split())
        threading.Thread(target=_end_with_supervisor, name="treering-supervisor", daemon=True).start()
        return cls(number, socket.socket(fileno=listening), *tell)

    def settings(self, settings: Settings) -> Settings:
        """Return the settings of this worker: only the first works in the background and serves gRPC."""
        if self.number == 0:
            return settings
        return msgspec.structs.replace(settings, background=False, grpc_port=None)

    def ready(self) -> None:
        """Tell the supervisor that connections are accepted, if it waits for that."""
        if self._tell is not None:
            with suppress(OSError):
                os.write(self._tell, b".")
            os.close(self._tell)


def _end_with_supervisor() -> None:
    with suppress(OSError):
        while os.read(0, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


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
        self.loop.call_later(STALL_SECONDS, _abort_once_closing, self.loop, transport)

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


class Listener(WebSocketsSansIOProtocol):
    """A WebSocket that is closed if its client sends messages, or many pings, instead of listening."""

    _bytes = 0
    _since = 0.0

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, unless there is too much of it. The handshake is not counted."""
        if self.handshake_initiated:
            now = self.loop.time()
            if now - self._since > LISTENER_SECONDS:
                self._since, self._bytes = now, 0
            self._bytes += len(data)
            if self._bytes > LISTENER_BYTES:
                self._refuse()
                return
        super().data_received(data)

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            self.conn.fail(CloseCode.POLICY_VIOLATION, "only listen; this stream takes no messages")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()


def _abort_once_closing(loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
    """Give up a connection that is still closing after a while: its client does not take the rest."""
    if transport.is_closing():
        loop.call_later(STALL_SECONDS, transport.abort)
    else:
        loop.call_later(STALL_SECONDS, _abort_once_closing, loop, transport)


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
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # accepted connections inherit it
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALL_SECONDS * 1000)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise Unreachable(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; choose another --port"
        ) from None
    return listening

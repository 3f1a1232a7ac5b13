"""Run the server until it is told to stop."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import uvicorn

from treering.errors import Unreachable
from treering.server.app import Application, create_app
from treering.server.auth import Gate
from treering.server.background import Background, tune_memory
from treering.server.settings import Settings
from treering.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

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
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    tune_memory()
    with Background(store, search=settings.search), ExitStack() as stack:
        if settings.grpc_port is not None:
            from treering.server.otlp_grpc import serving_grpc

            grpc_port = stack.enter_context(serving_grpc(app.treering, settings.grpc_port))
            if on_grpc_ready is not None:
                on_grpc_ready(f"http://{host}:{grpc_port}")
        if on_ready is not None:
            on_ready(f"http://{host}:{listening.getsockname()[1]}")
        Server(config, app).run(sockets=[listening])


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

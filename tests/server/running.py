"""A real server in a thread: uvicorn on a free port of the loopback, over any store."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

import treering
from treering.server.app import create_app
from treering.server.serving import Server
from treering.server.settings import Settings
from treering.store import Store


@contextmanager
def running(store: Store, settings: Settings | None = None, *, port: int = 0, **options) -> Iterator[str]:
    """The URL of a server over a store, which it closes at the end. ``options`` go to uvicorn."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    listening.listen(128)
    app = create_app(store, settings or Settings())
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        timeout_graceful_shutdown=2,
        **options,
    )
    server = Server(config, app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="server")
    thread.start()
    scheme = "https" if "ssl_certfile" in options else "http"
    try:
        yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()


@contextmanager
def remote() -> Iterator[Store]:
    """A new store as a client has it: in memory, behind a server of its own."""
    with (
        running(treering.open("memory:"), Settings(calls_per_second=1e6)) as url,
        treering.open(url) as store,
    ):
        yield store

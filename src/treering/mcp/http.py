"""Serving over streamable HTTP: on this machine for everyone, elsewhere only for those who have the key.

**Invariant:** without a key nothing but a loopback address is bound. The key is compared in constant time and
is never logged.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import JSONResponse

from treering.errors import InvalidInput, Unreachable

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from treering.mcp.server import TreeringServer

PATH: Final = "/mcp"
LEAST_KEY: Final = 16
_LAST_PORT: Final = 65_535


def serve_http(
    server: TreeringServer, address: str, *, api_key: str | None, on_ready: Callable[[str], None]
) -> None:
    """Serve until SIGINT or SIGTERM; ``on_ready`` gets the URL as soon as clients may connect."""
    host, port = parse_address(address)
    check_exposure(host, api_key)
    bound = _bind(host, port)
    shown = f"[{host}]" if ":" in host else host
    security = None
    if not is_loopback(host):
        # Whoever comes has the key; under which name the machine is reached is its owner's affair.
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app: Any = server.streamable_http_app(
        streamable_http_path=PATH,
        host="127.0.0.1" if is_loopback(host) else host,
        transport_security=security,
    )
    if api_key is not None:
        app = BearerKey(app, api_key)
    config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=3)
    on_ready(f"http://{shown}:{bound.getsockname()[1]}{PATH}")
    uvicorn.Server(config).run(sockets=[bound])


class BearerKey:
    """Lets only those requests through that bring the key."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app = app
        self._key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 to whoever has no key."""
        if scope["type"] == "http" and not self._knows(scope):
            reply = JSONResponse(
                {"error": "unauthorized", "message": "send the key as `Authorization: Bearer <key>`"},
                status_code=401,
                headers={"WWW-Authenticate": "Bearer"},
            )
            await reply(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        kind, _, key = (given[0] if len(given) == 1 else b"").partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._key)


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` or ``PORT``; port 0 takes any that is free."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > _LAST_PORT:
        raise InvalidInput(f"--http {address!r} is no address; give HOST:PORT, such as 127.0.0.1:8848")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def check_exposure(host: str, api_key: str | None) -> None:
    """Refuse to be reached from elsewhere without a key that is worth its name."""
    if api_key is not None and (
        len(api_key) < LEAST_KEY or not api_key.isascii() or not api_key.isprintable()
    ):
        raise InvalidInput(
            f"the API key is too weak; use {LEAST_KEY} or more printable ASCII characters, "
            "such as `openssl rand -hex 32` gives"
        )
    if api_key is None and not is_loopback(host):
        raise InvalidInput(
            f"{host} can be reached from elsewhere, and no key is set; "
            "set TREERING_API_KEY (or --api-key), or bind 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, where = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(where)
            bound.listen(128)
        except BaseException:
            bound.close()
            raise
        return bound
    except OSError as error:
        raise Unreachable(
            f"{host}:{port} cannot be bound: {error.strerror}; choose another address"
        ) from error

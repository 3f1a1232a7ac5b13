"""The gate: who a request comes from, and whether it may pass.

With keys (of the store, or one in the settings), a request shows one. Without any, the server is for this
machine alone: it answers only on loopback, and only to requests that name it as such and come from no other
web page, so that a page in the user's browser can neither read nor change anything (DNS rebinding, CSRF).
"""

from __future__ import annotations

import hmac
import threading
import time
from collections import OrderedDict
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from treering.core.clock import Clock
from treering.core.engine import Engine
from treering.errors import Forbidden, InvalidInput, TooMany, Unauthorized
from treering.server.access import Access, Keys
from treering.server.settings import Settings, is_loopback

_REMEMBERED_SECONDS: Final = 5.0
_REMEMBERED: Final = 4096
_QUERY_KEY: Final = "api_key"


class Gate:
    """Decides on every request. Keys are looked up in the store and remembered for a few seconds."""

    def __init__(self, engine: Engine, settings: Settings, *, clock: Clock) -> None:
        self._keys = Keys(engine, clock=clock)
        self._settings = settings
        self._known: OrderedDict[str, tuple[float, Access]] = OrderedDict()
        self._has_keys: tuple[float, bool] = (0.0, False)
        self._lock = threading.Lock()
        self._pace = Pace(settings.calls_per_second)

    def check_binding(self) -> None:
        """Refuse to listen where others can reach a server that asks nobody for a key."""
        if not self._settings.is_loopback and self._settings.api_key is None and not self._ask_for_keys():
            raise InvalidInput(
                f"others can reach a server on {self._settings.host}, and this store has no API key yet; "
                "make one (treering keys create), set TREERING_API_KEY, or listen on 127.0.0.1"
            )

    def admit(self, connection: HTTPConnection) -> Access:
        """Who is calling. Raises `Unauthorized`, `Forbidden` or `TooMany`. May ask the store."""
        access = self.recall(connection)
        if access is not None:
            return access
        token = _token(connection)
        if token is not None:
            self._learn(token)
        else:
            self._ask_for_keys()
        return self.recall(connection) or self.admit(connection)

    def recall(self, connection: HTTPConnection) -> Access | None:
        """As `admit`, but never waits: ``None`` when the store has to be asked first."""
        self._check_host(connection)
        token = _token(connection)
        access = self._known_as(token) if token is not None else self._of_nobody(connection)
        if access is not None:
            self._pace.take(access.name)
        return access

    def _known_as(self, token: str) -> Access | None:
        own = self._settings.api_key
        if own is not None and hmac.compare_digest(own.encode(), token.encode()):
            return Access(project=self._settings.project, scope="admin", name="key of the settings")
        with self._lock:
            until, access = self._known.get(token, (0.0, None))
        return access if until > time.monotonic() else None

    def _learn(self, token: str) -> None:
        access = self._keys.find(token).access
        with self._lock:
            self._known[token] = (time.monotonic() + _REMEMBERED_SECONDS, access)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)

    def _of_nobody(self, connection: HTTPConnection) -> Access | None:
        until, has_keys = self._has_keys
        if self._settings.is_loopback and self._settings.api_key is None and until < time.monotonic():
            return None
        if has_keys or self._settings.api_key is not None or not self._settings.is_loopback:
            raise Unauthorized(
                "an API key is needed: Authorization: Bearer <key> (make one: treering keys create)"
            )
        origin = connection.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != connection.headers.get("host"):
            raise Forbidden(
                f"a page of {origin[:200]} may not use this server; open the server's own address"
            )
        return Access(project=self._settings.project, scope="admin", name="this machine")

    def _ask_for_keys(self) -> bool:
        has_keys = self._keys.has_any()
        self._has_keys = (time.monotonic() + _REMEMBERED_SECONDS, has_keys)
        return has_keys

    def _check_host(self, connection: HTTPConnection) -> None:
        if not self._settings.is_loopback:
            return
        host = urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""
        if not is_loopback(host) and host not in self._settings.hosts:
            raise Forbidden(
                f"this server is for its own machine and does not answer to {host[:200]!r}; "
                "use 127.0.0.1 or localhost, or name the host with --allow-host"
            )


class Pace:
    """So many calls a second for each caller, with a burst of twice that."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str) -> None:
        """Count a call; `TooMany` when it comes too early."""
        now = time.monotonic()
        burst = 2 * self._per_second
        with self._lock:
            at, left = self._left.pop(name, (now, burst))
            left = min(burst, left + (now - at) * self._per_second)
            self._left[name] = (now, max(left - 1, 0.0))
            while len(self._left) > _REMEMBERED:
                self._left.popitem(last=False)
        if left < 1:
            raise TooMany(
                f"more than {self._per_second:g} calls a second; wait a moment and go on",
                retry_after=(1 - left) / self._per_second,
            )


def _token(connection: HTTPConnection) -> str | None:
    given = connection.headers.get("authorization")
    if given is not None:
        kind, _, token = given.partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise Unauthorized(
                "the Authorization header is not understood; send: Authorization: Bearer <key>"
            )
        return token.strip()
    given = connection.headers.get("x-api-key")
    if given is None and connection.scope["type"] == "websocket":
        return connection.query_params.get(_QUERY_KEY)  # a browser cannot set headers there
    return given

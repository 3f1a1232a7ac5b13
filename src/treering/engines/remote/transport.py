"""Transport to one server: its URL, a pool of kept-alive HTTP connections, retries, and errors.

Any number of threads may call; each call takes a connection from the pool and returns it afterwards. A
repeatable call is retried with exponential backoff after a lost connection, or when the server is busy.
**Invariant:** a call that is not repeatable is sent at most once: it is only retried if it cannot have
reached the server.

**Invariant:** the API key is only sent over TLS, to a loopback address, or if ``TREERING_ALLOW_HTTP=1``
declares the network to be trusted. It is sent to this server only: redirects are not followed.

The server sends errors by the name of their class (RFC 9457, ``type``). **Invariant:** a caller gets the same
class with the same attributes as from a local store; anything else that a server responds becomes
`Unreachable` or `TreeringError`, never data.
"""

from __future__ import annotations

import os
import random
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ipaddress import ip_address
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from treering import errors
from treering.engines.remote import protocol
from treering.engines.remote.protocol import HEADER, MAX_ANSWER_FRAME, MEDIA_TYPE, VERSION, Failure, Method
from treering.errors import (
    BudgetExceeded,
    Closed,
    InvalidInput,
    MissingExtra,
    MissingObjects,
    TooLarge,
    TooMany,
    TreeringError,
    Unauthorized,
    Unreachable,
    Unsupported,
)

ALLOW_HTTP: Final = "TREERING_ALLOW_HTTP"


class ServerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Host, port, and the path prefix of the server's routes."""

    host: str
    port: int
    path: str
    is_secure: bool

    @property
    def url(self) -> str:
        """The URL of the server, without secrets."""
        scheme, usual = ("https", 443) if self.is_secure else ("http", 80)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}{'' if self.port == usual else f':{self.port}'}{self.path}"

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_server_url(url: str, *, with_key: bool) -> ServerAddress:
    """Parse the URL of a server; ``with_key`` means that a key will be sent to it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput(f"invalid URL of a server ({error}); write https://host:port") from None
    if not host or parts.scheme.lower() not in {"http", "https"}:
        raise InvalidInput("the URL of the server has no host; write https://host or http://127.0.0.1:port")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(f"the URL of {host} contains a password; use api_key= or TREERING_API_KEY instead")
    if parts.query or parts.fragment:
        raise InvalidInput(f"the URL of {host} contains a ? or a #; write https://host:port/path at most")
    is_secure = parts.scheme.lower() == "https"
    address = ServerAddress(
        host=host,
        port=port or (443 if is_secure else 80),
        path=parts.path.rstrip("/"),
        is_secure=is_secure,
    )
    if with_key and not (is_secure or address.is_loopback or os.environ.get(ALLOW_HTTP) == "1"):
        raise InvalidInput(
            f"{address.url} is not encrypted, so the API key could be intercepted; use https://, "
            f"or set {ALLOW_HTTP}=1 if you trust the network"
        )
    return address


TYPE: Final = "urn:treering:error:"
_SHOWN: Final = 200


class _ProblemDocument(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "about:blank"
    title: str = ""
    detail: str = ""
    more: dict[str, Any] = {}


def error_from_failure(failure: Failure) -> TreeringError:
    """Return the error that a failure describes."""
    kind = getattr(errors, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, TreeringError)):
        return TreeringError(f"{failure.kind}: {failure.detail}")
    more = failure.more
    try:
        if kind is MissingObjects:
            return MissingObjects(tuple(map(str, more["hashes"])))
        if kind is BudgetExceeded:
            return BudgetExceeded(
                failure.detail, budget=str(more["budget"]), limit=int(more["limit"]), count=int(more["count"])
            )
        if kind is TooMany:
            return TooMany(failure.detail, retry_after=float(more.get("retry_after", 1.0)))
        if issubclass(kind, MissingExtra):
            return Unsupported(f"on the server: {failure.detail}")
        return kind(failure.detail)
    except (KeyError, TypeError, ValueError):
        return TreeringError(f"{failure.kind}: {failure.detail}")


def error_from_document(data: bytes) -> TreeringError:
    """Return the error in a problem document."""
    try:
        document = msgspec.json.decode(data, type=_ProblemDocument)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return TreeringError(f"the server sent an unreadable error: {data[:_SHOWN]!r}")
    detail = document.detail or document.title
    if document.type.startswith(TYPE):
        return error_from_failure(
            Failure(kind=document.type.removeprefix(TYPE), detail=detail, more=document.more)
        )
    return TreeringError(f"the server failed: {detail}")


def error_from_response(
    status: int, media_type: str, data: bytes, *, where: str, location: str = ""
) -> TreeringError:
    """Return the error for a response other than 200, from the server or a proxy in front of it."""
    if media_type == "application/problem+json" and TYPE.encode() in data:
        return error_from_document(data)
    if 300 <= status < 400:  # noqa: PLR2004 - redirections
        return InvalidInput(f"{where} redirects to {location[:_SHOWN]!r}; open that URL instead")
    text = data[:_SHOWN].decode("utf-8", "replace").strip()
    match status:
        case 401 | 403:
            return Unauthorized(f"{where} rejects this API key (HTTP {status}): {text}")
        case 404 | 405:
            return Unsupported(f"{where} is not a treering server, or has no gateway (HTTP {status})")
        case 413:
            return TooLarge(f"{where} does not accept a request of this size (HTTP 413): {text}")
        case 429:
            return TooMany(f"{where} accepts no more calls for now (HTTP 429): {text}")
        case 502 | 503 | 504:
            return Unreachable(
                f"{where} cannot be reached through its proxy (HTTP {status}); try again later"
            )
        case _:
            return TreeringError(f"{where} responded with HTTP {status}: {text}")


CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 90.0
"""How long a server may be silent: longer than a `wait`, much longer than the time between ticks."""
RETRY_SECONDS: Final = 20.0
"""How long a call is retried before it fails."""
IDLE_SECONDS: Final = 4.0
"""Servers close connections after five idle seconds; before that, they are most likely still open."""
MAX_IDLE: Final = 16

_MAX_PROBLEM: Final = 1024 * 1024
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_OK: Final = 200

T = TypeVar("T")


class ConnectionPool:
    """The connections to one server."""

    def __init__(
        self, address: ServerAddress, *, api_key: str | None = None, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self._address = address
        self._retry_seconds = retry_seconds
        self._closed = False
        self._tls = ssl.create_default_context() if address.is_secure else None
        self._headers = {"content-type": MEDIA_TYPE, HEADER: str(VERSION), "accept-encoding": "identity"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._start()
        _pools.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[HTTPConnection, float]] = []

    @property
    def where(self) -> str:
        """The URL of the server, for messages."""
        return self._address.url

    def call(
        self,
        method: Method,
        namespace: str,
        body: Sequence[bytes],
        read: Callable[[Iterator[bytes]], T],
        *,
        retry_seconds: float | None = None,
    ) -> T:
        """Send a call, with retries, and return what ``read`` makes of the messages in its response."""

        def once() -> T:
            connection, response = self._send(method, namespace, body)
            try:
                result = read(_messages(response))
            except BaseException:
                connection.close()
                raise
            self._release(connection, response)
            return result

        return self._retry(method, once, retry_seconds)

    def stream(self, method: Method, namespace: str, body: Sequence[bytes]) -> Iterator[bytes]:
        """Send a call and yield the messages of its response; closing the iterator ends the call."""
        connection, response = self._retry(method, lambda: self._send(method, namespace, body), None)
        try:
            yield from _messages(response)
        except _ConnectionLost as error:
            raise _to_error(error, method, self.where) from error.__cause__
        finally:
            connection.close()  # an unfinished response cannot be reused

    def check_open(self) -> None:
        """Raise `Closed` after `close`."""
        if self._closed:
            raise Closed(f"the connection to {self.where} is closed; open the store again")

    def close(self) -> None:
        """Close all idle connections and allow no new ones."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def abandon(self) -> None:
        """Start over in a forked child: connections belong to the parent, and the lock may stay held."""
        for connection, _ in self._idle:
            connection.close()  # closes this process's descriptor; nothing is sent
        self._start()

    def _retry(self, method: Method, once: Callable[[], T], retry_seconds: float | None) -> T:
        limit = self._retry_seconds if retry_seconds is None else retry_seconds
        deadline = time.monotonic() + limit
        pause = _FIRST_PAUSE
        while True:
            try:
                return once()
            except (_ConnectionLost, Unreachable, TooMany) as error:
                wait = max(error.retry_after, pause) if isinstance(error, TooMany) else pause
                if not _is_repeatable(error, method) or wait > deadline - time.monotonic():
                    raise _to_error(error, method, self.where) from (error.__cause__ or error)
            time.sleep(wait * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _send(
        self, method: Method, namespace: str, body: Sequence[bytes]
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a request; the caller owns the connection and the response."""
        connection = self._acquire()
        path = f"{self._address.path}/gateway/{method.name}?namespace={namespace}"
        headers = self._headers | {"content-length": str(sum(map(len, body)))}
        try:
            with suppress(
                BrokenPipeError, ConnectionResetError
            ):  # the server may reject a request before reading all of it
                connection.request("POST", path, body[0] if len(body) == 1 else iter(body), headers)
            response = connection.getresponse()
            if response.status != _OK:
                raise _error_of(response, self.where)
        except (OSError, HTTPException) as error:
            connection.close()
            raise _ConnectionLost(reached=True) from error
        except BaseException:
            connection.close()
            raise
        if response.getheader(HEADER) is None:
            connection.close()
            raise Unsupported(f"{self.where} is not a treering server, or has no gateway")
        return connection, response

    def _acquire(self) -> HTTPConnection:
        while True:
            with self._lock:
                self.check_open()
                if not self._idle:
                    break
                connection, since = self._idle.pop()
            if time.monotonic() - since < IDLE_SECONDS and not _is_readable(connection):
                return connection
            connection.close()
        return self._connect()

    def _connect(self) -> HTTPConnection:
        address = self._address
        connection = (
            HTTPConnection(address.host, address.port, timeout=CONNECT_SECONDS)
            if self._tls is None
            else HTTPSConnection(address.host, address.port, timeout=CONNECT_SECONDS, context=self._tls)
        )
        try:
            connection.connect()
        except (ssl.SSLCertVerificationError, socket.gaierror, UnicodeError) as error:
            # Retrying does not help: the certificate or the name is wrong.
            raise Unreachable(f"{self.where} cannot be reached: {error}; check the URL") from error
        except OSError as error:
            raise _ConnectionLost(reached=False) from error
        assert connection.sock is not None  # noqa: S101 - connected above
        connection.sock.settimeout(ANSWER_SECONDS)
        return connection

    def _release(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        try:
            response.read()  # the end of a chunked response
        except (OSError, HTTPException):
            connection.close()
            return
        with self._lock:
            if not self._closed and not response.will_close and len(self._idle) < MAX_IDLE:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()


class _ConnectionLost(Exception):
    """The connection failed. ``reached``: the call may have reached the server."""

    def __init__(self, *, reached: bool) -> None:
        self.reached = reached
        super().__init__()


def _messages(response: HTTPResponse) -> Iterator[bytes]:
    """Yield the messages of a response up to its end; raise the error it contains."""
    try:
        for tag, data in protocol.frames(response.read, limit=MAX_ANSWER_FRAME):
            if tag == protocol.MESSAGE:
                yield data
            elif tag == protocol.PROBLEM:
                raise error_from_document(data)
            elif tag == protocol.END:
                return
    except (OSError, HTTPException, protocol.Truncated) as error:
        raise _ConnectionLost(reached=True) from error
    raise _ConnectionLost(reached=True)


def _error_of(response: HTTPResponse, where: str) -> TreeringError:
    return error_from_response(
        response.status,
        response.headers.get_content_type(),
        response.read(_MAX_PROBLEM),
        where=where,
        location=response.getheader("location") or "",
    )


def _is_repeatable(error: _ConnectionLost | Unreachable | TooMany, method: Method) -> bool:
    if isinstance(error, Unreachable):
        # Raised by the server, it may pass; raised here (a wrong name), it does not.
        return error.__cause__ is None and method.repeatable
    return isinstance(error, TooMany) or not error.reached or method.repeatable


def _to_error(error: _ConnectionLost | Unreachable | TooMany, method: Method, where: str) -> TreeringError:
    if not isinstance(error, _ConnectionLost):
        return error
    cause = error.__cause__
    reason = (
        f"{type(cause).__name__}: {cause}"
        if cause is not None and str(cause)
        else "the server closed the connection"
    )
    outcome = (
        ""
        if method.repeatable or not error.reached
        else "; it may or may not have been executed, check before repeating"
    )
    return Unreachable(f"{where} cannot be reached for {method.name} ({reason}){outcome}")


def _is_readable(connection: HTTPConnection) -> bool:
    """Whether an idle connection has data to read, which means that the server has closed it."""
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


_pools: Final[weakref.WeakSet[ConnectionPool]] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.abandon()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)

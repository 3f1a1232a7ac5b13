"""Connections to one server: a small pool of kept-alive HTTP connections, and when to try again.

Any number of threads may call; each takes a connection of its own from the pool and gives it back. A call
that may be repeated is repeated after a lost connection, or when the server says that it is busy, with
growing pauses until its patience ends. **Invariant:** a call that may not be repeated is sent at most once:
it is only tried again when nothing of it can have reached the server. The key goes to this server alone:
redirections are not followed.
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

# -----------------------------------------------------------------------------------------------------------
# Where a server is: what its URL may say, and how the key travels there.
#
# **Invariant:** a key is only ever sent over TLS, over the loopback, or where ``TREERING_ALLOW_HTTP=1`` says
# that the network in between is trusted.


ALLOW_HTTP: Final = "TREERING_ALLOW_HTTP"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Host, port and the path in front of the server's own routes."""

    host: str
    port: int
    path: str
    is_secure: bool

    @property
    def url(self) -> str:
        """The place as a URL, which holds no secret."""
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


def place_of(url: str, *, with_key: bool) -> Place:
    """Read the URL of a server; ``with_key`` says that a key will be sent there."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInput(
            f"the URL of the server cannot be read ({error}); write https://host:port"
        ) from None
    if not host or parts.scheme.lower() not in {"http", "https"}:
        raise InvalidInput("the URL of the server names no host; write https://host or http://127.0.0.1:port")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(
            f"the URL of {host} has a password in it; use api_key= or TREERING_API_KEY instead"
        )
    if parts.query or parts.fragment:
        raise InvalidInput(f"the URL of {host} has a ? or a # in it; write https://host:port/path at most")
    is_secure = parts.scheme.lower() == "https"
    place = Place(
        host=host,
        port=port or (443 if is_secure else 80),
        path=parts.path.rstrip("/"),
        is_secure=is_secure,
    )
    if with_key and not (is_secure or place.is_loopback or os.environ.get(ALLOW_HTTP) == "1"):
        raise InvalidInput(
            f"{place.url} is not encrypted, and the API key would be sent in the clear; use https://, "
            f"or set {ALLOW_HTTP}=1 if you trust the network in between"
        )
    return place


# -----------------------------------------------------------------------------------------------------------
# Errors that travelled: a problem document back into the error that it was.
#
# The server sends the class of an error by name (RFC 9457, ``type``), and what belongs to it beside the
# message. **Invariant:** a caller catches the same class, with the same attributes, as if the store were
# local; what the server sends that is no error of ours becomes `Unreachable` or `TreeringError`, never data.


TYPE: Final = "urn:treering:error:"
_SHOWN: Final = 200


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "about:blank"
    title: str = ""
    detail: str = ""
    more: dict[str, Any] = {}


def error_of(failure: Failure) -> TreeringError:
    """The error that a failure was before it was sent."""
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


def error_in(data: bytes) -> TreeringError:
    """The error in a problem document."""
    try:
        document = msgspec.json.decode(data, type=_Document)
    except msgspec.DecodeError:
        return TreeringError(f"the server answered with an error that cannot be read: {data[:_SHOWN]!r}")
    detail = document.detail or document.title
    if document.type.startswith(TYPE):
        return error_of(Failure(kind=document.type.removeprefix(TYPE), detail=detail, more=document.more))
    return TreeringError(f"the server failed: {detail}")


def error_behind(
    status: int, media_type: str, data: bytes, *, where: str, location: str = ""
) -> TreeringError:
    """The error behind an answer that is not 200, from the server or from something in front of it."""
    if media_type == "application/problem+json" and TYPE.encode() in data:
        return error_in(data)
    if 300 <= status < 400:  # noqa: PLR2004 - redirections
        return InvalidInput(
            f"{where} answers with a redirection to {location[:_SHOWN]!r}; open that URL instead"
        )
    said = data[:_SHOWN].decode("utf-8", "replace").strip()
    match status:
        case 401 | 403:
            return Unauthorized(f"{where} refuses this API key (HTTP {status}): {said}")
        case 404 | 405:
            return Unsupported(f"{where} is no treering server, or one without a gateway (HTTP {status})")
        case 413:
            return TooLarge(f"{where} does not take a request of this size (HTTP 413): {said}")
        case 429:
            return TooMany(f"{where} takes no more calls for now (HTTP 429): {said}")
        case 502 | 503 | 504:
            return Unreachable(f"{where} cannot be reached behind its proxy (HTTP {status}); try again later")
        case _:
            return TreeringError(f"{where} answered with HTTP {status}: {said}")


# -----------------------------------------------------------------------------------------------------------

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 90.0
"""How long a server may be silent: longer than it waits for news, much longer than it takes between ticks."""
PATIENCE_SECONDS: Final = 20.0
"""How long a call is tried again before it fails."""
IDLE_SECONDS: Final = 4.0
"""Servers close what is idle for five seconds; a connection that is younger is most likely still open."""
MAX_IDLE: Final = 16

_MAX_PROBLEM: Final = 1024 * 1024
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
_OK: Final = 200

T = TypeVar("T")


class Connections:
    """The pool of one server."""

    def __init__(
        self, place: Place, *, api_key: str | None = None, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._place = place
        self._patience_seconds = patience_seconds
        self._closed = False
        self._tls = ssl.create_default_context() if place.is_secure else None
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
        """The server, in words for messages."""
        return self._place.url

    def call(
        self,
        method: Method,
        namespace: str,
        body: Sequence[bytes],
        read: Callable[[Iterator[bytes]], T],
        *,
        patience_seconds: float | None = None,
    ) -> T:
        """Send a call and give the messages of its answer to ``read``, more than once if need be."""

        def once() -> T:
            connection, response = self._send(method, namespace, body)
            try:
                answer = read(_messages(response))
            except BaseException:
                connection.close()
                raise
            self._give_back(connection, response)
            return answer

        return self._repeated(method, once, patience_seconds)

    def stream(self, method: Method, namespace: str, body: Sequence[bytes]) -> Iterator[bytes]:
        """Send a call and give the messages of its answer as they come. Leaving it ends the call."""
        connection, response = self._repeated(method, lambda: self._send(method, namespace, body), None)
        try:
            yield from _messages(response)
        except _Lost as error:
            raise _said(error, method, self.where) from error.__cause__
        finally:
            connection.close()  # what is still under way on it belongs to nobody

    def check_open(self) -> None:
        """Raise `Closed` after `close`."""
        if self._closed:
            raise Closed(f"the connection to {self.where} was closed; open the store again")

    def close(self) -> None:
        """Let go of all connections that are not in use, and make no more."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def abandon(self) -> None:
        """In a forked child: the connections are the parent's, and their lock may be held for ever."""
        for connection, _ in self._idle:
            connection.close()  # only this process's end of it; nothing is said to the server
        self._start()

    def _repeated(self, method: Method, once: Callable[[], T], patience_seconds: float | None) -> T:
        patience = self._patience_seconds if patience_seconds is None else patience_seconds
        deadline = time.monotonic() + patience
        pause = _FIRST_PAUSE
        while True:
            try:
                return once()
            except (_Lost, Unreachable, TooMany) as error:
                wait = max(error.retry_after, pause) if isinstance(error, TooMany) else pause
                if not _is_repeatable(error, method) or wait > deadline - time.monotonic():
                    raise _said(error, method, self.where) from (error.__cause__ or error)
            time.sleep(wait * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _send(
        self, method: Method, namespace: str, body: Sequence[bytes]
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a request on a connection; both belong to the caller if the server accepts it."""
        connection = self._take()
        path = f"{self._place.path}/gateway/{method.name}?namespace={namespace}"
        headers = self._headers | {"content-length": str(sum(map(len, body)))}
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # a refusal may come before all was sent
                connection.request("POST", path, body[0] if len(body) == 1 else iter(body), headers)
            response = connection.getresponse()
            if response.status != _OK:
                raise _refusal(response, self.where)
        except (OSError, HTTPException) as error:
            connection.close()
            raise _Lost(reached=True) from error
        except BaseException:
            connection.close()
            raise
        if response.getheader(HEADER) is None:
            connection.close()
            raise Unsupported(f"{self.where} is no treering server, or one without a gateway")
        return connection, response

    def _take(self) -> HTTPConnection:
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
        place = self._place
        connection = (
            HTTPConnection(place.host, place.port, timeout=CONNECT_SECONDS)
            if self._tls is None
            else HTTPSConnection(place.host, place.port, timeout=CONNECT_SECONDS, context=self._tls)
        )
        try:
            connection.connect()
        except (ssl.SSLCertVerificationError, socket.gaierror, UnicodeError) as error:
            # Trying again does not help: the certificate or the name is wrong.
            raise Unreachable(f"{self.where} cannot be reached: {error}; check the URL") from error
        except OSError as error:
            raise _Lost(reached=False) from error
        assert connection.sock is not None  # noqa: S101 - it is connected
        connection.sock.settimeout(ANSWER_SECONDS)
        return connection

    def _give_back(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        try:
            response.read()  # the end of a chunked answer
        except (OSError, HTTPException):
            connection.close()
            return
        with self._lock:
            if not self._closed and not response.will_close and len(self._idle) < MAX_IDLE:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()


class _Lost(Exception):
    """The connection failed; ``reached`` says whether the server may have heard of the call."""

    def __init__(self, *, reached: bool) -> None:
        self.reached = reached
        super().__init__()


def _messages(response: HTTPResponse) -> Iterator[bytes]:
    """The messages of an answer, up to its end; an error that it brings is raised."""
    try:
        for tag, data in protocol.frames(response.read, limit=MAX_ANSWER_FRAME):
            if tag == protocol.MESSAGE:
                yield data
            elif tag == protocol.PROBLEM:
                raise error_in(data)
            elif tag == protocol.END:
                return
    except (OSError, HTTPException, protocol.CutOff) as error:
        raise _Lost(reached=True) from error
    raise _Lost(reached=True)


def _refusal(response: HTTPResponse, where: str) -> TreeringError:
    return error_behind(
        response.status,
        response.headers.get_content_type(),
        response.read(_MAX_PROBLEM),
        where=where,
        location=response.getheader("location") or "",
    )


def _is_repeatable(error: _Lost | Unreachable | TooMany, method: Method) -> bool:
    if isinstance(error, Unreachable):
        # Said by the server, which may be better soon; said here (a wrong name), it stays wrong.
        return error.__cause__ is None and method.repeatable
    return isinstance(error, TooMany) or not error.reached or method.repeatable


def _said(error: _Lost | Unreachable | TooMany, method: Method, where: str) -> TreeringError:
    if not isinstance(error, _Lost):
        return error
    cause = error.__cause__
    reason = f"{type(cause).__name__}: {cause}" if cause is not None and str(cause) else "it hung up"
    fate = (
        ""
        if method.repeatable or not error.reached
        else "; whether it was done is not known, look before repeating"
    )
    return Unreachable(f"{where} cannot be reached for {method.name} ({reason}){fate}")


def _is_readable(connection: HTTPConnection) -> bool:
    """Whether there is something to read on an idle connection: the server has closed it."""
    if connection.sock is None:
        return True
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


_pools: Final[weakref.WeakSet[Connections]] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool.abandon()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)

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
from typing import Final, TypeVar

from treering.engines.remote import wire
from treering.engines.remote.failures import error_behind, error_in
from treering.engines.remote.place import Place
from treering.engines.remote.protocol import HEADER, MAX_ANSWER_FRAME, MEDIA_TYPE, VERSION, Method
from treering.errors import Closed, TooMany, TreeringError, Unreachable, Unsupported

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
        for tag, data in wire.frames(response.read, limit=MAX_ANSWER_FRAME):
            if tag == wire.MESSAGE:
                yield data
            elif tag == wire.PROBLEM:
                raise error_in(data)
            elif tag == wire.END:
                return
    except (OSError, HTTPException, wire.CutOff) as error:
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

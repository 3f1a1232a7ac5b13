"""A road to a server on which things go wrong: refused, cut, slow and unanswered connections, answers of 500.

What happens to a connection is drawn from a seeded generator. Bytes are passed on as they are, so signatures
stay right.
"""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from typing import Self

ERROR = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/xml\r\nconnection: close\r\n"
    b"content-length: 55\r\n\r\n<Error><Code>InternalError</Code><Message/></Error>    "
)


class RoughRoad:
    """Listens on this machine and leads to another port of it."""

    def __init__(self, port: int, *, seed: int, fates: tuple[str, ...]) -> None:
        self._to = port
        self._random = random.Random(seed)
        self._lock = Lock()
        self._fates = fates
        self._over = Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.met: Counter[str] = Counter()
        self._thread = Thread(target=self._listen)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()

    def _listen(self) -> None:
        travellers: list[Thread] = []
        while not self._over.is_set():
            try:
                client, _ = self._server.accept()
            except OSError:
                break
            with self._lock:
                fate = self._random.choice(self._fates)
                budget = self._random.choice((700, 20_000, 300_000, 4_000_000))
            travellers.append(Thread(target=self._travel, args=(client, fate, budget)))
            travellers[-1].start()
        for each in travellers:
            each.join()

    def _travel(self, client: socket.socket, fate: str, budget: int) -> None:
        with client, suppress(OSError):
            if fate == "refused":
                self.met[fate] += 1
                return
            if not self._asks(client):
                return
            self.met[fate] += 1
            if fate == "error":
                client.recv(65536)
                client.sendall(ERROR)
                client.shutdown(socket.SHUT_WR)
                client.settimeout(1)
                while client.recv(65536):
                    pass
                return
            if fate == "unanswered":
                client.settimeout(0.05)
                while not self._over.is_set():
                    with suppress(TimeoutError):
                        if not client.recv(65536):
                            return
                return
            with socket.create_connection(("127.0.0.1", self._to)) as server:
                left = [budget if fate == "cut" else 1 << 40]
                there = Thread(target=self._pipe, args=(client, server, left))
                there.start()
                self._pipe(server, client, left)
                there.join()

    def _asks(self, client: socket.socket) -> bool:
        """Whether anything is ever asked on a connection."""
        client.settimeout(0.05)
        while not self._over.is_set():
            with suppress(TimeoutError):
                return bool(client.recv(1, socket.MSG_PEEK))
        return False

    def _pipe(self, source: socket.socket, target: socket.socket, left: list[int]) -> None:
        source.settimeout(0.05)
        with suppress(OSError):
            while not self._over.is_set() and left[0] > 0:
                try:
                    data = source.recv(65536)
                except TimeoutError:
                    continue
                if not data:
                    break
                data = data[: left[0]]
                left[0] -= len(data)
                target.sendall(data)
        left[0] = 0
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def rough_road(endpoint: str, *, seed: int, fates: tuple[str, ...]) -> Iterator[RoughRoad]:
    """A rough road to an endpoint of this machine."""
    with RoughRoad(int(endpoint.rpartition(":")[2]), seed=seed, fates=fates) as road:
        yield road

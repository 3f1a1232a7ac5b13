"""A relay between a client and a server that loses what it is told to lose."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Relay:
    """Hands bytes on, both ways. Of the next ``lose_answers`` answers, none arrives."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.lose_answers = 0
        self.lost = 0
        self.listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self.listening.bind(("127.0.0.1", 0))
        self.listening.listen(32)
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.open: list[socket.socket] = [self.listening]

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listening.accept()
                server = socket.create_connection(("127.0.0.1", self.port))
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.open += [client, server]
                threading.Thread(target=self.requests, args=(client, server), daemon=True).start()
                threading.Thread(target=self.answers, args=(client, server), daemon=True).start()

    def requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def answers(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if self.lose_answers > 0:
                    self.lose_answers -= 1
                    self.lost += 1
                    break
                client.sendall(data)
            for end in (client, server):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def relayed(url: str) -> Iterator[Relay]:
    """A relay in front of a server."""
    relay = Relay(int(url.rpartition(":")[2]))
    thread = threading.Thread(target=relay.accept, daemon=True)
    thread.start()
    try:
        yield relay
    finally:
        for each in relay.open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        thread.join(10)

"""Free loopback ports.

A port is only known to be free while someone holds it, so all ports of one server are held together,
then let go just before the server takes them. Another process can still be quicker: whoever starts a
server on these ports tries again with new ones when it does not come up.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free(count: int) -> list[int]:
    """Different ports that nobody listens on at this moment."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def listening(port: int) -> bool:
    """Whether something on this machine accepts connections at the port."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0

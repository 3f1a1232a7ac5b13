"""How a server is set up."""

from __future__ import annotations

import ipaddress
from typing import Final

import msgspec

MEGABYTE: Final = 1_000_000


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the one who starts the server decides; the defaults suit one machine."""

    host: str = "127.0.0.1"
    port: int = 8787
    project: str = "default"
    """Which space a caller without a key of the store works in: on loopback, or with ``api_key``."""
    api_key: str | None = None
    """A key beside those of the store, with scope ``admin`` in ``project`` (TREERING_API_KEY)."""
    max_body: int = 64 * MEGABYTE
    calls_per_second: float = 2_000.0
    """For each key; a burst of twice that passes."""
    hosts: tuple[str, ...] = ()
    """Names under which the server is reached, beside the address that it is bound to."""
    dashboard: bool = True
    search: bool = True
    """Fill the search index in the background; without it, the first search has to."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine itself."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False

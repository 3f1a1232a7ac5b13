"""The settings of a server."""

from __future__ import annotations

import ipaddress
from typing import Final

import msgspec

from treering.api import check_api_key
from treering.core.retention import age_us

MEGABYTE: Final = 1_000_000


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator decides. The defaults suit a server for this machine only."""

    host: str = "127.0.0.1"
    port: int = 8787
    grpc_port: int | None = None
    """A port for OTLP over gRPC, or ``None`` for none. It needs the extra ``grpc``."""
    project: str = "default"
    """The project of callers without a key of the store: on loopback, or with ``api_key``."""
    api_key: str | None = None
    """A key in addition to those of the store, with scope ``admin`` in ``project`` (TREERING_API_KEY).

    16 characters or more: an empty or a weak one is refused.
    """
    max_body: int = 64 * MEGABYTE
    calls_per_second: float = 2_000.0
    """Rate limit per key; bursts of twice as many calls are allowed."""
    hosts: tuple[str, ...] = ()
    """Host names that the server answers to, in addition to the address it is bound to."""
    dashboard: bool = True
    public_url: str | None = None
    """The address at which people open the dashboard, for links in alerts."""
    background: bool = True
    """Do background work: index for search, apply alert rules and deadlines, mark crashed runs."""
    archive_after: str | None = None
    """In the background, archive days that are older than this (``30d``)."""
    reruns: dict[str, str] | None = None
    """Make runs again when asked: with these environment variables, which say where the store is. This runs
    the code of agents on the server's machine; ``None`` refuses it.
    """
    search: bool = True
    """Build the search index in the background. Otherwise the first search builds it."""

    def __post_init__(self) -> None:
        """Refuse a weak key, and an age that is none."""
        if self.archive_after is not None:
            age_us(self.archive_after, "archive_after")
        if self.api_key is not None:
            check_api_key(self.api_key)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Return whether a host name or address refers to this machine."""
    name = host.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False

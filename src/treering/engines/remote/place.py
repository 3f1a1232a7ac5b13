"""Where a server is: what its URL may say, and how the key travels there.

**Invariant:** a key is only ever sent over TLS, over the loopback, or where ``TREERING_ALLOW_HTTP=1`` says
that the network in between is trusted.
"""

from __future__ import annotations

import os
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import msgspec

from treering.errors import InvalidInput

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

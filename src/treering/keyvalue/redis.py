"""A key-value store on a server that speaks the Redis protocol (Redis, Valkey, ...).

A value is a string under ``prefix`` + key: its kind, a colon, and its bytes, as in ``json:{"step":1}``. Keys
are listed with SCAN, which does not block the server but may return duplicates; glob characters in a prefix
are escaped, so ``a*`` lists keys that start with an a and an asterisk. What survives a crash of the server
depends on its settings (``appendonly``). Two stores on one database need prefixes of which neither starts
with the other.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from treering.core.content import KINDS, Content, Kind
from treering.core.encoding import decode, encode
from treering.core.ids import check_id
from treering.errors import (
    Corrupt,
    InvalidInput,
    MissingExtra,
    ReadOnly,
    StoreFull,
    TreeringError,
    Unreachable,
)

if TYPE_CHECKING:
    from redis import Redis

_GLOB: Final = re.compile(rb"([*?\[\]\\])")
_PAGE: Final = 1000
_SWAP: Final = """
local current = redis.call('GET', KEYS[1])
if (current or '') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2]) end
return 1
"""
"""An empty string means no value: stored values are never empty."""
_KINDS: Final[dict[bytes, Kind]] = {kind.encode(): kind for kind in KINDS}


class RedisStore:
    """Keys and values on a Redis server; needs ``treering[redis]``. Thread-safe.

    ``client`` is an existing client to use instead of ``url``.
    """

    def __init__(
        self, url: str = "redis://localhost:6379/0", prefix: str = "treering:", *, client: Redis | None = None
    ) -> None:
        self._prefix = prefix.encode()
        # redis-py types every result as plain or awaitable; for this client it is plain.
        self._client: Any = _connected(url) if client is None else _checked(client)
        self._where = _shown(self._client)

    def get(self, key: str) -> Any | None:
        """Return the value of a key, or None."""
        name = self._name(key)
        with self._translated(key):
            raw: bytes | None = self._client.get(name)
        if raw is None:
            return None
        kind, colon, data = raw.partition(b":")
        if not colon or kind not in _KINDS:
            raise Corrupt(f"{self._where}: {name!r} was not written by treering; move it away")
        return decode(Content(_KINDS[kind], data))

    def set(self, key: str, value: Any) -> None:
        """Set the value of a key."""
        name, raw = self._name(key), _raw(value)
        with self._translated(key):
            self._client.set(name, raw)

    def delete(self, key: str) -> None:
        """Delete a key."""
        name = self._name(key)
        with self._translated(key):
            self._client.delete(name)

    def compare_and_swap(self, key: str, old: Any, new: Any) -> bool:
        """Replace ``old`` by ``new`` atomically, or return False; ``None`` means no value."""
        name = self._name(key)
        expected, raw = (b"" if value is None else _raw(value) for value in (old, new))
        with self._translated(key):
            return self._client.eval(_SWAP, 1, name, expected, raw) == 1

    def list(self, prefix: str = "") -> list[str]:
        """List all keys with a prefix, sorted."""
        begin = self._prefix + prefix.encode()
        with self._translated(f"{prefix}*"):
            found = set(self._client.scan_iter(match=_GLOB.sub(rb"\\\1", begin) + b"*", count=_PAGE))
        try:
            return sorted(name.removeprefix(self._prefix).decode() for name in found)
        except UnicodeDecodeError as error:
            raise Corrupt(
                f"{self._where}: {error.object!r} is not a key written by treering; move it away"
            ) from error

    def _name(self, key: str) -> bytes:
        return self._prefix + check_id(key, "key").encode()

    @contextlib.contextmanager
    def _translated(self, key: str) -> Generator[None]:
        from redis.exceptions import RedisError

        try:
            yield
        except RedisError as error:
            raise _translate(error, f"{self._where}: key {key!r}") from error


def _raw(value: Any) -> bytes:
    content = encode(value)
    return content.kind.encode() + b":" + content.data


def _connected(url: str) -> Redis:
    try:
        from redis import Redis
    except ModuleNotFoundError as error:
        raise MissingExtra("a Redis store", "redis") from error
    try:
        return Redis.from_url(url)  # pyright: ignore[reportUnknownMemberType]
    except ValueError as error:
        raise InvalidInput(
            "the URL of a Redis store starts with redis://, rediss:// (TLS) or unix://, "
            f"for example redis://localhost:6379/0 ({error})"
        ) from error


def _checked(client: Redis) -> Redis:
    from redis import Redis

    if not isinstance(client, Redis):  # pyright: ignore[reportUnnecessaryIsInstance] - an async client, say
        raise InvalidInput(f"client is a {type(client).__qualname__}; pass a redis.Redis or a URL")
    if client.get_encoder().decode_responses:
        raise InvalidInput("client decodes responses, which would damage bytes; use decode_responses=False")
    return client


def _shown(client: Redis) -> str:
    at: dict[str, Any] = client.connection_pool.connection_kwargs
    return at.get("path") or f"redis://{at.get('host', 'localhost')}:{at.get('port', 6379)}/{at.get('db', 0)}"


def _translate(error: Exception, where: str) -> TreeringError:
    from redis import exceptions as redis_errors

    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return InvalidInput(f"{where}: the server rejects these credentials ({error}); check the URL")
    if isinstance(error, redis_errors.ReadOnlyError | redis_errors.NoPermissionError):
        return ReadOnly(f"{where}: {error}; connect to the primary, as a user with write access")
    if isinstance(error, redis_errors.OutOfMemoryError):
        return StoreFull(f"{where}: {error}; raise maxmemory or delete keys")
    if str(error).startswith("WRONGTYPE"):
        return Corrupt(f"{where} was not written by treering ({error}); move it away")
    return Unreachable(f"{where}: {error}; check that the server runs and is reachable")

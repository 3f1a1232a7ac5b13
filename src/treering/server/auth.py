"""The gate: who a request comes from, and whether it may pass.

With keys (of the store, or one in the settings), a request shows one. Without any, the server is for this
machine alone: it answers only on loopback, and only to requests that name it as such and come from no other
web page, so that a page in the user's browser can neither read nor change anything (DNS rebinding, CSRF).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec
from starlette.requests import HTTPConnection

from treering.core.batch import ANY, Draft
from treering.core.clock import Clock
from treering.core.engine import Engine
from treering.core.ids import Scope as ErasureScope
from treering.core.ids import check_space, new_id
from treering.core.paging import each_ref
from treering.core.query import Erasure
from treering.errors import Corrupt, Forbidden, InvalidInput, NotFound, TooMany, Unauthorized
from treering.maintenance.stats import RESERVED
from treering.server.settings import Settings, is_loopback

# -----------------------------------------------------------------------------------------------------------
# Who may do what: API keys, their projects and scopes.
#
# A key is ``tr_<id>_<secret>``. Only the SHA-256 of the secret is stored (256 random bits: there is nothing
# to guess), in a space of treering's own, so that a key works on every server of the store. A project is a
# space. **Invariant:** neither project nor scope ever comes from a request; both come from the key.


Scope = Literal["read", "write", "admin"]
"""Each one includes those before it."""

SCOPES: Final[tuple[Scope, ...]] = ("read", "write", "admin")
KEYS_SPACE: Final = f"{RESERVED}keys"
PREFIX: Final = "tr_"
_REF: Final = "key/"
_SCOPE: Final = str(ErasureScope("", "keys", "all"))


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may do, and in which project. ``name`` says who it is, for the rate limit and the log."""

    project: str
    scope: Scope
    name: str

    def check(self, wanted: Scope) -> None:
        """Raise `Forbidden` unless the scope is enough."""
        if SCOPES.index(self.scope) < SCOPES.index(wanted):
            raise Forbidden(
                f"this needs a key with scope {wanted!r}, yours has {self.scope!r}; "
                f"make one with: treering keys create --scope {wanted}"
            )


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is kept: everything but the secret."""

    id: str
    project: str
    scope: Scope
    name: str = ""
    created_at_us: int
    digest: str

    @property
    def access(self) -> Access:
        """What it opens."""
        return Access(project=self.project, scope=self.scope, name=f"key {self.id}")


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was just made. ``token`` is shown this once and stored nowhere."""

    key: Key
    token: str


class Keys:
    """The keys of a store."""

    def __init__(self, engine: Engine, *, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def create(self, *, project: str = "default", scope: Scope = "write", name: str = "") -> NewKey:
        """Make a key for a project."""
        if scope not in SCOPES:
            raise InvalidInput(f"scope {scope!r} is not one of {', '.join(SCOPES)}")
        if check_space(project).startswith(RESERVED):
            raise InvalidInput(f"projects that begin with {RESERVED!r} are treering's own; choose another")
        secret = secrets.token_hex(32)
        key = Key(
            id=new_id(),
            project=project,
            scope=scope,
            name=name,
            created_at_us=self._clock.now_us(),
            digest=_digest(secret),
        )
        draft = Draft(KEYS_SPACE)
        draft.set_ref(_REF + key.id, msgspec.json.encode(key), scope=_SCOPE, expect=ANY)
        self._engine.commit(draft.batch())
        return NewKey(key=key, token=f"{PREFIX}{key.id}_{secret}")

    def list(self) -> list[Key]:
        """All keys, oldest first."""
        return [_key(ref.value) for ref in each_ref(self._engine, KEYS_SPACE, _REF)]

    def has_any(self) -> bool:
        """Whether there is a key at all."""
        return bool(self._engine.scan_refs(KEYS_SPACE, _REF, limit=1))

    def revoke(self, id: str) -> None:
        """Take a key back; servers turn it away within seconds."""
        if not self._engine.refs(KEYS_SPACE, [_REF + id]):
            raise NotFound(f"there is no key {id!r}; treering keys list shows those that there are")
        self._engine.erase(KEYS_SPACE, Erasure(refs=(_REF + id,)))

    def find(self, token: str) -> Key:
        """The key behind a token, or `Unauthorized`, which never says what was wrong with it."""
        name, _, secret = token.removeprefix(PREFIX).partition("_")
        if token.startswith(PREFIX) and secret:
            ref = self._engine.refs(KEYS_SPACE, [_REF + name]).get(_REF + name)
            if ref is not None:
                key = _key(ref.value)
                if hmac.compare_digest(key.digest, _digest(secret)):
                    return key
        raise Unauthorized(
            "this API key is not known here; check TREERING_API_KEY, or make one: treering keys create"
        )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(value: bytes) -> Key:
    try:
        return msgspec.json.decode(value, type=Key)
    except msgspec.DecodeError as error:
        raise Corrupt(f"an API key cannot be read ({error}); revoke it and make a new one") from None


# -----------------------------------------------------------------------------------------------------------

_REMEMBERED_SECONDS: Final = 5.0
_REMEMBERED: Final = 4096
_QUERY_KEY: Final = "api_key"


class Gate:
    """Decides on every request. Keys are looked up in the store and remembered for a few seconds."""

    def __init__(self, engine: Engine, settings: Settings, *, clock: Clock) -> None:
        self._keys = Keys(engine, clock=clock)
        self._settings = settings
        self._known: OrderedDict[str, tuple[float, Access]] = OrderedDict()
        self._has_keys: tuple[float, bool] = (0.0, False)
        self._lock = threading.Lock()
        self._pace = Pace(settings.calls_per_second)

    def check_binding(self) -> None:
        """Refuse to listen where others can reach a server that asks nobody for a key."""
        if not self._settings.is_loopback and self._settings.api_key is None and not self._ask_for_keys():
            raise InvalidInput(
                f"others can reach a server on {self._settings.host}, and this store has no API key yet; "
                "make one (treering keys create), set TREERING_API_KEY, or listen on 127.0.0.1"
            )

    def admit(self, connection: HTTPConnection) -> Access:
        """Who is calling. Raises `Unauthorized`, `Forbidden` or `TooMany`. May ask the store."""
        access = self.recall(connection)
        if access is not None:
            return access
        token = _token(connection)
        if token is not None:
            self._learn(token)
        else:
            self._ask_for_keys()
        return self.recall(connection) or self.admit(connection)

    def recall(self, connection: HTTPConnection) -> Access | None:
        """As `admit`, but never waits: ``None`` when the store has to be asked first."""
        self._check_host(connection)
        token = _token(connection)
        access = self._known_as(token) if token is not None else self._of_nobody(connection)
        if access is not None:
            self._pace.take(access.name)
        return access

    def _known_as(self, token: str) -> Access | None:
        own = self._settings.api_key
        if own is not None and hmac.compare_digest(own.encode(), token.encode()):
            return Access(project=self._settings.project, scope="admin", name="key of the settings")
        with self._lock:
            until, access = self._known.get(token, (0.0, None))
        return access if until > time.monotonic() else None

    def _learn(self, token: str) -> None:
        access = self._keys.find(token).access
        with self._lock:
            self._known[token] = (time.monotonic() + _REMEMBERED_SECONDS, access)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)

    def _of_nobody(self, connection: HTTPConnection) -> Access | None:
        until, has_keys = self._has_keys
        if self._settings.is_loopback and self._settings.api_key is None and until < time.monotonic():
            return None
        if has_keys or self._settings.api_key is not None or not self._settings.is_loopback:
            raise Unauthorized(
                "an API key is needed: Authorization: Bearer <key> (make one: treering keys create)"
            )
        origin = connection.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != connection.headers.get("host"):
            raise Forbidden(
                f"a page of {origin[:200]} may not use this server; open the server's own address"
            )
        return Access(project=self._settings.project, scope="admin", name="this machine")

    def _ask_for_keys(self) -> bool:
        has_keys = self._keys.has_any()
        self._has_keys = (time.monotonic() + _REMEMBERED_SECONDS, has_keys)
        return has_keys

    def _check_host(self, connection: HTTPConnection) -> None:
        if not self._settings.is_loopback:
            return
        host = urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""
        if not is_loopback(host) and host not in self._settings.hosts:
            raise Forbidden(
                f"this server is for its own machine and does not answer to {host[:200]!r}; "
                "use 127.0.0.1 or localhost, or name the host with --allow-host"
            )


class Pace:
    """So many calls a second for each caller, with a burst of twice that."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str) -> None:
        """Count a call; `TooMany` when it comes too early."""
        now = time.monotonic()
        burst = 2 * self._per_second
        with self._lock:
            at, left = self._left.pop(name, (now, burst))
            left = min(burst, left + (now - at) * self._per_second)
            self._left[name] = (now, max(left - 1, 0.0))
            while len(self._left) > _REMEMBERED:
                self._left.popitem(last=False)
        if left < 1:
            raise TooMany(
                f"more than {self._per_second:g} calls a second; wait a moment and go on",
                retry_after=(1 - left) / self._per_second,
            )


def _token(connection: HTTPConnection) -> str | None:
    given = connection.headers.get("authorization")
    if given is not None:
        kind, _, token = given.partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise Unauthorized(
                "the Authorization header is not understood; send: Authorization: Bearer <key>"
            )
        return token.strip()
    given = connection.headers.get("x-api-key")
    if given is None and connection.scope["type"] == "websocket":
        return connection.query_params.get(_QUERY_KEY)  # a browser cannot set headers there
    return given

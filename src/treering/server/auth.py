"""Authentication: API keys, their projects and scopes, and the check of every request.

A key is ``tr_<id>_<secret>``. Only the SHA-256 of the secret is stored (256 random bits: nothing to guess),
in a namespace of treering's own, so that a key works on every server of the store. A project is a namespace.

Once a key exists (in the store or in the settings), every request needs one. Without any, the server is for
this machine only: it answers only on loopback, only to requests whose Host names this machine, and to no page
of another origin, so that a page in the user's browser can neither read nor change anything (DNS rebinding,
CSRF).
**Invariant:** neither project nor scope ever comes from a request; both come from the key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import msgspec

from treering.approvals.policy import may_answer
from treering.core.batch import ANY, Draft
from treering.core.clock import Clock, to_datetime
from treering.core.engine import Engine
from treering.core.ids import RESERVED, SIDE, check_space, may_be_shortened, new_id, only_match
from treering.core.ids import Scope as ErasureScope
from treering.core.query import Erasure, each_ref, readable
from treering.errors import (
    Corrupt,
    Forbidden,
    InvalidInput,
    NotFound,
    TooMany,
    TreeringError,
    Unauthorized,
)
from treering.server.settings import Settings, is_loopback

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

Scope = Literal["read", "write", "admin"]
"""Each scope includes the ones before it."""
Permission = Scope | Literal["approve"]
"""What an operation requires: a scope, or that the key may answer questions of agents (as any admin key)."""

SCOPES: Final[tuple[Scope, ...]] = ("read", "write", "admin")
KEYS_SPACE: Final = f"{RESERVED}keys"
_RESERVED_PROJECTS: Final = (RESERVED, SIDE)
PREFIX: Final = "tr_"
_REF: Final = "key/"
_SCOPE: Final = str(ErasureScope("", "keys", "all"))


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller may do, in which project. ``name`` identifies it to the rate limiter and in the log."""

    project: str
    scope: Scope
    name: str
    approves: bool = False
    person: str | None = None
    """Who the key was given to, as answers say; ``None`` for an operator, who may answer for anybody."""

    @property
    def may_approve(self) -> bool:
        """Whether the caller may answer questions of agents."""
        return self.approves or self.scope == SCOPES[-1]

    def may_be_among(self, who: Sequence[str]) -> bool:
        """Whether the caller is among those who may answer a question."""
        return self.person is None or may_answer(who, self.person)

    def speaks_as(self, name: str | None) -> str:
        """Return who answers: the person of the key, or for an operator, the name that is given."""
        return self.person if self.person is not None else name or self.name

    def check(self, required: Permission, *, to: str = "do this") -> None:
        """Raise `Forbidden` unless the caller is permitted ``to`` do something."""
        if required == "approve":
            if not self.may_approve:
                raise Forbidden(
                    f"to {to} requires a key that may approve, or one with scope 'admin'; "
                    "create one with: treering keys create --approver --name NAME"
                )
            return
        if SCOPES.index(self.scope) < SCOPES.index(required):
            raise Forbidden(
                f"to {to} requires a key with scope {required!r}, yours has {self.scope!r}; "
                f"create one with: treering keys create --scope {required}"
            )


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A stored key: everything but the secret."""

    id: str
    project: str
    scope: Scope
    name: str = ""
    approves: bool = False
    """Whether it may answer questions of agents."""
    created_at_us: int
    digest: str

    @property
    def created_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.created_at_us)

    @property
    def access(self) -> Access:
        """What the key permits."""
        return Access(
            project=self.project,
            scope=self.scope,
            name=f"key {self.id}",
            approves=self.approves,
            person=self.name or f"key {self.id}",
        )


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key. ``token`` is shown once and stored nowhere."""

    key: Key
    token: str


class Keys:
    """The API keys of a store."""

    def __init__(self, engine: Engine, *, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def create(
        self, *, project: str = "default", scope: Scope = "write", name: str = "", approves: bool = False
    ) -> NewKey:
        """Create a key for a project; one that ``approves`` may answer questions of agents as ``name``."""
        if scope not in SCOPES:
            raise InvalidInput(f"scope {scope!r} is not one of {', '.join(SCOPES)}")
        if check_space(project).startswith(_RESERVED_PROJECTS):
            raise InvalidInput(
                f"project names starting with {' or '.join(map(repr, _RESERVED_PROJECTS))} are reserved; "
                "choose another"
            )
        secret = secrets.token_hex(32)
        key = Key(
            id=new_id(),
            project=project,
            scope=scope,
            name=name,
            approves=approves,
            created_at_us=self._clock.now_us(),
            digest=_digest(secret),
        )
        draft = Draft(KEYS_SPACE)
        draft.set_ref(_REF + key.id, msgspec.json.encode(key), scope=_SCOPE, expect=ANY)
        self._engine.commit(draft.batch())
        return NewKey(key=key, token=f"{PREFIX}{key.id}_{secret}")

    def list(self) -> list[Key]:
        """List all keys, oldest first."""
        return list(readable(each_ref(self._engine, KEYS_SPACE, _REF), lambda ref: _key(ref.value)))

    def has_any(self) -> bool:
        """Return whether any key exists."""
        return bool(self._engine.scan_refs(KEYS_SPACE, _REF, limit=1))

    def revoke(self, id: str) -> str:
        """Revoke a key, by its id or a unique beginning of it; return the id. Running servers reject the key
        within seconds.
        """
        match = only_match((each.id for each in self.list()), id, "key") if may_be_shortened(id) else None
        if match is None:
            raise NotFound(f"key {id!r} not found. List keys with: treering keys list")
        self._engine.erase(KEYS_SPACE, Erasure(refs=(_REF + match,)))
        return match

    def find(self, token: str) -> Key:
        """Return the key of a token. Raise `Unauthorized` otherwise, without saying what is wrong with it."""
        name, _, secret = token.removeprefix(PREFIX).partition("_")
        if token.startswith(PREFIX) and secret:
            ref = self._engine.refs(KEYS_SPACE, [_REF + name]).get(_REF + name)
            if ref is not None:
                key = _key(ref.value)
                if hmac.compare_digest(key.digest, _digest(secret)):
                    if key.project.startswith(_RESERVED_PROJECTS):
                        raise Forbidden(
                            f"the project {key.project[:80]!r} of this key has a reserved name; "
                            "create a key for another project"
                        )
                    return key
        raise Unauthorized(
            "unknown API key; check TREERING_API_KEY, or create one with: treering keys create"
        )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(value: bytes) -> Key:
    try:
        return msgspec.json.decode(value, type=Key)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"an API key is corrupt ({error}); revoke it and create a new one") from None


_CACHE_SECONDS: Final = 5.0
STREAM_SECONDS: Final = 2.0
"""How often the key of an open stream is checked, and how old the result of a check may be."""
_CACHE_SIZE: Final = 4096
_QUERY_KEY: Final = "api_key"


class Gate:
    """Authenticates every request. Keys are looked up in the store and cached for a few seconds."""

    def __init__(self, engine: Engine, settings: Settings, *, clock: Clock) -> None:
        self._keys = Keys(engine, clock=clock)
        self._settings = settings
        self._cache: OrderedDict[str, tuple[float, Access]] = OrderedDict()
        self._has_keys: tuple[float, bool] = (0.0, False)
        self._lock = threading.Lock()
        self._limiter = RateLimiter(settings.calls_per_second)

    def check_binding(self) -> None:
        """Refuse to listen where other machines can reach a server that requires no key."""
        if not self._settings.is_loopback and self._settings.api_key is None and not self._look_for_keys():
            raise InvalidInput(
                f"other machines can reach a server on {self._settings.host}, but the store has no API key; "
                "create one (treering keys create), set TREERING_API_KEY, or listen on 127.0.0.1"
            )

    def admit(self, connection: HTTPConnection) -> Access:
        """Authenticate a request; may query the store. Raises `Unauthorized`, `Forbidden` or `TooMany`."""
        access = self.admit_cached(connection)
        if access is not None:
            return access
        token = _token(connection)
        if token is not None:
            self._look_up(token)
        else:
            self._look_for_keys()
        return self.admit_cached(connection) or self.admit(connection)

    def admit_cached(self, connection: HTTPConnection) -> Access | None:
        """Authenticate like `admit` without blocking; ``None`` if the store has to be queried first."""
        self._check_host(connection)
        token = _token(connection)
        access = self._cached(token) if token is not None else self._without_key(connection)
        if access is not None:
            self._limiter.take(access.name)
        return access

    def still_admits(self, connection: HTTPConnection) -> bool:
        """Return whether a stream that was admitted may go on; may query the store.

        It ends when its key was revoked, and without a key when the first one was created.
        """
        token = _token(connection)
        try:
            if token is None:
                if self._has_keys[0] - time.monotonic() < _CACHE_SECONDS - STREAM_SECONDS:
                    self._look_for_keys()
                self._without_key(connection)
            elif self._cached(token, seconds=STREAM_SECONDS) is None:
                self._look_up(token)
        except (Unauthorized, Forbidden):
            return False
        except TreeringError:  # the store cannot be reached; the next check will tell
            return True
        return True

    def _cached(self, token: str, *, seconds: float = _CACHE_SECONDS) -> Access | None:
        own = self._settings.api_key
        if own is not None and hmac.compare_digest(own.encode(), token.encode()):
            return Access(project=self._settings.project, scope="admin", name="key from the settings")
        with self._lock:
            until, access = self._cache.get(token, (0.0, None))
        return access if until - _CACHE_SECONDS + seconds > time.monotonic() else None

    def _look_up(self, token: str) -> None:
        access = self._keys.find(token).access
        with self._lock:
            self._cache[token] = (time.monotonic() + _CACHE_SECONDS, access)
            while len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)

    def _without_key(self, connection: HTTPConnection) -> Access | None:
        until, has_keys = self._has_keys
        if self._settings.is_loopback and self._settings.api_key is None and until < time.monotonic():
            return None
        if has_keys or self._settings.api_key is not None or not self._settings.is_loopback:
            raise Unauthorized(
                "an API key is required: Authorization: Bearer <key> (create one with: treering keys create)"
            )
        origin = connection.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != connection.headers.get("host"):
            raise Forbidden(
                f"a page of {origin[:200]} may not call this server; open the server's own address"
            )
        return Access(project=self._settings.project, scope="admin", name="this machine")

    def _look_for_keys(self) -> bool:
        has_keys = self._keys.has_any()
        self._has_keys = (time.monotonic() + _CACHE_SECONDS, has_keys)
        return has_keys

    def _check_host(self, connection: HTTPConnection) -> None:
        if not self._settings.is_loopback:
            return
        host = urlsplit(f"//{connection.headers.get('host', '')}").hostname or ""
        if not is_loopback(host) and host not in self._settings.hosts:
            raise Forbidden(
                f"this server only serves its own machine, not {host[:200]!r}; "
                "use 127.0.0.1 or localhost, or allow the host with --allow-host"
            )


class RateLimiter:
    """A token bucket per caller: so many calls per second, with bursts of twice as many."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, name: str) -> None:
        """Count a call. Raise `TooMany` when the caller exceeds its rate."""
        now = time.monotonic()
        burst = 2 * self._per_second
        with self._lock:
            at, left = self._buckets.pop(name, (now, burst))
            left = min(burst, left + (now - at) * self._per_second)
            self._buckets[name] = (now, max(left - 1, 0.0))
            while len(self._buckets) > _CACHE_SIZE:
                self._buckets.popitem(last=False)
        if left < 1:
            raise TooMany(
                f"rate limit of {self._per_second:g} calls per second exceeded; retry later",
                retry_after=(1 - left) / self._per_second,
            )


def _token(connection: HTTPConnection) -> str | None:
    given = connection.headers.get("authorization")
    if given is not None:
        kind, _, token = given.partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise Unauthorized("malformed Authorization header; send: Authorization: Bearer <key>")
        return token.strip()
    given = connection.headers.get("x-api-key")
    if given is None and connection.scope["type"] == "websocket":
        return connection.query_params.get(_QUERY_KEY)  # browsers cannot set headers on WebSockets
    return given

"""Who may do what: API keys, their projects and scopes.

A key is ``tr_<id>_<secret>``. Only the SHA-256 of the secret is stored (256 random bits: there is nothing to
guess), in a space of treering's own, so that a key works on every server of the store. A project is a
space. **Invariant:** neither project nor scope ever comes from a request; both come from the key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final, Literal

import msgspec

from treering.care.spaces import RESERVED
from treering.core.batch import ANY
from treering.core.clock import Clock
from treering.core.draft import Draft
from treering.core.engine import Engine
from treering.core.ids import check_space, new_id
from treering.core.pages import each_ref
from treering.core.query import Erasure
from treering.core.scopes import Scope as ErasureScope
from treering.errors import Corrupt, Forbidden, InvalidInput, NotFound, Unauthorized

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

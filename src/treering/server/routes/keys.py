"""Routes for the API keys of the caller's project."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from treering.core.clock import to_iso
from treering.errors import NotFound
from treering.server.auth import Key, Keys, Scope
from treering.server.endpoints import OK, Call, Empty, endpoint


class KeyLine(Struct, frozen=True, kw_only=True):
    """A key without its secret."""

    id: str
    project: str
    scope: Scope
    name: str
    created_at: str


class KeyList(Struct, frozen=True, kw_only=True):
    """The keys of a project, oldest first."""

    keys: tuple[KeyLine, ...]


class NewKeyRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scope of a new key, and a name for it."""

    scope: Scope = "write"
    name: str = ""


class CreatedKey(Struct, frozen=True, kw_only=True):
    """A new key. ``token`` is shown only once."""

    key: KeyLine
    token: str


@endpoint("GET", "/keys", tag="keys", scope="admin")
def list_keys(call: Call[None, None]) -> KeyList:
    """List the keys of this project."""
    return KeyList(keys=tuple(map(_line, _own(call))))


@endpoint("POST", "/keys", tag="keys", scope="admin", status=201)
def create_key(call: Call[None, NewKeyRequest]) -> CreatedKey:
    """Create a key for this project. Once a key exists, every request needs one."""
    made = _keys(call).create(project=call.access.project, scope=call.body.scope, name=call.body.name)
    return CreatedKey(key=_line(made.key), token=made.token)


@endpoint("DELETE", "/keys/{id}", tag="keys", scope="admin")
def revoke_key(call: Call[None, None]) -> Empty:
    """Revoke a key of this project."""
    if call.path["id"] not in {each.id for each in _own(call)}:
        raise NotFound(f"key {call.path['id']!r} not found in this project; GET /keys lists its keys")
    _keys(call).revoke(call.path["id"])
    return OK


ENDPOINTS: Final = (list_keys, create_key, revoke_key)


def _keys(call: Call[None, None] | Call[None, NewKeyRequest]) -> Keys:
    return Keys(call.store.engine, clock=call.store.clock)


def _own(call: Call[None, None]) -> list[Key]:
    return [each for each in _keys(call).list() if each.project == call.access.project]


def _line(key: Key) -> KeyLine:
    return KeyLine(
        id=key.id,
        project=key.project,
        scope=key.scope,
        name=key.name,
        created_at=to_iso(key.created_at_us),
    )

"""State: JSON values by key."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from treering.core.query import Unreadable
from treering.errors import NotFound
from treering.server.endpoints import OK, Call, Empty, endpoint
from treering.state.state import State, StateChange, StateEntry

Version = Annotated[int, Meta(ge=0, le=2**62)]


class StateQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page of keys with a prefix."""

    namespace: str = ""
    prefix: str = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None


class StateEntryList(Struct, frozen=True, kw_only=True):
    """Keys with their values, in order."""

    entries: tuple[StateEntry, ...]
    next_cursor: str | None
    unreadable: tuple[Unreadable, ...] = ()
    """Entries that are left out, because they cannot be read."""


class StateNamespaceQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The namespace of the key."""

    namespace: str = ""


class NewStateValue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value to set; with ``if_version`` only if the key is at that version (0: it does not exist)."""

    value: Any
    if_version: Version | None = None


class StateAddition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number to add; nothing is added if the sum would exceed ``ceiling``."""

    delta: Annotated[int, Meta(ge=-(2**62), le=2**62)] = 1
    ceiling: Annotated[int, Meta(ge=-(2**62), le=2**62)] | None = None


class StateSum(Struct, frozen=True, kw_only=True):
    """The new value of the key."""

    value: int


class StateDeleteQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The namespace of the key; with ``if_version`` delete only that version."""

    namespace: str = ""
    if_version: Version | None = None


class StateHistory(Struct, frozen=True, kw_only=True):
    """The changes of a key, newest first."""

    changes: tuple[StateChange, ...]


@endpoint("GET", "/state", tag="state")
def list_state(call: Call[StateQuery, None]) -> StateEntryList:
    """List keys with their values, by key."""
    query = call.query
    entries = _state(call).list(query.prefix)
    after = query.cursor
    if after is not None:
        entries = (each for each in entries if each.key > after)
    found = list(islice(entries, query.limit + 1))
    page = tuple(found[: query.limit])
    return StateEntryList(entries=page, next_cursor=page[-1].key if len(found) > query.limit else None)


@endpoint("GET", "/state/{key}", tag="state")
def get_state(call: Call[StateNamespaceQuery, None]) -> StateEntry:
    """Return a value and its version."""
    entry = _state(call).entry(call.path["key"])
    if entry is None:
        raise _not_found(call)
    return entry


@endpoint("PUT", "/state/{key}", tag="state")
def put_state(call: Call[StateNamespaceQuery, NewStateValue]) -> StateEntry:
    """Set a key."""
    return _state(call).set(call.path["key"], call.body.value, if_version=call.body.if_version)


@endpoint("POST", "/state/{key}/add", tag="state")
def add_state(call: Call[StateNamespaceQuery, StateAddition]) -> StateSum:
    """Add to an integer, without reading it first."""
    value = _state(call).add(call.path["key"], call.body.delta, ceiling=call.body.ceiling)
    return StateSum(value=value)


@endpoint("DELETE", "/state/{key}", tag="state")
def delete_state(call: Call[StateDeleteQuery, None]) -> Empty:
    """Delete a key."""
    if not _state(call).delete(call.path["key"], if_version=call.query.if_version):
        raise _not_found(call)
    return OK


@endpoint("GET", "/state/{key}/history", tag="state")
def get_state_history(call: Call[StateNamespaceQuery, None]) -> StateHistory:
    """List the changes of a key, newest first."""
    return StateHistory(changes=tuple(_state(call).history(call.path["key"])))


ENDPOINTS: Final = (list_state, get_state, put_state, add_state, delete_state, get_state_history)


def _state(call: Call[Any, Any]) -> State:
    return call.store.state.in_namespace(call.query.namespace)


def _not_found(call: Call[Any, Any]) -> NotFound:
    return NotFound(f"state {call.path['key']!r} not found in namespace {call.query.namespace!r}")

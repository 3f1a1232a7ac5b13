"""Small state: JSON values by key."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from treering.errors import NotFound
from treering.server.endpoints import OK, Call, Empty, endpoint
from treering.state.state import Change, State, StateEntry

Version = Annotated[int, Meta(ge=0, le=2**62)]


class StateQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which keys: those that start so and come behind the cursor."""

    namespace: str = ""
    prefix: str = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None


class Entries(Struct, frozen=True, kw_only=True):
    """Keys in order, with their values."""

    entries: tuple[StateEntry, ...]
    next_cursor: str | None


class Where(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose state."""

    namespace: str = ""


class NewValue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value; with ``if_version`` only if the key is at that version (0: if there is none)."""

    value: Any
    if_version: Version | None = None


class Addition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to add to a whole number; past ``ceiling`` nothing is added."""

    delta: Annotated[int, Meta(ge=-(2**62), le=2**62)] = 1
    ceiling: Annotated[int, Meta(ge=-(2**62), le=2**62)] | None = None


class Number(Struct, frozen=True, kw_only=True):
    """What a key holds now."""

    value: int


class DeleteQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which key, at which version (if that matters)."""

    namespace: str = ""
    if_version: Version | None = None


class Changes(Struct, frozen=True, kw_only=True):
    """Every change of a key, newest first."""

    changes: tuple[Change, ...]


@endpoint("GET", "/state", tag="state")
def list_state(call: Call[StateQuery, None]) -> Entries:
    """Keys and values, in the order of the keys."""
    query = call.query
    source = _state(call).list(query.prefix)
    behind = query.cursor
    chosen = source if behind is None else (each for each in source if each.key > behind)
    found = list(islice(chosen, query.limit + 1))
    shown = tuple(found[: query.limit])
    return Entries(entries=shown, next_cursor=shown[-1].key if len(found) > query.limit else None)


@endpoint("GET", "/state/{key}", tag="state")
def get_state(call: Call[Where, None]) -> StateEntry:
    """One value and its version."""
    found = _state(call).entry(call.path["key"])
    if found is None:
        raise _missing(call)
    return found


@endpoint("PUT", "/state/{key}", tag="state")
def put_state(call: Call[Where, NewValue]) -> StateEntry:
    """Set a value."""
    return _state(call).set(call.path["key"], call.body.value, if_version=call.body.if_version)


@endpoint("POST", "/state/{key}/add", tag="state")
def add_state(call: Call[Where, Addition]) -> Number:
    """Add to a whole number, without reading it first."""
    value = _state(call).add(call.path["key"], call.body.delta, ceiling=call.body.ceiling)
    return Number(value=value)


@endpoint("DELETE", "/state/{key}", tag="state")
def delete_state(call: Call[DeleteQuery, None]) -> Empty:
    """Remove a key."""
    if not _state(call).delete(call.path["key"], if_version=call.query.if_version):
        raise _missing(call)
    return OK


@endpoint("GET", "/state/{key}/history", tag="state")
def get_state_history(call: Call[Where, None]) -> Changes:
    """Every change of a key, newest first."""
    return Changes(changes=tuple(_state(call).history(call.path["key"])))


ENDPOINTS: Final = (list_state, get_state, put_state, add_state, delete_state, get_state_history)


def _state(call: Call[Any, Any]) -> State:
    return call.store.state.in_namespace(call.query.namespace)


def _missing(call: Call[Any, Any]) -> NotFound:
    return NotFound(f"there is no state {call.path['key']!r} in namespace {call.query.namespace!r}")

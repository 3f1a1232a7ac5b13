"""State: small JSON values by key, changed by compare-and-swap, with a history.

A key is one ref. Each change is one commit of the ref and an event, so the history of a key can be read from
the journal. A value is stored as JSON in the ref itself; from 4 KiB it is content of its own, and the ref
holds ``@`` and its address (no JSON starts with ``@``). An integer is therefore stored as its digits, which
lets the engine add to it without reading it first.

**Invariant:** of any number of writers in any number of processes, none overwrites a value that it has not
seen, except by `State.set` without ``if_version``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, MutableMapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.core.batch import ABSENT, Add, Backoff, Draft, Event, check_version
from treering.core.clock import to_datetime
from treering.core.content import INLINE_LIMIT, Address, Content
from treering.core.encoding import decode, decode_json, encode_json
from treering.core.forks import refuse_outside
from treering.core.ids import Scope, check_id, namespace_prefix
from treering.core.query import EventQuery, each_record, each_ref, encode_cursor, readable
from treering.errors import Conflict, Corrupt, InvalidInput, NotFound, RefMoved
from treering.state.user_sessions import UserSessions

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref

SET: Final = "state.set"
DELETED: Final = "state.deleted"
ADDED: Final = "state.added"
STATE_KINDS: Final = (SET, DELETED, ADDED)

Operation = Literal["set", "deleted", "added"]

_OPERATIONS: Final[dict[str, Operation]] = {SET: "set", DELETED: "deleted", ADDED: "added"}
_ADDRESS_MARK: Final = b"@"
_PAGE: Final = 500
_WAIT_SECONDS: Final = 1.0


class StateEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A key and its current value. ``version`` counts every change, deletions included."""

    key: str
    value: Any
    version: int
    changed_at_us: int

    @property
    def changed_at(self) -> datetime:
        """When it was last written, in UTC."""
        return to_datetime(self.changed_at_us)


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a key, from the journal; ``value`` is the new value (``None`` if it was deleted)."""

    key: str
    operation: Operation
    value: Any
    version: int | None
    changed_at_us: int
    seq: int

    @property
    def changed_at(self) -> datetime:
        """When it happened, in UTC."""
        return to_datetime(self.changed_at_us)


class State:
    """The state of one namespace."""

    def __init__(self, engine: Engine, space: str, namespace: str = "", *, clock: Clock) -> None:
        self._engine = engine
        self._space = space
        self._namespace = check_id(namespace, "namespace") if namespace else ""
        self._clock = clock
        self._prefix = f"state/{namespace_prefix(self._namespace)}"

    def __repr__(self) -> str:
        return f"<State namespace={self._namespace!r}>"

    @property
    def namespace(self) -> str:
        """The namespace; empty for shared state."""
        return self._namespace

    def in_namespace(self, namespace: str) -> State:
        """Return the state of a user or project; forgetting that namespace erases it."""
        return State(self._engine, self._space, namespace, clock=self._clock)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or ``default`` if the key does not exist."""
        entry = self.entry(key)
        return default if entry is None else entry.value

    def load(self, key: str) -> Any:
        """Return the value of a key; raise `NotFound` if the key does not exist."""
        entry = self.entry(key)
        if entry is None:
            raise NotFound(f"state {key!r} not found. List keys with: treering state list")
        return entry.value

    def entry(self, key: str) -> StateEntry | None:
        """Return a key with its value, version and time."""
        ref = self._ref(key)
        return None if ref is None else self._entry(ref)

    def set(self, key: str, value: Any, *, if_version: int | None = None) -> StateEntry:
        """Set a key; durable when this returns.

        With ``if_version``, raise `RefMoved` unless the key is at that version (0: it does not exist).
        """
        return self._swap(key, lambda _: value, if_version)

    def update(self, key: str, function: Callable[[Any], Any], default: Any = None) -> Any:
        """Set a key to ``function(value)`` and return the new value.

        The function receives ``default`` if the key does not exist. It is called again when another writer
        was faster, so it should have no side effects. If it raises, nothing is written.
        """

        def compute(ref: Ref | None) -> Any:
            return function(default if ref is None else _decode_value(self._engine, self._space, ref.value))

        return self._swap(key, compute, None).value

    def add(self, key: str, delta: int = 1, *, ceiling: int | None = None) -> int:
        """Add to an integer and return the sum; a missing key counts as 0.

        Raises:
            Conflict: the sum would exceed ``ceiling``.
        """
        refuse_outside(self._engine, self._space, f"the state {key!r}")
        name, scope = self._names(key)
        draft = Draft(self._space)
        draft.add_to_ref(name, Add(delta=delta, ceiling=ceiling), scope=scope)
        self._add_event(draft, ADDED, key, scope, encode_json({"delta": delta}))
        try:
            return self._engine.commit(draft.batch()).sums[name]
        except Conflict as error:
            ref = self._ref(key)
            if ref is not None and _as_integer(ref.value) is None:
                raise _not_an_integer(key, ref.value) from None
            raise Conflict(f"state {key!r} was not changed: {error}") from None

    def delete(self, key: str, *, if_version: int | None = None) -> bool:
        """Delete a key; return whether it existed. ``if_version`` as in `set`."""
        refuse_outside(self._engine, self._space, f"the state {key!r}")
        name, scope = self._names(key)
        backoff = Backoff()
        while True:
            ref = self._ref(key)
            check_version(f"state {key!r}", ref, if_version)
            if ref is None:
                return False
            draft = Draft(self._space)
            draft.delete_ref(name, scope=scope, expect=ref.version)
            data = _event_data(None, version=ref.version + 1, previous=ref.value)
            self._add_event(draft, DELETED, key, scope, data)
            try:
                self._engine.commit(draft.batch())
            except RefMoved:
                backoff.wait()
                continue
            return True

    def keys(self, prefix: str = "") -> Iterator[str]:
        """List the keys with this prefix, in order."""
        for ref in self._refs(prefix):
            yield ref.name[len(self._prefix) :]

    def list(self, prefix: str = "") -> Iterator[StateEntry]:
        """List the entries whose keys have this prefix, by key."""
        yield from readable(self._refs(prefix), self._entry)

    def history(self, key: str) -> Iterator[StateChange]:
        """List the changes of a key, newest first; deleted keys have a history too."""
        _, scope = self._names(key)
        ref = self._ref(key)
        reader = _HistoryReader(self._engine, self._space, ref)
        query = EventQuery(kinds=STATE_KINDS, scope=scope, newest_first=True)
        after = None if ref is None else encode_cursor(query, 0, ref.seq + 1)
        for record in each_record(self._engine, self._space, query, after=after):
            yield reader.read(key, record)

    def watch(self, prefix: str = "", *, seconds: float | None = None) -> Iterator[StateEntry]:
        """Yield entries as they change, in this or any other process; end after ``seconds`` without a change.

        Each entry has its current value, so changes in quick succession may yield one entry. A deleted key
        has the value ``None`` and version 0.
        """
        query = EventQuery(kinds=STATE_KINDS)
        last_seq = self._engine.wait(self._space, 0, seconds=0)
        quiet_since = time.monotonic()
        while seconds is None or time.monotonic() - quiet_since < seconds:
            left = _WAIT_SECONDS if seconds is None else seconds - (time.monotonic() - quiet_since)
            self._engine.wait(self._space, last_seq, seconds=max(0.0, min(left, _WAIT_SECONDS)))
            changed: dict[str, int] = {}
            page = self._engine.scan(self._space, query, after=str(last_seq), limit=_PAGE)
            for record in page.records:
                last_seq = record.seq
                if record.event.scope.startswith(namespace_prefix(self._namespace)):
                    changed[record.event.name or ""] = record.event.ts_us
            for key, ts_us in changed.items():
                if key.startswith(prefix):
                    yield self.entry(key) or StateEntry(key=key, value=None, version=0, changed_at_us=ts_us)
                    quiet_since = time.monotonic()

    def mapping(self, name: str) -> JsonStore:
        """Return the keys below ``name/`` as a durable dict."""
        return JsonStore(self, name)

    def sessions(
        self, kind: type[Any], *, name: str = "user_states", default_mode: str | None = None
    ) -> UserSessions:
        """Return typed sessions by user id. ``kind`` is a msgspec struct or dataclass with a ``mode``."""
        return UserSessions(self, kind, name=name, default_mode=default_mode)

    def _swap(self, key: str, compute: Callable[[Ref | None], Any], if_version: int | None) -> StateEntry:
        refuse_outside(self._engine, self._space, f"the state {key!r}")
        name, scope = self._names(key)
        backoff = Backoff()
        while True:
            ref = self._ref(key)
            check_version(f"state {key!r}", ref, if_version)
            value = compute(ref)
            draft = Draft(self._space)
            stored, links = _encode_value(draft, value, scope=scope)
            expect = ABSENT if ref is None else ref.version
            draft.set_ref(name, stored, scope=scope, links=links, expect=expect)
            # Versions continue after a deletion, so for a missing key only the commit knows the version.
            version = None if ref is None else ref.version + 1
            data = _event_data(stored, version=version, previous=None if ref is None else ref.value)
            now_us = self._add_event(draft, SET, key, scope, data, links)
            try:
                versions = self._engine.commit(draft.batch()).versions
            except RefMoved:
                backoff.wait()
                continue
            return StateEntry(key=key, value=value, version=versions[name], changed_at_us=now_us)

    def _add_event(
        self, draft: Draft, kind: str, key: str, scope: str, data: bytes, links: tuple[Address, ...] = ()
    ) -> int:
        now_us = self._clock.now_us()
        body = links[0] if links else None
        draft.event(Event(id=draft.id, kind=kind, ts_us=now_us, scope=scope, name=key, data=data, body=body))
        return now_us

    def _names(self, key: str) -> tuple[str, str]:
        """Return the names of a key's ref and scope."""
        scope = str(Scope(self._namespace, "state", check_id(key, "state key")))
        check_id(scope, "the scope of a state key (with / as %2F)")
        return check_id(self._prefix + key, "the ref of a state key"), scope

    def _ref(self, key: str) -> Ref | None:
        name, _ = self._names(key)
        return self._engine.refs(self._space, [name]).get(name)

    def _refs(self, prefix: str) -> Iterator[Ref]:
        return each_ref(self._engine, self._space, self._prefix + prefix)

    def _entry(self, ref: Ref) -> StateEntry:
        return StateEntry(
            key=ref.name[len(self._prefix) :],
            value=_decode_value(self._engine, self._space, ref.value),
            version=ref.version,
            changed_at_us=ref.changed_at_us,
        )


class JsonStore(MutableMapping[str, Any]):
    """A durable dict: the state below one name, as a mapping.

    Values are copies. To change one, assign it, or use `change`, which loses no concurrent update.
    """

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = check_id(name, "name of a mapping")
        self._prefix = namespace_prefix(name)

    def __repr__(self) -> str:
        return f"<JsonStore {self._name!r}>"

    @property
    def name(self) -> str:
        """The name that its keys are stored below."""
        return self._name

    def get(self, key: str, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - plainer
        """Return the value of a key, or ``default``."""
        return self._state.get(self._prefix + key, default)

    def set(self, key: str, value: Any) -> None:
        """Set a key; durable when this returns."""
        self._state.set(self._prefix + key, value)

    def delete(self, key: str) -> bool:
        """Delete a key; return whether it existed."""
        return self._state.delete(self._prefix + key)

    def change(self, key: str, function: Callable[[Any], Any], default: Any = None) -> Any:
        """Set a key to ``function(value)`` and return the new value; see `State.update`."""
        return self._state.update(self._prefix + key, function, default)

    def add(self, key: str, delta: int = 1) -> int:
        """Add to an integer and return the sum; a missing key counts as 0."""
        return self._state.add(self._prefix + key, delta)

    def all(self) -> dict[str, Any]:
        """Return all keys and values as a dict."""
        return {entry.key[len(self._prefix) :]: entry.value for entry in self._state.list(self._prefix)}

    def __getitem__(self, key: str) -> Any:
        entry = self._state.entry(self._prefix + key)
        if entry is None:
            raise KeyError(key)
        return entry.value

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        for key in self._state.keys(self._prefix):
            yield key[len(self._prefix) :]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(key) and self._state.entry(self._prefix + key) is not None


class _HistoryReader:
    """Reads the changes of a key from newest to oldest.

    An addition is stored as its delta alone. Its result is computed backwards from the value that followed,
    which is why every other change also stores the integer that it replaced.
    """

    def __init__(self, engine: Engine, space: str, ref: Ref | None) -> None:
        self._engine = engine
        self._space = space
        self._number = None if ref is None else _as_integer(ref.value)
        self._version = None if ref is None else ref.version

    def read(self, key: str, record: Record) -> StateChange:
        """Return the next older change."""
        event = record.event
        data: dict[str, Any] = decode_json(event.data or b"{}")
        version, value = data.get("version", self._version), None
        if event.kind == ADDED:
            version, value = self._version, self._number
            self._number = None if self._number is None else self._number - data["delta"]
        else:
            if "value" in data:
                value = decode_json(data["value"].encode())
            elif event.body is not None:
                (content,) = self._engine.get(self._space, [event.body])
                value = decode(content)
            self._number = data.get("was")
        self._version = None if version is None else version - 1
        return StateChange(
            key=key,
            operation=_OPERATIONS[event.kind],
            value=value,
            version=version,
            changed_at_us=event.ts_us,
            seq=record.seq,
        )


def _event_data(stored: bytes | None, *, version: int | None, previous: bytes | None) -> bytes:
    """Encode the journal's data about a change: version, new value, and the integer that was replaced."""
    data: dict[str, Any] = {} if version is None else {"version": version}
    if stored is not None and not stored.startswith(_ADDRESS_MARK):
        data["value"] = stored.decode()
    number = None if previous is None else _as_integer(previous)
    if number is not None:
        data["was"] = number
    return encode_json(data)


def _encode_value(draft: Draft, value: Any, *, scope: str) -> tuple[bytes, tuple[Address, ...]]:
    """Return the bytes to store in the ref, and the addresses that they link to."""
    data = encode_json(value, keep_order=True)
    if len(data) < INLINE_LIMIT:
        return data, ()
    address = draft.put(Content("json", data), scope=scope)
    return _ADDRESS_MARK + address.encode(), (address,)


def _decode_value(engine: Engine, space: str, stored: bytes) -> Any:
    if not stored.startswith(_ADDRESS_MARK):
        return decode_json(stored)
    try:
        address = Address(stored[1:].decode())
    except UnicodeDecodeError as error:
        raise Corrupt(f"stored state does not name its value ({error}); run verify") from None
    (content,) = engine.get(space, [address])
    return decode(content)


def _as_integer(stored: bytes) -> int | None:
    try:
        return int(stored)
    except ValueError:
        return None


def _not_an_integer(key: str, stored: bytes) -> InvalidInput:
    shown = "a large value" if stored.startswith(_ADDRESS_MARK) else stored[:60].decode(errors="replace")
    return InvalidInput(f"state {key!r} is {shown}, not an integer; set it to one first, or use update()")

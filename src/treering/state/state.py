"""Small state: JSON values by key, changed by compare-and-swap.

A key is one ref; every change is a commit of the ref and one event, so what a key was and when comes out of
the journal. `update` reads, computes and writes only if nobody wrote in between, and begins again otherwise;
`add` lets the engine do the sum. **Invariant:** of any number of writers in any number of processes, none
overwrites a value that it has not seen, unless it says ``set`` without a version.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.core.batch import ABSENT, Add, Draft, Event
from treering.core.clock import to_iso
from treering.core.content import Address, Content
from treering.core.encoding import decode, decode_json, encode_json
from treering.core.frame import INLINE_LIMIT
from treering.core.ids import Scope, check_id, namespace_prefix
from treering.core.paging import each_record, each_ref
from treering.core.query import EventQuery, encode_cursor
from treering.errors import Conflict, InvalidInput, RefMoved
from treering.state.json_store import JsonStore
from treering.state.user_sessions import Sessions

if TYPE_CHECKING:
    from treering.core.batch import Receipt
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref


# -----------------------------------------------------------------------------------------------------------
# What small state gives back, and how a value lies in its ref.
#
# A value is JSON in the ref itself; from 4 KiB on it is content of its own, and the ref holds ``@`` and the
# address (no JSON begins so). A whole number therefore lies there as its digits, which is what lets the
# engine add to it without reading it first.


SET: Final = "state.set"
DELETED: Final = "state.deleted"
ADDED: Final = "state.added"
STATE_KINDS: Final = (SET, DELETED, ADDED)

_ELSEWHERE: Final = b"@"

Operation = Literal["set", "deleted", "added"]


_OPERATIONS: Final[dict[str, Operation]] = {SET: "set", DELETED: "deleted", ADDED: "added"}


class StateEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is now. ``version`` is what `if_version` wants; it counts every change, also deletions."""

    key: str
    value: Any
    version: int
    changed_at_us: int

    @property
    def changed_at(self) -> str:
        """When it was last written, ISO 8601 with offset."""
        return to_iso(self.changed_at_us)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a key, out of the journal; ``value`` is what it was from then on (deleted: ``None``)."""

    key: str
    operation: Operation
    value: Any
    version: int | None
    changed_at_us: int
    seq: int

    @property
    def changed_at(self) -> str:
        """When it happened, ISO 8601 with offset."""
        return to_iso(self.changed_at_us)


def written(draft: Draft, value: Any, *, scope: str) -> tuple[bytes, tuple[Address, ...]]:
    """Put a value into a draft; gives what its ref holds and links to."""
    data = encode_json(value, keep_order=True)
    if len(data) < INLINE_LIMIT:
        return data, ()
    address = draft.put(Content("json", data), scope=scope)
    return _ELSEWHERE + address.encode(), (address,)


def read(engine: Engine, space: str, held: bytes) -> Any:
    """The value that a ref holds."""
    if not held.startswith(_ELSEWHERE):
        return decode_json(held)
    (content,) = engine.get(space, [Address(held[1:].decode())])
    return decode(content)


def integer(held: bytes) -> int | None:
    """The integer that a ref holds, if it does."""
    try:
        return int(held)
    except ValueError:
        return None


def told(held: bytes | None, *, version: int | None, was: bytes | None) -> bytes:
    """What the journal keeps of a change: version and value, and a number that it took the place of.

    The number is what lets a reader go back through what was added before.
    """
    facts: dict[str, Any] = {} if version is None else {"version": version}
    if held is not None and not held.startswith(_ELSEWHERE):
        facts["value"] = held.decode()
    number = None if was is None else integer(was)
    if number is not None:
        facts["was"] = number
    return encode_json(facts)


class Backwards:
    """Goes through the changes of one key from the newest to the oldest, and works out what was added to."""

    def __init__(self, engine: Engine, space: str, ref: Ref | None) -> None:
        self._engine = engine
        self._space = space
        self._number = None if ref is None else integer(ref.value)
        self._version = None if ref is None else ref.version

    def change(self, key: str, record: Record) -> Change:
        """The next older change."""
        event = record.event
        facts: dict[str, Any] = decode_json(event.data or b"{}")
        value: Any = None
        if event.kind == ADDED:
            operation, version, value = _OPERATIONS[ADDED], self._version, self._number
            self._number = None if self._number is None else self._number - facts["delta"]
        else:
            operation, version = _OPERATIONS[event.kind], facts.get("version", self._version)
            if "value" in facts:
                value = decode_json(facts["value"].encode())
            elif event.body is not None:
                (content,) = self._engine.get(self._space, [event.body])
                value = decode(content)
            self._number = facts.get("was")
        self._version = None if version is None else version - 1
        return Change(
            key=key,
            operation=operation,
            value=value,
            version=version,
            changed_at_us=event.ts_us,
            seq=record.seq,
        )


def not_a_number(key: str, held: bytes) -> InvalidInput:
    """Why nothing can be added to a key."""
    shown = "a large value" if held.startswith(_ELSEWHERE) else held[:60].decode(errors="replace")
    return InvalidInput(
        f"state {key!r} is {shown}, which is no whole number; set it to one first, or use update()"
    )


# -----------------------------------------------------------------------------------------------------------

_PAGE: Final = 500
_WAIT_SECONDS: Final = 1.0
_LONGEST_PAUSE: Final = 0.05


class State:
    """The small state of one namespace."""

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
        """Whose state this is; empty for nobody's in particular."""
        return self._namespace

    def in_namespace(self, namespace: str) -> State:
        """The state of a user or project, which is forgotten with that namespace."""
        return State(self._engine, self._space, namespace, clock=self._clock)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or ``default`` when there is none."""
        found = self.entry(key)
        return default if found is None else found.value

    def entry(self, key: str) -> StateEntry | None:
        """The value with its version and time."""
        ref = self._ref(key)
        return None if ref is None else self._entry(ref)

    def set(self, key: str, value: Any, *, if_version: int | None = None) -> StateEntry:
        """Give a key a value; durable when this returns.

        With ``if_version`` only if the key is at that version (0: if it is not there), else `RefMoved`.
        """
        return self._swap(key, lambda _: value, if_version)

    def update(self, key: str, function: Callable[[Any], Any], default: Any = None) -> Any:
        """Set a key to ``function(value)`` and return that; ``default`` stands for a value that is not there.

        When someone else writes in between, the function is called again with what they wrote: it should do
        nothing but compute. What it raises is passed on, and nothing is written.
        """

        def computed(ref: Ref | None) -> Any:
            return function(default if ref is None else read(self._engine, self._space, ref.value))

        return self._swap(key, computed, None).value

    def add(self, key: str, delta: int = 1, *, ceiling: int | None = None) -> int:
        """Add to a whole number (absent counts as 0) and return the sum. Past ``ceiling`` is a `Conflict`."""
        name, scope = self._place(key)
        draft = Draft(self._space)
        draft.add_to_ref(name, Add(delta=delta, ceiling=ceiling), scope=scope)
        self._tell(draft, ADDED, key, scope, encode_json({"delta": delta}))
        try:
            return self._engine.commit(draft.batch()).sums[name]
        except Conflict as error:
            ref = self._ref(key)
            if ref is not None and integer(ref.value) is None:
                raise not_a_number(key, ref.value) from None
            raise Conflict(f"state {key!r} was not changed: {error}") from None

    def delete(self, key: str, *, if_version: int | None = None) -> bool:
        """Remove a key; says whether it was there. ``if_version`` as in `set`."""
        name, scope = self._place(key)
        for attempt in itertools.count():
            ref = self._ref(key)
            _check_version(key, ref, if_version)
            if ref is None:
                return False
            draft = Draft(self._space)
            draft.delete_ref(name, scope=scope, expect=ref.version)
            self._tell(draft, DELETED, key, scope, told(None, version=ref.version + 1, was=ref.value))
            if self._committed(draft) is not None:
                return True
            _pause(attempt)
        raise AssertionError  # attempts never end

    def keys(self, prefix: str = "") -> Iterator[str]:
        """The keys that start so, in order."""
        for ref in self._refs(prefix):
            yield ref.name[len(self._prefix) :]

    def list(self, prefix: str = "") -> Iterator[StateEntry]:
        """The entries whose keys start so, in order of their keys."""
        for ref in self._refs(prefix):
            yield self._entry(ref)

    def history(self, key: str) -> Iterator[Change]:
        """What the key was and when, newest change first; also of a key that was deleted."""
        _, scope = self._place(key)
        ref = self._ref(key)
        backwards = Backwards(self._engine, self._space, ref)
        query = EventQuery(kinds=STATE_KINDS, scope=scope, newest_first=True)
        after = None if ref is None else encode_cursor(query, 0, ref.seq + 1)
        for record in each_record(self._engine, self._space, query, after=after):
            yield backwards.change(key, record)

    def watch(self, prefix: str = "", *, seconds: float | None = None) -> Iterator[StateEntry]:
        """Entries that change from now on, by whichever process, as they are when you get them.

        A deleted key comes as an entry with the value ``None`` and version 0. Changes that follow each other
        quickly may come as one. Ends after ``seconds`` without a change.
        """
        query = EventQuery(kinds=STATE_KINDS)
        last = self._engine.wait(self._space, 0, seconds=0)
        quiet_since = time.monotonic()
        while seconds is None or time.monotonic() - quiet_since < seconds:
            left = _WAIT_SECONDS if seconds is None else seconds - (time.monotonic() - quiet_since)
            self._engine.wait(self._space, last, seconds=max(0.0, min(left, _WAIT_SECONDS)))
            changed: dict[str, int] = {}
            page = self._engine.scan(self._space, query, after=str(last), limit=_PAGE)
            for record in page.records:
                last = record.seq
                if record.event.scope.startswith(namespace_prefix(self._namespace)):
                    changed[record.event.name or ""] = record.event.ts_us
            for key, ts_us in changed.items():
                if key.startswith(prefix):
                    yield self.entry(key) or StateEntry(key=key, value=None, version=0, changed_at_us=ts_us)
                    quiet_since = time.monotonic()

    def mapping(self, name: str) -> JsonStore:
        """The keys below ``name/`` as a dict that is durable, for code that kept them in a JSON file."""
        return JsonStore(self, name)

    def sessions(
        self, kind: type[Any], *, name: str = "user_states", default_mode: str | None = None
    ) -> Sessions:
        """Typed sessions by user id: a struct or dataclass with a ``mode``, whose default is never stored."""
        return Sessions(self, kind, name=name, default_mode=default_mode)

    def _swap(self, key: str, computed: Callable[[Ref | None], Any], if_version: int | None) -> StateEntry:
        name, scope = self._place(key)
        for attempt in itertools.count():
            ref = self._ref(key)
            _check_version(key, ref, if_version)
            value = computed(ref)
            draft = Draft(self._space)
            held, links = written(draft, value, scope=scope)
            draft.set_ref(name, held, scope=scope, links=links, expect=ABSENT if ref is None else ref.version)
            was = None if ref is None else ref.value
            # A key that was deleted goes on counting where it was: only the commit knows the first version.
            facts = told(held, version=None if ref is None else ref.version + 1, was=was)
            now_us = self._tell(draft, SET, key, scope, facts, links)
            receipt = self._committed(draft)
            if receipt is not None:
                return StateEntry(key=key, value=value, version=receipt.versions[name], changed_at_us=now_us)
            _pause(attempt)
        raise AssertionError  # attempts never end

    def _committed(self, draft: Draft) -> Receipt | None:
        try:
            return self._engine.commit(draft.batch())
        except RefMoved:
            return None

    def _tell(
        self, draft: Draft, kind: str, key: str, scope: str, facts: bytes, links: tuple[Address, ...] = ()
    ) -> int:
        now_us = self._clock.now_us()
        body = links[0] if links else None
        draft.event(Event(id=draft.id, kind=kind, ts_us=now_us, scope=scope, name=key, data=facts, body=body))
        return now_us

    def _place(self, key: str) -> tuple[str, str]:
        """The names of a key's ref and scope."""
        scope = str(Scope(self._namespace, "state", check_id(key, "state key")))
        check_id(scope, "the scope of a state key (with / as %2F)")
        return check_id(self._prefix + key, "the ref of a state key"), scope

    def _ref(self, key: str) -> Ref | None:
        name, _ = self._place(key)
        return self._engine.refs(self._space, [name]).get(name)

    def _refs(self, prefix: str) -> Iterator[Ref]:
        return each_ref(self._engine, self._space, self._prefix + prefix)

    def _entry(self, ref: Ref) -> StateEntry:
        return StateEntry(
            key=ref.name[len(self._prefix) :],
            value=read(self._engine, self._space, ref.value),
            version=ref.version,
            changed_at_us=ref.changed_at_us,
        )


def _check_version(key: str, ref: Ref | None, wanted: int | None) -> None:
    if wanted is None or wanted == (0 if ref is None else ref.version):
        return
    there = "does not exist" if ref is None else f"is at version {ref.version}"
    raise RefMoved(f"state {key!r} {there}, expected version {wanted}; read it again and retry")


def _pause(attempt: int) -> None:
    """Let the others finish: those who lost a race do not meet again at once."""
    time.sleep(random.uniform(0, min(0.001 * 2 ** min(attempt, 10), _LONGEST_PAUSE)))

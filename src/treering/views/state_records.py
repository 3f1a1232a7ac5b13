"""What small state gives back, and how a value lies in its ref.

A value is JSON in the ref itself; from 4 KiB on it is content of its own, and the ref holds ``@`` and the
address (no JSON begins so). A whole number therefore lies there as its digits, which is what lets the engine
add to it without reading it first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from treering.core.address import Address
from treering.core.body import INLINE_LIMIT
from treering.core.clock import to_iso
from treering.core.content import Content
from treering.core.encoding import decode, decode_json, encode_json
from treering.errors import InvalidInput

if TYPE_CHECKING:
    from treering.core.draft import Draft
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref

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

"""Content, its kind, and the names and addresses derived from it.

The name of an object is a SHA-256. For plain bytes (files, chunks) it is what `sha256sum` prints. JSON, text
and trees are hashed with their kind as a prefix, so equal bytes of different kinds are different objects,
and the name of an object determines how its bytes are decoded.

An address is short text that says where content is stored. ``o:<sha256>`` is an object.
``s:<batch>:<part>.<index>`` is a slot: small content in the body of the commit that stored it. Writers choose
batch ids, so the address is known before the commit. ``l:<list>`` is an append-only list. An address never
changes its meaning, and what it refers to is immutable (a list only grows). **Invariant:** an address has
exactly one spelling, so addresses can be compared and used as keys.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final, Literal, NewType

import msgspec

from treering.errors import InvalidInput

Kind = Literal["bytes", "json", "text", "tree"]
"""How content is decoded. ``tree`` is the only kind that links to other objects (see `core.tree`)."""

KINDS: Final[tuple[Kind, ...]] = ("bytes", "json", "text", "tree")
"""The index in this tuple is the number stored on disk: only ever append."""

KIND_NUMBERS: Final[dict[str, int]] = {kind: number for number, kind in enumerate(KINDS)}

_HASH_PREFIXES: Final[dict[str, bytes]] = {kind: kind.encode() + b"\0" for kind in KINDS if kind != "bytes"}


class Content(msgspec.Struct, frozen=True, gc=False):
    """Bytes and their kind."""

    kind: Kind
    data: bytes

    @property
    def name(self) -> str:
        """The object name of this content: SHA-256, 64 hex digits."""
        return object_name(self.kind, self.data)


def object_name(kind: Kind, data: bytes | memoryview) -> str:
    """Return the name of ``data`` as content of ``kind``."""
    if kind == "bytes":  # the common case
        return sha256(data).hexdigest()
    digest = sha256(_HASH_PREFIXES[kind])
    digest.update(data)
    return digest.hexdigest()


Address = NewType("Address", str)


class ObjectAddress(msgspec.Struct, frozen=True):
    """The address of an object: its SHA-256 name."""

    name: str


class SlotAddress(msgspec.Struct, frozen=True):
    """The address of the ``index``-th content in the ``part``-th body of a commit."""

    batch: str
    part: int
    index: int


class ListAddress(msgspec.Struct, frozen=True):
    """The address of an append-only list."""

    list: str


ParsedAddress = ObjectAddress | SlotAddress | ListAddress

_OBJECT_NAME: Final = re.compile("[0-9a-f]{64}")
_SLOT: Final = re.compile(r"(.+):(0|[1-9][0-9]{0,4})\.(0|[1-9][0-9]{0,8})", re.DOTALL)


def object_address(name: str) -> Address:
    """Return the address of an object."""
    return Address("o:" + name)


def slot_address(batch: str, part: int, index: int) -> Address:
    """Return the address of small content in a commit."""
    return Address(f"s:{batch}:{part}.{index}")


def list_address(list_id: str) -> Address:
    """Return the address of a list."""
    return Address("l:" + list_id)


def is_object_name(text: str) -> bool:
    """Whether a text is a valid object name: 64 lower-case hex digits."""
    return _OBJECT_NAME.fullmatch(text) is not None


def parse_address(address: str) -> ParsedAddress:
    """Parse an address; raise `InvalidInput` if it is malformed."""
    form, rest = address[:2], address[2:]
    if form == "l:" and rest:
        return ListAddress(rest)
    if form == "o:" and _OBJECT_NAME.fullmatch(rest):
        return ObjectAddress(rest)
    if form == "s:" and (slot := _SLOT.fullmatch(rest)):
        batch, part, index = slot.groups()
        return SlotAddress(batch, int(part), int(index))
    raise InvalidInput(
        f"not an address: {address[:80]!r}; expected o:<sha256>, s:<batch>:<part>.<index> or l:<list>"
    )

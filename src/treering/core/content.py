"""Content: immutable bytes together with how to read them, and the name that follows from both.

The name of an object is a SHA-256. For plain bytes (files, chunks) it is the hash that `sha256sum`
prints; JSON, text and tree content is hashed behind its kind, so that equal bytes of different kinds
are different objects and a name alone says how its bytes decode.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final, Literal, NewType

import msgspec

from treering.errors import InvalidInput

Kind = Literal["bytes", "json", "text", "tree"]
"""How content decodes. ``tree`` is the one kind that points at other objects (see `core.tree`)."""

KINDS: Final[tuple[Kind, ...]] = ("bytes", "json", "text", "tree")
"""The position of a kind in this tuple is its number on disk; only ever append."""

KIND_NUMBERS: Final[dict[str, int]] = {kind: number for number, kind in enumerate(KINDS)}

_HASH_PREFIXES: Final[dict[str, bytes]] = {kind: kind.encode() + b"\0" for kind in KINDS if kind != "bytes"}


class Content(msgspec.Struct, frozen=True, gc=False):
    """Bytes and their kind."""

    kind: Kind
    data: bytes

    @property
    def name(self) -> str:
        """The SHA-256 object name of this content, 64 hex digits."""
        return object_name(self.kind, self.data)


def object_name(kind: Kind, data: bytes | memoryview) -> str:
    """Name ``data`` as content of ``kind``."""
    if kind == "bytes":  # nearly all there is
        return sha256(data).hexdigest()
    digest = sha256(_HASH_PREFIXES[kind])
    digest.update(data)
    return digest.hexdigest()


# -----------------------------------------------------------------------------------------------------------
# Addresses: where content lives, as short text that can stand inside any record.
#
# Three forms. ``o:<sha256>`` names an object by its content. ``s:<batch>:<part>.<index>`` names small
# content by the commit that brought it: batch ids are chosen by the writer, so the address is known
# before the commit. ``l:<list>`` names an append-only list. An address never changes its meaning; what
# it points at is immutable (a list only grows). **Invariant:** a place has one spelling, so equal texts
# are equal places and an address can be a key.


Address = NewType("Address", str)


class ObjectAddress(msgspec.Struct, frozen=True):
    """An object, by its SHA-256 name."""

    name: str


class SlotAddress(msgspec.Struct, frozen=True):
    """The ``index``-th content in the ``part``-th body of a commit."""

    batch: str
    part: int
    index: int


class ListAddress(msgspec.Struct, frozen=True):
    """An append-only list."""

    list: str


ParsedAddress = ObjectAddress | SlotAddress | ListAddress

_OBJECT_NAME: Final = re.compile("[0-9a-f]{64}")
_SLOT: Final = re.compile(r"(.+):(0|[1-9][0-9]{0,4})\.(0|[1-9][0-9]{0,8})", re.DOTALL)


def object_address(name: str) -> Address:
    """The address of an object."""
    return Address("o:" + name)


def slot_address(batch: str, part: int, index: int) -> Address:
    """The address of small content inside a commit."""
    return Address(f"s:{batch}:{part}.{index}")


def list_address(list_id: str) -> Address:
    """The address of a list."""
    return Address("l:" + list_id)


def is_object_name(text: str) -> bool:
    """Whether a text can name an object: 64 lower-case hex digits."""
    return _OBJECT_NAME.fullmatch(text) is not None


def parse_address(address: str) -> ParsedAddress:
    """Read an address; anything malformed raises `InvalidInput`."""
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

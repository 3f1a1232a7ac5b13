"""Addresses: where content lives, as short text that can stand inside any record.

Three forms. ``o:<sha256>`` names an object by its content. ``s:<batch>:<part>.<index>`` names small
content by the commit that brought it: batch ids are chosen by the writer, so the address is known
before the commit. ``l:<list>`` names an append-only list. An address never changes its meaning; what
it points at is immutable (a list only grows). **Invariant:** a place has one spelling, so equal texts
are equal places and an address can be a key.
"""

from __future__ import annotations

import re
from typing import Final, NewType

import msgspec

from treering.errors import InvalidInput

Address = NewType("Address", str)


class ObjectAt(msgspec.Struct, frozen=True):
    """An object, by its SHA-256 name."""

    name: str


class SlotAt(msgspec.Struct, frozen=True):
    """The ``index``-th content in the ``part``-th body of a commit."""

    batch: str
    part: int
    index: int


class ListAt(msgspec.Struct, frozen=True):
    """An append-only list."""

    list: str


Place = ObjectAt | SlotAt | ListAt

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


def parse_address(address: str) -> Place:
    """Read an address; anything malformed raises `InvalidInput`."""
    form, rest = address[:2], address[2:]
    if form == "l:" and rest:
        return ListAt(rest)
    if form == "o:" and _OBJECT_NAME.fullmatch(rest):
        return ObjectAt(rest)
    if form == "s:" and (slot := _SLOT.fullmatch(rest)):
        batch, part, index = slot.groups()
        return SlotAt(batch, int(part), int(index))
    raise InvalidInput(
        f"not an address: {address[:80]!r}; expected o:<sha256>, s:<batch>:<part>.<index> or l:<list>"
    )

"""How the values of a LangGraph state are stored: as readable JSON where that keeps them whole.

Messages and plain data become JSON that every other view can show. What JSON cannot say (a dataclass, an
array, a `Send`) is packed by LangGraph's own serializer, with a closed list of types: a stored type
outside of it comes back as the data it held, never as code that runs. A serializer of your own (one that
encrypts, say) is given everything, messages too. **Invariant:** nothing is ever pickled, and
``decode(encode(v))`` is ``v``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

import msgspec
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde import types as serde_types
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from treering.adapters.langgraph.messages import (
    MESSAGE_CLASSES,
    Likeness,
    from_plain,
    kind_of,
    likeness,
    to_plain,
)
from treering.core.content import Content
from treering.core.encoding import codecs, decode, decode_each, encode
from treering.errors import Corrupt, Unencodable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DeltaSnapshot: Final[Any] = serde_types._DeltaSnapshot  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
"""How LangGraph hands over a delta channel that is to be stored whole."""

_SAFE: Final = frozenset({"null", "bytes", "bytearray", "msgpack"})
"""What LangGraph's serializer writes today; its older JSON form builds objects by name, and is not read."""


class Packed(msgspec.Struct, frozen=True):
    """A value in the form of LangGraph's serializer: the name of the form, and the bytes."""

    form: str
    data: bytes


codecs.register(Packed, "langgraph", lambda packed: [packed.form, packed.data], lambda plain: Packed(*plain))


class Values:
    """Encodes and decodes with one serializer."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self.serde = serde
        self.is_readable = type(serde) is JsonPlusSerializer
        """Whether values may be looked into: with any other serializer, all of them are its own business."""

    def takes(self, value: Any) -> bool:
        """Whether a value is stored as a message."""
        return type(value) in MESSAGE_CLASSES

    def plain(self, value: Any) -> Any:
        """The value itself where it can be stored as it is, else packed."""
        if self.is_readable:
            try:
                encode(value)
            except Unencodable:
                pass
            else:
                return value
        return self.packed(value)

    def encode(self, value: Any) -> Content:
        """A value as content."""
        if self.is_readable:
            try:
                return encode(value, keep_order=True)
            except Unencodable:
                pass
        return encode(self.packed(value))

    def packed(self, value: Any) -> Packed:
        """A value in the form of the serializer."""
        form, data = self.serde.dumps_typed(value)
        return Packed(form, bytes(data))

    def decode(self, content: Content) -> Any:
        """The value that was encoded."""
        return self.unpacked(decode(content))

    def unpacked(self, value: Any) -> Any:
        """A decoded value with what was packed in it, itself or one level below."""
        if type(value) is Packed:
            return self._load(value)
        if type(value) is dict:
            fields = cast("dict[Any, Any]", value)
            if any(type(each) is Packed for each in fields.values()):
                return {key: self.unpacked(each) for key, each in fields.items()}
            return fields
        return value

    def encode_message(self, message: BaseMessage, known: Likeness) -> Content:
        """A message as content, from a likeness of it."""
        if not self.is_readable:
            return encode(self.packed(message))
        plain = to_plain(type(message), known)
        try:
            return encode(plain, keep_order=True)
        except Unencodable:
            return encode({name: self.plain(value) for name, value in plain.items()}, keep_order=True)

    def decode_message(self, content: Content) -> BaseMessage:
        """The message that was encoded."""
        return next(self.decode_known((content,)))[0]

    def decode_known(self, contents: Iterable[Content]) -> Iterator[tuple[BaseMessage, Likeness]]:
        """The messages that were encoded, and a likeness of each; none is decoded before it is asked for."""
        return map(_known, decode_each(contents, others=self.decode))

    def _load(self, packed: Packed) -> Any:
        if self.is_readable and packed.form not in _SAFE:
            return {"form": packed.form, "data": packed.data}
        return self.serde.loads_typed((packed.form, packed.data))


def _known(plain: Any) -> tuple[BaseMessage, Likeness]:
    if type(plain) is dict:
        found = from_plain(cast("dict[str, Any]", plain))
        if found is not None:
            return found
    elif isinstance(plain, BaseMessage):
        return plain, likeness(plain)
    raise Corrupt("a stored message is of no class that this version knows; upgrade treering or langchain")


def closed_serde(*allowed: type | tuple[str, str]) -> JsonPlusSerializer:
    """LangGraph's serializer with its list of safe types, these ones more, and nothing else."""
    return JsonPlusSerializer(pickle_fallback=False, allowed_msgpack_modules=allowed or None)


def is_list_of_messages(value: Any) -> TypeGuard[list[BaseMessage]]:
    """Whether something is a list of messages that are stored as such, and not empty."""
    return kind_of(value) is list and bool(value) and MESSAGE_CLASSES.issuperset(map(kind_of, value))


__all__ = ["DeltaSnapshot", "Packed", "Values", "closed_serde", "is_list_of_messages"]

"""How the values of a LangGraph state are encoded: as readable JSON wherever JSON keeps them whole.

Messages and plain data become JSON that every other part of treering can show. What JSON cannot express (a
dataclass, an array, a `Send`) is packed by LangGraph's own serializer for the types that the graph names
(`known_types`). A serializer of your own (one that encrypts, for example) is given every value, messages
included.

A message is stored with its ``type``, its content and every field that differs from the default of its class.
It is rebuilt by filling a fresh instance: what was stored came out of a message of the same class, so it
needs no validation, which would be most of the cost of loading.

A message is encoded from its *fingerprint*, a copy of its fields that shares only immutable values with it.
The message may be changed by another thread while it is being saved, so only the copy says what was saved,
and comparing the two later tells exactly whether the message has changed since.

**Invariant:** nothing is ever pickled, only known classes are ever built, and decoding what was encoded
returns an equal value.
"""

from __future__ import annotations

from copy import deepcopy
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast
from uuid import UUID

import msgspec
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)
from langgraph.checkpoint.serde import types as serde_types
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from treering.adapters.langgraph.known_types import ClosedSerializer
from treering.core.content import Content
from treering.core.encoding import codecs, decode, decode_each, encode
from treering.errors import Corrupt, Unencodable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    def type_of(_value: object, /) -> type[object]:
        """Return the type of a value."""
        ...
else:
    type_of = type  # another name, so that the type checker does not narrow Any

DeltaSnapshot: Final[Any] = serde_types._DeltaSnapshot  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
"""The wrapper in which LangGraph passes a delta channel that is to be stored whole."""

Fingerprint = dict[str, Any]
"""The fields of a message when it was saved; ``_extra`` holds the fields that its class does not declare."""

_SAFE_FORMATS: Final = frozenset({"null", "bytes", "bytearray", "msgpack"})
"""What LangGraph's serializer writes today. Its older JSON format builds objects by name and is not loaded.
"""


class Packed(msgspec.Struct, frozen=True):
    """A value encoded by LangGraph's serializer: the name of the format, and the bytes."""

    format: str
    data: bytes


codecs.register(Packed, "langgraph", lambda packed: [packed.format, packed.data], lambda args: Packed(*args))


class ValueCodec:
    """Encodes and decodes values with one serializer."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self.serde = serde
        self.is_readable = type(serde) in (JsonPlusSerializer, ClosedSerializer)
        """Whether values may be stored as JSON. With any other serializer they are opaque to us."""

    def encode(self, value: Any) -> Content:
        """Encode a value."""
        if self.is_readable:
            try:
                return encode(value, keep_order=True)
            except Unencodable:
                pass
        return encode(self._pack(value))

    def decode(self, content: Content) -> Any:
        """Decode a value that `encode` returned."""
        return self.unpack(decode(content))

    def pack(self, value: Any) -> Any:
        """Return the value itself if it can be stored as JSON, else the value packed."""
        if self.is_readable:
            try:
                encode(value)
            except Unencodable:
                pass
            else:
                return value
        return self._pack(value)

    def unpack(self, value: Any) -> Any:
        """Reverse `pack`, for a value and, if it is a dict, for its items."""
        if type(value) is Packed:
            return self._load(value)
        if type(value) is dict:
            fields = cast("dict[Any, Any]", value)
            if any(type(each) is Packed for each in fields.values()):
                return {key: self.unpack(each) for key, each in fields.items()}
            return fields
        return value

    def encode_message(self, message: BaseMessage, fields: Fingerprint) -> Content:
        """Encode a message from its fingerprint."""
        if not self.is_readable:
            return encode(self._pack(message))
        plain = message_to_dict(type(message), fields)
        try:
            return encode(plain, keep_order=True)
        except Unencodable:
            return encode({name: self.pack(value) for name, value in plain.items()}, keep_order=True)

    def decode_message(self, content: Content) -> BaseMessage:
        """Decode a message."""
        return next(self.decode_messages((content,)))[0]

    def decode_messages(self, contents: Iterable[Content]) -> Iterator[tuple[BaseMessage, Fingerprint]]:
        """Decode messages one by one, each with its fingerprint."""
        return map(_message_of, decode_each(contents, others=self.decode))

    def _pack(self, value: Any) -> Packed:
        name, data = self.serde.dumps_typed(value)
        return Packed(name, bytes(data))

    def _load(self, packed: Packed) -> Any:
        if self.is_readable and packed.format not in _SAFE_FORMATS:
            return {"form": packed.format, "data": packed.data}
        return self.serde.loads_typed((packed.format, packed.data))


def is_message(value: Any) -> bool:
    """Whether a value is stored as a message."""
    return type(value) in MESSAGE_CLASSES


def is_list_of_messages(value: Any) -> TypeGuard[list[BaseMessage]]:
    """Whether a value is a list of messages, and not empty."""
    return type_of(value) is list and bool(value) and MESSAGE_CLASSES.issuperset(map(type_of, value))


def fingerprint(message: BaseMessage) -> Fingerprint:
    """Copy the fields of a message, again and again until none changed meanwhile."""
    for _ in range(_TRIES):
        try:
            copy = dict(message.__dict__)
            for name, value in copy.items():
                kind = type_of(value)
                if kind not in _LEAVES:  # most of a message's own containers are empty
                    copy[name] = _EMPTY[kind] if kind in _EMPTY and not value else copy_value(value)
            if message.__pydantic_extra__:
                copy[_EXTRA] = copy_value(message.__pydantic_extra__)
        except RuntimeError:  # a dict changed its size while it was copied
            continue
        if matches(message, copy):
            return copy
    return copy  # pyright: ignore[reportPossiblyUnboundVariable] - it holds a value that equals no copy of it


def matches(message: BaseMessage, fields: Fingerprint) -> bool:
    """Whether a message is still what its fingerprint says."""
    extra = message.__pydantic_extra__
    current: Any = message.__dict__
    if extra or _EXTRA in fields:
        return {**current, _EXTRA: extra or {}} == {_EXTRA: {}, **fields}
    return current == fields


def message_to_dict(cls: type[BaseMessage], fields: Fingerprint) -> dict[str, Any]:
    """Return what is stored of a message: the fields that differ from the defaults of its class."""
    schema = _SCHEMAS[cls]
    defaults, declared = schema.defaults, schema.fields
    plain = {
        name: value
        for name, value in fields.items()
        if name in declared and (type(value) is not type(default := defaults[name]) or value != default)
    }
    if _EXTRA in fields:
        plain[_EXTRA] = fields[_EXTRA]
    return plain


def message_from_dict(plain: dict[str, Any]) -> tuple[BaseMessage, Fingerprint] | None:
    """Rebuild a message and its fingerprint; ``None`` if the dict is not a message of a known class.

    The message takes over ``plain``; do not use it afterwards.
    """
    schema = _BY_TYPE.get(plain.get("type"))
    if schema is None or "content" not in plain:
        return None
    extra = plain.pop(_EXTRA, None)
    copy = schema.blank | plain
    for name, value in plain.items():
        if type(value) not in _LEAVES:
            copy[name] = copy_value(value)
    fields = schema.blank | plain
    for name, factory in schema.containers.items():
        if name not in plain:
            fields[name] = factory()
    message = _new(schema.cls)
    _set_fields(message, fields)
    _set_names(message, set(schema.fields) if extra else schema.names)
    _set_extra(message, extra or {})
    _set_private(message, None)
    if extra:
        copy[_EXTRA] = copy_value(extra)
    return message, copy


def copy_value(value: Any) -> Any:
    """Copy a value, sharing only what cannot change."""
    kind = type_of(value)
    if kind is dict:
        return {key: each if type(each) in _LEAVES else copy_value(each) for key, each in value.items()}
    if kind is list:
        return [each if type(each) in _LEAVES else copy_value(each) for each in value]
    if kind is tuple:
        return tuple(map(copy_value, value))
    if issubclass(kind, _IMMUTABLE):
        return value
    try:
        return deepcopy(value)
    except Exception:  # noqa: BLE001 - whatever an object of the user's own raises
        return value


class _MessageSchema:
    """The fields of one message class, and the values that need not be stored."""

    __slots__ = ("blank", "cls", "containers", "defaults", "fields", "names")

    def __init__(self, cls: type[BaseMessage]) -> None:
        self.cls = cls
        self.fields = frozenset(cls.model_fields)
        self.names = set(self.fields)
        """Shared by all loaded messages of the class: pydantic only ever adds names to it."""
        self.containers: dict[str, type[dict[str, Any] | list[Any]]] = {}
        self.defaults: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            factory = cast("Any", field.default_factory)
            if factory is dict or factory is list:
                self.containers[name] = factory
                self.defaults[name] = factory()
            elif field.default is PydanticUndefined:
                self.defaults[name] = _NO_DEFAULT
            else:
                self.defaults[name] = field.default
        self.blank = {name: value for name, value in self.defaults.items() if value is not _NO_DEFAULT}
        self.defaults["type"] = _NO_DEFAULT  # always stored: it names the class


_CLASSES: Final[tuple[type[BaseMessage], ...]] = (
    AIMessage,
    HumanMessage,
    ToolMessage,
    SystemMessage,
    ChatMessage,
    FunctionMessage,
    RemoveMessage,
    AIMessageChunk,
    HumanMessageChunk,
    ToolMessageChunk,
    SystemMessageChunk,
    ChatMessageChunk,
    FunctionMessageChunk,
)
_EXTRA: Final = "_extra"
_LEAVES: Final = frozenset({str, int, float, bool, type(None), bytes})
_IMMUTABLE: Final = (date, time, timedelta, UUID, Decimal, Enum, frozenset)
_EMPTY: Final[dict[type[object], Any]] = {dict: {}, list: []}
"""The empty containers that fingerprints share. Nothing ever changes a fingerprint."""
_TRIES: Final = 20
_NO_DEFAULT: Final = object()
_SCHEMAS: Final[dict[type[BaseMessage], _MessageSchema]] = {cls: _MessageSchema(cls) for cls in _CLASSES}
_BY_TYPE: Final = {cls.model_fields["type"].default: schema for cls, schema in _SCHEMAS.items()}
MESSAGE_CLASSES: Final = frozenset(_SCHEMAS)
"""The classes that are stored as messages; an instance of any other class is an ordinary value."""

_new: Final[Any] = object.__new__
_attributes: Final[Any] = BaseModel.__dict__
_set_fields: Final = _attributes["__dict__"].__set__
_set_names: Final = _attributes["__pydantic_fields_set__"].__set__
_set_extra: Final = _attributes["__pydantic_extra__"].__set__
_set_private: Final = _attributes["__pydantic_private__"].__set__


def _message_of(plain: Any) -> tuple[BaseMessage, Fingerprint]:
    if type(plain) is dict:
        found = message_from_dict(cast("dict[str, Any]", plain))
        if found is not None:
            return found
    elif isinstance(plain, BaseMessage):
        return plain, fingerprint(plain)
    raise Corrupt("a stored message is of an unknown class; upgrade treering or langchain-core")

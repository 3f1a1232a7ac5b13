"""LangChain messages as readable JSON, and back without validation.

A message is stored as an object with its ``type``, its content and whatever else differs from the
defaults, so that every other view shows it as a conversation. It is built again by filling in a fresh
instance: what was stored came out of a message of the same class, so nothing needs to be validated, which
is most of the cost of loading. **Invariant:** only the message classes listed here are ever built; a
message of another class (a subclass of your own) is not for this module.

A message is written from a *likeness*: a copy of its fields in which nothing is shared but immutable
leaves. LangGraph gives a message its id in place while a thread saves it, so what was saved can only be
known from the copy that was saved; comparing message and likeness later tells exactly whether it has
changed since.
"""

from __future__ import annotations

from copy import deepcopy
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

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
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

if TYPE_CHECKING:

    def kind_of(_value: object, /) -> type[object]:
        """The type of a value."""
        ...
else:
    kind_of = type  # under a name that keeps the checker from narrowing Any to something less known

Likeness = dict[str, Any]
"""The fields of a message as they were at one checkpoint; ``_extra`` holds those that its class does not
know.
"""

EXTRA: Final = "_extra"

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
_LEAVES: Final = frozenset({str, int, float, bool, type(None), bytes})
_FIXED: Final = (date, time, timedelta, UUID, Decimal, Enum, frozenset)
"""What cannot change and need not be copied."""
_EMPTY: Final[dict[type[object], Any]] = {dict: {}, list: []}
"""What stands for an empty container in every likeness: nobody changes one."""
_TRIES: Final = 20
_NO_DEFAULT: Final = object()


class _Shape:
    """What is known of one message class: its fields, and which values need not be stored."""

    __slots__ = ("blank", "cls", "containers", "defaults", "fields", "names")

    def __init__(self, cls: type[BaseMessage]) -> None:
        self.cls = cls
        self.fields = frozenset(cls.model_fields)
        self.names = set(self.fields)
        """Shared by all messages of the class that are loaded: pydantic only ever adds names to it."""
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
        self.defaults["type"] = _NO_DEFAULT  # always stored: it says which class this is


_SHAPES: Final[dict[type[BaseMessage], _Shape]] = {cls: _Shape(cls) for cls in _CLASSES}
_BY_TYPE: Final = {cls.model_fields["type"].default: shape for cls, shape in _SHAPES.items()}
MESSAGE_CLASSES: Final = frozenset(_SHAPES)
"""The classes that can be stored here; a message of any other class is an ordinary value."""


def likeness(message: BaseMessage) -> Likeness:
    """A copy of all that a message holds now, taken again until nothing changed meanwhile."""
    for _ in range(_TRIES):
        try:
            copy = dict(message.__dict__)
            for name, value in copy.items():
                kind = kind_of(value)
                if kind not in _LEAVES:  # most of a message's own containers are empty
                    copy[name] = _EMPTY[kind] if kind in _EMPTY and not value else _copied(value)
            if message.__pydantic_extra__:
                copy[EXTRA] = _copied(message.__pydantic_extra__)
        except RuntimeError:  # a dict changed its size while it was copied
            continue
        if is_like(message, copy):
            return copy
    return copy  # pyright: ignore[reportPossiblyUnboundVariable] - it holds something that equals no copy of it


def is_like(message: BaseMessage, known: Likeness) -> bool:
    """Whether a message still is what a likeness of it says."""
    extra = message.__pydantic_extra__
    fields: Any = message.__dict__
    if extra or EXTRA in known:
        return {**fields, EXTRA: extra or {}} == {EXTRA: {}, **known}
    return fields == known


def to_plain(kind: type[BaseMessage], known: Likeness) -> dict[str, Any]:
    """What is stored of a message: what differs from the defaults of its class."""
    shape = _SHAPES[kind]
    defaults, fields = shape.defaults, shape.fields
    plain = {
        name: value
        for name, value in known.items()
        if name in fields and (type(value) is not type(default := defaults[name]) or value != default)
    }
    if EXTRA in known:
        plain[EXTRA] = known[EXTRA]
    return plain


def from_plain(plain: dict[str, Any]) -> tuple[BaseMessage, Likeness] | None:
    """The message that was stored, and a likeness of it; ``None`` for no message that we know.

    Takes ``plain`` over: the message is made of it.
    """
    shape = _BY_TYPE.get(plain.get("type"))
    if shape is None or "content" not in plain:
        return None
    extra = plain.pop(EXTRA, None)
    known = shape.blank | plain
    for name, value in plain.items():
        if type(value) not in _LEAVES:
            known[name] = _copied(value)
    fields = shape.blank | plain
    for name, factory in shape.containers.items():
        if name not in plain:
            fields[name] = factory()
    message = _new(shape.cls)
    _set_fields(message, fields)
    _set_names(message, set(shape.fields) if extra else shape.names)
    _set_extra(message, extra or {})
    _set_private(message, None)
    if extra:
        known[EXTRA] = _copied(extra)
    return message, known


_new: Final[Any] = object.__new__
_places: Final[Any] = BaseModel.__dict__
_set_fields: Final = _places["__dict__"].__set__
_set_names: Final = _places["__pydantic_fields_set__"].__set__
_set_extra: Final = _places["__pydantic_extra__"].__set__
_set_private: Final = _places["__pydantic_private__"].__set__


def _copied(value: Any) -> Any:
    """A copy that shares only what cannot change."""
    kind = kind_of(value)
    if kind is dict:
        return {key: each if type(each) in _LEAVES else _copied(each) for key, each in value.items()}
    if kind is list:
        return [each if type(each) in _LEAVES else _copied(each) for each in value]
    if kind is tuple:
        return tuple(map(_copied, value))
    if issubclass(kind, _FIXED):
        return value
    try:
        return deepcopy(value)
    except Exception:  # noqa: BLE001 - whatever an object of the user's own raises
        return value


copied: Final = _copied

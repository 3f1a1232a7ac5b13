"""Replies of tools: JSON that never grows past a limit, whatever is stored.

A model pays for every byte that a tool answers, and some clients drop a reply that is too long. So a list is
filled until the room is used up and then says how to get the rest; one thing that is too large alone comes
with its long strings cut. **Invariant:** a reply, with its text and its structured form, has no more bytes
than the limit, and nothing is left out without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, cast

import msgspec
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent

from treering.core.encoding import encode_json
from treering.errors import InvalidInput, TreeringError

DEFAULT_REPLY_BYTES: Final = 40_000
LEAST_REPLY_BYTES: Final = 2_000

P = ParamSpec("P")
R = TypeVar("R")

_FRAME_BYTES: Final = 500
"""What the protocol puts around a reply, and the words about what was cut."""
_STRING_LIMITS: Final = (4000, 1000, 250, 60)


class Replies:
    """Builds replies of at most so many bytes."""

    def __init__(self, limit_bytes: int = DEFAULT_REPLY_BYTES) -> None:
        if limit_bytes < LEAST_REPLY_BYTES:
            raise InvalidInput(
                f"replies of {limit_bytes} bytes are too short; give {LEAST_REPLY_BYTES} or more"
            )
        # A reply holds the same thing twice: as text for the model and as data for its program. Inside the
        # text, JSON is a string in JSON, whose quotes take a byte more.
        self._room = (limit_bytes - _FRAME_BYTES) // 2

    def whole(self, facts: Mapping[str, Any]) -> CallToolResult:
        """One thing, with its long strings cut if there is no other way."""
        value = plain(facts)
        return _result(value if _size(value) <= self._room else fitted(value, self._room))

    def listing(
        self,
        name: str,
        items: Iterable[Mapping[str, Any]],
        *,
        more: str,
        facts: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """As many of the items as there is room for; ``more`` says how to get the others."""
        return _result(self.filled(name, items, more=more, facts=facts))

    def filled(
        self,
        name: str,
        items: Iterable[Mapping[str, Any]],
        *,
        more: str,
        facts: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The same, before it is made a reply."""
        told: dict[str, Any] = plain(facts or {})
        room = self._room - _size(told) - len(more) - 100
        taken: list[Any] = []
        for item in items:
            value = plain(item)
            size = _size(value) + 1
            if size > room and not taken:
                value = fitted(value, room)
                size = _size(value) + 1
            if size > room:
                told["cut"] = more
                break
            room -= size
            taken.append(value)
        return {**told, name: taken}

    def text_room(self, facts: Mapping[str, Any]) -> int:
        """How many bytes a long text beside these facts may have."""
        return self._room - _size(plain(facts)) - 100


def told(function: Callable[P, R]) -> Callable[P, R]:
    """Errors that treering raises on purpose are for the model to read; others are the server's own."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TreeringError as error:
            again = " (the same call may succeed when tried again)" if error.retryable else ""
            raise ToolError(f"{type(error).__name__}: {error}{again}") from error

    return call


def plain(value: Any) -> Any:
    """Any stored value as plain JSON."""
    return msgspec.json.decode(encode_json(value, keep_order=True))


def excerpt(text: str, limit: int) -> str:
    """The beginning of a text, and how much was cut."""
    return text if len(text) <= limit else f"{text[:limit]}… (+{len(text) - limit} characters)"


def fitted(value: Any, room: int) -> Any:
    """A value with its strings cut until it fits; what cannot be made to fit is named by its size."""
    size = _size(value)
    if size <= room:
        return value
    for limit in _STRING_LIMITS:
        shorter = _shortened(value, limit)
        if _size(shorter) <= room:
            return shorter
    return {"cut": f"{size} bytes are too much for one reply"}


def page_of(text: str, offset: int, room: int) -> tuple[str, int | None]:
    """Text from a character on that takes at most ``room`` bytes as JSON, and where the next page begins."""
    if offset < 0 or offset > len(text):
        raise InvalidInput(f"offset is {offset}; the text has {len(text)} characters, use 0 to {len(text)}")
    end = min(len(text), offset + room)
    while end > offset and _size(text[offset:end]) > room:
        end = offset + max((end - offset) * 3 // 4, 0)
    return text[offset:end], None if end >= len(text) else end


def _shortened(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return excerpt(value, limit)
    if isinstance(value, list):
        return [_shortened(each, limit) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _shortened(each, limit) for key, each in cast("dict[str, Any]", value).items()}
    return value


def _size(value: Any) -> int:
    """Bytes of a value as JSON inside a JSON string, the longer of its two forms."""
    return len(msgspec.json.encode(msgspec.json.encode(value).decode()))


def _result(value: dict[str, Any]) -> CallToolResult:
    text = msgspec.json.encode(value).decode()
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=value)

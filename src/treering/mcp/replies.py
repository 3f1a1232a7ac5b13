"""Tool replies: JSON of limited size, whatever is stored.

A model pays for every byte of a reply, and some clients drop replies that are too long. A list is therefore
filled until the limit, and then says how to get the rest; long strings of a single large item are truncated.
**Invariant:** the text and the structured form of a reply together never exceed the limit, and whatever is
left out is mentioned.
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
MIN_REPLY_BYTES: Final = 2_000

P = ParamSpec("P")
R = TypeVar("R")

_OVERHEAD_BYTES: Final = 500
"""For the protocol around a reply, and for the note about what was cut."""
_STRING_LIMITS: Final = (4000, 1000, 250, 60)


class Replies:
    """Builds replies of limited size."""

    def __init__(self, limit_bytes: int = DEFAULT_REPLY_BYTES) -> None:
        if limit_bytes < MIN_REPLY_BYTES:
            raise InvalidInput(
                f"a reply limit of {limit_bytes} bytes is too low; use {MIN_REPLY_BYTES} or more"
            )
        # A reply holds its data twice: as text for the model, as JSON for the client. The text is JSON in a
        # JSON string, where each quote takes an additional byte.
        self._room = (limit_bytes - _OVERHEAD_BYTES) // 2

    def whole(self, data: Mapping[str, Any]) -> CallToolResult:
        """Reply with one item; its long strings are truncated only if it does not fit."""
        value = plain(data)
        return _result(value if _size(value) <= self._room else fitted(value, self._room))

    def listing(
        self,
        name: str,
        items: Iterable[Mapping[str, Any]],
        *,
        more: str,
        facts: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """Reply with as many items as fit; ``more`` says how to get the others."""
        return _result(self.filled(name, items, more=more, facts=facts))

    def filled(
        self,
        name: str,
        items: Iterable[Mapping[str, Any]],
        *,
        more: str,
        facts: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the data of `listing`."""
        data: dict[str, Any] = plain(facts or {})
        room = self._room - _size(data) - len(more) - 100
        taken: list[Any] = []
        for item in items:
            value = plain(item)
            size = _size(value) + 1
            if size > room and not taken:
                value = fitted(value, room)
                size = _size(value) + 1
            if size > room:
                data["cut"] = more
                break
            room -= size
            taken.append(value)
        return {**data, name: taken}

    def text_room(self, facts: Mapping[str, Any]) -> int:
        """Return how many bytes remain for a text beside these facts."""
        return self._room - _size(plain(facts)) - 100


def raise_tool_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Turn errors of treering into tool errors, which the model gets to read."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TreeringError as error:
            hint = " (retrying the same call may succeed)" if error.retryable else ""
            raise ToolError(f"{type(error).__name__}: {error}{hint}") from error

    return call


def plain(value: Any) -> Any:
    """Return a stored value as plain JSON."""
    return msgspec.json.decode(encode_json(value, keep_order=True))


def excerpt(text: str, limit: int) -> str:
    """Return the beginning of a text, with a note of how much was cut."""
    return text if len(text) <= limit else f"{text[:limit]}… (+{len(text) - limit} characters)"


def fitted(value: Any, room: int) -> Any:
    """Return a value with its strings truncated until it fits; if it cannot fit, a note of its size."""
    size = _size(value)
    if size <= room:
        return value
    for limit in _STRING_LIMITS:
        shorter = _truncate(value, limit)
        if _size(shorter) <= room:
            return shorter
    return {"cut": f"{size} bytes do not fit into one reply"}


def page_of(text: str, offset: int, room: int) -> tuple[str, int | None]:
    """Return the text from ``offset`` that fits into ``room`` bytes of JSON, and the next offset."""
    if offset < 0 or offset > len(text):
        raise InvalidInput(f"offset is {offset}; the text has {len(text)} characters, use 0 to {len(text)}")
    end = min(len(text), offset + room)
    while end > offset and _size(text[offset:end]) > room:
        end = offset + max((end - offset) * 3 // 4, 0)
    return text[offset:end], None if end >= len(text) else end


def _truncate(value: Any, limit: int) -> Any:
    if isinstance(value, str):
        return excerpt(value, limit)
    if isinstance(value, list):
        return [_truncate(each, limit) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _truncate(each, limit) for key, each in cast("dict[str, Any]", value).items()}
    return value


def _size(value: Any) -> int:
    """Return the size of a value as JSON inside a JSON string, the longer of its two forms."""
    return len(msgspec.json.encode(msgspec.json.encode(value).decode()))


def _result(value: dict[str, Any]) -> CallToolResult:
    text = msgspec.json.encode(value).decode()
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=value)

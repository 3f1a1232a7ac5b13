"""Replies: what a model may give back, and the messages that are kept of it.

Structured messages are kept as they are. A reply that has none (a string, an object with a ``text``, a stream
of text) becomes one message of the assistant with that text. A stream may do both: text for whoever watches,
and at its end the structured message, which then is what is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, Final, cast

import msgspec

from treering.agent.shapes import Message, calls_of, text_of
from treering.errors import InvalidInput

_EXPECTED: Final = (
    "return a message (a dict with a role), a list of them, an object with messages or text, "
    "a string, or an iterator of such pieces"
)


def read_reply(reply: Any) -> list[Message]:
    """The messages to keep of a reply; `InvalidInput` when it holds none."""
    messages = _messages(reply)
    if messages is None:
        raise InvalidInput(f"the model returned {type(reply).__name__}, which is no message; {_EXPECTED}")
    ids = [call.id for message in messages for call in calls_of(message)]
    if len(ids) != len(set(ids)):
        raise InvalidInput(f"the model gave two tool calls of one reply the same id: {', '.join(ids)}")
    return messages


def is_stream(reply: Any) -> bool:
    """Whether a reply comes in pieces."""
    return any(hasattr(reply, name) for name in ("__next__", "__anext__", "__aiter__"))


class Pieces:
    """A reply that comes in pieces, gathered as they come."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._messages: list[Message] = []

    def take(self, piece: Any) -> str:
        """Take the next piece; the text in it that a reader can be shown."""
        if isinstance(piece, str):
            self._text.append(piece)
            return piece
        messages = _messages(piece)
        if messages is None:
            return ""
        was_silent = not self._text
        self._messages += messages
        return "".join(map(text_of, messages)) if was_silent else ""

    def reply(self) -> Any:
        """All of it, as a reply that came at once."""
        return self._messages or "".join(self._text)


def _messages(reply: Any) -> list[Message] | None:
    if isinstance(reply, str):
        return [{"role": "assistant", "content": reply}]
    if isinstance(reply, (list, tuple)):
        many = cast("list[Any]", reply)
        read = [_message(each) for each in many]
        whole = [each for each in read if each is not None]
        return whole if whole and len(whole) == len(read) else None
    one = _message(reply)
    if one is not None:
        return [one]
    for holder in (reply, _field(reply, "response")):
        found = _field(holder, "messages")
        if isinstance(found, (list, tuple)) and found:
            return _messages(found)
    text = _field(reply, "text")
    return [{"role": "assistant", "content": text}] if isinstance(text, str) else None


def _message(value: Any) -> Message | None:
    plain: Any = value
    if hasattr(value, "model_dump"):  # the message objects of most clients
        plain = value.model_dump(mode="json", exclude_none=True)
    elif isinstance(value, msgspec.Struct) or is_dataclass(value):
        plain = msgspec.to_builtins(value)
    if not isinstance(plain, Mapping):
        return None
    message = dict(cast("Mapping[str, Any]", plain))
    return message if isinstance(message.get("role"), str) else None


def _field(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return cast("Mapping[str, Any]", holder).get(name)
    found = getattr(holder, name, None)
    return None if callable(found) else found

"""Thread ids of a chat agent: readable text that parses back to exactly one meaning.

``{channel}_{chat_id}`` is a chat, ``{channel}_{chat_id}_s{N}`` the same chat after N resets, and
``scheduler_{task_id}`` a scheduled task. Where a part would make the text mean something else it is
percent-escaped: ``%`` in a channel or chat id, ``_`` in a channel, a chat id that ends like a reset, a
channel named ``scheduler``. **Invariant:** formatting and parsing are inverse: every id has one text, and any
other text parses to nothing.
"""

from __future__ import annotations

import re
from typing import Final, cast

import msgspec

from treering.core.ids import check_id
from treering.errors import InvalidInput

_SCHEDULER: Final = "scheduler"
_ESCAPED_SCHEDULER: Final = "%73cheduler"
_RESET: Final = re.compile(r"_s([0-9]+)\Z")
_NUMBER: Final = re.compile(r"_s([1-9][0-9]*)\Z")


class ChatId(msgspec.Struct, frozen=True):
    """A chat of a channel, after so many resets."""

    channel: str
    chat_id: str
    resets: int = 0

    @property
    def thread_id(self) -> str:
        """The id of the thread."""
        return f"{self.base}_s{self.resets}" if self.resets else self.base

    @property
    def base(self) -> str:
        """The id of the chat's first thread; the ids of all its threads begin with it."""
        channel = self.channel.replace("%", "%25").replace("_", "%5F")
        chat = _RESET.sub(r"%5Fs\1", self.chat_id.replace("%", "%25"))
        return f"{_ESCAPED_SCHEDULER if channel == _SCHEDULER else channel}_{chat}"


class TaskId(msgspec.Struct, frozen=True):
    """A scheduled task."""

    task_id: str

    @property
    def thread_id(self) -> str:
        """The id of the thread."""
        return f"{_SCHEDULER}_{self.task_id}"


def chat_id_of(channel: str, chat_id: str | int, resets: int = 0) -> ChatId:
    """Return a valid `ChatId`; the chat id may be a number."""
    if resets < 0:
        raise InvalidInput(f"resets is {resets}; give 0 or more")
    if not isinstance(cast("object", chat_id), str | int):
        raise InvalidInput(f"chat id is {chat_id!r}; give text or a whole number")
    return ChatId(check_id(channel, "channel"), check_id(str(chat_id), "chat id"), resets)


def parse_thread_id(text: str) -> ChatId | TaskId | None:
    """Parse a thread id; ``None`` if it is not the id of a chat or a task."""
    head, separator, rest = text.partition("_")
    if not separator or not head or not rest:
        return None
    if head == _SCHEDULER:
        return TaskId(rest)
    found = _NUMBER.search(rest)
    chat = rest[: found.start()] if found else rest
    channel = _SCHEDULER if head == _ESCAPED_SCHEDULER else _unescaped(head)
    parsed = ChatId(channel, _unescaped(chat), int(found[1]) if found else 0)
    return parsed if chat and parsed.thread_id == text else None


def _unescaped(part: str) -> str:
    return part.replace("%5F", "_").replace("%25", "%")

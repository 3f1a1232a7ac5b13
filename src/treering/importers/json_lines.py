"""JSON lines as other tools write them, which is not always JSON as it is written down.

JavaScript cuts texts in the middle of a character and writes half of it (a lone surrogate), Python writes
``NaN``. Such lines are read all the same: a session must not lose a message for half an emoji.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec


def decode_line(text: bytes) -> Any:
    """The value of a line; raises `msgspec.DecodeError` for what is none."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise error from None


def decode_object(text: bytes) -> dict[str, Any]:
    """The object of a line; anything else raises `msgspec.DecodeError`."""
    value = decode_line(text)
    if not isinstance(value, dict):
        raise msgspec.DecodeError(f"it is no object but a {type(value).__name__}")
    return value  # pyright: ignore[reportUnknownVariableType] - JSON has text for keys

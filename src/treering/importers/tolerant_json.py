"""Decode JSON lines as other tools write them, which is not always valid JSON.

JavaScript may cut text in the middle of a character and write a lone surrogate; Python writes ``NaN``. Such
lines are read all the same: a session must not lose a message because of half an emoji.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec


def decode_line(text: bytes) -> Any:
    """Decode a line. Raise `msgspec.DecodeError` if it is not JSON even by these rules."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise error from None


def decode_object(text: bytes) -> dict[str, Any]:
    """Decode a line that holds an object. Raise `msgspec.DecodeError` for anything else."""
    value = decode_line(text)
    if not isinstance(value, dict):
        raise msgspec.DecodeError(f"expected an object, not a {type(value).__name__}")
    return value  # pyright: ignore[reportUnknownVariableType] - JSON has text for keys

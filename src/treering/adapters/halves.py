"""Halves of characters: what a text that was cut, or a file's name that is no UTF-8, leaves in a string.

A store keeps such a string (a lone surrogate) as it is, but neither the JSON parser of pydantic nor a search
index takes it. **Invariant:** whatever a framework was able to save, it is able to read again.
"""

from __future__ import annotations

import json
from typing import Any

import orjson


def json_for_models(stored: Any) -> bytes | str:
    """Stored plain data as JSON that models of pydantic are read from."""
    try:
        return orjson.dumps(stored)
    except TypeError:  # half a character, or an integer past 64 bits
        return json_text(stored)


def json_text(plain: Any) -> str:
    """Plain data as JSON; what was stored and what is read of it have the same."""
    return without_halves(json.dumps(plain, ensure_ascii=False))


def without_halves(text: str) -> str:
    """The same text, with two halves that stand together as one character, and U+FFFD for any other half."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

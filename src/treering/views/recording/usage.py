"""Tokens as people hand them over: treering's own words, and those of the providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from treering.core.batch import Usage
from treering.errors import InvalidInput

_WORDS: Final = {
    "input": ("input", "uncached_input"),
    "cache_read": ("cache_read", "cache_read_input_tokens"),
    "cache_write": ("cache_write", "cache_creation_input_tokens"),
    "cache_write_1h": ("cache_write_1h",),
    "output": ("output", "output_tokens", "completion_tokens", "completion"),
    "reasoning": ("reasoning", "reasoning_tokens"),
}
_INCLUSIVE: Final = ("prompt_tokens", "prompt")
"""OpenAI's count of input tokens, which includes those that came out of the cache."""
_DETAILS: Final = (
    "prompt_tokens_details",
    "input_tokens_details",
    "output_tokens_details",
    "completion_tokens_details",
)
_TOTALS: Final = ("total", "total_tokens")


def usage_of(given: Usage | Mapping[str, Any] | None) -> Usage | None:
    """Usage by disjoint class.

    Takes a `Usage`, our own names (``input``, ``output``, ``cache_read``, ...), Anthropic's (``input_tokens``
    without what the cache gave) and OpenAI's (``prompt_tokens`` with it). A name that is not known is an
    error: tokens that nobody counts would look free.
    """
    if given is None or isinstance(given, Usage):
        return given
    rest = {name: value for name, value in given.items() if value is not None}
    counts = {field: _taken(rest, names) for field, names in _WORDS.items()}
    cached = _cached(rest)
    inclusive = _taken(rest, _INCLUSIVE)
    exclusive = _taken(rest, ("input_tokens",))
    if cached is not None:  # OpenAI's shape: the cached ones are part of the input
        counts["cache_read"] += cached
        counts["input"] += max(inclusive + exclusive - cached, 0)
    else:
        counts["input"] += inclusive + exclusive
    total = _taken(rest, _TOTALS)
    if rest:
        raise InvalidInput(
            f"usage has {next(iter(rest))!r}, which is no count of tokens that is known; "
            f"use {', '.join(_WORDS)}"
        )
    usage = Usage(**counts)
    if not usage.total and total:
        return Usage(input=total)
    return usage


def _taken(rest: dict[str, Any], names: tuple[str, ...]) -> int:
    total = 0
    for name in names:
        if name in rest:
            count = rest.pop(name)
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise InvalidInput(f"usage has {name}={count!r}; a count of tokens is a whole number from 0")
            total += count
    return total


def _cached(rest: dict[str, Any]) -> int | None:
    cached = None
    for name in _DETAILS:
        details = rest.pop(name, None)
        if isinstance(details, Mapping) and "cached_tokens" in details:
            cached = (cached or 0) + int(details["cached_tokens"] or 0)  # pyright: ignore[reportUnknownArgumentType]
    return cached

"""Tokens as people hand them over: treering's own words, and those of the providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

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
_OWN: Final = frozenset(_WORDS)
_INCLUSIVE: Final = ("prompt_tokens", "prompt")
"""OpenAI's count of input tokens, which includes those that came out of the cache."""
_DETAILS: Final = (
    "prompt_tokens_details",
    "input_tokens_details",
    "output_tokens_details",
    "completion_tokens_details",
    "cache_creation",
)
_CACHED: Final = ("cached_tokens",)
_THOUGHT: Final = ("reasoning_tokens", "thinking_tokens")
_WRITTEN_5M: Final = ("ephemeral_5m_input_tokens",)
_WRITTEN_1H: Final = ("ephemeral_1h_input_tokens",)
_NO_TOKENS: Final = frozenset({"server_tool_use"})
"""What else is in Anthropic's usage; what is text there (``service_tier``) is no count either."""
_TOTALS: Final = ("total", "total_tokens")
_MOST: Final = 1 << 50
"""More tokens than anyone used yet, in one event: a mistake."""


def usage_of(given: Usage | Mapping[str, Any] | None) -> Usage | None:
    """Usage by disjoint class.

    Takes a `Usage`, our own names (``input``, ``output``, ``cache_read``, ...), Anthropic's (``input_tokens``
    without what the cache gave) and OpenAI's (``prompt_tokens`` with it). A name that is not known is an
    error: tokens that nobody counts would look free.
    """
    if given is None or isinstance(given, Usage):
        return given
    shape: Any = given
    if not isinstance(shape, Mapping):
        raise InvalidInput(
            f"usage is of type {type(shape).__name__}; pass names and counts "
            "(of a provider's object: usage.model_dump())"
        )
    if _OWN.issuperset(given) and all(type(count) is int and 0 <= count < _MOST for count in given.values()):
        return Usage(**given)  # most often: our own words, with nothing to work out
    rest = {name: value for name, value in given.items() if value is not None and name not in _NO_TOKENS}
    details = _details(rest)
    counts = {field: _taken(rest, names) for field, names in _WORDS.items()}
    cached = _taken(details, _CACHED)  # OpenAI's shape: the cached ones are part of the input
    counts["input"] += max(_taken(rest, (*_INCLUSIVE, "input_tokens")) - cached, 0)
    counts["cache_read"] += cached
    counts["reasoning"] += _taken(details, _THOUGHT)
    written_1h = _taken(details, _WRITTEN_1H)  # Anthropic's sum of what was written is of both kinds
    counts["cache_write"] = max(counts["cache_write"] - written_1h, _taken(details, _WRITTEN_5M))
    counts["cache_write_1h"] += written_1h
    total = _taken(rest, _TOTALS)
    unknown = [name for name, value in rest.items() if not isinstance(value, str)]
    if unknown:
        raise InvalidInput(
            f"usage has {unknown[0]!r}, which is no count of tokens that is known; use {', '.join(_WORDS)}"
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
            if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < _MOST:
                raise InvalidInput(
                    f"usage has {name}={count!r}; a count of tokens is a whole number from 0 to {_MOST:,}"
                )
            total += count
    return total


def _details(rest: dict[str, Any]) -> dict[str, Any]:
    """What the parts of a count say, taken out of the usage; every part is in a whole as well."""
    found: dict[str, Any] = {}
    for name in _DETAILS:
        details: Any = rest.pop(name, None)
        if isinstance(details, Mapping):
            told = cast("Mapping[str, Any]", details)
            found.update({key: value for key, value in told.items() if value is not None})
    return found

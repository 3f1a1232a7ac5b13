"""Adding and taking away tokens, class by class."""

from __future__ import annotations

from treering.core.batch import Usage


def added(one: Usage | None, other: Usage) -> Usage:
    """Two counts together."""
    return _by_class(one or Usage(), other, 1)


def without(one: Usage, other: Usage | None) -> Usage:
    """What is left of a count, in no class below zero."""
    return one if other is None else _by_class(one, other, -1)


def covers(whole: Usage, part: Usage) -> bool:
    """Whether a count can hold another one, in every class."""
    return all(getattr(whole, name) >= getattr(part, name) for name in Usage.__struct_fields__)


def _by_class(one: Usage, other: Usage, sign: int) -> Usage:
    return Usage(
        **{name: max(getattr(one, name) + sign * getattr(other, name), 0) for name in Usage.__struct_fields__}
    )

"""Which spaces an engine has, and how far each one is.

A space comes into being with the first write to it. Before that, an engine has nothing to say about it; a
store that was just opened is nevertheless healthy and empty, not an error.
"""

from __future__ import annotations

from typing import Final

from treering.core.engine import Engine

RESERVED: Final = "treering."
"""Spaces whose names begin like this are treering's own."""


def user_spaces(engine: Engine) -> list[str]:
    """The spaces of an engine that are not treering's own, by name."""
    return [name for name in engine.spaces() if not name.startswith(RESERVED)]


def is_unwritten(engine: Engine, space: str) -> bool:
    """Whether nothing was ever written to a space."""
    return space not in engine.spaces()


def last_seq(engine: Engine, space: str) -> int:
    """The last sequence number of a space, 0 when nothing was ever committed to it."""
    return engine.wait(space, 0, seconds=0)

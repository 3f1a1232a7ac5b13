"""A look at a thread that someone else may be removing.

Where the head is, its checkpoint and its content are reads of their own; a thread can go between two of them.
**Invariant:** whoever looks finds it as it was, or finds none; never an error that tells of a damaged store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from treering.errors import Corrupt, NotFound

_LOOKS: Final = 5

T = TypeVar("T")


def look(at: Callable[[], T]) -> T:
    """What a look gives; looks again where something was not there, until that is sure."""
    for _ in range(_LOOKS - 1):
        try:
            return at()
        except (NotFound, Corrupt):
            continue
    return at()

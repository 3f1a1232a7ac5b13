"""May this be erased? Asked before anything is changed that only makes sense with the erasure behind it.

Over HTTP a key may be good for writing and not for erasing. Whoever first unlists a thing and then erases it
would leave it unlisted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treering.core.query import Erasure

if TYPE_CHECKING:
    from treering.core.engine import Engine

_NOTHING: Final = Erasure()


def ask_to_erase(engine: Engine, space: str) -> None:
    """Raise what an erasure in this space would be refused with (`Forbidden`); nothing is erased."""
    engine.erase(space, _NOTHING)

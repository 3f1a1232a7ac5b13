"""Optimistic concurrency: the parts of a read-compute-write loop on a ref.

A writer reads a ref, computes its new value, and commits it against the version that it read. If another
writer was faster, the commit raises `RefMoved` and the writer starts over after `Backoff.wait`.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from treering.errors import RefMoved

if TYPE_CHECKING:
    from treering.core.records import Ref

_FIRST_SECONDS: Final = 0.001
_MAX_SECONDS: Final = 0.05
_MAX_DOUBLINGS: Final = 10


class Backoff:
    """Random, growing pauses, so that writers that collided do not collide again."""

    def __init__(self) -> None:
        self._attempts = 0

    def wait(self) -> None:
        """Pause before the next attempt."""
        longest = _FIRST_SECONDS * 2 ** min(self._attempts, _MAX_DOUBLINGS)
        self._attempts += 1
        time.sleep(random.uniform(0, min(longest, _MAX_SECONDS)))


def check_version(what: str, ref: Ref | None, expected: int | None) -> None:
    """Raise `RefMoved` unless the ref is at the expected version (0: it does not exist; ``None``: any)."""
    if expected is None or expected == (0 if ref is None else ref.version):
        return
    actual = "does not exist" if ref is None else f"is at version {ref.version}"
    raise RefMoved(f"{what} {actual}, expected version {expected}; read it again and retry")

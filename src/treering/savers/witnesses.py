"""Witnesses: which threads of a key-value store have values, without listing them for each.

A thread that has no head is new, or has lost it, and then its values are still there. To find out, they can
be listed, which in many stores means to walk through everything that is stored. So a thread's first save
leaves a key of a known name among its values, its witness, and asking for that is enough. Threads that older
versions saved have none: they are found by listing all values once, when a saver first needs to know.
**Invariant:** a thread that has values has a witness, or is known to be one of those.
"""

from __future__ import annotations

from typing import Final

from treering.core.storage import KeyValueStore
from treering.errors import Corrupt
from treering.keyvalue.awaiting import call

WITNESS: Final = "first"
"""The name of a thread's witness; other values have a ``-`` or a ``_`` in theirs."""


class Witnesses:
    """The witnesses of the threads below one root."""

    def __init__(self, store: KeyValueStore, root: str) -> None:
        self._store = store
        self._folder = f"{root}data/"
        self._without: frozenset[str] | None = None

    def may_have_values(self, name: str) -> bool:
        """Whether there are, or may be, values of the thread with this name."""
        without = self._without
        if without is None:
            without = self._without = self._found_without()
        if without is None or name in without:
            return True
        try:
            return call(self._store.get, f"{self._folder}{name}/{WITNESS}") is not None
        except Corrupt:
            return True

    def _found_without(self) -> frozenset[str] | None:
        """The threads that have values and no witness; ``None`` if the store cannot tell."""
        try:
            keys = [key.removeprefix(self._folder) for key in call(self._store.list, self._folder)]
        except Corrupt:  # a damaged value of any thread
            return None
        parts = [key.partition("/") for key in keys]
        witnessed = {name for name, _, value in parts if value == WITNESS}
        return frozenset(name for name, _, _ in parts) - witnessed

"""Checkpoints on any store with ``get``, ``set``, ``delete`` and ``list(prefix)``, plain or ``async``.

A dict, a folder and Redis are in `treering.keyvalue`; a user's own class works as well. Values are texts,
keys are readable and at most about 360 characters long, whatever the ids are. How durable a save is depends
on the store's ``set``. A thread without a head is asked for its values: one that lost it is no new thread.
For that a saver lists all values once, not for each thread.

A store that also has ``compare_and_swap(key, old, new)``, as the dict and Redis do, may be saved to by any
number of processes: of two that save to one thread at the same moment, one comes behind the other. Without
it, one saver orders its own threads and tasks only, and of two *processes* the later one's head stays, and
the other's checkpoint is left out of the history: give each thread one process, or use `FileSaver`,
`SqliteSaver` or `PostgresSaver`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treering.core.clock import Clock, SystemClock
from treering.errors import InvalidInput
from treering.savers.fields import checked_keep, checked_namespace
from treering.savers.keyvalue_shelf import KeyValueShelf
from treering.savers.locks import ProcessLocks
from treering.savers.saver import HooksLike, Saver

if TYPE_CHECKING:
    from treering.core.retention import Keep
    from treering.core.storage import KeyValueStore

_METHODS: Final = ("get", "set", "delete", "list")


class KeyValueStoreSaver(Saver):
    """Checkpoints in a key-value store; every key begins with ``prefix``."""

    def __init__(
        self,
        store: KeyValueStore,
        *,
        namespace: str = "",
        prefix: str = "checkpoints/",
        hooks: HooksLike | None = None,
        keep: Keep | None = None,
        clock: Clock | None = None,
    ) -> None:
        if missing := [name for name in _METHODS if not callable(getattr(store, name, None))]:
            raise InvalidInput(
                f"{type(store).__name__} is no key-value store, it has no {', '.join(missing)}; give one "
                "with get(key), set(key, value), delete(key) and list(prefix)"
            )
        shelf = KeyValueShelf(
            store,
            namespace=checked_namespace(namespace),
            prefix=prefix,
            keep=checked_keep(keep),
            locks=ProcessLocks(),
            clock=clock or SystemClock(),
        )
        super().__init__(shelf, hooks=hooks)

"""Where a rerun writes: while one is going on, its agent sees forks under the names of the originals.

A run that is made again (`treering.replays.rerun`) must change nothing outside of its fork, and its code is
the same as before: it opens the same thread, reads and writes the same memory. So threads, graphs, memory and
effects look here which fork they belong to. **Invariant:** while a fork is current, nothing of this process
writes to the threads and memory that it was made from.

Like what is recorded and replayed, a fork is that of the whole process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from treering.errors import Conflict

if TYPE_CHECKING:
    from treering.core.engine import Engine


class Fork(Protocol):
    """What a rerun works on instead of the original."""

    def is_of(self, engine: Engine, space: str) -> bool:
        """Whether it was made from a thread or memory of this store."""
        ...

    def thread(self, namespace: str, thread_id: str) -> str:
        """Return the id of a thread's fork; the given id, if it has none."""
        ...

    def memory(self, namespace: str) -> str:
        """Return the namespace that holds the memory of the fork."""
        ...

    def effect(self, effects: Any, intent: Any) -> Any:
        """Return the recorded effect of a call that must not be repeated, or one that says it is refused."""
        ...


class _Current:
    """The fork that this process works on; ``None`` if it works on the originals."""

    __slots__ = ("fork",)

    def __init__(self) -> None:
        self.fork: Fork | None = None


current: Final = _Current()


def forked_thread(engine: Engine, space: str, namespace: str, thread_id: str) -> str:
    """Return the id of the thread that a name stands for now."""
    fork = current.fork
    return thread_id if fork is None or not fork.is_of(engine, space) else fork.thread(namespace, thread_id)


def forked_memory(engine: Engine, space: str, namespace: str) -> str:
    """Return the namespace of the memory that a name stands for now."""
    fork = current.fork
    return namespace if fork is None or not fork.is_of(engine, space) else fork.memory(namespace)


def refuse_outside(engine: Engine, space: str, what: str) -> None:
    """Raise `Conflict` for a write that a rerun would make to what has no fork."""
    fork = current.fork
    if fork is not None and fork.is_of(engine, space):
        raise Conflict(
            f"a rerun does not write {what}, of which its fork has no copy; give the agent another store for "
            "it, or leave it out of the rerun"
        )

"""The journal of threads: how their checkpoints are named, found and followed back.

A thread's checkpoints are the events of its erasure scope. A parent is always older than its child, so the
line that leads to a head is found in one pass over a thread, newest first, and goes on in the thread that
it was forked from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treering.core.query import EventQuery
from treering.core.scopes import Scope, namespace_prefix
from treering.errors import NotFound
from treering.views.checkpoints import KIND, by_id, read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.engine import Engine
    from treering.views.checkpoints import Checkpoint

HEADS: Final = "thread/"
_PAGE: Final = 200


def head_ref(thread_id: str, namespace: str) -> str:
    """The name of the ref that is a thread's head; two threads never share one."""
    return heads_prefix(namespace) + thread_id


def heads_prefix(namespace: str) -> str:
    """What the heads of a namespace start with, and of no other."""
    return HEADS + namespace_prefix(namespace)


def thread_scope(thread_id: str, namespace: str) -> str:
    """The erasure scope of a thread."""
    return str(Scope(namespace, "thread", thread_id))


class Journal:
    """The checkpoints of one namespace."""

    def __init__(self, engine: Engine, space: str, namespace: str) -> None:
        self._engine = engine
        self._space = space
        self._namespace = namespace

    def by_id(self, checkpoint_id: str) -> Checkpoint:
        """One checkpoint; those of other namespaces are not there."""
        page = self._engine.scan(self._space, by_id(checkpoint_id), limit=1)
        for record in page.records:
            checkpoint = read_checkpoint(self._engine, self._space, record)
            if checkpoint.namespace == self._namespace:
                return checkpoint
        raise NotFound(
            f"there is no checkpoint {checkpoint_id!r} in this namespace; history() shows what there is"
        )

    def all_of(self, scope: str) -> Iterator[Checkpoint]:
        """Every checkpoint of a thread, newest first."""
        query = EventQuery(kinds=(KIND,), scope=scope, newest_first=True)
        after = None
        while True:
            page = self._engine.scan(self._space, query, after=after, limit=_PAGE)
            for record in page.records:
                yield read_checkpoint(self._engine, self._space, record)
            if page.cursor is None:
                return
            after = page.cursor

    def line(self, head: Checkpoint | None, scope: str) -> Iterator[Checkpoint]:
        """A head of the thread with this scope, and its ancestors."""
        wanted = head.id if head is not None else None
        while wanted is not None:
            for checkpoint in self.all_of(scope):
                if checkpoint.id == wanted:
                    yield checkpoint
                    wanted = checkpoint.parent
                    if wanted is None:
                        return
            origin = self.by_id(wanted)
            scope = thread_scope(origin.thread, origin.namespace)

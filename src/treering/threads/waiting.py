"""The threads that wait for a person, for the inbox of approvals.

A head whose checkpoint has a pending interrupt is listed with the status `writer.WAITING`, so that the
threads that wait are found without reading the others.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from treering.approvals.ballots import Asked
from treering.core.query import ListQuery, each_listed
from treering.threads.history import read_heads
from treering.threads.writer import THREADS, WAITING, read_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from treering.core.engine import Engine
    from treering.threads.checkpoint import Checkpoint
    from treering.threads.thread import Thread
    from treering.workspaces.diff import FileChange

_AT_ONCE: Final = 100
_LOOKED_BACK: Final = 1_000
"""How many checkpoints are read at most to find where a run began."""


class WaitingThreads:
    """The threads of a store that wait for a person; answers them. See `treering.approvals`."""

    def __init__(self, engine: Engine, space: str, thread: Callable[[str, str], Thread]) -> None:
        self._engine = engine
        self._space = space
        self.thread = thread

    def each(self, namespace: str | None) -> Iterator[Asked]:
        """Yield the questions of a namespace (``None``: of all), oldest first."""
        query = ListQuery(list=THREADS, namespace=namespace, status=WAITING, oldest_first=True)
        refs = each_listed(self._engine, self._space, query)
        while batch := list(islice(refs, _AT_ONCE)):
            heads = read_heads(self._engine, self._space, [read_head(ref).checkpoint for ref in batch])
            for ref in batch:
                head = heads.get(read_head(ref).checkpoint)
                if head is not None and head.pending_interrupt is not None:
                    yield Asked(
                        thread_id=head.thread,
                        namespace=head.namespace,
                        checkpoint_id=head.id,
                        pending=head.pending_interrupt,
                        asked_us=ref.changed_at_us,
                    )

    def files(self, thread_id: str, namespace: str, checkpoint_id: str) -> list[FileChange]:
        """Return what changed in the files of a thread until a checkpoint, since its run began."""
        thread = self.thread(thread_id, namespace)
        asked = thread.at(checkpoint_id)
        run = asked.metadata.get("run")
        base: Checkpoint = asked
        for each in islice(thread.history(after=asked), _LOOKED_BACK):
            if run is not None and base.metadata.get("run") != run:
                break
            if each.snapshot is not None or run is not None:
                base = each
        return thread.workspace.diff(base.snapshot, asked.snapshot)


__all__ = ["WaitingThreads"]

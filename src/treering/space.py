"""A space of an engine: what is written into it, and how it is looked after, in nobody's words yet.

Writing is one verb, `commit` (or `submit`, its future). Looking after it is a verb each. What agents call
threads, runs and memories is made of this by `treering.store`. **Invariant:** a space sees and changes itself
only.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from treering.core.batch import Batch, Receipt
from treering.core.clock import Clock, SystemClock
from treering.core.draft import Draft
from treering.core.engine import Engine
from treering.core.ids import check_space
from treering.core.records import Checked
from treering.core.retention import Keep
from treering.errors import InvalidInput
from treering.views.recording.runs import RUN

if TYPE_CHECKING:  # a program that only writes does not pay for the rest
    from treering.care.collection import Collection
    from treering.care.growth import Growth
    from treering.care.statistics import Stats
    from treering.care.verification import Verification


class Space:
    """One space of one engine; ``folder`` is where a local store keeps its files."""

    def __init__(self, engine: Engine, space: str, *, folder: Path | None, clock: Clock | None) -> None:
        self._engine = engine
        self._space = check_space(space)
        self._folder = folder
        self._clock = clock or SystemClock()

    @property
    def space(self) -> str:
        """The tenant whose data this is; ``namespace=`` of `open` names it."""
        return self._space

    @property
    def url(self) -> str:
        """Where the store is, without secrets."""
        return self._engine.url

    @property
    def engine(self) -> Engine:
        """What stores the bytes; reads take `space` as their first argument."""
        return self._engine

    @property
    def clock(self) -> Clock:
        """Where its times come from."""
        return self._clock

    # Writing
    def draft(self, id: str | None = None) -> Draft:
        """A new batch to be filled; an ``id`` of your own makes a repeated commit harmless."""
        return Draft(self._space, id=id)

    def commit(self, batch: Batch | Draft) -> Receipt:
        """Write a batch: atomic, idempotent by its id, durable when this returns."""
        return self._engine.commit(self._own(batch))

    def submit(self, batch: Batch | Draft) -> Future[Receipt]:
        """Write a batch in the background; the future resolves when it is durable."""
        return self._engine.submit(self._own(batch))

    # Looking after it
    def verify(self, *, on_progress: Callable[[Checked], None] | None = None) -> Verification:
        """Rehash all content, follow every link, recount what is derived; changes nothing."""
        from treering.care.verification import verify

        return verify(self._engine, self._space, on_progress=on_progress)

    def gc(
        self,
        *,
        keep: Keep | None = None,
        keep_runs: Keep | None = None,
        dry_run: bool = False,
        grace_seconds: float = 3600.0,
    ) -> Collection:
        """Drop what ``keep`` does not want (without it, nothing), then sweep what nothing can reach.

        ``keep`` is for checkpoints of each thread, snapshots of each workspace, versions of each memory, and
        for all checkpoints of sandboxes together. ``keep_runs`` is for runs, those of each agent by
        themselves; what they cost goes with them. Works beside writers: what became unreachable less than
        ``grace_seconds`` ago stays for now.
        """
        from treering.care.collection import collect
        from treering.views.graph_deltas import made_of
        from treering.views.run_retention import drop_runs

        runs = None
        if keep_runs is not None:
            runs = drop_runs(self._engine, self._space, keep_runs, dry_run=dry_run, clock=self._clock)
        collected = collect(
            self._engine,
            self._space,
            keep=keep,
            dry_run=dry_run,
            grace_seconds=grace_seconds,
            clock=self._clock,
            made_of=made_of,
        )
        if runs is None:
            return collected
        return structs.replace(
            collected,
            dropped=collected.dropped | ({RUN: len(runs.dropped)} if runs.dropped else {}),
            kept=collected.kept | {RUN: runs.kept},
            event=collected.event or runs.event,
        )

    def reindex(self) -> None:
        """Rebuild what is derived: roll-ups and search index."""
        from treering.care.spaces import is_unwritten

        if not is_unwritten(self._engine, self._space):
            self._engine.reindex(self._space)

    def stats(self) -> Stats:
        """What this space holds, what it takes, and how it grew day by day."""
        from treering.care.statistics import measure

        return measure(self._engine, self._space, folder=self._folder)

    def growth(self, *, last_days: int = 7) -> Growth:
        """What each day brought, and how large this space will be in 30 days if the last days go on."""
        from treering.care.growth import grow

        if last_days < 1:
            raise InvalidInput(f"last_days is {last_days}; look at one day at least")
        return grow(self._engine, self._space, last_days=last_days, clock=self._clock)

    def _own(self, batch: Batch | Draft) -> Batch:
        whole = batch.batch() if isinstance(batch, Draft) else batch
        if whole.space != self._space:
            raise InvalidInput(
                f"batch {whole.id!r} is for space {whole.space!r}, this store is {self._space!r}; "
                "make it with store.draft()"
            )
        return whole

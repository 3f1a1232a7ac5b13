"""The store: one space of one engine in agents' words, the way in for everything else.

Writing is one verb, `commit` (or `submit`, its future). Looking after the store is a verb each: `verify`,
`gc`, `forget`, `reindex`, `stats`, `copy_to`, `backup`; those that need no more than the space itself are in
`treering.store`. **Invariant:** a store sees and changes its own space only; the one exception is `backup`,
which is of the whole store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from msgspec import structs

from treering.core.batch import Batch, Draft, Receipt
from treering.core.clock import Clock, SystemClock
from treering.core.engine import Engine
from treering.core.ids import check_space
from treering.core.records import Checked
from treering.core.retention import Keep
from treering.core.storage import Blobs
from treering.errors import InvalidInput
from treering.runs.run import RUN, Run
from treering.threads.directory import ThreadInfo, list_threads
from treering.threads.hooks import Hooks
from treering.threads.ids import thread_key
from treering.threads.thread import Thread, ThreadContext
from treering.workspaces.workspace import Workspace

if TYPE_CHECKING:
    from treering.limits.alerts import Alerts
    from treering.limits.budgets import Guard, SharedBudgets
    from treering.maintenance.backup import BackupReport
    from treering.maintenance.copy import CopyProgress, CopyReport
    from treering.maintenance.forget import Forgotten
    from treering.maintenance.gc import Collection
    from treering.maintenance.stats import Growth, Stats
    from treering.maintenance.verify import Verification
    from treering.memory.memory import Memory
    from treering.runs.cost import Costs
    from treering.runs.directory import LegacyRuns, Runs
    from treering.runs.otlp.ingest import Ingest
    from treering.runs.performance import Performance
    from treering.runs.recorder import Recorder
    from treering.runs.timeline import Timeline
    from treering.schedules.schedules import Schedules
    from treering.state.state import State
    from treering.threads.chats import Chat
    from treering.threads.transcripts import Transcript


# -----------------------------------------------------------------------------------------------------------
# A space of an engine: what is written into it, and how it is looked after, in nobody's words yet.
#
# Writing is one verb, `commit` (or `submit`, its future). Looking after it is a verb each. What agents call
# threads, runs and memories is made of this by `treering.store`. **Invariant:** a space sees and changes
# itself only.


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
        from treering.maintenance.verify import verify

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
        from treering.graphs.step import made_of
        from treering.maintenance.gc import collect
        from treering.runs.retention import drop_runs

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
        from treering.maintenance.stats import is_unwritten

        if not is_unwritten(self._engine, self._space):
            self._engine.reindex(self._space)

    def stats(self) -> Stats:
        """What this space holds, what it takes, and how it grew day by day."""
        from treering.maintenance.stats import measure

        return measure(self._engine, self._space, folder=self._folder)

    def growth(self, *, last_days: int = 7) -> Growth:
        """What each day brought, and how large this space will be in 30 days if the last days go on."""
        from treering.maintenance.stats import grow

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


# -----------------------------------------------------------------------------------------------------------


class Opener(Protocol):
    """How a store reaches another one by its URL (`api` hands this down)."""

    def __call__(self, url: str | Path, *, namespace: str, blobs: str | Blobs | None = None) -> Store:
        """Open it with this namespace."""
        ...


class Store(Space):
    """One space of one engine. Use it as a context manager, or `close` it.

    ``folder`` is where a local store keeps its files; ``opener`` lets `copy_to` and `backup` open others.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        space: str = "default",
        folder: Path | None = None,
        clock: Clock | None = None,
        opener: Opener | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        from treering.memory.vectors import Vectors

        super().__init__(engine, space, folder=folder, clock=clock)
        self._opener = opener
        self._hooks = Hooks() if hooks is None else hooks
        self._recorder: Recorder | None = None
        self._guard: Guard | None = None
        self._legacy: LegacyRuns | None = None
        self._ingest: Ingest | None = None
        self._vectors = Vectors()
        self._workspace = Workspace(engine, self._space, folder=folder, clock=self._clock)
        self._ground = ThreadContext(engine, self._space, self._clock, self._hooks, self._workspace)

    def in_namespace(self, namespace: str) -> Store:
        """The same store, seen from another space. They share hooks and engine: closing one closes both."""
        return Store(
            self._engine,
            space=namespace,
            folder=self._folder,
            clock=self._clock,
            opener=self._opener,
            hooks=self._hooks,
        )

    def verify(self, *, on_progress: Callable[[Checked], None] | None = None) -> Verification:
        """Rehash all content, follow every link and thread, recount what is derived; changes nothing."""
        from treering.threads.directory import severed

        found = super().verify(on_progress=on_progress)
        return found.with_problems(severed(self._engine, self._space))

    @property
    def hooks(self) -> Hooks:
        """Code of your own around saving and loading checkpoints, whoever saves."""
        return self._hooks

    @property
    def workspace(self) -> Workspace:
        """The files that agents work on: snapshots of folders, and what can be done with them."""
        return self._workspace

    @property
    def state(self) -> State:
        """Small state: JSON values by key, changed by compare-and-swap."""
        from treering.state.state import State

        return State(self._engine, self._space, clock=self._clock)

    @property
    def memory(self) -> Memory:
        """What agents remember: documents by id with every version, searched and loaded into contexts."""
        from treering.memory.memory import Memory

        return Memory(
            self._engine,
            self._space,
            clock=self._clock,
            forgetter=lambda scope: self.forget(scope=scope),
            vectors=self._vectors,
        )

    @property
    def schedules(self) -> Schedules:
        """Tasks that come up later: by cron, at intervals or once, and the workers that do them."""
        from treering.schedules.schedules import Schedules

        return Schedules(self._engine, self._space, clock=self._clock, new_run=self.run)

    def thread(self, id: str, namespace: str | None = None) -> Thread:
        """A conversation and its state, checkpoint by checkpoint; made by its first checkpoint."""
        return Thread(self._ground, id, namespace or "")

    def threads(self, *, namespace: str | None = "", prefix: str = "") -> Iterator[ThreadInfo]:
        """The threads of a namespace (``None``: of every one) whose ids start so, newest first."""
        yield from list_threads(self._engine, self._space, namespace=namespace, prefix=prefix)

    def chat(self, channel: str, chat_id: str | int, namespace: str | None = None) -> Chat:
        """A chat of a channel: its current thread (``telegram_123``), and `reset` to begin a new one."""
        from treering.threads.chats import Chat

        return Chat(self._ground, channel, chat_id, namespace or "")

    # Recording
    def transcript(
        self, thread: Thread | str, namespace: str | None = None, *, outputs: str | Path | None = None
    ) -> Transcript:
        """The log of a thread, in order; with ``outputs`` also a file of JSON lines that grows along."""
        from treering.threads.transcripts import Transcript

        return Transcript(
            self._engine,
            self._space,
            thread.id if isinstance(thread, Thread) else thread,
            thread.namespace if isinstance(thread, Thread) else namespace or "",
            clock=self._clock,
            outputs=None if outputs is None else Path(outputs),
        )

    def run(
        self,
        agent: str | None = None,
        *,
        thread: Thread | str | None = None,
        namespace: str | None = None,
        id: str | None = None,
        project_id: int | None = None,
        meta: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
    ) -> Run:
        """A run to be recorded: ``with store.run(agent="planner") as run``. It never waits for the disk.

        Everything is durable when the store closes, and after `flush`.
        """
        thread_id = thread.id if isinstance(thread, Thread) else thread
        where = thread.namespace if isinstance(thread, Thread) else namespace or ""
        if isinstance(tags, str):
            raise InvalidInput(f"tags is the text {tags!r}; give a list of tags")
        return Run(
            self._record(),
            self._clock,
            agent=agent,
            thread=thread_id,
            namespace=where,
            thread_key=thread_key(thread_id, where),
            id=id,
            project_id=project_id,
            meta=meta,
            tags=tuple(tags),
            gate=self._guard,
            readers=self,
        )

    def agent(self, name: str | Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorate an agent's function: each call is a span, and outside of any run a run of its own.

        ``@store.agent`` takes the function's name, ``@store.agent("planner")`` that one.
        """
        from treering.runs.recorder import recording

        return recording(name, kind="agent", new_run=self.run)

    def tool(self, name: str | Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorate a tool's function: each call inside a run is recorded with its input and output.

        ``@store.tool`` takes the function's name, ``@store.tool("add")`` that one.
        """
        from treering.runs.recorder import recording

        return recording(name, kind="tool", new_run=None)

    def flush(self) -> None:
        """Return when everything that was recorded so far is durable."""
        if self._recorder is not None:
            self._recorder.flush()

    @property
    def runs(self) -> Runs:
        """Which runs there are and how they stand."""
        from treering.runs.directory import Runs

        return Runs(self._engine, self._space, clock=self._clock)

    @property
    def timeline(self) -> Timeline:
        """What happened, in order."""
        from treering.runs.timeline import Timeline

        return Timeline(self._engine, self._space)

    @property
    def cost(self) -> Costs:
        """What it took, in tokens and money."""
        from treering.runs.cost import Costs

        return Costs(self._engine, self._space)

    @property
    def performance(self) -> Performance:
        """How long it took, how often it failed, how fast models speak."""
        from treering.runs.performance import Performance

        return Performance(self._engine, self._space)

    @property
    def otlp(self) -> Ingest:
        """What OpenTelemetry exporters send: traces become runs, durable before they are acknowledged."""
        from treering.runs.otlp.ingest import Ingest

        if self._ingest is None:
            self._ingest = Ingest(self._engine, self._space, clock=self._clock)
        return self._ingest

    @property
    def budgets(self) -> SharedBudgets:
        """What runs, threads, agents and the store may use; every process that records here heeds them."""
        from treering.limits.budgets import SharedBudgets

        return SharedBudgets(self._engine, self._space, clock=self._clock, changed=self._budgets_changed)

    @property
    def alerts(self) -> Alerts:
        """What someone should know: budgets that run out, runs that failed or are unlike the others."""
        from treering.limits.alerts import Alerts

        return Alerts(self._engine, self._space, clock=self._clock)

    @property
    def legacy(self) -> LegacyRuns | None:
        """Who is asked for the timeline and the cost of a run that is not here."""
        return self._legacy

    def read_legacy(self, runs: LegacyRuns | None) -> None:
        """Let services and server ask someone else for runs that are not here (`views.legacy`)."""
        self._legacy = runs

    def forget(
        self,
        *,
        thread: str | None = None,
        namespace: str | None = None,
        scope: str | None = None,
        cascade: bool = False,
    ) -> Forgotten:
        """Erase a thread (of a namespace, if given), a whole namespace or one scope, for good.

        Forks that grow out of it make this a `Conflict`; ``cascade`` takes them along. Shared content stays
        and is listed in the receipt. Raises `NotFound` when nothing is there. Backups and copies are stores
        of their own: forget there as well.
        """
        from treering.maintenance.forget import forget, selection

        chosen = selection(thread=thread, namespace=namespace, scope=scope)
        self._workspace.unlearn()
        self._vectors.drop()
        return forget(self._engine, self._space, chosen, cascade=cascade, clock=self._clock)

    def copy_to(
        self,
        target: str | Path | Store,
        *,
        blobs: str | Blobs | None = None,
        on_progress: Callable[[CopyProgress], None] | None = None,
    ) -> CopyReport:
        """Copy this space, row by row as it is, into another store: a URL, a folder or an open store.

        Started again after an interruption (or later, to catch up) it goes on where it stopped. A target
        that holds anything but an earlier copy of this store is refused.
        """
        if isinstance(target, Store):
            if blobs is not None:
                raise InvalidInput("blobs= goes with a URL; an open store has its blobs already")
            return self._copy_into(target, on_progress)
        with self._open(target, blobs=blobs) as opened:
            return self._copy_into(opened, on_progress)

    def backup(
        self, path: str | Path, *, on_progress: Callable[[CopyProgress], None] | None = None
    ) -> BackupReport:
        """A consistent copy of the whole store (all spaces) in a new folder, while writers go on.

        It is opened and checked before it appears at ``path``, and opens like any other store.
        """
        from treering.maintenance.backup import back_up

        return back_up(
            self._engine,
            Path(path).expanduser().absolute(),
            open_folder=lambda folder: self._open(folder).engine,
            on_progress=on_progress,
        )

    def close(self) -> None:
        """Finish what was recorded and submitted, then let go of everything. May be called twice."""
        try:
            if self._ingest is not None:
                self._ingest.close()
            if self._recorder is not None:
                self._recorder.close()
        finally:
            self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Store {self.url} space={self._space!r}>"

    def _record(self) -> Recorder:
        from treering.limits.budgets import Guard
        from treering.runs.recorder import Recorder

        if self._recorder is None:
            self._recorder = Recorder(self._engine, self._space)
            self._guard = Guard(self._engine, self._space, self._recorder, clock=self._clock)
        return self._recorder

    def _budgets_changed(self) -> None:
        if self._guard is not None:
            self._guard.forget_what_is_known()

    def _copy_into(self, target: Store, on_progress: Callable[[CopyProgress], None] | None) -> CopyReport:
        from treering.maintenance.copy import copy_space

        return copy_space(
            self._engine, target.engine, space=self._space, into=target.space, on_progress=on_progress
        )

    def _open(self, url: str | Path, *, blobs: str | Blobs | None = None) -> Store:
        if self._opener is None:
            raise InvalidInput("this store was made by hand and cannot open others; use treering.open()")
        return self._opener(url, namespace=self._space, blobs=blobs)

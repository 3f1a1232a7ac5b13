"""The store: one namespace of one engine, and the entry point to everything in it.

Every write goes through one method, `commit` (or `submit`, its future); threads, runs, memory and the other
views build batches for it. The maintenance operations (`verify`, `gc`, `forget`, `copy_to`, `backup`, ...)
are methods here. A view's module is imported when it is first used, so that opening a store stays cheap.
**Invariant:** a store reads and changes its own namespace only. The one exception is `backup`, which copies
the whole store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from treering.core.batch import Batch, Draft, Receipt
from treering.core.clock import Clock, SystemClock
from treering.core.engine import Engine
from treering.core.ids import check_space
from treering.errors import InvalidInput, Unsupported
from treering.graphs.extension import install as install_graphs
from treering.threads.hooks import Hooks
from treering.threads.thread import Thread, ThreadContext

if TYPE_CHECKING:
    from datetime import datetime

    from treering.approvals.approvals import Approvals
    from treering.core.query import SqlResult
    from treering.core.records import Archive, Archived, Checked, RebuildProgress, SweepProgress
    from treering.core.retention import Keep
    from treering.core.storage import Blobs
    from treering.effects.effects import Effect, Effects
    from treering.engines.cells import Cell, CellEngine, MoveReport
    from treering.limits.alerts import Alerts
    from treering.limits.budgets import Guard, SharedBudgets
    from treering.maintenance.audit import Audit
    from treering.maintenance.backup import BackupReport
    from treering.maintenance.copy import CopyProgress, CopyReport
    from treering.maintenance.forget import Forgotten
    from treering.maintenance.gc import Collection
    from treering.maintenance.stats import Growth, Stats
    from treering.maintenance.verify import Verification
    from treering.memory.memory import Memory
    from treering.memory.vectors import VectorIndex
    from treering.runs.cost import Costs
    from treering.runs.listing import LegacyRuns, Runs
    from treering.runs.otlp.ingest import Ingest
    from treering.runs.performance import Performance
    from treering.runs.recorder import RecordDecorator, Recorder
    from treering.runs.run import Run, RunInfo
    from treering.runs.timeline import Timeline
    from treering.schedules.schedules import Schedules
    from treering.state.state import State
    from treering.threads.chats import Chat
    from treering.threads.diff import Changes
    from treering.threads.directory import ThreadInfo, ThreadPage
    from treering.threads.search import Found
    from treering.threads.transcripts import Transcript
    from treering.workspaces.workspace import Workspace


install_graphs()  # so that every process that opens a store can read what graphs saved


class Opener(Protocol):
    """Open another store by its URL; `treering.open` is one."""

    def __call__(self, url: str | Path, *, namespace: str, blobs: str | Blobs | None = None) -> Store:
        """Open the store at ``url`` with this namespace."""
        ...


class Store:
    """One namespace of one engine. Use it as a context manager, or call `close`.

    Args:
        engine: What stores the bytes.
        space: The tenant; ``namespace=`` of `treering.open`.
        folder: Where a local store keeps its files; ``None`` for other stores.
        clock: The source of times.
        opener: How `copy_to` and `backup` open other stores.
        hooks: Callbacks around saving and loading checkpoints.
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
        self._engine = engine
        self._space = check_space(space)
        self._folder = folder
        self._clock = clock or SystemClock()
        self._opener = opener
        self._hooks = Hooks() if hooks is None else hooks
        self._recorder: Recorder | None = None
        self._guard: Guard | None = None
        self._legacy: LegacyRuns | None = None
        self._ingest: Ingest | None = None
        self._vectors: VectorIndex | None = None
        self._workspace: Workspace | None = None
        self._threads = ThreadContext(engine, self._space, self._clock, self._hooks, lambda: self.workspace)

    def in_namespace(self, namespace: str) -> Store:
        """Return the store in another namespace. Both share engine and hooks; closing one closes both."""
        return Store(
            self._engine,
            space=namespace,
            folder=self._folder,
            clock=self._clock,
            opener=self._opener,
            hooks=self._hooks,
        )

    @property
    def space(self) -> str:
        """The tenant whose data this is; ``namespace=`` of `open`."""
        return self._space

    @property
    def url(self) -> str:
        """The store's URL, without secrets."""
        return self._engine.url

    @property
    def engine(self) -> Engine:
        """The engine that stores the bytes. Its reads take `space` as their first argument."""
        return self._engine

    @property
    def clock(self) -> Clock:
        """The source of the store's times."""
        return self._clock

    # Writing
    def draft(self, id: str | None = None) -> Draft:
        """Return an empty batch. With an ``id`` of your own, committing it twice writes it once."""
        return Draft(self._space, id=id)

    def commit(self, batch: Batch | Draft) -> Receipt:
        """Write a batch: atomic, idempotent by its id, durable when this returns."""
        return self._engine.commit(self._own(batch))

    def submit(self, batch: Batch | Draft) -> Future[Receipt]:
        """Write a batch in the background. The future resolves when the batch is durable."""
        return self._engine.submit(self._own(batch))

    # Threads and files
    @property
    def hooks(self) -> Hooks:
        """Your callbacks around saving and loading checkpoints; they run for every thread of the store."""
        return self._hooks

    def thread(self, id: str, namespace: str | None = None) -> Thread:
        """A conversation and its state as a line of checkpoints. Its first checkpoint creates it."""
        return Thread(self._threads, id, namespace or "")

    def threads(
        self, *, namespace: str | None = "", prefix: str = "", containing: str = ""
    ) -> Iterator[ThreadInfo]:
        """List threads, newest first: those of a namespace (``None``: of all) with this id prefix.

        ``containing`` selects ids that have this text anywhere, in any case. Threads are read a page at a
        time; one that is saved meanwhile moves to the front. `thread_page` returns single pages.
        """
        from treering.threads.directory import each_thread

        yield from each_thread(
            self._engine, self._space, namespace=namespace, prefix=prefix, containing=containing
        )

    def thread_page(
        self,
        *,
        namespace: str | None = "",
        prefix: str = "",
        containing: str = "",
        first: int = 100,
        cursor: str | None = None,
    ) -> ThreadPage:
        """Return one page of `threads`, and the cursor of the next one.

        A page takes the same time in a store of any size. So with ``prefix`` or ``containing`` it may be
        short or empty and still have a cursor.
        """
        from treering.threads.directory import thread_page

        return thread_page(
            self._engine,
            self._space,
            namespace=namespace,
            prefix=prefix,
            containing=containing,
            first=first,
            cursor=cursor,
        )

    def chat(self, channel: str, chat_id: str | int, namespace: str | None = None) -> Chat:
        """A chat of a channel: its current thread (``telegram_123``), and `reset` to start a new one."""
        from treering.threads.chats import Chat

        return Chat(self._threads, channel, chat_id, namespace or "")

    def transcript(
        self, thread: Thread | str, namespace: str | None = None, *, outputs: str | Path | None = None
    ) -> Transcript:
        """The log of a thread, in order; with ``outputs``, also appended to a JSON Lines file there."""
        from treering.threads.transcripts import Transcript

        if not isinstance(thread, Thread):
            thread = self.thread(thread, namespace)
        return Transcript(
            self._engine,
            self._space,
            thread.id,
            thread.namespace,
            clock=self._clock,
            outputs=None if outputs is None else Path(outputs),
        )

    @property
    def workspace(self) -> Workspace:
        """Snapshots of the folders that agents work in."""
        from treering.workspaces.workspace import Workspace

        if self._workspace is None:
            self._workspace = Workspace(self._engine, self._space, folder=self._folder, clock=self._clock)
        return self._workspace

    # Memory, schedules, state
    @property
    def memory(self) -> Memory:
        """What agents remember: versioned documents by id, with search."""
        from treering.memory.memory import Memory
        from treering.memory.vectors import VectorIndex

        if self._vectors is None:
            self._vectors = VectorIndex()
        return Memory(
            self._engine,
            self._space,
            clock=self._clock,
            forgetter=lambda scope: self.forget(scope=scope),
            vectors=self._vectors,
        )

    @property
    def state(self) -> State:
        """State: small JSON values by key, changed by compare-and-swap."""
        from treering.state.state import State

        return State(self._engine, self._space, clock=self._clock)

    @property
    def schedules(self) -> Schedules:
        """Tasks that run by cron, at intervals or once, and the workers that run them."""
        from treering.schedules.schedules import Schedules

        return Schedules(self._engine, self._space, clock=self._clock, new_run=self.run)

    @property
    def effects(self) -> Effects:
        """Tool calls with side effects: what was called, how it ended, and what waits for a decision."""
        from treering.effects.effects import Effects

        def changes(effect: Effect, workspace: str | Path | None) -> Changes:
            from treering.threads.diff import changes_since

            self.flush()
            return changes_since(
                self.thread(effect.thread_id, effect.namespace or None) if effect.thread_id else None,
                self.timeline,
                checkpoint_id=effect.checkpoint_id,
                since_us=effect.planned_at_us,
                run_id=effect.run_id,
                folder=workspace,
            )

        return Effects(self._engine, self._space, clock=self._clock, changes=changes)

    @property
    def approvals(self) -> Approvals:
        """Questions that agents put to people: the inbox, and the answers."""
        from treering.approvals.approvals import Approvals
        from treering.threads.directory import WaitingThreads

        threads = WaitingThreads(self._engine, self._space, self.thread)
        return Approvals(self._engine, self._space, clock=self._clock, threads=threads)

    # Recording
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
        parent: Run | str | None = None,
    ) -> Run:
        """Record a run: ``with store.run(agent="planner") as run: ...``.

        ``parent`` is the run that starts this one (see `Runs.tree`). Unless it is given, that is the current
        run, or in a program that runs in a sandbox, the sandbox's run.
        Recording never waits for the disk. Everything is durable after `flush`, and when the store closes.
        """
        from treering.core.forks import forked_thread
        from treering.runs.run import PARENT_VARIABLE, Run
        from treering.runs.span import current_node

        thread_id = thread.id if isinstance(thread, Thread) else thread
        thread_namespace = thread.namespace if isinstance(thread, Thread) else namespace or ""
        if thread_id is not None:
            thread_id = forked_thread(self._engine, self._space, thread_namespace, thread_id)
        if parent is None and current_node.get() is None:
            parent = os.environ.get(PARENT_VARIABLE) or None
        if isinstance(tags, str):
            raise InvalidInput(f"tags is the string {tags!r}; pass a list of tags")
        return Run(
            self.recorder,
            self._clock,
            agent=agent,
            thread=thread_id,
            namespace=thread_namespace,
            id=id,
            project_id=project_id,
            meta=meta,
            tags=tuple(tags),
            parent=parent.id if isinstance(parent, Run) else parent,
            gate=self._guard,
            readers=self,
        )

    @property
    def agent(self) -> RecordDecorator:
        """Decorate an agent's function: each call becomes a span, or a run if there is none yet.

        ``@store.agent`` uses the function's name, ``@store.agent("planner")`` the given one.
        """
        from treering.runs.recorder import record_calls

        return record_calls("agent", self.run)

    @property
    def tool(self) -> RecordDecorator:
        """Decorate a tool's function: each call inside a run is recorded with its input and output.

        ``@store.tool`` uses the function's name, ``@store.tool("add")`` the given one.
        """
        from treering.runs.recorder import record_calls

        return record_calls("tool")

    @property
    def recorder(self) -> Recorder:
        """The recorder of this process: the queue of what is recorded, and its sign of life."""
        from treering.limits.budgets import Guard
        from treering.runs.recorder import Recorder

        if self._recorder is None:
            self._recorder = Recorder(self._engine, self._space)
            self._guard = Guard(self._engine, self._space, self._recorder, clock=self._clock)
        return self._recorder

    def flush(self) -> None:
        """Wait until everything recorded so far is durable.

        If that has failed for 30 seconds, raise the store's error, such as `StoreFull`; it is retried.
        """
        if self._recorder is not None:
            self._recorder.flush()

    @property
    def runs(self) -> Runs:
        """The recorded runs and their status."""
        from treering.runs.listing import Runs

        def close(runs: Sequence[RunInfo], by: str | None, reason: str | None) -> None:
            self.effects.abandon_planned(runs, by=by)
            self.approvals.cancel(runs, by=by, reason=reason)

        return Runs(self._engine, self._space, clock=self._clock, on_cancel=close)

    @property
    def timeline(self) -> Timeline:
        """The events of runs, in order."""
        from treering.runs.timeline import Timeline

        return Timeline(self._engine, self._space)

    def search(self, text: str, *, limit: int = 20) -> Found:
        """Find threads, runs and memory that contain the words, at most ``limit`` of each kind.

        Threads are found by their ids, by what their runs said and did, and (those that changed last) by
        their messages. `timeline` searches runs with filters, `memory` the documents of one namespace.
        """
        from treering.threads.search import search_everything

        return search_everything(
            self._engine, self._space, text, timeline=self.timeline, memory=self.memory, limit=limit
        )

    @property
    def cost(self) -> Costs:
        """Tokens and money, by run, agent, model and day."""
        from treering.runs.cost import Costs

        return Costs(self._engine, self._space)

    def query(
        self, sql: str, params: Sequence[Any] = (), *, max_rows: int = 10_000, seconds: float = 30.0
    ) -> SqlResult:
        """Answer a SELECT over all runs, live and archived, by DuckDB.

        The tables ``events`` and ``runs`` and the views ``spans``, ``tool_calls``, ``messages`` and ``costs``
        are described in docs/lake.md. ``WHERE day >= ...`` reads only those days. Needs the extra ``lake``.

        Args:
            sql: One SELECT.
            params: Values for ``?`` in it.
            max_rows: Return only so many rows, and say so (``truncated``).
            seconds: Give up after this time.

        Raises:
            InvalidInput: The SQL is wrong; the message is DuckDB's.
            TimedOut: It took too long.
        """
        from treering.core.query import SqlQuery

        self.flush()
        asked = SqlQuery(sql=sql, params=tuple(params), max_rows=max_rows, seconds=seconds)
        remote: Callable[[str, SqlQuery], SqlResult] | None = getattr(self._engine, "query", None)
        if remote is not None:
            return remote(self._space, asked)
        from treering.lake.query import query

        return query(self._engine, self._space, asked)

    @property
    def performance(self) -> Performance:
        """Latencies, error rates and tokens per second."""
        from treering.runs.performance import Performance

        return Performance(self._engine, self._space)

    @property
    def otlp(self) -> Ingest:
        """Ingest of OpenTelemetry data: traces become runs, durable before they are acknowledged."""
        from treering.runs.otlp.ingest import Ingest

        if self._ingest is None:
            self._ingest = Ingest(self._engine, self._space, clock=self._clock)
        return self._ingest

    @property
    def budgets(self) -> SharedBudgets:
        """Limits on what runs, threads, agents and the store may use, enforced by every recording process."""
        from treering.limits.budgets import SharedBudgets

        return SharedBudgets(self._engine, self._space, clock=self._clock, changed=self._budgets_changed)

    @property
    def alerts(self) -> Alerts:
        """Alerts about exhausted budgets, failed runs and anomalies."""
        from treering.limits.alerts import Alerts

        return Alerts(self._engine, self._space, clock=self._clock)

    @property
    def legacy(self) -> LegacyRuns | None:
        """The reader for runs that this store does not hold, set by `read_legacy`."""
        return self._legacy

    def read_legacy(self, runs: LegacyRuns | None) -> None:
        """Read runs that are not in this store from elsewhere (see `treering.runs.listing.LegacyRuns`)."""
        self._legacy = runs

    # Maintenance
    @property
    def audit(self) -> Audit:
        """Seals over the history: publish them, and later prove that nothing was changed since."""
        from treering.maintenance.audit import Audit

        return Audit(self._engine, self._space, clock=self._clock)

    def verify(
        self,
        *,
        since: int | datetime | Literal["last"] = 0,
        processes: int | None = None,
        on_progress: Callable[[Checked], None] | None = None,
    ) -> Verification:
        """Rehash all content, follow every link and thread, recount derived data. Changes nothing.

        Args:
            since: Check only what was committed behind this sequence number or since this time, and all that
                it links to; older content, the search index and totals are not read. ``"last"`` goes on where
                the last check with ``"last"`` ended (the first checks everything), and remembers the new
                position if nothing was wrong.
            processes: How many processes share the work; by default one for each processor, for a large
                store. A remote store starts them on the server.
            on_progress: Called with what was read so far.
        """
        from treering.maintenance.verify import remember, verify
        from treering.threads.history import dangling

        found = verify(
            self._engine, self._space, since=since, processes=processes, on_progress=on_progress
        ).with_problems(dangling(self._engine, self._space))
        if since == "last":
            remember(self._engine, self._space, found)
        return found

    def gc(
        self,
        *,
        keep: Keep | None = None,
        keep_runs: Keep | None = None,
        dry_run: bool = False,
        grace_seconds: float = 3600.0,
        on_progress: Callable[[SweepProgress], None] | None = None,
    ) -> Collection:
        """Drop what the retention rules do not keep, then remove content that nothing refers to.

        Safe beside writers: content that became unreferenced less than ``grace_seconds`` ago stays.

        Args:
            keep: Retention for the checkpoints of each thread, the snapshots of each workspace, the versions
                of each memory document, and the checkpoints of sandboxes. Without it, none are dropped.
            keep_runs: Retention for the runs of each agent. Their costs are dropped with them.
            dry_run: Report what would be removed, and remove nothing.
            grace_seconds: How long unreferenced content stays.
            on_progress: Called while unreferenced content is looked for and removed, by local stores.
        """
        from msgspec import structs

        from treering.graphs.step import delta_step
        from treering.limits.alerts import ALERT
        from treering.maintenance.gc import collect
        from treering.maintenance.stats import refresh
        from treering.runs.retention import drop_runs
        from treering.runs.run import RUN

        runs = None
        if keep_runs is not None:
            runs = drop_runs(
                self._engine,
                self._space,
                keep_runs,
                dry_run=dry_run,
                clock=self._clock,
                further_kinds=(ALERT,),
            )
        collected = collect(
            self._engine,
            self._space,
            keep=keep,
            dry_run=dry_run,
            grace_seconds=grace_seconds,
            clock=self._clock,
            delta_of=delta_step,
            on_progress=on_progress,
        )
        if not dry_run:
            refresh(self._engine, self._space, clock=self._clock, exact=True)
        if runs is None:
            return collected
        return structs.replace(
            collected,
            dropped=collected.dropped | ({RUN: len(runs.dropped)} if runs.dropped else {}),
            kept=collected.kept | {RUN: runs.kept},
            event=collected.event or runs.event,
        )

    def archive(
        self,
        *,
        before: str | datetime | timedelta,
        on_progress: Callable[[Archived], None] | None = None,
    ) -> Archived:
        """Move what runs recorded on finished days out of the database, into Parquet files.

        Everything stays readable through this store: lists, timelines, search, costs and audits are as they
        were. `archived` has the files for other programs. Run `gc` afterwards to free the space of
        contents. Needs the extra ``lake``.

        Args:
            before: What was committed before this day: an age (``"30d"``, a timedelta), a date or a moment.
            on_progress: Called with what was moved so far, by local stores.

        Raises:
            Unsupported: The store has no blob store.
        """
        from treering.core.retention import cut_off_us

        self.flush()
        before_us = cut_off_us(before, self._clock.now_us())
        remote: Callable[[str, int], Archived] | None = getattr(self._engine, "archive_before", None)
        if remote is not None:
            return remote(self._space, before_us)
        from treering.lake.engine import lake_of

        lake = lake_of(self._engine)
        from treering.lake.archive import archive

        return archive(lake, self._space, before_us=before_us, clock=self._clock, on_progress=on_progress)

    def archived(self) -> Archive:
        """Return the archived files, exactly those that belong to the store now."""
        from treering.core.records import Archive

        found: Callable[[str], Archive] | None = getattr(self._engine, "archive_info", None)
        return Archive(url=None) if found is None else found(self._space)

    def forget(
        self,
        *,
        thread: str | None = None,
        namespace: str | None = None,
        scope: str | None = None,
        cascade: bool = False,
    ) -> Forgotten:
        """Erase a thread (of a namespace, if given), a whole namespace or one scope, permanently.

        That includes the lines in files that threads were also written to (transcripts, session logs).
        The threads and runs of a thread's sub-agents are erased with it, and so are the questions about it.
        Content that others share, and files that this process may not touch, stay and are listed in the
        receipt. Backups and copies are separate stores: forget there as well.

        Raises:
            Conflict: Forks depend on it; ``cascade=True`` erases them too.
            NotFound: Nothing is stored under that name.
        """
        from msgspec import structs

        from treering.maintenance.forget import forget, selection
        from treering.runs.tree import Below, below_thread
        from treering.threads.line_files import erase_with_files

        chosen = selection(thread=thread, namespace=namespace, scope=scope)
        below = Below(scopes=(), elsewhere={})
        if thread is not None:
            self.flush()
            below = below_thread(self._engine, self._space, thread, namespace or "")
        self.workspace.clear_stat_cache()
        if self._vectors is not None:
            self._vectors.clear()
        forgotten = forget(
            self._engine,
            self._space,
            chosen,
            cascade=cascade,
            clock=self._clock,
            erase=lambda plan: erase_with_files(self._engine, self._space, plan, threads=plan.scopes),
            below=below.scopes,
        )
        return structs.replace(forgotten, kept={**forgotten.kept, **below.elsewhere})

    def reindex(self, *, on_progress: Callable[[RebuildProgress], None] | None = None) -> None:
        """Rebuild derived data: roll-ups and the search index.

        Args:
            on_progress: Called with what was rebuilt so far, by local stores.
        """
        from treering.core.records import RebuildProgress
        from treering.maintenance.stats import is_unwritten

        if not is_unwritten(self._engine, self._space):
            self._engine.reindex(
                self._space,
                on_progress=on_progress
                and (
                    lambda what, done, total: on_progress(RebuildProgress(what=what, done=done, total=total))
                ),
            )

    def stats(self, *, exact: bool = False) -> Stats:
        """Count what this namespace holds and measure its size.

        For a large one this is what was last measured, with an estimate of what came since (`is_estimate`);
        ``exact`` reads every row, which takes seconds per million.
        """
        from treering.maintenance.stats import measure

        return measure(self._engine, self._space, clock=self._clock, folder=self._folder, exact=exact)

    def growth(self, *, last_days: int = 7) -> Growth:
        """Measure the growth of each day, and project the size in 30 days from the last ``last_days``."""
        from treering.maintenance.stats import grow

        if last_days < 1:
            raise InvalidInput(f"last_days is {last_days}; it must be at least 1")
        return grow(self._engine, self._space, last_days=last_days, clock=self._clock)

    def copy_to(
        self,
        target: str | Path | Store,
        *,
        blobs: str | Blobs | None = None,
        on_progress: Callable[[CopyProgress], None] | None = None,
    ) -> CopyReport:
        """Copy this namespace row by row into another store: a URL, a folder or an open store.

        Run it again to resume after an interruption, or later to catch up. A target that holds anything but
        an earlier copy of this store is refused.
        """
        if isinstance(target, Store):
            if blobs is not None:
                raise InvalidInput("blobs= goes with a URL; an open store has its blobs already")
            return self._copy_into(target, on_progress)
        with self._open(target, blobs=blobs) as opened:
            return self._copy_into(opened, on_progress)

    def move_project(self, url: str | None) -> MoveReport:
        """Move this namespace to another PostgreSQL database, a *cell*, while it is used.

        Whoever opened the store by the URL of its first database goes on without noticing; writers wait for
        less than a second. Large objects stay in the blob store, which all cells share.

        Args:
            url: The database to move to, without a password; ``None`` for the store's first one.

        Raises:
            Unsupported: This is not a PostgreSQL store.
            Conflict: The other database has a namespace of the same name.
        """
        from treering.engines.cells import move_project
        from treering.engines.postgres.move import moving

        return move_project(self._cell_engine(), self._space, url or "", moving)

    def cells(self) -> dict[str, Cell]:
        """Return which namespaces were moved, and where they live or are moving to.

        Only PostgreSQL stores that are opened directly know; others return nothing.
        """
        found: CellEngine | None = getattr(self._engine, "cell_engine", None)
        return {} if found is None else found.cells()

    def _cell_engine(self) -> CellEngine:
        found: CellEngine | None = getattr(self._engine, "cell_engine", None)
        if found is None:
            raise Unsupported(
                f"{self.url} has no cells; only PostgreSQL stores, opened directly, have: use treering copy"
            )
        return found

    def backup(
        self, path: str | Path, *, on_progress: Callable[[CopyProgress], None] | None = None
    ) -> BackupReport:
        """Write a consistent copy of the whole store (all namespaces) to a new folder while writers run.

        The copy is opened and verified before it appears at ``path``. It opens like any other store.
        """
        from treering.maintenance.backup import back_up

        return back_up(
            self._engine,
            Path(path).expanduser().absolute(),
            open_folder=lambda folder: self._open(folder).engine,
            on_progress=on_progress,
        )

    def close(self) -> None:
        """Write what was recorded and submitted, then close the engine. May be called twice."""
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

    def _own(self, batch: Batch | Draft) -> Batch:
        whole = batch.batch() if isinstance(batch, Draft) else batch
        if whole.space != self._space:
            raise InvalidInput(
                f"batch {whole.id!r} is for space {whole.space!r}, but this store is {self._space!r}; "
                "create the batch with store.draft()"
            )
        return whole

    def _budgets_changed(self) -> None:
        if self._guard is not None:
            self._guard.refresh_soon()

    def _copy_into(self, target: Store, on_progress: Callable[[CopyProgress], None] | None) -> CopyReport:
        from treering.maintenance.copy import copy_space

        return copy_space(
            self._engine, target.engine, space=self._space, into=target.space, on_progress=on_progress
        )

    def _open(self, url: str | Path, *, blobs: str | Blobs | None = None) -> Store:
        if self._opener is None:
            raise InvalidInput("this store was created without an opener; use treering.open()")
        return self._opener(url, namespace=self._space, blobs=blobs)

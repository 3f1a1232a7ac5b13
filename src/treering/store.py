"""The store: one space of one engine in agents' words, the way in for everything else.

Writing is one verb, `commit` (or `submit`, its future). Looking after the store is a verb each: `verify`,
`gc`, `forget`, `reindex`, `stats`, `copy_to`, `backup`; those that need no more than the space itself are in
`treering.space`. **Invariant:** a store sees and changes its own space only; the one exception is `backup`,
which is of the whole store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from treering.core.clock import Clock
from treering.core.engine import Engine
from treering.core.storage import Blobs
from treering.errors import InvalidInput
from treering.space import Space
from treering.views.directory import ThreadInfo, list_threads
from treering.views.ground import Ground
from treering.views.hooks import Hooks
from treering.views.recording.runs import Run
from treering.views.thread_keys import thread_key
from treering.views.threads import Thread
from treering.views.workspaces.workspace import Workspace

if TYPE_CHECKING:  # a program that only saves threads does not pay for the rest
    from treering.care.backup import BackupReport
    from treering.care.copying import CopyProgress, CopyReport
    from treering.care.forgetting import Forgotten
    from treering.care.verification import Verification
    from treering.core.records import Checked
    from treering.views.alerting.alerts import Alerts
    from treering.views.chats import Chat
    from treering.views.costs import Costs
    from treering.views.guarding import Guard
    from treering.views.legacy import LegacyRuns
    from treering.views.memory.memory import Memory
    from treering.views.otlp.ingest import Ingest
    from treering.views.performance import Performance
    from treering.views.recording.recorder import Recorder
    from treering.views.runs import Runs
    from treering.views.schedules.schedules import Schedules
    from treering.views.shared_budgets import SharedBudgets
    from treering.views.states import State
    from treering.views.timeline import Timeline
    from treering.views.transcripts import Transcript


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
        from treering.views.memory.vectors import Vectors

        super().__init__(engine, space, folder=folder, clock=clock)
        self._opener = opener
        self._hooks = Hooks() if hooks is None else hooks
        self._recorder: Recorder | None = None
        self._guard: Guard | None = None
        self._legacy: LegacyRuns | None = None
        self._ingest: Ingest | None = None
        self._vectors = Vectors()
        self._workspace = Workspace(engine, self._space, folder=folder, clock=self._clock)
        self._ground = Ground(engine, self._space, self._clock, self._hooks, self._workspace)

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
        from treering.views.severed import severed

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
        from treering.views.states import State

        return State(self._engine, self._space, clock=self._clock)

    @property
    def memory(self) -> Memory:
        """What agents remember: documents by id with every version, searched and loaded into contexts."""
        from treering.views.memory.memory import Memory

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
        from treering.views.schedules.schedules import Schedules

        return Schedules(self._engine, self._space, clock=self._clock, new_run=self.run)

    def thread(self, id: str, namespace: str | None = None) -> Thread:
        """A conversation and its state, moment by moment; made by its first checkpoint."""
        return Thread(self._ground, id, namespace or "")

    def threads(self, *, namespace: str | None = "", prefix: str = "") -> Iterator[ThreadInfo]:
        """The threads of a namespace (``None``: of every one) whose ids start so, newest first."""
        yield from list_threads(self._engine, self._space, namespace=namespace, prefix=prefix)

    def chat(self, channel: str, chat_id: str | int, namespace: str | None = None) -> Chat:
        """A chat of a channel: its current thread (``telegram_123``), and `reset` to begin a new one."""
        from treering.views.chats import Chat

        return Chat(self._ground, channel, chat_id, namespace or "")

    # Recording
    def transcript(
        self, thread: Thread | str, namespace: str | None = None, *, outputs: str | Path | None = None
    ) -> Transcript:
        """The log of a thread, in order; with ``outputs`` also a file of JSON lines that grows along."""
        from treering.views.transcripts import Transcript

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
        from treering.views.recording.decorators import recording

        return recording(name, kind="agent", new_run=self.run)

    def tool(self, name: str | Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorate a tool's function: each call inside a run is recorded with its input and output.

        ``@store.tool`` takes the function's name, ``@store.tool("add")`` that one.
        """
        from treering.views.recording.decorators import recording

        return recording(name, kind="tool", new_run=None)

    def flush(self) -> None:
        """Return when everything that was recorded so far is durable."""
        if self._recorder is not None:
            self._recorder.flush()

    @property
    def runs(self) -> Runs:
        """Which runs there are and how they stand."""
        from treering.views.runs import Runs

        return Runs(self._engine, self._space, clock=self._clock)

    @property
    def timeline(self) -> Timeline:
        """What happened, in order."""
        from treering.views.timeline import Timeline

        return Timeline(self._engine, self._space)

    @property
    def cost(self) -> Costs:
        """What it took, in tokens and money."""
        from treering.views.costs import Costs

        return Costs(self._engine, self._space)

    @property
    def performance(self) -> Performance:
        """How long it took, how often it failed, how fast models speak."""
        from treering.views.performance import Performance

        return Performance(self._engine, self._space)

    @property
    def otlp(self) -> Ingest:
        """What OpenTelemetry exporters send: traces become runs, durable before they are acknowledged."""
        from treering.views.otlp.ingest import Ingest

        if self._ingest is None:
            self._ingest = Ingest(self._engine, self._space, clock=self._clock)
        return self._ingest

    @property
    def budgets(self) -> SharedBudgets:
        """What runs, threads, agents and the store may use; every process that records here heeds them."""
        from treering.views.shared_budgets import SharedBudgets

        return SharedBudgets(self._engine, self._space, clock=self._clock, changed=self._budgets_changed)

    @property
    def alerts(self) -> Alerts:
        """What someone should know: budgets that run out, runs that failed or are unlike the others."""
        from treering.views.alerting.alerts import Alerts

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
        from treering.care.forgetting import forget, selection

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
        from treering.care.backup import back_up

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
        from treering.views.guarding import Guard
        from treering.views.recording.recorder import Recorder

        if self._recorder is None:
            self._recorder = Recorder(self._engine, self._space)
            self._guard = Guard(self._engine, self._space, self._recorder, clock=self._clock)
        return self._recorder

    def _budgets_changed(self) -> None:
        if self._guard is not None:
            self._guard.forget_what_is_known()

    def _copy_into(self, target: Store, on_progress: Callable[[CopyProgress], None] | None) -> CopyReport:
        from treering.care.copying import copy_space

        return copy_space(
            self._engine, target.engine, space=self._space, into=target.space, on_progress=on_progress
        )

    def _open(self, url: str | Path, *, blobs: str | Blobs | None = None) -> Store:
        if self._opener is None:
            raise InvalidInput("this store was made by hand and cannot open others; use treering.open()")
        return self._opener(url, namespace=self._space, blobs=blobs)

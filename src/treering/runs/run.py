"""Runs: one execution of an agent, from its prompt to its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import msgspec
from msgspec import structs

from treering.core.batch import ANY, Event
from treering.core.clock import to_iso
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import Scope, check_id, new_id
from treering.errors import Corrupt, InvalidInput
from treering.runs.span import ERROR, OK, RunContext, RunNode, current_node, describe_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextvars import Token
    from types import TracebackType

    from treering.core.batch import Draft, Expect
    from treering.core.clock import Clock
    from treering.core.records import Ref
    from treering.runs.cost import Costs, RunCost
    from treering.runs.recorder import RecordSink
    from treering.runs.span import Gate
    from treering.runs.timeline import Timeline, TimelineEvent

RUN: Final = "run"
RUNS: Final = "run/"
RUNNING: Final = "running"
CRASHED: Final = "crashed"


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its ref tells it, without reading its timeline."""

    id: str
    agent: str | None = None
    thread: str | None = None
    namespace: str = ""
    status: str = RUNNING
    started_at_us: int
    ended_at_us: int | None = None
    recorder: str | None = None
    """Who writes it; when that one's lease is over and the run has not ended, it crashed."""
    project_id: int | None = None
    meta: dict[str, Any] = {}
    tags: tuple[str, ...] = ()

    @property
    def started_at(self) -> str:
        """ISO 8601 with offset."""
        return to_iso(self.started_at_us)

    @property
    def duration_us(self) -> int | None:
        """How long it took; ``None`` while it runs."""
        return None if self.ended_at_us is None else self.ended_at_us - self.started_at_us


def checked(info: RunInfo) -> RunInfo:
    """A run that can be read again once it is written; `InvalidInput` for one that could not."""
    try:
        msgspec.convert(structs.asdict(info), RunInfo)
        encode_json(info.meta)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"a run cannot be recorded like this: {error}") from None
    return info


def run_ref(run_id: str) -> str:
    """The name of the ref that holds a run's present state."""
    return RUNS + run_id


def ledger_scope(namespace: str) -> str:
    """Where the runs of a namespace are listed, by nothing but their ids."""
    return str(Scope(namespace, "ledger", "runs"))


def run_scope(info: RunInfo) -> str:
    """What a run is forgotten with: its thread, or itself when it has none."""
    if info.thread is not None:
        return str(Scope(info.namespace, "thread", info.thread))
    return str(Scope(info.namespace, "run", info.id))


def run_info(ref: Ref) -> RunInfo:
    """A run out of its ref."""
    try:
        return msgspec.convert(decode_json(ref.value), RunInfo)
    except (msgspec.ValidationError, ValueError) as error:
        raise Corrupt(f"the run at {ref.name!r} cannot be read ({error}); restore it from a backup") from None


def write_listing(draft: Draft, info: RunInfo) -> None:
    """The line in the ledger by which a run is found: its id, and nothing of what it did."""
    draft.event(
        Event(id=f"{info.id}:listed", kind=RUN, ts_us=info.started_at_us, scope=ledger_scope(info.namespace))
    )


def write_state(draft: Draft, info: RunInfo, *, thread_key: str | None, expect: Expect = ANY) -> None:
    """Where a run stands now; one that is over gets its row in the journal as well."""
    scope = run_scope(info)
    plain = structs.asdict(info)
    stored = {name: value for name, value in plain.items() if value not in (None, {}, ())}
    draft.set_ref(run_ref(info.id), encode_json(stored), scope=scope, expect=expect)
    if info.ended_at_us is not None:
        draft.event(
            Event(
                id=info.id,
                kind=RUN,
                ts_us=info.started_at_us,
                scope=scope,
                run=info.id,
                thread=thread_key,
                agent=info.agent,
                status=info.status,
                duration_us=info.duration_us,
            )
        )


class Readers(Protocol):
    """Where a run that was recorded is read again."""

    @property
    def timeline(self) -> Timeline:
        """What happened."""
        ...

    @property
    def cost(self) -> Costs:
        """What it took."""
        ...


class Run(RunNode):
    """A run that is being recorded; use it in a ``with`` statement."""

    def __init__(
        self,
        recorder: RecordSink,
        clock: Clock,
        *,
        agent: str | None,
        thread: str | None,
        namespace: str,
        thread_key: str | None,
        id: str | None,
        project_id: int | None,
        meta: Mapping[str, Any] | None,
        tags: tuple[str, ...],
        gate: Gate | None = None,
        readers: Readers | None = None,
    ) -> None:
        info = RunInfo(
            id=new_id() if id is None else check_id(id, "run id"),
            agent=agent,
            thread=thread if thread is None else check_id(thread, "thread id"),
            namespace=check_id(namespace, "namespace") if namespace else "",
            started_at_us=0,
            recorder=recorder.id,
            project_id=project_id,
            meta=dict(meta or {}),
            tags=tags,
        )
        self._info = checked(info)  # what cannot be stored shall be refused here, not in the recorder
        context = RunContext(
            recorder, clock, run=self._info.id, scope=run_scope(self._info), thread=thread_key, gate=gate
        )
        super().__init__(context, self._info.id, agent)
        self._token: Token[RunNode | None] | None = None
        self._readers = readers

    @property
    def info(self) -> RunInfo:
        """What is known of it by now."""
        return self._info

    @property
    def span_id(self) -> str | None:
        """Nothing is above the run."""
        return None

    def start(self) -> Self:
        """Begin; ``with`` does this."""
        if self._info.started_at_us:
            raise InvalidInput(f"run {self.id!r} was started before; make a new one")
        self._info = structs.replace(self._info, started_at_us=self._context.clock.now_us())
        self._context.recorder.take(self.announce)
        return self

    def end(self, *, status: str = OK) -> None:
        """Finish; ``with`` does this. Ending twice changes nothing."""
        if self._info.ended_at_us is None:
            self._info = structs.replace(
                self._info, status=check_id(status, "status"), ended_at_us=self._context.clock.now_us()
            )
            self._context.recorder.take(self.write_to)

    def fail(self, error: BaseException) -> None:
        """Finish with an exception, which is recorded in the run's metadata, with its traceback."""
        self._info = structs.replace(self._info, meta={**self._info.meta, "error": describe_error(error)})
        self.end(status=ERROR)

    def flush(self) -> None:
        """Return when everything that was recorded so far is durable."""
        self._context.recorder.flush()

    def timeline(self, *, everything: bool = False) -> Iterator[TimelineEvent]:
        """What it did so far, in order: the five kinds of line, or (``everything``) all that was recorded.

        Waits until that is durable; in async code, await the store's ``flush`` and read its ``timeline``.
        """
        return self._read().timeline.each_of_run(self.id, everything=everything)

    def cost(self) -> RunCost:
        """What it took so far, in all, by agent and by model; waits as `timeline` does."""
        from treering.runs.cost import RunCost

        costs = self._read().cost
        by_agent, by_model = costs.of_run(self.id), costs.of_run(self.id, by="model")
        return RunCost(
            total=by_agent.total,
            by_agent={str(part.key or ""): part for part in by_agent.parts},
            by_model={str(part.key or ""): part for part in by_model.parts},
        )

    def _read(self) -> Readers:
        if self._readers is None:
            raise InvalidInput(f"run {self.id!r} is being imported; read it from the store afterwards")
        self.flush()
        return self._readers

    def write_to(self, draft: Draft) -> None:
        """The run as it ended."""
        write_state(draft, self._info, thread_key=self._context.thread)

    def announce(self, draft: Draft) -> None:
        """The run as it began. If it is over by now, its end (a later note) says how it stands."""
        write_listing(draft, self._info)
        if self._info.ended_at_us is None:
            write_state(draft, self._info, thread_key=self._context.thread)

    def __enter__(self) -> Self:
        self.start()
        self._token = current_node.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            current_node.reset(self._token)
            self._token = None
        if error is None:
            self.end()
        else:
            self.fail(error)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

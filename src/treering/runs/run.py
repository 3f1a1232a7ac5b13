"""Runs: one execution of an agent, from its prompt to its result.

The current state of a run is a ref, so listing runs reads no timelines. Beside it are an entry in the
namespace's ledger, by which runs are listed in order and which holds nothing but the id, and, once the run
has ended, a row in its timeline.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import msgspec
from msgspec import structs

from treering.core.batch import ANY, Draft, Event, Listing
from treering.core.clock import to_datetime
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import (
    Scope,
    check_id,
    may_be_shortened,
    namespace_prefix,
    new_id,
    only_match,
    thread_key,
    thread_scope,
)
from treering.core.notebook import table
from treering.core.query import each_ref
from treering.errors import Corrupt, InvalidInput, NotFound
from treering.runs.span import ERROR, OK, RunContext, RunNode, SpanWriter, current_node, describe_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextvars import Token
    from types import TracebackType

    from treering.core.batch import Expect
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.runs.cost import Costs, RunCost
    from treering.runs.recorder import RecordSink
    from treering.runs.span import CallGate
    from treering.runs.timeline import Timeline, TimelineEvent

RUN: Final = "run"
"""The kind of the rows of runs: ledger entries, and the end of a run in its timeline."""
RUNS: Final = "run/"
"""Prefix of the refs that hold the state of runs."""
RUN_LIST: Final = "runs"
"""The list of these refs, by the start of the runs."""
TAGS: Final = "run-tag/"
"""Prefix of the refs by which runs are found under their tags, and of their lists."""
RUNNING: Final = "running"
CRASHED: Final = "crashed"
"""The status of a run whose processes all died before it ended; see `treering.runs.listing`."""
UNFINISHED: Final = "unfinished"
"""The status of a run that no process keeps alive and that went quiet before its end was seen."""
INTERRUPTED: Final = "interrupted"
"""The status of a run that waits for a person."""
CANCELLED: Final = "cancelled"
CANCEL: Final = "run-cancel/"
"""Prefix of the refs that ask runs to stop."""
TREE: Final = "run-tree/"
"""Prefix of the refs that link a run to its children, and to further attempts of it."""
PARENT_VARIABLE: Final = "TREERING_PARENT_RUN"
"""The environment variable of a sandbox's programs: the runs that they record are children of this one."""
THREAD_TREE: Final = "thread-tree/"
"""Prefix of the refs that link a thread to those that exist only for it: of its sub-agents and questions."""
QUIET_SECONDS: Final = 900.0
"""A run that no process keeps alive is unfinished when nothing was stored of it for so long."""
_LISTED: Final = ":listed"
_CANDIDATES: Final = 6


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run, without its timeline."""

    id: str
    agent: str | None = None
    thread: str | None = None
    namespace: str = ""
    status: str = RUNNING
    started_at_us: int
    ended_at_us: int | None = None
    recorders: tuple[str, ...] = ()
    """The recorders of the processes that write it. When all their leases have expired before the run ended,
    the run crashed. An import or OTLP has none."""
    project_id: int | None = None
    meta: dict[str, Any] = {}
    tags: tuple[str, ...] = ()
    parent: str | None = None
    """The run that started this one, if one did."""

    def _repr_html_(self) -> str:
        took = None if self.duration_us is None else f"{self.duration_us / 1e6:.2f} s"
        fields = {
            "status": self.status, "agent": self.agent, "thread": self.thread_key, "started": self.started_at,
            "took": took, "tags": ", ".join(self.tags), "metadata": self.meta or None,
        }  # fmt: skip
        return table(f"Run {self.id}", [(name, value) for name, value in fields.items() if value])

    @property
    def started_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.started_at_us)

    @property
    def ended_at(self) -> datetime | None:
        """In UTC; ``None`` while it runs."""
        return to_datetime(self.ended_at_us)

    @property
    def duration_us(self) -> int | None:
        """``None`` while it runs."""
        return None if self.ended_at_us is None else self.ended_at_us - self.started_at_us

    @property
    def scope(self) -> str:
        """What the run is forgotten with: its thread, or itself when it has none."""
        if self.thread is not None:
            return str(Scope(self.namespace, "thread", self.thread))
        return str(Scope(self.namespace, "run", self.id))

    @property
    def thread_key(self) -> str | None:
        """The thread as rows of the journal name it."""
        return thread_key(self.thread, self.namespace)


def validate_run(info: RunInfo) -> RunInfo:
    """Return the run; `InvalidInput` if it could not be read back once it is written."""
    try:
        msgspec.convert(structs.asdict(info), RunInfo)
        encode_json(info.meta)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the run cannot be recorded: {error}") from None
    return info


def run_ref(run_id: str) -> str:
    """Return the name of the ref that holds a run's state."""
    return RUNS + run_id


def run_not_found(run_id: str) -> NotFound:
    """Return the error for an unknown run."""
    return NotFound(f"run {run_id!r} not found. List runs with: treering runs")


def find_run(engine: Engine, space: str, text: str) -> Ref | None:
    """Return the ref of a run, by its id or, if that was generated, by a unique beginning of it."""
    name = run_ref(text)
    refs = engine.refs(space, [name])
    if not refs and may_be_shortened(text):
        found = {ref.name: ref for ref in islice(each_ref(engine, space, name), _CANDIDATES)}
        match = only_match((each.removeprefix(RUNS) for each in found), text, "run")
        return None if match is None else found[run_ref(match)]
    return refs.get(name)


def run_from_ref(ref: Ref) -> RunInfo:
    """Return the run that a ref holds."""
    try:
        return msgspec.convert(decode_json(ref.value), RunInfo)
    except (msgspec.ValidationError, ValueError) as error:
        raise Corrupt(f"the run at {ref.name!r} is corrupt ({error}); restore it from a backup") from None


def run_writer(info: RunInfo) -> SpanWriter:
    """Return the writer for the rows of a run."""
    return SpanWriter(run=info.id, scope=info.scope, thread=info.thread_key)


def ledger_scope(namespace: str) -> str:
    """Return the scope of the ledger that lists a namespace's runs."""
    return str(Scope(namespace, "ledger", "runs"))


def listed_run(event: Event) -> str:
    """Return the id of the run that a ledger entry lists."""
    return event.id.removesuffix(_LISTED)


def write_listing(draft: Draft, info: RunInfo) -> None:
    """Write the ledger entry of a run."""
    draft.event(
        Event(id=info.id + _LISTED, kind=RUN, ts_us=info.started_at_us, scope=ledger_scope(info.namespace))
    )


def write_state(draft: Draft, info: RunInfo, *, expect: Expect = ANY) -> None:
    """Write the state of a run, and its row in the timeline once it has ended."""
    write_ref(draft, info, expect=expect)
    if info.ended_at_us is not None:
        write_end(draft, info)


def write_ref(draft: Draft, info: RunInfo, *, expect: Expect = ANY) -> None:
    """Write the ref of a run."""
    stored = {name: value for name, value in structs.asdict(info).items() if value not in (None, {}, ())}
    draft.set_ref(
        run_ref(info.id),
        encode_json(stored),
        scope=info.scope,
        expect=expect,
        listing=Listing(
            list=RUN_LIST,
            namespace=info.namespace,
            at_us=info.started_at_us,
            agent=info.agent or None,
            status=info.status,
            thread=info.thread or None,
        ),
    )
    for tag in dict.fromkeys(info.tags):
        draft.set_ref(
            tag_ref(tag, info.id),
            info.id.encode(),
            scope=info.scope,
            listing=tag_listing(tag, info.namespace, info.started_at_us),
        )


def tag_ref(tag: str, run_id: str) -> str:
    """Return the name of the ref by which a run is found under a tag."""
    return f"{TAGS}{namespace_prefix(tag)}{run_id}"


def tag_listing(tag: str, namespace: str, at_us: int | None = None) -> Listing:
    """Return where the runs with a tag are listed."""
    return Listing(list=TAGS + tag, namespace=namespace, at_us=at_us)


def tree_link(run_id: str, kind: str, other: str) -> str:
    """Return the name of the ref that links a run to a ``child`` or a further ``attempt``."""
    return f"{TREE}{namespace_prefix(run_id)}{kind}/{other}"


def thread_link(thread_id: str, namespace: str, scope: str = "") -> str:
    """Return the name of the ref that links a thread to the scope of one that exists only for it."""
    return f"{THREAD_TREE}{namespace_prefix(namespace)}{namespace_prefix(thread_id)}{scope}"


def link_thread(engine: Engine, space: str, parent: tuple[str, str], child: tuple[str, str]) -> None:
    """Link a thread (its id and namespace) to one that exists only for it, and is forgotten with it."""
    scope = thread_scope(*child)
    draft = Draft(space)
    draft.set_ref(thread_link(*parent, scope), scope.encode(), scope=scope)
    engine.commit(draft.batch())


def cancel_ref(run_id: str) -> str:
    """Return the name of the ref that asks a run to stop."""
    return f"{CANCEL}{namespace_prefix(run_id)}"


def write_links(draft: Draft, info: RunInfo) -> None:
    """Link a run to the one that started it, and to the attempt that it goes on from."""
    for kind, other in (("child", info.parent), ("attempt", info.meta.get("resumes"))):
        if isinstance(other, str) and other and other != info.id:
            draft.set_ref(tree_link(other, kind, info.id), info.id.encode(), scope=info.scope)


def write_end(draft: Draft, info: RunInfo) -> None:
    """Write the row of an ended run in its timeline. The last one that is written counts.

    That a run was found crashed or unfinished is only concluded, and its own end may still come: that is
    another row.
    """
    is_concluded = info.status in (CRASHED, UNFINISHED)
    draft.event(
        Event(
            id=f"{info.id}:{info.status}" if is_concluded else info.id,
            kind=RUN,
            ts_us=info.started_at_us,
            scope=info.scope,
            run=info.id,
            thread=info.thread_key,
            agent=info.agent,
            status=info.status,
            duration_us=info.duration_us,
        )
    )


class RunReaders(Protocol):
    """Reads recorded runs; the store."""

    @property
    def timeline(self) -> Timeline:
        """Timelines."""
        ...

    @property
    def cost(self) -> Costs:
        """Costs."""
        ...


class Run(RunNode):
    """A run that is being recorded. Use it in a ``with`` statement."""

    def __init__(
        self,
        sink: RecordSink,
        clock: Clock,
        *,
        agent: str | None,
        thread: str | None,
        namespace: str,
        id: str | None,
        project_id: int | None,
        meta: Mapping[str, Any] | None,
        tags: tuple[str, ...],
        parent: str | None = None,
        gate: CallGate | None = None,
        readers: RunReaders | None = None,
    ) -> None:
        node = current_node.get()
        if node is not None:
            node.context.uses += 1
            if parent is None and node.context.sink is sink:
                parent = node.run_id
        info = RunInfo(
            id=new_id() if id is None else check_id(id, "run id"),
            agent=agent,
            thread=thread if thread is None else check_id(thread, "thread id"),
            namespace=check_id(namespace, "namespace") if namespace else "",
            started_at_us=0,
            recorders=() if sink.id is None else (sink.id,),
            project_id=project_id,
            meta=dict(meta or {}),
            tags=tags,
            parent=parent if parent is None else check_id(parent, "id of the parent run"),
        )
        self._info = validate_run(info)  # fail here, and not later in the recorder's thread
        super().__init__(RunContext(sink, clock, run_writer(self._info), gate=gate), info.id, agent)
        self._token: Token[RunNode | None] | None = None
        self._readers = readers

    def __repr__(self) -> str:
        return f"Run({self.id!r}, agent={self.agent!r}, status={self._info.status!r})"

    def _repr_html_(self) -> str:
        return self._info._repr_html_()  # pyright: ignore[reportPrivateUsage] - notebooks ask for it

    @property
    def info(self) -> RunInfo:
        """The state of the run so far."""
        return self._info

    @property
    def span_id(self) -> str | None:
        """``None``: spans directly under the run have no parent."""
        return None

    def start(self) -> Self:
        """Start the run; ``with`` does this."""
        if self._info.started_at_us:
            raise InvalidInput(f"run {self.id!r} was already started; create a new one")
        self._info = structs.replace(self._info, started_at_us=self._context.clock.now_us())
        self._context.sink.put(self._write_start)
        return self

    def note(self, **metadata: Any) -> None:
        """Add to the run's metadata, which is stored again when it ends."""
        self._info = validate_run(structs.replace(self._info, meta={**self._info.meta, **metadata}))

    def end(self, *, status: str = OK) -> None:
        """End the run; ``with`` does this. A second call has no effect."""
        if self._info.ended_at_us is None:
            self._info = structs.replace(
                self._info, status=check_id(status, "status"), ended_at_us=self._context.clock.now_us()
            )
            self._context.sink.put(self._write_end)

    def fail(self, error: BaseException) -> None:
        """End the run with status ``error``, and record the exception in its metadata."""
        self._info = structs.replace(self._info, meta={**self._info.meta, "error": describe_error(error)})
        self.end(status=ERROR)

    def flush(self) -> None:
        """Wait until everything recorded so far is durable."""
        self._context.sink.flush()

    def timeline(self, *, everything: bool = False) -> Iterator[TimelineEvent]:
        """Iterate over the run's timeline so far: the five usual types of event, or ``everything``.

        Flushes first. In async code, await the store's ``flush`` and read its ``timeline`` instead.
        """
        return self._read().timeline.each_of_run(self.id, everything=everything)

    def cost(self) -> RunCost:
        """Return the run's cost so far: in total, by agent and by model. Flushes first."""
        from treering.runs.cost import RunCost

        costs = self._read().cost
        by_agent, by_model = costs.of_run(self.id), costs.of_run(self.id, by="model")
        return RunCost(
            total=by_agent.total,
            by_agent={str(part.key or ""): part for part in by_agent.parts},
            by_model={str(part.key or ""): part for part in by_model.parts},
        )

    def _read(self) -> RunReaders:
        if self._readers is None:
            raise InvalidInput(f"run {self.id!r} is being imported; read it from the store afterwards")
        self.flush()
        return self._readers

    def _write_start(self, draft: Draft) -> None:
        write_listing(draft, self._info)
        write_links(draft, self._info)
        if self._info.ended_at_us is None:  # otherwise `_write_end`, which is queued behind this, does it
            write_ref(draft, self._info)

    def _write_end(self, draft: Draft) -> None:
        write_state(draft, self._info)

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

"""The functions of the services, one call at a time, and sessions: several calls as one transaction.

A span that was started is an open row of the journal, and a ref that holds what its end will need. Ending it
changes the ref and writes the row of the finished span in one commit, so when two callers end a span, one
gets a `Conflict`. A tool call is a span as well, and its result is that span's end.

A session collects what the calls write and commits it as one batch, so nothing is visible or durable before
`commit`, and then all of it is. The session sees its own writes (a span started in it can be ended in it),
but `exec` sees committed data only. **Invariant:** a run, a span or a tool call changes from the state that
this session read, or the commit raises `Conflict` and changes nothing.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import structs

from treering import api
from treering.core.batch import ABSENT, Delete, Draft, RefChange, Set
from treering.core.clock import DAY_US, day_of
from treering.core.content import Address, Content, ObjectAddress, object_address, parse_address
from treering.core.encoding import decode_json, encode, encode_json
from treering.core.ids import Scope, check_id, new_id, time_of
from treering.core.query import EventQuery
from treering.errors import Conflict, InvalidInput, NotFound, ReadOnly, TreeringError
from treering.runs.cost import cost_report
from treering.runs.listing import join_run
from treering.runs.money import to_cost
from treering.runs.prices import EUR
from treering.runs.run import (
    RunInfo,
    run_from_ref,
    run_not_found,
    run_ref,
    run_writer,
    validate_run,
    write_listing,
    write_state,
)
from treering.runs.span import OK, SpanWriter, StoredContent, open_id, usage_of
from treering.runs.timeline import MAX_EVENTS, RESULT, timeline_report
from treering.sync_async import Closing

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping
    from decimal import Decimal

    from treering.core.batch import Batch, Expect
    from treering.runs.recorder import RowWriter
    from treering.store import Store


AGENT = "agent"
TOOL = "tool"
_SPANS = "span/"
_ENDED = b"{}"

BLOBS = "blob/"
"""Prefix of the refs that keep a payload until something refers to it."""


def create_run(
    project_id: int | None = None,
    meta: Mapping[str, Any] | None = None,
    *,
    agent: str | None = None,
    thread: str | None = None,
    id: str | None = None,
    session: Session | None = None,
) -> str:
    """Start a run and return its id; an ``id`` that already exists is a `Conflict`."""
    with transaction(session) as current_session:
        info = RunInfo(
            id=new_id() if id is None else check_id(id, "run id"),
            agent=agent,
            thread=thread,
            started_at_us=current_session.store.clock.now_us(),
            recorders=(current_session.store.recorder.stay_alive(),),
            project_id=project_id,
            meta=dict(meta or {}),
        )
        current_session.set_run(validate_run(info), ABSENT)
        return info.id


def end_run(run_id: str, status: str = OK, session: Session | None = None) -> None:
    """End a run; one that has ended already is a `Conflict`."""
    with transaction(session) as current_session:
        info, expect = current_session.run_with_version(run_id)
        if info.ended_at_us is not None:
            raise Conflict(f"run {run_id!r} has already ended, with status {info.status!r}")
        ended = structs.replace(
            info, status=check_id(status, "status"), ended_at_us=current_session.store.clock.now_us()
        )
        current_session.set_run(ended, expect)


def start_span(
    run_id: str,
    agent_name: str,
    input_ref: str | None = None,
    meta: Mapping[str, Any] | None = None,
    *,
    parent_id: str | None = None,
    session: Session | None = None,
) -> str:
    """Start an agent's span and return its id. Spans nest by ``parent_id``."""
    with transaction(session) as current_session:
        return _start(
            current_session,
            run_id,
            kind=AGENT,
            name=agent_name,
            agent=agent_name,
            input_ref=input_ref,
            parent=parent_id,
            meta=meta,
        )


def end_span(
    span_id: str,
    status: str = OK,
    output_ref: str | None = None,
    meta: Mapping[str, Any] | None = None,
    session: Session | None = None,
) -> None:
    """End an agent's span; one that has ended already is a `Conflict`."""
    with transaction(session) as current_session:
        _end(current_session, span_id, AGENT, status, output_ref, meta)


def save_message(
    run_id: str,
    role: str,
    content: Any,
    agent_name: str | None = None,
    model: str | None = None,
    tokens: Mapping[str, Any] | None = None,
    cost_eur: Decimal | float | str | None = None,
    *,
    span_id: str | None = None,
    session: Session | None = None,
) -> str:
    """Record a message and return its id.

    ``tokens`` is ``{"prompt": ..., "completion": ..., "total": ...}``, or any other names that `Run.message`
    accepts. ``cost_eur`` is stored as given; without it the cost is computed from the model's current price,
    and a model without a price is unpriced.
    """
    with transaction(session) as current_session:
        info = current_session.run(run_id)
        if span_id is not None:
            _check_span(current_session, span_id)
        message_id = new_id()
        current_session.write(
            partial(
                run_writer(info).write_message,
                id=message_id,
                ts_us=current_session.store.clock.now_us(),
                role=check_id(role, "role"),
                content=encode(content, keep_order=True),
                span=span_id,
                agent=agent_name or info.agent,
                model=model,
                usage=usage_of(tokens),
                cost_nanos=None if cost_eur is None else to_cost(cost_eur),
                currency=None if cost_eur is None else EUR,
            )
        )
        return message_id


def save_tool_call(
    run_id: str,
    agent_name: str,
    tool_name: str,
    input_ref: str | None = None,
    span_id: str | None = None,
    session: Session | None = None,
) -> str:
    """Record the start of a tool call, made by the span ``span_id`` if given, and return its id."""
    with transaction(session) as current_session:
        return _start(
            current_session,
            run_id,
            kind=TOOL,
            name=tool_name,
            agent=agent_name,
            input_ref=input_ref,
            parent=span_id,
            meta=None,
        )


def save_tool_result(
    tool_call_id: str, status: str = OK, output_ref: str | None = None, session: Session | None = None
) -> str:
    """Record the result of a tool call and return its id. A second result for one call is a `Conflict`."""
    with transaction(session) as current_session:
        _end(current_session, tool_call_id, TOOL, status, output_ref, None)
        return tool_call_id + RESULT


def save_blob(kind: Literal["json", "text"], data: Any, session: Session | None = None) -> str:
    """Store a payload and return its id. Equal content of one kind has one id and is stored once.

    A payload is kept by what refers to it, and until then by itself. Forgetting the last run that refers to
    it removes it.
    """
    with transaction(session) as current_session:
        return current_session.put_object(_payload(kind, data))


def get_run_timeline(
    run_id: str, limit: int = MAX_EVENTS, cursor: str | None = None, session: Session | None = None
) -> dict[str, Any]:
    """Return ``{"events": [...], "next_cursor": ...}``: what happened, oldest first, up to ``limit`` events.

    For the next page, pass ``next_cursor`` as ``cursor``. Uncommitted work of a session is not included.
    """
    store = current() if session is None else session.store
    store.flush()
    return timeline_report(store.engine, store.space, run_id, limit=limit, cursor=cursor, legacy=store.legacy)


def get_run_cost(run_id: str, session: Session | None = None) -> dict[str, Any]:
    """Return ``{"by_agent": [...], "total": {...}}`` in tokens and euros, at the rate of each day."""
    store = current() if session is None else session.store
    store.flush()
    return cost_report(store.engine, store.space, run_id, legacy=store.legacy)


class _DefaultStore:
    """The store of the services when none is passed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: Store | None = None

    def get(self) -> Store:
        with self._lock:
            if self._store is None:
                self._store = api.open()
                atexit.register(self._store.close)
            return self._store

    def set(self, store: Store | None) -> None:
        with self._lock:
            self._store = store


_default = _DefaultStore()


def use(store: Store | None) -> None:
    """Set the store of the services in this process.

    By default, and after ``use(None)``, it is the one that `treering.open()` opens: that of ``TREERING_URL``,
    or the folder ``.treering``. The default store is closed at exit; the caller closes any other.
    """
    _default.set(store)


def current() -> Store:
    """Return the store in use."""
    return _default.get()


class Session(Closing):
    """Consecutive transactions over a store. Leaving it without `commit` rolls back."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._sql: Any = None
        self._begin()

    def _begin(self) -> None:
        self._draft = Draft(self.store.space)
        self._objects: dict[str, Content] = {}
        self._used: dict[str, None] = {}
        self._runs: dict[str, tuple[RunInfo, Expect]] = {}
        self._refs: dict[str, RefChange] = {}

    def exec(self, statement: Any, **options: Any) -> Any:
        """Run a ``select`` of `treering.compat.models` on committed rows, like SQLModel's ``exec``."""
        if self._sql is None:
            from treering.compat.models.connections import open_session

            self._sql = open_session(self.store)
        return self._sql.exec(statement, **options)

    def add(self, *_: Any) -> None:
        """Raise `ReadOnly`: entities are written by the services."""
        raise ReadOnly("entities are read-only; write with create_run, start_span, save_message, ...")

    def commit(self) -> None:
        """Make everything since the last commit durable and visible, all or nothing.

        After a ``retryable`` error, `commit` may be called again; after any other error everything is rolled
        back. A changed entity raises `ReadOnly`.
        """
        try:
            if self._sql is not None:
                self._sql.flush()
            batch = self._batch()
            if batch.events or batch.refs or batch.objects:
                self.store.commit(batch)
        except TreeringError as error:
            if not error.retryable:
                self._begin()
            raise
        self._begin()

    def rollback(self) -> None:
        """Discard everything since the last commit."""
        self._begin()

    def close(self) -> None:
        """Roll back, and close the connection."""
        self._begin()
        if self._sql is not None:
            self._sql.close()
            self._sql = None

    async def acommit(self) -> None:
        """`commit` without blocking the event loop, for `treering.compat.services.aio`."""
        await asyncio.to_thread(self.commit)

    async def aclose(self) -> None:
        """`close` without blocking the event loop."""
        await asyncio.to_thread(self.close)

    # For the services.
    def run(self, run_id: str) -> RunInfo:
        """Return a run as this session sees it."""
        return self.run_with_version(run_id)[0]

    def run_with_version(self, run_id: str) -> tuple[RunInfo, Expect]:
        """Return a run and the version that its ref must have when it changes.

        From now on this process keeps the run alive.
        """
        if run_id in self._runs:
            return self._runs[run_id]
        name = run_ref(run_id)
        engine, space = self.store.engine, self.store.space
        found = engine.refs(space, [name])
        if name not in found:
            raise run_not_found(run_id)
        ref = join_run(engine, space, found[name], self.store.recorder.stay_alive())
        return run_from_ref(ref), ref.version

    def set_run(self, info: RunInfo, expect: Expect) -> None:
        """Set the new state of a run; it may change again before the commit."""
        self._runs[info.id] = (info, expect)

    def write(self, write: RowWriter) -> None:
        """Add rows to the journal."""
        write(self._draft)

    def put_object(self, content: Content) -> Address:
        """Store content as an object, whatever its size."""
        self._objects[content.name] = content
        return object_address(content.name)

    def refer(self, address: str, what: str) -> StoredContent:
        """Return stored content by its address, and keep it from now on."""
        try:
            parsed = parse_address(address)
        except InvalidInput:
            raise NotFound(f"{what} {address!r} not found; use an id returned by save_blob()") from None
        if isinstance(parsed, ObjectAddress) and parsed.name in self._objects:
            size = len(self._objects[parsed.name].data)
        else:
            size = len(self.store.engine.get(self.store.space, [Address(address)])[0].data)
        if isinstance(parsed, ObjectAddress):
            self._used[parsed.name] = None
            if parsed.name not in self._objects:
                self._draft.require(parsed.name)
        return StoredContent(Address(address), size)

    def ref(self, name: str) -> tuple[bytes, Expect] | None:
        """Return a ref's value as this session sees it, and the version it must have when it changes."""
        if name in self._refs:
            change = self._refs[name]
            return (change.change.value, change.expect) if isinstance(change.change, Set) else None
        found = self.store.engine.refs(self.store.space, [name])
        return (found[name].value, found[name].version) if name in found else None

    def set_ref(self, name: str, value: bytes, expect: Expect, *, scope: str) -> None:
        """Set a ref; it may change again before the commit."""
        self._refs[name] = RefChange(name=name, scope=scope, change=Set(value=value), expect=expect)

    def _batch(self) -> Batch:
        draft = self._draft.batch()
        runs = Draft(self.store.space)
        for info, expect in self._runs.values():
            if expect == ABSENT:
                write_listing(runs, info)
            write_state(runs, info, expect=expect)
        states = runs.batch()
        return structs.replace(
            draft,
            objects=draft.objects | self._objects,
            events=(*draft.events, *states.events),
            refs=(*states.refs, *self._refs.values(), *self._anchors()),
        )

    def _anchors(self) -> Iterator[RefChange]:
        """Refs that keep new payloads until something refers to them."""
        names = {name: BLOBS + name for name in (*self._objects, *self._used)}
        existing = self.store.engine.refs(self.store.space, list(names.values())) if names else {}
        for name, ref in names.items():
            scope = str(Scope("", "blob", name))
            if name in self._used:
                if ref in existing:
                    yield RefChange(name=ref, scope=scope, change=Delete())
            elif ref not in existing:
                anchor = Set(value=b"{}", links=(object_address(name),))
                yield RefChange(name=ref, scope=scope, change=anchor)


def get_session() -> Session:
    """Return a session over the store in use, for a ``with`` statement; `commit` before leaving it."""
    return Session(current())


@contextmanager
def transaction(session: Session | None) -> Generator[Session]:
    """The given session, or a new one that is committed at the end."""
    if session is not None:
        yield session
        return
    with get_session() as own:
        yield own
        own.commit()


class _OpenSpan(msgspec.Struct, frozen=True, kw_only=True):
    """What the end of a span needs to know about its start."""

    id: str
    kind: str
    run: str
    scope: str
    ts_us: int
    name: str
    agent: str | None = None
    parent: str | None = None
    thread: str | None = None
    meta: dict[str, Any] = {}


def _start(
    session: Session,
    run_id: str,
    *,
    kind: str,
    name: str,
    agent: str,
    input_ref: str | None,
    parent: str | None,
    meta: Mapping[str, Any] | None,
) -> str:
    writer = run_writer(session.run(run_id))
    if parent is not None:
        _check_span(session, parent)
    span = _OpenSpan(
        id=new_id(),
        kind=kind,
        run=run_id,
        scope=writer.scope,
        ts_us=session.store.clock.now_us(),
        name=check_id(name, f"{kind} name"),
        agent=check_id(agent, "agent name"),
        parent=parent,
        thread=writer.thread,
        meta=dict(meta or {}),
    )
    session.write(
        partial(
            writer.write_open,
            id=span.id,
            kind=kind,
            name=span.name,
            ts_us=span.ts_us,
            parent=parent,
            agent=span.agent,
            input=None if input_ref is None else session.refer(input_ref, "input_ref"),
            data=span.meta,
        )
    )
    session.set_ref(_SPANS + span.id, encode_json(structs.asdict(span)), ABSENT, scope=span.scope)
    return span.id


def _end(
    session: Session,
    span_id: str,
    kind: str,
    status: str,
    output_ref: str | None,
    meta: Mapping[str, Any] | None,
) -> None:
    what = _KIND_NAMES[kind]
    found = session.ref(_SPANS + span_id)
    if found is None:
        raise NotFound(f"{what} {span_id!r} not found; start one with {_STARTED_BY[kind]}()")
    value, expect = found
    if value == _ENDED:
        raise Conflict(f"{what} {span_id!r} has already ended; its {_END_NAMES[kind]} is unchanged")
    span = msgspec.convert(decode_json(value), _OpenSpan)
    if span.kind != kind:
        raise InvalidInput(
            f"{span_id!r} is a {_KIND_NAMES[span.kind]}, not a {what}; "
            "save_tool_result ends tool calls, end_span ends spans"
        )
    session.run(span.run)
    writer = SpanWriter(run=span.run, scope=span.scope, thread=span.thread)
    session.write(
        partial(
            writer.write_span,
            id=span.id,
            kind=span.kind,
            name=span.name,
            ts_us=span.ts_us,
            duration_us=max(session.store.clock.now_us() - span.ts_us, 0),
            status=check_id(status, "status"),
            parent=span.parent,
            agent=span.agent,
            output=None if output_ref is None else session.refer(output_ref, "output_ref"),
            data={**span.meta, **(meta or {})},
            is_announced=True,
        )
    )
    session.set_ref(_SPANS + span_id, _ENDED, expect, scope=span.scope)


_KIND_NAMES = {AGENT: "span", TOOL: "tool call"}
_END_NAMES = {AGENT: "end", TOOL: "result"}
_STARTED_BY = {AGENT: "start_span", TOOL: "save_tool_call"}


def _check_span(session: Session, span_id: str) -> None:
    if session.ref(_SPANS + span_id) is None and not _is_recorded(session, span_id):
        raise NotFound(f"span {span_id!r} not found; start one with start_span()")


def _is_recorded(session: Session, span_id: str) -> bool:
    """Whether a recorder has written such a span, open or ended. Its id tells the day."""
    try:
        day = day_of(time_of(span_id))
    except InvalidInput:
        return False
    store = session.store
    ids = (span_id, open_id(span_id))
    query = EventQuery(ids=ids, since_us=day * DAY_US, until_us=(day + 1) * DAY_US)
    return bool(store.engine.scan(store.space, query, limit=1).records)


def _payload(kind: str, data: Any) -> Content:
    if kind == "json":
        return Content("json", encode_json(data))
    if kind != "text":
        raise InvalidInput(f"{kind!r} is not a kind of payload; use 'json' or 'text'")
    if not isinstance(data, str):
        raise InvalidInput(f"a payload of kind 'text' is a str, not {type(data).__name__}; use 'json'")
    return Content("text", data.encode())

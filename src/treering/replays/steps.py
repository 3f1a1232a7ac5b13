"""The steps of a run, one by one: what a debugger shows, forward and back.

A step is a message or a span, in the order of their start, or a recorded call that has no span in the run
itself (`treering.record` around an agent that makes runs of its own). A step shows the run as it was just
before the next one began: what the model had been given and had answered, the state and files of that moment,
and what memory was read and written meanwhile.

**Invariant:** steps are counted and summed without their contents, and the content of one step is read
without that of the others. The sums so far travel in the cursor of a page. A step is found by its number by
reading the pages before it once; then the process knows where they begin, until the run changes.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice, pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from weakref import WeakKeyDictionary

import msgspec

from treering.core.clock import to_datetime
from treering.core.encoding import decode, decode_json, encode_json
from treering.core.ids import MAINTENANCE_SCOPE, parse_scope
from treering.core.query import EventQuery, each_record
from treering.core.text import readable_json
from treering.errors import InvalidInput, NotFound
from treering.memory.documents import DELETED, MEMORY_KINDS, READ
from treering.replays import wire
from treering.replays.capture import START
from treering.replays.comparison import messages_of, reply_of
from treering.runs.cost import is_step
from treering.runs.exchanges import EXCHANGE, EXCHANGE_KINDS, Exchange, exchanges_of
from treering.runs.listing import RunRecord, record_content, records_of
from treering.runs.messages import ReadMessage, read_message, read_messages
from treering.runs.span import MESSAGE, SPAN, RunRow
from treering.threads.diff import json_patch
from treering.workspaces.diff import FileChange

if TYPE_CHECKING:
    from treering.core.engine import Engine
    from treering.core.records import Record
    from treering.runs.run import RunInfo
    from treering.store import Store
    from treering.threads.checkpoint import Checkpoint

_PAGE: Final = 500
_MAX_RUNS: Final = 64
"""Of how many runs of a store the beginnings of pages are remembered."""
_MAX_NUMBER: Final = 1 << 53
_DAY_US: Final = 86_400_000_000
_MAX_FILES: Final = 200
_MAX_MEMORY: Final = 100
_MAX_TEXT: Final = 4000
_SLACK_US: Final = 5_000_000
"""How long after a call its reply is recorded at the latest."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a run, without its content. Tokens and costs (by currency) so far include its own."""

    number: int
    """Its position, from 1."""
    id: str
    kind: Literal["message", "span", "call"]
    """``call``: a recorded call without a span in this run."""
    type: str
    """``agent``, ``llm``, ``tool``, ...; ``message`` for a message."""
    name: str | None
    agent: str | None
    role: str | None
    model: str | None
    status: str | None
    started_at_us: int
    duration_us: int | None
    tokens: int
    cost: float | None
    currency: str | None
    tokens_so_far: int
    cost_so_far: dict[str, float]
    call: int
    """The recorded call that a rerun from here makes for real first: ``treering rerun RUN --from CALL``."""
    span: str | None = None
    """The span that a call belongs to."""

    @property
    def started_at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.started_at_us)

    @property
    def is_error(self) -> bool:
        """Whether it failed."""
        return self.status not in (None, "ok", "running", "done")


class StepPage(msgspec.Struct, frozen=True, kw_only=True):
    """Steps in their order, and the cursor of the next page. A page may be short."""

    steps: tuple[Step, ...]
    next_cursor: str | None


class Breakpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where to stop: at a step that meets any of these conditions.

    ``tool`` is a tool that is called, ``error`` any failed step, ``cost_above`` the step with which the costs
    so far pass an amount (in any one currency), ``text`` a text in the content of a step, in any case.
    """

    tool: tuple[str, ...] = ()
    error: bool = False
    cost_above: float | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        """Refuse a breakpoint that is nowhere."""
        if not (self.tool or self.error or self.text or self.cost_above is not None):
            raise InvalidInput("a breakpoint needs a condition: tool, error, cost_above or text")


class Messages(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation at a step. ``first`` is the index of the first message here, of ``total``."""

    total: int
    first: int
    new: int
    """The index of the first message that was not there at the step before."""
    messages: tuple[ReadMessage, ...]


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the thread at a step, and the JSON patch from the step before."""

    thread: str
    namespace: str
    checkpoint: str
    number: int
    """The step of the checkpoint in its thread."""
    value: Any
    changes: list[dict[str, Any]]


class Files(msgspec.Struct, frozen=True, kw_only=True):
    """The files at a step: their snapshot, and what differs from the step before, with unified diffs."""

    snapshot: str
    changes: tuple[FileChange, ...]
    more: int = 0
    """How many further changes are not listed."""


class MemoryAccess(msgspec.Struct, frozen=True, kw_only=True):
    """A document that was read, written or deleted during a step, a search, or what was put into a prompt."""

    what: Literal["read", "search", "context", "write", "delete"]
    id: str | None
    namespace: str
    at_us: int
    query: str | None = None
    found: tuple[str, ...] = ()
    """The documents that a search found, or that were put into a prompt."""
    version: int | None = None
    text: str | None = None
    """The content that was written; for a second version, the diff."""

    @property
    def at(self) -> datetime:
        """In UTC."""
        return to_datetime(self.at_us)


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A step with its content, and the run as it was then."""

    step: Step
    until_us: int
    """The moment that is shown: just before the next step."""
    is_last: bool
    input: list[ReadMessage] | None
    input_value: Any
    """The input, if it is no message."""
    output: list[ReadMessage] | None
    output_value: Any
    error: str | None
    messages: Messages | None
    state: State | None
    files: Files | None
    memory: tuple[MemoryAccess, ...]

    @property
    def until(self) -> datetime:
        """The moment that is shown, in UTC."""
        return to_datetime(self.until_us)


# Listing


class _Cursor(msgspec.Struct, array_like=True):
    """Where a page begins: the journal's cursor, and what the steps before it sum up to."""

    after: str | None = None
    number: int = 0
    calls: int = 0
    tokens: int = 0
    costs: dict[str, float] = {}

    @classmethod
    def parse(cls, text: str | None) -> _Cursor:
        if text is None:
            return cls()
        try:
            return msgspec.json.decode(urlsafe_b64decode(text), type=cls)
        except (ValueError, msgspec.DecodeError):
            raise InvalidInput("the cursor is invalid; use next_cursor of the page before") from None

    def encode(self) -> str:
        return urlsafe_b64encode(msgspec.json.encode(self)).decode()


def step_page(store: Store, run_id: str, *, first: int = _PAGE, cursor: str | None = None) -> StepPage:
    """Return a page of the steps of a run, read from at most ``first`` rows of the journal."""
    info = store.runs.load(run_id)
    state = _Cursor.parse(cursor)
    rows = store.engine.scan(
        store.space, EventQuery(run=info.id, order="time"), after=state.after, limit=first
    )
    steps = tuple(_steps(store, info.id, rows.records, state))
    if rows.cursor is None:
        return StepPage(steps=steps, next_cursor=None)
    state.after = rows.cursor
    return StepPage(steps=steps, next_cursor=state.encode())


def each_step(store: Store, run_id: str, *, first: int = 1) -> Iterator[Step]:
    """Yield the steps of a run, from a number on."""
    for page in _pages(store, run_id, first):
        yield from (step for step in page.steps if step.number >= first)


class _KnownPages(msgspec.Struct):
    """Where the pages of a run begin, as far as they were read."""

    state: tuple[int, ...]
    """The newest row of the run, and the newest erasure of the store: they are valid until these change."""
    starts: list[_Cursor]


_known: Final[WeakKeyDictionary[Engine, OrderedDict[tuple[str, str], _KnownPages]]] = WeakKeyDictionary()
_known_lock: Final = Lock()


def _pages(store: Store, run_id: str, number: int) -> Iterator[StepPage]:
    """Yield the pages of steps from the one on that holds a step; all of them, if nothing is known yet."""
    info = store.runs.load(run_id)
    starts = _known_starts(store, info.id)
    at = max(bisect_left(starts, number, key=lambda each: each.number) - 1, 0)
    while True:
        page = step_page(store, info.id, cursor=starts[at].encode())
        yield page
        if page.next_cursor is None:
            return
        at += 1
        with _known_lock:
            if at == len(starts):
                starts.append(_Cursor.parse(page.next_cursor))


def _known_starts(store: Store, run_id: str) -> list[_Cursor]:
    """Return where pages of a run begin, which `_pages` extends."""
    queries = (
        EventQuery(run=run_id, newest_first=True, brief=True),
        EventQuery(scope=MAINTENANCE_SCOPE, newest_first=True, brief=True),
    )
    newest = tuple(
        record.seq for query in queries for record in store.engine.scan(store.space, query, limit=1).records
    )
    with _known_lock:
        runs = _known.setdefault(store.engine, OrderedDict())
        found = runs.get((store.space, run_id))
        if found is None or found.state != newest:
            found = runs[store.space, run_id] = _KnownPages(newest, [_Cursor()])
        runs.move_to_end((store.space, run_id))
        if len(runs) > _MAX_RUNS:
            runs.popitem(last=False)
        return found.starts


def steps_after(store: Store, run_id: str, after: int, *, first: int) -> StepPage:
    """Return the first steps behind a number: a window into a long run."""
    return StepPage(steps=tuple(islice(each_step(store, run_id, first=after + 1), first)), next_cursor=None)


def count_steps(store: Store, run_id: str) -> int:
    """Return how many steps a run has."""
    number = 0
    for page in _pages(store, run_id, _MAX_NUMBER):
        number = page.steps[-1].number if page.steps else number
    return number


def _steps(store: Store, run_id: str, page: Sequence[Record], state: _Cursor) -> Iterator[Step]:
    """Yield the steps in a page of rows, and add them to the state."""
    records = {each.seq: each for each in records_of(store.engine, store.space, run_id, page)}
    spans = _spans_of_calls(store, page)
    for row in page:
        event = row.event
        if event.kind in EXCHANGE_KINDS:
            state.calls += 1
            of_run, record = spans.get(event.span or "", (None, None))
            if of_run != run_id:
                yield _step(state, _call_record(row, record), kind="call", call=state.calls, span=event.span)
        elif (record := records.get(row.seq)) is not None and (is_step(event.kind) or record.is_open):
            kind = "message" if record.kind == MESSAGE else "span"
            yield _step(state, record, kind=kind, call=state.calls + 1)


def _step(
    state: _Cursor,
    record: RunRecord,
    *,
    kind: Literal["message", "span", "call"],
    call: int,
    span: str | None = None,
) -> Step:
    tokens = 0 if record.usage is None else record.usage.total
    state.number += 1
    state.tokens += tokens
    if record.cost is not None and record.currency is not None:
        costs = dict(state.costs)
        costs[record.currency] = round(costs.get(record.currency, 0.0) + record.cost, 9)
        state.costs = costs
    return Step(
        number=state.number,
        id=record.id,
        kind=kind,
        type=record.type,
        name=record.name,
        agent=record.agent,
        role=record.role,
        model=record.model,
        status=record.status,
        started_at_us=record.started_at_us,
        duration_us=record.duration_us,
        tokens=tokens,
        cost=record.cost,
        currency=record.currency,
        tokens_so_far=state.tokens,
        cost_so_far=state.costs,
        call=call,
        span=span,
    )


def _spans_of_calls(store: Store, page: Sequence[Record]) -> dict[str, tuple[str | None, RunRecord]]:
    """Return the spans that recorded calls belong to, each with its run, which may be another one."""
    calls = [each for each in page if each.event.kind in EXCHANGE_KINDS and each.event.span]
    if not calls:
        return {}
    times = [each.event.ts_us for each in calls]
    query = EventQuery(
        ids=tuple({each.event.span or "" for each in calls}),
        since_us=max(min(times) - _DAY_US, 0),
        until_us=max(times) + _DAY_US,
    )
    rows = list(each_record(store.engine, store.space, query))
    found: dict[str, tuple[str | None, RunRecord]] = {}
    for row in rows:
        run = row.event.run
        for record in records_of(store.engine, store.space, run or "", [row]):
            found[record.id] = run, record
    # Our loop and instrumented SDKs give tokens and cost to the message of a reply, which is in its span.
    for run in {run for run, record in found.values() if run is not None and record.usage is None}:
        replies = EventQuery(
            run=run,
            kinds=(MESSAGE,),
            since_us=min(times),
            until_us=max(each.event.ts_us + (each.event.duration_us or 0) for each in calls) + _SLACK_US,
        )
        for row in each_record(store.engine, store.space, replies):
            span = row.event.span or ""
            if span in found and row.event.usage is not None:
                (reply,) = records_of(store.engine, store.space, run, [row])
                counted = msgspec.structs.replace(
                    found[span][1], usage=reply.usage, cost=reply.cost, currency=reply.currency
                )
                found[span] = run, counted
    return found


def _call_record(row: Record, span: RunRecord | None) -> RunRecord:
    """Return a recorded call as a record, with the tokens and cost of its span."""
    event = row.event
    kind = event.kind.removeprefix(EXCHANGE)
    return RunRecord(
        id=event.id,
        seq=row.seq,
        kind="call",
        type="tool" if kind == "tool" else "llm",
        name=event.name,
        parent=None,
        agent=event.agent or (None if span is None else span.agent),
        role=None,
        status=event.status,
        model=event.model or (None if span is None else span.model),
        started_at_us=event.ts_us,
        duration_us=event.duration_us,
        is_open=False,
        usage=None if span is None else span.usage,
        cost=None if span is None else span.cost,
        currency=None if span is None else span.currency,
        data={},
        has_input=True,
        has_output=event.body is not None,
    )


# Finding


def find_step(
    store: Store, run_id: str, breakpoint: Breakpoint, *, after: int = 0, back: bool = False
) -> Step | None:
    """Return the first step behind ``after`` that meets a breakpoint, or the last one before it (``back``).

    Contents are read only to look for a text.
    """
    info = store.runs.load(run_id)
    found: Step | None = None
    before: Step | None = None
    words = None if breakpoint.text is None else breakpoint.text.casefold()
    for page in _pages(store, info.id, 1 if back else after):
        wanted = [each for each in page.steps if (each.number < after if back else each.number > after)]
        texts = {} if words is None or not wanted else _texts(store, info.id, wanted)
        for step in page.steps:
            is_wanted = step.number < after if back else step.number > after
            if is_wanted and (
                _meets(step, before, breakpoint) or (words is not None and words in texts.get(step.id, ""))
            ):
                if not back:
                    return step
                found = step
            before = step
        if back and before is not None and before.number >= after:
            break
    return found


def _meets(step: Step, before: Step | None, wanted: Breakpoint) -> bool:
    if wanted.tool and step.type == "tool" and step.name in wanted.tool:
        return True
    if wanted.error and step.is_error:
        return True
    if wanted.cost_above is None:
        return False
    earlier = 0.0 if before is None else max(before.cost_so_far.values(), default=0.0)
    return earlier <= wanted.cost_above < max(step.cost_so_far.values(), default=0.0)


def _texts(store: Store, run_id: str, steps: Sequence[Step]) -> dict[str, str]:
    """Return the contents of steps as text, in one case: name, input, output."""
    query = EventQuery(
        run=run_id,
        order="time",
        since_us=min(each.started_at_us for each in steps),
        until_us=max(each.started_at_us for each in steps) + 1,
    )
    rows = [RunRow(each) for each in each_record(store.engine, store.space, query)]
    wanted = {each.id for each in steps}
    addresses = dict.fromkeys(
        address
        for row in rows
        if row.event.id in wanted or row.span_id in wanted
        for address in (row.event.body, row.input, *row.event.links[:1])
        if address is not None and address[:2] != "l:"
    )
    contents = dict(zip(addresses, store.engine.get(store.space, list(addresses)), strict=True))
    texts: dict[str, str] = {}
    for row in rows:
        for name in {row.event.id, row.span_id} & wanted:
            parts = [texts.get(name, ""), row.event.name or ""]
            parts += [
                _as_text(decode(contents[address]))
                for address in dict.fromkeys((row.event.body, row.input, *row.event.links[:1]))
                if address is not None and address in contents
            ]
            texts[name] = "\n".join(parts).casefold()
    return texts


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        found = wire.read_reply("/chat/completions", value) if value.startswith(("data:", "{")) else None
        return value if found is None else f"{value}\n{found.text}"
    return "" if isinstance(value, bytes) else readable_json(value).decode("utf-8", "replace")


# One step


def step_view(store: Store, run_id: str, number: int, *, messages: int = 30) -> StepView:
    """Return a step of a run, and the run as it was then, with at most so many ``messages``."""
    info = store.runs.load(run_id)
    step, following = _step_at(store, info.id, number)
    last_us = max(info.ended_at_us or store.clock.now_us(), step.started_at_us + (step.duration_us or 0))
    until_us = last_us if following is None else max(following.started_at_us - 1, step.started_at_us)
    before_us = step.started_at_us - 1
    content = _content(store, info.id, step)
    return StepView(
        step=step,
        until_us=until_us,
        is_last=following is None,
        messages=_messages(store, info, before_us, until_us, messages),
        state=_state(store, info, before_us, until_us),
        files=_files(store, info, before_us, until_us),
        memory=tuple(_memory(store, info, step, until_us)),
        **content,
    )


def _step_at(store: Store, run_id: str, number: int) -> tuple[Step, Step | None]:
    """Return a step, and the one after it."""
    both = [] if number < 1 else list(islice(each_step(store, run_id, first=number), 2))
    if not both:
        raise NotFound(f"run {run_id!r} has no step {number}; it has {count_steps(store, run_id)}")
    return both[0], both[1] if len(both) > 1 else None


def _content(store: Store, run_id: str, step: Step) -> dict[str, Any]:
    error: str | None = None
    exchange = _exchange_of(store, run_id, step)
    if exchange is not None:
        given: Any = (
            exchange.request.get("arguments") if exchange.kind == "tool" else messages_of(exchange)[-1:]
        )
        told: Any = exchange.answer
        if exchange.kind != "tool":
            reply = reply_of(exchange)
            told = exchange.answer if reply is None else reply
        if exchange.error is not None:
            error = f"{exchange.error.type}: {exchange.error.message}"
    else:
        content = record_content(store.engine, store.space, run_id, step.id)
        given, told = content.input, content.output
        if content.record.kind == MESSAGE:
            told = {"role": content.record.role or "message", "content": told}
        failed: Any = content.record.data.get("error")
        if isinstance(failed, dict):
            error = f"{failed.get('type', '')}: {failed.get('message', '')}"  # pyright: ignore[reportUnknownMemberType]
    inputs = None if step.type == "tool" else read_messages(given)
    outputs = None if step.type == "tool" else read_messages(told)
    return {
        "input": inputs,
        "input_value": given if inputs is None else None,
        "output": outputs,
        "output_value": told if outputs is None else None,
        "error": error,
    }


def _exchange_of(store: Store, run_id: str, step: Step) -> Exchange | None:
    """Return the recorded call that a step is, or that its span has made."""
    query = EventQuery(
        run=run_id,
        kinds=EXCHANGE_KINDS,
        ids=(step.id,) if step.kind == "call" else (),
        span=None if step.kind == "call" else step.id,
        since_us=step.started_at_us,
        until_us=step.started_at_us + (step.duration_us or 0) + 1,
    )
    found = store.engine.scan(store.space, query, limit=2).records
    return exchanges_of(store.engine, store.space, found)[0] if len(found) == 1 else None


def _messages(store: Store, info: RunInfo, before_us: int, until_us: int, last: int) -> Messages | None:
    now = _conversation(store, info, until_us)
    if now is None:
        return None
    earlier = _conversation(store, info, before_us) or []
    common = 0
    for one, other in zip(earlier, now, strict=False):
        if encode_json(one) != encode_json(other):
            break
        common += 1
    first = max(len(now) - last, 0)
    return Messages(
        total=len(now),
        first=first,
        new=common,
        messages=tuple(read_message(each) for each in now[first:]),
    )


def _conversation(store: Store, info: RunInfo, until_us: int) -> list[Any] | None:
    """Return what the model had last been given and answered, or else the messages that were recorded."""
    exchange = _last_model_call(store, info.id, until_us)
    if exchange is not None:
        found: list[Any] = list(messages_of(exchange))
        if exchange.started_at_us + exchange.duration_us <= until_us:
            reply = reply_of(exchange)
            found += reply if isinstance(reply, list) else [] if reply is None else [reply]
        return found
    query = EventQuery(run=info.id, order="time", kinds=(MESSAGE,), until_us=until_us + 1)
    rows = list(each_record(store.engine, store.space, query))
    if rows:
        bodies = [each.event.body for each in rows]
        contents = iter(store.engine.get(store.space, [each for each in bodies if each is not None]))
        return [
            {"role": row.event.role or "message", "content": None if body is None else decode(next(contents))}
            for row, body in zip(rows, bodies, strict=True)
        ]
    query = EventQuery(
        run=info.id, order="time", kinds=(SPAN + "llm",), until_us=until_us + 1, newest_first=True
    )
    for record in store.engine.scan(store.space, query, limit=5).records:
        content = record_content(store.engine, store.space, info.id, record.event.id)
        given: Any = content.input
        found = (
            list(cast("list[Any]", given)) if isinstance(given, list) else [] if given is None else [given]
        )
        if found:
            told: Any = content.output
            return [
                *found,
                *(cast("list[Any]", told) if isinstance(told, list) else [] if told is None else [told]),
            ]
    return None


def _last_model_call(store: Store, run_id: str, until_us: int) -> Exchange | None:
    query = EventQuery(
        run=run_id,
        order="time",
        kinds=(EXCHANGE + "http", EXCHANGE + "model"),
        until_us=until_us + 1,
        newest_first=True,
    )
    for record in store.engine.scan(store.space, query, limit=5).records:
        (exchange,) = exchanges_of(store.engine, store.space, [record])
        if messages_of(exchange):
            return exchange
    return None


def _checkpoint(store: Store, info: RunInfo, at_us: int) -> Checkpoint | None:
    if info.thread is None:
        return None
    try:
        return store.thread(info.thread, info.namespace).at(to_datetime(at_us), everything=True)
    except NotFound:
        return None


def _state(store: Store, info: RunInfo, before_us: int, until_us: int) -> State | None:
    now = _checkpoint(store, info, until_us)
    if now is None:
        return None
    earlier = _checkpoint(store, info, before_us)
    before = {} if earlier is None else earlier.state
    return State(
        thread=info.thread or "",
        namespace=info.namespace,
        checkpoint=now.id,
        number=now.step,
        value=now.state,
        changes=[] if earlier is not None and earlier.id == now.id else list(json_patch(before, now.state)),
    )


def _files(store: Store, info: RunInfo, before_us: int, until_us: int) -> Files | None:
    now = _snapshot(store, info, until_us)
    if now is None:
        return None
    before = _snapshot(store, info, before_us)
    changes = [] if before is None else store.workspace.diff(before, now)
    return Files(snapshot=now, changes=tuple(changes[:_MAX_FILES]), more=max(len(changes) - _MAX_FILES, 0))


def _snapshot(store: Store, info: RunInfo, at_us: int) -> str | None:
    """Return the files as the last tool call that had ended left them, or as the run found them."""
    query = EventQuery(
        run=info.id, order="time", kinds=(EXCHANGE + "tool",), until_us=at_us + 1, newest_first=True
    )
    for record in store.engine.scan(store.space, query, limit=20).records:
        event = record.event
        saved = decode_json(event.data or b"{}").get("snapshot")
        if saved is not None and event.ts_us + (event.duration_us or 0) <= at_us:
            return saved
    begun = info.meta.get(START, {}).get("snapshot")
    if begun is not None:
        return begun
    found = _checkpoint(store, info, at_us)
    return None if found is None else found.snapshot


def _memory(store: Store, info: RunInfo, step: Step, until_us: int) -> Iterator[MemoryAccess]:
    """Yield what was read and written from a step on until the next one, by this run or within its span."""
    kinds = (*MEMORY_KINDS, READ)
    query = EventQuery(
        kinds=kinds, run=info.id, since_us=step.started_at_us, until_us=until_us + 1, order="time"
    )
    queries = [query]
    if step.span is not None:
        queries.append(msgspec.structs.replace(query, run=None, span=step.span))
    rows = {
        each.event.id: each
        for query in queries
        for each in store.engine.scan(store.space, query, limit=_MAX_MEMORY).records
    }
    for row in rows.values():
        event = row.event
        if event.kind == READ:
            data: dict[str, Any] = decode_json(event.data or b"{}")
            yield MemoryAccess(
                what=data["what"],
                id=data.get("id"),
                namespace=data.get("namespace", ""),
                at_us=event.ts_us,
                query=data.get("query"),
                found=tuple(data.get("found", ())),
                version=data.get("version"),
            )
            continue
        scope = parse_scope(event.scope)
        version, text = _written(store, scope.namespace, scope.id, row.seq)
        yield MemoryAccess(
            what="delete" if event.kind == DELETED else "write",
            id=scope.id,
            namespace=scope.namespace,
            at_us=event.ts_us,
            version=version,
            text=text,
        )


def _written(store: Store, namespace: str, id: str, seq: int) -> tuple[int | None, str | None]:
    """Return the version that a row of the journal made, and its text, or its diff to the version before."""
    memory = store.memory.in_namespace(namespace)
    versions = list(memory.history(id))
    for new, old in pairwise([*versions, None]):
        if new is not None and new.seq == seq:
            if new.document is None:
                return new.version, None
            if old is not None and old.document is not None:
                return new.version, memory.diff(id, old.version, new.version).text[:_MAX_TEXT]
            return new.version, str(new.document.content)[:_MAX_TEXT]
    return None, None

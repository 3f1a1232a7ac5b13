"""Runs, spans, messages and tools, written one call at a time.

A span that was started is a row of the journal, and a ref that remembers what its end will need. Ending it
moves the ref and writes the row of the finished span, in one commit, so of two who end it one gets a
`Conflict`. A tool call is a span as well, and its result is that span's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import structs

from treering.compat.services.session import current, within
from treering.core.batch import ABSENT, Event
from treering.core.clock import DAY_US, day_of
from treering.core.content import Content
from treering.core.encoding import decode_json, encode, encode_json
from treering.core.ids import check_id, new_id, thread_key, time_of
from treering.core.money import to_cost
from treering.core.query import EventQuery
from treering.errors import Conflict, InvalidInput, NotFound
from treering.runs.prices import EUR, fill_in
from treering.runs.reports import MAX_LINES, cost_report, timeline_report
from treering.runs.run import RunInfo, checked, run_scope
from treering.runs.span import MESSAGE, OK, OPEN, SPAN, usage_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from treering.compat.services.session import Session
    from treering.core.content import Address


AGENT = "agent"
TOOL = "tool"
RESULT = ":result"
_SPANS = "span/"
_ENDED = b"{}"


class _OpenSpan(msgspec.Struct, frozen=True, kw_only=True):
    """What the end of a span needs to know of its beginning."""

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


def create_run(
    project_id: int | None = None,
    meta: Mapping[str, Any] | None = None,
    *,
    agent: str | None = None,
    thread: str | None = None,
    id: str | None = None,
    session: Session | None = None,
) -> str:
    """Begin a run and give back its id; an ``id`` of your own that is taken is a `Conflict`."""
    with within(session) as transaction:
        info = RunInfo(
            id=new_id() if id is None else check_id(id, "run id"),
            agent=agent,
            thread=thread,
            started_at_us=transaction.store.clock.now_us(),
            project_id=project_id,
            meta=dict(meta or {}),
        )
        transaction.set_run(checked(info), ABSENT)  # refused here, not at the commit
        return info.id


def end_run(run_id: str, status: str = OK, session: Session | None = None) -> None:
    """Say how a run ended; one that has ended already is a `Conflict`."""
    with within(session) as transaction:
        info, expect = transaction.run_with_version(run_id)
        if info.ended_at_us is not None:
            raise Conflict(f"run {run_id!r} ended before, as {info.status!r}; a run ends once")
        ended = structs.replace(
            info, status=check_id(status, "status"), ended_at_us=transaction.store.clock.now_us()
        )
        transaction.set_run(ended, expect)


def start_span(
    run_id: str,
    agent_name: str,
    input_ref: str | None = None,
    meta: Mapping[str, Any] | None = None,
    *,
    parent_id: str | None = None,
    session: Session | None = None,
) -> str:
    """An agent begins; gives back the id of its span. Spans nest by ``parent_id``."""
    with within(session) as transaction:
        return _start(
            transaction,
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
    """An agent is done; a span that has ended already is a `Conflict`."""
    with within(session) as transaction:
        _end(transaction, span_id, AGENT, status, output_ref, meta)


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
    """Record a message and give back its id.

    ``tokens`` are ``{"prompt": ..., "completion": ..., "total": ...}`` or any other words that `Run.message`
    knows. ``cost_eur`` is kept as given; without it the model's price at this moment counts, and a model that
    is not known is unpriced.
    """
    with within(session) as transaction:
        info = transaction.run(run_id)
        scope = run_scope(info)
        if span_id is not None:
            _check_span(transaction, span_id)
        event = Event(
            id=new_id(),
            kind=MESSAGE,
            ts_us=transaction.store.clock.now_us(),
            scope=scope,
            run=run_id,
            span=span_id,
            thread=thread_key(info.thread, info.namespace),
            agent=agent_name or info.agent,
            role=check_id(role, "role"),
            model=model,
            usage=usage_of(tokens),
            cost_nanos=None if cost_eur is None else to_cost(cost_eur),
            currency=None if cost_eur is None else EUR,
            body=transaction.put(encode(content, keep_order=True), scope=scope),
        )
        transaction.event(fill_in(event))
        return event.id


def save_tool_call(
    run_id: str,
    agent_name: str,
    tool_name: str,
    input_ref: str | None = None,
    span_id: str | None = None,
    session: Session | None = None,
) -> str:
    """A tool is called, by the span ``span_id`` if that is given; gives back the id of the call."""
    with within(session) as transaction:
        return _start(
            transaction,
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
    """What a call gave; gives back the id of the result. A second result for one call is a `Conflict`."""
    with within(session) as transaction:
        _end(transaction, tool_call_id, TOOL, status, output_ref, None)
        return tool_call_id + RESULT


def _start(
    transaction: Session,
    run_id: str,
    *,
    kind: str,
    name: str,
    agent: str,
    input_ref: str | None,
    parent: str | None,
    meta: Mapping[str, Any] | None,
) -> str:
    info = transaction.run(run_id)
    if parent is not None:
        _check_span(transaction, parent)
    span = _OpenSpan(
        id=new_id(),
        kind=kind,
        run=run_id,
        scope=run_scope(info),
        ts_us=transaction.store.clock.now_us(),
        name=check_id(name, f"{kind} name"),
        agent=check_id(agent, "agent name"),
        parent=parent,
        thread=thread_key(info.thread, info.namespace),
        meta=dict(meta or {}),
    )
    data, body = dict(span.meta), None
    if input_ref is not None:
        body, size = transaction.refer(input_ref, "input_ref")
        data["input_size"] = size
    transaction.event(_event(span, f"{span.id}:open", OPEN, data=data, body=body))
    value = encode_json(structs.asdict(span))
    transaction.set_ref(_SPANS + span.id, value, ABSENT, scope=span.scope)
    return span.id


def _end(
    transaction: Session,
    span_id: str,
    kind: str,
    status: str,
    output_ref: str | None,
    meta: Mapping[str, Any] | None,
) -> None:
    what = "tool call" if kind == TOOL else "span"
    found = transaction.ref(_SPANS + span_id)
    if found is None:
        raise NotFound(f"there is no {what} {span_id!r} that was started here")
    value, expect = found
    if value == _ENDED:
        raise Conflict(f"{what} {span_id!r} ended before; its {'result' if kind == TOOL else 'end'} stays")
    span = msgspec.convert(decode_json(value), _OpenSpan)
    if span.kind != kind:
        raise InvalidInput(
            f"{span_id!r} is a {'tool call' if span.kind == TOOL else 'span'}, not a {what}; "
            "save_tool_result ends calls, end_span ends spans"
        )
    body = None if output_ref is None else transaction.refer(output_ref, "output_ref")[0]
    event = _event(span, span.id, SPAN, data={**span.meta, **(meta or {}), "announced": True}, body=body)
    ended_us = transaction.store.clock.now_us()
    transaction.event(
        structs.replace(event, status=check_id(status, "status"), duration_us=max(ended_us - span.ts_us, 0))
    )
    transaction.set_ref(_SPANS + span_id, _ENDED, expect, scope=span.scope)


def _event(span: _OpenSpan, id: str, form: str, *, data: dict[str, Any], body: Address | None) -> Event:
    return Event(
        id=id,
        kind=form + span.kind,
        ts_us=span.ts_us,
        scope=span.scope,
        run=span.run,
        span=span.id,
        parent=span.parent,
        thread=span.thread,
        agent=span.agent,
        name=span.name,
        data=encode_json(data) if data else None,
        body=body,
    )


def _check_span(transaction: Session, span_id: str) -> None:
    if transaction.ref(_SPANS + span_id) is None and not _is_recorded(transaction, span_id):
        raise NotFound(f"there is no span {span_id!r}; start_span() begins one")


def _is_recorded(transaction: Session, span_id: str) -> bool:
    """Whether the journal has such a span of a recorder, open or ended; its id says of which day it is."""
    try:
        day = day_of(time_of(span_id))
    except InvalidInput:
        return False
    store = transaction.store
    queries = (
        EventQuery(ids=(row,), since_us=day * DAY_US, until_us=(day + 1) * DAY_US)
        for row in (span_id, f"{span_id}:open")
    )
    return any(store.engine.scan(store.space, query, limit=1).records for query in queries)


# -----------------------------------------------------------------------------------------------------------
# Payloads by reference: JSON and text under an id that follows from the content.


def save_blob(kind: Literal["json", "text"], data: Any, session: Session | None = None) -> str:
    """Store a payload and give back its id; equal content of one kind has one id and is stored once.

    It is kept by whatever refers to it, and until then by itself. Forgetting the last run that refers to it
    removes it.
    """
    with within(session) as transaction:
        return transaction.put_object(_content(kind, data))


def _content(kind: str, data: Any) -> Content:
    if kind == "json":
        return Content("json", encode_json(data))
    if kind != "text":
        raise InvalidInput(f"a payload of the kind {kind!r} is not known; use 'json' or 'text'")
    if not isinstance(data, str):
        raise InvalidInput(f"a payload of the kind 'text' is a str, not {type(data).__name__}; use 'json'")
    return Content("text", data.encode())


# -----------------------------------------------------------------------------------------------------------
# A run, read back: what the endpoints ``/runs/{id}/timeline`` and ``/runs/{id}/cost`` give.


def get_run_timeline(
    run_id: str, limit: int = MAX_LINES, cursor: str | None = None, session: Session | None = None
) -> dict[str, Any]:
    """``{"events": [...], "next_cursor": ...}``: what happened, oldest first, at most ``limit`` lines.

    Pass ``next_cursor`` as ``cursor`` to go on. What a session has not committed is not in it.
    """
    store = current() if session is None else session.store
    store.flush()
    return timeline_report(store.engine, store.space, run_id, limit=limit, cursor=cursor, legacy=store.legacy)


def get_run_cost(run_id: str, session: Session | None = None) -> dict[str, Any]:
    """``{"by_agent": [...], "total": {...}}``: tokens and euros, each amount at the rate of its day."""
    store = current() if session is None else session.store
    store.flush()
    return cost_report(store.engine, store.space, run_id, legacy=store.legacy)

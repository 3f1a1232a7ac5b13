"""Write OTLP log records and metrics into the journal: usage of coding agents, messages, and plain logs.

Claude Code, Codex and Gemini CLI report what they do as log events that name a session. The session becomes a
run with that id, a model request a call with its tokens and cost, a tool result a tool call, a prompt a
message. Events of the GenAI conventions are messages of the run of their trace. Anything else is a row of
kind ``log``. Log records have no id, so the id of a row is made from its content: a record that is sent again
is the same row.

A data point of a metric is a row of kind ``metric``, in the run of the session that it names. What it counts
is not added to tokens or cost, which spans and logs report as well. A series that has not changed since the
last point is not written again (`Series`).
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, cast

from treering.core.batch import MAX_INLINE_BYTES, Event, Usage
from treering.core.encoding import encode, encode_json
from treering.core.ids import Scope
from treering.errors import InvalidInput
from treering.runs.money import to_cost
from treering.runs.otlp.attributes import (
    LLM,
    TOOL,
    as_count,
    as_list,
    clean_word,
    content_of,
    disjoint_usage,
    thread_of,
)
from treering.runs.otlp.decode import METRIC, Rejected
from treering.runs.otlp.traces import ATTRIBUTES, Trace
from treering.runs.prices import CURRENCY
from treering.runs.span import ERROR, OK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.core.batch import Draft
    from treering.core.content import Content
    from treering.runs.otlp.decode import ExportRequest, OtlpLog

_AGENT_PREFIXES: Final = ("claude_code", "codex", "gemini_cli", "qwen-code")
_AGENT_SERVICES: Final = ("claude-code", "codex_cli_rs", "gemini-cli")
_MAX_EVENT_NAME: Final = 100
_MAX_SERIES: Final = 10_000
_PROMPTS: Final = ("user_prompt",)
_REQUEST: Final = "api_request"
_CALLS: Final = (_REQUEST, "api_response")
_FAILURES: Final = ("api_error",)
_TOOL_RESULTS: Final = ("tool_result", "tool_call")
_STREAM_EVENT: Final = "sse_event"
"""Codex reports tokens in the event that ends a response."""
_MESSAGES: Final = {
    "gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool", "gen_ai.choice": "assistant",
}  # fmt: skip
_DETAILS: Final = "gen_ai.client.inference.operation.details"

_STATUSES: Final = ("http.response.status_code", "status_code")
_FIRST_FAILURE: Final = 400

_COSTS: Final = ("cost_usd",)
_INPUTS: Final = ("input_tokens", "input_token_count")
_OUTPUTS: Final = ("output_tokens", "output_token_count")
_READS: Final = ("cache_read_tokens", "cached_token_count", "cached_content_token_count")
_WRITES: Final = ("cache_creation_tokens",)
_REASONING: Final = ("reasoning_token_count", "thoughts_token_count")
_TOOL_INPUTS: Final = ("tool_parameters", "tool_input", "arguments", "function_args")
_TOOL_OUTPUTS: Final = ("tool_output", "output", "tool_result")


def run_of(log: OtlpLog) -> str | None:
    """Return the run that a record belongs to: its trace, or the session that it names."""
    session = thread_of(log.attributes) or clean_word(log.sender.resource.get("session.id"))
    if log.trace is not None and (session is None or _agent_event(log) is None):
        return log.trace
    return session


def assign_log_ids(request: ExportRequest) -> None:
    """Give the records of a request their ids. Equal records are numbered, in the order in which they came.

    A record that cannot be encoded is rejected.
    """
    copies: dict[str, int] = {}
    logs, request.logs = request.logs, []
    for log in logs:
        identity = [log.trace, log.span, log.ts_us, log.severity, log.event, log.body, log.attributes]
        identity += [log.sender.resource, log.kind]
        try:
            digest = blake2b(encode_json(identity), digest_size=12).digest()
        except InvalidInput as error:
            request.rejected.append(Rejected(f"log {log.event[:80]!r}", str(error)))
            continue
        name = "log." + urlsafe_b64encode(digest).decode()
        copies[name] = copies.get(name, 0) + 1
        log.id = name if copies[name] == 1 else f"{name}.{copies[name]}"
        request.logs.append(log)


def write_logs(draft: Draft, trace: Trace | None, logs: Iterable[OtlpLog]) -> None:
    """Write records of one run, or (``None``) of no run."""
    for log in logs:
        if trace is None:
            _write_log(draft, None, _Fields(log), log.body)
            continue
        trace.start(log.ts_us, thread=thread_of(log.attributes), agent=clean_word(log.sender.service))
        trace.extend(log.ts_us)
        _write_record(draft, trace, _Fields(log))


class Series:
    """Remembers the last point of each series of a metric, to tell those that have not changed."""

    def __init__(self) -> None:
        self._last: OrderedDict[bytes, Any] = OrderedDict()

    def is_unchanged(self, log: OtlpLog) -> bool:
        """Whether a record repeats the last point of its series. A delta is always new."""
        return log.kind == METRIC and _is_total(log) and self._last.get(_series(log), self) == log.body

    def remember(self, logs: Iterable[OtlpLog]) -> None:
        """Remember points that are durable."""
        for log in logs:
            if log.kind == METRIC and _is_total(log):
                key = _series(log)
                self._last[key] = log.body
                self._last.move_to_end(key)
        while len(self._last) > _MAX_SERIES:
            self._last.popitem(last=False)


def _is_total(log: OtlpLog) -> bool:
    return log.body.get("temporality") != "delta"


def _series(log: OtlpLog) -> bytes:
    identity = [log.event, log.attributes, log.sender.resource, log.sender.scope]
    return blake2b(encode_json(identity), digest_size=16).digest()


class _Fields:
    """A record whose attributes are removed as they are used; `rest` is what no column has."""

    def __init__(self, log: OtlpLog) -> None:
        self.log = log
        self.event = log.event or str(log.attributes.get("event.name") or "")
        self.rest = dict(log.attributes)

    def pop(self, *names: str) -> Any:
        """Remove and return the first of these attributes that has a value."""
        for name in names:
            if self.rest.get(name) not in (None, ""):
                return self.rest.pop(name)
        return None

    def pop_count(self, names: tuple[str, ...]) -> int:
        """Remove and return a number of tokens."""
        return as_count(self.pop(*names)) or 0


def _write_record(draft: Draft, trace: Trace, fields: _Fields) -> None:
    name = _agent_event(fields.log)
    if fields.log.kind == METRIC:
        _write_log(draft, trace, fields, fields.log.body)
    elif name is not None:
        _write_agent_event(draft, trace, fields, name)
    elif fields.event in _MESSAGES:
        _write_message(draft, trace, fields, role=_MESSAGES[fields.event], content=_message(fields.log))
    elif fields.event == _DETAILS:
        _write_details(draft, trace, fields)
    else:
        _write_log(draft, trace, fields, fields.log.body)


def _agent_event(log: OtlpLog) -> str | None:
    """Return the event that a coding agent reports; ``None`` for other records."""
    name = log.event or log.attributes.get("event.name") or log.body
    if not isinstance(name, str) or len(name) > _MAX_EVENT_NAME:
        return None
    prefix, _, event = name.rpartition(".")
    body = log.body
    is_agent = (
        prefix in _AGENT_PREFIXES
        or (isinstance(body, str) and body.partition(".")[0] in _AGENT_PREFIXES)
        or log.sender.service in _AGENT_SERVICES
    )
    return event if is_agent else None


def _write_agent_event(draft: Draft, trace: Trace, fields: _Fields, name: str) -> None:
    if name in _PROMPTS:
        prompt = fields.pop("prompt")
        length = fields.rest.get("prompt_length", "?")
        text = f"({length} characters, not sent)" if prompt is None else str(prompt)
        _write_message(draft, trace, fields, role="user", content=encode(text))
    elif name in _FAILURES or (name in _CALLS and _has_failed(fields)):
        _write_call(draft, trace, fields, status=ERROR)
    elif name == _REQUEST and not any(each in fields.rest for each in (*_INPUTS, *_OUTPUTS, *_COSTS)):
        _write_log(draft, trace, fields)  # Codex and Gemini CLI report the tokens with the response
    elif name in _CALLS or (name == _STREAM_EVENT and fields.rest.get("event.kind") == "response.completed"):
        _write_call(draft, trace, fields, status=OK)
    elif name in _TOOL_RESULTS:
        _write_tool(draft, trace, fields)
    else:
        _write_log(draft, trace, fields, fields.log.body)


def _has_failed(fields: _Fields) -> bool:
    status = next((as_count(fields.rest[name]) for name in _STATUSES if name in fields.rest), None)
    return bool(fields.rest.get("error.message")) or (status or 0) >= _FIRST_FAILURE


def _write_call(draft: Draft, trace: Trace, fields: _Fields, *, status: str) -> None:
    data: dict[str, Any] = {}
    if status == ERROR:
        data["error"] = {
            "type": str(fields.pop("error_type", *_STATUSES) or ""),
            "message": str(fields.pop("error", "error_message", "error.message") or "")[:2000],
        }
    duration_us = _micros(fields.pop("duration_ms"))
    model = clean_word(fields.pop("model", "slug"))
    usage = _pop_usage(fields)
    cost_nanos = _pop_cost(fields)
    _write_span(
        draft,
        trace,
        fields,
        kind=LLM,
        role="assistant",
        name=model,
        model=model,
        status=status,
        usage=usage,
        cost_nanos=cost_nanos,
        duration_us=duration_us,
        data=data,
    )


def _write_tool(draft: Draft, trace: Trace, fields: _Fields) -> None:
    has_failed = str(fields.pop("success")).lower() == "false"
    tool_input, output = fields.pop(*_TOOL_INPUTS), fields.pop(*_TOOL_OUTPUTS)
    data: dict[str, Any] = {}
    if has_failed:
        data["error"] = {"type": "", "message": str(fields.pop("error", "error_message") or "")[:2000]}
    name = clean_word(fields.pop("tool_name", "function_name")) or TOOL
    _write_span(
        draft,
        trace,
        fields,
        kind=TOOL,
        name=name,
        status=ERROR if has_failed else OK,
        duration_us=_micros(fields.pop("duration_ms")),
        input=None if tool_input is None else content_of(tool_input),
        output=None if output is None else content_of(output),
        data=data,
    )


def _write_details(draft: Draft, trace: Trace, fields: _Fields) -> None:
    """Write the messages of a model call, which are sent beside its span."""
    asked = as_list(fields.pop("gen_ai.input.messages"))
    answers = as_list(fields.pop("gen_ai.output.messages"))
    _write_log(draft, trace, fields, asked or None, as_json=True)
    for number, message in enumerate(answers):
        given = cast("dict[str, Any]", message) if isinstance(message, dict) else {}
        role = clean_word(given.get("role")) or "assistant"
        content = encode(message, keep_order=True)
        _write_message(draft, trace, fields, role=role, content=content, suffix=f":{number}")


def _write_span(
    draft: Draft,
    trace: Trace,
    fields: _Fields,
    *,
    kind: str,
    name: str | None,
    status: str,
    duration_us: int | None,
    data: dict[str, Any],
    role: str | None = None,
    model: str | None = None,
    usage: Usage | None = None,
    cost_nanos: int | None = None,
    input: Content | None = None,
    output: Content | None = None,
) -> None:
    """Write a record as the row of a finished span. The record was sent when the span ended."""
    data, overflow = _data(trace, fields, data)
    trace.writer.write_span(
        draft,
        id=fields.log.id,
        kind=kind,
        name=name or clean_word(fields.event) or kind,
        ts_us=max(fields.log.ts_us - (duration_us or 0), 1),
        duration_us=duration_us,
        status=status,
        parent=_parent(trace, fields.log),
        agent=_agent(trace, fields.log),
        model=model,
        role=role,
        usage=usage,
        cost_nanos=cost_nanos,
        currency=None if cost_nanos is None else CURRENCY,
        input=input,
        output=overflow or output,
        data=data,
    )


def _write_message(
    draft: Draft, trace: Trace, fields: _Fields, *, role: str, content: Content | None, suffix: str = ""
) -> None:
    data, overflow = _data(trace, fields, {}, with_attributes=not suffix)
    trace.writer.write_message(
        draft,
        id=fields.log.id + suffix,
        ts_us=max(fields.log.ts_us, 1),
        role=role,
        content=overflow or content,
        span=_parent(trace, fields.log),
        agent=_agent(trace, fields.log),
        name=clean_word(fields.event),
        data=data,
    )


def _write_log(
    draft: Draft, trace: Trace | None, fields: _Fields, body: Any = None, *, as_json: bool = False
) -> None:
    """Write a plain log record."""
    log = fields.log
    scope = (
        trace.writer.scope if trace is not None else str(Scope("", log.kind, log.sender.service or log.kind))
    )
    data, content = _data(trace, fields, {})
    if content is None and body is not None:
        content = encode(body, keep_order=True) if as_json else content_of(body)
    draft.event(
        Event(
            id=log.id,
            kind=log.kind,
            ts_us=max(log.ts_us, 1),
            scope=scope,
            run=None if trace is None else trace.id,
            span=_parent(trace, log),
            thread=None if trace is None else trace.writer.thread,
            agent=None if trace is None else _agent(trace, log),
            name=clean_word(fields.event),
            data=encode_json(data) if data else None,
            body=None if content is None else draft.put(content, scope=scope),
        )
    )


def _data(
    trace: Trace | None, fields: _Fields, data: dict[str, Any], *, with_attributes: bool = True
) -> tuple[dict[str, Any], Content | None]:
    """Return the data of a row, and what is too large for it: the body with everything else."""
    data = data if trace is None else {**trace.sender_fields(fields.log.sender), **data}
    if fields.log.severity:
        data["severity"] = fields.log.severity
    if fields.rest and with_attributes:
        data[ATTRIBUTES] = fields.rest
    if not data or len(encode_json(data)) <= MAX_INLINE_BYTES:
        return data, None
    large = {name: data.pop(name) for name in (ATTRIBUTES, "resource", "scope") if name in data}
    return data, encode({"body": fields.log.body, **large}, keep_order=True)


def _parent(trace: Trace | None, log: OtlpLog) -> str | None:
    """Return the id in the journal of the span that a record was sent in."""
    if log.span is None or log.trace is None:
        return None
    if trace is None or trace.id != log.trace:
        trace = Trace(log.trace)
    return trace.row_id(log.span)


def _agent(trace: Trace, log: OtlpLog) -> str | None:
    return trace.agent_above(_parent(trace, log), log.sender)


def _pop_usage(fields: _Fields) -> Usage | None:
    if not any(name in fields.rest for name in (*_INPUTS, *_OUTPUTS)):
        return None
    is_anthropic = "cache_read_tokens" in fields.rest or "cache_creation_tokens" in fields.rest
    tokens, output, read = fields.pop_count(_INPUTS), fields.pop_count(_OUTPUTS), fields.pop_count(_READS)
    write, reasoning = fields.pop_count(_WRITES), fields.pop_count(_REASONING)
    if is_anthropic:  # Claude Code counts the input without cached tokens
        return Usage(input=tokens, cache_read=read, cache_write=write, output=output)
    return disjoint_usage(tokens, output, read, write, reasoning)


def _pop_cost(fields: _Fields) -> int | None:
    cost = fields.pop(*_COSTS)
    try:
        return None if cost is None else to_cost(cost)
    except InvalidInput:
        fields.rest["cost_usd"] = cost
        return None


def _message(log: OtlpLog) -> Content | None:
    body = log.body
    if isinstance(body, dict):
        inner = cast("dict[str, Any]", body)
        if set(inner) == {"content"}:
            body = inner["content"]
    return None if body is None else content_of(body)


def _micros(milliseconds: Any) -> int | None:
    try:
        return None if milliseconds is None else max(int(float(milliseconds) * 1000), 0)
    except (TypeError, ValueError, OverflowError):
        return None

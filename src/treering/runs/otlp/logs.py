"""Log records into the journal: the usage that coding agents report, messages, and plain logs.

Claude Code, Codex and Gemini CLI tell what they do by log events that name a session: the session becomes a
run of that id, a request to the model a call with its tokens and cost, a tool's result a tool call, a prompt
a message. Events of the GenAI conventions are messages of the run of their trace. Anything else is a row of
the kind ``log``. A record has no id, so its row gets one from its content: what is sent again is the same
row.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from treering.core.batch import MAX_INLINE_BYTES, Event, Usage
from treering.core.encoding import encode, encode_json
from treering.core.ids import Scope
from treering.core.money import to_cost
from treering.errors import InvalidInput
from treering.runs.otlp.attributes import LLM, TOOL, as_count, content_of, disjoint, thread_of, word
from treering.runs.otlp.records import Refused
from treering.runs.otlp.traces import Trace
from treering.runs.prices import CURRENCY, fill_in
from treering.runs.span import ERROR, MESSAGE, OK, SPAN, input_fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from treering.core.batch import Draft
    from treering.core.content import Content
    from treering.runs.otlp.records import Received, ReceivedLog

LOG: Final = "log"

_TOOLS_OF: Final = ("claude_code", "codex", "gemini_cli", "qwen-code")
_PROMPTS: Final = ("user_prompt",)
_ASKED: Final = "api_request"
_CALLS: Final = (_ASKED, "api_response")
_FAILURES: Final = ("api_error",)
_TOOL_RESULTS: Final = ("tool_result", "tool_call")
_STREAMED: Final = "sse_event"
"""Codex counts tokens in the event that ends a response."""
_MESSAGES: Final = {
    "gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool", "gen_ai.choice": "assistant",
}  # fmt: skip
_DETAILS: Final = "gen_ai.client.inference.operation.details"

_STATUSES: Final = ("http.response.status_code", "status_code")
_LEAST_FAILURE: Final = 400

_COSTS: Final = ("cost_usd",)
_INPUTS: Final = ("input_tokens", "input_token_count")
_OUTPUTS: Final = ("output_tokens", "output_token_count")
_READS: Final = ("cache_read_tokens", "cached_token_count", "cached_content_token_count")
_WRITES: Final = ("cache_creation_tokens",)
_REASONING: Final = ("reasoning_token_count", "thoughts_token_count")
_TOOL_INPUTS: Final = ("tool_parameters", "tool_input", "arguments", "function_args")
_TOOL_OUTPUTS: Final = ("tool_output", "output", "tool_result")


def run_of(log: ReceivedLog) -> str | None:
    """The run that a record belongs to: its trace, or the session that it names."""
    session = thread_of(log.attributes) or word(log.source.resource.get("session.id"))
    if log.trace is not None and (session is None or _agent_event(log) is None):
        return log.trace
    return session


def name_logs(received: Received) -> None:
    """Give the records of one request their ids; equal ones are told apart by how often they came.

    A record that has no encoding is refused.
    """
    twins: dict[str, int] = {}
    logs, received.logs = received.logs, []
    for log in logs:
        told = [log.trace, log.span, log.ts_us, log.severity, log.event, log.body, log.attributes]
        told.append(log.source.resource)
        try:
            digest = blake2b(encode_json(told), digest_size=12).digest()
        except InvalidInput as error:
            received.refused.append(Refused(f"log {log.event[:80]!r}", str(error)))
            continue
        name = "log." + urlsafe_b64encode(digest).decode()
        twins[name] = twins.get(name, 0) + 1
        log.id = name if twins[name] == 1 else f"{name}.{twins[name]}"
        received.logs.append(log)


def write_logs(draft: Draft, trace: Trace | None, logs: Iterable[ReceivedLog]) -> None:
    """Write records of one run, or (``None``) of none."""
    for log in logs:
        row = _Row(draft, trace, log)
        name = _agent_event(log)
        if name is not None and trace is not None:
            _write_agent_event(row, name)
        elif trace is not None and row.event in _MESSAGES:
            row.write(kind=MESSAGE, role=_MESSAGES[row.event], content=_message(log))
        elif trace is not None and row.event == _DETAILS:
            _write_details(row)
        else:
            row.write(kind=LOG, content=None if log.body is None else content_of(log.body))


class _Row:
    """A record on its way into a draft; what is taken out of its attributes is told by columns."""

    def __init__(self, draft: Draft, trace: Trace | None, log: ReceivedLog) -> None:
        self.log = log
        self.event = log.event or str(log.attributes.get("event.name") or "")
        self.rest = dict(log.attributes)
        self._draft = draft
        self._trace = trace
        self._id = log.id
        if trace is not None:
            trace.begin(log.ts_us, thread=thread_of(log.attributes), agent=word(log.source.service))
            trace.reach(log.ts_us)

    def take(self, *names: str) -> Any:
        """The first of these attributes that says something, taken out."""
        for name in names:
            if self.rest.get(name) not in (None, ""):
                return self.rest.pop(name)
        return None

    def count(self, names: tuple[str, ...]) -> int:
        """A number of tokens, taken out."""
        return as_count(self.take(*names)) or 0

    def write(
        self,
        *,
        kind: str,
        content: Content | None = None,
        given: Content | None = None,
        suffix: str = "",
        role: str | None = None,
        name: str | None = None,
        model: str | None = None,
        status: str | None = None,
        usage: Usage | None = None,
        cost_nanos: int | None = None,
        duration_us: int | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        """Put the row into the draft."""
        log, trace = self.log, self._trace
        scope = trace.scope if trace is not None else str(Scope("", LOG, log.source.service or LOG))
        told: dict[str, Any] = {} if trace is None else trace.place_of(log.source)
        told |= data or {}
        if log.severity:
            told["severity"] = log.severity
        if self.rest and not suffix:
            told["attributes"] = self.rest
        links: tuple[Any, ...] = ()
        if given is not None:
            told |= input_fields(len(given.data))
            links = (self._draft.put(given, scope=scope),)
        encoded = encode_json(told) if told else None
        if encoded is not None and len(encoded) > MAX_INLINE_BYTES:
            large = {name: told.pop(name) for name in ("attributes", "resource", "scope") if name in told}
            content = encode({"body": log.body, **large}, keep_order=True)
            encoded = encode_json(told)
        is_span = kind.startswith(SPAN)
        event = Event(
            id=self._id + suffix,
            kind=kind,
            ts_us=max(log.ts_us - (duration_us or 0), 1),
            scope=scope,
            run=None if trace is None else trace.id,
            span=self._id + suffix if is_span else self._above(),
            parent=self._above() if is_span else None,
            thread=None if trace is None else trace.thread,
            agent=self._agent(),
            name=name or word(self.event),
            model=model,
            role=role,
            status=status,
            usage=usage,
            cost_nanos=cost_nanos,
            currency=None if cost_nanos is None else CURRENCY,
            duration_us=duration_us,
            data=encoded,
            body=None if content is None else self._draft.put(content, scope=scope),
            links=links,
        )
        self._draft.event(fill_in(event))

    def _above(self) -> str | None:
        log, trace = self.log, self._trace
        if log.span is None or log.trace is None:
            return None
        if trace is None or trace.id != log.trace:
            trace = Trace(log.trace)
        return trace.name_of(log.span)

    def _agent(self) -> str | None:
        trace = self._trace
        if trace is None:
            return None  # a log that belongs to no run is nobody's work
        return trace.agent_above(self._above()) or (None if trace.info is None else trace.info.agent)


def _agent_event(log: ReceivedLog) -> str | None:
    """What a coding agent's event says has happened; ``None`` for other records."""
    name = log.event or log.attributes.get("event.name") or log.body
    if not isinstance(name, str) or len(name) > 100:  # noqa: PLR2004 - no event has a longer name
        return None
    maker, _, rest = name.rpartition(".")
    if maker in _TOOLS_OF:
        return rest
    body = log.body
    if isinstance(body, str) and body.partition(".")[0] in _TOOLS_OF:
        return rest
    return rest if log.source.service in ("claude-code", "codex_cli_rs", "gemini-cli") else None


def _write_agent_event(row: _Row, name: str) -> None:
    if name in _PROMPTS:
        prompt = row.take("prompt")
        text = (
            f"({row.rest.get('prompt_length', '?')} characters, not sent)" if prompt is None else str(prompt)
        )
        row.write(kind=MESSAGE, role="user", content=encode(text))
    elif name in _FAILURES or (name in _CALLS and _has_failed(row)):
        _write_call(row, status=ERROR)
    elif name == _ASKED and not any(each in row.rest for each in (*_INPUTS, *_OUTPUTS, *_COSTS)):
        row.write(kind=LOG)  # Codex and Gemini CLI tell what it took when the answer has come
    elif name in _CALLS or (name == _STREAMED and row.rest.get("event.kind") == "response.completed"):
        _write_call(row, status=OK)
    elif name in _TOOL_RESULTS:
        _write_tool(row)
    else:
        body = row.log.body
        row.write(kind=LOG, content=None if body is None else content_of(body))


def _has_failed(row: _Row) -> bool:
    status = next((as_count(row.rest[name]) for name in _STATUSES if name in row.rest), None)
    return bool(row.rest.get("error.message")) or (status or 0) >= _LEAST_FAILURE


def _write_call(row: _Row, *, status: str) -> None:
    data: dict[str, Any] = {}
    if status == ERROR:
        data["error"] = {
            "type": str(row.take("error_type", *_STATUSES) or ""),
            "message": str(row.take("error", "error_message", "error.message") or "")[:2000],
        }
    duration_us = _micros(row.take("duration_ms"))
    model = word(row.take("model", "slug"))
    usage = _usage(row)
    row.write(
        kind=SPAN + LLM,
        role="assistant",
        name=model,
        model=model,
        status=status,
        usage=usage,
        cost_nanos=_nanos(row),
        duration_us=duration_us,
        data=data,
    )


def _usage(row: _Row) -> Usage | None:
    if not any(name in row.rest for name in (*_INPUTS, *_OUTPUTS)):
        return None
    is_anthropic = "cache_read_tokens" in row.rest or "cache_creation_tokens" in row.rest
    given, output, read = row.count(_INPUTS), row.count(_OUTPUTS), row.count(_READS)
    write, reasoning = row.count(_WRITES), row.count(_REASONING)
    if is_anthropic:  # Claude Code counts the input without what the cache gave
        return Usage(input=given, cache_read=read, cache_write=write, output=output)
    return disjoint(given, output, read, write, reasoning)


def _nanos(row: _Row) -> int | None:
    told = row.take(*_COSTS)
    try:
        return None if told is None else to_cost(told)
    except InvalidInput:
        row.rest["cost_usd"] = told
        return None


def _write_tool(row: _Row) -> None:
    success = row.take("success")
    failed = str(success).lower() == "false"
    given, came = row.take(*_TOOL_INPUTS), row.take(*_TOOL_OUTPUTS)
    data: dict[str, Any] = {}
    if failed:
        data["error"] = {"type": "", "message": str(row.take("error", "error_message") or "")[:2000]}
    row.write(
        kind=SPAN + TOOL,
        name=word(row.take("tool_name", "function_name")) or TOOL,
        status=ERROR if failed else OK,
        duration_us=_micros(row.take("duration_ms")),
        given=None if given is None else content_of(given),
        content=None if came is None else content_of(came),
        data=data,
    )


def _write_details(row: _Row) -> None:
    """The content of a call, beside its span: what was asked last, and what came out."""
    asked = _listed(row.take("gen_ai.input.messages"))
    came = _listed(row.take("gen_ai.output.messages"))
    row.write(kind=LOG, content=encode(asked, keep_order=True) if asked else None)
    for number, message in enumerate(came):
        told = cast("dict[str, Any]", message) if isinstance(message, dict) else {}
        role = word(told.get("role")) or "assistant"
        row.write(kind=MESSAGE, role=role, content=encode(message, keep_order=True), suffix=f":{number}")


def _message(log: ReceivedLog) -> Content | None:
    body = log.body
    if isinstance(body, dict):
        inner = cast("dict[str, Any]", body)
        if set(inner) == {"content"}:
            body = inner["content"]
    return None if body is None else content_of(body)


def _listed(value: Any) -> list[Any]:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return [value]
    return cast("list[Any]", value) if isinstance(value, list) else [] if value is None else [value]


def _micros(milliseconds: Any) -> int | None:
    try:
        return None if milliseconds is None else max(int(float(milliseconds) * 1000), 0)
    except (TypeError, ValueError, OverflowError):
        return None

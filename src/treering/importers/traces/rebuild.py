"""Rebuild the exchange of a call from its span: the request as it was sent, and the answer as it came.

Instrumentations keep more or less of a call. OpenInference and Langfuse keep the parameters that the SDK was
given, which are the body of its request; conventions such as OpenTelemetry's keep the messages only, and a
request cannot be told from them. **Invariant:** an exchange is made only of what was recorded. What a call
lacks is a `NotWhole`, never a guess, with two exceptions that a replay does not compare: the host, and the id
and time of an answer of which only the message was kept.

Streamed answers come as one stream of events with the same content; where the pieces were cut is not in any
export.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit

import msgspec

from treering.core.encoding import decode
from treering.runs.exchanges import CallError, Exchange
from treering.runs.otlp.attributes import LLM, TOOL, ParsedSpan, parse_span
from treering.runs.otlp.decode import STATUS_ERROR, OtlpSpan

_LANGFUSE: Final = "langfuse.observation."
_LANGFUSE_DEFAULTS: Final[dict[str, Any]] = {
    "temperature": 1,
    "max_tokens": "Infinity",
    "top_p": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
}
"""What Langfuse's SDK writes for a parameter that was not given."""
_Format = Literal["chat", "responses", "anthropic", "gemini"]
_URLS: Final[dict[_Format, str]] = {
    "chat": "https://api.openai.com/v1/chat/completions",
    "responses": "https://api.openai.com/v1/responses",
    "anthropic": "https://api.anthropic.com/v1/messages",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/models/{model}:generateContent",
}
_JSON: Final = {"content-type": "application/json"}
_STREAM: Final = {"content-type": "text/event-stream"}


class NotWhole(Exception):
    """A span does not hold its whole call."""


def rebuild_exchange(span: OtlpSpan) -> Exchange | None:
    """Return the exchange of a span; ``None`` for one that is no call of a model or tool.

    Raises:
        NotWhole: The span does not have the whole request or answer.
    """
    parsed = parse_span(span)
    try:
        if parsed.kind == TOOL:
            return _tool(span, parsed)
        if parsed.kind == LLM:
            return _model(span, parsed)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise NotWhole(f"{parsed.kind} {span.name!r}: its content is malformed ({error!r:.80})") from None
    if parsed.kind == "embedding":
        raise NotWhole("embedding calls: exports do not have their vectors")
    return None


def _error(span: OtlpSpan) -> CallError | None:
    if span.status != STATUS_ERROR:
        return None
    for event in span.events:
        if event["name"] == "exception":
            given = event["attributes"]
            return CallError(str(given.get("exception.type")), str(given.get("exception.message") or ""))
    return CallError("Error", span.status_message)


def _tool(span: OtlpSpan, parsed: ParsedSpan) -> Exchange:
    error = _error(span)
    if parsed.output is None and error is None:
        raise NotWhole(f"tool {parsed.name!r}: its output is not in the trace")
    given: Any = {} if parsed.input is None else decode(parsed.input)
    return Exchange(
        kind="tool",
        name=parsed.name,
        request={"arguments": given},
        answer=None if parsed.output is None else decode(parsed.output),
        error=error,
        started_at_us=span.start_us,
        duration_us=span.end_us - span.start_us,
    )


def _model(span: OtlpSpan, parsed: ParsedSpan) -> Exchange:
    body = _body(span, parsed)
    form = _format(body, parsed)
    url = _URLS[form].format(model=body.get("model") or parsed.model)
    error = _error(span)
    headers: dict[str, str] = {}
    answer: str | None = None
    if error is None:
        answer, headers = _answer(span, parsed, form, body)
    return Exchange(
        kind="http",
        name=f"POST {urlsplit(url).path}",
        request={
            "method": "POST",
            "url": url,
            "headers": _JSON,
            "body": body,
        },
        answer=answer,
        status=200 if error is None else None,
        headers=headers,
        error=error,
        started_at_us=span.start_us,
        duration_us=span.end_us - span.start_us,
        model=parsed.model,
    )


def _body(span: OtlpSpan, parsed: ParsedSpan) -> dict[str, Any]:
    """Return the body of a request to a model."""
    attributes = span.attributes
    given = _parsed(attributes.get("input.value"))
    if isinstance(given, dict):
        body = cast("dict[str, Any]", given)
        if "model" not in body and parsed.model is not None:
            body = {"model": parsed.model, **body}
    elif _LANGFUSE + "input" in attributes:
        body = _langfuse_body(attributes, parsed)
    elif parsed.input is None:
        raise NotWhole(f"model call {span.name!r}: its input is not in the trace")
    else:
        raise NotWhole(
            f"model call {span.name!r}: the instrumentation kept its messages, and not the request"
        )
    messages = next((body[key] for key in ("messages", "input", "contents") if key in body), None)
    if messages is None or (isinstance(messages, list) and messages and isinstance(messages[0], list)):
        raise NotWhole(
            f"model call {span.name!r}: what was kept is the input of a framework, not the request"
        )
    return {name: value for name, value in body.items() if value is not None}


def _langfuse_body(attributes: Mapping[str, Any], parsed: ParsedSpan) -> dict[str, Any]:
    given = _parsed(attributes[_LANGFUSE + "input"])
    body: dict[str, Any] = {"model": parsed.model} if parsed.model else {}
    if isinstance(given, list):
        body["messages"] = given
    elif isinstance(given, dict):
        body |= cast("dict[str, Any]", given)
    parameters = _parsed(attributes.get(_LANGFUSE + "model.parameters"))
    if isinstance(parameters, dict):
        body |= {
            name: value
            for name, value in cast("dict[str, Any]", parameters).items()
            if _LANGFUSE_DEFAULTS.get(name, attributes) != value
        }
    if attributes.get(_LANGFUSE + "completion_start_time"):
        body["stream"] = True
    return body


def _format(body: Mapping[str, Any], parsed: ParsedSpan) -> _Format:
    if "contents" in body:
        return "gemini"
    if "input" in body and "messages" not in body:
        return "responses"
    provider = (parsed.provider or "").lower()
    return "anthropic" if "anthropic" in provider or "claude" in str(body.get("model")) else "chat"


def _answer(
    span: OtlpSpan, parsed: ParsedSpan, form: _Format, body: Mapping[str, Any]
) -> tuple[str, dict[str, str]]:
    """Return the answer of a model as it was sent, whole or as a stream, and its headers."""
    given = span.attributes.get("output.value", span.attributes.get(_LANGFUSE + "output"))
    reply: Any = _parsed(given)
    if reply is None:
        raise NotWhole(f"model call {span.name!r}: its output is not in the trace")
    whole = cast("dict[str, Any]", reply) if isinstance(reply, dict) else {}
    is_stream = bool(body.get("stream"))
    if form == "chat":
        completion = whole if whole.get("choices") else _completion(span, parsed, reply)
        if "message" not in completion["choices"][0]:
            raise NotWhole(f"model call {span.name!r}: its answer is in a form that is not known")
        return (_chat_stream(completion), _STREAM) if is_stream else (_json(completion), _JSON)
    keys = {"responses": "output", "anthropic": "content", "gemini": "candidates"}
    if keys[form] not in whole:
        raise NotWhole(f"model call {span.name!r}: of its answer only the message was kept")
    if is_stream and form != "anthropic":
        raise NotWhole(f"model call {span.name!r}: its streamed answer cannot be rebuilt")
    return (_anthropic_stream(whole), _STREAM) if is_stream else (_json(whole), _JSON)


def _completion(span: OtlpSpan, parsed: ParsedSpan, reply: Any) -> dict[str, Any]:
    """Return the completion around a message, or a text, that was kept of it."""
    message = cast("dict[str, Any]", reply) if isinstance(reply, dict) else {"content": reply}
    usage = parsed.usage
    completion: dict[str, Any] = {
        "id": f"chatcmpl-{span.id}",
        "object": "chat.completion",
        "created": span.start_us // 1_000_000,
        "model": parsed.model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, **message},
                "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            }
        ],
    }
    if usage is not None:
        sent = usage.input + usage.cache_read + usage.cache_write
        completion["usage"] = {
            "prompt_tokens": sent,
            "completion_tokens": usage.output,
            "total_tokens": sent + usage.output,
        }
    return completion


def _chat_stream(completion: Mapping[str, Any]) -> str:
    choice: dict[str, Any] = completion["choices"][0]
    message: dict[str, Any] = choice["message"]
    about = {
        "id": completion.get("id"),
        "object": "chat.completion.chunk",
        "created": completion.get("created"),
        "model": completion.get("model"),
    }
    calls: list[dict[str, Any]] = [
        {"index": index, **each} for index, each in enumerate(message.get("tool_calls") or ())
    ]
    delta: dict[str, Any] = {**message, "role": "assistant", **({"tool_calls": calls} if calls else {})}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": choice.get("finish_reason") or "stop"}]},
    ]
    if completion.get("usage"):
        chunks.append({"choices": [], "usage": completion["usage"]})
    return "".join(f"data: {_json({**about, **each})}\n\n" for each in chunks) + "data: [DONE]\n\n"


def _anthropic_stream(message: Mapping[str, Any]) -> str:
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {**message, "content": []}}]
    for index, block in enumerate(message["content"]):
        start, delta = dict(block), dict[str, Any]()
        if block.get("type") == "text":
            start["text"], delta = "", {"type": "text_delta", "text": block["text"]}
        elif block.get("type") == "tool_use":
            start["input"] = {}
            delta = {"type": "input_json_delta", "partial_json": _json(block.get("input") or {})}
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        if delta:
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    ended = {name: message.get(name) for name in ("stop_reason", "stop_sequence")}
    events += [
        {"type": "message_delta", "delta": ended, "usage": message.get("usage") or {}},
        {"type": "message_stop"},
    ]
    return "".join(f"event: {each['type']}\ndata: {_json(each)}\n\n" for each in events)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _parsed(value: Any) -> Any:
    """Return JSON text as its value, and anything else as it is."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value
    return value

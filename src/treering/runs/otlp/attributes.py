"""What the attributes of a span mean, in whichever of the conventions they are written.

OpenTelemetry's GenAI conventions (the present names and those before them), OpenInference, OpenLLMetry,
Logfire and Vercel's AI SDK say the same few things by many names. The tables below list the names of each
thing, the one to be believed first. What has been understood is taken out of the attributes.
**Invariant:** what is left in ``rest``, together with what was understood, is everything that came; nothing
is dropped.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec
import orjson

from treering.core.batch import Usage
from treering.core.content import Content
from treering.core.encoding import encode
from treering.core.ids import MAX_ID_CHARS
from treering.runs.otlp.records import CLIENT, ReceivedSpan

# -----------------------------------------------------------------------------------------------------------
# Messages that were spread over many attributes, put together again.
#
# Attribute values are flat, so OpenInference writes ``llm.input_messages.0.message.role`` and OpenLLMetry
# ``gen_ai.prompt.0.role``. What lies below a prefix becomes lists and dicts again; a wrapper that only says
# what its content is (``message``, ``tool_call``) is left out.


_WRAPPERS: Final = frozenset({"message", "tool_call", "message_content", "document", "embedding", "tool"})
_MOST: Final = 10_000
"""No list is longer; a hostile index must not make one."""


def take_below(attributes: dict[str, Any], prefix: str) -> list[Any] | None:
    """Take everything below a prefix out of the attributes, as a list; ``None`` when there is nothing."""
    start = len(prefix)
    keys = [key for key in attributes if key.startswith(prefix) and key[start : start + 1].isdecimal()]
    if not keys:
        return None
    root: dict[str, Any] = {}
    for key in keys:
        _place(root, key[len(prefix) :].split("."), attributes.pop(key))
    whole = _listed(root)
    return cast("list[Any]", whole) if isinstance(whole, list) else [whole]


def _place(root: dict[str, Any], path: list[str], value: Any) -> None:
    place = root
    for step in path[:-1]:
        below = place.get(step)
        if not isinstance(below, dict):
            below = place[step] = {} if below is None else {"": below}
        place = cast("dict[str, Any]", below)
    last = path[-1]
    if isinstance(place.get(last), dict):
        place[last][""] = value
    else:
        place[last] = value


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    if fields and all(key.isdecimal() and int(key) < _MOST for key in fields):
        return [_listed(fields[key]) for key in sorted(fields, key=int)]
    if len(fields) == 1:
        ((name, inner),) = fields.items()
        if name in _WRAPPERS:
            return _listed(inner)
    return {name: _listed(inner) for name, inner in fields.items()}


# -----------------------------------------------------------------------------------------------------------

AGENT: Final = "agent"
LLM: Final = "llm"
TOOL: Final = "tool"
STEP: Final = "step"
"""A span that says of itself nothing that we know."""

_MOST_TOKENS: Final = 1 << 50

_OPERATIONS: Final = {
    "chat": LLM, "text_completion": LLM, "completion": LLM, "generate_content": LLM, "responses": LLM,
    "message": LLM, "embeddings": "embedding", "execute_tool": TOOL, "invoke_agent": AGENT,
    "create_agent": AGENT, "invoke_workflow": "workflow", "retrieval": "retrieval", "search": "retrieval",
    "search_memory": "memory", "create_memory": "memory", "update_memory": "memory",
    "upsert_memory": "memory", "delete_memory": "memory", "plan": "reasoning",
}  # fmt: skip
_OPENINFERENCE: Final = {
    "LLM": LLM, "AGENT": AGENT, "TOOL": TOOL, "RETRIEVER": "retrieval", "EMBEDDING": "embedding",
    "RERANKER": "reranker", "CHAIN": "chain", "GUARDRAIL": "guardrail", "EVALUATOR": "evaluator",
    "PROMPT": "prompt", "DECISION": "reasoning",
}  # fmt: skip
_TRACELOOP: Final = {"agent": AGENT, "tool": TOOL, "workflow": "workflow", "task": "task"}
_VERCEL: Final = {
    "ai.generateText": "chain", "ai.generateText.doGenerate": LLM,
    "ai.streamText": "chain", "ai.streamText.doStream": LLM,
    "ai.generateObject": "chain", "ai.generateObject.doGenerate": LLM,
    "ai.streamObject": "chain", "ai.streamObject.doStream": LLM,
    "ai.embed": "chain", "ai.embed.doEmbed": "embedding",
    "ai.embedMany": "chain", "ai.embedMany.doEmbed": "embedding", "ai.toolCall": TOOL,
}  # fmt: skip
_REQUESTS: Final = {"chat": LLM, "completion": LLM, "embedding": "embedding", "rerank": "reranker"}
_KINDS: Final = (
    ("openinference.span.kind", _OPENINFERENCE),
    ("gen_ai.operation.name", _OPERATIONS),
    ("traceloop.span.kind", _TRACELOOP),
    ("llm.request.type", _REQUESTS),
    ("ai.operationId", _VERCEL),
)

_TOLD: Final = frozenset({*_OPENINFERENCE, *_TRACELOOP} - {"DECISION"}) | {
    "chat", "embeddings", "embedding", "execute_tool", "invoke_agent", "invoke_workflow", "retrieval",
}  # fmt: skip
"""Words that the kind of a span says as well; others stay among its attributes."""

_MODELS: Final = (
    "gen_ai.response.model", "gen_ai.request.model", "llm.response.model_name", "llm.model_name",
    "llm.request.model_name", "embedding.model_name", "reranker.model_name", "llm.response.model",
    "llm.request.model", "ai.response.model", "ai.model.id",
)  # fmt: skip
_PROVIDERS: Final = (
    "gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system", "llm.vendor", "ai.model.provider",
)  # fmt: skip
_AGENTS: Final = ("gen_ai.agent.name", "agent.name", "agent_name", "traceloop.agent.name")
_TOOLS: Final = ("gen_ai.tool.name", "tool.name", "ai.toolCall.name")
_THREADS: Final = (
    "gen_ai.conversation.id", "session.id", "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id", "traceloop.association.properties.conversation_id",
    "langfuse.session.id", "conversation.id",
)  # fmt: skip
_TIERS: Final = (
    "openai.response.service_tier", "gen_ai.openai.response.service_tier", "gen_ai.response.service_tier",
)  # fmt: skip
_COSTS: Final = ("gen_ai.usage.cost", "llm.cost.total", "operation.cost", "gen_ai.usage.total_cost")

_INPUT_TOKENS: Final = ("gen_ai.usage.input_tokens", "llm.token_count.prompt", "gen_ai.usage.prompt_tokens",
                        "llm.usage.prompt_tokens", "ai.usage.inputTokens", "ai.usage.promptTokens",
                        "ai.usage.tokens")  # fmt: skip
_OUTPUT_TOKENS: Final = ("gen_ai.usage.output_tokens", "llm.token_count.completion",
                         "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens",
                         "ai.usage.outputTokens", "ai.usage.completionTokens")  # fmt: skip
_CACHE_READ: Final = (
    "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens",
    "llm.token_count.prompt_details.cache_read", "gen_ai.usage.details.cache_read_tokens",
    "gen_ai.usage.input_tokens.cached", "llm.token_count.prompt_details.cache_input",
    "ai.usage.inputTokenDetails.cacheReadTokens", "ai.usage.cachedInputTokens",
)  # fmt: skip
_CACHE_WRITE: Final = (
    "gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens",
    "llm.token_count.prompt_details.cache_write", "gen_ai.usage.details.cache_write_tokens",
    "ai.usage.inputTokenDetails.cacheWriteTokens",
)  # fmt: skip
_REASONING: Final = (
    "gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.reasoning_tokens", "llm.usage.reasoning_tokens",
    "llm.token_count.completion_details.reasoning", "gen_ai.usage.details.reasoning_tokens",
    "ai.usage.outputTokenDetails.reasoningTokens", "ai.usage.reasoningTokens",
)  # fmt: skip
_TOTAL: Final = ("llm.token_count.total", "llm.usage.total_tokens", "gen_ai.usage.total_tokens")
_SELDOM: Final = frozenset((*_TIERS, *_COSTS, *_CACHE_READ, *_CACHE_WRITE, *_REASONING, *_TOTAL))
_ANY_THREAD: Final = frozenset(_THREADS)
"""Most spans have none of these, and one look at all of them is cheaper than one at each."""

_INPUTS: Final = (
    "gen_ai.input.messages", "gen_ai.tool.call.arguments", "tool_arguments", "gen_ai.retrieval.query.text",
    "input.value", "traceloop.entity.input", "gen_ai.prompt", "ai.prompt.messages", "ai.prompt",
    "ai.toolCall.args",
)  # fmt: skip
_OUTPUTS: Final = (
    "gen_ai.output.messages", "gen_ai.tool.call.result", "tool_response", "gen_ai.retrieval.documents",
    "output.value", "traceloop.entity.output", "gen_ai.completion", "final_result", "ai.response.text",
    "ai.response.object", "ai.response.toolCalls", "ai.toolCall.result",
)  # fmt: skip
_SPREAD_INPUTS: Final = ("llm.input_messages.", "gen_ai.prompt.", "llm.prompts.")
_SPREAD_OUTPUTS: Final = (
    "llm.output_messages.",
    "gen_ai.completion.",
    "retrieval.documents.",
    "llm.choices.",
)
_INSTRUCTIONS: Final = "gen_ai.system_instructions"
_PREFIXES: Final = ("invoke_agent ", "execute_tool ", "invoke_workflow ")


class Meaning(msgspec.Struct, gc=False):
    """A span as treering sees it; ``rest`` are the attributes that nothing else here tells."""

    kind: str
    name: str
    agent: str | None
    model: str | None
    provider: str | None
    thread: str | None
    usage: Usage | None
    cost: float | str | None
    service_tier: str | None
    input: Content | None
    output: Content | None
    rest: dict[str, Any]


def meaning_of(span: ReceivedSpan) -> Meaning:
    """Read the attributes of a span."""
    rest = dict(span.attributes)
    kind = _kind(rest)
    tool = _take(rest, _TOOLS) if kind == TOOL else None
    agent = _take(rest, _AGENTS)
    entity = rest.get("traceloop.entity.name")
    short = _short(span.name)
    name = tool or (word(entity) if entity is not None and kind in (AGENT, TOOL) else None)
    name = name or word(short) or kind
    if tool is None and name not in (span.name, short) and span.name != entity:
        rest["otel.span.name"] = span.name
    if kind == AGENT and agent is None:
        agent = name
    counts = kind in (LLM, "embedding", "reranker") or (kind == AGENT and span.kind == CLIENT)
    counts = counts or (kind == "chain" and "ai.operationId" in rest)  # the AI SDK's sum over its steps
    is_model = counts or kind in ("chain", STEP)
    is_more = counts and not _SELDOM.isdisjoint(rest)
    is_spread = ".0." in "\n".join(rest)
    return Meaning(
        kind=kind,
        name=name,
        agent=agent,
        model=_take(rest, _MODELS) if is_model else None,
        provider=_take(rest, _PROVIDERS) if is_model else None,
        thread=thread_of(rest),
        usage=_usage(rest, is_more=is_more) if counts else None,
        cost=_cost(rest) if is_more else None,
        service_tier=_take(rest, _TIERS) if is_more else None,
        input=_input(rest, kind, is_spread=is_spread),
        output=_output(rest, kind, is_spread=is_spread),
        rest=rest,
    )


def thread_of(attributes: dict[str, Any]) -> str | None:
    """The conversation or session that attributes name."""
    return None if _ANY_THREAD.isdisjoint(attributes) else word(_peek(attributes, _THREADS))


def word(value: Any) -> str | None:
    """A text that can stand in a column; one that cannot is cut and cleaned. ``None`` for no text."""
    if value is None or value == "":
        return None
    text = value if isinstance(value, str) else str(value)
    if len(text) <= MAX_ID_CHARS and text.isprintable() and not text.isspace():
        return text
    clean = "".join(each if each.isprintable() else " " for each in text[:MAX_ID_CHARS]).strip()
    return clean or None


def content_of(value: Any) -> Content:
    """Content of an attribute's value; text that is a JSON object or array is kept as what it says."""
    if not isinstance(value, str):
        return encode(value, keep_order=True)
    data = value.encode("utf-8", "replace")
    if value[:1] in ("{", "["):
        try:
            parsed = orjson.loads(data)
        except orjson.JSONDecodeError:
            return Content("text", data)
        # What looks like a tag of `core.encoding` is escaped by it; the rest is good as it stands.
        is_tagged = "$" in value and '{"$' in value
        return encode(parsed, keep_order=True) if is_tagged else Content("json", data)
    return Content("text", data)


def _kind(rest: dict[str, Any]) -> str:
    for name, known in _KINDS:
        said = rest.get(name)
        if said is not None:
            kind = known.get(said if isinstance(said, str) else "")
            if kind is not None:
                if said in _TOLD:
                    del rest[name]
                return kind
    if "gen_ai.tool.name" in rest or "tool.name" in rest:
        return TOOL
    if "gen_ai.request.model" in rest or "llm.model_name" in rest or "llm.request.model" in rest:
        return LLM
    if "agent_name" in rest:  # what pydantic-ai wrote before it knew the convention
        return AGENT
    return STEP


def _short(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def _take(rest: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of these that is there, as a word; it stays if the word does not say all of it.

    The others go as well when they say the same.
    """
    found: Any = None
    text: str | None = None
    for name in names:
        value = rest.get(name)
        if value is not None and value != "":
            if found is None:
                found, text = value, word(value)
            if value == found and text == value:
                del rest[name]
    return text


def _peek(rest: dict[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if rest.get(name):
            return rest[name]
    return None


def _count(rest: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        if name in rest:
            number = as_count(rest[name])
            if number is not None:
                del rest[name]
                return number
    return None


def as_count(value: Any) -> int | None:
    """A number of tokens; ``None`` for what is none."""
    if type(value) is not int:
        if isinstance(value, bool):
            return None
        try:
            value = int(value)
        except (TypeError, ValueError, OverflowError):
            return None
    return value if 0 <= value < _MOST_TOKENS else None


def _usage(rest: dict[str, Any], *, is_more: bool) -> Usage | None:
    """Tokens by disjoint class: the conventions count what the cache gave into the input."""
    given = _count(rest, _INPUT_TOKENS)
    output = _count(rest, _OUTPUT_TOKENS)
    if not is_more:
        return None if given is None and output is None else Usage(input=given or 0, output=output or 0)
    read = _count(rest, _CACHE_READ)
    write = _count(rest, _CACHE_WRITE)
    reasoning = _count(rest, _REASONING)
    if given is None and output is None and read is None and write is None:
        total = _count(rest, _TOTAL)
        return None if total is None else Usage(input=total)
    usage = disjoint(given or 0, output or 0, read or 0, write or 0, reasoning or 0)
    for name in _TOTAL:
        if name in rest and as_count(rest[name]) == usage.total:
            del rest[name]
    return usage


def disjoint(given: int, output: int, read: int, write: int, reasoning: int) -> Usage:
    """Usage out of counts where the input includes what the cache gave.

    Where that cannot be, because the cache gave more than there was, the input was counted without it.
    """
    cached = read + write
    return Usage(
        input=given - cached if cached <= given else given,
        cache_read=read,
        cache_write=write,
        output=output,
        reasoning=min(reasoning, output),
    )


def _cost(rest: dict[str, Any]) -> float | str | None:
    for name in _COSTS:
        if name in rest and isinstance(rest[name], (int, float, str)) and rest[name] is not True:
            return rest.pop(name)
    return None


def _input(rest: dict[str, Any], kind: str, *, is_spread: bool) -> Content | None:
    if is_spread and kind == LLM:
        spread = _spread(rest, _SPREAD_INPUTS)
        if spread is not None:
            return encode(spread, keep_order=True)
    found = _value(rest, _INPUTS, "input.mime_type")
    instructions = rest.get(_INSTRUCTIONS)
    if instructions is None or (found is None and kind != LLM):
        return None if found is None else content_of(found)
    del rest[_INSTRUCTIONS]
    messages = _parsed(found)
    told = {"role": "system", "parts": _parsed(instructions)}
    if messages is None:
        return encode([told], keep_order=True)
    listed: list[Any] = cast("list[Any]", messages) if isinstance(messages, list) else [messages]
    return encode([told, *listed], keep_order=True)


def _output(rest: dict[str, Any], kind: str, *, is_spread: bool) -> Content | None:
    if is_spread and kind in (LLM, "retrieval"):
        spread = _spread(rest, _SPREAD_OUTPUTS)
        if spread is not None:
            return encode(spread, keep_order=True)
    found = _value(rest, _OUTPUTS, "output.mime_type")
    return None if found is None else content_of(found)


def _value(rest: dict[str, Any], names: tuple[str, ...], mime: str) -> Any:
    for name in names:
        if name in rest:
            value = rest.pop(name)
            if rest.get(mime) in ("application/json", "text/plain"):
                del rest[mime]
            return value
    return None


def _spread(rest: dict[str, Any], prefixes: tuple[str, ...]) -> list[Any] | None:
    spread = [key for key in rest if ".0." in key]
    for prefix in prefixes:
        if any(key.startswith(prefix) for key in spread):
            return take_below(rest, prefix)
    return None


def _parsed(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value

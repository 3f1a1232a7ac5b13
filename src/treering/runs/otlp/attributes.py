"""Understand the attributes of a span, whichever conventions it follows.

OpenTelemetry's GenAI conventions (current and earlier names), OpenInference, OpenLLMetry, Logfire and
Vercel's AI SDK say the same few things under many names. The tables below list the names of each, the most
reliable first. What is understood is removed from the attributes. **Invariant:** the fields of a `ParsedSpan`
and its ``rest`` together contain every attribute that was sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
import orjson

from treering.core.batch import Usage
from treering.core.content import Content
from treering.core.encoding import encode
from treering.core.ids import MAX_ID_CHARS
from treering.runs.otlp.decode import KIND_CLIENT, OtlpSpan

AGENT: Final = "agent"
LLM: Final = "llm"
TOOL: Final = "tool"
STEP: Final = "step"
"""A span of no known kind."""

_MAX_TOKENS: Final = 1 << 50

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
_LANGFUSE: Final = {
    "generation": LLM, "agent": AGENT, "tool": TOOL, "retriever": "retrieval", "embedding": "embedding",
    "chain": "chain", "evaluator": "evaluator", "guardrail": "guardrail", "span": STEP, "event": STEP,
}  # fmt: skip
_KINDS: Final = (
    ("openinference.span.kind", _OPENINFERENCE),
    ("gen_ai.operation.name", _OPERATIONS),
    ("traceloop.span.kind", _TRACELOOP),
    ("llm.request.type", _REQUESTS),
    ("ai.operationId", _VERCEL),
    ("langfuse.observation.type", _LANGFUSE),
)

_REDUNDANT: Final = frozenset({*_OPENINFERENCE, *_TRACELOOP, *_LANGFUSE} - {"DECISION", "event"}) | {
    "chat", "embeddings", "embedding", "execute_tool", "invoke_agent", "invoke_workflow", "retrieval",
}  # fmt: skip
"""Values that say no more than the kind of the span does; others stay among its attributes."""

_MODELS: Final = (
    "gen_ai.response.model", "gen_ai.request.model", "llm.response.model_name", "llm.model_name",
    "llm.request.model_name", "embedding.model_name", "reranker.model_name", "llm.response.model",
    "llm.request.model", "ai.response.model", "ai.model.id", "langfuse.observation.model.name",
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
    "gen_ai.usage.cache_write.input_tokens", "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_write_input_tokens", "gen_ai.usage.cache_creation_input_tokens",
    "gen_ai.usage.input_tokens.cache_write",
    "llm.token_count.prompt_details.cache_write", "gen_ai.usage.details.cache_write_tokens",
    "ai.usage.inputTokenDetails.cacheWriteTokens",
)  # fmt: skip
_REASONING: Final = (
    "gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.reasoning_tokens", "llm.usage.reasoning_tokens",
    "llm.token_count.completion_details.reasoning", "gen_ai.usage.details.reasoning_tokens",
    "ai.usage.outputTokenDetails.reasoningTokens", "ai.usage.reasoningTokens",
)  # fmt: skip
_TOTAL: Final = ("llm.token_count.total", "llm.usage.total_tokens", "gen_ai.usage.total_tokens")
_MODALITIES: Final = {
    "text_input": ("gen_ai.usage.text.input_tokens",),
    "image_input": ("gen_ai.usage.image.input_tokens",),
    "audio_input": ("gen_ai.usage.audio.input_tokens", "llm.token_count.prompt_details.audio",
                    "gen_ai.usage.details.input_audio_tokens", "gen_ai.usage.input_audio_tokens"),
    "text_cache_read": ("gen_ai.usage.text.cache_read.input_tokens",),
    "image_cache_read": ("gen_ai.usage.image.cache_read.input_tokens",),
    "audio_cache_read": ("gen_ai.usage.audio.cache_read.input_tokens",
                         "gen_ai.usage.details.cache_audio_read_tokens"),
    "text_output": ("gen_ai.usage.text.output_tokens",),
    "image_output": ("gen_ai.usage.image.output_tokens",),
    "audio_output": ("gen_ai.usage.audio.output_tokens", "llm.token_count.completion_details.audio",
                     "gen_ai.usage.details.output_audio_tokens", "gen_ai.usage.output_audio_tokens"),
}  # fmt: skip
"""Parts of the tokens by what they stand for; those of the input include the ones read from the cache."""
_KINDS_OF_TOKENS: Final = ("text", "image", "audio")
_ENDS: Final = ("input", "output")
_COMPACTED: Final = "gen_ai.conversation.compacted"
_RARE: Final = frozenset(
    (
        *(*_TIERS, *_COSTS, *_CACHE_READ, *_CACHE_WRITE, *_REASONING, *_TOTAL, _COMPACTED),
        *(name for names in _MODALITIES.values() for name in names),
    )
)
_ANY_THREAD: Final = frozenset(_THREADS)
"""Most spans have none of these, and testing them all at once is faster."""

_INPUTS: Final = (
    "gen_ai.input.messages", "gen_ai.tool.call.arguments", "tool_arguments", "gen_ai.retrieval.query.text",
    "input.value", "traceloop.entity.input", "gen_ai.prompt", "ai.prompt.messages", "ai.prompt",
    "ai.toolCall.args", "langfuse.observation.input",
)  # fmt: skip
_OUTPUTS: Final = (
    "gen_ai.output.messages", "gen_ai.tool.call.result", "tool_response", "gen_ai.retrieval.documents",
    "output.value", "traceloop.entity.output", "gen_ai.completion", "final_result", "ai.response.text",
    "ai.response.object", "ai.response.toolCalls", "ai.toolCall.result", "langfuse.observation.output",
)  # fmt: skip
_FLAT_INPUTS: Final = ("llm.input_messages.", "gen_ai.prompt.", "llm.prompts.")
_FLAT_OUTPUTS: Final = (
    "llm.output_messages.",
    "gen_ai.completion.",
    "retrieval.documents.",
    "llm.choices.",
)
_INSTRUCTIONS: Final = "gen_ai.system_instructions"
_PREFIXES: Final = ("invoke_agent ", "execute_tool ", "invoke_workflow ")


class ParsedSpan(msgspec.Struct, gc=False):
    """What a span means. ``rest`` has the attributes that no other field contains."""

    kind: str
    name: str
    agent: str | None
    model: str | None
    provider: str | None
    thread: str | None
    usage: Usage | None
    modalities: dict[str, int]
    is_compacted: bool
    cost: float | str | None
    service_tier: str | None
    input: Content | None
    output: Content | None
    rest: dict[str, Any]


def parse_span(span: OtlpSpan) -> ParsedSpan:
    """Parse the attributes of a span."""
    rest = dict(span.attributes)
    kind = _kind(rest)
    if _LANGFUSE_USAGE in rest or _LANGFUSE_COST in rest:
        _expand_langfuse(rest)
    tool = _take(rest, _TOOLS) if kind == TOOL else None
    agent = _take(rest, _AGENTS)
    entity = rest.get("traceloop.entity.name")
    short = _without_operation(span.name)
    name = tool or (clean_word(entity) if entity is not None and kind in (AGENT, TOOL) else None)
    name = name or clean_word(short) or kind
    if tool is None and name not in (span.name, short) and span.name != entity:
        rest["otel.span.name"] = span.name
    if kind == AGENT and agent is None:
        agent = name
    has_usage = kind in (LLM, "embedding", "reranker") or (kind == AGENT and span.kind == KIND_CLIENT)
    has_usage = has_usage or (kind == "chain" and "ai.operationId" in rest)  # the AI SDK's sum over its steps
    has_model = has_usage or kind in ("chain", STEP)
    has_rare = has_usage and not _RARE.isdisjoint(rest)
    modalities = _modalities(rest) if has_rare else {}
    is_flat = ".0." in "\n".join(rest)
    return ParsedSpan(
        kind=kind,
        name=name,
        agent=agent,
        model=_take(rest, _MODELS) if has_model else None,
        provider=_take(rest, _PROVIDERS) if has_model else None,
        thread=thread_of(rest),
        usage=_usage(rest, modalities, has_rare=has_rare) if has_usage else None,
        modalities=modalities,
        is_compacted=rest.get(_COMPACTED) is True and rest.pop(_COMPACTED),
        cost=_cost(rest) if has_rare else None,
        service_tier=_take(rest, _TIERS) if has_rare else None,
        input=_input(rest, kind, is_flat=is_flat),
        output=_output(rest, kind, is_flat=is_flat),
        rest=rest,
    )


_LANGFUSE_USAGE: Final = "langfuse.observation.usage_details"
_LANGFUSE_COST: Final = "langfuse.observation.cost_details"


def _expand_langfuse(rest: dict[str, Any]) -> None:
    """Give the counts that Langfuse keeps in one attribute the names of the conventions.

    Its own counts do not overlap (``input`` is without ``input_cached_tokens``); those that it passes on from
    a provider (``prompt_tokens``) do. What is no count stays where it is.
    """
    counts = _parse_json(rest.get(_LANGFUSE_USAGE))
    if isinstance(counts, dict):
        given = cast("dict[str, Any]", counts)
        sums: dict[str, int] = {}
        left: dict[str, Any] = {}
        for name, value in given.items():
            count, names = as_count(value), _langfuse_count(name)
            if value is not None and (count is None or not names):
                left[name] = value
            for each in names if count else ():
                sums[each] = sums.get(each, 0) + (count or 0)
        rest.update(sums)
        rest.pop(_LANGFUSE_USAGE)
        if left:
            rest[_LANGFUSE_USAGE] = left
    costs = _parse_json(rest.get(_LANGFUSE_COST))
    if isinstance(costs, dict):
        amounts = cast("dict[str, Any]", costs)
        numbers = [each for each in amounts.values() if isinstance(each, (int, float))]
        total = amounts.get("total", sum(numbers) if numbers else None)
        if total is not None:
            rest["gen_ai.usage.cost"] = total


def _langfuse_count(name: str) -> tuple[str, ...]:
    """Return which totals a count of Langfuse's is part of; none for a name that is not known."""
    if name in ("total", "total_tokens"):
        return ("gen_ai.usage.total_tokens",)
    is_read = "cache" in name and "creation" not in name and "write" not in name
    is_written = "cache" in name and not is_read
    if name.startswith(("output", "completion")):
        if name.endswith("_details"):
            return ()
        output = "gen_ai.usage.output_tokens"
        return (output, "gen_ai.usage.reasoning_tokens") if "reasoning" in name else (output,)
    if name.startswith(("input", "prompt", "cache")) and not name.endswith("_details"):
        inputs = "gen_ai.usage.input_tokens"
        if is_read:
            return (inputs, "gen_ai.usage.cache_read_input_tokens")
        return (inputs, "gen_ai.usage.cache_creation_input_tokens") if is_written else (inputs,)
    return ()


def thread_of(attributes: dict[str, Any]) -> str | None:
    """Return the conversation or session that the attributes name."""
    if _ANY_THREAD.isdisjoint(attributes):
        return None
    return clean_word(next((attributes[name] for name in _THREADS if attributes.get(name)), None))


def clean_word(value: Any) -> str | None:
    """Return a value as text that fits a column, cut and cleaned if necessary; ``None`` for no text."""
    if value is None or value == "":
        return None
    text = value if isinstance(value, str) else str(value)
    if len(text) <= MAX_ID_CHARS and text.isprintable() and not text.isspace():
        return text
    clean = "".join(each if each.isprintable() else " " for each in text[:MAX_ID_CHARS]).strip()
    return clean or None


def content_of(value: Any) -> Content:
    """Return an attribute's value as content. Text that is a JSON object or array becomes JSON."""
    if not isinstance(value, str):
        return encode(value, keep_order=True)
    data = value.encode("utf-8", "replace")
    if value[:1] in ("{", "["):
        try:
            parsed = orjson.loads(data)
        except orjson.JSONDecodeError:
            return Content("text", data)
        # `encode` escapes what looks like a tag of `core.encoding`; other JSON is stored as it is.
        is_tagged = "$" in value and '{"$' in value
        return encode(parsed, keep_order=True) if is_tagged else Content("json", data)
    return Content("text", data)


def _kind(rest: dict[str, Any]) -> str:
    for name, known in _KINDS:
        value = rest.get(name)
        if value is not None:
            kind = known.get(value if isinstance(value, str) else "")
            if kind is not None:
                if value in _REDUNDANT:
                    del rest[name]
                return kind
    if "gen_ai.tool.name" in rest or "tool.name" in rest:
        return TOOL
    if "gen_ai.request.model" in rest or "llm.model_name" in rest or "llm.request.model" in rest:
        return LLM
    if "agent_name" in rest:  # pydantic-ai before it followed the conventions
        return AGENT
    return STEP


def _without_operation(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


def _take(rest: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """Return the first of these attributes as a word, and remove all that the word contains completely."""
    found: Any = None
    text: str | None = None
    for name in names:
        value = rest.get(name)
        if value is not None and value != "":
            if found is None:
                found, text = value, clean_word(value)
            if value == found and text == value:
                del rest[name]
    return text


def _count(rest: dict[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        if name in rest:
            number = as_count(rest[name])
            if number is not None:
                del rest[name]
                return number
    return None


def as_count(value: Any) -> int | None:
    """Return a value as a number of tokens; ``None`` if it is not one."""
    if type(value) is not int:
        if isinstance(value, bool):
            return None
        try:
            value = int(value)
        except (TypeError, ValueError, OverflowError):
            return None
    return value if 0 <= value < _MAX_TOKENS else None


def _modalities(rest: dict[str, Any]) -> dict[str, int]:
    counts = {kind: _count(rest, names) for kind, names in _MODALITIES.items()}
    return {kind: count for kind, count in counts.items() if count}


def _usage(rest: dict[str, Any], modalities: Mapping[str, int], *, has_rare: bool) -> Usage | None:
    total_input = _count(rest, _INPUT_TOKENS)
    output = _count(rest, _OUTPUT_TOKENS)
    if modalities:
        parts = {end: sum(modalities.get(f"{each}_{end}", 0) for each in _KINDS_OF_TOKENS) for end in _ENDS}
        total_input = parts["input"] or None if total_input is None else total_input
        output = parts["output"] or None if output is None else output
    if not has_rare:
        if total_input is None and output is None:
            return None
        return Usage(input=total_input or 0, output=output or 0)
    read = _count(rest, _CACHE_READ)
    if read is None and modalities:
        read = sum(modalities.get(f"{each}_cache_read", 0) for each in _KINDS_OF_TOKENS) or None
    write = _count(rest, _CACHE_WRITE)
    reasoning = _count(rest, _REASONING)
    if total_input is None and output is None and read is None and write is None:
        total = _count(rest, _TOTAL)
        return None if total is None else Usage(other=total)
    usage = disjoint_usage(total_input or 0, output or 0, read or 0, write or 0, reasoning or 0)
    total = max((as_count(rest[name]) or 0 for name in _TOTAL if name in rest), default=0)
    if total > usage.total:
        usage = msgspec.structs.replace(usage, other=total - usage.total)
    for name in _TOTAL:
        if name in rest and as_count(rest[name]) == usage.total:
            del rest[name]
    return usage


def disjoint_usage(total_input: int, output: int, read: int, write: int, reasoning: int) -> Usage:
    """Return usage from counts whose input includes cache reads and writes, as the conventions say.

    If the cached tokens are more than the input, the sender counted the input without them.
    """
    cached = read + write
    return Usage(
        input=total_input - cached if cached <= total_input else total_input,
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


def _input(rest: dict[str, Any], kind: str, *, is_flat: bool) -> Content | None:
    if is_flat and kind == LLM:
        nested = _pop_flat(rest, _FLAT_INPUTS)
        if nested is not None:
            return encode(nested, keep_order=True)
    value = _pop_value(rest, _INPUTS, "input.mime_type")
    instructions = rest.get(_INSTRUCTIONS)
    if instructions is None or (value is None and kind != LLM):
        return None if value is None else content_of(value)
    del rest[_INSTRUCTIONS]
    system = {"role": "system", "parts": _parse_json(instructions)}
    return encode([system, *as_list(value)], keep_order=True)


def _output(rest: dict[str, Any], kind: str, *, is_flat: bool) -> Content | None:
    if is_flat and kind in (LLM, "retrieval"):
        nested = _pop_flat(rest, _FLAT_OUTPUTS)
        if nested is not None:
            return encode(nested, keep_order=True)
    value = _pop_value(rest, _OUTPUTS, "output.mime_type")
    return None if value is None else content_of(value)


def _pop_value(rest: dict[str, Any], names: tuple[str, ...], mime: str) -> Any:
    for name in names:
        if name in rest:
            value = rest.pop(name)
            if rest.get(mime) in ("application/json", "text/plain"):
                del rest[mime]
            return value
    return None


# Flattened messages. Attribute values are flat, so OpenInference writes ``llm.input_messages.0.message.role``
# and OpenLLMetry ``gen_ai.prompt.0.role``. They become lists and dicts again, without wrappers such as
# ``message`` that only name what they contain.
_WRAPPERS: Final = frozenset({"message", "tool_call", "message_content", "document", "embedding", "tool"})
_MAX_INDEX: Final = 10_000
"""A larger index is a key: a hostile one must not create a long list."""


def _pop_flat(rest: dict[str, Any], prefixes: tuple[str, ...]) -> list[Any] | None:
    """Remove the flattened messages below the first of these prefixes, and return them nested."""
    flat = [key for key in rest if ".0." in key]
    for prefix in prefixes:
        if any(key.startswith(prefix) for key in flat):
            return _pop_nested(rest, prefix)
    return None


def _pop_nested(rest: dict[str, Any], prefix: str) -> list[Any] | None:
    start = len(prefix)
    keys = [key for key in rest if key.startswith(prefix) and key[start : start + 1].isdecimal()]
    if not keys:
        return None
    root: dict[str, Any] = {}
    for key in keys:
        _insert(root, key[start:].split("."), rest.pop(key))
    nested = _to_lists(root)
    return cast("list[Any]", nested) if isinstance(nested, list) else [nested]


def _insert(root: dict[str, Any], path: list[str], value: Any) -> None:
    node = root
    for step in path[:-1]:
        child = node.get(step)
        if not isinstance(child, dict):
            child = node[step] = {} if child is None else {"": child}
        node = cast("dict[str, Any]", child)
    last = path[-1]
    if isinstance(node.get(last), dict):
        node[last][""] = value
    else:
        node[last] = value


def _to_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    if fields and all(key.isdecimal() and int(key) < _MAX_INDEX for key in fields):
        return [_to_lists(fields[key]) for key in sorted(fields, key=int)]
    if len(fields) == 1:
        ((name, inner),) = fields.items()
        if name in _WRAPPERS:
            return _to_lists(inner)
    return {name: _to_lists(inner) for name, inner in fields.items()}


def as_list(value: Any) -> list[Any]:
    """Return a list of messages, which may be JSON text, a list or a single message."""
    value = _parse_json(value)
    if value is None:
        return []
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _parse_json(value: Any) -> Any:
    """Parse text that is a JSON object or array; return anything else as it is."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value

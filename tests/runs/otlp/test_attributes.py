"""Whatever attributes a span has: each of them is understood or kept."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from treering.core.encoding import decode
from treering.runs.otlp import attributes as attributes_module
from treering.runs.otlp.attributes import parse_span
from treering.runs.otlp.decode import OtlpSpan, Sender

TABLES = [
    name
    for table, names in vars(attributes_module).items()
    if table.startswith("_") and isinstance(names, tuple) and table.isupper()
    for name in names
    if isinstance(name, str) and "." in name and not name.endswith(".")
] + [name for names in attributes_module._MODALITIES.values() for name in names]
SPREAD = [
    "llm.input_messages.0.message.role",
    "llm.input_messages.0.message.content",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name",
    "gen_ai.prompt.0.content",
    "gen_ai.prompt.name",
    "gen_ai.completion.1.content",
    "retrieval.documents.0.document.content",
    "input.mime_type",
    "gen_ai.system_instructions",
]
KINDS = {
    "openinference.span.kind": ["LLM", "TOOL", "AGENT", "CHAIN", "RETRIEVER", "DECISION", "ODD"],
    "gen_ai.operation.name": ["chat", "generate_content", "execute_tool", "invoke_agent", "search_memory"],
    "traceloop.span.kind": ["workflow", "tool", "agent"],
    "llm.request.type": ["chat", "completion", "rerank"],
    "ai.operationId": ["ai.generateText", "ai.streamText.doStream", "ai.embed.doEmbed", "ai.toolCall"],
}
plain = st.text(
    st.characters(codec="ascii", min_codepoint=33, exclude_characters='"\\{[$'), min_size=3, max_size=9
)
numbers = st.integers(1000, 10**9)
others = st.dictionaries(st.sampled_from(TABLES + SPREAD) | plain, plain | numbers, max_size=12)
kinds = st.fixed_dictionaries({}, optional={name: st.sampled_from(words) for name, words in KINDS.items()})


def span(attributes, kind=1):
    return OtlpSpan(
        trace="a" * 32, id="b" * 16, parent=None, name="name of the span", kind=kind, start_us=1, end_us=2,
        status=0, status_message="", flags=0, attributes=attributes, events=[], links=[], extra={},
        sender=Sender({}, "", {}),
    )  # fmt: skip


@settings(max_examples=300)
@given(others, kinds, st.sampled_from([1, 3]))
def test_nothing_is_dropped(other, kind, span_kind):
    attributes = {**other, **kind}
    found = parse_span(span(dict(attributes), span_kind))
    result = json.dumps(
        [
            found.rest,
            *(decode(content) for content in (found.input, found.output) if content is not None),
            [
                found.kind,
                found.name,
                found.agent,
                found.model,
                found.provider,
                found.service_tier,
                found.cost,
                found.modalities,
            ],
        ],
        ensure_ascii=False,
    )
    usage = found.usage
    counted = set()
    if usage is not None:
        cached = usage.cache_read + usage.cache_write
        counted = {usage.input, usage.input + cached, usage.cache_read, usage.cache_write, usage.output,
                   usage.reasoning, usage.total}  # fmt: skip
    for name, value in attributes.items():
        if name in KINDS and value in attributes_module._REDUNDANT and name not in found.rest:
            continue  # it is what the kind says
        if name == "llm.usage.reasoning_tokens" or "reasoning" in name:
            continue  # never more than the output that it is part of
        number = int(value) if isinstance(value, str) and value.isdecimal() else value  # "000" counts as 0
        assert str(value) in result or number in counted, (name, value, found)

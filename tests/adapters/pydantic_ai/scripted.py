"""A model that follows a script, for every version of pydantic-ai that the tests install."""

from __future__ import annotations

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo
from pydantic_ai.usage import RequestUsage


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the first tool once, then answer; 100 tokens in, of which 40 were cached, 10 out."""
    used = RequestUsage(input_tokens=100, cache_read_tokens=40, output_tokens=10)
    called = any(part.part_kind == "tool-return" for each in messages for part in each.parts)
    if called or not info.function_tools:
        return ModelResponse(parts=[TextPart("done")], usage=used, provider_name="openai")
    return ModelResponse(
        parts=[ToolCallPart(info.function_tools[0].name, {"word": "ring"}, tool_call_id="c1")],
        usage=used,
        provider_name="openai",
    )

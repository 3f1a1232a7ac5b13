"""How LangChain's values are recorded: messages, documents, token counts, and the names of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import LLMResult

from treering.core.batch import Usage

_INPUT_KEYS: Final = ("input", "question", "query", "prompt")
_USER_ROLES: Final = frozenset({"user", "human"})


def plain(value: Any) -> Any:
    """Convert messages and documents to plain data, at any depth; leave other values as they are."""
    if isinstance(value, BaseMessage):
        fields: dict[str, Any] = {"role": value.type, "content": value.content}
        for name in ("name", "tool_calls", "tool_call_id", "status"):
            more = getattr(value, name, None)
            if more and not (name == "status" and more == "success"):
                fields[name] = more
        return fields
    if isinstance(value, Document):
        return {"page_content": value.page_content, "metadata": value.metadata}
    if isinstance(value, Mapping):
        given = cast("Mapping[Any, Any]", value)
        return {str(key): plain(each) for key, each in given.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in cast("Sequence[Any]", value)]
    return value


def name_of(serialized: Mapping[str, Any] | None, kwargs: Mapping[str, Any], otherwise: str) -> str:
    """Return the name of a step."""
    fields = serialized or {}
    path = cast("list[Any]", fields.get("id") or [])
    return str(kwargs.get("name") or fields.get("name") or (path[-1] if path else otherwise))


def model_of(messages: Sequence[BaseMessage], response: LLMResult) -> str | None:
    """Return the name of the model that answered, if the response has it."""
    for fields in (*(message.response_metadata for message in messages), response.llm_output or {}):
        model = fields.get("model_name") or fields.get("model")
        if isinstance(model, str):
            return model
    return None


def usage_of(messages: Sequence[BaseMessage], response: LLMResult) -> Usage | None:
    """Count tokens by disjoint class; LangChain counts cached tokens as input tokens too."""
    counted = [
        message.usage_metadata
        for message in messages
        if isinstance(message, AIMessage) and message.usage_metadata
    ]
    if not counted:
        counts = cast("dict[str, int]", (response.llm_output or {}).get("token_usage") or {})
        given, made = counts.get("prompt_tokens") or 0, counts.get("completion_tokens") or 0
        return Usage(input=given, output=made) if given or made else None
    sums = dict.fromkeys(Usage.__struct_fields__, 0)
    for usage in counted:
        details = cast("dict[str, int]", usage.get("input_token_details") or {})
        output = cast("dict[str, int]", usage.get("output_token_details") or {})
        read = details.get("cache_read") or 0
        hour = details.get("ephemeral_1h_input_tokens") or 0
        written = (details.get("cache_creation") or 0) + (details.get("ephemeral_5m_input_tokens") or 0)
        sums["input"] += max(usage["input_tokens"] - read - written - hour, 0)
        sums["cache_read"] += read
        sums["cache_write"] += written
        sums["cache_write_1h"] += hour
        sums["output"] += usage["output_tokens"]
        sums["reasoning"] += output.get("reasoning") or 0
    return Usage(**sums)


def last_user_message(inputs: Any) -> Any:
    """Return the user's last message from the (plain) input of a chain; ``None`` if it has none."""
    given: Any = inputs
    if isinstance(inputs, dict):
        fields = cast("dict[str, Any]", inputs)
        given = fields.get("messages") or next((fields[name] for name in _INPUT_KEYS if name in fields), None)
    if isinstance(given, str):
        return given
    last: Any = cast("list[Any]", given)[-1] if isinstance(given, list) and given else None
    if isinstance(last, dict):
        message = cast("dict[str, Any]", last)
        return message.get("content") if message.get("role") in _USER_ROLES else None
    if isinstance(last, list) and cast("list[Any]", last)[:1] in [[each] for each in _USER_ROLES]:
        return cast("list[Any]", last)[-1]
    return None

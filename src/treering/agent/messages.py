"""Message shapes: where three common styles of chat messages keep tool calls and their results.

===========  ============================================  ==================================================
style        a call, in the assistant's message            its result
===========  ============================================  ==================================================
openai       ``tool_calls: [{id, function: {name, ...}}]``  ``{role: tool, tool_call_id, content}``
anthropic    a content block ``{type: tool_use, ...}``     in a user's message, ``{type: tool_result, ...}``
blocks       a content block ``{type: tool-call, ...}``    in a tool's message, ``{type: tool-result, ...}``
===========  ============================================  ==================================================

Messages are plain dicts and are never rewritten: what the provider gave is what is kept. A result is
written in the style of its call, one message each, so that a conversation only ever grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from treering.errors import InvalidInput

Message = dict[str, Any]
Prompt = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""What a run begins with: a text, a message, or several."""

Style = Literal["openai", "anthropic", "blocks"]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a model asked for. ``id`` is the provider's, and a good key for idempotent tools."""

    id: str
    name: str
    arguments: dict[str, Any]
    style: Style = "openai"
    problem: str | None = None
    """Why the arguments could not be read; they are empty then."""


def calls_of(message: Mapping[str, Any]) -> list[ToolCall]:
    """The tool calls in one message, in their order."""
    calls = [_openai_call(each) for each in _mappings(message.get("tool_calls"))]
    for block in _mappings(message.get("content")):
        kind = block.get("type")
        if kind == "tool_use":
            calls.append(_call(block, "anthropic", block.get("name"), block.get("input")))
        elif kind in {"tool-call", "tool_call"}:
            arguments = block.get("input", block.get("args", block.get("arguments")))
            calls.append(_call(block, "blocks", _either(block, "toolName", "tool_name"), arguments))
    return calls


def results_of(message: Mapping[str, Any]) -> set[str]:
    """The ids of the tool calls that one message answers."""
    ids: set[Any] = set()
    if message.get("role") == "tool" and "tool_call_id" in message:
        ids.add(message["tool_call_id"])
    for block in _mappings(message.get("content")):
        if block.get("type") == "tool_result":
            ids.add(block.get("tool_use_id"))
        elif block.get("type") == "tool-result":
            ids.add(_either(block, "toolCallId", "tool_call_id"))
    return {each for each in ids if isinstance(each, str)}


def open_calls(messages: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """The calls at the end of a conversation that have no result yet: where an agent goes on.

    A reply may have made them in several messages, one behind the other.
    """
    answered: set[str] = set()
    asked: list[ToolCall] = []
    for message in reversed(messages):
        calls, results = calls_of(message), results_of(message)
        if not calls and (asked or not results):
            break
        answered |= results
        asked = [*calls, *asked]
    return [call for call in asked if call.id not in answered]


def result_message(call: ToolCall, text: str, *, is_error: bool = False) -> Message:
    """The answer to a call, in the style in which it was asked."""
    if call.style == "openai":
        return {"role": "tool", "tool_call_id": call.id, "content": text}
    if call.style == "anthropic":
        block = {"type": "tool_result", "tool_use_id": call.id, "content": text}
        return {"role": "user", "content": [{**block, "is_error": True} if is_error else block]}
    output = {"type": "error-text" if is_error else "text", "value": text}
    return {
        "role": "tool",
        "content": [
            {"type": "tool-result", "toolCallId": call.id, "toolName": call.name, "output": output},
        ],
    }


def as_one_turn(messages: Sequence[Message]) -> list[Message]:
    """The conversation as a model should see it: results that answer one message stand in one message.

    Only the content-block styles ask for that; in the others a result is a message.
    """
    seen: list[Message] = []
    for message in messages:
        before = seen[-1] if seen else None
        if before is not None and _is_results(before) and _is_results(message):
            seen[-1] = {**before, "content": [*before["content"], *message["content"]]}
        else:
            seen.append(message)
    return seen


def text_of(message: Mapping[str, Any]) -> str:
    """The readable text of a message."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(
        block["text"]
        for block in _mappings(content)
        if block.get("type") == "text" and isinstance(block.get("text"), str)
    )


def answer_of(message: Mapping[str, Any]) -> str | None:
    """The text of an assistant's message that asks for nothing; ``None`` for any other message."""
    if message.get("role") != "assistant" or calls_of(message) or results_of(message):
        return None
    return text_of(message)


def prompt_messages(prompt: Prompt) -> list[Message]:
    """A prompt as messages."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    messages: list[Any] = [prompt] if isinstance(prompt, Mapping) or not _is_list(prompt) else list(prompt)
    for each in messages:
        if not isinstance(each, Mapping):
            raise InvalidInput(
                f"prompt has a {type(each).__name__} in it; give a text, a message or a list of messages"
            )
    return [dict(each) for each in messages]


def _is_list(prompt: Any) -> bool:
    return isinstance(prompt, Iterable) and not isinstance(prompt, (bytes, bytearray))


def _openai_call(entry: Mapping[str, Any]) -> ToolCall:
    function: Any = entry.get("function")
    if not isinstance(function, Mapping):
        raise InvalidInput(f"a tool call without a function: {str(entry)[:200]}")
    inner = cast("Mapping[str, Any]", function)
    return _call(entry, "openai", inner.get("name"), inner.get("arguments"))


def _call(block: Mapping[str, Any], style: Style, name: Any, arguments: Any) -> ToolCall:
    call_id = block.get("id") if style != "blocks" else _either(block, "toolCallId", "tool_call_id")
    if not (isinstance(call_id, str) and call_id and isinstance(name, str) and name):
        raise InvalidInput(
            f"a tool call without an id or a name: {str(dict(block))[:200]}; "
            "give both, so that its result can be told apart"
        )
    problem = None
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}")
        except msgspec.DecodeError as error:
            arguments, problem = None, f"the arguments are not JSON: {error}"
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        arguments, problem = {}, "the arguments are not an object"
    return ToolCall(
        id=call_id,
        name=name,
        arguments=cast("dict[str, Any]", arguments),
        style=style,
        problem=problem,
    )


def _is_results(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    if not isinstance(content, list) or not content:
        return False
    blocks = list(_mappings(cast("list[Any]", content)))
    return all(block.get("type") in {"tool_result", "tool-result"} for block in blocks)


def _either(block: Mapping[str, Any], one: str, other: str) -> Any:
    return block.get(one, block.get(other))


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, (list, tuple)):
        for each in cast("list[Any]", value):
            if isinstance(each, Mapping):
                yield each

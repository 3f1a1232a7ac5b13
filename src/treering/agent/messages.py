"""Chat messages, tool calls, and what a run yields and returns.

Three common styles represent tool calls and their results, and all are read:

===========  ============================================  ==================================================
style        a call, in the assistant's message            its result
===========  ============================================  ==================================================
openai       ``tool_calls: [{id, function: {name, ...}}]``  ``{role: tool, tool_call_id, content}``
anthropic    a content block ``{type: tool_use, ...}``     in a user's message, ``{type: tool_result, ...}``
blocks       a content block ``{type: tool-call, ...}``    in a tool's message, ``{type: tool-result, ...}``
===========  ============================================  ==================================================

Messages are plain dicts and are never rewritten: what the provider returned is what is stored. A result is
written in the style of its call, one message each, so that a conversation only ever grows.

A model's reply with structured messages is stored as it is. A reply without any (a string, an object with a
``text``, a stream of text) becomes one assistant message. A stream may have both: text to show while it
arrives, and at its end the structured message, which is then what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final, Literal, cast

import msgspec

from treering.errors import InvalidInput
from treering.limits.tool_budgets import Counters

Message = dict[str, Any]
Prompt = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""What a run starts with: a text, a message, or several."""

Style = Literal["openai", "anthropic", "blocks"]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a model asked for. ``id`` is the provider's."""

    id: str
    name: str
    arguments: dict[str, Any]
    style: Style = "openai"
    problem: str | None = None
    """Why the arguments could not be parsed; they are empty then."""


def calls_of(message: Mapping[str, Any]) -> list[ToolCall]:
    """Return the tool calls of a message, in order."""
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
    """Return the ids of the tool calls that a message has results for."""
    ids: set[Any] = set()
    if message.get("role") == "tool" and "tool_call_id" in message:
        ids.add(message["tool_call_id"])
    for block in _mappings(message.get("content")):
        if block.get("type") == "tool_result":
            ids.add(block.get("tool_use_id"))
        elif block.get("type") == "tool-result":
            ids.add(_either(block, "toolCallId", "tool_call_id"))
    return {each for each in ids if isinstance(each, str)}


def pending_calls(messages: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """Return the calls at the end of a conversation that have no result yet.

    One reply may have made them in several consecutive messages.
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
    """Return the message with the result of a call, in the style of the call."""
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


def merge_results(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with the results of one message's calls merged into one message.

    The content-block styles require that; in the OpenAI style, each result is a message.
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
    """Return the text of a message."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(
        block["text"]
        for block in _mappings(content)
        if block.get("type") == "text" and isinstance(block.get("text"), str)
    )


def answer_of(message: Mapping[str, Any]) -> str | None:
    """Return the text of an assistant message without tool calls; ``None`` for any other message."""
    if message.get("role") != "assistant" or calls_of(message) or results_of(message):
        return None
    return text_of(message)


def prompt_messages(prompt: Prompt) -> list[Message]:
    """Return a prompt as messages."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    messages: list[Any] = [prompt] if isinstance(prompt, Mapping) or not _is_list(prompt) else list(prompt)
    for each in messages:
        if not isinstance(each, Mapping):
            raise InvalidInput(
                f"prompt contains a {type(each).__name__}; give a text, a message or a list of messages"
            )
    return [dict(each) for each in messages]


_EXPECTED: Final = (
    "return a message (a dict with a role), a list of them, an object with messages or text, "
    "a string, or an iterator of such pieces"
)


def read_reply(reply: Any) -> list[Message]:
    """Return the messages of a reply; raise `InvalidInput` if it has none."""
    messages = _messages_in(reply)
    if messages is None:
        raise InvalidInput(f"the model returned {type(reply).__name__}, which is not a message; {_EXPECTED}")
    ids = [call.id for message in messages for call in calls_of(message)]
    if len(ids) != len(set(ids)):
        raise InvalidInput(f"two tool calls of one reply have the same id: {', '.join(ids)}")
    return messages


def is_stream(reply: Any) -> bool:
    """Whether a reply is a stream."""
    return any(hasattr(reply, name) for name in ("__next__", "__anext__", "__aiter__"))


class StreamedReply:
    """Collects the pieces of a streamed reply."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._messages: list[Message] = []

    def take(self, piece: Any) -> str:
        """Add the next piece; return the new text in it."""
        if isinstance(piece, str):
            self._text.append(piece)
            return piece
        messages = _messages_in(piece)
        if messages is None:
            return ""
        was_silent = not self._text
        self._messages += messages
        return "".join(map(text_of, messages)) if was_silent else ""

    def reply(self) -> Any:
        """Return the whole reply, as if it had not been streamed."""
        return self._messages or "".join(self._text)


def _is_list(prompt: Any) -> bool:
    return isinstance(prompt, Iterable) and not isinstance(prompt, (bytes, bytearray))


def _openai_call(entry: Mapping[str, Any]) -> ToolCall:
    function: Any = entry.get("function")
    if not isinstance(function, Mapping):
        raise InvalidInput(f"a tool call has no function: {str(entry)[:200]}")
    inner = cast("Mapping[str, Any]", function)
    return _call(entry, "openai", inner.get("name"), inner.get("arguments"))


def _call(block: Mapping[str, Any], style: Style, name: Any, arguments: Any) -> ToolCall:
    call_id = block.get("id") if style != "blocks" else _either(block, "toolCallId", "tool_call_id")
    if not (isinstance(call_id, str) and call_id and isinstance(name, str) and name):
        raise InvalidInput(
            f"a tool call has no id or no name: {str(dict(block))[:200]}; its result needs both"
        )
    problem = None
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
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


def _messages_in(reply: Any) -> list[Message] | None:
    if isinstance(reply, str):
        return [{"role": "assistant", "content": reply}]
    if isinstance(reply, (list, tuple)):
        many = cast("list[Any]", reply)
        read = [_message(each) for each in many]
        whole = [each for each in read if each is not None]
        return whole if whole and len(whole) == len(read) else None
    one = _message(reply)
    if one is not None:
        return [one]
    for holder in (reply, _field(reply, "response")):
        found = _field(holder, "messages")
        if isinstance(found, (list, tuple)) and found:
            return _messages_in(found)
    text = _field(reply, "text")
    return [{"role": "assistant", "content": text}] if isinstance(text, str) else None


def _message(value: Any) -> Message | None:
    plain: Any = value
    if hasattr(value, "model_dump"):  # the message objects of most clients
        plain = value.model_dump(mode="json", exclude_none=True)
    elif isinstance(value, msgspec.Struct) or is_dataclass(value):
        plain = msgspec.to_builtins(value)
    if not isinstance(plain, Mapping):
        return None
    message = dict(cast("Mapping[str, Any]", plain))
    return message if isinstance(message.get("role"), str) else None


def _field(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return cast("Mapping[str, Any]", holder).get(name)
    found = getattr(holder, name, None)
    return None if callable(found) else found


AgentEventKind = Literal[
    "text", "piece", "message", "tool_call", "tool_result", "checkpoint", "interrupt", "finish"
]


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run, for tools with a parameter of this type, and for middleware.

    ``state`` is the thread's state: ``todos`` (a list), ``files`` (a dict) and whatever else the tools store;
    changes to it are saved with the next checkpoint. ``call`` is the tool call, if there is one, and
    ``idempotency_key`` is the same whenever that call is made again.
    """

    thread_id: str | None
    namespace: str
    run_id: str
    iteration: int
    state: dict[str, Any]
    call: ToolCall | None = None
    idempotency_key: str | None = None
    forked_from: str | None = None
    """The thread that this one was forked from in the middle of the run, at ``forked_at_us``."""
    forked_at_us: int | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run.

    ``messages`` are those that this run added. ``checkpoint`` is the thread's newest one; ``None`` if it
    could not be saved, a hook vetoed it, or the agent has no checkpointer. ``interrupt`` is what a person
    has to decide before the run can continue (see `Agent.resume`).
    """

    run_id: str
    text: str
    messages: list[Message]
    state: dict[str, Any]
    checkpoint: Any
    interrupt: dict[str, Any] | None
    iterations: int
    counters: Counters


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a run.

    - ``text``: more of the reply, in ``text``; ``piece``: anything else that the model streamed, in
      ``value``;
    - ``message``: a complete message of the model;
    - ``tool_call``, ``tool_result``: a call that is about to be made, and its result in ``message`` and
      ``text``;
    - ``checkpoint``: the thread was saved; ``interrupt``: a person has to decide;
    - ``finish``: the last event, with the ``result``.
    """

    kind: AgentEventKind
    text: str = ""
    value: Any = None
    message: Message | None = None
    call: ToolCall | None = None
    is_error: bool = False
    checkpoint: Any = None
    interrupt: dict[str, Any] | None = None
    result: Result | None = None


class Call(msgspec.Struct, frozen=True):
    """A function to call; it may be sync or async.

    A ``shielded`` call is finished even if its caller is cancelled, so that code which catches the
    cancellation finds the thread as it will stay, not while it is being saved.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    shielded: bool = False

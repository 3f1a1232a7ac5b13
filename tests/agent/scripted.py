"""Models that follow a script, and messages in the three styles that providers use."""

from __future__ import annotations

import json


class Scripted:
    """Gives its replies one after the other, and remembers what it was shown."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.seen = []
        self.tools = []

    def __call__(self, messages, tools):
        self.seen.append(list(messages))
        self.tools = tools
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def asking(*calls, style="openai", text="Let me see."):
    """An assistant's message that wants tools; each call is (id, name, arguments)."""
    if style == "openai":
        return {
            "role": "assistant",
            "content": text,
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for call_id, name, arguments in calls
            ],
        }
    blocks = {
        "anthropic": lambda call: {"type": "tool_use", "id": call[0], "name": call[1], "input": call[2]},
        "blocks": lambda call: {
            "type": "tool-call",
            "toolCallId": call[0],
            "toolName": call[1],
            "input": call[2],
        },
    }
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": text}, *map(blocks[style], calls)],
    }


def answered(call_id, text, *, style="openai", name=""):
    """The result of a call, as that style has it."""
    if style == "openai":
        return {"role": "tool", "tool_call_id": call_id, "content": text}
    if style == "anthropic":
        return {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}],
        }
    output = {"type": "text", "value": text}
    return {
        "role": "tool",
        "content": [{"type": "tool-result", "toolCallId": call_id, "toolName": name, "output": output}],
    }


def forgetful(messages, tools):  # noqa: ARG001 - a model is given both
    """A model that knows a name if, and only if, the conversation holds it."""
    for message in messages:
        text = message["content"]
        if message["role"] == "user" and "my name is " in text:
            name = text.rpartition(" ")[2]
            if messages[-1] is not message:
                return said(f"Your name is {name}")
    return said("Hello!")


def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


def two_sums(style="openai"):
    return asking(("c1", "add", {"a": 1, "b": 2}), ("c2", "add", {"a": 3, "b": 4}), style=style)


def contents(messages):
    return [each["content"] for each in messages]

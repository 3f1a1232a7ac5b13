"""The message objects of two providers' own clients, as a model function would pass them on."""

from __future__ import annotations

import json

import pytest
from anthropic.types import Message
from openai.types.chat import ChatCompletionMessage

import treering
from tests.agent.scripted import Scripted, user
from treering.agent import create_agent


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


def look(n: int) -> int:
    """Look at a number."""
    return n


def test_messages_of_openais_client(store) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"n": 7}'}}
    wants = ChatCompletionMessage.model_validate({"role": "assistant", "content": None, "tool_calls": [call]})
    done = ChatCompletionMessage(role="assistant", content="It is 7.")
    model = Scripted(wants, done)
    agent = create_agent(model=model, tools=[look], checkpointer=store)
    assert agent.generate(thread_id="t", prompt="Look").text == "It is 7."
    assert store.thread("t").load().messages == [
        user("Look"),
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "7"},
        {"role": "assistant", "content": "It is 7."},
    ]
    assert json.dumps([each.as_openai() for each in model.tools])


def test_messages_of_anthropics_client(store) -> None:
    def message(*content):
        usage = {"input_tokens": 9, "output_tokens": 4}
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "usage": usage}
        return Message.model_validate({**head, "content": content, "stop_reason": "tool_use"})

    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"n": 7}}
    model = Scripted(message({"type": "text", "text": "Let me look."}, call), message(*DONE))
    agent = create_agent(model=model, tools=[look], checkpointer=store)
    assert agent.generate(thread_id="t", prompt="Look").text == "It is 7."
    kept = store.thread("t").load().messages
    assert kept[1]["content"] == [{"type": "text", "text": "Let me look."}, call]
    assert kept[1]["usage"] == {"input_tokens": 9, "output_tokens": 4}, "and what else the provider said"
    assert kept[2]["content"] == [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "7"}]


DONE = ({"type": "text", "text": "It is "}, {"type": "text", "text": "7."})

"""A tool call of ADK that waits to be confirmed is answered from anywhere."""

from __future__ import annotations

import asyncio

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.function_tool import FunctionTool
from google.genai import types

import treering
from treering.adapters.adk.service import TreeringSessionService
from treering.errors import InvalidInput

PLACE = {"app_name": "shop", "user_id": "alice", "session_id": "s"}
THREAD = "shop/alice/s"


class Clerk(BaseLlm):
    """Asks for a refund, then says how that went."""

    async def generate_content_async(self, llm_request, stream=False):  # noqa: FBT002 - the SDK's signature
        del stream
        last = llm_request.contents[-1]
        answers = [each.function_response for each in last.parts if each.function_response]
        if answers:
            said = types.Part(text=f"It went: {answers[0].response}")
        else:
            said = types.Part(function_call=types.FunctionCall(name="refund", args={"order": 7}, id="c7"))
        yield LlmResponse(content=types.Content(role="model", parts=[said]))


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store") as opened:
        yield opened


def run(store, refunded, message):
    def refund(order: int) -> str:
        """Send the money back."""
        refunded.append(order)
        return f"order {order} refunded"

    agent = LlmAgent(
        name="clerk", model=Clerk(model="clerk"), tools=[FunctionTool(refund, require_confirmation=True)]
    )
    app = App(name="shop", root_agent=agent)

    async def go():
        service = TreeringSessionService(store)
        if await service.get_session(**PLACE) is None:
            await service.create_session(**PLACE)
        given = message or await service.confirmation(**PLACE)
        if given is None:
            return None
        runner = Runner(app=app, session_service=service)
        texts = []
        async for event in runner.run_async(user_id="alice", session_id="s", new_message=given):
            texts += [each.text for each in (event.content.parts if event.content else ()) or () if each.text]
        return texts

    return asyncio.run(go())


@pytest.mark.parametrize(
    "decision, value, expected",
    [
        ("approve", None, [7]),
        ("deny", None, []),
        ("edit", {"confirmations": []}, []),
        ("edit", {"confirmations": [{"id": "ID", "confirmed": True}]}, [7]),
    ],
)
def test_a_call_is_made_as_was_decided(store, decision, value, expected):
    refunded = []
    run(store, refunded, types.Content(role="user", parts=[types.Part(text="Refund order 7.")]))
    pending = store.thread(THREAD).load().pending_interrupt
    (asked,) = pending["payload"]["confirmations"]
    assert (asked["tool"], asked["arguments"]) == ("refund", {"order": 7})
    assert run(store, refunded, None) is None, "nothing was decided yet"
    for each in (value or {}).get("confirmations", ()):
        each["id"] = asked["id"]
    store.thread(THREAD).resume(decision, value=value)
    assert run(store, refunded, None)
    assert refunded == expected
    assert store.thread(THREAD).load().pending_interrupt is None
    assert run(store, refunded, None) is None, "it was answered"
    assert store.verify().ok


def test_an_edited_answer_must_list_calls(store):
    run(store, [], types.Content(role="user", parts=[types.Part(text="Refund order 7.")]))
    store.thread(THREAD).resume("edit", value={"order": 9})
    with pytest.raises(InvalidInput, match="lists the calls to decide on"):
        run(store, [], None)

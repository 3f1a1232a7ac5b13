"""A run of the Agents SDK that waits for approval is answered from anywhere."""

from __future__ import annotations

import asyncio

import pytest
from agents import Agent, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

import treering
from treering.adapters.openai_agents.session import TreeringSession
from treering.errors import InvalidInput

CALLS = [
    function_call("refund", {"order": 7}, call_id="r7"),
    function_call("refund", {"order": 8}, call_id="r8"),
]


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store") as opened:
        yield opened


def clerk(refunded, *steps):
    @function_tool(needs_approval=True)
    def refund(order: int) -> str:
        """Send the money back."""
        refunded.append(order)
        return f"order {order} refunded"

    return Agent(name="clerk", model=ScriptedModel(steps), tools=[refund])


def ask(store, calls=CALLS):
    async def run():
        session = TreeringSession("refunds", store)
        result = await Runner.run(clerk([], calls), "Refund them.", session=session)
        return await session.wait_for_approval(result)

    return asyncio.run(run())


def go_on(store):
    refunded = []

    async def run():
        session = TreeringSession("refunds", store)
        agent = clerk(refunded, [assistant_message("Done.")])
        state = await session.answered(agent)
        return None if state is None else (await Runner.run(agent, state, session=session)).final_output

    return asyncio.run(run()), refunded


@pytest.mark.parametrize(
    "decision, value, expected",
    [
        ("approve", None, [7, 8]),
        ("deny", None, []),
        ("edit", {"approvals": [{"call_id": "r8"}]}, [8]),
        ("edit", {"approvals": [{"call_id": "r7", "approve": False, "message": "Too late."}]}, []),
    ],
)
def test_calls_are_made_as_was_decided(store, decision, value, expected):
    assert ask(store)
    (overview,) = [each.id for each in store.threads()]
    pending = store.thread(overview).load().pending_interrupt
    assert [(each["call_id"], each["tool"]) for each in pending["payload"]["approvals"]] == [
        ("r7", "refund"),
        ("r8", "refund"),
    ]
    assert go_on(store) == (None, []), "nothing was decided yet"
    store.thread("refunds").resume(decision, value=value)
    assert go_on(store) == ("Done.", expected)
    assert store.thread("refunds").load().pending_interrupt is None
    outputs = [each["output"] for each in store.thread("refunds").load().messages if "output" in each]
    assert ("Too late." in outputs) == ("Too late." in str(value))
    assert store.verify().ok


def test_a_run_that_does_not_wait_leaves_nothing(store):
    assert not ask(store, [assistant_message("Hello.")])
    assert store.thread("refunds").load().pending_interrupt is None


def test_an_edited_answer_must_list_calls(store):
    ask(store)
    store.thread("refunds").resume("edit", value={"order": 9})
    with pytest.raises(InvalidInput, match="lists the calls to decide on"):
        go_on(store)

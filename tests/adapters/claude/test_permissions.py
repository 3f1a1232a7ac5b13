"""Permission requests of Claude are questions of the inbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    PermissionResultAllow,
    PermissionResultDeny,
    ToolPermissionContext,
)

import treering
from treering.adapters.claude.permissions import ask_permission
from treering.approvals import ApprovalPolicy

CALL = {"command": "rm -r build"}


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


def ask(store: treering.Store, decision: Any, **more: Any) -> tuple[Any, Any]:
    """Ask as the SDK does, answer meanwhile; return the question and the result."""
    options = ClaudeAgentOptions(
        can_use_tool=ask_permission(store, thread_id="t", policy=ApprovalPolicy(who=("ann",)))
    )
    context = ToolPermissionContext(tool_use_id="toolu_1", title="Claude wants to delete a folder")

    async def both() -> tuple[Any, Any]:
        assert options.can_use_tool is not None
        asking = asyncio.ensure_future(options.can_use_tool("Bash", CALL, context))
        seq = 0
        while not (found := list(store.approvals.list())):
            seq = await asyncio.to_thread(store.engine.wait, store.space, seq, seconds=10)
        await asyncio.to_thread(store.approvals.answer, found[0].id, decision, by="ann", **more)
        return found[0], await asking

    return asyncio.run(both())


def test_a_person_allows_a_call(store) -> None:
    question, result = ask(store, "approve")
    assert (question.tool, question.arguments, question.thread_id) == ("Bash", CALL, "t")
    assert (question.text, question.agent) == ("Claude wants to delete a folder", "claude")
    assert result == PermissionResultAllow()
    assert list(store.approvals.list()) == []


def test_an_edited_answer_is_the_new_input(store) -> None:
    _, result = ask(store, "edit", value={"command": "rm -r build/tmp"})
    assert result == PermissionResultAllow(updated_input={"command": "rm -r build/tmp"})


def test_claude_is_told_who_denied_it_and_why(store) -> None:
    _, result = ask(store, "deny", reason="keep it")
    assert result == PermissionResultDeny(message="denied by ann: keep it")


def test_a_session_that_starts_again_finds_its_question(store) -> None:
    store.approvals.request("Bash", CALL, thread_id="t", id="toolu_1")
    question, result = ask(store, "approve")
    assert question.policy.who == ()  # it is the first one
    assert result == PermissionResultAllow()

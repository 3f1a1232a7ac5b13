"""Permission requests of the Claude Agent SDK, answered from the inbox.

    options = ClaudeAgentOptions(can_use_tool=ask_permission(store, thread_id="support/alice"))

Each tool that Claude asks permission for becomes a question (see `treering.approvals`), which anybody who may
answers, wherever they are; the session waits meanwhile. An edited answer is the tool's new input. A session
that is started again, and asks about the same call, gets the same question.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from treering.adapters.shared import Opened, StoreOrUrl
from treering.errors import MissingExtra

try:
    from claude_agent_sdk import PermissionResultAllow, PermissionResultDeny
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"claude_agent_sdk", "anyio", "mcp"}:
        raise MissingExtra("treering.adapters.claude", "claude-agent-sdk") from error
    raise

if TYPE_CHECKING:
    from claude_agent_sdk import CanUseTool, ToolPermissionContext

    from treering.approvals.policy import ApprovalPolicy


def ask_permission(
    store: StoreOrUrl | None = None,
    *,
    policy: ApprovalPolicy | None = None,
    thread_id: str | None = None,
    namespace: str = "",
    agent: str | None = "claude",
) -> CanUseTool:
    """Return a ``can_use_tool`` that asks people.

    ``policy`` says who may answer, until when, and what happens then; rules of the store come before it.
    ``thread_id``, ``namespace`` and ``agent`` say whose question it is.
    """
    opened = Opened(store)

    async def can_use_tool(
        tool: str, given: dict[str, Any], context: ToolPermissionContext
    ) -> PermissionResultAllow | PermissionResultDeny:
        asked = await asyncio.to_thread(
            opened.store.approvals.request,
            tool,
            given,
            question=context.title or context.decision_reason,
            thread_id=thread_id,
            namespace=namespace,
            agent=context.agent_id or agent,
            policy=policy,
            id=context.tool_use_id,
        )
        answer = await asked
        await asyncio.to_thread(asked.taken)
        if answer.status == "approved":
            return PermissionResultAllow(updated_input=cast("dict[str, Any] | None", answer.value))
        by = ", ".join(answer.decided_by) or "nobody in time"
        return PermissionResultDeny(
            message=f"denied by {by}" + (f": {answer.reason}" if answer.reason else "")
        )

    return can_use_tool

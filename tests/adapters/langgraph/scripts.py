"""A chat model whose answers follow from the conversation, so that a run that goes on elsewhere ends the
same.
"""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.base import empty_checkpoint


class Scripted(BaseChatModel):
    """Asks for ``tool`` as often as ``rounds`` says, then says what the tools returned."""

    tool: str = "add"
    rounds: int = 2

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools, **kwargs: Any):  # noqa: ARG002
        return self

    def _generate(self, messages: list[BaseMessage], *_args: Any, **_kwargs: Any) -> ChatResult:
        results = [message.content for message in messages if isinstance(message, ToolMessage)]
        if len(results) < self.rounds:
            call = {
                "name": self.tool,
                "args": {"a": len(results), "b": 1},
                "id": f"call-{len(results)}",
                "type": "tool_call",
            }
            answer = AIMessage(content="", tool_calls=[call])
        else:
            answer = AIMessage(content=f"results: {', '.join(map(str, results))}")
        return ChatResult(generations=[ChatGeneration(message=answer)])


def config(thread: str = "alice", **more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, **more}}


def put(
    saver, values, *, parent=None, metadata=None, thread: str = "alice", updated=None, graph_id=None
) -> dict[str, Any]:
    """Save a checkpoint with these values; ``updated`` are the channels that say which tasks it starts."""
    checkpoint = empty_checkpoint()
    if graph_id is not None:
        checkpoint["id"] = graph_id
    checkpoint["channel_values"] = values
    versions = dict.fromkeys(values, checkpoint["id"])
    checkpoint["channel_versions"] = versions
    checkpoint["updated_channels"] = updated
    where = parent or config(thread, checkpoint_ns="")
    return saver.put(where, checkpoint, metadata or {"source": "loop", "step": 0}, versions)


ONE_TASK = ["branch:to:agent"]
"""What a checkpoint has updated that starts one task."""

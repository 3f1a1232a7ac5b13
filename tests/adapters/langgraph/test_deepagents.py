"""A deep agent keeps its conversation, its to-dos and its files; the files one by one."""

from __future__ import annotations

from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

import treering
from tests.adapters.langgraph.scripts import Scripted, config
from treering.adapters.langgraph import TreeringSaver


class Author(Scripted):
    """Writes one file per round."""

    rounds: int = 3

    def _generate(self, messages, stop=None, run_manager=None, **kwargs: Any) -> ChatResult:  # noqa: ARG002
        number = sum(isinstance(message, ToolMessage) for message in messages)
        if number < self.rounds:
            args = {"file_path": f"/chapter-{number}.md", "content": f"{number} " + "word " * 2000}
            call = {"name": "write_file", "args": args, "id": f"call-{number}", "type": "tool_call"}
            answer = AIMessage(content="", tool_calls=[call])
        else:
            answer = AIMessage(content=f"{number} chapters")
        return ChatResult(generations=[ChatGeneration(message=answer)])


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
def test_a_deep_agent_goes_on_in_another_saver(engine, tmp_path):
    with treering.open("memory:" if engine == "memory" else tmp_path / "store") as store:
        agent = create_deep_agent(model=Author(), checkpointer=TreeringSaver(store))
        state = agent.invoke({"messages": [HumanMessage("write")]}, config())
        assert state["messages"][-1].content == "3 chapters"
        kept = create_deep_agent(model=Author(), checkpointer=TreeringSaver(store)).get_state(config()).values
        assert kept["messages"] == state["messages"]
        assert set(kept["files"]) == {"/chapter-0.md", "/chapter-1.md", "/chapter-2.md"}
        assert kept["files"] == state["files"]
        again = create_deep_agent(model=Author(), checkpointer=TreeringSaver(store)).invoke(
            {"messages": [HumanMessage("more?")]}, config()
        )
        assert again["messages"][-1].content == "3 chapters"
        assert again["files"] == state["files"]
        checkpoints = list(store.thread("alice").history())
        assert [each["content"] for each in checkpoints[0].messages] == [
            each.content for each in again["messages"]
        ]
        sizes = [len(each.messages) for each in checkpoints]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-2] == 1
        thread = store.thread("alice")
        added = thread.diff(checkpoints[-2], checkpoints[0]).added
        assert len(added) == len(again["messages"]) - 1
        assert store.verify().ok

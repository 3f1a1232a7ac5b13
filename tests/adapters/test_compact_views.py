"""What each framework gives its model of a thread that was compacted. The thread keeps everything."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, RemoveMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, interrupt
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import treering
from treering.adapters.adk import TreeringSessionService
from treering.adapters.langchain import CompactMiddleware
from treering.adapters.langgraph import TreeringSaver
from treering.adapters.pydantic_ai import TreeringCheckpoints, TreeringConversationStore, load_history
from treering.errors import InvalidInput

SUMMARY = "Summary of the conversation so far:\n\nThey counted."


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


class LangChainModel(GenericFakeChatModel):
    """Answers "a0", "a1", ... and remembers what it was given."""

    seen: list[list[str]]

    def _generate(self, messages, *args: Any, **kwargs: Any):
        self.seen.append([str(each.content) for each in messages])
        return super()._generate(messages, *args, **kwargs)

    def bind_tools(self, *_args: Any, **_kwargs: Any):
        return self


def langchain_model() -> LangChainModel:
    return LangChainModel(messages=iter([AIMessage(f"a{n}") for n in range(20)]), seen=[])


CONFIG: Any = {"configurable": {"thread_id": "t"}}


class TestLangGraph:
    @pytest.fixture(params=["middleware", "async middleware", "hook"])
    def ask(self, request, store):
        model, compact = langchain_model(), CompactMiddleware(store)
        saver = TreeringSaver(store)
        if request.param == "hook":
            with pytest.warns(match="create_react_agent"):
                graph = create_react_agent(
                    model, [], pre_model_hook=compact.pre_model_hook, checkpointer=saver
                )
        else:
            graph = create_agent(model, [], system_prompt="Count.", middleware=[compact], checkpointer=saver)

        def ask(text: str):
            given = {"messages": [("user", text)]}
            if request.param == "async middleware":
                asyncio.run(graph.ainvoke(given, CONFIG))
            else:
                graph.invoke(given, CONFIG)
            return [each for each in model.seen[-1] if each != "Count."]

        return ask

    def test_the_model_sees_the_view_and_the_thread_keeps_everything(self, store, ask):
        for text in ("q0", "q1", "q2"):
            ask(text)
        thread = store.thread("t")
        thread.compact("They counted.", keep_last=1)
        assert ask("q3") == [SUMMARY, "a2", "q3"]
        assert ask("q4") == [SUMMARY, "a2", "q3", "a3", "q4"]  # a graph's next steps have the boundary
        fork = thread.fork("f")
        thread.uncompact()
        assert len(ask("q5")) == 11
        assert [each["content"] for each in fork.load().messages][:3] == ["q0", "a0", "q1"]
        assert [each.upto for each in fork.load().compactions] == [5]
        assert store.verify().ok

    def test_a_budget_leaves_out_the_oldest(self, store):
        model = langchain_model()
        graph = create_agent(
            model,
            [],
            middleware=[CompactMiddleware(store, budget_tokens=40)],
            checkpointer=TreeringSaver(store),
        )
        for text in ("q0", "q1", "q2", "q3", "q4", "q5"):
            graph.invoke({"messages": [("user", text)]}, CONFIG)
        assert model.seen[-1][-1] == "q5"
        assert len(model.seen[-1]) == 8  # of 11: five tokens each
        store.thread("t").compact("They counted.", upto=4)
        graph.invoke({"messages": [("user", "q6")]}, CONFIG)
        assert (model.seen[-1][0], model.seen[-1][-1]) == (SUMMARY, "q6")
        assert len(model.seen[-1]) == 4

    def test_an_agent_in_an_agent_has_messages_of_its_own(self, store):
        model, inner = langchain_model(), langchain_model()
        compact = CompactMiddleware(store)
        helper = create_agent(inner, [], middleware=[compact])

        def node(state):
            asked = [("user", "one"), ("assistant", "two"), ("user", f"help {len(state['messages'])}")]
            helper.invoke({"messages": asked})
            return {"messages": [model.invoke(state["messages"])]}

        builder = StateGraph(MessagesState)
        builder.add_node("n", node)
        builder.add_edge(START, "n")
        graph = builder.compile(checkpointer=TreeringSaver(store))
        graph.invoke({"messages": [("user", "q0")]}, CONFIG)
        store.thread("t").compact("They counted.", upto=2)
        graph.invoke({"messages": [("user", "q1")]}, CONFIG)
        assert inner.seen[-1] == ["one", "two", "help 3"]

    def test_a_graph_that_cuts_its_messages_has_no_boundary_behind_the_cut(self, store):
        def cut(state):
            return {"messages": [RemoveMessage(each.id) for each in state["messages"][2:]]}

        def build(node):
            builder = StateGraph(MessagesState)
            builder.add_node("n", node)
            builder.add_edge(START, "n")
            return builder.compile(checkpointer=TreeringSaver(store))

        asks = build(lambda state: {"messages": [("assistant", f"a{len(state['messages'])}")]})
        for text in ("q0", "q1", "q2"):
            asks.invoke({"messages": [("user", text)]}, CONFIG)
        thread = store.thread("t")
        thread.compact("one", upto=2)
        thread.compact("two", upto=4)
        build(cut).invoke({"messages": [("user", "cut")]}, CONFIG)
        assert [each.upto for each in thread.load().compactions] == [2]

    def test_a_graph_that_waits_is_compacted_and_goes_on(self, store):
        def node(_):
            return {"messages": [("assistant", f"said {interrupt('go?')}")]}

        builder = StateGraph(MessagesState)
        builder.add_node("n", node)
        builder.add_edge(START, "n")
        graph = builder.compile(checkpointer=TreeringSaver(store))
        graph.invoke({"messages": [("user", "a"), ("assistant", "b"), ("user", "c")]}, CONFIG)
        store.thread("t").compact("They counted.", keep_last=1)
        other = builder.compile(checkpointer=TreeringSaver(store))
        assert other.get_state(CONFIG).next == ("n",)
        assert other.get_state(CONFIG).values.keys() == {"messages"}
        result = other.invoke(Command(resume="yes"), CONFIG)
        assert [each.content for each in result["messages"]] == ["a", "b", "c", "said yes"]
        assert [each.upto for each in store.thread("t").load().compactions] == [2]


class TestPydanticAI:
    def agent(self):
        seen: list[list[str]] = []

        def answer(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
            seen.append([str(part.content) for each in messages for part in each.parts])
            return ModelResponse(parts=[TextPart(f"a{len(seen) - 1}")])

        return Agent(FunctionModel(answer)), seen

    def run(self, store, texts, agent, **options):
        async def main():
            conversations = TreeringConversationStore(store)
            for text in texts:
                checkpoints = TreeringCheckpoints(conversations, **options)
                conversation = await conversations.load("c")
                known = {"conversation_id": "c"} if conversation is None else {"conversation": conversation}
                result = await agent.run(text, capabilities=[checkpoints], **known)
            return result

        return asyncio.run(main())

    def test_the_model_sees_the_view_and_the_thread_keeps_everything(self, store):
        agent, seen = self.agent()
        self.run(store, ["q0", "q1", "q2"], agent)
        thread = TreeringConversationStore(store).thread("c")
        thread.compact("They counted.", keep_last=1)
        result = self.run(store, ["q3"], agent)
        assert seen[-1] == [SUMMARY, "a2", "q3"]
        assert len(result.all_messages()) == thread.load().message_count == 8
        assert [each.upto for each in thread.load().compactions] == [5]
        self.run(store, ["q4"], agent, view="full")
        assert len(seen[-1]) == 9
        self.run(store, ["q5"], agent, budget_tokens=40)
        assert (seen[-1][0], seen[-1][-1]) == (SUMMARY, "q5")
        assert len(seen[-1]) < 5
        shown = load_history(thread, view="compact")
        assert [part.content for each in shown[:2] for part in each.parts] == [SUMMARY, "a2"]
        assert len(load_history(thread)) == 12

    def test_a_wrong_view_is_refused(self, store):
        with pytest.raises(InvalidInput, match="view is 'short'; use one of full, compact"):
            TreeringCheckpoints(TreeringConversationStore(store), view="short")


class GeminiModel(BaseLlm):
    seen: list[list[str]]
    summaries: list[str]

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002, FBT001, FBT002 - ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        given = ["".join(part.text or "" for part in each.parts or []) for each in llm_request.contents]
        if "summar" in given[-1].lower() and len(given) == 1:
            text = f"summary {len(self.summaries)}"
            self.summaries.append(given[0])
        else:
            self.seen.append(given)
            text = f"a{len(self.seen) - 1}"
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]))


NAMES: Any = {"app_name": "counting", "user_id": "alice"}


@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL:UserWarning")
class TestADK:
    async def run(self, store, texts, model, *, compacts=None, view="compact"):
        sessions = TreeringSessionService(store, view=view)
        if await sessions.get_session(**NAMES, session_id="s") is None:
            await sessions.create_session(**NAMES, session_id="s")
        app = App(
            name="counting",
            root_agent=LlmAgent(name="counter", model=model),
            events_compaction_config=compacts,
        )
        runner = Runner(app=app, session_service=sessions)
        for text in texts:
            message = types.Content(role="user", parts=[types.Part(text=text)])
            async for _ in runner.run_async(user_id="alice", session_id="s", new_message=message):
                pass
        await runner.close()

    def thread(self, store):
        return store.thread("counting/alice/s")

    def test_the_model_sees_the_view_and_the_thread_keeps_everything(self, store):
        model = GeminiModel(model="fake", seen=[], summaries=[])
        asyncio.run(self.run(store, ["q0", "q1", "q2"], model))
        thread = self.thread(store)
        thread.compact("They counted.", keep_last=1)
        asyncio.run(self.run(store, ["q3"], model))
        assert model.seen[-1] == [SUMMARY, "a2", "q3"]
        assert (thread.load().message_count, len(thread.load().compactions)) == (8, 1)
        asyncio.run(self.run(store, ["q4"], model, view="full"))
        assert len(model.seen[-1]) == 9
        thread.uncompact()
        asyncio.run(self.run(store, ["q5"], model))
        assert len(model.seen[-1]) == 11

    def test_a_compaction_of_adk_is_one_of_the_thread_and_can_be_undone(self, store):
        model = GeminiModel(model="fake", seen=[], summaries=[])
        every_two = EventsCompactionConfig(compaction_interval=2, overlap_size=0)
        asyncio.run(self.run(store, ["q0", "q1", "q2", "q3", "q4"], model, compacts=every_two))
        assert model.seen[-1] == ["summary 0", "summary 1", "q4"]
        thread = self.thread(store)
        first, second = thread.load().compactions
        assert (first.source, first.upto, first.since) == ("adk", 4, 0)
        assert (second.upto, second.since) == (9, 4)  # with the event of the first one
        assert second.text == "summary 0\n\nsummary 1"
        view = thread.load(view="compact").messages
        assert [each["content"]["parts"][0]["text"] for each in view if "content" in each] == [
            "summary 0",
            "summary 1",
            "q4",
            "a4",
        ]
        assert thread.load().message_count == 12  # ten of the conversation, and two of compactions
        thread.uncompact(everything=True)
        asyncio.run(self.run(store, ["q5"], model))
        assert model.seen[-1] == ["q0", "a0", "q1", "a1", "q2", "a2", "q3", "a3", "q4", "a4", "q5"]
        assert store.verify().ok

"""LangChain and LangGraph, recorded while they run: real graphs with scripted models."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import treering
from treering.adapters.langchain import TreeringTracer
from treering.core.batch import Usage
from treering.core.query import EventQuery
from treering.errors import BudgetExceeded

USAGE = {
    "input_tokens": 1000,
    "output_tokens": 50,
    "total_tokens": 1050,
    "input_token_details": {
        "cache_read": 600,
        "cache_creation": 0,
        "ephemeral_5m_input_tokens": 200,
        "ephemeral_1h_input_tokens": 100,
    },
    "output_token_details": {"reasoning": 20},
}
COUNTED = Usage(input=100, cache_read=600, cache_write=200, cache_write_1h=100, output=50, reasoning=20)
# claude-sonnet-4-5: 3 $ a million, 0.30 from the cache, 3.75 and 6 into it, 15 of output
PRICE = (
    100 * Decimal(3) + 600 * Decimal("0.3") + 200 * Decimal("3.75") + 100 * Decimal(6) + 50 * Decimal(15)
) / 1_000_000


class Scripted(BaseChatModel):
    """Asks for the tool once, then says what it returned; or says ``fixed``, or fails."""

    fixed: str = ""
    fails: bool = False

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _get_ls_params(self, stop=None, **kwargs: Any):  # noqa: ARG002
        return {"ls_provider": "anthropic", "ls_model_name": "claude-sonnet-4-5", "ls_model_type": "chat"}

    def bind_tools(self, tools, **kwargs: Any):  # noqa: ARG002
        return self

    def _answer(self, messages):
        if self.fails:
            raise RuntimeError("the model is away")
        results = [message.content for message in messages if isinstance(message, ToolMessage)]
        if self.fixed or results:
            return {"content": self.fixed or f"It is {results[-1]}."}
        call = {"name": "add", "args": {"a": 40, "b": 2}, "id": "call-1", "type": "tool_call"}
        return {"content": "", "tool_calls": [call]}

    def _generate(self, messages, stop=None, run_manager=None, **kwargs: Any):  # noqa: ARG002
        actual = {"model_name": "claude-sonnet-4-5"}
        message = AIMessage(**self._answer(messages), usage_metadata=USAGE, response_metadata=actual)
        return ChatResult(generations=[ChatGeneration(message=message)])


class Streaming(Scripted):
    """Says it piece by piece."""

    def _stream(self, messages, stop=None, run_manager=None, **kwargs: Any):  # noqa: ARG002
        pieces = ["It ", "is ", "42."]
        for piece in pieces:
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=piece))
            yield chunk
        yield ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=USAGE))


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def fail(a: int) -> int:
    """Never works."""
    raise ValueError(f"not {a}")


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


@pytest.fixture
def tracer(store):
    return TreeringTracer(store)


def spans(store, run_id):
    store.flush()
    found = store.engine.scan(store.space, EventQuery(run=str(run_id))).records
    return [record.event for record in found if record.event.kind.startswith("span.")]


def labels(store, run_id):
    store.flush()
    return [event.label.split(" (")[0] for event in store.timeline.of_run(str(run_id)).events]


@pytest.mark.parametrize("how", ["plain", "awaited"])
def test_an_agents_run_keeps_its_id_its_thread_and_costs_what_it_did(store, tracer, how):
    agent = create_agent(Scripted(), [add], name="adder")
    asked, run_id = {"messages": [("user", "40 and 2?")]}, uuid4()
    config = {"callbacks": [tracer], "run_id": run_id, "configurable": {"thread_id": "alice"}}
    if how == "plain":
        agent.invoke(asked, config)
    else:
        asyncio.run(agent.ainvoke(asked, config))
    assert labels(store, run_id) == [
        "user message",
        "▶ adder",
        "assistant message",
        "call add",
        "add result",
        "assistant message",
        "■ adder",
    ]
    run = store.runs.load(str(run_id))
    assert (run.agent, run.thread, run.status) == ("adder", "alice", "ok")
    total = store.cost.of_run(str(run_id)).total
    assert total.usage == Usage(**{name: 2 * getattr(COUNTED, name) for name in Usage.__struct_fields__})
    assert total.amounts == {"USD": 2 * PRICE}
    assert {part.key for part in store.cost.of_run(str(run_id)).parts} == {"adder"}


def test_inputs_and_outputs_are_kept_as_they_were(store, tracer):
    run_id = uuid4()
    agent = create_agent(Scripted(), [add], name="adder")
    agent.invoke({"messages": [("user", "40 and 2?")]}, {"callbacks": [tracer], "run_id": run_id})
    store.flush()
    events = {event.label: event for event in store.timeline.of_run(str(run_id)).events}
    called, result = events["call add"], events["add result"]
    given, out = store.timeline.content(called.body, result.body)
    assert given == {"a": 40, "b": 2}
    assert out["content"] == "42"
    assert out["tool_call_id"] == "call-1"
    (said,) = store.timeline.content(events["user message"].body)
    assert said == "40 and 2?"
    (answer,) = store.timeline.content(events["assistant message"].body)
    assert answer["content"] == "It is 42."


class Joined(TypedDict):
    parts: Annotated[list[str], lambda one, other: one + other]


def branching():
    def node(model):
        return lambda state, config: {"parts": [model.invoke(str(state["parts"]), config).content]}

    graph = StateGraph(Joined)
    graph.add_node("planner", node(Scripted(fixed="a plan")))
    graph.add_node("critic", node(Scripted(fixed="no")))
    graph.add_node("writer", node(Scripted(fixed="a page")))
    graph.add_edge(START, "planner")
    graph.add_edge(START, "critic")
    graph.add_edge(["planner", "critic"], "writer")
    graph.add_edge("writer", END)
    return graph.compile(name="team")


@pytest.mark.parametrize("how", ["plain", "awaited"])
def test_nodes_are_agents_and_parallel_branches_stay_apart(store, tracer, how):
    run_id = uuid4()
    config = {"callbacks": [tracer], "run_id": run_id}
    if how == "plain":
        branching().invoke({"parts": []}, config)
    else:
        asyncio.run(branching().ainvoke({"parts": []}, config))
    found = spans(store, run_id)
    by_id = {event.id: event for event in found}
    (root,) = [event for event in found if event.name == "team"]
    for name in ("planner", "critic", "writer"):
        (agent,) = [event for event in found if event.kind == "span.agent" and event.name == name]
        assert agent.parent == root.id
        (model,) = [event for event in found if event.kind == "span.llm" and event.agent == name]
        above = by_id[model.parent]
        assert above.agent == name
    parts = {part.key: part.amount("USD") for part in store.cost.of_run(str(run_id)).parts}
    assert {name: parts[name] for name in ("planner", "critic", "writer")} == dict.fromkeys(
        ("planner", "critic", "writer"), PRICE
    )


class Delegating(Scripted):
    """Hands the task to a subagent, then says that it is done."""

    def _answer(self, messages):
        if any(isinstance(message, ToolMessage) for message in messages):
            return {"content": "Done."}
        given = {"description": "look", "subagent_type": "researcher"}
        return {
            "content": "",
            "tool_calls": [{"name": "task", "args": given, "id": "t1", "type": "tool_call"}],
        }


def test_a_deep_agents_subagent_is_an_agent_below_the_call(store, tracer):
    researcher = {
        "name": "researcher",
        "description": "Looks things up.",
        "system_prompt": "Look it up.",
        "model": Scripted(fixed="Found."),
    }
    lead = create_deep_agent(model=Delegating(), subagents=[researcher], name="lead")
    run_id = uuid4()
    lead.invoke({"messages": [("user", "Go.")]}, {"callbacks": [tracer], "run_id": run_id})
    found = spans(store, run_id)
    by_id = {event.id: event for event in found}
    (below,) = [event for event in found if event.kind == "span.agent" and event.name == "researcher"]
    assert (by_id[below.parent].kind, by_id[below.parent].name) == ("span.tool", "task")
    parts = {part.key: part.amount("USD") for part in store.cost.of_run(str(run_id)).parts}
    assert parts == {"lead": 2 * PRICE, "researcher": PRICE}


def test_a_stream_is_one_call_and_one_answer_with_the_times_of_its_pieces(store, tracer):
    run_id = uuid4()
    model = Streaming()
    said = "".join(
        piece.content for piece in model.stream("40 and 2?", {"callbacks": [tracer], "run_id": run_id})
    )
    assert said == "It is 42."
    (call,) = spans(store, run_id)
    assert call.kind == "span.llm"
    assert b"first_token_us" in call.data
    assert labels(store, run_id) == ["user message", "assistant message"]
    assert store.cost.of_run(str(run_id)).total.usage == COUNTED
    assert store.timeline.content(call.body) == ["It is 42."]


def test_errors_are_recorded_and_raised(store, tracer):
    run_id = uuid4()
    agent = create_agent(Scripted(fails=True), [add], name="adder")
    with pytest.raises(RuntimeError, match="the model is away"):
        agent.invoke({"messages": [("user", "?")]}, {"callbacks": [tracer], "run_id": run_id})
    run = store.runs.load(str(run_id)) if store.flush() is None else None
    assert run.status == "error"
    assert run.meta["error"]["message"] == "the model is away"
    (call,) = [event for event in spans(store, run_id) if event.kind == "span.llm"]
    assert call.status == "error"
    assert b"the model is away" in call.data
    with pytest.raises(ValueError, match="not 3"):
        fail.invoke({"a": 3}, {"callbacks": [tracer], "run_id": (second := uuid4())})
    (called,) = spans(store, second)
    assert (called.kind, called.name, called.status) == ("span.tool", "fail", "error")


class Shelf(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):  # noqa: ARG002
        return [Document(page_content=f"about {query}", metadata={"page": 3})]


def test_a_retriever_is_recorded_with_what_it_found(store, tracer):
    run_id = uuid4()
    chain = RunnableLambda(lambda question: Shelf().invoke(question)).with_config(run_name="find")
    chain.invoke("refunds", {"callbacks": [tracer], "run_id": run_id})
    (found,) = [event for event in spans(store, run_id) if event.kind == "span.retrieval"]
    assert store.timeline.content(found.body) == [
        [{"page_content": "about refunds", "metadata": {"page": 3}}]
    ]
    assert found.name == "Shelf"


def test_inside_a_run_that_is_being_recorded_the_graph_is_a_span_of_it(store, tracer):
    with store.run(agent="outer") as run:
        branching().invoke({"parts": []}, {"callbacks": [tracer]})
    store.flush()
    assert [info.id for info in store.runs.each()] == [run.id]
    (team,) = [event for event in spans(store, run.id) if event.name == "team"]
    assert team.parent is None
    assert store.cost.of_run(run.id).total.amounts == {"USD": 3 * PRICE}


def test_a_graph_that_asks_a_person_is_interrupted_and_not_failed(store, tracer):
    def ask(state):  # noqa: ARG001
        return {"messages": [("user", interrupt("Sure?"))]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    compiled = graph.compile(checkpointer=InMemorySaver(), name="asking")
    first, second = uuid4(), uuid4()
    where = {"callbacks": [tracer], "configurable": {"thread_id": "t"}}
    compiled.invoke({"messages": []}, {**where, "run_id": first})
    compiled.invoke(Command(resume="yes"), {**where, "run_id": second})
    assert [event.status for event in spans(store, first) if event.name == "ask"] == ["interrupted"]
    assert [event.status for event in spans(store, second) if event.name == "ask"] == ["ok"]
    assert {run.thread for run in store.runs.each()} == {"t"}


def test_what_cannot_be_recorded_does_not_stop_the_graph(store):
    tracer = TreeringTracer(store, namespace="bad\nname")
    with pytest.warns(RuntimeWarning, match="could not be recorded"):
        result = branching().invoke({"parts": []}, {"callbacks": [tracer]})
    assert result["parts"][-1] == "a page"


def test_a_budget_that_is_used_up_stops_the_agent_before_the_next_call(store, tracer):
    store.budgets.set("small", per="run", tokens=1000)
    agent = create_agent(Scripted(), [add], name="adder")
    run_id = uuid4()
    with pytest.raises(BudgetExceeded, match="small"):
        agent.invoke({"messages": [("user", "?")]}, {"callbacks": [tracer], "run_id": run_id})
    assert "call add" not in labels(store, run_id)
    assert store.runs.load(str(run_id)).status == "error"


def test_a_tracer_of_its_own_url_makes_all_durable_when_it_closes(tmp_path):
    run_id = uuid4()
    with TreeringTracer(tmp_path / "store", agent="named", tags=("nightly",)) as tracer:
        branching().invoke({"parts": []}, {"callbacks": [tracer], "run_id": run_id})
    with treering.open(tmp_path / "store") as store:
        run = store.runs.load(str(run_id))
        assert (run.agent, run.status, run.tags) == ("named", "ok", ("nightly",))

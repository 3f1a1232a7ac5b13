"""A graph that waits for a person shows as pending everywhere, and is answered from anywhere."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from typer.testing import CliRunner

import treering
from treering.adapters.langgraph.saver import TreeringSaver
from treering.cli.main import app
from treering.core.query import ListQuery, each_listed
from treering.errors import Conflict, InvalidInput
from treering.threads.writer import THREADS, WAITING, read_head

CONFIG: Any = {"configurable": {"thread_id": "alice"}}


class State(TypedDict, total=False):
    said: Annotated[list[Any], lambda one, other: one + other]


def ask_about(state: State) -> State:
    (name,) = state.get("said", [])
    return {"said": [(name, interrupt(name))]}


def graph(store: treering.Store, *nodes: Any, writes: Any = "durable") -> Any:
    builder = StateGraph(State)
    before = START
    for node in nodes:
        builder.add_node(node.__name__, node)
        builder.add_edge(before, node.__name__)
        before = node.__name__
    builder.add_edge(before, END)
    return builder.compile(checkpointer=TreeringSaver(store, writes=writes))


def ask(state: State) -> State:  # noqa: ARG001 - as LangGraph calls it
    return {"said": [interrupt({"question": "Send it?", "amount": 20})]}


def ask_twice(state: State) -> State:  # noqa: ARG001 - as LangGraph calls it
    first = interrupt("Which account?")
    return {"said": [first, interrupt(f"Really {first}?")]}


@pytest.mark.parametrize("writes", ["durable", "with_checkpoint"])
def test_a_graph_that_waits_is_pending_until_it_is_answered(store, writes):
    waits = graph(store, ask, writes=writes)
    waits.invoke({"said": ["hello"]}, CONFIG)
    pending = store.thread("alice").load().pending_interrupt
    assert pending["payload"] == {"question": "Send it?", "amount": 20}
    assert pending["id"] == waits.get_state(CONFIG).interrupts[0].id
    assert waits.invoke(Command(resume="yes"), CONFIG)["said"] == ["hello", "yes"]
    assert store.thread("alice").load().pending_interrupt is None


@pytest.mark.parametrize(
    "decision, value, heard",
    [("approve", None, True), ("deny", None, False), ("edit", {"amount": 5}, {"amount": 5})],
)
def test_a_decision_from_outside_continues_the_graph(store, decision, value, heard):
    waits = graph(store, ask)
    waits.invoke({"said": []}, CONFIG)
    answered = store.thread("alice").resume(decision, value=value)
    assert answered.pending_interrupt is None
    with pytest.raises(Conflict, match="no pending interrupt"):
        store.thread("alice").resume("approve")
    assert graph(store, ask).invoke(None, CONFIG)["said"] == [heard]  # another process, so to speak


def test_a_thread_that_was_loaded_before_learns_of_the_interrupt(store):
    waits, thread = graph(store, ask), store.thread("alice")
    waits.invoke({"said": []}, CONFIG)
    assert thread.head.pending_interrupt is not None
    thread.resume("approve")
    waits.invoke(None, CONFIG)
    assert thread.head.pending_interrupt is None


def test_the_second_question_of_a_node_keeps_the_first_answer(store):
    waits, thread = graph(store, ask_twice), store.thread("alice")
    waits.invoke({"said": []}, CONFIG)
    assert thread.load().pending_interrupt["payload"] == "Which account?"
    thread.resume("edit", value="DE02")
    waits.invoke(None, CONFIG)
    assert thread.load().pending_interrupt["payload"] == "Really DE02?"
    thread.resume("approve")
    assert waits.invoke(None, CONFIG)["said"] == ["DE02", True]


def test_tasks_that_wait_at_once_are_answered_one_by_one(store):
    builder = StateGraph(State)
    builder.add_node("ask", ask_about)
    builder.add_conditional_edges(
        START, lambda _: [Send("ask", {"said": [name]}) for name in ("a", "b", "c")]
    )
    builder.add_edge("ask", END)
    waits, thread = builder.compile(checkpointer=TreeringSaver(store)), store.thread("alice")
    waits.invoke({"said": []}, CONFIG)
    for _ in range(3):
        asked = thread.load().pending_interrupt["payload"]
        thread.resume("edit", value=f"{asked}!")
    assert thread.load().pending_interrupt is None
    assert sorted(waits.invoke(None, CONFIG)["said"]) == [("a", "a!"), ("b", "b!"), ("c", "c!")]


def test_an_interrupt_of_a_subgraph_is_pending_in_the_thread(store):
    inner = StateGraph(State)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    builder = StateGraph(State)
    builder.add_node("team", inner.compile())
    builder.add_edge(START, "team")
    waits, thread = builder.compile(checkpointer=TreeringSaver(store)), store.thread("alice")
    waits.invoke({"said": []}, CONFIG)
    assert thread.load().pending_interrupt["payload"]["question"] == "Send it?"
    thread.resume("edit", value="do")
    assert waits.invoke(None, CONFIG)["said"] == ["do"]


class Agent(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **_: Any) -> Any:  # noqa: ARG002 - LangChain's
        return self


@pytest.mark.parametrize("by", ["python", "whole answer", "command line"])
@pytest.mark.parametrize("decision, sent", [("approve", [20]), ("deny", []), ("edit", [5])])
def test_the_approval_of_a_tool_call_is_given_from_outside(tmp_path, decision, sent, by):
    agents = pytest.importorskip("langchain.agents")
    middleware = pytest.importorskip("langchain.agents.middleware")
    done: list[int] = []
    store = treering.open(tmp_path / "store")

    def refund(amount: int) -> str:
        """Send money."""
        done.append(amount)
        return "sent"

    call = {"name": "refund", "args": {"amount": 20}, "id": "c1", "type": "tool_call"}
    model = Agent(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("Done.")]))
    agent = agents.create_agent(
        model,
        [refund],
        middleware=[middleware.HumanInTheLoopMiddleware({"refund": True})],
        checkpointer=TreeringSaver(store),
    )
    agent.invoke({"messages": [("user", "refund it")]}, CONFIG)
    thread = store.thread("alice")
    pending = thread.load().pending_interrupt
    assert pending["payload"]["action_requests"][0]["args"] == {"amount": 20}
    value = {"amount": 5}
    if by == "whole answer":
        value = pending["answer"]["values"]["edit"]
        value["decisions"][0]["edited_action"]["args"]["amount"] = 5
    if by == "command line":
        shown = CliRunner().invoke(app, ["show", "alice", "--store", str(tmp_path / "store")])
        assert 'waits for   refund({"amount":20}) (interrupt ' in shown.output
        words = ["resume", "alice", decision, "--store", str(tmp_path / "store")]
        told = CliRunner().invoke(
            app, [*words, *(["--value", json.dumps(value)] if decision == "edit" else [])]
        )
        assert told.exit_code == 0, told.output
    else:
        thread.resume(decision, value=value if decision == "edit" else None)
    assert agent.invoke(None, CONFIG)["messages"][-1].content == "Done."
    assert done == sent
    store.close()


@pytest.mark.parametrize("value", [["amount", 5], {"decisions": []}, {"decisions": [], "amount": 5}])
def test_an_edited_tool_call_that_the_agent_could_not_read_is_refused(store, value):
    asks = {"action_requests": [{"name": "refund", "args": {"amount": 20}}], "review_configs": []}

    def approve(state: State) -> State:  # noqa: ARG001 - as LangGraph calls it
        return {"said": [interrupt(asks)]}

    waits = graph(store, approve)
    waits.invoke({"said": []}, CONFIG)
    with pytest.raises(InvalidInput, match="edited_action"):
        store.thread("alice").resume("edit", value=value)
    assert store.thread("alice").load().pending_interrupt is not None


def plan(state: State) -> State:  # noqa: ARG001 - as LangGraph calls it
    return {"said": ["planned"]}


def do(state: State) -> State:
    return {"said": [f"did {state.get('said', [''])[-1]}"]}


def test_a_graph_goes_on_from_an_edited_fork_with_what_it_would_have_done_next(store):
    steps = graph(store, plan, do)
    steps.invoke({"said": ["hello"]}, CONFIG)
    thread = store.thread("alice")
    planned = next(each for each in thread.history() if each.state.get("said") == ["hello", "planned"])
    thread.fork("edited", at=planned, state={**planned.state, "said": ["hello", "planned otherwise"]})
    edited: Any = {"configurable": {"thread_id": "edited"}}
    assert steps.get_state(edited).next == ("do",)
    assert steps.invoke(None, edited)["said"] == ["hello", "planned otherwise", "did planned otherwise"]
    assert steps.get_state(CONFIG).values["said"] == ["hello", "planned", "did planned"]


def waiting(store) -> list[str]:
    query = ListQuery(list=THREADS, namespace="", status=WAITING)
    return [read_head(ref).thread for ref in each_listed(store.engine, store.space, query)]


@pytest.mark.parametrize("writes", ["durable", "with_checkpoint"])
def test_a_graph_is_in_the_list_of_threads_and_while_it_waits_among_those_that_wait(store, writes):
    waits = graph(store, ask, ask_about, writes=writes)
    waits.invoke({"said": []}, CONFIG)
    assert [each.id for each in store.threads()] == waiting(store) == ["alice"]
    store.thread("alice").resume("edit", value="yes")
    assert waiting(store) == []
    waits.invoke(None, CONFIG)
    assert waiting(store) == ["alice"]
    waits.invoke(Command(resume="sure"), CONFIG)
    assert waiting(store) == []
    assert [each.id for each in store.threads()] == ["alice"]

"""What people do with graphs: short scripts that run on any checkpointer (see `talk`)."""

from __future__ import annotations

import asyncio
import operator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langchain_core.tools import tool
from langgraph.channels import Topic
from langgraph.channels.delta import DeltaChannel
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import MessagesState, _messages_delta_reducer, add_messages
from langgraph.types import Command, Overwrite, Send, StateUpdate, interrupt

from tests.adapters.langgraph.scripts import Scripted, config

SCENARIOS: dict[str, Any] = {}


def scenario(function):
    """List a script by its name."""
    SCENARIOS[function.__name__] = function
    return function


def human(text):
    return {"messages": [HumanMessage(text, id=text)]}


def answering(schema=MessagesState):
    def answer(state: dict):
        number = len(state["messages"])
        return {"messages": [AIMessage(f"answer {number}", id=f"a{number}")]}

    builder = StateGraph(schema)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder


class Mixed(TypedDict, total=False):
    total: Annotated[int, operator.add]
    seen: Annotated[list, operator.add]
    last: Any
    whole: list
    topic: Annotated[list, Topic(str, accumulate=True)]


class Deltas(TypedDict):
    messages: Annotated[list, DeltaChannel(_messages_delta_reducer, snapshot_frequency=3)]
    steps: Annotated[list, DeltaChannel(lambda old, new: [*old, *(x for y in new for x in y)])]


class Inner(TypedDict):
    seen: Annotated[list, operator.add]
    messages: Annotated[list, add_messages]


@dataclass
class Basket:
    items: list[str]
    price: float


@scenario
def conversation(talk):
    talk.compile(answering())
    for text in ("one", "two", "three"):
        talk.say(human(text))


@scenario
def threads_side_by_side(talk):
    talk.compile(answering())
    for text in ("one", "two"):
        for thread in ("a", "b", "c/d"):
            talk.say(human(f"{text} of {thread}"), thread)


@scenario
def channels_of_all_kinds(talk):
    def work(state):
        count = len(state.get("seen", []))
        return {
            "total": count,
            "seen": [{"n": count, "odd": (1, b"\x00", None, {"x"})}],
            "last": [count, 2.5, "\u2028 \U0001f600 e\u0301"],
            "whole": [*state.get("whole", []), {"n": count}],
            "topic": f"t{count}",
        }

    builder = StateGraph(Mixed)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    talk.compile(builder)
    for number in range(3):
        talk.say({"total": number, "seen": [number]})


@scenario
def own_types(talk):
    def buy(state):
        return {"last": Basket([*state["last"].items, "tea"], 2.5)}

    builder = StateGraph(Mixed)
    builder.add_node("buy", buy)
    builder.add_edge(START, "buy")
    talk.compile(builder)
    talk.say({"last": Basket(["milk"], 1.0)})


@scenario
def questions_in_a_node(talk):
    def ask(_):
        first = interrupt({"ask": "name"})
        second = interrupt({"ask": "age", "of": first})
        return {"seen": [first, second]}

    builder = StateGraph(Mixed)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    talk.compile(builder)
    talk.say({"seen": ["go"]})
    talk.log.append(talk.state())
    talk.say(Command(resume="Ada"))
    talk.say(Command(resume=36, update={"total": 1}))


@scenario
def questions_side_by_side(talk):
    builder = StateGraph(Mixed)
    for name in ("a", "b"):
        builder.add_node(name, lambda _, name=name: {"seen": [interrupt(name)]})
        builder.add_edge(START, name)
    builder.add_node("sure", lambda _: {"seen": ["sure"]})
    builder.add_edge(START, "sure")
    builder.add_node("end", lambda state: {"last": list(state["seen"])})
    builder.add_edge(["a", "b", "sure"], "end")
    talk.compile(builder)
    talk.say({"seen": []})
    waiting = {each.value: each.id for each in talk.state().interrupts}
    talk.say(Command(resume={waiting["b"]: "B"}))
    talk.log.append(talk.state())
    talk.say(Command(resume="A"))


@scenario
def stops_before_and_after(talk):
    builder = StateGraph(Mixed)
    for name in ("a", "b", "c"):
        builder.add_node(name, lambda _, name=name: {"seen": [name]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    talk.compile(builder, interrupt_before=["b"], interrupt_after=["b"])
    talk.say({"seen": ["go"]})
    talk.update({"seen": ["by hand"]})
    talk.say(None)
    talk.update({"total": 5}, as_node="b")
    talk.say(None)


@scenario
def fan_out_by_send(talk):
    def plan(_):
        return {"total": 1}

    def spread(state):
        return [Send("work", {"n": number, "of": state["total"]}) for number in range(3)]

    builder = StateGraph(Mixed)
    builder.add_node("plan", plan)
    builder.add_node("work", lambda given: {"seen": [given["n"] * 10], "topic": f"w{given['n']}"})
    builder.add_node("sum", lambda state: {"last": sum(state["seen"])})
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", spread, ["work"])
    builder.add_edge("work", "sum")
    talk.compile(builder)
    talk.say({"seen": [5]})
    talk.say({"seen": [6]})


@scenario
def commands_that_go_somewhere(talk):
    def route(state):
        return Command(goto="left" if state["total"] < 3 else END, update={"total": 1})

    builder = StateGraph(Mixed)
    builder.add_node("route", route, destinations=("left", END))
    builder.add_node(
        "left", lambda _: Command(goto="route", update={"seen": ["left"]}), destinations=("route",)
    )
    builder.add_edge(START, "route")
    talk.compile(builder)
    talk.say({"total": 0})


@scenario
def failure_and_another_try(talk):
    """One node at a time: which of several is cut off by a failure beside it is a matter of luck."""
    tries: list[int] = []

    def flaky(_):
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("the network is down")
        return {"seen": ["flaky"]}

    builder = StateGraph(Mixed)
    builder.add_node("steady", lambda _: {"seen": ["steady"]})
    builder.add_node("flaky", flaky)
    builder.add_node("end", lambda state: {"last": sorted(state["seen"])})
    builder.add_edge(START, "steady")
    builder.add_edge("steady", "flaky")
    builder.add_edge("flaky", "end")
    talk.compile(builder)
    talk.say({"seen": ["go"]})
    talk.log.append(talk.state())
    talk.say(None)


@scenario
def a_loop_without_end(talk):
    builder = StateGraph(Mixed)
    builder.add_node("again", lambda _: {"total": 1})
    builder.add_edge(START, "again")
    builder.add_edge("again", "again")
    talk.compile(builder)
    talk.say({"total": 0}, at={**config("t"), "recursion_limit": 4})
    talk.say(None, at={**config("t"), "recursion_limit": 3})


@scenario
def deferred_node(talk):
    builder = StateGraph(Mixed)
    for name in ("a", "b", "b2"):
        builder.add_node(name, lambda _, name=name: {"seen": [name]})
    builder.add_node("late", lambda state: {"last": list(state["seen"])}, defer=True)
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_edge("b", "b2")
    builder.add_edge("a", "late")
    builder.add_edge("b2", "late")
    talk.compile(builder)
    talk.say({"seen": []})


def nested(keeps, *, asks):
    inner = StateGraph(Inner)
    inner.add_node("look", lambda state: {"seen": [f"looked {len(state['seen'])}"]})
    inner.add_node("ask", lambda _: {"seen": [interrupt("what?") if asks else "quiet"]})
    inner.add_edge(START, "look")
    inner.add_edge("look", "ask")
    outer = StateGraph(Inner)
    outer.add_node("before", lambda _: {"seen": ["before"]})
    outer.add_node("inner", inner.compile(checkpointer=keeps))
    outer.add_node("after", lambda state: {"messages": [AIMessage(f"{len(state['seen'])}", id="after")]})
    outer.add_edge(START, "before")
    outer.add_edge("before", "inner")
    outer.add_edge("inner", "after")
    return outer


@scenario
def a_graph_inside_that_asks(talk):
    talk.compile(nested(None, asks=True))
    talk.say({"seen": ["go"]})
    talk.log.append(talk.state(subgraphs=True))
    talk.say(Command(resume="this"))


@scenario
def a_graph_inside_that_remembers(talk):
    talk.compile(nested(True, asks=False))
    for number in range(3):
        talk.say({"seen": [number]})


@scenario
def a_graph_inside_a_graph_inside(talk):
    top = StateGraph(Inner)
    top.add_node("middle", nested(None, asks=True).compile())
    top.add_edge(START, "middle")
    talk.compile(top)
    talk.say({"seen": ["go"]})
    talk.log.append(talk.state(subgraphs=True))
    talk.say(Command(resume="deep"))


@scenario
def a_graph_inside_that_hands_over(talk):
    inner = StateGraph(Inner)
    inner.add_node(
        "leave",
        lambda _: Command(goto="other", update={"seen": ["handed over"]}, graph=Command.PARENT),
    )
    inner.add_edge(START, "leave")
    outer = StateGraph(Inner)
    outer.add_node("inner", inner.compile(), destinations=("other",))
    outer.add_node("other", lambda _: {"seen": ["other"]})
    outer.add_edge(START, "inner")
    talk.compile(outer)
    talk.say({"seen": ["go"]})


@scenario
def time_travel(talk):
    talk.compile(answering())
    for text in ("one", "two", "three"):
        talk.say(human(text))
    past = next(
        each for each in talk.history() if each.next == ("answer",) and len(each.values["messages"]) == 3
    )
    talk.say(None, at=past.config)
    talk.say(human("four"))
    talk.say(human("instead"), at=past.config)


@scenario
def a_fork_by_update(talk):
    talk.compile(answering())
    for text in ("one", "two"):
        talk.say(human(text))
    past = talk.history()[2]
    branch = talk.update({"messages": [HumanMessage("other", id="one")]}, at=past.config)
    talk.say(None, at=branch)
    talk.update({"messages": [AIMessage("said by hand", id="hand")]}, as_node="answer")
    talk.say(human("three"))


@scenario
def messages_removed_and_replaced(talk):
    talk.compile(answering())
    for text in ("one", "two"):
        talk.say(human(text))
    talk.update({"messages": [RemoveMessage(id="a1"), HumanMessage("changed", id="one")]})
    talk.say(human("three"))
    talk.update({"messages": [RemoveMessage(id="__remove_all__"), HumanMessage("anew", id="anew")]})
    talk.say(human("four"))


@scenario
def many_updates_at_once(talk):
    talk.compile(answering())
    supersteps = [
        [StateUpdate(human("one"), "__input__")],
        [StateUpdate({"messages": [AIMessage("said", id="s")]}, "answer")],
    ]
    if talk.awaits:
        asyncio.run(talk.graph.abulk_update_state(config("t"), supersteps))
    else:
        talk.graph.bulk_update_state(config("t"), supersteps)
    talk.say(human("two"))


@scenario
def overwritten_channel(talk):
    builder = StateGraph(Mixed)
    builder.add_node("more", lambda _: {"seen": ["more"]})
    builder.add_node("reset", lambda _: {"seen": Overwrite(["reset"])})
    builder.add_edge(START, "more")
    builder.add_edge("more", "reset")
    talk.compile(builder)
    talk.say({"seen": ["go"]})
    talk.say({"seen": ["again"]})


@scenario
def delta_channels(talk):
    builder = answering(Deltas)
    builder.add_node("step", lambda state: {"steps": [f"s{len(state['steps'])}"]})
    builder.add_edge("answer", "step")
    talk.compile(builder)
    for text in ("one", "two", "three", "four"):
        talk.say(human(text))
    past = talk.history()[5]
    talk.say(human("instead"), at=past.config)
    talk.update({"messages": [RemoveMessage(id="one")]}, as_node="step")
    talk.say(human("five"))


@scenario
def delta_channels_and_questions(talk):
    builder = answering(Deltas)
    builder.add_node("ask", lambda _: {"steps": [interrupt("step?")]})
    builder.add_edge(START, "ask")
    talk.compile(builder)
    for text in ("one", "two"):
        talk.say(human(text))
        talk.say(Command(resume=f"after {text}"))


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@scenario
def an_agent_with_tools(talk):
    talk.graph = create_agent(Scripted(rounds=2), [add], checkpointer=talk.saver)
    talk.say(human("add, please"))
    talk.say(human("once more"))


@scenario
def an_agent_that_has_to_ask(talk):
    guard = HumanInTheLoopMiddleware(interrupt_on={"add": True})
    talk.graph = create_agent(Scripted(rounds=2), [add], middleware=[guard], checkpointer=talk.saver)
    talk.say(human("add, please"))
    talk.say(Command(resume={"decisions": [{"type": "approve"}]}))
    talk.say(Command(resume={"decisions": [{"type": "reject", "message": "enough"}]}))


@scenario
def functions_instead_of_a_graph(talk):
    @task
    def double(number):
        return number * 2

    @entrypoint(checkpointer=talk.saver)
    def work(number, *, previous=None):
        futures = [double(each) for each in range(number)]
        said = interrupt("go on?")
        return [previous, said, [each.result() for each in futures]]

    @task
    async def double_awaited(number):
        return number * 2

    @entrypoint(checkpointer=talk.saver)
    async def work_awaited(number, *, previous=None):
        futures = [double_awaited(each) for each in range(number)]
        said = interrupt("go on?")
        return [previous, said, [await each for each in futures]]

    talk.graph = work_awaited if talk.awaits else work
    for number in (2, 3):
        talk.say(number)
        talk.say(Command(resume=f"yes, {number}"))


@scenario
def saved_when_it_ends(talk):
    talk.compile(answering())
    for durability in ("exit", "async", "sync", "exit"):
        talk.say(human(durability), durability=durability)


@scenario
def metadata_and_pages(talk):
    talk.compile(answering())
    for user in ("ada", "bob"):
        talk.say(human(user), at={**config("t"), "metadata": {"user": user, "nested": {"a": [1]}}})
    everything = talk.kept("t")
    talk.log.append([len(everything), len(talk.kept("t", limit=2)), len(talk.kept(None))])
    for wanted in (
        {"user": "ada"},
        {"source": "loop", "user": "bob"},
        {"step": 1},
        {"user": "eve"},
        {"none": None},
    ):
        talk.log.append([each.metadata for each in talk.kept("t", filter=wanted)])
    talk.log.append([each.metadata["step"] for each in talk.kept("t", before=everything[2].config)])

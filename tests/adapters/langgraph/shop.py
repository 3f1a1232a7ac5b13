"""Graphs whose state has types of their own, in the ways that programs declare them.

`main` resumes one of them in a process that has saved nothing itself, and prints what it ends with.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel, SecretStr

from treering.adapters.langgraph import TreeringSaver


class Color(str, Enum):  # noqa: UP042 - as many programs have it
    RED = "red"


class Size(IntEnum):
    LARGE = 3


class Price(NamedTuple):
    nanos: int


class Item(BaseModel):
    id: int
    color: Color = Color.RED
    key: SecretStr = SecretStr("hush")


class RareItem(Item):
    why: str = "gold"


@dataclass
class Box:
    items: list[Item]
    size: Size = Size.LARGE
    prices: Mapping[str, Price] = field(default_factory=dict)


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    of: T


class Note(HumanMessage):
    """A message class of the program's own."""


ItemId = NewType("ItemId", Box)


class State(TypedDict, total=False):
    item: Item
    box: Box | None
    sizes: Sequence[Size]
    by_id: dict[str, Annotated[Price, "cents"]]
    page: Page[Color]
    messages: Annotated[list[AnyMessage], add_messages]
    untyped: Any
    seen: Annotated[list, operator.add]


@dataclass
class Job:
    item: Item


@dataclass
class Question:
    text: str


class Answer(BaseModel):
    text: str


def make_untyped() -> dict:
    return {"a": [Question("?"), {"b": Answer(text="!")}]}


def fill(state: State) -> dict[str, Any]:  # noqa: ARG001
    return {
        "item": RareItem(id=7),
        "box": Box([Item(id=1), RareItem(id=2)], prices={"a": Price(5)}),
        "sizes": [Size.LARGE],
        "by_id": {"x": Price(6)},
        "page": Page[Color](of=Color.RED),
        "messages": [
            Note("remember", id="note"),
            AIMessage("ok", id="ok", additional_kwargs={"x": Price(1)}),
        ],
        "untyped": make_untyped(),
    }


def fan_out(state: State) -> list[Send]:  # noqa: ARG001
    return [Send("work", Job(Item(id=each))) for each in (1, 2)]


def answered(question: Question) -> Answer:
    answer = interrupt(question)
    assert isinstance(answer, Answer)
    return answer


def work(job: Job) -> dict[str, Any]:
    reply = answered(Question(f"item {job.item.id}?"))
    return {"seen": [(job.item.id, reply.text)]}


def typed():
    builder = StateGraph(State)
    builder.add_node("fill", fill)
    builder.add_node("work", work)
    builder.add_edge(START, "fill")
    builder.add_conditional_edges("fill", fan_out, ["work"])
    return builder


def nested():
    child = typed().compile(checkpointer=True)
    builder = StateGraph(State)
    builder.add_node("child", child)
    builder.add_edge(START, "child")
    return builder


class ModelState(BaseModel):
    item: Item | None = None
    seen: Annotated[list, operator.add] = []


def models():
    def begin(state: ModelState) -> Command[Literal["end"]]:  # noqa: ARG001
        return Command(goto="end", update={"item": Item(id=3)})

    def end(state: ModelState):
        reply = answered(Question("ok?"))
        return {"seen": [(state.item.id, reply.text)]}

    builder = StateGraph(ModelState)
    builder.add_node("begin", begin)
    builder.add_node("end", end)
    builder.add_edge(START, "begin")
    return builder


def local():
    """A graph whose types are made in a function."""

    class Local(BaseModel):
        id: int

    @dataclass
    class Kept:
        local: Local

    fields = {"kept": Kept, "seen": Annotated[list, operator.add]}
    LocalState = TypedDict("LocalState", fields, total=False)

    def begin(state):  # noqa: ARG001
        return {"kept": Kept(Local(id=4))}

    def end(state):
        reply = answered(Question("ok?"))
        assert isinstance(state["kept"], Kept)
        assert isinstance(state["kept"].local, Local)
        return {"seen": [(state["kept"].local.id, reply.text)]}

    builder = StateGraph(LocalState)
    builder.add_node("begin", begin)
    builder.add_node("end", end)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "end")
    builder.add_edge("end", END)
    return builder


class Functional:
    """Compiles like a builder, to a graph of the functional API."""

    def compile(self, *, checkpointer):
        @task
        def prepare(id: int) -> Any:
            return Item(id=id)

        @entrypoint(checkpointer=checkpointer)
        def flow(given: dict, *, previous: Any = None) -> dict:
            item = prepare(8).result()
            reply = answered(Question("ok?"))
            return {"seen": [(item.id, reply.text)], "given": given, "previous": previous}

        return flow


class Weather(BaseModel):
    degrees: int


class Forecaster(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "forecaster"

    def bind_tools(self, tools, **kwargs):  # noqa: ARG002
        return self

    def _generate(self, messages, *args, **kwargs):  # noqa: ARG002
        call = {"name": "Weather", "args": {"degrees": 21}, "id": "1", "type": "tool_call"}
        return ChatResult(generations=[ChatGeneration(message=AIMessage("", tool_calls=[call]))])


class Agent:
    """Compiles like a builder, to LangChain's agent with a structured answer."""

    def compile(self, *, checkpointer):
        return create_agent(
            Forecaster(), [], response_format=ToolStrategy(Weather), checkpointer=checkpointer
        )


GRAPHS = {
    "typed": typed,
    "nested": nested,
    "models": models,
    "local": local,
    "functional": Functional,
    "agent": Agent,
}


def resume(name: str, saver) -> str:
    """Answer what a graph has asked, and return what it ends with."""
    where = {"configurable": {"thread_id": "alice"}}
    graph = GRAPHS[name]().compile(checkpointer=saver)
    state = graph.get_state(where, subgraphs=True)
    if name == "agent":
        return repr(state.values["structured_response"])
    asked = [each for one in state.tasks for each in one.interrupts]
    assert all(type(each.value) is Question for each in asked), asked
    ended = graph.invoke(Command(resume={each.id: Answer(text="yes") for each in asked}), where)
    return repr([sorted(ended.pop("seen")), sorted(ended.items())])


def main() -> None:
    """``resume FOLDER``: answers each graph, whose store is the folder of its name."""
    for name in GRAPHS:
        with TreeringSaver(Path(sys.argv[1]) / name) as saver:
            print(resume(name, saver))

"""Old threads under new code: upcasters, and what check_deploy says before a deploy.

The proof has threads of three frameworks in every situation in which they can be left, and changes of the
code that break some of them. Of each change, exactly those that it breaks are named, and no byte changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import io
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import DeferredToolRequests

import treering
from treering.adapters.langgraph import TreeringSaver
from treering.adapters.pydantic_ai import TreeringCheckpoints, TreeringConversationStore
from treering.agent import create_agent, tool
from treering.deploys import DeployBroken, assert_deployable, check_deploy
from treering.errors import InvalidInput, ReadOnly
from treering.threads import upcasting
from treering.threads.upcasting import NewerVersion, UpcastFailed, upcast


@pytest.fixture(autouse=True)
def no_upcasters():
    yield
    upcasting._registered.clear()


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


# Upcasters
def split_name(state: dict[str, Any]) -> None:
    state["first"], _, state["last"] = state.pop("name").partition(" ")


def to_parts(message: dict[str, Any]) -> dict[str, Any]:
    return {"role": message["role"], "parts": [message["content"]]}


def test_old_state_and_messages_are_loaded_in_their_new_form_and_stay_as_they_were(store) -> None:
    store.thread("t").append({"role": "user", "content": "hi"}, state={"name": "Ada Lovelace"})
    upcast("state", from_version=1)(split_name)
    upcast("messages", from_version=1)(to_parts)
    head = store.thread("t").load()
    assert head.state == {"first": "Ada", "last": "Lovelace"}
    assert head.value("last") == "Lovelace"
    assert head.messages == head.last_messages(1) == [{"role": "user", "parts": ["hi"]}]
    upcasting._registered.clear()
    assert store.thread("t").load().state == {"name": "Ada Lovelace"}
    assert len(list(store.thread("t").history())) == 1


def test_the_next_save_records_the_migration_before_it(store) -> None:
    thread = store.thread("t")
    thread.append({"role": "user", "content": "hi"}, state={"name": "Ada Lovelace"}, tags=["first"])
    upcast("state", from_version=1)(split_name)
    upcast("messages", from_version=1)(to_parts)
    store.thread("t").append({"role": "user", "parts": ["again"]})
    after, migrated, before = store.thread("t").history()
    assert migrated.note == (
        f"upcast: state 1 to 2 ({__name__}.split_name), messages 1 to 2 ({__name__}.to_parts)"
    )
    assert (migrated.parent_id, migrated.tags, before.tags) == (before.id, (), ("first",))
    upcasting._registered.clear()  # as the command line sees it
    assert after.state == migrated.state == {"first": "Ada", "last": "Lovelace"}
    assert [each["parts"] for each in after.messages] == [["hi"], ["again"]]
    store.thread("t").append({"role": "user", "parts": ["third"]})
    upcast("state", from_version=1)(split_name)
    assert store.thread("t").load().state == {"first": "Ada", "last": "Lovelace"}


def test_a_chain_of_upcasters_runs_in_order_and_each_once(store) -> None:
    store.thread("t").checkpoint(state={"n": 1})
    upcast("state", from_version=2)(lambda state: {"n": state["n"] * 10})
    upcast("state", from_version=1)(lambda state: {"n": state["n"] + 1})
    assert store.thread("t").load().state == {"n": 20}
    store.thread("t").append("x")
    upcast("state", from_version=3)(lambda state: {"n": state["n"] + 5})
    assert store.thread("t").load().state == {"n": 25}
    store.thread("new").checkpoint(state={"n": 7})
    assert store.thread("new").load().state == {"n": 7}


def test_compactions_forks_and_rewinds_keep_the_versions_of_their_content(store) -> None:
    thread = store.thread("t")
    thread.append(*({"role": "user", "content": f"{n}"} for n in range(6)))
    thread.compact({"role": "user", "content": "summary"}, keep_last=2)
    old = thread.head
    upcast("messages", from_version=1)(to_parts)
    thread = store.thread("t")
    view = [{"role": "user", "parts": [each]} for each in ("summary", "4", "5")]
    assert thread.load(view="compact").messages == view
    thread.append({"role": "user", "parts": ["6"]})
    assert thread.load(view="compact").messages == [*view, {"role": "user", "parts": ["6"]}]
    assert thread.load().message_count == 7
    fork = thread.fork("f", at=old)
    assert fork.load().messages[0] == {"role": "user", "parts": ["0"]}
    edited = thread.fork("e", at=old, state={"a": 1})
    assert edited.load().messages[0] == {"role": "user", "parts": ["0"]}
    thread.rewind(old)
    assert thread.load(view="compact").messages == view
    assert thread.append({"role": "user", "parts": ["7"]}).message_count == 7


def test_upcasters_are_for_threads_whose_ids_match(store) -> None:
    for name in ("sales/1", "support/1"):
        store.thread(name).checkpoint(state={"name": "Ada Lovelace"})
    upcast("state", from_version=1, threads="sales/*")(split_name)
    assert store.thread("sales/1").load().state == {"first": "Ada", "last": "Lovelace"}
    assert store.thread("support/1").load().state == {"name": "Ada Lovelace"}


def test_a_failed_upcaster_names_thread_and_function_and_changes_nothing(store) -> None:
    store.thread("t").checkpoint(state={"title": "x"})
    upcast("state", from_version=1)(split_name)
    with pytest.raises(UpcastFailed, match=r"thread 't': upcaster .*split_name .*KeyError: 'name'"):
        store.thread("t").append("x")
    assert store.thread("t").head.step == 0


def test_older_code_refuses_a_thread_of_newer_code(store) -> None:
    upcast("state", from_version=1)(split_name)
    upcast("state", from_version=2)(lambda state: state)
    store.thread("t").checkpoint(state={})
    upcasting._registered.pop()
    with pytest.raises(NewerVersion, match="has state of version 3, and this code knows 2"):
        _ = store.thread("t").load().state


def test_a_gap_and_a_second_upcaster_are_refused(store) -> None:
    store.thread("t").checkpoint(state={})
    upcast("state", from_version=2)(split_name)
    with pytest.raises(InvalidInput, match=r"register @upcast\('state', from_version=1\)"):
        _ = store.thread("t").load().state
    with pytest.raises(InvalidInput, match="has the same place as"):
        upcast("state", from_version=2)(to_parts)
    upcast("state", from_version=2)(split_name)
    with pytest.raises(InvalidInput, match="use state or messages"):
        upcast("files", from_version=1)  # pyright: ignore[reportArgumentType]


# The code of three frameworks, and what changes in it
@dataclasses.dataclass
class Parcel:
    weight: int


class Order(TypedDict):
    count: int
    log: Annotated[list[str], operator.add]
    discount: NotRequired[int]
    parcel: NotRequired[Parcel]


class OrderWithRate(TypedDict):
    count: int
    log: Annotated[list[str], operator.add]
    discount: NotRequired[str]
    parcel: NotRequired[Parcel]


class OrderWithoutParcel(TypedDict):
    count: int
    log: Annotated[list[str], operator.add]
    discount: NotRequired[int]


class CheckedOrder(BaseModel):
    count: int
    log: Annotated[list[str], operator.add] = []
    discount: int | None = None
    parcel: Parcel | None = None
    customer: str


def graph(*, schema: Any = Order, asks: str = "ask", saver: Any = None) -> Any:
    def ask(_state: Any) -> dict[str, Any]:
        return {"count": interrupt("how many?")}

    def ship(_state: Any) -> dict[str, Any]:
        return {"log": ["shipped"]}

    builder: Any = StateGraph(schema)
    builder.add_node("begin", lambda _state: {"log": ["begun"]})
    builder.add_node(asks, ask)
    builder.add_node("ship", ship)
    builder.add_edge(START, "begin")
    builder.add_conditional_edges(
        "begin", lambda state: asks if state["count"] < 0 else "ship", {asks: asks, "ship": "ship"}
    )
    builder.add_edge(asks, "ship")
    builder.add_edge("ship", END)
    return builder.compile(checkpointer=saver)


def loop(store: treering.Store | None, *, refunds: bool = True, lookup: Any = None) -> Any:
    @tool(needs_approval=True)
    def refund(order: str) -> str:
        return order

    def look_up(order: str) -> str:
        return order

    def model(messages: Any, _tools: Any) -> Any:
        wanted = messages[-1]["content"]
        if messages[-1]["role"] == "tool" or wanted == "hello":
            return "hello"
        call = {"name": wanted, "arguments": '{"order": "4711"}'}
        return {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": call}]}

    tools = [*([refund] if refunds else []), lookup or tool(look_up, name="lookup", replay="safe")]
    return create_agent(model=model, tools=tools, checkpointer=store, name="support")


def payer(*, parameter: str = "order") -> PydanticAgent[None, Any]:
    def model(messages: Any, _info: Any) -> ModelResponse:
        if "pay" in str(messages[-1].parts[-1].content):
            return ModelResponse(parts=[ToolCallPart("pay", {"order": "4711"}, tool_call_id="p1")])
        return ModelResponse(parts=[TextPart("hello")])

    agent = PydanticAgent(FunctionModel(model), output_type=[str, DeferredToolRequests])
    if parameter == "order":

        @agent.tool_plain(requires_approval=True)
        def pay(order: str) -> str:
            return order

    else:

        @agent.tool_plain(requires_approval=True, name="pay")
        def pay_invoice(invoice: int) -> str:
            return str(invoice)

    return agent


SITUATIONS = (
    "loop-done", "loop-asks", "loop-killed", "graph-done", "graph-asks", "graph-paused", "graph-discount",
    "graph-parcel", "pydantic-done", "pydantic-asks", "state-named", "state-unnamed",
)  # fmt: skip


def leave(store: treering.Store, situation: str, name: str) -> None:
    """Leave a thread in a situation."""
    kind, _, how = situation.partition("-")
    if kind == "loop":
        said = {"done": "hello", "asks": "refund", "killed": "lookup"}[how]
        for event in loop(store).stream(thread_id=name, prompt=said, checkpoint_after_tool_call=True):
            if how == "killed" and event.kind == "checkpoint":
                break
    elif kind == "graph":
        compiled = graph(saver=TreeringSaver(store, runs=False))
        given: dict[str, Any] = {"count": -1 if how == "asks" else 1, "log": []}
        given |= {"discount": {"discount": 5}, "parcel": {"parcel": Parcel(3)}}.get(how, {})
        compiled.invoke(
            given,
            {"configurable": {"thread_id": name}},
            interrupt_before=["ship"] if how == "paused" else None,
        )
    elif kind == "pydantic":
        conversations = TreeringConversationStore(store)
        run = payer().run(
            "please pay" if how == "asks" else "hello",
            conversation_id=name,
            capabilities=[TreeringCheckpoints(conversations)],
        )
        try:
            asyncio.run(run)  # pyright: ignore[reportArgumentType]
        except UnexpectedModelBehavior as error:  # pragma: no cover
            pytest.fail(str(error))
    else:
        store.thread(name).checkpoint(state={"name": "Ada Lovelace"} if how == "named" else {"id": 7})


def narrow(head: Any) -> None:
    if "id" in head.state and head.state["id"] == 7:
        raise ValueError("state has a number as id")


def failing(state: dict[str, Any]) -> dict[str, Any]:
    if "id" in state:
        state["id"] = state["id"].upper()
    return state


def to_rate(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "discount": f"{state['discount']} %"} if "discount" in state else state


def look_up_by_number(number: int) -> str:
    return str(number)


CHANGES: dict[str, tuple[Callable[[], Any], set[str], str]] = {
    "a tool is gone": (lambda: loop(None, refunds=False), {"loop-asks"}, "tool 'refund' is gone"),
    "a tool takes other arguments": (
        lambda: loop(None, lookup=tool(look_up_by_number, name="lookup")),
        {"loop-killed"},
        "the arguments do not fit",
    ),
    "a node is gone": (lambda: graph(asks="question"), {"graph-asks"}, "the graph has no such node"),
    "a state value has another type": (
        lambda: graph(schema=OrderWithRate),
        {"graph-discount"},
        "it is a int, and the schema says str",
    ),
    "a stored class is gone": (
        lambda: graph(schema=OrderWithoutParcel),
        {"graph-parcel"},
        "which no graph of this saver names",
    ),
    "the state requires a field": (
        lambda: graph(schema=CheckedOrder),
        {"graph-asks", "graph-paused"},
        "Field required",
    ),
    "a waiting call has other arguments": (
        lambda: payer(parameter="invoice"),
        {"pydantic-asks"},
        "does not take these arguments",
    ),
    "a check fails": (lambda: narrow, {"state-unnamed"}, "state has a number as id"),
}


class Deployed:
    """A store with threads in every situation."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.names = [f"{SITUATIONS[number % len(SITUATIONS)]}/{number}" for number in range(count)]
        with treering.open(folder, durability="fast") as store:
            for name in self.names:
                leave(store, name.partition("/")[0], name)

    def digest(self) -> str:
        """Return a digest of every byte of the store."""
        found = hashlib.sha256()
        for each in sorted(self.folder.rglob("*")):
            if each.is_file():
                found.update(each.relative_to(self.folder).as_posix().encode() + b"\0" + each.read_bytes())
        return found.hexdigest()

    def check(self, target: Any, **options: Any) -> Any:
        """Check a deploy, and that no byte changed meanwhile (opening a store changes SQLite's header)."""
        with treering.open(self.folder) as store:
            store.thread(self.names[0]).load()
            before = self.digest()
            report = check_deploy(store, target, **options)
            assert self.digest() == before, "check_deploy has changed the store"
        return report

    def broken(self, situations: set[str]) -> set[str]:
        return {name for name in self.names if name.partition("/")[0] in situations}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    return Deployed(tmp_path_factory.mktemp("deployed") / "store", 2 * len(SITUATIONS))


@pytest.mark.parametrize("change", CHANGES)
def test_every_thread_that_breaks_is_named_and_no_other(deployed, change) -> None:
    _names_breakers(deployed, change)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_threads(tmp_path) -> None:
    many = Deployed(tmp_path / "store", 1000)
    for change in CHANGES:
        _names_breakers(many, change)
    for same in (graph, lambda: loop(None), payer):
        assert many.check(same()).breakers == ()


def _names_breakers(deployed: Deployed, change: str) -> None:
    make, situations, problem = CHANGES[change]
    report = deployed.check(make())
    assert {name for _, name in report.broken} == deployed.broken(situations)
    assert all(problem in each.problem for each in report.breakers if "interrupt" not in each.where)
    assert report.checked + report.skipped == len(deployed.names)


@pytest.mark.parametrize("same", [graph, lambda: loop(None), payer], ids=["langgraph", "loop", "pydantic-ai"])
def test_the_same_code_breaks_nothing(deployed, same) -> None:
    report = deployed.check(same())
    assert (report.breakers, report.checked > 0, report.skipped > 0) == ((), True, True)


def test_upcasters_run_and_mend(deployed) -> None:
    upcast("state", from_version=1, threads="graph-*")(to_rate)
    report = deployed.check(lambda: graph(schema=OrderWithRate))
    assert (report.breakers, report.migrated) == ((), report.checked)


def test_an_upcaster_that_fails_is_a_breaker(deployed) -> None:
    upcast("state", from_version=1, threads="state-*")(failing)
    report = deployed.check(None, threads="state-*")
    assert {name for _, name in report.broken} == deployed.broken({"state-unnamed"})
    assert all("'int' object has no attribute 'upper'" in each.problem for each in report.breakers)


def test_a_sample_is_the_same_for_the_same_seed(deployed) -> None:
    one, other = (deployed.check(loop(None), sample=5, seed=1) for _ in range(2))
    assert one == other
    assert one.checked + one.skipped == 5


def test_tests_fail_with_what_breaks(deployed) -> None:
    with pytest.raises(AssertionError, match="2 would break\nloop-asks/1 at ckpt_"):
        assert_deployable(deployed.folder, loop(None, refunds=False))
    assert assert_deployable(str(deployed.folder), loop(None)).ok
    with pytest.raises(DeployBroken, match="tool 'refund' is gone"):
        deployed.check(loop(None, refunds=False)).raise_if_broken()


def test_the_command_names_breakers_and_exits_5(deployed) -> None:
    from treering.cli.main import main

    def run(*arguments: str) -> tuple[int, str]:
        with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit) as exited:
            main(["check-deploy", *arguments, "--store", str(deployed.folder)])
        return int(exited.value.code or 0), out.getvalue()

    code, text = run(f"{__name__}:graph", "--threads", "graph-*")
    assert (code, text) == (0, "10 threads checked, 0 migrated, 0 skipped, 0 would break\n")
    code, text = run(f"{__name__}:narrow", "--threads", "state-*", "--json")
    found = json.loads(text)
    assert (code, found["checked"], len(found["breakers"])) == (5, 4, 2)
    assert found["breakers"][0]["where"] == "check"
    assert run(f"{__name__}:no_such")[0] == 2


def test_new_code_cannot_write_while_it_is_checked(deployed) -> None:
    with pytest.raises(InvalidInput, match="cannot be checked"):
        deployed.check(42)

    def writes(head: Any) -> None:
        head.fork("another")

    report = deployed.check(writes, threads="state-*")
    assert all("check_deploy writes nothing" in each.problem for each in report.breakers)
    assert len(report.broken) == len(deployed.broken({"state-named", "state-unnamed"}))
    assert issubclass(ReadOnly, treering.errors.TreeringError)


def test_a_graph_goes_on_with_migrated_channels_and_stores_them(store) -> None:
    saver = TreeringSaver(store, runs=False)
    config: Any = {"configurable": {"thread_id": "t"}}
    graph(saver=saver).invoke({"count": 1, "log": [], "discount": 5}, config, interrupt_before=["ship"])
    upcast("state", from_version=1)(to_rate)
    new = graph(schema=OrderWithRate, saver=TreeringSaver(store, runs=False))
    assert new.get_state(config).values["discount"] == "5 %"
    assert new.invoke(None, config)["discount"] == "5 %"
    assert new.invoke({"count": 2, "log": []}, config)["discount"] == "5 %"
    upcasting._registered.clear()
    stored = graph(schema=OrderWithRate, saver=TreeringSaver(store, runs=False)).get_state(config)
    assert stored.values["discount"] == "5 %"
    assert stored.metadata[upcasting.VERSIONS] == {"state": 2}
    upcast("state", from_version=1)(to_rate)
    assert new.get_state(config).values["discount"] == "5 %"


def test_a_graph_that_has_a_channel_under_a_new_name_goes_on(store) -> None:
    class Renamed(TypedDict):
        number: int
        log: Annotated[list[str], operator.add]

    config: Any = {"configurable": {"thread_id": "t"}}
    graph(saver=TreeringSaver(store, runs=False)).invoke(
        {"count": 3, "log": []}, config, interrupt_before=["ship"]
    )

    @upcast("state", from_version=1)
    def rename(state: dict[str, Any]) -> None:
        state["number"] = state.pop("count")

    def ship(state: Any) -> dict[str, Any]:
        return {"log": [f"shipped {state['number']}"]}

    builder: Any = StateGraph(Renamed)
    builder.add_node("ship", ship)
    builder.add_edge(START, "ship")
    new = builder.compile(checkpointer=TreeringSaver(store, runs=False))
    assert new.invoke(None, config) == {"number": 3, "log": ["begun", "shipped 3"]}
    assert new.get_state(config).values["number"] == 3


def test_a_pydantic_ai_conversation_goes_on_with_migrated_messages(store) -> None:
    leave(store, "pydantic-done", "t")

    @upcast("messages", from_version=1)
    def shout(message: dict[str, Any]) -> None:
        for part in message["parts"]:
            part["content"] = str(part["content"]).upper()

    async def go_on() -> list[Any]:
        conversations = TreeringConversationStore(store)
        conversation = await conversations.load("t")
        assert conversation is not None
        await payer().run(
            "hello", conversation=conversation, capabilities=[TreeringCheckpoints(conversations)]
        )
        loaded = await conversations.load("t")
        assert loaded is not None
        return [part.content for message in loaded.messages for part in message.parts]

    assert asyncio.run(go_on()) == ["HELLO", "HELLO", "hello", "hello"]

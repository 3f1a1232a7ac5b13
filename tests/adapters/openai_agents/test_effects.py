"""Tool calls of the OpenAI Agents SDK happen once."""

from __future__ import annotations

import asyncio
import json

import pytest
from agents import Agent, FunctionTool, Runner, UserError, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

import treering
from tests.adapters.openai_agents.items import QUIET
from treering.adapters.openai_agents.session import TreeringSession
from treering.effects import EffectUnknown, Outcome
from treering.runs.tree import RunCancelled


class Shop:
    """Tools that pay, and that can die after a payment."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.keys: list[str] = []
        self.dies = False

    def tools(self):
        @function_tool(failure_error_function=None)
        async def pay(order: str) -> str:
            """Pay."""
            self.paid.append(order)
            return self.end(order)

        @function_tool(failure_error_function=None)
        async def pay_once(order: str, idempotency_key: str) -> str:
            """Pay under a key."""
            if idempotency_key not in self.keys:
                self.paid.append(order)
            self.keys.append(idempotency_key)
            return self.end(order)

        return [pay, pay_once]

    def end(self, order: str) -> str:
        if self.dies:
            self.dies = False
            raise ConnectionError
        return f"paid {order}"


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


@pytest.fixture
def shop():
    return Shop()


def run(store, shop, *steps, given="pay", **options):
    """Run an agent in a new session, as another process would."""
    session = TreeringSession("t", store)
    model = ScriptedModel([*steps, [assistant_message("done")]])
    agent = Agent(name="a", model=model, tools=session.effect_tools(shop.tools(), **options))
    return asyncio.run(Runner.run(agent, given, session=session, run_config=QUIET)), model


def call(name="pay", order="1", id="first"):
    return function_call(name, {"order": order}, call_id=f"{id}-{order}")


def die(store, shop, *steps, **options):
    shop.dies = True
    with pytest.raises(UserError):
        run(store, shop, *steps, **options)
    assert shop.dies is False


def outputs(result):
    return [item["output"] for item in result.to_input_list() if item.get("type") == "function_call_output"]


def test_a_call_is_recorded_with_its_result(store, shop) -> None:
    run(store, shop, [call()])
    (effect,) = store.effects.list(thread_id="t")
    assert (effect.tool, effect.status, effect.arguments) == ("pay", "done", {"order": "1"})
    assert (effect.result, effect.call_id) == ("paid 1", "first-1")


def test_no_call_of_a_cancelled_run_begins(store, shop) -> None:
    with store.run("teller") as recorded:
        store.flush()
        store.runs.cancel(recorded.id)
        with pytest.raises(UserError) as raised:
            run(store, shop, [call()])
    assert isinstance(raised.value.__cause__, RunCancelled)
    (effect,) = store.effects.list(run_id=recorded.id)
    assert (effect.attempt, shop.paid) == (0, [])
    run(store, shop, [call()])  # another run makes it
    assert shop.paid == ["1"]


def test_the_same_call_in_a_later_turn_is_another_one(store, shop) -> None:
    run(store, shop, [call(id="a")])
    run(store, shop, [call(id="b")], [call(id="c")])
    assert shop.paid == ["1", "1", "1"]


def test_parallel_calls_with_the_same_arguments_are_separate_effects(store, shop) -> None:
    run(store, shop, [call(id="a"), call(id="b"), call(id="c", order="2")])
    assert sorted(shop.paid) == ["1", "1", "2"]
    assert len(list(store.effects.list(thread_id="t"))) == 3


def test_a_call_that_nobody_knows_is_not_made_when_the_model_asks_again(store, shop) -> None:
    die(store, shop, [call()])
    with pytest.raises(UserError, match="treering effects") as waiting:
        run(store, shop, [call(id="second")])
    assert isinstance(waiting.value.__cause__, EffectUnknown)
    (unknown,) = store.effects.unknown(thread_id="t")
    store.effects.resolve(unknown.id, happened=True, result="tx_81")
    result, _ = run(store, shop, [call(id="third")])
    assert outputs(result)[-1] == "tx_81"
    assert shop.paid == ["1"]


def test_a_tool_with_a_key_is_called_again_with_the_same_key(store, shop) -> None:
    die(store, shop, [call("pay_once")])
    result, model = run(store, shop, [call("pay_once", id="second")])
    assert outputs(result)[-1] == "paid 1"
    (effect,) = store.effects.list(thread_id="t")
    assert shop.keys == [effect.key, effect.key]
    assert shop.paid == ["1"]
    (tool,) = (each for each in model.calls[0].tools if each.name == "pay_once")
    assert isinstance(tool, FunctionTool)
    assert "idempotency_key" not in json.dumps(tool.params_json_schema)


def test_a_result_that_never_reached_the_session_is_returned_and_not_computed(store, shop) -> None:
    """The first of two parallel calls has its outcome when the second one dies."""

    def dies_second(order: str) -> str:
        if order == "2":
            raise ConnectionError
        return f"paid {order}"

    shop.end = dies_second
    with pytest.raises(UserError):
        run(store, shop, [call()], [call(order="2")])
    shop.end = lambda order: f"again {order}"
    probes = {"pay": lambda effect: Outcome(happened=True, result=f"found {effect.arguments['order']}")}
    result, _ = run(store, shop, [call(id="n", order="2")], probes=probes)
    assert outputs(result)[-1] == "found 2"
    assert shop.paid == ["1", "2"]


def test_a_safe_tool_is_called_again_and_leaves_no_effect(store, shop) -> None:
    die(store, shop, [call()], replay={"pay": "safe"})
    run(store, shop, [call(id="second")], replay={"pay": "safe"})
    assert shop.paid == ["1", "1"]
    assert list(store.effects.list()) == []


def test_a_model_reads_the_compact_view_and_the_thread_keeps_everything(store, shop) -> None:
    run(store, shop, given="one")
    run(store, shop, given="two")
    store.thread("t").compact("They said one and two.", keep_last=1)
    session = TreeringSession("t", store)
    items = asyncio.run(session.get_items())
    assert [each.get("role") for each in items] == ["user", "assistant"]
    assert "They said one and two." in str(items[0])
    run(store, shop, given="three")
    assert len(asyncio.run(session.get_items())) == 4
    assert store.thread("t").load().message_count == 6


def test_a_result_that_a_summary_stands_for_was_delivered(store, shop) -> None:
    run(store, shop, [call()])
    store.thread("t").compact("They paid.")
    run(store, shop, [call(id="second")])
    assert shop.paid == ["1", "1"]

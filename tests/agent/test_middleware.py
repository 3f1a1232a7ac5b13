"""Middleware: what it may see and change, and in which order."""

from __future__ import annotations

import pytest

import treering
from tests.agent.scripted import Scripted, answered, asking, said, user
from treering.agent import create_agent


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


def look(n: int) -> int:
    """Look at a number."""
    return n


def test_messages_changed_for_the_model_are_not_saved(store) -> None:
    class Remember:
        def before_model(self, messages, context):
            assert context.thread_id == "t"
            return [{"role": "system", "content": "The user is Alice."}, *messages]

    model = Scripted("Hello Alice!")
    create_agent(model=model, checkpointer=store, middleware=[Remember()]).generate(
        thread_id="t", prompt="Hi"
    )
    assert [each["role"] for each in model.seen[0]] == ["system", "user"]
    assert store.thread("t").load().messages == [user("Hi"), said("Hello Alice!")]


def test_a_reply_may_be_changed_before_it_is_saved(store) -> None:
    class NoTools:
        def after_model(self, messages, context):  # noqa: ARG002
            return [said("I would rather not.") if "tool_calls" in each else each for each in messages]

    agent = create_agent(
        model=Scripted(asking(("c1", "look", {"n": 1}))), checkpointer=store, middleware=[NoTools()]
    )
    result = agent.generate(thread_id="t", prompt="Hi")
    assert (result.text, result.counters.run) == ("I would rather not.", 0)


def test_the_first_one_is_the_outermost() -> None:
    order = []

    class Named:
        def __init__(self, name):
            self.name = name

        def before_model(self, messages, context):  # noqa: ARG002
            order.append(f"before {self.name}")

        def after_model(self, messages, context):  # noqa: ARG002
            order.append(f"after {self.name}")

        def wrap_tool(self, call, context, proceed):  # noqa: ARG002
            order.append(f"into {self.name}")
            value = proceed(call)
            order.append(f"out of {self.name}")
            return value

    agent = create_agent(
        model=Scripted(asking(("c1", "look", {"n": 1})), "Done."),
        tools=[look],
        middleware=[Named("a"), Named("b")],
    )
    agent.generate(prompt="Hi")
    around_the_model = ["before a", "before b", "after b", "after a"]
    assert order == [*around_the_model, "into a", "into b", "out of b", "out of a", *around_the_model]


def test_a_call_may_be_repeated_changed_or_answered_in_its_place() -> None:
    tried = []

    def flaky(n: int) -> int:
        tried.append(n)
        if len(tried) < 3:
            raise ConnectionError("down")
        return n

    class Retry:
        def wrap_tool(self, call, context, proceed):  # noqa: ARG002
            if call.arguments["n"] == 0:
                return "from the cache"
            for _ in range(2):
                try:
                    return proceed(call)
                except ConnectionError:
                    continue
            return proceed(call)

    agent = create_agent(
        model=Scripted(asking(("c1", "flaky", {"n": 5}), ("c2", "flaky", {"n": 0})), "Done."),
        tools=[flaky],
        middleware=[Retry()],
    )
    result = agent.generate(prompt="Hi")
    assert result.messages[2:4] == [answered("c1", "5"), answered("c2", "from the cache")]
    assert tried == [5, 5, 5]


def test_it_may_add_tools_and_require_approval(store) -> None:
    class Careful:
        tools = (look,)

        async def needs_approval(self, call, context):
            return call.arguments["n"] > context.state.get("limit", 1)

    wants = asking(("c1", "look", {"n": 1}), ("c2", "look", {"n": 2}))
    model = Scripted(wants, "Done.")
    agent = create_agent(model=model, checkpointer=store, middleware=[Careful()])
    result = agent.generate(thread_id="t", prompt="Hi")
    assert [each.description for each in model.tools] == ["Look at a number."]
    assert result.messages[2:] == [answered("c1", "1")]
    assert result.interrupt["payload"]["tool_call"]["arguments"] == {"n": 2}
    assert agent.resume(thread_id="t", decision="approve").text == "Done."

"""A run of an agent: model, tools, state, budgets, and its creation."""

from __future__ import annotations

import pytest

import treering
from tests.agent.scripted import Scripted, add, answered, asking, contents, said, two_sums, user
from treering.agent import Budget, Context, Tool, create_agent, tool
from treering.agent.loop import RUN_KEY
from treering.errors import BudgetExceeded, InvalidInput


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


class TestTheModel:
    def test_it_receives_the_conversation_and_the_tools(self) -> None:
        model = Scripted(two_sums(), said("3 and 7."))
        agent = create_agent(model=model, tools=[add])
        result = agent.generate(prompt="Add")
        assert model.seen == [
            [user("Add")],
            [user("Add"), two_sums(), answered("c1", "3"), answered("c2", "7")],
        ]
        assert [each.name for each in model.tools] == ["add"]
        assert (result.text, result.iterations, result.counters.run) == ("3 and 7.", 2, 2)

    @pytest.mark.parametrize("style", ["anthropic", "blocks"])
    def test_it_receives_the_results_of_one_message_in_one_message(self, store, style) -> None:
        model = Scripted(two_sums(style), said("Done."))
        create_agent(model=model, tools=[add], checkpointer=store).generate(thread_id="t", prompt="Add")
        first = answered("c1", "3", style=style, name="add")
        second = answered("c2", "7", style=style, name="add")
        assert model.seen[1][2:] == [{**first, "content": first["content"] + second["content"]}]
        assert store.thread("t").load().messages[2:4] == [first, second], "and they are kept one by one"

    def test_an_object_of_a_client_is_kept_as_its_plain_message(self) -> None:
        class Reply:
            def model_dump(self, *, mode, exclude_none):
                assert (mode, exclude_none) == ("json", True)
                return said("From a client.")

        assert create_agent(model=Scripted(Reply())).generate(prompt="Hi").messages == [
            user("Hi"),
            said("From a client."),
        ]

    @pytest.mark.parametrize("reply", [None, 3, {"content": "no role"}, [], ["a", 3]])
    def test_an_unknown_reply_is_refused(self, store, reply) -> None:
        agent = create_agent(model=Scripted(reply), checkpointer=store)
        with pytest.raises(InvalidInput, match="the model returned"):
            agent.generate(thread_id="t", prompt="Hi")
        assert store.thread("t").head is None

    def test_two_calls_with_one_id_are_refused(self) -> None:
        reply = asking(("c1", "add", {}), ("c1", "add", {}))
        with pytest.raises(InvalidInput, match="the same id: c1, c1"):
            create_agent(model=Scripted(reply), tools=[add]).generate(prompt="Hi")

    def test_it_is_called_a_limited_number_of_times(self, store) -> None:
        always = [asking((f"c{n}", "add", {"a": n, "b": n})) for n in range(9)]
        agent = create_agent(model=Scripted(*always), tools=[add], checkpointer=store, max_iterations=3)
        with pytest.raises(BudgetExceeded, match="raise max_iterations") as caught:
            agent.generate(thread_id="t", prompt="Hi")
        assert (caught.value.limit, caught.value.count) == (3, 3)
        assert len(store.thread("t").load().messages) == 7, "what it did is kept"

    def test_a_prompt_may_be_a_message_or_several(self) -> None:
        model = Scripted("a", "b")
        agent = create_agent(model=model)
        agent.generate(prompt={"role": "user", "content": [{"type": "text", "text": "Hi"}]})
        agent.generate(prompt=[{"role": "system", "content": "Be kind."}, user("Hi")])
        assert [each["role"] for seen in model.seen for each in seen] == ["user", "system", "user"]


class TestTools:
    def told(self, tools, *calls, **options):
        """What the model is told about each call."""
        model = Scripted(asking(*((f"c{n}", *call) for n, call in enumerate(calls))), "Fine.")
        create_agent(model=model, tools=tools, **options).generate(prompt="Hi")
        return contents(model.seen[1][2:])

    def test_their_schema_follows_from_their_signature(self) -> None:
        def book(context: Context, city: str, nights: int = 1, tags: list[str] | None = None) -> str:
            """Book a hotel."""
            raise NotImplementedError

        made = Tool(book)
        assert made.as_openai() == {
            "type": "function",
            "function": {
                "name": "book",
                "description": "Book a hotel.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string"},
                        "nights": {"type": "integer"},
                        "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
                    },
                    "required": ["city"],
                    "additionalProperties": False,
                },
            },
        }
        assert made.as_anthropic()["input_schema"] == made.parameters

    def test_results_are_text_or_json(self) -> None:
        def text():
            return "as it is"

        def data():
            return {"a": [1, None], "b": object}

        assert self.told([text, data], ("text", {}), ("data", {})) == [
            "as it is",
            """{"a":[1,null],"b":"<class 'object'>"}""",
        ]

    def test_an_invalid_call_is_reported_to_the_model_and_not_counted(self) -> None:
        wrong_json = asking(("c9", "add", {}))
        wrong_json["tool_calls"][0]["function"]["arguments"] = "{a: 1"
        model = Scripted(
            asking(("c1", "sub", {}), ("c2", "add", {"a": 1}), ("c3", "add", {"a": 1, "b": "x"})),
            wrong_json,
            "Sorry.",
        )
        result = create_agent(model=model, tools=[add]).generate(prompt="Hi")
        unknown, missing, wrong = contents(model.seen[1][2:])
        assert unknown == "tool 'sub' does not exist; the tools are: add"
        assert "missing required field `b`" in missing
        assert "Expected `int`" in wrong
        assert "not JSON" in model.seen[2][-1]["content"]
        assert result.counters.run == 0

    def test_numbers_in_text_are_converted(self) -> None:
        assert self.told([add], ("add", {"a": "1", "b": 2})) == ["3"]

    def test_an_error_is_reported_to_the_model(self) -> None:
        def fail():
            raise ValueError("no such city")

        def stop():
            return next(iter(()))

        def cycle():
            ring = []
            ring.append(ring)
            return ring

        failed, stopped, endless = self.told([fail, stop, cycle], ("fail", {}), ("stop", {}), ("cycle", {}))
        assert endless.startswith("RecursionError: ")
        assert failed == "ValueError: no such city"
        assert stopped.startswith("RuntimeError: ")
        assert stopped.endswith("raised StopIteration")

    def test_an_error_may_end_the_run_instead_and_the_call_is_made_again(self, store) -> None:
        tries = []

        def flaky():
            tries.append(len(tries))
            if len(tries) == 1:
                raise ConnectionError("down")
            return "up"

        agent = create_agent(
            model=Scripted(asking(("c1", "flaky", {})), "It is up."),
            tools=[tool(flaky, replay="safe")],
            checkpointer=store,
            on_tool_error="raise",
        )
        with pytest.raises(ConnectionError, match="down"):
            agent.generate(thread_id="t", prompt="Hi")
        assert agent.generate(thread_id="t").text == "It is up."
        assert tries == [0, 1]

    def test_they_share_the_threads_state(self, store) -> None:
        def plan(context: Context, todo: str) -> str:
            context.state.setdefault("todos", []).append(todo)
            return f"{context.thread_id} {context.call.id} {context.iteration}"

        store.thread("t").checkpoint(state={"todos": ["wake up"], "files": {"a.txt": "A"}})
        model = Scripted(asking(("c1", "plan", {"todo": "work"})), "Planned.")
        result = create_agent(model=model, tools=[plan], checkpointer=store).generate(
            thread_id="t", prompt="Hi"
        )
        assert model.seen[1][-1]["content"] == "t c1 1"
        state = {"todos": ["wake up", "work"], "files": {"a.txt": "A"}}
        assert store.thread("t").load().state == state, "and the run's own record is gone when it is done"
        assert result.state == state

    def test_they_may_be_objects_with_any_parameters(self) -> None:
        class Echo:
            """Say it again."""

            def __call__(self, **words):
                return words

        made = Tool(Echo(), name="echo")
        assert (made.name, made.description) == ("echo", "Say it again.")
        assert self.told([made], ("echo", {"x": 1})) == ['{"x":1}']

    def test_invalid_tools_are_refused_when_the_agent_is_created(self) -> None:
        def by_position(a, /):
            return a

        for tools, message in (
            ([add, Tool(add)], "two tools are named 'add'"),
            (["add"], "give a function or a Tool"),
            ([by_position], "positional-only"),
        ):
            with pytest.raises(InvalidInput, match=message):
                create_agent(model=Scripted(), tools=tools)


class TestBudgets:
    def test_a_call_over_budget_is_not_made_and_the_model_is_told(self) -> None:
        made = []

        @tool
        def look(n: int) -> int:
            made.append(n)
            return n

        model = Scripted(asking(("c1", "look", {"n": 1}), ("c2", "look", {"n": 2})), "Enough.")
        agent = create_agent(model=model, tools=[look], budgets=Budget(iteration_by_tool={"look": 1}))
        result = agent.generate(prompt="Hi")
        assert made == [1]
        assert "raise iteration_by_tool['look']" in model.seen[1][-1]["content"]
        assert result.counters.run == 1

    def test_each_run_has_its_own_and_each_iteration_too(self, store) -> None:
        replies = [asking((f"c{n}", "add", {"a": n, "b": n})) for n in range(3)]
        agent = create_agent(
            model=Scripted(replies[0], replies[1], "Two.", replies[2], "Three."),
            tools=[add],
            checkpointer=store,
            budgets=Budget(run=2, iteration=1),
        )
        first = agent.generate(thread_id="t", prompt="Hi")
        second = agent.generate(thread_id="t", prompt="More")
        assert (first.counters.run, first.counters.iteration) == (2, 0)
        assert second.counters.run == 1
        assert first.run_id != second.run_id
        assert store.thread("t").load().metadata["tool_calls"] == 1

    def test_a_continued_run_continues_its_counters(self, store) -> None:
        replies = [asking((f"c{n}", "add", {"a": n, "b": n})) for n in range(2)]
        agent = create_agent(
            model=Scripted(replies[0], ConnectionError("down"), replies[1], "Enough."),
            tools=[add],
            checkpointer=store,
            budgets=Budget(run=1),
        )
        with pytest.raises(ConnectionError):
            agent.generate(thread_id="t", prompt="Hi")
        result = agent.generate(thread_id="t")
        assert result.counters.run == 1
        assert "used up" in result.messages[-2]["content"]

    def test_a_rewind_restores_the_counters(self, store) -> None:
        replies = [asking((f"c{n}", "add", {"a": n, "b": n})) for n in range(3)]
        agent = create_agent(
            model=Scripted(replies[0], replies[1], ConnectionError("down"), replies[2], "Fine."),
            tools=[add],
            checkpointer=store,
            budgets=Budget(run=2),
        )
        with pytest.raises(ConnectionError):
            agent.generate(thread_id="t", prompt="Hi", checkpoint_after_tool_call=True)
        thread = store.thread("t")
        assert thread.load().state[RUN_KEY]["tool_calls"]["run"] == 2
        thread.rewind(1)
        assert agent.generate(thread_id="t").messages[1] == answered("c2", "4")

    def test_it_may_end_the_run_instead(self, store) -> None:
        agent = create_agent(
            model=Scripted(two_sums(), "Both."),
            tools=[add],
            checkpointer=store,
            budgets=Budget(run=1),
            on_over_budget="raise",
        )
        with pytest.raises(BudgetExceeded) as caught:
            agent.generate(thread_id="t", prompt="Hi")
        assert caught.value.budget == "run"
        assert store.thread("t").load().messages[2:] == [answered("c1", "3")]
        roomier = create_agent(model=Scripted("Both."), tools=[add], checkpointer=store)
        assert roomier.generate(thread_id="t").messages[0] == answered("c2", "7")


class TestMaking:
    def test_a_thread_id_goes_with_a_checkpointer(self, store) -> None:
        with pytest.raises(InvalidInput, match="thread_id="):
            create_agent(model=Scripted(), checkpointer=store).generate(prompt="Hi")

    @pytest.mark.parametrize(
        "options, message",
        [
            ({"checkpointer": 3}, "int cannot keep checkpoints"),
            ({"middleware": [object()]}, "is no middleware"),
            ({"model": "gpt-5"}, "give a function"),
            ({"max_iterations": 0}, "give 1 or more"),
            ({"hooks": {"post_checkpoint_save": [print]}}, "need a checkpointer="),
        ],
    )
    def test_invalid_options_are_refused(self, options, message) -> None:
        with pytest.raises(InvalidInput, match=message):
            create_agent(**{"model": Scripted(), **options})

    def test_an_unknown_hook_is_refused(self, store) -> None:
        with pytest.raises(InvalidInput, match="unknown hook 'on_save'"):
            create_agent(model=Scripted(), checkpointer=store, hooks={"on_save": [print]})

    def test_namespaces_are_isolated(self, store) -> None:
        for name in ("acme", "initech"):
            agent = create_agent(model=Scripted(f"Hello {name}"), checkpointer=store, namespace=name)
            agent.generate(thread_id="t", prompt="Hi")
        assert store.thread("t", namespace="acme").load().messages[1] == said("Hello acme")
        assert store.thread("t").head is None

    def test_a_store_by_url_is_closed_with_the_agent(self, tmp_path) -> None:
        with create_agent(model=Scripted("Hello!"), checkpointer=tmp_path / "s") as agent:
            agent.generate(thread_id="t", prompt="Hi")
        with treering.open(tmp_path / "s") as store:
            assert len(store.thread("t").load().messages) == 2
        with pytest.raises(treering.errors.Closed):
            agent.generate(thread_id="t", prompt="Hi")

    def test_a_store_that_was_given_stays_open(self, store) -> None:
        with create_agent(model=Scripted("Hello!"), checkpointer=store) as agent:
            agent.generate(thread_id="t", prompt="Hi")
        assert store.thread("t").head is not None


def test_every_call_of_a_reply_in_several_messages_is_made():
    model = Scripted(
        [asking(("c1", "add", {"a": 1, "b": 2})), asking(("c2", "add", {"a": 3, "b": 4}))], "Done."
    )
    with create_agent(model=model, tools=[add]) as agent:
        result = agent.generate(prompt="Both")
    assert [each["tool_call_id"] for each in result.messages if each["role"] == "tool"] == ["c1", "c2"]

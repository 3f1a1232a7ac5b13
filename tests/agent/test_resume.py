"""Runs that continue: after failures, from checkpoints, and on a fork."""

from __future__ import annotations

import pytest

import treering
from tests.agent.scripted import Scripted, add, answered, asking, contents, said, two_sums, user
from treering.agent import CheckpointWarning, create_agent, tool
from treering.core.query import EventQuery
from treering.errors import Conflict, InvalidInput, StoreFull


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


class TestGoingOn:
    def test_a_run_without_a_reply_is_not_stored(self, store) -> None:
        agent = create_agent(model=Scripted(ConnectionError("down"), "Here."), checkpointer=store)
        with pytest.raises(ConnectionError):
            agent.generate(thread_id="t", prompt="Hi", checkpoint_after_tool_call=True)
        assert store.thread("t").head is None
        agent.generate(thread_id="t", prompt="Hi")
        assert store.thread("t").load().messages == [user("Hi"), said("Here.")]

    def test_a_failed_run_saves_what_it_did(self, store) -> None:
        made = []

        def look(n: int) -> int:
            made.append(n)
            return n

        agent = create_agent(
            model=Scripted(asking(("c1", "look", {"n": 1})), ConnectionError("down"), "One."),
            tools=[look],
            checkpointer=store,
        )
        with pytest.raises(ConnectionError):
            agent.generate(thread_id="t", prompt="Look")
        head = store.thread("t").load()
        assert (head.note, head.metadata["status"]) == ("failed", "failed")
        assert agent.generate(thread_id="t").text == "One."
        assert made == [1]

    def test_a_new_prompt_waits_until_open_calls_have_their_results(self, store) -> None:
        store.thread("t").append(user("Add"), two_sums(), answered("c1", "3"))
        model = Scripted("All right.")
        create_agent(model=model, tools=[add], checkpointer=store).generate(thread_id="t", prompt="And?")
        assert model.seen[0][2:] == [answered("c1", "3"), answered("c2", "7"), user("And?")]

    def test_calls_before_a_later_prompt_are_never_made(self, store) -> None:
        store.thread("t").append(user("Add"), two_sums(), user("Never mind"))
        agent = create_agent(model=Scripted("As you like."), tools=[add], checkpointer=store)
        result = agent.generate(thread_id="t")
        assert (result.messages, result.counters.run) == ([said("As you like.")], 0)

    @pytest.mark.parametrize("past", [[], [user("Hi"), said("Hello!")]])
    def test_a_finished_run_needs_a_prompt(self, store, past) -> None:
        if past:
            store.thread("t").append(*past)
        agent = create_agent(model=Scripted("never"), checkpointer=store)
        with pytest.raises(InvalidInput, match="give a prompt="):
            agent.generate(thread_id="t")

    def test_a_fork_continues_independently(self, store) -> None:
        agent = create_agent(model=Scripted("One.", "Two.", "Other."), checkpointer=store)
        first = agent.generate(thread_id="t", prompt="1")
        agent.generate(thread_id="t", prompt="2")
        store.thread("t").fork("u", at=first.checkpoint)
        agent.generate(thread_id="u", prompt="Else?")
        assert contents(store.thread("t").load().messages) == ["1", "One.", "2", "Two."]
        assert contents(store.thread("u").load().messages) == ["1", "One.", "Else?", "Other."]


class TestAutomaticCheckpoints:
    def test_a_failing_one_warns_is_recorded_and_does_not_break_the_run(self, store) -> None:
        def fails(_):
            raise StoreFull("the disk is full")

        agent = create_agent(model=Scripted("Hello!"), checkpointer=store)
        store.hooks.add("pre_checkpoint_save", fails)
        with pytest.warns(CheckpointWarning, match="'t' could not be saved: StoreFull: the disk is full"):
            result = agent.generate(thread_id="t", prompt="Hi")
        assert (result.text, result.checkpoint) == ("Hello!", None)
        (noted,) = store.engine.scan(store.space, EventQuery(kinds=("checkpoint.failed",)), limit=9).records
        assert (noted.event.name, noted.event.status, noted.event.run) == (
            "StoreFull",
            "error",
            result.run_id,
        )
        assert b"the disk is full" in noted.event.data

    def test_the_next_one_saves_what_was_missed(self, store) -> None:
        failures = [StoreFull("full"), StoreFull("full")]

        def fails(_):
            if failures:
                raise failures.pop()

        store.hooks.add("pre_checkpoint_save", fails)
        safe = tool(add, replay="safe")
        agent = create_agent(model=Scripted(two_sums(), "Done."), tools=[safe], checkpointer=store)
        with pytest.warns(CheckpointWarning):
            result = agent.generate(thread_id="t", prompt="Hi", checkpoint_after_tool_call=True)
        assert result.checkpoint.messages == result.messages
        assert [len(each.messages) for each in store.thread("t").history()] == [5, 4]

    def test_a_closed_store_does_not_lose_the_reply(self) -> None:
        store = treering.open("memory:")

        def model(*_):
            store.close()
            return "Still here."

        agent = create_agent(model=model, checkpointer=store, record=False)
        with pytest.warns(CheckpointWarning, match="Closed"):
            assert agent.generate(thread_id="t", prompt="Hi").text == "Still here."

    def test_of_two_runs_at_once_the_second_does_not_overwrite_the_first(self, store) -> None:
        def model(messages, _):
            if messages[-1]["content"] == "slow":
                fast.generate(thread_id="t", prompt="fast")
            return said(f"{messages[-1]['content']} answer")

        fast = create_agent(model=model, checkpointer=store)
        with pytest.warns(CheckpointWarning, match="ThreadMoved"):
            slow = create_agent(model=model, checkpointer=store).generate(thread_id="t", prompt="slow")
        assert (slow.text, slow.checkpoint) == ("slow answer", None)
        assert contents(store.thread("t").load().messages) == ["fast", "fast answer"]

    def test_loading_is_explicit_and_raises(self, store) -> None:
        def fails(_):
            raise StoreFull("no")

        store.thread("t").append(user("Hi"))
        store.hooks.add("post_checkpoint_load", fails)
        with pytest.raises(StoreFull):
            create_agent(model=Scripted(), checkpointer=store).generate(thread_id="t", prompt="Hi")


def test_a_thread_with_a_pending_interrupt_is_refused(store) -> None:
    store.thread("t").interrupt("anything")
    with pytest.raises(Conflict, match=r"resume\(\) it first"):
        create_agent(model=Scripted(), checkpointer=store).generate(thread_id="t", prompt="Hi")

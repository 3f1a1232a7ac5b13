"""Compaction is a view: whatever is compacted, forked and rewound, the full conversation stays as it was."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import treering
from tests.threads.sample_threads import sample_thread, say
from treering.core.encoding import encode
from treering.errors import Conflict, InvalidInput, NotFound
from treering.threads.compaction import Summary, TokenCounter
from treering.threads.head import ThreadMoved


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


def call(*ids):
    calls = [
        {"id": each, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}} for each in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id, text="ok"):
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def texts(messages):
    return [message["content"] for message in messages]


def words(text):
    return len(text.split())


class TestBoundary:
    def test_a_summary_stands_for_all_but_the_last_messages(self, store):
        thread = sample_thread(store, steps=6)
        before = thread.load()
        thread.compact("They count.", keep_last=2)
        compact = thread.load(view="compact")
        assert texts(compact.messages) == [
            "Summary of the conversation so far:\n\nThey count.",
            "message 4",
            "message 5",
        ]
        assert thread.load().messages == before.messages
        assert thread.load().state == before.state
        assert compact.message_count == 6

    def test_later_messages_come_after_the_summary(self, store):
        thread = sample_thread(store, steps=3)
        thread.compact("Start.")
        thread.append(say("next"))
        assert texts(thread.load(view="compact").messages)[1:] == ["next"]

    def test_it_says_what_it_stands_for_and_what_it_cost(self, store):
        thread = sample_thread(store, steps=6)
        thread.compact("one", upto=2)
        thread.compact("two", upto=4, model="gpt-5", usage={"input": 1000, "output": 10})
        first, second = thread.load().compactions
        assert (first.since, first.upto, second.since, second.upto) == (0, 2, 2, 4)
        assert second.tokens_before > second.tokens_after > 0
        assert not second.is_exact
        assert second.usage == {"input": 1000, "output": 10}
        assert second.cost == Decimal("0.00135")
        assert (second.model, second.currency) == ("gpt-5", "USD")
        assert second.to_dict()["text"].endswith("two")

    def test_a_given_cost_counts(self, store):
        thread = sample_thread(store)
        thread.compact("s", cost="0.25")
        assert thread.load().compactions[0].cost == Decimal("0.25")

    def test_instructions_stay_in_the_view(self, store):
        thread = store.thread("t")
        system = {"role": "system", "content": "Be brief."}
        thread.append(system, *[say(str(n)) for n in range(5)])
        thread.compact("s", keep_last=1)
        view = thread.load(view="compact").messages
        assert (view[0], view[-1], len(view)) == (system, say("4"), 3)

    @pytest.mark.parametrize("keep_last, starts_with", [(1, 2), (2, 2), (3, 2), (4, 2), (5, 1), (0, 6)])
    def test_a_tool_call_stays_with_its_results(self, store, keep_last, starts_with):
        thread = store.thread("t")
        messages = [say("a"), say("b"), call("1", "2"), result("2"), say("meanwhile"), result("1")]
        thread.append(*messages)
        thread.compact("s", keep_last=keep_last)
        assert thread.load(view="compact").messages[1:] == messages[starts_with:]

    def test_a_call_that_has_no_result_yet_stays(self, store):
        thread = store.thread("t")
        thread.append(say("a"), call("1", "2"), result("1"))
        thread.compact("s")
        thread.append(result("2"))
        assert thread.load(view="compact").messages[1:] == [call("1", "2"), result("1"), result("2")]

    def test_a_function_gets_what_it_is_to_summarise(self, store):
        thread = sample_thread(store, steps=6)
        thread.compact("first", upto=2)
        given = []

        def summarise(messages):
            given.extend(texts(messages))
            return Summary(text="all", model="gpt-5", usage={"input": 100, "output": 10})

        thread.compact(summarise, keep_last=1)
        assert given == [
            "Summary of the conversation so far:\n\nfirst",
            "message 2",
            "message 3",
            "message 4",
        ]
        assert thread.load().compactions[-1].usage["output"] == 10

    def test_an_async_store_awaits_the_function(self):
        async def summarise(messages):
            return f"{len(messages)} messages"

        async def main():
            async with treering.open_async("memory:") as store:
                thread = store.thread("t")
                await thread.append(*[say(str(n)) for n in range(9)])
                await thread.compact(summarise, keep_last=2)
                loaded = await thread.load(view="compact")
                return (await loaded.messages())[0]["content"], [
                    each.upto for each in await loaded.compactions()
                ]

        text, ends = asyncio.run(main())
        assert (text.endswith("7 messages"), ends) == (True, [7])

    def test_a_summary_may_be_messages_in_the_format_of_the_conversation(self, store):
        thread = sample_thread(store)
        thread.compact([{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}], keep_last=1)
        assert texts(thread.load(view="compact").messages) == ["d", "u", "message 4"]

    def test_a_pending_interrupt_and_an_answer_stay(self, store):
        thread = sample_thread(store)
        thread.interrupt({"question": "go?"}, interrupt_id="q")
        thread.compact("s")
        assert thread.head.pending_interrupt["id"] == "q"
        thread.resume("approve")
        thread.uncompact()
        assert thread.head.metadata["resumed"]["decision"] == "approve"

    @pytest.mark.parametrize(
        "arguments, problem",
        [
            ({"summary": "s", "keep_last": 1, "upto": 1}, "not both"),
            ({"summary": "s", "upto": 9}, "has 5 messages"),
            ({"summary": "s", "upto": -1}, "0 or more"),
            ({"summary": "s", "upto": 0}, "nothing to compact"),
            ({"summary": "s", "keep_last": 5}, "nothing to compact"),
            ({"summary": " "}, "is empty"),
            ({"summary": 7}, "is a int"),
        ],
    )
    def test_bad_input_is_refused(self, store, arguments, problem):
        thread = sample_thread(store)
        with pytest.raises(InvalidInput, match=problem):
            thread.compact(**arguments)
        assert thread.load().compactions == []

    def test_an_empty_thread_is_refused(self, store):
        with pytest.raises(NotFound):
            store.thread("none").compact("s")
        with pytest.raises(Conflict, match="no compaction"):
            store.thread("none").uncompact()

    def test_the_list_of_compactions_is_reserved(self, store):
        with pytest.raises(InvalidInput, match="reserved"):
            store.thread("t").checkpoint([], lists={"messages.compactions": []})

    def test_a_boundary_does_not_go_back(self, store):
        thread = sample_thread(store)
        thread.compact("s", upto=3)
        with pytest.raises(InvalidInput, match="uncompact"):
            thread.compact("s", upto=2)

    def test_messages_that_come_meanwhile_are_kept(self, store):
        thread = sample_thread(store)

        def summarise(_):
            store.thread("t").append(say("meanwhile"))
            return "s"

        thread.compact(summarise, keep_last=1)
        assert texts(thread.load(view="compact").messages)[1:] == ["message 4", "meanwhile"]

    def test_a_conversation_that_was_cut_meanwhile_is_not_compacted(self, store):
        thread = sample_thread(store)

        def summarise(_):
            store.thread("t").shorten(1)
            return "s"

        with pytest.raises(ThreadMoved):
            thread.compact(summarise)


class TestUndoing:
    def test_the_boundary_moves_back(self, store):
        thread = sample_thread(store, steps=6)
        thread.compact("one", upto=2)
        thread.compact("two", upto=4)
        thread.uncompact()
        assert len(thread.load(view="compact").messages) == 5
        thread.uncompact()
        assert thread.load(view="compact").messages == thread.load().messages
        assert len(thread.at("~2").compactions) == 2

    def test_all_boundaries_go_at_once(self, store):
        thread = sample_thread(store, steps=6)
        thread.compact("one", upto=2)
        thread.compact("two", upto=4)
        thread.uncompact(everything=True)
        assert thread.load().compactions == []

    def test_a_rewind_goes_back_to_the_compactions_of_its_target(self, store):
        thread = sample_thread(store, steps=6)
        before = thread.head
        thread.compact("one", upto=2)
        thread.rewind(before)
        assert thread.load().compactions == []

    def test_a_fork_takes_them_along(self, store):
        thread = sample_thread(store, steps=6)
        thread.compact("one", upto=4)
        fork = thread.fork("f")
        thread.uncompact()
        assert len(fork.load(view="compact").messages) == 3
        fork.append(say("on"))
        assert len(fork.load(view="compact").messages) == 4

    @pytest.mark.parametrize("change", ["shorten", "save"])
    def test_a_boundary_goes_with_the_messages_before_it(self, store, change):
        thread = sample_thread(store, steps=6)
        thread.compact("one", upto=2)
        thread.compact("two", upto=4)
        if change == "shorten":
            thread.shorten(3)
        else:
            thread.checkpoint([*thread.load().messages[:3], say("other")])
        assert [each.upto for each in thread.load().compactions] == [2]

    def test_other_messages_have_no_boundary(self, store):
        thread = sample_thread(store)
        thread.compact("one", upto=2)
        thread.checkpoint([say("afresh")])
        assert thread.load().compactions == []
        assert thread.load(view="compact").messages == [say("afresh")]


class TestSavingTheView:
    """A program that loads the compact view and saves it with an answer does not cut off the history."""

    @pytest.mark.parametrize("budget", [None, 25])
    def test_the_whole_conversation_goes_on(self, store, budget):
        thread = sample_thread(store, steps=8)
        whole = thread.load().messages
        thread.compact("s", keep_last=4)
        loaded = thread.load(view="compact", budget_tokens=budget)
        thread.checkpoint([*loaded.messages, say("answer")])
        assert thread.load().messages == [*whole, say("answer")]
        assert len(thread.load().compactions) == 1

    def test_a_view_without_its_last_message_cuts_only_that(self, store):
        thread = sample_thread(store, steps=8)
        whole = thread.load().messages
        thread.compact("s", keep_last=4)
        thread.checkpoint(thread.load(view="compact").messages[:-1])
        assert thread.load().messages == whole[:-1]

    def test_other_messages_behind_the_summary_are_refused(self, store):
        thread = sample_thread(store, steps=8)
        thread.compact("s", keep_last=4)
        view = thread.load(view="compact").messages
        with pytest.raises(InvalidInput, match="append"):
            thread.checkpoint([view[0], say("something else")])


class TestBudget:
    def test_the_newest_messages_that_fit_are_given(self, store):
        thread = sample_thread(store, steps=300)
        view = thread.load(budget_tokens=100).view
        assert view.tokens <= 100
        assert view.messages == thread.load().messages[view.left_out :]
        assert view.left_out + len(view.messages) == 300
        assert (view.tokenizer, view.is_exact) == ("estimate", False)
        larger = thread.load(budget_tokens=109).view
        assert len(larger.messages) == len(view.messages) + 1

    def test_instructions_and_the_summary_always_fit(self, store):
        thread = store.thread("t")
        thread.append({"role": "system", "content": "Rule."}, *[say(f"n {n}") for n in range(50)])
        thread.compact("s", upto=20)
        view = thread.load(view="compact", budget_tokens=80).view
        assert view.messages[0]["content"] == "Rule."
        assert view.messages[1]["content"].startswith("Summary")
        assert (view.messages[-1], view.tokens <= 80, view.left_out > 0) == (say("n 49"), True, True)

    def test_a_result_does_not_come_without_its_call(self, store):
        thread = store.thread("t")
        thread.append(say("x" * 100), call("1"), result("1"), say("end"))
        whole = TokenCounter().count(thread.load().messages[1:])
        assert thread.load(budget_tokens=whole).messages == thread.load().messages[1:]
        assert thread.load(budget_tokens=whole - 1).messages == [say("end")]

    def test_a_budget_that_is_too_small_is_refused(self, store):
        thread = sample_thread(store)
        thread.compact("long " * 30, keep_last=2)
        with pytest.raises(InvalidInput, match="the summary and instructions take 67"):
            thread.load(view="compact", budget_tokens=20)
        with pytest.raises(InvalidInput, match="number of tokens"):
            thread.load(budget_tokens=0)

    def test_a_view_and_a_number_of_messages_exclude_each_other(self, store):
        thread = sample_thread(store)
        with pytest.raises(InvalidInput, match="last="):
            thread.load(last=2, view="compact")
        with pytest.raises(InvalidInput, match="full or compact"):
            thread.load(view="short")

    def test_a_function_counts_exactly(self, store):
        thread = sample_thread(store, steps=10)
        view = thread.load(budget_tokens=18, tokenizer=words).view
        assert (view.tokens, len(view.messages)) == (18, 3)  # two words each, and four for the frame
        assert (view.tokenizer, view.is_exact) == ("words", True)

    def test_a_tokenizer_counts_exactly(self, store):
        tokenizer = Tokenizer(WordLevel({"message": 0, "?": 1}, unk_token="?"))
        tokenizer.pre_tokenizer = Whitespace()
        view = sample_thread(store, steps=10).load(budget_tokens=18, tokenizer=tokenizer).view
        assert (view.tokens, view.tokenizer, view.is_exact) == (18, "Tokenizer", True)

    def test_an_unknown_model_is_estimated(self, store):
        view = sample_thread(store).load(tokenizer="no-such-model").view
        assert (view.tokenizer, view.is_exact) == ("estimate", False)

    def test_an_image_makes_it_an_estimate(self):
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        counter = TokenCounter(words)
        assert counter.of({"role": "user", "content": [image]}) > 1000
        assert not counter.is_exact


class Machine(RuleBasedStateMachine):
    """Two stores are told the same, but only one is told to compact."""

    names = st.sampled_from(["a", "b", "c"])

    @initialize()
    def open(self):
        self.plain, self.compacted = treering.open("memory:"), treering.open("memory:")
        self.count = self.steps = 0

    def teardown(self):
        for store in (self.plain, self.compacted):
            assert store.verify().ok
            store.close()

    def both(self, name):
        return self.plain.thread(name), self.compacted.thread(name)

    @rule(name=names, kinds=st.lists(st.sampled_from(["say", "call", "long"]), min_size=1, max_size=4))
    def append(self, name, kinds):
        messages = []
        for kind in kinds:
            self.count += 1
            if kind == "call":
                messages += [call(str(self.count)), result(str(self.count))]
            else:
                messages.append(say(f"{self.count} " * (30 if kind == "long" else 1)))
        for thread in self.both(name):
            thread.append(*messages, note=self.note())

    @rule(name=names, keep=st.integers(0, 6))
    def compact(self, name, keep):
        thread = self.compacted.thread(name)
        try:
            thread.compact(f"summary {self.count}", keep_last=keep, note=thread.head and thread.head.note)
        except NotFound:
            assert thread.head is None
        except InvalidInput as error:
            assert "to compact" in str(error) or "compacted already" in str(error)  # noqa: PT017

    @rule(name=names, everything=st.booleans())
    def uncompact(self, name, everything):
        thread = self.compacted.thread(name)
        if thread.head is not None and thread.head.compactions:
            thread.uncompact(everything=everything, note=thread.head.note)

    @rule(name=names, new=names)
    def fork(self, name, new):
        plain, compacted = self.both(name)
        if plain.head is not None and self.plain.thread(new).head is None:
            plain.fork(new)
            compacted.fork(new)

    @rule(name=names, back=st.integers(0, 8))
    def rewind(self, name, back):
        plain, compacted = self.both(name)
        places = list({each.note: each for each in plain.history()}.values())
        if places:
            old = places[min(back, len(places) - 1)]
            plain.rewind(old)
            compacted.rewind(next(each for each in compacted.history() if each.note == old.note))

    @rule(name=names, length=st.integers(0, 6))
    def shorten(self, name, length):
        for thread in self.both(name):
            if thread.head is not None:
                thread.shorten(length, note=self.note())

    @rule(name=names)
    def save_the_view(self, name):
        plain, compacted = self.both(name)
        if plain.head is not None:
            self.count += 1
            answer = say(str(self.count))
            plain.checkpoint([*plain.load().messages, answer], note=self.note())
            compacted.checkpoint([*compacted.load(view="compact").messages, answer], note=self.note())

    def note(self):
        """What checkpoints with the same content have in common, in both stores."""
        self.steps += 1
        return str((self.steps + 1) // 2)

    @precondition(lambda self: hasattr(self, "plain"))
    @invariant()
    def the_full_load_is_the_same(self):
        for name in ("a", "b", "c"):
            plain, compacted = self.both(name)
            assert (plain.head is None) == (compacted.head is None)
            if plain.head is None:
                continue
            whole, loaded = plain.load(), compacted.load()
            assert encode(loaded.messages, keep_order=True) == encode(whole.messages, keep_order=True)
            assert (loaded.state, loaded.list_names) == (whole.state, whole.list_names)
            for each in loaded.compactions:
                assert each.upto <= len(whole.messages)
            view = loaded.compact_view()
            if loaded.compactions:
                assert view.messages == loaded.compactions[-1].apply(whole.messages)

    @precondition(lambda self: hasattr(self, "plain"))
    @invariant()
    def every_view_is_within_its_budget(self):
        for name in ("a", "b", "c"):
            thread = self.compacted.thread(name)
            if thread.head is None:
                continue
            for budget in (20, 60, 200):
                try:
                    view = thread.load(view="compact", budget_tokens=budget).view
                except InvalidInput:
                    lead = thread.head.compact_view().messages
                    assert TokenCounter().count([*lead[:1], *lead[-2:]]) > budget
                    continue
                assert TokenCounter().count(view.messages) <= budget
                called = {each["id"] for m in view.messages for each in m.get("tool_calls", ())}
                assert {m["tool_call_id"] for m in view.messages if m["role"] == "tool"} <= called


def test_any_sequence_of_compactions_forks_and_rewinds():
    Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
    Machine.TestCase().runTest()

"""A tool call of an agent happens once, and a person or a probe decides where nobody can know."""

from __future__ import annotations

import asyncio

import pytest

from tests.agent.scripted import Scripted, answered, asking
from treering.agent import CheckpointWarning, create_agent, tool
from treering.core.encoding import decode_json
from treering.core.query import EventQuery
from treering.effects import Intent, Outcome
from treering.errors import Conflict, StoreFull
from treering.runs.span import current_node
from treering.threads.history import REWIND
from treering.threads.thread import ThreadMoved


class Bank:
    """Pays, and can be told to die after (or before) a payment."""

    def __init__(self) -> None:
        self.paid: list = []
        self.dies = ""

    def pay(self, amount: int) -> str:
        if self.dies == "before":
            raise KeyboardInterrupt
        self.paid.append(amount)
        if self.dies == "after":
            raise KeyboardInterrupt
        return f"tx_{len(self.paid)}"

    def pay_with_key(self, amount: int, *, idempotency_key: str) -> str:
        if idempotency_key not in self.paid:
            self.paid.append(idempotency_key)
        if self.dies:
            raise KeyboardInterrupt
        return f"paid {amount}"


@pytest.fixture
def bank():
    return Bank()


def agent_of(store, *tools, calls=(("c1", "pay", {"amount": 5}),), **options):
    return create_agent(model=Scripted(asking(*calls), "Paid."), tools=tools, checkpointer=store, **options)


def dies(agent, bank, moment="after"):
    bank.dies = moment
    with pytest.raises(KeyboardInterrupt):
        agent.generate(thread_id="t", prompt="Pay")
    bank.dies = ""


def test_a_call_whose_outcome_nobody_knows_waits_for_a_person(store, bank) -> None:
    agent = agent_of(store, bank.pay)
    dies(agent, bank)
    waiting = agent.generate(thread_id="t")
    (unknown,) = store.effects.unknown()
    payload = waiting.interrupt["payload"]
    assert payload["tool_call"] == {"id": "c1", "name": "pay", "arguments": {"amount": 5}}
    assert (payload["effect"]["id"], payload["effect"]["attempt"]) == (unknown.id, 1)
    assert "approve: it did not" in payload["question"]
    assert store.thread("t").load().pending_interrupt == waiting.interrupt
    assert bank.paid == [5]


@pytest.mark.parametrize(
    "decision, value, paid, result",
    [
        ("approve", None, [5, 5], "tx_2"),
        ("deny", None, [5], "the call was given up"),
        ("edit", "tx_1, says the ledger", [5], "tx_1, says the ledger"),
    ],
)
def test_a_person_answers_the_question(store, bank, decision, value, paid, result) -> None:
    agent = agent_of(store, bank.pay)
    dies(agent, bank)
    agent.generate(thread_id="t")
    store.thread("t").resume(decision, value=value)
    assert agent.generate(thread_id="t").text == "Paid."
    assert store.thread("t").load().messages[2] == answered("c1", result)
    assert bank.paid == paid
    assert list(store.effects.unknown()) == []


def test_deciding_about_the_effect_answers_the_question_too(store, bank) -> None:
    agent = agent_of(store, bank.pay)
    dies(agent, bank)
    waiting = agent.generate(thread_id="t").interrupt
    with pytest.raises(Conflict, match="waiting for a decision"):
        agent.generate(thread_id="t")
    store.effects.resolve(waiting["payload"]["effect"]["id"], happened=True, result="tx_1")
    assert agent.generate(thread_id="t").text == "Paid."
    assert store.thread("t").load().messages[2] == answered("c1", "tx_1")
    assert bank.paid == [5]


def test_a_tool_with_a_key_is_called_again_with_the_same_key(store, bank) -> None:
    agent = agent_of(store, tool(bank.pay_with_key, name="pay"))
    dies(agent, bank)
    assert agent.generate(thread_id="t").text == "Paid."
    (effect,) = store.effects.list(thread_id="t")
    assert bank.paid == [effect.key]
    assert (effect.status, effect.attempt, effect.result) == ("done", 2, "paid 5")


def test_a_safe_tool_is_called_again_and_leaves_no_effect(store, bank) -> None:
    agent = agent_of(store, tool(bank.pay, replay="safe"))
    bank.dies = "after"
    with pytest.raises(KeyboardInterrupt):
        agent.generate(thread_id="t", prompt="Pay")
    bank.dies = ""
    assert agent.generate(thread_id="t").text == "Paid."
    assert bank.paid == [5, 5]
    assert list(store.effects.list()) == []


@pytest.mark.parametrize("happened, paid, result", [(True, [5], "tx_9"), (False, [5, 5], "tx_2")])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_probe_finds_out(store, bank, happened, paid, result, is_async) -> None:
    once = tool(bank.pay)
    asked = []

    async def look_later(amount: int) -> Outcome:
        return look(amount)

    def look(amount: int) -> Outcome:
        asked.append(amount)
        return Outcome(happened=happened, result="tx_9" if happened else None)

    once.probe(look_later if is_async else look)
    agent = agent_of(store, once)
    dies(agent, bank)
    done = asyncio.run(agent.agenerate(thread_id="t")) if is_async else agent.generate(thread_id="t")
    assert done.text == "Paid."
    assert (asked, bank.paid) == ([5], paid)
    assert store.thread("t").load().messages[2] == answered("c1", result)


def test_a_probe_that_cannot_tell_leaves_it_to_a_person(store, bank) -> None:
    once = tool(bank.pay)
    once.probe(lambda amount: None)  # noqa: ARG005
    agent = agent_of(store, once)
    dies(agent, bank)
    assert agent.generate(thread_id="t").interrupt["payload"]["effect"]["attempt"] == 1


def test_a_result_that_was_stored_is_returned_and_not_computed(store) -> None:
    """The second call dies; the first one has its outcome, though no checkpoint was saved since."""
    calls = (("c1", "pay", {"amount": 1}), ("c2", "pay", {"amount": 2}))
    paid = []

    def pay(amount: int) -> str:
        paid.append(amount)
        if amount == 2:
            store.thread("t").rewind(0)  # nothing that is saved from here on counts
            raise KeyboardInterrupt
        return f"tx_{amount}"

    agent = agent_of(store, pay, calls=calls)
    with pytest.raises(KeyboardInterrupt), pytest.warns(match="could not be saved"):
        agent.generate(thread_id="t", prompt="Pay")
    waiting = agent.generate(thread_id="t")
    assert paid == [1, 2]
    assert waiting.messages == [answered("c1", "tx_1")]
    assert waiting.interrupt["payload"]["tool_call"]["id"] == "c2"


def test_a_call_that_was_approved_is_not_asked_about_twice(store, bank) -> None:
    agent = agent_of(store, tool(bank.pay_with_key, name="pay", needs_approval=True))
    agent.generate(thread_id="t", prompt="Pay")
    bank.dies = "after"
    with pytest.raises(KeyboardInterrupt):
        agent.resume(thread_id="t", decision="edit", value={"amount": 7})
    bank.dies = ""
    assert agent.generate(thread_id="t").text == "Paid."
    assert store.thread("t").load().messages[2] == answered("c1", "paid 7")


def test_a_denied_call_is_abandoned(store, bank) -> None:
    agent = agent_of(store, tool(bank.pay, needs_approval=True))
    agent.generate(thread_id="t", prompt="Pay")
    agent.resume(thread_id="t", decision="deny")
    (effect,) = store.effects.list(thread_id="t")
    assert (effect.status, bank.paid) == ("abandoned", [])


def test_a_fork_of_an_unfinished_thread_does_not_repeat_its_effects(store, bank) -> None:
    agent = agent_of(store, bank.pay)
    dies(agent, bank)
    store.thread("t").fork("u")
    fork = create_agent(model=Scripted("Paid."), tools=[bank.pay], checkpointer=store)
    assert fork.generate(thread_id="u").interrupt is not None
    assert bank.paid == [5]


def test_calls_with_the_same_id_in_different_turns_are_different_effects(store, bank) -> None:
    again = asking(("c1", "pay", {"amount": 6}))
    model = Scripted(asking(("c1", "pay", {"amount": 5})), again, "Paid.")
    create_agent(model=model, tools=[bank.pay], checkpointer=store).generate(thread_id="t", prompt="Pay")
    assert bank.paid == [5, 6]
    assert len(list(store.effects.list(thread_id="t"))) == 2


def test_an_error_of_a_tool_is_kept_as_its_outcome(store) -> None:
    def pay(amount: int) -> str:
        raise ValueError(f"no {amount}")

    agent_of(store, pay).generate(thread_id="t", prompt="Pay")
    (effect,) = store.effects.list(thread_id="t")
    assert (effect.status, effect.result) == ("failed", "ValueError: no 5")


def test_an_error_that_ends_the_run_leaves_the_effect_unknown(store) -> None:
    def pay(amount: int) -> str:
        raise ConnectionError(f"lost after {amount}")

    agent = agent_of(store, pay, on_tool_error="raise")
    with pytest.raises(ConnectionError):
        agent.generate(thread_id="t", prompt="Pay")
    (effect,) = store.effects.unknown()
    assert effect.note == "ConnectionError: lost after 5"


def test_a_run_whose_intent_cannot_be_stored_calls_nothing(store, bank) -> None:
    failures = [StoreFull("full"), StoreFull("full")]

    def fails(_):
        if failures:
            raise failures.pop()

    store.hooks.add("pre_checkpoint_save", fails)
    agent = agent_of(store, bank.pay)
    with pytest.raises(StoreFull), pytest.warns(CheckpointWarning):
        agent.generate(thread_id="t", prompt="Pay")
    assert bank.paid == []
    assert list(store.effects.list()) == []


def test_a_hook_that_fails_after_the_intent_is_stored_does_not_stop_the_call(store, bank) -> None:
    failures = [OSError("the log is full")]

    def fails(_):
        if failures:
            raise failures.pop()

    store.hooks.add("post_checkpoint_save", fails)
    with pytest.warns(CheckpointWarning, match="the log is full"):
        assert agent_of(store, bank.pay).generate(thread_id="t", prompt="Pay").text == "Paid."
    assert [each.status for each in store.effects.list()] == ["done"]
    assert bank.paid == [5]


def test_of_two_runs_that_both_got_a_reply_only_one_calls(store, bank) -> None:
    """The other one finds that the thread has moved when it plans its call."""
    slow = agent_of(store, bank.pay)
    fast = agent_of(store, bank.pay, calls=(("c2", "pay", {"amount": 7}),))

    def overtaken(_):
        store.hooks.remove("pre_checkpoint_save", overtaken)
        fast.generate(thread_id="t", prompt="Pay")

    store.hooks.add("pre_checkpoint_save", overtaken)
    with pytest.raises(ThreadMoved):
        slow.generate(thread_id="t", prompt="Pay")
    assert bank.paid == [7]
    assert [each.call_id for each in store.effects.list()] == ["c2"]


def test_the_question_shows_what_happened_since_the_call_was_asked_for(store, bank, tmp_path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "plan.txt").write_text("pay 5\n")
    with_files = {"pre_checkpoint_save": lambda _: {"workspace": str(folder)}}
    agent = agent_of(store, bank.pay, hooks=with_files)
    dies(agent, bank)
    (folder / "receipt.txt").write_text("tx_1\n")
    since = agent.generate(thread_id="t").interrupt["payload"]["effect"]["since"]
    assert "call pay" in [each["label"] for each in since["events"]]
    (effect,) = store.effects.unknown()
    asked = store.thread("t").at(effect.checkpoint_id)
    assert "pay" in str(asked.messages[-1])
    (changed,) = store.effects.changes(effect.id).files  # the checkpoint with the question has the receipt
    assert (changed.path, changed.change) == ("receipt.txt", "added")
    (folder / "receipt.txt").unlink()
    assert store.effects.changes(effect.id, workspace=folder).files == []


def test_an_outcome_has_the_files_that_the_call_changed_and_what_it_cost(store, tmp_path) -> None:
    (tmp_path / "plan.txt").write_text("pay 5\n")

    @tool
    def pay(amount: int) -> str:
        (tmp_path / "plan.txt").write_text("paid\n")
        (tmp_path / f"receipt {amount}.txt").write_text("tx_1\n")
        node = current_node.get()
        with node.span("ask", kind="llm") as span:
            span.use({"input": 10, "output": 1}, cost="0.25", currency="EUR")
        with store.run("checker") as run:
            run.message("assistant", "fine", usage={"input": 1, "output": 1}, cost="0.5", currency="EUR")
        node.use({"input": 1, "output": 1}, cost="1", currency="USD")
        return "tx_1"

    @tool
    def look() -> str:
        return "nothing to see"

    calls = ("c1", "pay", {"amount": 5}), ("c2", "look", {})
    with_files = {"pre_checkpoint_save": lambda _: {"workspace": str(tmp_path)}}
    agent_of(store, pay, look, calls=calls, hooks=with_files).generate(thread_id="t", prompt="Pay")
    looked, paid = store.effects.list(thread_id="t")
    assert (paid.files, paid.file_count) == (("plan.txt", "receipt 5.txt"), 2)
    assert paid.cost_nanos == {"EUR": 750_000_000, "USD": 1_000_000_000}
    assert (looked.files, looked.file_count, looked.cost_nanos) == ((), 0, {})
    assert list(store.workspace.snapshots()) == []  # those of the checkpoints are enough


def test_a_rewind_says_which_effects_it_does_not_undo(store, bank, caplog) -> None:
    agent = agent_of(store, bank.pay)
    thread = store.thread("t")
    thread.append({"role": "user", "content": "Pay"})
    assert agent.generate(thread_id="t").text == "Paid."
    (effect,) = store.effects.list(thread_id="t")
    assert thread.effects_after(effect.checkpoint_id) == []  # it asks for the call, and gets its outcome
    assert thread.effects_after(0) == [effect]
    thread.load()
    thread.rewind(0)
    assert "past 1 tool calls, which are not undone: pay" in caplog.text
    assert effect.id in caplog.text
    (rewound,) = store.engine.scan(store.space, EventQuery(kinds=(REWIND,)), limit=9).records
    assert decode_json(rewound.event.data)["effects"] == [effect.id]


def test_a_call_that_never_began_is_not_listed_by_a_rewind(store) -> None:
    store.thread("t").append({"role": "user", "content": "Pay"})
    store.effects.plan(Intent(tool="pay", arguments={}, thread_id="t"))
    assert store.thread("t").effects_after(0) == []

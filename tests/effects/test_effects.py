"""An effect is planned, started and ended once, by one process at a time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading

import pytest

import treering
from treering.core import failpoints
from treering.effects import Attempt, Effect, EffectFailed, EffectRunning, EffectUnknown, Intent, Outcome
from treering.effects.effects import MAX_FILES
from treering.errors import Conflict, InvalidInput, NotFound
from treering.runs.tree import RunCancelled


def pay(**fields):
    return Intent(tool="pay", arguments={"amount": 5}, thread_id="t", **fields)


def planned(store, **fields):
    intent = pay(**fields)
    store.effects.plan(intent)
    return intent.id


def test_an_effect_is_planned_started_and_done(store) -> None:
    effect_id = planned(store, run_id="r", agent="teller", call_id="c1")
    assert store.effects.load(effect_id).status == "planned"
    attempt = store.effects.begin(effect_id)
    assert isinstance(attempt, Attempt)
    assert store.effects.load(effect_id).status == "started"
    done = attempt.finish({"tx": 81}, files=["receipt.txt"], cost_nanos={"EUR": 7})
    assert done == store.effects.load(effect_id)
    assert (done.status, done.result, done.attempt) == ("done", {"tx": 81}, 1)
    assert (done.files, done.cost_nanos, done.arguments) == (("receipt.txt",), {"EUR": 7}, {"amount": 5})
    assert (done.run_id, done.agent, done.call_id) == ("r", "teller", "c1")


def test_an_outcome_names_the_first_files_and_counts_all(store) -> None:
    names = [f"{number:03}.txt" for number in range(MAX_FILES + 20)]
    effect_id = planned(store)
    done = store.effects.begin(effect_id).finish("ok", files=names, cost_nanos={"EUR": 7})
    assert (done.files, done.file_count, done.cost_nanos) == (tuple(names[:MAX_FILES]), 120, {"EUR": 7})
    assert store.effects.load(effect_id) == done


def test_a_call_that_goes_on_in_another_run_is_stopped_only_with_that_run(store) -> None:
    first, second = store.run("first").start(), store.run("second").start()
    store.flush()
    store.effects.open(pay(id="a", run_id=first.id, takes_key=True)).leave()
    store.runs.cancel(first.id)
    with pytest.raises(RunCancelled, match=first.id):
        store.effects.open(pay(id="a", run_id=first.id, takes_key=True))
    again = store.effects.open(pay(id="a", run_id=second.id, takes_key=True))
    assert again.effect.attempt == 2
    again.leave()
    store.runs.cancel(second.id)
    with pytest.raises(RunCancelled, match=second.id):
        store.effects.open(pay(id="a", run_id=second.id, takes_key=True))


def test_an_effect_with_an_outcome_is_not_begun_again(store) -> None:
    effect_id = planned(store)
    store.effects.begin(effect_id).finish("tx_81")
    again = store.effects.begin(effect_id)
    assert isinstance(again, Effect)
    assert (again.status, again.result, again.attempt) == ("done", "tx_81", 1)


def test_an_error_is_an_outcome_too(store) -> None:
    effect_id = planned(store)
    store.effects.begin(effect_id).finish("no money", is_error=True)
    again = store.effects.begin(effect_id)
    assert (again.status, again.is_error, again.result) == ("failed", True, "no money")


def test_planning_the_same_effect_twice_keeps_the_first(store) -> None:
    effect_id = planned(store)
    store.effects.begin(effect_id).finish("tx_81")
    store.effects.plan(Intent(id=effect_id, tool="other", arguments={}))
    assert (store.effects.load(effect_id).tool, store.effects.load(effect_id).status) == ("pay", "done")


def test_intents_are_part_of_the_commit_of_their_checkpoint(store) -> None:
    intent = pay()
    before = store.stats().rows["commits"]
    store.thread("t").append({"role": "assistant"}, effects=[intent])
    assert store.stats().rows["commits"] == before + 1
    assert store.effects.load(intent.id).status == "planned"


def test_a_large_argument_and_a_large_result_are_stored_beside_the_ref(store) -> None:
    intent = Intent(tool="send", arguments={"body": "a" * 100_000}, thread_id="t")
    store.effects.plan(intent)
    store.effects.begin(intent.id).finish("b" * 100_000)
    store.gc(grace_seconds=0)
    effect = store.effects.load(intent.id)
    assert (effect.arguments["body"], effect.result) == ("a" * 100_000, "b" * 100_000)
    assert store.verify().ok


@pytest.mark.parametrize(
    "replay, takes_key, status",
    [
        ("safe", False, "started"),
        ("once", True, "started"),
        ("once", False, "unknown"),
        ("ask", True, "unknown"),
        ("ask", False, "unknown"),
    ],
)
def test_an_attempt_without_an_outcome_is_repeated_only_if_that_is_harmless(
    store, replay, takes_key, status
) -> None:
    effect_id = planned(store, replay=replay, takes_key=takes_key)
    first = store.effects.begin(effect_id)
    key = first.effect.key
    first.leave(note="cancelled")
    again = store.effects.begin(effect_id)
    assert store.effects.load(effect_id).status == status
    if isinstance(again, Attempt):
        assert (again.effect.attempt, again.effect.key) == (2, key)
        again.finish()
    else:
        assert (again.attempt, again.note) == (1, "cancelled")
        assert [each.id for each in store.effects.unknown()] == [effect_id]


def test_only_one_of_many_makes_a_call(store) -> None:
    effect_id = planned(store)
    attempts, refused = [], []

    def begin():
        try:
            attempts.append(store.effects.begin(effect_id, wait_seconds=0))
        except EffectRunning as error:
            refused.append(str(error))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(attempts) == 1
    assert [each for each in refused if "is being made by" not in each] == []
    assert len(refused) == 7
    attempts[0].finish()


def test_whoever_waits_for_another_attempt_gets_its_outcome(store) -> None:
    effect_id = planned(store)
    first = store.effects.begin(effect_id)
    found = []
    waiting = threading.Thread(target=lambda: found.append(store.effects.begin(effect_id)))
    waiting.start()
    first.finish("tx_81")
    waiting.join()
    assert [each.result for each in found] == ["tx_81"]


def test_a_late_outcome_counts_until_somebody_has_decided(store) -> None:
    effect_id = planned(store)
    first = store.effects.begin(effect_id)
    store.engine.release(first._lease)  # as if it had expired
    assert [each.status for each in store.effects.unknown()] == ["unknown"]
    assert first.finish("tx_81").status == "done"
    assert store.effects.load(effect_id).result == "tx_81"


def test_a_late_outcome_does_not_replace_a_decision(store) -> None:
    effect_id = planned(store)
    first = store.effects.begin(effect_id)
    store.engine.release(first._lease)
    assert len(list(store.effects.unknown())) == 1
    store.effects.abandon(effect_id, by="alice")
    assert first.finish("tx_81").status == "abandoned"
    assert store.effects.load(effect_id).status == "abandoned"


def left_unknown(store):
    effect_id = planned(store)
    store.effects.begin(effect_id).leave()
    return effect_id


def test_a_person_says_that_it_happened(store) -> None:
    effect_id = left_unknown(store)
    done = store.effects.resolve(effect_id, happened=True, result="tx_81", by="alice", note="in the ledger")
    assert (done.status, done.result, done.decided_by, done.note) == (
        "done",
        "tx_81",
        "alice",
        "in the ledger",
    )
    assert store.effects.begin(effect_id).result == "tx_81"
    assert list(store.effects.unknown()) == []


def test_a_person_says_that_it_did_not_happen(store) -> None:
    effect_id = left_unknown(store)
    assert store.effects.resolve(effect_id, happened=False).status == "planned"
    attempt = store.effects.begin(effect_id)
    assert attempt.effect.attempt == 2
    attempt.leave()
    assert store.effects.load(effect_id).status == "unknown"


def test_a_person_gives_it_up(store) -> None:
    effect_id = left_unknown(store)
    given_up = store.effects.abandon(effect_id)
    assert (given_up.status, given_up.is_error, given_up.result) == (
        "abandoned",
        True,
        "the call was given up",
    )


def test_only_an_effect_without_an_outcome_needs_a_decision(store) -> None:
    effect_id = planned(store)
    with pytest.raises(Conflict, match="is not unknown"):
        store.effects.resolve(effect_id, happened=True)
    store.effects.begin(effect_id).finish("tx_81")
    for decide in (store.effects.retry, store.effects.abandon):
        with pytest.raises(Conflict, match="is not unknown"):
            decide(effect_id)


def test_arguments_may_be_edited_before_the_first_attempt(store) -> None:
    effect_id = planned(store)
    attempt = store.effects.begin(effect_id, arguments={"amount": 1})
    assert attempt.effect.arguments == {"amount": 1}
    attempt.leave()
    store.effects.retry(effect_id)
    attempt = store.effects.begin(effect_id, arguments={"amount": 9})
    assert attempt.effect.arguments == {"amount": 1}
    attempt.finish()


def test_effects_are_listed_by_thread_run_and_status(store) -> None:
    done = planned(store, run_id="one")
    store.effects.begin(done).finish()
    other = Intent(tool="send", arguments={}, thread_id="u", run_id="two")
    store.effects.plan(other)
    listed = store.effects.list
    assert [each.id for each in listed()] == [other.id, done]
    assert [each.id for each in listed(thread_id="t")] == [done]
    assert [each.id for each in listed(run_id="two")] == [other.id]
    assert [each.id for each in listed(status="planned")] == [other.id]
    assert [each.id for each in listed(status="done")] == [done]
    assert [each.id for each in listed(last=1)] == [other.id]
    with pytest.raises(InvalidInput, match="status='lost' is invalid"):
        list(listed(status="lost"))


def test_an_effect_is_found_by_the_beginning_of_its_id(store) -> None:
    effect_id = planned(store)
    assert store.effects.load(effect_id[:14]).id == effect_id
    with pytest.raises(NotFound, match="List effects with: treering effects"):
        store.effects.load("nothing")


def test_forgetting_a_thread_forgets_its_effects(store) -> None:
    effect_id = planned(store)
    store.effects.begin(effect_id).finish("tx_81")
    store.forget(thread="t")
    with pytest.raises(NotFound):
        store.effects.load(effect_id)
    assert list(store.effects.list()) == []


DYING = """
import sys, treering
from treering.effects import Attempt
store = treering.open(sys.argv[1])
attempt = store.effects.begin(sys.argv[2])
if isinstance(attempt, Attempt):
    attempt.finish("done by " + sys.argv[3])
"""


@pytest.mark.faults
@pytest.mark.parametrize(
    "failpoint, takes_key, statuses",
    [
        ("effect.started", True, ("started", "done")),
        ("effect.started", False, ("started", "unknown")),
        ("effect.called", True, ("started", "done")),
        ("effect.called", False, ("started", "unknown")),
        ("effect.ended", False, ("done", "done")),
    ],
)
def test_a_killed_process_is_followed_at_once(tmp_path, failpoint, takes_key, statuses) -> None:
    """Its lease has not expired, but its process is seen to be dead."""
    with treering.open(tmp_path / "store") as store:
        effect_id = planned(store, takes_key=takes_key)

    def run(name, **environment):
        command = [sys.executable, "-c", DYING, str(tmp_path / "store"), effect_id, name]
        return subprocess.run(command, env={**os.environ, **environment}, check=False, timeout=60).returncode

    assert run("first", **{failpoints.ENVIRONMENT: f"{failpoint}=kill"}) == -signal.SIGKILL
    with treering.open(tmp_path / "store") as store:
        assert store.effects.load(effect_id).status == statuses[0]
    assert run("second") == 0
    with treering.open(tmp_path / "store") as store:
        effect = store.effects.load(effect_id)
        assert effect.status == statuses[1]
        assert (
            effect.result
            == {"unknown": None, "done": f"done by {'second' if takes_key else 'first'}"}[effect.status]
        )
        assert store.verify().ok


def test_call_makes_a_call_once(store) -> None:
    made = []

    def charge(effect):
        made.append(effect.key)
        return {"tx": len(made), "amount": effect.arguments["amount"]}

    intent = pay(id="invoice-1")
    assert store.effects.call(intent, charge) == {"tx": 1, "amount": 5}
    assert store.effects.call(intent, charge) == {"tx": 1, "amount": 5}
    assert made == ["treering-invoice-1"]


def test_call_does_not_repeat_what_nobody_knows(store) -> None:
    made = []

    def dies(effect):
        made.append(effect.id)
        raise ConnectionError("no answer")

    intent = pay()
    with pytest.raises(ConnectionError):
        store.effects.call(intent, dies)
    with pytest.raises(EffectUnknown, match="treering effects"):
        store.effects.call(intent, dies)
    store.effects.abandon(intent.id)
    with pytest.raises(EffectFailed, match="given up"):
        store.effects.call(intent, dies)
    assert made == [intent.id]


def test_a_probe_answers_what_nobody_knows(store) -> None:
    intent = pay()
    store.effects.plan(intent)
    store.effects.begin(intent.id).leave()
    assert store.effects.call(intent, print, probe=lambda _: Outcome(happened=True, result=7)) == 7


def test_async_calls_and_probes_are_awaited(store) -> None:
    from treering.aio import AsyncStore

    async def charge(effect):
        return effect.arguments["amount"]

    assert asyncio.run(AsyncStore(store).effects.call(pay(), charge)) == 5

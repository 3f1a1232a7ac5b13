"""A damaged thread says what is missing, and never shows less than there was; a trimmed one what is left."""

from __future__ import annotations

import pytest

import treering
from tests.threads.sample_threads import damage, sample_thread, say, steps
from treering.errors import Corrupt, NotFound
from treering.threads.checkpoint import ListPrefix


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "store"


def test_a_record_that_cannot_be_read_is_corrupt(folder):
    with treering.open(folder) as store:
        head = sample_thread(store).head
    damage(folder, f"UPDATE event SET data = X'7b2273746570223a' WHERE id = '{head.id}'")
    with treering.open(folder) as store:
        with pytest.raises(Corrupt, match=head.id):
            store.thread("t").load()
        assert f"event {head.id!r}" in {each.where for each in store.verify().problems}


# Trimmed by retention
def test_a_trimmed_thread_shows_what_is_left(store):
    thread = sample_thread(store, steps=10)
    store.gc(keep=treering.Keep(last=4), grace_seconds=0)
    assert steps(thread.history()) == [9, 8, 7, 6]
    assert len(thread.load().messages) == 10


def test_the_line_goes_on_behind_what_retention_dropped(store):
    thread = sample_thread(store, steps=10)
    store.gc(keep=treering.Keep(last=2, tagged=("third",)), grace_seconds=0)
    assert steps(thread.history()) == [9, 8, 6, 3, 0]
    assert thread.at(3).state == {"count": 3}
    assert steps(thread.history(after=thread.at(6))) == [3, 0]


def test_what_a_rewind_left_behind_does_not_come_back_by_trimming(store):
    thread = sample_thread(store, steps=7)
    kept = thread.at(1)
    thread.rewind(kept)
    for number in range(3):
        thread.append(say(f"other {number}"))
    store.gc(keep=treering.Keep(last=1, tagged=("third",)), grace_seconds=0)
    assert steps(thread.history(everything=True)) == [4, 6, 3, 0]
    assert steps(thread.history()) == [4, 0]


def test_a_fork_outlives_the_trimming_of_its_origin(store):
    thread = sample_thread(store, steps=6)
    fork = thread.fork("f", at=2)
    fork.append(say("mine"))
    store.gc(keep=treering.Keep(last=1), grace_seconds=0)
    assert steps(fork.history()) == [3]
    assert len(fork.load().messages) == 4


def test_a_fork_outlives_an_origin_without_lists(store):
    store.thread("t").checkpoint(state={"n": 1})
    fork = store.thread("t").fork("f")
    fork.checkpoint(state={"n": 2})
    store.forget(thread="t")
    assert [checkpoint.state["n"] for checkpoint in fork.history()] == [2, 1]


# Severed chains
def test_a_missing_parent_is_an_error_not_a_short_history(folder):
    with treering.open(folder) as store:
        lost = sample_thread(store).at(2)
    damage(folder, f"DELETE FROM event WHERE id = '{lost.id}'")
    with treering.open(folder) as store:
        thread = store.thread("t")
        with pytest.raises(Corrupt, match=lost.id):
            list(thread.history())
        with pytest.raises(Corrupt, match=lost.id):
            thread.at(0)
        assert len(thread.load().messages) == 5
        (problem,) = [each for each in store.verify().problems if each.kind == "dangling"]
        assert (problem.kind, problem.where) == ("dangling", "thread 't'")
        assert lost.id in problem.detail


def test_a_missing_parent_of_a_fork_is_an_error_too(folder):
    with treering.open(folder) as store:
        thread = sample_thread(store)
        lost = thread.at(2)
        lost.fork("f")
    damage(folder, f"DELETE FROM event WHERE id = '{lost.id}'")
    with treering.open(folder) as store, pytest.raises(Corrupt, match=lost.id):
        list(store.thread("f").history())


def test_a_missing_head_is_an_error_not_a_new_thread(folder):
    with treering.open(folder) as store:
        head = sample_thread(store).head
    damage(folder, f"DELETE FROM event WHERE id = '{head.id}'")
    with treering.open(folder) as store:
        thread = store.thread("t")
        for look in (thread.load, lambda: thread.append(say("b")), lambda: list(thread.history())):
            with pytest.raises(Corrupt, match=head.id):
                look()
        (problem,) = [each for each in store.verify().problems if each.kind == "dangling"]
        assert (problem.kind, problem.where) == ("dangling", "thread//t")
        assert head.id in problem.detail


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM list",
        "DELETE FROM item",
        "DELETE FROM item WHERE (key & 0xffffffff) = 1",
        "UPDATE list SET length = 3",
    ],
)
def test_a_missing_list_is_an_error_not_an_empty_conversation(folder, statement):
    with treering.open(folder) as store:
        sample_thread(store)
    damage(folder, statement)
    with treering.open(folder) as store:
        checkpoint = store.thread("t").load()
        with pytest.raises(Corrupt, match=checkpoint.id):
            _ = checkpoint.messages
        assert checkpoint.state == {"count": 4}


def test_a_fork_whose_parent_list_is_gone_is_an_error(folder):
    with treering.open(folder) as store:
        thread = sample_thread(store)
        lost = thread.head.record.lists["messages"].list
        thread.at(2).fork("f").append(say("mine"))
    damage(folder, f"DELETE FROM list WHERE id = '{lost}'")
    with treering.open(folder) as store:
        checkpoint = store.thread("f").load()
        with pytest.raises(Corrupt, match=checkpoint.id):
            _ = checkpoint.messages
        with pytest.raises(Corrupt):
            store.thread("t").checkpoint([say("other")])


def test_a_missing_state_value_is_an_error_not_an_empty_state(folder):
    with treering.open(folder) as store:
        sample_thread(store)
    damage(folder, "DELETE FROM body")
    with treering.open(folder) as store:
        checkpoint = store.thread("t").load()
        with pytest.raises(Corrupt, match=checkpoint.id):
            _ = checkpoint.state


def test_a_checkpoint_that_was_deleted_meanwhile_is_not_called_corrupt(store):
    checkpoint = sample_thread(store).load()
    store.thread("t").delete()
    with pytest.raises(NotFound, match="removed"):
        _ = checkpoint.messages


def test_a_list_prefix_past_the_end_of_its_list_is_an_error(store):
    import msgspec

    from treering.threads.checkpoint import Checkpoint

    checkpoint = sample_thread(store).load()
    stretch = checkpoint.record.lists["messages"]
    longer = msgspec.structs.replace(checkpoint.record, lists={"messages": ListPrefix(stretch.list, 9)})
    with pytest.raises(Corrupt, match="should have 9 items"):
        _ = Checkpoint(store.engine, store.space, longer).messages


def test_what_was_removed_and_said_to_be_is_no_damage(store):
    origin = store.thread("origin")
    for count in range(6):
        origin.checkpoint(state={"count": count}, tags=("kept",) if count == 2 else ())
    origin.fork("fork", at=4).checkpoint(state={})
    store.thread("origin").fork("other", at=5, namespace="bob")
    sample_thread(store, "trimmed", steps=6)
    store.gc(keep=treering.Keep(last=2, tagged=("kept",)), grace_seconds=0)
    assert store.verify().ok
    origin.delete()
    store.forget(thread="trimmed")
    assert store.verify().ok

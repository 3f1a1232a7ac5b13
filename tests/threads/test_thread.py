"""Threads: resume, rewind, fork, on every engine."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treering
from treering.core.clock import SystemClock
from treering.errors import Conflict, InvalidInput, NotFound, Vetoed
from treering.threads.checkpoint import new_checkpoint_id
from treering.threads.diff import json_patch
from treering.threads.thread import ThreadMoved


def say(text):
    return {"role": "user", "content": text}


def sample_thread(store, thread_id="t", steps=5):
    """A thread with one message and a counter per step."""
    thread = store.thread(thread_id)
    for step in range(steps):
        thread.append(say(f"message {step}"), state={"count": step, "plan": "unchanged"}, note=f"step {step}")
    return thread


def test_a_thread_that_was_never_saved_has_no_head(store):
    assert store.thread("new").get() is None
    assert list(store.thread("new").history()) == []


def test_loading_a_thread_that_was_never_saved_says_what_to_do(store):
    for thread in (store.thread("new"), store.thread("new", namespace="bob")):
        with pytest.raises(
            NotFound, match=r"thread 'new'.* was never saved; append\(\) starts it, and get\(\)"
        ):
            thread.load()
        saved = thread.append(say("a"))
        assert thread.get() == thread.load() == saved
        assert thread.get(last=0).messages == []


def test_a_thread_resumes_where_it_was_left(store):
    sample_thread(store)
    again = store.thread("t").load()
    assert again.step == 4
    assert [message["content"] for message in again.messages] == [f"message {step}" for step in range(5)]
    assert again.state == {"count": 4, "plan": "unchanged"}
    assert again.last_messages(2) == [say("message 3"), say("message 4")]


def test_whole_lists_are_saved_by_what_is_new_in_them(store):
    thread, history = store.thread("t"), []
    for step in range(20):
        history.append(say("x" * 1000 + str(step)))
        thread.checkpoint(history)
    info = store.engine.list_info(store.space, thread.head.record.lists["messages"].list)
    assert info.length == 20
    assert store.engine.stats(store.space).items == 20
    assert store.thread("t").load().messages == history


def test_an_item_that_was_changed_in_place_is_noticed(store):
    thread, history = store.thread("t"), [say("a"), {"role": "tool", "ok": 1}]
    thread.checkpoint(history)
    history[1]["ok"] = True
    thread.checkpoint(history)
    assert store.thread("t").load().messages[1]["ok"] is True
    assert thread.at(0).messages[1]["ok"] == 1


def test_a_shorter_list_writes_no_items(store):
    thread = sample_thread(store)
    before = store.engine.stats(store.space).items
    thread.checkpoint(thread.load().messages[:2])
    assert store.engine.stats(store.space).items == before
    assert len(store.thread("t").load().messages) == 2


def test_a_thread_is_shortened_without_reading_or_writing_messages(store):
    thread = sample_thread(store)
    before = store.engine.stats(store.space).items
    assert store.thread("t").shorten(3, note="drop two").step == 5
    assert store.engine.stats(store.space).items == before
    again = store.thread("t")
    assert [message["content"] for message in again.load().messages] == [
        f"message {step}" for step in range(3)
    ]
    assert again.load().state == {"count": 4, "plan": "unchanged"}
    again.append(say("instead"))
    assert again.load().messages[2:] == [say("message 2"), say("instead")]
    assert len(thread.at(4).messages) == 5
    again.shorten(99)
    assert len(again.load().messages) == 4
    again.shorten(0)
    assert again.load().messages == []
    assert store.thread("new").shorten(0).messages == []
    with pytest.raises(InvalidInput, match="-1"):
        again.shorten(-1)
    assert store.verify().ok


def test_rewind_moves_the_head_and_keeps_the_journal(store):
    thread = sample_thread(store)
    left = thread.head.id
    thread.rewind(1)
    assert thread.head.step == 1
    assert len(thread.head.messages) == 2
    thread.append(say("another way"))
    assert [checkpoint.step for checkpoint in thread.history()] == [2, 1, 0]
    assert thread.at(left).messages[-1] == say("message 4")
    assert len(list(thread.history(everything=True))) == 6
    assert store.verify().ok


def test_a_fork_shares_its_past_and_then_diverges(store):
    thread = sample_thread(store)
    fork = thread.fork("bolder", at=2)
    assert fork.head.messages == thread.at(2).messages
    fork.append(say("elsewhere"))
    assert [(checkpoint.thread_id, checkpoint.step) for checkpoint in fork.history()] == [
        ("bolder", 3),
        ("bolder", 2),
        ("t", 2),
        ("t", 1),
        ("t", 0),
    ]
    assert len(thread.head.messages) == 5
    with pytest.raises(Conflict, match="bolder"):
        thread.fork("bolder")


def test_a_fork_can_begin_with_other_messages_and_another_state(store):
    thread = store.thread("t")
    for text in ("one", "two", "three"):
        thread.append(say(text), state={"text": text})
    fork = thread.fork("edited", at=1, messages=[say("one"), say("2")], state={"text": "2", "more": 1})
    head = fork.load()
    assert (head.messages, head.state, head.step, head.note) == (
        [say("one"), say("2")],
        {"text": "2", "more": 1},
        1,
        "edited",
    )
    assert fork.append(say("next")).messages == [say("one"), say("2"), say("next")]
    assert thread.fork("other", at=1, state={}).load().messages == [say("one"), say("two")]
    assert thread.at(1).state == {"text": "two"}
    assert store.verify().ok


def test_a_hook_may_veto_an_edited_fork(store):
    thread = store.thread("t")
    thread.append(say("one"))
    store.hooks.add(
        "pre_checkpoint_save", lambda request: False if "secret" in str(request.messages) else None
    )
    with pytest.raises(Vetoed):
        thread.fork("edited", messages=[say("secret")])
    assert store.thread("edited").get() is None


def test_a_fork_costs_the_same_whatever_the_length(store):
    thread = sample_thread(store, steps=40)
    before = store.engine.stats(store.space)
    thread.fork("f")
    after = store.engine.stats(store.space)
    assert after.items == before.items
    assert sum(after.bytes.values()) - sum(before.bytes.values()) < 4096


def test_two_writers_never_overwrite_each_other(store):
    first, second = sample_thread(store), store.thread("t")
    second.load()
    mine = first.append(say("first"))
    with pytest.raises(ThreadMoved) as caught:
        second.append(say("second"))
    assert caught.value.actual == mine.id
    saved = second.append(say("second"), on_conflict="fork")
    assert saved.thread_id.startswith("t~")
    assert saved.messages[-1] == say("second")
    assert store.thread("t").load().messages[-1] == say("first")


def test_checkpoints_are_found_by_id_step_and_time(store):
    thread = sample_thread(store)
    checkpoints = list(thread.history())
    assert thread.at(checkpoints[2].id) == checkpoints[2]
    assert thread.at(3).step == 3
    checkpoint = checkpoints[1].created_at
    assert thread.at(checkpoint).created_at <= checkpoints[1].created_at
    for which in (99, new_checkpoint_id(SystemClock())[0]):
        with pytest.raises(NotFound):
            thread.at(which)
    with pytest.raises(NotFound):
        thread.at(datetime(2001, 1, 1, tzinfo=UTC) - timedelta(days=1))
    with pytest.raises(InvalidInput):
        thread.at("not an id")


def test_an_interrupt_waits_for_its_decision(store):
    thread = sample_thread(store)
    pending = thread.interrupt({"tool": "rm", "path": "/tmp/x"}).pending_interrupt
    again = store.thread("t")
    with pytest.raises(Conflict, match="not 'other'"):
        again.resume("approve", interrupt_id="other")
    with pytest.raises(InvalidInput):
        again.resume("edit")
    resumed = again.resume("edit", interrupt_id=pending["id"], value={"tool": "ls"})
    assert resumed.metadata["resumed"]["payload"] == {"tool": "ls"}
    assert resumed.pending_interrupt is None
    with pytest.raises(Conflict, match="no pending interrupt"):
        again.resume("approve")


def test_a_fork_keeps_the_pending_interrupt(store):
    thread = sample_thread(store)
    thread.interrupt("may I?")
    assert thread.fork("f").head.pending_interrupt["payload"] == "may I?"


def test_hooks_change_veto_and_look_on(store):
    seen = []

    async def stamp(saving):
        await asyncio.sleep(0)
        return {"metadata": {**saving.metadata, "stamped": True}}

    store.hooks.add("pre_checkpoint_save", stamp)
    store.hooks.add("post_checkpoint_save", lambda saved: seen.append(("saved", saved.checkpoint.step)))
    store.hooks.add("post_checkpoint_load", lambda saved: seen.append(("loaded", saved.checkpoint.step)))
    thread = store.thread("t")
    assert thread.append(say("a"), metadata={"user": 1}).metadata == {"user": 1, "stamped": True}
    thread.load()
    assert seen == [("saved", 0), ("loaded", 0)]

    def veto(saving):
        return saving.thread_id != "t"

    store.hooks.add("pre_checkpoint_save", veto)
    with pytest.raises(Vetoed, match="hook 'veto' vetoed the save to thread 't'"):
        thread.append(say("b"))
    assert len(store.thread("t").load().messages) == 1
    store.hooks.remove("pre_checkpoint_save", veto)


def test_namespaces_do_not_see_each_other(store):
    sample_thread(store)
    other = store.thread("t", namespace="bob")
    assert other.get() is None
    with pytest.raises(NotFound):
        other.at(store.thread("t").head.id)
    other.append(say("bob's"))
    assert store.thread("t").load().messages != other.load().messages
    store.forget(namespace="bob")
    assert store.thread("t", namespace="bob").get() is None
    assert store.thread("t").get() is not None


def test_a_thread_with_forks_is_not_deleted_from_under_them(store):
    thread = sample_thread(store)
    thread.fork("f")
    with pytest.raises(Conflict):
        thread.delete()
    thread.delete(cascade=True)
    assert store.thread("t").get() is None
    assert store.thread("f").get() is None
    assert store.verify().ok


def test_a_deleted_thread_starts_anew(store):
    thread = sample_thread(store)
    thread.delete()
    assert store.thread("t").append(say("again")).step == 0
    assert thread.load().messages == [say("again")]


def test_large_state_is_written_by_the_keys_that_changed(store):
    thread = store.thread("t")
    files = {f"file{number}.txt": "x" * 5000 + str(number) for number in range(10)}
    thread.checkpoint([], {"files": files})
    before = store.engine.stats(store.space).objects
    thread.checkpoint([], {"files": files | {"file3.txt": "y" * 5000}})
    assert store.engine.stats(store.space).objects == before + 1
    assert store.thread("t").load().state["files"]["file3.txt"] == "y" * 5000


def test_deep_forks_are_flattened_and_read_right(store):
    thread, expected = store.thread("t0"), []
    for number in range(40):
        expected.append(say(str(number)))
        thread.append(expected[-1])
        thread = thread.fork(f"t{number + 1}")
    assert thread.load().messages == expected
    assert store.verify().ok


def test_diff_names_what_differs(store):
    thread = sample_thread(store)
    fork = thread.fork("f", at=2)
    fork.append(say("new end"), state={"count": 9, "extra": [1]})
    found = thread.diff(thread.head, fork.head)
    assert found.common == 3
    assert [change.after for change in found.changed] == [say("new end")]
    assert [message for _, message in found.removed] == [say("message 4")]
    assert {"op": "replace", "path": "/count", "value": 9} in found.state
    assert {"op": "remove", "path": "/plan"} in found.state
    assert thread.diff(thread.head, thread.head).is_empty


def test_the_async_twin_does_the_same(tmp_path):
    async def main():
        async with treering.open_async(tmp_path / "store") as store:
            thread = store.thread("t")
            await thread.append(say("a"))
            await thread.checkpoint([say("a"), say("b")], {"n": 1})
            checkpoint = await thread.load()
            assert await checkpoint.messages() == [say("a"), say("b")]
            assert [each.step async for each in thread.history()] == [1, 0]
            fork = await thread.fork("f", at=0)
            head = await fork.head()
            assert head is not None
            return head.step

    assert asyncio.run(main()) == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab/~", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(JSON, JSON)
@settings(max_examples=200)
def test_a_patch_turns_one_state_into_the_other(before, after):
    assert _applied(before, list(json_patch(before, after))) == after


def _applied(value, operations):
    """RFC 6902, as far as `json_patch` uses it."""
    import copy

    value = copy.deepcopy(value)
    for operation in operations:
        keys = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        if not keys:
            value = operation["value"]
            continue
        place = value
        for key in keys[:-1]:
            place = place[int(key)] if isinstance(place, list) else place[key]
        key = keys[-1]
        if isinstance(place, list):
            if key == "-":
                place.append(operation["value"])
            elif operation["op"] == "remove":
                del place[int(key)]
            else:
                place[int(key)] = operation["value"]
        elif operation["op"] == "remove":
            del place[key]
        else:
            place[key] = operation["value"]
    return value


def test_the_directory_tells_namespaces_apart_and_the_newest_first(store):
    store.thread("b", namespace="a").append(say("in a namespace"))
    store.thread("a/b").append(say("of none"))
    store.thread("/b", namespace="a/").append(say("of another"))
    store.thread("/b", namespace="a/").append(say("again"))
    store.thread("a/c").append(say("and one more"))
    store.thread("a/b").append(say("newest"))
    assert [each.id for each in store.threads()] == ["a/b", "a/c"]
    assert [each.id for each in store.threads(prefix="a/c")] == ["a/c"]
    assert [(each.namespace, each.id) for each in store.threads(namespace="a")] == [("a", "b")]
    everywhere = list(store.threads(namespace=None))
    assert [(each.namespace, each.id) for each in everywhere] == [
        ("", "a/b"),
        ("", "a/c"),
        ("a/", "/b"),
        ("a", "b"),
    ]
    assert everywhere[0].head == store.thread("a/b").head.id
    assert everywhere[0].created_at_us < everywhere[0].updated_at_us


def test_a_fork_that_went_back_into_its_past_is_still_itself(store):
    origin = sample_thread(store)
    fork = origin.fork("fork")
    fork.append(say("further"))
    fork.rewind(0)
    assert {info.id: info.step for info in store.threads()} == {"t": origin.head.step, "fork": 0}
    again = store.thread("fork")
    assert again.append(say("elsewhere")).thread_id == "fork"
    again.rewind(0)
    again.delete()
    assert [info.id for info in store.threads()] == ["t"]

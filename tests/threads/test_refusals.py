"""Threads: what is refused before it does harm, and forks that outlive what they came from."""

from __future__ import annotations

from datetime import date

import pytest

import treering
from tests.threads.sample_threads import sample_thread, say, steps
from treering.core.clock import to_datetime
from treering.errors import InvalidInput, NotFound, Unencodable, Vetoed


def test_a_fork_that_went_back_into_its_past_outlives_its_origin(store):
    origin = store.thread("origin")
    for count in range(4):
        origin.checkpoint(state={"count": count})
    fork = origin.fork("fork", at=2)
    fork.checkpoint(state={"count": "other"})
    back = fork.rewind(1)
    assert (back.thread_id, back.parent_id, back.step) == ("fork", origin.at(1).id, 1)
    origin.delete()
    assert store.thread("fork").load().state == {"count": 1}
    assert steps(store.thread("fork").history()) == [1]
    assert fork.append(say("on")).step == 2


def test_a_thread_is_not_rewound_to_what_is_not_its_past(store):
    thread, other = sample_thread(store), store.thread("other")
    fork = thread.fork("fork", at=1)
    theirs = other.append(say("theirs"))
    for checkpoint in (theirs, thread.head):
        with pytest.raises(InvalidInput, match="fork it instead"):
            fork.rewind(checkpoint)
    with pytest.raises(NotFound):
        store.thread("t", namespace="bob").rewind(theirs)
    with treering.open("memory:") as elsewhere:
        foreign = sample_thread(elsewhere).head
        for wrong in (fork.rewind, fork.at, lambda checkpoint: fork.fork("new", at=checkpoint)):
            with pytest.raises(NotFound):
                wrong(foreign)
    assert fork.load().step == 1
    assert store.thread("new").get() is None


def test_nothing_is_deleted_of_a_thread_that_was_never_saved(store):
    store.thread("nobody").delete()
    sample_thread(store)
    before = store.stats()
    store.thread("nobody").delete()
    assert store.stats() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": "Hi"},
        {"messages": {"role": "user"}},
        {"messages": 3},
        {"lists": {"sources": "a.md"}},
        {"state": ["todos"]},
        {"state": {1: "todos"}},
        {"lists": {1: ["a.md"]}},
        {"metadata": "draft"},
        {"tags": "draft"},
        {"tags": [1]},
        {"tags": ["draft", None]},
        {"step": "12"},
        {"step": 1.5},
        {"step": True},
        {"step": -1},
        {"step": 2**60},
        {"note": 3},
        {"on_conflict": "retry"},
        {"on_conflict": "ignore"},
    ],
)
def test_what_cannot_be_meant_is_refused(store, wrong):
    thread = sample_thread(store)
    before = thread.head
    with pytest.raises(InvalidInput):
        thread.checkpoint(**wrong)
    assert thread.head == before


def test_a_misspelt_way_out_of_a_conflict_does_not_overwrite(store):
    first, second = sample_thread(store), store.thread("t")
    second.load()
    first.append(say("first"))
    with pytest.raises(InvalidInput, match="on_conflict"):
        second.append(say("second"), on_conflict="Retry")


def test_only_an_id_a_step_or_a_datetime_names_a_checkpoint(store):
    thread = sample_thread(store)
    for wrong in (None, True, 1.0, date(2026, 1, 1)):
        with pytest.raises(InvalidInput):
            thread.at(wrong)
    with pytest.raises(InvalidInput):
        list(thread.history(last=-1))


def test_what_nests_too_deep_is_refused_by_name(store):
    deep: list = []
    for _ in range(3000):
        deep = [deep]
    endless: list = []
    endless.append(endless)
    for wrong in (deep, endless):
        for save in (store.thread("t").checkpoint, store.thread("t").append):
            with pytest.raises(Unencodable, match="deeper"):
                save([wrong])
        with pytest.raises(Unencodable, match="deeper"):
            store.thread("t").checkpoint(state={"deep": wrong})


def test_diff_tells_of_other_lists_too(store):
    thread = store.thread("t")
    lists = {"sources": ["a.md"], "log": [1]}
    before = thread.checkpoint(state={}, lists=lists)
    after = thread.checkpoint(lists={"sources": ["a.md", "b.md"], "log": [1], "new": [{"n": 1}]})
    found = thread.diff(before, after)
    assert found.lists == {
        "sources": [{"op": "add", "path": "/-", "value": "b.md"}],
        "new": [{"op": "add", "path": "/-", "value": {"n": 1}}],
    }
    assert not found.is_empty
    assert thread.diff(after, thread.append("more", on_conflict="raise")).lists == {}


def test_hooks_that_veto_do_so_in_every_space(store):
    store.hooks.add("pre_checkpoint_save", lambda saving: False if "secret" in saving.messages else None)
    tenant = store.in_namespace("tenant")
    with pytest.raises(Vetoed):
        tenant.thread("t").append("secret")
    tenant.thread("t").append("said")
    tenant.hooks.add("pre_checkpoint_save", lambda saving: False)  # noqa: ARG005
    with pytest.raises(Vetoed):
        store.thread("t").append("said")


def test_a_hook_cannot_make_state_that_is_not_read_back(store):
    store.hooks.add("pre_checkpoint_save", lambda saving: {"state": {1: saving.note}})
    with pytest.raises(InvalidInput, match="give it a str"):
        store.thread("t").checkpoint(state={"plan": "a"})
    assert store.thread("t").get() is None


def test_a_checkpoint_is_named_by_its_place_as_on_the_command_line(store):
    thread = sample_thread(store)
    first, head = thread.at(0), thread.head
    assert thread.at("~1").id == thread.at(f"{head.step - 1}").id == head.parent_id
    assert thread.at("~").id == head.parent_id
    assert thread.at(first.created_at) == first
    assert thread.at(f"{to_datetime(first.record.created_at_us):%Y-%m-%dT%H:%M:%S.%f}") == first
    for nowhere in ("~900", "900", "2001-01-01"):
        with pytest.raises(NotFound, match="has no"):
            thread.at(nowhere)
    for wrong in ("", "yesterday", "9" * 5000, "~" + "9" * 5000, "~-1"):
        with pytest.raises(InvalidInput, match="not a position in a thread"):
            thread.at(wrong)


def test_a_number_of_messages_is_never_less_than_none(store):
    checkpoint = sample_thread(store).head
    for wrong in (-1, "2", 1.5):
        for read in (
            lambda last: store.thread("t").load(last=last),
            lambda last: list(store.thread("t").history(last=last)),
            lambda last: checkpoint.items("messages", last=last),
            checkpoint.last_messages,
            store.thread("t").shorten,
        ):
            with pytest.raises(InvalidInput, match="give a number"):
                read(wrong)


def test_one_tag_is_not_looked_for_letter_by_letter(store):
    with pytest.raises(InvalidInput, match="tuple of tags"):
        list(sample_thread(store).history(tags="draft"))


def test_hooks_that_are_none_are_refused_when_they_are_added(store):
    hooks = store.hooks
    for wrong in (
        lambda: hooks.add("pre_checkpoint_save", print, "not a function"),
        lambda: hooks.add("before", print),
        lambda: hooks.remove("before", print),
        lambda: hooks.has("before"),
    ):
        with pytest.raises(InvalidInput, match=r"is not callable|unknown hook"):
            wrong()
    hooks.remove("pre_checkpoint_save", print)
    assert not hooks.has("pre_checkpoint_save")
    hooks.add("pre_checkpoint_save", lambda _: {"notes": "misspelt", 1: 2})
    with pytest.raises(InvalidInput, match="unknown fields: 1, notes"):
        store.thread("t").checkpoint(messages=["a"])


@pytest.mark.parametrize("wrong", [7, b"bytes", ["list"], {"a": 1}])
def test_what_threads_are_looked_for_by_is_text(store, wrong):
    with pytest.raises(InvalidInput, match=r"^namespace is a \w+; pass a str$"):
        list(store.threads(namespace=wrong))
    with pytest.raises(InvalidInput, match=r"^prefix is a \w+; pass a str$"):
        list(store.threads(prefix=wrong))


def test_what_checkpoints_are_chosen_by_is_a_dict(store):
    thread = store.thread("t")
    thread.append("a")
    for wrong in (7, "text", ["list"]):
        with pytest.raises(InvalidInput, match=r"metadata is a \w+; give a dict"):
            list(thread.history(metadata=wrong))

"""Hooks around saving and loading: change, veto, observe; sync or async; on every saver."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import treering
from tests.compat.savers.savers_under_test import say, talk
from treering.compat.savers import MemorySaver
from treering.errors import InvalidInput, Vetoed
from treering.threads.hooks import Hooks


def test_hooks_change_veto_and_look_on(somewhere):
    seen = []

    async def stamp(saving):
        await asyncio.sleep(0)
        return {
            "metadata": {**saving.metadata, "stamped": True},
            "messages": [*saving.messages, say("added")],
        }

    def veto(saving):
        return False if saving.metadata.get("secret") else None

    saver = somewhere.open(
        hooks={
            "pre_checkpoint_save": [stamp, veto],
            "post_checkpoint_save": [
                lambda saved: seen.append(("saved", saved.thread_id, saved.checkpoint.step))
            ],
            "post_checkpoint_load": [lambda saved: seen.append(("loaded", len(saved.checkpoint.messages)))],
        }
    )
    saved = saver.save(thread_id="t", messages=[say("a")], metadata={"user": 1})
    assert saved.metadata == {"user": 1, "stamped": True}
    assert saved.messages == [say("a"), say("added")]
    with pytest.raises(Vetoed, match="hook 'veto' vetoed the save to thread 't'"):
        saver.save(thread_id="t", messages=[], metadata={"secret": True})
    assert saver.load("t").messages == [say("a"), say("added")]
    assert seen == [("saved", "t", 0), ("loaded", 2)]
    assert saver.load("nobody") is None
    assert len(seen) == 2


def test_hooks_are_the_same_objects_as_a_stores(somewhere):
    hooks, seen = Hooks(), []
    saver = somewhere.open(hooks=hooks)
    hooks.add("post_checkpoint_save", lambda saved: seen.append(saved.checkpoint.step))
    talk(saver, steps=2)
    assert saver.hooks is hooks
    saver.in_namespace("bob").save(thread_id="t")
    assert seen == [0, 1, 0]


def test_a_hook_that_fails_before_the_save_saves_nothing(somewhere):
    def fail(_):
        raise RuntimeError("no")

    saver = somewhere.open(hooks={"pre_checkpoint_save": [fail]})
    with pytest.raises(RuntimeError, match="no"):
        saver.save(thread_id="t")
    assert not saver.exists("t")


def test_a_hook_may_save_and_load_itself(somewhere):
    def mirror(saved):
        if saved.thread_id == "t":
            saver.save(thread_id="mirror", messages=saved.checkpoint.messages)

    saver = somewhere.open(hooks={"post_checkpoint_save": [mirror]})
    messages = talk(saver, "t", steps=3)
    assert saver.load("mirror").messages == messages


def test_the_hook_before_a_save_sees_the_whole_checkpoint(somewhere):
    seen = []

    def look(saving):
        made = saving.checkpoint
        seen.append((made.id, made.thread_id, made.step, made.messages, made.state, made.metadata, made.tags))

    async def look_later(saving):
        look(saving)

    for hook in (look, look_later):
        saver = somewhere.open(namespace=hook.__name__, hooks={"pre_checkpoint_save": [hook]})
        initial = {"todos": [], "files": {}}
        saver.save(thread_id="t", messages=[say("a")])
        saver.save(thread_id="t", state={"x": 1}, metadata={"user": 1}, tags=["kept"])
        asyncio.run(saver.asave(thread_id="t", messages=[say("a"), say("b")], step=7))
        asyncio.run(saver.asave(thread_id="t", note="nothing new"))
        assert seen == [
            (None, "t", 0, [say("a")], initial, {}, ()),
            (None, "t", 1, [say("a")], {"x": 1}, {"user": 1}, ("kept",)),
            (None, "t", 7, [say("a"), say("b")], {"x": 1}, {}, ()),
            (None, "t", 8, [say("a"), say("b")], {"x": 1}, {}, ()),
        ]
        seen.clear()


def test_a_stores_hook_before_a_save_sees_the_whole_checkpoint():
    seen = []
    with treering.open("memory:") as store:
        store.hooks.add(
            "pre_checkpoint_save",
            lambda saving: seen.append(
                (saving.checkpoint.step, saving.checkpoint.messages, saving.checkpoint.state)
            ),
        )
        thread = store.thread("t")
        thread.append(say("a"), state={"x": 1})
        thread.append(say("b"))
        thread.shorten(1)
        thread.checkpoint(state={"x": 2}, step=9)
        assert seen == [
            (0, [say("a")], {"x": 1}),
            (1, [say("a"), say("b")], {"x": 1}),
            (2, [say("a")], {"x": 1}),
            (9, [say("a")], {"x": 2}),
        ]


def test_a_hook_cannot_number_the_step_or_change_what_comes_before(somewhere):
    for answer in ({"step": 3}, {"previous": None}):
        saver = somewhere.open(hooks={"pre_checkpoint_save": [lambda _, answer=answer: answer]})
        with pytest.raises(InvalidInput, match="hook '<lambda>' changed"):
            saver.save(thread_id="t", messages=[say("Hi")])


def test_an_invalid_hook_result_is_refused(somewhere):
    for answer in (7, {"no_field": 1}):
        saver = somewhere.open(hooks={"pre_checkpoint_save": [lambda _, answer=answer: answer]})
        with pytest.raises(InvalidInput, match="lambda"):
            saver.save(thread_id="t")
    with pytest.raises(InvalidInput, match="unknown hook 'pre_save'"):
        somewhere.open(hooks={"pre_save": []})


@pytest.mark.parametrize(
    "answer, result",
    [
        ({"messages": "Hi"}, "messages is a str; give a list of messages"),
        ({"messages": {"role": "user"}}, "messages is a dict"),
        ({"state": [1]}, "state is a list"),
        ({"metadata": "x"}, "metadata is a str"),
        ({"tags": "draft"}, "tags is a str"),
        ({"note": 7}, "note is a int"),
        ({"thread_id": "elsewhere"}, "changed thread_id"),
    ],
)
def test_hook_results_are_validated_like_arguments(somewhere, answer, result):
    saver = somewhere.open(hooks={"pre_checkpoint_save": [lambda _: answer]})
    with pytest.raises(InvalidInput, match=f"hook '<lambda>'.* {result}"):
        saver.save(thread_id="t", messages=[say("Hi")])
    assert saver.load("t") is None
    with treering.open("memory:") as store:
        store.hooks.add("pre_checkpoint_save", lambda _: answer)
        for save in (lambda: store.thread("t").append(say("Hi")), lambda: store.thread("t").checkpoint([])):
            with pytest.raises(InvalidInput, match=result):
                save()
        assert store.thread("t").head is None


def test_a_hook_may_answer_with_all_fields(somewhere):
    def tag(saving):
        return {**msgspec.structs.asdict(saving), "tags": ["kept"]}

    saver = somewhere.open(hooks={"pre_checkpoint_save": [tag]})
    saved = saver.save(thread_id="t", messages=[say("Hi")], state={"a": 1})
    assert (saved.tags, saved.messages, saved.state["a"]) == (("kept",), [say("Hi")], 1)


def test_a_stores_own_hooks_run_once_per_save():
    seen = []
    with treering.open("memory:") as store:
        store.hooks.add(
            "pre_checkpoint_save", lambda saving: {"messages": [*(saving.messages or ()), say("x")]}
        )
        store.hooks.add("post_checkpoint_save", lambda saved: seen.append(saved.checkpoint.step))
        store.hooks.add("post_checkpoint_load", lambda _: seen.append("loaded"))
        saver = MemorySaver(store, hooks=store.hooks)
        assert saver.save(thread_id="t", messages=[say("a")]).messages == [say("a"), say("x")]
        store.thread("t").append(say("b"))
        assert saver.load("t").messages == [say("a"), say("x"), say("b"), say("x")]
    assert seen == [0, 1, "loaded"]

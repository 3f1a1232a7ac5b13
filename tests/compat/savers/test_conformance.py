"""What every saver does, on any storage."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from tests.compat.savers.savers_under_test import LASTING, kinds, place, say, talk
from treering.compat.savers import Checkpoint
from treering.compat.savers.checkpoint import LazyContent
from treering.errors import Conflict, InvalidInput, NotFound, Unencodable


def test_a_checkpoint_is_loaded_with_all_its_fields(saver):
    messages = [say("hello"), {"role": "tool", "content": [{"type": "tool-result", "result": {"ok": True}}]}]
    saved = saver.save(
        thread_id="conversation-1",
        messages=messages,
        state={"todos": [{"text": "ask", "done": False}], "files": {"a.txt": "text", "b.bin": b"\0\xff"}},
        pending_interrupt={"id": "i1", "payload": {"tool": "rm"}},
        metadata={"user_id": "123"},
        note="first",
        tags=("release",),
    )
    loaded = saver.load("conversation-1")
    assert loaded == saved
    assert loaded.to_dict() == {
        "id": saved.id,
        "thread_id": "conversation-1",
        "namespace": "",
        "parent_id": None,
        "step": 0,
        "messages": messages,
        "state": {"todos": [{"text": "ask", "done": False}], "files": {"a.txt": "text", "b.bin": b"\0\xff"}},
        "pending_interrupt": {"id": "i1", "payload": {"tool": "rm"}},
        "created_at": saved.created_at,
        "updated_at": saved.created_at,
        "metadata": {"user_id": "123"},
        "note": "first",
        "tags": ["release"],
    }
    assert datetime.fromisoformat(loaded.created_at).utcoffset() is not None


def test_values_that_json_has_no_word_for_survive(saver):
    message = {"at": datetime(2026, 1, 2, tzinfo=UTC), "cost": Decimal("1.10"), "pair": (1, 2), 7: "seven"}
    saver.save(thread_id="t", messages=[message], state={"todos": {1, 2}}, metadata={"m": b"x"})
    loaded = saver.load("t")
    assert loaded.messages == [message]
    assert type(loaded.messages[0]["pair"]) is tuple
    assert list(loaded.messages[0]) == ["at", "cost", "pair", 7]
    assert loaded.state == {"todos": {1, 2}}
    assert loaded.metadata == {"m": b"x"}


def test_a_thread_that_was_never_saved_is_none(saver):
    assert saver.load("never") is None
    assert not saver.exists("never")
    assert list(saver.list("never")) == []
    assert list(saver.list()) == []
    assert not saver.delete("never")


def test_save_appends_and_load_returns_the_newest(saver):
    messages = talk(saver)
    newest = saver.load("conversation-1")
    assert newest.messages == messages
    assert newest.step == 4
    history = list(saver.list("conversation-1"))
    assert [each.step for each in history] == [4, 3, 2, 1, 0]
    assert [each.parent_id for each in history] == [*(each.id for each in history[1:]), None]
    assert [each.messages for each in history] == [messages[:length] for length in (5, 4, 3, 2, 1)]
    assert [each.state["todos"] for each in history] == [[f"todo {step}"] for step in (4, 3, 2, 1, 0)]
    assert [each.note for each in history] == [f"step {step}" for step in (4, 3, 2, 1, 0)]


def test_created_at_is_the_threads_and_updated_at_the_checkpoints(saver):
    talk(saver)
    history = list(saver.list("conversation-1"))
    assert {each.created_at for each in history} == {history[-1].updated_at}
    times = [each.updated_at for each in history]
    assert times == sorted(times, reverse=True)


def test_an_older_checkpoint_is_loaded_by_its_id(saver):
    talk(saver)
    talk(saver, "other")
    first = list(saver.list("conversation-1"))[-1]
    assert saver.load("conversation-1", first.id).messages == [say("message 0")]
    for strange in (saver.load("other").id, "ckpt_" + "0" * 26):
        with pytest.raises(NotFound, match="checkpoint"):
            saver.load("conversation-1", strange)
    for nonsense in ("nonsense", f"../other/{first.id}", f"{first.id}/", ""):
        with pytest.raises(InvalidInput):
            saver.load("conversation-1", nonsense)


def test_list_yields_the_newest_checkpoint_of_every_thread(saver):
    for number in range(12):
        talk(saver, f"thread-{number}", steps=2)
    found = {each.thread_id: each for each in saver.list()}
    assert sorted(found) == sorted(f"thread-{number}" for number in range(12))
    assert all(each.step == 1 and len(each.messages) == 2 for each in found.values())


def test_listing_is_lazy(saver):
    talk(saver)
    listed = iter(saver.list("conversation-1"))
    assert next(listed).step == 4
    assert next(listed).step == 3


def test_a_listing_is_used_like_a_list(saver):
    assert not saver.list("never")
    assert saver.list() == []
    talk(saver)
    talk(saver, "other", steps=2)
    listed = saver.list("conversation-1")
    assert (listed[1].step, len(listed), listed[-1].step) == (3, 5, 0)
    assert [each.step for each in listed[1:3]] == [3, 2]
    assert [each.step for each in listed[-2:]] == [1, 0]
    assert [each.step for each in listed[::2]] == [4, 2, 0]
    assert (
        [each.step for each in sorted(listed)] == [each.step for each in reversed(listed)] == [0, 1, 2, 3, 4]
    )
    assert sorted(saver.list(), key=lambda each: each.step) == [
        saver.load("other"),
        saver.load("conversation-1"),
    ]
    assert saver.load("conversation-1") in listed
    assert saver.load("other") not in listed
    assert listed == list(saver.list("conversation-1"))
    with pytest.raises(IndexError):
        listed[5]
    talk(saver, "third", steps=1)
    assert (len(saver.list()), len(listed)) == (3, 5)


def test_counting_reads_no_content(saver, monkeypatch):
    talk(saver)
    monkeypatch.setattr(LazyContent, "messages", property(lambda _: pytest.fail("messages were read")))
    listed = saver.list("conversation-1")
    assert (len(listed), max(listed).step, listed[2:][0].metadata) == (5, 4, listed[2].metadata)


def test_walking_through_a_listing_keeps_no_content_in_memory(saver):
    talk(saver)
    listed = saver.list("conversation-1")
    first = [each.messages for each in listed]
    assert [each._messages for each in listed] == [None] * 5
    assert [each.messages for each in listed] == first


def test_an_async_listing_can_be_awaited(saver):
    async def run():
        assert await saver.alist("never") == []
        listed = await saver.alist("conversation-1")
        assert (len(listed), min(listed).step) == (5, 0)
        assert [each.id async for each in saver.alist("conversation-1")] == [each.id for each in listed]

    talk(saver)
    asyncio.run(run())


def test_deleting_removes_the_thread_and_no_other(saver):
    talk(saver)
    talk(saver, "other")
    old = saver.load("conversation-1").id
    assert saver.delete("conversation-1")
    assert not saver.exists("conversation-1")
    assert saver.load("conversation-1") is None
    with pytest.raises(NotFound):
        saver.load("conversation-1", old)
    assert [each.thread_id for each in saver.list()] == ["other"]
    assert not saver.delete("conversation-1")


def test_a_deleted_thread_starts_anew(saver):
    talk(saver)
    saver.delete("conversation-1")
    again = saver.save(thread_id="conversation-1", messages=[say("again")])
    assert (again.step, again.parent_id) == (0, None)
    assert saver.load("conversation-1").messages == [say("again")]
    assert saver.load("conversation-1").state == {"todos": [], "files": {}}
    assert len(list(saver.list("conversation-1"))) == 1


def test_fields_that_are_left_out_stay_as_they_were(saver):
    messages = talk(saver)
    saver.save(thread_id="conversation-1", metadata={"only": "metadata"})
    newest = saver.load("conversation-1")
    assert newest.messages == messages
    assert newest.state["todos"] == ["todo 4"]
    assert newest.metadata == {"only": "metadata"}
    assert newest.pending_interrupt is None


def test_a_first_checkpoint_may_be_empty(saver):
    assert saver.save(thread_id="t").messages == []
    assert saver.load("t").state == {"todos": [], "files": {}}
    assert saver.exists("t")


def test_a_conversation_that_was_changed_is_saved_as_it_is(saver):
    before = [say(f"message {step}") for step in range(20)]
    changed = {
        "shorter": before[:2],
        "empty": [],
        "changed in the middle": [*before[:3], say("changed"), *before[4:]],
        "compacted": [say("summary"), *before[-2:]],
        "changed at the end": [*before[:-1], {**before[-1], "content": "edited"}],
        "the same": before,
    }
    for how, after in changed.items():
        for length in (1, 2, 4, 8, 13, 20):
            saver.save(thread_id=how, messages=before[:length])
        saver.save(thread_id=how, messages=after)
        saver.save(thread_id=how, messages=[*after, say("goes on")])
        history = list(saver.list(how))
        assert [each.messages for each in history[:3]] == [[*after, say("goes on")], after, before], how


def test_a_message_that_was_changed_in_place_is_noticed(saver):
    messages = [{"role": "tool", "ok": 1}]
    saver.save(thread_id="t", messages=messages)
    messages[0]["ok"] = True
    saver.save(thread_id="t", messages=messages)
    newest, first = saver.list("t")
    assert newest.messages[0]["ok"] is True
    assert first.messages[0]["ok"] == 1
    assert type(first.messages[0]["ok"]) is int


def test_many_virtual_files_are_kept(saver):
    files = {f"src/file{number}.py": f"{number} " * 1000 for number in range(20)}
    saver.save(thread_id="t", state={"todos": [], "files": files})
    changed = files | {"src/file3.py": "changed", "new.py": "new"}
    changed.pop("src/file4.py")
    saver.save(thread_id="t", state={"todos": [], "files": changed})
    newest, first = saver.list("t")
    assert newest.state["files"] == changed
    assert first.state["files"] == files


def test_a_dict_or_a_loaded_checkpoint_can_be_saved(saver):
    saver.save({"thread_id": "t", "messages": [say("a")], "step": 7, "metadata": {"user": 1}})
    loaded = saver.load("t")
    assert loaded.step == 7
    again = saver.save(loaded, metadata={"user": 2})
    assert (again.step, again.parent_id, again.metadata) == (8, loaded.id, {"user": 2})
    assert saver.load("t").messages == [say("a")]
    other = saver.save(loaded.to_dict() | {"thread_id": "u"})
    assert (other.thread_id, other.step, other.messages) == ("u", 7, [say("a")])
    assert isinstance(other, Checkpoint)


def test_invalid_checkpoints_are_refused(saver):
    for given, problem in (
        ({"messages": []}, "thread_id"),
        ({"thread_id": "", "messages": []}, "thread id"),
        ({"thread_id": "x\n", "messages": []}, "thread id"),
        ({"thread_id": "x" * 600, "messages": []}, "thread id"),
        ({"thread_id": 7, "messages": []}, "thread id"),
        ({"thread_id": "t", "messsages": []}, "messsages"),
        ({"thread_id": "t", "namespace": "elsewhere"}, "namespace"),
        ({"thread_id": "t", "messages": "hello"}, "messages is a str"),
        ({"thread_id": "t", "messages": say("hello")}, "messages is a dict"),
        ({"thread_id": "t", "state": [1]}, "state is a list"),
        ({"thread_id": "t", "metadata": "x"}, "metadata is a str"),
        ({"thread_id": "t", "tags": "release"}, "tags is a str"),
        ({"thread_id": "t", "tags": ["release", 1]}, "tags has 1"),
        ({"thread_id": "t", "note": 3}, "note is a int"),
        ({"thread_id": "t", "step": -1}, "step=-1"),
        ({"thread_id": "t", "step": 2**60}, "step="),
        (7, "int is no checkpoint"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            saver.save(given)
    assert list(saver.list()) == []


def test_a_value_without_an_encoding_saves_nothing(saver):
    talk(saver)
    for field in ("messages", "metadata", "state"):
        value = [object()] if field == "messages" else {"x": object()}
        with pytest.raises(Unencodable):
            saver.save(**{"thread_id": "conversation-1", "messages": [say("new")], field: value})
    assert saver.load("conversation-1").step == 4


def test_a_save_can_expect_the_newest_checkpoint(saver):
    talk(saver)
    seen = saver.load("conversation-1")
    saver.save(thread_id="conversation-1", metadata={"first": True}, expect=seen.id)
    with pytest.raises(Conflict, match=seen.id):
        saver.save(thread_id="conversation-1", metadata={"second": True}, expect=seen.id)
    assert saver.load("conversation-1").metadata == {"first": True}


ODD = [
    "a/b",
    "..",
    ".",
    "CON",
    "con",
    "con.txt",
    "~",
    "@",
    "head",
    "über 😀",
    "x" * 480,
    " a ",
    "%2F",
    "a\u200db",
]


def test_odd_ids_are_ordinary(anywhere):
    saver = anywhere.open()
    for odd in ODD:
        saver.save(thread_id=odd, messages=[say(odd)])
        saver.save(thread_id=odd, messages=[say(odd), say("2")])
        saver.in_namespace(odd[:5]).save(thread_id=odd, messages=[say("inside")])
    assert {each.thread_id for each in saver.list()} == set(ODD)
    for odd in ODD:
        inside = saver.in_namespace(odd[:5])
        assert saver.load(odd).messages == [say(odd), say("2")]
        assert inside.load(odd).messages == [say("inside")]
        assert len(list(saver.list(odd))) == 2
        assert saver.delete(odd)
        assert not saver.exists(odd)
        assert odd in {each.thread_id for each in inside.list()}
    assert list(saver.list()) == []


def test_namespaces_do_not_see_each_other(anywhere):
    alice, bob = anywhere.open(namespace="alice"), anywhere.open(namespace="bob")
    talk(alice)
    mine = alice.load("conversation-1").id
    assert bob.load("conversation-1") is None
    assert not bob.exists("conversation-1")
    assert list(bob.list()) == list(bob.list("conversation-1")) == []
    assert not bob.delete("conversation-1")
    with pytest.raises(NotFound):
        bob.load("conversation-1", mine)
    with pytest.raises(NotFound):
        bob.fork("conversation-1", "stolen")
    bob.save(thread_id="conversation-1", messages=[say("bob's")])
    with pytest.raises(NotFound):
        bob.load("conversation-1", mine)
    assert len(alice.load("conversation-1").messages) == 5
    assert alice.in_namespace("bob").load("conversation-1").messages == [say("bob's")]
    assert {each.namespace for each in alice.list()} == {"alice"}
    assert list(anywhere.open().list()) == []


def test_a_second_saver_continues_the_history(anywhere):
    first, second = anywhere.open(), anywhere.open()
    messages = talk(first)
    assert second.load("conversation-1").messages == messages
    messages.append(say("from the second"))
    second.save(thread_id="conversation-1", messages=messages)
    messages.append(say("from the first"))
    assert first.save(thread_id="conversation-1", messages=messages).step == 6
    history = list(second.list("conversation-1"))
    assert [each.step for each in history] == [6, 5, 4, 3, 2, 1, 0]
    assert history[0].messages == messages


@pytest.mark.parametrize("kind", kinds(LASTING))
def test_a_saver_that_was_closed_leaves_its_checkpoints(kind, request):
    made = place(kind, request)
    with made.open() as saver:
        messages = talk(saver)
    with made.open() as again:
        assert again.load("conversation-1").messages == messages
        assert len(list(again.list("conversation-1"))) == 5


def test_a_long_thread_reads_back_at_every_step(somewhere):
    saver = somewhere.open()
    messages = talk(saver, steps=70)
    history = list(saver.list("conversation-1"))
    assert [len(each.messages) for each in history] == list(range(70, 0, -1))
    assert history[10].messages == messages[:60]

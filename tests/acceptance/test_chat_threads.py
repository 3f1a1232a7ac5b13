"""CianaParrot: thread ids and session counters."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treering
from treering.core.batch import Delete, RefChange, Set
from treering.core.ids import check_id
from treering.errors import InvalidInput
from treering.threads.chat_ids import ChatId, TaskId, parse_thread_id


def say(text):
    return {"role": "user", "content": text}


# E2: thread ids
def test_the_ids_of_the_document_are_the_ids(store):
    chat = store.chat("telegram", "123456")
    assert chat.thread.id == "telegram_123456"
    for _ in range(3):
        thread = chat.reset()
    assert thread.id == chat.thread.id == "telegram_123456_s3"
    assert thread.chat == ChatId("telegram", "123456", 3)
    assert store.thread("scheduler_a1b2c3d4").chat == TaskId("a1b2c3d4")
    assert TaskId("a1b2c3d4").thread_id == "scheduler_a1b2c3d4"


def test_a_chat_may_be_named_by_its_number(store):
    assert store.chat("telegram", 123456).thread.id == "telegram_123456"


@pytest.mark.parametrize(
    "channel, chat_id, resets, text",
    [
        ("telegram", "a_b", 0, "telegram_a_b"),
        ("my_channel", "1", 0, "my%5Fchannel_1"),
        ("telegram", "1_s3", 0, "telegram_1%5Fs3"),
        ("telegram", "1_s3", 4, "telegram_1%5Fs3_s4"),
        ("telegram", "s3", 0, "telegram_s3"),
        ("telegram", "100%", 0, "telegram_100%25"),
        ("scheduler", "1", 0, "%73cheduler_1"),
    ],
)
def test_parts_that_would_mean_something_else_are_escaped(channel, chat_id, resets, text):
    assert ChatId(channel, chat_id, resets).thread_id == text
    assert parse_thread_id(text) == ChatId(channel, chat_id, resets)


@pytest.mark.parametrize("text", ["telegram", "_1", "telegram_", "telegram__s3", "telegram_1_s007", "a%5f_1"])
def test_other_texts_are_no_ids_of_a_chat(text):
    assert parse_thread_id(text) is None


def acceptable(text):
    try:
        return check_id(text, "part") == text
    except InvalidInput:
        return False


TRICKY = st.text("_s%0123456789aF5Cchedulr", min_size=1, max_size=12)
PART = (
    TRICKY | st.text(min_size=1, max_size=12) | st.sampled_from(["scheduler", "%73cheduler", "_s1", "s1"])
).filter(acceptable)


@given(PART, PART, st.integers(0, 10**9))
def test_every_triple_parses_back_to_itself(channel, chat_id, resets):
    named = ChatId(channel, chat_id, resets)
    assert parse_thread_id(named.thread_id) == named
    assert not named.thread_id.startswith("scheduler_")


@given(TRICKY | st.builds("scheduler_{}".format, PART) | st.builds("{}_{}".format, PART, PART))
def test_every_text_has_at_most_one_meaning(text):
    parsed = parse_thread_id(text)
    assert parsed is None or parsed.thread_id == text


@given(PART)
def test_a_task_keeps_its_id(task_id):
    assert parse_thread_id(TaskId(task_id).thread_id) == TaskId(task_id)


def test_a_reset_leaves_the_old_conversation_as_it_was(store):
    chat = store.chat("telegram", "1")
    chat.thread.append(say("remember me"))
    chat.reset().append(say("who are you?"))
    assert [message["content"] for message in store.thread("telegram_1").load().messages] == ["remember me"]
    assert store.chat("telegram", "1").thread.load().messages == [say("who are you?")]
    assert [thread.id for thread in chat.threads()] == ["telegram_1_s1", "telegram_1"]


def test_chats_of_different_namespaces_do_not_count_together(store):
    store.chat("telegram", "1", namespace="alice").reset()
    assert store.chat("telegram", "1", namespace="bob").resets == 0
    assert store.chat("telegram", "1").resets == 0
    assert store.chat("telegram", "1", namespace="alice").thread.namespace == "alice"


def test_a_chat_whose_id_begins_like_another_one_counts_by_itself(store):
    store.chat("telegram", "1_sx").reset().append(say("x"))
    store.chat("telegram", "1_s9").thread.append(say("nine"))
    assert store.chat("telegram", "1").resets == 0


# E4: session counters
def lose_counter(store, chat):
    draft = store.draft()
    draft.delete_ref(chat._ref, scope=chat._scope)
    store.commit(draft)


def set_counter(store, chat, number):
    draft = store.draft()
    draft.set_ref(chat._ref, b"%d" % number, scope=chat._scope)
    store.commit(draft)


def test_the_counter_is_read_again_after_a_restart(tmp_path):
    with treering.open(tmp_path / "store") as store:
        chat = store.chat("telegram", "123456")
        for _ in range(3):
            chat.reset()
    with treering.open(tmp_path / "store") as store:
        assert store.chat("telegram", "123456").thread.id == "telegram_123456_s3"


def test_a_lost_counter_is_found_again_in_the_threads(store):
    for number in (0, 1, 5):
        store.thread(ChatId("telegram", "1", number).thread_id).append(say(str(number)))
    chat = store.chat("telegram", "1")
    assert chat.thread.id == "telegram_1_s5"
    assert chat.reset().id == "telegram_1_s6"


def test_a_lost_counter_does_not_give_a_thread_again_that_was_never_saved(store):
    chat = store.chat("telegram", "1")
    given = {chat.reset().id, chat.reset().id}
    lose_counter(store, chat)
    assert store.chat("telegram", "1").reset().id not in given
    lose_counter(store, chat)
    assert chat.reset().id not in given  # the same object, too


def test_a_counter_restored_from_an_older_copy_catches_up(store):
    chat = store.chat("telegram", "1")
    for _ in range(4):
        chat.reset().append(say("x"))
    set_counter(store, chat, 1)
    again = store.chat("telegram", "1")
    assert again.thread.id == "telegram_1_s4"
    assert again.reset().id == "telegram_1_s5"


def test_a_running_process_steps_over_threads_that_appeared(store):
    chat = store.chat("telegram", "1")
    chat.reset()
    store.thread("telegram_1_s2").append(say("restored from a backup"))
    assert chat.reset().id == "telegram_1_s3"


def test_a_deleted_thread_does_not_free_its_number(store):
    chat = store.chat("telegram", "1")
    chat.reset().append(say("secret"))
    chat.thread.delete()
    lose_counter(store, chat)
    assert store.chat("telegram", "1").reset().id == "telegram_1_s2"


def test_a_chat_that_was_never_there_is_deleted_without_a_word(store):
    store.chat("telegram", 1).delete()
    assert not store.stats().rows.get("events")
    with pytest.raises(InvalidInput, match="chat id"):
        store.chat("telegram", None)


def test_a_deleted_chat_leaves_nothing_of_itself(store):
    chat, other = store.chat("telegram", "1"), store.chat("telegram", "12")
    for each in (chat, other):
        each.thread.append(say("one"))
        each.reset().append(say("two"))
    chat.delete()
    assert store.engine.scan_scopes(store.space, "/chat/") == ["/chat/telegram_12"]
    assert [thread.id for thread in other.threads()] == ["telegram_12_s1", "telegram_12"]
    assert list(chat.threads()) == []
    assert chat.thread.id == "telegram_1"
    assert chat.thread.get() is None
    assert store.verify().ok


def test_an_imported_counter_is_a_floor(store):
    chat = store.chat("telegram", "789012")
    assert chat.synchronise(at_least=7) == 7
    assert chat.synchronise(at_least=3) == 7
    assert chat.reset().id == "telegram_789012_s8"


def test_a_damaged_counter_is_not_taken_for_none(store):
    chat = store.chat("telegram", "1")
    chat.reset()
    draft = store.draft()
    draft._refs.append(RefChange(name=chat._ref, scope=chat._scope, change=Set(value=b"three")))
    store.commit(draft)
    with pytest.raises(treering.errors.Corrupt, match="three"):
        store.chat("telegram", "1").reset()
    draft = store.draft()
    draft._refs.append(RefChange(name=chat._ref, scope=chat._scope, change=Delete()))
    store.commit(draft)
    assert store.chat("telegram", "1").resets == 1


RESETTER = """
import sys, treering
with treering.open(sys.argv[1], durability="fast") as store:
    chat = store.chat("telegram", "1")
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(40):
        thread = chat.reset()
        thread.append({"role": "user", "content": sys.argv[2]})
        print(thread.id, flush=True)
"""


def test_two_processes_never_get_the_same_number(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RESETTER, str(tmp_path / "store"), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("first", "second")
    ]
    for each in processes:
        assert each.stdout.readline() == "ready\n"
    for each in processes:
        each.stdin.write("go\n")
        each.stdin.flush()
    given = [each.communicate(timeout=60)[0].split() for each in processes]
    assert [len(each) for each in given] == [40, 40]
    assert {*given[0], *given[1]} == {f"telegram_1_s{number}" for number in range(1, 81)}
    with treering.open(tmp_path / "store") as store:
        for name, ids in zip(("first", "second"), given, strict=True):
            for thread_id in ids:
                assert [each["content"] for each in store.thread(thread_id).load().messages] == [name]


def test_the_async_twin_does_the_same(tmp_path):
    async def main():
        async with treering.open_async(tmp_path / "store") as store:
            chat = store.chat("telegram", "1")
            await (await chat.thread()).append(say("a"))
            fresh = await chat.reset()
            await fresh.append(say("b"))
            assert await chat.resets() == 1
            assert [thread.id async for thread in chat.threads()] == ["telegram_1_s1", "telegram_1"]
            resets = await asyncio.gather(*(store.chat("telegram", "1").reset() for _ in range(8)))
            return sorted(thread.chat.resets for thread in resets)

    assert asyncio.run(main()) == list(range(2, 10))

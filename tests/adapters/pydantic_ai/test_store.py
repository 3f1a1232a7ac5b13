"""What pydantic-ai's conversations get from being threads of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
)
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from tests.adapters.pydantic_ai.talk import (
    ENGINES,
    answered,
    counting,
    items,
    open_store,
    said,
    saved,
    words,
)
from treering.adapters.pydantic_ai.conversations import (
    EntryNotFound,
    TreeringConversationStore,
    load_history,
    save_run,
)
from treering.core.retention import Keep
from treering.errors import InvalidInput, Vetoed
from treering.store import Store


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield from open_store(request, tmp_path)


class TestOnAStore:
    def test_it_is_a_thread_with_readable_messages(self, store: Store) -> None:
        async def run() -> None:
            await saved(TreeringConversationStore(store), "support/alice", "Where is it?", "On its way.")

        asyncio.run(run())
        assert [info.id for info in store.threads()] == ["support/alice"]
        checkpoint = store.thread("support/alice").load()
        assert checkpoint is not None
        assert [message["kind"] for message in checkpoint.messages] == ["request", "response"]
        assert checkpoint.messages[0]["parts"][0]["content"] == "Where is it?"
        assert checkpoint.state["pydantic_ai"]["conversation_id"] == "support/alice"

    def test_another_process_finds_it(self, tmp_path: Path) -> None:
        async def write() -> list[ConversationEntry]:
            async with TreeringConversationStore(tmp_path) as conversations:
                await saved(conversations, "c", *"abcd")
                return await conversations.load_entries("c") or []

        async def read(entries: list[ConversationEntry]) -> None:
            async with TreeringConversationStore(tmp_path) as conversations:
                assert await conversations.read_entry(entries[1].id) == entries[1]
                assert await conversations.load_entries("c") == entries

        asyncio.run(read(asyncio.run(write())))

    def test_a_given_store_stays_open(self, store: Store) -> None:
        async def run() -> None:
            async with TreeringConversationStore(store) as conversations:
                await saved(conversations, "c", "hi")

        asyncio.run(run())
        assert store.thread("c").get() is not None

    def test_namespaces_do_not_see_each_other(self, store: Store) -> None:
        async def run() -> None:
            alice = TreeringConversationStore(store, namespace="alice")
            bob = TreeringConversationStore(store, namespace="bob")
            first = await saved(alice, "c", "secret")
            entries = await alice.load_entries("c")
            assert entries is not None
            assert await bob.load("c") is None
            assert await bob.list_conversations() == []
            with pytest.raises(EntryNotFound):
                await bob.read_entry(entries[0].id)
            with pytest.raises(ConversationConflict):
                await bob.write_record(
                    ConversationRecord(conversation_id="c", head_id=entries[0].id), expected_revision=None
                )
            head = alice._records._thread("c").head()
            assert head is not None
            assert head.messages is not None
            with pytest.raises(EntryNotFound):
                await bob.read_entry(f"{head.messages.list}#0")
            await saved(bob, "c", "mine")
            assert await alice.load("c") == first

        asyncio.run(run())
        assert [info.id for info in store.threads(namespace="alice")] == ["c"]

    def test_hooks_change_and_look_on(self, store: Store) -> None:
        heard: list[str] = []

        async def stamp(saving: Any) -> dict[str, Any]:
            return {"metadata": {**saving.metadata, "by": "hook"}}

        def redact(saving: Any) -> dict[str, Any]:
            for message in saving.messages:
                for part in message["parts"]:
                    part["content"] = part["content"].replace("4711", "****")
            return {"messages": saving.messages}

        store.hooks.add("pre_checkpoint_save", stamp, redact)
        store.hooks.add("post_checkpoint_save", lambda actual: heard.append(f"saved {actual.thread_id}"))
        store.hooks.add("post_checkpoint_load", lambda actual: heard.append(f"loaded {actual.thread_id}"))

        async def run() -> None:
            conversations = TreeringConversationStore(store)
            await saved(conversations, "c", "my pin is 4711")
            heard.append("-")
            loaded = await conversations.load("c")
            assert loaded is not None
            assert words(loaded.messages) == ["my pin is ****"]
            loaded.messages.append(answered("thanks"))
            await conversations.save(loaded)

        asyncio.run(run())
        assert heard == ["saved c", "-", "loaded c", "saved c"]
        head = store.thread("c").head
        assert head is not None
        assert head.metadata["by"] == "hook"

    def test_a_hook_may_drop_a_message(self, store: Store) -> None:
        store.hooks.add("pre_checkpoint_save", lambda saving: {"messages": saving.messages[:1]})

        async def run() -> None:
            conversations = TreeringConversationStore(store)
            await saved(conversations, "c", "kept", "dropped")
            loaded = await conversations.load("c")
            assert loaded is not None
            assert words(loaded.messages) == ["kept"]
            loaded.messages.append(answered("next"))
            await conversations.save(loaded)
            loaded = await conversations.load("c")
            assert loaded is not None
            assert words(loaded.messages) == ["kept", "next"]

        asyncio.run(run())

    def test_a_veto_is_raised_and_writes_nothing(self, store: Store) -> None:
        store.hooks.add("pre_checkpoint_save", lambda _: False)

        async def run() -> None:
            conversations = TreeringConversationStore(store)
            with pytest.raises(Vetoed):
                await saved(conversations, "c", "hi")
            assert await conversations.load("c") is None

        asyncio.run(run())

    def test_each_message_is_stored_once(self, store: Store) -> None:
        async def run() -> None:
            conversations = TreeringConversationStore(store)
            conversation = await saved(conversations, "c", "0")
            for turn in range(1, 40):
                conversation.messages.append(said(str(turn)))
                await conversations.save(conversation)
            assert items(store) == 40
            for place in range(20):
                await conversations.fork("c", at=place + 10)
            assert items(store) == 40
            branch = await conversations.branch("c", at=20, expected_revision=conversation.revision)
            branch.messages.append(said("other"))
            await conversations.save(branch)
            assert items(store) == 41

        asyncio.run(run())

    def test_a_rewound_thread_is_a_conversation_at_that_point(self, store: Store) -> None:
        async def run() -> None:
            conversations = TreeringConversationStore(store)
            conversation = await saved(conversations, "c", "one", "two")
            conversation.messages += [said("three"), answered("four")]
            await conversations.save(conversation)
            thread = store.thread("c")
            thread.rewind(0)
            with pytest.raises(ConversationConflict):
                await conversations.save(conversation)
            again = await conversations.load("c")
            assert again is not None
            assert words(again.messages) == ["one", "two"]
            again.messages.append(said("other"))
            await conversations.save(again)
            thread.fork("by hand")
            forked = await conversations.load("by hand")
            assert forked is not None
            assert forked.conversation_id == "by hand"
            forked.messages.append(answered("yes"))
            await conversations.save(forked)
            assert words(load_history(store.thread("by hand"))) == ["one", "two", "other", "yes"]
            assert words(load_history(thread)) == ["one", "two", "other"]
            listed = {each.conversation_id for each in await conversations.list_conversations()}
            assert listed == {"c", "by hand"}

        asyncio.run(run())

    def test_a_number_of_any_size_is_kept(self, store: Store) -> None:
        async def run() -> None:
            conversations = TreeringConversationStore(store)
            call = ModelResponse(parts=[ToolCallPart("add", {"a": 10**30})])
            first = Conversation(conversation_id="c", messages=[said("add"), call])
            await conversations.save(first)
            assert await conversations.load("c") == first

        asyncio.run(run())

    def test_half_a_character_does_not_lock_a_conversation(self, store: Store) -> None:
        """A tool that reads a file's name, or a text that was cut, gives half of one."""

        async def run() -> None:
            conversations = TreeringConversationStore(store)
            call = ModelResponse(parts=[ToolCallPart("open", {"path": "caf\udce9"})])
            given = [said("cut \ud83d"), call, said("joined \ud83d\ude00")]
            await conversations.save(Conversation(conversation_id="c", messages=given))
            found = await conversations.load("c")
            assert found is not None
            assert words([found.messages[0], found.messages[2]]) == ["cut \ufffd", "joined \U0001f600"]
            assert found.messages[1].parts[0] == ToolCallPart(
                "open", {"path": "caf\ufffd"}, tool_call_id=call.tool_calls[0].tool_call_id
            )
            stored = store.thread("c").load()
            assert stored is not None
            assert stored.messages[0]["parts"][0]["content"] == "cut \ud83d"

        asyncio.run(run())

    def test_a_collection_leaves_branches_and_forks(self, store: Store) -> None:
        async def run() -> None:
            conversations = TreeringConversationStore(store)
            big = ["x" * 5000 + str(place) for place in range(4)]
            conversation = await saved(conversations, "c", *big)
            old = await conversations.load_entries("c")
            assert old is not None
            await conversations.branch("c", at=1, expected_revision=conversation.revision)
            await conversations.fork("c", from_entry=old[2].id, new_conversation_id="f")
            store.gc(grace_seconds=0)
            assert await conversations.read_history(old[-1].id) == old
            assert await conversations.load_entries("f") == old[:3]
            await conversations.delete("c")
            store.gc(grace_seconds=0)
            assert await conversations.load_entries("f") == old[:3]
            await conversations.delete("f")
            store.gc(grace_seconds=0)
            assert store.stats().rows["objects"] == 0

        asyncio.run(run())
        assert store.verify().ok

    def test_retention_keeps_the_current_conversation(self, store: Store) -> None:
        async def run() -> None:
            conversation = await saved(TreeringConversationStore(store), "c", *"abcd")
            conversations = TreeringConversationStore(store)
            old = await conversations.load_entries("c")
            assert old is not None
            branch = await conversations.branch("c", at=3, expected_revision=conversation.revision)
            branch.messages.append(answered("x"))
            await conversations.save(branch)
            store.gc(keep=Keep(last=1), grace_seconds=0)
            fresh = TreeringConversationStore(store)
            assert await fresh.read_entry(old[1].id) == old[1]
            with pytest.raises(EntryNotFound):
                await fresh.read_entry(old[3].id)
            again = await TreeringConversationStore(store).branch(
                "c", at=2, expected_revision=branch.revision
            )
            assert words(again.messages) == ["a", "b"]
            assert await fresh.load_entries("c") == old[:2]

        asyncio.run(run())
        assert store.verify().ok

    def test_other_state_of_the_thread_stays(self, store: Store) -> None:
        async def run() -> None:
            conversations = TreeringConversationStore(store)
            conversation = await saved(conversations, "c", "one")
            thread = store.thread("c")
            head = thread.head
            assert head is not None
            thread.checkpoint(state={**head.state, "todos": ["water it"]})
            with pytest.raises(ConversationConflict):
                await conversations.save(conversation)
            again = await conversations.load("c")
            assert again is not None
            again.messages.append(answered("two"))
            await conversations.save(again)
            head = store.thread("c").head
            assert head is not None
            assert head.state["todos"] == ["water it"]
            assert len(head.messages) == 2

        asyncio.run(run())

    def test_a_conversation_can_be_forgotten(self, store: Store) -> None:
        async def run() -> None:
            await saved(TreeringConversationStore(store), "c", "secret")

        asyncio.run(run())
        store.forget(thread="c")
        assert list(store.threads()) == []

    def test_foreign_messages_are_refused_by_name(self, store: Store) -> None:
        store.thread("c").append({"role": "user", "content": "hi"})
        with pytest.raises(InvalidInput, match="not messages of pydantic-ai"):
            asyncio.run(TreeringConversationStore(store).load("c"))


class TestMessageHistory:
    def test_runs_follow_each_other_in_a_thread(self, store: Store) -> None:
        agent = Agent(FunctionModel(counting))
        thread = store.thread("alice")
        assert load_history(thread) == []
        first = asyncio.run(agent.run("one", message_history=load_history(thread)))
        save_run(thread, first, note="first")
        second = asyncio.run(agent.run("two", message_history=load_history(store.thread("alice"))))
        save_run(thread, second)
        assert second.output == "answer 2"
        assert load_history(thread) == second.all_messages()
        assert words(load_history(thread, last=1)) == ["answer 2"]
        assert items(store) == 4

    def test_a_conversation_continues_an_existing_thread(self, store: Store) -> None:
        agent = Agent(FunctionModel(counting))
        thread = store.thread("alice")
        save_run(thread, asyncio.run(agent.run("one")))

        async def run() -> None:
            conversations = TreeringConversationStore(store)
            loaded = await conversations.load("alice")
            assert loaded is not None
            entries = await conversations.load_entries("alice")
            assert entries is not None
            assert await conversations.read_entry(entries[0].id) == entries[0]
            result = await agent.run("two", conversation=loaded)
            await conversations.save(result)
            assert result.output == "answer 2"
            forked = await conversations.fork("alice", from_entry=entries[1].id)
            assert words(forked.messages) == ["one", "answer 1"]

        asyncio.run(run())
        assert words(load_history(thread)) == ["one", "answer 1", "two", "answer 2"]

    def test_foreign_messages_are_refused(self, store: Store) -> None:
        thread = store.thread("c")
        thread.append("just text")
        with pytest.raises(InvalidInput):
            load_history(thread)

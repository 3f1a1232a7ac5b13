"""pydantic-ai's conversations: what holds for its own in-memory store holds for ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, BinaryContent, DeferredToolRequests
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationEntry,
    ConversationRecord,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelRequest,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage

import treering
from tests.adapters.pydantic_ai.talk import ENGINES, answered, open_store, said, saved, words
from treering.adapters.pydantic_ai.conversations import TreeringConversationStore


@pytest.fixture(params=["pydantic-ai's own", *ENGINES, "remote"])
def conversations(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ConversationStore]:
    if request.param == "pydantic-ai's own":
        yield InMemoryConversationStore()
        return
    for store in open_store(request, tmp_path):
        yield TreeringConversationStore(store)
        assert store.verify().ok


class TestContract:
    def test_a_saved_session_is_loaded(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            usage = RunUsage(requests=2, input_tokens=30, tool_calls=1)
            first = Conversation(conversation_id="c", messages=[said("hi"), answered("ho")], usage=usage)
            entries = await conversations.save(first)
            again = await conversations.load("c")
            assert again == first
            assert again is not None
            assert again.revision
            assert [entry.message for entry in entries] == first.messages
            assert [entry.parent_id for entry in entries] == [None, entries[0].id]
            assert await conversations.load_entries("c") == entries
            assert await conversations.load("another") is None

        asyncio.run(run())

    def test_a_save_adds_only_what_is_new(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            await saved(conversations, "c", "one", "two")
            before = await conversations.load_entries("c")
            loaded = await conversations.load("c")
            assert before is not None
            assert loaded is not None
            loaded.messages += [said("three"), answered("four")]
            new = await conversations.save(loaded)
            assert words([entry.message for entry in new]) == ["three", "four"]
            assert await conversations.load_entries("c") == [*before, *new]
            assert await conversations.save(loaded) == []
            assert await conversations.load("c") == loaded

        asyncio.run(run())

    def test_the_second_of_two_writers_gets_an_error(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            await saved(conversations, "c", "one", "two")
            mine, theirs = await conversations.load("c"), await conversations.load("c")
            assert mine is not None
            assert theirs is not None
            mine.messages.append(said("mine"))
            theirs.messages.append(said("theirs"))
            await conversations.save(mine)
            with pytest.raises(ConversationConflict):
                await conversations.save(theirs)
            with pytest.raises(ConversationConflict):
                await saved(conversations, "c", "not loaded")
            loaded = await conversations.load("c")
            assert loaded is not None
            assert words(loaded.messages) == ["one", "two", "mine"]

        asyncio.run(run())

    def test_of_many_at_once_one_wins(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            await saved(conversations, "c", "one")
            loaded = [await conversations.load("c") for _ in range(6)]
            for place, each in enumerate(loaded):
                assert each is not None
                each.messages.append(answered(str(place)))
            outcomes = await asyncio.gather(
                *(conversations.save(each) for each in loaded if each is not None), return_exceptions=True
            )
            assert sum(isinstance(each, ConversationConflict) for each in outcomes) == 5
            assert len(await conversations.load_entries("c") or []) == 2

        asyncio.run(run())

    def test_a_branch_can_be_switched_to_and_back(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            first = await saved(conversations, "c", "one", "two", "three", "four")
            old = await conversations.load_entries("c")
            assert old is not None
            branch = await conversations.branch("c", at=2, expected_revision=first.revision)
            assert words(branch.messages) == ["one", "two"]
            branch.messages += [said("three!"), answered("four!")]
            await conversations.save(branch)
            (record,) = await conversations.list_conversations()
            assert record.branches == [old[-1].id]
            new = await conversations.load_entries("c")
            assert new is not None
            assert new[:2] == old[:2]
            assert words([entry.message for entry in new]) == ["one", "two", "three!", "four!"]
            back = await conversations.branch("c", from_entry=old[-1].id, expected_revision=branch.revision)
            assert words(back.messages) == ["one", "two", "three", "four"]
            assert await conversations.load_entries("c") == old
            (record,) = await conversations.list_conversations()
            assert record.branches == [new[-1].id]
            empty = await conversations.branch("c", at=0, expected_revision=back.revision)
            assert empty.messages == []
            assert await conversations.load_entries("c") == []
            with pytest.raises(ConversationConflict):
                await conversations.branch("c", at=1, expected_revision=first.revision)
            with pytest.raises(UserError):
                await conversations.branch("c", at=9, expected_revision=empty.revision)

        asyncio.run(run())

    def test_a_rewritten_history_becomes_a_branch(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            first = await saved(conversations, "c", "one", "two", "three", "four")
            old = await conversations.load_entries("c")
            first.messages[2:] = [said("summary")]
            await conversations.save(first)
            loaded = await conversations.load("c")
            assert loaded is not None
            assert old is not None
            assert words(loaded.messages) == ["one", "two", "summary"]
            (record,) = await conversations.list_conversations()
            assert record.branches == [old[-1].id]
            assert await conversations.read_history(old[-1].id) == old

        asyncio.run(run())

    def test_a_fork_shares_its_past(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            await saved(conversations, "c", "one", "two", "three", "four", scope="alice")
            old = await conversations.load_entries("c")
            assert old is not None
            fork = await conversations.fork("c", at=2, new_conversation_id="f")
            assert words(fork.messages) == ["one", "two"]
            assert await conversations.load_entries("f") == old[:2]
            fork.messages.append(said("elsewhere"))
            (added,) = await conversations.save(fork)
            assert added.parent_id == old[1].id
            whole = await conversations.fork("f", new_conversation_id="g")
            assert words(whole.messages) == ["one", "two", "elsewhere"]
            assert await conversations.load_entries("c") == old
            records = {each.conversation_id: each for each in await conversations.list_conversations()}
            assert records["f"].forked_from == "c"
            assert records["f"].forked_at == old[1].id
            assert records["f"].scope == "alice"
            with pytest.raises(ConversationConflict):
                await conversations.fork("c", new_conversation_id="f")
            with pytest.raises(UserError):
                await conversations.fork("nothing")

        asyncio.run(run())

    def test_a_window_is_loaded_and_the_whole_is_appended_to(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            await saved(conversations, "c", *"abcdef")
            window = await conversations.load("c", limit=2)
            assert window is not None
            assert words(window.messages) == ["e", "f"]
            window.messages.append(said("g"))
            await conversations.save(window)
            loaded = await conversations.load("c")
            assert loaded is not None
            assert words(loaded.messages) == list("abcdefg")
            nothing = await conversations.load("c", limit=0)
            assert nothing is not None
            assert nothing.messages == []
            entries = await conversations.load_entries("c", limit=3)
            assert entries is not None
            assert entries[0].parent_id is not None
            with pytest.raises(UserError):
                await conversations.load("c", limit=-1)

        asyncio.run(run())

    def test_conversations_are_listed_by_scope_newest_first(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            for name, scope in (("a", "alice"), ("b", "bob"), ("c", "alice"), ("d", None)):
                await saved(conversations, name, "hi", scope=scope)
            again = await conversations.load("a")
            assert again is not None
            await conversations.save(again)

            async def listed(**how: Any) -> list[str]:
                return [each.conversation_id for each in await conversations.list_conversations(**how)]

            assert await listed() == ["a", "d", "c", "b"]
            assert await listed(scope="alice") == ["a", "c"]
            assert await listed(scope="alice", limit=1) == ["a"]
            assert await listed(limit=0) == []
            assert await listed(scope="nobody") == []

        asyncio.run(run())

    def test_a_scope_keeps_others_out(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            first = await saved(conversations, "c", "secret", scope="alice")
            assert await conversations.load("c", scope="mallory") is None
            assert await conversations.load_entries("c", scope="mallory") is None
            with pytest.raises(ConversationConflict):
                await conversations.save(first, scope="mallory")
            await conversations.delete("c", scope="mallory")
            assert await conversations.load("c", scope="alice") == first

        asyncio.run(run())

    def test_a_deleted_conversation_goes_and_its_forks_stay(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            first = await saved(conversations, "c", "one", "two")
            old = await conversations.load_entries("c")
            assert old is not None
            await conversations.fork("c", new_conversation_id="f", at=1)
            grown = await conversations.fork("c", new_conversation_id="g")
            grown.messages.append(said("three"))
            await conversations.save(grown)
            await conversations.delete("c")
            assert await conversations.load("c") is None
            with pytest.raises(ConversationConflict):
                await conversations.save(first)
            fork = await conversations.load("f")
            assert fork is not None
            assert words(fork.messages) == ["one"]
            other = await conversations.load("g")
            assert other is not None
            assert words(other.messages) == ["one", "two", "three"]
            assert {each.conversation_id for each in await conversations.list_conversations()} == {"f", "g"}
            await conversations.delete("f")
            await conversations.delete("g")
            for entry in old:
                with pytest.raises(LookupError):
                    await conversations.read_entry(entry.id)
            again = await saved(conversations, "c", "anew")
            assert (await conversations.load("c")) == again

        asyncio.run(run())

    def test_an_entry_is_read_by_its_id(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            await saved(conversations, "c", *"abc")
            await saved(conversations, "d", *"de")
            entries = await conversations.load_entries("c")
            assert entries is not None
            for entry in entries:
                assert await conversations.read_entry(entry.id) == entry
            with pytest.raises(LookupError):
                await conversations.read_entry("01a1e332-e2f6-76f3-a427-a2bbaf737353")
            with pytest.raises(LookupError):
                await conversations.read_entry("no uuid")

        asyncio.run(run())

    def test_a_record_cannot_end_at_an_entry_that_is_not_there(
        self, conversations: ConversationStore
    ) -> None:
        async def run() -> None:
            record = ConversationRecord(conversation_id="c", head_id="nowhere")
            with pytest.raises(ConversationConflict):
                await conversations.write_record(record, expected_revision=None)
            assert await conversations.read_record("c") is None
            with pytest.raises(ConversationConflict):
                await conversations.delete_record("c", expected_revision="any")

        asyncio.run(run())

    def test_ids_that_are_no_uuids_are_kept(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            entries = [
                ConversationEntry(id="first", parent_id=None, message=said("one")),
                ConversationEntry(id="second", parent_id="first", message=answered("two")),
            ]
            record = ConversationRecord(conversation_id="c", head_id="second")
            await conversations.write_record(record, new_entries=entries, expected_revision=None)
            assert await conversations.read_history("second") == entries
            assert await conversations.read_record("c") == record

        asyncio.run(run())

    @pytest.mark.parametrize("id", ["", " ", "a/b", "..", "a\nb", "ä" * 700, "a%2Fb", "\ud800", "🌲"])
    def test_a_conversation_id_is_any_string(self, conversations: ConversationStore, id: str) -> None:
        async def run() -> None:
            first = await saved(conversations, id, "hi", "ho")
            await saved(conversations, "another", "x")
            assert await conversations.load(id) == first
            assert id in {each.conversation_id for each in await conversations.list_conversations()}
            await conversations.delete(id)
            assert await conversations.load(id) is None

        asyncio.run(run())

    def test_bytes_come_back(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            picture = BinaryContent(data=bytes(range(256)) * 40, media_type="application/pdf")
            first = Conversation(
                conversation_id="c", messages=[ModelRequest(parts=[UserPromptPart(["look", picture])])]
            )
            await conversations.save(first)
            assert await conversations.load("c") == first

        asyncio.run(run())

    def test_a_run_that_waits_for_approval_is_resumed_later(self, conversations: ConversationStore) -> None:
        async def run() -> None:
            agent = Agent(TestModel(), output_type=[str, DeferredToolRequests])

            @agent.tool_plain(requires_approval=True)
            def remove(path: str) -> str:
                return f"removed {path}"

            paused = await agent.run("clean up", conversation=Conversation(conversation_id="c"))
            assert isinstance(paused.output, DeferredToolRequests)
            await conversations.save(paused)
            loaded = await conversations.load("c")
            assert loaded is not None
            assert loaded.deferred_tool_requests is not None
            results = loaded.deferred_tool_requests.build_results(approve_all=True)
            done = await agent.run(conversation=loaded, deferred_tool_results=results)
            assert "removed" in str(done.output)
            await conversations.save(done)
            loaded = await conversations.load("c")
            assert loaded is not None
            assert loaded.deferred_tool_requests is None
            assert loaded.usage == done.usage
            assert loaded.messages == done.all_messages()

        asyncio.run(run())


@pytest.mark.parametrize(
    "decision, value, removed",
    [
        ("approve", None, ["a"]),
        ("deny", None, []),
        ("edit", {"approvals": [{"tool_call_id": "CALL", "args": {"path": "b"}}]}, ["b"]),
        ("edit", {"approvals": []}, []),
    ],
)
def test_a_run_that_waits_is_answered_from_anywhere(
    tmp_path: Path, decision: Any, value: Any, removed: list[str]
) -> None:
    done: list[str] = []
    agent = Agent(TestModel(), output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def remove(path: str) -> str:
        done.append(path)
        return f"removed {path}"

    async def run() -> None:
        with treering.open(tmp_path / "store") as store:
            conversations = TreeringConversationStore(store)
            paused = await agent.run("clean up", conversation=Conversation(conversation_id="c"))
            await conversations.save(paused)
            assert await conversations.deferred_tool_results("c") is None
            pending = store.thread("c").load().pending_interrupt
            (waiting,) = pending["payload"]["approvals"]
            answer = json.loads(json.dumps(value).replace("CALL", waiting["tool_call_id"]))
            store.thread("c").resume(decision, value=answer)
            results = await conversations.deferred_tool_results("c")
            assert results is not None
            result = await agent.run(
                conversation=await conversations.load("c"), deferred_tool_results=results
            )
            await conversations.save(result)
            assert await conversations.deferred_tool_results("c") is None
            assert store.thread("c").load().pending_interrupt is None
            assert store.verify().ok

    asyncio.run(run())
    assert done == removed

"""Real runs of pydantic-ai agents with scripted models: saved as they go, killed, resumed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
)
from pydantic_ai.messages import (
    ModelMessage,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

import treering
from tests.adapters.pydantic_ai.talk import (
    ENGINES,
    counting,
    items,
    open_store,
    said,
    saved,
    words,
)
from tests.adapters.pydantic_ai.worker import numbers
from treering.adapters.pydantic_ai.conversations import (
    TreeringCheckpoints,
    TreeringConversationStore,
    load_history,
)
from treering.store import Store


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    yield from open_store(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store")
    request.applymarker("postgres")
    return request.getfixturevalue("postgres_url")


class TestRuns:
    def test_a_run_is_saved_as_it_goes(self, store: Store) -> None:
        lengths: list[int] = []
        store.hooks.add("post_checkpoint_save", lambda found: lengths.append(len(found.checkpoint.messages)))

        async def run() -> None:
            conversations = TreeringConversationStore(store)
            agent = numbers([].append, TreeringCheckpoints(conversations))
            result = await agent.run("add", conversation=Conversation(conversation_id="c"))
            assert result.output == "the sum is 666"
            loaded = await conversations.load("c")
            assert loaded is not None
            assert loaded.messages == result.all_messages()
            assert loaded.usage == result.usage
            assert loaded.usage.tool_calls == 3
            assert lengths == [1, 2, 3, 4, 5, 6, 7, 8]
            await conversations.save(result)
            again = await agent.run("again", conversation=result.conversation)
            reloaded = await conversations.load("c")
            assert reloaded is not None
            assert reloaded.messages == again.all_messages()
            assert items(store) == len(reloaded.messages)

        asyncio.run(run())

    def test_without_tool_checkpoints_it_is_saved_once(self, store: Store) -> None:
        lengths: list[int] = []
        store.hooks.add("post_checkpoint_save", lambda found: lengths.append(len(found.checkpoint.messages)))

        async def run() -> None:
            conversations = TreeringConversationStore(store)
            checkpoints = TreeringCheckpoints(conversations, checkpoint_after_tool_call=False)
            await numbers([].append, checkpoints).run("add", conversation_id="c")

        asyncio.run(run())
        assert lengths == [8]

    def test_a_vetoed_checkpoint_does_not_disturb_the_run(self, store: Store) -> None:
        def only_the_end(saving: Any) -> bool | None:
            return None if len(saving.messages) == 8 else False

        store.hooks.add("pre_checkpoint_save", only_the_end)

        async def run() -> None:
            conversations = TreeringConversationStore(store)
            agent = numbers([].append, TreeringCheckpoints(conversations))
            result = await agent.run("add", conversation_id="c")
            assert result.output == "the sum is 666"
            loaded = await conversations.load("c")
            assert loaded is not None
            assert loaded.messages == result.all_messages()

        asyncio.run(run())

    def test_a_run_that_waits_for_approval_is_saved_with_its_requests(self, store: Store) -> None:
        async def run() -> None:
            conversations = TreeringConversationStore(store)
            agent = Agent(
                TestModel(),
                output_type=[str, DeferredToolRequests],
                capabilities=[TreeringCheckpoints(conversations)],
            )

            @agent.tool_plain(requires_approval=True)
            def remove(path: str) -> str:
                return f"removed {path}"

            await agent.run("clean up", conversation_id="c")
            head = store.thread("c").head
            assert head is not None
            assert head.pending_interrupt["payload"]["approvals"][0]["tool_name"] == "remove"
            loaded = await conversations.load("c")
            assert loaded is not None
            assert loaded.deferred_tool_requests is not None
            results = loaded.deferred_tool_requests.build_results(approve_all=True)
            done = await agent.run(conversation=loaded, deferred_tool_results=results)
            loaded = await conversations.load("c")
            assert loaded is not None
            assert loaded.deferred_tool_requests is None
            assert loaded.messages == done.all_messages()

        asyncio.run(run())

    def test_a_streamed_run_is_saved_as_it_goes(self, store: Store) -> None:
        async def run() -> None:
            conversations = TreeringConversationStore(store)
            agent = numbers([].append, TreeringCheckpoints(conversations))
            async with agent.run_stream("add", conversation_id="c") as streamed:
                before_the_end = await conversations.load("c")
                assert before_the_end is not None
                assert len(before_the_end.messages) == 7
                assert await streamed.get_output() == "the sum is 666"
            loaded = await conversations.load("c")
            assert loaded is not None
            assert loaded.messages == streamed.all_messages()

        asyncio.run(run())

    def test_an_abandoned_iterated_run_can_be_resumed(self, store: Store) -> None:
        async def run() -> None:
            conversations = TreeringConversationStore(store)
            log: list[str] = []
            agent = numbers(log.append, TreeringCheckpoints(conversations))
            async with agent.iter("add", conversation_id="c") as nodes:
                async for node in nodes:
                    if agent.is_model_request_node(node) and "tool 2" in log:
                        break
            loaded = await conversations.load("c")
            assert loaded is not None
            result = await agent.run(conversation=loaded)
            assert result.output == "the sum is 666"
            assert [line for line in log if line.startswith("tool")][:2] == ["tool 1", "tool 2"]
            final = await conversations.load("c")
            assert final is not None
            assert final.messages == result.all_messages()

        asyncio.run(run())

    def test_a_run_on_an_old_history_is_refused(self, store: Store) -> None:
        async def run() -> None:
            conversations = TreeringConversationStore(store)
            agent = Agent(FunctionModel(counting), capabilities=[TreeringCheckpoints(conversations)])
            first = await agent.run("one", conversation_id="c")
            await agent.run("two", conversation=first.conversation)
            with pytest.raises(ConversationConflict):
                await agent.run("elsewhere", conversation=first.conversation)
            with pytest.raises(ConversationConflict):
                await agent.run("anew", conversation_id="c")
            window = await conversations.load("c", limit=2)
            assert window is not None
            window.messages.append(said("before the run"))
            await agent.run("three", conversation=window)
            loaded = await conversations.load("c")
            assert loaded is not None
            expected = ["one", "answer 1", "two", "answer 2", "before the run", "three", "answer 3"]
            assert words(loaded.messages) == expected

        asyncio.run(run())

    def test_half_a_character_does_not_stop_the_next_run(self, store: Store) -> None:
        async def run() -> None:
            conversations = TreeringConversationStore(store)
            model = TestModel(custom_output_text="found")
            agent = Agent(model, capabilities=[TreeringCheckpoints(conversations)])
            agent.tool_plain(name="find")(lambda: "caf\udce9")
            first = await agent.run("one", conversation=Conversation(conversation_id="c"))
            second = await agent.run("two", conversation=first.conversation)
            loaded = await conversations.load("c")
            assert loaded is not None
            third = await agent.run("three", conversation=loaded)
            stored = await conversations.load("c")
            assert stored is not None
            assert len(stored.messages) == len(third.all_messages()) == len(second.all_messages()) + 2

        asyncio.run(run())

    def test_a_run_saves_to_its_scope_only(self, store: Store) -> None:
        async def run() -> None:
            conversations = TreeringConversationStore(store)
            alice = TreeringCheckpoints(conversations, scope="alice")
            first = await Agent(FunctionModel(counting), capabilities=[alice]).run("one", conversation_id="c")
            assert await conversations.load("c", scope="alice") is not None
            stored = await conversations.read_record("c")
            assert stored is not None
            with pytest.raises(ConversationConflict):
                await conversations.extend("c", [], expected_revision=stored.revision, scope="bob")
            bob = TreeringCheckpoints(conversations, scope="bob")
            with pytest.raises(ConversationConflict):
                await Agent(FunctionModel(counting), capabilities=[bob]).run(
                    "two", conversation=first.conversation
                )

        asyncio.run(run())

    def test_a_trimmed_history_does_not_shorten_what_is_stored(self, store: Store) -> None:
        async def run() -> None:
            conversations = TreeringConversationStore(store)
            await saved(conversations, "c", *"abcdef")
            agent = Agent(
                FunctionModel(counting),
                capabilities=[
                    ProcessHistory(lambda messages: messages[-1:]),
                    TreeringCheckpoints(conversations),
                ],
            )
            loaded = await conversations.load("c")
            assert loaded is not None
            await agent.run("g", conversation=loaded)
            whole = await conversations.load("c")
            assert whole is not None
            assert words(whole.messages) == [*"abcdefg", "answer 1"]

        asyncio.run(run())

    def test_a_killed_run_ends_as_one_that_was_not(self, place: str, tmp_path: Path) -> None:
        log = tmp_path / "log"
        undisturbed = asyncio.run(numbers([].append).run("add them up"))
        killed = _worker(place, "killed", log, 2)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        resumed = _worker(place, "killed", log)
        assert resumed.stdout == undisturbed.output + "\n", resumed.stderr
        # Every model call happened once; only the tools that did not come back were called again.
        lines = log.read_text().split("\n")[:-1]
        assert lines == [
            *("model 0", "tool 1", "model 1", "tool 2"),
            *("tool 2", "model 2", "tool 3", "model 3"),
        ]
        with treering.open(place) as store:
            assert _kinds(load_history(store.thread("killed"))) == _kinds(undisturbed.all_messages())
            assert store.verify().ok


def _kinds(messages: list[ModelMessage]) -> list[str]:
    return [part.part_kind for each in messages for part in each.parts]


def _worker(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.adapters.pydantic_ai.worker", *map(str, arguments)],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

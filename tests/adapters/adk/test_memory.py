"""Google ADK's memory: what holds for the SDK's own service holds for ours, and a real runner uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.session import Session
from google.adk.tools.load_memory_tool import load_memory_tool
from google.adk.tools.preload_memory_tool import PreloadMemoryTool
from google.genai import types

import treering
from tests.adapters.adk.talk import ENGINES, open_store, said
from treering.adapters.adk import TreeringMemoryService, TreeringSessionService
from treering.compat.memory import FunctionEmbedder
from treering.errors import InvalidInput

ALICE: dict[str, Any] = {"app_name": "shop", "user_id": "alice"}


def session(id: str, *events: Any, user_id: str = "alice", app_name: str = "shop") -> Session:
    return Session(id=id, app_name=app_name, user_id=user_id, events=list(events))


def found(response: Any) -> list[str]:
    return [entry.content.parts[0].text for entry in response.memories]


@pytest.fixture(params=["ADK's in memory", *ENGINES])
def memories(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BaseMemoryService]:
    if request.param == "ADK's in memory":
        yield InMemoryMemoryService()
    else:
        for store in open_store(request, tmp_path):
            yield TreeringMemoryService(store)
            assert store.verify().ok


class TestContract:
    def test_memories_are_found_only_by_their_user(self, memories: BaseMemoryService) -> None:
        async def run() -> None:
            first = said("I am allergic to peanuts.", at=1_700_000_000.0)
            await memories.add_session_to_memory(session("s", first, said("Noted!", author="agent")))
            await memories.add_session_to_memory(session("s", said("peanuts for Bob"), user_id="bob"))
            await memories.add_session_to_memory(session("s", said("peanuts in a game"), app_name="game"))
            response = await memories.search_memory(**ALICE, query="peanuts")
            assert found(response) == ["I am allergic to peanuts."]
            (entry,) = response.memories
            assert (entry.author, entry.content.role) == ("user", "user")
            assert entry.id
            assert entry.timestamp is not None
            assert datetime.fromisoformat(entry.timestamp).timestamp() == 1_700_000_000
            assert found(await memories.search_memory(**ALICE, query="elephants")) == []

        asyncio.run(run())

    def test_a_session_may_be_added_again_and_removed_events_are_deleted(
        self, memories: BaseMemoryService
    ) -> None:
        async def run() -> None:
            one, two = said("the walnut tree"), said("the walnut cake")
            await memories.add_session_to_memory(session("s", one))
            await memories.add_session_to_memory(session("s", one, two))
            assert len(found(await memories.search_memory(**ALICE, query="walnut"))) == 2
            await memories.add_session_to_memory(session("s", two))
            assert found(await memories.search_memory(**ALICE, query="walnut")) == ["the walnut cake"]

        asyncio.run(run())

    def test_events_are_added_once(self, memories: BaseMemoryService) -> None:
        async def run() -> None:
            one, two = said("the walnut tree"), said("the walnut cake")
            silent = said("", parts=[types.Part.from_function_call(name="walnut", args={})])
            await memories.add_events_to_memory(**ALICE, events=[one, silent], session_id="s")
            await memories.add_events_to_memory(**ALICE, events=[one, two], session_id="s")
            await memories.add_events_to_memory(**ALICE, events=[said("a walnut alone")])
            texts = found(await memories.search_memory(**ALICE, query="walnut"))
            assert sorted(texts) == ["a walnut alone", "the walnut cake", "the walnut tree"]

        asyncio.run(run())

    def test_a_deleted_memory_does_not_come_back(self, memories: BaseMemoryService) -> None:
        async def run() -> None:
            one, two = said("the walnut tree"), said("the walnut cake")
            await memories.add_session_to_memory(session("s", one, two))
            (entry,) = (await memories.search_memory(**ALICE, query="tree")).memories
            await memories.delete_memory(**ALICE, memory_id=entry.id)
            await memories.delete_memory(**ALICE, memory_id="never there")
            await memories.delete_memory(**ALICE, memory_id=None)
            await memories.add_session_to_memory(session("s", one, two))
            await memories.add_events_to_memory(**ALICE, events=[one], session_id="s")
            assert found(await memories.search_memory(**ALICE, query="walnut")) == ["the walnut cake"]

        asyncio.run(run())

    def test_half_a_character_hides_nothing(self, memories: BaseMemoryService) -> None:
        async def run() -> None:
            events = [said("caf\udce9 by the peanuts", at=1.0), said("cut peanuts \ud83d", at=2.0)]
            await memories.add_session_to_memory(session("s", *events))
            assert len(found(await memories.search_memory(**ALICE, query="peanuts"))) == 2

        asyncio.run(run())

    def test_a_search_returns_at_most_ten(self, memories: BaseMemoryService) -> None:
        async def run() -> None:
            await memories.add_session_to_memory(session("s", *(said(f"walnut {n}") for n in range(30))))
            assert len((await memories.search_memory(**ALICE, query="walnut")).memories) == 10

        asyncio.run(run())


def test_entries_are_kept_as_they_are_and_expire(tmp_path: Path) -> None:
    async def run() -> None:
        async with TreeringMemoryService(tmp_path / "store") as memories:
            parts = [types.Part(text="likes tea"), types.Part(text="no\nsugar")]
            entry = MemoryEntry(
                id="facts/tea",
                content=types.Content(role="user", parts=parts),
                author="alice",
                custom_metadata={"from": "a form"},
            )
            await memories.add_memory(**ALICE, memories=[entry], custom_metadata={"lang": "en"})
            (back,) = (await memories.search_memory(**ALICE, query="tea")).memories
            assert back.content == entry.content
            assert (back.id, back.author) == ("facts/tea", "alice")
            assert back.custom_metadata == {"from": "a form", "lang": "en"}
            changed = entry.model_copy(
                update={"content": types.Content(role="user", parts=[types.Part(text="coffee")])}
            )
            await memories.add_memory(**ALICE, memories=[changed])
            assert found(await memories.search_memory(**ALICE, query="tea")) == []
            past = datetime.now(UTC) - timedelta(days=1)
            await memories.add_events_to_memory(
                **ALICE, events=[said("milk")], custom_metadata={"expires_at": past}
            )
            assert found(await memories.search_memory(**ALICE, query="milk")) == []

    asyncio.run(run())


def test_thoughts_are_not_remembered_and_deleting_leaves_no_text(tmp_path: Path) -> None:
    async def run() -> None:
        with treering.open(tmp_path / "store") as store:
            memories = TreeringMemoryService(store, namespace="tenant")
            thought = said(
                "", parts=[types.Part(text="secret musing", thought=True), types.Part(text="Hello")]
            )
            await memories.add_session_to_memory(session("s", thought, said("canary-walnut")))
            assert found(await memories.search_memory(**ALICE, query="musing")) == []
            (entry,) = (await memories.search_memory(**ALICE, query="walnut")).memories
            await memories.delete_memory(**ALICE, memory_id=entry.id)
            assert memories.memory_of("shop", "alice").namespace == "tenant/shop/alice"
            store.forget(namespace="tenant/shop/alice")
            assert found(await memories.search_memory(**ALICE, query="hello")) == []
        files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
        assert not [path for path in files if b"canary-walnut" in path.read_bytes()]

    asyncio.run(run())
    with pytest.raises(InvalidInput, match="limit is 0"):
        TreeringMemoryService("memory:", limit=0)


def test_an_embedder_finds_other_words() -> None:
    embedder = FunctionEmbedder(
        "topics", lambda texts: [[float("dog" in t or "puppy" in t), 1e-3] for t in texts]
    )

    async def run() -> None:
        async with TreeringMemoryService("memory:", embedder=embedder) as memories:
            await memories.add_session_to_memory(session("s", said("my puppy"), said("my car")))
            assert found(await memories.search_memory(**ALICE, query="dog")) == ["my puppy"]

    asyncio.run(run())


class Asking(BaseLlm):
    """Asks memory with what the user says, then answers with what came back."""

    log: Callable[[str], None]

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002 - ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        del stream
        self.log(llm_request.model_dump_json(include={"contents", "config"}))
        parts = [part for content in llm_request.contents for part in content.parts or []]
        replies = [part.function_response.response for part in parts if part.function_response]
        if replies:
            part = types.Part(text=f"I remember: {replies[-1]}")
        else:
            part = types.Part.from_function_call(name="load_memory", args={"query": "locker code"})
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*:UserWarning")
def test_a_real_runner_remembers_across_sessions(tmp_path: Path) -> None:
    async def talk(runner: Runner, session_id: str, text: str) -> str:
        message = types.Content(role="user", parts=[types.Part(text=text)])
        answer = ""
        async for event in runner.run_async(user_id="alice", session_id=session_id, new_message=message):
            for part in (event.content and event.content.parts) or []:
                answer = part.text or answer
        return answer

    async def run() -> None:
        seen: list[str] = []
        with treering.open(tmp_path / "store") as store:
            sessions, memories = TreeringSessionService(store), TreeringMemoryService(store)
            agent = LlmAgent(
                name="keeper",
                model=Asking(model="asking", log=seen.append),
                tools=[load_memory_tool, PreloadMemoryTool()],
            )
            runner = Runner(app_name="shop", agent=agent, session_service=sessions, memory_service=memories)
            monday = await sessions.create_session(**ALICE, session_id="monday")
            await talk(runner, "monday", "My locker code is 4711 walnut.")
            monday = await sessions.get_session(**ALICE, session_id="monday")
            assert monday is not None
            await memories.add_session_to_memory(monday)
            await sessions.create_session(**ALICE, session_id="tuesday")
            answer = await talk(runner, "tuesday", "What is my locker code?")
            assert "4711 walnut" in answer
            assert len(seen) == 4  # in each session: one that asks, one that answers
            assert "4711 walnut" in seen[2]  # preloaded, before the model asked for anything

    asyncio.run(run())

"""Sessions that are removed while they are read: found as they were, or not found; never damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import treering
from tests.adapters.adk.talk import said
from tests.adapters.claude.entries import KEY, entry
from tests.adapters.openai_agents.items import say
from tests.adapters.pydantic_ai.talk import saved
from treering.adapters.adk import TreeringSessionService
from treering.adapters.claude.session_store import TreeringSessionStore
from treering.adapters.conversation import read_heads, retry_if_removed
from treering.adapters.openai_agents import TreeringSession
from treering.adapters.pydantic_ai.conversations import TreeringConversationStore
from treering.errors import Corrupt, NotFound
from treering.store import Store

ALICE: dict[str, Any] = {"app_name": "shop", "user_id": "alice"}
READS = ["scan", "get", "read_list"]
"""What a retried read consists of behind the first one, which tells where the head is."""


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    with treering.open(tmp_path / "store", durability="fast") as opened:
        yield opened


@pytest.fixture
def before(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], None]], list[str]]:
    """Make something happen before the next read of a kind, and count all reads from then on."""

    def happen(wanted: str, what: Callable[[], None]) -> list[str]:
        waiting, calls = [what], []

        def watched(name: str, real: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                if name == wanted and waiting:
                    waiting.pop()()
                calls.append(name)
                return real(*args, **kwargs)

            return call

        for name in (*READS, "refs", "scan_refs"):
            monkeypatch.setattr(store.engine, name, watched(name, getattr(store.engine, name)))
        return calls

    return happen


def remove(store: Store, thread_id: str, namespace: str = "") -> Callable[[], None]:
    return lambda: store.thread(thread_id, namespace).delete()


@pytest.mark.parametrize("read", READS)
def test_a_session_of_adk_that_goes_is_none(store, before, read):
    async def main():
        made = await TreeringSessionService(store).create_session(**ALICE, session_id="s", state={"a": 1})
        await TreeringSessionService(store).append_event(made, said("hello"))
        before(read, remove(store, "shop/alice/s"))
        assert await TreeringSessionService(store).get_session(**ALICE, session_id="s") is None

    asyncio.run(main())


@pytest.mark.parametrize("read", READS)
def test_a_conversation_of_pydantic_ai_that_goes_is_none(store, before, read):
    async def main():
        await saved(TreeringConversationStore(store), "c", "one", "two")
        before(read, remove(store, "c"))
        assert await TreeringConversationStore(store).load("c") is None

    asyncio.run(main())


@pytest.mark.parametrize("read", ["scan", "read_list"])
def test_a_transcript_of_claude_that_goes_is_none_and_begins_anew(store, before, read):
    async def main():
        await TreeringSessionStore(store).append(KEY, [entry("a")])
        before(read, remove(store, KEY["session_id"], KEY["project_key"]))
        assert await TreeringSessionStore(store).load(KEY) is None
        await TreeringSessionStore(store).append(KEY, [entry("a")])
        before(read, remove(store, KEY["session_id"], KEY["project_key"]))
        late = TreeringSessionStore(store)
        await late.append(KEY, [entry("b")])
        assert await late.load(KEY) == [entry("b")]

    asyncio.run(main())


@pytest.mark.parametrize("read", ["scan", "read_list"])
def test_a_session_of_openai_agents_that_goes_is_empty(store, before, read):
    async def main():
        await TreeringSession("s", store).add_items([say("hello")])
        before(read, remove(store, "s"))
        assert await TreeringSession("s", store).get_items() == []

    asyncio.run(main())


async def adk_users(store: Store) -> list[str]:
    listed = await TreeringSessionService(store).list_sessions(app_name="shop")
    return sorted(each.user_id for each in listed.sessions)


async def conversation_ids(store: Store) -> list[str]:
    listed = await TreeringConversationStore(store).list_conversations()
    return sorted(each.conversation_id for each in listed)


async def session_ids(store: Store) -> list[str]:
    listed = await TreeringSessionStore(store).list_session_summaries("proj")
    return sorted(each["session_id"] for each in listed)


@pytest.mark.parametrize("read", ["scan", "get"])
@pytest.mark.parametrize("listed", [adk_users, conversation_ids, session_ids])
def test_a_thread_removed_during_listing_is_left_out(
    store: Store, before: Any, read: str, listed: Callable[[Store], Awaitable[list[str]]]
) -> None:
    async def main() -> None:
        for name in ("a", "b", "c"):
            made = {"app_name": "shop", "user_id": name, "session_id": "s", "state": {"x": name, "app:y": 1}}
            await TreeringSessionService(store).create_session(**made)
            await saved(TreeringConversationStore(store), name, "one", "two")
            await TreeringSessionStore(store).append(
                {"project_key": "proj", "session_id": name}, [entry(name)]
            )

        def go() -> None:
            for thread_id, namespace in (("shop/b/s", ""), ("b", ""), ("b", "proj")):
                store.thread(thread_id, namespace).delete()

        before(read, go)
        assert await listed(store) == ["a", "c"]

    asyncio.run(main())


def test_sessions_of_many_users_are_listed_in_few_reads(store, before):
    async def main():
        sessions = TreeringSessionService(store)
        for number in range(30):
            state = {"a": number, "user:name": f"u{number}", "app:open": True}
            names = {"app_name": "shop", "user_id": f"u{number}", "session_id": "s"}
            await sessions.create_session(**names, state=state)
        calls = before("", lambda: None)
        listed = await sessions.list_sessions(app_name="shop")
        for number, each in enumerate(listed.sessions):
            assert each.state == {"a": number, "user:name": f"u{number}", "app:open": True}
        assert sorted(calls) == ["get", "get", "refs", "scan", "scan_refs"]

    asyncio.run(main())


def test_damage_is_an_error(store, monkeypatch):
    store.thread("a").checkpoint([], {"x": 1})

    def get(*_: Any) -> Any:
        raise NotFound("nothing is stored there")

    monkeypatch.setattr(store.engine, "get", get)
    with pytest.raises(Corrupt, match="cannot be read"):
        list(read_heads(store, store.threads()))
    with pytest.raises(Corrupt):
        retry_if_removed(lambda: store.thread("a").load().state)

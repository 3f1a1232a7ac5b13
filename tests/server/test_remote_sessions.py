"""Sessions of frameworks over HTTP: a failed delete, with a key that may not erase, changes nothing."""

from __future__ import annotations

import asyncio

import pytest
from pydantic_ai.messages import ModelRequest, UserPromptPart

import treering
from tests.adapters.langgraph.scripts import config, put
from tests.server.running import running
from treering.adapters.adk import TreeringSessionService
from treering.adapters.langgraph import TreeringSaver
from treering.adapters.pydantic_ai.conversations import TreeringConversationStore
from treering.core.clock import SystemClock
from treering.errors import Forbidden
from treering.server.auth import Keys
from treering.server.settings import Settings
from treering.testing.portrait import portrait


@pytest.fixture
def stores():
    """The same project opened with a write key and with an admin key."""
    local = treering.open("memory:")
    keys = Keys(local.engine, clock=SystemClock())
    with running(local, Settings(calls_per_second=1e6)) as url:
        tokens = [keys.create(project="acme", scope=scope).token for scope in ("write", "admin")]
        with treering.open(url, api_key=tokens[0]) as writer, treering.open(url, api_key=tokens[1]) as admin:
            yield writer, admin


def seen(store):
    return portrait(store.engine, store.space)


def test_an_adk_session_is_unchanged(stores):
    writer, admin = stores
    name = {"app_name": "a", "user_id": "u", "session_id": "s"}

    async def talk():
        theirs, mine = TreeringSessionService(admin), TreeringSessionService(writer)
        await mine.create_session(**name, state={"x": 1})
        before = seen(admin)
        with pytest.raises(Forbidden, match="scope 'admin'"):
            await mine.delete_session(**name)
        assert seen(admin) == before
        assert (await mine.get_session(**name)).state == {"x": 1}
        await theirs.delete_session(**name)
        assert await mine.get_session(**name) is None

    asyncio.run(talk())


def test_a_pydantic_ai_conversation_is_unchanged(stores):
    writer, admin = stores

    async def talk():
        theirs, mine = TreeringConversationStore(admin), TreeringConversationStore(writer)
        revision = await mine.extend("c", [ModelRequest([UserPromptPart("hi")])], expected_revision=None)
        before = seen(admin)
        with pytest.raises(Forbidden, match="scope 'admin'"):
            await mine.delete_record("c", expected_revision=revision)
        assert seen(admin) == before
        assert len((await mine.load("c")).messages) == 1
        await theirs.delete_record("c", expected_revision=revision)
        assert await mine.load("c") is None

    asyncio.run(talk())


def test_a_graph_that_may_not_be_pruned_is_unchanged(stores):
    writer, admin = stores
    saver = TreeringSaver(writer)
    at = put(saver, {"x": 1}, metadata={"run_id": "r", "step": 0})
    put(saver, {"x": 2}, parent=at, metadata={"run_id": "r", "step": 1})
    before = seen(admin)
    for remove in (
        lambda: saver.prune(["alice"]),
        lambda: saver.delete_for_runs(["r"]),
        lambda: saver.delete_thread("alice"),
        lambda: writer.gc(keep=treering.Keep(last=1)),
    ):
        with pytest.raises(Forbidden, match="scope 'admin'"):
            remove()
        assert seen(admin) == before
    assert saver.get_tuple(config()).checkpoint["channel_values"] == {"x": 2}

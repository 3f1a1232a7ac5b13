"""Savers: the examples of agent-sdk, with every saver."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import datetime

import pytest

from treering.agent import create_agent
from treering.compat.savers import FileSaver, KeyValueStoreSaver, MemorySaver, PostgresSaver, SqliteSaver
from treering.errors import Vetoed
from treering.keyvalue import FolderStore, InMemoryStore, RedisStore

MESSAGES = [
    {"role": "user", "content": "Hello, my name is Alice"},
    {
        "role": "assistant",
        "content": [{"type": "tool-call", "toolName": "greet", "input": {"name": "Alice"}}],
    },
    {"role": "tool", "content": [{"type": "tool-result", "toolName": "greet", "output": "Hi Alice"}]},
    {"role": "assistant", "content": "Hello Alice!"},
]


class OwnRedisStore:
    """A user's key-value store: four async methods on Redis."""

    def __init__(self, url):
        import redis.asyncio

        self._connect = lambda: redis.asyncio.Redis.from_url(url, decode_responses=True)

    async def get(self, key):
        async with self._connect() as client:
            return await client.get(key)

    async def set(self, key, value):
        async with self._connect() as client:
            await client.set(key, value)

    async def delete(self, key):
        async with self._connect() as client:
            await client.delete(key)

    async def list(self, prefix=""):
        async with self._connect() as client:
            return [key async for key in client.scan_iter(match=prefix + "*")]


def make(kind, given):
    match kind:
        case "MemorySaver":
            return MemorySaver()
        case "FileSaver":
            return FileSaver(directory=given("tmp_path"), max_checkpoints=100, compress=True)
        case "InMemoryStore":
            return KeyValueStoreSaver(InMemoryStore())
        case "FolderStore":
            return KeyValueStoreSaver(FolderStore(given("tmp_path")))
        case "RedisStore":
            return KeyValueStoreSaver(RedisStore(given("redis_url")))
        case "a user's RedisStore":
            return KeyValueStoreSaver(OwnRedisStore(given("redis_url")))
        case "SqliteSaver":
            return SqliteSaver(given("tmp_path") / "store")
        case _:
            return PostgresSaver(given("postgres_url"))


@pytest.fixture(
    params=[
        "MemorySaver",
        "FileSaver",
        "InMemoryStore",
        "FolderStore",
        pytest.param("RedisStore", marks=pytest.mark.redis),
        pytest.param("a user's RedisStore", marks=pytest.mark.redis),
        "SqliteSaver",
        pytest.param("PostgresSaver", marks=pytest.mark.postgres),
    ]
)
def checkpointer(request):
    with make(request.param, request.getfixturevalue) as made:
        yield made


def test_save_load_list_delete(checkpointer):
    checkpointer.save({"thread_id": "conversation-1", "messages": MESSAGES, "metadata": {"user_id": "123"}})
    checkpoint = checkpointer.load("conversation-1")
    assert checkpoint.messages == MESSAGES
    assert checkpoint.metadata == {"user_id": "123"}
    assert [each.thread_id for each in checkpointer.list()] == ["conversation-1"]
    assert checkpointer.exists("conversation-1")
    checkpointer.delete("conversation-1")
    assert checkpointer.load("conversation-1") is None
    assert not checkpointer.exists("conversation-1")


def test_save_load_list_delete_in_async_code(checkpointer):
    async def main():
        await checkpointer.asave(thread_id="conversation-1", messages=MESSAGES, metadata={"user_id": "123"})
        checkpoint = await checkpointer.aload("conversation-1")
        assert checkpoint.messages == MESSAGES
        assert [each.thread_id async for each in checkpointer.alist()] == ["conversation-1"]
        assert await checkpointer.aexists("conversation-1")
        await checkpointer.adelete("conversation-1")
        assert await checkpointer.aload("conversation-1") is None

    asyncio.run(main())


def test_a_checkpoint_has_every_field(checkpointer):
    state = {"todos": [{"content": "greet", "status": "done"}], "files": {"notes.md": "# Alice"}}
    checkpointer.save(thread_id="conversation-1", messages=MESSAGES[:1])
    checkpointer.save(thread_id="conversation-1", messages=MESSAGES, state=state, metadata={"user_id": "123"})
    checkpoint = checkpointer.load("conversation-1")
    assert (checkpoint.thread_id, checkpoint.step) == ("conversation-1", 1)
    assert checkpoint.state == state
    assert checkpoint.pending_interrupt is None
    created, updated = map(datetime.fromisoformat, (checkpoint.created_at, checkpoint.updated_at))
    assert created < updated
    first = list(checkpointer.list("conversation-1"))[-1]
    assert first.state == {"todos": [], "files": {}}
    assert first.created_at == first.updated_at == checkpoint.created_at


def test_files_are_pruned_and_compressed(tmp_path):
    text = [{"role": "user", "content": "the same words " * 500}]
    sizes = {}
    for compress in (True, False):
        checkpointer = FileSaver(directory=tmp_path / str(compress), max_checkpoints=3, compress=compress)
        for step in range(10):
            checkpointer.save(thread_id="conversation-1", messages=[*text, {"step": step}])
        assert [each.step for each in checkpointer.list("conversation-1")] == [9, 8, 7]
        sizes[compress] = sum(
            path.stat().st_size for path in (tmp_path / str(compress)).rglob("*") if path.is_file()
        )
    assert sizes[True] < sizes[False] / 2
    assert FileSaver(tmp_path / "True", compress=False).load("conversation-1").messages[0] == text[0]


def test_namespaces_are_isolated(checkpointer):
    alice, bob = checkpointer.in_namespace("alice"), checkpointer.in_namespace("bob")
    alice.save(thread_id="conversation-1", messages=MESSAGES)
    assert bob.load("conversation-1") is None
    assert [each.thread_id for each in alice.list()] == ["conversation-1"]
    assert list(bob.list()) == list(checkpointer.list()) == []


def test_a_conversation_is_resumed_in_a_new_process(tmp_path):
    code = """
import json, sys
from treering.agent import create_agent
from treering.compat.savers import FileSaver

def model(messages, tools):
    named = [message["content"] for message in messages[:-1] if "my name is" in message["content"]]
    return "Your name is " + named[0].split()[-1] if named else "Hello!"

agent = create_agent(model=model, checkpointer=FileSaver(sys.argv[1]))
print(json.dumps(agent.generate(thread_id="conversation-1", prompt=sys.argv[2]).text))
"""
    said = []
    for prompt in ("Hello, my name is Alice", "What's my name?"):
        command = [sys.executable, "-c", code, str(tmp_path), prompt]
        said.append(json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout))
    assert said == ["Hello!", "Your name is Alice"]
    assert len(FileSaver(tmp_path).load("conversation-1").messages) == 4


def test_hooks_see_what_an_agent_saves(checkpointer):
    seen = []

    async def pre(saving):
        await asyncio.sleep(0)
        seen.append(f"Saving checkpoint for {saving.thread_id}")
        return {}

    async def post(saved):
        await asyncio.sleep(0)
        seen.append(f"Checkpoint saved for {saved.thread_id}")
        return {}

    def loaded(saved):
        count = len(saved.checkpoint.messages)
        seen.append(f"Loaded checkpoint for {saved.thread_id} with {count} messages")

    agent = create_agent(
        model=lambda _messages, _tools: "Hello!",
        checkpointer=checkpointer,
        hooks={
            "pre_checkpoint_save": [pre],
            "post_checkpoint_save": [post],
            "post_checkpoint_load": [loaded],
        },
    )
    agent.generate(thread_id="conversation-1", prompt="Hi")
    first = list(seen)
    agent.generate(thread_id="conversation-1", prompt="Hi again")
    assert first[0] == "Saving checkpoint for conversation-1"
    assert first[-1] == "Checkpoint saved for conversation-1"
    assert "Loaded checkpoint for conversation-1 with 2 messages" in seen[len(first) :]


def test_a_hook_may_change_or_veto(checkpointer):
    checkpointer.hooks.add(
        "pre_checkpoint_save", lambda saving: {"metadata": saving.metadata | {"seen": True}}
    )
    assert checkpointer.save(thread_id="conversation-1", messages=MESSAGES).metadata == {"seen": True}
    checkpointer.hooks.add("pre_checkpoint_save", lambda _: False)
    with pytest.raises(Vetoed, match="conversation-1"):
        checkpointer.save(thread_id="conversation-1", messages=[])
    assert checkpointer.load("conversation-1").messages == MESSAGES

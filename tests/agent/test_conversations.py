"""The same agent on everything that can store its conversations."""

from __future__ import annotations

import asyncio
import json

import pytest

import treering
from tests.agent.scripted import Scripted, answered, asking, said, user
from treering.agent import CheckpointWarning, create_agent, tool
from treering.compat import savers
from treering.core.query import EventQuery
from treering.errors import Conflict, InvalidInput, StoreFull
from treering.keyvalue import InMemoryStore, RedisStore


class OwnSaver:
    """A user's own, with dicts and async methods."""

    def __init__(self):
        self.kept = {}

    async def save(self, *, thread_id, messages, state, pending_interrupt, metadata):
        kept = {
            "messages": messages,
            "state": state,
            "pending_interrupt": pending_interrupt,
            "metadata": metadata,
        }
        self.kept[thread_id] = json.dumps(kept)
        return kept

    async def load(self, thread_id):
        await asyncio.sleep(0)
        return json.loads(self.kept.get(thread_id, "null"))


class AsyncKeyValueStore:
    """A user's own key-value store, whose methods must all be awaited in one loop."""

    def __init__(self):
        self.kept = InMemoryStore()
        self.loops = set()

    async def get(self, key):
        self.loops.add(asyncio.get_running_loop())
        return self.kept.get(key)

    async def set(self, key, value):
        self.loops.add(asyncio.get_running_loop())
        self.kept.set(key, value)

    async def delete(self, key):
        self.kept.delete(key)

    async def list(self, prefix=""):
        return self.kept.list(prefix)


KINDS = {
    "memory": lambda _: savers.MemorySaver(),
    "sqlite": lambda folder: savers.SqliteSaver(folder / "saver", durability="fast"),
    "files": lambda folder: savers.FileSaver(folder / "files"),
    "keyvalue": lambda _: savers.KeyValueStoreSaver(InMemoryStore()),
    "async keyvalue": lambda _: savers.KeyValueStoreSaver(AsyncKeyValueStore()),
    "own": lambda _: OwnSaver(),
}


@pytest.fixture(params=KINDS)
def saver(request, tmp_path):
    made = KINDS[request.param](tmp_path)
    yield made
    if hasattr(made, "close"):
        made.close()


def careful(checkpointer, deleted):
    @tool(needs_approval=True)
    def delete(path: str) -> str:
        deleted.append(path)
        return f"{path} is gone"

    wants = asking(("c1", "delete", {"path": "a"}), ("c2", "delete", {"path": "b"}))
    return create_agent(model=Scripted(wants, "Done."), tools=[delete], checkpointer=checkpointer)


def decide(agent, deleted):
    first = agent.generate(thread_id="t", prompt="Clean up")
    with pytest.raises(Conflict, match="is waiting for a decision"):
        agent.generate(thread_id="t", prompt="Hurry up")
    with pytest.raises(Conflict, match="not 'other'"):
        agent.resume(thread_id="t", decision="approve", interrupt_id="other")
    with pytest.raises(InvalidInput, match="not a decision"):
        agent.resume(thread_id="t", decision="perhaps")
    agent.resume(thread_id="t", decision="edit", value={"path": "z"}, interrupt_id=first.interrupt["id"])
    result = agent.resume(thread_id="t", decision="deny")
    with pytest.raises(Conflict, match="nothing to resume"):
        agent.resume(thread_id="t", decision="approve")
    assert deleted == ["z"]
    assert result.run_id == first.run_id
    assert result.messages == [answered("c2", "the call was denied by the user"), said("Done.")]


def test_a_person_decides(saver) -> None:
    deleted = []
    decide(careful(saver, deleted), deleted)


def test_a_person_decides_over_postgres(postgres_url) -> None:
    deleted = []
    with careful(postgres_url, deleted) as agent:
        decide(agent, deleted)


def test_a_person_decides_over_redis(redis_url) -> None:
    deleted = []
    with savers.KeyValueStoreSaver(RedisStore(redis_url)) as saver:
        decide(careful(saver, deleted), deleted)


def test_a_person_decides_in_async_code(saver) -> None:
    deleted = []

    async def work():
        agent = careful(saver, deleted)
        await agent.agenerate(thread_id="t", prompt="Clean up", checkpoint_after_tool_call=True)
        await agent.aresume(thread_id="t", decision="approve", checkpoint_after_tool_call=True)
        return await agent.aresume(thread_id="t", decision="approve")

    assert asyncio.run(work()).text == "Done."
    assert deleted == ["a", "b"]


def test_an_async_key_value_store_is_used_in_the_callers_loop() -> None:
    store = AsyncKeyValueStore()
    saver = savers.KeyValueStoreSaver(store)

    async def work():
        await create_agent(model=Scripted("Hello!"), checkpointer=saver).agenerate(thread_id="t", prompt="Hi")
        assert store.loops == {asyncio.get_running_loop()}

    asyncio.run(work())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "own"])
def test_of_two_runs_at_once_the_second_does_not_overwrite_the_first(tmp_path, kind) -> None:
    saver = KINDS[kind](tmp_path)

    def model(messages, _):
        if messages[-1]["content"] == "slow":
            fast.generate(thread_id="t", prompt="fast")
        return said(f"{messages[-1]['content']} answer")

    fast = create_agent(model=model, checkpointer=saver)
    with pytest.warns(CheckpointWarning, match="t' could not be saved"):
        slow = create_agent(model=model, checkpointer=saver).generate(thread_id="t", prompt="slow")
    assert (slow.text, slow.checkpoint) == ("slow answer", None)
    assert saver.load("t").messages == [user("fast"), said("fast answer")]
    saver.close()


def test_a_failed_checkpoint_of_a_saver_is_recorded_in_its_store() -> None:
    def fails(_):
        raise StoreFull("the disk is full")

    with treering.open("memory:") as store:
        saver = savers.MemorySaver(store, namespace="acme", hooks={"pre_checkpoint_save": [fails]})
        with pytest.warns(CheckpointWarning, match="the disk is full"):
            create_agent(model=Scripted("Hello!"), checkpointer=saver).generate(thread_id="t", prompt="Hi")
        (noted,) = store.engine.scan(store.space, EventQuery(kinds=("checkpoint.failed",)), limit=9).records
        assert noted.event.name == "StoreFull"
        store.forget(namespace="acme")
        assert not store.engine.scan(store.space, EventQuery(kinds=("checkpoint.failed",)), limit=9).records


@pytest.mark.parametrize("kind", [*KINDS, "store"])
@pytest.mark.parametrize("is_async", [False, True])
def test_agents_that_share_a_saver_do_not_run_each_others_hooks(tmp_path, kind, is_async) -> None:
    saver = treering.open("memory:") if kind == "store" else KINDS[kind](tmp_path)
    calls = []
    for number in range(5):
        hooks = {"post_checkpoint_save": lambda event, number=number: calls.append((number, event.thread_id))}
        agent = create_agent(model=Scripted("Hello!"), checkpointer=saver, hooks=hooks)
        if is_async:
            asyncio.run(agent.agenerate(thread_id=f"t{number}", prompt="Hi"))
        else:
            agent.generate(thread_id=f"t{number}", prompt="Hi")
    assert calls == [(number, f"t{number}") for number in range(5)]


@pytest.mark.parametrize("kind", [*KINDS, "store"])
def test_every_hook_of_an_agent_gets_the_thread_and_the_checkpoint(tmp_path, kind) -> None:
    saver = treering.open("memory:") if kind == "store" else KINDS[kind](tmp_path)
    seen = []

    def see(name):
        def hook(event):
            checkpoint = event.checkpoint
            asked = checkpoint.pending_interrupt is not None
            seen.append(
                (name, event.thread_id, len(checkpoint.messages), sorted(checkpoint.state)[:2], asked)
            )

        return hook

    names = ("pre_checkpoint_save", "post_checkpoint_save", "post_checkpoint_load")
    deleted = []
    agent = careful(saver, deleted)
    agent = create_agent(
        model=agent._config.model,
        tools=[
            tool(each.function, needs_approval=True, replay="safe") for each in agent._config.tools.values()
        ],
        checkpointer=saver,
        hooks={name: see(name.split("_")[0] + name.split("_")[2]) for name in names},
    )
    agent.generate(thread_id="t", prompt="Clean up")
    assert seen == [
        ("presave", "t", 2, ["files", "todos"], True),
        ("postsave", "t", 2, ["files", "todos"], True),
    ]
    seen.clear()
    agent.resume(thread_id="t", decision="approve")
    saves = [each for each in seen if each[0] != "postload"]
    assert saves == [
        ("presave", "t", 2, ["files", "todos"], False),
        ("postsave", "t", 2, ["files", "todos"], False),
        ("presave", "t", 3, ["files", "todos"], True),
        ("postsave", "t", 3, ["files", "todos"], True),
    ]
    assert ("postload", "t", 2, ["files", "todos"], False) in seen


@pytest.mark.parametrize("kind", [*KINDS, "store"])
def test_a_hook_that_fails_after_a_save_repeats_no_message(tmp_path, kind) -> None:
    saver = treering.open("memory:") if kind == "store" else KINDS[kind](tmp_path)
    failures = [OSError("the log is full")]

    def fails(_):
        if failures:
            raise failures.pop()

    for own in (True, False):
        if not own and not hasattr(saver, "hooks"):
            continue
        failures[:] = [OSError("the log is full")]
        hooks = {"post_checkpoint_save": fails}
        if not own:
            saver.hooks.add("post_checkpoint_save", fails)
        agent = create_agent(
            model=Scripted(asking(("c1", "look", {})), "Done."),
            tools=[tool(lambda: "seen", name="look")],
            checkpointer=saver,
            hooks=hooks if own else None,
        )
        with pytest.warns(CheckpointWarning, match="the log is full"):
            agent.generate(thread_id=f"t{own}", prompt="Hi", checkpoint_after_tool_call=True)
        loaded = saver.thread(f"t{own}").get() if kind == "store" else asyncio.run(_load(saver, f"t{own}"))
        messages = loaded["messages"] if kind == "own" else loaded.messages
        assert [each["role"] for each in messages] == ["user", "assistant", "tool", "assistant"]


async def _load(saver, thread_id):
    return await (saver.load(thread_id) if isinstance(saver, OwnSaver) else saver.aload(thread_id))


def test_a_saver_has_its_own_namespace() -> None:
    with pytest.raises(InvalidInput, match="give it to the saver"):
        create_agent(model=Scripted(), checkpointer=OwnSaver(), namespace="acme")

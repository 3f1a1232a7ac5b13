"""A session of the OpenAI Agents SDK as a thread: what it adds to the SDK's own sessions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treering
from tests.adapters.openai_agents.items import say, texts
from treering.adapters.openai_agents import TreeringSession
from treering.errors import Closed, InvalidInput

ROOT = Path(__file__).resolve().parents[3]
ODD = st.text("a/%~\n\u00fc", max_size=3) | st.sampled_from(["~" + "0" * 64, "x" * 600])


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


def test_a_session_is_a_thread_with_all_its_checkpoints(store):
    async def main():
        session = TreeringSession("support/alice", store)
        await session.add_items([say("a"), say("b")])
        await session.add_items([say("c")])
        await session.pop_item()
        await session.clear_session()

    asyncio.run(main())
    (info,) = store.threads()
    assert (info.id, info.step) == ("support/alice", 3)
    thread = store.thread("support/alice")
    assert [len(checkpoint.messages) for checkpoint in thread.history()] == [0, 2, 3, 2]
    assert [checkpoint.note for checkpoint in thread.history()] == ["clear_session", "pop_item", None, None]
    thread.rewind(1)
    assert texts(asyncio.run(TreeringSession("support/alice", store).get_items())) == ["a", "b", "c"]
    fork = thread.fork("support/alice-2")
    asyncio.run(TreeringSession(fork.id, store).add_items([say("elsewhere")]))
    assert texts(fork.load().messages) == ["a", "b", "c", "elsewhere"]
    assert texts(thread.load().messages) == ["a", "b", "c"]
    assert store.verify().ok


def test_a_session_whose_id_cannot_be_a_threads_is_found_by_its_metadata(store):
    session = TreeringSession("line\nbreak", store)
    asyncio.run(session.add_items([say("a"), say("b")]))
    (info,) = store.threads()
    assert info.id == session.thread_id
    assert store.thread(info.id).load().metadata == {"session_id": "line\nbreak"}
    for change in (session.pop_item, session.clear_session):
        asyncio.run(change())
        assert store.thread(info.id).load().metadata == {"session_id": "line\nbreak"}
    with pytest.raises(InvalidInput, match="session id is of type int"):
        TreeringSession(7, store)


def test_namespaces_do_not_see_each_other(store):
    async def main():
        alice, bob = (TreeringSession("s", store, namespace=name) for name in ("alice", "bob"))
        await alice.add_items([say("alice's")])
        assert await bob.get_items() == []
        assert await TreeringSession("s", store).get_items() == []
        assert await TreeringSession("s", store.in_namespace("other")).get_items() == []
        await bob.add_items([say("bob's")])
        assert [info.namespace for info in store.threads(namespace=None)] == ["bob", "alice"]
        store.forget(namespace="alice")
        assert await alice.get_items() == []
        assert texts(await bob.get_items()) == ["bob's"]

    asyncio.run(main())


@given(st.sets(st.tuples(st.sampled_from(["one", "two"]), ODD, ODD), min_size=2, max_size=8))
@settings(max_examples=40)
def test_no_session_reads_what_another_wrote(places):
    """Spaces, namespaces and ids of any kind: whoever differs in one of them is someone else."""

    async def main():
        with treering.open("memory:") as opened:
            for space, namespace, session_id in places:
                session = TreeringSession(session_id, opened.in_namespace(space), namespace=namespace)
                await session.add_items([say(repr((space, namespace, session_id)))])
            for space, namespace, session_id in places:
                session = TreeringSession(session_id, opened.in_namespace(space), namespace=namespace)
                assert texts(await session.get_items()) == [repr((space, namespace, session_id))]

    asyncio.run(main())


def test_only_the_tail_is_read(store, monkeypatch):
    async def main():
        session = TreeringSession("s", store)
        await session.add_items([say(str(number)) for number in range(500)])
        reads = []
        read_list = store.engine.read_list
        monkeypatch.setattr(
            store.engine, "read_list", lambda *asked: reads.append(asked[2:]) or read_list(*asked)
        )
        assert texts(await session.get_items(limit=2)) == ["498", "499"]
        await session.pop_item()
        await session.add_items([say("new")])
        await session.pop_item()
        assert reads == [(498, 500), (499, 500), (499, 500)]
        assert texts(await session.get_items(limit=1)) == ["498"]

    asyncio.run(main())


def test_items_are_added_without_looking_unless_someone_else_was_there(store, monkeypatch):
    looks = []
    refs = store.engine.refs
    monkeypatch.setattr(store.engine, "refs", lambda *asked: looks.append(1) or refs(*asked))

    async def main():
        session = TreeringSession("s", store)
        for text in "abc":
            await session.add_items([say(text)])
        assert len(looks) == 1
        other = TreeringSession("s", store)
        await other.save_tool_result(
            [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}],
            {"type": "function_call_output", "call_id": "c", "output": "o"},
            tool="f",
        )
        await session.add_items([say("d")])
        await session.pop_item()
        await session.add_items([say("e")])
        found = await other.get_items()
        assert [item.get("type", item.get("content")) for item in found] == [
            *"abc",
            "function_call",
            "function_call_output",
            "e",
        ]
        store.thread("s").delete()
        await session.add_items([say("anew")])
        assert texts(await other.get_items()) == ["anew"]

    asyncio.run(main())


def test_writers_of_two_stores_on_one_folder_lose_nothing(tmp_path):
    """Two openings share nothing but the disk, as two processes do."""

    async def write(session, name):
        for number in range(20):
            await session.add_items([say(f"{name} {number}")])
            if number % 5 == 4:
                await session.add_items([say("to be taken back")])
                await session.pop_item()

    async def main():
        async with TreeringSession("s", tmp_path) as one, TreeringSession("s", tmp_path) as other:
            await asyncio.gather(write(one, "x"), write(other, "y"))
            return texts(await one.get_items())

    found = asyncio.run(main())
    assert len(found) == 40
    with treering.open(tmp_path) as opened:
        written = {
            message["content"]
            for checkpoint in opened.thread("s").history(everything=True)
            for message in checkpoint.last_messages(2)
        }
        assert {f"{name} {number}" for name in "xy" for number in range(20)} <= written
        assert opened.verify().ok


def test_calls_on_one_session_take_effect_in_the_order_they_were_made(store):
    async def main():
        session = TreeringSession("s", store)
        *_, found = await asyncio.gather(
            *(session.add_items([say(str(number))]) for number in range(20)),
            session.pop_item(),
            session.get_items(),
        )
        assert texts(found) == [str(number) for number in range(19)]

    asyncio.run(main())


def test_the_stores_hooks_fire_change_and_veto(store):
    seen, loops = [], []

    async def stamp(saving):
        loops.append(asyncio.get_running_loop())
        return {"metadata": {**saving.metadata, "stamped": True}}

    store.hooks.add("pre_checkpoint_save", stamp)
    store.hooks.add("post_checkpoint_save", lambda saved: seen.append(("saved", saved.checkpoint.step)))
    store.hooks.add("post_checkpoint_load", lambda saved: seen.append(("loaded", saved.checkpoint.step)))

    async def main():
        session = TreeringSession("s", store)
        await session.add_items([say("a")])
        await session.get_items()
        assert seen == [("saved", 0), ("loaded", 0)]
        assert loops == [asyncio.get_running_loop()]
        assert store.thread("s").head.metadata == {"stamped": True}
        store.hooks.add("pre_checkpoint_save", lambda saving: saving.thread_id != "s")
        await session.add_items([say("b")])
        assert await session.pop_item() is None
        assert texts(await session.get_items()) == ["a"]

    asyncio.run(main())


def test_only_a_store_that_the_session_opened_is_closed_with_it(tmp_path):
    async def main():
        async with TreeringSession("s", str(tmp_path / "own")) as session:
            await session.add_items([say("a")])
        with pytest.raises(Closed):
            await session.get_items()
        session.close()
        async with treering.open_async(tmp_path / "own") as shared:
            async with TreeringSession("s", shared) as first:
                assert texts(await first.get_items()) == ["a"]
            await first.add_items([say("b")])
            assert texts(await TreeringSession("s", shared.sync).get_items()) == ["a", "b"]
        with pytest.raises(InvalidInput, match="int is not a store"):
            TreeringSession("s", 7)

    asyncio.run(main())


def test_a_cancelled_writer_hears_of_it_when_the_write_has_ended(store):
    entered, go_on = Event(), Event()

    def hold(_):
        entered.set()
        assert go_on.wait(30)

    store.hooks.add("pre_checkpoint_save", hold)

    async def main():
        session = TreeringSession("s", store)
        writing = asyncio.ensure_future(session.add_items([say("a")]))
        await asyncio.to_thread(entered.wait)
        writing.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not writing.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert texts(store.thread("s").head.messages) == ["a"]

    asyncio.run(main())


def test_a_session_may_be_used_from_one_loop_after_another(store):
    session = TreeringSession("s", store)
    for text in "abc":
        asyncio.run(session.add_items([say(text)]))
    assert texts(asyncio.run(session.get_items())) == ["a", "b", "c"]


def test_without_the_sdk_the_extra_is_named():
    code = (
        "import sys; sys.modules['agents'] = None\n"
        "try:\n    import treering.adapters.openai_agents.session\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.startswith("MissingExtra")
    assert "pip install 'treering[openai-agents]'" in done.stdout

"""The Claude Agent SDK on treering: its own conformance suite, its store-backed functions, and real runs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from itertools import count
from pathlib import Path
from threading import Event

import anyio
import claude_agent_sdk as sdk
import pytest
import trio
import trio.lowlevel
from claude_agent_sdk.testing import run_session_store_conformance
from hypothesis import given, settings
from hypothesis import strategies as st

import treering
from tests.adapters.claude.entries import KEY, entry, uuids
from treering.adapters.claude.session_store import TreeringSessionStore
from treering.core.clock import ManualClock
from treering.engines.memory.engine import MemoryEngine
from treering.errors import Closed, InvalidInput
from treering.store import Store

ROOT = Path(__file__).resolve().parents[3]
CONTRACTS = 14


@pytest.fixture
def memory():
    with treering.open("memory:") as opened:
        yield opened


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_every_contract_of_the_sdks_suite_holds(store, backend):
    """The suite asks for one store to look at, and for one per contract that it then checks."""
    made = []

    def make():
        made.append(TreeringSessionStore(store.in_namespace(f"{backend}-{len(made)}")))
        return made[-1]

    anyio.run(run_session_store_conformance, make, backend=backend)
    assert len(made) == CONTRACTS + 1
    assert store.verify().ok


def test_a_repeated_entry_is_stored_once(store):
    async def main():
        sessions = TreeringSessionStore(store)
        await sessions.append(KEY, [entry("a"), entry("b"), entry("b")])
        await sessions.append(KEY, [entry("b"), entry("c")])
        assert uuids(await sessions.load(KEY)) == ["a", "b", "c"]
        other = TreeringSessionStore(store)
        await other.append(KEY, [entry("a"), entry("d")])
        await sessions.append(KEY, [entry("d"), entry("e")])
        assert uuids(await other.load(KEY)) == ["a", "b", "c", "d", "e"]
        await sessions.append({**KEY, "subpath": "subagents/agent-1"}, [entry("a")])
        assert uuids(await sessions.load({**KEY, "subpath": "subagents/agent-1"})) == ["a"]

    asyncio.run(main())


def test_entries_without_a_uuid_are_stored_each_time(memory):
    async def main():
        sessions = TreeringSessionStore(memory)
        title = {"type": "custom-title", "customTitle": "t"}
        await sessions.append(KEY, [title, title])
        await sessions.append(KEY, [title])
        assert await sessions.load(KEY) == [title] * 3

    asyncio.run(main())


def test_a_batch_that_changes_nothing_saves_no_checkpoint(memory):
    async def main():
        sessions = TreeringSessionStore(memory)
        await sessions.append(KEY, [entry("a")])
        await sessions.append(KEY, [entry("a")])
        await sessions.append(KEY, [])
        assert [info.step for info in memory.threads(namespace="proj")] == [0]

    asyncio.run(main())


def test_entries_come_back_as_they_were(store):
    odd = {
        "type": "assistant",
        "uuid": "u",
        "message": {
            "content": [{"type": "text", "text": "ü \u2028 \ud83d"}],
            "n": [1, 1.5, 1e300, True, None],
        },
        "z": 1,
        "a": {"$tuple": [1]},
        "big": 2**80,
        "text": "x" * 10_000,
    }

    async def main():
        await TreeringSessionStore(store).append(KEY, [odd])
        (found,) = await TreeringSessionStore(store).load(KEY)
        assert found == odd
        assert json.dumps(found) == json.dumps(odd)

    asyncio.run(main())


def test_concurrent_appends_lose_nothing_repeat_nothing_and_fold_every_entry(store):
    """Three stores (as three processes have) append overlapping batches to one session."""

    async def write(sessions, name):
        for number in range(8):
            shared = entry(f"shared {number}", timestamp="2026-01-01T00:00:00Z")
            await sessions.append(KEY, [shared, entry(f"{name} {number}"), {"type": "tag", "tag": name}])

    async def main():
        stores = [TreeringSessionStore(store) for _ in range(3)]
        await asyncio.gather(*map(write, stores, "xyz"))
        found = await stores[0].load(KEY)
        names = [each["uuid"] for each in found if "uuid" in each]
        assert sorted(names) == sorted(
            [f"shared {number}" for number in range(8)]
            + [f"{name} {number}" for name in "xyz" for number in range(8)]
        )
        assert len(found) - len(names) == 24
        for name in "xyz":
            own = [each for each in names if each.startswith(name)]
            assert own == [f"{name} {number}" for number in range(8)]
        (summary,) = await stores[0].list_session_summaries("proj")
        assert summary["data"] == sdk.fold_session_summary(None, KEY, found)["data"]

    asyncio.run(main())


def test_writers_of_two_stores_on_one_folder_keep_each_entry_once(tmp_path):
    """Two openings share nothing but the disk, as two processes do."""

    async def write(sessions):
        for number in range(25):
            await sessions.append(KEY, [entry(str(number)), entry(str(number + 1))])

    async def main():
        async with TreeringSessionStore(tmp_path) as one, TreeringSessionStore(tmp_path) as other:
            await asyncio.gather(write(one), write(other))
            return uuids(await one.load(KEY))

    assert asyncio.run(main()) == [str(number) for number in range(26)]


def test_calls_of_one_process_are_kept_in_their_order(memory):
    async def main():
        sessions = TreeringSessionStore(memory)
        *_, found = await asyncio.gather(
            *(sessions.append(KEY, [entry(str(number))]) for number in range(30)), sessions.load(KEY)
        )
        assert uuids(found) == [str(number) for number in range(30)]

    asyncio.run(main())


def test_a_transcript_that_was_rewound_or_forgotten_elsewhere_is_read_again(memory):
    async def main():
        sessions = TreeringSessionStore(memory)
        await sessions.append(KEY, [entry("a")])
        await sessions.append(KEY, [entry("b")])
        memory.thread("sess", "proj").rewind(0)
        await sessions.append(KEY, [entry("b"), entry("c")])
        assert uuids(await sessions.load(KEY)) == ["a", "b", "c"]
        memory.forget(thread="sess", namespace="proj")
        assert await sessions.load(KEY) is None
        await sessions.append(KEY, [entry("a")])
        assert uuids(await sessions.load(KEY)) == ["a"]
        (summary,) = await sessions.list_session_summaries("proj")
        assert summary["session_id"] == "sess"

    asyncio.run(main())


@pytest.mark.parametrize(
    "odd", ["a/b", "%2F", "ü \U0001f600", "line\nbreak", " ", "", "x" * 900, "~" + "0" * 64]
)
def test_keys_are_any_strings(memory, odd):
    async def main():
        sessions = TreeringSessionStore(memory)
        main_key = {"project_key": odd, "session_id": odd}
        near = {"project_key": odd, "session_id": odd + "x"}
        for key in (main_key, near):
            await sessions.append(key, [entry("main", of=key["session_id"])])
            await sessions.append({**key, "subpath": "s/" + odd}, [entry("sub")])
        again = TreeringSessionStore(memory)
        assert (await again.load(main_key))[0]["of"] == odd
        assert {each["session_id"] for each in await again.list_sessions(odd)} == {odd, odd + "x"}
        assert await again.list_subkeys(main_key) == ["s/" + odd]
        thread_id, namespace = again.thread_id(main_key)
        assert uuids(memory.thread(thread_id, namespace).load().messages) == ["main"]
        await again.delete(main_key)
        assert [each["session_id"] for each in await again.list_sessions(odd)] == [odd + "x"]
        assert await again.list_subkeys(near) == ["s/" + odd]

    asyncio.run(main())


ODD = st.text("ab/%~\n", max_size=3) | st.sampled_from(["~" + "0" * 64, "x" * 600])
KEYS = st.tuples(ODD, ODD, st.none() | ODD.filter(bool))


@given(st.lists(st.tuples(st.sampled_from(["append", "append", "delete"]), KEYS), max_size=12))
@settings(max_examples=60)
def test_any_history_is_what_a_dict_would_hold(steps):
    """Whatever the keys are: no transcript is another's, and the lists name exactly those that are there."""

    def as_key(place):
        project, session, subpath = place
        key = {"project_key": project, "session_id": session}
        return key if subpath is None else {**key, "subpath": subpath}

    async def main():
        with treering.open("memory:") as opened:
            sessions, model = TreeringSessionStore(opened), {}
            for number, (what, place) in enumerate(steps):
                if what == "append":
                    await sessions.append(as_key(place), [entry(str(number))])
                    model.setdefault(place, []).append(str(number))
                else:
                    await sessions.delete(as_key(place))
                    for other in list(model):
                        if other == place or (place[2] is None and other[:2] == place[:2]):
                            del model[other]
            again = TreeringSessionStore(opened)
            for place in {place for _, place in steps}:
                found = await again.load(as_key(place))
                assert (None if found is None else uuids(found)) == model.get(place)
                project, session, _ = place
                listed = sorted(each["session_id"] for each in await again.list_sessions(project))
                assert listed == sorted(key[1] for key in model if key[0] == project and key[2] is None)
                below = await again.list_subkeys({"project_key": project, "session_id": session})
                assert below == sorted(key[2] for key in model if key[:2] == place[:2] and key[2] is not None)

    asyncio.run(main())


def test_a_key_that_is_no_string_is_refused(memory):
    with pytest.raises(InvalidInput, match="session id is of type int"):
        asyncio.run(TreeringSessionStore(memory).load({"project_key": "p", "session_id": 7}))


def test_a_long_history_is_read_once_and_written_once(memory, monkeypatch):
    reads = []
    read_list = memory.engine.read_list

    def counted(*asked):
        found = read_list(*asked)
        reads.append(len(found))
        return found

    monkeypatch.setattr(memory.engine, "read_list", counted)

    async def main():
        names = (str(number) for number in count())
        sessions = TreeringSessionStore(memory)
        for _ in range(100):
            await sessions.append(KEY, [entry(next(names)) for _ in range(10)])
        assert reads == []
        resumed = TreeringSessionStore(memory)
        for _ in range(50):
            await resumed.append(KEY, [entry(next(names)) for _ in range(10)])
        assert reads == [1000]
        await sessions.append(KEY, [entry("0"), entry("1499"), entry(next(names))])
        assert reads == [1000, 500]
        assert memory.engine.stats(memory.space).items == 1501

    asyncio.run(main())


def test_many_sessions_are_listed_in_few_reads(memory, monkeypatch):
    async def main():
        sessions = TreeringSessionStore(memory)
        for number in range(300):
            await sessions.append(
                {"project_key": "proj", "session_id": f"s{number}"},
                [{"type": "user", "message": {"content": f"prompt {number}"}}],
            )
        calls = []
        for name in ("scan", "get", "read_list", "scan_refs"):
            real = getattr(memory.engine, name)
            monkeypatch.setattr(
                memory.engine,
                name,
                lambda *asked, real=real, name=name, **more: calls.append(name) or real(*asked, **more),
            )
        found = await TreeringSessionStore(memory).list_session_summaries("proj")
        assert [each["session_id"] for each in found] == [f"s{number}" for number in reversed(range(300))]
        assert found[0]["data"]["first_prompt"] == "prompt 299"
        assert "read_list" not in calls
        assert len(calls) <= 6

    asyncio.run(main())


def test_only_a_store_that_was_opened_here_is_closed(tmp_path):
    async def main():
        async with TreeringSessionStore(tmp_path / "own") as sessions:
            await sessions.append(KEY, [entry("a")])
        with pytest.raises(Closed):
            await sessions.load(KEY)
        sessions.close()
        async with treering.open_async(tmp_path / "own") as shared:
            async with TreeringSessionStore(shared) as first:
                assert uuids(await first.load(KEY)) == ["a"]
            await first.append(KEY, [entry("b")])
        with pytest.raises(Closed):
            await first.load(KEY)

    asyncio.run(main())


def test_a_cancelled_append_is_not_torn(memory):
    entered, go_on = Event(), Event()

    def hold(_):
        entered.set()
        assert go_on.wait(30)

    memory.hooks.add("pre_checkpoint_save", hold)

    async def main():
        sessions = TreeringSessionStore(memory)
        writing = asyncio.ensure_future(sessions.append(KEY, [entry("a"), entry("b")]))
        await asyncio.to_thread(entered.wait)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        go_on.set()
        await sessions.append(KEY, [entry("a"), entry("b"), entry("c")])
        assert uuids(await sessions.load(KEY)) == ["a", "b", "c"]

    asyncio.run(main())


def test_without_the_sdk_the_extra_is_named():
    code = (
        "import sys; sys.modules['claude_agent_sdk'] = None\n"
        "try:\n    import treering.adapters.claude.session_store\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.startswith("MissingExtra")
    assert "pip install 'treering[claude-agent-sdk]'" in done.stdout


def test_tasks_of_trio_write_in_the_order_of_their_calls_and_lose_nothing(store):
    async def main():
        async with TreeringSessionStore(store) as sessions:
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(sessions.append, KEY, [entry(f"task-{number}")])
            assert sorted(uuids(await sessions.load(KEY))) == sorted(f"task-{n}" for n in range(20))
            await sessions.delete(KEY)
            assert await sessions.load(KEY) is None

    trio.run(main)


def test_a_hook_that_is_a_coroutine_runs_in_trio(memory):
    seen = []

    async def hook(_context):
        await trio.lowlevel.checkpoint()
        seen.append(trio.lowlevel.current_task() is not None)

    memory.hooks.add("post_checkpoint_save", hook)

    async def main():
        await TreeringSessionStore(memory).append(KEY, [entry("a")])

    trio.run(main)
    assert seen == [True]


def test_cancelling_in_trio_cancels_only_the_waiting(memory):
    reached, going_on = Event(), Event()

    def hold(_context):
        reached.set()
        assert going_on.wait(60)

    memory.hooks.add("pre_checkpoint_save", hold)

    async def main():
        sessions = TreeringSessionStore(memory)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sessions.append, KEY, [entry("a")])
            await trio.to_thread.run_sync(reached.wait)
            nursery.cancel_scope.cancel()
        going_on.set()
        assert uuids(await sessions.load(KEY)) == ["a"]

    trio.run(main)


def test_sessions_of_one_millisecond_have_an_order():
    clock = ManualClock(1_790_000_000_000_000)
    with Store(MemoryEngine(clock=clock), space="default", opener=treering.open) as store:
        sessions = TreeringSessionStore(store)

        async def main():
            for number in range(5):
                clock.advance(seconds=1e-6)
                await sessions.append({**KEY, "session_id": f"s{number}"}, [entry(f"e{number}")])
            listed = await sessions.list_sessions(KEY["project_key"])
            summaries = await sessions.list_session_summaries(KEY["project_key"])
            return listed, summaries

        listed, summaries = asyncio.run(main())
    times = [each["mtime"] for each in listed]
    assert times == sorted(set(times), reverse=True)
    assert [each["session_id"] for each in listed] == ["s4", "s3", "s2", "s1", "s0"]
    assert times == [each["mtime"] for each in summaries]


def chain(entries):
    """The texts that Claude Code goes on from: it follows the parents of the last entry."""
    by_uuid = {each["uuid"]: each for each in entries}
    texts, at = [], entries[-1]["uuid"]
    while at is not None:
        texts.append(by_uuid[at]["message"]["content"] if "message" in by_uuid[at] else "boundary")
        at = by_uuid[at]["parentUuid"]
    return texts[::-1]


def talk(*pairs):
    return [
        entry(uuid, parentUuid=parent, sessionId="sess", message={"role": "user", "content": uuid})
        for uuid, parent in pairs
    ]


def test_a_compacted_transcript_goes_on_wherever_the_boundary_is(memory):
    async def main():
        sessions = TreeringSessionStore(memory)
        thread = memory.thread(*sessions.thread_id(KEY))
        await sessions.append(KEY, talk(("a", None), ("b", "a"), ("c", "b")))
        thread.compact("S", upto=1)
        summary = thread.load().compactions[0].text
        assert chain(await sessions.load(KEY)) == ["boundary", summary, "b", "c"]
        assert uuids(await TreeringSessionStore(memory, view="full").load(KEY)) == ["a", "b", "c"]
        thread.compact("T")  # nothing is left, so what is appended follows the summary itself
        loaded = await sessions.load(KEY)
        assert chain(loaded) == ["boundary", thread.load().compactions[1].text]
        await sessions.append(KEY, [*loaded[-2:], *talk(("d", loaded[-1]["uuid"]))])
        assert chain(await sessions.load(KEY))[2:] == ["d"]
        thread.uncompact(everything=True)
        assert chain(await sessions.load(KEY)) == ["a", "b", "c", "d"]
        assert uuids(thread.load().messages) == ["a", "b", "c", "d"]

    asyncio.run(main())


def test_a_summary_that_others_append_meanwhile_is_one_compaction(memory):
    async def main():
        one, other = TreeringSessionStore(memory), TreeringSessionStore(memory)
        await one.append(KEY, talk(("a", None), ("b", "a")))
        await other.load(KEY)
        await one.append(KEY, talk(("c", "b")))
        boundary = entry("x", parentUuid=None, logicalParentUuid="c") | {
            "type": "system",
            "subtype": "compact_boundary",
            "compactMetadata": {"preTokens": 9, "preservedMessages": {"uuids": ["c"]}},
        }
        (summary,) = talk(("s", "x"))
        new = [boundary, {**summary, "isCompactSummary": True}]
        await other.append(KEY, new)
        await one.append(KEY, new)
        thread = memory.thread(*one.thread_id(KEY))
        (made,) = thread.load().compactions
        assert (made.upto, made.tokens_before, uuids(made.messages)) == (5, 9, ["s", "c"])
        assert uuids(await one.load(KEY)) == ["a", "b", "c", "x", "s"]
        assert thread.load(view="compact").messages == made.messages

    asyncio.run(main())

"""The Claude Agent SDK on treering: its own conformance suite, its store-backed functions, and real runs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from threading import Event
from uuid import UUID

import claude_agent_sdk as sdk
import pytest
from claude_agent_sdk.testing import run_session_store_conformance
from hypothesis import given, settings
from hypothesis import strategies as st

import treering
from tests.adapters import claude_worker
from treering.adapters.claude_agent_sdk import TreeringSessionStore
from treering.errors import Closed, Conflict, InvalidInput

ROOT = Path(__file__).resolve().parents[2]
KEY = {"project_key": "proj", "session_id": "sess"}
CONTRACTS = 14


def entry(uuid, **more):
    return {"type": "user", "uuid": uuid, **more}


def uuids(entries):
    return [each["uuid"] for each in entries]


@pytest.fixture
def memory():
    with treering.open("memory:") as opened:
        yield opened


def test_every_contract_of_the_sdks_suite_holds(store):
    """The suite asks for one store to look at, and for one per contract that it then checks."""
    made = []

    def make():
        made.append(TreeringSessionStore(store.in_namespace(f"space-{len(made)}")))
        return made[-1]

    asyncio.run(run_session_store_conformance(make))
    assert len(made) == CONTRACTS + 1
    assert store.verify().ok


def test_an_entry_that_comes_again_is_kept_once(store):
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


def test_what_has_no_uuid_is_kept_each_time(memory):
    async def main():
        sessions = TreeringSessionStore(memory)
        title = {"type": "custom-title", "customTitle": "t"}
        await sessions.append(KEY, [title, title])
        await sessions.append(KEY, [title])
        assert await sessions.load(KEY) == [title] * 3

    asyncio.run(main())


def test_a_batch_that_changes_nothing_saves_no_moment(memory):
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


def test_a_transcript_is_a_thread(memory):
    async def main():
        sessions = TreeringSessionStore(memory)
        await sessions.append(KEY, [entry("a")])
        await sessions.append({**KEY, "subpath": "subagents/agent-1"}, [entry("s")])

    asyncio.run(main())
    found = sorted((info.namespace, info.id) for info in memory.threads(namespace=None))
    assert found == [("proj", "sess"), ("proj", "sess/subagents/agent-1")]
    thread = memory.thread("sess", "proj")
    assert thread.load().messages == [entry("a")]
    fork = thread.fork("bolder")
    fork.append(entry("b"))
    with pytest.raises(Conflict):
        asyncio.run(TreeringSessionStore(memory).delete(KEY))
    assert memory.verify().ok


def test_other_threads_of_a_namespace_are_no_sessions(memory):
    async def main():
        memory.thread("chat", "proj").append({"role": "user", "content": "hi"})
        memory.thread("sess/own", "proj").append({"role": "user", "content": "hi"})
        sessions = TreeringSessionStore(memory)
        await sessions.append(KEY, [entry("a")])
        assert [each["session_id"] for each in await sessions.list_sessions("proj")] == ["sess"]
        assert [each["session_id"] for each in await sessions.list_session_summaries("proj")] == ["sess"]
        assert await sessions.list_subkeys(KEY) == []

    asyncio.run(main())


def test_the_users_own_state_is_left_alone(memory):
    async def main():
        sessions = TreeringSessionStore(memory)
        await sessions.append(KEY, [entry("a")])
        thread = memory.thread("sess", "proj")
        thread.checkpoint(state={**thread.load().state, "own": 1})
        await sessions.append(KEY, [{"type": "custom-title", "customTitle": "new"}])
        state = thread.load().state
        assert state["own"] == 1
        assert state["claude_summary"]["custom_title"] == "new"

    asyncio.run(main())


def test_the_stores_hooks_fire_and_veto(memory):
    seen = []
    memory.hooks.add("post_checkpoint_save", lambda saved: seen.append(("saved", saved.thread_id)))
    memory.hooks.add("post_checkpoint_load", lambda saved: seen.append(("loaded", saved.thread_id)))

    def veto(saving):
        return False if uuids(saving.messages) == ["no"] else None

    memory.hooks.add("pre_checkpoint_save", veto)

    async def main():
        sessions = TreeringSessionStore(memory)
        await sessions.append(KEY, [entry("a")])
        await sessions.append(KEY, [entry("no")])
        assert uuids(await sessions.load(KEY)) == ["a"]

    asyncio.run(main())
    assert seen == [("saved", "sess"), ("loaded", "sess")]


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
        "try:\n    import treering.adapters.claude_agent_sdk\n"
        "except Exception as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.startswith("MissingExtra")
    assert "pip install 'treering[claude-agent-sdk]'" in done.stdout


# --- the SDK's own functions on a store -----------------------------------------------------------


def conversation(session_id):
    """A transcript as the CLI writes it: user and assistant by turns, each the child of the one before."""
    ids = [str(UUID(int=number + 1)) for number in range(4)]
    texts = ["What is a tree ring?", "A year of growth.", "And a wide one?", "A good year."]
    return [
        {
            "type": "user" if number % 2 == 0 else "assistant",
            "uuid": ids[number],
            "parentUuid": ids[number - 1] if number else None,
            "sessionId": session_id,
            "timestamp": f"2026-01-01T00:00:0{number}.000Z",
            "isSidechain": False,
            "cwd": "/project",
            "message": {
                "role": "user" if number % 2 == 0 else "assistant",
                "content": texts[number] if number % 2 == 0 else [{"type": "text", "text": texts[number]}],
            },
        }
        for number in range(4)
    ]


def test_the_sdk_lists_names_tags_forks_and_deletes_sessions(store, tmp_path):
    session_id = str(UUID(int=77))
    folder = str(tmp_path)
    key = {"project_key": sdk.project_key_for_directory(folder), "session_id": session_id}

    async def main():
        sessions = TreeringSessionStore(store)
        await sessions.append(key, conversation(session_id))
        (info,) = await sdk.list_sessions_from_store(sessions, directory=folder)
        assert (info.session_id, info.first_prompt) == (session_id, "What is a tree ring?")
        await sdk.rename_session_via_store(sessions, session_id, "Rings", directory=folder)
        await sdk.tag_session_via_store(sessions, session_id, "trees", directory=folder)
        info = await sdk.get_session_info_from_store(sessions, session_id, directory=folder)
        assert (info.custom_title, info.tag) == ("Rings", "trees")
        messages = await sdk.get_session_messages_from_store(sessions, session_id, directory=folder)
        assert [message.type for message in messages] == ["user", "assistant"] * 2
        fork = await sdk.fork_session_via_store(
            sessions, session_id, directory=folder, up_to_message_id=messages[1].uuid
        )
        forked = await sdk.get_session_messages_from_store(sessions, fork.session_id, directory=folder)
        assert [message.message["content"] for message in forked] == [
            message.message["content"] for message in messages[:2]
        ]
        assert len(await sdk.list_sessions_from_store(sessions, directory=folder)) == 2
        await sdk.delete_session_via_store(sessions, session_id, directory=folder)
        (left,) = await sdk.list_sessions_from_store(sessions, directory=folder)
        assert left.session_id == fork.session_id

    asyncio.run(main())


# --- real runs: the SDK and its CLI, with a scripted model ----------------------------------------


@pytest.fixture
def cli():
    """Whether the installed wheel brings its CLI (those for some platforms do not)."""
    if not (Path(sdk.__file__).parent / "_bundled" / "claude").exists() and shutil.which("claude") is None:
        pytest.skip("this platform's wheel of claude-agent-sdk has no CLI in it")


@pytest.mark.usefixtures("cli")
def test_a_real_session_is_mirrored_and_resumed_where_only_the_store_knows_it(memory, tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith(("ANTHROPIC", "CLAUDE")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)

    async def ask(sessions, api, home, **more):
        chosen = claude_worker.options(tmp_path, home, api, session_store=sessions, **more)
        seen = [message async for message in sdk.query(prompt="Add up the squares.", options=chosen)]
        assert not any(isinstance(message, sdk.MirrorErrorMessage) for message in seen)
        return seen[-1]

    async def main(api):
        sessions = TreeringSessionStore(memory)
        first = await ask(sessions, api, tmp_path / "home")
        assert first.result == claude_worker.ANSWER
        (listed,) = await sdk.list_sessions_from_store(sessions, directory=str(tmp_path / "project"))
        assert listed.session_id == first.session_id
        assert listed.first_prompt == "Add up the squares."

        (info,) = memory.threads(namespace=None)
        assert info.id == first.session_id
        entries = memory.thread(info.id, info.namespace).load().messages
        on_disk = next((tmp_path / "home").rglob(f"{first.session_id}.jsonl")).read_text().splitlines()
        known = {each["uuid"]: each for each in entries if "uuid" in each}
        for line in map(json.loads, on_disk):
            assert "uuid" not in line or known[line["uuid"]] == line

        shutil.rmtree(tmp_path / "home")
        again = await ask(sessions, api, tmp_path / "elsewhere", resume=first.session_id)
        assert again.result == claude_worker.ANSWER
        longer = memory.thread(info.id, info.namespace).load().messages
        assert longer[: len(entries)] == entries
        assert claude_worker.tool_results(longer) == ["1:1", "2:4", "3:9", "4:16"]

    with claude_worker.scripted_api() as api:
        asyncio.run(main(api))
    assert (tmp_path / "ran.txt").read_text().split() == ["1", "2", "3", "4"]


@pytest.mark.faults
@pytest.mark.timeout(300)  # importing the SDK in each process takes most of it
@pytest.mark.usefixtures("cli")
def test_a_session_that_was_killed_goes_on_in_another_process(tmp_path):
    """Killed while its third tool runs, its CLI too, and its home lost; what was mirrored is enough."""
    command = [sys.executable, "-m", "tests.adapters.claude_worker", str(tmp_path)]
    with subprocess.Popen(
        [*command, str(tmp_path / "home"), "-", "3"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as worker:
        said = next(line for line in worker.stdout if line.startswith("2 "))
        os.killpg(worker.pid, signal.SIGKILL)
    session_id = said.split()[1]
    first = (tmp_path / "ran.txt").read_text().split()
    assert first in (["1", "2"], ["1", "2", "3"])
    shutil.rmtree(tmp_path / "home")
    done = subprocess.run(
        [*command, str(tmp_path / "another"), session_id],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert f"answer: {claude_worker.ANSWER}" in done.stdout.splitlines()
    assert (tmp_path / "ran.txt").read_text().split() == [*first, "3", "4"]
    with treering.open(tmp_path / "store") as store:
        assert store.verify().ok


def test_the_example_brings_each_entry_once():
    command = [sys.executable, str(ROOT / "examples" / "claude_agent_sdk_store.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    once = [
        "00000000-0000-0000-0000-000000000001  Count the rings.",
        "  entries: 3, subagents: 1, moments: 1",
        "verified: True",
    ]
    assert done.stdout.splitlines() == once * 2

"""Sessions of the Claude Agent SDK as threads: its own functions on them, and real runs that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import claude_agent_sdk as sdk
import pytest

import treering
from tests.adapters.claude import worker as claude_worker
from tests.adapters.claude.entries import KEY, entry, uuids
from treering.adapters.claude.session_store import TreeringSessionStore
from treering.errors import Conflict

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def memory():
    with treering.open("memory:") as opened:
        yield opened


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


@pytest.mark.usefixtures("cli")
def test_a_compacted_session_is_resumed_from_its_summary_and_keeps_every_entry(memory, tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.upper().startswith(("ANTHROPIC", "CLAUDE")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    compacted = "<summary>They asked to add up squares.</summary>"

    def answer(messages):
        if "create a detailed summary" in str(messages[-1]):
            return {"type": "text", "text": compacted}
        return {"type": "text", "text": f"Reply {len(claude_worker.requests)}."}

    monkeypatch.setattr(claude_worker, "answer", answer)
    monkeypatch.setattr(claude_worker, "requests", [])

    async def ask(prompt, api, home, **more):
        chosen = claude_worker.options(
            tmp_path, tmp_path / home, api, session_store=TreeringSessionStore(memory), **more
        )
        return [each async for each in sdk.query(prompt=prompt, options=chosen)][-1].session_id

    async def main(api):
        session = await ask("FIRST question", api, "a")
        (info,) = memory.threads(namespace=None)
        thread = memory.thread(info.id, info.namespace)
        entries = thread.load().messages
        answered = next(at for at, each in enumerate(entries) if each["type"] == "assistant")
        thread.compact("They greeted.", upto=answered)
        await ask("SECOND question", api, "b", resume=session)
        seen = str(claude_worker.requests[-1])
        assert ("They greeted." in seen, "Reply 1." in seen, "FIRST" in seen) == (True, True, False)
        assert thread.load().messages[: len(entries)] == entries

        thread.uncompact()
        await ask("/compact", api, "c", resume=session)  # now by Claude Code itself
        seen = str(claude_worker.requests[-1])
        assert ("They greeted." in seen, "FIRST" in seen, "SECOND" in seen) == (False, True, True)
        (made,) = thread.load().compactions
        assert (made.source, "add up squares" in made.text) == ("claude-code", True)
        await ask("THIRD question", api, "d", resume=session)
        seen = str(claude_worker.requests[-1])
        assert ("add up squares" in seen, "FIRST" in seen, "THIRD" in seen) == (True, False, True)

        thread.uncompact()
        await ask("FOURTH question", api, "e", resume=session)
        seen = str(claude_worker.requests[-1])
        assert [each in seen for each in ("FIRST", "SECOND", "THIRD", "FOURTH")] == [True] * 4
        assert "add up squares" not in seen

    with claude_worker.scripted_api() as api:
        asyncio.run(main(api))
    assert memory.verify().ok


@pytest.mark.faults
@pytest.mark.timeout(300)  # importing the SDK in each process takes most of it
@pytest.mark.usefixtures("cli")
def test_a_killed_session_is_resumed_in_another_process(tmp_path):
    """Killed while its third tool runs, its CLI too, and its home lost; what was mirrored is enough."""
    command = [sys.executable, "-m", "tests.adapters.claude.worker", str(tmp_path)]
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
        "  entries: 3, subagents: 1, checkpoints: 1",
        "verified: True",
    ]
    assert done.stdout.splitlines() == once * 2


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


def test_an_async_hook_is_awaited_in_the_callers_loop_and_changes_entries(memory):
    loops = []

    async def redact(saving):
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return {"messages": [{**each, "pin": "****"} for each in saving.messages]}

    memory.hooks.add("pre_checkpoint_save", redact)

    async def main():
        sessions = TreeringSessionStore(memory)
        await sessions.append(KEY, [entry("a", pin="4711")])
        assert loops == [asyncio.get_running_loop()]
        assert await sessions.load(KEY) == [entry("a", pin="****")]

    asyncio.run(main())
    with TreeringSessionStore(memory) as again:
        assert asyncio.run(again.load(KEY)) == [entry("a", pin="****")]

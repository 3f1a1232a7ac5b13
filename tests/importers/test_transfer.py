"""Push and pull: threads move between two stores with files, runs and costs, each thing once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import httpx
import pytest
from langgraph.types import Command

import treering
from tests.importers.jsonl_histories import grow, portrait
from tests.importers.test_jsonl_graphs import CONFIG, graph
from tests.replays.provider import provider
from tests.server.running import running
from treering.adapters.langgraph import TreeringSaver
from treering.errors import Conflict, Forbidden, InvalidInput, NotFound, SecretsFound, Unsupported
from treering.importers.remotes import add_remote
from treering.runs.exchanges import read_exchanges
from treering.server.settings import Settings


@pytest.fixture
def laptop(tmp_path):
    with treering.open(tmp_path / "laptop") as store:
        yield store


@pytest.fixture
def team(tmp_path, monkeypatch):
    """A team's server, known as `team`, and its store."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with treering.open(tmp_path / "team") as store, running(store, Settings(calls_per_second=1e6)) as url:
        add_remote("team", url)
        with treering.open(url) as client:
            yield client


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "work"
    (folder / "deep" / "er").mkdir(parents=True)
    for number in range(5):
        (folder / f"{number}.txt").write_text(f"file {number}\n" * 50)
    (folder / "deep" / "large.bin").write_bytes(os.urandom(3_000_000))
    (folder / "deep" / "er" / "note.md").write_text("# Notes\n")
    return folder


def work(store, folder=None, thread="alice", number=1):
    """A turn of a conversation, with a run, files and recorded requests."""
    alice = store.thread(thread)
    with treering.record(store, agent="support", thread=thread) as run:
        for step in range(3):
            with run.tool("search", {"query": f"{number} {step}"}) as span:
                span.output = "x" * 5000
            run.message(
                "assistant",
                f"answer {number} {step}",
                model="gpt-4o",
                usage={"input": 1000, "output": 100 * number},
                cost="0.25",
            )
        said = alice.get()
        turn = {"role": "user", "content": f"turn {number}"}
        alice.checkpoint([*(said.messages if said else []), turn], workspace=folder)
    store.flush()
    return run.id


def chat(server, messages):
    url = f"{server.url}/v1/chat/completions"
    httpx.post(url, json={"model": "gpt-5", "messages": messages}).raise_for_status()


def numbers(report):
    return {each.thread: (each.checkpoints, each.events, each.runs, each.files) for each in report.threads}


def test_a_thread_goes_to_the_team_with_files_runs_and_cost(laptop, team, folder, tmp_path):
    run = work(laptop, folder)
    report = treering.push(laptop, "team://default/alice")
    (moved,) = report.threads
    assert moved.checkpoints == moved.runs == 1
    assert moved.events > 6
    assert moved.bytes > 3_000_000
    assert portrait(team) == portrait(laptop)
    there, here = team.thread("alice").load(), laptop.thread("alice").load()
    assert there.record.snapshot == here.record.snapshot
    team.workspace.restore(there.record.snapshot, tmp_path / "restored")
    assert (tmp_path / "restored/deep/large.bin").read_bytes() == (folder / "deep/large.bin").read_bytes()
    assert team.cost.of_thread("alice").total == laptop.cost.of_thread("alice").total
    assert team.cost.of_thread("alice").total.nanos["USD"] == 750_000_000
    ours, theirs = (
        [(each.type, each.label, each.ts_us, each.ref, each.meta) for each in store.timeline.each_of_run(run)]
        for store in (laptop, team)
    )
    assert ours == theirs
    (listed,) = team.runs.each(thread="alice")
    assert (listed.id, listed.status, listed.agent) == (run, "ok", "support")
    assert team.verify().ok


def test_a_second_push_sends_only_what_is_new(laptop, team, folder):
    work(laptop, folder)
    treering.push(laptop, "team://default/alice")
    again = treering.push(laptop, "team://default/alice")
    assert numbers(again) == {"alice": (0, 0, 0, 0)}
    assert again.bytes == 0
    (folder / "0.txt").write_text("changed")
    work(laptop, folder, number=2)
    (moved,) = treering.push(laptop, "team://default/alice").threads
    assert (moved.checkpoints, moved.runs) == (1, 1)
    assert moved.files == 1, "the folder, which keeps the file"
    assert moved.bytes < 100_000
    assert portrait(team) == portrait(laptop)
    assert team.cost.of_thread("alice").total == laptop.cost.of_thread("alice").total


def test_progress_counts_the_bytes_of_all_threads(laptop, team):
    for name in ("alice", "bob"):
        laptop.thread(name).append({"role": "user", "content": "Where is my refund?"})
    seen = []
    report = treering.push(laptop, "team://default", on_progress=seen.append)
    assert [each.bytes for each in seen] == sorted(each.bytes for each in seen)
    assert (seen[-1].number, seen[-1].bytes) == (2, report.bytes)
    assert team.thread("bob").load().message_count == 1


def test_it_goes_back_and_forth(laptop, team, tmp_path):
    work(laptop)
    treering.push(laptop, "team://default/alice")
    with treering.open(tmp_path / "other laptop") as other:
        assert numbers(treering.pull(other, "team://default/alice"))["alice"][0] == 1
        work(other, number=2)
        treering.push(other, "team://default/alice")
    (back,) = treering.pull(laptop, "team://default/alice").threads
    assert (back.checkpoints, back.runs) == (1, 1)
    work(laptop, number=3)
    treering.push(laptop, "team://default/alice")
    assert portrait(laptop) == portrait(team)
    assert [each["content"] for each in team.thread("alice").load().messages] == [
        "turn 1",
        "turn 2",
        "turn 3",
    ]
    assert laptop.verify().ok
    assert team.verify().ok


def test_everything_that_a_history_can_hold(laptop, team):
    grow(laptop)
    treering.push(laptop, "team://default")
    assert portrait(team, ids={"support/alice", "support/alice-bolder", "deep"}) == {
        key: value for key, value in portrait(laptop).items() if not key[1]
    }
    laptop.thread("support/alice").resume("approve")
    laptop.thread("support/alice").rewind(2)
    laptop.thread("support/alice").append("after a rewind")
    laptop.thread("deep").fork("deeper").append("fork of a fork")
    treering.push(laptop, "team://default")
    treering.push(laptop, "team://default", namespace="bob/x")
    assert portrait(team) == portrait(laptop)
    assert team.verify().ok


def test_a_thread_that_both_sides_continued_is_refused_and_nothing_changes(laptop, team):
    work(laptop)
    treering.push(laptop, "team://default/alice")
    laptop.thread("alice").append("mine")
    team.thread("alice").append("theirs")
    before = portrait(team)
    with pytest.raises(Conflict, match="'alice' has checkpoints in the target that the source does not know"):
        treering.push(laptop, "team://default/alice")
    with pytest.raises(Conflict, match="does not know"):
        treering.pull(laptop, "team://default/alice")
    assert portrait(team) == before
    fork = laptop.thread("alice").fork("alice-mine")
    fork.append("on my own line")
    treering.push(laptop, "team://default/alice-mine")
    assert team.thread("alice-mine").load().messages[-1] == "on my own line"


def test_a_target_that_is_ahead_keeps_its_head(laptop, team):
    work(laptop)
    treering.push(laptop, "team://default/alice")
    team.thread("alice").append("further")
    head = team.thread("alice").head.id
    (moved,) = treering.push(laptop, "team://default/alice").threads
    assert moved.is_ahead
    assert team.thread("alice").head.id == head


def test_forgotten_there_it_is_sent_again(laptop, team):
    work(laptop)
    treering.push(laptop, "team://default/alice")
    team.forget(thread="alice")
    assert list(team.threads()) == []
    treering.push(laptop, "team://default/alice")
    assert portrait(team) == portrait(laptop)
    assert team.cost.of_thread("alice").total == laptop.cost.of_thread("alice").total


def test_a_dry_run_counts_and_writes_nothing(laptop, team, folder):
    work(laptop, folder)
    would = treering.push(laptop, "team://default/alice", dry_run=True)
    assert list(team.threads()) == []
    assert team.stats().rows["events"] == 0
    assert numbers(treering.push(laptop, "team://default/alice")) == numbers(would)


def test_recorded_requests_come_along(laptop, team):
    with provider() as server:
        for _ in range(2):
            with treering.record(laptop, agent="forecaster", thread="alice") as run:
                laptop.thread("alice").append("asked")
                messages = []
                for turn in range(3):
                    messages.append({"role": "user", "content": f"question {turn} " + "x" * 600})
                    chat(server, messages)
            laptop.flush()
            treering.push(laptop, "team://default/alice")
            ours = read_exchanges(laptop.engine, laptop.space, run.id)
            assert len(ours) == 3
            assert read_exchanges(team.engine, team.space, run.id) == ours
    assert team.verify().ok


@pytest.mark.parametrize(
    "killed",
    ["transfer.staged=kill:1", "history.stored=kill:1", "history.stored=kill:3", "transfer.stored=kill"],
)
def test_a_push_that_was_killed_is_finished_by_the_next(laptop, team, folder, killed):
    for number in range(3):
        work(laptop, folder, number=number)
    for step in range(500):
        laptop.thread("alice").append({"role": "user", "content": f"{step}"})
    code = f"import treering; treering.push({str(laptop.engine.url)!r}, 'team://default/alice')"
    environment = {**os.environ, "TREERING_FAILPOINTS": killed}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert team.thread("alice").get() is None or killed.startswith("transfer.stored")
    treering.push(laptop, "team://default/alice")
    assert portrait(team) == portrait(laptop)
    assert team.cost.of_thread("alice").total == laptop.cost.of_thread("alice").total
    assert numbers(treering.push(laptop, "team://default/alice")) == {"alice": (0, 0, 0, 0)}
    assert team.verify().ok


@pytest.mark.parametrize("place", ["message", "span", "file", "second file", "tiny file"])
def test_a_key_stops_it_unless_it_is_allowed(laptop, team, folder, place):
    key = "AKIA" + "Z7QW4ERT2YUI5OPA"
    work(laptop, folder)
    if place == "second file":
        treering.push(laptop, "team://default/alice")
    if place == "message":
        laptop.thread("alice").append({"role": "user", "content": f"use {key}"})
    elif place == "span":
        with laptop.run(thread="alice") as run, run.tool("shell", f"export AWS_ACCESS_KEY_ID={key}"):
            pass
        laptop.flush()
    elif place == "tiny file":  # which its folder keeps
        (folder / "deep/.env").write_text(f"AWS_ACCESS_KEY_ID={key}\n")
        laptop.thread("alice").checkpoint(["with files"], workspace=folder, include=[".env"])
    else:
        # Across the border of two pieces of a large file.
        large = os.urandom(600_000).hex() + f"\nAWS_ACCESS_KEY_ID={key}\n" + os.urandom(600_000).hex()
        (folder / "deep/.env").write_text(large)
        laptop.thread("alice").checkpoint(["with files"], workspace=folder, include=[".env"])
    before = team.stats().rows
    with pytest.raises(SecretsFound, match="nothing of thread 'alice' was sent") as refused:
        treering.push(laptop, "team://default/alice")
    assert key not in str(refused.value)
    assert ("deep/.env" in str(refused.value)) == ("file" in place)
    assert team.stats().rows == before
    (moved,) = treering.push(laptop, "team://default/alice", allow_secrets=True).threads
    assert moved.secrets
    assert portrait(team) == portrait(laptop)


@pytest.mark.usefixtures("team")
def test_async_code_pushes_and_pulls(laptop, tmp_path):
    work(laptop)

    async def both():
        await treering.push_async(laptop, "team://default/alice")
        async with treering.open_async(tmp_path / "other") as other:
            await treering.pull_async(other, "team://default", "alice")
            return [each.id async for each in other.threads()]

    assert asyncio.run(both()) == ["alice"]


def test_two_open_stores_need_no_remote(laptop, tmp_path):
    work(laptop)
    with treering.open(tmp_path / "other") as other:
        treering.push(laptop, other, "alice")
        assert portrait(other) == portrait(laptop)


@pytest.mark.parametrize("writes", ["durable", "with_checkpoint"])
def test_a_graph_is_answered_on_the_other_side_and_comes_back(laptop, team, writes):
    graph(TreeringSaver(laptop, writes=writes)).invoke({"messages": [("user", "hi")], "found": []}, CONFIG)
    treering.push(laptop, "team://default/t")
    there = graph(TreeringSaver(team, writes=writes))
    here = graph(TreeringSaver(laptop, writes=writes))
    assert there.get_state(CONFIG, subgraphs=True).tasks == here.get_state(CONFIG, subgraphs=True).tasks
    there.invoke(Command(resume="30 EUR"), CONFIG)
    treering.pull(laptop, "team://default/t")
    assert portrait(laptop) == portrait(team)
    said = [each.content for each in here.get_state(CONFIG).values["messages"]]
    assert said == [each.content for each in there.get_state(CONFIG).values["messages"]]
    assert said[-1] == "done with 1"
    here.invoke({"messages": [("user", "again")], "found": []}, CONFIG)
    treering.push(laptop, "team://default/t")
    assert portrait(laptop) == portrait(team)
    ours, theirs = (list(each.get_state_history(CONFIG)) for each in (here, there))
    assert [each.values for each in ours] == [each.values for each in theirs]
    assert laptop.verify().ok
    assert team.verify().ok


def test_a_run_that_got_its_thread_later_comes_along(laptop, team):
    laptop.thread("alice").append("hello")
    span = {
        "traceId": "a" * 32,
        "spanId": "b" * 16,
        "name": "chat",
        "kind": 1,
        "startTimeUnixNano": "1700000000000000000",
        "endTimeUnixNano": "1700000001000000000",
        "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}],
    }
    later = {
        **span,
        "spanId": "c" * 16,
        "attributes": [{"key": "gen_ai.conversation.id", "value": {"stringValue": "alice"}}],
    }
    for each in (span, later):
        sent = {"resourceSpans": [{"scopeSpans": [{"spans": [each]}]}]}
        laptop.otlp.write(json.dumps(sent).encode(), signal="traces", encoding="json")
    treering.push(laptop, "team://default/alice")
    (run,) = team.runs.each(thread="alice")
    assert len(list(team.timeline.each_of_run(run.id, everything=True))) == len(
        list(laptop.timeline.each_of_run(run.id, everything=True))
    )
    assert numbers(treering.push(laptop, "team://default/alice"))["alice"] == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "address, error",
    [
        ("team://default/nobody", NotFound),
        ("nowhere://default/alice", NotFound),
        ("https://default/alice", InvalidInput),
        ("alice", InvalidInput),
        ("team://elsewhere/alice", Forbidden),
        ("team://", InvalidInput),
    ],
)
@pytest.mark.usefixtures("team")
def test_an_address_that_leads_nowhere(laptop, address, error):
    work(laptop)
    with pytest.raises(error):
        treering.push(laptop, address)


@pytest.mark.parametrize("url", ["./folder", "memory:", "https://key:secret@example.com"])
@pytest.mark.usefixtures("team")
def test_a_remote_is_a_server_without_secrets(url):
    with pytest.raises((InvalidInput, Unsupported)):
        add_remote("other", url)

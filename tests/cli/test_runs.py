"""Runs, costs, search, budgets, alerts and `tail` on the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress

import pytest

import treering
from treering.core.ids import short_id


@pytest.fixture
def recorded(tmp_path):
    """Two runs that differ in their answer; gives their ids."""
    ids = []
    with treering.open(tmp_path / ".treering") as store:
        for answer, cost in (("On page 3.", 1), ("Nowhere.", 2)):
            with store.run(agent="planner", thread="support/alice", tags=["demo"]) as run:
                run.message("user", "Where is my refund?")
                with run.tool("search_docs", {"q": "refunds"}) as call:
                    call.output = ["page 3"]
                with run.span("gpt-5", kind="llm", model="gpt-5") as span:
                    span.chunk(answer)
                    span.use({"input": 100, "output": 10}, cost=cost)
            ids.append(run.id)
    return ids


def test_runs_are_listed(run, recorded):
    listed = run("runs")
    lines = listed.out.splitlines()
    assert lines[0].split() == [
        "RUN",
        "AGENT",
        "STATUS",
        "STARTED",
        "TOOK",
        "TOKENS",
        "COST",
        "THREAD",
        "SAID",
    ]
    assert [line.split()[0] for line in lines[1:]] == [short_id(each) for each in recorded[::-1]]
    assert "2 USD" in lines[1]
    assert [each["id"] for each in run("runs", "--limit", 1, "--json").json] == recorded[1:]
    assert run("runs", "--agent", "nobody").out == "no runs\n"
    assert run("runs", "--tag", "demo", "--status", "ok", "--json").json[0]["cost"] == [
        {"currency": "USD", "amount": 2}
    ]


def test_a_timeline_is_narrowed_and_also_of_a_thread(run, recorded):
    of_thread = run("timeline", "--thread", "support/alice", "--kind", "tool", "--json").json
    assert [each["run_id"] for each in of_thread] == [recorded[0]] * 2 + [recorded[1]] * 2
    (end,) = run("timeline", "last", "--kind", "llm", "--text", "nowhere", "--json").json[1:]
    assert (end["type"], end["run_id"]) == ("llm.span.end", recorded[1])
    lines = run("timeline", "last", "--text", "refunds", "--status", "ok").out.splitlines()
    assert [line.split("  ")[-1] for line in lines] == [
        "WHAT",
        "call search_docs: refunds",
        'search_docs result: ["page 3"]',
    ]
    assert run("timeline").code == 2
    assert run("timeline", "last", "--thread", "support/alice").code == 2
    assert run("timeline", "last", "--span", "nope").code == 3
    assert run("timeline", "--thread", "nobody").out == "no events\n"


def test_a_timeline_and_a_replay_are_shown(run, recorded):
    shown = run("timeline", recorded[0])
    assert [line.split("  ")[-1] for line in shown.out.splitlines()] == [
        "WHAT",
        "user message: Where is my refund?",
        "call search_docs: refunds",
        'search_docs result: ["page 3"]',
    ]
    assert len(run("timeline", "last", "--everything", "--json").json) == 6
    replayed = run("replay", recorded[0]).out
    assert "user message: Where is my refund?" in replayed
    assert "'On page 3.'" in replayed
    steps = [json.loads(line) for line in run("replay", recorded[0], "--json").out.splitlines()]
    assert len(steps) == len(replayed.splitlines())
    assert "Where is my refund?" in [step["content"] for step in steps]
    assert [step["offset_us"] for step in steps] == sorted(step["offset_us"] for step in steps)
    assert run("timeline", "nobody").code == 3


def test_runs_are_compared(run, recorded):
    compared = run("compare", *recorded)
    assert "2 equal steps, then a different content:" in compared.out
    assert any(line.split() == ["cost", "1", "USD", "2", "USD"] for line in compared.out.splitlines())
    assert run("compare", *recorded, "--json").json["divergences"][0]["what"] == "content"
    assert "no differences" in run("compare", recorded[0], recorded[0]).out


def test_words_are_found(run, recorded):
    found = run("search", "refunds", "--kind", "tool")
    assert "search_docs input" in found.out
    assert {hit["run"] for hit in run("search", "refund", "--json").json["runs"]} == set(recorded)
    nothing = run("search", "zebra")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no hits" in nothing.err


def test_threads_runs_and_memory_are_found_by_kind(run, recorded, tmp_path):
    with treering.open(tmp_path / ".treering") as store:
        store.thread("refund-desk").append({"role": "user", "content": "hello"})
        store.thread("bob").append({"role": "assistant", "content": "Your refunds were sent."})
        store.memory.save("policy", "A refund takes three days.")
    lines = run("search", "refund").out.splitlines()
    assert [line for line in lines if line in {"threads", "runs", "memory"}] == ["threads", "runs", "memory"]
    found = run("search", "refund", "--json").json
    assert [each["thread"] for each in found["threads"]][:2] == ["refund-desk", "bob"]
    assert [(each["part"], each["role"]) for each in found["threads"]][:2] == [
        ("id", "user"),
        ("message", "assistant"),
    ]
    assert {each["run"] for each in found["runs"]} == set(recorded)
    assert [each["document"]["id"] for each in found["memory"]] == ["policy"]


@pytest.mark.parametrize("by, key", [("agent", "planner"), ("tag", "demo"), ("model", "gpt-5")])
def test_costs_are_grouped(run, recorded, by, key):
    assert len(recorded) == 2
    lines = [line.split() for line in run("cost", "--by", by).out.splitlines()]
    assert lines[-1][:4] == ["total", "220", "3", "USD"]
    assert any(line[:4] == [key, "220", "3", "USD"] for line in lines)


def test_costs_of_one_run_and_of_days(run, recorded):
    assert run("cost", "--run", recorded[0], "--json").json["total"]["cost"] == [
        {"currency": "USD", "amount": 1}
    ]
    assert run("cost", "--run", "nobody").code == 3
    assert run("cost", "--run", recorded[0], "--by", "tag").code == 2
    assert run("cost", "--by", "day", "--days", 1).out.splitlines()[1].split()[0].count("-") == 2


def test_speed_and_growth(run, recorded):
    assert len(recorded) == 2
    lines = run("performance").out.splitlines()
    assert lines[1].split()[:3] == ["gpt-5", "2", "0.0%"]
    assert run("performance", "--by", "tool", "--days", 1, "--json").json["total"]["calls"] == 2
    assert "in 30 days at this rate" in run("growth").out


def test_a_budget_is_set_shown_and_removed(run, recorded):
    assert run("budgets", "list").out == "no budgets\n"
    made = run(
        "budgets", "set", "daily", "--per", "store", "--every", "day", "--money", "6", "--tokens", 9999
    )
    assert (made.code, made.out) == (0, "budget daily is set\n")
    line = run("budgets", "list").out.splitlines()[1]
    assert line.split() == ["daily", "store", "day", "6", "USD,", "9,999", "tokens", "stop", "50%"]
    assert run("budgets", "list", "--agent", "planner", "--json").json[0]["share"] == 0.5
    assert run("budgets", "set", "bad", "--per", "store").code == 2
    assert run("budgets", "remove", "daily").code == 0
    assert run("budgets", "remove", "daily").code == 3
    assert len(recorded) == 2


def test_alerts_are_raised_and_listed(run, recorded, tmp_path):
    assert run("alerts", "list").out == "no alerts\n"
    assert run("alerts", "rule", "failed", "--what", "failed").code == 0
    with suppress(RuntimeError), treering.open(tmp_path / ".treering") as store, store.run(agent="a"):
        raise RuntimeError("no")
    assert "ended as error: RuntimeError: no" in run("alerts", "check").out
    assert run("alerts", "check").out == "no new alerts\n"
    assert run("alerts", "list", "--json").json[0]["level"] == "critical"
    assert run("alerts", "webhook", "ops", "http://127.0.0.1:1/").code == 0
    assert "webhook  ops" in run("alerts", "rules").out
    assert "ops: 0 sent" in run("alerts", "check").out
    assert run("alerts", "remove", "ops").code == 0
    assert run("alerts", "remove", "ops").code == 3
    assert len(recorded) == 2


def test_old_runs_are_dropped(run, recorded):
    result = run("gc", "--keep-runs", "last=1", "--dry-run")
    assert result.out.startswith("would drop 1 run")
    assert run("gc", "--keep-runs", "last=1").code == 0
    assert [each["id"] for each in run("runs", "--json").json] == recorded[1:]


def record_run(store):
    with store.run(agent="planner", thread="alice", id="run-1") as run:
        with run.tool("search_docs", {"q": "refunds"}) as call:
            call.output = ["page 3"]
        run.message("assistant", "On page 3.", model="gpt-5", usage={"input": 412, "output": 96})
    store.flush()


def test_tail_prints_a_line_per_event(run, tmp_path):
    with treering.open(tmp_path / "s") as store:
        record_run(store)
    result = run("tail", "--store", "s", "--after", 0, "--seconds", 0.01)
    assert result.code == 0
    tool, message = (line for line in result.out.splitlines() if "tool" in line or "assistant" in line)
    assert "planner" in tool
    assert "search_docs" in tool
    assert "assistant: gpt-5" in message
    assert "508 tokens, 0.001475 USD" in message
    assert "\x1b" not in result.out


def test_tail_shows_what_a_checkpoint_without_a_run_says(run, tmp_path):
    with treering.open(tmp_path / "plain") as store:
        store.thread("support/alice").append({"role": "user", "content": "Where is my **refund**?"})
    result = run("tail", "--store", tmp_path / "plain", "--after", 0, "--seconds", 0.01)
    assert re.search(r"checkpoint +support/alice +ckpt_\w+: Where is my refund\?", result.out)
    line = run("tail", "--store", tmp_path / "plain", "--after", 0, "--seconds", 0.01, "--json").out
    assert json.loads(line)["content"]["role"] == "user"


def test_tail_prints_the_events_of_a_timeline(run, tmp_path):
    with treering.open(tmp_path / "s") as store:
        record_run(store)
    tail = ("tail", "--store", "s", "--after", 0, "--shape", "timeline", "--seconds", 0.01)
    assert "call search_docs" in run(*tail).out
    told = [json.loads(line) for line in run(*tail, "--json").out.splitlines()]
    listed = json.loads(run("timeline", "run-1", "--store", "s", "--json").out)
    assert sorted(told, key=str) == sorted(listed, key=str)


def test_tail_filters_and_resumes_after_a_number(run, tmp_path):
    with treering.open(tmp_path / "s") as store:
        record_run(store)
    lines = run("tail", "--store", "s", "--after", 0, "--kind", "span", "--seconds", 0.01, "--json").out
    (event,) = map(json.loads, lines.splitlines())
    assert (event["kind"], event["name"], event["run"]) == ("span.tool", "search_docs", "run-1")
    rest = run("tail", "--store", "s", "--after", event["seq"], "--seconds", 0.01, "--json").out
    assert all(json.loads(line)["seq"] > event["seq"] for line in rest.splitlines())
    assert "message" in rest
    assert run("tail", "--store", "s", "--after", -1).code == 2


def test_tail_follows_another_process(tmp_path):
    with treering.open(tmp_path / "s") as store:
        store.commit(store.draft())
        command = [
            sys.executable,
            "-m",
            "treering",
            "tail",
            "--store",
            str(tmp_path / "s"),
            "--json",
        ]
        watching = subprocess.Popen([*command, "--after", "0"], stdout=subprocess.PIPE, text=True)
        try:
            record_run(store)
            kinds = [json.loads(watching.stdout.readline())["kind"] for _ in range(4)]
        finally:
            watching.kill()
            watching.communicate()
    assert sorted(kinds) == ["message", "run", "run", "span.tool"]

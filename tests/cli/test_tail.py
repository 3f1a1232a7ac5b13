from __future__ import annotations

import json
import subprocess
import sys

import treering


def record(store):
    with store.run(agent="planner", thread="alice", id="run-1") as run:
        with run.tool("search_docs", {"q": "refunds"}) as call:
            call.output = ["page 3"]
        run.message("assistant", "On page 3.", model="gpt-5", usage={"input": 412, "output": 96})
    store.flush()


def test_tail_prints_a_line_per_event(run, tmp_path):
    with treering.open(tmp_path / "s") as store:
        record(store)
    told = run("tail", "--store", "s", "--after", 0, "--seconds", 0.01)
    assert told.code == 0
    tool, message = (line for line in told.out.splitlines() if "tool" in line or "assistant" in line)
    assert "planner" in tool
    assert "search_docs" in tool
    assert "assistant: gpt-5" in message
    assert "508 tokens, 0.001475 USD" in message
    assert "\x1b" not in told.out


def test_tail_filters_and_resumes_after_a_number(run, tmp_path):
    with treering.open(tmp_path / "s") as store:
        record(store)
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
            "treering.cli.main",
            "tail",
            "--store",
            str(tmp_path / "s"),
            "--json",
        ]
        watching = subprocess.Popen([*command, "--after", "0"], stdout=subprocess.PIPE, text=True)
        try:
            record(store)
            kinds = [json.loads(watching.stdout.readline())["kind"] for _ in range(4)]
        finally:
            watching.kill()
            watching.communicate()
    assert sorted(kinds) == ["message", "run", "run", "span.tool"]

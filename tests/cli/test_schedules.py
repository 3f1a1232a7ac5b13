"""treering state, schedules and worker, as they are typed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from threading import Thread

import pytest

import treering


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / ".treering") as opened:
        opened.state.set("greeting", {"text": "hi\x1b[31m"})
        yield opened


@pytest.mark.usefixtures("store")
def test_state_is_read_and_written(run):
    assert run("state", "get", "greeting").out == '{"text":"hi\\u001b[31m"}\n'
    assert run("state", "set", "n", "41").out == "n is at version 1\n"
    assert run("state", "add", "n").out == "42\n"
    assert run("state", "add", "n", "--json", "--", "-2").json == {"key": "n", "value": 40}
    listed = run("state", "list", "--json").json
    assert [(each["key"], each["version"]) for each in listed] == [("greeting", 1), ("n", 3)]
    assert run("state", "list", "n").out.splitlines()[1].split()[0] == "n"
    changes = run("state", "history", "n", "--json").json
    assert [(each["operation"], each["value"]) for each in changes] == [
        ("added", 40),
        ("added", 42),
        ("set", 41),
    ]
    moved = run("state", "set", "n", "1", "--if-version", "1")
    assert (moved.code, "is at version 3" in moved.err) == (4, True)
    assert run("state", "delete", "n").out == "deleted n\n"
    assert run("state", "delete", "n", "--json").json == {"key": "n", "deleted": False}
    missing = run("state", "get", "n")
    assert (missing.code, "state 'n' not found" in missing.err) == (3, True)
    wrong = run("state", "set", "n", "text")
    assert (wrong.code, "is not JSON" in wrong.err) == (2, True)
    assert run("state", "set", "k", "1", "--user-namespace", "alice").code == 0
    assert run("state", "list", "--user-namespace", "alice", "--json").json[0]["key"] == "k"


def test_state_watch_prints_changes(store, tmp_path):
    # A test run started in the background ignores SIGINT, and so would its children.
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = listening + "from treering.cli.main import main; main(['state', 'watch', '--json'])"
    watching = subprocess.Popen(
        [sys.executable, "-c", command], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        number = 0
        # Only changes after the watch has started are printed, so write until one has been.
        lines = []
        reader = Thread(target=lambda: lines.append(watching.stdout.readline()))
        reader.start()
        while reader.is_alive():
            number += 1
            store.state.set("watched", number)
            reader.join(0.05)
        watching.send_signal(signal.SIGINT)
        watching.wait(timeout=60)
    finally:
        watching.kill()
        watching.communicate()
    assert json.loads(lines[0])["key"] == "watched"
    assert watching.returncode == 130


def test_tasks_are_created_and_changed(run, store):
    made = run(
        "schedules", "add", "Check the weather", "--cron", "0 8 * * *", "--tz", "Europe/Berlin",
        "--channel", "telegram", "--chat-id", "123456", "--json",
    ).json  # fmt: skip
    task_id = made["task"]["id"]
    assert (made["task"]["type"], made["task"]["value"], len(made["next"])) == ("cron", "0 8 * * *", 3)
    assert made["next"][0].endswith(("T08:00:00+01:00", "T08:00:00+02:00"))
    listed = run("schedules", "list").out
    assert "At 08:00 every day (Europe/Berlin)" in listed
    assert "Check the weather" in listed
    assert run("schedules", "pause", task_id).out == f"{task_id} paused\n"
    assert run("schedules", "resume", task_id, "--json").json["task"].get("status", "active") == "active"
    assert (
        run("schedules", "run-now", task_id, "--json").json["task"]["open_occurrences"][0]["manual"] is True
    )
    assert "thread      scheduler_" + task_id in run("schedules", "show", task_id).out
    assert len(run("schedules", "preview", task_id, "--limit", "3").out.splitlines()) == 3
    assert len(run("schedules", "preview", "0 8 * * *", "--tz", "Asia/Tokyo", "--json").json) == 5
    assert run("schedules", "cancel", task_id).code == 0
    assert run("schedules", "list", "--json").json == []
    assert run("schedules", "list", "--all", "--json").json[0]["task"]["status"] == "cancelled"
    (skipped,) = run("schedules", "occurrences", task_id, "--json").json
    assert (skipped["outcome"], skipped["reason"]) == ("skipped", "the task was cancelled")
    assert "the task was cancelled" in run("schedules", "occurrences").out
    assert store.schedules.list_tasks() == []


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (("schedules", "add", "p"), 2, "exactly one of --cron, --every and --at"),
        (("schedules", "add", "p", "--cron", "0 8 * * *", "--every", "5"), 2, "one of --cron"),
        (("schedules", "add", "p", "--cron", "nonsense"), 2, "does not have five fields"),
        (("schedules", "add", "p", "--every", "0"), 2, "interval 0.0 is out of range"),
        (("schedules", "add", "p", "--at", "2001-01-01"), 2, "is in the past"),
        (("schedules", "add", "p", "--every", "5", "--overlap", "maybe"), 2, "invalid policy"),
        (("schedules", "cancel", "deadbeef"), 3, "task 'deadbeef' not found"),
        (("worker",), 2, "give either --handler"),
        (("worker", "--handler", "no.such:thing"), 2, "cannot be loaded"),
        (("worker", "--handler", "os:sep"), 2, "is not callable"),
    ],
)
def test_invalid_arguments_are_reported(run, arguments, code, words):
    ran = run(*arguments)
    assert (ran.code, words in ran.err) == (code, True), ran.err


def test_the_worker_can_run_a_program(store, tmp_path):
    good = store.schedules.interval(86_400, prompt="speak", channel="telegram", chat_id="7")
    bad = store.schedules.interval(86_400, prompt="fail")
    program = (
        "import os, sys; text = sys.stdin.read(); text == 'fail' and sys.exit('no way'); "
        "print(text.upper(), os.environ['TREERING_CHANNEL'], os.environ['TREERING_CHAT_ID'])"
    )
    command = [sys.executable, "-m", "treering", "worker", "--", sys.executable, "-c", program]
    worker = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        for task in (good, bad):
            store.schedules.run_now(task.id)
        last = store.engine.wait(store.space, 0, seconds=0)
        while len(list(store.schedules.occurrences())) < 2:
            assert worker.poll() is None
            last = store.engine.wait(store.space, last, seconds=60)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
    assert worker.returncode == 0
    (done,) = store.schedules.occurrences(good.id)
    assert (done.outcome, done.result) == ("ok", "SPEAK telegram 7\n")
    (failed,) = store.schedules.occurrences(bad.id)
    assert failed.outcome == "error"
    assert "exited with 1: no way" in failed.reason

"""The demo ends well, and what it prints is what its store holds."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import treering
from treering.replays.comparison import compare_reruns

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"
LEAD, CODER, FORK = "slugs/lead", "slugs/coder", "slugs/coder-german"


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The folder that the demo leaves, and what it printed."""
    folder = tmp_path_factory.mktemp("demo") / "kept"
    done = subprocess.run(
        [sys.executable, str(DEMO), "--no-serve", "--folder", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_it_says_that_nothing_was_lost(played):
    _folder, printed = played
    assert "FAILED: " not in printed
    assert printed.rstrip().endswith("Nothing acknowledged was lost.")
    assert re.search(r"ok: process \d+ was killed with SIGKILL", printed)
    assert "on disk: 75 of 150 bytes of slugs.py" in printed


def test_killed_payments_were_made_once(played):
    folder, printed = played
    assert "ok: each payment was made once" in printed
    assert "nobody knows: pay_carrier {'order': '4711'}" in printed
    with treering.open(folder / "store") as store:
        made = {each.tool: each for each in store.effects.list(thread_id="shop/refund-4711")}
        assert (made["refund"].attempt, made["pay_carrier"].attempt) == (2, 1)
        assert made["pay_carrier"].decided_by == "ann"


def test_the_second_process_made_the_open_call_again_and_no_other(played):
    folder, _printed = played
    with treering.open(folder / "store") as store:
        messages = store.thread(CODER).load().messages
        calls = [each["tool_calls"][0] for each in messages if each.get("tool_calls")]
        answers = [each["tool_call_id"] for each in messages if each["role"] == "tool"]
        assert [call["id"] for call in calls] == answers
        assert [call["function"]["name"] for call in calls] == [
            "write_file",
            "write_file",
            "run_tests",
            "write_file",
            "run_tests",
        ]
        assert "FAILED (failures=2)" in messages[6]["content"]  # the draft, really run


def test_the_job_went_on_after_the_kill(played):
    folder, _printed = played
    with treering.open(folder / "store") as store:
        runs = [run for run in store.runs.each() if run.thread in {CODER, FORK, LEAD}]
        assert sorted(run.thread for run in runs) == [CODER, CODER, FORK, LEAD, LEAD]
        assert sum(run.status == "ok" for run in runs) == 3
        resumed = {run.meta["resumes"] for run in runs if "resumes" in run.meta}
        assert resumed == {run.id for run in runs if run.status != "ok"}


def test_rewinding_lost_nothing_and_both_branches_have_their_files(played):
    folder, _printed = played
    with treering.open(folder / "store") as store:
        coder, fork = store.thread(CODER), store.thread(FORK)
        assert coder.load().state["tests"] == {"ran": 3, "passed": 3}
        assert fork.load().state["tests"] == {"ran": 4, "passed": 4}
        result = coder.diff(coder.head, fork.head)
        assert {change.path for change in result.files} == {"slugs.py", "test_slugs.py"}
        for thread, name in ((coder, "work"), (fork, "work-german")):
            kept = store.workspace.cat(thread.head.snapshot, "slugs.py")
            assert kept == (folder / name / "slugs.py").read_bytes()
        assert store.verify().ok


def test_costs_are_those_of_the_store(played):
    folder, printed = played
    with treering.open(folder / "store") as store:
        for thread in (LEAD, CODER, FORK):
            total = store.cost.of_thread(thread).total
            assert not total.is_unpriced
            line = next(each for each in printed.splitlines() if each.split()[:1] == [thread])
            assert line.split()[2:] == [f"{total.tokens:,}", f"{total.amount('USD'):.6f}"]
        assert {part.key for part in store.cost.of_days().parts}


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "mine").write_text("keep me")
    done = subprocess.run(
        [sys.executable, str(DEMO), "--folder", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "is not empty" in done.stderr
    assert (tmp_path / "mine").read_text() == "keep me"


def test_a_person_is_shown_the_dashboard(tmp_path):
    """With a terminal the demo serves what it made, until Ctrl-C."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(DEMO), "--port", "0"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
    )
    os.close(theirs)
    try:
        printed = said_until(ours, "Stop with Ctrl-C.")
        address = re.search(r"Dashboard: (http://127\.0\.0\.1:\d+)/ui/", printed)
        assert address, printed
        with urllib.request.urlopen(f"{address[1]}/ui/", timeout=10) as page:
            assert b"<script" in page.read()
        with urllib.request.urlopen(f"{address[1]}/threads", timeout=10) as page:
            assert CODER.encode() in page.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) in {0, 130}
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert list(tmp_path.iterdir()) == []


def said_until(terminal: int, words: str) -> str:
    printed, end = "", time.monotonic() + 90
    while words not in printed:
        ready, _, _ = select.select([terminal], [], [], max(end - time.monotonic(), 0))
        assert ready, printed
        printed += os.read(terminal, 65536).decode()
    return printed


def test_the_coder_was_run_again_by_two_models(played):
    folder, printed = played
    with treering.open(folder / "store") as store:
        (original,) = [each for each in store.runs.each() if each.thread == "slugs/recorded"]
        made = compare_reruns(store, original.id)
    assert [(each.variant, each.status) for each in made.reruns] == [("careful_coder", "ok")] * 2 + [
        ("coder_model", "ok")
    ] * 2
    assert [each.departure and each.departure.step for each in made.reruns] == [3, 3, None, None]
    assert all(each.verify is not None and each.verify.is_ok for each in (made.original, *made.reruns))
    assert re.search(r"careful_coder +ok +step 3 +8 \(3 same\) +same +ok", printed)

"""Tool calls of Claude happen once: with the real CLI, killed, and by calling the hooks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import treering
from tests.adapters.claude import worker as claude_worker
from treering.adapters.claude.effects import TreeringEffectHooks

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "tests.adapters.claude.worker"]


def resumed(folder, session_id):
    done = subprocess.run(
        [*COMMAND, str(folder), str(folder / "home"), session_id, "-", "effects"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_call_of_a_killed_session_is_not_made_again(tmp_path):
    """Killed while its third tool runs; the next process is told what became of the call."""
    with subprocess.Popen(
        [*COMMAND, str(tmp_path), str(tmp_path / "home"), "-", "3", "effects"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as worker:
        said = []
        assert worker.stdout is not None
        for line in worker.stdout:
            said.append(line)
            if {"hanging", "2"} <= {each.split()[0] for each in said}:
                break
        os.killpg(worker.pid, signal.SIGKILL)
    session_id = next(line for line in said if line.startswith("2 ")).split()[1]
    with treering.open(tmp_path / "store") as store:
        (unknown,) = store.effects.unknown()
        assert (unknown.tool, unknown.arguments) == (claude_worker.TOOL, {"number": 3})
        assert (unknown.thread_id, unknown.namespace != "") == (session_id, True)
    resumed(tmp_path, session_id)  # it stops, as nobody has decided
    assert (tmp_path / "ran.txt").read_text().split() == ["1", "2", "3"]
    with treering.open(tmp_path / "store") as store:
        store.effects.resolve(unknown.id, happened=True, result="3:9")
    assert f"answer: {claude_worker.ANSWER}" in resumed(tmp_path, session_id).splitlines()
    assert (tmp_path / "ran.txt").read_text().split() == ["1", "2", "3", "4"]
    with treering.open(tmp_path / "store") as store:
        assert [each.status for each in store.effects.list()] == ["done"] * 4


class Session:
    """The hooks of a session, called as the CLI calls them."""

    def __init__(self, store, folder, **options):
        self.hooks = TreeringEffectHooks(store, **options)
        self.transcript = folder / "s.jsonl"
        self.transcript.touch()
        self.base = {"session_id": "s", "transcript_path": str(self.transcript), "cwd": str(folder)}

    def before(self, call_id, tool="mcp__bank__pay", **given):
        said = {**self.base, "tool_name": tool, "tool_input": given, "tool_use_id": call_id}
        return asyncio.run(self.hooks.before_tool(said, call_id, {}))

    def after(self, call_id, result=None, *, kind="PostToolUse", **more):
        said = {**self.base, "hook_event_name": kind, "tool_use_id": call_id, "tool_response": result, **more}
        return asyncio.run(self.hooks.after_tool(said, call_id, {}))

    def stop(self):
        return asyncio.run(self.hooks.at_stop({**self.base, "hook_event_name": "Stop"}, None, {}))

    def write(self, call_id, content, *, is_error=False):
        block = {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": is_error}
        with self.transcript.open("a") as lines:
            lines.write(json.dumps({"type": "user", "message": {"content": [block]}}) + "\n")


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


@pytest.fixture
def session(store, tmp_path):
    return Session(store, tmp_path)


def denial(reply):
    return reply["hookSpecificOutput"]["permissionDecisionReason"]


def test_a_result_that_the_transcript_lost_is_the_reason_for_the_denial(store, session, tmp_path):
    assert session.before("a", amount=5) == {}
    session.after("a", "tx_81")
    again = Session(store, tmp_path)
    assert "tx_81" in denial(again.before("b", amount=5))
    assert len(list(store.effects.list())) == 1


def test_a_session_of_a_cancelled_run_stops_before_its_next_call(store, session):
    with store.run("teller") as recorded:
        store.flush()
        store.runs.cancel(recorded.id)
        reply = session.before("a", amount=5)
    assert (reply["continue_"], "was cancelled" in denial(reply)) == (False, True)
    (effect,) = store.effects.list(run_id=recorded.id)
    assert effect.attempt == 0


def test_the_same_call_after_its_result_is_another_one(store, session, tmp_path):
    session.before("a", amount=5)
    session.after("a", "tx_81")
    session.write("a", "tx_81")
    assert Session(store, tmp_path).before("b", amount=5) == {}
    assert len(list(store.effects.list())) == 2


def test_a_call_that_failed_has_its_error_as_outcome(store, session):
    session.before("a", amount=5)
    session.after("a", kind="PostToolUseFailure", error="no money")
    (effect,) = store.effects.list()
    assert (effect.status, effect.result) == ("failed", "no money")


def test_an_interrupted_call_is_unknown(store, session):
    session.before("a", amount=5)
    session.after("a", kind="PostToolUseFailure", error="stopped", is_interrupt=True)
    (effect,) = store.effects.unknown()
    assert effect.note == "interrupted: stopped"


def test_a_call_that_a_person_refused_is_settled_when_the_session_stops(store, session):
    session.before("a", amount=5)
    session.write("a", "The user doesn't want to proceed", is_error=True)
    session.stop()
    (effect,) = store.effects.list()
    assert (effect.status, effect.result) == ("failed", "The user doesn't want to proceed")


def test_reading_tools_leave_no_effect(store, session):
    assert session.before("a", tool="Read", file_path="a.txt") == {}
    assert list(store.effects.list()) == []

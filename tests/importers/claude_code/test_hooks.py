"""Hooks of Claude Code: a session is recorded while it goes on, and nothing of that reaches the agent."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shlex
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from threading import Event, Thread

import claude_agent_sdk
import pytest

import treering
from tests.importers.clis import FIXTURES, PROMPT, drive_claude
from treering.cli.main import main
from treering.errors import InvalidInput
from treering.importers.claude_code import hooks
from treering.importers.claude_code.hooks import EVENTS, LOG, install, installed

(MAIN,) = (FIXTURES / "claude-code" / "projects").glob("*/*.jsonl")
CALL = {"session_id": MAIN.stem, "transcript_path": str(MAIN), "cwd": "/", "hook_event_name": "Stop"}


@pytest.fixture(autouse=True)
def log(tmp_path, monkeypatch):
    path = tmp_path / "log" / "hooks.log"
    monkeypatch.setenv(LOG, str(path))
    return path


def called(monkeypatch, capsys, given, *arguments):
    """Call the hook as Claude Code does; says what it printed."""

    class Given:
        buffer = io.BytesIO(given if isinstance(given, bytes) else json.dumps(given).encode())

    monkeypatch.setattr(sys, "stdin", Given)
    with pytest.raises(SystemExit) as ended:
        main(["hook", "claude-code", *arguments])
    assert ended.value.code == 0
    printed = capsys.readouterr()
    return printed.out + printed.err


def test_what_is_new_in_the_transcript_is_recorded(tmp_path, monkeypatch, capsys, log):
    where = ("--store", str(tmp_path / "store"), "--wait")
    assert called(monkeypatch, capsys, CALL, *where) == ""
    assert called(monkeypatch, capsys, {**CALL, "hook_event_name": "SessionEnd"}, *where) == ""
    with treering.open(tmp_path / "store") as store:
        assert len(list(store.runs.each())) == 3
        assert store.cost.of_thread(f"claude-code/{MAIN.stem}").total.amount("USD") == Decimal("0.021765")
    assert not log.exists()


def test_the_end_of_a_session_closes_what_was_open(tmp_path, monkeypatch, capsys):
    lines = MAIN.read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if b'"assistant"' in line)
    path = tmp_path / MAIN.name
    path.write_bytes(b"".join(lines[: at + 1]))
    where = ("--store", str(tmp_path / "store"), "--wait")
    call = {**CALL, "transcript_path": str(path)}
    called(monkeypatch, capsys, {**call, "hook_event_name": "PostToolUse"}, *where)
    with treering.open(tmp_path / "store") as store:
        assert [run.status for run in store.runs.each()] == ["running"]
    called(monkeypatch, capsys, {**call, "hook_event_name": "SessionEnd"}, *where)
    with treering.open(tmp_path / "store") as store:
        assert [run.status for run in store.runs.each()] == ["ok"]


def test_tools_that_are_called_all_the_time_do_not_import_all_the_time(tmp_path, monkeypatch, capsys):
    imported = []
    monkeypatch.setattr(hooks, "import_claude_code", lambda *_, **options: imported.append(options))
    where = ("--store", str(tmp_path / "store"), "--wait")
    events = ["UserPromptSubmit", "PostToolUse", "PostToolUseFailure", "PostToolUse", "Stop", "SessionEnd"]
    for event in events:
        called(monkeypatch, capsys, {**CALL, "session_id": str(tmp_path), "hook_event_name": event}, *where)
    assert [each["is_over"] for each in imported] == [False, False, True]
    (_, now) = hooks.lock_files(str(tmp_path), str(tmp_path / "store"))
    os.utime(now, (1, 1))
    called(
        monkeypatch, capsys, {**CALL, "session_id": str(tmp_path), "hook_event_name": "PostToolUse"}, *where
    )
    assert len(imported) == 4


def test_without_waiting_another_process_records(tmp_path, monkeypatch, capsys):
    started = []
    popen = subprocess.Popen

    def noted(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(hooks.subprocess, "Popen", noted)
    assert called(monkeypatch, capsys, CALL, "--store", str(tmp_path / "store")) == ""
    (child,) = started
    assert child.wait(60) == 0
    with treering.open(tmp_path / "store") as store:
        assert len(list(store.runs.each())) == 3


@pytest.mark.parametrize(
    "given",
    [b"", b"nonsense", b"[]", b'{"hook_event_name": "Stop"}', json.dumps(CALL).encode()],
    ids=["nothing", "no JSON", "a list", "no transcript", "a store that cannot be"],
)
def test_errors_are_hidden_from_the_agent(tmp_path, monkeypatch, capsys, log, given):
    (tmp_path / "file").write_text("no folder")
    assert called(monkeypatch, capsys, given, "--store", str(tmp_path / "file" / "store"), "--wait") == ""
    assert "Error" in log.read_text("utf-8") or "Unreachable" in log.read_text("utf-8")


def test_a_session_that_has_no_transcript_yet_is_no_error(tmp_path, monkeypatch, capsys, log):
    call = {**CALL, "hook_event_name": "SessionStart", "transcript_path": str(tmp_path / "later.jsonl")}
    assert called(monkeypatch, capsys, call, "--store", str(tmp_path / "store"), "--wait") == ""
    assert not log.exists()
    assert not (tmp_path / "store").exists()


def test_of_many_calls_at_once_one_works_and_one_waits(tmp_path, monkeypatch):
    store, queued, waited = str(tmp_path), Event(), []
    flock = fcntl.flock

    def flock_and_tell(file, operation):
        if operation == fcntl.LOCK_EX:  # it is about to wait for the one that works
            queued.set()
        flock(file, operation)

    def wait():
        with hooks._import_lock("s", store) as is_ours:
            waited.append(is_ours)

    with hooks._import_lock("s", store) as first:
        assert first
        monkeypatch.setattr(fcntl, "flock", flock_and_tell)
        waiting = Thread(target=wait)
        waiting.start()
        assert queued.wait(60)
        with hooks._import_lock("s", store) as third:
            assert not third
    waiting.join()
    assert waited == [True]


THEIRS = {
    "model": "opus",
    "hooks": {
        "Stop": [{"hooks": [{"type": "command", "command": "say done"}]}],
        "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "check"}]}],
    },
    "permissions": {"allow": ["Bash(ls:*)"]},
}


def test_installing_leaves_everything_else_as_it_is(tmp_path):
    path = tmp_path / "claude" / "settings.json"
    path.parent.mkdir()
    path.write_text(json.dumps(THEIRS, indent=4), "utf-8")
    path.chmod(0o640)
    assert install(path, "python -m treering hook claude-code --store /s")
    found = json.loads(path.read_text("utf-8"))
    assert list(found) == ["model", "hooks", "permissions"]
    assert found["hooks"]["PreToolUse"] == THEIRS["hooks"]["PreToolUse"]
    assert found["hooks"]["Stop"][0] == THEIRS["hooks"]["Stop"][0]
    assert set(found["hooks"]) == {*EVENTS, "PreToolUse"}
    assert path.stat().st_mode & 0o777 == 0o640
    assert not install(path, "python -m treering hook claude-code --store /s")
    assert install(path, "python -m treering hook claude-code --store /t")
    assert path.read_text("utf-8").count("--store /t") == len(EVENTS)
    assert "--store /s" not in path.read_text("utf-8")
    assert install(path, None)
    assert json.loads(path.read_text("utf-8")) == THEIRS
    assert [each.name for each in path.parent.iterdir()] == ["settings.json"]


def test_missing_settings_are_created_and_invalid_ones_left_alone(tmp_path):
    path = tmp_path / "new" / "settings.json"
    assert install(path, "treering hook claude-code")
    assert set(json.loads(path.read_text("utf-8"))["hooks"]) == set(EVENTS)
    path.write_text("{oops", "utf-8")
    with pytest.raises(InvalidInput, match="Nothing was changed"):
        install(path, "treering hook claude-code")
    assert path.read_text("utf-8") == "{oops"
    with pytest.raises(InvalidInput, match="not a list"):
        installed({"hooks": {"Stop": {}}}, "treering hook claude-code")


def test_the_real_cli_records_itself_by_its_hooks(tmp_path, capsys, log):
    cli = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    if not cli.exists():
        pytest.skip("this build of the Claude Agent SDK brings no CLI")
    settings = tmp_path / "world" / "home" / ".claude" / "settings.json"
    settings.parent.mkdir(parents=True)
    store = tmp_path / "my store"
    with pytest.raises(SystemExit):
        main(
            ["hook", "claude-code", "--install", "--settings", str(settings), "--store", str(store), "--wait"]
        )
    assert "installed" in capsys.readouterr().err
    command = json.loads(settings.read_text("utf-8"))["hooks"]["Stop"][0]["hooks"][0]["command"]
    assert shlex.split(command)[-3:] == ["--store", str(store), "--wait"]
    (printed,) = drive_claude(str(cli), tmp_path / "world", prompts=(PROMPT,))
    assert not log.exists(), log.read_text("utf-8")
    reported = Decimal(str(json.loads(printed.splitlines()[-1])["total_cost_usd"])).quantize(Decimal("1e-9"))
    with treering.open(store) as opened:
        assert opened.cost.of_days().total.amount("USD") == reported
        assert {run.status for run in opened.runs.each()} == {"ok"}
        assert opened.verify().ok

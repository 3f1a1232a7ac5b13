"""`treering run` and `treering checkpoints`, as a person types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from treering.api import open as open_store
from treering.cli.main import main
from treering.sandbox import StorageConfig, list_checkpoints


class Ran(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def treering(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def call(*arguments: str) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        captured = capsys.readouterr()
        return Ran(ended.value.code or 0, captured.out, captured.err)

    return call


def test_a_program_is_run_kept_and_restored(work: Path, treering) -> None:
    ran = treering("run", "--workspace", "work", "--comment", "one", "--", "sh", "-c", "echo hi | tee a.txt")
    assert (ran.returncode, ran.stdout) == (0, "hi\n")
    assert (work / "work" / "a.txt").read_text() == "hi\n"
    (listed,) = json.loads(treering("checkpoints", "--json").stdout)
    assert listed["comment"] == "one"
    assert listed["id"] in ran.stderr
    shown = treering("checkpoints").stdout.splitlines()
    assert shown[1].startswith(listed["id"])
    assert "workspace/a.txt" in treering("ls", "-r", listed["id"]).stdout
    assert treering("cat", listed["id"], "workspace/a.txt").stdout == "hi\n"
    (work / "work" / "a.txt").write_text("ruined")
    again = treering("run", "--workspace", "work", "--from", "latest", "--", "cat", "a.txt")
    assert again.stdout == "hi\n"
    fresh = treering("run", "--from", listed["id"], "--", "cat", "a.txt")
    assert fresh.stdout == "hi\n"
    assert not list((work / "treering-home" / "sandboxes").iterdir())


@pytest.mark.usefixtures("work")
def test_the_exit_code_is_the_programs(treering) -> None:
    ran = treering("run", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "out\n", "err\n")
    assert treering("run", "--", "sh", "-c", "kill -9 $$").returncode == 137
    missing = treering("run", "--", "no-such-program")
    assert (missing.returncode, "no program 'no-such-program'" in missing.stderr) == (3, True)
    assert treering("checkpoints").stdout == "no checkpoints\n"
    neither = treering("run")
    assert (neither.returncode, "either a command" in neither.stderr) == (2, True)


def test_checkpoints_go_where_storage_says(work: Path, treering) -> None:
    done = treering("run", "--storage", "./bucket", "--json", "--", "sh", "-c", "echo hi > a.txt")
    told = json.loads(done.stdout)
    assert told["exit_code"] == 0
    assert [each.id for each in list_checkpoints(StorageConfig(work / "bucket"))] == [
        told["checkpoint"]["id"]
    ]
    assert told["checkpoint"]["id"] in treering("checkpoints", "--storage", "./bucket").stdout
    gateway = treering("run", "--storage", "gateway", "--", "true")
    assert gateway.returncode == 2
    assert "TREERING_URL" in gateway.stderr


def test_the_run_is_in_the_timeline(work: Path, treering) -> None:
    told = json.loads(treering("run", "--json", "--", "echo", "hi").stdout)
    with open_store(work / ".treering") as store:
        (info,) = store.runs.each()
        assert (info.id, info.status, info.agent) == (told["run_id"], "ok", "program")


def test_a_known_agent_is_known_by_its_command(work: Path, treering) -> None:
    """A stand-in named codex is taken for Codex: its home holds .codex, and that is kept."""
    (work / "bin").mkdir()
    fake = work / "bin" / "codex"
    fake.write_text('#!/bin/sh\necho "$CODEX_HOME" > "$CODEX_HOME/seen"\n')
    fake.chmod(0o755)
    told = json.loads(treering("run", "--json", "--", str(fake)).stdout)
    assert told["checkpoint"]["agent_type"] == "codex"
    files = treering("ls", "-r", told["checkpoint"]["id"]).stdout
    assert ".codex/seen" in files

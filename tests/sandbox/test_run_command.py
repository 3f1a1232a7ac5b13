"""`treering run` and `treering checkpoints`, as a person types them."""

from __future__ import annotations

import json
import random
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


def test_a_program_is_run_saved_and_restored(work: Path, treering) -> None:
    ran = treering("run", "--workspace", "work", "--comment", "one", "--", "sh", "-c", "echo hi | tee a.txt")
    assert (ran.returncode, ran.stdout) == (0, "hi\n")
    assert (work / "work" / "a.txt").read_text() == "hi\n"
    (listed,) = json.loads(treering("checkpoints", "--json").stdout)
    assert listed["comment"] == "one"
    assert listed["id"] in ran.stderr
    shown = treering("checkpoints").stdout.splitlines()[1].split()[0]
    assert listed["id"].startswith(shown)
    assert "workspace/a.txt" in treering("ls", "-r", shown).stdout
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
    assert (ran.returncode, ran.stdout) == (7, "out\n")
    assert ran.stderr.startswith("err\n")
    assert treering("run", "--", "sh", "-c", "kill -9 $$").returncode == 137
    missing = treering("run", "--", "no-such-program")
    assert (missing.returncode, "program 'no-such-program' not found" in missing.stderr) == (3, True)
    assert treering("checkpoints").stdout == "no checkpoints\n"
    neither = treering("run")
    assert (neither.returncode, "either a command" in neither.stderr) == (2, True)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux shows environments")
def test_nothing_that_a_program_started_outlives_its_sandbox(work: Path, treering) -> None:
    left = "sleep 600 & echo $! >>pids; setsid sleep 600 & echo $! >>pids"
    ran = treering("run", "--workspace", "work", "--", "sh", "-c", left)
    assert ran.returncode == 0
    for number in map(int, (work / "work" / "pids").read_text().split()):
        stat = Path(f"/proc/{number}/stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_missing_workspace_is_reported_once(work: Path, treering) -> None:
    ran = treering("run", "--workspace", "work", "--", "sh", "-c", f"rm -r '{work}/work'")
    assert ran.returncode == 0
    assert ran.stderr.count("no checkpoint was taken") == 1
    assert ran.stderr.startswith("warning: ")


def test_checkpoints_go_where_storage_says(work: Path, treering) -> None:
    done = treering("run", "--storage", "./bucket", "--json", "--", "sh", "-c", "echo hi > a.txt")
    reported = json.loads(done.stdout)
    assert reported["exit_code"] == 0
    assert [each.id for each in list_checkpoints(StorageConfig(work / "bucket"))] == [
        reported["checkpoint"]["id"]
    ]
    shown = treering("checkpoints", "--storage", "./bucket").stdout.splitlines()[1].split()[0]
    assert reported["checkpoint"]["id"].startswith(shown)
    gateway = treering("run", "--storage", "gateway", "--", "true")
    assert gateway.returncode == 2
    assert "TREERING_URL" in gateway.stderr


def test_the_run_is_in_the_timeline(work: Path, treering) -> None:
    reported = json.loads(treering("run", "--json", "--", "echo", "hi").stdout)
    with open_store(work / ".treering") as store:
        (info,) = store.runs.each()
        assert (info.id, info.status, info.agent) == (reported["run_id"], "ok", "program")


@pytest.mark.usefixtures("work")
def test_a_failed_command_says_what_became_of_its_files_and_can_keep_them(treering) -> None:
    lost = treering("run", "--", "sh", "-c", "echo half > a.txt; exit 3")
    assert lost.returncode == 3
    assert "exit code 3: no checkpoint was taken, and its files are removed" in lost.stderr
    assert "--always-checkpoint" in lost.stderr
    stays = treering("run", "--workspace", "work", "--", "sh", "-c", "echo half > a.txt; exit 3")
    assert "its files stay in work" in stays.stderr
    kept = treering("run", "--always-checkpoint", "--", "sh", "-c", "echo half > a.txt; exit 3")
    assert kept.returncode == 3
    assert "no checkpoint was taken" not in kept.stderr
    (listed,) = json.loads(treering("checkpoints", "--json").stdout)
    assert listed["comment"] == "exit code 3"
    assert treering("cat", listed["id"], "workspace/a.txt").stdout == "half\n"
    sandbox = treering("run", "--keep-sandbox", "--", "sh", "-c", "echo half > a.txt; exit 3")
    folder = Path(sandbox.stderr.strip().rpartition(" ")[2])
    assert (folder / "a.txt").read_text() == "half\n"


def test_the_output_of_a_session_is_listed_and_downloaded(work: Path, treering) -> None:
    write = (
        "mkdir -p output/charts; echo 1 > output/report.md; echo 22 > output/charts/a.svg; echo 3 > else.txt"
    )
    reported = json.loads(treering("run", "--tag-prefix", "shop", "--json", "--", "sh", "-c", write).stdout)
    found = json.loads(treering("output", "--json").stdout)
    assert found == {
        "tag": reported["checkpoint"]["tag"],
        "sandbox_id": reported["sandbox_id"],
        "checkpoint": reported["checkpoint"]["id"],
        "files": [{"path": "charts/a.svg", "size_bytes": 3}, {"path": "report.md", "size_bytes": 2}],
    }
    shown = treering("output", reported["checkpoint"]["id"], "--to", "got").stdout
    assert f"session {found['tag']}, sandbox {found['sandbox_id']}" in shown
    assert "charts/a.svg" in shown
    files = {
        each.relative_to(work / "got").as_posix() for each in (work / "got").rglob("*") if each.is_file()
    }
    assert files == {"report.md", "charts/a.svg"}
    assert treering("output", "--to", "got").returncode != 0  # nothing is overwritten unasked
    assert treering("output", "--to", "got", "--overwrite").returncode == 0
    treering("run", "--", "true")
    assert treering("output").stdout.splitlines()[1:] == ["no files"]


def test_a_command_selects_its_agent_profile(work: Path, treering) -> None:
    """A stand-in named codex is taken for Codex: its home holds .codex, and that is kept."""
    (work / "bin").mkdir()
    fake = work / "bin" / "codex"
    fake.write_text('#!/bin/sh\necho "$CODEX_HOME" > "$CODEX_HOME/seen"\n')
    fake.chmod(0o755)
    reported = json.loads(treering("run", "--json", "--", str(fake)).stdout)
    assert reported["checkpoint"]["agent_type"] == "codex"
    files = treering("ls", "-r", reported["checkpoint"]["id"]).stdout
    assert ".codex/seen" in files


def test_a_storage_is_collected_and_single_checkpoints_are_forgotten(work: Path, treering) -> None:
    storage = ("--storage", "bucket")
    for number in range(5):
        (work / "work" / "data.bin").write_bytes(
            bytes([number]) * 90_000 + random.Random(number).randbytes(90_000)
        )
        treering("run", "--workspace", "work", *storage, "--tag-prefix", "t", "--", "true")
    made = [each.id for each in list_checkpoints(StorageConfig(work / "bucket"))]

    plan = treering("gc", *storage, "--keep", "last=3", "--grace", "0", "--dry-run")
    assert plan.stdout.startswith("would drop 2 checkpoints, keep 3\n")
    assert "would delete 2 packs (1" in plan.stdout
    assert len(list_checkpoints(StorageConfig(work / "bucket"))) == 5
    done = json.loads(treering("gc", *storage, "--keep", "last=3", "--grace", "0", "--json").stdout)
    assert [each["id"] for each in done["forgotten"]["dropped"]] == made[3:]
    assert done["pruned"]["freed_bytes"] > 150_000
    assert treering("gc", *storage).stdout == "delete 0 packs (0 B)\n"

    gone = treering("forget", *storage, "--checkpoint", made[1])
    assert gone.stdout.startswith("dropped 1 checkpoint, keep 2\n")
    session = list_checkpoints(StorageConfig(work / "bucket"))[0].tag
    assert (
        len(json.loads(treering("forget", *storage, "--session", session, "--json").stdout)["dropped"]) == 1
    )
    assert [each.id for each in list_checkpoints(StorageConfig(work / "bucket"))] == [made[2]]
    for wrong in (
        ("gc", *storage, "--all"),
        ("gc", *storage, "--grace", "-1"),
        ("gc", "--per-session"),
        ("forget", *storage),
        ("forget", *storage, "--checkpoint", "draft"),
    ):
        assert treering(*wrong).returncode == 2, wrong
    assert treering("forget", *storage, "--checkpoint", made[0]).returncode == 3
    assert treering("gc", "--storage", "misspelt").returncode == 3
    assert not (work / "misspelt").exists()


def test_checkpoints_of_a_store_are_forgotten_as_well(work: Path, treering) -> None:
    treering("run", "--workspace", "work", "--", "true")
    treering("run", "--workspace", "work", "--", "true")
    newest, oldest = json.loads(treering("checkpoints", "--json").stdout)
    assert treering("forget", "--checkpoint", oldest["id"]).stdout.startswith("dropped 1 checkpoint, keep 1")
    assert json.loads(treering("checkpoints", "--json").stdout) == [newest]
    assert work


@pytest.mark.usefixtures("work")
def test_variables_are_passed_on_by_name_pattern_and_value(treering, monkeypatch) -> None:
    for name in ("MY_KEY", "NIMBUS_ID", "NIMBUS_REGION", "OTHER_KEY"):
        monkeypatch.setenv(name, "outer")
    chosen = ("--env", "MY_KEY", "--env", "NIMBUS_*", "--env", "EXTRA=a=b")
    ran = treering("run", *chosen, "--", "sh", "-c", "env | grep -E '^(MY_|OTHER_|NIMBUS|EXTRA)' | sort")
    assert ran.stdout.split() == ["EXTRA=a=b", "MY_KEY=outer", "NIMBUS_ID=outer", "NIMBUS_REGION=outer"]

"""The command line: what it prints where, and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import treering
from treering.cli.console import counts, size
from treering.cli.main import main
from treering.core.batch import Event
from treering.core.content import list_address
from treering.core.encoding import encode
from treering.core.ids import Scope

SECRET = "hunter2"


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Ran:
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        captured = self._capsys.readouterr()
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0, captured.out, captured.err)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREERING_URL", raising=False)
    return Cli(capsys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with two threads of alice's in the default namespace."""
    with treering.open(tmp_path / "store") as store:
        write(store, "t1")
        write(store, "t2")
    return tmp_path / "store"


def write(store: treering.Store, thread: str) -> None:
    scope = str(Scope("alice", "thread", thread))
    for step in range(5):
        draft = store.draft()
        draft.append(f"{thread}/messages", encode(f"message {step}"), scope=scope, at=step)
        draft.event(
            Event(
                id=f"{thread}-{step}",
                kind="checkpoint",
                ts_us=step,
                scope=scope,
                thread=thread,
                body=draft.put(encode(f"{thread} {step} " * 2000), scope=scope),
            )
        )
        draft.set_ref(f"{thread}/head", b"{}", scope=scope, links=(list_address(f"{thread}/messages"),))
        store.commit(draft)


def run_process(*arguments: object, **environment: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-m", "treering", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )
    return Ran(done.returncode, done.stdout, done.stderr)


class TestEveryCommand:
    COMMANDS = (
        ("verify",),
        ("gc",),
        ("forget", "--thread", "t1"),
        ("reindex",),
        ("copy", "target"),
        ("stats",),
        ("backup", "target"),
        ("migrate",),
    )

    @pytest.mark.parametrize("command", COMMANDS)
    def test_a_store_that_is_not_there_is_not_made(
        self, cli: Cli, tmp_path: Path, command: tuple[str, ...]
    ) -> None:
        ran = cli(*command, "--store", tmp_path / "nowhere")
        assert ran.code == 3
        assert ran.out == ""
        assert "no store found in" in ran.err
        assert "--store" in ran.err
        assert "Traceback" not in ran.err
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("command", COMMANDS)
    def test_a_url_that_means_nothing_is_a_usage_error(self, cli: Cli, command: tuple[str, ...]) -> None:
        ran = cli(*command, "--store", f"mysql://me:{SECRET}@db/x")
        assert ran.code == 2
        assert "use a folder" in ran.err
        assert SECRET not in ran.err

    @pytest.mark.parametrize("command", COMMANDS)
    def test_errors_can_be_json_too(self, cli: Cli, command: tuple[str, ...]) -> None:
        ran = cli(*command, "--store", "nowhere", "--json")
        assert ran.out == ""
        assert json.loads(ran.err)["error"] == "NotFound"
        assert json.loads(ran.err)["retryable"] is False

    @pytest.mark.parametrize("command", COMMANDS)
    def test_it_has_a_help_page(self, cli: Cli, command: tuple[str, ...]) -> None:
        ran = cli(command[0], "--help")
        assert ran.code == 0
        assert "--store" in ran.out
        assert "--json" in ran.out

    def test_the_environment_names_the_store(
        self, cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TREERING_URL", str(folder))
        assert cli("stats", "--json").json["rows"]["events"] == 10

    def test_the_version(self, cli: Cli) -> None:
        assert cli("--version").out == f"treering {treering.__version__}\n"

    def test_without_a_command_there_is_help(self, cli: Cli) -> None:
        ran = cli()
        assert "Threads:" in ran.out + ran.err

    def test_an_unknown_command_is_a_usage_error(self, cli: Cli) -> None:
        assert cli("polish").code == 2

    def test_an_unknown_namespace_is_not_found(self, cli: Cli, folder: Path) -> None:
        ran = cli("verify", "--store", folder, "--namespace", "tpyo")
        assert ran.code == 3
        assert "has: default" in ran.err

    def test_a_namespace_that_cannot_be(self, cli: Cli, folder: Path) -> None:
        for name in ("a/b", "🌲", "x" * 10_000):
            assert cli("verify", "--store", folder, "--namespace", name).code == 2

    def test_an_empty_default_namespace_is_pointed_out(self, cli: Cli, tmp_path: Path) -> None:
        with treering.open(tmp_path / "store", namespace="team") as store:
            write(store, "t1")
        ran = cli("verify", "--store", tmp_path / "store")
        assert ran.code == 0
        assert "team" in ran.err

    def test_all_namespaces(self, cli: Cli, folder: Path) -> None:
        with treering.open(folder, namespace="team") as store:
            write(store, "t1")
        ran = cli("stats", "--store", folder, "--all", "--json")
        assert {name: each["rows"]["events"] for name, each in ran.json.items()} == {"default": 10, "team": 5}
        assert cli("verify", "--store", folder, "--all").out.startswith("default: ok")
        assert cli("verify", "--store", folder, "--all", "--namespace", "team").code == 2


class TestVerify:
    def test_a_healthy_store(self, cli: Cli, folder: Path) -> None:
        ran = cli("verify", "--store", folder)
        assert ran.code == 0
        assert ran.out.startswith("ok: checked")
        ran = cli("verify", "--store", folder, "--json")
        assert ran.json["ok"] is True
        assert ran.json["checked"]["events"] == 10
        last_seq = ran.json["last_seq"]
        for since, expected in (("1d", 0), (str(last_seq), last_seq), ("2999-01-01", last_seq), ("last", 0)):
            ran = cli("verify", "--store", folder, "--since", since, "--processes", "1", "--json")
            assert (ran.code, ran.json["since"]) == (0, expected)
        ran = cli("verify", "--store", folder, "--since", "soon")
        assert ran.code == 2
        assert "36h" in ran.err

    def test_a_damaged_store_exits_with_5(self, cli: Cli, folder: Path) -> None:
        import sqlite3

        with sqlite3.connect(folder / "treering.db") as database:
            flipped = database.execute(
                "UPDATE object"
                " SET frame = CAST(substr(frame, 1, 20) || x'00ff00ff' || substr(frame, 25) AS BLOB)"
                " WHERE name = (SELECT min(name) FROM object WHERE frame IS NOT NULL)"
            )
            assert flipped.rowcount == 1
        database.close()
        ran = cli("verify", "--store", folder)
        assert ran.code == 5
        assert "problem(s)" in ran.out
        assert "corrupt" in ran.out
        ran = cli("verify", "--store", folder, "--json")
        assert ran.code == 5
        assert ran.json["problems"][0]["kind"] == "corrupt"


class TestGc:
    def test_a_dry_run_and_then_the_real_one(self, cli: Cli, folder: Path) -> None:
        planned = cli("gc", "--store", folder, "--keep", "last=2,daily=1", "--dry-run", "--json").json
        assert planned["dropped"] == {"checkpoint": 6}
        assert cli("stats", "--store", folder, "--json").json["rows"]["events"] == 10
        done = cli("gc", "--store", folder, "--keep", "last=2,daily=1", "--json").json
        assert done["dropped"] == planned["dropped"]
        assert cli("stats", "--store", folder, "--json").json["rows"]["events"] == 5

    def test_in_words(self, cli: Cli, folder: Path) -> None:
        ran = cli("gc", "--store", folder, "--keep", "last=2", "--dry-run")
        assert "would drop 6 checkpoints, keep 4 checkpoints" in ran.out

    @pytest.mark.parametrize("rules", ["last=0", "last=x", "frobnicate=1", "within=soon", "last=1,last=2"])
    def test_a_policy_that_makes_no_sense(self, cli: Cli, folder: Path, rules: str) -> None:
        ran = cli("gc", "--store", folder, "--keep", rules)
        assert ran.code == 2
        assert "keep" in ran.err

    def test_a_negative_grace(self, cli: Cli, folder: Path) -> None:
        assert cli("gc", "--store", folder, "--grace", "-1").code == 2


class TestForget:
    def test_a_thread(self, cli: Cli, folder: Path) -> None:
        ran = cli("forget", "--store", folder, "--thread", "t1", "--user-namespace", "alice", "--json")
        assert ran.json["events"] == 5
        assert ran.json["proof"] == "bytes"
        again = cli("forget", "--store", folder, "--thread", "t1", "--user-namespace", "alice")
        assert again.code == 3

    def test_a_user(self, cli: Cli, folder: Path) -> None:
        ran = cli("forget", "--store", folder, "--user-namespace", "alice")
        assert ran.out.startswith("forgot 2 scopes, 10 events")

    def test_nothing_named(self, cli: Cli, folder: Path) -> None:
        ran = cli("forget", "--store", folder)
        assert ran.code == 2
        assert "thread=" in ran.err


class TestCopyAndBackup:
    def test_copy_and_copy_again(self, cli: Cli, folder: Path, tmp_path: Path) -> None:
        first = cli("copy", "--store", folder, tmp_path / "copy", "--json")
        assert first.json["resumed"] is False
        assert "resumed an earlier copy" in cli("copy", "--store", folder, tmp_path / "copy").out
        assert cli("verify", "--store", tmp_path / "copy").code == 0

    def test_copy_into_something_else(self, cli: Cli, folder: Path, tmp_path: Path) -> None:
        with treering.open(tmp_path / "other") as other:
            write(other, "t9")
        ran = cli("copy", "--store", folder, tmp_path / "other")
        assert ran.code == 4
        assert "not a copy of this store" in ran.err

    def test_backup(self, cli: Cli, folder: Path, tmp_path: Path) -> None:
        ran = cli("backup", "--store", folder, tmp_path / "saved", "--json")
        assert ran.json["events"] == 10
        assert cli("verify", "--store", tmp_path / "saved").code == 0
        assert cli("backup", "--store", folder, tmp_path / "saved").code == 4


class TestMigrate:
    def test_a_current_store(self, cli: Cli, folder: Path) -> None:
        ran = cli("migrate", "--store", folder, "--json")
        assert ran.json["before"] == ran.json["after"]
        assert "already" in cli("migrate", "--store", folder).out

    def test_a_newer_store_is_refused(self, cli: Cli, folder: Path) -> None:
        import sqlite3

        with sqlite3.connect(folder / "treering.db") as database:
            database.execute("UPDATE alembic_version SET version_num = '9999'")
        database.close()
        for command in ("migrate", "verify"):
            ran = cli(command, "--store", folder)
            assert ran.code == 10
            assert "upgrade" in ran.err

    def test_memory_has_no_tables(self, cli: Cli) -> None:
        assert cli("migrate", "--store", "memory:").code == 7


class TestProcess:
    """A few things that only a process of its own shows."""

    def test_data_on_stdout_and_nothing_else(self, folder: Path) -> None:
        ran = run_process("stats", "--store", folder, "--json")
        assert (ran.code, ran.err) == (0, "")
        assert ran.json["rows"]["events"] == 10

    def test_an_error_is_a_message_and_a_code(self, tmp_path: Path) -> None:
        ran = run_process("verify", TREERING_URL=str(tmp_path / "nowhere"))
        assert ran.code == 3
        assert ran.out == ""
        assert ran.err.startswith("treering: no store found in")
        assert "Traceback" not in ran.err

    def test_help_loads_no_engine_and_no_rich(self) -> None:
        code = (
            "import sys; from treering.cli.main import main\n"
            "try: main(['--help'])\n"
            "finally: print(*sys.modules)"
        )
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        loaded = set(done.stdout.split())
        assert {"sqlite3", "msgspec", "rich.markdown", "rich.console", "treering.api"}.isdisjoint(loaded)

    def test_a_reader_that_has_had_enough_is_no_error(self, folder: Path) -> None:
        command = f"{sys.executable} -m treering stats --store {folder} --json | head -c 1"
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, timeout=60)
        assert "Traceback" not in done.stderr


class TestWords:
    def test_sizes(self) -> None:
        assert [size(n) for n in (0, 999, 1000, 1_500_000, 2 * 10**12)] == [
            "0 B",
            "999 B",
            "1.0 KB",
            "1.5 MB",
            "2.0 TB",
        ]

    def test_counts(self) -> None:
        assert counts({"list_items": 1200, "refs": 0}) == "1,200 list items"
        assert counts({}) == "nothing"

"""Export and import on the command line."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress

import pytest

import treering
from tests.importers.jsonl_histories import exported, grow, portrait
from treering.importers.registry import IMPORTERS


@pytest.fixture
def folder(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as store:
        grow(store)
    return tmp_path / "store"


def look(folder):
    with treering.open(folder) as store:
        assert store.verify().ok
        return portrait(store)


def lines(folder):
    with treering.open(folder) as store:
        assert store.verify().ok
        return exported(store)


def counts(report):
    return {each["holds"]: (each["found"], each["new"], each["known"]) for each in report["files"]}


class TestExport:
    def test_to_a_file(self, run, folder, tmp_path):
        ran = run("export", "jsonl", "--all", "--store", folder, "-o", "all.jsonl")
        assert (ran.code, ran.err) == (0, "")
        assert ran.out == "all.jsonl: 4 threads, 11 checkpoints, 1 rewind\n"
        lines = (tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()
        assert json.loads(lines[0]) == {"kind": "treering.threads", "version": 1}
        assert json.loads(lines[-1]) == {"kind": "end", "threads": 4, "checkpoints": 11}
        report = run("export", "jsonl", "deep", "--store", folder, "-o", "deep.jsonl", "--json").json
        assert report == {
            "threads": 1,
            "checkpoints": 3,
            "rewinds": 0,
            "events": 0,
            "runs": 0,
            "snapshots": [],
            "left_out": {},
            "secrets": [],
        }

    def test_to_stdout_and_nothing_else(self, process, folder):
        ran = process("export", "jsonl", "support/alice", "--store", folder)
        assert (ran.code, ran.err) == (0, "")
        kinds = [json.loads(line)["kind"] for line in ran.out.splitlines()]
        assert kinds == [
            "treering.threads",
            "thread",
            *["checkpoint"] * 3,
            "rewind",
            *["checkpoint"] * 3,
            "end",
        ]

    def test_a_thread_that_is_not_there(self, run, folder, tmp_path):
        ran = run("export", "jsonl", "suport/alice", "--store", folder, "-o", "x.jsonl")
        assert ran.code == 3
        assert "did you mean 'support/alice'" in ran.err
        assert not (tmp_path / "x.jsonl").exists()

    def test_wrong_arguments(self, run, folder):
        assert run("export", "jsonl", "--store", folder).code == 2
        assert run("export", "jsonl", "deep", "--all", "--store", folder).code == 2
        ran = run("export", "jsonl", "deep", "--store", folder, "-o", "no/such/folder/x.jsonl")
        assert ran.code == 8
        assert "cannot be written" in ran.err

    def test_an_old_file_stays_until_the_new_one_is_whole(self, run, folder, tmp_path):
        (tmp_path / "x.jsonl").write_text("old", encoding="utf-8")
        with closing(sqlite3.connect(folder / "treering.db")) as database, database:
            database.execute("UPDATE item SET frame = x'00' WHERE frame IS NOT NULL")
        assert run("export", "jsonl", "--all", "--store", folder, "-o", "x.jsonl").code == 5
        assert (tmp_path / "x.jsonl").read_text(encoding="utf-8") == "old"
        assert sorted(each.name for each in tmp_path.iterdir()) == ["store", "x.jsonl"]


class TestJsonl:
    def test_there_and_back(self, run, folder, tmp_path):
        run("export", "jsonl", "--all", "--store", folder, "-o", "all.jsonl")
        planned = run("import", "jsonl", "all.jsonl", "--store", "new", "--dry-run", "--json")
        assert counts(planned.json) == {
            "threads": (4, 4, 0),
            "checkpoints": (11, 11, 0),
            "rewinds": (1, 1, 0),
        }
        assert not (tmp_path / "new").exists()
        done = run("import", "jsonl", "all.jsonl", "--store", "new", "--json")
        assert counts(done.json) == counts(planned.json)
        assert "made a new store" in done.err
        assert look(tmp_path / "new") == look(folder)
        again = run("import", "jsonl", "all.jsonl", "--store", "new")
        assert again.out.splitlines() == [
            "all.jsonl (jsonl)",
            "  all.jsonl: 4 threads, imported 0, 4 there already",
            "  all.jsonl: 11 checkpoints, imported 0, 11 there already",
            "  all.jsonl: 1 rewind, imported 0, 1 there already",
        ]

    def test_through_a_pipe(self, process, folder, tmp_path):
        data = process("export", "jsonl", "--all", "--store", folder).out.encode()
        ran = process("import", "jsonl", "-", "--store", "new", "--json", given=data)
        assert ran.json["source"] == "stdin"
        assert look(tmp_path / "new") == look(folder)

    def test_a_person_sees_a_bar_and_a_program_does_not(self, run, folder, tmp_path):
        run("export", "jsonl", "--all", "--store", folder, "-o", "all.jsonl")
        ours, theirs = os.openpty()
        command = [
            sys.executable,
            "-m",
            "treering",
            "import",
            "jsonl",
            "all.jsonl",
            "--store",
            "new",
        ]
        done = subprocess.run(
            [*command, "--json"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=theirs,
            check=True,
            timeout=60,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "80"},
        )
        os.close(theirs)
        seen = b""
        with suppress(OSError):  # how a terminal says that nobody writes to it any more
            while part := os.read(ours, 65536):
                seen += part
        os.close(ours)
        assert b"importing" in seen
        assert counts(json.loads(done.stdout))["checkpoints"] == (11, 11, 0)

    def test_bad_lines(self, run, folder, tmp_path):
        run("export", "jsonl", "--all", "--store", folder, "-o", "all.jsonl")
        lines = (tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()
        lines[4] = lines[4][:40]
        (tmp_path / "all.jsonl").write_text("\n".join(lines), encoding="utf-8")
        treering.open(tmp_path / "new").close()
        ran = run("import", "jsonl", "all.jsonl", "--store", "new", "--strict")
        assert (ran.code, ran.out) == (2, "")
        assert "line 5: " in ran.err
        assert "nothing was imported" in ran.err
        assert look(tmp_path / "new") == {}
        as_json = json.loads(run("import", "jsonl", "all.jsonl", "--store", "new", "--strict", "--json").err)
        assert as_json["error"] == "InvalidInput"
        assert run("import", "jsonl", "all.jsonl", "--store", "other", "--strict").code == 2
        assert not (tmp_path / "other").exists()
        ran = run("import", "jsonl", "all.jsonl", "--store", "new")
        assert ran.code == 0
        assert "cannot be read: all.jsonl line 5: " in ran.out
        assert look(tmp_path / "new") != {}

    def test_a_file_that_is_not_there_makes_no_store(self, run, tmp_path):
        ran = run("import", "jsonl", "nothing.jsonl", "--store", "new")
        assert ran.code == 3
        assert list(tmp_path.iterdir()) == []

    def test_a_conflict(self, run, folder, tmp_path):
        run("export", "jsonl", "support/alice", "--store", folder, "-o", "alice.jsonl")
        with treering.open(tmp_path / "other") as store:
            store.thread("support/alice").append("another life")
        ran = run("import", "jsonl", "alice.jsonl", "--store", "other")
        assert ran.code == 4
        assert run("import", "jsonl", "alice.jsonl", "--store", "other", "--namespace", "second").code == 0


class TestKilled:
    @pytest.fixture
    def history(self, run, tmp_path):
        with treering.open(tmp_path / "long", durability="fast") as store:
            for name in ("a", "b"):
                thread = store.thread(name)
                for step in range(210):
                    thread.append({"role": "user", "content": f"{name} {step}"}, state={"n": step})
            store.thread("a").fork("c", at=50).append("elsewhere")
        run("export", "jsonl", "--all", "--store", "long", "-o", "long.jsonl")
        return tmp_path / "long.jsonl"

    def code_of_import(self, history, store, checkpoint):
        """How an import ends that is killed at a checkpoint, if it comes so far."""
        done = subprocess.run(
            [sys.executable, "-m", "treering", "import", "jsonl", history, "--store", store],
            capture_output=True,
            check=False,
            timeout=60,
            env={**os.environ, "TREERING_FAILPOINTS": checkpoint},
        )
        return done.returncode

    @pytest.mark.parametrize(
        "checkpoint", ["commit.begin=kill:3", "commit.before_commit=kill:2", "commit.after_commit=kill:3"]
    )
    def test_an_import_that_was_killed_is_finished_by_the_next(self, run, history, tmp_path, checkpoint):
        assert self.code_of_import(history, tmp_path / "new", checkpoint) == -signal.SIGKILL
        with treering.open(tmp_path / "new") as store:
            assert list(store.threads()) == []  # no half thread is seen
        report = run("import", "jsonl", history, "--store", "new", "--json").json
        found, new, known = counts(report)["checkpoints"]
        assert (found, new + known) == (422, 422)
        assert counts(report)["threads"] == (3, 3, 0)
        if checkpoint != "commit.before_commit=kill:2":
            assert known > 0  # what was durable is not written again
        assert lines(tmp_path / "new") == history.read_bytes()
        with treering.open(tmp_path / "new") as store:
            assert store.stats().rows["events"] == 422
        assert counts(run("import", "jsonl", history, "--store", "new", "--json").json)["checkpoints"][1] == 0

    def test_killed_between_two_heads(self, run, history, tmp_path):
        assert self.code_of_import(history, tmp_path / "new", "commit.begin=kill:999") == 0
        with treering.open(tmp_path / "new") as store:
            commits = store.stats().rows["commits"]
        code = self.code_of_import(history, tmp_path / "again", f"commit.begin=kill:{commits - 1}")
        assert code == -signal.SIGKILL
        with treering.open(tmp_path / "again") as store:
            assert len(list(store.threads())) == 1
        report = run("import", "jsonl", history, "--store", "again", "--json").json
        assert counts(report) == {"threads": (3, 2, 1), "checkpoints": (422, 0, 422)}
        assert lines(tmp_path / "again") == history.read_bytes()


class TestEveryImporter:
    def test_each_has_its_command(self, run):
        result = run("import", "--help").out
        for each in IMPORTERS:
            assert f"\n  {each.name} " in result
            page = run("import", each.name, "--help").out
            for option in ("--dry-run", "--json", "--store", "--namespace"):
                assert option in page

    @pytest.mark.parametrize("name", [each.name for each in IMPORTERS])
    def test_a_source_that_is_not_there(self, run, tmp_path, name):
        ran = run("import", name, "nothing", "--store", "new")
        assert ran.code == 3
        assert "there is nothing at 'nothing'" in ran.err
        assert list(tmp_path.iterdir()) == []

    def test_an_unknown_importer(self, run):
        assert run("import", "floppy", "x").code == 2


def test_a_newcomer_walks_through(process, run, tmp_path):
    """What someone does who has a file of a colleague, no store and no manual."""
    with treering.open(tmp_path / "colleague", durability="fast") as store:
        grow(store)
    given = process("export", "jsonl", "--all", "--store", "colleague").out.encode()
    assert run("threads").code == 3  # there is no store yet, and it says so
    assert process("import", "jsonl", "-", given=given).code == 0
    assert "support/alice" in run("threads").out
    log = run("log", "support/alice").out
    assert "first draft [a] [b]" in log
    step = next(line for line in log.splitlines() if "first draft" in line).split()[2]
    assert "Where is my refund?" in run("show", step).out
    assert run("fork", "support/alice", "mine", "--at", step).code == 0
    assert "begun" in run("diff", "mine", "support/alice").out
    assert run("rewind", "mine", "0").code == 0
    assert run("resume", "support/alice", "approve").code == 0
    assert run("verify").out.startswith("ok:")
    assert run("delete", "mine").code == 0

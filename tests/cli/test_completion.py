"""Tab completes commands, options, and the ids that are in the store."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.main import get_command

import treering
from treering.cli.completion import _FINDERS
from treering.cli.main import app


def completed(*words: str, shell: str = "bash", **environment: str) -> list[str]:
    """What a shell would be offered for the last of these words."""
    asked = {
        "_TREERING_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": " ".join(words),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv = ['treering']\nfrom treering.cli.main import main; main()",
        ],
        env={**os.environ, **asked, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return [line for line in done.stdout.splitlines() if line]


def test_a_shell_completes_commands_and_options():
    assert "snapshots" in completed("treering", "snap")
    assert "history" in completed("treering", "memory", "hi")
    assert "--dry-run" in completed("treering", "gc", "--d")


@pytest.fixture
def place(tmp_path):
    with treering.open(tmp_path / ".treering") as store:
        with store.run(id="run-of-alice", agent="planner"):
            thread = store.thread("support/alice")
            thread.append({"role": "user", "content": "Where is my refund?"})
            thread.append({"role": "assistant", "content": "On its way."})
        store.thread("support/bob", namespace="team").append({"role": "user", "content": "Hi."})
        store.memory.save("alice/tone", "Short answers.")
        store.state.set("theme", "dark")
        store.budgets.set("daily", per="agent", tokens=5)
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "note.txt").write_text("a note")
        snapshot = store.workspace.snapshot(tmp_path / "files", name="files")
    return tmp_path / ".treering", snapshot


def test_ids_in_the_store_are_completed(place):
    url, snapshot = place

    def offered(*words: str) -> list[str]:
        return completed("treering", *words, TREERING_URL=str(url))

    assert offered("show", "supp") == ["support/alice"]
    assert offered("show", "support/alice@") == ["support/alice@1", "support/alice@0"]
    assert offered("rewind", "support/alice", "") == ["1", "0"]
    assert offered("log", "--user-namespace", "team", "") == ["support/bob"]
    assert offered("log", "--user-namespace", "t") == ["team"]
    assert offered("timeline", "") == ["last", "run-of-alice"]
    assert offered("runs", "--agent", "") == ["planner"]
    assert offered("restore", snapshot[:8]) == [snapshot]
    assert offered("memory", "get", "") == ["alice/tone"]
    assert offered("state", "get", "") == ["theme"]
    assert offered("budgets", "remove", "") == ["daily"]
    assert offered("export", "jsonl", "") == ["support/alice"]
    assert offered("runs", "--namespace", "") == ["default"]


def test_the_store_on_the_line_is_meant(place, tmp_path):
    url, _ = place
    assert completed("treering", "show", "--store", str(url), "", TREERING_URL=str(tmp_path / "other")) == [
        "support/alice"
    ]


def test_shells_that_show_help_get_the_last_message(place):
    (line,) = completed("treering", "show", "supp", shell="fish", TREERING_URL=str(place[0]))
    assert line.split("\t") == ["support/alice", "assistant: On its way."]


def test_completing_creates_nothing_and_says_nothing(tmp_path):
    missing = tmp_path / "missing"
    assert completed("treering", "show", "", TREERING_URL=str(missing)) == []
    assert not missing.exists()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "treering.db").write_bytes(b"no database" * 500)
    assert completed("treering", "show", "", TREERING_URL=str(tmp_path / "broken")) == []


def test_every_metavar_that_is_completed_is_used():
    def metavars(command):
        for each in getattr(command, "commands", {}).values():
            yield from metavars(each)
        yield from ((each.metavar or "").strip("[].") for each in command.params)

    assert set(_FINDERS) <= set(metavars(get_command(app)))

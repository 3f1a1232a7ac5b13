"""The command line as a test calls it: in this process, or (`process`) in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import IO, Any, NamedTuple

import pytest

import treering
from treering.cli.main import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command in an empty folder; gives back what it printed and how it ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREERING_URL", raising=False)

    def call(*arguments: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        captured = capsys.readouterr()
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0, captured.out, captured.err)

    return call


@pytest.fixture
def process(tmp_path):
    """Run a command in a process of its own, with what it reads and where it prints to."""

    def call(*arguments: object, given: bytes = b"", out: IO[bytes] | int = subprocess.PIPE) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "treering", *map(str, arguments)],
            input=given,
            stdout=out,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "TREERING_URL"},
        )
        return Ran(done.returncode, (done.stdout or b"").decode(), done.stderr.decode())

    return call


@pytest.fixture
def desk(tmp_path):
    """Alice asked, was answered, asked on; that was taken back, forked, and alice waits for a decision."""
    with treering.open(tmp_path / "store", durability="fast") as store:
        alice = store.thread("support/alice")
        alice.append({"role": "user", "content": "Where is my refund?"})
        draft = alice.append(
            {"role": "assistant", "content": "It was sent on Monday."},
            state={"todos": ["check the bank"], "tries": 1},
            note="first draft",
            tags=["release"],
        )
        alice.append({"role": "user", "content": "Nothing came."}, state={"tries": 2})
        alice.append({"role": "assistant", "content": "Hm."})
        alice.rewind(draft.id)
        bolder = alice.fork("support/alice-bolder")
        bolder.append({"role": "assistant", "content": "I am sending it again."})
        alice.append({"role": "user", "content": "Thank you."})
        alice.interrupt({"tool": "pay", "amount": 30}, interrupt_id="pay-1")
        store.thread("notes", namespace="bob").append({"role": "user", "content": "mine"})
    return tmp_path / "store"


@pytest.fixture
def treering_(run, desk, monkeypatch):
    """Run a command on that store."""
    monkeypatch.setenv("TREERING_URL", str(desk))
    return run

"""The command line as a test calls it: in this process, or (`process`) in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

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
    """Run a command in a process of its own, with what it shall read."""

    def call(*arguments: object, given: bytes = b"") -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "treering.cli.main", *map(str, arguments)],
            input=given,
            capture_output=True,
            check=False,
            timeout=60,
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "TREERING_URL"},
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return call

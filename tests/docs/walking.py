"""Walking through a page: its ```python and ```console blocks, in order, in one process and folder.

In a ```console block, a line that begins with ``$`` is run and the lines below it are what it prints; ``[4]``
is an exit code, and a line ``...`` stands for whatever comes from there on. Ids of checkpoints and times
differ from run to run and are compared as such. A ```text block behind a ```python block is what that
prints. A page that needs more than a folder says so in its first line, ``<!-- run by tests/docs/... -->``,
and has a test of its own.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from treering.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

BLOCK = re.compile(
    r"^(?P<unrun><!-- not run: [^\n]*-->\n)?```(?P<kind>python|console)\n(?P<body>.*?)^```\n"
    r"(?:\n*```text\n(?P<output>.*?)^```\n)?",
    flags=re.DOTALL | re.MULTILINE,
)
_ID = re.compile(r"ckpt_[0-9a-z]+")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( UTC)?")


def needs_more(text: str) -> bool:
    """Whether a page is run by a test of its own."""
    return text.startswith("<!-- run by tests/docs/")


def walk(text: str, capsys) -> int:
    """Run everything; how many commands that were."""
    ran, names = 0, {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        if block["unrun"]:
            continue
        if block["kind"] == "python":
            exec(block["body"], names)
            printed = capsys.readouterr().out
            assert block["output"] is None or printed == block["output"]
            continue
        for part in re.split(r"^\$ ", block["body"], flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            compare(said(command, capsys), alike(expected), command)
            ran += 1
    return ran


def compare(printed: list[str], expected: list[str], command: str) -> None:
    if expected and expected[-1] == "...":
        known = expected[:-1]
        assert printed[: len(known)] == known, command
        assert not re.fullmatch(r"\[\d+\]", printed[-1]), printed
    else:
        assert printed == expected, command


def alike(text: str) -> list[str]:
    return _TIME.sub("TIME", _ID.sub("CKPT", text)).splitlines()


def said(command: str, capsys) -> list[str]:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command)[1:])
    captured = capsys.readouterr()
    lines = [line for line in alike(captured.err) if not line.startswith("note: ")] + alike(captured.out)
    return [*lines, f"[{ended.value.code}]"] if ended.value.code else lines

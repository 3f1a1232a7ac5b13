"""What the pages show of the command line is what it prints.

In a ```console block, a line that begins with ``$`` is run and the lines below it are what it prints;
``[4]`` is an exit code. Ids of checkpoints and times differ from run to run and are compared as such.
```python blocks of the same page are run in between, in the same folder.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from treering.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if "```console" in page.read_text("utf-8"))
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
_ID = re.compile(r"ckpt_[0-9a-z]+")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?")


def alike(text: str) -> list[str]:
    return _TIME.sub("TIME", _ID.sub("CKPT", text)).splitlines()


def said(command: str, capsys) -> list[str]:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command)[1:])
    captured = capsys.readouterr()
    lines = [line for line in alike(captured.err) if not line.startswith("note: ")] + alike(captured.out)
    return [*lines, f"[{ended.value.code}]"] if ended.value.code else lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_a_page_shows_what_happens(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREERING_URL", raising=False)
    ran, names = 0, {}
    for kind, block in _BLOCK.findall(page.read_text("utf-8")):
        if kind == "python":
            exec(block, names)
            capsys.readouterr()
            continue
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            assert said(command, capsys) == alike(expected), command
            ran += 1
    assert ran


def test_there_are_pages():
    assert {page.name for page in PAGES} >= {"cli.md", "import.md"}

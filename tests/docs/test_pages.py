"""What the pages below docs/ show is what happens.

The ```python blocks of a page are run in order, in one process, in a fresh folder; a later one may use the
names of an earlier one. A ```text block that follows at once is what the code prints. A block that is not run
says so in the line above it, with a reason: ``<!-- not run: needs a server -->``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.walking import needs_more

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
RUN_HERE = [page for page in PAGES if not needs_more(page.read_text("utf-8"))]

_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]*?)-->\n)?"
    r"```python\n(?P<code>.*?)^```\n"
    r"(?:\n*```text\n(?P<output>.*?)^```\n)?",
    flags=re.MULTILINE | re.DOTALL,
)

# Runs the blocks that it is given, and says what each of them printed. Line numbers are those of the page.
_RUN = """
import contextlib, io, json, sys
page, blocks = json.load(sys.stdin)
names = {"__name__": "__main__"}
for line, code in blocks:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\\n" * line + code, page, "exec"), names)
    print(json.dumps(printed.getvalue()), flush=True)
"""


class Block(NamedTuple):
    """Code, the line that it begins after, what it must print (if that is said) and why it is not run."""

    line: int
    code: str
    output: str | None
    reason: str | None


def blocks_of(text: str) -> list[Block]:
    return [
        Block(text.count("\n", 0, found.start("code")), found["code"], found["output"], found["reason"])
        for found in _BLOCK.finditer(text)
    ]


def run(page: str, blocks: list[Block], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _RUN],
        cwd=folder,
        env={**os.environ, "XDG_CONFIG_HOME": str(folder / ".config"), "CI": "", "BUILD_NUMBER": ""},
        input=json.dumps([page, [(block.line, block.code) for block in blocks]]),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("page", RUN_HERE, ids=[str(page.relative_to(ROOT / "docs")) for page in RUN_HERE])
def test_a_page_runs_as_printed(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    blocks = blocks_of(text)
    assert len(blocks) == len(re.findall(r"^```python", text, flags=re.MULTILINE)), (
        "a block is not understood"
    )
    for block in blocks:
        assert block.reason is None or block.reason.strip(), f"line {block.line}: say why it is not run"
    runnable = [block for block in blocks if block.reason is None]
    if not runnable:
        return
    done = run(str(page.relative_to(ROOT)), runnable, tmp_path)
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(printed) == len(runnable)
    for block, output in zip(runnable, printed, strict=True):
        assert block.output is None or output == block.output, f"after line {block.line}"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT / "docs")) for page in PAGES])
def test_every_link_leads_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?://)([^)#\s]+)[^)]*\)", text):
        assert (page.parent / link).exists(), link


def test_a_page_that_lies_is_found(tmp_path):
    page = """# A page

```python
word = "ring"
```

<!-- not run: there is no such server -->
```python
connect("tcp://nowhere")
```

```python
print(word)
```

```text
ring
```

```python
print(word * 2)
```
"""
    blocks = blocks_of(page)
    assert [block.line for block in blocks] == [3, 8, 12, 20]
    assert [block.output for block in blocks] == [None, None, "ring\n", None]
    assert [block.reason for block in blocks] == [None, "there is no such server ", None, None]
    done = run("page.md", [block for block in blocks if block.reason is None], tmp_path)
    assert [json.loads(line) for line in done.stdout.splitlines()] == ["", "ring\n", "ringring\n"]
    failed = run("page.md", blocks, tmp_path)
    assert failed.returncode != 0
    assert 'File "page.md", line 9' in failed.stderr

"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs_as_printed(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "['Where is my refund?', 'It was sent on Monday.', 'I am sending it again.']",
        "[('support/alice-bolder', 2), ('support/alice-bolder', 1)]",
        "[(2, {'role': 'assistant', 'content': 'I am sending it again.'})]",
        "True 6",
    ]


def test_the_two_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, flags=re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_every_link_leads_somewhere() -> None:
    for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "AGENTS.md", "llms.txt"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for link in re.findall(r"\]\((?!https?://)([^)#]+)\)", text):
            assert (ROOT / link).exists(), f"{name}: {link}"


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "AGENTS.md", "llms.txt"])
def test_every_path_that_a_page_for_developers_names_exists(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    paths = re.findall(r"`((?:[a-z_]+/)+[\w.<>]*|[a-z_]+\.py)`", text) + re.findall(r"\]\(([\w/.-]+)\)", text)
    known = [path for path in paths if "<" not in path and "*" not in path]
    assert known
    for path in known:
        assert (ROOT / path).exists() or (ROOT / "src/treering" / path).exists(), f"{name}: {path}"


def test_questions_of_newcomers_are_answered_with_at_most_three_files() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## How do I find")[2].partition("##")[0]
    answers = [line for line in table.splitlines() if line.startswith("| ") and "`" in line]
    assert len(answers) >= 10
    for answer in answers:
        assert len(re.findall(r"`[\w/.]+\.py`", answer)) <= 3, answer

"""What the pages about the agent's loop and about budgets show is what happens; so does the example."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

DENIED = (
    "'search' was not called: 1 of 1 calls of 'search' of this iteration are used up; "
    "wait for the next iteration, or raise iteration_by_tool['search'] of the budget"
)
SHOWN = {
    "agent.md": [
        ["Your name is Alice 1"],
        [
            "Noted: 1 on the list",
            "[{'text': 'buy milk', 'urgent': False}]",
            "['user', 'assistant', 'tool', 'assistant']",
        ],
        ["['fetch', 'fetch']", "I have read both."],
        ["{'id': 't1', 'name': 'delete', 'arguments': {'path': 'a.txt'}}", "b.txt is gone"],
        ["checkpoint saved for t with 2 messages", "The user prefers concise replies."],
    ],
    "budgets.md": [
        [
            DENIED,
            "iteration_by_tool['search'] 1 1",
            "0 3",
            "2",
        ],
        ["I looked 3 times. 3"],
    ],
}


def codes(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize(
    "page, number", [(page, number) for page, shown in SHOWN.items() for number in range(len(shown))]
)
def test_an_example_runs_as_printed(tmp_path, page, number) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", codes(page)[number]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == SHOWN[page][number]


def test_no_example_is_left_out() -> None:
    assert {page: len(codes(page)) for page in SHOWN} == {page: len(shown) for page, shown in SHOWN.items()}


def test_the_example_goes_on_after_the_kill() -> None:
    command = [sys.executable, str(ROOT / "examples" / "agent_loop.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "One process begins:",
        "  writing about Oslo",
        "  writing about Rome",
        "  killed",
        "Another one goes on:",
        "  writing about Lima",
        "  waits for a person: send",
        "Done: sent Oslo, Rome, Lima to alice.",
        "4 tool calls in this run, over two processes",
    ]

"""A step of the demo: the coder's work is recorded, and done again from one of its steps by another model.

Everything before the step is answered from the recording; from then on another scripted model decides, and
its tools work in a folder of their own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from demo_job import CODER, MENDED, TASK, answer, coder_model, test_run

import treering
from treering.agent import create_agent, tool
from treering.cli.replays import lines_of
from treering.replays.comparison import Comparison

THREAD = "slugs/recorded"
FROM_STEP = 3
"""The coder's second turn, in which it writes the program."""


def code(work: str) -> str:
    """The coder alone: it writes tests and a program into a folder, and runs the tests."""

    @tool(replay="safe")
    def write_file(path: str, text: str) -> str:
        """Write a file of the workspace."""
        (Path(work) / path).write_text(text, encoding="utf-8")
        return f"wrote {len(text)} characters to {path}"

    @tool(replay="safe")
    def run_tests() -> str:
        """Run the tests of the workspace."""
        return re.sub(r" in [\d.]+s", "", test_run(Path(work)))

    agent = create_agent(name="coder", model=coder_model, tools=[write_file, run_tests])
    return agent.generate(prompt=TASK).text


def careful_coder(messages: list, tools: list) -> dict:
    """Another model: it writes the right program at once."""
    if messages[-1]["role"] == "tool" and messages[-1]["content"].endswith("test_slugs.py"):
        call = ("write_file", {"path": "slugs.py", "text": MENDED})
        return answer("coder", messages, "The program, without signs and accents.", call)
    return coder_model(messages, tools)


def run_again(store: treering.Store, work: Path) -> Comparison:
    """Record the coder, and run it again from a step on with both models."""
    with treering.record(
        store, agent=CODER, thread=THREAD, workspace=work, entry=code, arguments=[str(work)]
    ) as run:
        code(str(work))
    return treering.rerun(
        store,
        run.id,
        from_step=FROM_STEP,
        model=[careful_coder, coder_model],
        repeat=2,
        verify=f"{sys.executable} -m unittest -q",
        folder=work.parent / "reruns",
    )


def show_reruns(made: Comparison) -> None:
    for line in lines_of(made):
        print(f"   {line}".rstrip())

"""An agent in a process that may be killed.

python -m tests.agent.worker CHECKPOINTER PLACE LOG --style STYLE [--prompt TEXT] [--die-after K] [--die-in K]

The model wants four tool calls in one message, and answers when it has seen their results. Each tool writes a
line to LOG when it runs. `--die-after K` kills the process when the checkpoint with the K-th result is
durable, `--die-in K` when the K-th tool begins, before it has done anything. The result is printed as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal

import treering
from tests.agent.scripted import asking, said
from treering.agent import create_agent, tool
from treering.agent.messages import results_of
from treering.compat import savers

CALLS = 4
CHECKPOINTERS = {
    "url": str,
    "store": lambda place: treering.open(place, durability="fast"),
    "sqlite": lambda place: savers.SqliteSaver(place, durability="fast"),
    "files": savers.FileSaver,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpointer", choices=CHECKPOINTERS)
    parser.add_argument("place")
    parser.add_argument("log")
    parser.add_argument("--style", default="openai")
    parser.add_argument("--prompt")
    parser.add_argument("--die-after", type=int)
    parser.add_argument("--die-in", type=int)
    given = parser.parse_args()

    def model(messages, tools):  # noqa: ARG001
        answered = set().union(*map(results_of, messages))
        if len(answered) == CALLS:
            return said(f"All {CALLS} are done.")
        return asking(*((f"c{k}", "note", {"k": k}) for k in range(1, CALLS + 1)), style=given.style)

    def note(k: int) -> str:
        if k == given.die_in:
            os.kill(os.getpid(), signal.SIGKILL)
        with open(given.log, "a", encoding="utf-8") as log:  # noqa: PTH123
            log.write(f"{k}\n")
        return f"noted {k}"

    agent = create_agent(
        model=model,
        tools=[tool(note, replay="safe")],
        checkpointer=CHECKPOINTERS[given.checkpointer](given.place),
        record=False,  # failpoints count commits, and the recorder's come when they come
    )
    results = 0
    for part in agent.stream(thread_id="long", prompt=given.prompt, checkpoint_after_tool_call=True):
        if part.kind == "tool_result":
            results += 1
        if part.kind == "checkpoint" and results == given.die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        if part.kind == "finish":
            print(json.dumps({"text": part.result.text, "made": results, "run": part.result.run_id}))


if __name__ == "__main__":
    main()

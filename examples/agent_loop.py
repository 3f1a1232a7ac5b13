"""An agent of a few lines, killed in the middle of its tool calls, continues where it stopped.

    python examples/agent_loop.py

The model is scripted, so no key and no network are needed. It asks for three reports at once, and then to
send them. The first process is killed with SIGKILL when two reports are written. The second one opens the
same folder, makes only the missing call, and waits for a person's approval before it sends anything.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from treering.agent import Budget, Context, create_agent, tool

CITIES = ("Oslo", "Rome", "Lima")
THREAD = "weather"


def model(messages, tools):  # noqa: ARG001 - a model is given both
    results = [message for message in messages if message["role"] == "tool"]
    if not results:
        return asking(*(("report", f'{{"city": "{city}"}}') for city in CITIES))
    if len(results) == len(CITIES):
        return asking(("send", '{"to": "alice"}'))
    return f"Done: {results[-1]['content']}."


def asking(*calls):
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"{name}-{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ],
    }


def report(context: Context, city: str) -> str:
    """Write a report."""
    context.state.setdefault("reports", []).append(city)
    print(f"  writing about {city}")
    return f"{city} is sunny"


@tool(needs_approval=True)
def send(context: Context, to: str) -> str:
    """Send all reports."""
    return f"sent {', '.join(context.state['reports'])} to {to}"


def agent_in(folder):
    return create_agent(
        model=model,
        tools=[report, send],
        checkpointer=folder,
        budgets=Budget(run=10, run_by_tool={"send": 1}),
    )


def work_until_killed(folder):
    written = 0
    for part in agent_in(folder).stream(
        thread_id=THREAD, prompt="Report and send", checkpoint_after_tool_call=True
    ):
        written += part.kind == "tool_result"
        if part.kind == "checkpoint" and written == 2:
            print("  killed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    with tempfile.TemporaryDirectory(prefix="treering-agent-") as folder:
        place = str(Path(folder) / "store")
        print("One process begins:", flush=True)
        died = subprocess.run([sys.executable, __file__, place], check=False)
        assert died.returncode == -signal.SIGKILL

        print("Another process resumes:")
        with agent_in(place) as agent:
            waiting = agent.generate(thread_id=THREAD)
            print(f"  waits for a person: {waiting.interrupt['payload']['tool_call']['name']}")
            result = agent.resume(thread_id=THREAD, decision="approve")
            print(result.text)
            print(f"{result.counters.run} tool calls in this run, over two processes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work_until_killed(sys.argv[1])
    else:
        main()

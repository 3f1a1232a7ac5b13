"""An agent is killed while it is parked, and a worker in another process goes on when the answer comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import treering

AGENT = """
from pathlib import Path
from treering.agent import create_agent, tool
from treering.approvals import ApprovalPolicy

FOLDER = Path({folder!r})

@tool(approval=ApprovalPolicy(who=("bob",)))
def pay(amount: int, *, idempotency_key: str) -> str:
    with (FOLDER / "paid.txt").open("a") as file:
        file.write(f"{{amount}}\\n")
    return f"paid {{amount}}"

def model(messages, tools):
    if messages[-1]["role"] == "tool":
        return "Done: " + messages[-1]["content"]
    call = {{"name": "pay", "arguments": '{{"amount": 20}}'}}
    return {{"role": "assistant", "tool_calls": [{{"id": "c1", "type": "function", "function": call}}]}}

agent = create_agent(model=model, tools=[pay], checkpointer=str(FOLDER / "store"))
"""

PARKED = """
import time
from parked_agent import agent
result = agent.generate(thread_id="t", prompt="pay")
assert result.interrupt is not None
print("parked", flush=True)
time.sleep(600)
"""

WAITING = """
import sys
import treering
store = treering.open(sys.argv[1])
asked = store.approvals.request("rm", {"path": "x"}, thread_id="t", id="one")
print("parked", flush=True)
asked.wait()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parked_agent.py").write_text(AGENT.format(folder=str(tmp_path)))
    return tmp_path


def parked(folder: Path, code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{folder}"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "parked\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert process.stdout is not None
    process.stdout.close()


def work(folder: Path, *arguments: str) -> None:
    environment = os.environ | {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{folder}"}
    command = [sys.executable, "-m", "treering", "approvals", "work", "parked_agent:agent", "--once"]
    subprocess.run([*command, "--store", str(folder / "store"), *arguments], check=True, env=environment)


def test_an_agent_that_died_while_parked_goes_on_once_when_the_answer_comes(folder) -> None:
    kill(parked(folder, PARKED))
    work(folder)
    assert not (folder / "paid.txt").exists()
    with treering.open(folder / "store") as store:
        (question,) = store.approvals.list()
        store.approvals.answer(question.id, "edit", value={"amount": 7}, by="bob")
    for _ in range(2):
        work(folder)
    assert (folder / "paid.txt").read_text() == "7\n"
    with treering.open(folder / "store") as store:
        assert store.thread("t").load().messages[-1]["content"] == "Done: paid 7"
        assert store.approvals.load(question.id).progress == "closed"


def test_a_program_that_died_while_it_waited_is_left_to_a_worker(folder) -> None:
    process = parked(folder, WAITING, str(folder / "store"))
    with treering.open(folder / "store") as store:
        (question,) = store.approvals.list()
        while not store.approvals.is_parked(question.id):
            time.sleep(0.01)
        kill(process)
        store.approvals.answer(question.id, "approve", by="bob")
        while store.approvals.is_parked(question.id):  # its lease runs out
            time.sleep(0.1)
        seen = []
        from treering.approvals.worker import ApprovalWorker

        assert ApprovalWorker(store, seen.append).run_once() == 1
        assert [each.id for each in seen] == [question.id]

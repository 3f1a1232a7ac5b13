"""An agent is killed in the middle of its work, and nothing that it was promised is lost.

    make demo            (or: python examples/demo.py)

A child process plays the agent: each step is one commit with a message, an event and a moved head, and now
and then a large tool result. It says "done" only when the store has said so. We kill it with SIGKILL, look
at what is there, and let a second process go on from the last step. Everything happens in a temporary folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import treering
from treering.core.address import list_address
from treering.core.batch import Event
from treering.core.encoding import decode, encode, encode_json
from treering.core.query import EventQuery
from treering.core.scopes import Scope

STEPS = 400
KILL_AFTER = 160
MESSAGES = "support/alice/messages"
HEAD = "support/alice/head"
SCOPE = str(Scope("alice", "thread", "support"))


def main() -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="treering-demo-") as folder:
        store_folder = Path(folder) / "store"

        title("1. An agent works, one durable commit a step")
        acknowledged = run_agent(store_folder, kill_after=KILL_AFTER)
        say(f"steps that the store acknowledged: {acknowledged}")
        say("then: kill -9")

        title("2. Open the store again")
        with treering.open(store_folder) as store:
            kept = look_back(store, acknowledged)

        title("3. Another process goes on from there")
        finished = run_agent(store_folder)
        with treering.open(store_folder) as store:
            check(last_step(store) == finished == STEPS, f"it began at step {kept + 1}, reached {finished}")
            look_back(store, STEPS)

            title("4. Look after it")
            show_stats(store)
            plan = store.gc(keep=treering.Keep(last=50), dry_run=True)
            say(f"gc --keep last=50 --dry-run: would drop {plan.dropped}, keep {plan.kept}")
            report = store.backup(Path(folder) / "backup")
            say(f"backup: {report.events} events, {report.bytes:,} bytes, opened and checked")
        with treering.open(Path(folder) / "backup") as saved:
            check(last_step(saved) == STEPS, "the backup opens like any store and has every step")

    print(f"\nAll of it in {time.monotonic() - started:.1f} s. Nothing that was acknowledged was lost.")


def look_back(store: treering.Store, acknowledged: int) -> int:
    """Check that every acknowledged step is there, whole; gives back the last one."""
    last = last_step(store)
    messages = [decode(item) for item in store.engine.read_list(store.space, MESSAGES, 0, STEPS)]
    page = store.engine.scan(store.space, EventQuery(kinds=("checkpoint",)), limit=10_000)
    check(last >= acknowledged, f"the head is at step {last}: nothing acknowledged is missing")
    if last > acknowledged:
        say(f"(step {last} was committed too; the agent died before it could say so)")
    check([message["step"] for message in messages] == list(range(1, last + 1)), f"{last} messages, in order")
    check(len(page.records) == last, f"{last} events in the journal")
    bodies = [record.event.body for record in page.records if record.event.body is not None]
    results = store.engine.get(store.space, bodies)
    whole = all(each.data.startswith(b"tool result") for each in results)
    check(whole, f"{len(results)} large tool results, each matches its hash")
    verified = store.verify()
    check(verified.ok, f"verify: {len(verified.problems)} problems, {verified.checked.bytes:,} bytes read")
    return last


def show_stats(store: treering.Store) -> None:
    stats = store.stats()
    rows = ", ".join(f"{count} {name}" for name, count in stats.rows.items() if count)
    say(f"stats: {rows}")
    say(f"       {stats.total_bytes:,} bytes stored, {stats.disk_bytes or 0:,} on disk")


def last_step(store: treering.Store) -> int:
    ref = store.engine.refs(store.space, [HEAD]).get(HEAD)
    return 0 if ref is None else json.loads(ref.value)["step"]


# --- the agent, in a process of its own -------------------------------------------------------------


def run_agent(folder: Path, *, kill_after: int | None = None) -> int:
    """Let an agent work until it is done or killed; the last step that it said was stored."""
    command = [sys.executable, __file__, "agent", str(folder)]
    acknowledged = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        for line in agent.stdout:  # what is in the pipe when it dies was said while it lived
            acknowledged = int(line)
            if acknowledged == kill_after:
                os.kill(agent.pid, signal.SIGKILL)
    if kill_after is None and agent.returncode != 0:
        sys.exit(f"the agent failed with code {agent.returncode}")
    return acknowledged


def work(folder: str) -> None:
    with treering.open(folder) as store:
        for step in range(last_step(store) + 1, STEPS + 1):
            draft = store.draft()
            message = {"role": "assistant", "step": step, "text": f"Thinking about refund {step}."}
            draft.append(MESSAGES, encode(message), scope=SCOPE, at=step - 1)
            result = draft.put(tool_result(step), scope=SCOPE) if step % 10 == 0 else None
            event_id = f"step-{step:06}"
            draft.event(
                Event(
                    id=event_id,
                    kind="checkpoint",
                    ts_us=time.time_ns() // 1000,
                    scope=SCOPE,
                    thread="support",
                    agent="planner",
                    body=result,
                )
            )
            head = encode_json({"checkpoint": event_id, "step": step})
            draft.set_ref(HEAD, head, scope=SCOPE, links=(list_address(MESSAGES),))
            store.commit(draft)
            print(step, flush=True)


def tool_result(step: int):
    return encode(f"tool result {step}: " + "a long page from the handbook. " * 1000)


# --- printing ---------------------------------------------------------------------------------------


def title(text: str) -> None:
    print(f"\n{text}")


def say(text: str) -> None:
    print(f"   {text}")


def check(holds: bool, claim: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        sys.exit(f"   FAILED: {claim}")
    print(f"   ok: {claim}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["agent"]:
        work(sys.argv[2])
    else:
        main()

"""Kill two agents in the middle of their work, resume, rewind, fork and compare them.

    make demo            (or: python examples/demo.py)

Two agents build and test a small program (see demo_job.py) in a separate process, which is killed with
SIGKILL while it writes a file. Another process resumes the work; then it is rewound together with its
files, forked with another prompt, and both branches are compared: messages, state, files and cost. A third
agent is killed while it pays, twice, and each payment is made once. Everything printed is read back from
the store. Finally the dashboard is served on this data until Ctrl-C, unless ``--no-serve`` is given or the
output is not a terminal.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from demo_job import CODER, LEAD, MODELS, Job, test_run
from demo_payment import kill_payments
from demo_rerun import FROM_STEP, run_again, show_reruns

import treering
from treering.threads.checkpoint import Checkpoint
from treering.threads.thread import Thread

FORK = "slugs/coder-german"
OTHER_PROMPT = (
    "Keep German readers in mind: spell German letters out, ä as ae and ß as ss. Test that as well."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-serve", action="store_true", help="print the summary and exit")
    parser.add_argument("--folder", type=Path, help="keep the data in this new folder")
    parser.add_argument("--port", type=int, default=8787, help="port of the dashboard; 0 picks a free one")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="treering-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"{folder} is not empty; pass a new folder")
    try:
        play(folder.resolve())
        if not options.no_serve and sys.stdout.isatty():
            serve(folder / "store", options.port)
    finally:
        if options.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


def play(folder: Path) -> None:
    started = time.monotonic()
    place, work = folder / "store", folder / "work"
    work.mkdir()

    title("1. Two agents build a program, and the process is killed")
    acknowledged = first_process(place, work)
    with treering.open(place) as store:
        look_back(store, work, acknowledged)

    title("2. Another process resumes")
    second_process(place, work)
    with treering.open(place) as store:
        coder = store.thread(CODER)
        show_work(store)
        finished = coder.head

        title("3. Rewind to an earlier step, with its files")
        early = go_back(store, coder, work)

        title("4. Fork from there with another prompt")
        branch = fork(early, place, folder / "work-german")

        title("5. Compare the branches")
        show_difference(coder, finished, branch)
        coder.rewind(finished)
        finished.restore(work, delete=True)
        check(coder.head.id == finished.id, f"{CODER} is back at step {coder.head.step}; nothing was lost")

        title("6. Cost of each branch")
        show_costs(store)

        title(f"7. Run the coder again from step {FROM_STEP}, with another model")
        made = run_again(store, folder / "recorded")
        show_reruns(made)
        check(
            all(each.verify.is_ok for each in made.reruns), "the tests of the original and of each rerun pass"
        )

    title("8. A payment is killed in the middle, and made once")
    booked, effects = kill_payments(place)
    check(booked == ["refund of 4711", "carrier of 4711"], "each payment was made once")
    check({each[1] for each in effects} == {"done"}, "the store knows what became of each call")

    with treering.open(place) as store:
        title("9. Verify the store")
        verified, stats = store.verify(), store.stats()
        check(verified.ok, f"verify: {verified.checked.bytes:,} bytes read, all hashes match")
        print(f"   {stats.rows['commits']} commits, {stats.disk_bytes or 0:,} bytes on disk")
    print(f"\nDone in {time.monotonic() - started:.1f} s. Nothing acknowledged was lost.")


# --- steps ------------------------------------------------------------------------------------------


def first_process(place: Path, work: Path) -> list[dict]:
    """Start the job and kill it while it writes a file; return the checkpoints it was told are saved."""
    acknowledged = []
    with subprocess.Popen(
        job(place, work, "--hold"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        for line in process.stdout:
            message = json.loads(line)
            if "half" in message:
                os.kill(process.pid, signal.SIGKILL)
            else:
                acknowledged.append(message)
    check(process.returncode == -signal.SIGKILL, f"process {process.pid} was killed with SIGKILL")
    return acknowledged


def second_process(place: Path, work: Path) -> None:
    done = subprocess.run(job(place, work), stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"   FAILED: the second process ended with {done.returncode}")


def job(place: Path, work: Path, *more: str) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("demo_job.py")), str(place), str(work), *more]


def look_back(store: treering.Store, work: Path, acknowledged: list[dict]) -> None:
    kept = {checkpoint.id for name in (LEAD, CODER) for checkpoint in store.thread(name).history()}
    check(
        {message["saved"] for message in acknowledged} <= kept,
        f"all {len(acknowledged)} acknowledged checkpoints are stored",
    )
    torn = (work / "slugs.py").read_bytes()
    head = store.thread(CODER).load()
    call = head.messages[-1]["tool_calls"][0]["function"]
    whole = json.loads(call["arguments"])["text"].encode()
    print(f"   on disk: {len(torn)} of {len(whole)} bytes of slugs.py, truncated by the kill")
    print(
        f"   in the store: {CODER} at step {head.step}, about to {call['name']}; files: {files(store, head)}"
    )


def show_work(store: treering.Store) -> None:
    for checkpoint in sorted(store.thread(CODER).history(), key=lambda each: each.step):
        message = checkpoint.messages[-1]
        said = message["content"].splitlines()[-1] if message["content"] else ""
        print(f"   {checkpoint.step:>2}  {message['role']:<9}  {said[:70]}")
    lead = store.thread(LEAD).load()
    print(f"   the lead says: {lead.messages[-1]['content']}")
    check(lead.state["tests"]["passed"] == lead.state["tests"]["ran"] > 0, "its tests were run and pass")


def go_back(store: treering.Store, coder: Thread, work: Path) -> Checkpoint:
    early = next(
        checkpoint
        for checkpoint in coder.history()
        if files(store, checkpoint) == "test_slugs.py" and checkpoint.messages[-1]["role"] == "tool"
    )
    before = coder.head
    coder.rewind(early)
    done = early.restore(work, delete=True)
    print(f"   {CODER}: step {before.step} -> {coder.head.step}; files removed: {', '.join(done.removed)}")
    print(f"   the tests now say: {test_run(work).splitlines()[-1]}")
    return early


def fork(early: Checkpoint, place: Path, work: Path) -> Checkpoint:
    branch = early.fork(FORK)
    early.restore(work)
    print(f"   {FORK}, in its own folder, gets the prompt:")
    print(f"   {OTHER_PROMPT}")
    with treering.open(place) as other:  # with hooks of its own, which snapshot the other folder
        Job(other, work).ask("coder", FORK, OTHER_PROMPT)
    head = branch.load()
    print(f"   the coder says: {head.messages[-1]['content']}")
    check(head.state["tests"]["passed"] == head.state["tests"]["ran"] > 0, "the tests of the branch pass")
    return head


def show_difference(coder: Thread, one: Checkpoint, other: Checkpoint) -> None:
    diff = coder.diff(one, other)
    print(f"   messages: {diff.common} in common, then {one.message_count - diff.common} against "
          f"{other.message_count - diff.common}")  # fmt: skip
    for patch in diff.state:
        print(f"   state: {patch['op']} {patch['path']} {json.dumps(patch.get('value'))}")
    for change in diff.files:
        print(f"   files: {change.change} {change.path}")
        for line in (change.text or "").splitlines()[2:]:
            if line.startswith(("+", "-")):
                print(f"      {line}")


def show_costs(store: treering.Store) -> None:
    print(f"   {'':<20} {'runs':>4} {'tokens':>7} {'US dollars':>11}")
    for thread in (LEAD, CODER, FORK):
        total = store.cost.of_thread(thread).total
        runs = sum(info.thread == thread for info in store.runs.each())
        print(f"   {thread:<20} {runs:>4} {total.tokens:>7,} {total.amount('USD'):>11.6f}")
    names = " and ".join(MODELS.values())
    print(f"   (the models are scripts: a token is four characters, at the prices of {names})")


def serve(place: Path, port: int) -> None:
    try:
        from treering.server.dashboard import is_built
        from treering.server.serving import serve as run
        from treering.server.settings import Settings
    except ModuleNotFoundError as error:
        print(f"\nThe dashboard needs {error.name}: pip install 'treering[server]'")
        return
    if not is_built():
        print("\nThis installation has no dashboard; build it in a clone with: python hatch_build.py")
        return

    def ready(address: str) -> None:
        print(f"\nDashboard: {address}/ui/")
        print(f"   checkpoints of the coder: {address}/ui/#/threads/{quote(CODER, safe='')}")
        print("Stop with Ctrl-C.", flush=True)

    with treering.open(place) as store:
        try:
            run(store, Settings(port=port), on_ready=ready)
        except treering.errors.Unreachable:
            run(store, Settings(port=0), on_ready=ready)  # the port is in use
        except KeyboardInterrupt:
            pass


# --- printing ---------------------------------------------------------------------------------------


def files(store: treering.Store, checkpoint: Checkpoint) -> str:
    return ", ".join(entry.path for entry in store.workspace.ls(checkpoint.snapshot, recursive=True))


def title(text: str) -> None:
    print(f"\n{text}")


def check(holds: bool, claim: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        sys.exit(f"   FAILED: {claim}")
    print(f"   ok: {claim}")


if __name__ == "__main__":
    main()

"""A process that works on a store until it is killed.

python -m tests.faults.victim SCENARIO --store URL [--blobs FOLDER] [--target PLACE] [--writer NAME]

TREERING_FAILPOINTS sets the failpoint that kills it. It reports on standard output, as lines of JSON,
what it is about to do (``trying``) and what was acknowledged (``done``). A line is written before the
next step begins, so its reader knows what the store has acknowledged.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

import treering
from tests.faults.loads import SPACE, checkpoint, linking, load, pieces, thread_scope
from treering.core import failpoints
from treering.core.batch import Batch, Draft
from treering.core.query import EventQuery
from treering.core.retention import Keep
from treering.store import Store
from treering.testing.batches import event, events, noise

SOURCES = Path(treering.__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("scenario", choices=[*SCENARIOS, "names"])
    parser.add_argument("--store")
    parser.add_argument("--blobs")
    parser.add_argument("--target")
    parser.add_argument("--durability", default="fast")
    parser.add_argument("--writer", default="w")
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    if given.scenario == "names":
        print(json.dumps(names()))
        return
    with treering.open(given.store, blobs=given.blobs, durability=given.durability) as store:
        SCENARIOS[given.scenario](Victim(store, given.target, given.writer), given.rounds)


def names() -> dict[str, str]:
    """Return every failpoint that any module declares."""
    for path in sorted(SOURCES.rglob("*.py")):
        if "declare(" in path.read_text():
            importlib.import_module(".".join(("treering", *path.relative_to(SOURCES).with_suffix("").parts)))
    return failpoints.declared()


class Victim:
    """A store, and reports of what happened to it."""

    def __init__(self, store: Store, target: str | None, writer: str) -> None:
        self.store = store
        self.target = target
        self.writer = writer

    def commit(self, batch: Batch) -> None:
        report(trying=batch.id)
        receipt = self.store.commit(batch)
        report(done=batch.id, receipt=msgspec.to_builtins(receipt))

    def stage(self, *contents) -> None:
        self.store.engine.stage(SPACE, contents)


def commits(victim: Victim, rounds: int) -> None:
    """Commit batches one after the other."""
    for number in range(rounds):
        victim.commit(load(number))


def flushes(victim: Victim, rounds: int) -> None:
    """Make small commits, which are flushed when they are read."""
    for number in range(rounds):
        for moment in range(5):
            victim.commit(checkpoint(5 * number + moment))
        victim.store.engine.scan(SPACE, EventQuery())


def stages(victim: Victim, rounds: int) -> None:
    """Stage objects before the commits that require them, in rows and in packs."""
    for number in range(rounds):
        small, *large = pieces(number)
        victim.stage(small)
        victim.stage(*large)
        victim.commit(linking(number))
        victim.commit(load(number))


def sweeps(victim: Victim, rounds: int) -> None:
    """Create and collect all kinds of garbage: packs that lose most of their objects, lists, bodies."""
    for number in range(rounds):
        victim.commit(load(number))
        victim.stage(*pieces(number))
        victim.commit(linking(number, "1"))
        victim.stage(*pieces(number, writer="rubbish"))
        rubbish = Draft(SPACE)
        scope = thread_scope("rubbish")
        slot = rubbish.put(noise(100, seed=number), scope=scope)
        rubbish.append(f"rubbish/{number}", noise(5000, seed=number), slot, scope=scope, at=0)
        rubbish.set_ref("rubbish", b"", scope=scope, links=(slot,))
        victim.store.commit(rubbish)
        victim.store.commit(deletion("rubbish"))
        victim.store.gc(grace_seconds=0)
        report(done=f"sweep {number}")


def retains(victim: Victim, rounds: int) -> None:
    """Write checkpoints, of which a policy keeps the last two."""
    for number in range(rounds):
        victim.commit(load(number))
        for moment in range(3):
            victim.commit(checkpoint(3 * number + moment))
        victim.store.gc(keep=Keep(last=2), grace_seconds=0)
        report(done=f"retention {number}")


def erases(victim: Victim, rounds: int) -> None:
    """Forget threads, except one; they share packs."""
    for number in range(rounds):
        writer, thread = f"v{number}", f"gone{number}"
        victim.commit(load(number))
        for step in range(2):
            victim.store.commit(load(step, writer=writer, thread=thread))
        victim.stage(*pieces(number), *pieces(0, writer=writer))
        victim.commit(linking(number))
        victim.store.commit(linking(0, writer=writer, thread=thread))
        report(forgetting=number)
        victim.store.forget(thread=thread)
        report(done=f"forget {number}")


def erases_in_slices(victim: Victim, rounds: int) -> None:
    """The same in many transactions, as for a plan with many rows."""
    from treering.engines.sql.gc import erase, sweep

    erase.ONE_TRANSACTION = 0
    erase.SLICE = sweep.SLICE = 1
    erases(victim, rounds)


def opens(_: Victim, rounds: int) -> None:
    """Create a store; `main` has already done it."""
    assert rounds


def copies(victim: Victim, rounds: int) -> None:
    """Copy repeatedly while the source grows."""
    for number in range(rounds):
        victim.commit(load(number))
        victim.stage(*pieces(number))
        victim.commit(linking(number))
        target, _, blobs = (victim.target or "").partition(" ")
        victim.store.copy_to(target, blobs=blobs or None)
        report(done=f"copy {number}")


def backs_up(victim: Victim, rounds: int) -> None:
    """Make a backup after every commit."""
    for number in range(rounds):
        victim.commit(load(number))
        victim.stage(*pieces(number))
        victim.commit(linking(number))
        victim.store.backup(f"{victim.target}/{number}")
        report(done=f"backup {number}")


def reports(victim: Victim, rounds: int) -> None:
    """Commit one to three events at a time, as fast as possible."""
    for number in range(rounds):
        written = [event(id=f"{victim.writer}.{number}.{part}") for part in range(number % 3 + 1)]
        receipt = victim.store.commit(events(SPACE, *written))
        report(events=[each.id for each in written], first_seq=receipt.first_seq)


def writes_for_ever(victim: Victim, rounds: int) -> None:
    """Commit, submit and stage in four threads until the process is killed."""

    def write(writer: str) -> None:
        for number in range(rounds):
            first, second = load(2 * number, writer=writer), load(2 * number + 1, writer=writer)
            report(trying=first.id)
            report(trying=second.id)
            for future in [victim.store.submit(first), victim.store.submit(second)]:
                receipt = future.result()
                report(done=receipt.batch, receipt=msgspec.to_builtins(receipt))
            if number % 5 == 4:
                victim.stage(*pieces(number, writer=writer))
                victim.commit(linking(number, writer=writer))

    writers = [threading.Thread(target=write, args=(f"{victim.writer}{each}",)) for each in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()


def report(**what) -> None:
    """Write a complete line to the pipe before anything else happens."""
    os.write(sys.stdout.fileno(), json.dumps(what).encode() + b"\n")


def deletion(name: str) -> Draft:
    """Return a draft that deletes a ref."""
    draft = Draft(SPACE)
    draft.delete_ref(name, scope=thread_scope("rubbish"))
    return draft


SCENARIOS: dict[str, Callable[[Victim, int], None]] = {
    scenario.__name__: scenario
    for scenario in (
        commits,
        flushes,
        stages,
        sweeps,
        retains,
        erases,
        erases_in_slices,
        opens,
        copies,
        backs_up,
        reports,
        writes_for_ever,
    )
}

if __name__ == "__main__":
    main()

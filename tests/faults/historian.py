"""A process that uses a shared store at random, and writes down what it did and what it saw.

python -m tests.faults.historian --store URL --name NAME --seed N --history FILE

A line is written before each operation and after it, with times of the clock that all processes of the
machine share. What has no second line is unknown: it may have happened or not, as the process was killed or
an error said that nobody knows. `tests/faults/test_histories.py` checks all histories together.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import treering
from treering.core.batch import ABSENT, Draft
from treering.errors import Conflict, NotFound, TreeringError

SHARED = "shared"
REGISTER = "register"
JOB = "job"
LEASE_SECONDS = 1.0


class Historian:
    """One life of a host."""

    def __init__(self, store: treering.Store, name: str, history: Path) -> None:
        self.store = store
        self.name = name
        self.count = 0
        self.own = 0
        self._history = history.open("a", buffering=1)

    def work(self, random: random.Random) -> None:
        doing = (
            self.append, self.append, self.append, self.read, self.read, self.swap, self.swap, self.claim,
            self.fork, self.rewind, self.forget,
        )  # fmt: skip
        while True:
            self.count += 1
            operation = random.choice(doing)
            entry = {"id": f"{self.name}.{self.count}", "op": operation.__name__}
            self._write(entry, "begin")
            try:
                seen = operation(f"{self.name}.{self.count}")
            except Conflict as error:
                self._write(entry, "refused", why=str(error))
            except TreeringError as error:
                if not error.retryable:
                    self._write(entry, "wrong", why=f"{type(error).__name__}: {error}")
            else:
                self._write(entry, "ok", seen=seen)

    def _write(self, entry: dict[str, Any], state: str, **more: Any) -> None:
        self._history.write(json.dumps({**entry, "at": time.monotonic(), "state": state, **more}) + "\n")

    def append(self, value: str) -> None:
        self.store.thread(SHARED).append(value, on_conflict="retry")

    def read(self, _: str) -> list[str]:
        return self.store.thread(SHARED).load().messages

    def swap(self, value: str) -> dict[str, int | None]:
        """Read a register, and set it from the version that was read."""
        found = self.store.engine.refs(self.store.space, [REGISTER]).get(REGISTER)
        draft = Draft(self.store.space)
        expect = ABSENT if found is None else found.version
        draft.set_ref(REGISTER, value.encode(), scope="/state/register", expect=expect)
        receipt = self.store.commit(draft)
        return {"from": 0 if found is None else found.version, "to": receipt.versions[REGISTER]}

    def claim(self, holder: str) -> dict[str, Any]:
        """Hold a lease for a moment; what is done under it is between these times."""
        asked = time.monotonic()
        lease = self.store.engine.claim(self.store.space, JOB, holder=holder, seconds=LEASE_SECONDS)
        if lease is None:
            return {"token": None}
        got = time.monotonic()
        time.sleep(0.005)
        held = min(time.monotonic(), asked + LEASE_SECONDS)
        self.store.engine.release(lease)
        return {"token": lease.token, "from": got, "until": held}

    def fork(self, value: str) -> list[str]:
        fork = self.store.thread(SHARED).fork(f"fork/{value}")
        return fork.load().messages

    def rewind(self, value: str) -> None:
        """Append to a thread of its own, rewind it, and see what was there before."""
        thread = self.store.thread(f"own/{value}")
        first = thread.append("first")
        thread.append("second")
        thread.rewind(first.id)
        seen = thread.load().messages
        assert seen == ["first"], f"rewound to {seen}"

    def forget(self, value: str) -> None:
        thread = self.store.thread(f"gone/{value}")
        thread.append(f"secret of {value}")
        self.store.forget(thread=f"gone/{value}")
        try:
            seen = thread.load().messages
        except NotFound:
            return
        raise AssertionError(f"forgotten, and still there: {seen}")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("store", "name", "seed", "history"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    store: treering.Store | None = None
    while store is None:
        try:
            store = treering.open(given.store)
        except TreeringError:
            time.sleep(0.1)
    Historian(store, given.name, Path(given.history)).work(random.Random(given.seed))


if __name__ == "__main__":
    main()

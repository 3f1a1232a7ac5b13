"""Opening a store that is not there yet, from several sides at once.

Following a SQLite store: the poller and whoever closes the store do not meet.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import treering

OPENERS = 4


def test_several_may_make_one_store_at_once(tmp_path):
    barrier = Barrier(OPENERS)

    def opened(folder, number):
        barrier.wait()
        with treering.open(folder, durability="fast") as store:
            store.thread(f"t{number}").append({"role": "user", "content": "here"})

    with ThreadPoolExecutor(OPENERS) as pool:
        for turn in range(12):
            folder = tmp_path / str(turn)
            for each in [pool.submit(opened, folder, number) for number in range(OPENERS)]:
                each.result()
            with treering.open(folder) as store:
                assert len(list(store.threads())) == OPENERS


_CLOSES_WHILE_OTHERS_WAIT = """
import random, sys, threading, time
from contextlib import suppress
from pathlib import Path
import treering

for number in range(30):
    store = treering.open(Path(sys.argv[1]) / str(number), durability="fast")
    store.state.set("a", 1)

    def follow():
        with suppress(treering.errors.Closed):
            store.engine.wait(store.space, 10**6, seconds=5)

    waiting = [threading.Thread(target=follow) for _ in range(4)]
    for each in waiting:
        each.start()
    time.sleep(random.uniform(0, 0.01))
    store.close()
    for each in waiting:
        each.join()
"""


def test_closing_a_store_that_others_follow_ends_their_waiting(tmp_path):
    """In a process of its own: a connection that is closed while it is asked takes the interpreter along."""
    done = subprocess.run(
        [sys.executable, "-c", _CLOSES_WHILE_OTHERS_WAIT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")

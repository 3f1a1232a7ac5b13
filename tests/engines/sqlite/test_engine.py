"""Opening a store that is not there yet, from several sides at once."""

from __future__ import annotations

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

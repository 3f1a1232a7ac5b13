"""Writers of several processes take turns, and nobody keeps the others waiting for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from treering.engines.sqlite.turns import Turns
from treering.errors import Busy


def test_the_second_comes_in_when_the_first_leaves(tmp_path):
    first, second, order = Turns(tmp_path / "turns"), Turns(tmp_path / "turns"), []
    first.enter(1)

    def wait():
        second.enter(20)
        order.append("second")
        second.leave()

    waiting = threading.Thread(target=wait)
    waiting.start()
    order.append("first")
    first.leave()
    waiting.join(20)
    assert order == ["first", "second"]
    for turns in (first, second):
        turns.close()


def test_who_waits_too_long_gives_up_and_blocks_nobody(tmp_path):
    first, second, third = (Turns(tmp_path / "turns") for _ in range(3))
    first.enter(1)
    with pytest.raises(Busy, match="try again"):
        second.enter(0.05)
    first.leave()
    third.enter(20)
    third.leave()
    second.enter(20)
    second.leave()
    for turns in (first, second, third):
        turns.close()


def test_the_turn_of_a_killed_process_ends_with_it(tmp_path):
    code = (
        "import sys; from pathlib import Path; from treering.engines.sqlite.turns import Turns\n"
        "Turns(Path(sys.argv[1])).enter(5); print('in', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "turns")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout.readline() == b"in\n"
        turns = Turns(tmp_path / "turns")
        with pytest.raises(Busy):
            turns.enter(0.05)
        os.kill(child.pid, signal.SIGKILL)
    turns.enter(20)
    turns.leave()
    turns.close()


def test_a_folder_that_cannot_be_written_is_left_to_sqlite(tmp_path):
    turns = Turns(tmp_path / "missing" / "turns")
    turns.enter(1)
    turns.leave()

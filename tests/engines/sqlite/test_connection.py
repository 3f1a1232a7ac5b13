"""Writers of several processes take turns, and nobody keeps the others waiting for ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from treering.engines.sqlite.connection import WriterQueue
from treering.errors import Busy


def test_the_second_writer_enters_when_the_first_leaves(tmp_path):
    first, second, order = WriterQueue(tmp_path / "turns"), WriterQueue(tmp_path / "turns"), []
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


def test_a_writer_that_waits_too_long_gives_up_and_blocks_nobody(tmp_path):
    first, second, third = (WriterQueue(tmp_path / "turns") for _ in range(3))
    first.enter(1)
    with pytest.raises(Busy, match="retry"):
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
        "import sys; from pathlib import Path; from treering.engines.sqlite.connection import WriterQueue\n"
        "WriterQueue(Path(sys.argv[1])).enter(5); print('in', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "turns")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout.readline() == b"in\n"
        turns = WriterQueue(tmp_path / "turns")
        with pytest.raises(Busy):
            turns.enter(0.05)
        os.kill(child.pid, signal.SIGKILL)
    turns.enter(20)
    turns.leave()
    turns.close()


def test_a_folder_that_cannot_be_written_is_left_to_sqlite(tmp_path):
    turns = WriterQueue(tmp_path / "missing" / "turns")
    turns.enter(1)
    turns.leave()


@pytest.fixture
def waited(tmp_path, monkeypatch):
    """Someone who had to wait for the turn and has it now, for as long as the test likes."""
    monkeypatch.setattr("treering.engines.sqlite.connection.TURN_SECONDS", 600.0)
    first, second = WriterQueue(tmp_path / "turns"), WriterQueue(tmp_path / "turns")
    first.enter(1)
    entering = threading.Thread(target=second.enter, args=(20,))
    entering.start()
    while second._requests is None:  # it has not found the lock taken yet
        entering.join(0.001)
    first.leave()
    entering.join(20)
    yield second
    for turns in (first, second):
        turns.close()


def test_a_writer_that_waited_keeps_its_turn_while_it_is_used(tmp_path, waited, monkeypatch):
    monkeypatch.setattr("treering.engines.sqlite.connection.IDLE_SECONDS", 600.0)
    other = WriterQueue(tmp_path / "turns")
    for _ in range(3):
        waited.leave()
        with pytest.raises(Busy):
            other.enter(0.02)
        waited.enter(0)
    waited.close()
    other.enter(20)
    other.close()


def test_an_unused_turn_ends(tmp_path, waited):
    waited.leave()
    other = WriterQueue(tmp_path / "turns")
    other.enter(20)
    other.leave()
    waited.enter(20)
    waited.leave()
    other.close()


def test_a_forked_child_does_not_end_the_turn_of_its_parent(tmp_path, waited):
    child = os.fork()
    if child == 0:
        waited.abandon()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    other = WriterQueue(tmp_path / "turns")
    with pytest.raises(Busy):
        other.enter(0.05)
    waited.leave()
    other.close()

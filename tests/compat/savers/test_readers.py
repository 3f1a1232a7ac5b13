"""Reading the content of one checkpoint does not wait for that of another one."""

from __future__ import annotations

from threading import Event, Thread

from treering.compat.savers.checkpoint import Checkpoint, CheckpointHeader


class Slow:
    """Content that comes when it may."""

    def __init__(self):
        self.is_asked, self.may_come = Event(), Event()

    def messages(self):
        self.is_asked.set()
        assert self.may_come.wait(20)
        return ["slow"]

    def state(self):
        return {}


class Quick:
    """Content that is there."""

    def messages(self):
        return ["quick"]

    def state(self):
        return {"n": 1}


def made(contents):
    header = CheckpointHeader(
        id="ckpt_1", thread_id="t", namespace="", parent_id=None, step=0, created_at_us=0, updated_at_us=0
    )
    return Checkpoint(header, contents)


def test_one_who_reads_does_not_wait_for_another():
    contents = Slow()
    slow, quick = made(contents), made(Quick())
    one, other = Thread(target=lambda: slow.messages), Thread(target=lambda: quick.messages)
    one.start()
    assert contents.is_asked.wait(20)
    other.start()
    other.join(10)
    waited = other.is_alive()
    contents.may_come.set()
    one.join()
    other.join()
    assert not waited
    assert slow.messages == ["slow"]
    assert quick.messages is quick.messages
    assert quick.state is quick.state

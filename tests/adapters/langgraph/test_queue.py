"""Writes whose caller waits go into the commit of the checkpoint that comes, or are committed without it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.messages import AIMessage

import treering
from tests.adapters.langgraph.scripts import config, put
from treering.adapters.langgraph import TreeringSaver
from treering.adapters.langgraph import queue as queue_module
from treering.errors import StoreFull

ANSWER = AIMessage("an answer", id="a")


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    with treering.open("memory:" if request.param == "memory" else tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def commits(store, monkeypatch):
    """The batches that are committed."""
    told = []
    commit = store.engine.commit
    monkeypatch.setattr(store.engine, "commit", lambda batch: told.append(batch) or commit(batch))
    return told


@pytest.fixture
def patient(monkeypatch):
    monkeypatch.setattr(queue_module, "CALLERS_PATIENCE", 30)


class Caller:
    """Writes from a thread of its own, and says when it waits."""

    def __init__(self, saver: TreeringSaver) -> None:
        self.saver = saver
        self.waits = threading.Event()
        queue = saver._scribe.queue
        is_landed = queue.is_landed
        queue.is_landed = lambda writes: self.waits.set() or is_landed(writes)
        self.pool = ThreadPoolExecutor()

    def write(self, where):
        self.waits.clear()
        future = self.pool.submit(self.saver.put_writes, where, [("messages", [ANSWER])], "task")
        assert self.waits.wait(30)
        return future


def told(store):
    (newest, oldest) = TreeringSaver(store).list(config())
    return newest.checkpoint["channel_values"]["messages"], oldest.pending_writes


@pytest.mark.usefixtures("patient")
def test_writes_and_their_checkpoint_are_one_commit(store, commits):
    saver = TreeringSaver(store)
    where = put(saver, {"messages": []})
    before = len(commits)
    writing = Caller(saver).write(where)
    assert len(commits) == before
    put(saver, {"messages": [ANSWER]}, parent=where)
    writing.result(30)
    assert len(commits) == before + 1
    assert told(store) == ([ANSWER], [("task", "messages", [ANSWER])])
    assert store.verify().ok


@pytest.mark.usefixtures("patient")
def test_whoever_reads_does_not_wait_for_a_checkpoint(store):
    saver = TreeringSaver(store)
    where = put(saver, {"messages": []})
    writing = Caller(saver).write(where)
    assert saver.get_tuple(config()).pending_writes == [("task", "messages", [ANSWER])]
    writing.result(30)


@pytest.mark.usefixtures("patient")
def test_writes_stay_when_their_checkpoint_is_refused(store, monkeypatch):
    saver = TreeringSaver(store)
    where = put(saver, {"messages": []})
    writing = Caller(saver).write(where)
    with monkeypatch.context() as patched:

        def full(batch):  # noqa: ARG001
            raise StoreFull("the disk is full")

        patched.setattr(store.engine, "commit", full)
        with pytest.raises(StoreFull):
            put(saver, {"messages": [ANSWER]}, parent=where)
    put(saver, {"messages": [ANSWER]}, parent=where)
    writing.result(30)
    assert told(store) == ([ANSWER], [("task", "messages", [ANSWER])])
    assert store.verify().ok


def test_writes_that_nobody_comes_for_are_committed_and_the_next_ones_wait_more_seldom(
    store, commits, monkeypatch
):
    monkeypatch.setattr(queue_module, "CALLERS_PATIENCE", 0)
    saver = TreeringSaver(store)
    where = put(saver, {"messages": []})
    waited = []
    is_landed = saver._scribe.queue.is_landed
    saver._scribe.queue.is_landed = lambda writes: waited.append(writes.task) or is_landed(writes)
    for number in range(3):
        saver.put_writes(where, [("x", number)], f"{number} of a single thread")
    assert waited == []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(put, saver, {"messages": []}, thread="bob").result(30)
    before = len(commits)
    for number in range(30):
        saver.put_writes(where, [("x", number)], f"task {number}")
        assert len(commits) == before + number + 1
    assert waited == ["task 0", "task 4", "task 20"]
    assert len(TreeringSaver(store).get_tuple(config()).pending_writes) == 33


def test_writes_wait_again_once_a_checkpoint_comes_while_they_are_committed_alone(store, monkeypatch):
    saver = TreeringSaver(store)
    where = put(saver, {"messages": []})
    queue = saver._scribe.queue
    with ThreadPoolExecutor(1) as pool:
        pool.submit(put, saver, {"messages": []}, thread="bob").result(30)
    with monkeypatch.context() as patched:
        patched.setattr(queue_module, "CALLERS_PATIENCE", 0)
        for number in range(5):
            saver.put_writes(where, [("x", number)], f"task {number}")
    commit, is_committing, may_go_on = store.engine.commit, threading.Event(), threading.Event()
    announce, is_announced = queue.announce, threading.Event()

    def slow(batch):
        is_committing.set()
        assert may_go_on.wait(30)
        return commit(batch)

    with monkeypatch.context() as patched, ThreadPoolExecutor(2) as pool:
        patched.setattr(store.engine, "commit", slow)
        patched.setattr(queue, "announce", lambda scope: announce(scope) or is_announced.set())
        alone = pool.submit(saver.put_writes, where, [("x", 5)], "task 5")
        assert is_committing.wait(30)
        putting = pool.submit(put, saver, {"messages": [ANSWER]}, parent=where)
        assert is_announced.wait(30)
        may_go_on.set()
        alone.result(30)
        where = putting.result(30)
    monkeypatch.setattr(queue_module, "CALLERS_PATIENCE", 30)
    writing = Caller(saver).write(where)
    put(saver, {"messages": [ANSWER]}, parent=where)
    writing.result(30)


def test_an_interrupt_waits_for_nobody(store):
    saver = TreeringSaver(store)
    where = put(saver, {"messages": []})
    saver._scribe.queue.is_landed = None
    saver.put_writes(where, [("__interrupt__", "why?")], "task")
    assert TreeringSaver(store).get_tuple(config()).pending_writes == [("task", "__interrupt__", "why?")]

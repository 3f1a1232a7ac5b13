"""Many fires in one commit: what happens when one of them was changed by someone else meanwhile."""

from __future__ import annotations

from collections import deque
from threading import Barrier, Event

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import treering
from treering.core.query import EventQuery
from treering.schedules.fires import CLAIMED, FINISHED
from treering.schedules.planning import claimable, is_due
from treering.schedules.tasks import OpenFire, Policy, Task, task_ref
from treering.schedules.worker_state import Board

ALLOW = Policy(catch_up="all", overlap="allow")


@pytest.fixture
def work(store):
    """Makes workers that look when the test says so."""
    made = []

    def make(handler, **options):
        made.append(store.schedules.worker(handler, **{"lease_seconds": 30, **options}))
        return made[-1]

    yield make
    for worker in made:
        worker.drain()


def events(store, kind):
    return store.engine.scan(store.space, EventQuery(kinds=(kind,)), limit=1000).records


def commits(store, kind):
    return len({record.batch for record in events(store, kind)})


class Tray(deque):
    """Says when so many were put in."""

    def __init__(self, count):
        super().__init__()
        self._count = count
        self.full = Event()

    def append(self, each):
        super().append(each)
        if len(self) == self._count:
            self.full.set()


def test_what_is_due_together_is_claimed_and_recorded_together(store, work, clock):
    tasks = [store.schedules.interval(60, prompt=str(number)) for number in range(8)]
    worker = work(lambda fire: fire.prompt, concurrency=8)
    worker._scribe._handed = tray = Tray(8)
    clock.advance(seconds=60)
    with worker._scribe._writing:  # as if a commit took its time
        assert worker.tick() == 8
        assert tray.full.wait(30)
    assert worker.idle(30)
    assert commits(store, CLAIMED) == commits(store, FINISHED) == 1
    assert {(report.task_id, report.result) for report in store.schedules.fires()} == {
        (task.id, task.prompt) for task in tasks
    }
    assert all(store.schedules.get(task.id).fires == () for task in tasks)


def test_a_task_that_someone_else_changed_does_not_keep_the_others_back(store, work, clock):
    tasks = [store.schedules.interval(60, prompt=str(number)) for number in range(4)]
    seen = []
    worker = work(lambda fire: seen.append(fire.task_id), concurrency=8)
    assert worker.tick() == 0
    clock.advance(seconds=60)
    worker._board.refresh = lambda: None  # it does not know yet of what happens now
    store.schedules.cancel_task(tasks[2].id)
    assert worker.tick() == 3
    assert worker.idle(30)
    assert sorted(seen) == sorted(task.id for task in tasks if task is not tasks[2])
    del worker._board.refresh
    assert worker.tick() == 0
    assert store.schedules.get(tasks[2].id).status == "cancelled"


def test_fires_of_one_task_that_end_together_are_all_recorded(store, work, clock):
    task = store.schedules.interval(10, prompt="p", policy=ALLOW)
    together = Barrier(5)
    worker = work(lambda _: together.wait(30), concurrency=5)
    clock.advance(seconds=50)
    assert worker.tick() == 5
    assert worker.idle(30)
    after = store.schedules.get(task.id)
    assert (after.runs, after.fires) == (5, ())
    assert len([report for report in store.schedules.fires(task.id) if report.outcome == "ok"]) == 5


def test_a_change_while_handlers_run_does_not_cost_their_results(store, work, clock):
    tasks = [store.schedules.interval(60, prompt=str(number)) for number in range(3)]
    together = Barrier(4)

    def handle(fire):
        together.wait(30)
        together.wait(30)
        return fire.prompt

    worker = work(handle, concurrency=4)
    clock.advance(seconds=60)
    assert worker.tick() == 3
    together.wait(30)
    store.schedules.pause(tasks[1].id)
    together.wait(30)
    assert worker.idle(30)
    assert {report.result for report in store.schedules.fires() if report.outcome == "ok"} == {"0", "1", "2"}
    assert store.schedules.get(tasks[1].id).status == "paused"


def test_workers_that_know_of_each_other_keep_to_their_shares(store, work, clock):
    for number in range(40):
        store.schedules.interval(60, prompt=str(number))
    go = Barrier(9)
    one = work(lambda _: go.wait(30), concurrency=4)
    two = work(lambda _: go.wait(30), concurrency=4)
    clock.advance(seconds=60)
    assert one.tick() == 4
    assert two.tick() == 4
    one._board.refresh()
    one._take_back(clock.now_us())
    two._take_back(clock.now_us())

    def share(worker):
        due = worker._board.due(clock.now_us()).others
        return {each.ref for each in due if not worker._is_for_others(each)}

    assert not share(one) & share(two)
    assert len(share(one) | share(two)) >= 32
    go.wait(30)
    assert one.idle(30)
    assert two.idle(30)


TASKS = st.builds(
    Task,
    id=st.sampled_from("abc"),
    prompt=st.just("p"),
    type=st.just("interval"),
    value=st.just("1"),
    created_at_us=st.just(0),
    next_run_us=st.none() | st.integers(0, 9),
    status=st.sampled_from(["active", "paused", "cancelled", "done"]),
    policy=st.sampled_from([Policy(), ALLOW, Policy(catch_up="skip")]),
    fires=st.lists(
        st.builds(
            OpenFire, at_us=st.integers(0, 9), worker=st.sampled_from([None, "w"]), attempt=st.integers(0, 1)
        ),
        max_size=2,
        unique_by=lambda fire: fire.at_us,
    ).map(tuple),
)


@given(st.lists(st.tuples(TASKS, st.integers(0, 9)), max_size=12))
def test_the_board_always_knows_what_is_due(changes):
    with treering.open("memory:") as store:
        board = Board(store.engine, store.space)
        tasks = {}
        now_us = 0
        for version, (task, later_us) in enumerate(changes, 1):
            ref = task_ref(task.id, "")
            board.pin(ref, version, task)
            tasks[ref] = task
            now_us = max(now_us, later_us)
            due = board.due(now_us)
            found = {each.ref: each.task for each in due.urgent + due.others}
            assert found == {
                name: each for name, each in tasks.items() if is_due(each, now_us) or claimable(each)
            }
            assert len(found) == len(due.urgent) + len(due.others)
            board.pin(ref, version - 1, msgspec.structs.replace(task, prompt="older"))

"""What a server does by itself: index, judge, send, and mark what died."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

import treering
from treering.errors import Corrupt
from treering.maintenance.stats import user_spaces
from treering.runs import search
from treering.runs.listing import Runs
from treering.runs.recorder import Recorder
from treering.runs.search import EventIndex
from treering.server import background
from treering.server.background import Background


def eventually(check):
    """Wait until something holds; a hang fails."""
    pause = threading.Event()
    for _ in range(3000):
        if check():
            return True
        pause.wait(0.02)
    return False


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store") as opened:
        yield opened


def recorded(store):
    with suppress(RuntimeError), store.run(agent="a") as run:
        for number in range(6):
            run.message("user", f"message {number}")
        raise RuntimeError("no")
    store.flush()


def test_every_project_is_indexed_and_judged(store, monkeypatch):
    monkeypatch.setattr(search, "PAGE", 4)
    other = store.in_namespace("other")
    for each in (store, other):
        each.alerts.set_rule("failed", "failed")
        recorded(each)
    with Background(store, search=True, seconds=0.01):
        for each in (store, other):
            index = EventIndex(each.engine, each.space)
            assert eventually(lambda index=index: index.through > 4)
            assert eventually(lambda each=each: len(each.alerts.page().alerts) == 1)


def test_without_search_nothing_is_indexed(store, monkeypatch):
    monkeypatch.setattr(search, "PAGE", 4)
    monkeypatch.setattr(Recorder, "_index_a_page", lambda _: None)
    store.alerts.set_rule("failed", "failed")
    recorded(store)
    with Background(store, search=False, seconds=0.01):
        assert eventually(lambda: len(store.alerts.page().alerts) == 1)
    assert EventIndex(store.engine, store.space).through == 0


@pytest.mark.parametrize("failure", [Corrupt("a damaged row"), AssertionError("a bug of ours")])
def test_a_project_that_fails_keeps_no_other_one_waiting(store, monkeypatch, failure, caplog):
    other = store.in_namespace("other")
    for each in (store, other):
        each.alerts.set_rule("failed", "failed")
        recorded(each)
    first = next(iter(user_spaces(store.engine)))
    mark_crashed = Runs.mark_crashed

    def damaged(runs, **options):
        if runs._space == first:
            raise failure
        return mark_crashed(runs, **options)

    monkeypatch.setattr(Runs, "mark_crashed", damaged)
    with Background(store, search=False, seconds=0.01):
        healthy = other if first == store.space else store
        assert eventually(lambda: len(healthy.alerts.page().alerts) == 1)
    assert str(failure) in caplog.text


def dies(store, run):
    """As if the process of a run were gone."""
    lease = f"recorder/{run.info.recorders[0]}"
    held = store.engine.claim(store.space, lease, holder=run.info.recorders[0], seconds=60)
    store.engine.release(held)


def test_an_old_run_of_any_namespace_is_marked_as_well(store, monkeypatch):
    monkeypatch.setattr(background, "RUNS_PER_CHECK", 2)
    monkeypatch.setattr(background, "CRASHED_SECONDS", 0.0)
    with store.run(agent="a", namespace="alice") as run:
        for _ in range(5):
            recorded(store)
        dies(store, run)
        with Background(store, search=False, seconds=0.01):
            assert eventually(lambda: store.runs.load(run.id).ended_at_us is not None)
        assert store.runs.load(run.id).status == "crashed"


def test_a_crashed_run_is_marked_and_alerted(store):
    store.alerts.set_rule("failed", "failed")
    with store.run(agent="a") as run:
        store.flush()
        dies(store, run)
        with Background(store, search=False, seconds=0.01):
            assert eventually(lambda: store.alerts.page().alerts)
        assert store.runs.load(run.id).status == "crashed"
        assert store.runs.load(run.id).ended_at_us is not None

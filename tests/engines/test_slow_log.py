"""Slow calls are logged by their shape, never with their contents."""

from __future__ import annotations

import logging

import pytest

import treering
from treering.core.query import EventQuery
from treering.engines.slow_log import log_slow_queries
from treering.errors import InvalidInput
from treering.store import Store

SECRET = "alice-at-home"


@pytest.fixture
def everything(caplog, monkeypatch, tmp_path):
    """A store that logs every call of its engine."""
    caplog.set_level(logging.WARNING, logger="treering.slow")
    monkeypatch.setenv("TREERING_SLOW_MS", "0")
    with treering.open(tmp_path / "store") as store:
        yield store


def lines(caplog):
    return [record.getMessage().partition("ms: ")[2] for record in caplog.records]


def test_a_call_is_logged_without_its_contents(everything, caplog):
    with everything.run(agent=SECRET, thread=SECRET, id=SECRET) as run:
        run.message("user", SECRET)
    everything.flush()
    everything.timeline.of_run(run.id)
    everything.cost.of_thread(SECRET)
    everything.timeline.search(SECRET)
    list(everything.thread(SECRET).history())
    result = lines(caplog)
    assert "scan run=? order=time limit=500" in result
    assert "sums grain=thread by=agent,currency,kind key=?" in result
    assert "search collection=timeline text=? limit=32" in result
    assert any(line.startswith("commit events=") for line in result)
    assert not [line for line in result if SECRET in line]


def test_what_is_quick_is_not_told(caplog, tmp_path):
    caplog.set_level(logging.WARNING, logger="treering.slow")
    with treering.open(tmp_path / "store") as opened:
        store = Store(log_slow_queries(opened.engine, 60_000))
        with store.run() as run:
            run.message("user", "hi")
        store.flush()
        assert len(store.timeline.of_run(run.id).events) == 1
        store.close()
    assert lines(caplog) == []


def test_a_question_that_fails_is_told_too(everything, caplog):
    with pytest.raises(InvalidInput):
        everything.engine.scan(everything.space, EventQuery(), limit=0)
    assert lines(caplog)[-1] == "scan limit=0"


def test_the_threshold_is_a_number(monkeypatch):
    monkeypatch.setenv("TREERING_SLOW_MS", "soon")
    with pytest.raises(InvalidInput, match="TREERING_SLOW_MS='soon'"):
        treering.open("memory:")

"""Where a check begins: a sequence number, an age, a time or the last check, over every interface."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from starlette.testclient import TestClient

import treering
from tests.server.running import running
from treering.blobs.folder import FolderBlobs
from treering.core.batch import Draft, Event
from treering.core.clock import ManualClock, to_datetime
from treering.core.query import Erasure
from treering.engines.sqlite import open_sqlite
from treering.errors import InvalidInput
from treering.maintenance.verify import parse_since
from treering.server.app import create_app
from treering.server.settings import Settings
from treering.store import Store

NOW = datetime(2026, 11, 20, 8, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def store(tmp_path):
    """Ten commits of two events each, an hour apart; the last one an hour ago."""
    clock = ManualClock(round((NOW - 10 * HOUR).timestamp() * 1e6))
    engine = open_sqlite(tmp_path / "store", blobs=FolderBlobs(tmp_path / "blobs"), clock=clock)
    with Store(engine, clock=clock) as opened:
        for number in range(10):
            draft = Draft(opened.space)
            for part in range(2):
                draft.event(
                    Event(id=f"e{number}{part}", kind="note", ts_us=clock.now_us(), scope="/thread/t")
                )
            engine.commit(draft.batch())
            clock.advance(seconds=3600)
        yield opened


@pytest.mark.parametrize(
    "text, expected",
    [
        ("1234", 1234),
        ("last", "last"),
        ("30m", NOW - HOUR / 2),
        ("36h", NOW - 36 * HOUR),
        ("7d", NOW - timedelta(days=7)),
        ("2w", NOW - timedelta(days=14)),
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
        ("2026-11-20T08:00+01:00", datetime(2026, 11, 20, 7, tzinfo=UTC)),
    ],
)
def test_what_people_write(text, expected):
    assert parse_since(text, now_us=round(NOW.timestamp() * 1e6)) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "1y", "d", "2026-13-01", "9" * 19, "999999w"])
def test_anything_else_is_refused_with_what_would_do(text):
    with pytest.raises(InvalidInput, match="36h"):
        parse_since(text, now_us=0)


def test_a_check_begins_behind_the_last_commit_before_a_time(store):
    for hours in range(12):
        found = store.verify(since=NOW - hours * HOUR)
        assert found.ok
        assert (found.since, found.last_seq) == (2 * (10 - min(hours, 10)), 20)
    assert store.verify(since=NOW - 2 * HOUR - timedelta(microseconds=1)).since == 16
    with pytest.raises(InvalidInput, match="time zone"):
        store.verify(since=datetime(2026, 11, 20))  # noqa: DTZ001 - what is refused


def test_commits_that_were_erased_do_not_move_the_beginning_forward(store):
    store.engine.erase(store.space, Erasure(event_seqs=tuple(range(9, 19))))
    assert store.verify(since=NOW - 4 * HOUR).since == 8
    assert store.verify(since=NOW - HOUR).since == 18 - 10


def test_the_same_check_over_rest_and_from_a_remote_store(store):
    begun = (NOW - 3 * HOUR).isoformat()
    with TestClient(create_app(store, Settings()), base_url="http://127.0.0.1:8787") as client:
        for since, expected in (("3h", 14), (begun, 14), ("12", 12), ("last", 0), ("last", 20)):
            reply = client.post("/store/verify", params={"since": since, "processes": 1})
            assert reply.json()["since"] == expected, since
        assert client.post("/store/verify", params={"since": "soon"}).status_code == 422
    with running(store, Settings()) as url, treering.open(url) as remote:
        assert remote.verify(since=to_datetime(round((NOW - 3 * HOUR).timestamp() * 1e6))).since == 14

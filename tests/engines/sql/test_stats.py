"""What a space holds, counted on a real SQLite store."""

from __future__ import annotations

import pytest

from treering.blobs.folder import FolderBlobs
from treering.core.batch import Draft
from treering.core.clock import DAY_US, ManualClock, day_of
from treering.core.content import Content, object_address
from treering.engines.sql import stats as stats_module
from treering.engines.sqlite.engine import open_sqlite
from treering.testing import batches

SPACE = "one"


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def engine(tmp_path, clock):
    opened = open_sqlite(tmp_path, blobs=FolderBlobs(tmp_path / "blobs"), durability="fast", clock=clock)
    yield opened
    opened.close()


def fill(engine, clock) -> None:
    for number in range(6):
        draft = Draft(SPACE)
        batches.full_load(draft, key=f"key {number}" + "x" * number)
        engine.commit(draft.batch())
        clock.advance(seconds=43_200)
    engine.commit(batches.append(SPACE, "fork", "own", at=2, parent="key 0/list"))


def test_rows_are_counted(engine, clock):
    fill(engine, clock)
    stats = engine.stats(SPACE)
    assert (stats.commits, stats.events, stats.refs, stats.lists) == (7, 12, 6, 7)
    assert (stats.items, stats.objects, stats.texts) == (19, 6, 6)


def test_pages_change_nothing(engine, clock, monkeypatch):
    fill(engine, clock)
    whole = engine.stats(SPACE)
    for page in (1, 2, 5):
        monkeypatch.setattr(stats_module, "_PAGE", page)
        assert engine.stats(SPACE) == whole


def test_growth_is_by_day_and_adds_up(engine, clock):
    first = day_of(clock.now_us())
    fill(engine, clock)
    stats = engine.stats(SPACE)
    assert list(stats.growth_bytes) == [first, first + 1, first + 2, first + 3]
    assert sum(stats.growth_bytes.values()) == sum(stats.bytes.values()) - stats.bytes["index"]
    assert all(stats.growth_bytes[first + day] > 5_000 for day in range(3))


def test_bytes_are_those_that_are_stored(engine, clock):
    names = engine.stage(SPACE, [Content("bytes", b"%d" % number * 4000) for number in range(400)])
    engine.commit(batches.set_ref(SPACE, "files", links=tuple(map(object_address, names))))
    stats = engine.stats(SPACE)
    with engine._database.reading() as session:
        assert session.rows("SELECT SUM(size) FROM pack") == [(stats.bytes["packs"],)]
    assert stats.objects == 400
    assert stats.bytes["objects"] == 0
    assert stats.bytes["refs"] >= 400 * 66
    clock.advance(seconds=DAY_US / 1_000_000)
    engine._objects.rewrite(engine._database, 1, 1)
    assert list(engine.stats(SPACE).growth_bytes) == [day_of(clock.now_us()) - 1]


def test_spaces_are_counted_apart(engine, clock):
    fill(engine, clock)
    before = engine.stats(SPACE)
    engine.commit(batches.index_text("two", "n", "something else"))
    engine.stage("two", [batches.noise(2_000_000)])
    assert engine.stats(SPACE) == before
    assert engine.stats("two").commits == 1


def test_an_empty_space_counts_nothing(engine):
    engine.stage(SPACE, [])
    stats = engine.stats(SPACE)
    assert stats.commits == 0
    assert set(stats.bytes.values()) == {0}
    assert stats.growth_bytes == {}

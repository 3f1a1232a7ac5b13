"""List items that were read before: nothing is fetched twice, outgrows its room, or outlives its erasure."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.engines.sql.sql_world import SPACE, open_store
from treering.core.batch import Draft
from treering.core.content import Content
from treering.core.query import Erasure
from treering.engines.sql import read
from treering.engines.sql.read import ItemCache
from treering.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from treering.engines.sqlite import SqliteEngine


def text(number: int, size: int = 10) -> Content:
    return Content("text", f"{number:>{size}}".encode())


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SqliteEngine]:
    engine = open_store(tmp_path)
    yield engine
    engine.close()


def append(
    engine: SqliteEngine, list_id: str, *contents: Content, at: int, parent: str | None = None
) -> None:
    draft = Draft(SPACE)
    draft.append(list_id, *contents, scope=f"/thread/{list_id}", at=at, parent=parent)
    engine.commit(draft.batch())


def fetches(engine: SqliteEngine) -> list[str]:
    """The questions for items that are asked from now on."""
    result: list[str] = []
    reader = engine._sqlite.acquire_reader()
    reader.connection.set_trace_callback(lambda sql: result.append(sql) if " FROM item " in sql else None)
    engine._sqlite.release_reader(reader)
    return result


def test_only_what_is_new_is_fetched(engine):
    expected = [text(0), Content("text", b"x" * 9000), text(2)]
    append(engine, "l", *expected, at=0)
    assert engine.read_list(SPACE, "l", 0, 9) == expected
    result = fetches(engine)
    assert engine.read_list(SPACE, "l", 0, 9) == expected
    assert engine.read_list(SPACE, "l", 1, 2) == expected[1:2]
    assert result == []
    append(engine, "l", text(3), at=3)
    assert engine.read_list(SPACE, "l", 2, 9) == [text(2), text(3)]
    assert len(result) == 1


def test_a_fork_shares_what_was_read_of_its_parent(engine):
    append(engine, "l", *map(text, range(4)), at=0)
    append(engine, "fork", text(9), at=2, parent="l")
    assert engine.read_list(SPACE, "l", 0, 9) == [*map(text, range(4))]
    result = fetches(engine)
    assert engine.read_list(SPACE, "fork", 0, 9) == [text(0), text(1), text(9)]
    assert len(result) == 1


def test_the_end_of_a_list_can_be_known_without_its_beginning(engine):
    append(engine, "l", *map(text, range(6)), at=0)
    assert engine.read_list(SPACE, "l", 4, 6) == [text(4), text(5)]
    assert engine.read_list(SPACE, "l", 0, 6) == [*map(text, range(6))]


def test_an_erasure_empties_it(engine):
    append(engine, "l", text(0), at=0)
    engine.read_list(SPACE, "l", 0, 9)
    (number,) = engine._items._cache.lists
    engine.erase(SPACE, Erasure(scopes=("/thread/l",)))
    assert engine._items.found(number, 0, 1) == []
    with pytest.raises(NotFound):
        engine.read_list(SPACE, "l", 0, 1)


def test_the_list_that_was_not_asked_for_the_longest_goes_first(monkeypatch):
    monkeypatch.setattr(read, "CACHE_BYTES", 4 * (100 + read._ITEM_OVERHEAD))
    cache = ItemCache()
    for number in range(4):
        cache.keep(number, 0, [text(number, 100)])
    assert cache.found(0, 0, 1)
    cache.keep(4, 0, [text(4, 100)])
    assert [len(cache.found(number, 0, 1)) for number in range(5)] == [1, 0, 1, 1, 1]


def test_what_would_take_half_of_the_room_is_not_kept(monkeypatch):
    monkeypatch.setattr(read, "CACHE_BYTES", 1000)
    cache = ItemCache()
    cache.keep(1, 0, [text(1, 100)])
    cache.keep(2, 0, [text(2, 700)])
    assert cache.found(1, 0, 1)
    assert not cache.found(2, 0, 1)


def test_nobody_waits_for_it():
    cache = ItemCache()
    cache.keep(1, 0, [text(1)])
    with cache._cache.lock:
        worker = threading.Thread(target=lambda: (cache.found(1, 0, 1), cache.keep(2, 0, [text(2)])))
        worker.start()
        worker.join(20)
        assert not worker.is_alive()
        cache.clear()
    assert cache.found(1, 0, 1) == []

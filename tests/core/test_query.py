"""Reading page by page: everything once, in order, with as few calls as possible."""

from __future__ import annotations

import pytest

import treering
from treering.core.batch import Event
from treering.core.query import EventQuery, each_record, each_ref, each_scope, record_pages, ref_pages


@pytest.fixture
def engine():
    with treering.open("memory:") as store:
        for number in range(5):
            draft = store.draft()
            draft.event(Event(id=f"e{number}", kind="note", ts_us=number, scope=f"/note/{number}"))
            draft.set_ref(f"note/{number}", b"{}", scope=f"/note/{number}")
            store.commit(draft)
        yield CallCounter(store.engine)


class CallCounter:
    """An engine that counts its calls."""

    def __init__(self, engine):
        self._engine = engine
        self.calls = 0

    def __getattr__(self, name):
        self.calls += 1
        return getattr(self._engine, name)


@pytest.mark.parametrize("limit, calls", [(1, 6), (2, 3), (4, 2), (5, 2), (6, 1)])
def test_everything_is_read_once_and_a_partial_page_is_the_last(engine, limit, calls):
    for each, read in (
        (each_ref, lambda ref: ref.name.removeprefix("note/")),
        (each_scope, lambda scope: scope.removeprefix("/note/")),
    ):
        engine.calls = 0
        prefix = "note/" if each is each_ref else "/note/"
        found = [read(one) for one in each(engine, "default", prefix, limit=limit)]
        assert found == ["0", "1", "2", "3", "4"]
        assert engine.calls == calls
    assert [len(page) for page in ref_pages(engine, "default", "note/", limit=limit)] == pages_of(5, limit)
    found = each_record(engine, "default", EventQuery(), limit=limit)
    assert [record.event.id for record in found] == ["e0", "e1", "e2", "e3", "e4"]
    sizes = [len(page) for page in record_pages(engine, "default", EventQuery(), limit=limit)]
    assert sizes == pages_of(5, limit)


def pages_of(count, limit):
    return [min(limit, count - start) for start in range(0, count, limit)]


def test_nothing_is_read_ahead(engine):
    found = each_record(engine, "default", EventQuery(newest_first=True), limit=2)
    assert engine.calls == 0
    assert [next(found).event.id for _ in range(2)] == ["e4", "e3"]
    assert engine.calls == 1


def test_reading_starts_after_a_cursor(engine):
    found = each_record(engine, "default", EventQuery(), after="3")
    assert [record.event.id for record in found] == ["e3", "e4"]


def test_nothing_has_no_pages(engine):
    assert list(record_pages(engine, "default", EventQuery(kinds=("other",)))) == []
    assert list(ref_pages(engine, "default", "other/")) == []
    assert list(each_scope(engine, "default", "/other/")) == []

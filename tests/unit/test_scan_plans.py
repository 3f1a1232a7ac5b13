"""Pages of a thread are one range of an index, however long the journal is."""

from __future__ import annotations

import sqlite3

import pytest

import treering
from treering.core.query import EventQuery
from treering.engines.relational import reading


class Listener:
    """A session that hears the question and answers nothing."""

    def rows(self, sql, values):
        self.asked = sql, values
        return []


@pytest.mark.parametrize("after", [None, "7"])
@pytest.mark.parametrize("newest_first", [True, False])
def test_events_of_a_scope_are_found_by_its_index(tmp_path, newest_first, after):
    with treering.open(tmp_path / "store") as store:
        store.thread("t").append({"role": "user", "content": "a"})
    listener = Listener()
    query = EventQuery(kinds=("checkpoint",), scope="/thread/t", newest_first=newest_first)
    reading.scan(listener, 1, query, after, 20)
    connection = sqlite3.connect(tmp_path / "store" / "treering.db")
    sql, values = listener.asked
    plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, values)]
    connection.close()
    assert any(step.startswith("SEARCH e USING INDEX event_scope (scope=? AND kind=?") for step in plan), plan
    assert not any("ORDER BY" in step for step in plan), plan

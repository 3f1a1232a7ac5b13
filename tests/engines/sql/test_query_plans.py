"""A page of the journal is one range of an index, however long the journal is."""

from __future__ import annotations

import sqlite3

import msgspec
import pytest

import treering
from treering.core.clock import DAY_US
from treering.core.query import EventQuery
from treering.engines.sql import read
from treering.engines.sql.rows import Dictionary


class RecordingSession:
    """A session that records queries and returns no rows."""

    dictionary = Dictionary()

    def __init__(self):
        self.queries = []

    def rows(self, sql, values):
        self.queries.append((sql, values))
        return []


QUERIES = {
    ("event_scope (space=? AND scope=? AND kind=?",): EventQuery(kinds=("checkpoint",), scope="/thread/t"),
    (
        "event_thread (space=? AND thread=? AND kind=?",
        "event_scope (space=? AND scope=? AND kind=?",
    ): EventQuery(kinds=("transcript",), thread="/t"),
    ("event_run (space=? AND run=?",): EventQuery(run="r", order="time"),
    ("sqlite_autoindex_event_2 (space=? AND day=? AND id=?",): EventQuery(ids=("a",), since_us=0, until_us=1),
    ("sqlite_autoindex_event_2 (space=? AND day>? AND day<?",): EventQuery(
        id_prefix="ckpt_01", since_us=0, until_us=3 * DAY_US, order="time"
    ),
    ("PRIMARY KEY (space=?",): EventQuery(),
}


@pytest.mark.parametrize("after", [None, "7"])
@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("indexes", QUERIES, ids=lambda names: names[0].split()[0])
def test_every_query_is_one_range_of_its_index(tmp_path, indexes, newest_first, after):
    with treering.open(tmp_path / "store") as store:
        store.thread("t").append({"role": "user", "content": "a"})
    query = msgspec.structs.replace(QUERIES[indexes], newest_first=newest_first)
    if after is not None and query.order == "time":
        after = f"3.{after}"
    session = RecordingSession()
    read.scan(session, 1, query, after, 20)
    connection = sqlite3.connect(tmp_path / "store" / "treering.db")
    for (sql, values), index in zip(session.queries, indexes, strict=True):
        plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, values)]
        assert any(step.startswith("SEARCH e USING") and index in step for step in plan), plan
        if not query.ids and query.id_prefix is None:
            assert not any("ORDER BY" in step for step in plan), plan
    connection.close()

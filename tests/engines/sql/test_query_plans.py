"""A page of the journal or of a list is one range of an index, however long that is."""

from __future__ import annotations

import sqlite3

import msgspec
import pytest

import treering
from treering.core.batch import Draft, Listing
from treering.core.clock import DAY_US
from treering.core.query import EventQuery, ListQuery
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


LISTS = {
    "ref_listed (space=? AND listed_in=?": ListQuery(list="threads"),
    "ref_listed_namespace (space=? AND listed_in=? AND namespace=?": ListQuery(list="runs", namespace=""),
    "ref_listed_namespace_agent (space=? AND listed_in=? AND namespace=? AND agent=?": ListQuery(
        list="runs", namespace="", agent="agent 1"
    ),
    "ref_listed_namespace_status (space=? AND listed_in=? AND namespace=? AND status=?": ListQuery(
        list="runs", namespace="", status="status 2"
    ),
    "ref_listed_namespace_agent_status (space=? AND listed_in=? AND namespace=? AND agent=? AND status=?": (
        ListQuery(list="runs", namespace="", agent="agent 1", status="status 2")
    ),
    "ref_listed_namespace_thread (space=? AND listed_in=? AND namespace=? AND thread=?": ListQuery(
        list="runs", namespace="", thread="t7"
    ),
}


def _pages_of_lists():
    for index, query in LISTS.items():
        for oldest_first in (False, True):
            for after in (None, "5000.run/x"):
                yield index, msgspec.structs.replace(query, oldest_first=oldest_first), after


def _asked(query, after):
    session = RecordingSession()
    read.list_refs(session, 1, query, after, 20)
    ((sql, values),) = session.queries
    return sql, values


def test_every_page_of_a_list_is_one_range_of_its_index_on_sqlite(tmp_path):
    with treering.open(tmp_path / "store") as store:
        store.thread("t").append({"role": "user", "content": "a"})
    connection = sqlite3.connect(tmp_path / "store" / "treering.db")
    for index, query, after in _pages_of_lists():
        sql, values = _asked(query, after)
        plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, values)]
        continued = index if after is None else f"{index} AND (listed_us,name)"
        assert any(step.startswith("SEARCH r USING") and continued in step for step in plan), plan
        assert not any("ORDER BY" in step for step in plan), plan
    connection.close()


def test_every_page_of_a_list_is_one_range_of_its_index_on_postgres(postgres_url):
    with treering.open(postgres_url) as store:
        draft = Draft(store.space)
        for number in range(10_000):
            draft.set_ref(
                f"run/{number}",
                b"",
                scope=f"s{number}",
                listing=Listing(
                    list=("runs", "threads")[number % 2],
                    namespace=("", "a", "b", "c")[number // 2 % 4],
                    at_us=number,
                    agent=f"agent {number // 8 % 7}",
                    status=f"status {number // 8 % 5}",
                    thread=f"t{number // 8 % 50}",
                ),
            )
        store.engine.commit(draft.batch())
        ((space,),) = _rows(postgres_url, "SELECT no FROM space WHERE name = 'default'")
        _rows(postgres_url, "ANALYZE ref")
        _rows(postgres_url, "ANALYZE scope")
        for index, query, after in _pages_of_lists():
            session = RecordingSession()
            read.list_refs(session, space, query, after, 20)
            ((sql, values),) = session.queries
            text = "\n".join(plan for (plan,) in _rows(postgres_url, "EXPLAIN " + sql, values))
            assert f"using {index.partition(' ')[0]} on ref r" in text, text
            assert "Sort" not in text, text
            assert "Seq Scan on ref" not in text, text


def _rows(url, sql, values=()):
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(sql.replace("?", "%s"), values)
        return found.fetchall() if found.description else []

"""A page of the journal or of a list is one range of an index, however long that is."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import msgspec
import pytest

import treering
from treering.core.batch import Draft, Listing
from treering.core.clock import DAY_US
from treering.core.query import EventQuery, ListQuery
from treering.engines.postgres.connection import PostgresSession
from treering.engines.sql import read
from treering.engines.sql.rows import Dictionary
from treering.engines.sqlite.connection import SqliteSession


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
    "ref_listed_status (space=? AND listed_in=? AND status=?": ListQuery(list="runs", status="status 2"),
    "ref_listed_namespace_thread (space=? AND listed_in=? AND namespace=? AND thread=?": ListQuery(
        list="runs", namespace="", thread="t7"
    ),
}


def _pages_of_lists():
    for index, query in LISTS.items():
        for oldest_first in (False, True):
            for after, until_us in ((None, None), ("5000.run/x", None), (None, 7000)):
                page = msgspec.structs.replace(
                    query, oldest_first=oldest_first, until_us=until_us, since_us=until_us and 3000
                )
                yield index, page, after


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
        if query.until_us is not None:
            continued = f"{index} AND listed_us>? AND listed_us<?"
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


JOIN_BODIES = (
    "SELECT b.key FROM commits c "
    "JOIN body b ON b.space = c.space AND b.key >= c.no * 65536 AND b.key < (c.no + 1) * 65536 "
    "WHERE c.space = 1 AND "
)


@pytest.mark.parametrize("which", ["c.batch IN ('a')", "c.no IN (1, 2)", "c.batch > 'a'", "c.last_seq > 5"])
def test_the_bodies_of_a_commit_are_one_range_however_many_there_are(tmp_path, which):
    with treering.open(tmp_path / "store") as store:
        store.thread("t").append({"role": "user", "content": "a"})
    with closing(sqlite3.connect(tmp_path / "store" / "treering.db")) as connection:
        plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + JOIN_BODIES + which)]
    assert "SEARCH b USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)" in plan, plan


PAGES = {
    "runs": lambda store, cursor: store.runs.page(first=2, cursor=cursor),
    "runs of an agent": lambda store, cursor: store.runs.page(first=2, cursor=cursor, agent="a"),
    "failed runs": lambda store, cursor: store.runs.page(first=2, cursor=cursor, status="error"),
    "crashed runs": lambda store, cursor: store.runs.page(first=2, cursor=cursor, status="crashed"),
    "runs of an agent with a status": lambda store, cursor: store.runs.page(
        first=2, cursor=cursor, agent="a", status="ok"
    ),
    "runs of a thread": lambda store, cursor: store.runs.page(first=2, cursor=cursor, thread="t"),
    "runs with a tag": lambda store, cursor: store.runs.page(first=2, cursor=cursor, tag="nightly"),
    "runs of a day": lambda store, cursor: store.runs.page(
        first=2, cursor=cursor, since_us=0, until_us=2**50
    ),
    "threads": lambda store, cursor: store.thread_page(first=2, cursor=cursor, namespace=None),
    "threads of a namespace": lambda store, cursor: store.thread_page(first=2, cursor=cursor),
    "threads by prefix": lambda store, cursor: store.thread_page(first=2, cursor=cursor, prefix="t"),
    "threads by text": lambda store, cursor: store.thread_page(first=2, cursor=cursor, containing="t"),
    "checkpoints": lambda store, _: list(store.thread("t").history(last=2)),
    "memory": lambda store, cursor: store.memory.page(first=2, cursor=cursor),
    "memory by prefix": lambda store, cursor: store.memory.page(first=2, cursor=cursor, prefix="n"),
    "memory by tag": lambda store, cursor: store.memory.page(first=2, cursor=cursor, tags=["style"]),
    "schedules": lambda store, cursor: store.schedules.task_page(first=2, cursor=cursor),
    "all schedules": lambda store, cursor: store.schedules.task_page(first=2, cursor=cursor, all=True),
    "snapshots": lambda store, cursor: store.workspace.snapshot_page(first=2, cursor=cursor),
}
"""Every list of the store with every filter."""


def _fill(store, folder):
    folder.mkdir()
    for number in range(5):
        with store.run(agent="a", thread="t", tags=["nightly"]):
            pass
        store.thread(f"t{number}").append({"role": "user", "content": "a"})
        store.thread("t").append({"role": "user", "content": "a"})
        store.memory.save(f"n{number}", "a note", tags={"style"})
        store.schedules.cron("0 8 * * *", prompt="hello")
        (folder / "file").write_text(str(number))
        store.workspace.snapshot(folder)
    store.flush()


@pytest.fixture(params=["sqlite", "postgres"])
def asked(request, tmp_path, monkeypatch):
    """A store, and what its engine asks the database, as plans."""
    is_sqlite = request.param == "sqlite"
    url = str(tmp_path / "store") if is_sqlite else request.getfixturevalue("postgres_url")
    session_class = SqliteSession if is_sqlite else PostgresSession
    asked = []
    for name in ("rows", "query"):
        monkeypatch.setattr(session_class, name, _noting(getattr(session_class, name), asked))

    def plans():
        found, asked[:] = [each for each in asked if each[0].lstrip().startswith(("SELECT", "WITH"))], []
        for sql, values in found:
            if is_sqlite:
                with closing(sqlite3.connect(tmp_path / "store" / "treering.db")) as connection:
                    plan = [row[3] for row in connection.execute("EXPLAIN QUERY PLAN " + sql, values)]
            else:
                # The tables are small. So that the indexes are not left out for that, the rest costs more.
                plan = [
                    line
                    for (line,) in _rows(
                        url,
                        "EXPLAIN " + sql,
                        values,
                        before="SET enable_seqscan = off; SET enable_sort = off;",
                    )
                ]
            yield sql, plan

    with treering.open(url) as store:
        _fill(store, tmp_path / "folder")
        yield store, plans


def _noting(original, asked):
    def noted(self, sql, parameters=()):
        asked.append((sql, parameters))
        return original(self, sql, parameters)

    return noted


def _sorts_or_scans(sql, plan):
    """Whether a whole list is read. Rows that are named in the query are as many as it says."""
    if any("SCAN" in step or "Seq Scan" in step for step in plan):
        return True
    return " IN (" not in sql and any("ORDER BY" in step or "Sort" in step for step in plan)


def test_no_page_of_any_list_sorts_or_scans_the_whole(asked):
    store, plans = asked
    for name, page in PAGES.items():
        cursor = None
        for _ in range(2):
            list(plans())
            found = page(store, cursor)
            looked = list(plans())
            assert looked, name
            assert not [each for each in looked if _sorts_or_scans(*each)], name
            cursor = getattr(found, "cursor", None)
            if cursor is None:
                break


def test_a_list_without_its_indexes_would_be_found(asked, tmp_path):
    store, plans = asked
    for index in {each.partition(" ")[0] for each in LISTS}:
        if store.url.startswith("postgresql"):
            _rows(store.url, f"DROP INDEX {index}")
        else:
            with closing(sqlite3.connect(tmp_path / "store" / "treering.db")) as connection:
                connection.execute(f"DROP INDEX {index}")
    list(plans())
    PAGES["runs of an agent"](store, None)
    assert [each for each in plans() if _sorts_or_scans(*each)]


def _rows(url, sql, values=(), before=""):
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        if before:
            connection.execute(before)
        found = connection.execute(sql.replace("?", "%s"), values)
        return found.fetchall() if found.description else []

"""Commits and reads survive broken connections to PostgreSQL."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from treering.core.query import EventQuery
from treering.engines.postgres import connection as connection_module
from treering.engines.postgres import engine as engine_module
from treering.engines.postgres import open_postgres
from treering.engines.postgres.engine import Announcer
from treering.engines.postgres.errors import ConnectionLost
from treering.engines.postgres.pipeline import Pipeline
from treering.engines.sql import engine as sql_engine_module
from treering.engines.sql.commit import write
from treering.errors import Busy, Closed, NewerStore, TreeringError, Unreachable
from treering.testing import batches

OTHERS = "pid <> pg_backend_pid() AND datname = current_database()"


@pytest.fixture
def engine(postgres_url):
    engine = open_postgres(postgres_url)
    yield engine
    engine.close()


def _kill_others(url):
    """End all other sessions of the database, as a restart or an administrator would."""
    with psycopg.connect(url, autocommit=True) as connection:
        killed = 0
        # Also those that have reconnected in the meantime.
        while ended := connection.execute(
            f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {OTHERS}"
        ).fetchone()[0]:
            killed += ended
            time.sleep(0.01)
    return killed


def test_the_first_commit_uses_the_connection_that_opened_the_store(engine, postgres_url, monkeypatch):
    monkeypatch.setattr(Announcer, "announce", lambda *_: None)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        others = (
            f"SELECT array_agg(pid) FROM pg_stat_activity WHERE {OTHERS} AND backend_type = 'client backend'"
        )
        opened = connection.execute(others).fetchone()
        assert len(opened[0]) == 1
        engine.commit(batches.set_ref("default", "r"))
        assert connection.execute(others).fetchone() == opened


def test_a_failed_open_leaves_no_connection(postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        with pytest.raises(NewerStore):
            open_postgres(postgres_url)
        left = f"SELECT count(*) FROM pg_stat_activity WHERE {OTHERS} AND backend_type = 'client backend'"
        deadline = time.monotonic() + 10
        while connection.execute(left).fetchone() != (0,):  # the server notices in its own time
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_commit_survives_a_session_that_was_killed_while_idle(engine, postgres_url):
    for number in range(5):
        engine.commit(batches.set_ref("default", "r", b"%d" % number, expect=number or "absent"))
        assert _kill_others(postgres_url)
    assert engine.refs("default", ["r"])["r"].version == 5


def test_a_read_survives_a_session_that_was_killed_while_idle(engine, postgres_url):
    engine.commit(batches.set_ref("default", "r"))
    for _ in range(5):
        assert _kill_others(postgres_url)
        assert engine.refs("default", ["r"])["r"].version == 1


def test_all_idle_sessions_may_be_gone_at_once(engine, postgres_url):
    start = threading.Barrier(6)

    def read():
        with engine._database.reading() as session:
            session.rows("SELECT 1")
            start.wait()

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _kill_others(postgres_url) >= 6
    engine.commit(batches.set_ref("default", "r"))
    assert engine.refs("default", ["r"])


def test_a_commit_whose_session_is_killed_half_way_is_retried(engine, postgres_url, monkeypatch):
    engine.commit(batches.set_ref("default", "r"))

    def killed_once(session, *args, **options):
        monkeypatch.undo()
        receipts = write.write_group(session, *args, **options)
        _kill_others(postgres_url)
        return receipts

    monkeypatch.setattr(engine_module, "write_group", killed_once)
    monkeypatch.setattr(sql_engine_module, "write_group", killed_once)
    receipt = engine.commit(batches.set_ref("default", "r", expect=1))
    assert receipt.versions == {"r": 2}
    assert engine.refs("default", ["r"])["r"].version == 2


def test_a_commit_whose_result_is_lost_is_found_by_its_id(engine, monkeypatch):
    engine.commit(batches.set_ref("default", "r"))
    collect = Pipeline.collect

    def answer_lost(self):
        is_commit = any(getattr(due, "sql", "").startswith(("COMMIT", "WITH moved")) for due in self._due)
        collect(self)
        if is_commit:
            monkeypatch.setattr(Pipeline, "collect", collect)
            self.dead = True
            raise ConnectionLost("the answer to COMMIT never came")

    monkeypatch.setattr(Pipeline, "collect", answer_lost)
    batch = batches.events("default", batches.call(), batches.call())
    receipt = engine.commit(batch)
    assert receipt.new_events == 2
    assert engine.commit(batch) == receipt
    assert len(engine.scan("default", EventQuery()).records) == 2


def test_other_writes_report_the_lost_connection(engine, postgres_url):
    engine.commit(batches.set_ref("default", "r"))

    def delete():
        with engine._database.writing() as session:
            assert session.rows("SELECT count(*) FROM ref") == [(1,)]
            _kill_others(postgres_url)
            session.run("DELETE FROM ref")

    with pytest.raises(Unreachable, match="lost"):
        delete()
    assert engine.refs("default", ["r"])


def test_a_connection_is_usable_after_an_error(engine):
    def fail(wrong):
        with engine._database.writing() as session:
            session.execute("UPDATE meta SET value = 'changed' WHERE key = 'format'")
            session.execute(wrong)
            session.rows("SELECT 1")

    for wrong in ("SELECT nonsense", "SELECT 1 / 0", "INSERT INTO space (no) VALUES (1)"):
        with pytest.raises(TreeringError):
            fail(wrong)
        with pytest.raises(TreeringError), engine._database.writing() as session:
            session.execute(wrong)
        with engine._database.reading() as session:
            assert session.rows("SELECT value FROM meta WHERE key = 'format'") == [("1",)]
    assert len(engine._postgres._pool._idle) == 1


def test_an_exception_of_the_caller_rolls_back(engine):
    def break_off(error):
        with engine._database.writing() as session:
            session.run("DELETE FROM meta")
            raise error

    for error in (KeyError, KeyboardInterrupt):
        with pytest.raises(error):
            break_off(error)
    with engine._database.reading() as session:
        assert session.rows("SELECT count(*) FROM meta")[0][0] > 0


def test_queries_and_results_larger_than_any_buffer_do_not_block(engine):
    large = b"x" * 3_000_000
    with engine._database.reading() as session:
        asked = [
            session.query("SELECT ?::bytea || ?::bytea", (large, b"%d" % number)) for number in range(12)
        ]
        for number, answer in enumerate(asked):
            assert [*answer] == [(large + b"%d" % number,)]


def test_a_read_transaction_sees_one_moment(engine):
    engine.commit(batches.set_ref("default", "r", b"1"))
    with engine._database.reading() as session:
        before = session.rows("SELECT value FROM ref")
        engine.commit(batches.set_ref("default", "r", b"2"))
        assert session.rows("SELECT value FROM ref") == before == [(b"1",)]
        with pytest.raises(TreeringError, match="read-only"):
            session.run("DELETE FROM ref")
        current = engine.refs("default", ["r"])["r"].value
    assert current == b"2"


def test_a_single_query_runs_without_a_transaction(engine, monkeypatch):
    engine.commit(batches.set_ref("default", "r"))
    sent = []
    send = Pipeline.send

    def noted(self):
        sent.extend(due.sql for due in self._due if not isinstance(due, str))
        send(self)

    monkeypatch.setattr(Announcer, "announce", lambda *_: None)
    monkeypatch.setattr(Pipeline, "send", noted)
    assert engine.refs("default", ["r"])
    assert [sql.partition(" ")[0] for sql in sent if "pg_notify" not in sql] == ["SELECT"]


def test_a_connection_is_usable_after_a_single_query_failed(engine):
    def asked(sql):
        with engine._database.single_query() as session:
            return session.rows(sql)

    ((before,),) = asked("SELECT pg_backend_pid()")
    with pytest.raises(TreeringError, match="no_such_table"):
        asked("SELECT 1 FROM no_such_table")
    assert asked("SELECT pg_backend_pid()") == [(before,)]


def test_prepared_statements_are_bounded(engine, monkeypatch):
    monkeypatch.setattr("treering.engines.postgres.pipeline._MAX_STATEMENTS", 50)
    for number in range(200):
        with engine._database.reading() as session:
            assert session.rows(f"SELECT {number}") == [(number,)]
    with engine._database.reading() as session:
        assert session.rows("SELECT count(*) FROM pg_prepared_statements")[0][0] < 60


def test_unused_connections_are_closed(engine, monkeypatch):
    sessions = [engine._database.reading() for _ in range(5)]
    for session in sessions:
        session.__enter__().rows("SELECT 1")
    for session in sessions:
        session.__exit__(None, None, None)
    monkeypatch.setattr(connection_module, "IDLE_SECONDS", 0.0)
    engine.spaces()
    assert len(engine._postgres._pool._idle) == 1


def test_commits_stay_on_one_connection_and_are_announced_on_another(engine, postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("LISTEN treering")
        speakers = set()
        for number in range(3):
            engine.commit(batches.set_ref("default", f"{number}"))
            speakers |= {notice.pid for notice in connection.notifies(timeout=20, stop_after=1)}
    ((_, pipeline),) = engine._postgres._pool._idle
    assert len(speakers) == 1
    assert pipeline._pgconn.backend_pid not in speakers


def test_a_process_has_a_limit_of_connections(engine, monkeypatch):
    monkeypatch.setattr(connection_module, "WAIT_SECONDS", 0.05)
    sessions = [engine._database.reading() for _ in range(connection_module.POOL_SIZE)]
    for session in sessions:
        session.__enter__().rows("SELECT 1")
    with pytest.raises(Busy, match="in use"):
        engine.spaces()
    for session in sessions:
        session.__exit__(None, None, None)
    assert engine.spaces() == []


def test_a_writer_waits_for_the_lock_but_not_forever(postgres_url, monkeypatch):
    monkeypatch.setattr(connection_module, "LOCK_SECONDS", 0.2)
    engine = open_postgres(postgres_url)
    engine.commit(batches.set_ref("default", "r"))
    engine.commit(batches.set_ref("other", "r"))
    with engine._database.reading() as session:
        ((space,),) = session.rows("SELECT no FROM space WHERE name = 'default'")
    with engine._database.writing(space):
        with pytest.raises(Busy, match="holds the space"):
            engine.commit(batches.set_ref("default", "r"))
        assert engine.refs("default", ["r"])["r"].version == 1
        engine.commit(batches.set_ref("other", "r"))
    engine.commit(batches.set_ref("default", "r"))
    engine.close()


def test_a_closed_engine_raises_closed(postgres_url):
    engine = open_postgres(postgres_url)
    engine.close()
    engine.close()
    with pytest.raises(Closed):
        engine.commit(batches.set_ref("default", "r"))
    with pytest.raises(Closed):
        engine.spaces()


def test_commit_times_are_the_servers(engine, postgres_url):
    with psycopg.connect(postgres_url) as connection:
        sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        before = connection.execute(sql).fetchone()[0]
        connection.commit()
        receipt = engine.commit(batches.set_ref("default", "r"))
        after = connection.execute(sql).fetchone()[0]
    assert before - 50_000 < receipt.committed_at_us < after + 50_000


def test_a_stuck_writer_does_not_block_the_others(postgres_url, monkeypatch):
    monkeypatch.setattr(connection_module, "STUCK_SECONDS", 0.3)
    engine = open_postgres(postgres_url)
    engine.commit(batches.set_ref("default", "r"))
    with engine._database.reading() as session:
        ((space,),) = session.rows("SELECT no FROM space WHERE name = 'default'")

    def fall_asleep():
        with engine._database.writing(space) as session:
            assert engine.commit(batches.set_ref("default", "r")).versions == {"r": 2}
            session.run("DELETE FROM ref")

    with pytest.raises(ConnectionLost):
        fall_asleep()
    assert engine.refs("default", ["r"])["r"].version == 2
    engine.close()


def test_an_error_of_the_caller_keeps_the_connection(engine):
    def read(error):
        with engine._database.reading() as session:
            session.rows("SELECT 1")
            raise error

    for _ in range(3):
        with pytest.raises(KeyError):
            read(KeyError)
    assert engine.spaces() == []
    assert len(engine._postgres._pool._idle) == 1

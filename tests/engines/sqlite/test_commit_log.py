"""A small commit is one row of the commit log until someone reads; then it is in the tables."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing, suppress

import pytest

import treering
from treering.blobs.folder import FolderBlobs
from treering.core.batch import ANY, Draft, Event
from treering.core.clock import DAY_US
from treering.core.content import Content
from treering.core.query import Erasure, EventQuery
from treering.engines.sql.commit import write
from treering.engines.sql.commit.write import encode_batch
from treering.engines.sql.engine import BEFORE_COMMIT
from treering.engines.sqlite import SqliteEngine, commit_log, open_sqlite
from treering.engines.sqlite import connection as connection_module
from treering.engines.sqlite.commit_log import CommitLog
from treering.engines.sqlite.connection import SqliteSession, WriterQueue
from treering.errors import Conflict, Corrupt, ListMoved, StoreFull

SPACE = "default"
SCOPE = "/thread/a"
SECRET = b"text of one step only"


def opened(folder, durability="fast"):
    return open_sqlite(folder, blobs=FolderBlobs(folder / "blobs"), durability=durability)


@pytest.fixture(params=["fast", "full"])
def engine(tmp_path, request):
    made = opened(tmp_path, request.param)
    yield made
    made.close()


@pytest.fixture
def other(engine, tmp_path):
    """Another process, as far as SQLite can tell."""
    del engine  # made first
    made = opened(tmp_path)
    yield made
    made.close()


@pytest.fixture
def logged(monkeypatch):
    """Whether each group was appended to the commit log."""
    results = []
    append, write_from_database = CommitLog.append, SqliteEngine._write_from_database

    def appended(self, *arguments):
        is_logged = append(self, *arguments)
        if is_logged:
            results.append(True)
        return is_logged

    def written(self, *arguments):
        results.append(False)
        return write_from_database(self, *arguments)

    monkeypatch.setattr(CommitLog, "append", appended)
    monkeypatch.setattr(SqliteEngine, "_write_from_database", written)
    return results


def step(number, *, space=SPACE, event=None, text=None, at=None):
    draft = Draft(space)
    said = Content("text", text or b"%d" % number)
    draft.append("said", said, scope=SCOPE, at=number if at is None else at)
    draft.event(Event(id=event or draft.id, kind="step", ts_us=number, scope=SCOPE, links=("l:said",)))
    draft.set_ref("head", b"%d" % number, scope=SCOPE, expect=ANY)
    return draft.batch()


def said(engine, space=SPACE):
    return [item.data for item in engine.read_list(space, "said", 0, 99)]


def problems(engine):
    return [each for each in engine.check(SPACE) if hasattr(each, "detail")]


def raw(engine, sql, *values):
    """Query the file as a program that knows nothing of treering would."""
    with closing(sqlite3.connect(engine._sqlite.path)) as connection:
        return connection.execute(sql, values).fetchall()


def pending(engine):
    """Return how many slots are pending."""
    ((found,),) = raw(engine, f"SELECT count(*) FROM fresh WHERE {commit_log.IS_PENDING}")
    return found


def test_a_step_is_one_row_of_the_log(engine, logged):
    engine.commit(step(0))
    calls = []
    engine._sqlite.writer().set_trace_callback(calls.append)
    receipts = [engine.commit(step(number)) for number in range(1, 4)]
    engine._sqlite.writer().set_trace_callback(None)
    assert logged == [False, True, True, True]
    assert [call.partition(" (")[0] for call in calls] == ["INSERT INTO fresh"] * 3
    assert raw(engine, "SELECT count(*) FROM event") == [(1,)]
    assert pending(engine) == 3
    assert [receipt.versions["head"] for receipt in receipts] == [2, 3, 4]
    assert [receipt.first_seq for receipt in receipts] == [2, 3, 4]
    assert said(engine) == [b"0", b"1", b"2", b"3"]
    assert pending(engine) == 0
    assert [each.event.ts_us for each in engine.scan(SPACE, EventQuery()).records] == [0, 1, 2, 3]
    assert problems(engine) == []


def test_a_pending_commit_changes_one_page(engine):
    for number in range(8):
        engine.commit(step(number))
    writer = engine._sqlite.writer()
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    said(engine)
    engine._sqlite.skip_log = 0
    log = engine._sqlite.path.with_name("treering.db-wal")
    engine.commit(step(8))
    before = log.stat().st_size
    engine.commit(step(9))
    assert log.stat().st_size - before == 4096 + 24


def test_pending_commits_are_visible_to_all_processes(engine, other):
    for number in range(4):
        engine.commit(step(number))
    assert pending(engine) == 3
    assert said(other) == [b"0", b"1", b"2", b"3"]
    assert other.refs(SPACE, ["head"])["head"].version == 4
    assert other.wait(SPACE, 3, seconds=0) == 4


def test_pending_commits_survive_their_process(engine, tmp_path):
    for number in range(4):
        engine.commit(step(number))
    copied = tmp_path / "killed"
    copied.mkdir()
    for name in ("treering.db", "treering.db-wal"):
        (copied / name).write_bytes((tmp_path / name).read_bytes())
    with closing(opened(copied)) as after:
        assert said(after) == [b"0", b"1", b"2", b"3"]
        assert problems(after) == []


def test_a_full_log_is_flushed(engine, logged):
    for number in range(commit_log.SLOTS + 3):
        engine.commit(step(number))
    assert logged == [False, *[True] * commit_log.SLOTS, False, True]
    assert pending(engine) == 1
    assert len(said(engine)) == commit_log.SLOTS + 3
    assert problems(engine) == []


def test_commits_that_are_read_at_once_skip_the_log(engine, logged):
    for number in range(3 * connection_module.SKIPPED_COMMITS):
        engine.commit(step(number))
        assert len(said(engine)) == number + 1
    assert logged.count(True) == 3


def test_many_writers_go_the_short_way_together(engine):
    engine.commit(step(0))
    group = [encode_batch(step(number)) for number in range(1, 6)]
    receipts = engine._write(group)
    assert pending(engine) == 1
    assert [receipt.first_seq for receipt in receipts] == [2, 3, 4, 5, 6]
    assert [receipt.versions["head"] for receipt in receipts] == [2, 3, 4, 5, 6]
    assert said(engine) == [b"%d" % number for number in range(6)]


def test_many_commits_in_few_slots_are_flushed_too(engine, logged):
    engine.commit(step(0))
    for first in range(1, 200, 40):
        engine._write([encode_batch(step(number)) for number in range(first, first + 40)])
    assert logged == [False, True, True, True, False, True]
    assert len(engine.read_list(SPACE, "said", 0, 999)) == 201


def test_events_of_several_days_skip_the_log(engine, logged):
    engine.commit(step(0))
    draft = Draft(SPACE)
    for day in range(2):
        draft.event(Event(id=f"e{day}", kind="step", ts_us=day * DAY_US, scope=SCOPE))
    engine.commit(draft.batch())
    assert logged == [False, False]
    assert len(engine.scan(SPACE, EventQuery()).records) == 3


def test_subclasses_of_str_and_int_skip_the_log(engine, logged):
    class Word(str):
        __slots__ = ()

    class Number(int):
        __slots__ = ()

    engine.commit(step(0))
    for number, words in enumerate([{"name": Word("elm")}, {"duration_us": Number(5)}], 1):
        draft = Draft(SPACE)
        draft.append("said", Content("text", b"%d" % number), scope=SCOPE, at=number)
        draft.event(Event(id=draft.id, kind="step", ts_us=number, scope=SCOPE, **words))
        engine.commit(draft.batch())
    assert logged == [False, False, False]
    assert said(engine) == [b"0", b"1", b"2"]


def test_a_value_changed_by_its_writer_afterwards_stays_as_committed(engine):
    engine.commit(step(0))
    value = bytearray(b"oak")
    draft = Draft(SPACE)
    draft.set_ref("head", value, scope=SCOPE, expect=ANY)
    engine.commit(draft.batch())
    value[:] = b"elm"
    assert engine.refs(SPACE, ["head"])["head"].value == b"oak"


def test_a_rejected_batch_does_not_affect_its_neighbours(engine):
    engine.commit(step(0))
    first, refused, last = engine._write(
        [encode_batch(step(1)), encode_batch(step(2, at=7)), encode_batch(step(2))]
    )
    assert isinstance(refused, ListMoved)
    assert (first.first_seq, last.first_seq) == (2, 3)
    assert said(engine) == [b"0", b"1", b"2"]


def test_large_contents_go_into_their_table_at_once(engine, logged):
    for number in range(3):
        engine.commit(step(number))
    draft = Draft(SPACE)
    large = draft.put(Content("bytes", os.urandom(9000)), scope=SCOPE)
    draft.event(Event(id=draft.id, kind="step", ts_us=9, scope=SCOPE, links=(large,)))
    engine.commit(draft.batch())
    assert logged[-1]
    assert len(engine.get(SPACE, [large])[0].data) == 9000
    assert problems(engine) == []


def test_a_commit_of_another_process_is_noticed(engine, other):
    for number in range(3):
        engine.commit(step(number))
    other.commit(step(3))
    with pytest.raises(ListMoved):
        engine.commit(step(3))
    receipts = [engine.commit(step(number)) for number in range(4, 7)]
    assert [receipt.versions["head"] for receipt in receipts] == [5, 6, 7]
    assert said(engine) == said(other) == [b"%d" % number for number in range(7)]
    assert problems(engine) == []


def test_a_commit_of_another_process_is_noticed_through_another_space(engine, other, logged):
    for number in range(3):
        engine.commit(step(number))
    other.commit(step(3))
    for number in range(2):  # now the last commit of the store is known again
        engine.commit(step(number, space="elsewhere"))
    assert logged[-1]
    with pytest.raises(ListMoved):
        engine.commit(step(3))
    assert said(engine) == [b"0", b"1", b"2", b"3"]


def test_spaces_take_turns_on_the_short_way(engine, logged):
    for number in range(4):
        for space in (SPACE, "elsewhere"):
            engine.commit(step(number, space=space))
    assert logged == [False, False, *[True] * 6]
    assert said(engine) == said(engine, "elsewhere") == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("plan", [Erasure(lists=("said",)), Erasure(refs=("head",))])
def test_an_erasure_by_another_process_is_noticed(engine, other, logged, plan):
    for number in range(3):
        engine.commit(step(number))
    with suppress(Conflict):
        other.erase(SPACE, plan)
    with suppress(Conflict):
        engine.commit(step(3))
    assert not logged[-1]
    assert problems(engine) == []


def test_erased_text_is_in_no_slot(engine, tmp_path):
    for number in range(3):
        engine.commit(step(number, text=SECRET))
    assert said(engine) == [SECRET] * 3  # flushed; the slots still hold it
    engine.erase(SPACE, Erasure(scopes=(SCOPE,), secure=True))
    held = [file.name for file in tmp_path.iterdir() if file.is_file() and SECRET in file.read_bytes()]
    assert held == []


def test_erased_text_is_not_kept_in_memory(engine):
    for number in range(3):
        engine.commit(step(number))
    engine.erase(SPACE, Erasure(scopes=(SCOPE,)))
    assert not engine._sqlite.pending


def test_a_closed_store_has_nothing_pending(tmp_path):
    with closing(opened(tmp_path)) as engine:
        for number in range(3):
            engine.commit(step(number))
    with closing(sqlite3.connect(tmp_path / "treering.db")) as connection:
        assert connection.execute("SELECT count(*) FROM fresh").fetchall() == [(0,)]
        assert connection.execute("SELECT count(*) FROM event").fetchall() == [(3,)]


def test_a_repeated_event_skips_the_log(engine, logged):
    for number in range(3):
        engine.commit(step(number, event=f"e{number}"))
    assert engine.commit(step(3, event="e0")).new_events == 0  # flushed
    assert not logged[-1]
    engine.commit(step(4, event="e4"))
    assert engine.commit(step(5, event="e4")).new_events == 0  # pending
    assert not logged[-1]
    assert len(said(engine)) == 6
    assert len(engine.scan(SPACE, EventQuery()).records) == 4


def test_a_repeated_batch_gets_its_first_receipt(engine):
    batches = [step(number) for number in range(3)]
    first = [engine.commit(batch) for batch in batches]
    assert [engine.commit(batch) for batch in reversed(batches)] == first[::-1]
    assert (
        engine._write([encode_batch(batches[2]), encode_batch(step(3)), encode_batch(batches[2])])[::2]
        == [first[2]] * 2
    )
    assert len(said(engine)) == 4


def test_an_append_waits_for_the_write_lock(engine, logged):
    for number in range(3):
        engine.commit(step(number))
    holder = sqlite3.connect(engine._sqlite.path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.1, lambda: holder.execute("ROLLBACK"))
    timer.start()
    engine.commit(step(3))
    timer.join()
    holder.close()
    assert logged[-1]
    assert len(said(engine)) == 4


def test_readers_do_not_wait_for_a_long_transaction(engine, other):
    for number in range(3):
        engine.commit(step(number))
    with engine._database.writing():
        assert said(other) == [b"0", b"1", b"2"]


def test_a_busy_writer_does_not_block_readers(engine, other, monkeypatch):
    for number in range(3):
        engine.commit(step(number))
    flush = connection_module.SqliteDatabase.flush
    numbers = iter(range(3, 99))

    def writing_on(self):
        flush(self)
        engine._sqlite.skip_log = 0
        for _ in range(3):
            engine.commit(step(next(numbers)))

    monkeypatch.setattr(other._sqlite, "flush", lambda: writing_on(other._sqlite))
    assert other.refs(SPACE, ["head"])["head"].version >= 3
    assert next(numbers) < 12


def test_a_full_store_can_be_read(engine, monkeypatch):
    for number in range(4):
        engine.commit(step(number, text=b"x" * 1500))

    def full(*_: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(connection_module.SqliteDatabase, "flush", full)
        assert said(engine) == [b"x" * 1500] * 4
        assert engine.refs(SPACE, ["head"])["head"].version == 4
        with monkeypatch.context() as failing:
            failing.setattr(connection_module, "flush", full)
            with pytest.raises(StoreFull):
                engine.refs(SPACE, ["head"])
    assert pending(engine) == 3
    assert len(said(engine)) == 4
    assert pending(engine) == 0


def test_a_failed_flush_leaves_nothing_behind(engine):
    for number in range(3):
        engine.commit(step(number))
    connection = engine._sqlite.writer()
    connection.execute(
        "CREATE TEMP TRIGGER nobody AFTER INSERT ON event BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(Exception, match="no"):
        said(engine)
    assert not connection.in_transaction
    connection.execute("DROP TRIGGER nobody")
    assert pending(engine) == 2
    assert said(engine) == [b"0", b"1", b"2"]
    assert engine.commit(step(3)).first_seq == 4
    assert problems(engine) == []


def test_a_flush_that_is_interrupted_twice_leaves_nothing_behind(tmp_path, monkeypatch):
    engine = opened(tmp_path, "full")
    for number in range(3):
        engine.commit(step(number))
    interrupts = []

    def half(rows, session):
        session.execute_many(write.INSERT_COMMIT, rows.commits)
        interrupts.append(KeyboardInterrupt())
        raise KeyboardInterrupt

    def roll_back(session):
        if interrupts:
            raise interrupts.pop()
        undo(session)

    undo = SqliteSession.roll_back
    with monkeypatch.context() as patch:
        patch.setattr(write.CommitRows, "write", half)
        patch.setattr(SqliteSession, "roll_back", roll_back)
        with pytest.raises(KeyboardInterrupt):
            said(engine)
    assert said(engine) == [b"0", b"1", b"2"]
    engine.close()


@pytest.mark.parametrize("mode", ["NORMAL", "FULL"])
def test_commits_are_synced_after_an_interrupted_flush(tmp_path, monkeypatch, mode):
    engine = opened(tmp_path, "full")
    for number in range(2):
        engine.commit(step(number))
    change = connection_module.SqliteDatabase._set_synchronous

    def interrupted(self, *given):
        wanted = given[-1]
        if wanted == mode:
            monkeypatch.setattr(connection_module.SqliteDatabase, "_set_synchronous", change)
        if wanted == "NORMAL":
            change(self, *given)
        if wanted == mode:
            raise KeyboardInterrupt

    monkeypatch.setattr(connection_module.SqliteDatabase, "_set_synchronous", interrupted)
    with pytest.raises(KeyboardInterrupt):
        said(engine)
    ((found,),) = engine._sqlite.writer().execute("PRAGMA synchronous").fetchall()
    assert found == 2, "FULL"
    assert said(engine) == [b"0", b"1"]
    engine.close()


@pytest.mark.parametrize("action", [lambda engine: engine.commit(step(2)), said], ids=["commits", "reads"])
def test_an_interrupt_while_leaving_releases_the_lock(engine, monkeypatch, action):
    for number in range(2):
        engine.commit(step(number))
    leave = WriterQueue.leave

    def interrupted(self):
        monkeypatch.setattr(WriterQueue, "leave", leave)
        leave(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(WriterQueue, "leave", interrupted)
    with pytest.raises(KeyboardInterrupt):
        action(engine)
    other = threading.Thread(target=lambda: engine.commit(step(0, space="other")), daemon=True)
    other.start()
    other.join(10)
    is_stuck = other.is_alive()
    while engine._sqlite._write_lock._is_owned():
        engine._sqlite.unlock_writes()
    assert not is_stuck


def test_commits_are_synced_after_a_flush(tmp_path):
    with closing(opened(tmp_path, "full")) as engine:
        for number in range(3):
            engine.commit(step(number))
        said(engine)
        assert engine._sqlite.writer().execute("PRAGMA synchronous").fetchall() == [(2,)]


def test_a_damaged_slot_is_reported(engine, other):
    for number in range(2):
        engine.commit(step(number))
    with closing(sqlite3.connect(engine._sqlite.path)) as connection, connection:
        connection.execute("UPDATE fresh SET rows = zeroblob(2100)")
    with pytest.raises(Corrupt, match="slot 0 of the commit log"):
        said(other)
    with closing(sqlite3.connect(engine._sqlite.path)) as connection, connection:
        connection.execute("DELETE FROM fresh")


def test_an_append_that_fails_before_its_commit_leaves_nothing(engine, monkeypatch):
    for number in range(2):
        engine.commit(step(number))

    def look(name: str) -> None:
        assert name == BEFORE_COMMIT
        assert pending(engine) == 1
        raise RuntimeError("died")

    monkeypatch.setattr(commit_log, "is_armed", lambda _: True)
    monkeypatch.setattr(commit_log, "hit", look)
    with pytest.raises(RuntimeError, match="died"):
        engine.commit(step(2))
    monkeypatch.undo()
    assert pending(engine) == 1
    assert engine.commit(step(2)).first_seq == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_commits_beside_its_parent(engine):
    for number in range(3):
        engine.commit(step(number))
    child = os.fork()
    if not child:
        with suppress(BaseException):
            engine.commit(step(3))
            os._exit(0 if said(engine)[-1] == b"3" else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(ListMoved):
        engine.commit(step(3))
    engine.commit(step(4))
    assert said(engine) == [b"0", b"1", b"2", b"3", b"4"]
    assert problems(engine) == []


def test_a_backup_contains_pending_commits(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as store:
        thread = store.thread("t")
        for number in range(5):
            thread.append({"role": "user", "content": str(number)})
        store.backup(tmp_path / "backup")
    with treering.open(tmp_path / "backup") as backup:
        moment = backup.thread("t").load()
        assert moment is not None
        assert [message["content"] for message in moment.messages] == ["0", "1", "2", "3", "4"]


def test_sql_queries_see_pending_commits(tmp_path):
    from sqlmodel import select

    from treering.compat.models import Run, open_session

    with treering.open(tmp_path, durability="fast") as store, open_session(store) as session:
        for number in range(5):
            store.thread("t").append({"role": "user", "content": str(number)})
        statement = session.connection().exec_driver_sql("SELECT count(*) FROM event")
        assert statement.fetchall() == [(5,)]
        assert session.exec(select(Run)).all() == []

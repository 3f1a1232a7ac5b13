"""Search on PostgreSQL: scores, odd texts, and namespaces.

Followers: nothing is missed, nothing comes twice, and a commit is heard of soon.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import psycopg
import pytest

from treering.core.batch import Draft, Text
from treering.core.query import EventQuery, SearchQuery
from treering.engines.postgres import engine as engine_module
from treering.engines.postgres import open_postgres
from treering.engines.postgres.engine import Announcer
from treering.testing import batches
from treering.testing.portrait import problems


@pytest.fixture
def engine(postgres_url):
    engine = open_postgres(postgres_url)
    yield engine
    engine.close()


@pytest.fixture
def found(engine):
    def found(text, **fields):
        query = SearchQuery(**{"collection": "notes", "text": text} | fields)
        return [(hit.name, hit.score) for hit in engine.search("default", query).hits]

    return found


def _index(engine, texts, **fields):
    for name, text in texts.items():
        engine.commit(batches.index_text("default", name, text, **fields))


def _names(hits):
    return [name for name, _ in hits]


def test_rare_words_count_more(engine, found):
    _index(engine, {f"common {number}": "maple leaf" for number in range(20)})
    _index(engine, {"both": "maple walnut", "rare": "walnut trunk"})
    assert _names(found("maple walnut", limit=2)) == ["both", "rare"]


def test_repeated_words_count_a_little_more_and_length_a_little_less(engine, found):
    filler = " ".join(f"word{number}" for number in range(40))
    _index(engine, {"long": f"cedar {filler}", "short": "cedar bark", "twice": "cedar cedar bark"})
    assert _names(found("cedar")) == ["twice", "short", "long"]
    scores = [score for _, score in found("cedar")]
    assert scores[0] < 3 * scores[2]


def test_equal_texts_come_in_the_order_of_their_age_and_always_the_same(engine, found):
    names = [f"note {number}" for number in (3, 1, 2, 5, 4)]
    _index(engine, dict.fromkeys(names, "the same larch"))
    assert [found("larch") for _ in range(3)] == [found("larch")] * 3
    assert _names(found("larch")) == names


def test_common_words_are_found_when_they_are_all_there_is(engine, found):
    _index(engine, {"hamlet": "To be, or not to be", "other": "a question"})
    assert _names(found("to be or not")) == ["hamlet"]


@pytest.mark.parametrize(
    "text",
    [
        "needle \x00 in a text with NUL",
        "needle " + "x" * 100_000,
        "needle " + " ".join(f"w{number}" for number in range(200_000)),
        "needle " * 10_000,
        "needle ' \\ : | & ! ( ) <-> 'quoted' \\' '' ",
        "needle 🌲 Ünïcödé \u202e",
    ],
)
@pytest.mark.parametrize("tokens", ["words", "trigrams"])
def test_any_text_can_be_indexed(engine, found, text, tokens):
    _index(engine, {"odd": text}, tokens=tokens)
    assert _names(found("needle")) == ["odd"]


def test_trigrams_are_no_marks_of_namespaces(engine, found):
    """A text may contain what stands for a collection or a namespace inside the index."""
    _index(engine, {"a": "\x011 1.2 \x01\x01 juniper"}, tokens="trigrams", namespace="one")
    _index(engine, {"b": "plain juniper"}, tokens="trigrams", namespace="two")
    assert _names(found("juniper", namespace="two")) == ["b"]
    assert _names(found("juniper", namespace="")) == []


def test_many_texts_in_one_batch_are_all_indexed_and_replaced(engine, found):
    for word in ("birch", "aspen"):
        draft = Draft("default")
        for number in range(100):
            source = draft.put(batches.words(f"{word} number{number}"), scope="s")
            draft.set_ref(f"r{number}", b"", scope="s", links=(source,))
            collection = "notes" if number % 2 else "other"
            draft.text(Text(collection=collection, name=f"n{number}", scope="s", source=source))
        engine.commit(draft.batch())
    assert found("birch") == []
    assert len(found("aspen", limit=200)) == 50
    assert _names(found("number99")) == ["n99"]


WRITER = """
import sys
from treering.core.batch import Add, Batch, RefChange
from treering.core.ids import new_id
from treering.engines.postgres import engine as engine_module
from treering.engines.postgres import open_postgres
from treering.testing import batches

url, writer, commits = sys.argv[1], sys.argv[2], int(sys.argv[3])
engine = open_postgres(url)
sys.stdin.read(1)
for number in range(commits):
    events = tuple(batches.call(id=f"{writer}.{number}.{part}") for part in range(number % 3))
    total = RefChange(name="total", scope="s", change=Add(delta=1))
    engine.commit(Batch(id=new_id(), space="default", events=events, refs=(total,)))
engine.close()
"""


@pytest.mark.slow
def test_followers_of_8_processes_miss_nothing_and_see_it_once_in_order(engine, postgres_url):
    writers, commits = 8, 60
    engine.commit(batches.events("default", batches.event(id="first")))
    children = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, postgres_url, str(number), str(commits)], stdin=subprocess.PIPE
        )
        for number in range(writers)
    ]
    seen = [[] for _ in range(3)]
    done = threading.Event()

    def follow_all(records):
        after = 0
        while True:
            finished = done.is_set()
            last = engine.wait("default", after, seconds=0.2)
            while True:
                page = engine.scan("default", EventQuery(), after=str(after), limit=100)
                records += page.records
                if not page.records:
                    break
                after = page.records[-1].seq
            after = max(after, last) if finished else after
            if finished:
                return

    followers = [threading.Thread(target=follow_all, args=(records,)) for records in seen]
    for follower in followers:
        follower.start()
    for child in children:
        child.stdin.write(b".")
        child.stdin.close()
    codes = [child.wait(timeout=100) for child in children]
    done.set()
    for follower in followers:
        follower.join()
    assert codes == [0] * writers
    expected = {"first"} | {
        f"{writer}.{number}.{part}"
        for writer in range(writers)
        for number in range(commits)
        for part in range(number % 3)
    }
    for records in seen:
        sequence = [record.seq for record in records]
        assert sequence == sorted(set(sequence))
        assert len(records) == len(expected)
        assert {record.event.id for record in records} == expected
    total = engine.refs("default", ["total"])["total"]
    assert (int(total.value), total.version) == (writers * commits, writers * commits)
    assert not problems(engine, "default")


def test_a_commit_of_another_engine_is_heard_of_without_polling(engine, postgres_url, monkeypatch):
    monkeypatch.setattr(engine_module, "LOOK_SECONDS", 90.0)
    other = open_postgres(postgres_url)
    seq = other.commit(batches.set_ref("default", "r")).last_seq
    for _ in range(10):
        threading.Timer(0.05, lambda: other.commit(batches.set_ref("default", "r"))).start()
        started = time.monotonic()
        assert engine.wait("default", seq, seconds=100) == seq + 1
        assert time.monotonic() - started < 60
        seq += 1
    other.close()


def test_a_commit_of_the_same_process_is_heard_of_at_once(engine, monkeypatch):
    monkeypatch.setattr(engine_module, "LOOK_SECONDS", 90.0)
    seq = engine.commit(batches.set_ref("default", "r")).last_seq
    threading.Timer(0.05, lambda: engine.commit(batches.set_ref("default", "r"))).start()
    assert engine.wait("default", seq, seconds=100) == seq + 1


def test_a_message_that_never_came_costs_a_second(engine, postgres_url, monkeypatch):
    monkeypatch.setattr(Announcer, "announce", lambda *_: None)
    other = open_postgres(postgres_url)
    seq = other.commit(batches.set_ref("default", "r")).last_seq
    threading.Timer(0.2, lambda: other.commit(batches.set_ref("default", "r"))).start()
    assert engine.wait("default", seq, seconds=100) == seq + 1
    other.close()


def test_a_listener_that_was_cut_off_listens_again(engine, postgres_url, monkeypatch):
    monkeypatch.setattr(engine_module, "LOOK_SECONDS", 90.0)
    other = open_postgres(postgres_url)
    seq = other.commit(batches.set_ref("default", "r")).last_seq
    waited = []
    waiter = threading.Thread(target=lambda: waited.append(engine.wait("default", seq, seconds=100)))
    waiter.start()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN treering'"
        while not connection.execute(sql).fetchall():
            time.sleep(0.02)
        while not connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE query = 'LISTEN treering'"
        ).fetchall():
            time.sleep(0.02)
    other.commit(batches.set_ref("default", "r"))
    waiter.join(timeout=100)
    assert waited == [seq + 1]
    other.close()


def test_a_wait_ends_when_time_is_up_or_there_is_something_already(engine):
    assert engine.wait("nowhere", 0, seconds=0.05) == 0
    seq = engine.commit(batches.set_ref("default", "r")).last_seq
    assert engine.wait("default", seq - 1, seconds=60) == seq
    started = time.monotonic()
    assert engine.wait("default", seq, seconds=0.2) == seq
    assert 0.15 < time.monotonic() - started < 5


def test_closing_does_not_wait_for_waiters(postgres_url):
    engine = open_postgres(postgres_url)
    engine.commit(batches.set_ref("default", "r"))

    def wait():
        try:
            engine.wait("default", 1, seconds=60)
        except Exception as error:  # noqa: BLE001 - looked at below
            ended.append(type(error).__name__)

    ended = []
    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.3)
    engine.close()
    waiter.join(timeout=60)
    assert not waiter.is_alive()
    assert ended in ([], ["Closed"])


def test_the_listener_leaves_when_nobody_waits(engine, monkeypatch):
    monkeypatch.setattr(engine_module, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(engine_module, "LOOK_SECONDS", 0.05)
    engine.wait("default", 0, seconds=0.2)
    deadline = time.monotonic() + 60
    while engine._follower._listener is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert engine._follower._listener is None
    assert engine.wait("default", 0, seconds=0.1) == 0

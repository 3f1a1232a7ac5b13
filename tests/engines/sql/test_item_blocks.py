"""Items that are flushed together share a row, and are read as if each had its own."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treering
from treering.blobs.folder import FolderBlobs
from treering.core.batch import ANY, Draft
from treering.core.content import Content
from treering.core.query import Erasure
from treering.core.records import Checked
from treering.core.tree import Tree, encode_tree
from treering.engines.sql import read
from treering.engines.sql.commit.write import encode_batch
from treering.engines.sqlite import open_sqlite
from treering.errors import Corrupt

SPACE = "default"
SCOPE = "/thread/a"


def opened(folder):
    return open_sqlite(folder, blobs=FolderBlobs(folder / "blobs"), durability="fast")


@pytest.fixture
def engine(tmp_path):
    made = opened(tmp_path)
    yield made
    made.close()


def said(name, at, *items, parent=None):
    draft = Draft(SPACE)
    draft.append(name, *items, scope=SCOPE, at=at, parent=parent)
    draft.set_ref(f"head/{name}", b"%d" % at, scope=SCOPE, expect=ANY, links=(f"l:{name}",))
    return draft.batch()


def text(number):
    return Content("text", b"message %d, as long as such messages are" % number)


def spoken(engine, name, count, *, start=0):
    """One item a commit, and then a reader."""
    for number in range(start, start + count):
        engine.commit(said(name, number, text(number)))
    engine.refs(SPACE, ["head"])


def rows(engine, sql="SELECT key & 4294967295, kind FROM item ORDER BY key"):
    with closing(sqlite3.connect(engine._sqlite.path)) as connection:
        return connection.execute(sql).fetchall()


def check(engine):
    *problems, checked = engine.check(SPACE)
    assert problems == []
    assert isinstance(checked, Checked)
    return checked


def test_items_that_settle_together_are_one_row(engine):
    spoken(engine, "l", 20)
    assert rows(engine) == [(0, 2), (1, -19)]  # the first made the list
    assert engine.read_list(SPACE, "l", 0, 99) == [text(number) for number in range(20)]
    assert check(engine).items == 20
    assert engine.stats(SPACE).items == 20


@pytest.mark.parametrize("start,stop", [(0, 20), (0, 1), (1, 2), (5, 9), (19, 20), (15, 99), (7, 7)])
def test_any_part_of_them_is_read(tmp_path, start, stop):
    with closing(opened(tmp_path)) as engine:
        spoken(engine, "l", 20)
    with closing(opened(tmp_path)) as engine:
        assert engine.read_list(SPACE, "l", start, stop) == [
            text(each) for each in range(start, min(stop, 20))
        ]


def test_few_stay_as_they_are(engine):
    spoken(engine, "l", read.MIN_BLOCK)
    assert rows(engine) == [(number, 2) for number in range(read.MIN_BLOCK)]


def test_what_points_elsewhere_is_never_bound(engine):
    """Nothing of that would be found by those who look for links."""
    large = Content("bytes", os.urandom(9000))
    tree = encode_tree(Tree())
    spoken(engine, "l", 6)
    engine._sqlite.skip_log = 0
    engine.commit(said("l", 6, large))
    engine.commit(said("l", 7, tree))
    for number in range(8, 13):
        engine.commit(said("l", number, text(number)))
    assert engine.read_list(SPACE, "l", 5, 9) == [text(5), large, tree, text(8)]
    assert (6, None) in rows(engine)
    assert (7, 3) in rows(engine)
    assert (8, -5) in rows(engine)
    engine.sweep(SPACE, grace_seconds=0)
    assert engine.read_list(SPACE, "l", 6, 7) == [large]
    check(engine)


def test_lists_that_grow_side_by_side_have_sheaves_of_their_own(engine):
    for name in "ab":
        engine.commit(said(name, 0, text(0)))
    for number in range(1, 11):
        engine._write([encode_batch(said(name, number, text(number))) for name in "ab"])
    for name in "ab":
        assert engine.read_list(SPACE, name, 0, 99) == [text(number) for number in range(11)]
    assert [kind for _, kind in rows(engine)] == [2, -10, 2, -10]


def test_a_fork_begins_in_the_middle_of_one(engine):
    spoken(engine, "l", 20)
    engine.commit(said("fork", 7, text(100), parent="l"))
    spoken(engine, "l", 10, start=20)
    assert engine.read_list(SPACE, "fork", 0, 99) == [*map(text, range(7)), text(100)]
    assert engine.read_list(SPACE, "fork", 6, 8) == [text(6), text(100)]
    assert engine.read_list(SPACE, "l", 18, 22) == [text(number) for number in range(18, 22)]
    check(engine)


def test_an_erased_list_takes_its_sheaves_along(engine, tmp_path):
    spoken(engine, "l", 20)
    erased = engine.erase(SPACE, Erasure(scopes=(SCOPE,), secure=True))
    assert erased.lists == 1
    assert rows(engine) == []
    assert not any(b"message 7" in file.read_bytes() for file in tmp_path.iterdir() if file.is_file())


def test_a_copy_has_every_item(tmp_path):
    with (
        treering.open(tmp_path / "one", durability="fast") as store,
        treering.open(tmp_path / "two", durability="fast") as target,
    ):
        thread = store.thread("t")
        for number in range(70):
            thread.append({"n": number})
        store.copy_to(target)
        moment = target.thread("t").load()
        assert moment is not None
        assert [message["n"] for message in moment.messages] == [*range(70)]
        assert target.verify().ok


def test_what_is_bound_is_not_brought_a_second_time(tmp_path):
    """Into a backup, which has the sheaves already, and which has gone on by itself."""
    with treering.open(tmp_path / "one", durability="fast") as store:
        for number in range(70):
            store.thread("t").append({"n": number})
        store.backup(tmp_path / "two")
        with treering.open(tmp_path / "two", durability="fast") as target:
            before = target.engine.stats("default").bytes["items"]
            for part in store.engine.export("default"):
                target.engine.load("default", part)
            assert target.engine.stats("default").bytes["items"] == before
            assert target.verify().ok


def test_a_damaged_one_is_told(engine):
    spoken(engine, "l", 20)
    with closing(sqlite3.connect(engine._sqlite.path)) as connection, connection:
        connection.execute("UPDATE item SET kind = -18 WHERE kind < 0")
    with pytest.raises(Corrupt, match="item 1 of list 'l' is not as it was written"):
        engine.read_list(SPACE, "l", 0, 99)
    assert "list" in {each.kind for each in engine.check(SPACE) if hasattr(each, "kind")}
    with closing(sqlite3.connect(engine._sqlite.path)) as connection, connection:
        connection.execute("DELETE FROM item WHERE kind < 0")
    with pytest.raises(Corrupt, match="lacks 19 of its items"):
        engine.read_list(SPACE, "l", 0, 99)


LISTS = st.sampled_from("ab")
DEEDS = st.one_of(
    st.tuples(st.just("say"), LISTS, st.integers(1, 3)),
    st.tuples(st.just("say"), LISTS, st.integers(1, 3)),
    st.tuples(st.just("many"), LISTS, st.integers(4, 80)),
    st.tuples(st.just("large"), LISTS, st.just(1)),
    st.tuples(st.just("read"), LISTS, st.integers(0, 99)),
    st.tuples(st.just("reopen"), LISTS, st.just(0)),
)


@settings(max_examples=30)
@given(st.lists(DEEDS, min_size=5, max_size=40))
def test_whatever_comes_is_read_back(tmp_path_factory, deeds):
    folder = tmp_path_factory.mktemp("sheaves")
    result: dict[str, list[Content]] = {"a": [], "b": []}
    engine = opened(folder)
    number = 0
    for deed, name, count in deeds:
        past = result[name]
        if deed == "reopen":
            engine.close()
            engine = opened(folder)
        elif deed == "read":
            if past:
                assert engine.read_list(SPACE, name, count, count + 7) == past[count : count + 7]
        else:
            sizes = [1] * count if deed == "many" else [count]
            for size in sizes:
                new = [text(number + each) for each in range(size)]
                if deed == "large":
                    new = [Content("bytes", b"%d" % number * 3000)]
                number += size
                engine.commit(said(name, len(past), *new))
                past += new
    for name, past in result.items():
        if past:
            assert engine.read_list(SPACE, name, 0, len(past)) == past
    if number:
        assert check(engine).items == sum(map(len, result.values()))
    engine.close()

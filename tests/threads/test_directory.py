"""Finding checkpoints by what a person types, and how a thread grew, on every engine."""

from __future__ import annotations

import pytest

import treering
from treering.errors import InvalidInput, NotFound
from treering.threads.directory import Finder, thread_info
from treering.threads.tree import left_behind, read_tree


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "postgres":
        request.applymarker(pytest.mark.postgres)
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if request.param == "memory" else tmp_path / "store"
    with treering.open(url) as opened:
        thread = opened.thread("al@home")
        for step in range(4):
            thread.append({"step": step})
        thread.rewind(1)
        thread.append({"step": "2b"})
        thread.fork("elsewhere", at=0, namespace="").append("on")
        opened.thread("mine", namespace="bob").append("x")
        yield opened


@pytest.fixture
def finder(store):
    return Finder(store.engine, store.space)


def ids(store, thread="al@home"):
    return [checkpoint.id for checkpoint in store.thread(thread).history(everything=True)][::-1]


def test_each_way_to_say_it(store, finder):
    checkpoints = ids(store)
    head = store.thread("al@home").head
    assert finder.checkpoint("al@home").id == head.id == checkpoints[4]
    assert finder.checkpoint("al@home@0").id == checkpoints[0]
    assert finder.checkpoint("al@home@2").id == checkpoints[4]  # the step on the line to the head
    assert finder.checkpoint("al@home@~").id == finder.checkpoint("al@home@~1").id == checkpoints[1]
    assert finder.checkpoint(f"al@home@{checkpoints[3]}").id == checkpoints[3]
    assert finder.checkpoint(f"al@home@{head.created_at}").id == head.id
    assert finder.checkpoint(checkpoints[2]).id == checkpoints[2]
    assert finder.checkpoint(ids(store, "elsewhere")[1]).thread == "elsewhere"


def test_the_beginning_of_an_id_is_enough_if_it_is_the_only_one(store, finder):
    for checkpoint in ids(store):
        short = next(
            checkpoint[:length] for length in range(9, 32) if _count(store, checkpoint[:length]) == 1
        )
        assert finder.by_prefix(short).id == checkpoint
        with pytest.raises(InvalidInput, match="is ambiguous"):
            finder.by_prefix(short[: next(n for n in range(31, 8, -1) if _count(store, checkpoint[:n]) > 1)])


def _count(store, prefix):
    every = [*ids(store), *ids(store, "elsewhere"), store.thread("mine", namespace="bob").head.id]
    return sum(each.startswith(prefix) for each in every)


def test_what_is_not_there(finder):
    for text, result in {
        "al@hom": "did you mean 'al@home'",
        "mine": "there is one in 'bob'",
        "al@home@9": "has no step 9",
        "al@home@~9": "no checkpoint 9 before its head",
        "al@home@2001-01-01": "no checkpoint at or before",
        "ckpt_0000000000zz": "not found",
        "ckpt_uuuu": "not found",
        "": "thread '' not found",
    }.items():
        with pytest.raises(NotFound, match=result):
            finder.checkpoint(text)
    for text in ("al@home@soon", "ckpt_", "ckpt_0"):
        with pytest.raises(InvalidInput):
            finder.checkpoint(text)


def test_other_namespaces(store):
    theirs = Finder(store.engine, store.space, "bob")
    assert theirs.checkpoint("mine").namespace == "bob"
    with pytest.raises(NotFound):
        theirs.checkpoint("al@home")


def test_how_a_thread_grew(store):
    checkpoints = ids(store)
    info = thread_info(store.engine, store.space, "al@home", "")
    grown = read_tree(store.engine, store.space, info)
    assert [each.id for each in grown.checkpoints] == checkpoints[::-1]
    assert grown.line == {checkpoints[0], checkpoints[1], checkpoints[4]}
    assert grown.left_behind == [checkpoints[3], checkpoints[2]]
    assert [(each.before, each.to) for each in grown.rewinds] == [(checkpoints[3], checkpoints[1])]
    assert [(each.thread, each.at, each.step) for each in grown.forks] == [("elsewhere", checkpoints[0], 1)]
    fork = read_tree(store.engine, store.space, thread_info(store.engine, store.space, "elsewhere", ""))
    assert fork.origin.id == checkpoints[0]
    assert thread_info(store.engine, store.space, "nobody", "") is None


def test_what_a_rewind_leaves(store):
    checkpoints = ids(store)
    thread = store.thread("al@home")

    def left(head, target):
        return [
            each.id
            for each in left_behind(
                store.engine,
                store.space,
                thread.at(checkpoints[head]).record,
                thread.at(checkpoints[target]).record,
            )
        ]

    assert left(4, 0) == [checkpoints[4], checkpoints[1]]
    assert left(4, 3) == [checkpoints[4]]
    assert left(3, 4) == [checkpoints[3], checkpoints[2]]
    assert left(1, 4) == []
    assert left(2, 2) == []

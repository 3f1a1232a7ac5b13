"""The group commit: writers share commits, a lone one makes its own, and nobody is left waiting."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from treering.blobs.folder import FolderBlobs
from treering.core.batch import Draft
from treering.engines.sql.engine import GroupCommit
from treering.engines.sqlite import open_sqlite
from treering.errors import Closed, Conflict, StoreFull


class Writing:
    """What a group is written with: notes the groups, and can be stopped in the middle of one."""

    def __init__(self):
        self.groups = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_inside = threading.Event()
        self.answers = {}

    def __call__(self, group):
        self.groups.append(list(group))
        self.is_inside.set()
        assert self.may_go_on.wait(60)
        outcomes = [self.answers.get(each, each) for each in group]
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, Conflict):
                raise outcome
        return outcomes


@pytest.fixture
def writing():
    return Writing()


@pytest.fixture
def group(writing):
    made = GroupCommit(writing)
    yield made
    writing.may_go_on.set()
    made.close()


def queue(pool, group, writing, *batches):
    """Let one batch be written while the others queue up behind it; futures of all."""
    writing.may_go_on.clear()
    first = pool.submit(group.commit, "first")
    assert writing.is_inside.wait(60)
    others = []
    for number, batch in enumerate(batches, 1):
        others.append(pool.submit(group.commit, batch))
        while len(group._waiting) < number:
            threading.Event().wait(0.001)
    return [first, *others]


def test_a_lone_writer_commits_alone_and_leaves_the_door_open(group, writing):
    assert [group.commit(batch) for batch in ("a", "b")] == ["a", "b"]
    assert writing.groups == [["a"], ["b"]]
    assert not group._door.locked()


def test_who_comes_while_one_commits_shares_the_next_commit(group, writing):
    with ThreadPoolExecutor(4) as pool:
        futures = queue(pool, group, writing, "a", "b", "c")
        writing.may_go_on.set()
        assert [future.result(20) for future in futures] == ["first", "a", "b", "c"]
    assert writing.groups == [["first"], ["a", "b", "c"]]
    assert not group._door.locked()


def test_many_writers_all_get_their_own_answer(group, writing):
    def write(writer):
        return [group.commit((writer, number)) == (writer, number) for number in range(100)]

    with ThreadPoolExecutor(8) as pool:
        assert all(map(all, pool.map(write, range(8))))
    written = [each for batches in writing.groups for each in batches]
    assert sorted(written) == [(writer, number) for writer in range(8) for number in range(100)]
    assert not group._door.locked()
    assert not group._waiting


def test_a_refusal_is_raised_to_its_writer_alone(group, writing):
    writing.answers["bad"] = Conflict("refused")
    with pytest.raises(Conflict, match="refused"):
        group.commit("bad")
    with ThreadPoolExecutor(3) as pool:
        first, bad, good = queue(pool, group, writing, "bad", "good")
        writing.may_go_on.set()
        assert (first.result(20), good.result(20)) == ("first", "good")
        with pytest.raises(Conflict, match="refused"):
            bad.result(20)


def test_a_failure_of_the_store_is_everyones(group, writing):
    writing.answers["a"] = StoreFull("full")
    with ThreadPoolExecutor(3) as pool:
        first, *others = queue(pool, group, writing, "a", "b")
        writing.may_go_on.set()
        assert first.result(20) == "first"
        for other in others:
            with pytest.raises(StoreFull):
                other.result(20)
    assert group.commit("later") == "later"


def test_an_interrupted_writer_leaves_the_door_open(group, writing):
    writing.answers["stop"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        group.commit("stop")
    assert group.commit("later") == "later"


def test_a_lone_writer_takes_what_was_submitted_along_or_leaves_it_to_its_thread(group):
    futures = [group.submit(number) for number in range(50)]
    assert group.commit("mine") == "mine"
    assert [future.result(20) for future in futures] == list(range(50))


def test_a_closed_group_takes_nothing(writing):
    group = GroupCommit(writing)
    group.close()
    for call in (group.commit, group.submit):
        with pytest.raises(Closed):
            call("late")


def test_a_ref_that_changes_its_scope_twice_in_one_group_ends_in_the_last(tmp_path):
    engine = open_sqlite(tmp_path, blobs=FolderBlobs(tmp_path / "blobs"))

    def move(scope):
        draft = Draft("default")
        draft.set_ref("r", scope.encode(), scope=scope)
        return draft.batch()

    engine.commit(move("a"))
    engine._group._door.acquire()
    futures = [engine.submit(move(scope)) for scope in ("b", "a")]
    engine._group._leave()
    versions = [future.result(20).versions["r"] for future in futures]
    assert (versions, engine.refs("default", ["r"])["r"].scope) == ([2, 3], "a")
    engine.close()

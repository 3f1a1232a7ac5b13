"""The space cache: used while it is valid, dropped when another writer has made it stale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engines.sql.sql_world import SPACE, STORES, open_either, open_store
from treering.core.batch import ABSENT, Add, Draft
from treering.core.content import Content
from treering.core.query import Erasure
from treering.engines.sql.commit import state
from treering.errors import ListMoved, MissingObjects, RefMoved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from treering.core.batch import Receipt
    from treering.engines.sql.engine import SqlEngine
    from treering.engines.sqlite import SqliteEngine

SCOPE = "/thread/a"


@pytest.fixture(params=STORES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], SqlEngine]]:
    """Open the store once more, as another process would."""
    engines = [open_either(request, tmp_path)]

    def again() -> SqlEngine:
        engines.append(open_either(request, tmp_path))
        return engines[-1]

    yield again
    for engine in engines:
        engine.close()


@pytest.fixture
def mine(opened: Callable[[], SqlEngine]) -> SqlEngine:
    return opened()


@pytest.fixture
def theirs(mine: SqlEngine, opened: Callable[[], SqlEngine]) -> SqlEngine:
    del mine  # made first
    return opened()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[SqliteEngine]:
    engine = open_store(tmp_path)
    yield engine
    engine.close()


def set_head(engine: SqlEngine, value: bytes, expect: int | str) -> Receipt:
    draft = Draft(SPACE)
    draft.set_ref("head", value, scope=SCOPE, expect=expect)  # type: ignore[arg-type]
    return engine.commit(draft.batch())


def append(engine: SqlEngine, at: int, scope: str = SCOPE) -> Receipt:
    draft = Draft(SPACE)
    draft.append("list", Content("text", b"item"), scope=scope, at=at)
    return engine.commit(draft.batch())


def statements(engine: SqliteEngine) -> list[str]:
    executed: list[str] = []
    engine._sqlite.writer().set_trace_callback(executed.append)
    return executed


def test_cached_state_is_not_queried(local):
    set_head(local, b"1", ABSENT)
    append(local, 0)
    executed = statements(local)
    set_head(local, b"2", 1)
    append(local, 1)
    assert [each for each in executed if each.startswith("SELECT") and " FROM space " not in each] == []


def test_another_writer_moves_a_ref(mine, theirs):
    set_head(mine, b"1", ABSENT)
    assert set_head(theirs, b"2", 1).versions == {"head": 2}
    with pytest.raises(RefMoved, match="version 2, expected version 1"):
        set_head(mine, b"3", 1)
    assert set_head(mine, b"3", 2).versions == {"head": 3}
    assert mine.refs(SPACE, ["head"])["head"].value == b"3"


def test_another_writer_lengthens_a_list(mine, theirs):
    append(mine, 0)
    append(theirs, 1)
    with pytest.raises(ListMoved, match="has 2 items, expected 1"):
        append(mine, 1)
    append(mine, 2)
    assert len(mine.read_list(SPACE, "list", 0, 9)) == 3


def test_a_rejected_batch_leaves_the_cache_unchanged(mine):
    set_head(mine, b"1", ABSENT)
    draft = Draft(SPACE)
    draft.set_ref("head", b"2", scope=SCOPE, expect=1)
    draft.require("0" * 64)
    with pytest.raises(MissingObjects):
        mine.commit(draft.batch())
    assert set_head(mine, b"2", 1).versions == {"head": 2}


def test_a_failed_transaction_leaves_the_cache_unchanged(mine, monkeypatch):
    set_head(mine, b"1", ABSENT)
    append(mine, 0)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("in the middle")

    with monkeypatch.context() as patch:
        patch.setattr("treering.engines.sql.engine.write_group", fail)
        patch.setattr("treering.engines.sqlite.commit_log._insert_sql", fail)
        patch.setattr("treering.engines.postgres.engine.write_group", fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            append(mine, 1)
        with pytest.raises(RuntimeError, match="in the middle"):
            set_head(mine, b"2", 1)
    append(mine, 1)
    assert set_head(mine, b"2", 1).versions == {"head": 2}


@pytest.mark.parametrize("plan", [Erasure(scopes=(SCOPE,)), Erasure(refs=("head",), lists=("list",))])
@pytest.mark.parametrize("eraser", ["mine", "theirs"])
def test_an_erasure_invalidates_the_cache(request, mine, plan, eraser):
    set_head(mine, b"1", ABSENT)
    append(mine, 0)
    request.getfixturevalue(eraser).erase(SPACE, plan)
    set_head(mine, b"2", ABSENT)
    append(mine, 0, "/thread/b")
    assert mine.refs(SPACE, ["head"])["head"].value == b"2"
    assert len(mine.read_list(SPACE, "list", 0, 9)) == 1
    assert [each for each in mine.check(SPACE) if hasattr(each, "detail")] == []


def test_a_load_invalidates_the_cache(mine, tmp_path):
    set_head(mine, b"1", ABSENT)
    append(mine, 0)
    source = open_store(tmp_path / "source")
    for version in range(5):
        set_head(source, b"%d" % version, version or ABSENT)
    for part in source.export(SPACE):
        mine.load(SPACE, part)
    source.close()
    with pytest.raises(RefMoved, match="version 5, expected version 1"):
        set_head(mine, b"2", 1)


def test_sums_continue_from_the_cache(mine, theirs):
    def add(engine: SqlEngine) -> int:
        draft = Draft(SPACE)
        draft.add_to_ref("sum", Add(delta=1), scope=SCOPE)
        return engine.commit(draft.batch()).sums["sum"]

    assert [add(each) for each in (mine, mine, theirs, mine, theirs, theirs, mine)] == [1, 2, 3, 4, 5, 6, 7]


def test_the_cache_is_bounded(mine, monkeypatch):
    monkeypatch.setattr(state, "STATES", 3)
    monkeypatch.setattr(state, "SCOPES", 3)
    for number in range(20):
        draft = Draft(SPACE)
        draft.set_ref(f"ref{number}", b"x", scope=f"/thread/{number}", expect=ABSENT)
        draft.append(f"list{number}", Content("text", b"x"), scope=f"/thread/{number}", at=0)
        mine.commit(draft.batch())
    cache = mine._caches.of(mine._spaces[SPACE])
    assert max(map(len, (cache.scopes, cache.refs, cache.lists))) <= 4
    set_head(mine, b"x" * (state.VALUE_BYTES + 1), ABSENT)
    assert "head" not in cache.refs
    set_head(mine, b"y", 1)

"""Deciding a commit: the result is the same on a cached state and on a freshly read one.

The space cache: used while it is valid, dropped when another writer has made it stale.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engines.sql.sql_world import SPACE, STORES, open_either, open_store
from treering.blobs.folder import FolderBlobs
from treering.core.batch import ABSENT, ANY, Add, Draft, Event, Usage
from treering.core.clock import DAY_US, ManualClock, SystemClock
from treering.core.content import Content, object_address, slot_address
from treering.core.query import Erasure, EventQuery, SumQuery
from treering.engines.sql.commit import decide as decide_module
from treering.engines.sql.commit.decide import AcceptedBatch, SpaceCache, cached_state, decide_all, read_state
from treering.engines.sql.commit.write import encode_batch, merge_dependencies
from treering.engines.sql.gc import sweep
from treering.engines.sqlite import SqliteEngine, open_sqlite
from treering.errors import InvalidInput, ListMoved, MissingObjects, NotFound, RefMoved, TreeringError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from treering.core.batch import Receipt
    from treering.engines.sql.engine import SqlEngine


SCOPES = ("/thread/a", "/thread/b")


def open_engine(folder, clock=None):
    return open_sqlite(folder, blobs=FolderBlobs(folder / "blobs"), durability="fast", clock=clock)


@pytest.fixture
def engine(tmp_path):
    made = open_engine(tmp_path)
    yield made
    made.close()


@pytest.fixture
def cached(monkeypatch):
    """Whether each group was decided from the cache, where that was tried."""
    results = []
    decide_cached = SqliteEngine._decide_cached

    def noted(self, *arguments):
        decided = decide_cached(self, *arguments)
        results.append(decided is not None)
        return decided

    monkeypatch.setattr(SqliteEngine, "_decide_cached", noted)
    return results


def step(number, *, expect=ANY, at=None, event=None):
    draft = Draft(SPACE)
    draft.append("said", Content("text", b"%d" % number), scope=SCOPES[0], at=number if at is None else at)
    draft.event(Event(id=event or draft.id, kind="step", ts_us=number, scope=SCOPES[0], links=("l:said",)))
    draft.set_ref("head", b"%d" % number, scope=SCOPES[0], expect=expect)
    return draft.batch()


def test_a_step_after_one_of_this_process_is_decided_from_the_cache(engine, cached):
    receipts = [engine.commit(step(number, expect=number or ABSENT)) for number in range(4)]
    assert cached == [True, True, True]  # nothing was cached for the first
    assert [receipt.versions["head"] for receipt in receipts] == [1, 2, 3, 4]
    assert [receipt.first_seq for receipt in receipts] == [1, 2, 3, 4]
    assert [item.data for item in engine.read_list(SPACE, "said", 0, 9)] == [b"0", b"1", b"2", b"3"]
    assert [each.event.ts_us for each in engine.scan(SPACE, EventQuery()).records] == [0, 1, 2, 3]


def test_a_commit_of_another_process_is_not_overwritten(engine, cached, tmp_path):
    engine.commit(step(0))
    other = open_engine(tmp_path)
    other.commit(step(1))
    other.close()
    with pytest.raises(ListMoved):
        engine.commit(step(1))
    with pytest.raises(RefMoved):
        engine.commit(step(2, expect=1))
    assert cached[0]  # but the cache was stale
    assert engine.commit(step(2, expect=2)).versions == {"head": 3}


def test_a_repeated_batch_gets_its_first_receipt(engine, cached):
    engine.commit(step(0))
    batch = step(1)
    first = engine.commit(batch)
    engine.commit(step(2))
    assert engine.commit(batch) == first
    assert len(engine.read_list(SPACE, "said", 0, 9)) == 3
    assert cached[0]


def test_a_list_grows_in_its_own_scope_only(engine, cached):
    engine.commit(step(0))
    draft = Draft(SPACE)
    draft.set_ref("other", b"", scope=SCOPES[1])
    engine.commit(draft.batch())
    draft = Draft(SPACE)
    draft.append("said", Content("text", b"1"), scope=SCOPES[1], at=1)
    with pytest.raises(ListMoved, match="a scope other than"):
        engine.commit(draft.batch())
    assert cached == [False, False]


def test_a_ref_may_move_to_another_scope(engine):
    for number, scope in enumerate((*SCOPES, *SCOPES)):
        draft = Draft(SPACE)
        draft.set_ref("head", b"%d" % number, scope=scope)
        engine.commit(draft.batch())
        assert engine.refs(SPACE, ["head"])["head"].scope == scope


def test_a_repeated_event_is_left_out(engine, cached):
    engine.commit(step(0, event="e"))
    draft = Draft(SPACE)
    draft.append("said", Content("text", b"1"), scope=SCOPES[0], at=1)
    draft.event(Event(id="e", kind="step", ts_us=0, scope=SCOPES[0]))
    assert engine.commit(draft.batch()).new_events == 0
    assert cached[-1]
    assert len(engine.scan(SPACE, EventQuery()).records) == 1
    assert len(engine.read_list(SPACE, "said", 0, 9)) == 2


def test_links_to_content_of_earlier_commits_are_checked_in_the_cache(engine, cached):
    def linking(slot, content):
        draft = Draft(SPACE)
        draft.event(Event(id=draft.id, kind="step", ts_us=1, scope=SCOPES[0], body=slot, links=(content,)))
        return draft.batch()

    draft = Draft(SPACE)
    slot = draft.put(Content("text", b"small"), scope=SCOPES[0])
    content = draft.put(Content("bytes", b"large" * 5000), scope=SCOPES[0])
    draft.event(Event(id=draft.id, kind="step", ts_us=1, scope=SCOPES[0], body=slot, links=(content,)))
    engine.commit(draft.batch())
    for _ in range(2):
        engine.commit(linking(slot, content))
    engine.erase(SPACE, Erasure(scopes=(SCOPES[0],)))
    engine._sqlite.skip_log = 0  # the erasure read what had just been written
    with pytest.raises((NotFound, MissingObjects)):
        engine.commit(linking(slot, content))
    assert cached == [True, True, False]


@pytest.mark.parametrize("data", [b"small", b"large" * 5000], ids=["slot", "object"])
def test_content_that_gc_removed_is_not_in_the_cache(engine, tmp_path, monkeypatch, data):
    """Not even in a process that was still using it while gc was running."""
    draft = Draft(SPACE)
    address = draft.put(Content("bytes", data), scope=SCOPES[0])
    draft.set_ref("held", b"", scope=SCOPES[0], links=(address,))
    engine.commit(draft.batch())
    engine.commit(step(0))  # the scope stays, so nothing else reveals the removal

    def hold():
        draft = Draft(SPACE)
        draft.set_ref("held", b"", scope=SCOPES[0], links=(address,))
        engine.commit(draft.batch())

    def let_go():
        draft = Draft(SPACE)
        draft.delete_ref("held", scope=SCOPES[0])
        engine.commit(draft.batch())

    slices = itertools.count()

    def meanwhile(name):
        if name == sweep.AFTER_DELETE and next(slices) == 0:  # of lists; bodies and objects come next
            hold()
            let_go()

    let_go()
    gc = open_engine(tmp_path, ManualClock(SystemClock().now_us() + 400 * DAY_US))
    monkeypatch.setattr(sweep, "hit", meanwhile)
    swept = gc.sweep(SPACE, grace_seconds=3600)
    gc.close()
    assert swept.objects + swept.bodies == 1
    with pytest.raises((NotFound, MissingObjects)):
        hold()


CHANGES = st.sampled_from(("set", "set", "set", "delete", "add", "large"))
EXPECTED = st.sampled_from((ANY, ANY, "right", "right", ABSENT, "wrong"))
REF = st.tuples(st.sampled_from("pq"), CHANGES, EXPECTED)
BATCHES = st.fixed_dictionaries(
    {
        "refs": st.lists(REF, max_size=2, unique_by=lambda ref: ref[0]),
        "lists": st.lists(st.tuples(st.sampled_from("mn"), st.sampled_from((0, 0, 0, 1))), max_size=2),
        "events": st.lists(st.sampled_from(("", "", "", "e")), max_size=2),
        "scope": st.sampled_from(SCOPES + SCOPES[:1]),
        "slot": st.booleans(),
        "object": st.booleans(),
        "links": st.sampled_from(("", "", "", "m", "m", "nowhere", "slot", "slot", "object", "object")),
    }
)


PLAIN = {
    "refs": [("p", "set", ANY)],
    "lists": [("m", 0)],
    "events": [""],
    "scope": SCOPES[0],
    "slot": False,
    "object": False,
    "links": "",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two engines: the first takes the fast path where it can, the second never does."""
    fast, slow = (open_engine(tmp_path_factory.mktemp(name), ManualClock()) for name in ("fast", "slow"))
    slow._log.next_numbers = lambda _: None
    yield fast, slow
    assert fast._log.was_used
    assert not slow._log.was_used
    for engine in (fast, slow):
        engine.close()


SPACES = itertools.count()


@settings(max_examples=60)
@given(st.lists(st.tuples(BATCHES, st.integers(0, 2)), max_size=10))
@example([(PLAIN, 0)] * 5)
@example([(PLAIN, 1), (PLAIN, 2)] * 3)
def test_the_fast_path_has_the_same_result_as_the_slow_one(pair, plans):
    """For single batches and groups of up to three."""
    space = f"s{next(SPACES)}"
    lengths, versions, brought = {}, {}, {}
    group = []
    for number, (plan, others) in enumerate(plans):
        batch = drafted(space, plan, number, lengths, versions, brought)
        with suppress(InvalidInput):  # rejected before it reaches an engine
            encode_batch(batch)
            group.append(batch)
        if len(group) <= others and number < len(plans) - 1:
            continue
        fast, slow = (outcomes(engine, group) for engine in pair)
        assert fast == slow
        for batch, outcome in zip(group, fast, strict=True):
            if not isinstance(outcome, tuple):
                note_committed(batch, outcome, lengths, versions, brought)
        group = []
    assert contents(pair[0], space) == contents(pair[1], space)


def drafted(space, plan, number, lengths, versions, brought):
    draft = Draft(space, id=f"b{number}")
    scope = plan["scope"]
    links = (brought.get(plan["links"], f"l:{plan['links']}"),) if plan["links"] else ()
    for name, change, expected in plan["refs"]:
        version = versions.get(name, 0)
        expect = {"right": version or ABSENT, "wrong": version + 7}.get(expected, expected)
        if change == "delete":
            draft.delete_ref(name, scope=scope, expect=expect)
        elif change == "add":
            draft.add_to_ref(name, Add(delta=2), scope=scope, expect=expect)
        else:
            value = b"x" * 600 if change == "large" else b"%d" % number
            draft.set_ref(name, value, scope=scope, expect=expect, links=links)
    grown = dict(lengths)
    for name, off in plan["lists"]:
        at = grown.get(name, 0)
        draft.append(name, Content("text", b"%d" % number), scope=scope, at=at + off)
        grown[name] = at + 1
    body = draft.put(Content("text", b"small"), scope=scope) if plan["slot"] else None
    if plan["object"]:
        draft.put(Content("bytes", b"%d" % number * 5000), scope=scope)
    for place, name in enumerate(plan["events"]):
        usage = Usage(input=number) if place else None
        event_id = name or f"{number}.{place}"
        draft.event(Event(id=event_id, kind="k", ts_us=5, scope=scope, body=body, usage=usage, links=links))
    return draft.batch()


def outcomes(engine, group):
    found = engine._write([encode_batch(batch) for batch in group])
    return [(type(each), str(each)) if isinstance(each, TreeringError) else each for each in found]


def contents(engine, space):
    lists = {name: engine.lineage(space, name) for name in "mn"}
    return (
        engine.refs(space, ["p", "q"]),
        lists,
        {name: engine.read_list(space, name, 0, 99) for name, line in lists.items() if line},
        engine.scan(space, EventQuery()),
        engine.sums(space, SumQuery(grain="day")),
    )


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    engine = open_engine(tmp_path_factory.mktemp("shared"), ManualClock())
    yield engine
    engine.close()


@settings(max_examples=80)
@given(st.lists(st.tuples(BATCHES, st.integers(0, 2)), max_size=10))
@example([(PLAIN, 0)] * 5)
@example([(PLAIN, 1), (PLAIN, 2)] * 3)
def test_a_decision_on_the_cache_equals_one_on_a_fresh_read(shared, plans):
    """What is accepted on the cached state is accepted on the database, with the same receipts and states."""
    space = f"d{next(SPACES)}"
    lengths, versions, brought = {}, {}, {}
    for number, (plan, others) in enumerate(plans):
        group = []
        for member in range(others + 1):
            batch = drafted(space, plan, 10 * number + member, lengths, versions, brought)
            with suppress(InvalidInput):
                group.append(encode_batch(batch))
        if not group:
            continue
        from_cache, from_database = both_decisions(shared, space, group)
        if from_cache is not None and all(isinstance(each, AcceptedBatch) for each in from_cache):
            assert list(map(described, from_cache)) == list(map(described, from_database))
        for encoded, outcome in zip(group, shared._write(group), strict=True):
            if not isinstance(outcome, TreeringError):
                note_committed(encoded.batch, outcome, lengths, versions, brought)


def both_decisions(engine, space, group):
    """Decide a group on the cached state (``None`` if not all is cached), and on a freshly read one."""
    engine.refs(space, ["p"])  # flushes pending commits
    number = engine._space_number(space, create=True)
    dependencies = merge_dependencies([encoded.dependencies for encoded in group])
    now_us = engine._database.now_us()
    cached = cached_state(engine._caches.of(number), number, dependencies, now_us)
    with engine._database.writing() as session:
        fresh = read_state(session, number, dependencies, now_us, SpaceCache(counters_first=True))
    return cached and decide_all(cached, group), decide_all(fresh, group)


def described(decision):
    if not isinstance(decision, AcceptedBatch):
        return decision
    refs = [(change.name, ref.version, ref.value, ref.scope) for change, ref in decision.refs]
    lists = [(append.list, state.no, state.scope, state.length) for append, state in decision.appends]
    return decision.receipt, refs, lists


def note_committed(batch, receipt, lengths, versions, brought):
    versions.update(receipt.versions)
    if batch.parts:
        brought["slot"] = slot_address(batch.id, 0, 0)
    for name in batch.objects:
        brought["object"] = object_address(name)
    for append in batch.lists:
        lengths[append.list] = append.at + len(append.items)


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
    monkeypatch.setattr(decide_module, "CACHED_STATES", 3)
    monkeypatch.setattr(decide_module, "CACHED_SCOPES", 3)
    for number in range(20):
        draft = Draft(SPACE)
        draft.set_ref(f"ref{number}", b"x", scope=f"/thread/{number}", expect=ABSENT)
        draft.append(f"list{number}", Content("text", b"x"), scope=f"/thread/{number}", at=0)
        mine.commit(draft.batch())
    cache = mine._caches.of(mine._spaces[SPACE])
    assert max(map(len, (cache.scopes, cache.refs, cache.lists))) <= 4
    set_head(mine, b"x" * (decide_module.VALUE_BYTES + 1), ABSENT)
    assert "head" not in cache.refs
    set_head(mine, b"y", 1)

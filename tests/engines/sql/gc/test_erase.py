"""Erasure over a real SQLite store: in one transaction or in slices, cut short anywhere, packs and bytes."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from tests.engines.sql.sql_world import (
    SCOPES,
    SPACE,
    STORES,
    TREES,
    History,
    open_either,
    open_store,
    use_tiny_pages,
)
from treering.core.batch import Add, Draft, Text
from treering.core.content import Content, list_address, object_address
from treering.core.failpoints import Injected, armed
from treering.core.query import Erasure, SearchQuery
from treering.engines.memory.engine import MemoryEngine
from treering.engines.sql.gc import erase
from treering.engines.sql.rows import run_key
from treering.errors import Conflict, MissingObjects, NotFound
from treering.testing import batches
from treering.testing.portrait import all_records, portrait, problems

A, B = "/thread/a", "/thread/b"


@pytest.fixture
def engine(tmp_path):
    opened = open_store(tmp_path / "store")
    yield opened
    opened.close()


@pytest.fixture(params=STORES)
def either_engine(request, tmp_path):
    opened = open_either(request, tmp_path / "store")
    yield opened
    opened.close()


@pytest.fixture(params=["at once", "in slices"])
def manner(request, monkeypatch):
    """Both ways to delete, the second one in slices as small as they can be."""
    if request.param == "in slices":
        monkeypatch.setattr(erase, "ONE_TRANSACTION", -1)
        use_tiny_pages(monkeypatch)
    return request.param


@pytest.mark.usefixtures("manner")
@pytest.mark.parametrize("seed", range(8))
def test_an_erasure_leaves_what_the_reference_leaves(either_engine, seed):
    model = MemoryEngine()
    history = History(seed, model, either_engine)
    choose = random.Random(seed)
    for _ in range(4):
        history.go_on(8)
        seqs = [record.seq for record in all_records(model, SPACE)]
        plan = Erasure(
            scopes=tuple(choose.sample([*SCOPES, TREES], choose.randrange(3))),
            refs=tuple(choose.sample([f"ref {number}" for number in range(6)], choose.randrange(3))),
            lists=tuple(choose.sample([f"list {number}" for number in range(8)], choose.randrange(2))),
            event_seqs=tuple(choose.sample(seqs, min(len(seqs), choose.randrange(4)))),
            cascade=choose.random() < 0.7,
            secure=choose.random() < 0.5,
        )
        try:
            expected = model.erase(SPACE, plan)
        except Conflict:
            before = portrait(either_engine, SPACE)
            with pytest.raises(Conflict):
                either_engine.erase(SPACE, plan)
            assert portrait(either_engine, SPACE) == before
            continue
        actual = either_engine.erase(SPACE, plan)
        for what in ("events", "refs", "lists", "bodies", "texts", "objects"):
            assert getattr(actual, what) == getattr(expected, what), what
        assert actual.kept.keys() == expected.kept.keys()
        result, wanted = (portrait(each, SPACE, times=False) for each in (either_engine, model))
        assert {what: result[what] for what in result if what != "commits"} == {
            what: wanted[what] for what in wanted if what != "commits"
        }
        assert not problems(either_engine, SPACE)


def plant(engine, canary, *, staged=False):
    """Put a word wherever a word can stand."""
    scope = f"/thread/{canary}"
    noise = random.Random(1).randbytes(4000)
    large = Content("bytes", noise + canary.encode() + noise[::-1])
    draft = Draft(SPACE)
    if staged:
        engine.stage(SPACE, [large, *(batches.noise(30_000, seed=seed) for seed in range(60))])
        draft.require(large.name)
        address = object_address(large.name)
    else:
        address = draft.put(large, scope=scope)
    small = draft.put(batches.words(f"small {canary}"), scope=scope)
    draft.append(f"{canary}/list", batches.words(f"item {canary}"), address, scope=scope, at=0)
    draft.event(
        batches.call(
            id=canary,
            scope=scope,
            body=small,
            links=(address, list_address(f"{canary}/list")),
            run=canary,
            thread=canary,
            agent=canary,
            name=canary,
            data=canary.encode(),
        )
    )
    draft.set_ref(f"{canary}/head", canary.encode(), scope=scope, links=(address,))
    draft.add_to_ref(f"{canary}/count", Add(delta=2), scope=scope)
    draft.text(Text(collection="notes", name=canary, namespace=canary, scope=scope, source=small))
    engine.commit(draft.batch())
    # Old versions: a ref moved, a text replaced, a text taken out.
    engine.commit(batches.set_ref(SPACE, f"{canary}/head", f"{canary} again".encode(), scope=scope))
    engine.commit(batches.index_text(SPACE, f"{canary} other", f"{canary} once", scope=scope))
    engine.commit(batches.index_text(SPACE, f"{canary} other", f"{canary} twice", scope=scope))
    out = Draft(SPACE)
    out.text(Text(collection="notes", name=f"{canary} other", scope=scope, source=None))
    engine.commit(out.batch())
    return scope


def files_with(folder, word):
    return [
        path.name
        for path in sorted(folder.rglob("*"))
        if path.is_file() and word.encode() in path.read_bytes()
    ]


@pytest.mark.usefixtures("manner")
@pytest.mark.parametrize("staged", [False, True])
def test_no_byte_of_a_planted_word_is_left(engine, tmp_path, staged):
    scope = plant(engine, "canary1234567", staged=staged)
    plant(engine, "neighbour7654321")
    assert files_with(tmp_path, "canary1234567")
    if staged:
        assert any(name.endswith(".pack") for name in files_with(tmp_path, "canary1234567"))
    erased = engine.erase(SPACE, Erasure(scopes=(scope,), secure=True))
    assert erased.proof == "bytes"
    assert not files_with(tmp_path, "canary1234567")
    assert files_with(tmp_path, "neighbour7654321")
    assert not problems(engine, SPACE)
    hits = engine.search(SPACE, SearchQuery(collection="notes", text="small neighbour7654321")).hits
    assert [hit.name for hit in hits] == ["neighbour7654321"]


@pytest.mark.parametrize("place", ["erase.before_commit", "erase.after_commit", "erase.before_rewrite"])
@pytest.mark.parametrize("manner", ["at once", "in slices"], indirect=True)
def test_an_erasure_that_was_cut_short_is_finished_by_the_next(engine, tmp_path, place, manner):
    for nth in range(1, 200, 3):
        canary = f"canary{nth:05}x"
        scope = plant(engine, canary, staged=True)
        try:
            with armed(place, f"raise:{nth}"):
                engine.erase(SPACE, Erasure(scopes=(scope,), secure=True))
            break
        except Injected:
            assert not problems(engine, SPACE)
            assert engine.scan_scopes(SPACE, scope) == [scope]
            engine.erase(SPACE, Erasure(scopes=(scope,), secure=True))
            assert not files_with(tmp_path, canary)
            assert not engine.scan_scopes(SPACE, scope)
            assert not problems(engine, SPACE)
    assert nth > (3 if manner == "in slices" and place != "erase.before_rewrite" else 1)
    with engine._database.reading() as session:
        assert not session.rows("SELECT * FROM meta WHERE key LIKE 'erasing%'")


def test_a_new_one_of_its_name_stays_whole_whenever_it_comes(either_engine, manner, monkeypatch):
    """Its ref comes between any two transactions of the erasure."""
    engine = either_engine
    for nth in range(1, 40):
        scope, name, passed = f"/thread/{nth}", f"head {nth}", 0
        for number in range(3):
            draft = Draft(SPACE)
            body = draft.put(batches.noise(5000), scope=scope)
            draft.append(f"list {nth}", batches.words("old"), body, scope=scope, at=2 * number)
            draft.event(batches.event(scope=scope, body=body, links=(list_address(f"list {nth}"),)))
            engine.commit(draft.batch())

        def make_anew(point, nth=nth, scope=scope, name=name):
            nonlocal passed
            passed += point == erase.AFTER_COMMIT
            if point == erase.AFTER_COMMIT and passed == nth:
                draft = Draft(SPACE, id=f"new {nth}")
                new = draft.put(batches.words("new"), scope=scope)
                draft.append(f"new list {nth}", batches.words("new"), scope=scope, at=0)
                draft.set_ref(name, b"", scope=scope, links=(new, list_address(f"new list {nth}")))
                engine.commit(draft.batch())

        with monkeypatch.context() as patched, suppress(Conflict):
            patched.setattr(erase, "hit", make_anew)
            engine.erase(SPACE, Erasure(scopes=(scope,), absent=(name,)))
        if passed < nth:
            break
        (ref,) = engine.refs(SPACE, [name]).values()
        engine.get(SPACE, [each for each in ref.links if not each.startswith("l:")])
        assert engine.read_list(SPACE, f"new list {nth}", 0, 1) == [batches.words("new")]
        assert not problems(engine, SPACE)
    assert nth > (1 if manner == "at once" else 5)


def test_what_is_written_to_a_scope_while_it_is_erased_stays_whole(engine, monkeypatch):
    """Rows that come before the last old one is gone go along; later ones are new."""
    monkeypatch.setattr(erase, "ONE_TRANSACTION", -1)
    use_tiny_pages(monkeypatch)
    for nth in range(1, 40):
        for number in range(4):
            draft = Draft(SPACE, id=f"{nth} {number}")
            small, large = (draft.put(each, scope=A) for each in (batches.words("x"), batches.noise(5000)))
            draft.append(f"list {nth}", batches.words("y"), large, scope=A, at=2 * number)
            draft.event(batches.event(scope=A, body=small, links=(large, list_address(f"list {nth}"))))
            engine.commit(draft.batch())
        old = (small, large, list_address(f"list {nth}"))
        passed = 0

        def commit_there(name, nth=nth, old=old):
            nonlocal passed
            passed += 1
            if name == erase.AFTER_COMMIT and passed == 2 * nth:
                for address in old:
                    with suppress(MissingObjects, NotFound):  # gone already
                        engine.commit(
                            batches.set_ref(SPACE, f"{nth} {address[:1]}", scope=A, links=(address,))
                        )

        with monkeypatch.context() as patched:
            patched.setattr(erase, "hit", commit_there)
            engine.erase(SPACE, Erasure(scopes=(A,)))
        assert not problems(engine, SPACE)
        for ref in engine.scan_refs(SPACE, ""):
            contents = [address for address in ref.links if not address.startswith("l:")]
            engine.get(SPACE, contents)
        if passed < 2 * nth:
            break
    assert nth > 5


def test_a_fork_made_while_an_erasure_looks_around_stops_it(engine, monkeypatch):
    engine.commit(batches.append(SPACE, "l", "a", at=0, scope=A))
    real = erase.ErasurePlan.row_count

    def fork_first(planned, session):
        count = real(planned, session)
        engine.commit(batches.append(SPACE, "fork", "b", at=1, parent="l", scope=B))
        return count

    monkeypatch.setattr(erase.ErasurePlan, "row_count", fork_first)
    with pytest.raises(Conflict, match=B):
        engine.erase(SPACE, Erasure(scopes=(A,)))
    assert len(engine.read_list(SPACE, "fork", 0, 9)) == 2


def test_what_is_committed_while_an_erasure_looks_around_goes_along(engine, monkeypatch):
    engine.commit(batches.append(SPACE, "l", "a", at=0, scope=A))
    engine.commit(batches.set_ref(SPACE, "late/canary77", scope=A))
    real = erase.ErasurePlan.row_count

    def write_more(planned, session):
        count = real(planned, session)
        draft = Draft(SPACE)
        small, large = (draft.put(each, scope=A) for each in (batches.words("canary77"), batches.noise(5000)))
        draft.append("m", batches.words("canary77"), large, scope=A, at=0)
        draft.event(batches.event(scope=A, body=small, links=(large,)))
        draft.set_ref("late/canary77", b"", scope=A)
        engine.commit(draft.batch())
        return count

    monkeypatch.setattr(erase.ErasurePlan, "row_count", write_more)
    erased = engine.erase(SPACE, Erasure(scopes=(A,), secure=True))
    assert (erased.events, erased.lists, erased.bodies, erased.objects) == (1, 2, 1, 1)
    assert engine.scan_scopes(SPACE, "") == []
    assert not problems(engine, SPACE)


def test_receipts_forget_the_names_of_erased_refs_and_keep_the_others(engine):
    draft = Draft(SPACE, id="mixed")
    draft.set_ref("a/secret", b"", scope=A)
    draft.add_to_ref("a/count", Add(delta=1), scope=A)
    draft.set_ref("b/open", b"", scope=B)
    engine.commit(draft.batch())
    engine.erase(SPACE, Erasure(scopes=(A,)))
    again = engine.commit(draft.batch())
    assert (again.versions, again.sums) == ({"b/open": 1}, {})
    engine.erase(SPACE, Erasure(refs=("b/open",)))
    assert engine.commit(draft.batch()).versions == {}


def test_totals_of_an_erased_scope_are_taken_off(engine):
    engine.commit(batches.events(SPACE, batches.call(scope=A), batches.call(scope=A, run="other")))
    engine.commit(batches.events(SPACE, batches.call(scope=B)))
    engine.erase(SPACE, Erasure(scopes=(A,)))
    with engine._database.reading() as session:
        rows = session.rows("SELECT grain, key, events, input_tokens, cost_nanos FROM rollup ORDER BY grain")
    assert rows == [
        ("day", "", 1, 100, 1_250_000),
        ("run", run_key("run-1"), 1, 100, 1_250_000),
        ("thread", "t1", 1, 100, 1_250_000),
    ]


def test_what_stays_is_named_with_the_scope_that_keeps_it(engine):
    shared = batches.noise(5000)
    for scope in (A, B):
        draft = Draft(SPACE)
        draft.append(f"{scope} list", shared, scope=scope, at=0)
        engine.commit(draft.batch())
    erased = engine.erase(SPACE, Erasure(scopes=(A,)))
    assert erased.kept == {shared.name: f"shared with scope {B!r}"}


def test_an_erased_pack_is_written_anew_without_touching_others(engine, tmp_path):
    blobs = tmp_path / "store" / "blobs"
    ours = [batches.noise(30_000, seed=seed) for seed in range(50)]
    theirs = [batches.noise(30_000, seed=seed) for seed in range(100, 150)]
    for scope, contents in ((A, ours), (B, theirs)):
        engine.stage(SPACE, contents)
        links = tuple(object_address(content.name) for content in contents)
        engine.commit(batches.set_ref(SPACE, scope, scope=scope, links=links))
    packs = {path: path.read_bytes() for path in blobs.rglob("*.pack")}
    assert len(packs) == 2
    erased = engine.erase(SPACE, Erasure(scopes=(A,), secure=True))
    assert erased.objects == 50
    assert erased.bytes > 50 * 30_000
    (left,) = blobs.rglob("*.pack")
    assert left.read_bytes() == packs[left]
    assert engine.get(SPACE, [object_address(content.name) for content in theirs]) == theirs


def test_an_erasure_in_one_space_touches_no_other(engine):
    for space in (SPACE, "other"):
        draft = Draft(space, id="same")
        batches.full_load(draft, scope=A)
        engine.commit(draft.batch())
    before = portrait(engine, "other")
    engine.erase(SPACE, Erasure(scopes=(A,), secure=True))
    engine.sweep(SPACE, grace_seconds=0)
    assert portrait(engine, "other") == before
    assert engine.scan_scopes(SPACE, "") == []

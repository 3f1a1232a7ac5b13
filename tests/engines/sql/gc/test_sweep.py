"""Garbage collection over a real SQLite store: pages, slices, packs, and commits in between."""

from __future__ import annotations

import threading

import msgspec
import pytest

from tests.engines.sql.sql_world import SPACE, STORES, History, open_either, open_store, use_tiny_pages
from treering.core.batch import Batch, Draft, Text
from treering.core.clock import ManualClock
from treering.core.content import Content, list_address, object_address
from treering.core.failpoints import Injected, armed
from treering.core.ids import new_id
from treering.core.tree import FileEntry, FolderEntry, Tree, encode_tree, links_of
from treering.engines.memory.engine import MemoryEngine
from treering.engines.sql.gc import sweep
from treering.errors import Corrupt, MissingObjects
from treering.testing import batches
from treering.testing.portrait import portrait, problems


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


def file(name, *contents):
    size = sum(len(content.data) for content in contents)
    return FileEntry(name=name, mode=0o644, size=size, content=tuple(content.name for content in contents))


def nested(depth, prefix="d"):
    """A chain of folders, the outermost first, each with a file of its own; and the files."""
    files = [Content("bytes", f"{prefix} {level} ".encode() * 600) for level in range(depth)]
    trees = [encode_tree(Tree(entries=(file("own", files[-1]),)))]
    for content in reversed(files[:-1]):
        inner = FolderEntry(name="inner", mode=0o755, tree=trees[0].name)
        trees.insert(0, encode_tree(Tree(entries=(inner, file("own", content)))))
    return trees, files


@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_sweep_leaves_what_the_reference_leaves(either_engine, monkeypatch, seed, tiny):
    if tiny:
        use_tiny_pages(monkeypatch)
    model = MemoryEngine()
    history = History(seed, model, either_engine)
    for _ in range(4):
        history.go_on(8)
        for dry_run in (True, False):
            expected, actual = (
                each.sweep(SPACE, grace_seconds=0, dry_run=dry_run) for each in (model, either_engine)
            )
            assert (actual.objects, actual.bodies, actual.lists) == (
                expected.objects,
                expected.bodies,
                expected.lists,
            )
            assert actual.kept_objects == expected.kept_objects
        assert portrait(either_engine, SPACE, times=False) == portrait(model, SPACE, times=False)
        assert not problems(either_engine, SPACE)


@pytest.mark.parametrize("place", ["gc.marked", "gc.before_delete", "gc.after_delete"])
def test_a_sweep_may_stop_anywhere(engine, monkeypatch, place):
    use_tiny_pages(monkeypatch)
    history = History(3, engine)
    history.go_on(30)
    trees, files = nested(6)
    engine.stage(SPACE, [*trees, *files])
    for number in range(6):
        parent = f"chain {number - 1}" if number else None
        engine.commit(batches.append(SPACE, f"chain {number}", "a", at=number, parent=parent))
    stops = 0
    for nth in range(1, 100):
        try:
            with armed(place, f"raise:{nth}"):
                engine.sweep(SPACE, grace_seconds=0)
            break
        except Injected:
            stops += 1
            assert not problems(engine, SPACE)
            assert_whole(engine)
    assert stops >= (1 if place == "gc.marked" else 3)
    assert engine.sweep(SPACE, grace_seconds=0, dry_run=True).objects == 0


def assert_whole(engine):
    """Every tree that is stored has all that it names, whether anything links to it or not."""
    stored = {content.name: content for part in engine.export(SPACE) for content in part.objects}
    for content in stored.values():
        if content.kind == "tree":
            assert set(links_of(content)) <= stored.keys()


def test_a_commit_between_two_slices_finds_all_or_is_told(engine, monkeypatch):
    """It names the outermost folder only; the others must be there for as long as that one is."""
    use_tiny_pages(monkeypatch)
    outcomes = set()
    for nth in range(1, 12):
        trees, files = nested(5, prefix=f"round {nth}")
        engine.stage(SPACE, [*trees, *files])
        batch = batches.set_ref(SPACE, "snapshot", links=(object_address(trees[0].name),), id=f"at {nth}")
        passed = 0

        def commit_there(name, nth=nth, batch=batch):
            nonlocal passed
            passed += name == sweep.AFTER_DELETE
            if name == sweep.AFTER_DELETE and passed == nth:
                try:
                    engine.commit(batch)
                    outcomes.add("committed")
                except MissingObjects:
                    outcomes.add("told")

        with monkeypatch.context() as patched:
            patched.setattr(sweep, "hit", commit_there)
            engine.sweep(SPACE, grace_seconds=0)
        assert not problems(engine, SPACE)
        assert_whole(engine)
    assert "told" in outcomes
    # Naming an inner folder, which goes later, is in time.
    trees, files = nested(5, prefix="inner")
    engine.stage(SPACE, [*trees, *files])

    def commit_inner(name):
        if name == sweep.AFTER_DELETE and not engine.refs(SPACE, ["inner"]):
            engine.commit(batches.set_ref(SPACE, "inner", links=(object_address(trees[3].name),)))

    with monkeypatch.context() as patched:
        patched.setattr(sweep, "hit", commit_inner)
        engine.sweep(SPACE, grace_seconds=0)
    assert not problems(engine, SPACE)
    assert engine.missing(SPACE, [tree.name for tree in trees]) == {tree.name for tree in trees[:3]}
    assert engine.missing(SPACE, [files[4].name]) == set()


@pytest.mark.parametrize(
    "how", ["ref", "event", "item", "inline tree", "slot tree", "text", "child list", "grown"]
)
def test_what_a_commit_links_while_the_sweep_runs_stays(engine, monkeypatch, how):
    """Every way in which a new commit can hold on to something that was condemned."""
    content = batches.noise(5000, seed=9)
    engine.commit(batches.append(SPACE, "live", "a", at=0))
    engine.commit(batches.set_ref(SPACE, "live", links=(list_address("live"),)))
    draft = Draft(SPACE)
    draft.append("dead", batches.words("a"), content, scope=batches.SCOPE, at=0)
    engine.commit(draft.batch())
    address = object_address(content.name)
    small = encode_tree(Tree(entries=(file("f", content),)))

    def commit_it(name):
        if name != sweep.MARKED:
            return
        draft = Draft(SPACE)
        match how:
            case "ref":
                draft.set_ref("new", b"", scope="s", links=(address,))
            case "event":
                draft.event(batches.event(body=address))
            case "item":
                draft.append("live", address, scope=batches.SCOPE, at=1)
            case "inline tree":
                draft.append("live", small, scope=batches.SCOPE, at=1)
            case "slot tree":
                draft.event(batches.event(body=draft.put(small, scope="s")))
            case "text":
                draft.text(Text(collection="notes", name="n", scope="s", source=address))
            case "child list":
                draft.append("child", scope="s", at=2, parent="dead")
            case "grown":
                draft.append("dead", batches.words("b"), scope=batches.SCOPE, at=2)
        engine.commit(draft.batch())

    monkeypatch.setattr(sweep, "hit", commit_it)
    engine.sweep(SPACE, grace_seconds=0)
    assert not problems(engine, SPACE)
    assert engine.get(SPACE, [address]) == [content]
    if how == "child list":
        assert engine.read_list(SPACE, "child", 0, 9) == [batches.words("a"), content]


def test_young_trees_and_lists_keep_what_they_lead_to(tmp_path):
    clock = ManualClock()
    engine = open_store(tmp_path / "store", clock=clock)
    trees, files = nested(3)
    engine.stage(SPACE, [*trees[1:], *files])
    engine.commit(batches.append(SPACE, "old", "a", at=0))
    clock.advance(seconds=5000)
    engine.stage(SPACE, [trees[0]])
    engine.commit(batches.append(SPACE, "young", "b", at=1, parent="old"))
    lone = batches.noise(5000)
    swept = engine.sweep(SPACE)
    assert (swept.objects, swept.lists) == (0, 0)
    engine.stage(SPACE, [lone])
    clock.advance(seconds=3599)
    assert engine.sweep(SPACE).objects == 0
    clock.advance(seconds=2)
    assert engine.sweep(SPACE).objects == 7
    engine.close()


def test_packs_that_are_empty_go_and_half_dead_ones_are_written_anew(engine, tmp_path):
    contents = [batches.noise(20_000, seed=number) for number in range(200)]
    engine.stage(SPACE, contents)
    packs = sorted(path for path in (tmp_path / "store" / "blobs").rglob("*.pack"))
    assert len(packs) == 1
    engine.commit(batches.set_ref(SPACE, "a", links=tuple(object_address(c.name) for c in contents[:150])))
    expected = engine.sweep(SPACE, grace_seconds=0, dry_run=True)
    assert engine.sweep(SPACE, grace_seconds=0) == done(expected)
    assert (expected.objects, expected.packs) == (50, 0)
    assert expected.bytes == pytest.approx(50 * 20_000, rel=0.01)
    engine.commit(batches.set_ref(SPACE, "a", links=tuple(object_address(c.name) for c in contents[:60])))
    expected = engine.sweep(SPACE, grace_seconds=0, dry_run=True)
    assert engine.sweep(SPACE, grace_seconds=0) == done(expected)
    assert (expected.objects, expected.packs) == (90, 1)
    (rewritten,) = (tmp_path / "store" / "blobs").rglob("*.pack")
    assert rewritten not in packs
    assert rewritten.stat().st_size < 61 * 20_000
    assert engine.get(SPACE, [object_address(contents[3].name)]) == [contents[3]]
    engine.commit(batches.set_ref(SPACE, "a"))
    assert engine.sweep(SPACE, grace_seconds=0).packs == 1
    assert not list((tmp_path / "store" / "blobs").rglob("*.pack"))
    assert not problems(engine, SPACE)


def done(dry):
    return msgspec.structs.replace(dry, dry_run=False)


def test_scopes_that_nothing_belongs_to_go(engine):
    engine.commit(batches.append(SPACE, "l", "a", at=0, scope="/thread/gone"))
    engine.commit(batches.set_ref(SPACE, "r", scope="/thread/here"))
    engine.sweep(SPACE, grace_seconds=0)
    assert engine.scan_scopes(SPACE, "") == ["/thread/here"]


def test_damage_stops_a_sweep_before_anything_goes(engine):
    """What a damaged folder led to is unknown, so nothing may be taken for garbage."""
    trees, files = nested(2)
    engine.stage(SPACE, [*trees, *files])
    engine.commit(batches.set_ref(SPACE, "r", links=(object_address(trees[0].name),)))
    engine.stage(SPACE, [batches.noise(5000)])
    with engine._database.writing() as session:
        session.run("UPDATE object SET frame = ? WHERE name = ?", (b"torn", bytes.fromhex(trees[0].name)))
    with pytest.raises(Corrupt, match=trees[0].name):
        engine.sweep(SPACE, grace_seconds=0)
    assert engine.stats(SPACE).objects == 5
    with engine._database.writing() as session:
        session.run("UPDATE ref SET value = NULL, links = NULL")
    assert engine.sweep(SPACE, grace_seconds=0).objects == 5


def test_no_read_transaction_is_long(engine, monkeypatch):
    """Each page has a transaction of its own, so a writer in between never waits for a mark."""
    use_tiny_pages(monkeypatch)
    history = History(5, engine)
    history.go_on(25)
    began = {"reading": 0, "rows": 0, "worst": 0}
    reading = engine._database.reading

    class Counting:
        def __enter__(self):
            began["reading"] += 1
            self.inner = reading()
            session = self.inner.__enter__()
            self.rows = 0
            outer = self

            class Session:
                def rows(self, *args):
                    found = session.rows(*args)
                    outer.rows += len(found)
                    return found

                query = rows

            return Session()

        def __exit__(self, *error):
            began["worst"] = max(began["worst"], self.rows)
            return self.inner.__exit__(*error)

    monkeypatch.setattr(engine._database, "reading", Counting)
    engine.sweep(SPACE, grace_seconds=0, dry_run=True)
    assert began["reading"] > 25
    assert began["worst"] < 60


def test_sweeping_beside_writers_of_trees_lists_and_texts(engine):
    """Writers pick up old content by every kind of link while a sweep without grace runs over and over."""
    done = threading.Event()
    engine.commit(Batch(id=new_id(), space=SPACE))
    failures = []

    def write():
        try:
            for number in range(60):
                trees, files = nested(3, prefix=f"n {number % 4}")
                draft = Draft(SPACE)
                draft.require(*(content.name for content in (*trees, *files)))
                draft.set_ref(f"r{number % 3}", b"", scope="s", links=(object_address(trees[0].name),))
                while True:
                    try:
                        engine.commit(draft.batch())
                        break
                    except MissingObjects:
                        engine.stage(SPACE, [*trees, *files])
        except Exception as error:  # noqa: BLE001
            failures.append(error)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        engine.sweep(SPACE, grace_seconds=0)
    writer.join()
    assert not failures
    assert not problems(engine, SPACE)
    assert_whole(engine)

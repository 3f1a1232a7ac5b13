"""Exports in slices and their loading, on real databases (the engine suite has the contract's part)."""

from __future__ import annotations

import pytest

from treering.blobs.folder import FolderBlobs
from treering.core.batch import Add, Batch, Delete, Draft, RefChange
from treering.core.content import Content, object_address
from treering.core.ids import new_id
from treering.core.query import EventQuery, SearchQuery, SumQuery
from treering.engines.postgres import open_postgres
from treering.engines.sql import copy as copy_module
from treering.engines.sqlite.engine import open_sqlite
from treering.errors import InvalidInput
from treering.testing import batches
from treering.testing.portrait import portrait

SPACE = "one"
COPY = "copy"
FIRST = "/thread/0"
"""The scope of the first list."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def make_engine(tmp_path, request):
    opened = []
    urls = {}

    def make(name: str):
        blobs = FolderBlobs(tmp_path / name / "blobs")
        if request.param == "sqlite":
            opened.append(open_sqlite(tmp_path / name, blobs=blobs, durability="fast"))
        else:
            if name not in urls:
                urls[name] = request.getfixturevalue("postgres_server").create_store()
            opened.append(open_postgres(urls[name], blobs=blobs))
        return opened[-1]

    yield make
    for engine in opened:
        engine.close()
    for url in urls.values():
        request.getfixturevalue("postgres_server").drop_database(url)


@pytest.fixture
def source(make_engine):
    return make_engine("source")


@pytest.fixture
def target(make_engine):
    return make_engine("target")


def history(engine, *, size: int = 20) -> None:
    """Some of everything, with several rows in every table."""
    staged = [Content("bytes", b"%06d" % number * 1000) for number in range(size * 20)]
    names = engine.stage(SPACE, staged)
    for number, name in enumerate(names):
        if number % 7 == 0:
            engine.commit(batches.set_ref(SPACE, f"file/{number}", links=(object_address(name),)))
    for number in range(size):
        draft = Draft(SPACE)
        batches.full_load(draft, key=f"key {number}", scope=f"/thread/{number % 3}")
        draft.put(batches.words("in another scope"), scope="/thread/other")
        draft.add_to_ref("count", Add(delta=2), scope="/thread/count")
        engine.commit(draft.batch())
    parent = "key 0/list"
    for depth in range(5):
        engine.commit(batches.append(SPACE, f"fork {9 - depth}", "x", "y", at=3 + depth, parent=parent))
        parent = f"fork {9 - depth}"
    engine.commit(
        Batch(id=new_id(), space=SPACE, refs=(RefChange(name="file/0", scope="s", change=Delete()),))
    )


def copy(source, target, *, after=None):
    for part in source.export(SPACE, after=after):
        target.load(COPY, part)


def test_a_copy_equals_its_source_however_small_the_slices(source, target, monkeypatch):
    history(source)
    expected = portrait(source, SPACE)
    monkeypatch.setattr(copy_module, "SLICE_ROWS", 3)
    copy(source, target)
    assert portrait(target, COPY) == expected
    assert target.wait(COPY, 0, seconds=0) == source.wait(SPACE, 0, seconds=0)


def test_slices_are_bounded_by_rows_and_bytes(source, monkeypatch):
    history(source)
    monkeypatch.setattr(copy_module, "SLICE_ROWS", 50)
    monkeypatch.setattr(copy_module, "SLICE_BYTES", 30_000)
    for part in source.export(SPACE):
        rows = (
            part.objects,
            part.commits,
            part.bodies,
            part.events,
            part.lists,
            part.items,
            part.texts,
            part.refs,
        )
        assert 1 <= sum(map(len, rows)) <= 50
        assert len(part.objects) == 1 or sum(len(content.data) for content in part.objects) <= 30_000


def test_an_export_goes_on_behind_any_position_in_another_process(source, make_engine, monkeypatch):
    history(source, size=5)
    monkeypatch.setattr(copy_module, "SLICE_ROWS", 7)
    slices = list(source.export(SPACE))
    other = make_engine("source")
    for number in range(0, len(slices), 5):
        assert list(other.export(SPACE, after=slices[number].position)) == slices[number + 1 :]
    assert list(other.export(SPACE, after=slices[-1].position)) == []


def test_objects_survive_a_rewrite_of_their_pack_in_the_middle(source, monkeypatch):
    history(source)
    monkeypatch.setattr(copy_module, "SLICE_ROWS", 30)
    with source._database.reading() as session:
        ((pack, names),) = session.rows(
            "SELECT pack, COUNT(*) FROM object WHERE pack IS NOT NULL GROUP BY pack"
        )
        ((space,),) = session.rows("SELECT no FROM space WHERE name = ?", (SPACE,))
    seen = set()
    for number, part in enumerate(source.export(SPACE)):
        seen.update(content.name for content in part.objects)
        if number == 3:
            source._objects.rewrite(source._database, space, pack)
    assert len(seen) >= names
    assert not source.missing(SPACE, sorted(seen))


def test_what_is_committed_meanwhile_comes_with_the_next_export(source, target, monkeypatch):
    history(source)
    monkeypatch.setattr(copy_module, "SLICE_ROWS", 10)
    for number, part in enumerate(source.export(SPACE)):
        target.load(COPY, part)
        if number % 3 == 0:
            draft = Draft(SPACE, id=f"0 late {number}")
            batches.full_load(draft, key=f"0 late {number}")
            source.commit(draft.batch())
            source.commit(
                batches.append(SPACE, f"0 child {number}", "z", at=1, parent=f"0 late {number}/list")
            )
            source.commit(batches.append(SPACE, "key 0/list", "more", at=3 + number // 3, scope=FIRST))
    copy(source, target)
    assert portrait(target, COPY) == portrait(source, SPACE)


def test_an_older_slice_takes_nothing_back(source, target):
    history(source, size=2)
    old = list(source.export(SPACE))
    source.commit(batches.set_ref(SPACE, "key 0/head", b"newer"))
    source.commit(batches.append(SPACE, "key 0/list", "newer", at=3, scope=FIRST))
    copy(source, target)
    for part in old:
        target.load(COPY, part)
    assert portrait(target, COPY) == portrait(source, SPACE)
    assert target.wait(COPY, 0, seconds=0) == source.wait(SPACE, 0, seconds=0)


def test_sums_and_search_answer_before_any_reindex(source, target):
    history(source)
    copy(source, target)
    copy(source, target)
    query = SumQuery(grain="day", by=("kind",))
    assert target.sums(COPY, query) == source.sums(SPACE, query)
    search = SearchQuery(collection="notes", text="small note", limit=100)
    assert len(target.search(COPY, search).hits) == len(source.search(SPACE, search).hits) == 20


def test_a_copy_goes_on_by_itself(source, target):
    history(source, size=3)
    copy(source, target)
    before = target.wait(COPY, 0, seconds=0)
    target.commit(batches.append(COPY, "key 0/list", "own", at=3, scope=FIRST))
    target.commit(batches.events(COPY, batches.event()))
    assert target.scan(COPY, EventQuery(newest_first=True), limit=1).records[0].seq == before + 2
    assert len(target.read_list(COPY, "key 0/list", 0, 10)) == 4


def test_staged_objects_of_a_slice_end_in_packs(source, target):
    history(source)
    copy(source, target)
    with target._database.reading() as session:
        assert session.rows("SELECT COUNT(*) FROM pack") > [(0,)]


@pytest.mark.parametrize("position", ["", "x", "[1]", '["nowhere",[]]', "{}"])
def test_what_is_no_position_is_refused(source, position):
    source.commit(batches.set_ref(SPACE, "r"))
    with pytest.raises(InvalidInput, match="position"):
        list(source.export(SPACE, after=position))

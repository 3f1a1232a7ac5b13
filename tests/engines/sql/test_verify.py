"""Verification over a real SQLite store: every kind of damage is found and named, and nothing else is."""

from __future__ import annotations

import re

import pytest

import treering
from tests.engines.sql.sql_world import SPACE, History, open_store, use_tiny_pages
from treering.blobs.folder import FolderBlobs
from treering.core.batch import Batch, Draft, RefChange, Set, Text
from treering.core.content import list_address, object_address, slot_address
from treering.core.ids import new_id
from treering.core.query import Erasure
from treering.core.records import Checked, Problem
from treering.core.tree import FileEntry, Tree, encode_tree
from treering.engines.sql import verify, verify_workers
from treering.errors import InvalidInput, Unreachable
from treering.testing import batches


@pytest.fixture
def engine(tmp_path):
    opened = open_store(tmp_path / "store")
    yield opened
    opened.close()


@pytest.fixture(params=["large pages", "tiny pages"])
def full(request, engine, monkeypatch):
    """A store with something of everything."""
    if request.param == "tiny pages":
        use_tiny_pages(monkeypatch)
    draft = Draft(SPACE, id="first")
    small = draft.put(batches.words("a note"), scope="s")
    large = draft.put(batches.noise(5000), scope="s")
    file = FileEntry(name="f", mode=0o644, size=5000, content=(large[2:],))
    tree = encode_tree(Tree(entries=(file,)))
    draft.require(*engine.stage(SPACE, [tree]))
    draft.append("l", batches.words("one"), small, large, batches.words("four"), scope="s", at=0)
    draft.event(batches.call(id="e", scope="s", body=small, links=(object_address(tree.name),)))
    draft.set_ref("r", b"1", scope="s", links=(large, list_address("l")))
    draft.text(Text(collection="notes", name="t", scope="s", source=small))
    engine.commit(draft.batch())
    engine.commit(batches.append(SPACE, "child", "five", at=2, parent="l", scope="s"))
    engine.commit(batches.set_ref(SPACE, "child", scope="s", links=(list_address("child"),)))
    return engine


def found(engine, **options):
    return [report for report in engine.check(SPACE, **options) if isinstance(report, Problem)]


def others(engine):
    """The problems beside those of checksums and digests, which notice every change."""
    return [problem for problem in found(engine) if problem.kind != "corrupt"]


def change(engine, sql, *values):
    with engine._database.writing() as session:
        assert session.run(sql, values)


def kinds(problems):
    return {problem.kind for problem in problems}


def test_a_sound_store_has_no_problems_and_is_counted(full):
    *_, last = full.check(SPACE)
    assert not found(full)
    assert isinstance(last, Checked)
    assert (last.objects, last.bodies, last.items, last.events, last.refs) == (2, 1, 5, 1, 2)
    assert last.bytes > 5000
    *_, quick = full.check(SPACE, read_content=False)
    assert not found(full, read_content=False)
    assert (quick.objects, quick.items, quick.bytes) == (2, 5, 0)


@pytest.mark.parametrize("seed", range(5))
def test_no_history_looks_damaged(engine, monkeypatch, seed):
    use_tiny_pages(monkeypatch)
    History(seed, engine).go_on(30)
    assert not found(engine)
    engine.sweep(SPACE, grace_seconds=0)
    assert not found(engine)


@pytest.mark.parametrize(
    "table, where",
    [("object", r"o:[0-9a-f]{64}"), ("body", "body 0 of commit 'first'"), ("item", r"item \d of l:")],
)
def test_a_flipped_byte_is_found_and_named(full, table, where):
    key = "name" if table == "object" else "key"
    with full._database.reading() as session:
        ((row, frame), *_) = session.rows(
            f"SELECT {key}, frame FROM {table} WHERE frame IS NOT NULL ORDER BY {key}"
        )
    spoilt = bytes(frame[:-1]) + bytes([frame[-1] ^ 1])
    change(full, f"UPDATE {table} SET frame = ? WHERE {key} = ?", spoilt, row)
    problems = found(full)
    assert [problem for problem in problems if problem.kind == "corrupt" and re.match(where, problem.where)]
    assert kinds(problems) == {"corrupt"}
    assert len({problem.where for problem in problems}) == 1


def test_bytes_of_another_object_are_found(full):
    """Sound by its checksum, but not what the name says."""
    with full._database.reading() as session:
        rows = session.rows("SELECT name, frame FROM object ORDER BY name")
    change(full, "UPDATE object SET frame = ? WHERE name = ?", rows[0][1], rows[1][0])
    assert f"o:{bytes(rows[1][0]).hex()}" in {problem.where for problem in found(full)}


def test_every_way_to_dangle_is_found(full):
    """An object that a ref, an item and a tree lead to; a body that an event and a text lead to; a list."""
    change(full, "DELETE FROM object WHERE kind = 0")
    assert kinds(others(full)) == {"dangling"}
    change(full, "UPDATE ref SET links = NULL")
    change(full, "UPDATE item SET address = ? WHERE address LIKE 'o:%'", slot_address("first", 0, 0))
    (problem,) = others(full)
    assert problem.where.startswith("o:")  # the tree
    change(full, "DELETE FROM object")
    (problem,) = others(full)
    assert problem.where == "event 'e'"
    change(full, "UPDATE event SET links = NULL")
    assert not others(full)
    change(full, "DELETE FROM body")
    (problem,) = others(full)
    assert problem.detail == "'s:first:0.0' is not stored"
    change(full, "UPDATE event SET body = NULL")
    change(full, "DELETE FROM text")
    problems = others(full)
    assert [each.where for each in problems if each.kind == "dangling"] == ["item 1 of l:l"]
    change(full, "UPDATE ref SET links = 'l:nowhere' WHERE name = 'r'")
    assert "ref 'r'" in {problem.where for problem in others(full)}


def test_a_text_whose_source_is_gone_is_found(full):
    change(full, "UPDATE text SET source = 's:nobody:0.0'")
    (problem,) = others(full)
    assert (problem.kind, problem.where) == ("dangling", "text 't'")


def test_a_slot_that_a_body_does_not_have_is_found(full):
    change(full, "UPDATE event SET body = '0.7'")
    (problem,) = others(full)
    assert (problem.kind, problem.where) == ("dangling", "body 0 of commit 'first'")
    assert "slot 7" in problem.detail


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM item WHERE key = (SELECT min(key) + 1 FROM item)",
        "UPDATE item SET key = key + 70 WHERE key = (SELECT min(key) + 3 FROM item)",
        "UPDATE list SET length = length + 1 WHERE id = 'l'",
        "UPDATE list SET start = 9, length = 10 WHERE id = 'child'",
        "UPDATE list SET parent = 999 WHERE id = 'child'",
        "UPDATE list SET depth = 5 WHERE id = 'child'",
    ],
)
def test_a_list_that_does_not_add_up_is_found(full, sql):
    change(full, sql)
    assert "list" in kinds(found(full))


@pytest.mark.parametrize(
    "sql, where",
    [
        ("UPDATE space SET seq = 1", "commit"),
        ("UPDATE commits SET first_seq = 0 WHERE batch = 'first'", "commit 'first'"),
        ("UPDATE commits SET first_seq = 1 WHERE no = (SELECT max(no) FROM commits)", "commit "),
        ("UPDATE commits SET first_seq = 2 WHERE no = (SELECT max(no) FROM commits)", "commit"),
        ("UPDATE commits SET receipt = x'00' WHERE batch = 'first'", "commit 'first'"),
        ("UPDATE event SET seq = 3", "event 'e'"),
        ("UPDATE event SET seq = 9", "space"),
    ],
)
def test_a_counter_that_lies_is_found(full, sql, where):
    change(full, sql)
    problems = found(full)
    assert kinds(problems) >= {"counter"}
    assert any(problem.where.startswith(where) for problem in problems)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE rollup SET cost_nanos = cost_nanos + 1 WHERE grain = 'day'",
        "DELETE FROM rollup WHERE grain = 'run'",
        "UPDATE rollup SET key = 'other' WHERE grain = 'thread'",
    ],
)
def test_a_total_that_differs_from_a_recount_is_found_and_reindex_repairs_it(full, sql):
    change(full, sql)
    problems = found(full)
    assert kinds(problems) == {"derived"}
    full.reindex(SPACE)
    assert not found(full)


class TestPacks:
    @pytest.fixture
    def pack(self, engine, tmp_path):
        contents = [batches.noise(20_000, seed=number) for number in range(100)]
        engine.stage(SPACE, contents)
        engine.commit(batches.set_ref(SPACE, "r", links=tuple(object_address(c.name) for c in contents)))
        assert not found(engine)
        (path,) = (tmp_path / "store" / "blobs").rglob("*.pack")
        return path

    def test_every_damaged_object_is_named(self, engine, pack):
        data = bytearray(pack.read_bytes())
        for at in (100_000, 1_500_000):
            data[at] ^= 1
        pack.write_bytes(bytes(data))
        problems = found(engine)
        assert kinds(problems) == {"corrupt"}
        # A frame holds several; all of its objects are lost, and no other.
        assert 2 <= len({problem.where for problem in problems}) <= 20
        *_, last = engine.check(SPACE)
        assert last.objects == 100

    @pytest.mark.parametrize("read_content", [True, False])
    def test_a_pack_that_is_gone_or_cut_is_found(self, engine, pack, read_content):
        data = pack.read_bytes()
        pack.write_bytes(data[: len(data) // 2])
        assert kinds(found(engine, read_content=read_content)) == {"corrupt"}
        pack.unlink()
        (problem,) = found(engine, read_content=read_content)
        assert problem.where.startswith("pack ")

    @pytest.mark.usefixtures("pack")
    def test_an_object_of_no_pack_is_found(self, engine):
        change(engine, "DELETE FROM pack")
        assert len(found(engine)) == 100


def test_what_is_erased_while_the_check_runs_is_no_problem(engine, monkeypatch):
    """The check has seen the link; when it looks again, link and content are both gone."""
    use_tiny_pages(monkeypatch)
    History(11, engine).go_on(20)
    scopes = engine.scan_scopes(SPACE, "")
    reports = engine.check(SPACE)
    seen = []
    for step, report in enumerate(reports):
        seen.append(report)
        if step % 2 == 0 and scopes:
            engine.erase(SPACE, Erasure(scopes=(scopes.pop(),), cascade=True))
    assert not [report for report in seen if isinstance(report, Problem)]


def test_what_is_committed_while_the_check_runs_is_no_problem(engine, monkeypatch):
    use_tiny_pages(monkeypatch)
    monkeypatch.setattr(verify, "_REPORT_EVERY", 1)
    history = History(12, engine)
    history.go_on(20)
    for report in engine.check(SPACE):
        assert not isinstance(report, Problem)
        if history.steps < 60:
            history.go_on(1)
    assert history.steps == 60


def test_a_missing_link_is_looked_at_twice(full, monkeypatch):
    """Between the two looks the object came back, so there is nothing to report."""
    with full._database.writing() as session:
        row = session.rows("SELECT * FROM object WHERE kind = 0")[0]
        session.run("DELETE FROM object WHERE kind = 0")
    real = verify.Check._dangling

    def restore_first(check):
        if check._missing:
            with full._database.writing() as session:
                session.run(f"INSERT OR IGNORE INTO object VALUES ({','.join('?' * len(row))})", row)
        return real(check)

    monkeypatch.setattr(verify.Check, "_dangling", restore_first)
    assert not found(full)


def test_the_same_problem_is_reported_once(full):
    links = (object_address("0" * 64),)
    for number in range(3):
        change_ref = RefChange(name=f"n{number}", scope="s", change=Set(value=b""))
        full.commit(Batch(id=new_id(), space=SPACE, refs=(change_ref,)))
    change(full, "UPDATE ref SET links = ? WHERE name LIKE 'n%'", links[0])
    assert len(others(full)) == 1


def test_no_transaction_is_open_while_a_report_is_looked_at(full):
    """Whoever reads the reports may take as long as they like."""
    reports = full.check(SPACE)
    next(reports)
    with full._database.exclusively() as connection:
        ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert not busy
    reports.close()


def damage(engine):
    """Something for most of the checks to find."""
    change(engine, "DELETE FROM object WHERE kind = 0")
    change(engine, "UPDATE event SET day = day + 1")
    change(engine, "UPDATE item SET checksum = 0")
    change(engine, "UPDATE ref SET version = 7")
    change(engine, "UPDATE rollup SET events = events + 1")
    change(engine, "UPDATE event SET body = '0.9' WHERE id = 'e'")
    change(engine, "UPDATE space SET committed_at_us = 1")


def test_several_processes_report_what_one_does(full):
    *_, sound = full.check(SPACE, processes=2)
    *_, alone = full.check(SPACE)
    assert not found(full, processes=2)
    assert sound == alone
    damage(full)
    expected = found(full)
    assert {each.kind for each in expected} == {"corrupt", "counter", "dangling", "derived"}
    assert sorted(map(repr, found(full, processes=2))) == sorted(map(repr, expected))


def test_a_worker_that_dies_is_an_error(full, monkeypatch):
    monkeypatch.setattr(verify_workers, "_PROGRAM", "import os; os._exit(9)")
    with pytest.raises(Unreachable, match="was not checked"):
        list(full.check(SPACE, processes=2))


def test_a_check_since_a_number_reads_what_came_behind_it(full):
    before = full.wait(SPACE, 0, seconds=0)
    full.commit(batches.append(SPACE, "l", "six", at=4, scope="s"))
    draft = Draft(SPACE, id="later")
    body = draft.put(batches.words("later"), scope="s")
    draft.event(batches.call(id="later", scope="s", body=body))
    full.commit(draft.batch())
    for processes in (1, 2):
        *_, last = full.check(SPACE, since=before, processes=processes)
        assert not found(full, since=before, processes=processes)
        assert last.bodies == 1
    change(full, "UPDATE event SET ts_us = ts_us + 1 WHERE id = 'e'")
    assert found(full)
    assert not found(full, since=before)
    change(full, "UPDATE event SET ts_us = ts_us + 1 WHERE id = 'later'")
    assert {each.where for each in found(full, since=before)} == {"event 'later'"}
    assert found(full, since=before) == found(full, since=before, processes=2)


def test_the_store_remembers_how_far_it_was_verified(tmp_path):
    with treering.open(tmp_path / "store") as store:
        store.thread("t").append({"role": "user", "content": "one"})
        first = store.verify(since="last")
        assert first.ok
        assert first.since == 0
        store.thread("t").append({"role": "user", "content": "two"})
        second = store.verify(since="last")
        assert second.ok
        assert second.since == first.last_seq < second.last_seq
        with pytest.raises(InvalidInput, match="end at"):
            store.verify(since=10**6)


@pytest.mark.postgres
def test_several_processes_check_a_database_on_postgresql(tmp_path, postgres_url):
    from treering.engines.postgres import open_postgres

    engine = open_postgres(postgres_url, blobs=FolderBlobs(tmp_path / "blobs"))
    History(1, engine).go_on(30)
    middle = engine.wait(SPACE, 0, seconds=0) // 2
    assert not found(engine, processes=2)
    change(engine, "UPDATE event SET ts_us = ts_us + 1")
    for since in (0, middle):
        expected = found(engine, since=since)
        assert expected
        assert sorted(map(repr, found(engine, since=since, processes=2))) == sorted(map(repr, expected))
    engine.close()

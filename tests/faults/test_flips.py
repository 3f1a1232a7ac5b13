"""Every column of every table is changed: `verify` notices it or it is harmless, and no read returns a lie.

Each change is made to one row of a store that has rows of everything. After it, a read returns what it
returned before, or raises an error, or does not find the row: a read cannot miss a row that it does not know
of, so then it is `verify` that says so. Totals, search and lists of names are derived or have no rows of
their own; for them, too, `verify` has to notice.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import treering
from treering.blobs.folder import FolderBlobs
from treering.core.batch import Add, Draft, Listing, Text
from treering.core.clock import DAY_US
from treering.core.content import Content, list_address, object_address, slot_address
from treering.core.engine import Engine
from treering.core.query import EventQuery, ListQuery, SearchQuery, SumQuery, collecting
from treering.core.records import Problem
from treering.engines.sql.schema import SQLITE_FILE
from treering.errors import Corrupt, TreeringError
from treering.testing import batches

SPACE = "default"
LARGE = Content("text", b"a tree ring a year, " * 400)
TREE_FREE = Content("bytes", random.Random(1).randbytes(9000))

HARMLESS = {
    ("meta", "created_by"): "says which version made the store",
    ("meta", "created_at"): "says when",
    ("meta", "dictionary"): "a phrase that no row uses; rows that use it differ from their checksums",
    ("space", "created_at_us"): "is not read",
    ("space", "scopes_dropped"): "another value makes processes drop their caches",
    ("object", "stored_at_us"): "when a sweep may delete it if nothing links to it",
    ("object", "staged_until_us"): "likewise",
    ("pack", "created_at_us"): "when a sweep may delete it if no object is in it",
    ("lease", "holder"): "leases are volatile: a wrong one is lost to its holder and claimed again",
    ("lease", "token"): "likewise",
    ("lease", "expires_at_us"): "likewise",
    ("lease", "name"): "likewise",
    ("lease", "space"): "likewise",
    ("fresh", "slot"): "where a commit waits until it is written to its tables",
    ("scope", "no"): "a scope without rows",
    ("scope", "name"): "likewise",
    ("scope", "space"): "likewise",
}
"""Columns that may be changed unnoticed, and why that harms nobody."""

DERIVED = ("sums", "search", "scopes", "spaces", "wait")


def fill(engine: Engine) -> None:
    """Write rows of everything."""
    draft = Draft(SPACE, id="first")
    draft.append("l", *(Content("json", b'{"n":%d}' % n) for n in range(6)), scope="s", at=0)
    small = draft.put(Content("text", b"green leaves"), scope="s")
    large = draft.put(LARGE, scope="s")
    draft.append("l", large, scope="s", at=6)
    for number in range(3):
        draft.event(
            batches.call(
                id=f"e{number}", scope="s", span=f"x{number}", parent="x0", name="n", role="user",
                status="ok", data=b'{"a":%d}' % number, body=small, links=(large,),
                ts_us=(20_000 + number) * DAY_US + 7,
            )
        )  # fmt: skip
    listing = Listing(list="threads", namespace="ns", agent="a", status="ok", thread="t")
    draft.set_ref("r", b'{"max":1000}', scope="s", links=(list_address("l"),), listing=listing)
    draft.add_to_ref("n", Add(delta=7), scope="s")
    draft.text(Text(collection="notes", name="t", scope="s", source=small, namespace="ns"))
    engine.commit(draft.batch())
    engine.commit(batches.append(SPACE, "child", "five", at=2, parent="l", scope="s"))
    for number in range(8):  # on SQLite these wait in the commit log, and are packed into a block
        engine.commit(batches.append(SPACE, "l", f"item {number}", at=7 + number, scope="s"))
    engine.commit(batches.set_ref(SPACE, "r2", b"2", scope="s2", links=(list_address("child"),)))
    names = engine.stage(SPACE, [TREE_FREE, *(batches.noise(700_000, seed) for seed in range(2))])
    packed = Draft(SPACE)
    packed.require(*names)
    packed.set_ref("packed", b"", scope="s", links=tuple(map(object_address, names)))
    engine.commit(packed.batch())
    engine.claim(SPACE, "lease", holder="me", seconds=60)


def reads(engine: Engine) -> dict[str, Callable[[], Any]]:
    """Everything that can be read, by name."""
    listed = ListQuery(list="threads", namespace="ns")
    return {
        "refs": lambda: sorted(engine.refs(SPACE, ["r", "n", "r2", "packed"]).items()),
        "scan refs": lambda: engine.scan_refs(SPACE, ""),
        "list refs": lambda: list(engine.list_refs(SPACE, listed).refs),
        "scan": lambda: list(engine.scan(SPACE, EventQuery()).records),
        "by time": lambda: list(engine.scan(SPACE, EventQuery(order="time")).records),
        "brief": lambda: list(engine.scan(SPACE, EventQuery(scope="s", brief=True)).records),
        "run": lambda: list(engine.scan(SPACE, EventQuery(run="run-1")).records),
        "ids": lambda: list(engine.scan(SPACE, EventQuery(ids=("e0", "e1"))).records),
        "slot": lambda: engine.get(SPACE, [slot_address("first", 0, 0)]),
        "object": lambda: engine.get(SPACE, [object_address(LARGE.name)]),
        "packed": lambda: engine.get(SPACE, [object_address(TREE_FREE.name)]),
        "lineage": lambda: engine.lineage(SPACE, "child"),
        "list": lambda: engine.read_list(SPACE, "l", 0, 1 << 30),
        "child": lambda: engine.read_list(SPACE, "child", 0, 1 << 30),
        "sums": lambda: engine.sums(SPACE, SumQuery(grain="day", by=("day", "kind", "currency"))),
        "search": lambda: engine.search(SPACE, SearchQuery(collection="notes", text="leaves")).hits,
        "scopes": lambda: engine.scan_scopes(SPACE, ""),
        "spaces": engine.spaces,
        "wait": lambda: engine.wait(SPACE, 0, seconds=0),
    }  # fmt: skip


def changed(value: Any, chance: random.Random) -> Any:
    """Return another value of the same type."""
    if value is None:
        return chance.choice([1, "x"])
    if isinstance(value, int):
        return value ^ (1 << chance.randrange(10)) if chance.random() < 0.5 else value + 1
    if isinstance(value, str):
        at = chance.randrange(len(value) + 1)
        return value[:at] + ("~" if value[at : at + 1] != "~" else "!") + value[at + 1 :]
    at = chance.randrange(len(value) * 8) if value else 0
    flipped = bytearray(value or b"\0")
    flipped[at // 8] ^= 1 << at % 8
    return bytes(flipped)


class Verdict:
    """What reads and `verify` say after a change."""

    def __init__(self, engine: Engine, before: dict[str, Any]) -> None:
        self.lies: list[str] = []
        self.hidden: list[str] = []
        for name, read in reads(engine).items():
            try:
                with collecting():  # what is left out of a list is named there
                    found = read()
            except TreeringError:
                continue
            if found == before[name]:
                continue
            is_part = isinstance(found, list) and all(each in before[name] for each in found)
            (self.hidden if is_part or name in DERIVED else self.lies).append(name)
        try:
            self.problems = [each for each in engine.check(SPACE) if isinstance(each, Problem)]
        except TreeringError as error:
            self.problems = [Problem(kind="corrupt", where="verify", detail=str(error))]

    def complaint(self, table: str, column: str, key: str | None) -> str | None:
        """Say what is wrong with it, if anything."""
        if self.lies:
            return f"{self.lies} returned something else"
        if self.problems:
            return None
        if self.hidden:
            return f"{self.hidden} differ, and verify noticed nothing"
        if (table, key or column) not in HARMLESS and (table, column) not in HARMLESS:
            return "verify noticed nothing"
        return None


Change = tuple[str, str, str | None, str, list[Any], Any]
"""Table, column, key of a row of ``meta``, how to find the row, by which values, and the new value."""


def changes(
    tables: dict[str, tuple[list[str], list[str], list[tuple[Any, ...]]]],
    per_table: int,
    chance: random.Random,
) -> Iterator[Change]:
    """Yield changes of some rows of each table, given its key, columns and rows."""
    for table, (key, columns, rows) in tables.items():
        for row in chance.sample(rows, min(per_table, len(rows))):
            values = dict(zip(columns, row, strict=True))
            found = [values[name] for name in key]
            where = " AND ".join(f'"{name}" = ?' for name in key)
            for column in columns:
                entry = values["key"] if table == "meta" else None
                yield table, column, entry, where, found, changed(values[column], chance)


# SQLite


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flips") / "store"
    with treering.open(folder, durability="fast") as store:
        fill(store.engine)
        assert store.verify().ok
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a store that was not closed: most of it is in the log, and three commits are pending."""
    folder = tmp_path_factory.mktemp("killed")
    with treering.open(folder / "live") as store:
        fill(store.engine)
        for number in range(4):
            store.engine.commit(batches.append(SPACE, "l", f"item {number}", at=15 + number, scope="s"))
        shutil.copytree(folder / "live", folder / "store")
    return folder / "store"


@pytest.fixture(scope="module")
def before(master: Path) -> dict[str, Any]:
    with treering.open(master, durability="fast") as store:
        return {name: read() for name, read in reads(store.engine).items()}


TABLES = "name NOT LIKE 'fts_%' AND name <> 'fresh'"
COMMIT_LOG = "name = 'fresh'"
SEARCH_INDEX = "name LIKE 'fts_1_%'"


def sqlite_tables(
    path: Path, which: str = TABLES
) -> dict[str, tuple[list[str], list[str], list[tuple[Any, ...]]]]:
    tables: dict[str, tuple[list[str], list[str], list[tuple[Any, ...]]]] = {}
    with closing(sqlite3.connect(path)) as connection:
        names = connection.execute(
            f"SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND {which}"
        ).fetchall()
        for (table,) in names:
            pending = " WHERE no > (SELECT max(no) FROM commits)" if table == "fresh" else ""
            cursor = connection.execute(f"SELECT * FROM {table}{pending}")
            columns = [each[0] for each in cursor.description]
            info = connection.execute(f"PRAGMA table_info({table})").fetchall()
            key = [each[1] for each in sorted(info, key=lambda each: each[5]) if each[5]]
            tables[table] = key, columns, cursor.fetchall()
    return tables


def flipped(
    master: Path, before: dict[str, Any], folder: Path, per_table: int, seed: int, which: str = TABLES
) -> list[str]:
    """Make changes one after another; return what went unnoticed, or was a lie."""
    tables = sqlite_tables(master / SQLITE_FILE, which)
    assert all(rows for _, _, rows in tables.values()), "a table without rows proves nothing"
    found: list[str] = []
    for table, column, key, where, row, value in changes(tables, per_table, random.Random(seed)):
        shutil.copytree(master, folder)
        try:
            with closing(sqlite3.connect(folder / SQLITE_FILE, isolation_level=None)) as connection:
                connection.execute(f'UPDATE {table} SET "{column}" = ? WHERE {where}', [value, *row])
        except sqlite3.IntegrityError:
            shutil.rmtree(folder)
            continue
        try:
            with treering.open(folder, durability="fast") as store:
                verdict = Verdict(store.engine, before)
                complaint = verdict.complaint(table, column, key)
                if which == SEARCH_INDEX and not verdict.lies and set(verdict.hidden) <= {"search"}:
                    store.engine.reindex(SPACE)
                    complaint = Verdict(store.engine, before).hidden or None
        except TreeringError:
            complaint = None  # it does not even open
        if complaint is not None:
            found.append(f"{table}.{column} of {row} = {value!r}: {complaint}")
        shutil.rmtree(folder)
    return found


def test_a_changed_column_is_noticed(master, before, tmp_path):
    assert flipped(master, before, tmp_path / "store", per_table=1, seed=1) == []


def flipped_in_the_log(killed: Path, folder: Path, per_table: int, seed: int) -> list[str]:
    """Make changes to pending commits. The source is copied, because opening it changes it."""
    source = shutil.copytree(killed, folder / "source")
    with treering.open(shutil.copytree(killed, folder / "copy"), durability="fast") as store:
        before = {name: read() for name, read in reads(store.engine).items()}
    return flipped(source, before, folder / "store", per_table, seed, COMMIT_LOG)


def test_a_changed_column_of_the_commit_log_is_noticed(killed, tmp_path):
    assert flipped_in_the_log(killed, tmp_path, per_table=4, seed=1) == []


@pytest.mark.parametrize("slot", range(4))
def test_no_slot_of_the_commit_log_can_be_hidden(killed, tmp_path, slot):
    """By a number that says it was flushed: readers look at the first slot, so the others went with it."""
    folder = shutil.copytree(killed, tmp_path / "store")
    with closing(sqlite3.connect(folder / SQLITE_FILE, isolation_level=None)) as connection:
        changed = connection.execute(
            "UPDATE fresh SET no = 1 WHERE slot = ? AND no > (SELECT max(no) FROM commits)", (slot,)
        )
        assert changed.rowcount == 1
    with pytest.raises(Corrupt, match="acknowledged commits are missing"):
        treering.open(folder)


def test_a_changed_search_index_hides_hits_at_most_and_reindex_mends_it(master, before, tmp_path):
    """What a hit says is not in the index, but in rows that are checked."""
    assert flipped(master, before, tmp_path / "store", per_table=2, seed=1, which=SEARCH_INDEX) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(20))
def test_many_changed_columns_of_the_commit_log_are_noticed(killed, tmp_path, seed):
    assert flipped_in_the_log(killed, tmp_path, per_table=8, seed=seed) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(20))
def test_many_changes_of_the_search_index_are_mended(master, before, tmp_path, seed):
    assert flipped(master, before, tmp_path / "store", per_table=8, seed=seed, which=SEARCH_INDEX) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(20))
def test_many_changed_columns_are_noticed(master, before, tmp_path, seed):
    assert flipped(master, before, tmp_path / "store", per_table=8, seed=seed) == []


def flipped_bits(
    source: Path, before: dict[str, Any], folder: Path, pattern: str, count: int, seed: int
) -> list[str]:
    """Flip random bits of a file, one at a time; return lies, and hidden rows that verify does not miss."""
    chance = random.Random(seed)
    found: list[str] = []
    for _ in range(count):
        shutil.copytree(source, folder)
        (path,) = chance.sample(sorted(folder.glob(pattern)), 1)
        at = chance.randrange(path.stat().st_size * 8)
        with path.open("r+b") as file:
            file.seek(at // 8)
            (byte,) = file.read(1)
            file.seek(at // 8)
            file.write(bytes([byte ^ 1 << at % 8]))
        try:
            with treering.open(folder, durability="fast") as store:
                verdict = Verdict(store.engine, before)
                if verdict.lies or (verdict.hidden and not verdict.problems):
                    found.append(f"bit {at} of {path.name}: {verdict.lies}, {verdict.hidden}")
        except TreeringError:
            pass  # it does not even open
        shutil.rmtree(folder)
    return found


FILES = {"database": SQLITE_FILE, "log": f"{SQLITE_FILE}-wal", "packs": "blobs/objects/*/*/*/*.pack"}


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_is_noticed_or_harmless(master, killed, before, tmp_path, file):
    source = killed if file == "log" else master
    assert flipped_bits(source, before, tmp_path / "store", FILES[file], count=12, seed=2) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("file", FILES)
def test_many_flipped_bits_are_noticed_or_harmless(master, killed, before, tmp_path, file, seed):
    source = killed if file == "log" else master
    assert flipped_bits(source, before, tmp_path / "store", FILES[file], count=300, seed=seed) == []


# PostgreSQL


def postgres_tables(connection: psycopg.Connection) -> dict[str, tuple[list[str], list[str], list[Any]]]:
    tables: dict[str, tuple[list[str], list[str], list[Any]]] = {}
    keys = connection.execute(
        "SELECT i.indrelid::regclass::text, array_agg(a.attname::text ORDER BY a.attnum) FROM pg_index i "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) "
        "JOIN pg_class c ON c.oid = i.indrelid "
        "WHERE i.indisprimary AND c.relnamespace = 'public'::regnamespace GROUP BY 1 ORDER BY 1"
    ).fetchall()
    for table, key in keys:
        if table in ("alembic_version", "fts"):  # `fts` is derived, and a vector cannot be changed like this
            continue
        cursor = connection.execute(f"SELECT * FROM {table}")
        columns = [each.name for each in cursor.description or ()]
        tables[table] = key, columns, cursor.fetchall()
    return tables


def postgres_flipped(url: str, folder: Path, per_table: int, seed: int, only: int | None = None) -> list[str]:
    blobs = FolderBlobs(folder)
    chance = random.Random(seed)
    found: list[str] = []
    with treering.open(url, blobs=blobs) as store:
        fill(store.engine)
        before = {name: read() for name, read in reads(store.engine).items()}
        assert store.verify().ok
    with psycopg.connect(url, autocommit=True) as connection:
        todo = list(changes(postgres_tables(connection), per_table, chance))
        for table, column, key, place, row, value in chance.sample(todo, min(only or len(todo), len(todo))):
            where = place.replace("?", "%s")
            select = f'SELECT "{column}" FROM {table} WHERE {where}'
            ((old,),) = connection.execute(select, row).fetchall()
            update = f'UPDATE {table} SET "{column}" = %s WHERE {where}'
            try:
                connection.execute(update, [value, *row])
            except (psycopg.IntegrityError, psycopg.DataError, psycopg.ProgrammingError):
                continue
            names = [part.split('"')[1] for part in where.split(" AND ")]
            changed_row = [value if name == column else given for name, given in zip(names, row, strict=True)]
            try:
                with treering.open(url, blobs=blobs) as store:
                    complaint = Verdict(store.engine, before).complaint(table, column, key)
            except TreeringError:
                complaint = None  # it does not even open
            if complaint is not None:
                found.append(f"{table}.{column} of {row} = {value!r}: {complaint}")
            if changed_row != row:  # opening the store may have made the row anew
                connection.execute(f"DELETE FROM {table} WHERE {where}", row)
            connection.execute(update, [old, *changed_row])
    return found


def test_a_changed_column_is_noticed_on_postgres(postgres_url, tmp_path):
    assert postgres_flipped(postgres_url, tmp_path / "blobs", per_table=1, seed=1, only=25) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_many_changed_columns_are_noticed_on_postgres(postgres_url, tmp_path, seed):
    assert postgres_flipped(postgres_url, tmp_path / "blobs", per_table=6, seed=seed) == []

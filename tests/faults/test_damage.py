"""Damaged bytes raise `Corrupt`, which names what is damaged; they are never returned as data.

If a pack is truncated or lost, a bit of a frame is flipped, or a database or log is truncated, zeroed or
overwritten, reading raises `Corrupt`, `verify` reports it and ``treering verify`` exits with 5. Undamaged
data can still be read.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.loads import SPACE, fate, linking, load, pieces, total
from tests.faults.stores import StoreLocation, killed_at, sqlite_location
from treering.api import accept_loss
from treering.cli.main import main
from treering.core.content import Address, object_address, slot_address
from treering.engines.sql.schema import SQLITE_FILE
from treering.errors import Corrupt, TreeringError
from treering.store import Store

LOADS = 12
PAGE = 4096


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> StoreLocation:
    """A cleanly closed store: loads, and a pack with four objects."""
    location = sqlite_location(tmp_path_factory.mktemp("damage") / "store")
    with location.open() as store:
        for number in range(LOADS):
            store.commit(load(number))
        store.engine.stage(SPACE, pieces(0))
        store.commit(linking(0))
    return location


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> StoreLocation:
    """A store whose last writer was killed: most data is in the log."""
    location = sqlite_location(tmp_path_factory.mktemp("killed") / "store")
    killed_at("commit.after_commit", LOADS, "commits", location, rounds=LOADS)
    return location


@pytest.fixture
def location(master: StoreLocation, tmp_path: Path) -> StoreLocation:
    return copied(master, tmp_path)


# Packs
def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


PACKS: dict[str, Callable[[Path], None]] = {
    "cut in half": lambda path: cut(path, path.stat().st_size // 2),
    "cut to nothing": lambda path: cut(path, 0),
    "flipped in the first object": lambda path: flip(path, 100),
    "flipped in the last object": lambda path: flip(path, path.stat().st_size - 5000),
    "lost": Path.unlink,
}


@pytest.mark.parametrize("damage", PACKS)
def test_a_damaged_pack_names_its_objects(location: StoreLocation, damage: str):
    (pack,) = location.packs.rglob("*.pack")
    PACKS[damage](pack)
    with location.open() as store:
        unreadable = [content for content in pieces(0) if not can_be_read(store, content, pack)]
        assert unreadable
        with pytest.raises(Corrupt):
            store.engine.get(SPACE, [object_address(content.name) for content in pieces(0)])
        report = store.verify()
        named = " ".join(problem.where + problem.detail for problem in report.problems)
        assert pack.stem in named
        if damage != "lost":
            objects = {each.where for each in report.problems if each.where.startswith("o:")}
            assert objects == {f"o:{content.name}" for content in unreadable}
        assert fate(store.engine, load(0)) == "whole"
    assert verify_exits_with(location) == 5


def can_be_read(store: Store, content, pack: Path) -> bool:
    try:
        given = store.engine.get(SPACE, [object_address(content.name)])
    except Corrupt as error:
        message = str(error)
    else:
        assert given == [content]
        return True
    assert content.name in message
    assert pack.stem in message
    return False


@pytest.mark.parametrize("from_the_end", [1, 18, 60, 200])
def test_a_damaged_index_of_a_pack_is_reported(location: StoreLocation, from_the_end: int):
    """It is needed for rewriting the pack, not for reading it."""
    (pack,) = location.packs.rglob("*.pack")
    flip(pack, pack.stat().st_size - from_the_end)
    with location.open() as store:
        assert all(can_be_read(store, content, pack) for content in pieces(0))
        (problem,) = store.verify().problems
        assert pack.stem in problem.where
    assert verify_exits_with(location) == 5


# Frames
def test_a_flipped_byte_in_a_body_names_the_commit(location: StoreLocation):
    scribble(location, "UPDATE body SET frame = ? WHERE key = ?", "SELECT frame, key FROM body LIMIT 1")
    is_reported(
        location, lambda store: store.engine.get(SPACE, [slot_address("batch-w-0", 0, 0)]), "batch-w-0"
    )


def test_a_flipped_byte_in_an_item_names_the_list(location: StoreLocation):
    scribble(
        location,
        "UPDATE item SET frame = ? WHERE key = ?",
        "SELECT frame, key FROM item WHERE frame IS NOT NULL LIMIT 1",
    )
    is_reported(location, lambda store: store.engine.read_list(SPACE, "w/log", 0, 9), "w/log")


def test_a_flipped_byte_in_an_object_names_it(location: StoreLocation):
    (name,) = load(3).objects
    scribble(
        location,
        "UPDATE object SET frame = ? WHERE name = ?",
        f"SELECT frame, name FROM object WHERE name = x'{name}'",
    )
    is_reported(location, lambda store: store.engine.get(SPACE, [object_address(name)]), name)


def test_the_intact_frame_of_another_object_is_not_returned(location: StoreLocation):
    """Its checksum is correct; only the hash does not match the name."""
    (name,), (other,) = load(3).objects, load(4).objects
    edit(
        location,
        "UPDATE object SET (kind, size, frame) = "
        f"(SELECT o.kind, o.size, o.frame FROM object o WHERE o.name = x'{other}') WHERE name = x'{name}'",
    )
    is_reported(location, lambda store: store.engine.get(SPACE, [object_address(name)]), name)


@pytest.mark.parametrize("column", ["kind", "size"])
def test_a_changed_row_of_an_object_names_it(location: StoreLocation, column: str):
    (name,) = load(3).objects
    edit(location, f"UPDATE object SET {column} = {column} + 1 WHERE name = x'{name}'")
    read: Callable[[Store], object] = lambda store: store.engine.get(SPACE, [object_address(name)])  # noqa: E731
    is_reported(location, None if column == "size" else read, name)


def test_a_changed_position_in_a_pack_names_the_object(location: StoreLocation):
    name = pieces(0)[2].name
    edit(location, f'UPDATE object SET "offset" = "offset" + 1 WHERE name = x\'{name}\'')
    is_reported(location, lambda store: store.engine.get(SPACE, [object_address(name)]), name)


STOPS: dict[str, Callable[[Store], object]] = {
    "item": lambda store: store.engine.read_list(SPACE, "w/log", 0, 9),
    "object": lambda store: store.engine.get(
        SPACE, [object_address(name) for number in range(LOADS) for name in load(number).objects]
    ),
}


@pytest.mark.parametrize("table", STOPS)
def test_a_read_that_stops_at_damage_keeps_no_log_open(location: StoreLocation, table: str):
    """Rows are checked while they are read; an error must not leave the query open."""
    edit(location, f"UPDATE {table} SET kind = 9 WHERE frame IS NOT NULL")
    with location.open() as store:
        store.commit(load(LOADS))
        with pytest.raises(Corrupt, match=r"9 is not a kind|checksum differs") as caught:
            STOPS[table](store)
        with closing(sqlite3.connect(Path(location.url) / SQLITE_FILE)) as other:
            ((is_busy, _, _),) = other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert not is_busy
        assert caught.tb is not None  # and with it everything that the read still references


def test_a_lost_item_names_the_list(location: StoreLocation):
    edit(location, "DELETE FROM item WHERE key = (SELECT max(key) FROM item)")
    is_reported(location, lambda store: store.engine.read_list(SPACE, "w/log", 0, 999), "w/log")


def test_a_list_that_is_its_own_ancestor_does_not_loop_for_ever(location: StoreLocation):
    edit(location, "UPDATE list SET parent = no, start = 1")
    is_reported(location, lambda store: store.engine.read_list(SPACE, "w/log", 0, 9), "w/log")


def test_a_lost_commit_is_reported(location: StoreLocation):
    edit(location, "DELETE FROM commits WHERE batch = 'batch-w-4'")
    is_reported(location, None, "batch-w-4")


def is_reported(location: StoreLocation, read: Callable[[Store], object] | None, named: str) -> None:
    with location.open() as store:
        if read is not None:
            with pytest.raises(Corrupt, match=named):
                read(store)
        report = store.verify()
        assert not report.ok
        assert [problem for problem in report.problems if named in problem.where + problem.detail]
    assert verify_exits_with(location) == 5


# The database
@pytest.mark.parametrize("size", [1, 100, PAGE, 5 * PAGE + 100, 0.5, 0.9])
def test_a_truncated_database_is_corrupt(location: StoreLocation, size: float):
    database = Path(location.url) / SQLITE_FILE
    cut(database, int(size * database.stat().st_size) if isinstance(size, float) else size)
    assert is_detected(location)
    assert verify_exits_with(location) == 5


def test_a_file_that_is_no_database_is_corrupt(location: StoreLocation):
    (Path(location.url) / SQLITE_FILE).write_bytes(b"not a database" * 1000)
    with pytest.raises(Corrupt, match=SQLITE_FILE):
        location.open()
    assert verify_exits_with(location) == 5


def test_every_zeroed_page_is_detected(master: StoreLocation, tmp_path: Path):
    original = (Path(master.url) / SQLITE_FILE).read_bytes()
    undetected = []
    for page in range(len(original) // PAGE):
        if any(original[page * PAGE : (page + 1) * PAGE]):
            damaged = original[: page * PAGE] + bytes(PAGE) + original[(page + 1) * PAGE :]
            if not is_detected(with_database(master, damaged, tmp_path / str(page))):
                undetected.append(page)
    assert not undetected


def test_one_flipped_bit_never_returns_wrong_content(master: StoreLocation, tmp_path: Path):
    flip_at_random(master, tmp_path, 40)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_many_flipped_bits_never_return_wrong_content(master: StoreLocation, tmp_path: Path):
    flip_at_random(master, tmp_path, 1500)


def flip_at_random(master: StoreLocation, tmp_path: Path, times: int) -> None:
    original = (Path(master.url) / SQLITE_FILE).read_bytes()
    chance = random.Random(times)
    pages = [page for page in range(len(original) // PAGE) if is_structured(original[page * PAGE :][:PAGE])]
    for each in range(times):
        damaged = bytearray(original)
        damaged[chance.choice(pages) * PAGE + chance.randrange(PAGE)] ^= 1 << chance.randrange(8)
        is_detected(with_database(master, damaged, tmp_path / str(each)), TreeringError)
        shutil.rmtree(tmp_path / str(each))


def is_structured(page: bytes) -> bool:
    """Whether a page has more than part of one large content, whose checksum detects every change."""
    return len(set(page)) < 200


def with_database(location: StoreLocation, data: bytes | bytearray, folder: Path) -> StoreLocation:
    """Return the same store with other bytes in its database, in a new file: SQLite caches open ones."""
    folder.mkdir()
    (folder / SQLITE_FILE).write_bytes(data)
    shutil.copytree(location.packs, folder / "blobs", copy_function=os.link)
    return sqlite_location(folder)


def is_detected(location: StoreLocation, error: type[TreeringError] = Corrupt) -> bool:
    """Return whether the damage is detected; another error or wrong content fails the test."""
    detected = False
    for action in (contents_are_right, lambda store: store.verify().ok, lambda store: bool(store.stats())):
        try:
            with location.open() as store:
                detected |= not action(store)
        except error:
            detected = True
    return detected


def contents_are_right(store: Store) -> bool:
    """Return whether all content can be read; content that is read must be what was stored."""
    complete = True
    for number in range(LOADS):
        batch = load(number)
        for index, content in enumerate(batch.parts[0].slots):
            complete &= gives(store, slot_address(batch.id, 0, index), content)
        for name, content in batch.objects.items():
            complete &= gives(store, object_address(name), content)
    for content in pieces(0):
        complete &= gives(store, object_address(content.name), content)
    return complete


def gives(store: Store, address: Address, content) -> bool:
    try:
        (given,) = store.engine.get(SPACE, [address])
    except TreeringError:
        return False
    assert given == content, f"{address} gives wrong content"
    return True


# The log
@pytest.mark.parametrize("share", [0.999, 0.9, 0.7, 0.5, 0.3])
def test_a_truncated_log_loses_only_the_last_commits(killed: StoreLocation, tmp_path: Path, share: float):
    """The rest is the store at an earlier time."""
    location = copied(killed, tmp_path)
    log = Path(location.url) / f"{SQLITE_FILE}-wal"
    cut(log, int(log.stat().st_size * share))
    is_a_beginning(location, lost=True)


def test_a_flipped_byte_in_the_log_loses_only_later_commits(killed: StoreLocation, tmp_path: Path):
    size = (Path(killed.url) / f"{SQLITE_FILE}-wal").stat().st_size
    chance = random.Random(6)
    for each in range(6):
        location = copied(killed, tmp_path / str(each))
        flip(Path(location.url) / f"{SQLITE_FILE}-wal", chance.randrange(size // 3, size))
        is_a_beginning(location, lost=True)


def test_a_store_whose_log_is_garbage_is_not_begun_anew(killed: StoreLocation, tmp_path: Path):
    """The tables themselves were still in the log."""
    location = copied(killed, tmp_path)
    (Path(location.url) / f"{SQLITE_FILE}-wal").write_bytes(random.Random(1).randbytes(100_000))
    for _ in range(2):
        with pytest.raises(Corrupt, match="has no tables, but its folder held a store"):
            location.open()
    assert verify_exits_with(location) == 5


def test_damaged_shared_memory_loses_nothing(killed: StoreLocation, tmp_path: Path):
    location = copied(killed, tmp_path)
    (Path(location.url) / f"{SQLITE_FILE}-shm").write_bytes(random.Random(1).randbytes(32768))
    is_a_beginning(location, lost=False)


def is_a_beginning(location: StoreLocation, *, lost: bool) -> None:
    """The store contains the first loads, each complete, and can be written to.

    If commits are lost, that has to be accepted first.
    """
    if lost:
        for _ in range(2):  # closing the store must not remove the evidence
            with pytest.raises(Corrupt, match=r"acknowledged commits are missing.*doctor --accept-loss"):
                location.open()
        assert verify_exits_with(location) == 5
        assert accept_loss(location.url)
    with location.open() as store:
        assert store.verify().problems == ()
        fates = [fate(store.engine, load(number)) for number in range(LOADS)]
        count = fates.count("whole")
        assert fates == ["whole"] * count + ["absent"] * (LOADS - count)
        assert (count < LOADS) == lost
        assert total(store.engine) == count
        for number in range(LOADS):
            store.commit(load(number))
        assert total(store.engine) == LOADS
        assert store.verify().problems == ()


def copied(location: StoreLocation, folder: Path) -> StoreLocation:
    target = folder / "store"
    shutil.copytree(location.url, target)
    return sqlite_location(target)


def scribble(location: StoreLocation, update: str, select: str) -> None:
    """Flip a bit in the middle of a frame."""
    with closing(sqlite3.connect(Path(location.url) / SQLITE_FILE)) as connection, connection:
        ((frame, key),) = connection.execute(select)
        damaged = bytearray(frame)
        damaged[len(damaged) // 2] ^= 0x10
        connection.execute(update, (bytes(damaged), key))


def edit(location: StoreLocation, sql: str) -> None:
    with closing(sqlite3.connect(Path(location.url) / SQLITE_FILE)) as connection, connection:
        assert connection.execute(sql).rowcount


def verify_exits_with(location: StoreLocation) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--store", location.url])
    return ended.value.code

"""On a full disk a write raises `StoreFull` and leaves no trace; with space, the store continues."""

from __future__ import annotations

from pathlib import Path

import pytest

import treering
from tests.faults.disks import SmallDisk, small_disk
from tests.faults.loads import SPACE, fate, linking, load, pieces, total
from tests.faults.stores import StoreLocation, sqlite_location
from treering.errors import StoreFull
from treering.store import Store
from treering.testing.batches import event, events
from treering.testing.portrait import portrait

ROOMS = [*range(0, 200_000, 20_000), 400_000]
"""The bytes left, so that each time a different write fails."""


@pytest.fixture
def disk(tmp_path: Path):
    with small_disk(tmp_path / "disk") as made:
        yield made


@pytest.fixture
def location(disk: SmallDisk) -> StoreLocation:
    return sqlite_location(disk.folder / "store")


@pytest.mark.parametrize("durability", ["full", "fast"])
def test_a_commit_that_does_not_fit_leaves_no_trace(
    disk: SmallDisk, location: StoreLocation, durability: str
):
    number = 0
    with location.open(durability=durability) as store:
        store.commit(load(number))
        for room in ROOMS:
            disk.fill(store, room=room)
            number = commit_until_full(store, number + 1)
            assert fate(store.engine, load(number)) == "absent"
            assert fate(store.engine, load(number - 1)) == "whole"
            disk.free(store)
            store.commit(load(number))
            assert total(store.engine) == number + 1
        is_sound(store)
    with location.open() as store:
        assert [fate(store.engine, load(each)) for each in range(number + 1)] == ["whole"] * (number + 1)
        is_sound(store)


def test_every_writer_of_a_group_that_does_not_fit_gets_the_error(disk: SmallDisk, location: StoreLocation):
    with location.open() as store:
        store.commit(load(0))
        disk.fill(store, room=100_000)
        futures = [store.submit(load(number)) for number in range(1, 100)]
        outcomes = [future.exception(timeout=60) for future in futures]
        failed = [number for number, outcome in enumerate(outcomes, 1) if outcome is not None]
        assert failed
        assert isinstance(outcomes[failed[0] - 1], StoreFull)
        disk.free(store)
        for number in range(1, 100):
            assert fate(store.engine, load(number)) == ("absent" if number in failed else "whole")
        for number in failed:
            store.commit(load(number))
        is_sound(store)


def test_a_pack_that_does_not_fit_leaves_no_file(disk: SmallDisk, location: StoreLocation):
    with location.open() as store:
        store.commit(load(0))
        for room in (0, 100_000, 700_000):
            disk.fill(store, room=room)
            with pytest.raises(StoreFull):
                store.engine.stage(SPACE, pieces(1))
            assert not location.pack_files()
            assert not location.drafts()
            assert fate(store.engine, load(0)) == "whole"
            disk.free(store)
        store.engine.stage(SPACE, pieces(1))
        store.commit(linking(1))
        assert fate(store.engine, linking(1)) == "whole"
        is_sound(store)


@pytest.mark.parametrize("room", [0, 20_000, 60_000, 120_000])
def test_a_store_that_does_not_fit_is_not_created(disk: SmallDisk, location: StoreLocation, room: int):
    disk.fill(None, room=room)
    with pytest.raises(disk.file_error):
        location.open().close()
    disk.free(None)
    with location.open() as store:
        store.commit(load(0))
        is_sound(store)


@pytest.mark.parametrize("room", [0, 8_000, 36_000])
def test_a_store_on_a_full_disk_can_be_opened_once_there_is_space(
    disk: SmallDisk, location: StoreLocation, room: int
):
    """The log needs some space, even for reading."""
    with location.open() as store:
        store.commit(load(0))
    disk.fill(None, room=room)
    try:
        with location.open() as store:
            assert fate(store.engine, load(0)) == "whole"
    except disk.file_error:
        pass
    disk.free(None)
    with location.open() as store:
        assert fate(store.engine, load(0)) == "whole"
        store.commit(load(1))
        is_sound(store)


def test_a_backup_that_does_not_fit_is_not_kept(disk: SmallDisk, tmp_path: Path):
    with sqlite_location(tmp_path / "store").open() as store:
        store.engine.stage(SPACE, pieces(0))
        store.commit(linking(0))
        for number in range(20):
            store.commit(load(number))
        before = portrait(store.engine, SPACE)
        for room in (0, 100_000, 600_000, 1_500_000):
            disk.fill(None, room=room)
            with pytest.raises(disk.file_error):
                store.backup(disk.folder / "backup")
            assert [path.name for path in disk.folder.iterdir()] in (["ballast"], [])
            disk.free(None)
        store.backup(disk.folder / "backup")
        assert portrait(store.engine, SPACE) == before
        with sqlite_location(disk.folder / "backup").open() as backup:
            is_sound(backup)
            assert portrait(backup.engine, SPACE) == before


def test_a_copy_that_does_not_fit_resumes_once_there_is_space(
    disk: SmallDisk, location: StoreLocation, tmp_path: Path
):
    with sqlite_location(tmp_path / "source").open() as store, location.open() as copy:
        store.engine.stage(SPACE, pieces(0))
        store.commit(linking(0))
        for number in range(20):
            store.commit(load(number))
        copy.engine.commit(events("other", event()))  # create its tables, so that they are not what fails
        for room in (0, 300_000, 1_500_000):
            disk.fill(copy, room=room)
            with pytest.raises(StoreFull):
                store.copy_to(copy)
            disk.free(copy)
        store.copy_to(copy)
        assert portrait(copy.engine, SPACE) == portrait(store.engine, SPACE)
        is_sound(copy)


def test_maintenance_of_a_full_store_is_safe(disk: SmallDisk, location: StoreLocation):
    """Sweeping and forgetting write, too; they fail now and succeed once there is space."""
    with location.open() as store:
        for number in range(5):
            store.commit(load(number))
            store.commit(load(number, writer="gone"))
        store.engine.stage(SPACE, pieces(0))
        store.commit(linking(0, "1"))
        disk.fill(store)
        for care in (lambda: store.gc(grace_seconds=0), lambda: store.forget(thread="gone"), store.reindex):
            try:
                care()
            except StoreFull:
                is_sound(store)
        disk.free(store)
        store.gc(grace_seconds=0)
        assert [fate(store.engine, load(number)) for number in range(5)] == ["whole"] * 5
        assert fate(store.engine, linking(0, "1")) == "whole"
        is_sound(store)
        assert location.pack_files() == location.pack_rows()


@pytest.mark.postgres
def test_a_server_without_room_is_a_full_store(postgres_url: str):
    """A trigger simulates the server's error."""
    import psycopg

    with treering.open(postgres_url) as store, psycopg.connect(postgres_url, autocommit=True) as server:
        store.commit(load(0))
        server.execute(
            "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE 'No space left on device' USING ERRCODE = '53100'; END $$"
        )
        server.execute("CREATE TRIGGER full_disk BEFORE INSERT ON ref EXECUTE FUNCTION no_room()")
        with pytest.raises(StoreFull, match="No space left"):
            store.commit(load(1))
        assert fate(store.engine, load(1)) == "absent"
        server.execute("DROP TRIGGER full_disk ON ref")
        store.commit(load(1))
        assert fate(store.engine, load(1)) == "whole"
        is_sound(store)


def commit_until_full(store: Store, number: int) -> int:
    """Commit one load after the other; return the number of the first that does not fit."""
    while True:
        try:
            store.commit(load(number))
        except StoreFull:
            return number
        number += 1


def is_sound(store: Store) -> None:
    assert store.verify().problems == ()

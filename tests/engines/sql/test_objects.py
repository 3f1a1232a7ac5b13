"""Objects in rows and packs of a real SQLite database and a real folder of blobs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from treering.blobs.folder import FolderBlobs
from treering.core import failpoints
from treering.core.clock import ManualClock
from treering.core.content import Content, unseal
from treering.core.packs import read_pack
from treering.engines.sql import objects as objects_module
from treering.engines.sql import schema
from treering.engines.sql.commit.write import STAGE_SECONDS
from treering.engines.sql.objects import Objects, PackGone
from treering.engines.sqlite.connection import SqliteDatabase
from treering.errors import Busy, Corrupt, InvalidInput

SPACE = 1
OTHER = 2


def text(number: int, size: int = 5000) -> Content:
    return Content("text", (b"%06d " % number * (size // 7 + 1))[:size])


def noise(size: int) -> Content:
    return Content("bytes", os.urandom(size))


LARGE = [text(number) for number in range(300)]
"""More than goes into rows, with many objects in a frame."""


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def database(tmp_path, clock):
    opened = SqliteDatabase(tmp_path / "treering.db", durability="fast", clock=clock)
    with opened.exclusively() as connection:
        opened.set_modes(connection)
        schema.ensure_schema(connection, "sqlite", location="test", store_id="store")
    with opened.writing() as session:
        session.run_many(
            "INSERT INTO space (no, name, seq, committed_at_us, created_at_us) VALUES (?, ?, 0, 0, 0)",
            [(SPACE, "one"), (OTHER, "two")],
        )
    yield opened
    opened.close()


@pytest.fixture
def blobs(tmp_path):
    return FolderBlobs(tmp_path / "blobs")


@pytest.fixture
def objects(blobs):
    return Objects(blobs)


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    failpoints.disarm()


def count(database, sql, *parameters):
    with database.reading() as session:
        return session.rows(sql, parameters)[0][0]


def packs(database, space=SPACE):
    with database.reading() as session:
        return session.rows("SELECT no, name FROM pack WHERE space = ? ORDER BY no", (space,))


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "blobs").rglob("*.pack"))


def by_name(contents):
    return {content.name: content for content in contents}


def age_everything(tmp_path):
    for file in files(tmp_path):
        os.utime(file, (0, 0))


# Staging


def test_what_was_staged_can_be_read(database, objects):
    contents = [*LARGE, noise(300_000), Content("json", b"{}"), Content("bytes", b""), Content("text", b"")]
    names = objects.stage(database, SPACE, iter(contents))
    assert names == [content.name for content in contents]
    assert objects.load(database, SPACE, names) == by_name(contents)
    with database.reading() as session:
        assert objects.fetch(session, SPACE, names) == by_name(contents)
        assert objects.missing(session, SPACE, [*names, "0" * 64]) == {"0" * 64}


def test_a_few_small_objects_need_no_file(database, objects, tmp_path):
    names = objects.stage(database, SPACE, LARGE[:3])
    assert files(tmp_path) == []
    assert objects.load(database, SPACE, names) == by_name(LARGE[:3])


def test_without_a_blob_store_everything_is_in_rows(database):
    objects = Objects(None)
    contents = [*LARGE, *(text(number, 10) for number in range(700))]
    names = objects.stage(database, SPACE, contents)
    assert packs(database) == []
    assert objects.load(database, SPACE, names) == by_name(contents)


def test_an_object_is_stored_once_however_often_it_is_staged(database, objects, tmp_path):
    objects.stage(database, SPACE, [*LARGE, *LARGE, *LARGE[:600]])
    size = sum(file.stat().st_size for file in files(tmp_path))
    objects.stage(database, SPACE, LARGE)
    assert sum(file.stat().st_size for file in files(tmp_path)) == size
    assert count(database, "SELECT COUNT(*) FROM object") == len(LARGE)


def test_repeats_across_windows_and_packs_are_stored_once(database, objects, monkeypatch):
    monkeypatch.setattr(objects_module, "WINDOW_OBJECTS", 7)
    monkeypatch.setattr("treering.core.packs.PACK_OBJECTS", 11)
    contents = [LARGE[number * 37 % 60] for number in range(400)]
    assert objects.stage(database, SPACE, contents) == [content.name for content in contents]
    assert count(database, "SELECT COUNT(*) FROM object") == 60
    assert len(packs(database)) == 6
    assert objects.load(database, SPACE, [content.name for content in contents]) == by_name(LARGE[:60])


def test_staging_again_keeps_from_being_swept(database, objects, clock):
    objects.stage(database, SPACE, LARGE)
    clock.advance(seconds=STAGE_SECONDS * 2)
    objects.stage(database, SPACE, LARGE)
    earliest = count(database, "SELECT MIN(staged_until_us) FROM object")
    assert earliest == clock.now_us() + STAGE_SECONDS * 1_000_000


def test_spaces_share_nothing(database, objects, tmp_path):
    names = objects.stage(database, SPACE, LARGE)
    assert objects.load(database, OTHER, names) == {}
    objects.stage(database, OTHER, LARGE)
    assert len(files(tmp_path)) == 2
    assert {file.relative_to(tmp_path / "blobs").parts[2] for file in files(tmp_path)} == {"one", "two"}


def test_a_writer_that_was_overtaken_leaves_no_second_copy(database, objects, tmp_path):
    failpoints.arm("pack.written", "sleep:300:1")
    slow = threading.Thread(target=lambda: objects.stage(database, SPACE, LARGE))
    slow.start()
    objects.stage(database, SPACE, [*LARGE[100:], *(text(number) for number in range(1000, 1200))])
    slow.join()
    assert count(database, "SELECT COUNT(*) FROM object") == 500
    in_files = sum(len(_entries(file)) for file in files(tmp_path))
    assert in_files == 500
    assert objects.load(database, SPACE, [content.name for content in LARGE]) == by_name(LARGE)


def test_two_equal_stagings_at_once_end_in_one_copy(database, objects, tmp_path):
    threads = [threading.Thread(target=lambda: objects.stage(database, SPACE, LARGE)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(_entries(file)) for file in files(tmp_path)) == len(LARGE)
    assert len(files(tmp_path)) == len(packs(database)) == 1


def test_a_pack_that_waited_too_long_for_its_rows_is_given_up(database, objects, clock, monkeypatch):
    put = FolderBlobs.put
    monkeypatch.setattr(
        FolderBlobs,
        "put",
        lambda *args, **more: (put(*args, **more), clock.advance(seconds=objects_module.LINGER_SECONDS + 1)),
    )
    with pytest.raises(Busy, match="stage again"):
        objects.stage(database, SPACE, LARGE)
    assert count(database, "SELECT COUNT(*) FROM object") == 0


@pytest.mark.parametrize("name", ["pack.write", "pack.written", "stage.before_commit"])
def test_a_staging_that_fails_leaves_no_row_and_can_be_repeated(database, objects, tmp_path, name):
    failpoints.arm(name, "raise")
    with pytest.raises(failpoints.Injected):
        objects.stage(database, SPACE, LARGE)
    failpoints.disarm()
    assert count(database, "SELECT COUNT(*) FROM object") == 0
    assert packs(database) == []
    names = objects.stage(database, SPACE, LARGE)
    assert objects.load(database, SPACE, names) == by_name(LARGE)
    age_everything(tmp_path)
    left = objects.orphans(database, SPACE, older_than_seconds=3600)
    assert len(left) == len(files(tmp_path)) - 1


def test_an_iterator_that_fails_leaves_nothing_broken(database, objects):
    def failing():
        yield from LARGE
        raise RuntimeError("the disk of the caller")

    with pytest.raises(RuntimeError):
        objects.stage(database, SPACE, failing())
    assert objects.stage(database, SPACE, LARGE)


# Reading


def test_reading_needs_no_transaction(database, objects):
    names = objects.stage(database, SPACE, LARGE)
    with database.reading() as session:
        located = objects.locate(session, SPACE, names)
    assert objects.read(located) == by_name(LARGE)


def test_neighbours_are_read_together_and_frames_unfolded_once(database, objects, blobs, monkeypatch):
    names = objects.stage(database, SPACE, LARGE)
    reads = []
    get = blobs.get
    monkeypatch.setattr(blobs, "get", lambda name, **span: reads.append(span) or get(name, **span))
    objects.load(database, SPACE, names)
    assert len(reads) == 1
    frames = []
    monkeypatch.setattr(
        "treering.core.packs.unseal",
        lambda frame, where, **options: frames.append(where) or unseal(frame, where, **options),
    )
    objects.load(database, SPACE, names)
    assert len(frames) == -(-len(LARGE) * 5000 // (128 * 1024))


def test_a_flipped_byte_is_corrupt_and_names_object_and_pack(database, objects, tmp_path):
    names = objects.stage(database, SPACE, LARGE)
    (file,) = files(tmp_path)
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    with pytest.raises(Corrupt, match=rf"object {names[0]}.*{file.stem}"):
        objects.load(database, SPACE, names[:1])
    assert objects.load(database, SPACE, names[-1:]) == by_name(LARGE[-1:])


@pytest.mark.parametrize("place", [0, 1, 9, -1])
def test_a_flipped_byte_in_a_row_is_corrupt_and_names_the_object(database, place):
    content = Content("text", b"a text that repeats itself, " * 400)
    objects = Objects(None)
    (name,) = objects.stage(database, SPACE, [content])
    assert objects.load(database, SPACE, [name]) == {name: content}
    with database.writing() as session:
        ((frame,),) = session.rows("SELECT frame FROM object WHERE name = ?", (bytes.fromhex(name),))
        damaged = bytearray(frame)
        damaged[place] ^= 1
        session.run("UPDATE object SET frame = ? WHERE name = ?", (bytes(damaged), bytes.fromhex(name)))
    with pytest.raises(Corrupt, match=rf"object {name}.*restore"):
        objects.load(database, SPACE, [name])


def test_a_row_that_holds_other_bytes_is_corrupt(database, objects):
    one, two = objects.stage(database, SPACE, LARGE[:2])
    with database.writing() as session:
        session.run(
            "UPDATE object SET frame = (SELECT frame FROM object WHERE name = ?) WHERE name = ?",
            (bytes.fromhex(two), bytes.fromhex(one)),
        )
    with pytest.raises(Corrupt, match=one):
        objects.load(database, SPACE, [one])


def test_a_lost_pack_is_corrupt(database, objects, tmp_path):
    names = objects.stage(database, SPACE, LARGE)
    files(tmp_path)[0].unlink()
    with pytest.raises(PackGone, match=names[0]):
        objects.load(database, SPACE, names[:1])


def test_a_pack_rewritten_between_locating_and_reading_is_found_again(database, objects):
    names = objects.stage(database, SPACE, LARGE)
    with database.reading() as session:
        located = objects.locate(session, SPACE, names)
    objects.rewrite(database, SPACE, packs(database)[0][0], {names[0]})
    with pytest.raises(PackGone):
        objects.read(located)
    assert objects.load(database, SPACE, names) == by_name(LARGE[1:])


def test_a_name_that_is_none_is_refused(database, objects):
    with pytest.raises(InvalidInput, match="hex"):
        objects.load(database, SPACE, ["nonsense"])


# Rewriting


def test_a_rewritten_pack_holds_no_dropped_byte(database, objects, tmp_path):
    names = objects.stage(database, SPACE, LARGE)
    ((old, _),) = packs(database)
    freed = objects.rewrite(database, SPACE, old, {names[5], names[299]})
    assert freed > 0
    kept = [content for number, content in enumerate(LARGE) if number not in {5, 299}]
    assert objects.load(database, SPACE, names) == by_name(kept)
    (file,) = files(tmp_path)
    assert {entry.name for entry in _entries(file)} == set(by_name(kept))
    assert old not in dict(packs(database))


def test_rewriting_takes_along_what_no_row_points_at(database, objects, tmp_path):
    names = objects.stage(database, SPACE, LARGE)
    with database.writing() as session:
        session.run("DELETE FROM object WHERE name = ?", (bytes.fromhex(names[7]),))
    ((no, _),) = packs(database)
    assert objects.packs_with_strays(database, SPACE) == [no]
    objects.rewrite(database, SPACE, no)
    assert objects.packs_with_strays(database, SPACE) == []
    (file,) = files(tmp_path)
    assert names[7] not in {entry.name for entry in _entries(file)}


def test_dropping_all_of_a_pack_deletes_it(database, objects, tmp_path):
    names = objects.stage(database, SPACE, LARGE)
    objects.rewrite(database, SPACE, packs(database)[0][0], set(names))
    assert files(tmp_path) == []
    assert packs(database) == []
    assert count(database, "SELECT COUNT(*) FROM object") == 0


def test_packs_without_objects_are_deleted(database, objects, tmp_path):
    objects.stage(database, SPACE, LARGE)
    objects.stage(database, OTHER, LARGE)
    with database.writing() as session:
        session.run("DELETE FROM object WHERE space = ?", (SPACE,))
    freed = objects.delete_packs(database, SPACE)
    assert freed > 0
    assert packs(database) == []
    assert len(files(tmp_path)) == len(packs(database, OTHER)) == 1


@pytest.mark.parametrize("name", ["repack.written", "repack.switched", "repack.deleted"])
def test_a_rewrite_that_dies_anywhere_loses_nothing_and_is_finished_later(database, objects, tmp_path, name):
    names = objects.stage(database, SPACE, LARGE)
    ((old, _),) = packs(database)
    failpoints.arm(name, "raise")
    with pytest.raises(failpoints.Injected):
        objects.rewrite(database, SPACE, old, {names[0]})
    failpoints.disarm()
    assert objects.load(database, SPACE, names[1:]) == by_name(LARGE[1:])
    objects.delete_packs(database, SPACE)
    for no, _ in packs(database):
        objects.rewrite(database, SPACE, no, {names[0]})
    age_everything(tmp_path)
    objects.delete_orphans(objects.orphans(database, SPACE, older_than_seconds=3600))
    (file,) = files(tmp_path)
    assert {entry.name for entry in _entries(file)} == set(names[1:])
    assert objects.load(database, SPACE, names) == by_name(LARGE[1:])


def test_a_rewrite_that_was_overtaken_looks_again(database, objects, tmp_path):
    names = objects.stage(database, SPACE, LARGE)
    ((old, _),) = packs(database)
    failpoints.arm("repack.written", "sleep:200:1")
    slow = threading.Thread(target=lambda: objects.rewrite(database, SPACE, old, {names[1]}))
    slow.start()
    objects.rewrite(database, SPACE, old, {names[0]})
    slow.join()
    assert len(files(tmp_path)) == len(packs(database)) == 1
    assert len(objects.load(database, SPACE, names)) == 299


def test_a_damaged_pack_is_not_rewritten(database, objects, tmp_path):
    names = objects.stage(database, SPACE, LARGE)
    (file,) = files(tmp_path)
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(Corrupt, match=file.stem):
        objects.rewrite(database, SPACE, packs(database)[0][0], {names[0]})
    assert len(packs(database)) == 1


def test_orphans_are_old_files_that_no_row_knows(database, objects, blobs, tmp_path):
    objects.stage(database, SPACE, LARGE)
    blobs.put("objects/store/one/ab/abc.pack", b"left behind")
    blobs.put("objects/other-store/one/ab/abd.pack", b"of another store")
    blobs.put("objects/store/two/ab/abf.pack", b"of another space, which may have moved to another database")
    blobs.put("packs/ab/abe.pack", b"of a workspace")
    age_everything(tmp_path)
    blobs.put("objects/store/one/ab/young.pack", b"still being written")
    assert objects.orphans(database, SPACE, older_than_seconds=3600) == ["objects/store/one/ab/abc.pack"]


def _entries(file: Path):
    return read_pack(file.read_bytes(), pack=file.name)

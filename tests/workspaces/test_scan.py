"""Which files a scan reads, and which it takes from the stat cache."""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import pytest

import treering
from tests.workspaces.test_snapshot import info, paths
from treering.core.content import Content
from treering.core.tree import FileEntry
from treering.store import Store
from treering.workspaces import scan
from treering.workspaces.snapshot import Snapshot
from treering.workspaces.workspace import SnapshotInfo


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read files as if a minute had passed since they were written."""
    now_ns = scan.time_ns
    monkeypatch.setattr(scan, "time_ns", lambda: now_ns() + 60 * 10**9)


@pytest.mark.usefixtures("later")
def test_what_did_not_change_is_not_read(store: Store, folder: Path) -> None:
    first = info(store, folder)
    assert first.read_files == 5
    again = info(store, folder)
    assert (again.id, again.read_files) == (first.id, 0)
    (folder / "src" / "main.py").write_text("print('bye')\n")
    third = info(store, folder)
    assert third.read_files == 1
    assert third.id != first.id
    assert (third.files, third.size_bytes) == (6, first.size_bytes - 2)


@pytest.mark.usefixtures("later")
def test_a_tiny_file_is_part_of_its_folder(store: Store, folder: Path) -> None:
    """It has no object; whatever changes beside it, the folder equals one that is read from scratch."""
    many = folder / "many"
    (many / "inner").mkdir(parents=True)
    for number in range(30):
        (many / f"f{number:02}").write_bytes(b"%d" % number * (number * 12 + 1))  # up to 349 and 698 bytes
    taken = [info(store, folder)]
    hashes = [sha256((many / name).read_bytes()).hexdigest() for name in ("f07", "f29")]
    assert store.engine.missing(store.space, hashes) == {hashes[0]}

    def again(read_files: int) -> None:
        taken.append(info(store, folder))
        assert taken[-1].read_files == read_files
        with treering.open("memory://") as fresh:
            assert fresh.workspace.snapshot(folder) == taken[-1].id

    (many / "f07").write_text("changed")
    again(1)
    (many / "inner" / "new").write_text("a folder below changed, no file here did")
    again(1)
    (many / "f03").unlink()
    (many / "f04").chmod(0o600)
    again(1)
    again(0)
    assert store.workspace.cat(taken[0].id, "many/f03") == b"3" * 37
    assert store.workspace.check(taken[0].id).ok
    changes = {each.path: each for each in store.workspace.diff(taken[0].id, taken[1].id)}
    assert changes["many/f07"].after is not None
    assert changes["many/f07"].after.hash == sha256(b"changed").hexdigest()
    store.workspace.restore(taken[0].id, folder, delete=True)
    assert info(store, folder).id == taken[0].id


@pytest.mark.usefixtures("later")
def test_a_folder_with_very_many_files_keeps_none_of_them(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "_INLINE_FILES", 10)
    for count, is_kept in ((10, True), (12, False), (13, False), (9, True)):
        for number in range(count):
            (folder / f"tiny{number}").write_text(f"tiny {number}")
        for number in range(count, 20):
            (folder / f"tiny{number}").unlink(missing_ok=True)
        (folder / "run.sh").unlink(missing_ok=True)
        (folder / "README.md").unlink(missing_ok=True)
        snapshot = info(store, folder).id
        assert store.workspace.check(snapshot).ok
        stored = {each.name: each for each in Snapshot(store.engine, store.space, snapshot).top.entries}
        tiny = stored["tiny3"]
        assert isinstance(tiny, FileEntry)
        assert (tiny.data is not None, tiny.hashes) == (is_kept, (sha256(b"tiny 3").hexdigest(),))
        with treering.open("memory://") as fresh:
            assert fresh.workspace.snapshot(folder) == snapshot
    store.gc(grace_seconds=0)
    assert store.verify().ok


@pytest.mark.usefixtures("later")
def test_another_process_uses_the_stat_cache(tmp_path: Path, folder: Path) -> None:

    for reads in (5, 0):
        with treering.open(tmp_path / "store") as store:
            assert info(store, folder).read_files == reads


@pytest.mark.usefixtures("later")
def test_a_damaged_stat_cache_only_costs_time(tmp_path: Path, folder: Path) -> None:

    with treering.open(tmp_path / "store") as store:
        first = store.workspace.snapshot(folder)
    (cache,) = (tmp_path / "store" / "workspaces").rglob("*.known")
    data = bytearray(cache.read_bytes())
    data[len(data) // 2] ^= 1
    cache.write_bytes(data)
    with treering.open(tmp_path / "store") as store:
        again = info(store, folder)
    assert (again.id, again.read_files) == (first, 5)


def test_a_file_that_was_just_written_is_read_again(store: Store, folder: Path) -> None:
    """A change within the same tick of the clock leaves the stamp as it was; only reading tells."""
    first = store.workspace.snapshot(folder)
    before = (folder / "README.md").stat()
    (folder / "README.md").write_text("# Repork\n")
    os.utime(folder / "README.md", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.workspace.snapshot(folder) != first


def test_a_file_that_changed_just_now_is_read_last_and_then_trusted(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_at_ns = max(path.lstat().st_ctime_ns for path in folder.rglob("*"))
    asked = 0

    def time_ns() -> int:  # the clock moves on while the folder is walked
        nonlocal asked
        asked += 1
        return changed_at_ns if asked <= 5 else changed_at_ns + 10**9

    monkeypatch.setattr(scan, "time_ns", time_ns)
    snapshot = store.workspace.snapshot(folder)
    infos: list[SnapshotInfo] = []
    assert store.workspace.snapshot(folder, on_done=infos.append) == snapshot
    assert infos[0].read_files == 0


def test_a_postponed_file_is_not_read_through_a_link(
    store: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "main.py").write_text("not yours")
    read_young = scan.Scan._read_recent

    def swapping(self: scan.Scan, root: int):
        (folder / "src").rename(tmp_path / "away")
        (folder / "src").symlink_to(tmp_path / "outside")
        return read_young(self, root)

    monkeypatch.setattr(scan, "time_ns", lambda: 0)
    monkeypatch.setattr(scan.Scan, "_read_recent", swapping)
    infos: list[SnapshotInfo] = []
    snapshot = store.workspace.snapshot(folder, on_done=infos.append)
    assert "src/main.py" in infos[0].changed
    assert "src/main.py" not in {each.path for each in store.workspace.ls(snapshot, recursive=True)}


def test_stamps_are_trusted_only_past_the_tick() -> None:
    stamp = (1, 2, 3, 5_000_000_123, 0o100644)
    assert scan.trusted_stamp(stamp, read_at_ns=6_000_000_000) == stamp
    assert scan.trusted_stamp(stamp, read_at_ns=5_000_000_200) == scan.untrusted_stamp(0o100644)
    assert scan.trusted_stamp(stamp, read_at_ns=1) == scan.untrusted_stamp(0o100644)  # the clock went back
    whole_seconds = (1, 2, 3, 5_000_000_000, 0o100644)
    assert scan.trusted_stamp(whole_seconds, read_at_ns=6_000_000_000) == scan.untrusted_stamp(0o100644)
    assert scan.trusted_stamp(whole_seconds, read_at_ns=8_000_000_000) == whole_seconds


def test_a_file_that_keeps_changing_is_stored_and_listed(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something is appended behind every read of it, as to a log."""
    log = folder / "log.txt"
    log.write_text("0\n")
    read = os.read

    def reading(file: int, size: int) -> bytes:
        data = read(file, size)
        if Path(f"/proc/self/fd/{file}").readlink() == log:
            with log.open("a") as more:
                more.write("more\n")
        return data

    monkeypatch.setattr(scan.os, "read", reading)
    reported = info(store, folder)
    monkeypatch.undo()
    assert reported.changed == ("log.txt",)
    assert "log.txt" in paths(store, reported.id)
    steady = info(store, folder)
    assert steady.changed == ()
    assert steady.id != reported.id


def test_a_file_that_changes_once_is_read_again(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = folder / "README.md"
    read = os.read
    changes = iter([b"# New\n"])

    def reading(file: int, size: int) -> bytes:
        data = read(file, size)
        if Path(f"/proc/self/fd/{file}").readlink() == target and (new := next(changes, None)):
            target.write_bytes(new)
        return data

    monkeypatch.setattr(scan.os, "read", reading)
    reported = info(store, folder)
    assert reported.changed == ()
    snapshot = Snapshot(store.engine, store.space, reported.id)
    entry = snapshot.find("README.md")
    assert isinstance(entry, FileEntry)
    assert b"".join(snapshot.read(entry, "README.md")) == b"# New\n"


def test_a_folder_swapped_for_a_link_is_not_followed(
    store: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "main.py").write_text("secret of the host")
    plain_open = os.open

    def swapping(path, *arguments, **options):
        if path == "src":
            (folder / "src").rename(tmp_path / "moved")
            (folder / "src").symlink_to(outside)
        return plain_open(path, *arguments, **options)

    monkeypatch.setattr(scan.os, "open", swapping)
    reported = info(store, folder)
    monkeypatch.undo()
    assert reported.changed == ("src",)
    assert not any(each.startswith("src") for each in paths(store, reported.id))


@pytest.mark.usefixtures("later")
def test_after_a_collection_took_the_content_it_is_read_again(store: Store, folder: Path) -> None:
    first = info(store, folder)
    store.forget(scope=f"/workspace/{str(folder).replace('/', '%2F')}")
    assert store.engine.missing(store.space, [first.id])
    again = info(store, folder)
    assert (again.id, again.read_files) == (first.id, 5)
    assert store.verify().ok


@pytest.mark.usefixtures("later")
def test_a_collection_between_staging_and_commit_is_noticed(store: Store, folder: Path) -> None:
    """What was known is gone when the commit comes: it is refused, and the folder read again."""
    store.workspace.snapshot(folder)
    (folder / "README.md").write_text("changed\n")
    writer = store.workspace.writer()
    taken = []

    def commit(each):
        taken.append(each)
        if len(taken) == 1:
            from treering.errors import MissingObjects

            raise MissingObjects((each.root,))
        return each

    writer.stage_and_commit(folder.resolve(), commit)
    assert [each.read_files for each in taken] == [1, 5]


def test_a_collection_between_files_and_folders_is_noticed(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are staged and swept, then the folders are staged: their root alone proves nothing."""
    (folder / "long.txt").write_bytes(b"more than fits into a tree\n" * 100)
    real = store.engine.stage
    staged: list[int] = []

    def stage(space: str, contents: Iterable[Content]) -> list[str]:
        names = real(space, contents)
        staged.append(len(names))
        if len(staged) == 1:
            assert store.gc(grace_seconds=0).swept.objects == len(names)
        return names

    monkeypatch.setattr(store.engine, "stage", stage)
    snapshot = store.workspace.snapshot(folder)
    assert len(staged) == 4
    assert store.workspace.check(snapshot).ok
    assert store.verify().ok

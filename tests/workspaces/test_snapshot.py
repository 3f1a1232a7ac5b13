"""Taking snapshots: what is kept, what is read, what is left out."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from treering.core.address import object_address
from treering.core.content import Content
from treering.core.tree import FileEntry, FolderEntry, LinkEntry, decode_tree
from treering.errors import InvalidInput, NotFound, TimedOut
from treering.store import Store
from treering.views.workspaces import known, scanning
from treering.views.workspaces.rules import CREDENTIALS, DEFAULT_EXCLUDES
from treering.views.workspaces.scanning import Limits
from treering.views.workspaces.stored import Snapshot
from treering.views.workspaces.workspace import SnapshotInfo


def paths(store: Store, snapshot: str) -> set[str]:
    return {each.path for each in Snapshot(store.engine, store.space, snapshot).walk()}


def info(store: Store, folder: Path, **options) -> SnapshotInfo:
    told: list[SnapshotInfo] = []
    store.workspace.snapshot(folder, on_done=told.append, **options)
    return told[0]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read files as if a minute had passed since they were written."""
    now_ns = scanning.time_ns
    monkeypatch.setattr(scanning, "time_ns", lambda: now_ns() + 60 * 10**9)


def test_a_snapshot_is_named_by_its_root_tree(store: Store, folder: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    (content,) = store.engine.get(store.space, [object_address(snapshot)])
    assert content.kind == "tree"
    assert content.name == snapshot
    entries = {each.name: each for each in decode_tree(content).entries}
    assert isinstance(entries["latest"], LinkEntry)
    assert entries["latest"].target == "src/main.py"
    assert isinstance(entries["run.sh"], FileEntry)
    assert entries["run.sh"].mode == 0o755
    assert isinstance(entries["empty"], FolderEntry)
    assert entries["empty"].mode == 0o700


def test_equal_folders_have_equal_names_in_any_store(
    store: Store, other_store: Store, folder: Path, tmp_path: Path
) -> None:
    twin = tmp_path / "elsewhere"
    twin.mkdir()
    for source in sorted(folder.iterdir(), reverse=True):  # made in another order, at another time
        name = source.name
        if source.is_dir():
            shutil.copytree(source, twin / name, symlinks=True)
        elif source.is_symlink():
            (twin / name).symlink_to(source.readlink())
        else:
            shutil.copy2(source, twin / name)
    os.utime(twin / "README.md", (1, 1))
    assert store.workspace.snapshot(folder) == other_store.workspace.snapshot(twin)


def test_a_name_is_the_same_in_every_release(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "fixed"
    (root / "a").mkdir(parents=True)
    (root / "a" / "b.txt").write_bytes(b"one\n")
    (root / "a" / "b.txt").chmod(0o644)
    (root / "a").chmod(0o755)
    (root / "c").symlink_to("a/b.txt")
    plain = store.workspace.snapshot(root)
    ruled = store.workspace.snapshot(root, exclude=["*.log"])
    assert plain == "2368e5dc4acd87fe081198dab4db12592f41ce79bb807629cd757559133273f6"
    assert ruled == "e03ef55d177779b62eb354237253a03e18cccd179106e78309bd03a67167d4cf"


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
def test_another_process_knows_what_was_seen(tmp_path: Path, folder: Path) -> None:
    import treering

    for reads in (5, 0):
        with treering.open(tmp_path / "store") as store:
            assert info(store, folder).read_files == reads


@pytest.mark.usefixtures("later")
def test_a_damaged_stat_cache_only_costs_time(tmp_path: Path, folder: Path) -> None:
    import treering

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

    monkeypatch.setattr(scanning, "time_ns", time_ns)
    snapshot = store.workspace.snapshot(folder)
    infos: list[SnapshotInfo] = []
    assert store.workspace.snapshot(folder, on_done=infos.append) == snapshot
    assert infos[0].read_files == 0


def test_a_file_that_was_put_off_is_not_read_through_a_link(
    store: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "main.py").write_text("not yours")
    read_young = scanning.Scan._read_young

    def swapping(self: scanning.Scan, root: int):
        (folder / "src").rename(tmp_path / "away")
        (folder / "src").symlink_to(tmp_path / "outside")
        return read_young(self, root)

    monkeypatch.setattr(scanning, "time_ns", lambda: 0)
    monkeypatch.setattr(scanning.Scan, "_read_young", swapping)
    infos: list[SnapshotInfo] = []
    snapshot = store.workspace.snapshot(folder, on_done=infos.append)
    assert "src/main.py" in infos[0].changed
    assert "src/main.py" not in {each.path for each in store.workspace.ls(snapshot, recursive=True)}


def test_stamps_are_trusted_only_past_the_tick() -> None:
    stamp = (1, 2, 3, 5_000_000_123, 0o100644)
    assert known.trusted(stamp, read_at_ns=6_000_000_000) == stamp
    assert known.trusted(stamp, read_at_ns=5_000_000_200) == known.untrusted(0o100644)
    assert known.trusted(stamp, read_at_ns=1) == known.untrusted(0o100644)  # the clock went back
    whole_seconds = (1, 2, 3, 5_000_000_000, 0o100644)
    assert known.trusted(whole_seconds, read_at_ns=6_000_000_000) == known.untrusted(0o100644)
    assert known.trusted(whole_seconds, read_at_ns=8_000_000_000) == whole_seconds


def test_mode_and_touch(store: Store, folder: Path) -> None:
    first = store.workspace.snapshot(folder)
    os.utime(folder / "README.md")
    assert store.workspace.snapshot(folder) == first
    (folder / "README.md").chmod(0o600)
    second = store.workspace.snapshot(folder)
    assert second != first
    (folder / "README.md").chmod(0o4600)  # setuid is not kept
    assert store.workspace.snapshot(folder) == second


def test_the_documented_exclusions(store: Store, folder: Path) -> None:
    wanted = paths(store, store.workspace.snapshot(folder))
    for pattern in DEFAULT_EXCLUDES:
        name = pattern.strip("/").replace("*", "x")
        for place in (folder, folder / "src"):
            if pattern.endswith("/"):
                (place / name).mkdir()
                (place / name / "file").write_text("left out")
            else:
                (place / name).write_text("left out")
    assert paths(store, store.workspace.snapshot(folder)) == wanted | {"src/temp", "src/temp/file"}
    everything = store.workspace.snapshot(folder, include=[*DEFAULT_EXCLUDES])
    assert {".git/file", "src/node_modules/file", "temp/file", "x.pyc"} <= paths(store, everything)


@pytest.mark.parametrize("pattern", CREDENTIALS)
def test_credentials_are_never_archived(store: Store, folder: Path, pattern: str) -> None:
    secret = "canary-7f3a" + pattern
    name = pattern.replace("*", "x")
    path = folder / "src" / (name + "inner" if name.endswith("/") else name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(secret)
    told = info(store, folder, include=["*", "**", pattern, f"/src/{name}"])
    assert str(path.relative_to(folder)) not in paths(store, told.id)
    assert [each.reason for each in told.left_out] == ["credential"]
    assert told.left_out[0].path == f"src/{name}".rstrip("/")
    for file in store._folder.rglob("*"):  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
        assert not file.is_file() or secret.encode() not in file.read_bytes()


def test_the_ignore_file_and_patterns_of_the_caller(store: Store, folder: Path) -> None:
    (folder / ".treeringignore").write_text("# logs\n*.log\n!keep.log\n/build/\n")
    for name in ("a.log", "keep.log", "src/b.log", "src/build/x", "build/y"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    kept = paths(store, store.workspace.snapshot(folder))
    assert {"keep.log", "src/build/x", ".treeringignore"} <= kept
    assert not kept & {"a.log", "src/b.log", "build", "build/y"}
    kept = paths(store, store.workspace.snapshot(folder, exclude=["src/"], include=["a.log"]))
    assert "a.log" in kept
    assert not any(each.startswith("src") for each in kept)


def test_patterns_that_make_no_sense_are_refused(store: Store, folder: Path) -> None:
    with pytest.raises(InvalidInput, match="list of patterns"):
        store.workspace.snapshot(folder, exclude="*.log")
    with pytest.raises(InvalidInput, match="pattern"):
        store.workspace.snapshot(folder, exclude=["!"])
    with pytest.raises(InvalidInput, match="no text"):
        store.workspace.snapshot(folder, exclude=["*.log", 1])
    (folder / ".treeringignore").write_bytes(b"*.log\n" * 200_000)
    with pytest.raises(InvalidInput, match="no list of patterns"):
        store.workspace.snapshot(folder)


def test_a_folder_in_which_only_names_can_be_read(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a folder of mode 0o600 is to whoever is not root: what is in it is named, the rest is kept."""

    class Entry:
        def __init__(self, entry: os.DirEntry) -> None:
            self.name = entry.name
            self._entry = entry

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            if self.name == "main.py":
                raise PermissionError(13, "Permission denied")
            return self._entry.stat(follow_symlinks=follow_symlinks)

    real = os.scandir

    @contextmanager
    def scandir(place: int) -> Iterator[Iterator[Entry]]:
        with real(place) as listed:
            yield map(Entry, listed)

    monkeypatch.setattr(scanning.os, "scandir", scandir)
    taken = info(store, folder)
    assert [(each.path, each.reason) for each in taken.left_out] == [("src/main.py", "unreadable")]
    assert "README.md" in paths(store, taken.id)


def test_sockets_pipes_and_devices_are_named_and_left_out(store: Store, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    here = os.open(folder, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{here}/sock")
            told = info(store, folder)
    finally:
        os.close(here)
    assert {(each.path, each.reason) for each in told.left_out} == {("pipe", "pipe"), ("sock", "socket")}
    assert not paths(store, told.id) & {"pipe", "sock"}
    (recorded,) = store.workspace.snapshots()
    assert recorded == told


def test_names_that_are_not_text(store: Store, folder: Path) -> None:
    (folder / "caf\udce9").write_bytes(b"latin")
    (folder / "l\udcfe").symlink_to("tar\udcff")
    snapshot = store.workspace.snapshot(folder)
    assert "caf\udce9" in paths(store, snapshot)
    assert store.workspace.snapshot(folder) == snapshot


def test_the_store_inside_the_workspace_is_not_part_of_it(folder: Path) -> None:
    import treering

    with treering.open(folder / "agents") as store:
        before = store.workspace.snapshot(folder)
        assert not any(each.startswith("agents") for each in paths(store, before))
        assert store.workspace.snapshot(folder) == before


def test_a_large_file_is_cut_and_a_changed_byte_stores_one_piece(store: Store, folder: Path) -> None:
    import random

    data = random.Random(1).randbytes(6_000_000)
    (folder / "big.bin").write_bytes(data)
    store.workspace.snapshot(folder)
    before = store.stats().total_bytes
    (folder / "big.bin").write_bytes(data[:3_000_000] + b"x" + data[3_000_000:])
    snapshot = store.workspace.snapshot(folder)
    assert store.stats().total_bytes - before < 1_200_000
    entry = Snapshot(store.engine, store.space, snapshot).find("big.bin")
    assert isinstance(entry, FileEntry)
    assert len(entry.content) > 5


def test_the_whole_machine_and_a_home_are_refused(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="whole machine"):
        store.workspace.snapshot("/")
    monkeypatch.setenv("HOME", str(folder))
    for asked in (folder, folder.parent, "~"):
        with pytest.raises(InvalidInput, match="home"):
            store.workspace.snapshot(asked)
    assert store.workspace.snapshot(folder / "src")
    assert store.workspace.snapshot(folder, allow_home=True)
    with pytest.raises(NotFound, match="no folder"):
        store.workspace.snapshot(folder / "missing")


def test_limits_are_kept(store: Store, folder: Path) -> None:
    with pytest.raises(InvalidInput, match="entries"):
        store.workspace.snapshot(folder, limits=Limits(entries=3))
    with pytest.raises(InvalidInput, match="bytes"):
        store.workspace.snapshot(folder, limits=Limits(bytes=100))
    with pytest.raises(InvalidInput, match="deeper"):
        store.workspace.snapshot(folder, limits=Limits(depth=1))
    with pytest.raises(TimedOut, match="in time"):
        store.workspace.snapshot(folder, seconds=-1)
    assert not list(store.workspace.snapshots())


def test_a_file_that_will_not_hold_still_is_kept_and_named(
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

    monkeypatch.setattr(scanning.os, "read", reading)
    told = info(store, folder)
    monkeypatch.undo()
    assert told.changed == ("log.txt",)
    assert "log.txt" in paths(store, told.id)
    steady = info(store, folder)
    assert steady.changed == ()
    assert steady.id != told.id


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

    monkeypatch.setattr(scanning.os, "read", reading)
    told = info(store, folder)
    assert told.changed == ()
    snapshot = Snapshot(store.engine, store.space, told.id)
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

    monkeypatch.setattr(scanning.os, "open", swapping)
    told = info(store, folder)
    monkeypatch.undo()
    assert told.changed == ("src",)
    assert not any(each.startswith("src") for each in paths(store, told.id))


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
    camera = store.workspace.camera()
    taken = []

    def commit(each):
        taken.append(each)
        if len(taken) == 1:
            from treering.errors import MissingObjects

            raise MissingObjects((each.root,))
        return each

    camera.keeping(folder.resolve(), commit)
    assert [each.read_files for each in taken] == [1, 5]


def test_a_collection_between_files_and_folders_is_noticed(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are staged and swept, then the folders are staged: their root alone proves nothing."""
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


def test_snapshots_are_listed_newest_first_and_by_name(store: Store, folder: Path) -> None:
    first = store.workspace.snapshot(folder, name="agent", note="first", tags=["keep"])
    (folder / "more").touch()
    second = store.workspace.snapshot(folder, name="agent")
    store.workspace.snapshot(folder)
    listed = list(store.workspace.snapshots(name="agent"))
    assert [each.id for each in listed] == [second, first]
    assert (listed[1].note, listed[1].tags) == ("first", ("keep",))
    assert [each.workspace for each in store.workspace.snapshots(name=folder)] == [str(folder)]
    assert len(list(store.workspace.snapshots(last=2))) == 2


def test_retention_decides_on_each_workspace_by_itself(store: Store, folder: Path) -> None:
    import treering

    kept = store.workspace.snapshot(folder, name="other")
    (folder / "README.md").write_text("two")
    dropped = store.workspace.snapshot(folder, name="agent")
    (folder / "README.md").write_text("three")
    last = store.workspace.snapshot(folder, name="agent")
    store.gc(keep=treering.Keep(last=1), grace_seconds=0)
    assert {each.id for each in store.workspace.snapshots()} == {kept, last}
    del dropped
    assert store.verify().ok


def test_a_snapshot_in_the_background(store: Store, folder: Path) -> None:
    first = store.workspace.submit(folder, note="one")
    second = store.workspace.submit(folder / "src")
    late = store.workspace.submit(folder, seconds=-1)
    assert first.result(60) == store.workspace.snapshot(folder)
    assert second.result(60) == store.workspace.snapshot(folder / "src")
    with pytest.raises(TimedOut):
        late.result(60)

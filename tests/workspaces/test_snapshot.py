"""Taking snapshots: what is stored, what is read, what is excluded."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from treering.core.content import object_address
from treering.core.tree import FileEntry, FolderEntry, LinkEntry, decode_tree
from treering.errors import InvalidInput, NotFound, TimedOut, Unreachable
from treering.store import Store
from treering.workspaces import ignore, scan
from treering.workspaces import snapshot as snapshot_module
from treering.workspaces.ignore import CREDENTIALS, DEFAULT_EXCLUDES
from treering.workspaces.scan import Limits
from treering.workspaces.snapshot import Snapshot
from treering.workspaces.workspace import SnapshotInfo


def paths(store: Store, snapshot: str) -> set[str]:
    return {each.path for each in Snapshot(store.engine, store.space, snapshot).walk()}


def info(store: Store, folder: Path, **options) -> SnapshotInfo:
    reported: list[SnapshotInfo] = []
    store.workspace.snapshot(folder, on_done=reported.append, **options)
    return reported[0]


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
    (root / "a" / "long").write_bytes(b"more than fits into a tree\n" * 100)
    (root / "a" / "long").chmod(0o644)
    (root / "a").chmod(0o755)
    (root / "c").symlink_to("a/b.txt")
    plain = store.workspace.snapshot(root)
    ruled = store.workspace.snapshot(root, exclude=["*.log"])
    assert plain == "b3d2ecc758d864166f72e5157944eaef1c45425641aca882f3fe442938725d11"
    assert ruled == "a437d88c40faabbaf1ed0a7accca7cf8cc5158e896de23fdc241f95ce5206a63"


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
    reported = info(store, folder, include=["*", "**", pattern, f"/src/{name}"])
    assert str(path.relative_to(folder)) not in paths(store, reported.id)
    assert [each.reason for each in reported.left_out] == ["credential"]
    assert reported.left_out[0].path == f"src/{name}".rstrip("/")
    for file in store._folder.rglob("*"):  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
        assert not file.is_file() or secret.encode() not in file.read_bytes()


def test_a_stat_cache_of_other_exclusion_lists_is_not_used(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "kaggle.json").write_text("canary-7f3a")
    with monkeypatch.context() as before:
        before.setattr(ignore, "_CREDENTIAL_INDEX", ignore._PatternIndex(()))  # pyright: ignore[reportPrivateUsage]
        before.setattr(snapshot_module, "LISTS_DIGEST", "shorter")
        assert "kaggle.json" in paths(store, store.workspace.snapshot(folder))
    reported = info(store, folder)
    assert [each.path for each in reported.left_out] == ["kaggle.json"]
    assert "kaggle.json" not in paths(store, reported.id)


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


def test_invalid_patterns_are_refused(store: Store, folder: Path) -> None:
    with pytest.raises(InvalidInput, match="list of patterns"):
        store.workspace.snapshot(folder, exclude="*.log")
    with pytest.raises(InvalidInput, match="pattern"):
        store.workspace.snapshot(folder, exclude=["!"])
    with pytest.raises(InvalidInput, match="not a string"):
        store.workspace.snapshot(folder, exclude=["*.log", 1])
    with pytest.raises(InvalidInput, match="pattern"):
        store.workspace.snapshot(folder, exclude=["[z-a]"])
    store.workspace.snapshot(folder, exclude=["[[:alpha:]]"])  # and nothing is said of it
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

    monkeypatch.setattr(scan.os, "scandir", scandir)
    taken = info(store, folder)
    assert [(each.path, each.reason) for each in taken.left_out] == [("src/main.py", "unreadable")]
    assert "README.md" in paths(store, taken.id)


@pytest.mark.parametrize("becomes", ["nothing", "a file"])
def test_a_link_that_disappears_during_the_scan(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    real = os.readlink

    def readlink(name: str, *, dir_fd: int) -> str:
        os.unlink(name, dir_fd=dir_fd)
        if becomes == "a file":
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=dir_fd))
        return real(name, dir_fd=dir_fd)

    monkeypatch.setattr(scan.os, "readlink", readlink)
    taken = info(store, folder)
    assert "latest" not in paths(store, taken.id)
    assert taken.changed == (("latest",) if becomes == "a file" else ())


def test_a_file_that_cannot_be_read_is_named(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(scan.os, "read", read)
    with pytest.raises(Unreachable, match=r"'README\.md' in the workspace: Input/output error"):
        store.workspace.snapshot(folder, exclude=["run.sh", "src"])
    assert not list(store.workspace.snapshots())


def test_sockets_pipes_and_devices_are_named_and_left_out(store: Store, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    here = os.open(folder, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{here}/sock")
            reported = info(store, folder)
    finally:
        os.close(here)
    assert {(each.path, each.reason) for each in reported.left_out} == {("pipe", "pipe"), ("sock", "socket")}
    assert not paths(store, reported.id) & {"pipe", "sock"}
    (recorded,) = store.workspace.snapshots()
    assert recorded == reported


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
    with pytest.raises(NotFound, match="not found"):
        store.workspace.snapshot(folder / "missing")


def test_limits_are_enforced(store: Store, folder: Path) -> None:
    with pytest.raises(InvalidInput, match="entries"):
        store.workspace.snapshot(folder, limits=Limits(entries=3))
    with pytest.raises(InvalidInput, match="bytes"):
        store.workspace.snapshot(folder, limits=Limits(bytes=100))
    with pytest.raises(InvalidInput, match="deeper"):
        store.workspace.snapshot(folder, limits=Limits(depth=1))
    with pytest.raises(TimedOut, match="in time"):
        store.workspace.snapshot(folder, seconds=-1)
    assert not list(store.workspace.snapshots())


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


def test_a_process_without_free_descriptors_is_told_so(tmp_path: Path, store: Store) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("a")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = store.workspace.snapshot(tmp_path / "work")
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for attempt in (
            lambda: store.workspace.snapshot(tmp_path / "work"),
            lambda: store.workspace.restore(taken, tmp_path / "work"),
            lambda: store.workspace.files(tmp_path / "work"),
        ):
            with pytest.raises(Unreachable, match="Too many open files"):
                attempt()
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert store.workspace.snapshot(tmp_path / "work") == taken

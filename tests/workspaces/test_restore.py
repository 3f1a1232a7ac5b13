"""Restore: only what differs, never what was excluded, and with undo."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import treering
from tests.workspaces.pictures import picture
from treering.core import failpoints
from treering.errors import Conflict, InvalidInput, NotFound, StoreFull
from treering.store import Store
from treering.workspaces import restore, restore_files
from treering.workspaces.ignore import TEMPORARY
from treering.workspaces.restore import stays_inside
from treering.workspaces.scan import FileProgress


def test_a_restored_folder_equals_the_original(store: Store, folder: Path, tmp_path: Path) -> None:
    (folder / "src" / "deep").chmod(0o500)
    (folder / "README.md").chmod(0o400)
    snapshot = store.workspace.snapshot(folder)
    done = store.workspace.restore(snapshot, tmp_path / "new" / "place")
    assert picture(tmp_path / "new" / "place") == picture(folder)
    assert done.before is None
    assert set(done.written) == {
        *("README.md", "run.sh", "latest", "empty/", "src/", "src/deep/", "src/deep/data.bin"),
        *("src/main.py", "src/nothing"),
    }
    assert done.bytes_written == sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) - 15
    assert store.workspace.snapshot(tmp_path / "new" / "place") == snapshot


def test_only_what_differs_is_written(store: Store, folder: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    inodes = {path: path.lstat().st_ino for path in folder.rglob("*")}
    before = picture(folder)
    (folder / "src" / "main.py").write_text("changed\n")
    (folder / "README.md").chmod(0o600)
    (folder / "latest").unlink()
    (folder / "latest").symlink_to("README.md")
    (folder / "empty").rmdir()
    (folder / "notes.txt").write_text("mine")
    done = store.workspace.restore(snapshot, folder)
    assert sorted(done.written) == ["README.md", "empty/", "latest", "src/main.py"]
    assert done.removed == ()
    assert picture(folder) == {**before, "notes.txt": picture(folder)["notes.txt"]}
    kept = {path for path, inode in inodes.items() if path.exists() and path.lstat().st_ino == inode}
    assert {folder / "README.md", folder / "run.sh", folder / "src" / "deep" / "data.bin"} <= kept
    assert store.workspace.restore(snapshot, folder).written == ()


def test_a_restore_can_be_undone(store: Store, folder: Path) -> None:
    first = store.workspace.snapshot(folder)
    (folder / "src" / "main.py").write_text("unsaved work\n")
    (folder / "new").mkdir()
    (folder / "new" / "file").write_text("also unsaved")
    unsaved = picture(folder)
    done = store.workspace.restore(first, folder, delete=True)
    assert sorted(done.removed) == ["new/", "new/file"]
    assert done.before is not None
    store.workspace.restore(done.before, folder, delete=True)
    assert picture(folder) == unsaved
    notes = [each.note for each in store.workspace.snapshots()]
    assert notes[1] == f"before the restore of {first[:12]}"


def test_what_was_left_out_is_never_touched(store: Store, folder: Path) -> None:
    for name in (".git", "node_modules", "logs"):
        (folder / name).mkdir()
        (folder / name / "file").write_text("mine")
    (folder / ".env.key").write_text("secret")
    snapshot = store.workspace.snapshot(folder, exclude=["logs/"])
    (folder / ".treeringignore").write_text("src/\n")  # today's rules are not the snapshot's
    (folder / "src" / "main.py").write_text("changed\n")
    (folder / "extra").write_text("goes")
    done = store.workspace.restore(snapshot, folder, delete=True)
    assert sorted(done.removed) == [".treeringignore", "extra"]
    assert (folder / "src" / "main.py").read_text() == "print('hello')\n"
    for name in (".git/file", "node_modules/file", "logs/file", ".env.key"):
        assert (folder / name).exists(), name


def test_a_folder_that_holds_what_was_left_out_stays(store: Store, folder: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    (folder / "package" / "node_modules").mkdir(parents=True)
    (folder / "package" / "node_modules" / "x").touch()
    (folder / "package" / "index.js").touch()
    store.workspace.restore(snapshot, folder, delete=True)
    assert (folder / "package" / "node_modules" / "x").exists()
    assert not (folder / "package" / "index.js").exists()


def test_files_become_folders_and_back(store: Store, folder: Path) -> None:
    before = picture(folder)
    snapshot = store.workspace.snapshot(folder)
    (folder / "README.md").unlink()
    (folder / "README.md").mkdir()
    (folder / "README.md" / "inner").write_text("x")
    (folder / "empty").rmdir()
    (folder / "empty").write_text("a file now")
    (folder / "latest").unlink()
    (folder / "latest").mkdir()
    with pytest.raises(Conflict, match=r"README\.md.*is a folder.*delete=True"):
        store.workspace.restore(snapshot, folder)
    store.workspace.restore(snapshot, folder, delete=True)
    assert picture(folder) == before


def test_a_dry_run_says_what_would_happen_and_does_nothing(store: Store, folder: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    (folder / "run.sh").unlink()
    (folder / "extra").touch()
    changed = picture(folder)
    reported = store.workspace.restore(snapshot, folder, delete=True, dry_run=True)
    assert (reported.written, reported.removed, reported.dry_run) == (("run.sh",), ("extra",), True)
    assert picture(folder) == changed
    assert len(list(store.workspace.snapshots())) == 1


def test_a_dry_run_into_a_missing_folder(store: Store, folder: Path, tmp_path: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    reported = store.workspace.restore(snapshot, tmp_path / "new", dry_run=True)
    assert not (tmp_path / "new").exists()
    done = store.workspace.restore(snapshot, tmp_path / "new")
    assert sorted(reported.written) == sorted(done.written)
    assert reported.bytes_written == done.bytes_written


def test_a_target_that_is_a_file_is_refused(store: Store, folder: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    with pytest.raises(InvalidInput, match="is not a folder"):
        store.workspace.restore(snapshot, folder / "README.md")
    with pytest.raises(InvalidInput, match="is not a folder"):
        store.workspace.download(snapshot, "src", folder / "README.md")


def test_a_restore_without_a_snapshot_of_the_previous_content(store: Store, folder: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    (folder / "README.md").write_text("lost")
    (folder / "extra").write_text("stays")
    done = store.workspace.restore(snapshot, folder, keep_before=False)
    assert done.before is None
    assert len(list(store.workspace.snapshots())) == 1
    again = store.workspace.snapshot(folder)
    assert store.workspace.cat(again, "extra") == b"stays"


def test_stale_temporaries_are_removed_without_a_snapshot_as_well(store: Store, folder: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    (folder / f"{TEMPORARY}file").write_text("half")
    (folder / f"{TEMPORARY}folder").mkdir()
    (folder / f"{TEMPORARY}folder" / "inner").write_text("half")
    store.workspace.restore(snapshot, folder, keep_before=False, dry_run=True)
    assert len(list(folder.glob(f"{TEMPORARY}*"))) == 2
    store.workspace.restore(snapshot, folder, keep_before=False)
    assert not list(folder.glob(f"{TEMPORARY}*"))


@pytest.mark.parametrize("point", ["restore.file_written", "restore.file_placed"])
def test_a_restore_that_fails_halfway_changes_nothing(store: Store, tmp_path: Path, point: str) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for number in range(150):  # more folders than are held open, and more files than fit into one portion
        folder = source / f"a{number % 7}" / f"b{number}"
        folder.mkdir(parents=True)
        for name in range(5):
            (folder / f"f{name}").write_text(f"{number} {name}\n" * 30)
        (target / folder.relative_to(source)).mkdir(parents=True)
        (target / folder.relative_to(source) / "f0").write_text("was there")
    (source / "new" / "deep").mkdir(parents=True)
    (source / "new" / "deep").chmod(0o500)
    (source / "a0" / "b0").chmod(0o500)
    (target / "a0" / "b0").chmod(0o500)
    (target / "a1" / "b1" / "f1").symlink_to("f0")
    (target / "a2" / "b2" / "f2").mkdir()
    (target / "a2" / "b2" / "f2" / "inner").write_text("goes")
    (target / "gone").mkdir()
    (target / "gone" / "read-only").mkdir(mode=0o500)
    (target / "mode").write_text("x")
    (source / "mode").write_text("x")
    (target / "mode").chmod(0o600)
    snapshot = store.workspace.snapshot(source)
    whole, before = picture(source), picture(target)
    failpoints.arm(point, "raise:ENOSPC:300")
    try:
        with pytest.raises(StoreFull, match="entry 'a"):
            store.workspace.restore(snapshot, target, delete=True)
    finally:
        failpoints.disarm(point)
    assert picture(target) == before
    store.workspace.restore(snapshot, target, delete=True)
    assert picture(target) == whole


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_switch_that_fails_at_its_end_is_undone(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch, *, exchanges: bool
) -> None:
    if not exchanges:
        monkeypatch.setattr(restore_files, "_renameat2", None)  # as on some file systems
    snapshot = store.workspace.snapshot(folder)
    for path in ("src/main.py", "extra/inner", "README.md"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text("mine")
    (folder / "latest").unlink()
    (folder / "latest").symlink_to("README.md")
    (folder / "empty").rmdir()
    (folder / "run.sh").chmod(0o700)
    before = picture(folder)
    listed = [each.id for each in store.workspace.snapshots()]
    failpoints.arm("restore.switched", "raise:EIO")
    try:
        with pytest.raises(OSError, match="failpoint"):
            store.workspace.restore(snapshot, folder, delete=True, keep_before=False)
    finally:
        failpoints.disarm("restore.switched")
    assert picture(folder) == before
    assert [each.id for each in store.workspace.snapshots()] == listed


def test_progress_is_reported_in_order(store: Store, folder: Path, tmp_path: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    reported: list[FileProgress] = []
    done = store.workspace.restore(snapshot, tmp_path / "new", on_progress=reported.append)
    assert [each.bytes for each in reported] == sorted(each.bytes for each in reported)
    assert reported[-1].bytes == done.bytes_written
    assert {(each.of_files, each.of_bytes) for each in reported} == {(reported[-1].files, done.bytes_written)}


def test_progress_of_a_snapshot_counts_what_is_to_be_read(store: Store, folder: Path) -> None:
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "left_out.js").write_text("excluded by default")
    (folder / ".treeringignore").write_text("*.tmp\n")
    (folder / "left_out.tmp").write_text("excluded by a pattern")

    def progress_of_a_snapshot() -> list[FileProgress]:
        reported: list[FileProgress] = []
        store.workspace.snapshot(folder, on_progress=reported.append)
        return reported

    first = progress_of_a_snapshot()
    assert {(each.of_files, each.of_bytes) for each in first} == {(first[-1].files, first[-1].bytes)}
    (folder / "new.txt").write_text("one more")
    last = progress_of_a_snapshot()[-1]
    assert (last.files, last.bytes) == (last.of_files, last.of_bytes)


def test_large_files_are_put_together(store: Store, folder: Path, tmp_path: Path) -> None:
    (folder / "big.bin").write_bytes(random.Random(3).randbytes(20_000_000))
    for index in range(1200):
        (folder / f"f{index}").write_text(f"file {index % 700}")
    store.workspace.restore(store.workspace.snapshot(folder), tmp_path / "new")
    assert picture(tmp_path / "new") == picture(folder)


def test_setuid_is_dropped(store: Store, folder: Path, tmp_path: Path) -> None:
    (folder / "run.sh").chmod(0o4755)
    store.workspace.restore(store.workspace.snapshot(folder), tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new" / "run.sh").stat().st_mode) == 0o755


def test_hard_links_come_back_as_files_of_their_own(store: Store, folder: Path, tmp_path: Path) -> None:
    os.link(folder / "README.md", folder / "twin")
    store.workspace.restore(store.workspace.snapshot(folder), tmp_path / "new")
    assert (tmp_path / "new" / "twin").read_text() == "# Report\n"
    assert (tmp_path / "new" / "twin").stat().st_nlink == 1


def test_a_hard_link_in_the_target_does_not_lead_out(store: Store, folder: Path, tmp_path: Path) -> None:
    """Writing through a hard link would change the other file; a rename replaces the name only."""
    snapshot = store.workspace.snapshot(folder)
    outside = tmp_path / "outside.txt"
    outside.write_text("of the host")
    (folder / "README.md").unlink()
    os.link(outside, folder / "README.md")
    store.workspace.restore(snapshot, folder)
    assert outside.read_text() == "of the host"
    assert (folder / "README.md").read_text() == "# Report\n"


def test_the_policies_for_links(store: Store, folder: Path, tmp_path: Path) -> None:
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "src" / "up").symlink_to("../README.md")
    (folder / "src" / "far").symlink_to("../../x")
    snapshot = store.workspace.snapshot(folder)
    store.workspace.restore(snapshot, tmp_path / "all")
    assert picture(tmp_path / "all") == picture(folder)
    done = store.workspace.restore(snapshot, tmp_path / "inside", links="inside")
    assert sorted(done.left_links) == ["out", "src/far"]
    assert (tmp_path / "inside" / "src" / "up").is_symlink()
    done = store.workspace.restore(snapshot, tmp_path / "none", links="drop")
    assert not any(path.is_symlink() for path in (tmp_path / "none").rglob("*"))
    assert store.workspace.snapshot(tmp_path / "none") != snapshot


@pytest.mark.parametrize(
    "target, depth, inside",
    [
        ("a/b", 0, True),
        ("../a", 0, False),
        ("../a", 1, True),
        ("/a", 5, False),
        ("a/../b", 5, False),  # a may be a link
        ("./a//b", 0, True),
        ("..", 1, True),
        ("..", 0, False),
    ],
)
def test_which_links_stay_inside(target: str, depth: int, *, inside: bool) -> None:
    assert stays_inside(target, depth) is inside


def test_a_full_disk_is_found_out_before_anything_is_written(
    store: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = store.workspace.snapshot(folder)
    real = os.fstatvfs

    def nearly_full(descriptor: int):
        found = list(real(descriptor))
        found[4] = 0
        return os.statvfs_result(found)

    monkeypatch.setattr(restore.os, "fstatvfs", nearly_full)
    with pytest.raises(StoreFull, match="nothing was written"):
        store.workspace.restore(snapshot, tmp_path / "new")
    assert picture(tmp_path / "new") == {}


def test_unknown_snapshots_and_forbidden_targets(
    store: Store, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = store.workspace.snapshot(folder)
    with pytest.raises(NotFound, match=r"snapshot 0+ not found"):
        store.workspace.restore("0" * 64, tmp_path / "new")
    with pytest.raises(InvalidInput, match="not a snapshot"):
        store.workspace.restore("latest", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(InvalidInput, match="whole machine"):
        store.workspace.restore(snapshot, "/")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InvalidInput, match="home"):
        store.workspace.restore(snapshot, tmp_path)


def test_something_that_no_snapshot_holds_is_in_the_way(store: Store, folder: Path) -> None:
    snapshot = store.workspace.snapshot(folder)
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")
    with pytest.raises(Conflict, match=r"README\.md.*in the way"):
        store.workspace.restore(snapshot, folder)


_names = st.sampled_from(["a", "b", "c.txt", "d e", "ä", ".hidden", "[x]", "-r", "Ab"])
_trees = st.recursive(
    st.one_of(
        st.tuples(st.just("file"), st.binary(max_size=40), st.sampled_from([0o644, 0o755, 0o600])),
        st.tuples(st.just("link"), st.sampled_from(["a", "../b", "/nowhere"])),
    ),
    lambda inner: st.tuples(st.just("folder"), st.dictionaries(_names, inner, max_size=4)),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.dictionaries(_names, _trees, max_size=4), after=st.dictionaries(_names, _trees, max_size=4))
def test_any_folder_becomes_any_other_and_back(
    tmp_path_factory: pytest.TempPathFactory, before: dict, after: dict
) -> None:
    root = tmp_path_factory.mktemp("any")
    with treering.open("memory:") as store:
        _make(root / "one", before)
        _make(root / "two", after)
        one, two = store.workspace.snapshot(root / "one"), store.workspace.snapshot(root / "two")
        done = store.workspace.restore(two, root / "one", delete=True)
        assert picture(root / "one") == picture(root / "two")
        assert store.workspace.snapshot(root / "one") == two
        assert bool(done.written or done.removed) == (one != two)
        store.workspace.restore(one, root / "one", delete=True)
        assert store.workspace.snapshot(root / "one") == one


def _make(root: Path, tree: dict) -> None:
    root.mkdir()
    for name, (kind, *what) in tree.items():
        if kind == "folder":
            _make(root / name, what[0])
        elif kind == "link":
            (root / name).symlink_to(what[0])
        else:
            (root / name).write_bytes(what[0])
            (root / name).chmod(what[1])

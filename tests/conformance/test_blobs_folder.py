"""Blobs in a folder: the public suite, and cases that are specific to folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from treering.blobs.folder import FolderBlobs
from treering.core import failpoints
from treering.core.clock import DAY_US, SystemClock
from treering.core.storage import Blobs
from treering.errors import InvalidInput, NotFound, ReadOnly, StoreFull
from treering.testing.blobs_suite import BlobsSuite


class TestFolderBlobs(BlobsSuite):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        return FolderBlobs(tmp_path / "not" / "there" / "yet")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "root"


@pytest.fixture
def blobs(root):
    return FolderBlobs(root)


def test_reading_creates_no_folder(blobs, root):
    assert blobs.list() == []
    assert blobs.stat("one") is None
    blobs.delete(["one"])
    assert not root.exists()


def test_a_symlink_inside_is_not_followed(blobs, root, tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_bytes(b"secret")
    blobs.put("one", b"1")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "key").symlink_to(tmp_path / "secret" / "key")
    assert blobs.stat("out/key") is None
    assert [info.name for info in blobs.list()] == ["one"]
    with pytest.raises(NotFound):
        blobs.get("out/key")
    with pytest.raises(InvalidInput):
        blobs.get("key")
    with pytest.raises(InvalidInput, match="not of the expected kind"):
        blobs.put("out/planted", b"")
    blobs.delete(["out/key"])
    blobs.put("key", b"ours")
    assert (tmp_path / "secret" / "key").read_bytes() == b"secret"
    assert sorted(path.name for path in (tmp_path / "secret").iterdir()) == ["key"]
    assert blobs.get("key") == b"ours"


def test_a_named_pipe_does_not_block_a_reader(blobs, root):
    blobs.put("one", b"1")
    os.mkfifo(root / "pipe")
    assert blobs.stat("pipe") is None
    assert [info.name for info in blobs.list()] == ["one"]


def test_a_blob_is_not_also_a_folder(blobs):
    blobs.put("a", b"1")
    with pytest.raises(InvalidInput):
        blobs.put("a/b", b"2")
    blobs.put("c/d", b"3")
    with pytest.raises(InvalidInput):
        blobs.put("c", b"4")
    assert [info.name for info in blobs.list()] == ["a", "c/d"]


def test_a_failed_write_leaves_no_file(blobs, root):
    blobs.put("one", b"old")
    failpoints.arm("file.synced", "raise:ENOSPC")
    try:
        with pytest.raises(StoreFull, match="one"):
            blobs.put("one", b"new")
    finally:
        failpoints.disarm("file.synced")
    assert blobs.get("one") == b"old"
    assert list((root / ".drafts").iterdir()) == []


def test_an_unwritable_file_system_is_read_only(blobs):
    blobs.put("one", b"1")
    failpoints.arm("file.synced", "raise:EROFS")
    try:
        with pytest.raises(ReadOnly, match="permissions"):
            blobs.put("two", b"2")
    finally:
        failpoints.disarm("file.synced")


def test_temporary_files_of_dead_processes_are_deleted_after_a_day(blobs, root):
    blobs.put("one", b"1")
    old, young = root / ".drafts" / "old", root / ".drafts" / "young"
    old.write_bytes(b"half a blo")
    young.write_bytes(b"still being writ")
    two_days_ago = (SystemClock().now_us() - 2 * DAY_US) * 1000
    os.utime(old, ns=(two_days_ago, two_days_ago))
    FolderBlobs(root).put("two", b"2")
    assert [path.name for path in (root / ".drafts").iterdir()] == ["young"]
    assert [info.name for info in blobs.list()] == ["one", "two"]


def test_etags_survive_a_copy_of_the_folder(blobs, tmp_path):
    etag = blobs.put_if("refs/main", b"1", expect=None)
    (tmp_path / "copy" / "refs").mkdir(parents=True)
    (tmp_path / "copy" / "refs" / "main").write_bytes(blobs.get("refs/main"))
    FolderBlobs(tmp_path / "copy").put_if("refs/main", b"2", expect=etag)


@pytest.mark.faults
def test_no_update_is_lost_between_processes(blobs, root):
    blobs.put("count", b"0")
    script = f"""
from treering.blobs.folder import FolderBlobs
from treering.errors import Conflict
blobs = FolderBlobs({str(root)!r})
for _ in range(50):
    while True:
        held = blobs.read("count")
        try:
            blobs.put_if("count", str(int(held.data) + 1).encode(), expect=held.etag)
            break
        except Conflict:
            pass
"""
    children = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(4)]
    assert [child.wait(timeout=100) for child in children] == [0] * 4
    assert blobs.get("count") == b"200"


@pytest.mark.faults
@pytest.mark.parametrize("moment", ["file.synced", "file.renamed"])
def test_a_blob_is_whole_or_absent_wherever_its_writer_dies(blobs, root, moment):
    script = f"""
from treering.blobs.folder import FolderBlobs
blobs = FolderBlobs({str(root)!r})
for number in range(9):
    blobs.put(f"packs/{{number}}", bytes([number]) * 100_000)
    print(number, flush=True)
"""
    child = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TREERING_FAILPOINTS": f"{moment}=kill:5"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == -9
    acknowledged = [int(line) for line in child.stdout.split()]
    assert acknowledged == [0, 1, 2, 3]
    present = [info.name for info in blobs.list("packs")]
    assert present[:4] == [f"packs/{number}" for number in acknowledged]
    for name in present:
        assert blobs.get(name) == bytes([int(name[-1])]) * 100_000
    blobs.put("packs/4", b"again", if_absent="packs/4" not in present)

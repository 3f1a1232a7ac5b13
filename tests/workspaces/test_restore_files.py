"""Writing restored files: atomic, abandoned cleanly, sparse, and copied from the old version if possible."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import treering
from treering.core.content import Content
from treering.core.tree import FileEntry
from treering.store import Store
from treering.workspaces import restore_files
from treering.workspaces.restore_files import (
    CopyRange,
    ExistingFile,
    FileWriter,
    merge_ranges,
    write_sparse,
)
from treering.workspaces.scan import CachedFile, FileStamp

PIECES = [Content("bytes", bytes([number]) * 1_000_000) for number in range(1, 13)]
LARGE = FileEntry(
    name="large", mode=0o644, size=12_000_000, content=tuple(content.name for content in PIECES)
)


class Folder:
    """A folder in the staging area."""

    path = ""
    existing = -1

    def __init__(self, staged: int) -> None:
        self.staged = staged
        self.cached: dict[str, CachedFile] = {}
        self.stamps: dict[str, FileStamp] = {}
        self.cuts: dict[str, tuple[int, ...]] = {}


class Contents:
    """Contents in memory; can stop the writer at the second read."""

    def __init__(self) -> None:
        self.reads = 0
        self.stop_on_second: FileWriter | None = None

    def contents(self, names: Sequence[str]) -> dict[str, Content]:
        self.reads += 1
        if self.stop_on_second is not None and self.reads == 2:
            self.stop_on_second.stop()
        return {content.name: content for content in PIECES if content.name in names}

    def expect(self, names: Sequence[str]) -> None: ...


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Folder]:
    folder = os.open(tmp_path, os.O_RDONLY)
    yield Folder(folder)
    os.close(folder)


def test_a_large_file_is_written_batch_by_batch(target: Folder, tmp_path: Path) -> None:
    source = Contents()
    with FileWriter(source) as writer:
        writer.finish(writer.add(target, LARGE))
    assert source.reads == 3
    assert (tmp_path / "large").read_bytes() == b"".join(content.data for content in PIECES)
    assert list(target.stamps) == ["large"]


def test_an_abandoned_large_file_leaves_nothing_behind(target: Folder, tmp_path: Path) -> None:
    source = Contents()
    with FileWriter(source) as writer:
        source.stop_on_second = writer
        writer.add(target, LARGE)
        writer.wait()
    assert source.reads == 2
    assert list(tmp_path.iterdir()) == []


SIZE = 6_000_000


@pytest.fixture(autouse=True)
def every_stamp_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file counts as changed just now."""
    monkeypatch.setattr("treering.workspaces.scan._TICK_NS", -(10**12))


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each copied range."""
    sizes: list[int] = []
    real = ExistingFile.copy

    def copy(self: ExistingFile, some: CopyRange, into: int) -> None:
        sizes.append(some.size)
        real(self, some, into)

    monkeypatch.setattr(ExistingFile, "copy", copy)
    return sizes


def edited(store: Store, folder: Path, seed: int = 1) -> tuple[list[str], list[bytes]]:
    """Three snapshots of a large file: original, changed in the middle, grown in the middle."""
    rng = random.Random(seed)
    one = rng.randbytes(SIZE)
    two = one[:3_000_000] + rng.randbytes(100_000) + one[3_100_000:]
    three = two[:1_000_000] + rng.randbytes(77_777) + two[1_000_000:]
    taken: list[str] = []
    for data in (one, two, three):
        (folder / "big.bin").write_bytes(data)
        taken.append(store.workspace.snapshot(folder))
    return taken, [one, two, three]


def test_restoring_any_version_of_a_large_file_copies_most_of_it(
    store: Store, folder: Path, copied: list[int]
) -> None:
    taken, contents = edited(store, folder)
    for step in (1, 0, 2, 1, 2, 0):  # each but the first from a file that a restore has written
        copied.clear()
        store.workspace.restore(taken[step], folder)
        assert (folder / "big.bin").read_bytes() == contents[step]
        assert sum(copied) > SIZE * 0.5
        assert len(copied) < 5  # neighbours go together
        assert store.workspace.snapshot(folder) == taken[step]


def test_another_process_copies_ranges_as_well(store: Store, folder: Path, copied: list[int]) -> None:
    taken, contents = edited(store, folder)
    with treering.open(store.url) as other:
        other.workspace.restore(taken[0], folder)
    assert (folder / "big.bin").read_bytes() == contents[0]
    assert sum(copied) > SIZE * 0.5


def test_a_file_that_changes_while_it_is_copied_is_written_whole(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, contents = edited(store, folder)
    real = ExistingFile.copy
    met: list[CopyRange] = []

    def copy(self: ExistingFile, some: CopyRange, into: int) -> None:
        met.append(some)
        with (folder / "big.bin").open("r+b") as file:
            file.write(b"meanwhile")
        real(self, some, into)

    monkeypatch.setattr(ExistingFile, "copy", copy)
    store.workspace.restore(taken[0], folder)
    assert met
    assert (folder / "big.bin").read_bytes() == contents[0]


def test_a_file_that_is_truncated_meanwhile_is_written_whole(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, contents = edited(store, folder)
    real = ExistingFile.copy

    def copy(self: ExistingFile, some: CopyRange, into: int) -> None:
        os.truncate(folder / "big.bin", 10)
        real(self, some, into)

    monkeypatch.setattr(ExistingFile, "copy", copy)
    store.workspace.restore(taken[0], folder)
    assert (folder / "big.bin").read_bytes() == contents[0]


def test_nothing_is_copied_from_a_file_that_was_swapped(
    store: Store, folder: Path, tmp_path: Path, copied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither through a link that was swapped in, nor from a file that changed since the scan."""
    taken, contents = edited(store, folder)
    real = restore_files.open_existing
    (tmp_path / "elsewhere").write_bytes(b"x" * SIZE)

    def swapped(name: str, place: int, known: object) -> ExistingFile | None:
        (folder / "big.bin").unlink()
        (folder / "big.bin").symlink_to(tmp_path / "elsewhere")
        return real(name, place, known)

    monkeypatch.setattr(restore_files, "open_existing", swapped)
    store.workspace.restore(taken[0], folder)
    assert not copied
    assert (folder / "big.bin").read_bytes() == contents[0]
    assert not (folder / "big.bin").is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"x" * SIZE


def test_copying_keeps_holes(store: Store, folder: Path, copied: list[int]) -> None:
    rng = random.Random(3)
    head, tail = rng.randbytes(1_500_000), rng.randbytes(1_500_000)
    taken: list[str] = []
    for end in (tail, tail[:-5]):
        with (folder / "big.bin").open("wb") as file:
            file.write(head)
            file.seek(20_000_000, os.SEEK_CUR)
            file.write(end)
        taken.append(store.workspace.snapshot(folder))
    store.workspace.restore(taken[0], folder)
    assert not copied
    assert (folder / "big.bin").stat().st_blocks * 512 < 10_000_000
    assert (folder / "big.bin").read_bytes() == head + bytes(20_000_000) + tail


def test_without_copy_file_range_the_bytes_are_read_and_written(
    store: Store, folder: Path, copied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(restore_files.os, "copy_file_range", refused, raising=False)
    taken, contents = edited(store, folder)
    store.workspace.restore(taken[0], folder)
    assert (folder / "big.bin").read_bytes() == contents[0]
    assert sum(copied) > SIZE * 0.5


def test_adjoining_ranges_are_merged() -> None:
    pieces = [
        CopyRange(0, 5),
        CopyRange(5, 5),
        b"new",
        CopyRange(10, 1),
        CopyRange(20, 2),
        b"",
        CopyRange(22, 1),
    ]
    assert list(merge_ranges(iter(pieces))) == [
        CopyRange(0, 10),
        b"new",
        CopyRange(10, 1),
        CopyRange(20, 2),
        b"",
        CopyRange(22, 1),
    ]


_RUNS = st.lists(
    st.tuples(st.sampled_from([b"\0", b"x"]), st.integers(1, 20_000) | st.sampled_from([4096, 8192])),
    max_size=8,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_RUNS, st.lists(st.integers(1, 50_000), max_size=4))
def test_sparse_writes_keep_every_byte_and_take_no_blocks_for_zeros(
    tmp_path: Path, runs: list[tuple[bytes, int]], cuts: list[int]
) -> None:
    data = b"".join(byte * size for byte, size in runs)
    path = tmp_path / "file"
    with path.open("wb") as file:
        edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        for start, stop in pairwise(edges):
            write_sparse(file.fileno(), data[start:stop])
        os.ftruncate(file.fileno(), len(data))
    assert path.read_bytes() == data
    blocks = [data[at : at + 4096] for at in range(0, len(data), 4096)]
    # A run shorter than a block at the edge of a piece may continue in the next one, which is unknown here.
    assert path.stat().st_blocks <= 8 * (sum(any(block) for block in blocks) + len(edges))

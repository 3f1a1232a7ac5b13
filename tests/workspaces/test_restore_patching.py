"""Going back in a large file: what is in its place already is copied from there, if it is still the same."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

import treering
from treering.store import Store
from treering.workspaces import restore_files
from treering.workspaces.restore_files import Present, Range, joined

SIZE = 6_000_000


@pytest.fixture(autouse=True)
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is too young to be known by its stamp."""
    monkeypatch.setattr("treering.workspaces.scan._TICK_NS", -(10**12))


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes were copied, run by run."""
    sizes: list[int] = []
    real = Present.copy

    def copy(self: Present, some: Range, into: int) -> None:
        sizes.append(some.size)
        real(self, some, into)

    monkeypatch.setattr(Present, "copy", copy)
    return sizes


def edited(store: Store, folder: Path, seed: int = 1) -> tuple[list[str], list[bytes]]:
    """Three snapshots of a large file: as it was, changed in the middle, and grown there."""
    rng = random.Random(seed)
    one = rng.randbytes(SIZE)
    two = one[:3_000_000] + rng.randbytes(100_000) + one[3_100_000:]
    three = two[:1_000_000] + rng.randbytes(77_777) + two[1_000_000:]
    taken: list[str] = []
    for data in (one, two, three):
        (folder / "big.bin").write_bytes(data)
        taken.append(store.workspace.snapshot(folder))
    return taken, [one, two, three]


def test_any_step_gives_the_bytes_and_copies_most(store: Store, folder: Path, copied: list[int]) -> None:
    taken, contents = edited(store, folder)
    for step in (1, 0, 2, 1, 2, 0):  # each but the first from a file that a restore has written
        copied.clear()
        store.workspace.restore(taken[step], folder)
        assert (folder / "big.bin").read_bytes() == contents[step]
        assert sum(copied) > SIZE * 0.5
        assert len(copied) < 5  # neighbours go together
        assert store.workspace.snapshot(folder) == taken[step]


def test_another_process_patches_as_well(store: Store, folder: Path, copied: list[int]) -> None:
    taken, contents = edited(store, folder)
    with treering.open(store.url) as other:
        other.workspace.restore(taken[0], folder)
    assert (folder / "big.bin").read_bytes() == contents[0]
    assert sum(copied) > SIZE * 0.5


def test_a_file_that_changes_while_it_is_copied_is_written_whole(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, contents = edited(store, folder)
    real = Present.copy
    met: list[Range] = []

    def copy(self: Present, some: Range, into: int) -> None:
        met.append(some)
        with (folder / "big.bin").open("r+b") as file:
            file.write(b"meanwhile")
        real(self, some, into)

    monkeypatch.setattr(Present, "copy", copy)
    store.workspace.restore(taken[0], folder)
    assert met
    assert (folder / "big.bin").read_bytes() == contents[0]


def test_a_file_that_was_cut_short_meanwhile_is_written_whole(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, contents = edited(store, folder)
    real = Present.copy

    def copy(self: Present, some: Range, into: int) -> None:
        os.truncate(folder / "big.bin", 10)
        real(self, some, into)

    monkeypatch.setattr(Present, "copy", copy)
    store.workspace.restore(taken[0], folder)
    assert (folder / "big.bin").read_bytes() == contents[0]


def test_nothing_is_copied_from_a_file_that_is_not_the_known_one(
    store: Store, folder: Path, tmp_path: Path, copied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither through a link that was swapped in, nor out of what changed since it was looked at."""
    taken, contents = edited(store, folder)
    real = restore_files.opened_present
    (tmp_path / "elsewhere").write_bytes(b"x" * SIZE)

    def swapped(name: str, place: int, known: object) -> Present | None:
        (folder / "big.bin").unlink()
        (folder / "big.bin").symlink_to(tmp_path / "elsewhere")
        return real(name, place, known)

    monkeypatch.setattr(restore_files, "opened_present", swapped)
    store.workspace.restore(taken[0], folder)
    assert not copied
    assert (folder / "big.bin").read_bytes() == contents[0]
    assert not (folder / "big.bin").is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"x" * SIZE


def test_holes_are_not_filled_by_copying(store: Store, folder: Path, copied: list[int]) -> None:
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


def test_a_system_that_cannot_copy_reads_and_writes(
    store: Store, folder: Path, copied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(restore_files.os, "copy_file_range", refused, raising=False)
    taken, contents = edited(store, folder)
    store.workspace.restore(taken[0], folder)
    assert (folder / "big.bin").read_bytes() == contents[0]
    assert sum(copied) > SIZE * 0.5


def test_neighbouring_ranges_are_one() -> None:
    pieces = [Range(0, 5), Range(5, 5), b"new", Range(10, 1), Range(20, 2), b"", Range(22, 1)]
    assert list(joined(iter(pieces))) == [Range(0, 10), b"new", Range(10, 1), Range(20, 2), b"", Range(22, 1)]

"""Sparse files: holes are not read, and are restored as holes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.workspaces.pictures import picture
from treering.store import Store


def test_sparse_files_keep_their_holes(store: Store, folder: Path, tmp_path: Path) -> None:
    hollow = folder / "disk.img"
    with hollow.open("wb") as file:
        file.write(b"head")
        file.seek(48 * 1024 * 1024)
        file.write(b"tail")
    snapshot = store.workspace.snapshot(folder)
    assert store.stats().total_bytes < 500_000
    store.workspace.restore(snapshot, tmp_path / "new")
    restored = tmp_path / "new" / "disk.img"
    assert picture(tmp_path / "new") == picture(folder)
    assert restored.stat().st_blocks * 512 < 8 * 1024 * 1024


def test_a_sparse_end_is_restored(store: Store, folder: Path, tmp_path: Path) -> None:
    with (folder / "disk.img").open("wb") as file:
        file.write(b"head")
        file.truncate(20 * 1024 * 1024)
    store.workspace.restore(store.workspace.snapshot(folder), tmp_path / "new")
    assert picture(tmp_path / "new") == picture(folder)


def test_a_restored_file_takes_as_little_of_the_disk(store: Store, folder: Path, tmp_path: Path) -> None:
    hollow = folder / "disk.img"
    with hollow.open("wb") as file:
        for place in (100, 7_000_001, 33_333_333, 90_000_000):
            file.seek(place)
            file.write(b"data" * 900)
        file.truncate(200_000_001)
    store.workspace.restore(store.workspace.snapshot(folder), tmp_path / "new")
    restored = tmp_path / "new" / "disk.img"
    assert restored.read_bytes() == hollow.read_bytes()
    assert restored.stat().st_blocks <= hollow.stat().st_blocks + 8


def test_holes_are_not_read_and_leave_the_name_as_it_is(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    readv = os.readv

    def counted(file: int, buffers: list[memoryview]) -> int:
        nonlocal read
        read += (got := readv(file, buffers))
        return got

    monkeypatch.setattr(os, "readv", counted)
    ids: list[str] = []
    for name, hole in (("hollow", True), ("filled", False)):
        place = tmp_path / name
        place.mkdir()
        with (place / "disk.img").open("wb") as file:
            for data in (b"head", b"middle" * 500_000, b"tail"):
                file.write(data)
                if hole:
                    file.truncate(file.seek(30_000_000, os.SEEK_CUR))
                else:
                    file.write(bytes(30_000_000))
        ids.append(store.workspace.snapshot(place))
        assert (read < 25_000_000) == hole
    assert ids[0] == ids[1]
    assert store.workspace.check(ids[0]).ok

"""Snapshots in every kind of store: memory, PostgreSQL, and packs in an S3 bucket."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import treering
from tests.servers.bucket import S3Bucket
from tests.workspaces.pictures import picture
from treering.blobs.s3 import S3Blobs
from treering.store import Store
from treering.workspaces import scan


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def walk_through(store: Store, folder: Path, tmp_path: Path) -> None:
    (folder / "big.bin").write_bytes(random.Random(1).randbytes(3_000_000))
    for number in range(300):
        (folder / f"f{number:03}").write_text(f"file {number}\n" * 50)
    first = store.workspace.snapshot(folder)
    before = picture(folder)
    (folder / "README.md").write_text("edited")
    second = store.workspace.snapshot(folder)
    assert [each.path for each in store.workspace.diff(first, second)] == ["README.md"]
    store.workspace.restore(first, tmp_path / "new")
    assert picture(tmp_path / "new") == before
    store.workspace.restore(first, folder, delete=True)
    assert picture(folder) == before
    assert store.workspace.check(second).ok
    checkpoint = store.thread("t").checkpoint(workspace=folder)
    assert checkpoint is not None
    assert checkpoint.snapshot == first
    assert store.verify().ok


def test_in_memory(folder: Path, tmp_path: Path) -> None:
    with treering.open("memory:") as store:
        walk_through(store, folder, tmp_path)
    assert not (tmp_path / "caches").exists()


def test_in_postgresql(postgres_url: str, folder: Path, tmp_path: Path) -> None:
    with treering.open(postgres_url) as store:
        walk_through(store, folder, tmp_path)
    assert list((tmp_path / "caches" / "treering").rglob("*.known"))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the blobs that are put into a bucket."""
    puts: list[str] = []
    put = S3Blobs.put

    def counting(self, name, data, **options) -> None:
        puts.append(name)
        put(self, name, data, **options)

    monkeypatch.setattr(S3Blobs, "put", counting)
    return puts


def test_packs_in_a_bucket(s3: S3Bucket, folder: Path, tmp_path: Path) -> None:
    with treering.open(tmp_path / "store", blobs=blobs_of(s3)) as store:
        walk_through(store, folder, tmp_path)


def test_an_incremental_snapshot_is_few_requests(
    s3: S3Bucket, counted: list[str], folder: Path, tmp_path: Path
) -> None:
    """300 small files are one pack, not 300 requests; an edit of 1 % is at most two."""
    rng = random.Random(2)
    for number in range(300):
        (folder / f"f{number:03}").write_bytes(rng.randbytes(20_000))
    with treering.open(tmp_path / "store", blobs=blobs_of(s3)) as store:
        store.workspace.snapshot(folder)
        assert len(counted) <= 2
        counted.clear()
        for number in range(100):
            (folder / f"f{number:03}").write_bytes(rng.randbytes(20_000))
        store.workspace.snapshot(folder)
        assert len(counted) <= 2


def blobs_of(s3: S3Bucket) -> S3Blobs:
    return S3Blobs(
        s3.bucket,
        prefix="rings",
        endpoint=s3.endpoint,
        access_key_id=s3.access_key,
        secret_access_key=s3.secret_key,
        region=s3.region,
    )


def test_a_stat_cache_belongs_to_one_store(folder: Path, tmp_path: Path) -> None:
    """Two stores on one folder do not take each other's content for their own."""
    with treering.open(tmp_path / "one") as one, treering.open(tmp_path / "two") as two:
        snapshot = one.workspace.snapshot(folder)
        assert two.workspace.snapshot(folder) == snapshot
        assert two.workspace.check(snapshot).ok
    shelf = scan.StatCache(None)
    assert shelf.load(str(folder)) is None

"""Snapshots during garbage collection and forgetting: every committed snapshot is complete."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path

import pytest

import treering
from treering.errors import NotFound, TreeringError
from treering.store import Store
from treering.workspaces import scan


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trust every stamp, so that nearly nothing is read again and all hangs on what is known."""
    now_ns = scan.time_ns
    monkeypatch.setattr(scan, "time_ns", lambda: now_ns() + 60 * 10**9)


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize("url", ["memory:", "folder"])
def test_snapshots_beside_a_collector_that_takes_everything(tmp_path: Path, folder: Path, url: str) -> None:
    """Every snapshot is forgotten as soon as it is seen; none is ever committed with a part missing."""
    rng = random.Random(4)
    for number in range(40):
        (folder / f"d{number % 8}").mkdir(exist_ok=True)
        (folder / f"d{number % 8}" / f"f{number}").write_bytes(rng.randbytes(5000))
    with treering.open(url if url == "memory:" else tmp_path / "store", durability="fast") as store:
        stop = threading.Event()
        failed: list[BaseException] = []

        def collect() -> None:
            try:
                while not stop.is_set():
                    with contextlib.suppress(NotFound):
                        store.forget(scope="/workspace/w")
                    store.gc(grace_seconds=0)
            except BaseException as error:  # noqa: BLE001 - asserted below
                failed.append(error)

        collector = threading.Thread(target=collect)
        collector.start()
        try:
            for number in range(60):
                (folder / f"d{number % 8}" / f"f{number % 40}").write_bytes(rng.randbytes(5000))
                try:
                    store.workspace.snapshot(folder, name="w")
                except TreeringError as error:
                    assert error.retryable, error  # noqa: PT017
        finally:
            stop.set()
            collector.join()
        assert not failed
        last = store.workspace.snapshot(folder, name="w")
        assert store.workspace.check(last).ok
        assert store.verify().ok


@pytest.mark.usefixtures("trusting")
def test_a_dropped_snapshot_leaves_the_shared_files_to_the_others(store: Store, folder: Path) -> None:
    first = store.workspace.snapshot(folder, name="w")
    (folder / "README.md").write_bytes(b"new" * 5000)
    second = store.workspace.snapshot(folder, name="w")
    store.gc(keep=treering.Keep(last=1), grace_seconds=0)
    assert [each.id for each in store.workspace.snapshots()] == [second]
    assert store.workspace.check(second).ok
    (folder / "README.md").write_text("# Report\n")
    assert store.workspace.snapshot(folder, name="w") == first
    assert store.workspace.check(first).ok
    assert store.verify().ok

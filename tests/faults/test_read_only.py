"""Where nothing can be written, a new process reads; it writes nothing, loses nothing and never hangs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disks import SmallDisk, small_disk
from tests.faults.loads import fate, linking, load, pieces
from tests.faults.stores import StoreLocation, sqlite_location
from treering.cli.main import main
from treering.core.query import EventQuery
from treering.engines.sql.schema import SQLITE_FILE
from treering.errors import Corrupt, ReadOnly, StoreFull
from treering.limits import budgets as budgets_module
from treering.runs import recorder as recorder_module
from treering.store import Store

WRITES = {
    "append": lambda store: store.thread("new").append({"role": "user", "content": "hello"}),
    "submit": lambda store: store.submit(load(99)),
    "stage": lambda store: store.engine.stage(store.space, pieces(9)),
    "claim": lambda store: store.engine.claim(store.space, "lease", holder="me", seconds=1),
    "gc": lambda store: store.gc(grace_seconds=0),
    "forget": lambda store: store.forget(thread="support"),
    "reindex": lambda store: store.reindex(),
    "budget": lambda store: store.budgets.set("b", per="run", tokens=1),
}


@contextlib.contextmanager
def frozen(folder: Path, *, shm: bool) -> Iterator[Path]:
    """Make a folder read-only: as root by a mount, else by its permissions, which bind everyone else."""
    if not shm:
        (folder / (SQLITE_FILE + "-shm")).unlink(missing_ok=True)
    bind = ["mount", "--bind", str(folder), str(folder)]
    if os.geteuid() == 0 and not subprocess.run(bind, capture_output=True, check=False).returncode:
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
            yield folder
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
        return
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere, and may not mount here")
    paths = [folder, *folder.rglob("*")]
    modes = {path: path.stat().st_mode for path in paths}
    for path in paths:
        path.chmod(modes[path] & ~0o222)
    try:
        yield folder
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@pytest.fixture
def location(tmp_path: Path) -> StoreLocation:
    """A store with packs and a thread, whose writer was killed: the last commits are pending in its log."""
    location = sqlite_location(tmp_path / "store")
    with location.open() as store:
        store.engine.stage(store.space, pieces(0))
        store.commit(linking(0))
        store.thread("support").append({"role": "user", "content": "a question about trees"})
        store.memory.save("facts", "trees have rings")
    script = (
        "import os, sys, treering; store = treering.open(sys.argv[1]); "
        "[store.thread('killed').append({'role': 'user', 'content': str(n)}) for n in range(5)]; "
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, location.url], check=False)
    return location


@pytest.mark.parametrize("shm", [True, False])
def test_a_killed_store_on_a_read_only_mount_is_read_whole(location: StoreLocation, *, shm: bool):
    with frozen(Path(location.url), shm=shm) as folder:
        before = contents(folder)
        with location.open() as store:
            reads_everything(store)
            for write in WRITES.values():
                with pytest.raises(ReadOnly, match="cannot be written"):
                    write(store)
        assert contents(folder) == before
    with location.open() as store:
        reads_everything(store)
        WRITES["append"](store)


@pytest.mark.parametrize("shm", [True, False])
def test_the_command_line_reads_a_read_only_store(location: StoreLocation, *, shm: bool):
    with frozen(Path(location.url), shm=shm):
        assert "killed" in run_cli("threads", location)
        assert json.loads(run_cli("verify", location, "--json"))["ok"]
        run_cli("gc", location, "--dry-run")
        run_cli("stats", location)


def test_a_copy_for_reading_is_removed(
    location: StoreLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with frozen(Path(location.url), shm=False):
        store = location.open()
        assert list(tmp_path.glob("treering-read-*"))
        store.close()
        assert not list(tmp_path.glob("treering-read-*"))


def test_a_lost_log_is_noticed_on_a_read_only_mount(location: StoreLocation):
    (Path(location.url) / (SQLITE_FILE + "-wal")).unlink()
    with (
        frozen(Path(location.url), shm=False),
        pytest.raises(Corrupt, match="acknowledged commits are missing"),
    ):
        location.open()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as made:
        if type(made) is not SmallDisk:
            pytest.skip("needs a small file system; simulated disks do not bound shared memory")
        yield made


@pytest.mark.parametrize("shm", [True, False])
@pytest.mark.parametrize("room", [0, 8_000, 36_000])
def test_a_new_process_reads_a_killed_store_on_a_full_disk(
    disk: SmallDisk, location: StoreLocation, *, shm: bool, room: int
):
    folder = disk.folder / "store"
    shutil.copytree(location.url, folder)
    if not shm:
        (folder / (SQLITE_FILE + "-shm")).unlink()
    full = sqlite_location(folder)
    disk.fill(None, room=room)
    assert "killed" in run_cli("threads", full)
    assert json.loads(run_cli("verify", full, "--json"))["ok"]
    run_cli("gc", full, "--dry-run")
    with full.open() as store:
        reads_everything(store)
        disk.fill(None)
        with pytest.raises(StoreFull):
            store.engine.stage(store.space, pieces(1))
    disk.free(None)
    with full.open() as store:
        reads_everything(store)
        store.commit(load(0))
        assert fate(store.engine, load(0)) == "whole"
        assert store.verify().ok


def test_flush_and_budgets_wait_for_no_full_disk(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch):
    """The first failures take a moment; afterwards the agent goes on, and nothing that fits is lost."""
    monkeypatch.setattr(recorder_module, "_GIVE_UP_SECONDS", 0.3)
    monkeypatch.setattr(recorder_module.Recorder.flush, "__kwdefaults__", {"patience": 0.3})
    monkeypatch.setattr(budgets_module, "_PATIENCE_SECONDS", 0.1)
    location = sqlite_location(disk.folder / "store")
    with location.open() as store:
        store.budgets.set("calls", per="store", tool_calls=1000)
        with store.run(agent="a", id="before") as run, run.span("t", kind="tool"):
            pass
        store.flush()
        disk.fill(store)
        with store.run(agent="a", id="during") as run:
            for _ in range(3):
                with run.span("t", kind="tool") as span:
                    span.output = "x" * 400_000
            with pytest.raises(StoreFull, match="wait in memory"):
                store.flush()
        disk.free(store)
        store.flush()
        assert store.runs.load("during").status == "ok"
    with location.open() as store:
        assert store.runs.load("during").status == "ok"
        assert store.verify().ok


def test_closing_on_a_full_disk_reports_the_loss_once(disk: SmallDisk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recorder_module, "_GIVE_UP_SECONDS", 0.3)
    monkeypatch.setattr(recorder_module, "BATCH_LIMIT", 10)
    store = sqlite_location(disk.folder / "store").open()
    store.commit(load(0))
    disk.fill(store)
    with store.run(agent="a") as run:
        for _ in range(40):
            with run.span("t", kind="tool") as span:
                span.output = "x" * 100_000
    with pytest.warns(RuntimeWarning, match="could not be recorded.*disk is full"), pytest.raises(StoreFull):
        store.close()
    disk.free(None)
    with sqlite_location(disk.folder / "store").open() as store:
        assert fate(store.engine, load(0)) == "whole"
        assert store.verify().ok


def reads_everything(store: Store) -> None:
    assert store.verify().problems == ()
    assert {each.id for each in store.threads()} >= {"support", "killed"}
    killed = store.thread("killed").load()
    assert killed is not None
    assert [message["content"] for message in killed.messages] == ["0", "1", "2", "3", "4"]
    assert fate(store.engine, linking(0)) == "whole"
    assert store.engine.scan(store.space, EventQuery()).records
    assert [found.document.id for found in store.memory.search("rings")] == ["facts"]
    assert store.gc(dry_run=True).dropped == {}
    assert store.stats()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run_cli(command: str, location: StoreLocation, *options: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main([command, "--store", location.url, *options])
    assert not ended.value.code, out.getvalue()
    return out.getvalue()

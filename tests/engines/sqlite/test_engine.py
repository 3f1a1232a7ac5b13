"""Opening a store that is not there yet, from several sides at once; following it; and what a folder knows:
that it held a store, and how far its database had come.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

import treering
from tests.faults.loads import load
from tests.faults.stores import killed_after, killed_at, sqlite_location
from treering.api import accept_loss, open_existing
from treering.cli.main import main
from treering.engines.sql.schema import SQLITE_FILE
from treering.engines.sqlite import commit_log
from treering.engines.sqlite.commit_log import LAST
from treering.engines.sqlite.engine import MARKER
from treering.errors import Corrupt
from treering.testing.batches import noise

OPENERS = 4


def test_several_may_make_one_store_at_once(tmp_path):
    barrier = Barrier(OPENERS)

    def opened(folder, number):
        barrier.wait()
        with treering.open(folder, durability="fast") as store:
            store.thread(f"t{number}").append({"role": "user", "content": "here"})

    with ThreadPoolExecutor(OPENERS) as pool:
        for turn in range(12):
            folder = tmp_path / str(turn)
            for each in [pool.submit(opened, folder, number) for number in range(OPENERS)]:
                each.result()
            with treering.open(folder) as store:
                assert len(list(store.threads())) == OPENERS


_CLOSES_WHILE_OTHERS_WAIT = """
import random, sys, threading, time
from contextlib import suppress
from pathlib import Path
import treering

for number in range(30):
    store = treering.open(Path(sys.argv[1]) / str(number), durability="fast")
    store.state.set("a", 1)

    def follow():
        with suppress(treering.errors.Closed):
            store.engine.wait(store.space, 10**6, seconds=5)

    waiting = [threading.Thread(target=follow) for _ in range(4)]
    for each in waiting:
        each.start()
    time.sleep(random.uniform(0, 0.01))
    store.close()
    for each in waiting:
        each.join()
"""


def test_closing_a_store_that_others_follow_ends_their_waiting(tmp_path):
    """In a process of its own: a connection that is closed while it is asked takes the interpreter along."""
    done = subprocess.run(
        [sys.executable, "-c", _CLOSES_WHILE_OTHERS_WAIT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed store with a pack, a snapshot and a thread."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("notes")
    folder = tmp_path / "store"
    with treering.open(folder) as store:
        store.thread("support").append({"role": "user", "content": "hello"})
        store.workspace.snapshot(work)
        store.engine.stage(store.space, [noise(3_000_000, seed=1)])
    return folder


def lose(folder: Path, how: str) -> None:
    for name in (SQLITE_FILE, SQLITE_FILE + "-shm", SQLITE_FILE + "-wal"):
        (folder / name).unlink(missing_ok=True)
    if how == "empty":
        (folder / SQLITE_FILE).touch()


@pytest.mark.parametrize("how", ["missing", "empty"])
@pytest.mark.parametrize("kept", [MARKER, "blobs", "workspaces"])
def test_a_store_without_its_database_is_not_begun_anew(folder: Path, how: str, kept: str):
    lose(folder, how)
    for name in {MARKER, "blobs", "workspaces"} - {kept}:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = sorted(path.name for path in folder.iterdir())
    for opens in (treering.open, open_existing):
        with pytest.raises(Corrupt, match=rf"{how}.*held a store.*restore the folder from a backup"):
            opens(folder)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_database_that_lost_its_tables_is_not_filled_again(folder: Path):
    lose(folder, "missing")
    other = folder.with_name("other")
    connection = sqlite3.connect(other)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    shutil.move(other, folder / SQLITE_FILE)
    with pytest.raises(Corrupt, match="has no tables, but its folder held a store"):
        treering.open(folder)


def test_the_database_of_another_store_is_refused(folder: Path, tmp_path: Path):
    with treering.open(tmp_path / "other") as other:
        other.thread("t").append({"role": "user", "content": "hello"})
    lose(folder, "missing")
    (folder / (SQLITE_FILE + LAST)).unlink()
    shutil.copy(tmp_path / "other" / SQLITE_FILE, folder / SQLITE_FILE)
    with pytest.raises(Corrupt, match="the database was replaced"):
        treering.open(folder)


def test_a_store_whose_marker_was_removed_gets_it_again(folder: Path):
    marker = json.loads((folder / MARKER).read_text())
    (folder / MARKER).unlink()
    treering.open(folder).close()
    assert json.loads((folder / MARKER).read_text())["store"] == marker["store"]


@pytest.mark.parametrize("content", ["", "{}", "[1]", "\xff"])
def test_a_damaged_marker_is_reported(folder: Path, content: str):
    (folder / MARKER).write_text(content, encoding="latin-1")
    with pytest.raises(Corrupt, match=r"store\.json is damaged"):
        treering.open(folder)


def test_a_folder_of_the_user_does_not_look_like_a_store(tmp_path: Path):
    (tmp_path / "workspaces" / "mine").mkdir(parents=True)
    (tmp_path / "workspaces" / "mine" / "file.txt").touch()
    (tmp_path / "blobs" / "objects").mkdir(parents=True)
    treering.open(tmp_path).close()


def test_a_process_killed_while_it_created_a_store_left_one_that_opens(tmp_path: Path):
    location = sqlite_location(tmp_path / "store")
    killed_at("store.created", 1, "opens", location)
    assert not (tmp_path / "store" / MARKER).exists()
    with location.open() as store:
        store.commit(load(0))
    assert (tmp_path / "store" / MARKER).exists()


def test_an_older_database_in_place_of_the_newest_is_noticed(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    older = folder.with_name("older")
    shutil.copy(folder / SQLITE_FILE, older)
    with treering.open(folder) as store:
        for number in range(3):
            store.thread("support").append({"role": "user", "content": f"later {number}"})
    shutil.copy(older, folder / SQLITE_FILE)
    with pytest.raises(Corrupt, match="3 acknowledged commits are missing"):
        treering.open(folder)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--store", str(folder)])
    assert ended.value.code == 1
    assert "acknowledged commits are missing" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--accept-loss", "--store", str(folder)])
    assert not ended.value.code
    with treering.open(folder) as store:
        head = store.thread("support").load()
        assert head is not None
        assert len(head.messages) == 1
        store.thread("support").append({"role": "user", "content": "again"})
        assert store.verify().ok
    treering.open(folder).close()


def test_an_open_store_verifies_how_far_it_had_come(folder: Path):
    with treering.open(folder) as store:
        store.thread("support").append({"role": "user", "content": "one more"})
        last = folder / (SQLITE_FILE + LAST)
        line = last.read_bytes()
        store.engine._last._no = 0
        store.engine._last.record(int(line[:20]) + 5)
        (problem,) = store.verify().problems
        assert problem.kind == "corrupt"
        assert "5 acknowledged commits are missing" in problem.detail
        last.write_bytes(line)
        assert store.verify().ok


@pytest.mark.parametrize("line", [b"", b"garbage", b"00000000000000009999 disk 00000000\n"])
def test_a_damaged_note_of_the_last_commit_counts_for_nothing(folder: Path, line: bytes):
    (folder / (SQLITE_FILE + LAST)).write_bytes(line)
    treering.open(folder).close()
    assert not accept_loss(folder) or not (folder / (SQLITE_FILE + LAST)).exists()


def test_a_note_of_unsynced_commits_counts_until_the_machine_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with treering.open(tmp_path / "store", durability="fast") as store:
        store.thread("t").append({"role": "user", "content": "hello"})
    last = commit_log.LastCommit(tmp_path / "store" / SQLITE_FILE, is_durable=False)
    assert last.recorded() > 0
    monkeypatch.setattr(commit_log, "_boot_id", lambda: "another boot")
    assert last.recorded() == 0


def test_a_kill_loses_nothing_that_was_noted(tmp_path: Path):
    location = sqlite_location(tmp_path / "store")
    account = killed_after(0.2, location, writer="w")
    with location.open() as store:
        assert account.receipts
        assert store.verify().ok


@pytest.mark.postgres
def test_packs_remember_the_database_that_was_lost(empty_postgres_url: str, tmp_path: Path):
    import psycopg

    blobs = str(tmp_path / "packs")
    with treering.open(empty_postgres_url, blobs=blobs) as store:
        store.engine.stage(store.space, [noise(3_000_000, seed=1)])
    treering.open(empty_postgres_url, blobs=blobs).close()
    with psycopg.connect(empty_postgres_url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    with pytest.raises(Corrupt, match=r"is empty, but .* holds packs of a store that was in it"):
        treering.open(empty_postgres_url, blobs=blobs)
    with pytest.raises(Corrupt):  # nothing was created
        treering.open(empty_postgres_url, blobs=blobs)
    treering.open(empty_postgres_url, blobs=str(tmp_path / "others")).close()

"""A folder of values: files on disk, damage, and kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.core import failpoints
from treering.core.clock import DAY_US, ManualClock
from treering.core.ids import file_name
from treering.errors import Corrupt, InvalidInput, StoreFull
from treering.keyvalue import FolderStore

ORDINARY = "thread-1"
ODD = "alice/thread 1 😀"


@pytest.fixture
def store(tmp_path):
    return FolderStore(tmp_path / "values")


def files(store):
    return sorted(path for path in store._root.iterdir() if path.suffix == ".value")


def test_ordinary_keys_are_their_own_file_names(store):
    store.set(ORDINARY, {"step": 1})
    store.set(ODD, {"step": 2})
    assert [path.name for path in files(store)] == [f"{file_name(ODD)}.value", "thread-1.value"]


def test_unusual_keys_are_listed_by_another_process(store):
    store.set(ODD, 1)
    store.set(ORDINARY, 2)
    assert FolderStore(store._root).list() == [ODD, ORDINARY]
    assert FolderStore(store._root).list("alice/") == [ODD]


def test_reading_creates_no_folder(store):
    assert store.get("one") is None
    assert store.list() == []
    store.delete("one")
    assert not store._root.exists()


def test_compression_is_a_choice_of_the_writer_alone(store):
    value = {"text": "again and again " * 1000}
    packed = FolderStore(store._root, compress=True)
    packed.set("packed", value)
    store.set("plain", value)
    small, large = (path.stat().st_size for path in files(store))
    assert small < large / 10
    assert store.get("packed") == packed.get("plain") == value


@pytest.mark.parametrize("key", [ORDINARY, ODD])
@pytest.mark.parametrize("compress", [False, True])
def test_any_damage_is_detected_and_reported(tmp_path, key, compress):
    store = FolderStore(tmp_path, compress=compress)
    value = {"text": "some text " * 200}
    store.set(key, value)
    (file,) = files(store)
    whole = file.read_bytes()
    for place in {*range(0, len(whole), 1 + len(whole) // 60), len(whole) - 1}:
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(Corrupt, match=file.name.partition("~")[0]):
            store.get(key)
        file.write_bytes(whole[:place])
        with pytest.raises(Corrupt, match=file.name.partition("~")[0]):
            store.get(key)


def test_a_foreign_file_instead_of_a_value_is_reported(store):
    store.set(ORDINARY, 1)
    foreign = store._root / f"{file_name(ODD)}.value"
    foreign.write_bytes(b"something else")
    with pytest.raises(Corrupt, match=foreign.name):
        store.get(ODD)
    with pytest.raises(Corrupt, match=foreign.name):
        store.list()


def test_a_value_under_the_name_of_another_key_is_not_returned(store):
    store.set(ODD, "of the odd key")
    (file,) = files(store)
    file.rename(store._root / "other.value")
    with pytest.raises(Corrupt, match="renamed"):
        store.get("other")


def test_other_files_are_ignored(store):
    store.set(ORDINARY, 1)
    (store._root / "README.md").write_text("about this folder")
    (store._root / ".DS_Store").write_bytes(b"\0")
    assert store.list() == [ORDINARY]


def test_temporary_files_of_dead_processes_are_ignored_and_deleted_after_a_day(store):
    store.set(ORDINARY, 1)
    draft = store._root / ".drafts" / "left behind"
    draft.write_bytes(b"half a val")
    assert store.list() == [ORDINARY]
    now_us = time.time_ns() // 1000
    FolderStore(store._root, clock=ManualClock(now_us + DAY_US // 2)).set(ORDINARY, 2)
    assert draft.exists()
    FolderStore(store._root, clock=ManualClock(now_us + DAY_US + 60_000_000)).set(ORDINARY, 3)
    assert not draft.exists()


def test_a_failed_set_keeps_the_previous_value(store):
    store.set(ORDINARY, "old")
    failpoints.arm("file.synced", "raise:ENOSPC")
    try:
        with pytest.raises(StoreFull, match=ORDINARY):
            store.set(ORDINARY, "new")
    finally:
        failpoints.disarm("file.synced")
    assert store.get(ORDINARY) == "old"
    assert list((store._root / ".drafts").iterdir()) == []


def test_a_file_instead_of_the_folder_is_rejected(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInput, match="file"):
        FolderStore(tmp_path / "file").set("one", 1)


@given(first=st.text(min_size=1, max_size=20), second=st.text(min_size=1, max_size=20))
def test_two_keys_never_share_a_file(first, second):
    assert first == second or file_name(first) != file_name(second)


SETTER = """
import sys
from treering.keyvalue import FolderStore
store = FolderStore(sys.argv[1], compress=True)
for turn in range(100_000):
    for key in ("a", "b/odd key", "c"):
        store.set(key, {"turn": turn, "filler": str(turn) * 5000})
        print(key, turn, sep="=", flush=True)
"""


@pytest.mark.faults
@pytest.mark.parametrize("delay_ms", [0, 3, 11, 40, 120])
def test_acknowledged_sets_survive_kill_9_and_none_is_torn(tmp_path, delay_ms):
    child = subprocess.Popen([sys.executable, "-c", SETTER, tmp_path], stdout=subprocess.PIPE, text=True)
    first = child.stdout.readline()
    time.sleep(delay_ms / 1000)
    child.send_signal(signal.SIGKILL)
    heard = [first, *child.stdout]
    child.wait()
    child.stdout.close()
    acknowledged = {}
    for line in heard:
        key, _, turn = line.rstrip("\n").rpartition("=")
        if line.endswith("\n"):
            acknowledged[key] = int(turn)
    store = FolderStore(tmp_path)
    assert set(acknowledged) <= set(store.list())
    for key in store.list():
        value = store.get(key)
        assert value["filler"] == str(value["turn"]) * 5000
        assert value["turn"] in {acknowledged.get(key, 0), acknowledged.get(key, -1) + 1}


@pytest.mark.faults
@pytest.mark.parametrize("moment", ["file.synced", "file.renamed"])
def test_a_value_is_the_old_or_the_new_one_wherever_its_writer_dies(tmp_path, moment):
    child = subprocess.run(
        [sys.executable, "-c", SETTER, tmp_path],
        env={**os.environ, failpoints.ENVIRONMENT: f"{moment}=kill:8"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert child.stdout.split(b"\n")[-2:] == [b"a=2", b""]
    store = FolderStore(tmp_path)
    turns = {key: store.get(key)["turn"] for key in store.list()}
    assert turns == {"a": 2, "b/odd key": 1 if moment == "file.synced" else 2, "c": 1}


@pytest.mark.faults
def test_processes_may_share_a_folder(tmp_path):
    script = SETTER.replace("100_000", "30")
    children = [
        subprocess.Popen([sys.executable, "-c", script, tmp_path], stdout=subprocess.DEVNULL)
        for _ in range(3)
    ]
    store = FolderStore(tmp_path)
    while any(child.poll() is None for child in children):
        for key in store.list():
            value = store.get(key)
            assert value["filler"] == str(value["turn"]) * 5000
    assert [child.returncode for child in children] == [0, 0, 0]
    assert store.list() == ["a", "b/odd key", "c"]
    assert list(Path(tmp_path, ".drafts").iterdir()) == []

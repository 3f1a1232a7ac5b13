"""After `forget`, no byte of a canary is in any file of the store, whatever happened before.

The canary is written everywhere a word can be stored: a text and its search index, a message, an object
in a row and one in a pack, the names of refs, lists and events, the id of the thread. The raw bytes of
all files are searched, and the decompressed frames of packs and rows.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.loads import SPACE, thread_scope
from tests.faults.stores import REPOSITORY, StoreLocation, files_with, sqlite_location
from treering.core.batch import Draft, Text
from treering.core.content import Content, list_address, object_address, unpack_body, unseal
from treering.core.failpoints import ENVIRONMENT
from treering.core.packs import read_entry, read_pack
from treering.core.query import SearchQuery
from treering.engines.sql.schema import SQLITE_FILE
from treering.store import Store
from treering.testing.batches import call, noise, words

CANARY = "canary48151623"
PACKED = 400_000


@pytest.fixture
def location(tmp_path: Path) -> StoreLocation:
    return sqlite_location(tmp_path / "store")


@pytest.fixture
def store(location: StoreLocation):
    with location.open() as opened:
        live(opened, "before")
        yield opened


def test_no_byte_of_a_forgotten_thread_remains(store: Store, location: StoreLocation):
    plant(store)
    live(store, "after")
    with closing(sqlite3.connect(Path(location.url) / SQLITE_FILE)) as connection:
        connection.execute("PRAGMA wal_checkpoint").fetchall()  # now it is in the database and in the log
    assert {SQLITE_FILE, f"{SQLITE_FILE}-wal", "a pack"} <= found(location)
    assert store.forget(thread=CANARY).proof == "bytes"
    assert not found(location)
    is_whole(store, "before", "after")


def test_no_byte_of_its_earlier_values_remains(store: Store, location: StoreLocation):
    """Replaced values, deleted refs and changed texts have left pages behind."""
    plant(store)
    for version in range(30):
        draft = Draft(SPACE)
        scope = thread_scope(CANARY)
        source = draft.put(words(f"{CANARY} {version}"), scope=scope)
        draft.set_ref(f"{CANARY}/head", f"{CANARY} {version}".encode() * 50, scope=scope, links=(source,))
        draft.text(Text(collection="notes", name=CANARY, scope=scope, source=source))
        store.commit(draft)
    gone = Draft(SPACE)
    gone.delete_ref(f"{CANARY}/head", scope=thread_scope(CANARY))
    store.commit(gone)
    store.forget(thread=CANARY)
    assert not found(location)
    is_whole(store, "before")


def test_no_byte_remains_while_others_have_the_store_open(store: Store, location: StoreLocation):
    plant(store)
    with location.open() as other:
        assert other.engine.refs(SPACE, [f"{CANARY}/head"])
        store.forget(thread=CANARY)
        assert not found(location)
        assert not other.engine.refs(SPACE, [f"{CANARY}/head"])


def test_no_byte_of_dead_objects_in_a_live_pack_remains(store: Store, location: StoreLocation):
    """A sweep rewrites a pack only when it pays off; until then, the pack contains dead objects."""
    kept = [noise(PACKED, seed=number) for number in range(4)]
    dropped = with_canary(PACKED, seed=100)
    store.engine.stage(SPACE, [*kept, dropped])
    link(store, "kept", *kept, thread="neighbour")
    link(store, f"{CANARY}/dropped", dropped, thread=CANARY)
    plant(store)
    draft = Draft(SPACE)
    draft.delete_ref(f"{CANARY}/dropped", scope=thread_scope(CANARY))
    store.commit(draft)
    store.gc(grace_seconds=0)
    assert store.engine.missing(SPACE, [dropped.name])
    store.forget(thread=CANARY)
    assert not found(location)
    assert store.engine.get(SPACE, [object_address(each.name) for each in kept]) == kept
    is_whole(store, "before")


@pytest.mark.parametrize("moment", ["file.synced", "file.renamed", "pack.written", "stage.before_commit"])
def test_no_byte_that_a_killed_writer_was_about_to_store_remains(
    store: Store, location: StoreLocation, moment: str
):
    plant(store)
    stage_and_die(location, moment)
    if moment != "file.synced":
        location.age_files()  # a recent pack without rows is kept: its writer may only be slow
    store.forget(thread=CANARY)
    assert not found(location)
    is_whole(store, "before")


def test_a_temporary_file_of_a_live_writer_is_kept(store: Store, location: StoreLocation):
    """Forgetting deletes temporary files, but only those of dead writers."""
    plant(store)
    script = stager("objects", seed=7)
    environment = {**os.environ, ENVIRONMENT: "file.synced=sleep:1500"}
    writer = subprocess.Popen(
        [sys.executable, "-c", script, location.url], cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE
    )
    while not location.drafts() and writer.poll() is None:
        time.sleep(0.01)
    store.forget(thread=CANARY)
    out, _ = writer.communicate(timeout=60)
    assert writer.returncode == 0
    assert not store.engine.missing(SPACE, out.decode().split())
    assert store.verify().ok


def plant(store: Store) -> None:
    """Write the canary everywhere a word can be stored, in the thread that is named after it."""
    packed = [with_canary(PACKED, seed=number) for number in range(3)]
    store.engine.stage(
        SPACE, [*packed, words(f"small and compressed {CANARY} " * 300), noise(PACKED, seed=9)]
    )
    link(store, f"{CANARY}/packed", *packed, words(f"small and compressed {CANARY} " * 300), thread=CANARY)
    link(store, "neighbour", noise(PACKED, seed=9), thread="neighbour")
    scope = thread_scope(CANARY)
    draft = Draft(SPACE)
    small = draft.put(words(f"a note about {CANARY}"), scope=scope)
    large = draft.put(with_canary(5000, seed=5), scope=scope)
    draft.append(f"{CANARY}/log", words(f"said {CANARY}"), small, large, scope=scope, at=0)
    draft.event(
        call(
            id=f"{CANARY}-1",
            scope=scope,
            body=small,
            links=(large, list_address(f"{CANARY}/log")),
            name=CANARY,
            agent=CANARY,
            model=CANARY,
            run=CANARY,
            thread=CANARY,
            data=f'{{"x":"{CANARY}"}}'.encode(),
        )
    )
    draft.set_ref(f"{CANARY}/head", CANARY.encode(), scope=scope, links=(small, large))
    draft.text(Text(collection="notes", name=CANARY, namespace=CANARY, scope=scope, source=small))
    draft.text(Text(collection="grams", name=CANARY, scope=scope, source=small, tokens="trigrams"))
    store.commit(draft)
    assert store.engine.search(SPACE, SearchQuery(collection="notes", text=CANARY)).hits


def live(store: Store, key: str) -> None:
    """Write other data to the same tables and collections."""
    scope = thread_scope(key)
    for number in range(20):
        draft = Draft(SPACE)
        small = draft.put(words(f"a note about {key} {number}"), scope=scope)
        large = draft.put(noise(5000, seed=hash((key, number))), scope=scope)
        draft.event(call(scope=scope, body=small, links=(large,), thread=key))
        draft.set_ref(f"{key}/{number}", b"", scope=scope, links=(small, large))
        draft.text(Text(collection="notes", name=f"{key}/{number}", scope=scope, source=small))
        store.commit(draft)


def is_whole(store: Store, *keys: str) -> None:
    assert store.verify().problems == ()
    for key in keys:
        assert len(store.engine.scan_refs(SPACE, f"{key}/")) == 20
        hits = store.engine.search(SPACE, SearchQuery(collection="notes", text=key, limit=50)).hits
        assert len(hits) == 20


def link(store: Store, name: str, *contents: Content, thread: str) -> None:
    draft = Draft(SPACE)
    names = [content.name for content in contents]
    draft.require(*names)
    draft.set_ref(name, b"", scope=thread_scope(thread), links=tuple(map(object_address, names)))
    store.commit(draft)


def with_canary(size: int, *, seed: int) -> Content:
    """Return the canary within noise, so that compression cannot hide it."""
    middle = random.Random(seed).randbytes(size // 2)
    return Content("bytes", middle + CANARY.encode() + middle[::-1])


def stager(what: str, *, seed: int) -> str:
    """Return a program that stages a pack of contents with or without the canary."""
    return f"""
import random, sys, treering
from treering.core.content import Content
from tests.faults.test_forget import with_canary
from treering.testing.batches import noise
make = with_canary if {what!r} == "canaries" else noise
with treering.open(sys.argv[1], durability="fast") as store:
    print(*store.engine.stage("default", [make({PACKED}, seed={seed} + n) for n in range(3)]))
"""


def stage_and_die(location: StoreLocation, moment: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", stager("canaries", seed=1000), location.url],
        cwd=REPOSITORY,
        env={**os.environ, ENVIRONMENT: f"{moment}=kill"},
        check=False,
        timeout=100,
    )
    assert ended.returncode == -9


def found(location: StoreLocation) -> set[str]:
    """Return the files that contain the canary; "a pack" or "a row" for a compressed frame."""
    folder = Path(location.url)
    canary = CANARY.encode()
    names = {path.name for path in files_with(folder, canary)}
    for path in folder.rglob("*.pack"):
        data = path.read_bytes()
        for entry in read_pack(data, pack=path.name):
            frame = data[entry.offset : entry.offset + entry.length]
            if canary in read_entry(frame, entry, pack=path.name).data:
                names.add("a pack")
    with closing(sqlite3.connect(f"file:{folder / SQLITE_FILE}?mode=ro", uri=True)) as connection:
        frames = connection.execute("SELECT frame FROM object WHERE frame IS NOT NULL").fetchall()
        frames += connection.execute("SELECT frame FROM item WHERE frame IS NOT NULL").fetchall()
        decompressed = [unseal(frame, "frame") for (frame,) in frames]
        for (frame,) in connection.execute("SELECT frame FROM body").fetchall():
            decompressed += [content.data for content in unpack_body(unseal(frame, "body"), "body")]
        if any(canary in data for data in decompressed):
            names.add("a row")
    return names

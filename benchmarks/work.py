"""The work that several benchmarks share: one agent step, as treering writes it and as bare sqlite3 would."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import TYPE_CHECKING

from treering.blobs.folder import FolderBlobs
from treering.core.batch import Draft, Event
from treering.core.content import Content
from treering.engines.sql import schema
from treering.engines.sqlite import open_sqlite

if TYPE_CHECKING:
    from pathlib import Path

    from treering.core.batch import Batch
    from treering.engines.sqlite import SqliteEngine
    from treering.engines.sqlite.connection import Durability

SCOPE = "/thread/bench"
SYNCHRONOUS = {"full": "FULL", "fast": "NORMAL"}

BARE_TABLES = """
CREATE TABLE object (id TEXT PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE event (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, ts INTEGER NOT NULL,
                    thread TEXT NOT NULL, object TEXT NOT NULL);
CREATE INDEX event_thread ON event (thread, kind, seq);
CREATE TABLE ref (name TEXT PRIMARY KEY, version INTEGER NOT NULL, value BLOB NOT NULL);
"""


def payload() -> bytes:
    """A kilobyte, half of it incompressible."""
    return os.urandom(512) + b"x" * 512


def step(number: int, *, thread: str = "bench", space: str = "default") -> Batch:
    """A 1 KB content, an event and a ref move."""
    draft = Draft(space)
    scope = f"/thread/{thread}"
    body = draft.put(Content("bytes", payload()), scope=scope)
    draft.event(Event(id=draft.id, kind="step", ts_us=time.time_ns() // 1000, scope=scope, body=body))
    draft.set_ref(f"thread/{thread}/head", b"%d" % number, scope=scope)
    return draft.batch()


def open_store(folder: Path, durability: Durability) -> SqliteEngine:
    """A treering engine in a folder."""
    return open_sqlite(folder, blobs=FolderBlobs(folder / "blobs"), durability=durability)


def open_bare(path: Path, durability: str, *, busy_seconds: float = 0.0) -> sqlite3.Connection:
    """A plain connection at the same durability."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=busy_seconds)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS[durability]}")
    return connection


SPACE = "UPDATE space SET seq = ?, committed_at_us = ? WHERE no = 1"
COMMIT = (
    "INSERT INTO commits (space, no, batch, first_seq, last_seq, committed_at_us, receipt) "
    "VALUES (1, ?, ?, ?, ?, ?, ?)"
)
BODY = "INSERT INTO body (space, key, scope, frame) VALUES (1, ?, 1, ?)"
EVENT = (
    "INSERT INTO event (space, seq, day, id, commit_no, kind, ts_us, scope, body) "
    "VALUES (1, ?, ?, ?, ?, 'step', ?, 1, '0.0')"
)
REF = (
    "INSERT INTO ref (space, name, scope, version, value, seq, changed_at_us) VALUES (1, ?, 1, ?, ?, ?, ?) "
    "ON CONFLICT (space, name) DO UPDATE SET version = excluded.version, value = excluded.value, "
    "seq = excluded.seq, changed_at_us = excluded.changed_at_us"
)


def open_same(path: Path, durability: str) -> sqlite3.Connection:
    """A plain connection to a database with treering's own tables."""
    connection = open_bare(path, durability)
    for statement in schema.statements(schema.initial_sql("sqlite")):
        connection.execute(statement)
    connection.execute(
        "INSERT INTO space (no, name, seq, committed_at_us, created_at_us) VALUES (1, 'default', 0, 0, 0)"
    )
    connection.execute("INSERT INTO scope (no, space, name) VALUES (1, 1, ?)", (SCOPE,))
    return connection


def same_step(connection: sqlite3.Connection, number: int) -> None:
    """The rows that treering writes for a step, into the same tables, by hand: no reads, no checks."""
    name = os.urandom(13).hex()
    now_us = time.time_ns() // 1000
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(SPACE, (number, now_us))
    connection.execute(COMMIT, (number, name, number, number, now_us, b"receipt of the same length"))
    connection.execute(BODY, (number << 16, payload()))
    connection.execute(EVENT, (number, now_us // 86_400_000_000, name, number, now_us))
    connection.execute(REF, ("thread/bench/head", number, b"%d" % number, number, now_us))
    connection.execute("COMMIT")


def bare_step(connection: sqlite3.Connection, number: int, *, thread: str = "bench") -> None:
    """What a careful person would write by hand for the same step: three inserts in one transaction."""
    name = os.urandom(13).hex()
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO object VALUES (?, ?)", (name, payload()))
    connection.execute(
        "INSERT INTO event (id, kind, ts, thread, object) VALUES (?, 'step', ?, ?, ?)",
        (name, time.time_ns() // 1000, thread, name),
    )
    connection.execute(
        "INSERT INTO ref VALUES (?, 1, ?) ON CONFLICT (name) DO UPDATE SET version = version + 1, "
        "value = excluded.value",
        (thread, b"%d" % number),
    )
    connection.execute("COMMIT")

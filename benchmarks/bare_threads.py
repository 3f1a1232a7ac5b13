"""Threads as a careful person would keep them by hand in sqlite3, to be compared with."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from benchmarks.work import open_bare

if TYPE_CHECKING:
    from pathlib import Path

TABLES = """
CREATE TABLE message (thread TEXT NOT NULL, position INTEGER NOT NULL, data TEXT NOT NULL,
                      PRIMARY KEY (thread, position)) WITHOUT ROWID;
CREATE TABLE checkpoint (id TEXT PRIMARY KEY, thread TEXT NOT NULL, parent TEXT, step INTEGER NOT NULL,
                         length INTEGER NOT NULL, ts INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE head (thread TEXT PRIMARY KEY, checkpoint TEXT NOT NULL) WITHOUT ROWID;
"""


class BareThreads:
    """Messages, a checkpoint row and the head of a thread, one transaction a step."""

    def __init__(self, path: Path, durability: str) -> None:
        self._connection = open_bare(path, durability)
        self._connection.executescript(TABLES)
        self._lock = threading.Lock()

    def append_all(self, thread: str, work: list[list[dict[str, Any]]]) -> None:
        position, parent = 0, None
        for number, step in enumerate(work):
            name = os.urandom(13).hex()
            with self._lock:
                execute = self._connection.execute
                execute("BEGIN IMMEDIATE")
                for message in step:
                    data = json.dumps(message)
                    execute("INSERT INTO message VALUES (?, ?, ?)", (thread, position, data))
                    position += 1
                execute(
                    "INSERT INTO checkpoint VALUES (?, ?, ?, ?, ?, ?)",
                    (name, thread, parent, number, position, time.time_ns() // 1000),
                )
                execute(
                    "INSERT INTO head VALUES (?, ?) "
                    "ON CONFLICT (thread) DO UPDATE SET checkpoint = excluded.checkpoint",
                    (thread, name),
                )
                execute("COMMIT")
            parent = name

    def close(self) -> None:
        self._connection.close()

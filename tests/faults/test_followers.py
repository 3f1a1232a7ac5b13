"""A follower sees every commit once and in order, whichever of the writing processes die."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.faults.loads import SPACE
from tests.faults.stores import REPOSITORY, StoreLocation, command
from treering.core.query import EventQuery
from treering.core.records import Record
from treering.store import Store
from treering.testing.portrait import cursor_behind

WRITERS = {"sqlite": 4, "postgres": 8}
ENDLESS = 10**9


def test_a_follower_misses_nothing(location: StoreLocation, tmp_path: Path):
    follow(location, tmp_path, commits=150)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_follower_misses_nothing_for_long(location: StoreLocation, tmp_path: Path):
    follow(location, tmp_path, commits=3000)


def follow(location: StoreLocation, tmp_path: Path, *, commits: int) -> None:
    with location.open() as store:
        writers = [
            start(location, f"w{number}", tmp_path / f"w{number}", commits)
            for number in range(WRITERS[location.kind])
        ]
        writers[0].kill_at = commits // 2
        try:
            seen = watch(store, writers)
        finally:
            for writer in writers:
                writer.end()
        assert [writer.process.returncode for writer in writers] == [-9] + [0] * (len(writers) - 1)
        is_complete(store, seen, writers)
        assert store.verify().problems == ()


def watch(store: Store, writers: list[Writer]) -> list[Record]:
    """Return everything that a follower sees until the writers are done."""
    seen: list[Record] = []
    while True:
        writers[0].kill_when_due()
        over = all(writer.process.poll() is not None for writer in writers)
        last = seen[-1].seq if seen else 0
        if store.engine.wait(SPACE, last, seconds=0.2) > last:
            seen += news(store, seen)
        elif over:
            return seen


def news(store: Store, seen: list[Record]) -> list[Record]:
    cursor = cursor_behind(seen[-1]) if seen else None
    found: list[Record] = []
    while True:
        page = store.engine.scan(SPACE, EventQuery(), after=cursor, limit=100)
        found += page.records
        if page.cursor is None:
            return found
        cursor = page.cursor


def is_complete(store: Store, seen: list[Record], writers: list[Writer]) -> None:
    numbers = [record.seq for record in seen]
    assert numbers == sorted(set(numbers)), "each once, in order"
    assert numbers == list(range(1, len(seen) + 1)), "no number is passed over"
    ids = [record.event.id for record in seen]
    assert len(set(ids)) == len(ids)
    for writer in writers:
        own = [each for each in ids if each.startswith(f"{writer.name}.")]
        acknowledged = writer.acknowledged()
        assert acknowledged
        assert own[: len(acknowledged)] == acknowledged, "what was acknowledged, in its order"
        assert len(own) - len(acknowledged) <= 3, "at most one commit was not acknowledged"
    assert [record.event.id for record in news(store, [])] == ids, "the journal reads the same afterwards"


class Writer:
    """A process that commits events and keeps a list of those that were acknowledged."""

    def __init__(self, name: str, file: Path, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.process = process
        self.kill_at: int | None = None
        self._file = file

    def acknowledged(self) -> list[str]:
        lines = self._file.read_bytes().splitlines(keepends=True)
        return [each for line in lines if line.endswith(b"\n") for each in json.loads(line)["events"]]

    def kill_when_due(self) -> None:
        if self.kill_at is not None and self._file.read_bytes().count(b"\n") >= self.kill_at:
            self.process.kill()
            self.kill_at = None

    def end(self) -> None:
        self.process.wait(timeout=100)


def start(location: StoreLocation, name: str, file: Path, commits: int) -> Writer:
    rounds = ENDLESS if name == "w0" else commits  # the one that is killed never gets to its end
    words = command("reports", location, writer=name, rounds=rounds)
    with file.open("wb") as output:
        return Writer(name, file, subprocess.Popen(words, cwd=REPOSITORY, stdout=output))

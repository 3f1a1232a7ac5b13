"""The store that a victim works on, and what it left behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

import treering
from treering.core.batch import Receipt
from treering.core.clock import DAY_US
from treering.core.failpoints import ENVIRONMENT
from treering.engines.sql.schema import SQLITE_FILE
from treering.files import DRAFTS
from treering.store import Store

REPOSITORY = Path(__file__).resolve().parents[2]
VICTIM_SECONDS = 100


@dataclass(frozen=True)
class StoreLocation:
    """A store of one kind: its URL, and the folder of its packs."""

    kind: Literal["sqlite", "postgres"]
    url: str
    packs: Path

    @property
    def blobs(self) -> str | None:
        """The argument ``blobs`` of `open`."""
        return None if self.kind == "sqlite" else str(self.packs)

    def open(self, *, durability: Literal["full", "fast"] = "fast") -> Store:
        return treering.open(self.url, blobs=self.blobs, durability=durability)

    def pack_files(self) -> set[str]:
        return {path.stem for path in self.packs.rglob("*.pack")}

    def pack_rows(self) -> set[str]:
        """The packs recorded in the database."""
        sql = "SELECT name FROM pack"
        if self.kind == "sqlite":
            with closing(sqlite3.connect(Path(self.url) / SQLITE_FILE)) as connection:
                rows = connection.execute(sql).fetchall()
        else:
            import psycopg

            with psycopg.connect(self.url) as connection:
                rows = connection.execute(sql).fetchall()
        return {Path(name).stem for (name,) in rows}

    def drafts(self) -> list[Path]:
        """Temporary files that a writer has not renamed."""
        return [path for path in (self.packs / DRAFTS).glob("*") if path.is_file()]

    def age_files(self) -> None:
        """Make packs and temporary files two days older: recent ones may belong to a live writer."""
        then = time.time() - 2 * DAY_US / 1e6
        for path in self.packs.rglob("*"):
            if path.is_file():
                os.utime(path, (then, then))


def files_with(folder: Path, needle: bytes) -> list[Path]:
    """Return the files below a folder that contain these bytes."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and needle in _bytes_of(path)]


def _bytes_of(path: Path) -> bytes:
    if not path.name.startswith(SQLITE_FILE):
        return path.read_bytes()
    # Reading it in this process would, on closing, release the locks of a store that is open here.
    return subprocess.run(["cat", path], stdout=subprocess.PIPE, check=True).stdout


def sqlite_location(folder: Path) -> StoreLocation:
    return StoreLocation("sqlite", str(folder), folder / "blobs")


def postgres_location(url: str, packs: Path) -> StoreLocation:
    return StoreLocation("postgres", url, packs)


@dataclass
class Account:
    """What a victim reported before it died."""

    receipts: dict[str, Receipt] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    forgetting: list[int] = field(default_factory=list)

    @property
    def in_flight(self) -> list[str]:
        """Batches that were sent but not acknowledged."""
        return [batch for batch in self.tried if batch not in self.receipts]

    def hear(self, line: bytes) -> None:
        """Parse one line. The last one may be truncated."""
        if not line.endswith(b"\n"):
            return
        said = json.loads(line)
        if "trying" in said:
            self.tried.append(said["trying"])
        if "forgetting" in said:
            self.forgetting.append(said["forgetting"])
        if "receipt" in said:
            self.receipts[said["done"]] = msgspec.convert(said["receipt"], Receipt)
        elif "done" in said:
            self.done.append(said["done"])


def command(scenario: str, location: StoreLocation, **options: str | int | None) -> list[str]:
    """Return the command line of a victim."""
    given = {"store": location.url, "blobs": location.blobs, **options}
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return [sys.executable, "-m", "tests.faults.victim", scenario, *words]


def killed_after(seconds: float, location: StoreLocation, *, writer: str) -> Account:
    """Let a victim with four threads write for some time after its first report; return its reports."""
    endless = command("writes_for_ever", location, writer=writer, rounds=1_000_000)
    victim = subprocess.Popen(endless, cwd=REPOSITORY, stdout=subprocess.PIPE)
    account = Account()
    timer = threading.Timer(seconds, victim.kill)
    with victim:
        assert victim.stdout is not None
        for line in victim.stdout:
            if not account.tried:
                timer.start()
            account.hear(line)
    timer.join()
    assert victim.returncode == -signal.SIGKILL
    return account


def killed_at(
    failpoint: str,
    nth: int,
    scenario: str,
    location: StoreLocation,
    *,
    rounds: int = 4,
    target: str | None = None,
) -> Account:
    """Let a victim work until it hits a failpoint for the n-th time; return its reports."""
    victim = subprocess.run(
        command(scenario, location, rounds=rounds, target=target),
        cwd=REPOSITORY,
        env={**os.environ, ENVIRONMENT: f"{failpoint}=kill:{nth}"},
        capture_output=True,
        check=False,
        timeout=VICTIM_SECONDS,
    )
    assert victim.returncode == -signal.SIGKILL, (
        f"{scenario} was to die at hit {nth} of {failpoint}, and ended with {victim.returncode}:\n"
        f"{victim.stdout[-500:].decode()}{victim.stderr.decode()}"
    )
    account = Account()
    for line in victim.stdout.splitlines(keepends=True):
        account.hear(line)
    return account

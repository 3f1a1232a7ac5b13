"""Killed at any failpoint, a store keeps acknowledged commits, tears none and leaves nothing behind.

`DEATHS` maps every failpoint to the scenario of `tests.faults.victim` that hits it; the first test fails
if one is missing. Each victim is killed by SIGKILL at the first hit, and (`soak`) at later ones.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.loads import SPACE, batch_of, fate, load, pieces, total
from tests.faults.stores import REPOSITORY, Account, StoreLocation, files_with, killed_at, sqlite_location
from treering.core.batch import Batch
from treering.core.query import EventQuery
from treering.core.retention import Keep
from treering.errors import NotFound
from treering.store import Store
from treering.testing.portrait import portrait

LATER = 3

DEATHS = {
    "commit.begin": "commits",
    "commit.before_commit": "commits",
    "commit.after_commit": "commits",
    "flush.before_commit": "flushes",
    "stage.before_commit": "stages",
    "pack.write": "stages",
    "pack.written": "stages",
    "file.synced": "stages",
    "file.renamed": "stages",
    "gc.marked": "sweeps",
    "gc.before_delete": "sweeps",
    "gc.after_delete": "sweeps",
    "repack.written": "sweeps",
    "repack.switched": "sweeps",
    "repack.deleted": "sweeps",
    "gc.recorded": "retains",
    "gc.dropped": "retains",
    "erase.before_commit": "erases",
    "erase.after_commit": "erases",
    "erase.before_rewrite": "erases",
    "erase.before_wipe": "erases",
    "migrate.after_step": "opens",
    "migrate.before_commit": "opens",
    "copy.loaded": "copies",
    "copy.noted": "copies",
    "copy.compared": "copies",
    "backup.copied": "backs_up",
    "backup.checked": "backs_up",
}
ELSEWHERE = {
    "archive.dropped",
    "bucket.uploaded",
    "effect.called",
    "effect.ended",
    "effect.started",
    "history.stored",
    "lake.catalogued",
    "lake.cleaned",
    "lake.deleted",
    "lake.replaced",
    "lake.rewritten",
    "lake.written",
    "move.copied",
    "move.switched",
    "prune.copied",
    "prune.deleted",
    "prune.dropped",
    "remote.answered",
    "remote.sending",
    "restore.file_placed",
    "restore.file_written",
    "restore.staged",
    "restore.switched",
    "store.created",
    "transfer.staged",
    "transfer.stored",
}
"""Failpoints that tests of `effects`, `engines`, `importers`, `lake`, `sandbox` and `workspaces` cover."""

FATES = {"commit.begin": "absent", "commit.before_commit": "absent", "commit.after_commit": "whole"}
"""Whether a batch is stored if its writer dies there."""

ONCE = {"opens"}
"""Scenarios that hit their failpoints once: tables are created once; migration tests kill upgrades."""

SQLITE_ONLY = {"backup.copied", "flush.before_commit"}
"""Failpoints that PostgreSQL never hits: of snapshots and of pending commits."""


def test_every_failpoint_is_covered():
    listing = subprocess.run(
        [sys.executable, "-m", "tests.faults.victim", "names"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
        timeout=100,
    )
    assert sorted(json.loads(listing.stdout)) == sorted([*DEATHS, *ELSEWHERE])


def deaths(*, later: bool) -> list:
    """Return every failpoint with every engine that hits it."""
    return [
        pytest.param(
            kind, failpoint, id=f"{kind}-{failpoint}", marks=[pytest.mark.postgres] * (kind != "sqlite")
        )
        for kind in ("sqlite", "postgres")
        for failpoint, scenario in DEATHS.items()
        if not (kind == "postgres" and failpoint in SQLITE_ONLY) and not (later and scenario in ONCE)
    ]


@pytest.mark.parametrize("location,failpoint", deaths(later=False), indirect=["location"])
def test_a_kill_there_loses_nothing_acknowledged(location: StoreLocation, failpoint: str, tmp_path: Path):
    _die(location, failpoint, 1, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("location,failpoint", deaths(later=True), indirect=["location"])
def test_a_later_kill_there_loses_nothing_acknowledged(
    location: StoreLocation, failpoint: str, tmp_path: Path
):
    _die(location, failpoint, LATER, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("nth", [2, 4, 7, 11, 16, 22])
@pytest.mark.parametrize("failpoint", ["erase.before_commit", "erase.after_commit"])
def test_a_large_erasure_resumes_after_a_kill_between_slices(
    location: StoreLocation, failpoint: str, nth: int
):
    after_erases(location, killed_at(failpoint, nth, "erases_in_slices", location, rounds=1))


def _die(location: StoreLocation, failpoint: str, nth: int, tmp_path: Path) -> None:
    scenario = DEATHS[failpoint]
    if scenario == "copies":
        after_copies(location, failpoint, nth, tmp_path)
    elif scenario == "backs_up":
        after_backs_up(location, failpoint, nth, tmp_path)
    else:
        account = killed_at(failpoint, nth, scenario, location)
        if scenario == "commits":
            with location.open() as store:
                assert [fate(store.engine, batch_of(each)) for each in account.in_flight] == [
                    FATES[failpoint]
                ]
        AFTERWARDS[scenario](location, account)


def after_commits(location: StoreLocation, account: Account) -> None:
    loses_nothing_acknowledged(location, account)
    leaves_nothing_behind(location)
    with location.open() as store:
        assert total(store.engine) == sum(batch.startswith("batch-") for batch in account.tried)


def after_flushes(location: StoreLocation, account: Account) -> None:
    """Acknowledged commits are stored once and in order, whoever flushes them."""
    with location.open() as store:
        assert [record.event.id for record in store.engine.scan(SPACE, EventQuery()).records] == [
            event.id for batch in account.tried for event in batch_of(batch).events
        ]
    loses_nothing_acknowledged(location, account)
    leaves_nothing_behind(location)


def after_sweeps(location: StoreLocation, account: Account) -> None:
    """Reachable data is kept; the rest is deleted by the next sweep."""
    loses_nothing_acknowledged(location, account)
    leaves_nothing_behind(location)
    rounds = range(len(account.tried))
    dead = [each.name for number in rounds for each in pieces(number, writer="rubbish")]
    dead += [pieces(number)[part].name for number in rounds for part in (0, 2, 3)]
    with location.open() as store:
        assert store.engine.missing(SPACE, dead) == set(dead)
        assert not store.engine.scan_refs(SPACE, "rubbish")


def after_retains(location: StoreLocation, account: Account) -> None:
    """The journal records drops in advance, and the last two checkpoints always exist."""
    latest = [batch for batch in account.tried if batch.startswith("checkpoint")][-2:]
    with location.open() as store:
        is_sound(store)
        kept = checkpoints(store)
        assert [batch.removeprefix("checkpoint-").replace("-", ".") for batch in latest] == kept[-2:]
        announced = store.engine.scan(SPACE, EventQuery(kinds=("retention",))).records
        assert len(announced) >= len(account.done)
        store.gc(keep=Keep(last=2), grace_seconds=0)
        assert checkpoints(store) == kept[-2:]
        is_sound(store)


def checkpoints(store: Store) -> list[str]:
    records = store.engine.scan(SPACE, EventQuery(kinds=("checkpoint",))).records
    return [record.event.id for record in records]


def after_erases(location: StoreLocation, account: Account) -> None:
    """Other data is kept; forgetting again finishes what was begun."""
    loses_nothing_acknowledged(location, account)
    number = account.forgetting[-1]
    with location.open() as store:
        with suppress(NotFound):  # it may have got as far as the last name
            store.forget(thread=f"gone{number}")
        if location.kind == "sqlite":
            assert not files_with(Path(location.url), f"gone{number}".encode())
            assert not files_with(Path(location.url), pieces(0, writer=f"v{number}")[1].data[:100])
        is_sound(store)
        is_forgotten(store, number)
    leaves_nothing_behind(location)


def is_forgotten(store: Store, number: int) -> None:
    for step in range(2):
        assert fate(store.engine, load(step, writer=f"v{number}", thread=f"gone{number}")) == "absent"
    gone = [content.name for content in pieces(0, writer=f"v{number}")]
    assert store.engine.missing(SPACE, gone) == set(gone)
    with pytest.raises(NotFound):
        store.forget(thread=f"gone{number}")


def after_opens(location: StoreLocation, account: Account) -> None:
    """If creating a store was interrupted, the next opener creates it."""
    assert not account.tried
    with location.open() as store:
        assert store.verify().ok
        store.commit(load(0))
        is_sound(store)


def after_copies(location: StoreLocation, failpoint: str, nth: int, tmp_path: Path) -> None:
    """An interrupted copy resumes where it stopped, and is equal in the end."""
    source = sqlite_location(tmp_path / "source")
    target = location.url if location.blobs is None else f"{location.url} {location.blobs}"
    account = killed_at(failpoint, nth, "copies", source, target=target)
    loses_nothing_acknowledged(source, account)
    with source.open() as store, location.open() as copy:
        report = store.copy_to(copy)
        assert report.resumed
        assert portrait(store.engine, SPACE) == portrait(copy.engine, SPACE)
        is_sound(copy)
    leaves_nothing_behind(location)


def after_backs_up(location: StoreLocation, failpoint: str, nth: int, tmp_path: Path) -> None:
    """An interrupted backup does not exist; earlier ones are complete, and the next one works."""
    folder = tmp_path / "backups"
    account = killed_at(failpoint, nth, "backs_up", location, target=str(folder))
    loses_nothing_acknowledged(location, account)
    assert sorted(path.name for path in folder.glob("[0-9]*")) == [
        done.removeprefix("backup ") for done in account.done
    ]
    with location.open() as store:
        store.backup(folder / "another")
        for path in (*folder.glob("[0-9]*"), folder / "another"):
            with sqlite_location(path).open() as backup:
                is_sound(backup)
        with sqlite_location(folder / "another").open() as backup:
            before = portrait(store.engine, SPACE)
            assert portrait(backup.engine, SPACE) == before
    leaves_nothing_behind(location)


AFTERWARDS = {
    "commits": after_commits,
    "flushes": after_flushes,
    "stages": after_commits,
    "sweeps": after_sweeps,
    "retains": after_retains,
    "erases": after_erases,
    "opens": after_opens,
}


def loses_nothing_acknowledged(location: StoreLocation, account: Account) -> None:
    """Acknowledged batches are stored; those in flight are complete or absent, and a retry completes them."""
    with location.open() as store:
        is_sound(store)
        for batch_id, receipt in account.receipts.items():
            batch = batch_of(batch_id)
            assert fate(store.engine, batch) == "whole", f"{batch_id} was acknowledged"
            assert store.commit(batch) == receipt
        for batch_id in account.in_flight:
            batch = batch_of(batch_id)
            fate(store.engine, batch)
            send_again(store, batch)
            assert fate(store.engine, batch) == "whole"
        is_sound(store)


def send_again(store: Store, batch: Batch) -> None:
    """Retry as a client without a response does: stage the required objects, commit the same batch."""
    if batch.requires:
        _, writer, number, _ = batch.id.split("-")
        store.engine.stage(SPACE, pieces(int(number), writer=writer))
    receipt = store.commit(batch)
    assert store.commit(batch) == receipt


def leaves_nothing_behind(location: StoreLocation) -> None:
    """After a sweep, pack files and pack rows agree, and no temporary file is left."""
    location.age_files()
    with location.open() as store:
        store.engine.stage(SPACE, pieces(0, writer="new"))  # staging a pack deletes old temporary files
        store.gc(grace_seconds=0)
        is_sound(store)
    assert location.pack_files() == location.pack_rows()
    assert not location.drafts()


def is_sound(store: Store) -> None:
    assert store.verify().problems == ()

"""Archived days: read as before, verified, sealed, forgotten, never lost or doubled by a killed process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import treering
from tests.lake.conftest import A_DAY, CANARY, RUNS, bytes_of, later, parquet_files, read_all, write_runs
from tests.servers.bucket import S3Bucket
from treering.blobs.location import open_blobs
from treering.core import failpoints
from treering.core.retention import Keep
from treering.errors import InvalidInput, NotFound, Unsupported
from treering.lake.engine import KINDS, PREFIXES, lake_of
from treering.maintenance.audit import new_key
from treering.runs.exchanges import EXCHANGE
from treering.runs.otlp.decode import LOG, METRIC
from treering.runs.otlp.traces import ATTRIBUTES
from treering.runs.run import RUN
from treering.runs.span import MESSAGE, OPEN, SPAN
from treering.store import Store


@pytest.fixture
def elsewhere(postgres_url: str, s3: S3Bucket) -> Iterator[Store]:
    """A store on PostgreSQL with its packs in a bucket."""
    keys = {"access_key_id": s3.access_key, "secret_access_key": s3.secret_key}
    blobs = open_blobs(f"s3://{s3.bucket}/packs", endpoint=s3.endpoint, region=s3.region, **keys)
    with treering.open(postgres_url, blobs=blobs) as opened:
        write_runs(opened)
        yield later(opened)


class TestReading:
    @pytest.mark.parametrize(
        "where", ["store", pytest.param("elsewhere", marks=[pytest.mark.postgres, pytest.mark.s3])]
    )
    def test_archived_runs_read_as_before(self, request: pytest.FixtureRequest, where: str) -> None:
        store: Store = request.getfixturevalue(where)
        before = read_all(store)
        archived = store.archive(before=A_DAY)
        assert (archived.runs, archived.events) == (RUNS, 5 * RUNS + RUNS // 6)
        assert read_all(store) == before
        # Also when the contents are gone from the database, and from other objects than those that archived.
        store.gc(grace_seconds=0)
        assert store.engine.inner.scan("default", _events()).records == ()
        assert read_all(store) == before
        assert store.verify().ok
        store.reindex()
        assert read_all(store) == before
        assert store.archive(before=A_DAY).events == 0

    def test_a_late_event_is_merged_and_archived_later(self, store: Store) -> None:
        store.archive(before=A_DAY)
        (info,) = [each for each in store.runs.each() if each.tags == ("team-0",)][:1]
        from treering.core.batch import Draft, Event

        draft = Draft("default")
        draft.event(
            Event(
                id="late",
                kind="message",
                ts_us=info.started_at_us,
                scope=info.scope,
                run=info.id,
                role="user",
            )
        )
        store.commit(draft)
        events = list(store.timeline.each_of_run(info.id, everything=True))
        assert [event.ref.get("message_id") for event in events].count("late") == 1
        assert events == sorted(events, key=lambda event: event.ts_us)
        assert store.archive(before=A_DAY).events == 1
        assert list(store.timeline.each_of_run(info.id, everything=True)) == events
        assert store.verify().ok

    def test_what_a_checkpoint_or_a_young_day_needs_stays(self, store: Store) -> None:
        store.thread("t1").append({"role": "user", "content": "kept"})
        young = Store(store.engine)  # with the real clock, today is not finished
        assert young.archive(before="1h").events == 0
        store.archive(before=A_DAY)
        assert [message["content"] for message in store.thread("t1").load().messages] == ["kept"]

    def test_it_cannot_reach_into_the_future(self, store: Store) -> None:
        with pytest.raises(InvalidInput, match="is in the future"):
            store.archive(before="2999-01-01")
        with pytest.raises(InvalidInput, match="use an age like '30d'"):
            store.archive(before="soon")

    def test_a_store_without_a_blob_store_says_so(self) -> None:
        with treering.open("memory:") as store, pytest.raises(Unsupported, match="no blob store"):
            store.archive(before=A_DAY)

    def test_a_backup_and_a_copy_have_the_archive(self, store: Store, tmp_path: Path) -> None:
        before = read_all(store)
        store.archive(before=A_DAY)
        store.gc(grace_seconds=0)
        store.backup(tmp_path / "backup")
        store.copy_to(tmp_path / "copy")
        for name in ("backup", "copy"):
            with treering.open(tmp_path / name) as copy:
                assert read_all(copy) == before
                assert copy.verify().ok
        with treering.open("memory:") as other, pytest.raises(Unsupported, match="a copy of archived days"):
            store.copy_to(other)


def test_the_kinds_that_are_archived_are_those_of_runs() -> None:
    assert {RUN, MESSAGE, LOG, METRIC, ATTRIBUTES} == KINDS
    assert set(PREFIXES) == {SPAN, OPEN, EXCHANGE}


class TestTrust:
    def test_seals_hold_and_an_archived_event_is_proven(self, store: Store) -> None:
        private, public = new_key()
        seal = store.audit.seal(key=private)
        assert seal is not None
        event = next(iter(store.engine.scan("default", _events()).records)).event.id
        before = store.audit.prove(event)
        store.archive(before=A_DAY)
        report = store.audit.verify([seal], key=public)
        assert (report.ok, report.erased, report.findings) == (True, 0, ())
        assert store.audit.prove(event) == before

    def test_a_changed_file_is_noticed(self, store: Store, folder: Path) -> None:
        store.audit.seal()
        store.archive(before=A_DAY)
        (path,) = parquet_files(folder)
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
        found = store.verify()
        assert [(each.kind, each.where) for each in found.problems][-1][1].endswith(path.name)
        path.unlink()
        assert any("missing" in each.detail for each in store.verify().problems)


class TestForget:
    def test_it_leaves_no_byte_of_the_person(self, store: Store, folder: Path) -> None:
        store.archive(before=A_DAY)
        store.gc(grace_seconds=0)
        (old,) = parquet_files(folder)
        others = {key: value for key, value in read_all(store).items() if key in _runs_without(store, "t1")}
        receipt = store.forget(thread="t1")
        assert receipt.events == 5 * RUNS // 4 + 1
        assert not old.exists()
        assert len(parquet_files(folder)) == 1
        after = read_all(store)
        assert {key: after[key] for key in others} == others
        assert store.verify().ok  # the totals are those of what is left
        assert after["words"] == ()
        assert store.archive(before=A_DAY).events == 0
        store.close()
        assert CANARY.encode() not in bytes_of(folder)

    def test_an_erasure_while_an_archiver_has_read_the_events(self, store: Store, folder: Path) -> None:
        def forget() -> None:
            failpoints.disarm("lake.written")
            later(store).forget(thread="t1")

        failpoints.arm("lake.written", forget)
        try:
            store.archive(before=A_DAY)
        finally:
            failpoints.disarm()
        assert store.verify().ok
        assert not store.timeline.search(CANARY).hits
        store.close()
        assert not any(CANARY.encode() in path.read_bytes() for path in parquet_files(folder))

    def test_retention_removes_archived_runs(self, store: Store) -> None:
        store.archive(before=A_DAY)
        store.gc(keep_runs=Keep(last=2), grace_seconds=0)
        assert len(list(store.runs.each())) == 6
        assert store.verify().ok
        assert store.cost.of_days().total.events == sum(
            store.cost.of_run(info.id).total.events for info in store.runs.each()
        )


POINTS = [
    "lake.written", "lake.catalogued", "archive.dropped", "lake.cleaned",
    "lake.rewritten", "lake.replaced", "lake.deleted",
]  # fmt: skip


@pytest.mark.faults
class TestKilled:
    def test_a_killed_process_loses_and_doubles_nothing(self, written: Path, tmp_path: Path) -> None:
        """Each point kills a process of its own; all of them run at once."""
        processes = {
            point: _killed_at(point, Path(shutil.copytree(written, tmp_path / point))) for point in POINTS
        }
        with treering.open(written) as untouched:
            before = read_all(untouched)
        for point, process in processes.items():
            assert process.wait(60) == -signal.SIGKILL, point
            with treering.open(tmp_path / point) as opened:
                store = later(opened)
                if point in POINTS[:4]:
                    assert read_all(store) == before, point
                    store.archive(before=A_DAY)
                else:
                    with suppress(NotFound):  # its name may be gone; what is left of it goes now
                        store.forget(thread="t1")
                store.gc(grace_seconds=0)
                assert store.verify().ok, point
                if point not in POINTS[:4]:
                    assert set(_runs_without(store, "t1")) == {each.id for each in store.runs.each()}, point
                    store.close()
                    assert CANARY.encode() not in bytes_of(tmp_path / point), point
                else:
                    lake = lake_of(store.engine)
                    assert sum(file.rows for file in lake.catalogue("default").files) == 5 * RUNS + RUNS // 6


def _killed_at(point: str, folder: Path) -> subprocess.Popen[bytes]:
    program = (
        "import sys, treering; from tests.lake.conftest import later, A_DAY\n"
        "with treering.open(sys.argv[1]) as opened:\n"
        "    store = later(opened); store.archive(before=A_DAY)\n"
        "    store.forget(thread='t1')\n"
    )
    environment = os.environ | {"TREERING_FAILPOINTS": f"{point}=kill"}
    return subprocess.Popen([sys.executable, "-c", program, str(folder)], env=environment)


def _events():
    from treering.core.query import EventQuery

    return EventQuery(kinds=("message", "span.tool", "span.llm"))


def _runs_without(store: Store, thread: str) -> list[str]:
    return [info.id for info in store.runs.each() if info.thread != thread]

"""Garbage collection by policy: what is kept, what is dropped, and what the journal records."""

from __future__ import annotations

import pytest

import treering
from tests.maintenance.conftest import ALICE, kinds_in, write_steps
from treering.core import failpoints
from treering.core.batch import Event
from treering.core.clock import DAY_US, ManualClock
from treering.core.encoding import decode, decode_json, encode_json
from treering.core.records import SweepProgress
from treering.engines.memory.engine import MemoryEngine
from treering.store import Store
from treering.testing.batches import noise
from treering.testing.portrait import portrait


class TestGc:
    def test_without_a_policy_nothing_is_dropped(self, store: Store) -> None:
        write_steps(store, 10)
        result = store.gc(grace_seconds=0)
        assert result.dropped == {}
        assert result.kept == {}
        assert len(kinds_in(store, "checkpoint")) == 10

    def test_retention_keeps_the_newest_of_each_thread(self, store: Store) -> None:
        write_steps(store, 10, thread="t1")
        write_steps(store, 4, thread="t2")
        result = store.gc(keep=treering.Keep(last=3))
        assert result.dropped == {"checkpoint": 8}
        assert result.kept == {"checkpoint": 6}
        left = [event.id for event in kinds_in(store, "checkpoint")]
        assert left == ["t1-7", "t1-8", "t1-9", "t2-1", "t2-2", "t2-3"]
        assert store.verify().ok

    def test_dropped_checkpoints_are_recorded_in_the_journal(self, store: Store) -> None:
        write_steps(store, 5)
        result = store.gc(keep=treering.Keep(last=2))
        (event,) = kinds_in(store, "retention")
        assert event.id == result.event
        assert decode_json(event.data or b"") == {"dropped": {"checkpoint": 3}, "keep": {"last": 2}}
        assert event.body is not None
        (listed,) = store.engine.get(store.space, [event.body])
        assert decode(listed) == {"checkpoint": ["t1-0", "t1-1", "t1-2"]}

    def test_a_dry_run_changes_nothing_and_counts_the_same(self, store: Store) -> None:
        write_steps(store, 10)
        before = portrait(store.engine, store.space)
        planned = store.gc(keep=treering.Keep(last=3), dry_run=True)
        assert portrait(store.engine, store.space) == before
        done = store.gc(keep=treering.Keep(last=3))
        assert (planned.dropped, planned.kept) == (done.dropped, done.kept)
        assert (planned.dry_run, planned.event) == (True, None)

    def test_a_checkpoint_named_by_a_ref_is_pinned(self, store: Store) -> None:
        write_steps(store, 10)
        draft = store.draft()
        draft.set_ref("bookmark", encode_json({"checkpoint": "t1-2"}), scope=ALICE)
        draft.set_ref("other", encode_json({"event": "t1-4"}), scope=ALICE)
        draft.set_ref("odd", b"{not json", scope=ALICE)
        draft.set_ref("number", encode_json({"checkpoint": 7}), scope=ALICE)
        store.commit(draft)
        store.gc(keep=treering.Keep(last=1))
        assert [event.id for event in kinds_in(store, "checkpoint")] == ["t1-2", "t1-4", "t1-9"]

    def test_a_ref_that_moves_after_the_decision_still_pins(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_steps(store, 5)
        commit = store.engine.commit

        def commit_then_rewind(batch: object) -> object:
            done = commit(batch)  # type: ignore[arg-type]
            monkeypatch.undo()  # the retention event is recorded; now someone rewinds to step 1
            draft = store.draft()
            draft.set_ref("t1/head", encode_json({"checkpoint": "t1-1"}), scope=ALICE)
            store.commit(draft)
            return done

        monkeypatch.setattr(store.engine, "commit", commit_then_rewind)
        store.gc(keep=treering.Keep(last=1))
        assert "t1-1" in [event.id for event in kinds_in(store, "checkpoint")]

    def test_tags_and_sizes_come_from_the_event(self, store: Store) -> None:
        for number in range(4):
            draft = store.draft()
            data = {"tags": ["release"] if number == 0 else [], "size_bytes": 100}
            draft.event(
                Event(id=f"s{number}", kind="snapshot", ts_us=number, scope=ALICE, data=encode_json(data))
            )
            store.commit(draft)
        store.gc(keep=treering.Keep(tagged=("release",), last=4, max_bytes=250))
        assert [event.id for event in kinds_in(store, "snapshot")] == ["s0", "s3"]

    def test_age_counts_from_the_commit(self) -> None:
        clock = ManualClock(100 * DAY_US)
        store = Store(MemoryEngine(clock=clock), clock=clock)
        write_steps(store, 2)
        clock.advance(seconds=10 * 86_400)
        write_steps(store, 2, first=2)
        store.gc(keep=treering.Keep(within="5d"))
        assert [event.id for event in kinds_in(store, "checkpoint")] == ["t1-2", "t1-3"]

    def test_more_than_one_batch_is_dropped(self) -> None:
        store = Store(MemoryEngine())
        draft = store.draft()
        for number in range(2500):
            draft.event(Event(id=f"e{number}", kind="checkpoint", ts_us=number, scope=ALICE, thread="t1"))
        store.commit(draft)
        assert store.gc(keep=treering.Keep(last=10)).dropped == {"checkpoint": 2490}
        assert store.stats().rows["events"] == 11

    def test_content_of_dropped_events_is_deleted(self, store: Store) -> None:
        write_steps(store, 10)
        assert store.stats().rows["objects"] == 2
        store.gc(keep=treering.Keep(last=2), grace_seconds=0)
        store.gc(grace_seconds=0)
        assert store.stats().rows["objects"] == 0
        assert store.verify().ok

    def test_after_a_stop_between_record_and_removal_it_can_run_again(self, store: Store) -> None:
        write_steps(store, 5)
        with failpoints.armed("gc.recorded", "raise"), pytest.raises(failpoints.Injected):
            store.gc(keep=treering.Keep(last=2))
        assert len(kinds_in(store, "checkpoint")) == 5
        store.gc(keep=treering.Keep(last=2))
        assert len(kinds_in(store, "checkpoint")) == 2
        assert len(kinds_in(store, "retention")) == 2


def test_a_local_store_reports_how_far_it_is(tmp_path) -> None:
    with treering.open(tmp_path / "store") as store:
        write_steps(store, 10)
        for number in range(3):
            store.engine.stage(store.space, [noise(5_000, seed=number)])
        reported: list[SweepProgress] = []
        collected = store.gc(keep=treering.Keep(last=3), grace_seconds=-10, on_progress=reported.append)
    marking = [each for each in reported if each.phase == "marking"]
    deleting = [each for each in reported if each.phase == "deleting"]
    assert [*marking, *deleting] == reported
    assert marking[-1].done == marking[-1].total
    assert deleting[-1].bytes == deleting[-1].of_bytes == collected.swept.bytes > 0
    assert deleting[-1].done == deleting[-1].total

"""Writing to a store, verifying it and its statistics, on every local engine and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import treering
from tests.maintenance.conftest import ALICE, OpenStore, write_steps
from treering.core.encoding import decode, encode
from treering.core.records import Checked, Problem
from treering.engines.memory.engine import MemoryEngine
from treering.errors import Closed, InvalidInput, NotFound
from treering.maintenance.verify import MAX_PROBLEMS
from treering.store import Store
from treering.testing.portrait import portrait


class TestWriting:
    def test_a_draft_is_committed_to_the_space_of_its_store(self, store: Store) -> None:
        draft = store.draft()
        address = draft.put(encode("hello"), scope=ALICE)
        draft.set_ref("greeting", b"1", scope=ALICE, links=(address,))
        receipt = store.commit(draft)
        assert receipt.versions == {"greeting": 1}
        assert decode(store.engine.get(store.space, [address])[0]) == "hello"

    def test_a_batch_with_its_own_id_is_safe_to_retry(self, store: Store) -> None:
        def send() -> object:
            draft = store.draft("import-7")
            draft.set_ref("n", b"1", scope=ALICE, expect="absent")
            return store.commit(draft)

        assert send() == send()

    def test_submit_returns_a_future(self, store: Store) -> None:
        draft = store.draft()
        draft.set_ref("n", b"1", scope=ALICE)
        assert store.submit(draft.batch()).result(timeout=60).versions == {"n": 1}

    def test_a_batch_of_another_space_is_rejected(self, store: Store) -> None:
        stranger = treering.Store(MemoryEngine(), space="other").draft()
        with pytest.raises(InvalidInput, match="is for space 'other'"):
            store.commit(stranger)

    def test_spaces_do_not_see_each_other(self, open_kind: OpenStore, kind: str) -> None:
        ours = open_kind(kind)
        theirs = Store(ours.engine, space="other")
        write_steps(ours, 3)
        assert theirs.stats().rows["events"] == 0
        assert theirs.verify().checked.events == 0
        with pytest.raises(NotFound):
            theirs.forget(thread="t1", namespace="alice")

    def test_one_engine_serves_many_namespaces(self, open_kind: OpenStore, kind: str, tmp_path: Path) -> None:
        ours = open_kind(kind)
        team = ours.in_namespace("team")
        write_steps(team, 2)
        assert (team.space, team.stats().rows["events"], ours.stats().rows["events"]) == ("team", 2, 0)
        team.copy_to(tmp_path / "copy")
        with pytest.raises(InvalidInput):
            ours.in_namespace("a/b")

    def test_a_closed_store_raises_closed(self, store: Store) -> None:
        draft = store.draft()
        draft.set_ref("n", b"1", scope=ALICE)
        store.close()
        store.close()
        with pytest.raises(Closed):
            store.commit(draft)


class TestVerify:
    def test_a_healthy_store_is_ok_and_everything_was_read(self, store: Store) -> None:
        write_steps(store, 10)
        seen: list[Checked] = []
        report = store.verify(on_progress=seen.append)
        assert report.ok
        assert report.problems == ()
        assert (report.checked.events, report.checked.refs, report.checked.objects) == (10, 1, 2)
        assert seen[-1] == report.checked

    def test_a_store_that_was_just_opened_is_healthy(self, store: Store) -> None:
        assert store.verify().ok
        assert set(store.stats().rows.values()) == {0}
        assert store.gc(keep=treering.Keep(last=1)).dropped == {}
        store.reindex()

    def test_problems_are_listed_up_to_a_limit_and_then_counted(self) -> None:
        class Ruined(MemoryEngine):
            def check(self, space: str, **_: bool) -> Iterator[Problem | Checked]:
                for number in range(MAX_PROBLEMS + 7):
                    yield Problem(kind="corrupt", where=f"{space}/{number}", detail="checksum")
                yield Checked(objects=3)

        store = Store(Ruined())
        write_steps(store, 1)
        report = store.verify()
        assert not report.ok
        assert len(report.problems) == MAX_PROBLEMS
        assert report.more == 7
        assert report.checked.objects == 3


class TestStats:
    def test_rows_bytes_and_growth(self, store: Store) -> None:
        write_steps(store, 10)
        stats = store.stats()
        assert stats.rows["events"] == stats["rows"]["events"] == 10
        assert stats.rows["items"] == 10
        assert stats.total_bytes == sum(stats.bytes.values()) > 0
        assert sum(stats.growth_bytes.values()) > 0
        assert dict(stats).keys() == set(stats) == {*stats.keys()}
        assert len(stats) == len(stats.keys())
        with pytest.raises(KeyError):
            stats["nothing"]

    def test_a_local_store_knows_its_disk(self, open_kind: OpenStore) -> None:
        store = open_kind("sqlite")
        write_steps(store, 10)
        assert (store.stats().disk_bytes or 0) > 10_000
        assert open_kind("memory").stats().disk_bytes is None

    def test_reindex_changes_nothing_that_can_be_read(self, store: Store) -> None:
        write_steps(store, 4)
        before = portrait(store.engine, store.space)
        store.reindex()
        assert portrait(store.engine, store.space) == before

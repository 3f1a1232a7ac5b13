"""Copies and backups: equal to their source, resumable, and rejected where they would destroy data."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treering
from tests.maintenance.conftest import ALICE, OpenStore, kinds_in, write_many, write_steps
from treering.core import failpoints
from treering.engines.memory.engine import MemoryEngine
from treering.errors import Conflict, InvalidInput, ReadOnly, Unreachable
from treering.maintenance.stats import user_spaces
from treering.store import Store
from treering.testing.portrait import portrait

PAIRS = [
    pytest.param(source, target, marks=[pytest.mark.postgres] if "postgres" in (source, target) else [])
    for source in ("memory", "sqlite", "postgres")
    for target in ("memory", "sqlite", "postgres")
]


class TestCopy:
    @pytest.mark.parametrize("source, target", PAIRS)
    def test_a_copy_is_equal_to_its_source(self, open_kind: OpenStore, source: str, target: str) -> None:
        ours, theirs = open_kind(source, "a"), open_kind(target, "b")
        write_steps(ours, 12)
        write_steps(ours, 3, thread="t2")
        report = ours.copy_to(theirs)
        assert portrait(ours.engine, "default") == portrait(theirs.engine, "default")
        assert theirs.verify().ok
        assert (report.passes, report.resumed, report.last_seq) == (1, False, 15)
        assert report.rows > 30

    def test_a_copy_by_url_has_the_same_namespace(self, open_kind: OpenStore, tmp_path: Path) -> None:
        ours = open_kind("memory", namespace="team-a")
        write_steps(ours, 3)
        report = ours.copy_to(tmp_path / "copy")
        with treering.open(tmp_path / "copy", namespace="team-a") as theirs:
            assert theirs.stats().rows["events"] == 3
            assert theirs.url == report.target
            assert user_spaces(theirs.engine) == ["team-a"]

    def test_a_copy_into_another_space_of_the_same_engine(self, store: Store) -> None:
        write_steps(store, 3)
        twin = Store(store.engine, space="twin")
        store.copy_to(twin)
        assert portrait(store.engine, "default") == portrait(store.engine, "twin")

    def test_an_empty_space_can_be_copied(self, open_kind: OpenStore) -> None:
        ours, theirs = open_kind("memory", "a"), open_kind("sqlite", "b")
        assert ours.copy_to(theirs).rows == 0
        assert user_spaces(theirs.engine) == []

    @pytest.mark.parametrize("where", ["copy.loaded:1", "copy.loaded:3", "copy.noted:2", "copy.compared:1"])
    def test_an_interrupted_copy_resumes(self, open_kind: OpenStore, kind: str, where: str) -> None:
        ours, theirs = open_kind("memory", "a"), open_kind(kind, "b")
        write_many(ours, 700)
        write_steps(ours, 10)
        name, hit = where.split(":")
        with failpoints.armed(name, f"raise:{hit}"), pytest.raises(failpoints.Injected):
            ours.copy_to(theirs)
        whole = sum(ours.stats().rows.values())
        report = ours.copy_to(theirs)
        assert report.resumed
        assert report.rows <= whole
        if name != "copy.compared" and hit != "1":
            assert 0 < report.rows < whole
        assert portrait(ours.engine, "default") == portrait(theirs.engine, "default")

    def test_a_copy_resumes_after_the_source_has_changed(self, open_kind: OpenStore, kind: str) -> None:
        ours, theirs = open_kind(kind, "a"), open_kind("memory", "b")
        write_many(ours, 700)
        with failpoints.armed("copy.noted", "raise:2"), pytest.raises(failpoints.Injected):
            ours.copy_to(theirs)
        write_steps(ours, 5)
        write_steps(ours, 5, thread="zzz")
        ours.copy_to(theirs)
        assert portrait(ours.engine, "default") == portrait(theirs.engine, "default")

    def test_writers_may_continue_during_a_copy(self, open_kind: OpenStore, kind: str) -> None:
        ours, theirs = open_kind(kind, "a"), open_kind("memory", "b")
        write_many(ours, 700)
        moved: list[int] = []

        def write_more(_: object) -> None:
            if len(moved) < 3:
                moved.append(1)
                write_steps(ours, 2, thread=f"late-{len(moved)}")

        report = ours.copy_to(theirs, on_progress=write_more)
        assert report.passes > 1
        assert portrait(ours.engine, "default") == portrait(theirs.engine, "default")

    def test_a_source_that_never_pauses_is_a_clear_error(self, open_kind: OpenStore) -> None:
        ours, theirs = open_kind("memory", "a"), open_kind("memory", "b")
        write_steps(ours, 1)
        count = iter(range(1, 10_000))
        with pytest.raises(Conflict, match="pause its writers"):
            ours.copy_to(theirs, on_progress=lambda _: write_steps(ours, 1, first=next(count)))

    def test_a_second_copy_catches_up(self, open_kind: OpenStore, kind: str) -> None:
        ours, theirs = open_kind("memory", "a"), open_kind(kind, "b")
        write_steps(ours, 5)
        ours.copy_to(theirs)
        write_steps(ours, 5, first=5)
        assert ours.copy_to(theirs).resumed
        assert portrait(ours.engine, "default") == portrait(theirs.engine, "default")

    def test_data_forgotten_in_the_source_is_removed_from_the_copy(
        self, open_kind: OpenStore, kind: str
    ) -> None:
        ours, theirs = open_kind("memory", "a"), open_kind(kind, "b")
        write_steps(ours, 5, thread="t1")
        write_steps(ours, 8, thread="t2")
        ours.copy_to(theirs)
        ours.forget(thread="t1", namespace="alice")
        ours.gc(keep=treering.Keep(last=3))
        ours.copy_to(theirs)
        assert theirs.engine.list_info("default", "t1/messages") is None
        assert [event.id for event in kinds_in(theirs, "checkpoint")] == ["t2-5", "t2-6", "t2-7"]
        assert theirs.verify().ok

    def test_a_target_with_its_own_data_is_rejected(self, open_kind: OpenStore, kind: str) -> None:
        ours, theirs = open_kind("memory", "a"), open_kind(kind, "b")
        write_steps(ours, 3)
        write_steps(theirs, 1)
        before = portrait(theirs.engine, "default")
        with pytest.raises(Conflict, match="not a copy of this store"):
            ours.copy_to(theirs)
        assert portrait(theirs.engine, "default") == before

    def test_a_copy_of_another_store_is_rejected(self, open_kind: OpenStore) -> None:
        one, two, theirs = open_kind("memory"), open_kind("memory"), open_kind("memory")
        write_steps(one, 1)
        write_steps(two, 1)
        one.copy_to(theirs)
        with pytest.raises(Conflict, match="a copy of another store"):
            two.copy_to(theirs)

    def test_a_modified_copy_is_rejected(self, open_kind: OpenStore) -> None:
        ours, theirs = open_kind("memory"), open_kind("memory")
        write_steps(ours, 3)
        ours.copy_to(theirs)
        write_steps(theirs, 1, thread="own")
        with pytest.raises(Conflict, match="was written to"):
            ours.copy_to(theirs)

    def test_a_store_is_not_copied_onto_itself(self, open_kind: OpenStore, tmp_path: Path) -> None:
        ours = open_kind("sqlite")
        write_steps(ours, 1)
        with pytest.raises(InvalidInput, match="is the source itself"):
            ours.copy_to(tmp_path / "store")

    def test_progress_is_reported(self, open_kind: OpenStore) -> None:
        ours = open_kind("memory")
        write_steps(ours, 50)
        progress: list[tuple[int, int]] = []
        ours.copy_to(
            open_kind("memory"), on_progress=lambda state: progress.append((state.rows, state.of_rows))
        )
        assert progress[-1][0] == progress[-1][1]

    def test_blobs_require_a_url(self, open_kind: OpenStore) -> None:
        with pytest.raises(InvalidInput, match="blobs"):
            open_kind("memory").copy_to(open_kind("memory"), blobs="s3://bucket")

    def test_a_store_without_an_opener_cannot_open_urls(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="without an opener"):
            Store(MemoryEngine()).copy_to(tmp_path / "x")


class TestBackup:
    def test_a_backup_opens_like_any_store(self, store: Store, tmp_path: Path) -> None:
        write_steps(store, 12)
        write_steps(Store(store.engine, space="other"), 2)
        report = store.backup(tmp_path / "saved")
        assert report.spaces == ("default", "other")
        assert report.events == 14
        with treering.open(tmp_path / "saved") as saved:
            assert portrait(saved.engine, "default") == portrait(store.engine, "default")
            assert saved.verify().ok

    def test_a_folder_with_files_is_rejected(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "taken").mkdir()
        (tmp_path / "taken" / "file").touch()
        for taken in (tmp_path / "taken", tmp_path / "taken" / "file"):
            with pytest.raises(Conflict, match="is not empty"):
                store.backup(taken)

    def test_an_empty_folder_is_accepted(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        write_steps(store, 1)
        store.backup(str(tmp_path / "empty"))
        with treering.open(tmp_path / "empty") as saved:
            assert saved.stats().rows["events"] == 1

    def test_an_interrupted_backup_leaves_no_files(self, store: Store, tmp_path: Path) -> None:
        write_steps(store, 3)
        with failpoints.armed("backup.checked", "raise"), pytest.raises(failpoints.Injected):
            store.backup(tmp_path / "saved" / "today")
        assert list((tmp_path / "saved").iterdir()) == []

    def test_an_unwritable_target_is_a_clear_error(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises((ReadOnly, Unreachable, Conflict, InvalidInput)):
            store.backup(tmp_path / "file" / "saved")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 4), st.sampled_from(["t1", "t2", "naïve/🌲"])),
        st.tuples(st.just("forget"), st.just(0), st.sampled_from(["t1", "t2"])),
        st.tuples(st.just("gc"), st.integers(1, 3), st.just("")),
        st.tuples(st.just("delete"), st.just(0), st.sampled_from(["t1", "t2"])),
    ),
    max_size=12,
)


@settings(max_examples=25)
@given(steps=STEPS)
def test_a_random_store_survives_a_copy_to_sqlite_and_back(
    steps: list[tuple[str, int, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = Store(MemoryEngine())
    write_many(store, 3)
    for action, count, thread in steps:
        info = store.engine.list_info("default", f"{thread}/messages")
        if action == "write":
            write_steps(store, count, first=info.length if info else 0, thread=thread)
        elif action == "forget" and info:
            store.forget(thread=thread, namespace="alice")
        elif action == "gc":
            store.gc(keep=treering.Keep(last=count), grace_seconds=0)
        elif action == "delete":
            draft = store.draft()
            draft.delete_ref(f"{thread}/head", scope=ALICE)
            store.commit(draft)
    back = Store(MemoryEngine())
    with treering.open(tmp_path_factory.mktemp("copies") / "store") as middle:
        store.copy_to(middle)
        middle.copy_to(back)
    assert portrait(back.engine, "default") == portrait(store.engine, "default")
    assert back.verify().ok

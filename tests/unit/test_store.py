"""Looking after a store, on every engine that one process can open by itself, and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import treering
from treering.care.forgetting import answers_to
from treering.care.spaces import user_spaces
from treering.care.verification import MAX_PROBLEMS
from treering.core.address import list_address
from treering.core.batch import Event, Text
from treering.core.clock import DAY_US, ManualClock
from treering.core.encoding import decode, decode_json, encode, encode_json
from treering.core.query import EventQuery
from treering.core.records import Checked, Problem
from treering.core.scopes import Scope
from treering.engines.memory import MemoryEngine
from treering.errors import Closed, Conflict, InvalidInput, NotFound, ReadOnly, Unreachable
from treering.store import Store
from treering.testing import failpoints
from treering.testing.portrait import portrait

KINDS = ("memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres))
ALICE = str(Scope("alice", "thread", "t1"))
BIG = b"tool result " * 1000

OpenStore = Callable[..., Store]


@pytest.fixture
def open_kind(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Store]]:
    """Open a store of a kind; the same name is the same store, but for memory."""
    opened: list[Store] = []
    databases: dict[str, str] = {}

    def open_one(kind: str, name: str = "store", **options: str) -> Store:
        if kind == "postgres" and name not in databases:
            databases[name] = request.getfixturevalue("postgres_server").create_database()
        urls = {"memory": "memory:", "sqlite": str(tmp_path / name), "postgres": databases.get(name, "")}
        opened.append(treering.open(urls[kind], **options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()
    for url in databases.values():
        request.getfixturevalue("postgres_server").drop_database(url)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def store(open_kind: OpenStore, kind: str) -> Store:
    return open_kind(kind)


@pytest.fixture(autouse=True)
def _disarm() -> Iterator[None]:
    yield
    failpoints.disarm()


def write_steps(
    store: Store, count: int, *, first: int = 0, thread: str = "t1", namespace: str = "alice"
) -> None:
    """What an agent leaves: a message, an event and a moved head a step, and a large result now and then."""
    scope = str(Scope(namespace, "thread", thread))
    for step in range(first, first + count):
        draft = store.draft()
        draft.append(f"{thread}/messages", encode({"role": "user", "n": step}), scope=scope, at=step)
        body = draft.put(encode(BIG + b"%d" % step), scope=scope) if step % 5 == 0 else None
        draft.event(
            Event(
                id=f"{thread}-{step}",
                kind="checkpoint",
                ts_us=step * 1_000_000,
                scope=scope,
                thread=thread,
                body=body,
            )
        )
        draft.set_ref(
            f"{thread}/head",
            encode_json({"checkpoint": f"{thread}-{step}"}),
            scope=scope,
            links=(list_address(f"{thread}/messages"),),
        )
        store.commit(draft)


def write_many(store: Store, count: int) -> None:
    """One commit that takes several slices to copy."""
    draft = store.draft()
    for number in range(count):
        draft.event(Event(id=f"many-{number}", kind="note", ts_us=number, scope=ALICE))
    draft.append("many", *(encode(f"item {number}") for number in range(count)), scope=ALICE, at=0)
    draft.set_ref("many", b"1", scope=ALICE, links=(list_address("many"),))
    store.commit(draft)


def kinds_in(store: Store, kind: str) -> list[Event]:
    page = store.engine.scan(store.space, EventQuery(kinds=(kind,)), limit=1000)
    return [record.event for record in page.records]


class TestWriting:
    def test_a_draft_is_committed_to_the_space_of_its_store(self, store: Store) -> None:
        draft = store.draft()
        address = draft.put(encode("hello"), scope=ALICE)
        draft.set_ref("greeting", b"1", scope=ALICE, links=(address,))
        receipt = store.commit(draft)
        assert receipt.versions == {"greeting": 1}
        assert decode(store.engine.get(store.space, [address])[0]) == "hello"

    def test_a_batch_with_an_id_of_its_own_may_be_sent_twice(self, store: Store) -> None:
        def send() -> object:
            draft = store.draft("import-7")
            draft.set_ref("n", b"1", scope=ALICE, expect="absent")
            return store.commit(draft)

        assert send() == send()

    def test_submit_gives_a_future(self, store: Store) -> None:
        draft = store.draft()
        draft.set_ref("n", b"1", scope=ALICE)
        assert store.submit(draft.batch()).result(timeout=10).versions == {"n": 1}

    def test_a_batch_of_another_space_is_refused(self, store: Store) -> None:
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

    def test_a_closed_store_says_so(self, store: Store) -> None:
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

    def test_problems_are_named_and_past_a_limit_counted(self) -> None:
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

    def test_what_was_dropped_is_in_the_journal(self, store: Store) -> None:
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

    def test_what_a_ref_names_is_pinned(self, store: Store) -> None:
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

    def test_content_behind_dropped_events_goes(self, store: Store) -> None:
        write_steps(store, 10)
        assert store.stats().rows["objects"] == 2
        store.gc(keep=treering.Keep(last=2), grace_seconds=0)
        store.gc(grace_seconds=0)
        assert store.stats().rows["objects"] == 0
        assert store.verify().ok

    def test_stopped_between_record_and_removal_it_can_run_again(self, store: Store) -> None:
        write_steps(store, 5)
        with failpoints.armed("gc.recorded", "raise"), pytest.raises(failpoints.Injected):
            store.gc(keep=treering.Keep(last=2))
        assert len(kinds_in(store, "checkpoint")) == 5
        store.gc(keep=treering.Keep(last=2))
        assert len(kinds_in(store, "checkpoint")) == 2
        assert len(kinds_in(store, "retention")) == 2


class TestForget:
    def test_a_thread_goes_and_its_neighbours_stay(self, store: Store) -> None:
        write_steps(store, 6, thread="t1")
        write_steps(store, 3, thread="t2")
        receipt = store.forget(thread="t1", namespace="alice")
        assert (receipt.scopes, receipt.events, receipt.lists, receipt.refs) == (1, 6, 1, 1)
        assert store.engine.list_info(store.space, "t1/messages") is None
        assert [event.id for event in kinds_in(store, "checkpoint")] == ["t2-0", "t2-1", "t2-2"]
        assert store.verify().ok

    def test_a_namespace_takes_all_its_threads(self, store: Store) -> None:
        write_steps(store, 2, thread="t1", namespace="alice")
        write_steps(store, 2, thread="t2", namespace="alice")
        write_steps(store, 2, thread="t3", namespace="alicia")
        assert store.forget(namespace="alice").scopes == 2
        assert {event.thread for event in kinds_in(store, "checkpoint")} == {"t3"}

    def test_a_scope_by_its_text(self, store: Store) -> None:
        write_steps(store, 2)
        assert store.forget(scope=ALICE).events == 2

    def test_a_thread_without_a_namespace(self, store: Store) -> None:
        write_steps(store, 2, thread="a/b", namespace="")
        assert store.forget(thread="a/b").events == 2

    def test_the_record_names_nobody_but_answers_who_knows(self, store: Store) -> None:
        write_steps(store, 2)
        receipt = store.forget(thread="t1", namespace="alice")
        (event,) = kinds_in(store, "forget")
        assert event.id == receipt.event
        assert b"alice" not in (event.data or b"")
        recorded = decode_json(event.data or b"")
        assert (recorded["what"], recorded["events"]) == ("thread", 2)
        known = {"salt": recorded["salt"], "digest": recorded["digest"]}
        assert answers_to(**known, thread="t1", namespace="alice")
        assert not answers_to(**known, thread="t2", namespace="alice")

    def test_nothing_there_is_not_found(self, store: Store) -> None:
        write_steps(store, 1)
        for selector in ({"thread": "t1"}, {"namespace": "bob"}, {"scope": "alice/thread/t"}):
            with pytest.raises(NotFound, match="nothing is stored under"):
                store.forget(**selector)

    @pytest.mark.parametrize(
        "selector",
        [
            {},
            {"thread": "t", "scope": "a/thread/t"},
            {"namespace": "a", "scope": "a/thread/t"},
            {"scope": "no scope"},
            {"thread": ""},
            {"thread": "t", "namespace": ""},
            {"namespace": ""},
            {"thread": "a\0b"},
            {"thread": "x" * 10_000},
        ],
    )
    def test_what_to_forget_must_be_clear(self, store: Store, selector: dict[str, str]) -> None:
        with pytest.raises(InvalidInput):
            store.forget(**selector)

    @pytest.mark.parametrize("thread", ["a/b%", "naïve 🌲", "100%"])
    def test_any_readable_name_can_be_forgotten(self, store: Store, thread: str) -> None:
        write_steps(store, 1, thread=thread)
        assert store.forget(thread=thread, namespace="alice").events == 1

    def test_a_fork_needs_cascade(self, store: Store) -> None:
        write_steps(store, 3)
        draft = store.draft()
        draft.append(
            "fork", encode("mine"), scope=str(Scope("bob", "thread", "f")), at=2, parent="t1/messages"
        )
        draft.set_ref(
            "fork/head", b"{}", scope=str(Scope("bob", "thread", "f")), links=(list_address("fork"),)
        )
        store.commit(draft)
        with pytest.raises(Conflict):
            store.forget(thread="t1", namespace="alice")
        assert kinds_in(store, "forget") == []
        store.forget(thread="t1", namespace="alice", cascade=True)
        assert store.engine.list_info(store.space, "fork") is None

    def test_no_byte_of_a_canary_is_left_on_disk(self, open_kind: OpenStore, tmp_path: Path) -> None:
        store = open_kind("sqlite")
        canary = "canary-5f2c9"
        scope = str(Scope(canary, "thread", canary))
        write_steps(store, 3, namespace="bob")
        write_steps(store, 6, thread=canary, namespace=canary)
        draft = store.draft()
        source = draft.put(encode(f"my name is {canary}"), scope=scope)
        draft.set_ref(f"note/{canary}", b"1", scope=scope, links=(source,))
        draft.text(Text(collection="notes", name=canary, scope=scope, source=source, namespace=canary))
        store.commit(draft)
        receipt = store.forget(namespace=canary)
        assert receipt.proof == "bytes"
        store.close()
        files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
        assert files
        assert [path.name for path in files if canary.encode() in path.read_bytes()] == []


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

    def test_a_copy_by_url_lands_in_the_same_namespace(self, open_kind: OpenStore, tmp_path: Path) -> None:
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
    def test_an_interrupted_copy_goes_on(self, open_kind: OpenStore, kind: str, where: str) -> None:
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

    def test_it_goes_on_although_the_source_moved(self, open_kind: OpenStore, kind: str) -> None:
        ours, theirs = open_kind(kind, "a"), open_kind("memory", "b")
        write_many(ours, 700)
        with failpoints.armed("copy.noted", "raise:2"), pytest.raises(failpoints.Injected):
            ours.copy_to(theirs)
        write_steps(ours, 5)
        write_steps(ours, 5, thread="zzz")
        ours.copy_to(theirs)
        assert portrait(ours.engine, "default") == portrait(theirs.engine, "default")

    def test_writers_may_go_on_meanwhile(self, open_kind: OpenStore, kind: str) -> None:
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

    def test_a_source_that_never_rests_ends_in_a_clear_error(self, open_kind: OpenStore) -> None:
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

    def test_what_the_source_forgot_leaves_the_copy_too(self, open_kind: OpenStore, kind: str) -> None:
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

    def test_a_target_with_data_of_its_own_is_refused(self, open_kind: OpenStore, kind: str) -> None:
        ours, theirs = open_kind("memory", "a"), open_kind(kind, "b")
        write_steps(ours, 3)
        write_steps(theirs, 1)
        before = portrait(theirs.engine, "default")
        with pytest.raises(Conflict, match="not a copy of this store"):
            ours.copy_to(theirs)
        assert portrait(theirs.engine, "default") == before

    def test_a_copy_of_another_store_is_refused(self, open_kind: OpenStore) -> None:
        one, two, theirs = open_kind("memory"), open_kind("memory"), open_kind("memory")
        write_steps(one, 1)
        write_steps(two, 1)
        one.copy_to(theirs)
        with pytest.raises(Conflict, match="a copy of another store"):
            two.copy_to(theirs)

    def test_a_copy_that_was_written_to_is_refused(self, open_kind: OpenStore) -> None:
        ours, theirs = open_kind("memory"), open_kind("memory")
        write_steps(ours, 3)
        ours.copy_to(theirs)
        write_steps(theirs, 1, thread="own")
        with pytest.raises(Conflict, match="was written to"):
            ours.copy_to(theirs)

    def test_a_store_is_not_copied_onto_itself(self, open_kind: OpenStore, tmp_path: Path) -> None:
        ours = open_kind("sqlite")
        write_steps(ours, 1)
        with pytest.raises(InvalidInput, match="is the store that is being copied"):
            ours.copy_to(tmp_path / "store")

    def test_progress_is_told(self, open_kind: OpenStore) -> None:
        ours = open_kind("memory")
        write_steps(ours, 50)
        told: list[tuple[int, int]] = []
        ours.copy_to(open_kind("memory"), on_progress=lambda state: told.append((state.rows, state.of_rows)))
        assert told[-1][0] == told[-1][1]

    def test_blobs_go_with_a_url_only(self, open_kind: OpenStore) -> None:
        with pytest.raises(InvalidInput, match="blobs"):
            open_kind("memory").copy_to(open_kind("memory"), blobs="s3://bucket")

    def test_a_store_made_by_hand_cannot_open_urls(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="made by hand"):
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

    def test_a_folder_that_is_taken_is_refused(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "taken").mkdir()
        (tmp_path / "taken" / "file").touch()
        for taken in (tmp_path / "taken", tmp_path / "taken" / "file"):
            with pytest.raises(Conflict, match="is not empty"):
                store.backup(taken)

    def test_an_empty_folder_is_taken(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        write_steps(store, 1)
        store.backup(str(tmp_path / "empty"))
        with treering.open(tmp_path / "empty") as saved:
            assert saved.stats().rows["events"] == 1

    def test_an_interrupted_backup_leaves_nothing(self, store: Store, tmp_path: Path) -> None:
        write_steps(store, 3)
        with failpoints.armed("backup.checked", "raise"), pytest.raises(failpoints.Injected):
            store.backup(tmp_path / "saved" / "today")
        assert list((tmp_path / "saved").iterdir()) == []

    def test_a_place_that_cannot_be_written_is_a_clear_error(self, store: Store, tmp_path: Path) -> None:
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
def test_a_random_store_survives_the_way_to_sqlite_and_back(
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

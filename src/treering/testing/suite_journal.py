"""The journal: increasing sequence numbers, followers that miss nothing, stable pages."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from treering.core.batch import Batch, Draft, Event, Usage
from treering.core.clock import DAY_US
from treering.core.ids import new_id
from treering.core.query import Erasure, EventQuery
from treering.errors import InvalidInput
from treering.testing import batches
from treering.testing.harness import EngineHarness, at_once, needs
from treering.testing.portrait import all_records, cursor_behind

if TYPE_CHECKING:
    from treering.core.engine import Engine
    from treering.core.records import Record
    from treering.testing.harness import OpenEngine

ORDERS = [
    EventQuery(order="seq"),
    EventQuery(order="seq", newest_first=True),
    EventQuery(order="time"),
    EventQuery(order="time", newest_first=True),
]


class JournalTests(EngineHarness):
    """Guarantees of the journal."""

    def test_an_event_reads_back_as_it_was_written(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        body = draft.put(batches.words("body"), scope="/run/r")
        large = draft.put(batches.noise(5000), scope="/run/r")
        full = Event(
            id="full", kind="call", ts_us=batches.NOON_US, scope="/run/r", run="r", span="s", parent="p",
            thread="t", agent="a", name="n", model="m", role="assistant", status="error",
            usage=Usage(
                input=1, cache_read=2, cache_write=3, cache_write_1h=4, output=5, reasoning=6, other=9
            ),
            cost_nanos=-7, currency="EUR", duration_us=8, data=b'{"x":[1,2]}', body=body, links=(large, body),
        )  # fmt: skip
        bare = Event(id="bare", kind="note", ts_us=0, scope="/run/r")
        zero = Event(
            id="zero", kind="note", ts_us=1, scope="/run/r", usage=Usage(), cost_nanos=0, duration_us=0
        )
        only_body = Event(id="large", kind="note", ts_us=(1 << 53) - 1, scope="/run/r", body=large)
        for event in (full, bare, zero, only_body):
            draft.event(event)
        receipt = engine.commit(draft.batch())
        records = all_records(engine, space)
        assert [record.event for record in records] == [full, bare, zero, only_body]
        assert {(record.batch, record.committed_at_us) for record in records} == {
            (draft.id, receipt.committed_at_us)
        }

    def test_sequence_numbers_increase_and_are_never_reused(self, engine: Engine, space: str) -> None:
        """Not even after an erasure of the newest rows."""
        sizes = (1, 3, 0, 2, 0, 1)
        expected = 1
        for size in sizes:
            receipt = engine.commit(batches.events(space, *[batches.event() for _ in range(size)]))
            assert receipt.first_seq == expected
            assert receipt.last_seq == expected + max(1, size) - 1
            expected = receipt.last_seq + 1
        engine.erase(space, Erasure(scopes=(batches.SCOPE,)))
        assert not all_records(engine, space)
        assert engine.commit(batches.events(space, batches.event())).first_seq == expected

    @needs("durable")
    def test_sequence_numbers_continue_after_reopening(
        self, engine: Engine, space: str, open_engine: OpenEngine
    ) -> None:
        engine.commit(batches.events(space, batches.event(), batches.event()))
        engine.erase(space, Erasure(scopes=(batches.SCOPE,)))
        engine.close()
        assert open_engine().commit(batches.events(space, batches.event())).first_seq == 3

    @needs("follow")
    def test_a_follower_sees_every_event_once_and_in_order(self, engine: Engine, space: str) -> None:
        """With concurrent writers: no event appears before a follower's position."""
        writers, commits = 4, 25
        followed: list[Record] = []
        late: list[int] = []

        def write(writer: int) -> None:
            for number in range(commits):
                size = (writer + number) % 3
                engine.commit(
                    batches.events(space, *[batches.event(id=f"{writer}.{number}.{i}") for i in range(size)])
                )

        def follow() -> None:
            last_seq = 0
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and (
                not done.is_set() or last_seq < engine.wait(space, 0, seconds=0)
            ):
                last_seq = engine.wait(space, last_seq, seconds=0.05)
                cursor = cursor_behind(followed[-1]) if followed else None
                page = engine.scan(space, EventQuery(), after=cursor, limit=1000)
                followed.extend(page.records)
                if page.records and page.records[-1].seq > last_seq:
                    late.append(page.records[-1].seq)

        done = threading.Event()
        follower = threading.Thread(target=follow)
        follower.start()
        outcomes = at_once(*[lambda writer=writer: write(writer) for writer in range(writers)])
        done.set()
        follower.join(60)
        assert not [outcome for outcome in outcomes if outcome is not None]
        seqs = [record.seq for record in followed]
        assert seqs == sorted(set(seqs))
        assert followed == all_records(engine, space, limit=1000)

    @needs("follow")
    def test_waiting_ends_with_a_commit_or_a_timeout(self, engine: Engine, space: str) -> None:
        assert engine.wait(space, 0, seconds=0) == 0
        started = time.monotonic()
        assert engine.wait(space, 0, seconds=0.2) == 0
        assert 0.15 < time.monotonic() - started < 5
        engine.commit(Batch(id=new_id(), space=space))
        assert engine.wait(space, 0, seconds=60) == 1

        def commit_soon() -> int:
            time.sleep(0.2)
            return engine.commit(Batch(id=new_id(), space=space)).last_seq

        started = time.monotonic()
        assert at_once(lambda: engine.wait(space, 1, seconds=30), commit_soon) == [2, 2]
        assert time.monotonic() - started < 10

    @needs("follow", "shared_writers")
    def test_a_follower_sees_commits_of_another_engine(
        self, engine: Engine, space: str, open_engine: OpenEngine
    ) -> None:
        other = open_engine()

        def commit_soon() -> int:
            time.sleep(0.3)
            return other.commit(Batch(id=new_id(), space=space)).last_seq

        started = time.monotonic()
        assert at_once(lambda: engine.wait(space, 0, seconds=30), commit_soon) == [1, 1]
        assert time.monotonic() - started < 10

    @pytest.mark.parametrize("query", ORDERS, ids=["seq", "newest seq", "time", "newest time"])
    def test_pages_add_up_to_the_whole_in_order(self, engine: Engine, space: str, query: EventQuery) -> None:
        _some_events(engine, space)
        found = all_records(engine, space, query, limit=10_000)
        assert len(found) == 40
        places = [(record.event.ts_us if query.order == "time" else 0, record.seq) for record in found]
        assert places == sorted(places, reverse=query.newest_first)
        for size in (1, 3, 40, 41):
            assert all_records(engine, space, query, limit=size) == found
        assert engine.scan(space, query, limit=41).cursor is None

    @pytest.mark.parametrize("query", ORDERS, ids=["seq", "newest seq", "time", "newest time"])
    def test_paging_during_inserts_neither_repeats_nor_skips(
        self, engine: Engine, space: str, query: EventQuery
    ) -> None:
        _some_events(engine, space)
        existed = {record.event.id for record in all_records(engine, space)}
        seen: list[str] = []
        page = engine.scan(space, query, limit=6)
        seen += [record.event.id for record in page.records]
        number = 0
        while page.cursor is not None and number < 30:
            number += 1
            early, late = batches.NOON_US - 5_000_000 + number, batches.NOON_US + 5_000_000 - number
            engine.commit(
                batches.events(
                    space,
                    *[batches.event(ts_us=ts_us) for ts_us in (early, batches.NOON_US + number % 10, late)],
                )
            )
            page = engine.scan(space, query, after=page.cursor, limit=6)
            seen += [record.event.id for record in page.records]
        assert len(seen) == len(set(seen))
        assert existed <= set(seen)

    @pytest.mark.parametrize("order", ["seq", "time"])
    def test_events_are_found_by_their_fields(self, engine: Engine, space: str, order: Any) -> None:
        events = _some_events(engine, space)
        queries: dict[str, dict[str, Any]] = {
            "kinds": {"kinds": ("call", "note")},
            "kind": {"kinds": ("tool",)},
            "ids": {"ids": tuple(event.id for event in events[3:30:4])},
            "beginning": {"id_prefix": events[3].id[:-1]},
            "beginning and day": {"id_prefix": events[3].id[:1], "since_us": 0, "until_us": 1 << 52},
            "no such beginning": {"id_prefix": events[3].id + "0"},
            "scope": {"scope": "/run/1"},
            "run": {"run": "run-2"},
            "thread": {"thread": "t1"},
            "span": {"span": "span-3"},
            "agent": {"agent": "planner"},
            "status": {"status": "error"},
            "since": {"since_us": batches.NOON_US},
            "until": {"until_us": batches.NOON_US},
            "between": {"since_us": batches.NOON_US - 3, "until_us": batches.NOON_US + 3},
            "several": {"run": "run-1", "kinds": ("call",), "agent": "planner"},
            "run and time": {"run": "run-1", "since_us": batches.NOON_US},
            "thread and kind": {"thread": "t2", "kinds": ("tool", "call")},
            "nothing": {"run": "no such run"},
        }
        for newest_first in (False, True):
            for name, fields in queries.items():
                query = EventQuery(order=order, newest_first=newest_first, **fields)
                found = [record.event for record in all_records(engine, space, query)]
                expected = [event for event in events if _matches(event, fields)]
                if order == "time":
                    expected.sort(key=lambda event: event.ts_us)
                assert found == (expected[::-1] if newest_first else expected), name

    @pytest.mark.parametrize("order", ORDERS, ids=["seq", "newest seq", "time", "newest time"])
    def test_a_brief_page_has_the_same_events_and_their_data(
        self, engine: Engine, space: str, order: EventQuery
    ) -> None:
        _some_events(engine, space)
        scope = "/run/brief"
        draft = Draft(space)
        apart = draft.put(batches.words("apart"), scope=scope)
        for number in range(7):
            draft.event(batches.event(id=f"b{number}", scope=scope, data=b'{"n":%d}' % number))
        draft.event(batches.event(id="apart", scope=scope, body=apart, data=None))
        engine.commit(draft.batch())
        for where in (scope, "/run/1", None):
            query = msgspec.structs.replace(order, scope=where)
            whole = all_records(engine, space, query)
            brief = all_records(engine, space, msgspec.structs.replace(query, brief=True), limit=3)
            assert [_in_brief(record) for record in brief] == [_in_brief(record) for record in whole]
        found = all_records(engine, space, EventQuery(scope=scope, brief=True))
        assert [record.event.body for record in found if record.event.data is None] == [apart]

    def test_a_time_range_includes_its_start_and_excludes_its_end(self, engine: Engine, space: str) -> None:
        engine.commit(batches.events(space, *[batches.event(id=f"{ts}", ts_us=ts) for ts in (1, 2, 3)]))
        found = engine.scan(space, EventQuery(since_us=1, until_us=3)).records
        assert [record.event.id for record in found] == ["1", "2"]

    def test_a_follower_continues_after_a_record(self, engine: Engine, space: str) -> None:
        _some_events(engine, space)
        found = all_records(engine, space, limit=1000)
        page = engine.scan(space, EventQuery(), after=cursor_behind(found[-1]))
        assert (page.records, page.cursor) == ((), None)
        engine.commit(batches.events(space, batches.event(id="news")))
        page = engine.scan(space, EventQuery(), after=cursor_behind(found[-1]))
        assert [record.event.id for record in page.records] == ["news"]

    def test_a_cursor_of_another_order_is_rejected(self, engine: Engine, space: str) -> None:
        engine.commit(batches.events(space, batches.event()))
        for order, cursor in (("seq", "abc"), ("seq", "1.2"), ("time", "x.y"), ("time", "")):
            with pytest.raises(InvalidInput, match="cursor"):
                engine.scan(space, EventQuery(order=order), after=cursor)  # pyright: ignore[reportArgumentType]

    @pytest.mark.parametrize("limit", [0, -1, 10_001])
    def test_the_limit_of_a_page_is_validated(self, engine: Engine, space: str, limit: int) -> None:
        with pytest.raises(InvalidInput, match="limit"):
            engine.scan(space, EventQuery(), limit=limit)


def _in_brief(record: Record) -> object:
    event = record.event
    return record.seq, event.id, event.kind, event.ts_us, event.scope, event.data


def _some_events(engine: Engine, space: str) -> list[Event]:
    """Write 40 events in 16 commits, with times out of order and some of them equal."""
    events = [
        batches.event(
            ("note", "call", "tool")[number % 3],
            id=f"e{number}",
            ts_us=batches.NOON_US + (number * 7) % 10 - 5 + (DAY_US if number == 39 else 0),
            scope=f"/run/{number % 4}",
            run=f"run-{number % 4}" if number % 5 else None,
            thread=f"t{number % 3}" if number % 4 else None,
            span=f"span-{number % 6}",
            agent=("planner", "writer", None)[number % 3],
            status=("ok", "error")[number % 2],
        )
        for number in range(40)
    ]
    for first in range(0, 40, 5):
        engine.commit(batches.events(space, *events[first : first + 4]))
        engine.commit(batches.events(space, events[first + 4]))
    return events


def _matches(event: Event, fields: dict[str, Any]) -> bool:
    for name, value in fields.items():
        if name == "kinds":
            fits = event.kind in value
        elif name == "ids":
            fits = event.id in value
        elif name == "id_prefix":
            fits = event.id.startswith(value)
        elif name == "since_us":
            fits = event.ts_us >= value
        elif name == "until_us":
            fits = event.ts_us < value
        else:
            fits = getattr(event, name) == value
        if not fits:
            return False
    return True

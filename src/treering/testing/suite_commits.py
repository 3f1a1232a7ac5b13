"""Commits: all or nothing, durable, idempotent, and harmless to their neighbours."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from treering.core.batch import ABSENT, Add, Batch, Draft, Event, Receipt
from treering.core.clock import DAY_US
from treering.core.content import list_address, object_address, slot_address
from treering.core.failpoints import armed, declared
from treering.core.ids import new_id
from treering.core.query import SearchQuery
from treering.errors import (
    Closed,
    Conflict,
    Fenced,
    InvalidInput,
    ListMoved,
    MissingObjects,
    NotFound,
    RefMoved,
    TreeringError,
)
from treering.testing import batches
from treering.testing.harness import EngineHarness, at_once, needs
from treering.testing.portrait import all_records, portrait, problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.core.engine import Engine
    from treering.testing.harness import OpenEngine

FAILURES: dict[str, tuple[Callable[[Draft], None], type[TreeringError]]] = {
    "a stale fence": (lambda draft: draft.fence("lease", 7), Fenced),
    "a required object is missing": (lambda draft: draft.require("a" * 64), MissingObjects),
    "a linked object is missing": (
        lambda draft: draft.set_ref("r", b"", scope="s", links=(object_address("b" * 64),)),
        MissingObjects,
    ),
    "an item is missing": (
        lambda draft: draft.append("other", object_address("c" * 64), scope="s", at=0),
        MissingObjects,
    ),
    "a body is missing": (
        lambda draft: draft.event(batches.event(body=slot_address("nobody", 0, 0))),
        NotFound,
    ),
    "a linked list is missing": (
        lambda draft: draft.event(batches.event(links=(list_address("nothing"),))),
        NotFound,
    ),
    "a ref is not absent": (
        lambda draft: draft.set_ref("taken", b"", scope="s", expect=ABSENT),
        RefMoved,
    ),
    "a ref has another version": (lambda draft: draft.set_ref("taken", b"", scope="s", expect=5), RefMoved),
    "a missing ref has no version": (
        lambda draft: draft.delete_ref("nothing", scope="s", expect=1),
        RefMoved,
    ),
    "a ceiling": (lambda draft: draft.add_to_ref("total", Add(delta=9, ceiling=8), scope="s"), Conflict),
    "a list has another length": (
        lambda draft: draft.append("grown", batches.words("x"), scope=batches.SCOPE, at=1),
        ListMoved,
    ),
    "a parent is missing": (
        lambda draft: draft.append("child", batches.words("x"), scope="s", at=1, parent="nothing"),
        NotFound,
    ),
    "a parent is shorter": (
        lambda draft: draft.append("child", batches.words("x"), scope="s", at=3, parent="grown"),
        Conflict,
    ),
}
"""Ways to make a batch invalid, whatever else it contains."""


class CommitTests(EngineHarness):
    """Atomicity, durability and idempotency of commits."""

    def test_a_commit_applies_everything_at_once(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        small, large, list_at = batches.full_load(draft)
        receipt = engine.commit(draft.batch())
        assert receipt == Receipt(
            batch=draft.id,
            first_seq=1,
            last_seq=2,
            committed_at_us=receipt.committed_at_us,
            versions={"full/head": 1},
            sums={},
            new_events=2,
        )
        assert engine.get(space, [small])[0] == batches.words("a small note about full")
        assert [content.kind for content in engine.read_list(space, "full/list", 0, 9)] == [
            "text",
            "text",
            "bytes",
        ]
        assert engine.refs(space, ["full/head"])["full/head"].links == (small, large, list_at)
        assert [record.event.id for record in all_records(engine, space)] == ["full-1", "full-2"]
        if engine.caps.search:
            assert len(engine.search(space, SearchQuery(collection="notes", text="small")).hits) == 1
        assert not problems(engine, space)

    def test_an_interrupted_commit_is_complete_or_absent(self, engine: Engine, space: str) -> None:
        """Every declared failpoint of a commit raises once. tests/faults does the same with SIGKILL."""
        engine.commit(Batch(id=new_id(), space=space))
        for number, name in enumerate(sorted(name for name in declared() if name.startswith("commit."))):
            draft = Draft(space)
            batches.full_load(draft, key=f"f{number}")
            with armed(name, "raise:1"), suppress(Exception):  # whatever is raised, the store must be intact
                engine.commit(draft.batch())
            there = bool(engine.refs(space, [f"f{number}/head"]))
            expected = 2 if there else 0
            kept = [each for each in all_records(engine, space) if each.event.id.startswith(f"f{number}-")]
            assert len(kept) == expected, name
            assert (engine.list_info(space, f"f{number}/list") is not None) == there, name
            assert not problems(engine, space), name
            receipt = engine.commit(draft.batch())
            assert receipt.new_events == 2, name
            assert len(engine.read_list(space, f"f{number}/list", 0, 9)) == 3, name
            assert not problems(engine, space), name

    def test_a_reader_never_sees_half_a_commit(self, engine: Engine, space: str) -> None:
        stop = threading.Event()

        def write() -> None:
            for number in range(60):
                draft = Draft(space)
                for name in ("a", "b", "c"):
                    draft.set_ref(name, b"%d" % number, scope="s")
                engine.commit(draft.batch())
            stop.set()

        def read() -> int:
            seen = 0
            while not stop.is_set():
                found = engine.refs(space, ["a", "b", "c"])
                assert len(found) in {0, 3}
                assert len({(ref.value, ref.version, ref.seq) for ref in found.values()}) <= 1
                seen += 1
            return seen

        outcomes = at_once(write, read, read)
        assert not [outcome for outcome in outcomes if isinstance(outcome, Exception)]

    @needs("durable")
    def test_acknowledged_commits_survive_reopening(
        self, engine: Engine, space: str, open_engine: OpenEngine
    ) -> None:
        for number in range(5):
            draft = Draft(space)
            batches.full_load(draft, key=f"k{number}")
            engine.commit(draft.batch())
        before = portrait(engine, space)
        engine.close()
        again = open_engine()
        assert portrait(again, space) == before
        assert not problems(again, space)

    @needs("durable")
    def test_close_finishes_submitted_batches(
        self, engine: Engine, space: str, open_engine: OpenEngine
    ) -> None:
        futures = [engine.submit(batches.set_ref(space, f"r{number:03}")) for number in range(100)]
        engine.close()
        assert all(future.result(timeout=60).versions for future in futures)
        assert len(open_engine().scan_refs(space, "r")) == 100

    def test_a_closed_engine_raises_closed(self, engine: Engine, space: str) -> None:
        engine.commit(batches.set_ref(space, "r"))
        engine.close()
        engine.close()
        with pytest.raises(Closed):
            engine.commit(batches.set_ref(space, "r"))
        with pytest.raises(Closed):
            engine.refs(space, ["r"])

    def test_a_replay_changes_nothing_and_returns_the_first_receipt(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        batches.full_load(draft)
        draft.add_to_ref("total", Add(delta=5), scope=batches.SCOPE)
        first = engine.commit(draft.batch())
        before = portrait(engine, space)
        assert engine.commit(draft.batch()) == first
        assert engine.submit(draft.batch()).result(timeout=60) == first
        assert portrait(engine, space) == before

    def test_a_replay_returns_its_receipt_before_preconditions_are_checked(
        self, engine: Engine, space: str
    ) -> None:
        """Even if a precondition no longer holds, and even if the batch has changed meanwhile."""
        batch = batches.set_ref(space, "head", b"1", expect=ABSENT)
        first = engine.commit(batch)
        engine.commit(batches.set_ref(space, "head", b"2"))
        assert engine.commit(batch) == first
        changed = Batch(id=batch.id, space=space, requires=("d" * 64,), events=(batches.event(),))
        assert engine.commit(changed) == first
        assert engine.refs(space, ["head"])["head"].value == b"2"
        assert not all_records(engine, space)

    def test_one_of_concurrent_replays_commits(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        batches.full_load(draft)
        batch = draft.batch()
        receipts = at_once(*[lambda: engine.commit(batch)] * 8)
        assert all(receipt == receipts[0] for receipt in receipts)
        assert isinstance(receipts[0], Receipt)
        assert [record.seq for record in all_records(engine, space)] == [1, 2]

    @needs("durable")
    def test_a_replay_after_reopening_is_a_replay(
        self, engine: Engine, space: str, open_engine: OpenEngine
    ) -> None:
        draft = Draft(space)
        batches.full_load(draft)
        draft.add_to_ref("total", Add(delta=5), scope=batches.SCOPE)
        first = engine.commit(draft.batch())
        engine.close()
        assert open_engine().commit(draft.batch()) == first

    def test_a_repeated_event_is_skipped(self, engine: Engine, space: str) -> None:
        """It still consumes a sequence number. On another day, the same id is another event."""
        engine.commit(batches.events(space, batches.call(id="a", name="first")))
        receipt = engine.commit(
            batches.events(
                space,
                batches.call(id="a", name="second"),
                batches.call(id="b"),
                batches.call(id="b", name="again"),
                batches.call(id="a", ts_us=batches.NOON_US + DAY_US),
            )
        )
        assert (receipt.first_seq, receipt.last_seq, receipt.new_events) == (2, 5, 2)
        found = [(record.seq, record.event.id, record.event.name) for record in all_records(engine, space)]
        assert found == [(1, "a", "first"), (3, "b", None), (5, "a", None)]
        assert engine.stats(space).events == 3

    @pytest.mark.parametrize("failure", FAILURES)
    def test_a_failed_precondition_leaves_no_trace(self, engine: Engine, space: str, failure: str) -> None:
        engine.commit(batches.set_ref(space, "taken"))
        engine.commit(batches.append(space, "grown", "x", "y", at=0))
        before = portrait(engine, space)
        draft = Draft(space)
        batches.full_load(draft)
        break_it, error = FAILURES[failure]
        break_it(draft)
        with pytest.raises(error) as caught:
            engine.commit(draft.batch())
        assert type(caught.value) is error
        assert portrait(engine, space) == before
        assert engine.stats(space).objects == 0
        draft = Draft(space)
        batches.full_load(draft)
        assert engine.commit(draft.batch()).first_seq == 3

    def test_a_failed_first_commit_does_not_create_a_space(self, engine: Engine, space: str) -> None:
        with pytest.raises(Conflict):
            engine.commit(batches.set_ref(space, "head", expect=1))
        assert space not in engine.spaces()
        engine.commit(batches.set_ref(space, "head", expect=ABSENT))
        assert space in engine.spaces()

    def test_a_failed_batch_does_not_affect_its_neighbours(self, engine: Engine, space: str) -> None:
        """Neighbours are batches in the same group commit."""
        engine.commit(batches.set_ref(space, "taken"))
        good: list[Batch] = []
        bad: list[Batch] = []
        for number in range(20):
            draft = Draft(space)
            batches.full_load(draft, key=f"n{number}")
            good.append(draft.batch())
            broken = Draft(space)
            batches.full_load(broken, key=f"b{number}")
            broken.set_ref("taken", b"", scope="s", expect=ABSENT)
            bad.append(broken.batch())
        futures = [engine.submit(batch) for pair in zip(good, bad, strict=True) for batch in pair]
        outcomes = [future.exception(timeout=30) for future in futures]
        assert outcomes[0::2] == [None] * 20
        assert all(type(outcome) is RefMoved for outcome in outcomes[1::2])
        assert len(all_records(engine, space)) == 40
        assert not engine.scan_refs(space, "b")
        assert not problems(engine, space)

    def test_batches_in_flight_see_earlier_ones(self, engine: Engine, space: str) -> None:
        """Even if they are written together: batches are committed in the order of submission."""
        futures = [
            engine.submit(batches.append(space, "list", f"item {number}", at=number)) for number in range(30)
        ]
        assert [future.result(timeout=30).first_seq for future in futures] == list(range(1, 31))
        assert engine.read_list(space, "list", 0, 99) == [
            batches.words(f"item {number}") for number in range(30)
        ]

    @pytest.mark.parametrize(
        "invalid",
        [
            Batch(id="", space="s"),
            Batch(id="x" * 201, space="s"),
            Batch(id="nul\0", space="s"),
            Batch(id="ok", space="no/slash"),
            Batch(id="ok", space="s", requires=("short",)),
            Batch(id="ok", space="s", events=(batches.event(id="line\nbreak"),)),
            Batch(id="ok", space="s", events=(batches.event(body=slot_address("ok", 0, 0)),)),
        ],
        ids=[
            "empty id",
            "long id",
            "NUL",
            "slash in space",
            "not a hash",
            "control character",
            "own slot missing",
        ],
    )
    def test_invalid_batches_are_rejected(self, engine: Engine, invalid: Batch) -> None:
        with pytest.raises(InvalidInput):
            engine.commit(invalid)
        assert "s" not in engine.spaces()

    @pytest.mark.parametrize(
        "text", ["plain", "with space", "a/b%c_d\\e", "ünï¢ødé", "👩‍👩‍👧", "'; DROP TABLE ref;--", "x" * 200]
    )
    def test_any_printable_id_can_be_used_anywhere(self, engine: Engine, space: str, text: str) -> None:
        draft = Draft(space, id=text)
        small = draft.put(batches.words("small"), scope=text)
        draft.append(text, batches.words("inline"), small, scope=text, at=0)
        draft.set_ref(text, b"v", scope=text, links=(small, list_address(text)))
        event = Event(
            id=text, kind=text, ts_us=1, scope=text, run=text, span=text, parent=text, thread=text,
            agent=text, name=text, model=text, role=text, status=text, currency=text, body=small,
            links=(small, list_address(text)),
        )  # fmt: skip
        draft.event(event)
        engine.commit(draft.batch())
        assert [record.event for record in all_records(engine, space)] == [event]
        assert engine.refs(space, [text])[text].links == (small, list_address(text))
        assert len(engine.read_list(space, text, 0, 9)) == 2
        assert [ref.name for ref in engine.scan_refs(space, text)] == [text]
        assert not problems(engine, space)

    def test_an_empty_batch_uses_one_sequence_number(self, engine: Engine, space: str) -> None:
        assert engine.commit(Batch(id="a", space=space)).last_seq == 1
        assert engine.commit(Batch(id="b", space=space)).first_seq == 2

    def test_commit_times_increase(self, engine: Engine, space: str) -> None:
        receipts = [engine.commit(Batch(id=new_id(), space=space)) for _ in range(20)]
        times = [receipt.committed_at_us for receipt in receipts]
        assert times == sorted(set(times))

    def test_a_large_batch_is_one_commit(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        for number in range(2000):
            body = draft.put(batches.words(f"body {number}"), scope=f"/run/{number % 7}")
            draft.event(batches.event(id=f"e{number}", scope=f"/run/{number % 7}", body=body))
        receipt = engine.commit(draft.batch())
        assert (receipt.new_events, receipt.last_seq) == (2000, 2000)
        found = all_records(engine, space, limit=999)
        assert [record.event.id for record in found] == [f"e{number}" for number in range(2000)]
        body = found[1234].event.body
        assert body is not None
        assert engine.get(space, [body]) == [batches.words("body 1234")]

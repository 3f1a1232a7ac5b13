"""Refs: compare-and-swap on versions that only increase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from treering.core.batch import ABSENT, Add, Batch, Delete, Draft, Listing, Receipt, RefChange
from treering.core.ids import new_id
from treering.core.query import ListQuery, each_listed
from treering.errors import Conflict, InvalidInput, RefMoved
from treering.testing import batches
from treering.testing.harness import EngineHarness, at_once, needs
from treering.testing.portrait import all_refs

if TYPE_CHECKING:
    from treering.core.batch import Expect
    from treering.core.engine import Engine
    from treering.testing.harness import OpenEngine


class RefTests(EngineHarness):
    """Guarantees of refs."""

    def test_a_version_increases_by_one_with_every_change_and_across_deletes(
        self, engine: Engine, space: str
    ) -> None:
        versions = [
            engine.commit(batch).versions["head"]
            for batch in (
                batches.set_ref(space, "head", b"a"),
                batches.set_ref(space, "head", b"b"),
                _delete(space, "head"),
                batches.set_ref(space, "head", b"c", expect=ABSENT),
                batches.set_ref(space, "head", b"d", expect=4),
            )
        ]
        assert versions == [1, 2, 3, 4, 5]

    def test_a_ref_reads_back_as_it_was_set(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        small = draft.put(batches.words("x"), scope="/thread/t9")
        draft.set_ref("head", b"\x00\xff", scope="/thread/t9", links=(small,))
        receipt = engine.commit(draft.batch())
        ref = engine.refs(space, ["head", "nothing"])["head"]
        assert (ref.name, ref.scope, ref.version, ref.value) == ("head", "/thread/t9", 1, b"\x00\xff")
        assert (ref.links, ref.seq, ref.changed_at_us) == (
            (small,),
            receipt.last_seq,
            receipt.committed_at_us,
        )
        engine.commit(batches.set_ref(space, "head", b"", scope="/thread/t10"))
        ref = engine.refs(space, ["head"])["head"]
        assert (ref.scope, ref.version, ref.value, ref.links) == ("/thread/t10", 2, b"", ())

    def test_a_ref_moves_only_from_the_expected_version(self, engine: Engine, space: str) -> None:
        engine.commit(batches.set_ref(space, "head", b"a", expect=ABSENT))
        for expect in (ABSENT, 2):
            with pytest.raises(RefMoved, match="head"):
                engine.commit(batches.set_ref(space, "head", b"x", expect=expect))
        engine.commit(batches.set_ref(space, "head", b"b", expect=1))
        engine.commit(_delete(space, "head", expect=2))
        for expect in (1, 2, 3):
            with pytest.raises(RefMoved, match="head"):
                engine.commit(batches.set_ref(space, "head", b"x", expect=expect))
        assert not engine.refs(space, ["head"])
        assert engine.commit(batches.set_ref(space, "head", b"c", expect=ABSENT)).versions == {"head": 4}

    def test_deleting_a_missing_ref_changes_nothing(self, engine: Engine, space: str) -> None:
        """Its version stays: 0 if it never existed, otherwise the last one."""
        assert engine.commit(_delete(space, "head")).versions == {"head": 0}
        assert engine.commit(batches.set_ref(space, "head")).versions == {"head": 1}
        assert engine.commit(_delete(space, "head")).versions == {"head": 2}
        assert engine.commit(_delete(space, "head", expect=ABSENT)).versions == {"head": 2}
        assert engine.commit(batches.set_ref(space, "head")).versions == {"head": 3}

    def test_of_racing_equal_expectations_one_wins(self, engine: Engine, space: str) -> None:
        expect: Expect = ABSENT
        for version in range(1, 9):
            racing = [batches.set_ref(space, "head", b"%d" % racer, expect=expect) for racer in range(6)]
            outcomes = at_once(*[lambda batch=batch: engine.commit(batch) for batch in racing])
            winners = [racer for racer, outcome in enumerate(outcomes) if isinstance(outcome, Receipt)]
            assert len(winners) == 1
            assert all(isinstance(outcome, (Receipt, RefMoved)) for outcome in outcomes)
            ref = engine.refs(space, ["head"])["head"]
            assert (ref.version, ref.value) == (version, b"%d" % winners[0])
            expect = version

    @needs("shared_writers")
    def test_one_of_racing_engines_wins(self, engine: Engine, space: str, open_engine: OpenEngine) -> None:
        engines = [engine, open_engine(), open_engine()]
        expect: Expect = ABSENT
        for version in range(1, 6):
            racing = [(each, batches.set_ref(space, "head", expect=expect)) for each in engines]
            outcomes = at_once(*[lambda each=each, batch=batch: each.commit(batch) for each, batch in racing])
            assert sorted(type(outcome).__name__ for outcome in outcomes) == [
                "Receipt",
                "RefMoved",
                "RefMoved",
            ]
            assert {each.refs(space, ["head"])["head"].version for each in engines} == {version}
            expect = version

    def test_a_ref_can_be_a_counter(self, engine: Engine, space: str) -> None:
        assert engine.commit(_add(space, "total", 5)).sums == {"total": 5}
        assert engine.commit(_add(space, "total", -7)).sums == {"total": -2}
        receipt = engine.commit(_add(space, "total", 10, ceiling=8, expect=2))
        assert (receipt.sums, receipt.versions) == ({"total": 8}, {"total": 3})
        assert engine.refs(space, ["total"])["total"].value == b"8"
        with pytest.raises(Conflict, match="total"):
            engine.commit(_add(space, "total", 1, ceiling=8))
        assert engine.refs(space, ["total"])["total"].version == 3

    def test_a_deleted_counter_starts_at_zero(self, engine: Engine, space: str) -> None:
        engine.commit(_add(space, "total", 5))
        engine.commit(_delete(space, "total"))
        assert engine.commit(_add(space, "total", 2)).sums == {"total": 2}

    def test_only_numbers_can_be_added_to(self, engine: Engine, space: str) -> None:
        engine.commit(batches.set_ref(space, "head", b"abc"))
        with pytest.raises(Conflict, match="head"):
            engine.commit(_add(space, "head", 1))
        engine.commit(batches.set_ref(space, "head", b"41"))
        assert engine.commit(_add(space, "head", 1)).sums == {"head": 42}

    def test_a_total_beyond_64_bits_is_rejected(self, engine: Engine, space: str) -> None:
        for value, delta in ((b"%d" % 2**63, 0), (b"%d" % (2**63 - 1), 1), (b"%d" % -(2**70), 1)):
            engine.commit(batches.set_ref(space, "head", value))
            with pytest.raises(Conflict, match="bits"):
                engine.commit(_add(space, "head", delta))
            assert engine.refs(space, ["head"])["head"].value == value
        engine.commit(batches.set_ref(space, "head", b"%d" % (2**63 - 2)))
        assert engine.commit(_add(space, "head", 1)).sums == {"head": 2**63 - 1}

    def test_concurrent_adds_all_count_and_none_exceeds_the_ceiling(self, engine: Engine, space: str) -> None:
        def add() -> int:
            won = 0
            for _ in range(10):
                try:
                    engine.commit(_add(space, "total", 3, ceiling=100))
                    won += 1
                except Conflict:
                    pass
            return won

        assert sum(outcome for outcome in at_once(*[add] * 6) if isinstance(outcome, int)) == 33
        assert engine.refs(space, ["total"])["total"].value == b"99"

    def test_one_batch_moves_a_ref_once(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        draft.set_ref("head", b"a", scope="s")
        draft.set_ref("head", b"b", scope="s")
        with pytest.raises(InvalidInput, match="head"):
            engine.commit(draft.batch())

    def test_refs_are_scanned_in_code_point_order(self, engine: Engine, space: str) -> None:
        names = [
            "Z",
            "a",
            "a b",
            "a%",
            "a/",
            "a/b",
            "a/b/c",
            "a_",
            "aa",
            "ab",
            "z",
            "é",
            "\ufe4f",
            "🌲",
            "\U0001d49c",
        ]
        draft = Draft(space)
        for name in reversed(names):
            draft.set_ref(name, name.encode(), scope="s")
        engine.commit(draft.batch())
        in_order = sorted(names)
        assert [ref.name for ref in engine.scan_refs(space, "")] == in_order
        for size in (1, 2, 5):
            assert [ref.name for ref in all_refs(engine, space, limit=size)] == in_order
        for prefix in ("a", "a/", "a%", "a_", "A", "🌲", "é", "a/b", "nothing", "\U0010ffff"):
            expected = [name for name in in_order if name.startswith(prefix)]
            assert [ref.name for ref in engine.scan_refs(space, prefix)] == expected, prefix
        assert [ref.name for ref in engine.scan_refs(space, "a", after="a/")] == [
            "a/b",
            "a/b/c",
            "a_",
            "aa",
            "ab",
        ]

    def test_deleted_refs_are_not_scanned(self, engine: Engine, space: str) -> None:
        for number in range(9):
            engine.commit(batches.set_ref(space, f"r{number}"))
        for number in range(0, 9, 2):
            engine.commit(_delete(space, f"r{number}"))
        assert [ref.name for ref in all_refs(engine, space, limit=2)] == ["r1", "r3", "r5", "r7"]
        assert engine.stats(space).refs == 4

    def test_a_list_is_read_in_pages_by_time_and_by_any_filter(self, engine: Engine, space: str) -> None:
        listings = [
            Listing(
                list="runs",
                namespace=("", "acme")[number % 2],
                at_us=1_000_000 + number // 3,  # several at the same time
                agent=("planner", "coder")[number % 3 == 0],
                status=("ok", "error", None)[number % 4 % 3],
                thread=f"t{number % 5}",
            )
            for number in range(60)
        ]
        draft = Draft(space)
        for number, listing in enumerate(listings):
            draft.set_ref(f"run/{number:02}", b"", scope="s", listing=listing)
        draft.set_ref("other", b"", scope="s", listing=Listing(list="tasks", at_us=5))
        draft.set_ref("nowhere", b"", scope="s")
        engine.commit(draft.batch())
        assert engine.refs(space, ["run/07"])["run/07"].listing == listings[7]
        for query in (
            ListQuery(list="runs"),
            ListQuery(list="runs", oldest_first=True),
            ListQuery(list="runs", namespace="acme"),
            ListQuery(list="runs", namespace="", agent="planner"),
            ListQuery(list="runs", namespace="", agent="planner", oldest_first=True),
            ListQuery(list="runs", namespace="acme", status="error"),
            ListQuery(list="runs", namespace="acme", agent="planner", status="ok"),
            ListQuery(list="runs", namespace="acme", thread="t3"),
            ListQuery(list="runs", namespace="acme", thread="t3", agent="coder"),
            ListQuery(list="runs", namespace="acme", agent="nobody"),
            ListQuery(list="runs", since_us=1_000_004, until_us=1_000_009),
            ListQuery(list="runs", namespace="acme", status="ok", since_us=1_000_004, oldest_first=True),
            ListQuery(list="runs", status="ok"),
            ListQuery(list="runs", status="ok", until_us=1_000_009, oldest_first=True),
        ):
            filters = {
                name: value
                for name in ("namespace", "agent", "status", "thread")
                if (value := getattr(query, name)) is not None
            }
            expected = sorted(
                (
                    (listing.at_us, f"run/{number:02}")
                    for number, listing in enumerate(listings)
                    if all(getattr(listing, name) == value for name, value in filters.items())
                    and (query.since_us or 0) <= (listing.at_us or 0) < (query.until_us or 2**62)
                ),
                reverse=not query.oldest_first,
            )
            for limit in (1, 7, 1000):
                found = each_listed(engine, space, query, limit=limit)
                assert [ref.name for ref in found] == [name for _, name in expected], (query, limit)

    def test_a_ref_is_listed_as_it_was_set_last(self, engine: Engine, space: str) -> None:
        def names(query: ListQuery) -> list[str]:
            return [ref.name for ref in engine.list_refs(space, query).refs]

        def put(name: str, listing: Listing | None) -> Receipt:
            draft = Draft(space)
            draft.set_ref(name, b"", scope="s", listing=listing)
            return engine.commit(draft.batch())

        heads = ListQuery(list="heads", namespace="")
        put("a", Listing(list="heads"))
        put("b", Listing(list="heads"))
        assert names(heads) == ["b", "a"]
        receipt = put("a", Listing(list="heads", status="open"))
        assert names(heads) == ["a", "b"]
        assert engine.refs(space, ["a"])["a"].listing == Listing(
            list="heads", status="open", at_us=receipt.committed_at_us
        )
        put("a", Listing(list="heads", status="done"))
        assert names(ListQuery(list="heads", namespace="", status="open")) == []
        put("b", None)
        assert names(heads) == ["a"]
        engine.commit(_delete(space, "a"))
        assert names(heads) == []

    def test_the_query_of_a_list_is_validated(self, engine: Engine, space: str) -> None:
        engine.commit(batches.set_ref(space, "r"))
        with pytest.raises(InvalidInput, match="namespace"):
            engine.list_refs(space, ListQuery(list="runs", agent="planner"))
        for cursor in ("", "x", "5", "5.", "-1.r", "1e3.r"):
            with pytest.raises(InvalidInput, match="cursor"):
                engine.list_refs(space, ListQuery(list="runs"), after=cursor)
        for listing in (Listing(list=""), Listing(list="runs", at_us=-1), Listing(list="runs", agent="\n")):
            draft = Draft(space)
            draft.set_ref("r", b"", scope="s", listing=listing)
            with pytest.raises(InvalidInput):
                engine.commit(draft.batch())

    def test_many_refs_are_read_at_once(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        for number in range(1500):
            draft.set_ref(f"r{number}", b"%d" % number, scope="s")
        engine.commit(draft.batch())
        found = engine.refs(space, [f"r{number}" for number in range(2000)])
        assert {name: ref.value for name, ref in found.items()} == {
            f"r{number}": b"%d" % number for number in range(1500)
        }
        assert engine.refs(space, []) == {}

    @pytest.mark.parametrize("limit", [0, -1, 10_001])
    def test_the_limit_of_a_page_of_refs_is_validated(self, engine: Engine, space: str, limit: int) -> None:
        engine.commit(batches.set_ref(space, "r"))
        with pytest.raises(InvalidInput, match="limit"):
            engine.scan_refs(space, "", limit=limit)


def _delete(space: str, name: str, *, expect: Expect = "any") -> Batch:
    change = RefChange(name=name, scope=batches.SCOPE, change=Delete(), expect=expect)
    return Batch(id=new_id(), space=space, refs=(change,))


def _add(space: str, name: str, delta: int, *, ceiling: int | None = None, expect: Expect = "any") -> Batch:
    change = RefChange(
        name=name, scope=batches.SCOPE, change=Add(delta=delta, ceiling=ceiling), expect=expect
    )
    return Batch(id=new_id(), space=space, refs=(change,))

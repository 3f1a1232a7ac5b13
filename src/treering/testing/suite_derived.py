"""Derived data: sums equal a recount, and search finds what was indexed, before and after a reindex."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from treering.core.batch import Draft, Event, Text, Usage
from treering.core.clock import DAY_US, day_of
from treering.core.content import Content
from treering.core.query import Erasure, SearchQuery, SumQuery
from treering.core.records import Sum
from treering.core.rollups import deltas, summarise
from treering.testing import batches
from treering.testing.harness import EngineHarness, needs
from treering.testing.portrait import all_records, problems

if TYPE_CHECKING:
    from treering.core.engine import Engine

QUERIES = [
    SumQuery(grain="day"),
    SumQuery(grain="day", by=("day",)),
    SumQuery(grain="day", by=("agent", "model")),
    SumQuery(grain="day", by=("model", "agent"), top=2),
    SumQuery(grain="day", by=("kind", "currency")),
    SumQuery(grain="day", by=("day", "kind"), since_day=20_001, until_day=20_002),
    SumQuery(grain="day", agent="planner", kind="call"),
    SumQuery(grain="day", model="model-b", by=("agent",)),
    SumQuery(grain="run", by=("key",)),
    SumQuery(grain="run", by=("key",), top=3),
    SumQuery(grain="run", key="run-2", by=("model",)),
    SumQuery(grain="run", key="nothing"),
    SumQuery(grain="thread", by=("key", "day")),
    SumQuery(grain="thread", key="t1"),
    SumQuery(grain="call", by=("kind", "bucket")),
    SumQuery(grain="call", by=("key", "day"), kind="span.tool"),
    SumQuery(grain="call", by=("model", "bucket"), agent="writer", since_day=20_001),
    SumQuery(grain="first_token", by=("model", "bucket")),
    SumQuery(grain="generation", by=("agent", "kind")),
]


class SumTests(EngineHarness):
    """Guarantees of roll-ups."""

    @needs("sums")
    def test_sums_add_up_events(self, engine: Engine, space: str) -> None:
        engine.commit(
            batches.events(
                space,
                batches.call(),
                batches.call(cost_nanos=None, status="error"),
                batches.event(thread="t1", run="run-1"),
            )
        )
        usage = Usage(input=200, cache_read=20, output=100, reasoning=10)
        assert engine.sums(space, SumQuery(grain="run", key="run-1")) == [
            Sum(
                group=(),
                events=3,
                errors=1,
                usage=usage,
                cost_nanos=1_250_000,
                duration_us=3_000,
                unpriced_events=1,
                unpriced_tokens=160,
            )
        ]
        by_kind = engine.sums(space, SumQuery(grain="day", by=("day", "kind")))
        day = day_of(batches.NOON_US)
        assert [(each.group, each.events) for each in by_kind] == [((day, "call"), 2), ((day, "note"), 1)]

    @needs("sums")
    def test_no_events_have_no_sum(self, engine: Engine, space: str) -> None:
        """There is no group for an empty total, not even without grouping."""
        assert engine.sums(space, SumQuery(grain="day")) == []
        engine.commit(batches.events(space, batches.event()))
        assert engine.sums(space, SumQuery(grain="run")) == []

    @needs("sums")
    @pytest.mark.parametrize("seed", range(3))
    def test_sums_equal_a_recount_and_a_reindex_changes_nothing(
        self, engine: Engine, space: str, seed: int
    ) -> None:
        chance = random.Random(seed)
        for _ in range(12):
            engine.commit(
                batches.events(space, *[_random_event(chance) for _ in range(chance.randint(1, 8))])
            )
        self._compare(engine, space)
        before = [engine.sums(space, query) for query in QUERIES]
        engine.reindex(space)
        assert [engine.sums(space, query) for query in QUERIES] == before
        assert not problems(engine, space)

    @needs("sums")
    def test_erased_events_leave_the_sums(self, engine: Engine, space: str) -> None:
        chance = random.Random(5)
        for _ in range(10):
            engine.commit(batches.events(space, *[_random_event(chance) for _ in range(5)]))
        engine.erase(space, Erasure(scopes=("/run/1",), event_seqs=(2, 3, 5)))
        self._compare(engine, space)
        engine.erase(space, Erasure(scopes=("/run/0", "/run/2")))
        assert engine.sums(space, SumQuery(grain="day")) == []
        assert not problems(engine, space)

    @needs("sums")
    def test_a_repeated_event_is_not_counted(self, engine: Engine, space: str) -> None:
        batch = batches.events(space, batches.call(id="a"), batches.call(id="a"))
        engine.commit(batch)
        engine.commit(batch)
        engine.commit(batches.events(space, batches.call(id="a", cost_nanos=5)))
        (total,) = engine.sums(space, SumQuery(grain="day"))
        assert (total.events, total.cost_nanos) == (1, 1_250_000)

    @needs("sums")
    def test_large_numbers_stay_exact(self, engine: Engine, space: str) -> None:
        most = (1 << 53) - 1
        engine.commit(
            batches.events(space, *[batches.call(cost_nanos=most, duration_us=most) for _ in range(100)])
        )
        (total,) = engine.sums(space, SumQuery(grain="day"))
        assert (total.cost_nanos, total.duration_us) == (100 * most, 100 * most)

    def _compare(self, engine: Engine, space: str) -> None:
        recount = deltas(record.event for record in all_records(engine, space, limit=1000))
        for query in QUERIES:
            assert engine.sums(space, query) == summarise(recount, query), query


def _random_event(chance: random.Random) -> Event:
    fields: dict[str, Any] = {
        "id": f"e{chance.randint(0, 60)}",
        "ts_us": batches.NOON_US + chance.randint(0, 3) * DAY_US,
        "scope": f"/run/{chance.randint(0, 2)}",
        "run": chance.choice([None, "run-1", "run-2"]),
        "thread": chance.choice([None, "t1", "t2"]),
        "agent": chance.choice([None, "planner", "writer"]),
        "model": chance.choice([None, "model-a", "model-b"]),
        "status": chance.choice([None, "ok", "error"]),
        "duration_us": chance.choice([None, chance.randint(0, 10**9)]),
        "name": chance.choice([None, "search", "refund"]),
        "data": chance.choice([None, b'{"first_token_us":%d}' % chance.randint(0, 10**6)]),
    }
    if chance.random() < 0.7:
        fields["usage"] = Usage(input=chance.randint(0, 10**6), output=chance.randint(0, 10**5))
        # Distinct costs: the order of equally expensive groups is unspecified.
        fields["cost_nanos"] = chance.choice([None, chance.randint(1, 10**12)])
        fields["currency"] = chance.choice([None, "USD", "EUR"])
    return batches.event(chance.choice(["call", "span.llm", "span.tool", "message"]), **fields)


NOTES = {
    "beech": "The beech drops its leaves late; the forest floor is copper.",
    "oak": "An oak carries acorns. Squirrels bury acorns and forget them.",
    "pine": "Pine needles make the soil sour. The forest smells of resin.",
    "ring": "Counting rings tells the age of a tree.",
}


class SearchTests(EngineHarness):
    """Guarantees of the search index."""

    @needs("search")
    def test_texts_are_found_by_any_of_their_words(self, engine: Engine, space: str) -> None:
        self._index(engine, space)
        assert self._found(engine, space, "acorns") == ["oak"]
        assert sorted(self._found(engine, space, "forest")) == ["beech", "pine"]
        assert sorted(self._found(engine, space, "squirrels in the resin")) == ["oak", "pine"]
        assert self._found(engine, space, "elephant") == []

    @needs("search")
    def test_texts_with_more_of_the_words_rank_higher(self, engine: Engine, space: str) -> None:
        self._index(engine, space)
        assert self._found(engine, space, "forest copper leaves")[0] == "beech"
        assert self._found(engine, space, "forest resin needles")[0] == "pine"
        result = engine.search(space, SearchQuery(collection="notes", text="forest resin"))
        assert result.hits[0].score > result.hits[1].score

    @needs("search")
    def test_case_and_inflection_are_ignored(self, engine: Engine, space: str) -> None:
        self._index(engine, space)
        for query in ("ring", "Rings", "RING", "counted", "count"):
            assert self._found(engine, space, query) == ["ring"], query

    @needs("search")
    def test_a_hit_locates_the_text(self, engine: Engine, space: str) -> None:
        self._index(engine, space)
        result = engine.search(space, SearchQuery(collection="notes", text="acorns"))
        (hit,) = result.hits
        assert (hit.collection, hit.name, hit.namespace) == ("notes", "oak", "trees")
        assert engine.get(space, [hit.source]) == [batches.words(NOTES["oak"])]
        assert result.indexed_through == engine.commit(batches.set_ref(space, "x")).first_seq - 1

    @needs("search")
    def test_a_search_stays_in_its_collection_and_namespace(self, engine: Engine, space: str) -> None:
        self._index(engine, space)
        engine.commit(batches.index_text(space, "elsewhere", "a forest", collection="other"))
        engine.commit(batches.index_text(space, "user", "a forest", namespace="user/1"))
        engine.commit(batches.index_text(space, "user2", "a forest", namespace="user/10"))
        engine.commit(batches.index_text(space, "none", "a forest"))
        assert sorted(self._found(engine, space, "forest")) == ["beech", "none", "pine", "user", "user2"]
        assert self._found(engine, space, "forest", namespace="user/1") == ["user"]
        assert self._found(engine, space, "forest", namespace="") == ["none"]
        assert self._found(engine, space, "forest", namespace="nobody") == []
        assert self._found(engine, space, "forest", collection="other") == ["elsewhere"]
        assert self._found(engine, space, "forest", collection="nothing") == []

    @needs("search")
    def test_a_new_text_replaces_one_of_the_same_name(self, engine: Engine, space: str) -> None:
        self._index(engine, space)
        engine.commit(batches.index_text(space, "oak", "now about mushrooms", namespace="fungi"))
        assert self._found(engine, space, "acorns") == []
        assert self._found(engine, space, "mushrooms") == ["oak"]
        assert self._found(engine, space, "mushrooms", namespace="trees") == []
        assert engine.stats(space).texts == 4

    @needs("search")
    def test_a_text_can_be_removed(self, engine: Engine, space: str) -> None:
        self._index(engine, space)
        draft = Draft(space)
        draft.text(Text(collection="notes", name="oak", scope=batches.SCOPE, source=None))
        draft.text(Text(collection="notes", name="never was", scope=batches.SCOPE, source=None))
        engine.commit(draft.batch())
        assert self._found(engine, space, "acorns") == []
        assert engine.stats(space).texts == 3

    @needs("search")
    def test_strings_in_json_and_large_content_are_searched(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        message = draft.put(
            Content("json", b'{"role":"user","content":[{"text":"plant a willow"}]}'), scope="s"
        )
        large = draft.put(Content("text", b"filler words here " * 1000 + b"hornbeam"), scope="s")
        draft.set_ref("r", b"", scope="s", links=(message, large))
        draft.text(Text(collection="notes", name="json", scope="s", source=message))
        draft.text(Text(collection="notes", name="large", scope="s", source=large))
        engine.commit(draft.batch())
        assert self._found(engine, space, "willow") == ["json"]
        assert self._found(engine, space, "hornbeam") == ["large"]

    @needs("search")
    def test_a_text_may_contain_any_bytes(self, engine: Engine, space: str) -> None:
        """NUL, control characters, invalid UTF-8, invalid JSON: the words in it are found."""
        draft = Draft(space)
        odd = draft.put(Content("text", b"nul \x00 bell \x07 broken \xff\xfe hazel"), scope="s")
        unparsable = draft.put(Content("json", b"{not json"), scope="s")
        draft.text(Text(collection="notes", name="odd", scope="s", source=odd))
        draft.text(Text(collection="notes", name="unparsable", scope="s", source=unparsable))
        engine.commit(draft.batch())
        for _ in range(2):
            assert self._found(engine, space, "hazel") == ["odd"]
            assert self._found(engine, space, "json") == []
            engine.reindex(space)

    @needs("search")
    def test_stored_content_can_be_indexed_later(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        source = draft.put(batches.words("a rowan with berries"), scope="s")
        draft.set_ref("r", b"", scope="s", links=(source,))
        engine.commit(draft.batch())
        later = Draft(space)
        later.text(Text(collection="notes", name="rowan", scope="s", source=source))
        engine.commit(later.batch())
        assert self._found(engine, space, "berries") == ["rowan"]

    @needs("search")
    def test_trigrams_find_parts_of_words(self, engine: Engine, space: str) -> None:
        engine.commit(
            batches.index_text(space, "zh", "森林里的年轮记录时间", collection="zh", tokens="trigrams")
        )
        engine.commit(
            batches.index_text(space, "en", "Heartwood and sapwood", collection="zh", tokens="trigrams")
        )
        assert self._found(engine, space, "年轮记录", collection="zh") == ["zh"]
        assert self._found(engine, space, "pwoo", collection="zh") == ["en"]
        assert self._found(engine, space, "WOOD", collection="zh") == ["en"]

    @needs("search")
    @pytest.mark.parametrize(
        "query",
        [
            "",
            "   ",
            '"',
            "acorns OR",
            "NEAR(",
            "a* b^",
            "(((",
            "oak -acorns",
            "name:x",
            "' -- ;",
            "%",
            "\\",
            "🌳",
            "the",
        ],
    )
    def test_any_text_is_a_valid_query(self, engine: Engine, space: str, query: str) -> None:
        """No character is special; an empty query has no hits."""
        self._index(engine, space)
        found = self._found(engine, space, query)
        assert ("oak" in found) == any(word in query for word in ("acorns", "oak"))

    @needs("search")
    def test_the_first_text_determines_the_tokenizer_of_its_collection(
        self, engine: Engine, space: str
    ) -> None:
        engine.commit(batches.index_text(space, "first", "heartwood", collection="cut", tokens="trigrams"))
        engine.commit(batches.index_text(space, "second", "sapwood", collection="cut", tokens="words"))
        assert sorted(self._found(engine, space, "woo", collection="cut")) == ["first", "second"]
        engine.reindex(space)
        assert sorted(self._found(engine, space, "woo", collection="cut")) == ["first", "second"]

    @needs("search")
    def test_of_many_hits_the_best_are_returned(self, engine: Engine, space: str) -> None:
        for number in range(15):
            engine.commit(batches.index_text(space, f"t{number}", "a plain maple"))
        engine.commit(batches.index_text(space, "best", "a maple with syrup"))
        assert self._found(engine, space, "maple syrup", limit=1) == ["best"]
        assert len(self._found(engine, space, "maple", limit=5)) == 5
        assert len(self._found(engine, space, "maple", limit=100)) == 16

    @needs("search")
    def test_a_reindex_finds_the_same(self, engine: Engine, space: str) -> None:
        self._index(engine, space)
        engine.commit(batches.index_text(space, "oak", "now about mushrooms"))
        engine.commit(
            batches.index_text(space, "zh", "森林里的年轮记录时间", collection="zh", tokens="trigrams")
        )
        queries = ["acorns", "mushrooms", "forest", "forest resin", "年轮记录"]
        before = [self._found(engine, space, query) for query in queries]
        engine.reindex(space)
        assert [self._found(engine, space, query) for query in queries] == before
        assert self._found(engine, space, "年轮记录", collection="zh") == ["zh"]

    @needs("search")
    def test_a_text_keeps_its_source_alive(self, engine: Engine, space: str) -> None:
        """A hit must be readable, and it must be possible to index it again."""
        draft = Draft(space)
        large = draft.put(Content("text", b"lonely juniper " * 400), scope=batches.SCOPE)
        draft.text(Text(collection="notes", name="juniper", scope=batches.SCOPE, source=large))
        engine.commit(draft.batch())
        engine.sweep(space, grace_seconds=0)
        (hit,) = engine.search(space, SearchQuery(collection="notes", text="juniper")).hits
        assert engine.get(space, [hit.source])
        assert not problems(engine, space)
        engine.erase(space, Erasure(scopes=(batches.SCOPE,)))
        assert self._found(engine, space, "juniper") == []

    def _index(self, engine: Engine, space: str) -> None:
        for name, text in NOTES.items():
            engine.commit(batches.index_text(space, name, text, namespace="trees"))

    def _found(self, engine: Engine, space: str, text: str, **fields: Any) -> list[str]:
        fields.setdefault("collection", "notes")
        query = SearchQuery(text=text, **fields)
        return [hit.name for hit in engine.search(space, query).hits]

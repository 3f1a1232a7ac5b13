"""Whatever is recorded, deleted and forgotten: totals equal a recount, and search finds every word."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import treering
from treering.core.query import EventQuery, SumQuery
from treering.core.retention import Keep
from treering.core.rollups import deltas, summarise
from treering.core.text import text_of, words
from treering.errors import NotFound
from treering.runs import search
from treering.runs.search import EventIndex, searchable
from treering.runs.span import RunRow

WORDS = ("refund", "umbrella", "parcel", "ticket")
AGENTS = ("planner", "writer")
THREADS = (None, "alice", "bob")

messages = st.tuples(
    st.just("message"), st.sampled_from(WORDS), st.integers(0, 50), st.sampled_from([None, "0.001", "2"])
)
tools = st.tuples(st.just("tool"), st.sampled_from(WORDS), st.booleans(), st.none())
runs = st.tuples(
    st.just("run"), st.sampled_from(AGENTS), st.sampled_from(THREADS), st.lists(messages | tools, max_size=5)
)
steps = st.lists(
    runs
    | st.tuples(st.just("forget"), st.sampled_from(["alice", "bob"]))
    | st.tuples(st.just("gc"), st.integers(1, 2))
    | st.tuples(st.just("index"), st.booleans()),
    max_size=12,
)

QUERIES = [
    SumQuery(grain="day"),
    SumQuery(grain="day", by=("agent", "model", "kind", "currency")),
    SumQuery(grain="run", by=("key", "kind", "currency")),
    SumQuery(grain="thread", by=("key", "agent")),
]


@pytest.mark.parametrize("place", ["memory:", "sqlite"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plan=steps)
def test_totals_and_hits_are_those_of_a_recount(place, plan, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "PAGE", 7)
        with treering.open(place if place == "memory:" else tmp_path_factory.mktemp("store")) as store:
            for step in plan:
                do(store, step)
            records = store.engine.scan(store.space, EventQuery(), limit=10_000).records
            for query in QUERIES:
                recount = summarise(deltas(record.event for record in records), query)
                assert store.engine.sums(store.space, query) == recount
            for word in WORDS:
                found = store.timeline.search(word, limit=1000).hits
                assert sorted((hit.seq, hit.part == "input") for hit in found) == holding(
                    store, records, word
                )
            assert store.verify().ok


def do(store, step):
    match step:
        case ("run", agent, thread, parts):
            record(store, agent, thread, parts)
        case ("forget", thread):
            with suppress(NotFound):
                store.forget(thread=thread)
        case ("gc", last):
            store.gc(keep_runs=Keep(last=last), grace_seconds=0)
        case ("index", everything):
            EventIndex(store.engine, store.space).catch_up(everything=everything)


def record(store, agent, thread, parts):
    with store.run(agent=agent, thread=thread) as run:
        for part in parts:
            match part:
                case ("message", word, tokens, cost):
                    usage = {"output": tokens} if tokens else None
                    run.message("user", f"my {word}", usage=usage, cost=cost, model="nobody")
                case ("tool", word, fails, _):
                    with suppress(RuntimeError), run.tool("search", {"q": word}) as call:
                        call.output = [word]
                        if fails:
                            raise RuntimeError("no")
    store.flush()


def holding(store, records, word):
    """Where a word is, by reading everything."""
    candidates = searchable(map(RunRow, records))
    contents = store.engine.get(store.space, [each.address for each in candidates])
    return sorted(
        (each.row.seq, each.is_input)
        for each, content in zip(candidates, contents, strict=True)
        if word in words(text_of(content))
    )

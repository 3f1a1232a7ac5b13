"""Full-text search over what was recorded: found by its words wherever it lies, and gone when forgotten."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treering
from treering.core.text import stem
from treering.errors import InvalidInput
from treering.runs import search as search_module
from treering.runs.recorder import Recorder
from treering.runs.search import EventIndex, _prefix


@pytest.fixture
def small_pages(monkeypatch):
    """So that a handful of events is already more than a page, which the test indexes, not the recorder."""
    monkeypatch.setattr(search_module, "PAGE", 4)
    monkeypatch.setattr(Recorder, "_index_a_page", lambda _: None)


def recorded(store, *, thread=None, agent="planner", subject="refund"):
    with store.run(agent=agent, thread=thread) as run:
        run.message("user", f"Where is my {subject}?")
        with run.span("looking", kind="agent", agent=agent) as span:
            with span.tool("search_docs", {"query": f"{subject}s of last month"}) as call:
                call.output = {"pages": [f"The {subject} was sent on Monday.", "Nothing else."]}
            span.message("assistant", f"Your {subject} is on its way, José.")
    store.flush()
    return run


def test_messages_inputs_and_outputs_are_found(store):
    run = recorded(store)
    recorded(store, subject="umbrella")
    found = store.timeline.search("refunds")
    assert {(hit.kind, hit.part, hit.role) for hit in found.hits} == {
        ("message", "content", "user"),
        ("message", "content", "assistant"),
        ("tool", "input", None),
        ("tool", "output", None),
    }
    assert {hit.run for hit in found.hits} == {run.id}
    (output,) = [hit for hit in found.hits if hit.part == "output"]
    assert "The refund was sent on Monday." in output.snippet
    assert output.name == "search_docs"
    recorded(store, thread="support/alice", subject="teapot")
    assert {(hit.thread, hit.namespace) for hit in store.timeline.search("teapot").hits} == {
        ("support/alice", "")
    }
    assert output.span is not None


def test_a_hit_with_more_of_the_words_comes_first(store):
    recorded(store)
    recorded(store, subject="umbrella")
    hits = store.timeline.search("umbrella Monday").hits
    assert hits[0].matched == 2
    assert hits[0].part == "output"
    assert "umbrella was sent on Monday" in hits[0].snippet


def test_a_snippet_of_messages_says_what_they_say(store):
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is my kettle?"}]
    call = {"type": "tool_use", "id": "t1", "name": "track", "input": {"item": "kettle"}}
    with store.run(agent="clerk") as run, run.span("answer", kind="llm", input={"messages": asked}) as span:
        span.output = {"role": "assistant", "content": [call]}
    store.flush()
    found = {hit.part: hit.snippet for hit in store.timeline.search("kettle").hits}
    assert found == {"input": "Be brief. Where is my kettle?", "output": '→ track({"item":"kettle"})'}
    (by_field,) = store.timeline.search("tool_use").hits
    assert "tool_use" in by_field.snippet


def test_accents_and_endings_do_not_matter(store):
    recorded(store)
    assert store.timeline.search("jose").hits
    assert store.timeline.search("REFUNDED").hits


@pytest.mark.parametrize("indexed", [False, True])
def test_scripts_without_spaces_are_searched_by_their_characters(store, indexed):
    with store.run() as run:
        run.message("user", "東京の天気はどうですか。refund please")
        run.message("user", "大阪の天気")
        run.message("user", "ฉันต้องการเงินคืน")
    store.flush()
    if indexed:
        EventIndex(store.engine, store.space).catch_up(everything=True)
    (hit,) = store.timeline.search("東京").hits
    assert hit.snippet.startswith("東京の天気")
    assert len(store.timeline.search("天気").hits) == 2
    assert [hit.matched for hit in store.timeline.search("天気 refunds 東京").hits] == [3, 1]
    assert store.timeline.search("京東").hits == ()
    assert len(store.timeline.search("เงินคืน").hits) == 1
    assert run.id


def test_queries_without_words_find_nothing(store):
    recorded(store)
    assert store.timeline.search("...").hits == ()
    assert store.timeline.search("zebra").hits == ()
    with pytest.raises(InvalidInput, match="limit=0"):
        store.timeline.search("refund", limit=0)


def test_filters_by_run_agent_kind_and_time(store):
    one = recorded(store, agent="planner")
    other = recorded(store, agent="writer")
    search = store.timeline.search
    assert {hit.run for hit in search("refund", run=other.id).hits} == {other.id}
    assert {hit.run for hit in search("refund", agent="planner").hits} == {one.id}
    assert {hit.kind for hit in search("refund", kind="tool").hits} == {"tool"}
    first = min(hit.ts_us for hit in search("refund", run=other.id).hits)
    assert {hit.run for hit in search("refund", since_us=first).hits} == {other.id}
    assert {hit.run for hit in search("refund", until_us=first).hits} == {one.id}
    assert len(search("refund", limit=3).hits) == 3


def test_a_filter_fetches_only_what_passes_it(store, monkeypatch):
    runs = [recorded(store, agent=f"agent-{n % 3}", subject=f"parcel {n}") for n in range(9)]
    EventIndex(store.engine, store.space).catch_up(everything=True)
    everything = store.timeline.search("parcels", limit=100).hits
    moment = min(hit.ts_us for hit in everything if hit.run == runs[4].id) + 1  # in the middle of a block
    fetched = []
    scan = store.engine.scan
    monkeypatch.setattr(
        store.engine, "scan", lambda *a, **k: fetched.append(len((page := scan(*a, **k)).records)) or page
    )
    for narrow, passes in [
        ({"agent": "agent-1"}, lambda hit: hit.agent == "agent-1"),
        ({"kind": "tool"}, lambda hit: hit.kind == "tool"),
        ({"since_us": moment}, lambda hit: hit.ts_us >= moment),
        ({"until_us": moment}, lambda hit: hit.ts_us < moment),
        ({"until_us": 0}, lambda _hit: False),
    ]:
        fetched.clear()
        expected = [hit for hit in everything if passes(hit)]
        assert list(store.timeline.search("parcels", limit=100, **narrow).hits) == expected
        events = {hit.event for hit in expected}
        assert sum(fetched) <= 2 * len(events)  # a span that is found has a row of its beginning


def test_a_search_that_cannot_look_at_everything_says_so(store, monkeypatch):
    for number in range(6):
        recorded(store, agent="rare" if number == 0 else "planner", subject=f"parcel {number}")
    EventIndex(store.engine, store.space).catch_up(everything=True)
    assert not store.timeline.search("parcel", agent="rare", limit=10).is_partial
    monkeypatch.setattr("treering.runs.search.MAX_PAGE", 2)
    monkeypatch.setattr("treering.runs.search._FIRST_BLOCKS", 1)
    assert store.timeline.search("parcel", agent="nobody").is_partial
    assert not store.timeline.search("parcel", limit=2).is_partial
    assert not store.timeline.search("zebra").is_partial


@pytest.mark.usefixtures("small_pages")
def test_events_are_found_whether_or_not_they_are_indexed(store):
    runs = [recorded(store, subject=f"parcel number{n}") for n in range(6)]
    index = EventIndex(store.engine, store.space)
    assert index.through == 0
    assert store.timeline.index() >= 30
    assert index.through > 0
    late = recorded(store, subject="parcel number6")
    for number, run in enumerate([*runs, late]):
        hits = store.timeline.search(f"number{number}").hits
        assert [hit.run for hit in hits] == [run.id] * 4
    assert len(store.timeline.search("parcel", limit=100).hits) == 28
    assert len(store.timeline.search("parcel", limit=100, run=runs[2].id).hits) == 4
    assert store.verify().ok


def test_the_recorder_indexes_what_it_wrote(store, monkeypatch):
    monkeypatch.setattr(search_module, "PAGE", 4)
    indexed = threading.Event()
    original = EventIndex._index

    def noticed(self, records, version):
        original(self, records, version)
        indexed.set()

    monkeypatch.setattr(EventIndex, "_index", noticed)
    recorded(store, subject="parcel")
    assert indexed.wait(60)
    assert EventIndex(store.engine, store.space).through > 0


@pytest.mark.usefixtures("small_pages")
def test_the_first_search_of_a_large_store_indexes_some_pages_only(store, monkeypatch):
    monkeypatch.setattr(search_module, "_TAIL", 8)
    for number in range(12):
        recorded(store, subject=f"number{number}")
    newest = store.timeline.search("number11")
    assert len(newest.hits) == 4
    assert newest.not_indexed > 0
    assert not store.timeline.search("number5").hits
    pages = []
    store.timeline.index(on_page=pages.append)
    assert pages == sorted(pages)
    assert pages[-1][0] <= pages[0][1]
    found = store.timeline.search("number5")
    assert (len(found.hits), found.not_indexed) == (4, 0)


@pytest.mark.usefixtures("small_pages")
def test_indexing_twice_or_by_two_changes_nothing(store):
    for number in range(4):
        recorded(store, subject=f"number{number}")
    one, other = (EventIndex(store.engine, store.space) for _ in range(2))
    one.catch_up(everything=True)
    through = one.through
    assert other.catch_up(everything=True) == 0
    assert other.through == through
    assert len(store.timeline.search("number2").hits) == 4


@pytest.mark.usefixtures("small_pages")
def test_an_index_that_moved_meanwhile_is_read_again(store, monkeypatch):
    for number in range(4):
        recorded(store, subject=f"number{number}")
    index = EventIndex(store.engine, store.space)
    quicker = EventIndex(store.engine, store.space)
    original = EventIndex._index
    calls = []

    def overtaken(self, records, version):
        calls.append(version)
        if self is index and len(calls) == 1:
            original(quicker, records, version)
        original(self, records, version)

    monkeypatch.setattr(EventIndex, "_index", overtaken)
    index.catch_up(everything=True)
    assert len(store.timeline.search("number0").hits) == 4
    assert store.verify().ok


@pytest.mark.usefixtures("small_pages")
def test_forgetting_a_thread_forgets_its_words(store):
    recorded(store, thread="alice", subject="zyzzyva")
    kept = recorded(store, thread="bob", subject="parcel")
    EventIndex(store.engine, store.space).catch_up(everything=True)
    assert store.timeline.search("zyzzyva").hits
    forgotten = store.forget(thread="alice")
    assert forgotten.texts >= 1
    assert store.timeline.search("zyzzyva").hits == ()
    assert {hit.run for hit in store.timeline.search("parcel").hits} == {kept.id}
    assert store.verify().ok


def test_forgetting_leaves_no_word_in_the_files(tmp_path):
    with treering.open(tmp_path / "store") as store:
        recorded(store, thread="alice", subject="zyzzyva")
        recorded(store, thread="bob", subject="parcel")
        EventIndex(store.engine, store.space).catch_up(everything=True)
        assert store.timeline.search("zyzzyva").hits
        store.forget(thread="alice")
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert b"zyzzyva" not in data, path


@pytest.mark.parametrize("size", [10, 9000])
def test_events_forgotten_during_indexing_stay_forgotten(store, monkeypatch, size):
    with store.run(agent="planner", thread="alice") as run:
        run.message("user", "zyzzyva " * size)
    with store.run(agent="planner", thread="bob") as other:
        other.message("user", "zyzzyva " * size if size > 10 else "parcel")
    store.flush()
    commit = store.engine.commit
    forgotten = []

    def late(batch):
        if batch.texts and not forgotten:
            forgotten.append(True)
            store.forget(thread="alice")
        return commit(batch)

    monkeypatch.setattr(store.engine, "commit", late)
    EventIndex(store.engine, store.space).catch_up(everything=True)
    assert forgotten
    assert {hit.run for hit in store.timeline.search("zyzzyva").hits} <= {other.id}
    assert not [ref for ref in store.engine.scan_refs(store.space, "index/block/") if run.id in ref.name]
    assert not store.engine.scan_scopes(store.space, "/thread/alice")
    assert store.verify().ok


def test_the_async_store_searches_too(tmp_path):
    async def searched():
        async with treering.open_async(tmp_path / "store") as store:
            with store.run(agent="planner") as run:
                run.message("user", "Where is my refund?")
            await store.flush()
            found = await store.timeline.search("refund")
            return [hit.run for hit in found.hits] == [run.id]

    assert asyncio.run(searched())


@given(st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=14))
def test_a_word_begins_like_its_stem(word):
    assert word.startswith(_prefix(stem(word)))


@pytest.mark.parametrize(
    "ending", ["ational", "iveness", "ization", "ies", "sses", "ing", "ed", "ability", "ied"]
)
@given(beginning=st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8))
def test_a_word_with_an_english_ending_begins_like_its_stem(beginning, ending):
    word = beginning + ending
    assert word.startswith(_prefix(stem(word)))

"""Spans: lazily generated ids, and token usage under the names of every provider."""

from __future__ import annotations

import threading

import pytest

import treering
from treering.core.batch import Usage
from treering.core.query import EventQuery
from treering.errors import InvalidInput
from treering.runs.span import usage_of


def test_concurrent_readers_get_one_id():
    with treering.open("memory:") as store, store.run(agent="a") as run:
        for _ in range(200):
            span, found = run.span("step"), []
            barrier = threading.Barrier(4)

            def ask(span=span, found=found, barrier=barrier):
                barrier.wait()
                found.append(span.id)

            askers = [threading.Thread(target=ask) for _ in range(4)]
            for asker in askers:
                asker.start()
            for asker in askers:
                asker.join()
            assert set(found) == {span.id}


def test_the_written_id_is_the_returned_one():
    with treering.open("memory:") as store:
        with store.run(agent="a") as run:
            with run.span("long") as long:
                store.flush()  # it is announced by the recorder's thread before anyone asked
                with long.span("inner") as inner:
                    pass
            with run.span("quick") as quick:
                pass
            given = run.span("named", id="mine")
        store.flush()
        events = {
            record.event.id: record.event
            for record in store.engine.scan(store.space, EventQuery(run=run.id)).records
        }
    assert {long.id, f"{long.id}:open", inner.id, quick.id} <= set(events)
    assert events[inner.id].parent == long.id
    assert given.id == "mine"


def test_metadata_of_one_span_is_not_another_s():
    with treering.open("memory:") as store:
        with store.run(agent="a") as run:
            with run.span("one") as one:
                one.note(mine=1)
            with run.span("two", metadata={"given": 2}) as two:
                two.note(more=3)
            with run.span("three"):
                pass
        store.flush()
        data = {
            record.event.name: record.event.data
            for record in store.engine.scan(
                store.space, EventQuery(run=run.id, kinds=("span.agent",))
            ).records
        }
    assert data == {"one": b'{"mine":1}', "two": b'{"given":2,"more":3}', "three": None}


@pytest.mark.parametrize(
    "given, usage",
    [
        ({"input": 1, "output": 2, "cache_read": 3}, Usage(input=1, output=2, cache_read=3)),
        (
            {
                "input_tokens": 5,
                "output_tokens": 2,
                "cache_read_input_tokens": 7,
                "cache_creation_input_tokens": 1,
            },
            Usage(input=5, output=2, cache_read=7, cache_write=1),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 2,
                "total_tokens": 12,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
            Usage(input=6, cache_read=4, output=2),
        ),
        (
            {  # OpenAI's Responses API, as it comes
                "input_tokens": 10,
                "input_tokens_details": {"cached_tokens": 4},
                "output_tokens": 9,
                "output_tokens_details": {"reasoning_tokens": 7},
                "total_tokens": 19,
            },
            Usage(input=6, cache_read=4, output=9, reasoning=7),
        ),
        (
            {  # its chat completions
                "prompt_tokens": 10,
                "completion_tokens": 9,
                "total_tokens": 19,
                "prompt_tokens_details": {"audio_tokens": None, "cached_tokens": 0},
                "completion_tokens_details": {"accepted_prediction_tokens": 0, "reasoning_tokens": 7},
            },
            Usage(input=10, output=9, reasoning=7),
        ),
        (
            {  # Anthropic's, as it comes
                "cache_creation": {"ephemeral_1h_input_tokens": 30, "ephemeral_5m_input_tokens": 20},
                "cache_creation_input_tokens": 50,
                "cache_read_input_tokens": 7,
                "inference_geo": None,
                "input_tokens": 5,
                "output_tokens": 9,
                "output_tokens_details": {"thinking_tokens": 4},
                "server_tool_use": {"web_search_requests": 1},
                "service_tier": "standard",
            },
            Usage(input=5, cache_read=7, cache_write=20, cache_write_1h=30, output=9, reasoning=4),
        ),
        ({"prompt": 100, "completion": 50, "total": 150}, Usage(input=100, output=50)),
        ({"total": 9}, Usage(other=9)),
        ({"prompt": 100, "completion": 50, "total": 200}, Usage(input=100, output=50, other=50)),
        ({"input": 4, "other": 3}, Usage(input=4, other=3)),
        (None, None),
    ],
)
def test_tokens_are_understood_in_the_words_of_the_providers(given, usage):
    assert usage_of(given) == usage


@pytest.mark.parametrize(
    "wrong",
    [
        "many",
        5,
        {"tokens": 5},
        {"input": "5"},
        {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": -1}},
        {"prompt": 100, "completion": 50, "total": 120},
    ],
)
def test_tokens_that_nobody_could_count_are_refused(wrong):
    with pytest.raises(InvalidInput, match="usage"):
        usage_of(wrong)

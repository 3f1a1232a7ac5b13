"""Tokens in the words of the providers, as one kind of numbers."""

from __future__ import annotations

import pytest

from treering.core.batch import Usage
from treering.errors import InvalidInput
from treering.runs.span import usage_of


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
        ({"total": 9}, Usage(input=9)),
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
    ],
)
def test_tokens_that_nobody_could_count_are_refused(wrong):
    with pytest.raises(InvalidInput, match="usage"):
        usage_of(wrong)

"""What the data of spans has in common: phrases that a new store keeps as one byte each.

A store keeps the phrases that it was created with, so changing this list affects new stores only. Of two
phrases that match at one place the first is used, so longer ones come first.
"""

from __future__ import annotations

from typing import Final

PHRASES: Final = (
    '{"attributes":{"gen_ai.response.id":"',
    '{"attributes":{"gen_ai.tool.call.id":"',
    '{"attributes":{"gen_ai.',
    '{"attributes":{"',
    '"gen_ai.response.finish_reasons":["',
    '"gen_ai.response.id":"',
    '"gen_ai.request.',
    '"gen_ai.',
    '"},"input":0,"input_size":',
    '{"input":0,"input_size":',
    '},"input":0,"input_size":',
    ',"priced_by":"openai/',
    ',"priced_by":"anthropic/',
    ',"priced_by":"google/',
    ',"priced_by":"',
    '","provider":"openai"}',
    '","provider":"anthropic"}',
    '","provider":"google"}',
    ',"provider":"',
    '"error":{"message":"',
    '"openinference.',
    '"first_token_us":',
)

"""Chunks of a stream, kept as one: the whole text once, and when each piece of it came.

A model's answer comes in hundreds of pieces. A row for each would cost more than the answer, so a span
collects them and is still one row: the text is its output, and beside it lie the times and lengths of the
pieces, from which a replay cuts the text again. The time of the first one is in the row itself.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.encoding import encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from treering.core.content import Content

FIRST_TOKEN: Final = "first_token_us"  # noqa: S105 - a token of output
"""In a span's data: microseconds from its beginning to the first piece of output."""
CHUNKS: Final = "chunks"
"""In a span's data: where the times and lengths of its chunks are."""


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a stream: when it came, counted from the span's beginning, and what it was."""

    offset_us: int
    text: str


class Chunks:
    """The chunks of one span while it runs."""

    __slots__ = ("_pieces", "_times_us")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._times_us: list[int] = []

    def add(self, text: str, offset_us: int) -> None:
        """One more piece."""
        self._pieces.append(text)
        self._times_us.append(offset_us)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces)

    @property
    def first_us(self) -> int:
        """When the first one came."""
        return self._times_us[0]

    def times(self) -> Content:
        """When each came, as the steps between them, and how long each is."""
        steps = [later - earlier for earlier, later in pairwise((0, *self._times_us))]
        return encode({"steps_us": steps, "lengths": [len(piece) for piece in self._pieces]})


def cut(text: str, times: Mapping[str, Any]) -> list[Chunk]:
    """The pieces of a stream again, out of its text and what `Chunks.times` kept."""
    chunks: list[Chunk] = []
    offset_us = at = 0
    for step_us, length in zip(times["steps_us"], times["lengths"], strict=True):
        offset_us += step_us
        chunks.append(Chunk(offset_us, text[at : at + length]))
        at += length
    return chunks

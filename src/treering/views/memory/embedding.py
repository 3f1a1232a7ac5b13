"""Embedders: whatever turns texts into vectors, so that search also finds what says it in other words.

An embedder has a name and one method. A vector is brought to length 1 and kept as half-precision numbers
behind the digest of the text that it stands for: 530 bytes for 256 dimensions. **Invariant:** a vector never
counts for a text that it was not made from.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast, runtime_checkable

import msgspec

from treering.core.ids import check_id
from treering.errors import Corrupt, InvalidInput

MAX_DIMENSIONS: Final = 16_384
MOST_CHARACTERS: Final = 20_000
"""What is behind it in a long text is not embedded; the words of all of it are found."""

_LAYOUT: Final = 1
_DIGEST_BYTES: Final = 16


@runtime_checkable
class Embedder(Protocol):
    """Gives each text a vector; equal texts get equal vectors.

    ``name`` tells the vectors of one embedder from those of another in the store: it must change when the
    vectors do.
    """

    @property
    def name(self) -> str:
        """What its vectors are kept under, such as ``openai/text-embedding-3-small``."""
        ...

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector for each text, all of one length."""
        ...


class FunctionEmbedder:
    """An embedder out of a function, for APIs: ``FunctionEmbedder("openai/small", call_the_api)``.

    The function gets at most ``batch`` texts at a time.
    """

    def __init__(
        self, name: str, function: Callable[[list[str]], Sequence[Sequence[float]]], *, batch: int = 128
    ) -> None:
        if batch < 1:
            raise InvalidInput(f"batch is {batch}; give 1 or more")
        self._name = check_id(name, "embedder name")
        self._function = function
        self._batch = batch

    @property
    def name(self) -> str:
        """What its vectors are kept under."""
        return self._name

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """A vector for each text."""
        vectors: list[Sequence[float]] = []
        for start in range(0, len(texts), self._batch):
            vectors.extend(self._function(list(texts[start : start + self._batch])))
        return vectors


class Vector(msgspec.Struct, frozen=True):
    """A stored vector: the digest of its text, and half-precision numbers, little-endian."""

    digest: str
    halves: bytes

    @property
    def dimensions(self) -> int:
        """How many numbers."""
        return len(self.halves) // 2

    def encoded(self) -> bytes:
        """The value of its ref."""
        return bytes([_LAYOUT]) + bytes.fromhex(self.digest) + self.halves


def stored_vector(value: bytes) -> Vector:
    """What `Vector.encoded` gave."""
    start = 1 + _DIGEST_BYTES
    if len(value) <= start or value[0] != _LAYOUT or len(value) % 2 == 0:
        raise Corrupt(f"{len(value)} bytes are no vector of this version; run memory.embed() again")
    return Vector(value[1:start].hex(), value[start:])


def embedded(embedder: Embedder, texts: Sequence[str]) -> list[bytes]:
    """Half-precision vectors of length 1, one for each text."""
    if not texts:
        return []
    given: Any = embedder.embed([text[:MOST_CHARACTERS] for text in texts])
    vectors = [[float(number) for number in vector] for vector in cast("Sequence[Sequence[float]]", given)]
    sizes = {len(vector) for vector in vectors}
    if len(vectors) != len(texts) or len(sizes) != 1 or not 1 <= min(sizes) <= MAX_DIMENSIONS:
        raise InvalidInput(
            f"embedder {embedder.name!r} gave {len(vectors)} vectors of {sorted(sizes)} numbers "
            f"for {len(texts)} texts; it must give one of the same length for each"
        )
    return [_half(embedder.name, vector) for vector in vectors]


def checked_embedder(embedder: Any) -> Embedder:
    """Something that can embed, or why not."""
    if not isinstance(embedder, Embedder):
        raise InvalidInput(
            f"{type(embedder).__name__} is no embedder; pass one with name and embed(texts), "
            "or FunctionEmbedder(name, function)"
        )
    check_id(embedder.name, "embedder name")
    return embedder


def _half(name: str, vector: list[float]) -> bytes:
    length = math.sqrt(math.fsum(number * number for number in vector))
    if not math.isfinite(length):
        raise InvalidInput(f"embedder {name!r} gave a vector with numbers that are not finite; repair it")
    scale = 1 / length if length else 0.0
    return struct.pack(f"<{len(vector)}e", *(number * scale for number in vector))

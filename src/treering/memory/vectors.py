"""Vectors for semantic search: embedders, their stored form, and the in-memory index.

An embedder has a name and turns texts into vectors. A vector is normalised to length 1 and stored as the
value of its own ref, in the scope of its document: it changes in the commit that changes the text, and is
forgotten with it. Stored are the digest of the text and half-precision numbers, 530 bytes for 256 dimensions.
**Invariant:** a vector never counts for a text that it was not made from.

To search, the vectors of a namespace are read into memory once; from then on the journal says which documents
changed, and only those are read again. Before comparing, whatever all vectors of a namespace share is removed
(their mean, and the principal directions: one per hundred dimensions), which separates documents far better.

`StaticEmbedder` works offline, with the static word vectors that ship with the package `wordllama`. The
weights (32,000 word pieces, 256 dimensions each) and the tokenizer are read directly from the installed
package; none of its code runs, and nothing is downloaded. The vector of a text is the mean over its pieces,
so word order is ignored. Embedding takes about 30 microseconds per text and finds related words.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, runtime_checkable

import msgspec

from treering.core.ids import check_id, namespace_prefix, parse_scope
from treering.core.query import EventQuery, each_record, ref_pages
from treering.errors import Corrupt, InvalidInput, MissingExtra
from treering.memory.documents import DELETED, EMBEDDED, LAST_CHARACTER, REF_ROOT, SAVED, ref_prefix

if TYPE_CHECKING:
    from treering.core.engine import Engine
    from treering.core.records import Ref

MAX_DIMENSIONS: Final = 16_384
MAX_CHARACTERS: Final = 20_000
"""Longer texts are embedded up to here; the word index covers all of a text."""

VECTOR_REFS: Final = "vector/"
"""Prefix of the names of vector refs."""

_LAYOUT: Final = 1
_DIGEST_BYTES: Final = 16
_FORGOTTEN: Final = "forget"
_PAGE: Final = 2000
_MAX_TABLES: Final = 64
_MAX_CHANGES: Final = 5000
"""After more changes than this the whole namespace is read again."""
_MIN_ROWS_FOR_DIRECTIONS: Final = 100
"""With fewer documents, what they share may be coincidence."""
_DIMENSIONS_PER_DIRECTION: Final = 100
_GROWTH: Final = 1.1


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors; equal texts get equal vectors.

    The name separates the vectors of different embedders in the store. It must change when the vectors do.
    """

    @property
    def name(self) -> str:
        """The name of the model, such as ``openai/text-embedding-3-small``."""
        ...

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a vector for each text, all of the same length."""
        ...


class FunctionEmbedder:
    """An embedder that calls a function: ``FunctionEmbedder("openai/small", call_the_api)``.

    The function receives at most ``batch`` texts per call.
    """

    def __init__(
        self, name: str, function: Callable[[list[str]], Sequence[Sequence[float]]], *, batch: int = 128
    ) -> None:
        if batch < 1:
            raise InvalidInput(f"batch is {batch}; use 1 or more")
        self._name = check_id(name, "embedder name")
        self._function = function
        self._batch = batch

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._name

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a vector for each text."""
        vectors: list[Sequence[float]] = []
        for start in range(0, len(texts), self._batch):
            vectors.extend(self._function(list(texts[start : start + self._batch])))
        return vectors


def validate_embedder(embedder: Any) -> Embedder:
    """Return the embedder, or raise `InvalidInput` if it is none."""
    if not isinstance(embedder, Embedder):
        raise InvalidInput(
            f"{type(embedder).__name__} is not an embedder; pass an object with name and embed(texts), "
            "or FunctionEmbedder(name, function)"
        )
    check_id(embedder.name, "embedder name")
    return embedder


def embed_texts(embedder: Embedder, texts: Sequence[str]) -> list[bytes]:
    """Return a normalised half-precision vector for each text."""
    if not texts:
        return []
    result: Any = embedder.embed([text[:MAX_CHARACTERS] for text in texts])
    vectors = [[float(number) for number in vector] for vector in cast("Sequence[Sequence[float]]", result)]
    sizes = {len(vector) for vector in vectors}
    if len(vectors) != len(texts) or len(sizes) != 1 or not 1 <= min(sizes) <= MAX_DIMENSIONS:
        raise InvalidInput(
            f"embedder {embedder.name!r} returned {len(vectors)} vectors of {sorted(sizes)} numbers "
            f"for {len(texts)} texts; it must return one vector per text, all of the same length"
        )
    return [_normalise(embedder.name, vector) for vector in vectors]


def _normalise(name: str, vector: list[float]) -> bytes:
    length = math.sqrt(math.fsum(number * number for number in vector))
    if not math.isfinite(length):
        raise InvalidInput(f"embedder {name!r} returned a vector with numbers that are not finite")
    scale = 1 / length if length else 0.0
    return struct.pack(f"<{len(vector)}e", *(number * scale for number in vector))


class Vector(msgspec.Struct, frozen=True):
    """A stored vector: the digest of its text, and half-precision numbers, little-endian."""

    digest: str
    numbers: bytes

    @property
    def dimensions(self) -> int:
        """Number of dimensions."""
        return len(self.numbers) // 2

    def encode(self) -> bytes:
        """Return the value of the ref."""
        return bytes([_LAYOUT]) + bytes.fromhex(self.digest) + self.numbers


def decode_vector(value: bytes) -> Vector:
    """Decode the value of a vector's ref."""
    start = 1 + _DIGEST_BYTES
    if len(value) <= start or value[0] != _LAYOUT or len(value) % 2 == 0:
        raise Corrupt(
            f"{len(value)} bytes are not a vector in a known format; create it again with memory.embed()"
        )
    return Vector(value[1:start].hex(), value[start:])


def vector_ref(embedder: str, document_ref: str) -> str:
    """Return the name of the ref that holds a document's vector."""
    return _embedder_prefix(embedder) + document_ref.removeprefix(REF_ROOT)


def embedder_prefixes(engine: Engine, space: str) -> Iterator[str]:
    """List the ref prefixes of all embedders that have vectors."""
    after: str | None = None
    while page := engine.scan_refs(space, VECTOR_REFS, after=after, limit=1):
        prefix = VECTOR_REFS + page[0].name[len(VECTOR_REFS) :].partition("/")[0] + "/"
        yield prefix
        after = prefix + LAST_CHARACTER


def _embedder_prefix(name: str) -> str:
    return VECTOR_REFS + namespace_prefix(name)


class Similarities(msgspec.Struct, frozen=True):
    """Cosines between a query and documents, by ref name, with the digest that each vector was made from."""

    scores: dict[str, float]
    digests: dict[str, str]
    rows: int
    """How many vectors were compared."""


class VectorIndex:
    """The vectors of a store, in memory, by namespace; the least recently used are dropped. Thread-safe."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[str, str, str | None], _VectorTable] = OrderedDict()
        self._lock = Lock()

    def compare(
        self,
        engine: Engine,
        space: str,
        namespace: str | None,
        embedder: Embedder,
        text: str,
        *,
        limit: int,
        include: Iterable[str],
    ) -> Similarities:
        """Return the similarity of the ``limit`` most similar documents, and of those in ``include``."""
        (query,) = embed_texts(embedder, [text])
        key = (space, embedder.name, namespace)
        with self._lock:
            table = self._tables.get(key)
            if table is None:
                table = self._tables[key] = _VectorTable(engine, space, embedder.name, namespace)
            self._tables.move_to_end(key)
            while len(self._tables) > _MAX_TABLES:
                self._tables.popitem(last=False)
        with table.lock:
            table.refresh()
            return table.compare(query, limit, include)

    def clear(self) -> None:
        """Drop all vectors from memory."""
        with self._lock:
            self._tables.clear()


class _VectorTable:
    """The vectors of one namespace (or of all) as the rows of a matrix."""

    def __init__(self, engine: Engine, space: str, embedder: str, namespace: str | None) -> None:
        self.lock = Lock()
        self._np = import_numpy()
        self._engine = engine
        self._space = space
        self._embedder = embedder
        self._namespace = namespace
        self._query = EventQuery(kinds=(SAVED, DELETED, EMBEDDED, _FORGOTTEN))
        self._last_seq: int | None = None
        self._names: list[str] = []
        self._digests: list[str] = []
        self._rows: dict[str, int] = {}
        self._matrix: Any = None
        self._centering: _Centering | None = None

    def refresh(self) -> None:
        """Read the vectors that changed; the first time, all of them."""
        newest = self._engine.wait(self._space, 0, seconds=0)
        if self._last_seq is None:
            self._load(newest)
        if newest == self._last_seq:
            return
        changed: dict[str, None] = {}
        after = str(self._last_seq)
        for record in each_record(self._engine, self._space, self._query, after=after, limit=_PAGE):
            if record.event.kind == _FORGOTTEN or len(changed) > _MAX_CHANGES:
                self._load(newest)
                return
            scope = parse_scope(record.event.scope)
            if self._namespace is None or scope.namespace == self._namespace:
                changed[ref_prefix(scope.namespace) + scope.id] = None
        self._last_seq = newest
        if changed:
            self._reload(list(changed))

    def compare(self, query: bytes, limit: int, include: Iterable[str]) -> Similarities:
        """Return cosines with a query vector."""
        np = self._np
        count = len(self._names)
        if not count:
            return Similarities({}, {}, 0)
        vector = np.frombuffer(query, dtype="<f2").astype(np.float32)
        self._check_dimensions(len(vector))
        centering = self._centering
        if centering is None or count > centering.rows * _GROWTH or count * _GROWTH < centering.rows:
            centering = self._centering = _Centering.compute(np, self._matrix[:count])
        cosines = centering.cosines(np, self._matrix[:count], vector)
        best: Sequence[int] = (
            np.argpartition(-cosines, limit)[:limit].tolist() if limit < count else range(count)
        )
        chosen = dict.fromkeys([*best, *(self._rows[name] for name in include if name in self._rows)])
        return Similarities(
            {self._names[row]: float(cosines[row]) for row in chosen},
            {self._names[row]: self._digests[row] for row in chosen},
            count,
        )

    def _load(self, newest: int) -> None:
        self._names, self._digests, self._rows, self._matrix, self._centering = [], [], {}, None, None
        self._last_seq = newest
        prefix = _embedder_prefix(self._embedder)
        if self._namespace is not None:
            prefix += namespace_prefix(self._namespace)
        for page in ref_pages(self._engine, self._space, prefix, limit=_PAGE):
            self._put(page)

    def _reload(self, documents: list[str]) -> None:
        for start in range(0, len(documents), _PAGE):
            page = documents[start : start + _PAGE]
            refs = self._engine.refs(self._space, [vector_ref(self._embedder, name) for name in page])
            for name in page:
                if vector_ref(self._embedder, name) not in refs:
                    self._remove(name)
            self._put(refs.values())

    def _put(self, refs: Iterable[Ref]) -> None:
        np = self._np
        vectors = [(self._document_ref(ref), decode_vector(ref.value)) for ref in refs]
        if not vectors:
            return
        block = np.frombuffer(b"".join(self._of_equal_size(vectors)), dtype="<f2").astype(np.float32)
        block = block.reshape(len(vectors), -1)
        self._reserve(sum(name not in self._rows for name, _ in vectors), block.shape[1])
        for (name, vector), numbers in zip(vectors, block, strict=True):
            row = self._rows.get(name)
            if row is None:
                row = self._rows[name] = len(self._names)
                self._names.append(name)
                self._digests.append(vector.digest)
            self._digests[row] = vector.digest
            self._matrix[row] = numbers
            if self._centering is not None:
                self._centering.set_row(np, row, numbers)

    def _of_equal_size(self, vectors: Sequence[tuple[str, Vector]]) -> Iterator[bytes]:
        expected = vectors[0][1].dimensions if self._matrix is None else self._matrix.shape[1]
        for name, vector in vectors:
            if vector.dimensions != expected:
                raise InvalidInput(
                    f"the vector of {name!r} has {vector.dimensions} dimensions, others of embedder "
                    f"{self._embedder!r} have {expected}; rename an embedder when its model changes"
                )
            yield vector.numbers

    def _reserve(self, more: int, dimensions: int) -> None:
        np = self._np
        needed = len(self._names) + more
        if self._matrix is None:
            self._matrix = np.empty((max(needed, 64), dimensions), dtype=np.float32)
        elif needed > len(self._matrix):
            larger = np.empty((max(needed, len(self._matrix) * 2), dimensions), dtype=np.float32)
            larger[: len(self._names)] = self._matrix[: len(self._names)]
            self._matrix = larger

    def _remove(self, name: str) -> None:
        """Remove a row by moving the last one into its place."""
        row = self._rows.pop(name, None)
        if row is None:
            return
        last_name, last_digest = self._names.pop(), self._digests.pop()
        if last_name != name:
            self._names[row], self._digests[row], self._rows[last_name] = last_name, last_digest, row
            self._matrix[row] = self._matrix[len(self._names)]
            if self._centering is not None:
                self._centering.set_row(self._np, row, self._matrix[row])

    def _document_ref(self, ref: Ref) -> str:
        return REF_ROOT + ref.name[len(_embedder_prefix(self._embedder)) :]

    def _check_dimensions(self, dimensions: int) -> None:
        stored = self._matrix.shape[1]
        if dimensions != stored:
            raise InvalidInput(
                f"embedder {self._embedder!r} returns {dimensions} dimensions, its stored vectors have "
                f"{stored}; rename an embedder when its model changes"
            )


class _Centering:
    """What the vectors of a table share (mean, principal directions), and their lengths without it."""

    def __init__(self, rows: int, mean: Any, directions: Any, lengths: Any) -> None:
        self.rows = rows
        self._mean = mean
        self._directions = directions
        self._lengths = lengths

    @classmethod
    def compute(cls, np: Any, matrix: Any) -> _Centering:
        """Compute mean and principal directions of the rows."""
        rows, dimensions = matrix.shape
        if rows < _MIN_ROWS_FOR_DIRECTIONS:
            mean = np.zeros(dimensions, dtype=np.float32)
            directions = np.zeros((0, dimensions), dtype=np.float32)
        else:
            mean = matrix.mean(axis=0)
            covariance = np.zeros((dimensions, dimensions), dtype=np.float32)
            for start in range(0, rows, _PAGE):
                block = matrix[start : start + _PAGE] - mean
                covariance += block.T @ block
            count = round(dimensions / _DIMENSIONS_PER_DIRECTION)
            directions = np.linalg.eigh(covariance)[1][:, dimensions - count :].T.copy()
        centering = cls(rows, mean, directions, np.empty(0, dtype=np.float32))
        centering._lengths = centering._lengths_of(np, matrix)
        return centering

    def set_row(self, np: Any, row: int, numbers: Any) -> None:
        """Update the length of a row that changed or was appended."""
        length = self._lengths_of(np, numbers[None, :])
        if row < len(self._lengths):
            self._lengths[row] = length[0]
        else:
            self._lengths = np.concatenate([self._lengths, length])

    def cosines(self, np: Any, matrix: Any, query: Any) -> Any:
        """Return the cosine of each row with the query, both centred."""
        centred = self._centre(query[None, :])[0]
        length = float(np.linalg.norm(centred))
        if not length:
            return np.zeros(len(matrix), dtype=np.float32)
        # einsum instead of BLAS, whose threads take a hundred times as long for this on a busy machine.
        products = np.einsum("ij,j->i", matrix, centred) - self._mean @ centred
        return products / (self._lengths[: len(matrix)] * length)

    def _centre(self, vectors: Any) -> Any:
        rest = vectors - self._mean
        return rest - (rest @ self._directions.T) @ self._directions

    def _lengths_of(self, np: Any, matrix: Any) -> Any:
        blocks = [
            np.linalg.norm(self._centre(matrix[start : start + _PAGE]), axis=1)
            for start in range(0, len(matrix), _PAGE)
        ]
        lengths = np.concatenate(blocks).astype(np.float32)
        return np.where(lengths > 0, lengths, np.float32(np.inf))


def import_numpy() -> Any:
    """Return numpy, or raise `MissingExtra`."""
    try:
        import numpy as np
    except ModuleNotFoundError as error:
        raise MissingExtra("search with an embedder", "embeddings") from error
    return np


_WEIGHTS: Final = Path("weights", "l2_supercat_256.safetensors")
_TOKENIZER: Final = Path("tokenizers", "l2_supercat_tokenizer_config.json")
_BATCH: Final = 256


class StaticEmbedder:
    """Vectors of 256 dimensions, offline: ``memory.with_embedder(StaticEmbedder())``. Create one per process.

    Needs the extra ``embeddings``; the weights (33 MB) are read in 0.1 s when the first text is embedded.
    """

    name = "wordllama/l2-supercat-256"

    def __init__(self) -> None:
        self._lock = Lock()
        self._folder = _package_folder()

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a vector for each text; zeros for a text without words."""
        import numpy as np

        tokenizer, weights = self._model
        vectors: Any = np.zeros((len(texts), weights.shape[1]), dtype=np.float32)
        for start in range(0, len(texts), _BATCH):
            batch = list(texts[start : start + _BATCH])
            encoded = tokenizer.encode_batch(batch, add_special_tokens=False)
            for row, each in enumerate(encoded, start):
                if each.ids:
                    vectors[row] = weights[each.ids].mean(axis=0)
        return vectors.tolist()

    @cached_property
    def _model(self) -> tuple[Any, Any]:
        with self._lock:
            import numpy as np
            from tokenizers import Tokenizer

            tokenizer: Any = Tokenizer.from_file(str(self._folder / _TOKENIZER))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            load_file: Any = import_module("safetensors.numpy").load_file
            weights: Any = load_file(self._folder / _WEIGHTS)["embedding.weight"].astype(np.float32)
            return tokenizer, weights


def _package_folder() -> Path:
    """Return the folder of the installed package, located without importing it."""
    missing = [
        name for name in ("numpy", "safetensors", "tokenizers", "wordllama") if find_spec(name) is None
    ]
    spec = None if missing else find_spec("wordllama")
    if spec is None or spec.origin is None or not (Path(spec.origin).parent / _WEIGHTS).exists():
        raise MissingExtra("StaticEmbedder", "embeddings")
    return Path(spec.origin).parent

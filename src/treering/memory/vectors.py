"""Vectors in the store, and the table that a question is compared with.

A vector is the value of a ref of its own, in the scope of its document: it moves in the commit that changes
the text and is forgotten with it. To compare, the vectors of a namespace are read once by one range scan and
kept in memory; from then on the journal says which documents changed, and only those are read again. Before
they are compared, what all vectors of a namespace have in common is taken off (their mean and the strongest
directions, one for every hundred dimensions), which tells documents apart far better.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, runtime_checkable

import msgspec

from treering.core.ids import check_id, namespace_prefix, parse_scope
from treering.core.paging import each_record, ref_pages
from treering.core.query import EventQuery
from treering.errors import Corrupt, InvalidInput, MissingExtra
from treering.memory.documents import DELETED, EMBEDDED, SAVED, prefix_of

if TYPE_CHECKING:
    from treering.core.engine import Engine
    from treering.core.records import Ref


# -----------------------------------------------------------------------------------------------------------
# Embedders: whatever turns texts into vectors, so that search also finds what says it in other words.
#
# An embedder has a name and one method. A vector is brought to length 1 and kept as half-precision numbers
# behind the digest of the text that it stands for: 530 bytes for 256 dimensions. **Invariant:** a vector
# never counts for a text that it was not made from.


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


# -----------------------------------------------------------------------------------------------------------

VECTORS: Final = "vector/"

_PAGE: Final = 2000
_TABLES: Final = 64
"""How many namespaces are kept in memory; the one that was not asked for longest goes first."""
_CHANGED_AT_ONCE: Final = 5000
_ENOUGH_FOR_COMMON: Final = 100
"""Of fewer documents it cannot be told what they have in common by chance."""
_DIMENSIONS_A_DIRECTION: Final = 100
_GROWN: Final = 1.1
_LAST: Final = "\U0010ffff"
_FORGOTTEN: Final = "forget"


class Similar(msgspec.Struct, frozen=True):
    """How similar documents are to a question, by the names of their refs: the most similar, and those asked.

    ``digests`` say which text each vector stands for.
    """

    scores: dict[str, float]
    digests: dict[str, str]
    rows: int


class Vectors:
    """The tables of one store. It may be used from several threads."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[str, str, str | None], _Table] = OrderedDict()
        self._lock = Lock()

    def similar(
        self,
        engine: Engine,
        space: str,
        namespace: str | None,
        embedder: Embedder,
        text: str,
        *,
        most: int,
        also: Iterable[str],
    ) -> Similar:
        """The ``most`` similar documents, and how similar those in ``also`` are."""
        (question,) = embedded(embedder, [text])
        key = (space, embedder.name, namespace)
        with self._lock:
            table = self._tables.get(key)
            if table is None:
                table = self._tables[key] = _Table(engine, space, embedder.name, namespace)
            self._tables.move_to_end(key)
            while len(self._tables) > _TABLES:
                self._tables.popitem(last=False)
        with table.lock:
            table.catch_up()
            return table.compare(question, most, also)

    def drop(self) -> None:
        """Let go of everything in memory."""
        with self._lock:
            self._tables.clear()


def vector_ref(embedder: str, document_ref: str) -> str:
    """The name of the ref of a document's vector."""
    return f"{_of_embedder(embedder)}{document_ref.partition('/')[2]}"


def embedders_in(engine: Engine, space: str) -> Iterator[str]:
    """What begins the names of the vectors of each embedder that has any."""
    after: str | None = None
    while page := engine.scan_refs(space, VECTORS, after=after, limit=1):
        prefix = VECTORS + page[0].name[len(VECTORS) :].partition("/")[0] + "/"
        yield prefix
        after = prefix + _LAST


def _of_embedder(name: str) -> str:
    return VECTORS + namespace_prefix(name)


class _Table:
    """The vectors of a namespace (or of all) as rows of one matrix."""

    def __init__(self, engine: Engine, space: str, embedder: str, namespace: str | None) -> None:
        self.lock = Lock()
        self._np = _numpy()
        self._engine = engine
        self._space = space
        self._embedder = embedder
        self._namespace = namespace
        self._query = EventQuery(kinds=(SAVED, DELETED, EMBEDDED, _FORGOTTEN))
        self._seen: int | None = None
        self._names: list[str] = []
        self._digests: list[str] = []
        self._at: dict[str, int] = {}
        self._matrix: Any = None
        self._common: _Common | None = None

    def catch_up(self) -> None:
        """Read what is new; the first time, everything."""
        newest = self._engine.wait(self._space, 0, seconds=0)
        if self._seen is None:
            self._load(newest)
        if newest == self._seen:
            return
        changed: dict[str, None] = {}
        for record in each_record(self._engine, self._space, self._query, after=str(self._seen), limit=_PAGE):
            if record.event.kind == _FORGOTTEN or len(changed) > _CHANGED_AT_ONCE:
                self._load(newest)
                return
            scope = parse_scope(record.event.scope)
            if self._namespace is None or scope.namespace == self._namespace:
                changed[prefix_of(scope.namespace) + scope.id] = None
        self._seen = newest
        if changed:
            self._reread(list(changed))

    def compare(self, question: bytes, most: int, also: Iterable[str]) -> Similar:
        """Cosines with a question."""
        np = self._np
        count = len(self._names)
        if not count:
            return Similar({}, {}, 0)
        asked = np.frombuffer(question, dtype="<f2").astype(np.float32)
        self._check_dimensions(len(asked))
        if self._common is None or count > self._common.rows * _GROWN or count * _GROWN < self._common.rows:
            self._common = _Common.of(np, self._matrix[:count])
        cosines = self._common.cosines(np, self._matrix[:count], asked)
        best: Sequence[int] = (
            np.argpartition(-cosines, most)[:most].tolist() if most < count else range(count)
        )
        chosen = dict.fromkeys([*best, *(self._at[name] for name in also if name in self._at)])
        return Similar(
            {self._names[row]: float(cosines[row]) for row in chosen},
            {self._names[row]: self._digests[row] for row in chosen},
            count,
        )

    def _load(self, seen: int) -> None:
        self._names, self._digests, self._at, self._matrix, self._common = [], [], {}, None, None
        self._seen = seen
        prefix = _of_embedder(self._embedder)
        if self._namespace is not None:
            prefix += namespace_prefix(self._namespace)
        for page in ref_pages(self._engine, self._space, prefix, limit=_PAGE):
            self._put(page)

    def _reread(self, documents: list[str]) -> None:
        for start in range(0, len(documents), _PAGE):
            part = documents[start : start + _PAGE]
            found = self._engine.refs(self._space, [vector_ref(self._embedder, name) for name in part])
            for name in part:
                if vector_ref(self._embedder, name) not in found:
                    self._remove(name)
            self._put(found.values())

    def _put(self, refs: Iterable[Ref]) -> None:
        np = self._np
        read = [(self._document(ref), stored_vector(ref.value)) for ref in refs]
        if not read:
            return
        block = np.frombuffer(b"".join(self._of_one_size(read)), dtype="<f2").astype(np.float32)
        block = block.reshape(len(read), -1)
        self._reserve(sum(name not in self._at for name, _ in read), block.shape[1])
        for (name, vector), numbers in zip(read, block, strict=True):
            row = self._at.get(name)
            if row is None:
                row = self._at[name] = len(self._names)
                self._names.append(name)
                self._digests.append(vector.digest)
            self._digests[row] = vector.digest
            self._matrix[row] = numbers
            if self._common is not None:
                self._common.add(np, row, numbers)

    def _of_one_size(self, read: Sequence[tuple[str, Any]]) -> Iterator[bytes]:
        wanted = read[0][1].dimensions if self._matrix is None else self._matrix.shape[1]
        for name, vector in read:
            if vector.dimensions != wanted:
                raise InvalidInput(
                    f"the vector of {name!r} has {vector.dimensions} numbers and others of embedder "
                    f"{self._embedder!r} have {wanted}; give an embedder that changed another name"
                )
            yield vector.halves

    def _reserve(self, more: int, dimensions: int) -> None:
        np = self._np
        needed = len(self._names) + more
        if self._matrix is None:
            self._matrix = np.empty((max(needed, 64), dimensions), dtype=np.float32)
        elif needed > len(self._matrix):
            grown = np.empty((max(needed, len(self._matrix) * 2), dimensions), dtype=np.float32)
            grown[: len(self._names)] = self._matrix[: len(self._names)]
            self._matrix = grown

    def _remove(self, name: str) -> None:
        row = self._at.pop(name, None)
        if row is None:
            return
        last_name, last_digest = self._names.pop(), self._digests.pop()
        if last_name != name:
            self._names[row], self._digests[row], self._at[last_name] = last_name, last_digest, row
            self._matrix[row] = self._matrix[len(self._names)]
            if self._common is not None:
                self._common.add(self._np, row, self._matrix[row])

    def _document(self, ref: Ref) -> str:
        """The name of the document's ref."""
        return "memory/" + ref.name[len(_of_embedder(self._embedder)) :]

    def _check_dimensions(self, asked: int) -> None:
        kept = self._matrix.shape[1]
        if asked != kept:
            raise InvalidInput(
                f"embedder {self._embedder!r} gives {asked} numbers, its vectors in the store have {kept}; "
                "give an embedder that changed another name"
            )


class _Common:
    """What the vectors of a table have in common, and how long each is without it."""

    def __init__(self, rows: int, mean: Any, directions: Any, lengths: Any) -> None:
        self.rows = rows
        self._mean = mean
        self._directions = directions
        self._lengths = lengths

    @classmethod
    def of(cls, np: Any, matrix: Any) -> _Common:
        rows, dimensions = matrix.shape
        if rows < _ENOUGH_FOR_COMMON:
            mean = np.zeros(dimensions, dtype=np.float32)
            directions = np.zeros((0, dimensions), dtype=np.float32)
        else:
            mean = matrix.mean(axis=0)
            spread = np.zeros((dimensions, dimensions), dtype=np.float32)
            for start in range(0, rows, _PAGE):
                part = matrix[start : start + _PAGE] - mean
                spread += part.T @ part
            count = round(dimensions / _DIMENSIONS_A_DIRECTION)
            directions = np.linalg.eigh(spread)[1][:, dimensions - count :].T.copy()
        common = cls(rows, mean, directions, np.empty(0, dtype=np.float32))
        common._lengths = common._lengths_of(np, matrix)
        return common

    def add(self, np: Any, row: int, numbers: Any) -> None:
        """A row that changed, or came behind the last one."""
        length = self._lengths_of(np, numbers[None, :])
        if row < len(self._lengths):
            self._lengths[row] = length[0]
        else:
            self._lengths = np.concatenate([self._lengths, length])

    def cosines(self, np: Any, matrix: Any, asked: Any) -> Any:
        """How similar each row is: both sides without what is common."""
        own = self._own(asked[None, :])[0]
        length = float(np.linalg.norm(own))
        if not length:
            return np.zeros(len(matrix), dtype=np.float32)
        # einsum, not BLAS: its threads take a hundred times as long for this on a machine that is busy.
        return (np.einsum("ij,j->i", matrix, own) - self._mean @ own) / (
            self._lengths[: len(matrix)] * length
        )

    def _own(self, vectors: Any) -> Any:
        rest = vectors - self._mean
        return rest - (rest @ self._directions.T) @ self._directions

    def _lengths_of(self, np: Any, matrix: Any) -> Any:
        parts = [
            np.linalg.norm(self._own(matrix[start : start + _PAGE]), axis=1)
            for start in range(0, len(matrix), _PAGE)
        ]
        lengths = np.concatenate(parts).astype(np.float32)
        return np.where(lengths > 0, lengths, np.float32(np.inf))


def _numpy() -> Any:
    try:
        import numpy as np
    except ModuleNotFoundError as error:
        raise MissingExtra("search with an embedder", "embeddings") from error
    return np

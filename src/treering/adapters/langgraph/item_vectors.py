"""Vectors of a `TreeringStore`'s items: search by meaning, with the embedder of LangGraph's ``index``.

The vectors of an item are the value of a ref of their own, in the scope of the item, and are written in the
commit that writes the item. An item has one vector for each text that its fields lead to, as in LangGraph's
own stores, and is as similar as its most similar text. **Invariant:** a vector never counts for a value that
it was not made from: it carries a digest of the value's address.

A search reads the vectors below a prefix and compares them all.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from langgraph.store.base import PutOp, SearchOp, ensure_embeddings, get_text_at_path

from treering.core.ids import check_id
from treering.core.query import ref_pages
from treering.errors import Corrupt, InvalidInput
from treering.memory.vectors import FunctionEmbedder, embed_texts, import_numpy
from treering.sync_async import call

if TYPE_CHECKING:
    from langgraph.store.base import Op

    from treering.core.batch import Draft
    from treering.core.content import Address
    from treering.core.engine import Engine

_ROOT: Final = "langgraph-vectors/"
_LAYOUT: Final = 1
_HEADER: Final = struct.Struct("<B16sH")
_PAGE: Final = 500


class Embedded(NamedTuple):
    """Texts and queries of a batch, with their vectors."""

    texts: Mapping[str, bytes]
    queries: Mapping[str, bytes]


class _Vectors(NamedTuple):
    item: str
    digest: bytes
    vectors: int
    numbers: bytes
    """Half-precision numbers of all vectors, little-endian."""


NOTHING: Final = Embedded({}, {})


class ItemVectors:
    """The vectors of one embedder."""

    def __init__(self, engine: Engine, space: str, index: Mapping[str, Any], fields: Sequence[str]) -> None:
        embed: Any = index["embed"]
        self._engine = engine
        self._space = space
        self._fields = fields
        self._dimensions: int | None = index.get("dims")
        self._embeddings = ensure_embeddings(embed)
        is_async = inspect.iscoroutinefunction(embed) or inspect.iscoroutinefunction(
            getattr(embed, "__call__", None)  # noqa: B004 - of an object that is called
        )
        self._is_async = is_async
        self.name = check_id(_name_of(embed), "the name of the embedder")
        self.id = sha256(self.name.encode()).hexdigest()[:16]
        self._prefix = vectors_ref(self.id, "")

    def embed(self, ops: Sequence[Op]) -> Embedded:
        """Embed what a batch puts and searches for."""
        texts, queries = self._wanted(ops)
        if self._is_async:
            found = call(self._aembed, texts, queries)
            return cast("Embedded", found)
        return self._embedded(
            texts,
            self._embeddings.embed_documents(texts) if texts else [],
            queries,
            [self._embeddings.embed_query(each) for each in queries],
        )

    async def aembed(self, ops: Sequence[Op]) -> Embedded:
        """Async twin of `embed`; the embedder is awaited in the loop of the caller."""
        return await self._aembed(*self._wanted(ops))

    def texts_of(self, op: PutOp) -> list[str]:
        """Return the texts of an item that have a vector each."""
        fields = self._fields if op.index is None else op.index
        if op.value is None or fields is False:
            return []
        return [text for field in fields for text in get_text_at_path(op.value, field)]

    def put(self, draft: Draft, item: str, scope: str, value: Address, vectors: Sequence[bytes]) -> None:
        """Write the vectors of an item. ``item`` is its name below the root of all items."""
        data = _HEADER.pack(_LAYOUT, digest_of(value), len(vectors)) + b"".join(vectors)
        draft.set_ref(self._prefix + item, data, scope=scope)

    def compare(self, below: str, query: bytes) -> list[tuple[str, bytes, float]]:
        """Return the name, the value's digest and the similarity of each item below a prefix, best first."""
        np = import_numpy()
        wanted = np.frombuffer(query, dtype="<f2").astype(np.float32)
        found: list[tuple[str, bytes, float]] = []
        for refs in ref_pages(self._engine, self._space, self._prefix + below, limit=_PAGE):
            page = [_decode(ref.name[len(self._prefix) :], ref.value) for ref in refs]
            page = [each for each in page if len(each.numbers) == each.vectors * len(query)]
            names = [each.item for each in page for _ in range(each.vectors)]
            joined = b"".join(each.numbers for each in page)
            rows = np.frombuffer(joined, dtype="<f2").astype(np.float32).reshape(-1, len(wanted))
            best: dict[str, float] = {}
            # einsum instead of BLAS, whose threads take longer than this on a busy machine.
            for name, score in zip(names, np.einsum("ij,j->i", rows, wanted).tolist(), strict=True):
                best[name] = max(best.get(name, score), score)
            found += [(each.item, each.digest, best[each.item]) for each in page]
        return sorted(found, key=lambda each: (-each[2], each[0]))

    def digests(self, items: Sequence[str]) -> dict[str, bytes]:
        """Return the digest of the value that the vectors of an item were made from."""
        refs = self._engine.refs(self._space, [self._prefix + item for item in items])
        found = [_decode(name[len(self._prefix) :], ref.value) for name, ref in refs.items()]
        return {each.item: each.digest for each in found}

    def _wanted(self, ops: Sequence[Op]) -> tuple[list[str], list[str]]:
        texts = [text for op in ops if isinstance(op, PutOp) for text in self.texts_of(op)]
        queries = [op.query for op in ops if isinstance(op, SearchOp) and op.query]
        return list(dict.fromkeys(texts)), list(dict.fromkeys(queries))

    async def _aembed(self, texts: list[str], queries: list[str]) -> Embedded:
        return self._embedded(
            texts,
            await self._embeddings.aembed_documents(texts) if texts else [],
            queries,
            [await self._embeddings.aembed_query(each) for each in queries],
        )

    def _embedded(self, texts: list[str], documents: Any, queries: list[str], asked: Any) -> Embedded:
        return Embedded(
            dict(zip(texts, self._normalised(texts, documents), strict=True)),
            dict(zip(queries, self._normalised(queries, asked), strict=True)),
        )

    def _normalised(self, texts: list[str], vectors: Sequence[Sequence[float]]) -> list[bytes]:
        """Check vectors and normalise them to length 1."""
        for vector in vectors:
            if self._dimensions is not None and len(vector) != self._dimensions:
                raise InvalidInput(
                    f"{self.name} returned a vector of {len(vector)} dimensions, and index has "
                    f"dims={self._dimensions}; correct dims, or leave it out"
                )
        return embed_texts(FunctionEmbedder(self.name, lambda _: vectors, batch=max(len(texts), 1)), texts)


def vectors_ref(embedder: str, item: str) -> str:
    """Return the name of the ref with an item's vectors. ``item`` is its name below the root of all items."""
    return f"{_ROOT}{embedder}/{item}"


def digest_of(value: str) -> bytes:
    """Return what tells the value at an address from others."""
    return sha256(value.encode()).digest()[:16]


def _decode(item: str, data: bytes) -> _Vectors:
    if len(data) <= _HEADER.size or data[0] != _LAYOUT:
        raise Corrupt(f"the vectors of the item {item!r} are damaged; put it again")
    _, digest, count = _HEADER.unpack_from(data)
    return _Vectors(item, digest, count, data[_HEADER.size :])


def _name_of(embed: object) -> str:
    """Return a name for an embedder, under which its vectors are stored."""
    if isinstance(embed, str):
        return embed
    if callable(embed) and hasattr(embed, "__qualname__"):
        function = cast("Callable[..., Awaitable[Any]]", embed)
        return f"{function.__module__}.{function.__qualname__}"
    model = getattr(embed, "model", None) or getattr(embed, "model_name", None)
    name = f"{type(embed).__module__}.{type(embed).__qualname__}"
    return f"{name}/{model}" if isinstance(model, str) else name

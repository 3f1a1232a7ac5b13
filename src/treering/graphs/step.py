"""A step of a graph: an ordinary checkpoint whose metadata has what the framework needs to continue.

Ids are computed, not looked up. A UUID of version 6 or 7 contains its time; together with a hash of the graph
that the step belongs to it gives the id of the checkpoint, which says where in the journal the row is. Ids of
one graph sort as the framework's own do.

`metadata_of` lists the metadata of many steps: of each row it decodes only the metadata and the start of the
framework's fields. `delta_step` tells a retention policy what a step is rebuilt from (see `core.retention`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.encoding import is_tagged
from treering.core.ids import MAX_ID_CHARS, namespace_prefix, thread_scope
from treering.core.query import EventQuery
from treering.core.retention import DeltaStep
from treering.graphs.extension import GRAPH, RowStart
from treering.threads.checkpoint import FORKED_FROM, KIND, PREFIX, Revisions, read_checkpoint
from treering.threads.writer import head_ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.core.engine import Engine
    from treering.core.records import Record
    from treering.threads.checkpoint import CheckpointRecord


_HEADS: Final = "graph/"
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = tuple(high + low for high in _ALPHABET for low in _ALPHABET)
_UUID: Final = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_GREGORIAN_US: Final = 12_219_292_800_000_000
_LAST_MS: Final = (1 << 47) - 1


class GraphKey(msgspec.Struct, frozen=True, kw_only=True):
    """One graph of a thread: the root graph, or a subgraph by its path (LangGraph: ``checkpoint_ns``)."""

    thread: str
    namespace: str
    subgraph: str
    scope: str
    ref: str


def graph_key(thread: str, namespace: str, subgraph: str) -> GraphKey:
    """Return the key of a graph, with the scope of its rows and the ref of its head."""
    ref = head_ref(thread, namespace)
    if subgraph:
        ref = subgraph_refs(thread, namespace) + subgraph
        if len(ref) > MAX_ID_CHARS or not ref.isprintable():
            digest = blake2b(f"{thread}\0{subgraph}".encode("utf-8", "surrogatepass"), digest_size=32)
            ref = f"{_HEADS}{namespace_prefix(namespace)}~{digest.hexdigest()}"
    scope = thread_scope(thread, namespace)
    return GraphKey(thread=thread, namespace=namespace, subgraph=subgraph, scope=scope, ref=ref)


def subgraph_refs(thread: str, namespace: str) -> str:
    """Return the prefix of the refs of a thread's subgraphs; refs that would be too long are hashed."""
    return f"{_HEADS}{namespace_prefix(namespace)}{namespace_prefix(thread)}"


def step_id(key: GraphKey, graph_id: str) -> tuple[str, int] | None:
    """Return the id of a step's checkpoint and its time in microseconds; ``None`` if the id has no time."""
    return _made_id(key.namespace, key.thread, key.subgraph, graph_id)


@lru_cache(maxsize=4096)
def _made_id(namespace: str, thread: str, subgraph: str, graph_id: str) -> tuple[str, int] | None:
    ticks = _ticks(graph_id)
    if ticks is None:
        return None
    ms, rest = divmod(ticks, 10_000)
    digest = blake2b(_name(namespace, thread, subgraph, graph_id), digest_size=8).digest()
    # 130 bits in 13 pairs of characters: 48 of time and 16 of the rest are above the 64 of the digest.
    low = int.from_bytes(digest, "big")
    high = ms << 16 | rest
    return (
        f"{PREFIX}{_PAIRS[high >> 56]}{_PAIRS[high >> 46 & 1023]}{_PAIRS[high >> 36 & 1023]}"
        f"{_PAIRS[high >> 26 & 1023]}{_PAIRS[high >> 16 & 1023]}{_PAIRS[high >> 6 & 1023]}"
        f"{_PAIRS[(high << 4 & 1023) | low >> 60]}{_PAIRS[low >> 50 & 1023]}{_PAIRS[low >> 40 & 1023]}"
        f"{_PAIRS[low >> 30 & 1023]}{_PAIRS[low >> 20 & 1023]}{_PAIRS[low >> 10 & 1023]}{_PAIRS[low & 1023]}"
    ), ticks // 10


def copied_id(key: GraphKey, checkpoint_id: str) -> str:
    """Return the id for a copy of a checkpoint in another graph; it sorts like the original's."""
    digest = blake2b(_name(key.namespace, key.thread, key.subgraph, checkpoint_id), digest_size=5).digest()
    number = int.from_bytes(digest, "big")
    return checkpoint_id[:-8] + "".join([_PAIRS[number >> shift & 1023] for shift in range(30, -1, -10)])


def writes_key(key: GraphKey, graph_id: str) -> str:
    """Return the key by which the writes on a step are found (an indexed column of the journal)."""
    name = _name(key.namespace, key.thread, key.subgraph, graph_id)
    return "writes:" + blake2b(name, digest_size=12).hexdigest()


def _name(*parts: str) -> bytes:
    return "\0".join(parts).encode("utf-8", "surrogatepass")


def _ticks(graph_id: str) -> int | None:
    """The time of a UUID of version 6 or 7, in tenths of a microsecond since 1970."""
    if _UUID.fullmatch(graph_id) is None:
        return None
    time, version = int(graph_id[:8] + graph_id[9:13] + graph_id[15:18], 16), graph_id[14]
    if version == "6":
        ticks = time - _GREGORIAN_US * 10
    elif version == "7":
        ticks = (time >> 12) * 10_000 + (time & 0xFFF)
    else:
        return None
    return ticks if 0 <= ticks // 10_000 <= _LAST_MS else None


HIDDEN: Final = "hidden"
"""The key of framework metadata whose names treering uses itself."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that a graph saved, and its sequence number."""

    checkpoint: CheckpointRecord
    seq: int

    @property
    def graph(self) -> dict[str, Any]:
        """The framework's own fields."""
        return self.checkpoint.metadata[GRAPH]

    @property
    def graph_id(self) -> str:
        """The framework's id of the step."""
        return self.graph["id"]

    @property
    def subgraph(self) -> str:
        """The path of the subgraph; empty for the root graph."""
        return self.graph.get("ns", "")

    @property
    def metadata(self) -> dict[str, Any]:
        """The framework's metadata."""
        metadata = {
            name: value
            for name, value in self.checkpoint.metadata.items()
            if name not in (GRAPH, FORKED_FROM)
        }
        return metadata | self.graph.get(HIDDEN, {})


class GraphHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a graph. ``is_moved``: someone rewound or forked to it, so its step may have children."""

    step: Step
    version: int
    first_us: int
    is_moved: bool


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What one task wrote in one call, from its row."""

    seq: int
    batch: str
    data: dict[str, Any]


def key_of(step: Step, subgraph: str | None = None) -> GraphKey:
    """Return the key of the graph that saved a step, or of a subgraph of the same thread."""
    checkpoint = step.checkpoint
    return graph_key(checkpoint.thread, checkpoint.namespace, step.subgraph if subgraph is None else subgraph)


_PAGE: Final = 2000


class _Metadata(msgspec.Struct, gc=False):
    """The part of a checkpoint's row that is decoded for its metadata."""

    metadata: dict[str, Any] = {}
    graph: RowStart | None = None


_NOTHING: Final[dict[str, Any]] = {}
_metadata: Final = msgspec.json.Decoder(_Metadata).decode


def metadata_of(
    engine: Engine, space: str, key: GraphKey, unpacked: Callable[[Any], Any]
) -> list[tuple[str, dict[str, Any]]]:
    """Return the id and the metadata of all steps of a graph in its own thread, newest first.

    ``unpacked`` is applied to metadata that may contain packed values.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    query, after = EventQuery(kinds=(KIND,), scope=key.scope, newest_first=True, brief=True), None
    revised = Revisions(engine, space).of(key.scope)
    while True:
        page = engine.scan(space, query, after=after, limit=_PAGE)
        for first in page.records:
            record = revised.get(first.event.id, first)
            data = record.event.data
            if data is None or is_tagged(data):
                metadata = read_checkpoint(engine, space, record).metadata
                named, is_plain = None, False
            else:
                row = _metadata(data)
                metadata, named, is_plain = row.metadata, row.graph, True
            rest: dict[str, Any]
            if named is not None:
                graph_id, rest = named.id, named.rest or _NOTHING
            elif GRAPH in metadata:
                rest = metadata.pop(GRAPH)
                graph_id = rest["id"]
            else:
                continue
            if rest.get("ns", "") == key.subgraph:
                metadata.pop(FORKED_FROM, None)
                if HIDDEN in rest:
                    metadata |= rest[HIDDEN]
                found.append((graph_id, metadata if is_plain else unpacked(metadata)))
        if page.cursor is None:
            found.sort(key=itemgetter(0), reverse=True)
            return found
        after = page.cursor


_NAMES: Final = (b'"graph"', b'"%s"' % GRAPH.encode())


def delta_step(engine: Engine, space: str, record: Record) -> DeltaStep | None:
    """Return what a retention policy needs to know about a checkpoint; ``None`` if no graph saved it."""
    event = record.event
    data = event.data or b""
    if event.data is None and event.body is not None:
        data = engine.get(space, [event.body])[0].data
    if not any(name in data for name in _NAMES):
        return None
    checkpoint = read_checkpoint(engine, space, record)
    graph: Any = checkpoint.metadata.get(GRAPH)
    if type(graph) is not dict or "versions" not in graph:
        return None
    known = cast("dict[str, Any]", graph)
    whole = {*checkpoint.lists} - {*known.get("shadows", ())}
    held = frozenset({*whole, *checkpoint.state, *known.get("values", ())})
    counted: Any = checkpoint.metadata.get("counters_since_delta_snapshot") or ()
    return DeltaStep(
        parent=checkpoint.parent,
        copy_of=checkpoint.metadata.get(FORKED_FROM),
        open=frozenset(name for name in counted if name in known["versions"] and name not in held),
        held=held,
    )

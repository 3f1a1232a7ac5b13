"""What the row of a LangGraph checkpoint says beside what every checkpoint says: ids, versions, metadata.

It lies in the metadata of the checkpoint under `GRAPH`; views that show metadata leave it out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from treering.adapters.names import thread_name
from treering.core.encoding import encode_json
from treering.errors import Unencodable
from treering.graphs.rows import shortened
from treering.graphs.step import GRAPH, HIDDEN
from treering.threads.checkpoint_record import FORKED_FROM, EncodedMetadata, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from treering.adapters.langgraph.values import Values
    from treering.graphs.graph import Step
    from treering.graphs.step import Place
    from treering.threads.checkpoint_record import CheckpointRecord

DELTA: Final = "delta"
INLINE: Final = "values"
MESSAGE_LISTS: Final = "messages"
"""Where a step says which of its lists hold messages."""
HOLED: Final = "holed"
"""Where a step says which of its values have lists of the same step inside."""
APART_LISTS: Final = "apart"
"""Where a step says which of its lists were branched off."""

_LONGEST: Final = 160
"""Thread ids up to this long stand for themselves, also where each of their characters has to be escaped."""
_SMALL: Final = 256
_SIMPLE: Final = frozenset({str, int, bool, type(None)})
_STRICT: Final = orjson.OPT_PASSTHROUGH_SUBCLASS


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint as LangGraph hands it over."""

    thread: str
    """The thread id as LangGraph knows it; ``place`` may have another one for it."""
    parent: str | None
    checkpoint: Mapping[str, Any]
    metadata: dict[str, Any]
    new_versions: Mapping[str, Any]


@lru_cache(maxsize=4096)
def thread_id_of(thread: str) -> str:
    """The id that a thread of LangGraph has in the store: its own, where that can be one."""
    return thread_name(thread, "thread_id", limit=_LONGEST)


def thread_of(step: Step) -> str:
    """The id under which LangGraph knows the thread of a step (a fork has its own)."""
    given: str | None = step.graph.get("thread")
    own = step.checkpoint.thread
    return given if given is not None and thread_id_of(given) == own else own


def is_same(one: CheckpointRecord, other: CheckpointRecord) -> bool:
    """Whether two checkpoints say the same, wherever their content lies."""
    return _told(one) == _told(other) and _digests(one) == _digests(other)


def _told(checkpoint: CheckpointRecord) -> object:
    graph = {name: value for name, value in checkpoint.metadata[GRAPH].items() if name != APART_LISTS}
    return {**checkpoint.metadata, GRAPH: graph}


def _digests(checkpoint: CheckpointRecord) -> object:
    lengths = {name: stretch.length for name, stretch in checkpoint.lists.items()}
    values = {
        name: value.digest if isinstance(value, Value) else {key: each.digest for key, each in value.items()}
        for name, value in checkpoint.state.items()
    }
    return lengths, values


def graph_of(place: Place, request: Request, values: Values) -> dict[str, Any]:
    """LangGraph's own fields of a checkpoint."""
    checkpoint = request.checkpoint
    graph: dict[str, Any] = {
        "id": checkpoint["id"],
        "v": checkpoint["v"],
        "ts": checkpoint["ts"],
        "versions": dict(checkpoint["channel_versions"]),
        "seen": {node: dict(versions) for node, versions in checkpoint["versions_seen"].items()},
    }
    if place.within:
        graph["ns"] = place.within
    if request.thread != place.thread:
        graph["thread"] = request.thread
    if request.parent is not None:
        graph["parent"] = request.parent
    updated = checkpoint.get("updated_channels")
    if updated is not None:
        graph["updated"] = list(updated)
    hidden = {name: request.metadata[name] for name in (GRAPH, FORKED_FROM) if name in request.metadata}
    if hidden:
        graph[HIDDEN] = _plain_values(values, hidden)
    sends = checkpoint.get("pending_sends")
    if sends:
        graph["sends"] = values.plain(sends)
    return graph


def is_unchanged(before: Step, channel: str, request: Request) -> bool:
    """Whether a channel has the version that it had in the parent."""
    if channel in request.new_versions:
        return False
    versions = request.checkpoint["channel_versions"]
    return channel in versions and before.graph["versions"].get(channel) == versions[channel]


def is_small(value: Any) -> bool:
    """Whether a value is small enough to lie in the row."""
    return (
        value is None
        or value == []
        or type(value) in (bool, int)
        or (type(value) is str and len(value) <= _SMALL)
    )


def plain_metadata(values: Values, metadata: dict[str, Any]) -> dict[str, Any]:
    """LangGraph's metadata in a form that can be stored, but for what has names of ours."""
    plain = {name: value for name, value in metadata.items() if name not in (GRAPH, FORKED_FROM)}
    counters = plain.get("counters_since_delta_snapshot")
    if counters:
        plain["counters_since_delta_snapshot"] = {name: list(each) for name, each in counters.items()}
    return _plain_values(values, plain)


def json_of(metadata: dict[str, Any], graph: dict[str, Any]) -> EncodedMetadata | None:
    """The metadata of an ordinary step and LangGraph's own fields as JSON, each by itself.

    ``None`` if something in them has to be looked at closer. Of LangGraph's own fields only the versions are
    not known to be plain.
    """
    if (
        HIDDEN in graph
        or "sends" in graph
        or not _are_simple(metadata)
        or not _SIMPLE.issuperset(map(type, graph["versions"].values()))
    ):
        return None
    for each in graph["seen"].values():
        if not _SIMPLE.issuperset(map(type, each.values())):
            return None
    try:
        return EncodedMetadata(
            orjson.dumps(metadata, option=_STRICT), orjson.dumps(shortened(graph), option=_STRICT)
        )
    except TypeError:  # a number that is too large, a name that is no text
        return None


def _are_simple(plain: dict[str, Any]) -> bool:
    if _SIMPLE.issuperset(map(type, plain.values())):
        return True
    for value in plain.values():  # noqa: SIM110 - three times as fast as a generator
        if type(value) not in _SIMPLE and value != {}:
            return False
    return True


def _plain_values(values: Values, plain: dict[str, Any]) -> dict[str, Any]:
    if _are_simple(plain):
        return plain
    try:
        encode_json(plain)
    except Unencodable:
        return {name: values.plain(value) for name, value in plain.items()}
    return plain


def note_of(metadata: Mapping[str, Any]) -> str | None:
    """Why a checkpoint was made, if not by a step of the graph."""
    source = metadata.get("source")
    return source if source in ("input", "update", "fork") else None

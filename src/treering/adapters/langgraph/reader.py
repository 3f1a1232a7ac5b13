"""Reading the steps of LangGraph graphs: the newest, one by id, many, or what a delta channel was made of.

Nothing is read that is not asked for: a listing reads each message once, however many checkpoints contain it,
and metadata filters are applied before any content is read. **Invariant:** content that is not where its
checkpoint says raises `Corrupt`; a state is never returned with less in it than was saved.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory

from treering.adapters.langgraph.channels import (
    DELTA,
    INLINE,
    MATERIALISED,
    MORE,
    NO_UPDATED,
    EmbeddedLists,
    StoredList,
    fill_lists,
    has_whole,
    read_list,
)
from treering.adapters.langgraph.task_writes import decode_writes
from treering.adapters.langgraph.values import DeltaSnapshot
from treering.adapters.shared import thread_name
from treering.errors import Corrupt
from treering.graphs.graph import Graphs
from treering.graphs.step import GraphHead, GraphKey, Step, Written, key_of, metadata_of, step_id, writes_key
from treering.threads.checkpoint import read_state
from treering.threads.hooks import COMPACTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from langgraph.checkpoint.base import PendingWrite

    from treering.adapters.langgraph.values import ValueCodec
    from treering.store import Store

_LONGEST: Final = 160
"""Thread ids up to this length are used as they are, even if every character of them has to be escaped."""


@lru_cache(maxsize=4096)
def thread_id_of(thread: str) -> str:
    """Return the id that a LangGraph thread has in the store: its own, if that is a valid id."""
    return thread_name(thread, "thread_id", limit=_LONGEST)


def thread_of(step: Step) -> str:
    """Return the id by which LangGraph knows the thread of a step (a fork has an id of its own)."""
    given: str | None = step.graph.get("thread")
    own = step.checkpoint.thread
    return given if given is not None and thread_id_of(given) == own else own


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that was read, and what the next one needs to be written against it."""

    tuple: CheckpointTuple
    step: Step
    lists: dict[str, StoredList]
    head: GraphHead | None


class _Ancestor(msgspec.Struct, frozen=True):
    """A step of the past. What tasks wrote on it after commit ``behind`` went into ``child``."""

    step: Step
    behind: int
    child: Step


class Reader:
    """Reads the checkpoints of one namespace of a store."""

    def __init__(self, store: Store, graphs: Graphs) -> None:
        self._engine = store.engine
        self._space = store.space
        self._graphs = graphs

    def newest(self, codec: ValueCodec, key: GraphKey, thread: str) -> Loaded | None:
        """Return the step that the graph continues from: the one at the head."""
        head = self._graphs.head(key)
        step = self._graphs.inherited(key) if head is None else head.step
        return None if step is None else self._load(codec, key, thread, step, head)

    def one(self, codec: ValueCodec, key: GraphKey, thread: str, graph_id: str) -> Loaded | None:
        """Return a checkpoint by LangGraph's id."""
        step = self._graphs.find(key, graph_id)
        return None if step is None else self._load(codec, key, thread, step, None)

    def many(
        self,
        codec: ValueCodec,
        thread: str | None,
        key: GraphKey | None,
        *,
        subgraph: str | None,
        only: str | None,
        metadata: Mapping[str, Any] | None,
        before: str | None,
        limit: int | None,
    ) -> Iterator[CheckpointTuple]:
        """Yield the checkpoints that match, newest first; without ``key``, those of all threads."""
        until = step_id(key or self._graphs.key("any", ""), before) if before is not None else None
        until_us = until[1] + 1000 if until is not None else None
        if key is None:
            steps = self._graphs.all_steps(until_us=until_us)
        else:
            steps = self._graphs.steps(key, subgraph=subgraph, until_us=until_us)
        read: dict[str, StoredList] = {}
        count = 0
        for step in steps:
            if limit is not None and count >= limit:
                return
            if (only is not None and step.graph_id != only) or (
                before is not None and step.graph_id >= before
            ):
                continue
            if metadata and not _has_metadata(codec, step, metadata):
                continue
            count += 1
            own = self._graphs.key(step.checkpoint.thread, step.subgraph)
            yield self._tuple(
                codec,
                own,
                thread_of(step) if thread is None else thread,
                step,
                self._lists(codec, step, read),
                self._graphs.written(own, step),
            )

    def metadata(self, codec: ValueCodec, key: GraphKey) -> list[tuple[str, dict[str, Any]]]:
        """Return the id and the metadata of every checkpoint of one graph, newest first."""
        return metadata_of(self._engine, self._space, key, codec.unpack)

    def delta_history(
        self, codec: ValueCodec, key: GraphKey, graph_id: str | None, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """Return, by channel, the last value that was stored whole and all writes since, oldest first."""
        if graph_id is None:
            head = self._graphs.head(key)
            step = head.step if head is not None else self._graphs.inherited(key)
        else:
            step = self._graphs.find(key, graph_id)
        writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        remaining = set(channels)
        chain: list[_Ancestor] = []
        if step is not None:
            child = step
            for ancestor, behind in self._ancestors(key_of(step), step):
                chain.append(_Ancestor(ancestor, behind, child))
                child = ancestor
                remaining -= {channel for channel in remaining if has_whole(ancestor, channel)}
                if not remaining:
                    break
        if chain:
            self._replay(codec, chain, set(channels), writes, seeds)
        return {
            channel: cast(
                "DeltaChannelHistory",
                {"writes": writes[channel], **({"seed": seeds[channel]} if channel in seeds else {})},
            )
            for channel in channels
        }

    def _ancestors(self, key: GraphKey, step: Step) -> Iterator[tuple[Step, int]]:
        """The ancestors of a step. A lost one is an error if channels are open, and else the end."""
        has_open_channels = bool(step.metadata.get("counters_since_delta_snapshot"))
        try:
            yield from self._graphs.line(key, step)
        except Corrupt:
            if has_open_channels:
                raise

    def _replay(
        self,
        codec: ValueCodec,
        chain: list[_Ancestor],
        remaining: set[str],
        writes: dict[str, list[PendingWrite]],
        seeds: dict[str, Any],
    ) -> None:
        oldest = min(each.step.checkpoint.created_at_us for each in chain)
        keys = {key.scope: key for each in chain for key in map(key_of, (each.step, each.child))}
        written: dict[str, list[Written]] = {}
        for key in keys.values():
            written |= self._graphs.written_since(key, oldest)
        for each in chain:
            ancestor = each.step
            rows = self._written_for_child(each, written)
            for write in reversed(decode_writes(self._engine, self._space, codec, rows)):
                if write[1] in remaining:
                    writes[write[1]].append(write)
            here = {channel for channel in remaining if has_whole(ancestor, channel)}
            if here:
                loaded = self._values(codec, ancestor, self._lists(codec, ancestor, {}))
                for channel in here:
                    seeds[channel] = loaded[channel]
                remaining -= here
        for each in writes.values():
            each.reverse()

    def _written_for_child(self, past: _Ancestor, written: Mapping[str, list[Written]]) -> list[Written]:
        """What tasks wrote on a step for this child, in the thread of either."""
        own_key, child_key = key_of(past.step), key_of(past.child)
        in_child = written.get(writes_key(child_key, past.step.graph_id), ())
        if own_key == child_key:
            rows = [each for each in in_child if past.behind < each.seq < past.child.seq]
            return [*self._graphs.written_in_origin(past.step), *rows]
        until = self._graphs.forked_at(child_key) or 0
        in_origin = written.get(writes_key(own_key, past.step.graph_id), ())
        return [
            *(each for each in in_origin if past.behind < each.seq < until),
            *(each for each in in_child if each.seq < past.child.seq),
        ]

    def _load(
        self, codec: ValueCodec, key: GraphKey, thread: str, step: Step, head: GraphHead | None
    ) -> Loaded:
        lists = self._lists(codec, step, {})
        is_moved = head is not None and head.is_moved
        written = self._graphs.written(key, step, is_moved=is_moved)
        return Loaded(
            tuple=self._tuple(codec, key, thread, step, lists, written), step=step, lists=lists, head=head
        )

    def _lists(self, codec: ValueCodec, step: Step, read: dict[str, StoredList]) -> dict[str, StoredList]:
        """The lists of a step; ``read`` has those that were read before, which may be longer."""
        lists: dict[str, StoredList] = {}
        for name, prefix in step.checkpoint.lists.items():
            if name == COMPACTIONS or name in step.graph.get(MATERIALISED, ()):
                continue  # these are of treering's own views
            stored = read.get(prefix.list)
            if stored is None or len(stored.items) < prefix.length:
                stored = read[prefix.list] = read_list(self._engine, self._space, codec, step, name)
            lists[name] = stored
        return lists

    def _values(self, codec: ValueCodec, step: Step, lists: Mapping[str, StoredList]) -> dict[str, Any]:
        prefixes = step.checkpoint.lists
        values: dict[str, Any] = {
            name: _filled(codec, step, value, lists) if type(value) is EmbeddedLists else codec.unpack(value)
            for name, value in read_state(self._engine, self._space, step.checkpoint.state).items()
        }
        values |= {name: stored.items[: prefixes[name].length] for name, stored in lists.items()}
        values |= step.graph.get(INLINE, {})
        for name in step.graph.get(DELTA, ()):
            values[name] = DeltaSnapshot(values[name])
        return values

    def _tuple(
        self,
        codec: ValueCodec,
        key: GraphKey,
        thread: str,
        step: Step,
        lists: Mapping[str, StoredList],
        written: Sequence[Written],
    ) -> CheckpointTuple:
        graph = step.graph
        checkpoint: Any = {
            "v": graph["v"],
            "id": graph["id"],
            "ts": graph["ts"],
            "channel_values": self._values(codec, step, lists),
            "channel_versions": dict(graph["versions"]),
            "versions_seen": {node: dict(versions) for node, versions in graph["seen"].items()},
            "updated_channels": list(graph["updated"]) if "updated" in graph else None,
        }
        if NO_UPDATED in graph:
            del checkpoint["updated_channels"]
        if MORE in graph:
            checkpoint |= codec.unpack(graph[MORE])
        parent = graph.get("parent")
        return CheckpointTuple(
            config=_config(thread, key.subgraph, graph["id"]),
            checkpoint=checkpoint,
            metadata=cast("Any", {name: codec.unpack(each) for name, each in step.metadata.items()}),
            parent_config=_config(thread, key.subgraph, parent) if parent is not None else None,
            pending_writes=decode_writes(self._engine, self._space, codec, written),
        )


def _filled(codec: ValueCodec, step: Step, value: EmbeddedLists, lists: Mapping[str, StoredList]) -> Any:
    try:
        parts = [[*lists[name].items[:count], *codec.unpack(rest)] for name, count, rest in value.lists]
    except KeyError as error:
        raise Corrupt(
            f"checkpoint {step.graph_id!r} has a value that refers to list {error}, which it does not have; "
            "run verify, then restore it from a backup"
        ) from error
    return fill_lists(codec, value, parts)


def _has_metadata(codec: ValueCodec, step: Step, wanted: Mapping[str, Any]) -> bool:
    metadata = step.metadata
    return all(
        name in metadata and codec.unpack(metadata[name]) == value
        if value is not None
        else codec.unpack(metadata.get(name)) is None
        for name, value in wanted.items()
    )


def _config(thread: str, subgraph: str, graph_id: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": subgraph, "checkpoint_id": graph_id}}

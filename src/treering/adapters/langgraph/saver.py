"""LangGraph's checkpointer on a treering store: `TreeringSaver`, sync and async in one object.

Every LangGraph checkpoint is a checkpoint of the treering thread with the same id, so log, diff, fork,
rewind, forget and copy work on it, and a graph continues from wherever the head of the thread was moved to.
LangGraph passes the whole state at every step; what is stored is what is new in it. It saves after every
superstep, so a tool that has run is never run again, and there is no ``checkpoint_after_tool_call`` to set.

The package, from the bottom up: `known_types` decides which classes are stored, `values` encodes values and
messages, `channels` compares a state with what is stored of it, `task_writes` is the row for what a task
wrote, `reader` loads checkpoints, `writer` saves them (its docstring tells the life of a step), `removal`
deletes, prunes and copies. `store` is LangGraph's long-term memory, and independent of the others.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from functools import wraps
from random import random
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, cast

from treering.errors import InvalidInput, MissingExtra, TreeringError

try:
    from langchain_core.callbacks import BaseCallbackManager
    from langchain_core.runnables.config import RunnableConfig, merge_configs, var_child_runnable_config
    from langgraph.checkpoint.base import (
        WRITES_IDX_MAP,
        BaseCheckpointSaver,
        ChannelVersions,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
        DeltaChannelHistory,
        get_checkpoint_id,
        get_checkpoint_metadata,
    )
    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.pregel import Pregel  # pyright: ignore[reportMissingTypeStubs]
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"langgraph", "langchain_core", "ormsgpack"}:
        raise MissingExtra("treering.adapters.langgraph", "langgraph") from error
    raise

from treering.adapters.langchain.tracing import TreeringTracer
from treering.adapters.langgraph.known_types import ClosedSerializer, KnownTypes, watch_graphs
from treering.adapters.langgraph.reader import Reader, thread_id_of
from treering.adapters.langgraph.removal import Removal
from treering.adapters.langgraph.store import TreeringStore
from treering.adapters.langgraph.values import ValueCodec
from treering.adapters.langgraph.writer import ARRIVAL_SECONDS, PutRequest, Writer
from treering.adapters.shared import Opened, StoreOrUrl, checked_namespace
from treering.core.clock import SystemClock
from treering.graphs.graph import Graphs
from treering.graphs.step import GraphKey
from treering.runs.span import current_node
from treering.sync_async import Closing, Done
from treering.threads.checkpoint import MESSAGES
from treering.threads.upcasting import VERSIONS, upgrade_of, versions_of, with_versions

if TYPE_CHECKING:
    from treering.bridge import Bridge
    from treering.store import Store

watch_graphs()

P = ParamSpec("P")


class TreeringSaver(BaseCheckpointSaver[int], Closing):
    """A LangGraph checkpointer: ``builder.compile(checkpointer=TreeringSaver(store))``.

    Takes an open store (sync or async), or a URL or folder, which it then opens; `close` (or leaving it as a
    context manager) closes only what it opened. ``namespace`` is the user or project that the threads belong
    to. Types of your own are stored if the graph names them (in its schemas, annotations or nodes), or
    ``allow`` does; others raise `Unencodable`. A ``serde`` of your own replaces all of that and is given
    every value.

    Each call of the graph is recorded as a run of its thread, with its spans, tokens and cost, and a call
    that waits for a person as an interrupted one; ``runs=False`` records none.

    `put` and `put_writes` are durable when they return. With ``writes="with_checkpoint"``, what a task wrote
    is held in memory and committed with the next checkpoint of the thread: one commit a step instead of two,
    and a task whose process dies before that runs again. An interrupt or an error, a read of the thread and
    `close` commit what is held.

    May be used from any number of threads and event loops.
    """

    def __init__(
        self,
        store: StoreOrUrl | None = None,
        *,
        namespace: str = "",
        allow: Collection[type | tuple[str, str]] = (),
        serde: SerializerProtocol | None = None,
        writes: Literal["durable", "with_checkpoint"] = "durable",
        runs: bool = True,
    ) -> None:
        types = KnownTypes(allow)
        types.saver = weakref.ref(self)
        super().__init__(serde=serde or ClosedSerializer(types))
        if writes not in ("durable", "with_checkpoint"):
            raise InvalidInput(f"writes={writes!r} is not supported; use 'durable' or 'with_checkpoint'")
        checked_namespace(namespace)
        self._opened = Opened(store)
        self._namespace = namespace
        self._records_runs = runs
        opened, clock = self._opened.store, SystemClock()
        self._graphs = Graphs(opened.engine, opened.space, namespace)
        self._reader = Reader(opened, self._graphs)
        self._writer = Writer(
            opened, self._graphs, self._reader, clock, hold_writes=writes == "with_checkpoint"
        )
        weakref.finalize(self, _flush, self._writer)
        self._removal = Removal(opened, self._graphs, clock)
        self._last_codec = ValueCodec(self.serde)
        self._upcasts = _Upcasts()

    @property
    def store(self) -> Store:
        """The store that everything is saved to."""
        return self._opened.store

    def setup(self) -> Awaitable[None]:
        """Do nothing: a store makes its tables when it is opened.

        For code that calls this on every saver, or awaits it, as on LangGraph's own.
        """
        return Done()

    def new_tracer(self) -> TreeringTracer | None:
        """Return what records one call of a graph as a run; ``None`` with ``runs=False``."""
        if not self._records_runs:
            return None
        return TreeringTracer(self.store, namespace=self._namespace, inputs=False)

    # Reading
    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that the config names, or the one at the head of its thread."""
        key, thread = self._flushed(config)
        graph_id = _checkpoint_id(config)
        if graph_id is None:
            loaded = self._reader.newest(self._codec, key, thread)
        else:
            loaded = self._reader.one(self._codec, key, thread, graph_id)
        if loaded is None:
            return None
        self._writer.remember(key, loaded)
        return self._upcasts.migrated(key, loaded.tuple)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first; ``filter`` is compared with their metadata, key by key."""
        key = thread = subgraph = only = None
        if config is None:
            self._writer.flush()
        else:
            key, thread = self._flushed(config)
            subgraph = cast("Any", config)["configurable"].get("checkpoint_ns")
            only = _checkpoint_id(config)
        return self._reader.many(
            self._codec,
            thread,
            key,
            subgraph=subgraph,
            only=only,
            metadata=filter,
            before=_checkpoint_id(before) if before is not None else None,
            limit=limit,
        )

    def metadata(self, config: RunnableConfig) -> list[tuple[str, dict[str, Any]]]:  # type: ignore[valid-type]
        """Return the id and the metadata of all checkpoints of a thread, newest first; reads no content."""
        key, _ = self._flushed(config)
        return self._reader.metadata(self._codec, key)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return, for each channel, the last value that was stored whole and all writes since, oldest first.

        A past that was removed raises `Corrupt`; it is never mistaken for an empty one.
        """
        if not channels:
            return {}
        key, _ = self._flushed(config)
        return self._reader.delta_history(self._codec, key, _checkpoint_id(config), channels)

    # Writing
    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint as a child of the one that the config names; durable when this returns."""
        key, thread = self._key(config)
        parent = _checkpoint_id(config)
        changed, versions = self._upcasts.recorded(key, parent, checkpoint)
        request = PutRequest(
            thread=thread,
            parent=parent,
            checkpoint=cast("Mapping[str, Any]", checkpoint),
            metadata={**get_checkpoint_metadata(config, metadata), **versions},
            new_versions={**changed, **new_versions},
        )
        wait(self._writer.announced(key, request.parent))
        with run_of(config):
            self._writer.put(self._codec, key, request)
        saved = {"thread_id": thread, "checkpoint_ns": key.subgraph, "checkpoint_id": checkpoint["id"]}
        return {"configurable": saved}

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Save what a task wrote, before its step ends (see ``writes`` above)."""
        key, graph_id = self._written_on(config)
        announced = self._writer.announce(key, graph_id)
        try:
            if not self._writer.has_step(key, graph_id):
                arrival = self._writer.arrival(self._codec, key, graph_id)
                wait([arrival], ARRIVAL_SECONDS)
                if not arrival.done():
                    self._writer.give_up(key, graph_id)
            self._writer.put_writes(self._codec, key, graph_id, _numbered(writes), task_id, task_path)
        finally:
            self._writer.finish(key, graph_id, announced)

    # Removing and copying
    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread. Raises `Conflict` if forks of it (`Thread.fork`) share its past."""
        self._remove(self._removal.delete_thread, self._root(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints that these runs made, in all threads."""
        self._remove(self._removal.delete_for_runs, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread to a new one that does not depend on it (`Thread.fork` shares)."""
        source, target = self._root(source_thread_id), self._root(target_thread_id)
        self._remove(self._removal.copy_thread, source, target, str(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace of these threads (``delete``: none).

        What delta channels of a kept checkpoint are made of is kept as well.
        """
        for thread_id in thread_ids:
            self._remove(self._removal.prune, self._root(thread_id), strategy)

    # The same methods for asyncio
    async def asetup(self) -> None:
        """Async twin of `setup`."""

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Async twin of `get_tuple`."""
        return await self._bridge.call(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Async twin of `list`."""
        found = self._bridge.iterate(self.list, config, filter=filter, before=before, limit=limit)
        async for each in found:
            yield each

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Async twin of `get_delta_channel_history`."""
        return await self._bridge.call(self.get_delta_channel_history, config=config, channels=channels)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Async twin of `put`."""
        announced = self._writer.announced(self._key(config)[0], _checkpoint_id(config))
        if announced:
            await asyncio.wait([*map(self._bridge.future, announced)])
        return await self._bridge.call(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Async twin of `put_writes`."""
        key, graph_id = self._written_on(config)
        announced = self._writer.announce(key, graph_id)
        try:
            if not self._writer.has_step(key, graph_id):  # wait here: `aput` may need the bridge's threads
                arrival = await self._bridge.call(self._writer.arrival, self._codec, key, graph_id)
                await asyncio.wait({self._bridge.future(arrival)}, timeout=ARRIVAL_SECONDS)
                if not arrival.done():
                    self._writer.give_up(key, graph_id)
            numbered = _numbered(writes)
            await self._bridge.call(
                self._writer.put_writes, self._codec, key, graph_id, numbered, task_id, task_path
            )
        finally:
            self._writer.finish(key, graph_id, announced)

    async def adelete_thread(self, thread_id: str) -> None:
        """Async twin of `delete_thread`."""
        await self._bridge.call(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Async twin of `delete_for_runs`."""
        await self._bridge.call(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Async twin of `copy_thread`."""
        await self._bridge.call(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Async twin of `prune`."""
        await self._bridge.call(self.prune, thread_ids, strategy=strategy)

    def get_next_version(self, current: int | str | None, channel: None) -> Any:  # noqa: ARG002 - LangGraph's
        """Return the next version of a channel: a number, or text in threads that came from another saver."""
        if current is None:
            return 1
        if isinstance(current, str):
            number = int(current.partition(".")[0]) + 1
            return f"{number:032}.{random():016}"
        return current + 1

    # Closing
    def close(self) -> None:
        """Commit writes that are held, and close the store if it was opened here. May be called twice."""
        self._writer.flush()
        self._opened.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self._bridge.call(self._writer.flush)
        await self._opened.aclose()

    @property
    def _bridge(self) -> Bridge:
        return self._opened.bridge

    @property
    def _codec(self) -> ValueCodec:
        """The codec for the serializer as it is now: `with_allowlist` gives a clone another one."""
        if self._last_codec.serde is not self.serde:
            self._last_codec = ValueCodec(self.serde)
        return self._last_codec

    def _key(self, config: RunnableConfig) -> tuple[GraphKey, str]:
        given: Any = config
        try:
            chosen = given["configurable"]
            thread = str(chosen["thread_id"])
        except (KeyError, TypeError):
            raise InvalidInput(
                "the config names no thread; pass config={'configurable': {'thread_id': 'conversation-1'}}"
            ) from None
        return self._graphs.key(thread_id_of(thread), str(chosen.get("checkpoint_ns") or "")), thread

    def _written_on(self, config: RunnableConfig) -> tuple[GraphKey, str]:
        key, graph_id = self._key(config)[0], _checkpoint_id(config)
        if graph_id is None:
            raise InvalidInput(
                "the config names no checkpoint to write on; pass the config that put or get_tuple returned"
            )
        return key, graph_id

    def _flushed(self, config: RunnableConfig) -> tuple[GraphKey, str]:
        """What a config names, with nothing held for it."""
        key, thread = self._key(config)
        self._writer.flush(key.scope)
        return key, thread

    def _root(self, thread_id: str) -> GraphKey:
        return self._graphs.key(thread_id_of(str(thread_id)), "")

    def _remove(self, remove: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        self._writer.flush()
        try:
            remove(*args, **kwargs)
        finally:
            self._writer.forget()


class _Upcasts:
    """Migrates the channels of older checkpoints, and lets the steps that follow store them.

    A graph passes only the channels that its step changed, so what was migrated is remembered until then.
    """

    _MOST: Final = 1024

    def __init__(self) -> None:
        self._loaded: OrderedDict[tuple[str, str], tuple[frozenset[str], dict[str, int]]] = OrderedDict()

    def migrated(self, key: GraphKey, loaded: CheckpointTuple) -> CheckpointTuple:
        """Return a checkpoint as the registered upcasters migrate it."""
        metadata: Any = loaded.metadata
        if key.subgraph:
            return loaded
        upgrade = upgrade_of(key.thread, metadata)
        changed: frozenset[str] = frozenset()
        versions = versions_of(metadata)
        if upgrade is not None:
            before: dict[str, Any] = loaded.checkpoint["channel_values"]
            old = {name: value for name, value in before.items() if not _is_internal(name)}
            new = upgrade.state(dict(old)) if upgrade.changes("state") else dict(old)
            if upgrade.changes("messages") and isinstance(new.get(MESSAGES), list):
                new[MESSAGES] = upgrade.messages(new[MESSAGES])
            numbers = dict(loaded.checkpoint["channel_versions"])
            newest: Any = max(numbers.values(), default=1)
            for name in new.keys() - numbers.keys():
                numbers[name] = newest  # a graph restores only channels that have a version
            internal = {name: value for name, value in before.items() if _is_internal(name)}
            checkpoint: Any = {
                **loaded.checkpoint,
                "channel_values": {**internal, **new},
                "channel_versions": numbers,
            }
            loaded = loaded._replace(checkpoint=checkpoint)
            changed, versions = frozenset(new), upgrade.versions
        if versions:
            self._remember(key, loaded.checkpoint["id"], changed, versions)
        return loaded

    def _remember(
        self, key: GraphKey, graph_id: str, changed: frozenset[str], versions: dict[str, int]
    ) -> None:
        self._loaded[key.ref, graph_id] = changed, versions
        while len(self._loaded) > self._MOST:
            self._loaded.popitem(last=False)

    def recorded(
        self, key: GraphKey, parent: str | None, checkpoint: Checkpoint
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the channels that a step has to store beside its own, and the versions in its metadata."""
        changed: frozenset[str] = frozenset()
        if key.subgraph:
            return {}, {}
        if parent is None:
            versions = versions_of(with_versions({}, key.thread, None))
        else:
            changed, versions = self._loaded.get((key.ref, parent), (changed, {}))
        if not versions:
            return {}, {}
        self._remember(key, checkpoint["id"], frozenset(), versions)
        numbers = checkpoint["channel_versions"]
        return {name: numbers[name] for name in changed if name in numbers}, {VERSIONS: versions}


def _is_internal(channel: str) -> bool:
    return channel.startswith(("__", "branch:"))


def _checkpoint_id(config: RunnableConfig) -> str | None:
    """The checkpoint that a config names; LangGraph means the newest by an empty id, too."""
    return str(get_checkpoint_id(config) or "") or None


def _numbered(writes: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, int, Any]]:
    """Writes with their index, which is fixed for LangGraph's special channels."""
    return [
        (channel, WRITES_IDX_MAP.get(channel, index), value) for index, (channel, value) in enumerate(writes)
    ]


def _flush(writer: Writer) -> None:
    with suppress(TreeringError):  # the store may be closed by now
        writer.flush()


# LangGraph tells a checkpointer nothing of models, tokens and errors, nor when a call of its graph begins. So
# the two methods that all calls go through add a tracer to the callbacks, as if the caller had passed it.
# Calls inside of it inherit the tracer, a caller's own is not doubled, and a call without a saver that
# records runs is passed on as it came. The saver finds the tracer again in the config that it is given.
_is_recording = False


def record_graphs() -> None:
    """Let every call of a graph from now on ask its saver for a tracer."""
    global _is_recording  # noqa: PLW0603
    if not _is_recording:
        graph_class = cast("Any", Pregel)
        graph_class.stream = _recorded(graph_class.stream)
        graph_class.astream = _recorded(graph_class.astream)
        _is_recording = True


def _recorded(stream: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stream)
    def recorded(self: Any, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        return stream(self, input, _with_tracer(self, config), **options)

    return recorded


def _with_tracer(graph: Any, config: RunnableConfig | None) -> RunnableConfig | None:
    make = getattr(graph.checkpointer, "new_tracer", None)
    outer = var_child_runnable_config.get()
    if make is None or _tracer_of(merge_configs(outer, graph.config, config)) is not None:
        return config
    tracer = make()
    if tracer is None:
        return config
    callbacks = merge_configs(outer, graph.config, config, {"callbacks": [tracer]}).get("callbacks")
    return cast("RunnableConfig", {**(config or {}), "callbacks": callbacks})


def _tracer_of(config: RunnableConfig) -> TreeringTracer | None:
    callbacks = config.get("callbacks")
    handlers = callbacks.handlers if isinstance(callbacks, BaseCallbackManager) else callbacks or []
    return next((each for each in handlers if isinstance(each, TreeringTracer)), None)


@contextmanager
def run_of(config: RunnableConfig) -> Generator[None]:
    """What is saved inside is of the run that the call with this config records, if there is one."""
    tracer = _tracer_of(config) if current_node.get() is None else None
    root = tracer.root if tracer is not None else None
    if root is None:
        yield
        return
    token = current_node.set(root)
    try:
        yield
    finally:
        current_node.reset(token)


record_graphs()

__all__ = ["TreeringSaver", "TreeringStore"]

"""LangGraph's checkpointer on a treering store: `TreeringSaver`, sync and async in one object.

Every LangGraph checkpoint is a checkpoint of the treering thread with the same id, so whatever treering
can do with threads (log, diff, fork, rewind, forget, copy) it can do with these, and a graph goes on from
wherever the head was moved to. LangGraph hands over the whole state at every step; what is stored is what
is new in it. A checkpoint is durable when `put` returns, with everything that it is made of. LangGraph
saves after every superstep, so a tool that has run is never run again; there is no
``checkpoint_after_tool_call`` to set.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from random import random
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from msgspec import structs

from treering.adapters.langgraph.cache import Memory
from treering.adapters.langgraph.history import Reader
from treering.adapters.langgraph.messages import copied, from_plain, kind_of, likeness, to_plain
from treering.adapters.langgraph.queue import Queue
from treering.adapters.langgraph.removal import Removal
from treering.adapters.langgraph.rows import Request, thread_id_of
from treering.adapters.langgraph.saving import Scribe
from treering.adapters.langgraph.store import TreeringStore
from treering.adapters.langgraph.values import Values, closed_serde
from treering.adapters.names import checked_namespace
from treering.adapters.opening import Opened, StoreOrUrl
from treering.bridge import Bridge
from treering.core.clock import SystemClock
from treering.errors import InvalidInput, MissingExtra, TreeringError
from treering.graphs.graph import Graphs
from treering.graphs.step import Place
from treering.store import Store
from treering.sync_async import Closing
from treering.threads import checkpoint as checkpoints
from treering.threads.checkpoint_record import MESSAGES
from treering.threads.hooks import CheckpointEvent, SaveRequest

if TYPE_CHECKING:
    from treering.graphs.graph import Step

try:
    from langchain_core.runnables import RunnableConfig
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
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"langgraph", "langchain_core", "ormsgpack"}:
        raise MissingExtra("treering.adapters.langgraph", "langgraph") from error
    raise


# -----------------------------------------------------------------------------------------------------------
# The store's hooks around a LangGraph saver: they see a checkpoint as every other saver's.
#
# Without a hook none of this costs anything. A hook before the save is shown messages and state as plain
# data; what it changes is what is saved (messages become LangChain messages again). **Invariant:** a step
# that was vetoed is not in the journal, and the next one grows out of the last that was saved.


_VETOED: Final = 1024


class Hooked:
    """Saves through the hooks of a store."""

    def __init__(self, store: Store, scribe: Scribe) -> None:
        self._store = store
        self._scribe = scribe
        self._vetoed: OrderedDict[str, str | None] = OrderedDict()

    def put(self, values: Values, place: Place, request: Request) -> None:
        """Save a checkpoint, unless a hook vetoes it."""
        hooks = self._store.hooks
        if request.parent in self._vetoed:
            request = structs.replace(request, parent=self._vetoed[request.parent])
        if hooks.has("pre_checkpoint_save"):
            asked = self._saving(values, place, request)
            answer = hooks.before_save(asked)
            if answer is None:
                self._vetoed[request.checkpoint["id"]] = request.parent
                while len(self._vetoed) > _VETOED:
                    self._vetoed.popitem(last=False)
                return
            request = _changed(request, asked, answer)
        step = self._scribe.put(values, place, request)
        if hooks.has("post_checkpoint_save"):
            hooks.after_save(self._told(place, step))

    def loaded(self, place: Place, graph_id: str, graphs: Graphs) -> None:
        """A checkpoint was loaded."""
        hooks = self._store.hooks
        if hooks.has("post_checkpoint_load"):
            step = graphs.find(place, graph_id)
            if step is not None:
                hooks.after_load(self._told(place, step))

    def _told(self, place: Place, step: Step) -> CheckpointEvent:
        checkpoint = checkpoints.Checkpoint(self._store.engine, self._store.space, step.checkpoint)
        return CheckpointEvent(thread_id=place.thread, namespace=place.namespace, checkpoint=checkpoint)

    def _saving(self, values: Values, place: Place, request: Request) -> SaveRequest:
        channels = request.checkpoint["channel_values"]
        messages = channels.get(MESSAGES)
        return SaveRequest(
            thread_id=place.thread,
            namespace=place.namespace,
            messages=[_plain(values, each) for each in cast("list[Any]", messages)]
            if isinstance(messages, list)
            else None,
            state={name: value for name, value in channels.items() if name != MESSAGES},
            metadata=dict(request.metadata),
        )


def _changed(request: Request, asked: SaveRequest, answer: SaveRequest) -> Request:
    checkpoint = dict(request.checkpoint)
    channels = dict(checkpoint["channel_values"])
    versions = dict(request.new_versions)
    if answer.state is not asked.state and answer.state is not None:
        kept = {MESSAGES: channels[MESSAGES]} if MESSAGES in channels else {}
        channels = {**answer.state, **kept}
        versions |= {name: checkpoint["channel_versions"].get(name, 1) for name in answer.state}
    if answer.messages is not asked.messages and answer.messages is not None:
        channels[MESSAGES] = [_message(each) for each in answer.messages]
        versions[MESSAGES] = checkpoint["channel_versions"].get(MESSAGES, 1)
    checkpoint["channel_values"] = channels
    return structs.replace(request, checkpoint=checkpoint, metadata=answer.metadata, new_versions=versions)


def _plain(values: Values, message: Any) -> Any:
    if not values.takes(message):
        return message
    return copied(to_plain(cast("type[Any]", type(message)), likeness(message)))  # the hook may change it


def _message(message: Any) -> Any:
    if kind_of(message) is not dict:
        return message
    found = from_plain(dict(cast("dict[str, Any]", message)))
    return message if found is None else found[0]


# -----------------------------------------------------------------------------------------------------------

__all__ = ["TreeringSaver", "TreeringStore"]


class TreeringSaver(BaseCheckpointSaver[int], Closing):
    """A LangGraph checkpointer: ``builder.compile(checkpointer=TreeringSaver(store))``.

    Takes an open store (sync or async), or a URL or folder, which it then opens; ``close`` (or leaving it
    as a context manager) closes only what it opened. ``namespace`` is the user or project that the threads
    belong to. Types of your own in the state come back as the data that they held, unless ``allow`` names
    them; a ``serde`` of your own replaces all of that and is given every value.

    `put` and `put_writes` are durable when they return; where they are called from several threads, as
    LangGraph does, both wait for one commit. With ``writes="with_checkpoint"``, `put_writes` waits for
    nothing: what a task wrote becomes durable with the checkpoint that follows it, or 10 ms later (an
    interrupt or an error at once), and a task that was killed in that checkpoint runs again.

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
    ) -> None:
        super().__init__(serde=serde or closed_serde(*allow))
        if writes not in ("durable", "with_checkpoint"):
            raise InvalidInput(f"writes={writes!r} is not acceptable; use 'durable' or 'with_checkpoint'")
        self._namespace = checked_namespace(namespace)
        self._opened = Opened(store)
        clock = SystemClock()
        memory = Memory()
        opened = self._opened.store
        self._graphs = Graphs(opened.engine, opened.space, self._namespace)
        self._scribe = Scribe(opened, self._graphs, memory, clock, are_writes_durable=writes == "durable")
        weakref.finalize(self, _flush, self._scribe.queue)
        self._reader = Reader(opened, self._graphs, memory)
        self._removal = Removal(opened, self._graphs, memory, clock)
        self._hooked = Hooked(opened, self._scribe)
        self._codec = Values(self.serde)

    @property
    def store(self) -> Store:
        """The store that everything goes to."""
        return self._opened.store

    # Reading
    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the one at the head of its thread."""
        place, thread = self._settled(config)
        graph_id = get_checkpoint_id(config)
        if graph_id is None or graph_id == "":
            found = self._reader.newest(self._values, place, thread)
        else:
            found = self._reader.one(self._values, place, thread, str(graph_id))
        if found is not None:
            self._hooked.loaded(place, found.checkpoint["id"], self._graphs)
        return found

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first; ``filter`` is compared with their metadata, key by key."""
        place = thread = within = only = None
        if config is None:
            self._scribe.queue.flush()
        else:
            place, thread = self._settled(config)
            within = cast("Any", config)["configurable"].get("checkpoint_ns")
            only = get_checkpoint_id(config)
        return self._reader.many(
            self._values,
            thread,
            place,
            within=within,
            only=only,
            metadata=filter,
            before=get_checkpoint_id(before) if before is not None else None,
            limit=limit,
        )

    def metadata(self, config: RunnableConfig) -> list[tuple[str, dict[str, Any]]]:  # type: ignore[valid-type]
        """The id and the metadata of all checkpoints of a thread, newest first; no content is read."""
        place, _ = self._settled(config)
        return self._reader.metadata(self._values, place)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """For each channel the last value that was stored whole, and what was written since, oldest first.

        A past that was removed raises `Corrupt`; it is never taken for an empty one.
        """
        if not channels:
            return {}
        place, _ = self._settled(config)
        return self._reader.delta_history(self._values, place, get_checkpoint_id(config), channels)

    # Writing
    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint behind the one that the config names; durable when this returns."""
        place, thread = self._place(config)
        request = Request(
            thread=thread,
            parent=get_checkpoint_id(config) or None,
            checkpoint=cast("Mapping[str, Any]", checkpoint),
            metadata=dict(get_checkpoint_metadata(config, metadata)),
            new_versions=new_versions,
        )
        self._hooked.put(self._values, place, request)
        saved = {"thread_id": thread, "checkpoint_ns": place.within, "checkpoint_id": checkpoint["id"]}
        return {"configurable": saved}

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Save what a task wrote before its step is over (see ``writes`` above)."""
        place, _ = self._place(config)
        numbered = [
            (channel, WRITES_IDX_MAP.get(channel, index), value)
            for index, (channel, value) in enumerate(writes)
        ]
        given: Any = config
        graph_id = str(given["configurable"]["checkpoint_id"])
        self._scribe.put_writes(self._values, place, graph_id, numbered, task_id, task_path)

    # Removing and copying
    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread. Forks of it (`Thread.fork`) that share its past make this a `Conflict`."""
        self._removal.delete_thread(self._root(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints that these runs made, in all threads."""
        self._scribe.queue.flush()
        self._removal.delete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread to a new one that does not depend on it (`Thread.fork` shares)."""
        self._removal.copy_thread(
            self._root(source_thread_id), self._root(target_thread_id), str(target_thread_id)
        )

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace of these threads (``delete``: none).

        What delta channels of a kept checkpoint are made of is kept as well.
        """
        for thread_id in thread_ids:
            self._removal.prune(self._root(thread_id), strategy)

    # The same words, awaited
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
        return await self._bridge.call(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Async twin of `put_writes`."""
        await self._bridge.call(self.put_writes, config, writes, task_id, task_path)

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
        """The next version of a channel: a number; threads that came from another saver keep their form."""
        if current is None:
            return 1
        if isinstance(current, str):
            number = int(current.partition(".")[0]) + 1
            return f"{number:032}.{random():016}"
        return current + 1

    # Opening and closing
    def close(self) -> None:
        """Commit what waits, and close the store if this object opened it. May be called twice."""
        self._scribe.queue.flush()
        self._opened.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self._bridge.call(self._scribe.queue.flush)
        await self._opened.aclose()

    @property
    def _bridge(self) -> Bridge:
        return self._opened.bridge

    @property
    def _values(self) -> Values:
        """For the serializer as it is now: `with_allowlist` gives a clone another one."""
        if self._codec.serde is not self.serde:
            self._codec = Values(self.serde)
        return self._codec

    def _place(self, config: RunnableConfig) -> tuple[Place, str]:
        given: Any = config
        try:
            chosen = given["configurable"]
            thread = str(chosen["thread_id"])
        except (KeyError, TypeError):
            raise InvalidInput(
                "the config names no thread; pass config={'configurable': {'thread_id': 'conversation-1'}}"
            ) from None
        return self._graphs.place(thread_id_of(thread), str(chosen.get("checkpoint_ns") or "")), thread

    def _settled(self, config: RunnableConfig) -> tuple[Place, str]:
        """Where a config points, with nothing that still waits to be committed there."""
        place, thread = self._place(config)
        self._scribe.queue.flush(place.scope)
        return place, thread

    def _root(self, thread_id: str) -> Place:
        self._scribe.queue.flush()
        return self._graphs.place(thread_id_of(str(thread_id)), "")


def _flush(queue: Queue) -> None:
    with suppress(TreeringError):  # the store may be closed by now
        queue.flush()

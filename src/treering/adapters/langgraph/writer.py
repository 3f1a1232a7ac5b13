"""Writing the steps of LangGraph graphs: `put` saves a checkpoint, `put_writes` what a task wrote on one.

The life of a step. LangGraph saves checkpoint N and starts its tasks. Each task that ends passes its writes
to `put_writes`, which encodes them against the lists of N and commits them as one event. When all have ended,
LangGraph merges the writes into the state and passes that to `put` as checkpoint N+1, which is compared with
the lists of N; only what is new is encoded, and committed with the checkpoint's row and the head of the
thread.

A message that a single task wrote is new in N+1 as well, so it is stored once: `put_writes` appends it to the
list that holds the messages of N, and `put` finds it there and only says that the list is longer. If `put`
comes first (LangGraph calls both from threads of its own), it appends the message and `put_writes` refers to
it. Where a checkpoint starts several tasks, their order in the list is not known before all have ended, so
each keeps its messages in its own event. With ``writes="with_checkpoint"``, events are held in memory until
the next `put` of the thread, and refer to the list that it writes.

**Invariants:** What is stored depends on the calls, never on their timing: LangGraph makes them from several
threads, but writes wait for the checkpoint that they are made on, and a checkpoint for the writes of its
parent. A head moves by compare-and-swap and only forwards: to a newer id, or to a child of where it is. A
step that was vetoed by a hook is not stored, and the next one is a child of the last that was.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast
from weakref import WeakValueDictionary

import msgspec
import orjson
from msgspec import structs

from treering.adapters.langgraph.channels import (
    MORE,
    NO_UPDATED,
    ChannelChanges,
    StoredList,
    count_tasks,
    materialisable,
    merge_messages,
    read_list,
)
from treering.adapters.langgraph.task_writes import (
    asked_in,
    concerns_a_person,
    encode_writes,
    pending_after,
    write_event,
)
from treering.adapters.langgraph.values import (
    copy_value,
    fingerprint,
    is_message,
    message_from_dict,
    message_to_dict,
    type_of,
)
from treering.core.batch import ABSENT, Draft
from treering.core.encoding import encode_json
from treering.errors import Conflict, ListMoved, RefMoved, Unencodable, Vetoed
from treering.graphs.extension import shortened
from treering.graphs.graph import GRAPH, Graphs, Step, put_graph_head
from treering.graphs.step import HIDDEN, GraphKey, step_id
from treering.threads import checkpoint as checkpoints
from treering.threads.checkpoint import (
    FORKED_FROM,
    MESSAGES,
    CheckpointRecord,
    EncodedMetadata,
    ListPrefix,
    new_checkpoint_id,
)
from treering.threads.compaction import valid_compactions
from treering.threads.hooks import COMPACTIONS, CheckpointEvent, SaveRequest
from treering.threads.writer import CheckpointWriter, NewCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from langgraph.checkpoint.base import CheckpointTuple

    from treering.adapters.langgraph.reader import Loaded, Reader
    from treering.adapters.langgraph.task_writes import ListPosition, TaskWrites, WrittenMessage
    from treering.adapters.langgraph.values import ValueCodec
    from treering.core.batch import Expect, Receipt
    from treering.core.clock import Clock
    from treering.store import Store

ARRIVAL_SECONDS: Final = 10.0
"""How long `put_writes` waits for a checkpoint that is not stored. LangGraph is just saving it; only someone
who writes on a checkpoint before saving it, or on one that never comes, waits that long, and once.
"""
_ATTEMPTS: Final = 8
_MAX_VETOED: Final = 1024
_MAX_HEADS: Final = 1024
_MAX_STEPS: Final = 128
_MAX_ITEMS: Final = 100_000
_SIMPLE: Final = frozenset({str, int, bool, type(None)})
_FIELDS: Final = frozenset(
    {"v", "id", "ts", "channel_values", "channel_versions", "versions_seen", "updated_channels"}
)
"""The fields of a checkpoint that are stored each in its own way; any others are stored as they are."""
_STRICT: Final = orjson.OPT_PASSTHROUGH_SUBCLASS


class PutRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint as LangGraph passes it to `put`."""

    thread: str
    """LangGraph's id of the thread; the store may know it by another one (see `thread_id_of`)."""
    parent: str | None
    checkpoint: Mapping[str, Any]
    metadata: dict[str, Any]
    new_versions: Mapping[str, Any]


class SavedStep(msgspec.Struct, kw_only=True):
    """A step that others may be written against."""

    step: Step
    lists: dict[str, StoredList]
    tasks: int | None
    """How many tasks it starts."""
    written: list[TaskWrites]
    """What was written on it by this saver."""
    written_by_others: frozenset[str] = frozenset()
    """Channels that were written on it before it was loaded."""

    @property
    def size(self) -> int:
        """How many items its lists have."""
        return sum(prefix.length for prefix in self.step.checkpoint.lists.values())


class KnownHead(msgspec.Struct, frozen=True):
    """A head as it was last seen."""

    version: int
    checkpoint: str
    graph_id: str
    first_us: int
    compactions: ListPrefix | None = None
    """Those of its messages (see `Thread.compact`), which its next step has as well."""


class Writer:
    """Writes the steps of one namespace of a store, for any number of threads."""

    def __init__(
        self, store: Store, graphs: Graphs, reader: Reader, clock: Clock, *, hold_writes: bool = False
    ) -> None:
        self._store = store
        self._engine = store.engine
        self._space = store.space
        self._graphs = graphs
        self._reader = reader
        self._clock = clock
        self._checkpoints = CheckpointWriter(store.engine, store.space)
        self._steps = _StepCache()
        self._locks: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self._guard = Lock()
        self._announced: dict[tuple[str, str], list[Future[None]]] = {}
        self._hold_writes = hold_writes
        self._held: dict[str, list[TaskWrites]] = {}
        self._vetoed = _Bounded[str | None](_MAX_VETOED)
        self._given_up = _Bounded[None](_MAX_VETOED)
        self._asked = _Bounded[dict[str, Any]](_MAX_VETOED)

    # Checkpoints
    def put(self, codec: ValueCodec, key: GraphKey, request: PutRequest) -> None:
        """Save a checkpoint, through the store's hooks; durable when this returns."""
        graph_id = request.checkpoint["id"]
        try:
            hooks = self._store.hooks
            if request.parent is not None and request.parent in self._vetoed:
                request = structs.replace(request, parent=self._vetoed.get(request.parent))
            if hooks.has("pre_checkpoint_save"):
                offered = _save_request(key, request)
                try:
                    answer = hooks.before_save(offered)
                except Vetoed:
                    self._vetoed.set(graph_id, request.parent)
                    return
                request = _with_changes(request, offered, answer)
            with self._lock(key.scope):
                step = self._put(codec, key, request)
            if hooks.has("post_checkpoint_save"):
                hooks.after_save(self._saved(key, step))
        finally:
            self._steps.settle(key, graph_id)

    def remember(self, key: GraphKey, loaded: Loaded) -> None:
        """Take note of a checkpoint that was read, and call the hooks for it."""
        head, step = loaded.head, loaded.step
        if head is not None:
            made = step.checkpoint.lists.get(COMPACTIONS)
            known = KnownHead(head.version, step.checkpoint.id, step.graph_id, head.first_us, made)
            self._steps.heads.set(key.ref, known)
        with self._lock(key.scope):
            self._remember(loaded)
        hooks = self._store.hooks
        if hooks.has("post_checkpoint_load"):
            hooks.after_load(self._saved(key, step))

    def forget(self) -> None:
        """Forget all steps and heads: something was removed."""
        self._steps.clear()

    def _put(self, codec: ValueCodec, key: GraphKey, request: PutRequest) -> Step:
        parent = None if request.parent is None else self._step(codec, key, request.parent)
        graph_id: str = request.checkpoint["id"]
        held = self._held.pop(key.scope, [])
        may_exist = step_id(key, graph_id) is None
        try:
            for attempt in range(_ATTEMPTS):
                head = self._head(key, is_first=attempt == 0 and parent is None)
                if may_exist or (head is not None and graph_id <= head.graph_id):
                    stored = self._graphs.stored(key, graph_id)
                    if stored is not None:
                        if held:
                            self._commit(held)
                            held = []
                        revised = self._revise(codec, key, request, stored, head)
                        if revised is None:
                            continue
                        return revised

                def fill(
                    draft: Draft,
                    append: bool,  # noqa: FBT001 - as CheckpointWriter calls it
                    head: KnownHead | None = head,
                    held: list[TaskWrites] = held,
                ) -> tuple[ChannelChanges, CheckpointRecord, bool]:
                    changes = self._changes(codec, request, parent, key, append=append)
                    for number, writes in enumerate(held):
                        write_event(draft, writes, number, _in_list(changes))
                    new = self._new_checkpoint(codec, key, request, parent, changes, head=head)
                    record = self._checkpoints.put(draft, new, append=append)
                    return changes, record, self._move_head(draft, key, record, head)

                try:
                    (changes, record, is_moved), receipt = self._checkpoints.commit(fill)
                except RefMoved:
                    self._steps.heads.remove(key.ref)
                    continue
                new_events, held_events, held = receipt.new_events, len(held), []
                if new_events <= held_events:  # this id was saved before
                    may_exist = True
                    self._steps.heads.remove(key.ref)
                    continue
                step = self._committed(request, record, changes, receipt, parent)
                if is_moved:
                    first_us = record.created_at_us if head is None else head.first_us
                    made = record.lists.get(COMPACTIONS)
                    known = KnownHead(receipt.versions[key.ref], record.id, step.graph_id, first_us, made)
                    self._steps.heads.set(key.ref, known)
                return step
        except BaseException:
            if held:
                self._held[key.scope] = [*held, *self._held.get(key.scope, [])]
            raise
        raise Conflict(
            f"thread {key.thread!r} changed {_ATTEMPTS} times while checkpoint {graph_id!r} "
            "was saved; nothing was written, try again"
        )

    def _revise(
        self, codec: ValueCodec, key: GraphKey, request: PutRequest, stored: Step, head: KnownHead | None
    ) -> Step | None:
        """Replace a checkpoint that is stored; return it, or ``None`` if the head moved meanwhile.

        It keeps its id, its place among the others and its children, whatever they were made from.
        """
        loaded = self._reader.one(codec, key, request.thread, stored.graph_id)
        if loaded is None:
            return None
        self._steps.drop(stored.checkpoint.id)
        if _is_same(loaded.tuple, request):
            return stored
        checkpoint = request.checkpoint
        changes = ChannelChanges(codec, stored, loaded.lists, is_tail=False)
        changes.add(
            checkpoint["channel_values"], checkpoint["channel_versions"], checkpoint["channel_versions"]
        )
        changes.keep_materialised(stored)
        draft = Draft(self._space)
        new = self._new_checkpoint(codec, key, request, None, changes, stored=stored)
        record = self._checkpoints.put(draft, new)
        if head is not None and head.checkpoint != record.id:
            head = None
        if head is not None:  # so that others who know the head read it again
            self._move_head(draft, key, record, head)
        try:
            receipt = self._engine.commit(draft.batch())
        except RefMoved:
            self._steps.heads.remove(key.ref)
            return None
        if head is not None:
            self._steps.heads.set(key.ref, structs.replace(head, version=receipt.versions[key.ref]))
        return Step(checkpoint=record, seq=stored.seq)

    def _changes(
        self, codec: ValueCodec, request: PutRequest, parent: SavedStep | None, key: GraphKey, *, append: bool
    ) -> ChannelChanges:
        checkpoint = request.checkpoint
        step = None if parent is None else parent.step
        changes = ChannelChanges(
            codec,
            step,
            {} if parent is None else parent.lists,
            is_tail=append and step is not None and step.checkpoint.thread == key.thread,
        )
        changes.add(checkpoint["channel_values"], checkpoint["channel_versions"], request.new_versions)
        if parent is not None and request.metadata.get("counters_since_delta_snapshot"):
            for channel in materialisable(parent.step, request.metadata, checkpoint["channel_values"]):
                items = self._materialised(codec, parent, channel)
                if items:
                    changes.materialise(channel, items)
        return changes

    def _materialised(self, codec: ValueCodec, parent: SavedStep, channel: str) -> list[Any] | None:
        """The messages of a delta channel after a step; ``None`` if not all writes on it are known."""
        if channel in parent.written_by_others:
            return None
        entries = sorted(
            (each for writes in parent.written for each in writes.messages_of(channel)),
            key=lambda entry: entry[0],
        )
        written: list[Any] = []
        for _, messages in entries:
            if messages is None:
                return None
            written += messages
        prefix = parent.step.checkpoint.lists.get(channel)
        if prefix is None:
            return merge_messages([], written)
        stored = parent.lists.get(channel)
        if stored is None or stored.id != prefix.list:
            stored = read_list(self._engine, self._space, codec, parent.step, channel)
            parent.lists[channel] = stored
        return merge_messages(stored.items[: prefix.length], written)

    def _new_checkpoint(
        self,
        codec: ValueCodec,
        key: GraphKey,
        request: PutRequest,
        parent: SavedStep | None,
        changes: ChannelChanges,
        *,
        stored: Step | None = None,
        head: KnownHead | None = None,
    ) -> NewCheckpoint:
        """The checkpoint to write: a child of ``parent``, or what replaces ``stored``."""
        above = None if parent is None else parent.step.checkpoint
        graph = _graph_fields(key, request, codec)
        changes.describe(graph)
        metadata = _plain_metadata(codec, request.metadata)
        if stored is not None:
            before = stored.checkpoint
            checkpoint_id, created_at_us, parent_id = before.id, before.created_at_us, before.parent
            if FORKED_FROM in before.metadata:
                metadata[FORKED_FROM] = before.metadata[FORKED_FROM]
        else:
            before = above
            made = step_id(key, request.checkpoint["id"])
            checkpoint_id, created_at_us = made or new_checkpoint_id(self._clock)
            parent_id = above.id if above is not None else None
        made_before = None if before is None else before.lists.get(COMPACTIONS)
        if head is not None and parent is not None and head.graph_id == parent.step.graph_id:
            made_before = head.compactions  # the thread may have been compacted since that step
        step, source = request.metadata.get("step"), request.metadata.get("source")
        record = CheckpointRecord(
            id=checkpoint_id,
            thread=key.thread,
            namespace=key.namespace,
            parent=parent_id,
            step=step if type(step) is int else (above.step + 1 if above is not None else 0),
            created_at_us=created_at_us,
            lists={**changes.unchanged_lists, **self._compactions(before, made_before, changes)},
            state=changes.unchanged_state,
            metadata={**metadata, GRAPH: graph},
            note=source if source in ("input", "update", "fork") else None,
        )
        return NewCheckpoint(
            record=record,
            lists=changes.lists,
            state=changes.state,
            previous_state={} if before is None else before.state,
            metadata=_encoded_metadata(metadata, graph),
            is_revision=stored is not None,
        )

    def _compactions(
        self, before: CheckpointRecord | None, made: ListPrefix | None, changes: ChannelChanges
    ) -> dict[str, ListPrefix]:
        """Return the compactions of the messages before, as far as those stay the same."""
        messages = None if before is None else before.lists.get(MESSAGES)
        if made is None or messages is None:
            return {}
        change = changes.lists.get(MESSAGES)
        kept = messages.length if changes.unchanged_lists.get(MESSAGES) == messages else 0
        if change is not None and change.base is not None and change.base.list == messages.list:
            kept = change.keep
        if kept < messages.length:
            items = checkpoints.read_list(self._engine, self._space, made)
            made = ListPrefix(made.list, valid_compactions(items, kept))
        return {COMPACTIONS: made} if made.length else {}

    def _head(self, key: GraphKey, *, is_first: bool) -> KnownHead | None:
        """The head as far as it is known; it is read unless this looks like the first step of a thread."""
        known = self._steps.heads.get(key.ref)
        if known is None and not is_first:
            head = self._graphs.head(key)
            if head is not None:
                seen = head.step.checkpoint
                made = seen.lists.get(COMPACTIONS)
                known = KnownHead(head.version, seen.id, head.step.graph_id, head.first_us, made)
        return known

    def _move_head(
        self, draft: Draft, key: GraphKey, record: CheckpointRecord, head: KnownHead | None
    ) -> bool:
        """Move the head to a checkpoint unless it is at a newer one; return whether it moves."""
        graph_id: str = record.metadata[GRAPH]["id"]
        if head is not None and head.graph_id > graph_id and head.checkpoint != record.parent:
            return False
        first_us = head.first_us if head is not None else record.created_at_us
        expect: Expect = head.version if head is not None else ABSENT
        put_graph_head(
            draft,
            key.ref,
            record,
            first_us=first_us,
            is_root=not key.subgraph,
            scope=key.scope,
            expect=expect,
        )
        return True

    def _committed(
        self,
        request: PutRequest,
        record: CheckpointRecord,
        changes: ChannelChanges,
        receipt: Receipt,
        parent: SavedStep | None,
    ) -> Step:
        changes.committed()
        step = Step(checkpoint=record, seq=receipt.last_seq)
        checkpoint = request.checkpoint
        tasks = count_tasks(checkpoint.get("updated_channels"), checkpoint["channel_values"])
        saved = SavedStep(step=step, lists=changes.stored, tasks=tasks, written=[])
        self._steps.keep(saved, instead_of=parent.step.checkpoint.parent if parent is not None else None)
        return step

    # What tasks wrote
    def announce(self, key: GraphKey, graph_id: str) -> Future[None]:
        """Say that writes on a checkpoint will come, until `finish`: its children are saved behind them."""
        announced: Future[None] = Future()
        with self._guard:
            self._announced.setdefault((key.ref, graph_id), []).append(announced)
        return announced

    def finish(self, key: GraphKey, graph_id: str, announced: Future[None]) -> None:
        """Say that the writes came, or will not come."""
        with self._guard:
            others = self._announced[key.ref, graph_id]
            others.remove(announced)
            if not others:
                del self._announced[key.ref, graph_id]
        announced.set_result(None)

    def announced(self, key: GraphKey, graph_id: str | None) -> list[Future[None]]:
        """Return what a child of a checkpoint has to wait for."""
        with self._guard:
            return [*self._announced.get((key.ref, graph_id or ""), ())]

    def has_step(self, key: GraphKey, graph_id: str) -> bool:
        """Whether a checkpoint can be written on at once. Reads nothing; see `arrival` if it cannot."""
        made = step_id(key, graph_id)
        if made is None or graph_id in self._vetoed or self._steps.get(made[0]) is not None:
            return True
        return f"{key.ref} {graph_id}" in self._given_up

    def arrival(self, codec: ValueCodec, key: GraphKey, graph_id: str) -> Future[None]:
        """Return a future that is done when a checkpoint is stored, or its `put` has failed."""
        arrival = self._steps.arrival(key, graph_id)
        head = self._steps.heads.get(key.ref)
        with self._lock(key.scope):
            is_known = self.has_step(key, graph_id)
            made = step_id(key, graph_id)
            # Another saver may have saved it. Only an id older than the head (ids sort by time) may also be
            # one that a fork inherited, which is a search.
            is_old = head is None or graph_id <= head.graph_id
            if not is_known and made is not None and (is_old or self._graphs.by_id(made[0]) is not None):
                is_known = self._step(codec, key, graph_id) is not None
            if is_known:
                self._steps.settle(key, graph_id)
        return arrival

    def give_up(self, key: GraphKey, graph_id: str) -> None:
        """Let nobody wait for a checkpoint any longer, now or later."""
        self._given_up.set(f"{key.ref} {graph_id}", None)
        self._steps.settle(key, graph_id)

    def put_writes(
        self,
        codec: ValueCodec,
        key: GraphKey,
        graph_id: str,
        writes: Sequence[tuple[str, int, Any]],
        task: str,
        path: str,
    ) -> None:
        """Save what a task wrote, as ``(channel, index, value)``; durable when this returns, unless held."""
        with self._lock(key.scope):
            saved = self._step(codec, key, graph_id)
            encoded = encode_writes(
                codec,
                key,
                graph_id,
                writes,
                prefixes={} if saved is None else saved.step.checkpoint.lists,
                lists={} if saved is None else saved.lists,
                task=task,
                path=path,
                at_us=self._clock.now_us(),
            )
            is_held = self._hold_writes and not encoded.is_urgent
            if is_held:
                self._held.setdefault(key.scope, []).append(encoded)
            else:
                self._flush(key.scope)
            if concerns_a_person(writes):
                for interrupt_id, place in asked_in(encoded, writes).items():
                    if interrupt_id not in self._asked:  # the innermost graph comes first
                        self._asked.set(interrupt_id, place)
            if saved is not None and concerns_a_person(writes):
                self._commit_for_person(key, saved, encoded, writes)
                is_done = True
            else:
                is_done = is_held or (saved is not None and self._append_messages(key, saved, encoded))
        if not is_done:  # several tasks may commit at the same time
            self._commit([encoded])
        if saved is not None:
            saved.written.append(encoded)

    def flush(self, scope: str | None = None) -> None:
        """Commit the writes that are held (of one thread)."""
        for each in [scope] if scope is not None else list(self._held):
            if each in self._held:
                with self._lock(each):
                    self._flush(each)

    def _flush(self, scope: str) -> None:
        held = self._held.pop(scope, [])
        if held:
            try:
                self._commit(held)
            except BaseException:
                self._held[scope] = held
                raise

    def _commit(self, writes: list[TaskWrites]) -> None:
        """Commit writes whose messages are in no list."""
        draft = Draft(self._space)
        for number, each in enumerate(writes):
            write_event(draft, each, number, lambda _: None)
        self._engine.commit(draft.batch())

    def _commit_for_person(
        self, key: GraphKey, saved: SavedStep, written: TaskWrites, writes: Sequence[tuple[str, int, Any]]
    ) -> None:
        """Commit an interrupt or an answer, and what the checkpoint waits for now."""
        for _ in range(_ATTEMPTS):
            draft = Draft(self._space)
            write_event(draft, written, 0, lambda _: None)
            head = None
            revised = self._with_pending(key, saved, writes, written.task)
            if revised is not None:
                self._checkpoints.put(draft, NewCheckpoint(record=revised, is_revision=True))
                head = self._head(key, is_first=False)
            if revised is not None and head is not None and head.checkpoint == revised.id:
                # So that others who know the head read it again.
                self._move_head(draft, key, revised, head)
            else:
                head = None
            try:
                receipt = self._engine.commit(draft.batch())
            except RefMoved:
                self._steps.heads.remove(key.ref)
                continue
            if head is not None:
                self._steps.heads.set(key.ref, structs.replace(head, version=receipt.versions[key.ref]))
            return
        raise Conflict(
            f"thread {key.thread!r} changed {_ATTEMPTS} times while an interrupt of it was saved; "
            "nothing was written, try again"
        )

    def _with_pending(
        self, key: GraphKey, saved: SavedStep, writes: Sequence[tuple[str, int, Any]], task: str
    ) -> CheckpointRecord | None:
        """Return a checkpoint of the root graph with what it waits for now; ``None`` if that is the same."""
        step = None if key.subgraph else self._graphs.by_id(saved.step.checkpoint.id)
        if step is None or step.checkpoint.thread != key.thread:
            return None
        before = step.checkpoint.pending_interrupt
        after = pending_after(before, task, writes, self._asked.get)
        return None if after == before else structs.replace(step.checkpoint, pending_interrupt=after)

    def _append_messages(self, key: GraphKey, saved: SavedStep, writes: TaskWrites) -> bool:
        """Commit the writes of a step's only task, with its messages in the list that they will be in.

        Return false, and commit nothing, if that is not certain.
        """
        stored = _next_list(key, saved, writes)
        if stored is None:
            return False
        start = saved.step.checkpoint.lists[writes.list_entries[0][0]].length
        following = stored.items[start : start + len(writes.messages)]
        draft = Draft(self._space)
        if not following:
            contents = [each.content for each in writes.messages]
            draft.append(stored.id, *contents, scope=key.scope, at=start)
        elif [*map(id, following)] != [id(each.message) for each in writes.messages] or (
            stored.fingerprints[start : start + len(following)] != [each.fields for each in writes.messages]
        ):
            return False  # the step has a child already, with other messages
        positions = {id(each): (stored.id, start + at) for at, each in enumerate(writes.messages)}
        write_event(draft, writes, 0, lambda message: positions.get(id(message)))
        try:
            self._engine.commit(draft.batch())
        except ListMoved:  # another process has appended to it
            return False
        if not following:
            stored.extend(
                [each.message for each in writes.messages], [each.fields for each in writes.messages]
            )
        return True

    # Steps that were saved or loaded
    def _lock(self, scope: str) -> Any:
        """The lock of a thread, under which its steps are compared and its lists appended to."""
        with self._guard:
            lock = self._locks.get(scope)
            if lock is None:
                lock = self._locks[scope] = RLock()
            return lock

    def _step(self, codec: ValueCodec, key: GraphKey, graph_id: str) -> SavedStep | None:
        """A step, read from the store if need be; ``None`` if it is not stored."""
        made = step_id(key, graph_id)
        known = self._steps.get(made[0]) if made is not None else None
        if known is not None or graph_id in self._vetoed:
            return known
        loaded = self._reader.one(codec, key, key.thread, graph_id)
        return None if loaded is None else self._remember(loaded)

    def _remember(self, loaded: Loaded) -> SavedStep:
        step, read = loaded.step, loaded.tuple
        written = frozenset(channel for _, channel, _ in read.pending_writes or ())
        known = self._steps.get(step.checkpoint.id)
        if known is None:
            values = read.checkpoint["channel_values"]
            tasks = count_tasks(read.checkpoint.get("updated_channels"), values)
            known = SavedStep(step=step, lists=loaded.lists, tasks=tasks, written=[])
            self._steps.keep(known)
        else:
            for name, stored in loaded.lists.items():
                mine = known.lists.get(name)
                if mine is None or mine.id != stored.id:
                    known.lists[name] = stored
                else:  # it may know of more items, but the caller goes on with these objects
                    mine.replace_objects(stored.items[: step.checkpoint.lists[name].length])
        known.written_by_others |= written
        return known

    def _saved(self, key: GraphKey, step: Step) -> CheckpointEvent:
        checkpoint = checkpoints.Checkpoint(self._engine, self._space, step.checkpoint)
        return CheckpointEvent(thread_id=key.thread, namespace=key.namespace, checkpoint=checkpoint)


V = TypeVar("V")


class _Bounded(Generic[V]):
    """A dict of bounded size that forgets its oldest entries."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[str, V] = OrderedDict()
        self._lock = Lock()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def get(self, key: str) -> V | None:
        return self._entries.get(key)

    def set(self, key: str, value: V) -> None:
        with self._lock:
            self._entries.pop(key, None)
            self._entries[key] = value
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)

    def remove(self, key: str) -> None:
        with self._lock:
            self._entries.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()


class _StepCache:
    """The steps that were saved or loaded last, by the id of their checkpoint; a run reads nothing again."""

    def __init__(self) -> None:
        self.heads = _Bounded[KnownHead](_MAX_HEADS)
        self._lock = Lock()
        self._steps: dict[str, SavedStep] = {}
        self._items = 0
        self._arrivals: dict[str, Future[None]] = {}

    def get(self, checkpoint_id: str) -> SavedStep | None:
        return self._steps.get(checkpoint_id)

    def keep(self, saved: SavedStep, *, instead_of: str | None = None) -> None:
        """Keep a step, and drop another one that it replaces, or as many as there are too many."""
        checkpoint_id = saved.step.checkpoint.id
        with self._lock:
            self._drop(instead_of)
            self._drop(checkpoint_id)
            self._steps[checkpoint_id] = saved
            self._items += saved.size
            while len(self._steps) > _MAX_STEPS or (self._items > _MAX_ITEMS and len(self._steps) > 1):
                self._drop(next(iter(self._steps)))

    def arrival(self, key: GraphKey, graph_id: str) -> Future[None]:
        """A future that `settle` completes."""
        with self._lock:
            return self._arrivals.setdefault(f"{key.ref} {graph_id}", Future())

    def settle(self, key: GraphKey, graph_id: str) -> None:
        """Complete the future of those who wait for a step."""
        with self._lock:
            arrival = self._arrivals.pop(f"{key.ref} {graph_id}", None)
        if arrival is not None:
            arrival.set_result(None)

    def drop(self, checkpoint_id: str) -> None:
        """Drop a step that was replaced, so that it is read again."""
        with self._lock:
            self._drop(checkpoint_id)

    def clear(self) -> None:
        with self._lock:
            self._steps.clear()
            self._items = 0
        self.heads.clear()

    def _drop(self, checkpoint_id: str | None) -> None:
        dropped = self._steps.pop(checkpoint_id or "", None)
        if dropped is not None:
            self._items -= dropped.size


def _next_list(key: GraphKey, saved: SavedStep, writes: TaskWrites) -> StoredList | None:
    """The list in which the messages of a step's only task come next, if that is certain.

    They are messages with ids, all for one channel that has a list, and that list never branched off.
    """
    record, entries = saved.step.checkpoint, writes.list_entries
    if saved.tasks != 1 or not writes.messages or record.thread != key.thread:
        return None
    channel = entries[0][0]
    stored, prefix = saved.lists.get(channel), record.lists.get(channel)
    if (
        stored is None
        or prefix is None
        or stored.id != prefix.list
        or stored.is_branch
        or not stored.is_messages
    ):
        return None
    for name, _, form, value in entries:
        if name != channel or (form == "p" and len(value.items) != prefix.length):
            return None
    if any(each.fields["id"] is None or each.fields["type"] == "remove" for each in writes.messages):
        return None
    return stored


def _in_list(changes: ChannelChanges) -> Callable[[WrittenMessage], ListPosition | None]:
    """Find messages that tasks wrote among those that a checkpoint adds to its lists."""

    def find(message: WrittenMessage) -> ListPosition | None:
        added = changes.positions.get(id(message.message))
        return added[:2] if added is not None and added[2] == message.fields else None

    return find


def _is_same(stored: CheckpointTuple, request: PutRequest) -> bool:
    """Whether a checkpoint that is put again is what is stored."""
    parent: Any = stored.parent_config
    try:
        return (
            (parent and parent["configurable"]["checkpoint_id"]) == request.parent
            and dict(stored.metadata) == request.metadata
            and dict(stored.checkpoint) == dict(request.checkpoint)
        )
    except Exception:  # noqa: BLE001 - whatever values raise that cannot be compared
        return False


def _graph_fields(key: GraphKey, request: PutRequest, codec: ValueCodec) -> dict[str, Any]:
    """LangGraph's own fields of a checkpoint, but for those about channels."""
    checkpoint = request.checkpoint
    graph: dict[str, Any] = {
        "id": checkpoint["id"],
        "v": checkpoint["v"],
        "ts": checkpoint["ts"],
        "versions": dict(checkpoint["channel_versions"]),
        "seen": {node: dict(versions) for node, versions in checkpoint["versions_seen"].items()},
    }
    if key.subgraph:
        graph["ns"] = key.subgraph
    if request.thread != key.thread:
        graph["thread"] = request.thread
    if request.parent is not None:
        graph["parent"] = request.parent
    hidden = {name: request.metadata[name] for name in (GRAPH, FORKED_FROM) if name in request.metadata}
    if hidden:
        graph[HIDDEN] = _packed_items(codec, hidden)
    updated = checkpoint.get("updated_channels")
    if updated is not None:
        graph["updated"] = list(updated)
    elif "updated_channels" not in checkpoint:
        graph[NO_UPDATED] = True
    more = [name for name in checkpoint if name not in _FIELDS]
    if more:
        graph[MORE] = {name: codec.pack(checkpoint[name]) for name in more}
    return graph


def _plain_metadata(codec: ValueCodec, metadata: dict[str, Any]) -> dict[str, Any]:
    """LangGraph's metadata as it is stored, without keys that treering uses itself."""
    plain = {name: value for name, value in metadata.items() if name not in (GRAPH, FORKED_FROM)}
    counters = plain.get("counters_since_delta_snapshot")
    if counters:
        plain["counters_since_delta_snapshot"] = {name: list(each) for name, each in counters.items()}
    return _packed_items(codec, plain)


def _encoded_metadata(metadata: dict[str, Any], graph: dict[str, Any]) -> EncodedMetadata | None:
    """Encode the metadata of an ordinary step; ``None`` if a value in it may need more than plain JSON."""
    if (
        HIDDEN in graph
        or MORE in graph
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
    except TypeError:  # a number that is too large, a key that is no text
        return None


def _are_simple(plain: dict[str, Any]) -> bool:
    if _SIMPLE.issuperset(map(type, plain.values())):
        return True
    for value in plain.values():  # noqa: SIM110 - three times as fast as a generator
        if type(value) not in _SIMPLE and value != {}:
            return False
    return True


def _packed_items(codec: ValueCodec, plain: dict[str, Any]) -> dict[str, Any]:
    if _are_simple(plain):
        return plain
    try:
        encode_json(plain)
    except Unencodable:
        return {name: codec.pack(value) for name, value in plain.items()}
    return plain


# The store's hooks see messages as plain data; what they change is what is saved.
def _save_request(key: GraphKey, request: PutRequest) -> SaveRequest:
    channels = request.checkpoint["channel_values"]
    messages = channels.get(MESSAGES)
    return SaveRequest(
        thread_id=key.thread,
        namespace=key.namespace,
        messages=[*map(_plain_message, messages)] if isinstance(messages, list) else None,  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        state={name: value for name, value in channels.items() if name != MESSAGES},
        metadata=dict(request.metadata),
        step=request.metadata.get("step"),
    )


def _with_changes(request: PutRequest, offered: SaveRequest, answer: SaveRequest) -> PutRequest:
    """The request with what a hook changed."""
    checkpoint = dict(request.checkpoint)
    channels = dict(checkpoint["channel_values"])
    versions = dict(request.new_versions)
    if answer.state is not offered.state and answer.state is not None:
        messages = {MESSAGES: channels[MESSAGES]} if MESSAGES in channels else {}
        channels = {**answer.state, **messages}
        versions |= {name: checkpoint["channel_versions"].get(name, 1) for name in answer.state}
    if answer.messages is not offered.messages and answer.messages is not None:
        channels[MESSAGES] = [_message(each) for each in answer.messages]
        versions[MESSAGES] = checkpoint["channel_versions"].get(MESSAGES, 1)
    checkpoint["channel_values"] = channels
    return structs.replace(request, checkpoint=checkpoint, metadata=answer.metadata, new_versions=versions)


def _plain_message(message: Any) -> Any:
    if not is_message(message):
        return message
    return copy_value(message_to_dict(cast("type[Any]", type(message)), fingerprint(message)))


def _message(message: Any) -> Any:
    if type_of(message) is not dict:
        return message
    found = message_from_dict(dict(cast("dict[str, Any]", message)))
    return message if found is None else found[0]

"""Saving the steps of a LangGraph run: one commit for a checkpoint, one for what a task wrote.

A checkpoint is written against its parent: values whose version did not change stay where they are, lists
are compared with what was saved of them. What was saved last is remembered by the id of its checkpoint, so
a run that goes on reads nothing; a step whose parent is not remembered (another process, a branch) reads
it first. **Invariant:** the head moves by compare-and-swap, and only forwards: to a newer id, or to a
child of where it is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from treering.adapters.langgraph.cache import Base, Memory, SeenHead
from treering.adapters.langgraph.channels import Channels
from treering.adapters.langgraph.lists import Known, read_list
from treering.adapters.langgraph.materialised import shadowed, with_writes
from treering.adapters.langgraph.pending import TaskWrites, taken, write_event
from treering.adapters.langgraph.queue import Queue, land
from treering.adapters.langgraph.rows import Request, graph_of, is_same, json_of, note_of, plain_metadata
from treering.core.batch import ABSENT, Draft
from treering.core.query import Erasure
from treering.errors import Conflict, ListMoved, RefMoved
from treering.graphs.graph import GRAPH, Graphs, Step, graph_head
from treering.graphs.step import Place, step_id
from treering.threads.checkpoint_record import CheckpointRecord, new_checkpoint_id, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.adapters.langgraph.values import Values
    from treering.core.batch import Expect, Receipt
    from treering.core.clock import Clock
    from treering.store import Store

_TRIES: Final = 8


class Scribe:
    """Writes checkpoints and writes of one store."""

    def __init__(
        self, store: Store, graphs: Graphs, memory: Memory, clock: Clock, *, are_writes_durable: bool = False
    ) -> None:
        self._engine = store.engine
        self._space = store.space
        self._clock = clock
        self._graphs = graphs
        self._memory = memory
        self._are_writes_durable = are_writes_durable
        self.queue = Queue(store.engine, store.space)

    def put(self, values: Values, place: Place, request: Request) -> Step:
        """Save a checkpoint, with the writes that wait for it; durable when this returns."""
        self.queue.announce(place.scope)
        parent = self._parent(values, place, request.parent)
        with self.queue.gate(place.scope):
            riding = self.queue.take(place.scope)
            try:
                return self._put(values, place, request, parent, riding)
            except BaseException:
                self.queue.put_back(riding)
                raise

    def _put(
        self, values: Values, place: Place, request: Request, parent: Base | None, riding: list[TaskWrites]
    ) -> Step:
        is_tail = parent is not None and parent.step.checkpoint.thread == place.thread
        replaced: Step | None = None
        is_fresh = False
        for attempt in range(_TRIES):
            draft = Draft(self._space)
            for writes in riding:
                for message in writes.messages:
                    message.unsettle()
            base = self._written(
                draft, values, place, request, parent, riding, is_tail=is_tail, is_fresh=is_fresh
            )
            head = self._move_head(draft, place, base.step, parent, is_known=attempt == 0)
            batch = draft.batch()
            try:
                receipt = self._engine.commit(batch)
            except ListMoved:  # the tail is someone else's: branch off where the parent ends
                is_tail = False
                continue
            except RefMoved:
                self._memory.see(place.ref, None)
                continue
            land(riding)
            riding.clear()
            if receipt.new_events < len(batch.events):
                there = self._graphs.find(place, base.step.graph_id)
                if there is None or not is_same(there.checkpoint, base.step.checkpoint):
                    replaced, is_fresh = there, True
                    self._memory.see(place.ref, None)
                    continue
            step = self._done(place, base, head, receipt, parent)
            if replaced is not None:
                self._engine.erase(self._space, Erasure(event_seqs=(replaced.seq,)))
            return step
        raise Conflict(
            f"thread {place.thread!r} changed {_TRIES} times while checkpoint {request.checkpoint['id']!r} "
            "was saved; nothing was written, try again"
        )

    def put_writes(
        self,
        values: Values,
        place: Place,
        graph_id: str,
        writes: Sequence[tuple[str, int, Any]],
        task: str,
        path: str,
    ) -> None:
        """Save what a task wrote, as ``(channel, index, value)``: with its checkpoint, or soon, or (urgent)
        now.
        """
        found = taken(
            values,
            place,
            graph_id,
            writes,
            task=task,
            path=path,
            at_us=self._clock.now_us(),
            begun=partial(self._memory.begun, values, place, graph_id),
        )
        self._memory.wrote(found)
        is_waiting = not found.is_urgent and self._lines_up(found)
        if not is_waiting:
            with self.queue.gate(place.scope):
                self.queue.commit(found, self._memory.spot(found))
        self._memory.recent.remember(found.messages)
        if is_waiting and self._are_writes_durable and not self.queue.is_landed(found):
            with self.queue.gate(place.scope):
                if self.queue.withdraw(found):
                    self.queue.commit(found, self._memory.spot(found))

    def _lines_up(self, writes: TaskWrites) -> bool:
        if self._are_writes_durable:
            return self.queue.line_up(writes)
        self.queue.add(writes)
        return True

    def _parent(self, values: Values, place: Place, graph_id: str | None) -> Base | None:
        if graph_id is None:
            return None
        made = step_id(place, graph_id)
        known = self._memory.base(made[0]) if made is not None else None
        if known is not None:
            return known
        step = self._graphs.find(place, graph_id)
        if step is None:
            return None
        return self._memory.base(step.checkpoint.id) or Base(step, self.lists_of(values, step))

    def lists_of(self, values: Values, step: Step) -> dict[str, Known]:
        """The lists of a step, read from the store."""
        return {
            name: read_list(self._engine, self._space, values, step, name) for name in step.checkpoint.lists
        }

    def _written(
        self,
        draft: Draft,
        values: Values,
        place: Place,
        request: Request,
        parent: Base | None,
        riding: list[TaskWrites],
        *,
        is_tail: bool,
        is_fresh: bool,
    ) -> Base:
        """Put all of a checkpoint but the head into a draft."""
        checkpoint = request.checkpoint
        before = parent.step if parent is not None else None
        channels = Channels(
            draft,
            self._engine,
            values,
            parent,
            scope=place.scope,
            recent=self._memory.recent,
            is_tail=is_tail,
        )
        channels.write(request)
        if before is not None and request.metadata.get("counters_since_delta_snapshot"):
            for channel in shadowed(before, request.metadata, checkpoint["channel_values"]):
                self._write_shadow(channels, values, parent, channel)
        graph = graph_of(place, request, values)
        channels.tell(graph)
        metadata = plain_metadata(values, request.metadata)
        made = (None if is_fresh else step_id(place, checkpoint["id"])) or new_checkpoint_id(self._clock)
        step = request.metadata.get("step")
        saved = CheckpointRecord(
            id=made[0],
            thread=place.thread,
            namespace=place.namespace,
            parent=before.checkpoint.id if before is not None else None,
            step=step if type(step) is int else (before.checkpoint.step + 1 if before is not None else 0),
            created_at_us=made[1],
            lists=channels.lists,
            state=channels.state,
            metadata={**metadata, GRAPH: graph},
            note=note_of(request.metadata),
        )
        for number, writes in enumerate(riding):
            write_event(draft, writes, number)
        write_checkpoint(draft, saved, metadata=json_of(metadata, graph))
        return Base(Step(checkpoint=saved, seq=0), channels.known)

    def _write_shadow(self, channels: Channels, values: Values, parent: Base | None, channel: str) -> None:
        """A delta channel of messages with what was written on the parent (see `langgraph_shadows`)."""
        writes = None if parent is None else self._memory.written(parent.step, channel)
        if parent is None or writes is None:
            return
        before = parent.lists.get(channel)
        stretch = parent.step.checkpoint.lists.get(channel)
        if stretch is None:
            before = None
        elif before is None or before.stretch != stretch:
            before = read_list(self._engine, self._space, values, parent.step, channel)
        items = with_writes(before.items if before is not None else [], writes, channel)
        if items:
            channels.write_shadow(channel, before, items)

    def _move_head(
        self, draft: Draft, place: Place, step: Step, parent: Base | None, *, is_known: bool
    ) -> SeenHead | None:
        """Let the head follow, if it should; where it will be then."""
        head = self._memory.head(place.ref)
        if head is None and (parent is not None or not is_known):
            seen = self._graphs.head(place)
            if seen is not None:
                head = SeenHead(seen.version, seen.step.checkpoint.id, seen.step.graph_id, seen.first_us)
        checkpoint = step.checkpoint
        if head is not None and head.graph_id > step.graph_id and head.checkpoint != checkpoint.parent:
            return None
        first_us = head.first_us if head is not None else checkpoint.created_at_us
        expect: Expect = head.version if head is not None else ABSENT
        draft.set_ref(
            place.ref,
            graph_head(checkpoint, first_us, is_root=not place.within),
            scope=place.scope,
            expect=expect,
        )
        return SeenHead(0, checkpoint.id, step.graph_id, first_us)

    def _done(
        self, place: Place, base: Base, head: SeenHead | None, receipt: Receipt, parent: Base | None
    ) -> Step:
        step = Step(checkpoint=base.step.checkpoint, seq=receipt.last_seq)
        if head is not None:
            version = receipt.versions[place.ref]
            self._memory.see(place.ref, SeenHead(version, head.checkpoint, head.graph_id, head.first_us))
        self._memory.keep(
            Base(step, base.lists), instead_of=parent.step.checkpoint.id if parent is not None else None
        )
        for name, known in base.lists.items():
            if known.is_messages:
                before = parent.lists.get(name) if parent is not None else None
                start = before.stretch.length if before is not None else 0
                self._memory.recent.forget(known.held[start : known.stretch.length])
        return step

"""Removing and copying the steps of LangGraph graphs.

Heads move away before anything is removed, and the journal says that something will be, so a thread whose
past was pruned is told from one that is damaged. **Invariant:** what a kept checkpoint is made of stays: a
`DeltaChannel` without a value of its own keeps its ancestors, back to the last one that has it whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from treering.adapters.langgraph.cache import Memory
from treering.adapters.langgraph.history import holds, place_of
from treering.core.batch import Draft, Event
from treering.core.content import Address, list_address
from treering.core.encoding import encode_json
from treering.core.ids import new_id
from treering.core.paging import check_may_erase, each_record
from treering.core.query import Erasure, EventQuery
from treering.errors import Conflict, InvalidInput
from treering.graphs.graph import BEGUN, HOLDER, WRITES, Graphs, graph_head
from treering.graphs.step import GRAPH, Place, Step, copied_id, step_id, writes_key
from treering.threads.checkpoint_record import (
    FORKED_FROM,
    KIND,
    CheckpointRecord,
    ListPrefix,
    Value,
    new_checkpoint_id,
)
from treering.threads.history import CLEANED, DELETED, LEDGER
from treering.threads.writer import CheckpointWriter, NewCheckpoint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from treering.core.clock import Clock
    from treering.core.records import Record
    from treering.store import Store
    from treering.threads.checkpoint_record import StateValue

_SLICE: Final = 5000
_AT_ONCE: Final = 50


class Removal:
    """Deletes, prunes and copies threads of one store."""

    def __init__(self, store: Store, graphs: Graphs, memory: Memory, clock: Clock) -> None:
        self._engine = store.engine
        self._space = store.space
        self._graphs = graphs
        self._memory = memory
        self._clock = clock

    def delete_thread(self, place: Place) -> None:
        """Remove a thread with all its namespaces; nothing happens when it is not there."""
        if place.scope in self._engine.scan_scopes(self._space, place.scope, limit=1):
            self._engine.erase(self._space, Erasure(scopes=(place.scope,)))
            self._say(DELETED, None)
        self._memory.forget()

    def delete_for_runs(self, run_ids: Collection[str]) -> None:
        """Remove the checkpoints that these runs made, and what was written on them."""
        wanted = set(run_ids)
        if not wanted:
            return
        threads: dict[str, list[Step]] = {}
        for step in self._graphs.all_steps():
            if step.metadata.get("run_id") in wanted:
                threads.setdefault(step.checkpoint.thread, []).append(step)
        for thread, steps in threads.items():
            self._remove(thread, {step.checkpoint.id for step in steps})

    def prune(self, place: Place, strategy: str) -> None:
        """Keep only the newest checkpoint of every namespace (``keep_latest``), or nothing (``delete``)."""
        if strategy == "delete":
            self.delete_thread(place)
        elif strategy == "keep_latest":
            steps = list(self._graphs.steps(place, within=None))
            own = [step for step in steps if step.checkpoint.thread == place.thread]
            kept: set[str] = set()
            for within in {step.within for step in own}:
                head = self._graphs.head(self._graphs.place(place.thread, within))
                if head is not None:
                    kept |= self._needed(self._graphs.place(place.thread, within), head.step)
            self._remove(place.thread, {step.checkpoint.id for step in own} - kept)
        else:
            raise InvalidInput(f"there is no strategy {strategy!r}; use 'keep_latest' or 'delete'")

    def copy_thread(self, source: Place, target: Place, thread: str) -> None:
        """Copy all checkpoints and writes; the copy shares nothing that goes with the source."""
        if self._engine.refs(self._space, [target.ref]):
            raise Conflict(f"thread {target.thread!r} exists already; copy to a new one")
        copying = _Copying(self._engine, self._space, self._graphs, source, target, thread)
        copying.run(self._clock)
        self._memory.forget()

    def _needed(self, place: Place, step: Step) -> set[str]:
        """A step, and the ancestors without which its delta channels could not be rebuilt."""
        versions = step.graph["versions"]
        open_channels = {
            name
            for name in step.metadata.get("counters_since_delta_snapshot") or ()
            if name in versions and not holds(step, name)
        }
        needed = {step.checkpoint.id}
        if open_channels:
            for ancestor, _ in self._graphs.line(place, step):
                needed.add(ancestor.checkpoint.id)
                open_channels -= {name for name in open_channels if holds(ancestor, name)}
                if not open_channels:
                    break
        return needed

    def _remove(self, thread: str, gone: set[str]) -> None:
        if not gone:
            return
        check_may_erase(self._engine, self._space)
        root = self._graphs.place(thread, "")
        steps = [step for step in self._graphs.steps(root, within=None) if step.checkpoint.thread == thread]
        seqs = [step.seq for step in steps if step.checkpoint.id in gone]
        places = {step.within: self._graphs.place(thread, step.within) for step in steps}
        seqs += self._writes_of(steps, places, gone)
        self._leave(steps, places, gone)
        self._say(CLEANED, {"checkpoints": len(gone)})
        for start in range(0, len(seqs), _SLICE):
            self._engine.erase(self._space, Erasure(event_seqs=tuple(seqs[start : start + _SLICE])))
        self._memory.forget()

    def _writes_of(self, steps: list[Step], places: dict[str, Place], gone: set[str]) -> list[int]:
        """What was written on steps that go, and on steps that stay for the children that go."""
        children: dict[str, list[Step]] = {}
        for step in sorted(steps, key=lambda each: each.seq):
            children.setdefault(step.checkpoint.parent or "", []).append(step)
        seqs: list[int] = []
        for step in steps:
            born = children.get(step.checkpoint.id, [])
            is_gone = step.checkpoint.id in gone
            if not is_gone and not any(child.checkpoint.id in gone for child in born):
                continue
            for written in self._graphs.written_as(writes_key(places[step.within], step.graph_id)):
                child = next((each for each in born if each.seq > written.seq), None)
                if is_gone or (child is not None and child.checkpoint.id in gone):
                    seqs.append(written.seq)
        return seqs

    def _leave(self, steps: list[Step], places: dict[str, Place], gone: set[str]) -> None:
        """Move every head that would be removed to the newest step that stays."""
        for within, place in places.items():
            head = self._graphs.head(place)
            if head is None or head.step.checkpoint.id not in gone:
                continue
            stays = next(
                (step for step in steps if step.within == within and step.checkpoint.id not in gone), None
            )
            draft = Draft(self._space)
            if stays is None:
                draft.delete_ref(place.ref, scope=place.scope, expect=head.version)
            else:
                value = graph_head(stays.checkpoint, head.first_us, is_root=not within)
                draft.set_ref(place.ref, value, scope=place.scope, expect=head.version)
            self._engine.commit(draft.batch())

    def _say(self, kind: str, counts: dict[str, int] | None) -> None:
        draft = Draft(self._space)
        data = None if counts is None else encode_json(counts)
        draft.event(Event(id=draft.id, kind=kind, ts_us=self._clock.now_us(), scope=LEDGER, data=data))
        self._engine.commit(draft.batch())


class _Copying:
    """One copy of one thread, in the order in which it was written."""

    def __init__(
        self, engine: Any, space: str, graphs: Graphs, source: Place, target: Place, thread: str
    ) -> None:
        self._engine = engine
        self._space = space
        self._writer = CheckpointWriter(engine, space)
        self._graphs = graphs
        self._source = source
        self._target = target
        self._thread = thread
        self._ids: dict[str, CheckpointRecord] = {}
        self._lists: dict[str, tuple[str, int]] = {}
        self._placed: dict[str, Address] = {}

    def run(self, clock: Clock) -> None:
        draft, count = Draft(self._space), 0
        for record in self._records():
            if record.event.kind == KIND:
                self._copy_step(draft, record, clock)
            else:
                self._copy_writes(draft, record)
            count += 1
            if count % _AT_ONCE == 0:
                self._engine.commit(draft.batch())
                draft = Draft(self._space)
        self._copy_heads(draft)
        if count:
            self._engine.commit(draft.batch())

    def _records(self) -> Iterator[Record]:
        query = EventQuery(kinds=(KIND, WRITES), scope=self._source.scope)
        return each_record(self._engine, self._space, query)

    def _copy_step(self, draft: Draft, record: Record, clock: Clock) -> None:
        step = self._graphs.by_id(record.event.id)
        if step is None:
            return
        old = step.checkpoint
        there = self._graphs.place(self._target.thread, step.within)
        if FORKED_FROM in old.metadata:  # its parent has the same id of LangGraph's, and is older
            made = copied_id(there, old.id), old.created_at_us
        else:
            made = step_id(there, step.graph_id) or new_checkpoint_id(clock)
        graph = {name: value for name, value in step.graph.items() if name != "thread"}
        if self._thread != self._target.thread:
            graph["thread"] = self._thread
        copy = structs.replace(
            old,
            id=made[0],
            thread=self._target.thread,
            parent=self._copied_parent(old.parent),
            created_at_us=made[1],
            lists={name: self._copy_list(draft, stretch) for name, stretch in old.lists.items()},
            state={name: self._copy_value(draft, value) for name, value in old.state.items()},
            metadata={**old.metadata, GRAPH: graph},
        )
        self._writer.put(draft, NewCheckpoint(record=copy, origin=self._origin(copy)))
        self._ids[old.id] = copy

    def _copied_parent(self, parent: str | None) -> str | None:
        """The copy of a parent; a thread that the source was forked from is the copy's past as well."""
        copy = self._ids.get(parent or "")
        if copy is not None or parent is None:
            return None if copy is None else copy.id
        origin = self._graphs.by_id(parent)
        return None if origin is None or origin.checkpoint.thread == self._source.thread else parent

    def _origin(self, copy: CheckpointRecord) -> CheckpointRecord | None:
        origin = self._graphs.by_id(copy.parent) if copy.parent and FORKED_FROM in copy.metadata else None
        return None if origin is None else origin.checkpoint

    def _copy_list(self, draft: Draft, stretch: ListPrefix) -> ListPrefix:
        known = self._lists.get(stretch.list)
        if known is None:
            info = self._engine.list_info(self._space, stretch.list)
            parent = None
            if info is not None and info.parent is not None:
                parent = self._copy_list(draft, ListPrefix(info.parent, info.start)).list
            known = (new_id(), info.start if info is not None and parent is not None else 0)
            self._append(draft, known[0], stretch, known[1], parent)
        else:
            self._append(draft, known[0], stretch, known[1], None)
        self._lists[stretch.list] = (known[0], max(known[1], stretch.length))
        return ListPrefix(known[0], stretch.length)

    def _append(self, draft: Draft, list_id: str, stretch: ListPrefix, at: int, parent: str | None) -> None:
        if stretch.length > at or parent is not None or at == 0:
            contents = self._engine.read_list(self._space, stretch.list, at, stretch.length)
            if contents or parent is not None or stretch.list not in self._lists:
                draft.append(list_id, *contents, scope=self._target.scope, at=at, parent=parent)

    def _copy_value(self, draft: Draft, value: StateValue) -> StateValue:
        if isinstance(value, Value):
            return Value(self._copy_content(draft, Address(value.address)), value.digest)
        return {
            key: Value(self._copy_content(draft, Address(each.address)), each.digest)
            for key, each in value.items()
        }

    def _copy_content(self, draft: Draft, address: Address) -> Address:
        placed = self._placed.get(address)
        if placed is None:
            placed = address
            if not address.startswith("o:"):
                placed = draft.put(self._engine.get(self._space, [address])[0], scope=self._target.scope)
            self._placed[address] = placed
        return placed

    def _copy_writes(self, draft: Draft, record: Record) -> None:
        event = record.event
        written = self._graphs.read_written(record)
        data = written.data
        links: dict[Address, None] = {}

        def moved(place: Any) -> Any:
            there = place_of(place, record.batch)
            if isinstance(there, tuple):
                copy = self._copy_list(draft, ListPrefix(there[0], there[1] + 1))
                links[list_address(copy.list)] = None
                return [copy.list, there[1]]
            address = self._copy_content(draft, there)
            links[address] = None
            return address

        def moved_begun(place: Any) -> Any:
            list_id, count, rest = place
            first = moved([list_id, count - 1])[0] if count else ""
            return [first, count, [moved(each) for each in rest]]

        def moved_as(form: str, place: Any) -> Any:
            if form == "v":
                return place
            if form == "l":
                return [moved(each) for each in place]
            if form in BEGUN:
                return moved_begun(place)
            if form == HOLDER:
                return [moved(place[0]), [moved_begun(each) for each in place[1]]]
            return moved(place)

        entries = [
            [channel, index, form, moved_as(form, place)] for channel, index, form, place in data["writes"]
        ]
        graph_id, within = data["step"]
        draft.event(
            structs.replace(
                event,
                id=new_id(),
                scope=self._target.scope,
                thread=writes_key(self._graphs.place(self._target.thread, within), graph_id),
                data=encode_json({**data, "writes": entries}, keep_order=True),
                body=None,
                links=tuple(links),
            )
        )

    def _copy_heads(self, draft: Draft) -> None:
        for within in {copy.metadata[GRAPH].get("ns", "") for copy in self._ids.values()}:
            head = self._graphs.head(self._graphs.place(self._source.thread, within))
            copy = self._ids.get(head.step.checkpoint.id) if head is not None else None
            if copy is not None and head is not None:
                there = self._graphs.place(self._target.thread, within)
                value = graph_head(copy, copy.created_at_us, is_root=not within)
                draft.set_ref(there.ref, value, scope=there.scope)

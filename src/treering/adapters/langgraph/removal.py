"""Deleting, pruning and copying the threads of LangGraph graphs.

Before checkpoints are removed, heads move away from them and the journal records the removal, so that a
thread whose past was pruned can be told from a damaged one. **Invariant:** a checkpoint that is kept stays
readable: for a `DeltaChannel` that it does not store whole, its ancestors are kept back to the last one that
does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from treering.adapters.langgraph.channels import has_whole
from treering.adapters.langgraph.task_writes import parse_place
from treering.core.batch import ANY, Backoff, Draft, Event
from treering.core.content import Address, list_address
from treering.core.encoding import encode_json
from treering.core.ids import new_id
from treering.core.query import Erasure, EventQuery, check_may_erase, each_record
from treering.errors import Conflict, InvalidInput, RefMoved
from treering.graphs.extension import WRITES
from treering.graphs.graph import EMBEDDED_FORM, PREFIX_FORMS, Graphs, put_graph_head
from treering.graphs.step import GRAPH, GraphKey, Step, copied_id, step_id, writes_key
from treering.threads.checkpoint import (
    FORKED_FROM,
    KIND,
    REVISION,
    CheckpointRecord,
    ListPrefix,
    Value,
    new_checkpoint_id,
)
from treering.threads.history import CLEANED, DELETED, LEDGER
from treering.threads.line_files import erase_with_files, warn_of_kept_files
from treering.threads.writer import CheckpointWriter, NewCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Record
    from treering.store import Store
    from treering.threads.checkpoint import StateValue

_PER_ERASURE: Final = 5000
_PER_COMMIT: Final = 50
_ATTEMPTS: Final = 20


class Removal:
    """Deletes, prunes and copies threads of one store."""

    def __init__(self, store: Store, graphs: Graphs, clock: Clock) -> None:
        self._engine = store.engine
        self._space = store.space
        self._graphs = graphs
        self._clock = clock

    def delete_thread(self, key: GraphKey) -> None:
        """Remove a thread with all its namespaces; does nothing if it does not exist."""
        if key.scope in self._engine.scan_scopes(self._space, key.scope, limit=1):
            plan = Erasure(scopes=(key.scope,))
            erased = erase_with_files(self._engine, self._space, plan, threads=plan.scopes)
            self._record(DELETED, None)
            warn_of_kept_files(erased)

    def delete_for_runs(self, run_ids: Collection[str]) -> None:
        """Remove the checkpoints that these runs made, and what tasks wrote on them."""
        wanted = set(run_ids)
        if wanted:
            _retry(lambda: self._delete_for_runs(wanted))

    def _delete_for_runs(self, wanted: set[str]) -> None:
        threads: dict[str, list[Step]] = {}
        for step in self._graphs.all_steps():
            if step.metadata.get("run_id") in wanted:
                threads.setdefault(step.checkpoint.thread, []).append(step)
        for thread, steps in threads.items():
            self._remove(thread, {step.checkpoint.id for step in steps})

    def prune(self, key: GraphKey, strategy: str) -> None:
        """Keep only the newest checkpoint of every namespace (``keep_latest``), or nothing (``delete``)."""
        if strategy == "delete":
            self.delete_thread(key)
        elif strategy == "keep_latest":
            _retry(lambda: self._keep_latest(key))
        else:
            raise InvalidInput(f"strategy {strategy!r} is not supported; use 'keep_latest' or 'delete'")

    def _keep_latest(self, key: GraphKey) -> None:
        steps = list(self._graphs.steps(key, subgraph=None))
        own = [step for step in steps if step.checkpoint.thread == key.thread]
        kept: set[str] = set()
        for subgraph in {step.subgraph for step in own}:
            head = self._graphs.head(self._graphs.key(key.thread, subgraph))
            if head is not None:
                kept |= self._needed(self._graphs.key(key.thread, subgraph), head.step)
        self._remove(key.thread, {step.checkpoint.id for step in own} - kept)

    def copy_thread(self, source: GraphKey, target: GraphKey, thread: str) -> None:
        """Copy all checkpoints and writes; the copy shares nothing that goes with the source."""
        if self._engine.refs(self._space, [target.ref]):
            raise Conflict(f"thread {target.thread!r} already exists; copy to a new one")
        _Copy(self._engine, self._space, self._graphs, source, target, thread).run(self._clock)

    def _needed(self, key: GraphKey, step: Step) -> set[str]:
        """A step, and the ancestors that its delta channels are rebuilt from."""
        versions = step.graph["versions"]
        open_channels = {
            name
            for name in step.metadata.get("counters_since_delta_snapshot") or ()
            if name in versions and not has_whole(step, name)
        }
        needed = {step.checkpoint.id}
        if open_channels:
            for ancestor, _ in self._graphs.line(key, step):
                needed.add(ancestor.checkpoint.id)
                open_channels -= {name for name in open_channels if has_whole(ancestor, name)}
                if not open_channels:
                    break
        return needed

    def _remove(self, thread: str, gone: set[str]) -> None:
        if not gone:
            return
        check_may_erase(self._engine, self._space)
        root = self._graphs.key(thread, "")
        steps = [step for step in self._graphs.steps(root, subgraph=None) if step.checkpoint.thread == thread]
        seqs = [step.seq for step in steps if step.checkpoint.id in gone]
        keys = {step.subgraph: self._graphs.key(thread, step.subgraph) for step in steps}
        seqs += self._writes_of(steps, keys, gone)
        revisions = EventQuery(kinds=(REVISION,), scope=root.scope)
        seqs += [
            each.seq
            for each in each_record(self._engine, self._space, revisions)
            if each.event.parent in gone
        ]
        self._move_heads(steps, keys, gone)
        self._record(CLEANED, {"checkpoints": len(gone)})
        for start in range(0, len(seqs), _PER_ERASURE):
            self._engine.erase(self._space, Erasure(event_seqs=tuple(seqs[start : start + _PER_ERASURE])))

    def _writes_of(self, steps: list[Step], keys: dict[str, GraphKey], gone: set[str]) -> list[int]:
        """The writes on steps that are removed, and those on kept steps that went into children that are."""
        children: dict[str, list[Step]] = {}
        for step in sorted(steps, key=lambda each: each.seq):
            children.setdefault(step.checkpoint.parent or "", []).append(step)
        seqs: list[int] = []
        for step in steps:
            born = children.get(step.checkpoint.id, [])
            is_gone = step.checkpoint.id in gone
            if not is_gone and not any(child.checkpoint.id in gone for child in born):
                continue
            for written in self._graphs.written_as(writes_key(keys[step.subgraph], step.graph_id)):
                child = next((each for each in born if each.seq > written.seq), None)
                if is_gone or (child is not None and child.checkpoint.id in gone):
                    seqs.append(written.seq)
        return seqs

    def _move_heads(self, steps: list[Step], keys: dict[str, GraphKey], gone: set[str]) -> None:
        """Move each head that would be removed to the newest step that is kept."""
        for subgraph, key in keys.items():
            head = self._graphs.head(key)
            if head is None or head.step.checkpoint.id not in gone:
                continue
            stays = next(
                (step for step in steps if step.subgraph == subgraph and step.checkpoint.id not in gone), None
            )
            draft = Draft(self._space)
            if stays is None:
                draft.delete_ref(key.ref, scope=key.scope, expect=head.version)
            else:
                put_graph_head(
                    draft,
                    key.ref,
                    stays.checkpoint,
                    first_us=head.first_us,
                    is_root=not subgraph,
                    scope=key.scope,
                    expect=head.version,
                )
            self._engine.commit(draft.batch())

    def _record(self, kind: str, counts: dict[str, int] | None) -> None:
        draft = Draft(self._space)
        data = None if counts is None else encode_json(counts)
        draft.event(Event(id=draft.id, kind=kind, ts_us=self._clock.now_us(), scope=LEDGER, data=data))
        self._engine.commit(draft.batch())


def _retry(remove: Callable[[], None]) -> None:
    """Remove checkpoints; again, before anything is erased, if a running graph has saved meanwhile."""
    backoff = Backoff()
    for attempt in range(_ATTEMPTS):
        try:
            remove()
        except RefMoved:
            if attempt == _ATTEMPTS - 1:
                raise
            backoff.wait()
        else:
            return


class _Copy:
    """One copy of one thread, row by row in the order of commits."""

    def __init__(
        self, engine: Engine, space: str, graphs: Graphs, source: GraphKey, target: GraphKey, thread: str
    ) -> None:
        self._engine = engine
        self._space = space
        self._graphs = graphs
        self._writer = CheckpointWriter(engine, space)
        self._source = source
        self._target = target
        self._thread = thread
        self._copies: dict[str, CheckpointRecord] = {}
        self._lists: dict[str, tuple[str, int]] = {}
        self._addresses: dict[str, Address] = {}

    def run(self, clock: Clock) -> None:
        draft, count = Draft(self._space), 0
        query = EventQuery(kinds=(KIND, WRITES), scope=self._source.scope)
        for record in each_record(self._engine, self._space, query):
            if record.event.kind == KIND:
                self._copy_step(draft, record, clock)
            else:
                self._copy_writes(draft, record)
            count += 1
            if count % _PER_COMMIT == 0:
                self._engine.commit(draft.batch())
                draft = Draft(self._space)
        self._copy_heads(draft)
        if count:
            self._engine.commit(draft.batch())

    def _copy_step(self, draft: Draft, record: Record, clock: Clock) -> None:
        step = self._graphs.by_id(record.event.id)
        if step is None:
            return
        old = step.checkpoint
        key = self._graphs.key(self._target.thread, step.subgraph)
        if FORKED_FROM in old.metadata:  # its parent has the same LangGraph id, and is older
            made = copied_id(key, old.id), old.created_at_us
        else:
            made = step_id(key, step.graph_id) or new_checkpoint_id(clock)
        graph = {name: value for name, value in step.graph.items() if name != "thread"}
        if self._thread != self._target.thread:
            graph["thread"] = self._thread
        parent, origin = self._copied_parent(old)
        copy = structs.replace(
            old,
            id=made[0],
            thread=self._target.thread,
            parent=parent,
            created_at_us=made[1],
            lists={name: self._copy_list(draft, prefix) for name, prefix in old.lists.items()},
            state={name: self._copy_value(draft, value) for name, value in old.state.items()},
            metadata={**old.metadata, GRAPH: graph},
        )
        self._writer.put(draft, NewCheckpoint(record=copy, origin=origin))
        self._copies[old.id] = copy

    def _copied_parent(self, old: CheckpointRecord) -> tuple[str | None, CheckpointRecord | None]:
        """The copy of a parent; for a fork, the checkpoint of its origin, which is the copy's parent too."""
        if old.parent is None:
            return None, None
        copy = self._copies.get(old.parent)
        if copy is not None:
            return copy.id, None
        step = self._graphs.by_id(old.parent)
        if step is not None and step.checkpoint.thread == self._source.thread:
            return None, None
        origin = step.checkpoint if step is not None and FORKED_FROM in old.metadata else None
        return (None if step is None else old.parent), origin

    def _copy_list(self, draft: Draft, prefix: ListPrefix) -> ListPrefix:
        known = self._lists.get(prefix.list)
        if known is None:
            info = self._engine.list_info(self._space, prefix.list)
            parent = None
            if info is not None and info.parent is not None:
                parent = self._copy_list(draft, ListPrefix(info.parent, info.start)).list
            known = (new_id(), info.start if info is not None and parent is not None else 0)
            self._append(draft, known[0], prefix, known[1], parent)
        else:
            self._append(draft, known[0], prefix, known[1], None)
        self._lists[prefix.list] = (known[0], max(known[1], prefix.length))
        return ListPrefix(known[0], prefix.length)

    def _append(self, draft: Draft, list_id: str, prefix: ListPrefix, at: int, parent: str | None) -> None:
        if prefix.length > at or parent is not None or at == 0:
            contents = self._engine.read_list(self._space, prefix.list, at, prefix.length)
            if contents or parent is not None or prefix.list not in self._lists:
                draft.append(list_id, *contents, scope=self._target.scope, at=at, parent=parent)

    def _copy_value(self, draft: Draft, value: StateValue) -> StateValue:
        if isinstance(value, Value):
            return Value(self._copy_content(draft, Address(value.address)), value.digest)
        return {
            name: Value(self._copy_content(draft, Address(each.address)), each.digest)
            for name, each in value.items()
        }

    def _copy_content(self, draft: Draft, address: Address) -> Address:
        copied = self._addresses.get(address)
        if copied is None:
            copied = address
            if not address.startswith("o:"):
                copied = draft.put(self._engine.get(self._space, [address])[0], scope=self._target.scope)
            self._addresses[address] = copied
        return copied

    def _copy_writes(self, draft: Draft, record: Record) -> None:
        data = self._graphs.read_written(record).data
        links: dict[Address, None] = {}

        def copy_place(place: Any) -> Any:
            old = parse_place(place, record.batch)
            if isinstance(old, tuple):
                copy = self._copy_list(draft, ListPrefix(old[0], old[1] + 1))
                links[list_address(copy.list)] = None
                return [copy.list, old[1]]
            address = self._copy_content(draft, old)
            links[address] = None
            return address

        def copy_prefix(prefix: Any) -> Any:
            list_id, count, rest = prefix
            copied = copy_place([list_id, count - 1])[0] if count else ""
            return [copied, count, [copy_place(each) for each in rest]]

        def copy_value(form: str, place: Any) -> Any:
            if form == "v":
                return place
            if form == "l":
                return [copy_place(each) for each in place]
            if form in PREFIX_FORMS:
                return copy_prefix(place)
            if form == EMBEDDED_FORM:
                return [copy_place(place[0]), [copy_prefix(each) for each in place[1]]]
            return copy_place(place)

        entries = [
            [channel, index, form, copy_value(form, place)] for channel, index, form, place in data["writes"]
        ]
        graph_id, subgraph = data["step"]
        draft.event(
            structs.replace(
                record.event,
                id=new_id(),
                scope=self._target.scope,
                thread=writes_key(self._graphs.key(self._target.thread, subgraph), graph_id),
                data=encode_json({**data, "writes": entries}, keep_order=True),
                body=None,
                links=tuple(links),
            )
        )

    def _copy_heads(self, draft: Draft) -> None:
        for subgraph in {copy.metadata[GRAPH].get("ns", "") for copy in self._copies.values()}:
            head = self._graphs.head(self._graphs.key(self._source.thread, subgraph))
            copy = self._copies.get(head.step.checkpoint.id) if head is not None else None
            if copy is not None:
                key = self._graphs.key(self._target.thread, subgraph)
                put_graph_head(
                    draft,
                    key.ref,
                    copy,
                    first_us=copy.created_at_us,
                    is_root=not subgraph,
                    scope=key.scope,
                    expect=ANY,
                )

"""Graphs: the checkpoints of a framework that numbers, addresses and branches them itself.

A step of a graph is an ordinary checkpoint of a thread (so log, diff, fork and rewind work on it) whose
metadata has, under `GRAPH`, what the framework needs to continue: its own id, the subgraph, the channel
versions. The root graph moves the head of the thread; each subgraph has a head of its own. A step is found by
an id that is computed from the framework's (see `step`); a framework id without a time is found by reading
the thread.

What a task wrote before its step ended is an event of its own kind, found by the step and ordered by sequence
number. A write that was committed before a child of its step was used up by that child: a run that continues
from the step once more must not be given it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treering.core.encoding import decode_json, encode_json
from treering.core.forks import forked_thread
from treering.core.query import EventQuery, each_record
from treering.errors import Corrupt, InvalidInput
from treering.graphs.extension import WRITES
from treering.graphs.step import (
    GRAPH,
    GraphHead,
    GraphKey,
    Step,
    Written,
    graph_key,
    key_of,
    step_id,
    writes_key,
)
from treering.threads.checkpoint import FORKED_FROM, KIND, Revisions, by_id
from treering.threads.history import REWIND
from treering.threads.writer import encode_head, head_listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.batch import Draft, Expect
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref
    from treering.threads.checkpoint import CheckpointRecord

PREFIX_FORMS: Final = ("p", "q")
"""The forms of a list that is written as ``[id of a stored list, length of the prefix, places of the rest]``.
"""
EMBEDDED_FORM: Final = "h"
"""The form of a value with such lists embedded: its own place, and those of the lists."""

_PAGE: Final = 500
_MAX_KEYS: Final = 4096
_WINDOW: Final = 64
"""Two runs on one thread commit a little out of order; steps are sorted by id within so many rows."""


class Graphs:
    """The graphs of one namespace of a space."""

    def __init__(self, engine: Engine, space: str, namespace: str) -> None:
        self._engine = engine
        self._space = space
        self._namespace = namespace
        self._keys: dict[tuple[str, str], GraphKey] = {}

    def key(self, thread_id: str, subgraph: str) -> GraphKey:
        """Return the key of a graph."""
        thread_id = forked_thread(self._engine, self._space, self._namespace, thread_id)
        known = self._keys.get((thread_id, subgraph))
        if known is None:
            if len(self._keys) >= _MAX_KEYS:
                self._keys.clear()
            known = self._keys[thread_id, subgraph] = graph_key(thread_id, self._namespace, subgraph)
        return known

    def head(self, key: GraphKey) -> GraphHead | None:
        """Return the head of a graph; ``None`` if it has none."""
        while True:
            ref = self._engine.refs(self._space, [key.ref]).get(key.ref)
            if ref is None:
                return None
            step = self.by_id(decode_json(ref.value)["checkpoint"])
            if step is not None:
                return _head(ref, step)
            if self._engine.refs(self._space, [key.ref]).get(key.ref) == ref:
                if self._engine.scan(
                    self._space, by_id(decode_json(ref.value)["checkpoint"]), limit=1
                ).records:
                    raise InvalidInput(
                        f"the newest checkpoint of thread {key.thread!r} was not saved by a graph, so no "
                        "graph can continue from it; rewind to one that was, or use another thread"
                    )
                raise Corrupt(
                    f"the head of thread {key.thread!r} names a checkpoint that is not stored; "
                    "run verify, then restore it from a backup"
                )

    def by_id(self, checkpoint_id: str) -> Step | None:
        """Return a step by the id of its checkpoint."""
        for record in self._engine.scan(self._space, by_id(checkpoint_id), limit=1).records:
            return self._step(record, Revisions(self._engine, self._space))
        return None

    def stored(self, key: GraphKey, graph_id: str) -> Step | None:
        """Return a step by the framework's id if it is in this very thread."""
        made = step_id(key, graph_id)
        step = None if made is None else self.by_id(made[0])
        if step is None and (made is None or self.forked_at(key) is not None):
            own = (each for each in self._own(key, None) if each.graph_id == graph_id)
            step = next((each for each in own if each.subgraph == key.subgraph), None)
        return step

    def find(self, key: GraphKey, graph_id: str) -> Step | None:
        """Return a step by the framework's id, from its thread or those that it was forked from."""
        made = step_id(key, graph_id)
        if made is not None:
            step = self.by_id(made[0])
            if step is not None:
                return step
        origin: Step | None = None
        if self._engine.refs(self._space, [key.ref]):
            oldest: Step | None = None
            for step in self._own(key, None):
                if step.graph_id == graph_id and step.subgraph == key.subgraph:
                    return step
                if FORKED_FROM in step.checkpoint.metadata:
                    oldest = step
            origin = None if oldest is None else self._origin(oldest)
        elif key.subgraph and (first := self._first(key)) is not None:
            origin = self._origin(first)
        return None if origin is None else self.find(key_of(origin, key.subgraph), graph_id)

    def steps(self, key: GraphKey, *, subgraph: str | None, until_us: int | None = None) -> Iterator[Step]:
        """Yield the steps of a thread and of those that it was forked from, newest first.

        ``subgraph`` selects one graph (``None``: all); ``until_us`` leaves out later steps.
        """
        own: set[str] = set()
        for step in self._own(key, until_us):
            own.add(step.graph_id)
            if subgraph is None or step.subgraph == subgraph:
                yield step
        step = self.inherited(self.key(key.thread, subgraph)) if subgraph else self._first(key)
        if step is not None and not subgraph:
            step = self._behind(step) if FORKED_FROM in step.checkpoint.metadata else None
        while step is not None:
            if step.graph_id not in own:
                yield step
            step = self._behind(step)

    def _behind(self, step: Step) -> Step | None:
        """The parent of a step; for a copy, the parent of the original."""
        origin = self._origin(step) or step
        return None if origin.checkpoint.parent is None else self.by_id(origin.checkpoint.parent)

    def all_steps(self, *, until_us: int | None = None) -> Iterator[Step]:
        """Yield every step of the namespace, newest first."""
        query = EventQuery(kinds=(KIND,), until_us=until_us, newest_first=True)
        for step in self._in_order(query):
            if step.checkpoint.namespace == self._namespace:
                yield step

    def written(
        self, key: GraphKey, step: Step, *, is_moved: bool = False, until: int | None = None
    ) -> list[Written]:
        """Return what tasks wrote on a step, in the order of commits, before sequence number ``until``.

        With ``is_moved``, only what no child has used up, because the graph continues from the step once
        more.
        """
        found = self.written_as(writes_key(key, step.graph_id))
        there = key_of(step)
        if there == key:
            found = [*self.written_in_origin(step), *found]
        elif (forked_at := self.forked_at(key)) is not None:
            found = [*self.written(there, step, is_moved=True, until=forked_at), *found]
        if until is not None:
            found = [each for each in found if each.seq < until]
        if is_moved and found:
            used_up = self._last_child(key, step, until)
            found = [each for each in found if each.seq > used_up]
        return found

    def written_in_origin(self, step: Step) -> list[Written]:
        """Return, for a copy of another thread's step, what was written on the original and not used up."""
        origin = self._origin(step)
        if origin is None:
            return []
        return self.written(key_of(origin), origin, is_moved=True, until=step.seq)

    def written_as(self, key: str) -> list[Written]:
        """Return what tasks wrote on a step, by its `writes_key`."""
        query = EventQuery(kinds=(WRITES,), thread=key)
        return [self.read_written(each) for each in each_record(self._engine, self._space, query)]

    def written_since(self, key: GraphKey, since_us: int) -> dict[str, list[Written]]:
        """Return what tasks of a thread wrote since a time, by key and in the order of commits."""
        found: dict[str, list[Written]] = {}
        query = EventQuery(kinds=(WRITES,), scope=key.scope, since_us=since_us)
        for record in each_record(self._engine, self._space, query):
            found.setdefault(record.event.thread or "", []).append(self.read_written(record))
        return found

    def children(self, key: GraphKey, step: Step) -> list[Step]:
        """Return the children of a step in its thread, oldest first."""
        found: list[Step] = []
        for each in self._own(key, None):
            if each.seq <= step.seq:
                break
            if each.checkpoint.parent == step.checkpoint.id:
                found.append(each)
        return sorted(found, key=lambda each: each.seq)

    def line(self, key: GraphKey, step: Step) -> Iterator[tuple[Step, int]]:
        """Yield the ancestors of a step, newest first, each with the sequence number its writes must be
        after.

        That is the number of the previous child of the ancestor: what was written up to there was for that
        child. At the start of a fork, the line continues with the parent of the original. Raises `Corrupt` if
        an ancestor is not stored.
        """
        steps = _StepsRead(self._own(key, None))
        while (wanted := step.checkpoint.parent) is not None:
            parent = steps.find(wanted) or self.by_id(wanted)
            if parent is None:
                raise Corrupt(
                    f"checkpoint {step.graph_id!r} of thread {step.checkpoint.thread!r} lost its parent "
                    f"{wanted!r}; its past was removed, so this channel cannot be rebuilt: restore it from a "
                    "backup"
                )
            there = key_of(parent)
            if there == key_of(step):
                behind = max((seq for seq in steps.children(wanted) if seq < step.seq), default=0)
            else:
                steps = _StepsRead(self._own(there, None))
                if step.checkpoint.metadata.get(FORKED_FROM) == wanted:
                    step = parent
                    continue
                behind = self._last_child(there, parent, self.forked_at(key_of(step)))
            yield parent, behind
            step = parent

    def inherited(self, key: GraphKey) -> Step | None:
        """Return the step that a subgraph of a fork continues from until it has one of its own there.

        It was the newest one at the checkpoint that was forked, or rewound to since. ``None`` if the thread
        is not a fork.
        """
        copy = self._copy(key) if key.subgraph else None
        origin = None if copy is None else self._origin(copy)
        if copy is None or origin is None:
            return None
        there = key_of(origin, key.subgraph)
        head = self.head(there)
        step = head.step if head is not None else self.inherited(there)
        used_up = self._last_child(key_of(origin), origin, copy.seq)
        while step is not None and not (
            step.seq < copy.seq
            and (
                step.graph_id < origin.graph_id
                or (step.metadata.get("parents", {}).get("") == origin.graph_id and step.seq > used_up)
            )
        ):
            step = self._behind(step)
        return step

    def forked_at(self, key: GraphKey) -> int | None:
        """Return the sequence number at which a thread began as a fork; ``None`` if it is not one."""
        first = self._first(key)
        return first.seq if first is not None and FORKED_FROM in first.checkpoint.metadata else None

    def _first(self, key: GraphKey) -> Step | None:
        query = EventQuery(kinds=(KIND,), scope=key.scope, brief=True)
        for record in self._engine.scan(self._space, query, limit=1).records:
            return self._step(record, Revisions(self._engine, self._space))
        return None

    def _copy(self, key: GraphKey) -> Step | None:
        """The copy of another thread's step that the head of a thread descends from.

        That is its first checkpoint, unless it was rewound to an earlier one.
        """
        first = self._first(key)
        rewinds = EventQuery(kinds=(REWIND,), scope=key.scope, brief=True)
        if first is None or not self._engine.scan(self._space, rewinds, limit=1).records:
            return first
        root = graph_key(key.thread, key.namespace, "")
        head = self.head(root)
        step = None if head is None else head.step
        steps = _StepsRead(self._own(root, None))
        while step is not None and FORKED_FROM not in step.checkpoint.metadata:
            step = steps.find(step.checkpoint.parent or "")
        return step or first

    def _origin(self, step: Step) -> Step | None:
        """The step of another thread that a step is a copy of."""
        origin = step.checkpoint.metadata.get(FORKED_FROM)
        return None if origin is None else self.by_id(origin)

    def _last_child(self, key: GraphKey, step: Step, until: int | None) -> int:
        children = (each.seq for each in self.children(key, step))
        return max((seq for seq in children if until is None or seq < until), default=0)

    def _own(self, key: GraphKey, until_us: int | None) -> Iterator[Step]:
        query = EventQuery(kinds=(KIND,), scope=key.scope, until_us=until_us, newest_first=True, brief=True)
        return self._in_order(query)

    def _in_order(self, query: EventQuery) -> Iterator[Step]:
        """Steps by the framework's ids, newest first, which is almost the order of commits."""
        waiting: list[Step] = []
        revisions = Revisions(self._engine, self._space)
        after = None
        while True:
            page = self._engine.scan(self._space, query, after=after, limit=_PAGE)
            waiting += [
                step for record in page.records if (step := self._step(record, revisions)) is not None
            ]
            waiting.sort(key=_by_graph_id, reverse=True)
            keep = 0 if page.cursor is None else min(_WINDOW, len(waiting))
            ready, waiting = waiting[: len(waiting) - keep], waiting[len(waiting) - keep :]
            yield from ready
            if page.cursor is None:
                return
            after = page.cursor

    def _step(self, record: Record, revisions: Revisions) -> Step | None:
        checkpoint = revisions.read(record)
        graph = checkpoint.metadata.get(GRAPH)
        if type(graph) is not dict or "versions" not in graph:  # none, or a user's own of that name
            return None
        return Step(checkpoint=checkpoint, seq=record.seq)

    def read_written(self, record: Record) -> Written:
        """Return what a task wrote, from its row."""
        event = record.event
        data = event.data
        if data is None:
            if event.body is None:
                raise Corrupt(f"event {event.id!r} has no data; restore it from a backup")
            data = self._engine.get(self._space, [event.body])[0].data
        return Written(seq=record.seq, batch=record.batch, data=decode_json(data))


class _StepsRead:
    """Steps of a thread, newest first, read as far as was needed to find one."""

    def __init__(self, source: Iterator[Step]) -> None:
        self._source = source
        self._seen: dict[str, Step] = {}
        self._children: dict[str, list[int]] = {}

    def find(self, checkpoint_id: str) -> Step | None:
        """Return a step that is older than those found before."""
        while checkpoint_id not in self._seen and (each := next(self._source, None)) is not None:
            self._seen[each.checkpoint.id] = each
            self._children.setdefault(each.checkpoint.parent or "", []).append(each.seq)
        return self._seen.pop(checkpoint_id, None)

    def children(self, checkpoint_id: str) -> list[int]:
        """Return the sequence numbers of the children of a step that was found."""
        return self._children.get(checkpoint_id, [])


def put_graph_head(
    draft: Draft,
    name: str,
    checkpoint: CheckpointRecord,
    *,
    first_us: int,
    is_root: bool,
    scope: str,
    expect: Expect,
) -> None:
    """Add a move of a graph's head to a batch; the root graph's is the head of its thread."""
    if is_root:
        value, listing = encode_head(checkpoint, first_us), head_listing(checkpoint)
    else:
        value, listing = encode_json({"checkpoint": checkpoint.id}), None
    draft.set_ref(name, value, scope=scope, expect=expect, listing=listing)


def _head(ref: Ref, step: Step) -> GraphHead:
    value = decode_json(ref.value)
    return GraphHead(
        step=step,
        version=ref.version,
        first_us=value.get("first_us", step.checkpoint.created_at_us),
        is_moved=ref.seq > step.seq,
    )


def _by_graph_id(step: Step) -> str:
    return step.graph_id

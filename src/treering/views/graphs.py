"""Graphs: the checkpoints of a framework that numbers, addresses and branches them itself.

A graph's step is an ordinary checkpoint of a thread (so log, diff, fork and rewind know it) whose metadata
says under `GRAPH` what the framework needs to go on: its own id, its namespace within the thread, its
versions. The root namespace moves the head of the thread; every other one has a head of its own. Ids are
not looked up but computed: a UUID of version 6 or 7 says when it was made, so it gives the checkpoint's
id, which says where in the journal the row lies. Any other id is found by reading the thread.

What a task wrote before its step was over is an event of its own kind, found by the step that it belongs
to and ordered by its sequence number. A write that was committed before a child of its step was used up by
that child: whoever goes on from the step once more must not be given it again.
"""

from __future__ import annotations

from hashlib import blake2b
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.encoding import decode_json, encode_json
from treering.core.ids import MAX_ID_CHARS
from treering.core.pages import each_record
from treering.core.query import EventQuery
from treering.core.scopes import namespace_prefix
from treering.errors import Corrupt, InvalidInput
from treering.views.checkpoints import KIND, by_id, read_checkpoint
from treering.views.graph_ids import Place, step_id, writes_key
from treering.views.head_values import head_value
from treering.views.journal import head_ref, thread_scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from treering.core.engine import Engine
    from treering.core.records import Record, Ref
    from treering.views.checkpoints import Checkpoint

GRAPH: Final = "_graph"
"""The key in a checkpoint's metadata under which the framework's own fields are."""
HIDDEN: Final = "hidden"
"""Where the framework's metadata goes whose names are ours."""
WRITES: Final = "writes"
"""The kind of the events that hold what tasks wrote."""
BEGUN: Final = ("p", "q")
"""The forms of a list that is written as ``[id of a list, length of its beginning, places of the rest]``."""

_HEADS: Final = "graph/"
_PAGE: Final = 500
_PLACES: Final = 4096
_MANY: Final = 2000
_WINDOW: Final = 64
"""Two runs on one thread commit a little out of order; that far back, steps are put in the order of their
ids.
"""
FORKED: Final = "forked_from"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that a graph saved, and where it stands in the order of commits."""

    checkpoint: Checkpoint
    seq: int

    @property
    def graph(self) -> dict[str, Any]:
        """The framework's own fields."""
        return self.checkpoint.metadata[GRAPH]

    @property
    def graph_id(self) -> str:
        """The id that the framework gave it."""
        return self.graph["id"]

    @property
    def within(self) -> str:
        """The namespace within the thread."""
        return self.graph.get("ns", "")

    @property
    def metadata(self) -> dict[str, Any]:
        """What the framework calls its metadata."""
        metadata = {
            name: value for name, value in self.checkpoint.metadata.items() if name not in (GRAPH, FORKED)
        }
        return metadata | self.graph.get(HIDDEN, {})


class GraphHead(msgspec.Struct, frozen=True, kw_only=True):
    """A head as it is now. ``is_moved``: someone rewound or forked to it, so its step may have children."""

    step: Step
    version: int
    first_us: int
    is_moved: bool


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What one task wrote in one call, as it was committed."""

    seq: int
    batch: str
    data: dict[str, Any]


class _Metadata(msgspec.Struct):
    """What is read of a checkpoint's row when only its metadata is wanted."""

    metadata: dict[str, Any] = {}


_metadata: Final = msgspec.json.Decoder(_Metadata).decode


class Graphs:
    """The graphs of one namespace of a space."""

    def __init__(self, engine: Engine, space: str, namespace: str) -> None:
        self._engine = engine
        self._space = space
        self._namespace = namespace
        self._places: dict[tuple[str, str], Place] = {}

    def place(self, thread_id: str, within: str) -> Place:
        """Where a graph's steps go."""
        known = self._places.get((thread_id, within))
        if known is None:
            if len(self._places) >= _PLACES:
                self._places.clear()
            known = self._places[thread_id, within] = self._placed(thread_id, within)
        return known

    def _placed(self, thread_id: str, within: str) -> Place:
        ref = head_ref(thread_id, self._namespace)
        if within:
            ref = f"{_HEADS}{namespace_prefix(self._namespace)}{namespace_prefix(thread_id)}{within}"
            if len(ref) > MAX_ID_CHARS or not ref.isprintable():
                digest = blake2b(f"{thread_id}\0{within}".encode("utf-8", "surrogatepass"), digest_size=32)
                ref = f"{_HEADS}{namespace_prefix(self._namespace)}~{digest.hexdigest()}"
        return Place(
            thread=thread_id,
            namespace=self._namespace,
            within=within,
            scope=thread_scope(thread_id, self._namespace),
            ref=ref,
        )

    def head(self, place: Place) -> GraphHead | None:
        """The newest step of a graph; ``None`` when there is none."""
        while True:
            ref = self._engine.refs(self._space, [place.ref]).get(place.ref)
            if ref is None:
                return None
            step = self.by_id(decode_json(ref.value)["checkpoint"])
            if step is not None:
                return _head(ref, step)
            if self._engine.refs(self._space, [place.ref]).get(place.ref) == ref:
                if self._engine.scan(
                    self._space, by_id(decode_json(ref.value)["checkpoint"]), limit=1
                ).records:
                    raise InvalidInput(
                        f"the newest moment of thread {place.thread!r} was not saved by a graph, so none can "
                        "go on from it; rewind to one that was, or use another thread"
                    )
                raise Corrupt(
                    f"the head of thread {place.thread!r} names a checkpoint that is not stored; "
                    "run verify, then restore it from a backup"
                )

    def by_id(self, checkpoint_id: str) -> Step | None:
        """A step by the id of its checkpoint."""
        for record in self._engine.scan(self._space, by_id(checkpoint_id), limit=1).records:
            return self._step(record)
        return None

    def find(self, place: Place, graph_id: str) -> Step | None:
        """A step by the framework's id, in its thread or in those that it was forked from."""
        made = step_id(place, graph_id)
        if made is not None:
            step = self.by_id(made[0])
            if step is not None:
                return step
        if not self._engine.refs(self._space, [place.ref]):
            return None
        origin: str | None = None
        for step in self._own(place, None):
            if step.graph_id == graph_id and step.within == place.within:
                return step
            origin = step.checkpoint.metadata.get(FORKED) or origin
        return self._find_behind(origin, place.within, graph_id)

    def steps(self, place: Place, *, within: str | None, until_us: int | None = None) -> Iterator[Step]:
        """The steps of a thread and of those that it was forked from, newest first.

        ``within`` chooses one namespace; ``until_us`` leaves out what was made later.
        """
        oldest: Step | None = None
        for step in self._own(place, until_us):
            oldest = step
            if within is None or step.within == within:
                yield step
        if oldest is not None and FORKED in oldest.checkpoint.metadata:
            origin = self.by_id(oldest.checkpoint.metadata[FORKED])
            while origin is not None and origin.checkpoint.parent is not None:
                origin = self.by_id(origin.checkpoint.parent)
                if origin is not None and (within is None or origin.within == within):
                    yield origin

    def metadata_of(self, place: Place, unpacked: Callable[[Any], Any]) -> list[tuple[str, dict[str, Any]]]:
        """The ids and the metadata of all steps of one namespace in a thread itself, newest first.

        ``unpacked`` is called for metadata in which something may be packed.
        """
        found: list[tuple[str, dict[str, Any]]] = []
        query, after = EventQuery(kinds=(KIND,), scope=place.scope, newest_first=True, brief=True), None
        while True:
            page = self._engine.scan(self._space, query, after=after, limit=_MANY)
            for record in page.records:
                data = record.event.data
                is_plain = False
                if data is None or (b"$" in data and b'{"$' in data):
                    metadata = read_checkpoint(self._engine, self._space, record).metadata
                else:
                    metadata, is_plain = _metadata(data).metadata, True
                graph = metadata.pop(GRAPH, None)
                if graph is None or graph.get("ns", "") != place.within:
                    continue
                metadata.pop(FORKED, None)
                if HIDDEN in graph:
                    metadata |= graph[HIDDEN]
                found.append((graph["id"], metadata if is_plain else unpacked(metadata)))
            if page.cursor is None:
                found.sort(key=itemgetter(0), reverse=True)
                return found
            after = page.cursor

    def all_steps(self, *, until_us: int | None = None) -> Iterator[Step]:
        """Every step of the namespace, newest first."""
        query = EventQuery(kinds=(KIND,), until_us=until_us, newest_first=True)
        for step in self._in_order(query):
            if step.checkpoint.namespace == self._namespace:
                yield step

    def written(self, place: Place, step: Step, *, is_moved: bool = False) -> list[Written]:
        """What tasks wrote on a step, in the order of commits.

        With ``is_moved`` only what no child has used up: the step is gone on from once more.
        """
        forked = step.checkpoint.metadata.get(FORKED)
        found = self.written_as(writes_key(place, step.graph_id))
        if forked is not None and step.checkpoint.thread == place.thread:
            origin = self.by_id(forked)
            if origin is not None:
                there = self.place(origin.checkpoint.thread, origin.within)
                found = [*self.written(there, origin, is_moved=True), *found]
        if is_moved and found:
            used_up = self._last_child(place, step)
            found = [each for each in found if each.seq > used_up]
        return found

    def written_as(self, key: str) -> list[Written]:
        """What tasks wrote, by its key."""
        query = EventQuery(kinds=(WRITES,), thread=key)
        return [self.read_written(each) for each in each_record(self._engine, self._space, query)]

    def written_since(self, place: Place, since_us: int) -> dict[str, list[Written]]:
        """What tasks of a thread wrote since a time, by key and in the order of commits."""
        found: dict[str, list[Written]] = {}
        query = EventQuery(kinds=(WRITES,), scope=place.scope, since_us=since_us)
        for record in each_record(self._engine, self._space, query):
            found.setdefault(record.event.thread or "", []).append(self.read_written(record))
        return found

    def children(self, place: Place, step: Step) -> list[Step]:
        """The steps of the same thread that grew out of this one, oldest first."""
        found: list[Step] = []
        for each in self._own(place, None):
            if each.seq <= step.seq:
                break
            if each.checkpoint.parent == step.checkpoint.id:
                found.append(each)
        return sorted(found, key=lambda each: each.seq)

    def line(self, place: Place, step: Step) -> Iterator[tuple[Step, int]]:
        """The ancestors of a step, newest first, each with the commit that its writes must come behind.

        That is the commit of the child before the one that the line goes on to: what was written up to there
        was for that child. An ancestor that is not stored raises `Corrupt`.
        """
        seen: dict[str, Step] = {}
        youngest: dict[str, list[int]] = {}
        source = self._own(place, None)
        while step.checkpoint.parent is not None:
            wanted = step.checkpoint.parent
            while wanted not in seen and (each := next(source, None)) is not None:
                seen[each.checkpoint.id] = each
                youngest.setdefault(each.checkpoint.parent or "", []).append(each.seq)
            parent = seen.pop(wanted, None) or self.by_id(wanted)
            if parent is None:
                raise Corrupt(
                    f"checkpoint {step.graph_id!r} of thread {place.thread!r} lost its parent {wanted!r}; "
                    "its past was removed, so this channel cannot be rebuilt: restore it from a backup"
                )
            behind = max((seq for seq in youngest.get(wanted, ()) if seq < step.seq), default=0)
            yield parent, behind
            step = parent

    def _last_child(self, place: Place, step: Step) -> int:
        children = self.children(place, step)
        return children[-1].seq if children else 0

    def _own(self, place: Place, until_us: int | None) -> Iterator[Step]:
        query = EventQuery(kinds=(KIND,), scope=place.scope, until_us=until_us, newest_first=True, brief=True)
        return self._in_order(query)

    def _in_order(self, query: EventQuery) -> Iterator[Step]:
        """Newest first by the framework's ids, which is almost the order of commits."""
        waiting: list[Step] = []
        after = None
        while True:
            page = self._engine.scan(self._space, query, after=after, limit=_PAGE)
            waiting += [step for record in page.records if (step := self._step(record)) is not None]
            waiting.sort(key=_by_graph_id, reverse=True)
            keep = 0 if page.cursor is None else min(_WINDOW, len(waiting))
            ready, waiting = waiting[: len(waiting) - keep], waiting[len(waiting) - keep :]
            yield from ready
            if page.cursor is None:
                return
            after = page.cursor

    def _find_behind(self, origin: str | None, within: str, graph_id: str) -> Step | None:
        step = self.by_id(origin) if origin is not None else None
        if step is None:
            return None
        return self.find(self.place(step.checkpoint.thread, within), graph_id)

    def _step(self, record: Record) -> Step | None:
        checkpoint = read_checkpoint(self._engine, self._space, record)
        if GRAPH not in checkpoint.metadata:
            return None
        return Step(checkpoint=checkpoint, seq=record.seq)

    def read_written(self, record: Record) -> Written:
        """What a task wrote, out of its row in the journal."""
        event = record.event
        data = event.data
        if data is None:
            if event.body is None:
                raise Corrupt(f"event {event.id!r} has lost what it wrote; restore it from a backup")
            data = self._engine.get(self._space, [event.body])[0].data
        return Written(seq=record.seq, batch=record.batch, data=decode_json(data))


def graph_head(checkpoint: Checkpoint, first_us: int, *, is_root: bool) -> bytes:
    """What the head of a graph holds; for the root namespace what every thread's head holds."""
    if not is_root:
        return encode_json({"checkpoint": checkpoint.id})
    return head_value(checkpoint, first_us, thread=checkpoint.thread, namespace=checkpoint.namespace)


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

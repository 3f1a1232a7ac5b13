"""Reading the steps of LangGraph graphs back: one, many, or what a channel was made of.

Nothing is read that is not asked for: a list of checkpoints reads each message once, however many checkpoints
hold it, and a filter looks at rows without their content. **Invariant:** what cannot be found where a
checkpoint says it is raises `Corrupt`; a state is never returned with less in it than was saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, writes_sort_key

from treering.adapters.langgraph.cache import Base, Memory, SeenHead
from treering.adapters.langgraph.embedded_lists import Holed, filled
from treering.adapters.langgraph.lists import Known, read_list
from treering.adapters.langgraph.materialised import is_shadow
from treering.adapters.langgraph.rows import DELTA, INLINE, thread_of
from treering.adapters.langgraph.values import DeltaSnapshot
from treering.core.content import Address, slot_address
from treering.core.encoding import decode
from treering.errors import Corrupt, NotFound
from treering.graphs.graph import BEGUN, HOLDER, Graphs
from treering.graphs.step import Place, Step, Written, metadata_of, step_id, writes_key
from treering.graphs.step import place_of as place_of_step
from treering.threads.state_values import read_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from langgraph.checkpoint.base import PendingWrite

    from treering.adapters.langgraph.pending import Spot
    from treering.adapters.langgraph.values import Values
    from treering.core.content import Content
    from treering.store import Store

_GAP: Final = 4


class _Ancestor(msgspec.Struct, frozen=True):
    """A step in the past of another: what tasks wrote on it behind a commit went into its child."""

    step: Step
    behind: int
    child: Step


class Reader:
    """Reads checkpoints of one store."""

    def __init__(self, store: Store, graphs: Graphs, memory: Memory) -> None:
        self._engine = store.engine
        self._space = store.space
        self._graphs = graphs
        self._memory = memory

    def newest(self, values: Values, place: Place, thread: str) -> CheckpointTuple | None:
        """Where the graph goes on from: the step at the head."""
        head = self._graphs.head(place)
        if head is None:
            step = self._graphs.inherited(place)
            return None if step is None else self._loaded(values, place, thread, step, is_moved=False)
        seen = SeenHead(head.version, head.step.checkpoint.id, head.step.graph_id, head.first_us)
        self._memory.see(place.ref, seen)
        return self._loaded(values, place, thread, head.step, is_moved=head.is_moved)

    def one(self, values: Values, place: Place, thread: str, graph_id: str) -> CheckpointTuple | None:
        """A checkpoint by LangGraph's id."""
        step = self._graphs.find(place, graph_id)
        return None if step is None else self._loaded(values, place, thread, step, is_moved=False)

    def many(
        self,
        values: Values,
        thread: str | None,
        place: Place | None,
        *,
        within: str | None,
        only: str | None,
        metadata: Mapping[str, Any] | None,
        before: str | None,
        limit: int | None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints that match, newest first."""
        until = step_id(place or self._graphs.place("any", ""), before) if before is not None else None
        until_us = until[1] + 1000 if until is not None else None
        if place is None:
            steps = self._graphs.all_steps(until_us=until_us)
        else:
            steps = self._graphs.steps(place, within=within, until_us=until_us)
        read: dict[str, Known] = {}
        count = 0
        for step in steps:
            if limit is not None and count >= limit:
                return
            if (only is not None and step.graph_id != only) or (
                before is not None and step.graph_id >= before
            ):
                continue
            if metadata and not _has(values, step, metadata):
                continue
            count += 1
            there = self._graphs.place(step.checkpoint.thread, step.within)
            yield self._tuple(
                values,
                there,
                thread_of(step) if thread is None else thread,
                step,
                self._lists(values, step, read),
                self._graphs.written(there, step),
            )

    def metadata(self, values: Values, place: Place) -> list[tuple[str, dict[str, Any]]]:
        """The id and the metadata of every checkpoint of one namespace, newest first."""
        return metadata_of(self._engine, self._space, place, values.unpacked)

    def delta_history(
        self, values: Values, place: Place, graph_id: str | None, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """What each channel was made of: the last value that was stored whole, and what was written since."""
        if graph_id is None:
            head = self._graphs.head(place)
            step = head.step if head is not None else self._graphs.inherited(place)
        else:
            step = self._graphs.find(place, graph_id)
        writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        remaining = set(channels)
        chain: list[_Ancestor] = []
        if step is not None:
            child = step
            for ancestor, behind in self._ancestors(place_of_step(step), step):
                chain.append(_Ancestor(ancestor, behind, child))
                child = ancestor
                remaining -= {channel for channel in remaining if holds(ancestor, channel)}
                if not remaining:
                    break
        if chain:
            self._replay(values, chain, set(channels), writes, seeds)
        return {
            channel: cast(
                "DeltaChannelHistory",
                {"writes": writes[channel], **({"seed": seeds[channel]} if channel in seeds else {})},
            )
            for channel in channels
        }

    def _ancestors(self, place: Place, step: Step) -> Iterator[tuple[Step, int]]:
        needed = set(step.metadata.get("counters_since_delta_snapshot") or ())
        try:
            yield from self._graphs.line(place, step)
        except Corrupt:
            if needed:
                raise

    def _replay(
        self,
        values: Values,
        chain: list[_Ancestor],
        remaining: set[str],
        writes: dict[str, list[PendingWrite]],
        seeds: dict[str, Any],
    ) -> None:
        oldest = min(each.step.checkpoint.created_at_us for each in chain)
        places = {
            place.scope: place for each in chain for place in map(place_of_step, (each.step, each.child))
        }
        written: dict[str, list[Written]] = {}
        for place in places.values():
            written |= self._graphs.written_since(place, oldest)
        for each in chain:
            ancestor = each.step
            found = self._written_on(each, written)
            for write in reversed(self._merged(values, found)):
                if write[1] in remaining:
                    writes[write[1]].append(write)
            here = {channel for channel in remaining if holds(ancestor, channel)}
            if here:
                loaded = self._values(values, ancestor, self._lists(values, ancestor, {}))
                for channel in here:
                    seeds[channel] = loaded[channel]
                remaining -= here
        for each in writes.values():
            each.reverse()

    def _written_on(self, past: _Ancestor, written: Mapping[str, list[Written]]) -> list[Written]:
        """What a child was made of: what tasks wrote on its parent, in the thread of either."""
        here, child = place_of_step(past.step), place_of_step(past.child)
        own = written.get(writes_key(child, past.step.graph_id), ())
        if here == child:
            found = [each for each in own if past.behind < each.seq < past.child.seq]
            return [*self._graphs.taken_along(past.step), *found]
        until = self._graphs.forked_at(child) or 0
        there = written.get(writes_key(here, past.step.graph_id), ())
        return [
            *(each for each in there if past.behind < each.seq < until),
            *(each for each in own if each.seq < past.child.seq),
        ]

    def _loaded(
        self, values: Values, place: Place, thread: str, step: Step, *, is_moved: bool
    ) -> CheckpointTuple:
        read: dict[str, Known] = {}
        lists = self._lists(values, step, read)
        found = self._tuple(
            values, place, thread, step, lists, self._graphs.written(place, step, is_moved=is_moved)
        )
        self._memory.keep(Base(step, lists))
        self._memory.found(step, {write[1] for write in found.pending_writes or ()})
        return found

    def _lists(self, values: Values, step: Step, read: dict[str, Known]) -> dict[str, Known]:
        """The lists of a step; ``read`` holds those that were read before, which may be longer."""
        lists: dict[str, Known] = {}
        for name, stretch in step.checkpoint.lists.items():
            if is_shadow(step, name):
                continue
            known = read.get(stretch.list)
            if known is None or known.stretch.length < stretch.length:
                known = read[stretch.list] = read_list(self._engine, self._space, values, step, name)
            lists[name] = known.first(stretch.length)
        return lists

    def _values(self, values: Values, step: Step, lists: Mapping[str, Known]) -> dict[str, Any]:
        found: dict[str, Any] = {
            name: _filled(values, step, value, lists) if type(value) is Holed else values.unpacked(value)
            for name, value in read_state(self._engine, self._space, step.checkpoint.state).items()
        }
        found |= {name: list(known.items) for name, known in lists.items()}
        found |= step.graph.get(INLINE, {})
        for name in step.graph.get(DELTA, ()):
            found[name] = DeltaSnapshot(found[name])
        return found

    def _tuple(
        self,
        values: Values,
        place: Place,
        thread: str,
        step: Step,
        lists: Mapping[str, Known],
        written: Sequence[Written],
    ) -> CheckpointTuple:
        graph = step.graph
        checkpoint: Any = {
            "v": graph["v"],
            "id": graph["id"],
            "ts": graph["ts"],
            "channel_values": self._values(values, step, lists),
            "channel_versions": dict(graph["versions"]),
            "versions_seen": {node: dict(versions) for node, versions in graph["seen"].items()},
            "pending_sends": values.unpacked(graph.get("sends", [])),
            "updated_channels": list(graph["updated"]) if "updated" in graph else None,
        }
        parent = graph.get("parent")
        return CheckpointTuple(
            config=_config(thread, place.within, graph["id"]),
            checkpoint=checkpoint,
            metadata=cast("Any", {name: values.unpacked(each) for name, each in step.metadata.items()}),
            parent_config=_config(thread, place.within, parent) if parent is not None else None,
            pending_writes=self._merged(values, written),
        )

    def _merged(self, values: Values, written: Sequence[Written]) -> list[PendingWrite]:
        """Writes in the order in which they apply; of a repeated one the first counts, of a special one the
        last.
        """
        kept: dict[tuple[str, int], tuple[str, str, str, Any, str]] = {}
        for each in written:
            task, path = each.data["task"], each.data["path"]
            for channel, index, form, place in each.data["writes"]:
                if index < 0 or (task, index) not in kept:
                    kept[task, index] = (path, channel, form, place, each.batch)
        order = sorted(kept, key=lambda key: writes_sort_key(kept[key][0], *key))
        contents = iter(self._contents([each for key in order for each in _places(*kept[key][2:])]))
        merged: list[PendingWrite] = []
        for key in order:
            _, channel, form, place, _ = kept[key]
            if form == "v":
                value = values.unpacked(place)
            elif form == "l":
                value = [values.decode_message(next(contents)) for _ in place]
            elif form == HOLDER:
                value = next(contents)
                inside = [
                    [values.decode_message(next(contents)) for _ in range(count + len(rest))]
                    for _, count, rest in place[1]
                ]
                value = filled(values, decode(value), inside)
            elif form in BEGUN:
                read = values.decode_message if form == "p" else values.decode
                value = [read(next(contents)) for _ in range(place[1] + len(place[2]))]
            else:
                value = (values.decode_message if form == "m" else values.decode)(next(contents))
            merged.append((key[0], channel, value))
        return merged

    def _contents(self, places: list[Address | Spot]) -> list[Content]:
        """Content by address, or by its position in a list."""
        addresses = [place for place in places if not isinstance(place, tuple)]
        positions: dict[str, list[int]] = {}
        for place in places:
            if isinstance(place, tuple):
                positions.setdefault(place[0], []).append(place[1])
        try:
            found = iter(self._engine.get(self._space, addresses) if addresses else ())
            listed = {
                (list_id, first + offset): content
                for list_id, wanted in positions.items()
                for first, last in _runs(wanted)
                for offset, content in enumerate(
                    self._engine.read_list(self._space, list_id, first, last + 1)
                )
            }
            return [listed[place] if isinstance(place, tuple) else next(found) for place in places]
        except (NotFound, KeyError) as error:
            raise Corrupt(f"a pending write is not stored: {error}; run verify, then restore it") from error


def _filled(values: Values, step: Step, value: Holed, lists: Mapping[str, Known]) -> Any:
    try:
        inside = [[*lists[name].held[:count], *values.unpacked(rest)] for name, count, rest in value.lists]
    except KeyError as error:
        raise Corrupt(
            f"checkpoint {step.graph_id!r} has a value with the list {error} inside, which it does not have; "
            "run verify, then restore it from a backup"
        ) from error
    return filled(values, value, inside)


def _runs(positions: list[int]) -> list[tuple[int, int]]:
    """Positions as ranges, gaps of a few included."""
    runs: list[tuple[int, int]] = []
    for position in sorted(positions):
        if runs and position - runs[-1][1] <= _GAP:
            runs[-1] = (runs[-1][0], position)
        else:
            runs.append((position, position))
    return runs


def _places(form: str, place: Any, batch: str) -> list[Address | Spot]:
    if form == "v":
        return []
    if form == HOLDER:
        return [place_of(place[0], batch), *(each for begun in place[1] for each in _begun(begun, batch))]
    if form in BEGUN:
        return _begun(place, batch)
    return [place_of(each, batch) for each in (place if form == "l" else [place])]


def _begun(place: Any, batch: str) -> list[Address | Spot]:
    list_id, count, rest = place
    return [*((list_id, position) for position in range(count)), *(place_of(each, batch) for each in rest)]


def place_of(place: Any, batch: str) -> Address | Spot:
    """Where a write says that its content is; a number is a slot of its own commit."""
    if isinstance(place, list):
        return place[0], place[1]  # pyright: ignore[reportUnknownVariableType] - a list and a position
    return slot_address(batch, 0, place) if isinstance(place, int) else Address(place)


def holds(step: Step, channel: str) -> bool:
    """Whether a step stores a channel whole."""
    return (
        (channel in step.checkpoint.lists and not is_shadow(step, channel))
        or channel in step.checkpoint.state
        or channel in step.graph.get(INLINE, ())
    )


def _has(values: Values, step: Step, wanted: Mapping[str, Any]) -> bool:
    metadata = step.metadata
    return all(
        name in metadata and values.unpacked(metadata[name]) == value
        if value is not None
        else values.unpacked(metadata.get(name)) is None
        for name, value in wanted.items()
    )


def _config(thread: str, within: str, graph_id: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": within, "checkpoint_id": graph_id}}

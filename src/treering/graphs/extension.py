"""What graphs register with threads (see `threads.checkpoint`), and the compact form of a step's fields.

A fork of a step needs the rows of the thread that it comes from: what its tasks wrote, where its subgraphs
are, and the earlier steps that its delta channels are rebuilt from are rows there, not content that both
share.

A subgraph has steps and a head of its own within its thread, and these heads follow when the thread is
rewound. Of what a subgraph did after the target of the rewind it must know nothing: its head goes to the
newest step that belongs to the past of the target; where there is none, it starts anew. **Invariant:** all
heads of a thread move in one commit.

A step names its channels again and again: their versions, the versions that each node has seen, which
channels changed, which are empty, which are lists of messages. In its row the names occur once, with the
versions, and everything else refers to them by number: ``[id, rest, parent, v, ts, {channel: version}, {node:
[seen]}, updated, empty, message lists]``. A version that a node has seen is the number of the channel if it
is the current one, and else ``[number, version]``; a name without a version is written out. Rare fields are
in ``rest`` by name (0 if there are none). **Invariant:** `lengthened` reverses `shortened`.

Every process that opens a store imports this module; most never see a graph. So what a rewind needs of
`graph` and `step` is imported there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from treering.core.batch import ABSENT, Event
from treering.core.content import Content
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import thread_scope
from treering.core.query import each_ref
from treering.errors import Conflict
from treering.threads.checkpoint import MAX_ROW_BYTES, register

if TYPE_CHECKING:
    from collections.abc import Mapping

    from treering.core.batch import Draft
    from treering.core.engine import Engine
    from treering.graphs.step import Step
    from treering.threads.checkpoint import CheckpointRecord

GRAPH: Final = "_graph"
"""The key of the framework's own fields in a checkpoint's metadata."""
WRITES: Final = "writes"
"""The kind of the events that hold what the tasks of a step wrote."""

PHRASES: Final = (
    '","lists":{"messages":["',
    ']},"metadata":{"source":"loop","step":',
    ',"parents":{}},"graph":["',
    '","writes":[["messages",0,"l",[["',
    '","path":"~__pregel_pull, ',
    '",""],"task":"',
)
"""What the rows of steps have in common: phrases that a new store keeps as one byte each."""


class GraphExtension:
    """The fields of a graph's step, and the heads of subgraphs."""

    key: str = GRAPH
    event_kinds: tuple[str, ...] = (WRITES,)

    def head_of(self, checkpoint: CheckpointRecord) -> str | None:
        """Return the ref of the head of the subgraph that saved a checkpoint."""
        from treering.graphs.step import graph_key

        fields: Any = checkpoint.metadata.get(GRAPH)
        subgraph: Any = cast("dict[str, Any]", fields).get("ns") if isinstance(fields, dict) else None
        return (
            graph_key(checkpoint.thread, checkpoint.namespace, subgraph).ref
            if isinstance(subgraph, str)
            else None
        )

    def pack(self, fields: Any) -> bytes | None:
        """Return the fields of a step as they are in its row; ``None`` for a user's own under that name."""
        try:
            packed = encode_json(shortened(fields), keep_order=True)
            return packed if lengthened(decode_json(packed)) == fields else None
        except (AttributeError, LookupError, TypeError, ValueError):
            return None

    def unpack(self, packed: Any) -> Any:
        """Return the fields of a step from its row."""
        return lengthened(packed)

    def required_scope(self, copy: CheckpointRecord, origin: CheckpointRecord | None) -> str | None:
        """Return the scope of the thread that a step was forked from."""
        if origin is None or (origin.thread, origin.namespace) == (copy.thread, copy.namespace):
            return None
        return thread_scope(origin.thread, origin.namespace)

    def rewind(
        self, draft: Draft, engine: Engine, target: CheckpointRecord, *, thread: str, namespace: str
    ) -> None:
        """Move the heads of a thread's subgraphs along with it.

        A graph without subgraphs costs a look at the thread's refs, any other a scan of all of its steps.
        """
        from treering.graphs.graph import Graphs, put_graph_head
        from treering.graphs.step import key_of, subgraph_refs

        heads = {ref.name: ref for ref in each_ref(engine, draft.space, subgraph_refs(thread, namespace))}
        if not heads:
            return
        graphs = Graphs(engine, draft.space, namespace)
        steps = {step.checkpoint.id: step for step in graphs.steps(graphs.key(thread, ""), subgraph=None)}
        subgraphs = {key_of(step).ref: step for step in steps.values() if step.subgraph}
        past = _past(target, steps)
        unseen = [name for name in subgraphs if name not in heads]
        heads |= engine.refs(draft.space, unseen) if unseen else {}
        for name, any_step in subgraphs.items():
            head, step, scope = heads.get(name), past.get(name), key_of(any_step).scope
            if step is None:
                if head is not None:
                    draft.delete_ref(name, scope=scope, expect=head.version)
            elif head is None or decode_json(head.value)["checkpoint"] != step.checkpoint.id:
                put_graph_head(
                    draft,
                    name,
                    step.checkpoint,
                    first_us=step.checkpoint.created_at_us,
                    is_root=False,
                    scope=scope,
                    expect=ABSENT if head is None else head.version,
                )

    def answer(self, draft: Draft, checkpoint: CheckpointRecord, decision: str, value: Any) -> None:
        """Write an answer as the task that waits for it would.

        The adapter has said in the interrupt how (see `adapters.langgraph.task_writes`). The row is that of
        `Graphs.written`.
        """
        from treering.graphs.step import graph_key, writes_key

        found = checkpoint.pending_interrupt
        pending = cast("dict[str, Any]", found if isinstance(found, dict) else {})
        how: Any = pending.get("answer")
        if how is None:
            raise Conflict(
                f"thread {checkpoint.thread!r} waits for an answer that only its program can give; "
                "resume it there"
            )
        graph_id, subgraph = how["step"]
        key = graph_key(checkpoint.thread, checkpoint.namespace, subgraph)
        answers = [*how["after"], value if decision == "edit" else how["values"][decision]]
        row: dict[str, Any] = {
            "step": [graph_id, subgraph],
            "task": how["task"],
            "path": "",
            "writes": [[how["channel"], how["index"], "v", answers]],
        }
        data = encode_json(row, keep_order=True)
        is_small = len(data) <= MAX_ROW_BYTES
        draft.event(
            Event(
                id=f"{draft.id}.answer",
                kind=WRITES,
                ts_us=checkpoint.created_at_us,
                scope=key.scope,
                thread=writes_key(key, graph_id),
                data=data if is_small else None,
                body=None if is_small else draft.put(Content("json", data), scope=key.scope),
            )
        )

    def answered(self, checkpoint: CheckpointRecord, decision: str) -> CheckpointRecord:
        """Return a checkpoint without the interrupt that was answered: it waits for the next one, if any."""
        found = checkpoint.pending_interrupt
        pending = cast("dict[str, Any]", found if isinstance(found, dict) else {})
        others: list[dict[str, Any]] = pending.get("others", [])
        following = {**others[0], **({"others": others[1:]} if others[1:] else {})} if others else None
        return msgspec.structs.replace(checkpoint, pending_interrupt=following, note=f"resume: {decision}")


def _past(target: CheckpointRecord, steps: dict[str, Step]) -> dict[str, Step]:
    """Return the newest step of each subgraph that a checkpoint grew out of, by the name of the subgraph's
    head.

    A step that a subgraph took for a task of the checkpoint itself counts unless a child of it has used it
    up.
    """
    from treering.graphs.step import key_of

    ancestors: set[str] = set()
    parent = target.parent
    while parent is not None and parent in steps:
        ancestors.add(steps[parent].graph_id)
        parent = steps[parent].checkpoint.parent
    here: str = target.metadata[GRAPH]["id"]
    used_up = max((step.seq for step in steps.values() if step.checkpoint.parent == target.id), default=0)
    past: dict[str, Step] = {}
    for step in steps.values():
        made_for = step.metadata.get("parents", {}).get("") if step.subgraph else None
        if made_for in ancestors or (made_for == here and step.seq > used_up):
            past.setdefault(key_of(step).ref, step)
    return past


class RowStart(msgspec.Struct, array_like=True):
    """The start of a row, for readers of metadata: the id, and the rare fields."""

    id: str
    rest: dict[str, Any] | Literal[0]


_VALUES: Final = "values"
_OWN: Final = frozenset({"id", "parent", "v", "ts", "versions", "seen", "updated", "messages", _VALUES})


def shortened(graph: Mapping[str, Any]) -> list[Any]:
    """Return the fields of a step in their compact form."""
    versions: dict[str, Any] = graph["versions"]
    numbers: dict[str, Any] = dict(zip(versions, range(len(versions)), strict=True))
    seen: dict[str, list[Any]] = {}
    for node, each in graph["seen"].items():
        entries: list[Any] = []
        seen[node] = entries
        for name, version in each.items():
            number, current = numbers.get(name, name), versions.get(name)
            is_current = version == current and type(version) is type(current) and number != name
            entries.append(number if is_current else [number, version])
    rest = {name: graph[name] for name in graph if name not in _OWN}
    empty: list[str] = []
    if _VALUES in graph:
        values: dict[str, Any] = graph[_VALUES]
        empty = [name for name in values if values[name] is None]
        if len(empty) < len(values):
            rest[_VALUES] = {name: value for name, value in values.items() if value is not None}
    updated, messages = graph.get("updated"), graph.get("messages", ())
    number = numbers.get
    return [
        graph["id"],
        rest or 0,
        graph.get("parent"),
        graph["v"],
        graph["ts"],
        versions,
        seen,
        None if updated is None else [*map(number, updated, updated)],
        [*map(number, empty, empty)],
        [*map(number, messages, messages)],
    ]


def lengthened(short: list[Any]) -> dict[str, Any]:
    """Return the fields of a step from their compact form, which must not be used afterwards."""
    graph_id, rest, parent, v, ts, versions, seen, updated, empty, messages = short
    current = list(versions.items())
    names = list(versions)
    for node, each in seen.items():
        seen[node] = dict(
            [current[entry] if type(entry) is int else _earlier(entry, names) for entry in each]
        )
    graph: dict[str, Any] = {"id": graph_id, "v": v, "ts": ts, "versions": versions, "seen": seen}
    if parent is not None:
        graph["parent"] = parent
    if updated is not None:
        graph["updated"] = [names[each] if type(each) is int else each for each in updated]
    if empty:
        graph[_VALUES] = {names[each] if type(each) is int else each: None for each in empty}
    if messages:
        graph["messages"] = [names[each] if type(each) is int else each for each in messages]
    if rest:
        if empty and _VALUES in rest:
            graph[_VALUES] |= rest.pop(_VALUES)
        graph |= rest
    return graph


def _earlier(entry: list[Any], names: list[str]) -> tuple[str, Any]:
    name, version = entry
    return names[name] if type(name) is int else name, version


def install() -> None:
    """Register graphs with threads."""
    register(GraphExtension())

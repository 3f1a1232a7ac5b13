"""What graphs register with threads (see `threads.checkpoint`).

A step's row holds the framework's fields in their compact form. A fork of a step needs the rows of the thread
that it comes from: what its tasks wrote, where its subgraphs are, and the earlier steps that its delta
channels are rebuilt from are rows there, not content that both share.

A subgraph has steps and a head of its own within its thread, and these heads follow when the thread is
rewound. Of what a subgraph did after the target of the rewind it must know nothing: its head goes to the
newest step that belongs to the past of the target; where there is none, it starts anew. **Invariant:** all
heads of a thread move in one commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from treering.core.batch import ABSENT
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import thread_scope
from treering.core.query import each_ref
from treering.graphs.graph import WRITES, Graphs, graph_head
from treering.graphs.rows import lengthened, shortened
from treering.graphs.step import GRAPH, Step, graph_key, key_of, subgraph_refs
from treering.threads.checkpoint import register

if TYPE_CHECKING:
    from treering.core.batch import Draft
    from treering.core.engine import Engine
    from treering.threads.checkpoint import CheckpointRecord


class GraphExtension:
    """The fields of a graph's step, and the heads of subgraphs."""

    key: str = GRAPH
    event_kinds: tuple[str, ...] = (WRITES,)

    def head_of(self, checkpoint: CheckpointRecord) -> str | None:
        """Return the ref of the head of the subgraph that saved a checkpoint."""
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
        if origin is None or GRAPH not in copy.metadata:
            return None
        if (origin.thread, origin.namespace) == (copy.thread, copy.namespace):
            return None
        return thread_scope(origin.thread, origin.namespace)

    def rewind(
        self, draft: Draft, engine: Engine, target: CheckpointRecord, *, thread: str, namespace: str
    ) -> None:
        """Move the heads of a thread's subgraphs along with it.

        A graph without subgraphs costs a look at the thread's refs, any other a scan of all of its steps.
        """
        if GRAPH not in target.metadata:
            return
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
                value = graph_head(step.checkpoint, step.checkpoint.created_at_us, is_root=False)
                draft.set_ref(name, value, scope=scope, expect=ABSENT if head is None else head.version)


def _past(target: CheckpointRecord, steps: dict[str, Step]) -> dict[str, Step]:
    """Return the newest step of each subgraph that a checkpoint grew out of, by the name of the subgraph's
    head.

    A step that a subgraph took for a task of the checkpoint itself counts unless a child of it has used it
    up.
    """
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


def install() -> None:
    """Register graphs with threads."""
    register(GraphExtension())

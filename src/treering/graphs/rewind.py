"""The heads of subgraphs follow when their thread is rewound.

A subgraph has steps and a head of its own in the thread (see `graphs`). Of what it did behind the checkpoint
that a thread goes to, it must know nothing: its head goes to the newest step that belongs to the past of that
checkpoint, and where there is none it begins anew. **Invariant:** all heads of a thread move in one commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treering.core.batch import ABSENT
from treering.core.encoding import decode_json
from treering.core.paging import each_ref
from treering.graphs.graph import Graphs, graph_head
from treering.graphs.step import GRAPH, Step, place_of, subgraph_refs

if TYPE_CHECKING:
    from treering.core.batch import Draft
    from treering.core.engine import Engine
    from treering.threads.checkpoint_record import CheckpointRecord


def rewind_subgraphs(
    draft: Draft, engine: Engine, target: CheckpointRecord, *, thread: str, namespace: str
) -> None:
    """Put into a draft how the heads of a thread's subgraphs move when the thread goes to a checkpoint.

    A graph without subgraphs costs a look at the thread's refs, any other one a look at all of its steps.
    """
    if GRAPH not in target.metadata:
        return
    heads = {ref.name: ref for ref in each_ref(engine, draft.space, subgraph_refs(thread, namespace))}
    if not heads:
        return
    graphs = Graphs(engine, draft.space, namespace)
    steps = {step.checkpoint.id: step for step in graphs.steps(graphs.place(thread, ""), within=None)}
    within = {place_of(step).ref: step for step in steps.values() if step.within}
    past = _past(target, steps)
    unseen = [name for name in within if name not in heads]
    heads |= engine.refs(draft.space, unseen) if unseen else {}
    for name, any_step in within.items():
        head, step, scope = heads.get(name), past.get(name), place_of(any_step).scope
        if step is None:
            if head is not None:
                draft.delete_ref(name, scope=scope, expect=head.version)
        elif head is None or decode_json(head.value)["checkpoint"] != step.checkpoint.id:
            value = graph_head(step.checkpoint, step.checkpoint.created_at_us, is_root=False)
            draft.set_ref(name, value, scope=scope, expect=ABSENT if head is None else head.version)


def _past(target: CheckpointRecord, steps: dict[str, Step]) -> dict[str, Step]:
    """The newest step of each subgraph that a checkpoint was made of, or waits for, by its head's name.

    What a subgraph did for a task of the moment itself counts if no child has used it up.
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
        made_for = step.metadata.get("parents", {}).get("") if step.within else None
        if made_for in ancestors or (made_for == here and step.seq > used_up):
            past.setdefault(place_of(step).ref, step)
    return past

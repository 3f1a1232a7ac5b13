"""What the steps of graphs are made of, for a policy that drops some of them (see `core.deltas`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from treering.core.deltas import Made
from treering.views.checkpoints import read_checkpoint
from treering.views.graph_steps import FORKED, GRAPH

if TYPE_CHECKING:
    from treering.core.engine import Engine
    from treering.core.records import Record

_NAMES: Final = (b'"graph"', b'"%s"' % GRAPH.encode())


def made_of(engine: Engine, space: str, record: Record) -> Made | None:
    """What a checkpoint's row says of it; ``None`` for one that no graph saved."""
    event = record.event
    data = event.data or b""
    if event.data is None and event.body is not None:
        data = engine.get(space, [event.body])[0].data
    if not any(name in data for name in _NAMES):
        return None
    checkpoint = read_checkpoint(engine, space, record)
    graph: Any = checkpoint.metadata.get(GRAPH)
    if type(graph) is not dict or "versions" not in graph:
        return None
    known = cast("dict[str, Any]", graph)
    whole = {*checkpoint.lists} - {*known.get("shadows", ())}
    held = frozenset({*whole, *checkpoint.state, *known.get("values", ())})
    counted: Any = checkpoint.metadata.get("counters_since_delta_snapshot") or ()
    return Made(
        parent=checkpoint.parent,
        copy_of=checkpoint.metadata.get(FORKED),
        open=frozenset(name for name in counted if name in known["versions"] and name not in held),
        held=held,
    )

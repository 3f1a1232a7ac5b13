"""The metadata of a graph's steps, without the steps: what lists of checkpoints show.

Of each row only the metadata and the beginning of what the framework keeps there is decoded.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.encoding import is_tagged
from treering.core.query import EventQuery
from treering.views.checkpoints import KIND, read_checkpoint
from treering.views.graph_rows import Named
from treering.views.graph_steps import FORKED, GRAPH, HIDDEN

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.core.engine import Engine
    from treering.views.graph_ids import Place

_MANY: Final = 2000


class _Metadata(msgspec.Struct, gc=False):
    """What is read of a checkpoint's row when only its metadata is wanted."""

    metadata: dict[str, Any] = {}
    graph: Named | None = None


_NOTHING: Final[dict[str, Any]] = {}
_metadata: Final = msgspec.json.Decoder(_Metadata).decode


def metadata_of(
    engine: Engine, space: str, place: Place, unpacked: Callable[[Any], Any]
) -> list[tuple[str, dict[str, Any]]]:
    """The ids and the metadata of all steps of one namespace in a thread itself, newest first.

    ``unpacked`` is called for metadata in which something may be packed.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    query, after = EventQuery(kinds=(KIND,), scope=place.scope, newest_first=True, brief=True), None
    while True:
        page = engine.scan(space, query, after=after, limit=_MANY)
        for record in page.records:
            data = record.event.data
            if data is None or is_tagged(data):
                metadata = read_checkpoint(engine, space, record).metadata
                named, is_plain = None, False
            else:
                row = _metadata(data)
                metadata, named, is_plain = row.metadata, row.graph, True
            rest: dict[str, Any]
            if named is not None:
                graph_id, rest = named.id, named.rest or _NOTHING
            elif GRAPH in metadata:
                rest = metadata.pop(GRAPH)
                graph_id = rest["id"]
            else:
                continue
            if rest.get("ns", "") == place.within:
                metadata.pop(FORKED, None)
                if HIDDEN in rest:
                    metadata |= rest[HIDDEN]
                found.append((graph_id, metadata if is_plain else unpacked(metadata)))
        if page.cursor is None:
            found.sort(key=itemgetter(0), reverse=True)
            return found
        after = page.cursor

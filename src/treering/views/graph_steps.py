"""A step of a graph: an ordinary checkpoint whose metadata says what the framework needs to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.views.graph_ids import Place, placed
from treering.views.graph_rows import GRAPH
from treering.views.journal import thread_scope

if TYPE_CHECKING:
    from treering.views.checkpoints import Checkpoint

HIDDEN: Final = "hidden"
"""Where the framework's metadata goes whose names are ours."""
FORKED: Final = "forked_from"
"""The key under which a copy names the checkpoint of another thread that it is a copy of."""


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


def place_of(step: Step, within: str | None = None) -> Place:
    """Where a step lies, whoever reads it; or another namespace ``within`` the same thread."""
    checkpoint = step.checkpoint
    return placed(checkpoint.thread, checkpoint.namespace, step.within if within is None else within)


def needed_scope(copy: Checkpoint, origin: Checkpoint | None) -> str | None:
    """The scope without which a copy of another thread's step cannot be read; ``None`` if there is none.

    What a graph's delta channels are made of, what its tasks wrote and where its subgraphs are lies in rows
    of the thread that it was forked from, not in the content that both share.
    """
    if origin is None or GRAPH not in copy.metadata:
        return None
    if (origin.thread, origin.namespace) == (copy.thread, copy.namespace):
        return None
    return thread_scope(origin.thread, origin.namespace)

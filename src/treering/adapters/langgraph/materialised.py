"""Delta channels of messages, kept whole for treering's own views.

Of a `DeltaChannel` LangGraph hands over only the changes, and every 100th time the whole. A thread that shows
its conversation at every 100th checkpoint would be of little use, so the messages that tasks wrote are added
to the list of the moment before, which costs no content: the list and the writes share it. LangGraph is never
given such a list. **Invariant:** a shadow is exact or absent: where it is not known what was written (another
process did, or something that is no message), there is none until LangGraph stores the channel whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import RemoveMessage
from langgraph.checkpoint.base import writes_sort_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from treering.adapters.langgraph.pending import TaskWrites
    from treering.graphs.graph import Step

REMOVE_ALL: Final = "__remove_all__"
"""The id of a `RemoveMessage` that stands for all messages (LangGraph's REMOVE_ALL_MESSAGES)."""
SHADOWS: Final = "shadows"
"""Where a step says which of its lists are not LangGraph's."""


def shadowed(before: Step, metadata: Mapping[str, Any], given: Iterable[str]) -> list[str]:
    """The delta channels that a step does not store whole, and whose messages its parent holds (or none)."""
    changed = metadata.get("counters_since_delta_snapshot")
    if not changed:
        return []
    versions = before.graph["versions"]
    held = set(before.checkpoint.lists) & set(before.graph.get("messages", ()))
    return [name for name in changed if name not in given and (name in held or name not in versions)]


def with_writes(items: Sequence[Any], writes: Sequence[TaskWrites], channel: str) -> list[Any] | None:
    """Messages with those that tasks wrote, as LangGraph merges them; ``None`` if more was written."""
    entries = sorted(
        (
            (writes_sort_key(each.path, each.task, index), form, value)
            for each in writes
            for name, index, form, value in each.entries
            if name == channel
        ),
        key=lambda entry: entry[0],
    )
    merged: dict[Any, Any] = {message.id: message for message in items}
    if len(merged) != len(items):
        return None
    for _, form, value in entries:
        if form not in ("m", "l", "p"):
            return None
        begun: list[Any] = value.items if form == "p" else []
        rest: list[Any] = value.rest if form == "p" else [value] if form == "m" else value
        for message in (*begun, *(pending.message for pending in rest)):
            if not isinstance(message, RemoveMessage):
                merged[message.id] = message
            elif message.id == REMOVE_ALL:
                merged.clear()
            else:
                merged.pop(message.id, None)
    return None if None in merged else list(merged.values())


def is_shadow(step: Step, channel: str) -> bool:
    """Whether a list of a step is not LangGraph's."""
    return channel in step.graph.get(SHADOWS, ())

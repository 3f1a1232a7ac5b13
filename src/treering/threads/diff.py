"""Compare two checkpoints.

Messages are compared by their common prefix and suffix: a conversation grows at its end, and an edit changes
the middle. State is compared value by value and described by a JSON patch (RFC 6902) that turns the first
state into the second; so is each of the other list channels.

`changes_since` is for a person who has to decide about something that was asked for a while ago.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.clock import to_datetime
from treering.core.ids import short_id
from treering.core.notebook import table
from treering.runs.messages import preview
from treering.threads.checkpoint import MESSAGES
from treering.threads.head import common_length, fingerprint
from treering.workspaces.diff import FileChange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from treering.runs.timeline import Timeline
    from treering.threads.checkpoint import Checkpoint
    from treering.threads.thread import Thread


class MessageChange(msgspec.Struct, frozen=True, kw_only=True):
    """A message that differs at the same index in both."""

    index: int
    before: Any
    after: Any


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The changes from ``before`` to ``after``; removed messages have indexes of ``before``, others of
    ``after``.
    """

    before: str
    after: str
    common: int
    """The number of messages that both begin with."""
    added: list[tuple[int, Any]]
    removed: list[tuple[int, Any]]
    changed: list[MessageChange]
    state: list[dict[str, Any]]
    files: list[FileChange] = []
    lists: dict[str, list[dict[str, Any]]] = {}
    """A JSON patch for each of the other list channels that differs."""

    def _repr_html_(self) -> str:
        rows = [
            *(("message added", index, preview(message)) for index, message in self.added),
            *(("message removed", index, preview(message)) for index, message in self.removed),
            *(
                ("message changed", each.index, f"{preview(each.before)} \u2192 {preview(each.after)}")
                for each in self.changed
            ),
            *((f"state {each.get('op')}", each.get("path"), each.get("value")) for each in self.state),
            *((f"file {each.change}", each.path, each.text) for each in self.files),
        ]
        return table(
            f"{short_id(self.before)} \u2192 {short_id(self.after)}", rows, head=("", "where", "what")
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing differs."""
        return not any((self.added, self.removed, self.changed, self.state, self.files, self.lists))


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a timeline, in short."""

    ts_us: int
    label: str
    agent: str | None = None

    @property
    def ts(self) -> datetime:
        """In UTC."""
        return to_datetime(self.ts_us)


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a thread since a moment: the last events of its timeline, and changes to files."""

    events: list[Happened]
    files: list[FileChange]
    earlier: int = 0
    """How many events since then are not listed, because they are older."""


_EVENTS_SHOWN: Final = 20


def changes_since(
    thread: Thread | None,
    timeline: Timeline,
    *,
    checkpoint_id: str | None,
    since_us: int,
    run_id: str | None,
    folder: str | Path | None = None,
) -> Changes:
    """Return what happened since a checkpoint of a thread, or (without one) in a run since a time.

    The files are those of ``folder`` as it is now, or else of the thread's head.
    """
    events = list(
        timeline.since(since_us, run_id=run_id)
        if thread is None
        else timeline.since(since_us, thread_id=thread.id, namespace=thread.namespace)
    )
    files: list[FileChange] = []
    if thread is not None:
        asked = thread.at(checkpoint_id) if checkpoint_id else None
        before = None if asked is None else asked.snapshot
        head = thread.head
        after = None if head is None else head.snapshot
        if folder is not None:
            after = thread.workspace.snapshot(folder, note="taken to show what changed")
        if before is not None or folder is not None:
            files = thread.workspace.diff(before, after)
    shown = events[-_EVENTS_SHOWN:]
    return Changes(
        events=[Happened(ts_us=each.ts_us, label=each.label, agent=each.agent) for each in shown],
        files=files,
        earlier=len(events) - len(shown),
    )


def difference(before: Checkpoint, after: Checkpoint, *, files: Sequence[FileChange] = ()) -> Difference:
    """Compare two checkpoints of any threads; ``files`` are the changes between their snapshots."""
    old, new = before.items(MESSAGES), after.items(MESSAGES)
    old_prints, new_prints = [*map(fingerprint, old)], [*map(fingerprint, new)]
    start = common_length(old_prints, new_prints)
    tail = common_length(old_prints[start:][::-1], new_prints[start:][::-1])
    old_end, new_end = len(old) - tail, len(new) - tail
    paired = min(old_end, new_end) - start
    return Difference(
        before=before.id,
        after=after.id,
        common=start,
        added=[(index, new[index]) for index in range(start + paired, new_end)],
        removed=[(index, old[index]) for index in range(start + paired, old_end)],
        changed=[
            MessageChange(index=index, before=old[index], after=new[index])
            for index in range(start, start + paired)
        ],
        state=list(json_patch(before.state, after.state)),
        files=list(files),
        lists=_lists(before, after),
    )


def json_patch(before: Any, after: Any, path: str = "") -> Iterator[dict[str, Any]]:
    """Yield the operations that turn one value into the other, objects by key and lists by item."""
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _patch_objects(cast("dict[str, Any]", before), cast("dict[str, Any]", after), path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _patch_lists(cast("list[Any]", before), cast("list[Any]", after), path)
    elif fingerprint(before) != fingerprint(after):
        yield {"op": "replace", "path": path, "value": after}


def _lists(before: Checkpoint, after: Checkpoint) -> dict[str, list[dict[str, Any]]]:
    old, new = before.record.lists, after.record.lists
    names = [name for name in {**old, **new} if name != MESSAGES and old.get(name) != new.get(name)]
    patches = {name: list(_patch_lists(before.items(name), after.items(name), "")) for name in names}
    return {name: patch for name, patch in patches.items() if patch}


def _patch_objects(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[dict[str, Any]]:
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": _below(path, key)}
    for key, value in after.items():
        if key in before:
            yield from json_patch(before[key], value, _below(path, key))
        else:
            yield {"op": "add", "path": _below(path, key), "value": value}


def _patch_lists(before: list[Any], after: list[Any], path: str) -> Iterator[dict[str, Any]]:
    both = min(len(before), len(after))
    for index in range(both):
        yield from json_patch(before[index], after[index], f"{path}/{index}")
    for index in range(len(before) - 1, both - 1, -1):
        yield {"op": "remove", "path": f"{path}/{index}"}
    for value in after[both:]:
        yield {"op": "add", "path": f"{path}/-", "value": value}


def _below(path: str, key: object) -> str:
    return f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}"

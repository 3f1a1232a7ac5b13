"""Which checkpoints a policy keeps: the vocabulary of `treering.core.retention`, for sandboxes.

The checkpoints of a storage are decided on together, or those of each session by themselves. ``tagged`` means
the tag of a session, the prefix of such tags, or the comment of a checkpoint; ``max_bytes`` counts what
restores would write. **Invariant:** the newest checkpoint, the one that ``latest`` stands for, is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from treering.core.clock import from_datetime
from treering.core.retention import Entry, Keep, select
from treering.sandbox.records import CheckpointInfo


def dropped_by(
    keep: Keep, newest_first: Sequence[CheckpointInfo], *, now_us: int, per_session: bool
) -> list[CheckpointInfo]:
    """Those that no rule wants, newest first."""
    groups: dict[str, list[Entry]] = {}
    for place, info in enumerate(newest_first):
        groups.setdefault(info.tag if per_session else "", []).append(
            Entry(
                # Among equal times the one that was committed later is the newer one.
                id=f"{len(newest_first) - place:010}",
                ts_us=time_of(info),
                tags=frozenset(filter(None, (info.tag, info.tag.rpartition("-")[0], info.comment))),
                size_bytes=info.size_bytes or 0,
                pinned=place == 0,
            )
        )
    gone = {entry.id for entries in groups.values() for entry in select(entries, keep, now_us=now_us).dropped}
    return [info for place, info in enumerate(newest_first) if f"{len(newest_first) - place:010}" in gone]


def time_of(info: CheckpointInfo) -> int:
    """When a checkpoint was taken, by the clock of whoever took it."""
    return from_datetime(datetime.fromisoformat(info.timestamp))

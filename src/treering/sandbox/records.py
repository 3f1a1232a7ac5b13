"""What a sandbox tells: its checkpoints, and what a run came to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from treering.core.clock import from_datetime
from treering.core.retention import Keep, RetentionEntry, select
from treering.errors import InvalidInput

LATEST = "latest"
"""Stands for the newest checkpoint of the whole storage, of whichever session."""


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint: a moment of a sandbox's files, and where it came from.

    ``id`` is what `run(from_=)` takes. ``hash`` is the SHA-256 name of the root tree: equal content has an
    equal hash, on any machine. ``size_bytes`` is what a restore would write. ``parent_id`` is the checkpoint
    that the sandbox was at before. ``workspace_path`` is where the workspace lay when it was taken.
    """

    id: str
    hash: str
    tag: str
    timestamp: str
    size_bytes: int | None = None
    agent_type: str | None = None
    model: str | None = None
    workspace_mode: str | None = None
    parent_id: str | None = None
    comment: str | None = None
    files: int | None = None
    workspace_path: str | None = None

    def check_fits(self, *, agent: str, workspace_mode: str) -> None:
        """Whether a sandbox of this agent and mode can begin with it; `InvalidInput` says what differs."""
        pairs = (("agent", self.agent_type, agent), ("workspace_mode", self.workspace_mode, workspace_mode))
        for what, made_with, wanted in pairs:
            if made_with is not None and made_with != wanted:
                raise InvalidInput(
                    f"checkpoint {self.id} was made with {what}={made_with!r}, this sandbox has {wanted!r}; "
                    "nothing was downloaded"
                )


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """Which checkpoints went, or would go in a dry run, newest first, and how many stay.

    The bytes that only they needed are freed by a prune.
    """

    dropped: tuple[CheckpointInfo, ...]
    kept: int
    dry_run: bool = False


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """What a prune did, or would do in a dry run.

    ``deleted`` packs are gone, with ``freed_bytes``. ``waiting`` packs are condemned and go with a later
    prune, when the grace is over; ``copied_bytes`` of theirs are still needed and lie elsewhere now.
    """

    deleted: int = 0
    freed_bytes: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    copied_bytes: int = 0
    dry_run: bool = False


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint says besides its files."""

    tag: str
    agent_type: str | None = None
    model: str | None = None
    workspace_mode: str | None = None
    parent_id: str | None = None
    comment: str | None = None
    workspace_path: str | None = None


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to. ``checkpoint`` is ``None`` when none was taken; ``warning`` then says why.

    ``output`` is what the program wrote to stdout; of a run in the background it is empty, and so is
    ``exit_code`` until `Sandbox.wait` has it.
    """

    output: str
    exit_code: int | None
    checkpoint: CheckpointInfo | None
    sandbox_id: str
    text: str | None = None
    run_id: str | None = None
    warning: str | None = None


# -----------------------------------------------------------------------------------------------------------
# Which checkpoints a policy keeps: the vocabulary of `treering.core.retention`, for sandboxes.
#
# The checkpoints of a storage are decided on together, or those of each session by themselves. ``tagged``
# means the tag of a session, the prefix of such tags, or the comment of a checkpoint; ``max_bytes`` counts
# what restores would write. **Invariant:** the newest checkpoint, the one that ``latest`` stands for, is
# kept.


def dropped_by(
    keep: Keep, newest_first: Sequence[CheckpointInfo], *, now_us: int, per_session: bool
) -> list[CheckpointInfo]:
    """Those that no rule wants, newest first."""
    groups: dict[str, list[RetentionEntry]] = {}
    for place, info in enumerate(newest_first):
        groups.setdefault(info.tag if per_session else "", []).append(
            RetentionEntry(
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

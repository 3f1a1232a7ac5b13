"""What a layer above threads knows of the checkpoints that it saves.

A framework that numbers, branches and addresses its own steps keeps fields of its own in the metadata of
their checkpoints. It registers a `CheckpointExtension` for them, which the generic thread calls when such a
checkpoint is written, read, forked, rewound to or removed; threads know nothing else of it. `treering.store`
registers the one extension that there is, so every process that opens a store has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from treering.core.batch import Draft
    from treering.core.engine import Engine
    from treering.threads.checkpoint_record import CheckpointRecord


class CheckpointExtension(Protocol):
    """The fields of a framework in the metadata of its checkpoints, and what follows from them."""

    @property
    def key(self) -> str:
        """The key in a checkpoint's metadata under which the fields are."""
        ...

    @property
    def event_kinds(self) -> tuple[str, ...]:
        """The kinds of further events that belong to checkpoints and are removed with them."""
        ...

    def head_of(self, checkpoint: CheckpointRecord) -> str | None:
        """Return the ref of the head that a checkpoint is behind, if that is not the head of its thread."""
        ...

    def pack(self, fields: Any) -> bytes | None:
        """Return the fields as compact JSON for the row; ``None`` if they are not the framework's own."""
        ...

    def unpack(self, packed: Any) -> Any:
        """Return the fields from decoded JSON; `ValueError`, `TypeError` or `LookupError` if malformed."""
        ...

    def required_scope(self, copy: CheckpointRecord, origin: CheckpointRecord | None) -> str | None:
        """Return the scope of another thread whose rows are needed to read a checkpoint copied from it."""
        ...

    def rewind(
        self, draft: Draft, engine: Engine, target: CheckpointRecord, *, thread: str, namespace: str
    ) -> None:
        """Add to a batch what else must move when the head of a thread goes back to ``target``."""
        ...


_registered: CheckpointExtension | None = None


def register(extension: CheckpointExtension) -> None:
    """Use an extension in this process."""
    global _registered  # noqa: PLW0603 - set once, at import time
    _registered = extension


def registered() -> CheckpointExtension | None:
    """Return the extension in use."""
    return _registered

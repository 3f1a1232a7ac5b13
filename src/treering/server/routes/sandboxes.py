"""Routes for the checkpoints of sandboxes that this store keeps, also those of other machines.

The ``hash`` of a checkpoint is a snapshot, so the routes of snapshots list, return and compare its files.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from treering.sandbox.storage import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    CheckpointInfo,
    SessionOutput,
    StoreStorage,
    storage_in,
)
from treering.server.endpoints import Call, endpoint


class CheckpointsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter by session: ``tag`` is that of its log."""

    tag: Annotated[str, Meta(min_length=1)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT
    cursor: str | None = None


class Checkpoints(Struct, frozen=True, kw_only=True):
    """Checkpoints of sandboxes, newest first."""

    checkpoints: tuple[CheckpointInfo, ...]
    next_cursor: str | None


@endpoint("GET", "/sandboxes/checkpoints", tag="sandboxes")
def list_sandbox_checkpoints(call: Call[CheckpointsQuery, None]) -> Checkpoints:
    """List the checkpoints of sandboxes, newest first."""
    query = call.query
    found, cursor = StoreStorage(call.store, owned=False).page(
        tag=query.tag, limit=query.limit, cursor=query.cursor
    )
    return Checkpoints(checkpoints=tuple(found), next_cursor=cursor)


@endpoint("GET", "/sandboxes/checkpoints/{id}", tag="sandboxes")
def get_sandbox_checkpoint(call: Call[None, None]) -> CheckpointInfo:
    """Return a checkpoint by its id, the beginning of it, or `latest`.

    Its `hash` is the id of a snapshot: `/snapshots/{hash}/ls` lists its files.
    """
    return storage_in(call.store).find(call.path["id"])


@endpoint("GET", "/sandboxes/checkpoints/{id}/output", tag="sandboxes")
def get_sandbox_output(call: Call[None, None]) -> SessionOutput:
    """Describe the `output` folder of a checkpoint's workspace, and which session it is of.

    `/snapshots/{hash}/cat?path=workspace/output/...` returns a file.
    """
    storage = storage_in(call.store)
    return storage.output(storage.find(call.path["id"]))


ENDPOINTS: Final = (list_sandbox_checkpoints, get_sandbox_checkpoint, get_sandbox_output)

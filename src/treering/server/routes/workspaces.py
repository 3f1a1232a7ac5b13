"""Workspaces: list and read snapshots without restoring them."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Final

from msgspec import Meta, Struct
from starlette.responses import Response

from treering.server.endpoints import Call, endpoint
from treering.workspaces.browse import SnapshotCheck, SnapshotEntry
from treering.workspaces.diff import FileChange
from treering.workspaces.workspace import SnapshotInfo

Id = Annotated[str, Meta(min_length=1)]


class SnapshotsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter by workspace."""

    name: str | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: Annotated[int, Meta(ge=0, le=10**9)] = 0


class Snapshots(Struct, frozen=True, kw_only=True):
    """Snapshots, newest first. Those of checkpoints are listed with their threads."""

    snapshots: tuple[SnapshotInfo, ...]
    next_cursor: int | None


class LsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The folder to list."""

    path: str = ""
    recursive: bool = False


class Entries(Struct, frozen=True, kw_only=True):
    """The entries of a folder."""

    entries: tuple[SnapshotEntry, ...]


class CatQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file to return; ``download`` makes a browser save it."""

    path: Annotated[str, Meta(min_length=1)]
    download: bool = False


class DiffQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The snapshots to compare; a missing one stands for an empty folder."""

    a: Id | None = None
    b: Id | None = None
    text: bool = True


class Changes(Struct, frozen=True, kw_only=True):
    """The differences, by path."""

    changes: tuple[FileChange, ...]


@endpoint("GET", "/snapshots", tag="workspaces")
def list_snapshots(call: Call[SnapshotsQuery, None]) -> Snapshots:
    """List snapshots, newest first."""
    query = call.query
    found = list(
        islice(call.store.workspace.snapshots(name=query.name), query.cursor, query.cursor + query.limit + 1)
    )
    more = len(found) > query.limit
    return Snapshots(
        snapshots=tuple(found[: query.limit]), next_cursor=query.cursor + query.limit if more else None
    )


@endpoint("GET", "/snapshots/diff", tag="workspaces")
def diff_snapshots(call: Call[DiffQuery, None]) -> Changes:
    """Compare two snapshots, with a text diff of small files."""
    query = call.query
    return Changes(changes=tuple(call.store.workspace.diff(query.a, query.b, text=query.text)))


@endpoint("GET", "/snapshots/{id}/ls", tag="workspaces")
def list_files(call: Call[LsQuery, None]) -> Entries:
    """List a folder of a snapshot."""
    query = call.query
    return Entries(
        entries=tuple(call.store.workspace.ls(call.path["id"], query.path, recursive=query.recursive))
    )


@endpoint("GET", "/snapshots/{id}/cat", tag="workspaces")
def get_file(call: Call[CatQuery, None]) -> Response:
    """Return one file of a snapshot.

    The headers keep browsers from rendering it: what an agent wrote must not become a page of this server.
    """
    from urllib.parse import quote

    data = call.store.workspace.cat(call.path["id"], call.query.path)
    name = quote(call.query.path.rpartition("/")[2], safe="")
    shown = "attachment" if call.query.download else "inline"
    return Response(
        data,
        media_type="application/octet-stream",
        headers={
            "content-disposition": f"{shown}; filename*=UTF-8''{name}",
            "content-security-policy": "sandbox; default-src 'none'",
            "x-content-type-options": "nosniff",
            "cache-control": "private, max-age=31536000, immutable",
        },
    )


@endpoint("GET", "/snapshots/{id}/check", tag="workspaces")
def check_snapshot(call: Call[None, None]) -> SnapshotCheck:
    """Read and verify every object of a snapshot."""
    return call.store.workspace.check(call.path["id"])


ENDPOINTS: Final = (list_snapshots, diff_snapshots, list_files, get_file, check_snapshot)

"""Workspaces: list and read snapshots without restoring them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from treering.core.text import readable
from treering.errors import InvalidInput, TooLarge
from treering.secret_scan import FoundSecret
from treering.server.endpoints import Call, endpoint
from treering.server.http import problem_response
from treering.workspaces.browse import SnapshotCheck, SnapshotEntry
from treering.workspaces.diff import FileChange
from treering.workspaces.workspace import SnapshotInfo

Id = Annotated[str, Meta(min_length=1)]
_BYTES: Final = "application/octet-stream"
T = TypeVar("T")
_LISTED: Final = 50_000
_SECRETS: Final = 1000
_RANGE: Final = re.compile(r"bytes=(?P<first>\d{0,18})-(?P<last>\d{0,18})", re.ASCII)


class SnapshotsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter by workspace."""

    name: str | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None


class Snapshots(Struct, frozen=True, kw_only=True):
    """Snapshots, newest first. Those of checkpoints are listed with their threads."""

    snapshots: tuple[SnapshotInfo, ...]
    next_cursor: str | None


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


class Secrets(Struct, frozen=True, kw_only=True):
    """Where keys and passwords seem to be; never what they are."""

    count: int
    secrets: tuple[FoundSecret, ...]


@endpoint("GET", "/snapshots", tag="workspaces")
def list_snapshots(call: Call[SnapshotsQuery, None]) -> Snapshots:
    """List snapshots, newest first."""
    query = call.query
    page = call.store.workspace.snapshot_page(name=query.name, first=query.limit, cursor=query.cursor)
    return Snapshots(snapshots=page.snapshots, next_cursor=page.cursor)


@endpoint("GET", "/snapshots/diff", tag="workspaces")
def diff_snapshots(call: Call[DiffQuery, None]) -> Changes:
    """Compare two snapshots, with a text diff of small files."""
    query = call.query
    changes = call.store.workspace.changes(query.a, query.b, text=query.text)
    return Changes(changes=_bounded(changes, "paths differ; compare them with treering diff"))


@endpoint("GET", "/snapshots/{id}/ls", tag="workspaces")
def list_files(call: Call[LsQuery, None]) -> Entries:
    """List a folder of a snapshot."""
    query = call.query
    entries = call.store.workspace.ls(call.path["id"], query.path, recursive=query.recursive)
    return Entries(entries=_bounded(entries, "entries; list one folder at a time"))


def _bounded(values: Iterator[T], what: str) -> tuple[T, ...]:
    """Return values that fit into an answer."""
    found = tuple(islice(values, _LISTED + 1))
    if len(found) > _LISTED:
        raise TooLarge(f"there are more than {_LISTED:,} {what}")
    return found


@endpoint("GET", "/snapshots/{id}/cat", tag="workspaces")
def get_file(call: Call[CatQuery, None]) -> Response:
    """Return one file of a snapshot, or the part of it that a `Range` header names (`bytes=0-499`).

    It is sent as it is read, so its size does not matter. The headers keep browsers from rendering it: what
    an agent wrote must not become a page of this server.
    """
    from urllib.parse import quote

    snapshot, path = call.path["id"], call.query.path
    workspace = call.store.workspace
    entry = workspace.stat(snapshot, path)
    if entry.kind != "file":
        raise InvalidInput(f"{path!r} is a {entry.kind} in snapshot {snapshot[:12]}; cat needs a file")
    shown = "attachment" if call.query.download else "inline"
    digest = hashlib.sha256(f"{snapshot} {entry.path}".encode("utf-8", "surrogateescape")).hexdigest()
    etag = f'"{digest[:32]}"'
    name = quote(os.fsencode(path.rpartition("/")[2]), safe="")
    headers = {
        "content-disposition": f"{shown}; filename*=UTF-8''{name}",
        "content-security-policy": "sandbox; default-src 'none'",
        "x-content-type-options": "nosniff",
        "cache-control": "private, max-age=31536000, immutable",
        "accept-ranges": "bytes",
        "etag": etag,
    }
    given = call.request.headers
    wanted = given.get("range") if given.get("if-range", etag) == etag else None
    part = _range(wanted, entry.size)
    if part is None:
        problem = f"the range {str(wanted)[:80]!r} is outside of the {entry.size:,} bytes of {path!r}"
        return problem_response(
            416, "Range not satisfiable", problem, headers={"content-range": f"bytes */{entry.size}"}
        )
    start, stop = part
    headers["content-length"] = str(stop - start)
    status = 200
    if wanted is not None and stop - start < entry.size:
        headers["content-range"] = f"bytes {start}-{stop - 1}/{entry.size}"
        status = 206
    if call.request.method == "HEAD":
        return Response(status_code=status, media_type=_BYTES, headers=headers)
    pieces = workspace.stream(snapshot, path, start=start, stop=stop)
    return StreamingResponse(pieces, status_code=status, media_type=_BYTES, headers=headers)


def _range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the part of so many bytes that a Range header names; ``None`` if there is no such part.

    It is everything if there is no header, or one that names several parts or none.
    """
    found = _RANGE.fullmatch(header.strip()) if header is not None else None
    if found is None or found[0] == "bytes=-":
        return 0, size
    first, last = found["first"], found["last"]
    if not first:
        return (max(size - int(last), 0), size) if size and int(last) else None
    if last and int(last) < int(first):
        return 0, size
    start, stop = int(first), min(int(last) + 1, size) if last else size
    return (start, stop) if start < stop else None


@endpoint("GET", "/snapshots/{id}/check", tag="workspaces")
def check_snapshot(call: Call[None, None]) -> SnapshotCheck:
    """Read and verify every object of a snapshot."""
    return call.store.workspace.check(call.path["id"])


@endpoint("GET", "/snapshots/{id}/secrets", tag="workspaces")
def find_secrets(call: Call[None, None]) -> Secrets:
    """List what looks like keys, tokens and passwords in the files of a snapshot; the first 1,000."""
    found = call.store.workspace.secrets(call.path["id"])
    return Secrets(
        count=len(found),
        secrets=tuple(msgspec.structs.replace(each, path=readable(each.path)) for each in found[:_SECRETS]),
    )


ENDPOINTS: Final = (list_snapshots, diff_snapshots, list_files, get_file, check_snapshot, find_secrets)

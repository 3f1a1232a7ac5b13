"""Memory: documents with their versions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from treering.errors import NotFound
from treering.maintenance.forget import Forgotten
from treering.memory.documents import (
    MemoryDiff,
    MemoryDocument,
    MemorySearch,
    MemoryVersion,
    Provenance,
    TagMatch,
)
from treering.memory.memory import Memory
from treering.server.endpoints import OK, Call, Empty, endpoint

Version = Annotated[int, Meta(ge=1, le=2**62)]


class MemoryQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which documents: with any (or all) of the tags, whose ids start so and come behind the cursor."""

    namespace: str = ""
    tag: tuple[str, ...] = ()
    match: TagMatch = "any"
    prefix: str = ""
    auto_load: bool | None = None
    include_expired: bool = False
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None


class MemoryList(Struct, frozen=True, kw_only=True):
    """Documents in order of their ids, and the namespaces that there are."""

    documents: tuple[MemoryDocument, ...]
    namespaces: tuple[str, ...]
    next_cursor: str | None


class Where(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose memory."""

    namespace: str = ""


class OneQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose memory, and which version (without one: the newest)."""

    namespace: str = ""
    version: Version | None = None
    include_expired: bool = False


class SearchQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to look for, in one namespace or everywhere."""

    q: Annotated[str, Meta(min_length=1)]
    namespace: str = ""
    everywhere: bool = False
    tag: tuple[str, ...] = ()
    match: TagMatch = "any"
    limit: Annotated[int, Meta(ge=1, le=200)] = 10


class DiffQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which versions; without ``b``, the newest."""

    a: Version
    b: Version | None = None
    namespace: str = ""


class Versions(Struct, frozen=True, kw_only=True):
    """Every change of a document, newest first."""

    versions: tuple[MemoryVersion, ...]


class NewDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A document as it shall be. What is left out is empty; ``if_version`` 0 means: only if it is new."""

    content: str
    tags: tuple[str, ...] = ()
    auto_load: bool = False
    expires_at: datetime | None = None
    metadata: dict[str, Any] = {}
    if_version: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    provenance: Provenance | None = None


class Again(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which version to bring back."""

    version: Version


class DeleteQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which document, at which version (if that matters)."""

    namespace: str = ""
    if_version: Version | None = None


@endpoint("GET", "/memory", tag="memory")
def list_memory(call: Call[MemoryQuery, None]) -> MemoryList:
    """The documents of a namespace."""
    query = call.query
    memory = call.store.memory.in_namespace(query.namespace)
    behind = query.cursor
    found = memory.query(
        tags=query.tag,
        match=query.match,
        auto_load=query.auto_load,
        prefix=query.prefix,
        include_expired=query.include_expired,
        filter=None if behind is None else lambda each: each.id > behind,
        limit=query.limit + 1,
    )
    shown = tuple(found[: query.limit])
    return MemoryList(
        documents=shown,
        namespaces=tuple(call.store.memory.namespaces()),
        next_cursor=shown[-1].id if len(found) > query.limit else None,
    )


@endpoint("GET", "/memory/search", tag="memory")
def search_memory(call: Call[SearchQuery, None]) -> MemorySearch:
    """Documents that match, best first."""
    query = call.query
    return call.store.memory.in_namespace(query.namespace).search(
        query.q, tags=query.tag, match=query.match, limit=query.limit, everywhere=query.everywhere
    )


@endpoint("GET", "/memory/{id}", tag="memory")
def get_memory(call: Call[OneQuery, None]) -> MemoryDocument:
    """One document, as it is or as it was at a version."""
    query = call.query
    found = _memory(call).get(call.path["id"], version=query.version, include_expired=query.include_expired)
    if found is None:
        raise NotFound(f"there is no memory {call.path['id']!r} in namespace {query.namespace!r}")
    return found


@endpoint("PUT", "/memory/{id}", tag="memory")
def put_memory(call: Call[Where, NewDocument]) -> MemoryDocument:
    """Keep a document; the versions before stay."""
    body = call.body
    return _memory(call).save(
        call.path["id"],
        body.content,
        tags=body.tags,
        auto_load=body.auto_load,
        expires_at=body.expires_at,
        metadata=body.metadata,
        if_version=body.if_version,
        provenance=body.provenance,
    )


@endpoint("DELETE", "/memory/{id}", tag="memory")
def delete_memory(call: Call[DeleteQuery, None]) -> Empty:
    """Take a document away; its versions stay until it is forgotten."""
    if not _memory(call).delete(call.path["id"], if_version=call.query.if_version):
        raise NotFound(f"there is no memory {call.path['id']!r} in namespace {call.query.namespace!r}")
    return OK


@endpoint("POST", "/memory/{id}/forget", tag="memory", scope="admin")
def forget_memory(call: Call[Where, None]) -> Forgotten:
    """Erase a document for good, with every version."""
    return _memory(call).forget(call.path["id"])


@endpoint("GET", "/memory/{id}/history", tag="memory")
def get_memory_history(call: Call[Where, None]) -> Versions:
    """Every version, newest first, with where it came from."""
    return Versions(versions=tuple(_memory(call).history(call.path["id"])))


@endpoint("GET", "/memory/{id}/diff", tag="memory")
def diff_memory(call: Call[DiffQuery, None]) -> MemoryDiff:
    """What changed between two versions."""
    return _memory(call).diff(call.path["id"], call.query.a, call.query.b)


@endpoint("POST", "/memory/{id}/restore", tag="memory")
def restore_memory(call: Call[Where, Again]) -> MemoryDocument:
    """Make an older version the newest one."""
    return _memory(call).restore(call.path["id"], call.body.version)


ENDPOINTS: Final = (
    list_memory,
    search_memory,
    get_memory,
    put_memory,
    delete_memory,
    forget_memory,
    get_memory_history,
    diff_memory,
    restore_memory,
)


def _memory(call: Call[Any, Any]) -> Memory:
    return call.store.memory.in_namespace(call.query.namespace)

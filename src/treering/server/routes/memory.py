"""Memory documents and their versions."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from treering.core.query import Unreadable
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


class MemoryListQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page of documents: with any (or all) of the tags, and ids with a prefix."""

    namespace: str = ""
    tag: tuple[str, ...] = ()
    match: TagMatch = "any"
    prefix: str = ""
    auto_load: bool | None = None
    include_expired: bool = False
    limit: Annotated[int, Meta(ge=1, le=500)] = 50
    cursor: str | None = None


class MemoryList(Struct, frozen=True, kw_only=True):
    """Documents by id. With filters, a page may be short: continue as long as there is a cursor."""

    documents: tuple[MemoryDocument, ...]
    next_cursor: str | None
    unreadable: tuple[Unreadable, ...] = ()
    """Entries that are left out, because they cannot be read."""


class MemoryNamespacesQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page of namespaces."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None


class MemoryNamespaces(Struct, frozen=True, kw_only=True):
    """The namespaces that have documents, by name."""

    namespaces: tuple[str, ...]
    next_cursor: str | None


class MemoryNamespaceQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The namespace of the document."""

    namespace: str = ""


class MemoryDocumentQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The namespace and version of the document; by default the newest version."""

    namespace: str = ""
    version: Version | None = None
    include_expired: bool = False


class MemorySearchQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search in one namespace, or in all."""

    q: Annotated[str, Meta(min_length=1)]
    namespace: str = ""
    everywhere: bool = False
    tag: tuple[str, ...] = ()
    match: TagMatch = "any"
    limit: Annotated[int, Meta(ge=1, le=200)] = 10


class MemoryDiffQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The versions to compare; ``b`` is by default the newest."""

    a: Version
    b: Version | None = None
    namespace: str = ""


class MemoryHistory(Struct, frozen=True, kw_only=True):
    """The versions of a document, newest first."""

    versions: tuple[MemoryVersion, ...]


class NewMemoryDocument(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole document. Omitted fields are empty; ``if_version`` 0 means that it must not exist."""

    content: str
    tags: tuple[str, ...] = ()
    auto_load: bool = False
    expires_at: datetime | None = None
    metadata: dict[str, Any] = {}
    if_version: Annotated[int, Meta(ge=0, le=2**62)] | None = None
    provenance: Provenance | None = None


class MemoryRestore(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The version to restore."""

    version: Version


class MemoryDeleteQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The namespace of the document; with ``if_version`` delete only that version."""

    namespace: str = ""
    if_version: Version | None = None


@endpoint("GET", "/memory", tag="memory")
def list_memory(call: Call[MemoryListQuery, None]) -> MemoryList:
    """List the documents of a namespace."""
    query = call.query
    memory = call.store.memory.in_namespace(query.namespace)
    page = memory.page(
        tags=query.tag,
        match=query.match,
        auto_load=query.auto_load,
        prefix=query.prefix,
        include_expired=query.include_expired,
        first=query.limit,
        cursor=query.cursor,
    )
    return MemoryList(documents=page.documents, next_cursor=page.cursor)


@endpoint("GET", "/memory/namespaces", tag="memory")
def list_memory_namespaces(call: Call[MemoryNamespacesQuery, None]) -> MemoryNamespaces:
    """List the namespaces that have documents, by name."""
    query = call.query
    found = list(islice(call.store.memory.namespaces(after=query.cursor), query.limit + 1))
    page = tuple(found[: query.limit])
    return MemoryNamespaces(namespaces=page, next_cursor=page[-1] if len(found) > query.limit else None)


@endpoint("GET", "/memory/search", tag="memory")
def search_memory(call: Call[MemorySearchQuery, None]) -> MemorySearch:
    """Search documents, best match first."""
    query = call.query
    return call.store.memory.in_namespace(query.namespace).search(
        query.q, tags=query.tag, match=query.match, limit=query.limit, everywhere=query.everywhere
    )


@endpoint("GET", "/memory/{id}", tag="memory")
def get_memory(call: Call[MemoryDocumentQuery, None]) -> MemoryDocument:
    """Return a document, or a version of it."""
    query = call.query
    memory = _memory(call)
    document = memory.get(call.path["id"], version=query.version, include_expired=query.include_expired)
    if document is None:
        raise _not_found(call)
    return document


@endpoint("PUT", "/memory/{id}", tag="memory")
def put_memory(call: Call[MemoryNamespaceQuery, NewMemoryDocument]) -> MemoryDocument:
    """Save a document; its former versions are kept."""
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
def delete_memory(call: Call[MemoryDeleteQuery, None]) -> Empty:
    """Delete a document; its versions are kept until it is forgotten."""
    if not _memory(call).delete(call.path["id"], if_version=call.query.if_version):
        raise _not_found(call)
    return OK


@endpoint("POST", "/memory/{id}/forget", tag="memory", domain="maintenance")
def forget_memory(call: Call[MemoryNamespaceQuery, None]) -> Forgotten:
    """Erase a document with all its versions, permanently."""
    return _memory(call).forget(call.path["id"])


@endpoint("GET", "/memory/{id}/history", tag="memory")
def get_memory_history(call: Call[MemoryNamespaceQuery, None]) -> MemoryHistory:
    """List the versions of a document, newest first."""
    return MemoryHistory(versions=tuple(_memory(call).history(call.path["id"])))


@endpoint("GET", "/memory/{id}/diff", tag="memory")
def diff_memory(call: Call[MemoryDiffQuery, None]) -> MemoryDiff:
    """Compare two versions."""
    return _memory(call).diff(call.path["id"], call.query.a, call.query.b)


@endpoint("POST", "/memory/{id}/restore", tag="memory")
def restore_memory(call: Call[MemoryNamespaceQuery, MemoryRestore]) -> MemoryDocument:
    """Save an older version again, as the newest one."""
    return _memory(call).restore(call.path["id"], call.body.version)


ENDPOINTS: Final = (
    list_memory,
    list_memory_namespaces,
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


def _not_found(call: Call[Any, Any]) -> NotFound:
    return NotFound(f"memory {call.path['id']!r} not found in namespace {call.query.namespace!r}")

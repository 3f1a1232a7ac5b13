"""Memory tools: search, read, save and (if allowed) delete documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from mcp_types import CallToolResult
from pydantic import Field

from treering.core.clock import to_iso
from treering.errors import NotFound, RefMoved
from treering.mcp.replies import excerpt, page_of
from treering.memory.documents import MemoryDocument, Provenance, TagMatch
from treering.memory.vectors import Embedder

if TYPE_CHECKING:
    from treering.mcp.replies import Replies
    from treering.memory.memory import Memory
    from treering.store import Store

Id = Annotated[str, Field(description="Path-like id of the document, such as alice/tone")]
Namespace = Annotated[
    str, Field(description="Namespace of a user, agent or project; empty for shared memory")
]
Limit = Annotated[int, Field(description="Maximum number of documents", ge=1, le=100)]
Tags = Annotated[list[str] | None, Field(description="Only documents with these tags")]

_EXCERPT: Final = 500
_MAX_VERSIONS: Final = 50


class MemoryTools:
    """Tools for the documents that agents remember."""

    def __init__(self, store: Store, replies: Replies, embedder: Embedder | None = None) -> None:
        self._store = store
        self._replies = replies
        self._embedder = embedder

    def memory_search(
        self,
        text: Annotated[
            str,
            Field(description="What to search for, in plain words; if omitted, documents are listed by id"),
        ] = "",
        namespace: Namespace = "",
        *,
        everywhere: Annotated[bool, Field(description="Search all namespaces")] = False,
        tags: Tags = None,
        match: Annotated[TagMatch, Field(description="Match any of the tags, or all of them")] = "any",
        prefix: Annotated[str, Field(description="When listing, only ids with this prefix")] = "",
        limit: Limit = 10,
    ) -> CallToolResult:
        """Search remembered documents, best match first; each hit has the beginning of its text.

        Call this before you answer from what you think you know about a user or a project. Without `text`,
        documents are listed by id. Read a whole document with memory_get.
        """
        memory = self._memory(namespace)
        more = "more documents did not fit; lower the limit, or filter by tags or prefix"
        if not text.strip():
            documents = memory.query(tags=tags or (), match=match, prefix=prefix, limit=limit)
            facts: dict[str, Any] = {} if documents else {"namespaces_with_memories": self._namespaces()}
            hits = [_hit(each, namespace) for each in documents]
            return self._replies.listing("documents", hits, facts=facts, more=more)
        found = memory.search(text, tags=tags or (), match=match, limit=limit, everywhere=everywhere)
        facts = {"ranked": found.ranked} | ({"note": found.note} if found.note else {})
        if not found.hits:
            facts["namespaces_with_memories"] = self._namespaces()
        hits = [_hit(hit.document, hit.namespace) | {"score": round(hit.score, 4)} for hit in found]
        return self._replies.listing("documents", hits, facts=facts, more=more)

    def memory_get(
        self,
        id: Id,
        namespace: Namespace = "",
        *,
        version: Annotated[int | None, Field(description="An older version; the newest if omitted")] = None,
        offset: Annotated[
            int, Field(description="Start at this character (next_offset of the previous page)", ge=0)
        ] = 0,
        history: Annotated[bool, Field(description="Include the list of versions, newest first")] = False,
    ) -> CallToolResult:
        """Read a remembered document in full: text, tags, version and provenance.

        A long text is split into pages: continue with `offset` = next_offset. Pass the version that you read
        as `if_version` to memory_save, so that you do not overwrite a concurrent change.
        """
        memory = self._memory(namespace)
        document = memory.get(id, version=version)
        if document is None:
            at = "" if version is None else f" at version {version}"
            raise NotFound(f"memory {id!r} not found{at}; find documents with memory_search")
        facts = _describe(document, namespace)
        if history:
            facts["versions"] = [
                {"version": each.version, "operation": each.operation, "at": to_iso(each.changed_at_us)}
                for _, each in zip(range(_MAX_VERSIONS), memory.history(id), strict=False)
            ]
        text, following = page_of(document.content, offset, self._replies.text_room(facts))
        facts["content"] = text
        if following is not None:
            facts["next_offset"] = following
        return self._replies.whole(facts)

    def memory_save(
        self,
        id: Id,
        content: Annotated[str, Field(description="The text to remember, Markdown or plain text")],
        namespace: Namespace = "",
        *,
        tags: Annotated[
            list[str] | None, Field(description="Tags; if omitted, the current ones are kept")
        ] = None,
        auto_load: Annotated[
            bool | None, Field(description="Load it into every context; if omitted, unchanged")
        ] = None,
        append: Annotated[
            bool, Field(description="Append to the current text instead of replacing it")
        ] = False,
        if_version: Annotated[
            int | None, Field(description="Fail unless it is at this version (0: it does not exist)")
        ] = None,
    ) -> CallToolResult:
        """Save a text under an id; former versions are kept in its history.

        Use one document per topic: search first, and update an existing document instead of adding another.
        """
        memory = self._memory(namespace)
        while True:
            before = memory.get(id, include_expired=True)
            expected = (0 if before is None else before.version) if if_version is None else if_version
            metadata = {} if before is None else dict(before.metadata)
            if tags is not None:
                metadata["tags"] = tags
            if auto_load is not None:
                metadata["auto_load"] = auto_load
            text = content if before is None or not append else _append(before.content, content)
            whole = MemoryDocument(id=id, content=text, metadata=metadata)
            try:
                saved = memory.save(whole, if_version=expected, provenance=Provenance(source="mcp"))
            except RefMoved:
                if if_version is not None:
                    raise
                continue
            return self._replies.whole(_describe(saved, namespace))

    def memory_delete(
        self,
        id: Id,
        namespace: Namespace = "",
        *,
        if_version: Annotated[int | None, Field(description="Fail unless it is at this version")] = None,
    ) -> CallToolResult:
        """Delete a document: it is no longer found or loaded.

        Its versions are kept until a person erases them with `treering memory forget`.
        """
        if not self._memory(namespace).delete(id, if_version=if_version):
            raise NotFound(f"memory {id!r} not found; find documents with memory_search")
        return self._replies.whole({"id": id, "namespace": namespace, "deleted": True})

    def _memory(self, namespace: str) -> Memory:
        memory = self._store.memory.in_namespace(namespace) if namespace else self._store.memory
        return memory if self._embedder is None else memory.with_embedder(self._embedder)

    def _namespaces(self) -> list[str]:
        return [name for _, name in zip(range(20), self._store.memory.namespaces(), strict=False)]


def _describe(document: MemoryDocument, namespace: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"id": document.id, "namespace": namespace, "version": document.version}
    for key, value in document.metadata.items():
        facts[key] = value.isoformat() if key.endswith("_at") and hasattr(value, "isoformat") else value
    if document.provenance is not None:
        origin = document.provenance
        named = {"run": origin.run, "source": origin.source, "trust": origin.trust}
        facts["provenance"] = {key: value for key, value in named.items() if value is not None}
    return facts


def _hit(document: MemoryDocument, namespace: str) -> dict[str, Any]:
    return {
        "id": document.id,
        "namespace": namespace,
        "version": document.version,
        "tags": document.tags,
        "updated_at": None if document.updated_at is None else document.updated_at.isoformat(),
        "text": excerpt(document.content, _EXCERPT),
    }


def _append(before: str, more: str) -> str:
    return before + ("" if not before or before.endswith("\n") else "\n") + more

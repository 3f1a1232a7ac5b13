"""Tools over memory: find, read, keep and (when it is allowed) delete documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from mcp_types import CallToolResult
from pydantic import Field

from treering.errors import NotFound, RefMoved
from treering.mcp.replies import excerpt, page_of
from treering.memory.documents import MemoryDocument, Provenance, TagMatch
from treering.memory.vectors import Embedder

if TYPE_CHECKING:
    from treering.mcp.replies import Replies
    from treering.memory.memory import Memory
    from treering.store import Store

Id = Annotated[str, Field(description="The document's id, path-like: alice/tone")]
Whose = Annotated[
    str, Field(description="Whose memory: the name of a user, agent or project; empty for the shared one")
]
Limit = Annotated[int, Field(description="At most so many", ge=1, le=100)]
Tags = Annotated[list[str] | None, Field(description="Only documents with these tags")]

_EXCERPT: Final = 500
_VERSIONS: Final = 50


class MemoryTools:
    """What agents remember."""

    def __init__(self, store: Store, replies: Replies, embedder: Embedder | None = None) -> None:
        self._store = store
        self._replies = replies
        self._embedder = embedder

    def memory_search(
        self,
        text: Annotated[
            str, Field(description="What to look for, in plain words. Without it, documents are listed by id")
        ] = "",
        namespace: Whose = "",
        *,
        everywhere: Annotated[bool, Field(description="Search in everyone's memory")] = False,
        tags: Tags = None,
        match: Annotated[TagMatch, Field(description="Any of the tags, or all of them")] = "any",
        prefix: Annotated[str, Field(description="When listing: only ids that begin so")] = "",
        limit: Limit = 10,
    ) -> CallToolResult:
        """Find what was remembered, best match first; each hit has the beginning of its text.

        Call this before answering from what you think you know about a user or a project. Without `text` it
        lists the documents by id. Read a whole document with memory_get.
        """
        memory = self._memory(namespace)
        more = "there are more; ask for fewer (limit), or narrow it by tags or prefix"
        if not text.strip():
            documents = memory.query(tags=tags or (), match=match, prefix=prefix, limit=limit)
            facts: dict[str, Any] = {} if documents else {"namespaces_with_memories": self._known()}
            hits = [_hit(each, namespace) for each in documents]
            return self._replies.listing("documents", hits, facts=facts, more=more)
        found = memory.search(text, tags=tags or (), match=match, limit=limit, everywhere=everywhere)
        facts = {"ranked": found.ranked} | ({"note": found.note} if found.note else {})
        if not found.hits:
            facts["namespaces_with_memories"] = self._known()
        hits = [_hit(hit.document, hit.namespace) | {"score": round(hit.score, 4)} for hit in found]
        return self._replies.listing("documents", hits, facts=facts, more=more)

    def memory_get(
        self,
        id: Id,
        namespace: Whose = "",
        *,
        version: Annotated[int | None, Field(description="An older version; the newest if left out")] = None,
        offset: Annotated[int, Field(description="Go on from this character (next_offset)", ge=0)] = 0,
        history: Annotated[bool, Field(description="Also list its versions, newest first")] = False,
    ) -> CallToolResult:
        """Read one remembered document in full: text, tags, version, where it came from.

        A long text comes in pages: go on with `offset` = next_offset. Pass the version that you read as
        `if_version` to memory_save, so that nobody's change is overwritten unseen.
        """
        memory = self._memory(namespace)
        document = memory.get(id, version=version)
        if document is None:
            at = "" if version is None else f" at version {version}"
            raise NotFound(f"there is no memory {id!r}{at}; memory_search finds what there is")
        facts = _about(document, namespace)
        if history:
            facts["versions"] = [
                {"version": each.version, "operation": each.operation, "at": each.changed_at}
                for _, each in zip(range(_VERSIONS), memory.history(id), strict=False)
            ]
        text, following = page_of(document.content, offset, self._replies.text_room(facts))
        facts["content"] = text
        if following is not None:
            facts["next_offset"] = following
        return self._replies.whole(facts)

    def memory_save(
        self,
        id: Id,
        content: Annotated[str, Field(description="The text to remember, as Markdown or plain words")],
        namespace: Whose = "",
        *,
        tags: Annotated[list[str] | None, Field(description="Tags; left out, those it has stay")] = None,
        auto_load: Annotated[
            bool | None, Field(description="Put it into every context of its owner; left out, as it was")
        ] = None,
        append: Annotated[bool, Field(description="Add the text to the end instead of replacing")] = False,
        if_version: Annotated[
            int | None, Field(description="Only if it is at this version (0: only if it is new)")
        ] = None,
    ) -> CallToolResult:
        """Remember a text under an id; what it said before stays in its history.

        One document for one topic: search first, and change the one that is there instead of making another.
        """
        memory = self._memory(namespace)
        while True:
            before = memory.get(id, include_expired=True)
            wanted = (0 if before is None else before.version) if if_version is None else if_version
            metadata = {} if before is None else dict(before.metadata)
            if tags is not None:
                metadata["tags"] = tags
            if auto_load is not None:
                metadata["auto_load"] = auto_load
            text = content if before is None or not append else _joined(before.content, content)
            whole = MemoryDocument(id=id, content=text, metadata=metadata)
            try:
                saved = memory.save(whole, if_version=wanted, provenance=Provenance(source="mcp"))
            except RefMoved:
                if if_version is not None:
                    raise
                continue
            return self._replies.whole(_about(saved, namespace))

    def memory_delete(
        self,
        id: Id,
        namespace: Whose = "",
        *,
        if_version: Annotated[int | None, Field(description="Only if it is at this version")] = None,
    ) -> CallToolResult:
        """Take a document out of memory: it is no longer found or loaded.

        Its versions stay in the history until a person forgets them for good on the command line.
        """
        if not self._memory(namespace).delete(id, if_version=if_version):
            raise NotFound(f"there is no memory {id!r}; memory_search finds what there is")
        return self._replies.whole({"id": id, "namespace": namespace, "deleted": True})

    def _memory(self, namespace: str) -> Memory:
        memory = self._store.memory.in_namespace(namespace) if namespace else self._store.memory
        return memory if self._embedder is None else memory.with_embedder(self._embedder)

    def _known(self) -> list[str]:
        return [name for _, name in zip(range(20), self._store.memory.namespaces(), strict=False)]


def _about(document: MemoryDocument, namespace: str) -> dict[str, Any]:
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


def _joined(before: str, more: str) -> str:
    return before + ("" if not before or before.endswith("\n") else "\n") + more

"""Memory of Google ADK: full-text and semantic search over earlier sessions.

Each event with text is a document ``<session>/<event id>`` in the user's own memory, ``<app>/<user>``:
searched, versioned and forgotten like any other. **Invariant:** a memory that was deleted does not come
back when its session is added again; only its id is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self

from google.adk.events.event import Event
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.sessions.session import Session
from google.genai import types

from treering.adapters.conversation import escape_part
from treering.adapters.shared import Opened, StoreOrUrl, checked, checked_namespace, replace_surrogates
from treering.core.ids import new_id
from treering.errors import InvalidInput, NotFound
from treering.memory.documents import MemoryDocument, Provenance
from treering.memory.memory import Memory
from treering.memory.vectors import Embedder

_NO_SESSION: Final = "no session"
_DIRECT: Final = "memories"
_DELETED: Final = "deleted"


class TreeringMemoryService(BaseMemoryService):
    """ADK's memory service on a treering store, a URL or a folder.

    A search returns at most ``limit`` memories, best first; with an ``embedder`` (see `memory.vectors`) it
    is also semantic. ``namespace`` is put before the names of apps.
    """

    def __init__(
        self,
        store: StoreOrUrl | None = None,
        *,
        namespace: str = "",
        embedder: Embedder | None = None,
        limit: int = 10,
    ) -> None:
        if limit < 1:
            raise InvalidInput(f"limit is {limit}; give 1 or more")
        self._namespace = checked_namespace(namespace)
        self._opened = Opened(store)
        self._embedder = embedder
        self._limit = limit

    async def add_session_to_memory(self, session: Session) -> None:
        """Add the events of a session, and remove those that the session no longer has."""
        await self._opened.bridge.call(self._add_session, session)

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Add events of a session. ``expires_at`` in the metadata makes them expire."""
        memory = self.memory_of(app_name, user_id)
        documents = _documents(events, session_id or _NO_SESSION, custom_metadata)
        await self._opened.bridge.call(_save, memory, documents, session_id)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Add entries; one with an id replaces the memory with that id."""
        memory = self.memory_of(app_name, user_id)
        documents = [
            document
            for entry in memories
            for document in _document(
                entry.id or f"{_DIRECT}/{new_id()}",
                entry.content,
                {"author": entry.author, "timestamp": entry.timestamp},
                {**(custom_metadata or {}), **entry.custom_metadata},
            )
        ]
        await self._opened.bridge.call(_save, memory, documents, None)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Search the user's memories, best first."""
        memory = self.memory_of(app_name, user_id)
        found = await self._opened.bridge.call(memory.search, query, limit=self._limit)
        return SearchMemoryResponse(memories=[_entry(each) for each in found.documents])

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Delete one memory for good, if it exists; adding its session again does not restore it."""
        if memory_id:
            await self._opened.bridge.call(_forget, self.memory_of(app_name, user_id), memory_id)

    def memory_of(self, app_name: str, user_id: str) -> Memory:
        """Return a user's memory in an app; ``store.forget(namespace=memory.namespace)`` erases it."""
        app = checked(app_name, "app_name of ADK's memory")
        parts = [self._namespace, escape_part(app), escape_part(checked(user_id, "user_id of ADK's memory"))]
        memory = self._opened.store.memory.in_namespace("/".join(part for part in parts if part))
        return memory if self._embedder is None else memory.with_embedder(self._embedder)

    async def close(self) -> None:
        """Close the store, if it was opened here; a store that was passed in stays open."""
        await self._opened.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _add_session(self, session: Session) -> None:
        memory = self.memory_of(session.app_name, session.user_id)
        documents = _documents(session.events, session.id, None)
        _save(memory, documents, session.id)
        now = {each.id for each in documents}
        for each in memory.query(prefix=f"{escape_part(session.id)}/"):
            if each.id not in now and not each.metadata.get(_DELETED):
                memory.delete(each.id)


def _save(memory: Memory, documents: Iterable[MemoryDocument], session_id: str | None) -> None:
    source = Provenance(source="adk" if session_id is None else f"adk session {session_id}")
    given = list(documents)
    gone = {
        prefix + each.id.removeprefix(prefix)
        for prefix in {document.id.rpartition("/")[0] + "/" for document in given}
        for each in memory.query(prefix=prefix, filter=lambda each: bool(each.metadata.get(_DELETED)))
    }
    kept = [each for each in given if each.id not in gone]
    if kept:
        memory.save_many(kept, provenance=source)


def _forget(memory: Memory, memory_id: str) -> None:
    if memory.get(memory_id, include_expired=True) is None:
        return
    try:
        memory.forget(memory_id)
    except NotFound:
        return  # another writer was first
    memory.save(MemoryDocument(id=memory_id, content="", metadata={_DELETED: True}))


def _documents(
    events: Iterable[Event], session_id: str, custom: Mapping[str, object] | None
) -> list[MemoryDocument]:
    return [
        document
        for event in events
        if event.content is not None and not event.partial
        for document in _document(
            f"{escape_part(session_id)}/{event.id}",
            event.content,
            {"author": event.author, "timestamp": _iso(event.timestamp), "session": session_id},
            custom,
        )
    ]


def _document(
    id: str, content: types.Content, facts: Mapping[str, Any], custom: Mapping[str, object] | None
) -> list[MemoryDocument]:
    """Return a document with the texts of a content, or ``None`` without any. Thoughts are left out."""
    texts = [replace_surrogates(part.text) for part in content.parts or [] if part.text and not part.thought]
    if not texts:
        return []
    metadata: dict[str, Any] = {key: value for key, value in facts.items() if value is not None}
    own = dict(custom or {})
    if own.get("expires_at") is not None:
        metadata["expires_at"] = own.pop("expires_at")
    if own:
        metadata["custom"] = own
    if content.role is not None:
        metadata["role"] = content.role
    if len(texts) > 1:
        metadata["lengths"] = [len(text) for text in texts]
    return [MemoryDocument(id=id, content="\n".join(texts), metadata=metadata)]


def _entry(document: MemoryDocument) -> MemoryEntry:
    facts = document.metadata
    texts: list[str] = []
    start = 0
    for length in facts.get("lengths") or [len(document.content)]:
        texts.append(document.content[start : start + length])
        start += length + 1
    return MemoryEntry(
        id=document.id,
        content=types.Content(role=facts.get("role"), parts=[types.Part(text=text) for text in texts]),
        author=facts.get("author"),
        timestamp=facts.get("timestamp"),
        custom_metadata=facts.get("custom") or {},
    )


def _iso(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat()

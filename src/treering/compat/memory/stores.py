"""The memory stores of agent-sdk: documents in a folder of Markdown files, or in the memory of the process.

Both have `save`, `get`, `query` and `delete`, and an async twin of each (`asave`, ...). ``store.memory`` has
the same methods plus versions and search, and can be used in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from treering import api
from treering.bridge import Bridge, awaited
from treering.compat.memory.middleware import documents_of
from treering.core.clock import Clock
from treering.core.ids import check_id
from treering.memory.documents import MemoryDocument, TagMatch
from treering.memory.markdown import MarkdownFolder
from treering.memory.memory import Memory

Filter = Callable[[MemoryDocument], bool]


class Documents(Protocol):
    """Where a `MemoryStore` keeps its documents."""

    def save(self, document: MemoryDocument | Mapping[str, Any]) -> MemoryDocument:
        """Save a document."""
        ...

    def get(self, id: str) -> MemoryDocument | None:
        """Return a document."""
        ...

    def query(
        self,
        *,
        tags: Iterable[str] = (),
        match: TagMatch = "any",
        filter: Filter | None = None,
        include_expired: bool = False,
    ) -> list[MemoryDocument]:
        """List documents."""
        ...

    def delete(self, id: str) -> bool:
        """Delete a document."""
        ...


class MemoryStore:
    """A memory store of agent-sdk over any `Documents`."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._bridge = Bridge()

    @property
    def bridge(self) -> Bridge:
        """The threads that run the awaited methods."""
        return self._bridge

    def save(self, document: MemoryDocument | Mapping[str, Any]) -> MemoryDocument:
        """Save a document, replacing the one with the same id; durable when this returns."""
        return self._documents.save(document)

    def get(self, id: str) -> MemoryDocument | None:
        """Return a document; ``None`` if it does not exist or has expired."""
        return self._documents.get(id)

    def query(
        self,
        *,
        tags: Iterable[str] = (),
        match: TagMatch = "any",
        filter: Filter | None = None,
        include_expired: bool = False,
    ) -> list[MemoryDocument]:
        """List documents with any (or all) of the tags, by id."""
        return self._documents.query(tags=tags, match=match, filter=filter, include_expired=include_expired)

    def delete(self, id: str) -> bool:
        """Delete a document; return whether it existed."""
        return self._documents.delete(id)

    asave = awaited(save)
    aget = awaited(get)
    aquery = awaited(query)
    adelete = awaited(delete)


class InMemoryMemoryStore(MemoryStore):
    """Documents that are lost when the process ends. ``memory`` also gives access to versions and search."""

    def __init__(self) -> None:
        self._store = api.open("memory:")
        self.memory = self._store.memory
        super().__init__(self.memory)


class FilesystemMemoryStore(MemoryStore):
    """Documents in a folder, one Markdown file with YAML front matter each; see `MarkdownFolder`.

    A file that cannot be read is skipped by `query` with a `MemoryFileWarning`; `get` raises `InvalidInput`.
    """

    def __init__(self, root_dir: str | Path, *, clock: Clock | None = None) -> None:
        self._folder = MarkdownFolder(Path(root_dir), clock=clock)
        super().__init__(self._folder)

    @property
    def root_dir(self) -> Path:
        """The folder."""
        return self._folder.root


def load_agent_memory(*, store: MemoryStore | Memory | Any, agent_id: str) -> list[MemoryDocument]:
    """Return all memory of an agent, by id: its own documents and the shared ones, without expired ones.

    An agent owns the documents with its ``agent_id`` in their metadata and, of those without one, the
    documents in the folder of its name (``my-agent/notes``). Documents in no folder are shared. With
    ``store.memory``, the documents of the namespace named like the agent are included as well. ``store`` may
    also be any object with a ``query()``, as in `create_agent_memory_middleware`.
    """
    check_id(agent_id, "agent id")
    store = getattr(store, "sync", store)
    is_own = isinstance(store, MemoryStore | Memory)  # they leave out what expired, by their own clocks
    now = datetime.now(UTC)
    found = {
        each.id: each
        for each in documents_of(store)
        if _is_for(each, agent_id) and (is_own or not each.is_expired(now))
    }
    if isinstance(store, Memory) and store.namespace != agent_id:
        found |= {each.id: each for each in store.in_namespace(agent_id).query()}
    return [document for _, document in sorted(found.items())]


def _is_for(document: MemoryDocument, agent_id: str) -> bool:
    owner: Any = document.metadata.get("agent_id", document.metadata.get("agentId"))
    if owner is not None:
        return owner == agent_id
    folder, slash, _ = document.id.partition("/")
    return not slash or folder == agent_id

"""What one agent remembers, out of a store that many may share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treering.core.ids import check_id
from treering.views.memory.memory import Memory

if TYPE_CHECKING:
    from treering.memory.stores import MemoryStore
    from treering.views.memory.documents import MemoryDocument


def load_agent_memory(*, store: MemoryStore | Memory, agent_id: str) -> list[MemoryDocument]:
    """All memory of an agent, in order of the ids: its own documents, and those that are nobody's.

    Its own are those with its ``agent_id`` in their metadata, and without one those in the folder of that
    name (``my-agent/notes``); nobody's are those in no folder. On ``store.memory`` also all of the namespace
    that is called like the agent. What has expired is left out.
    """
    check_id(agent_id, "agent id")
    found = {each.id: each for each in store.query() if _is_for(each, agent_id)}
    if isinstance(store, Memory) and store.namespace != agent_id:
        found |= {each.id: each for each in store.in_namespace(agent_id).query()}
    return [document for _, document in sorted(found.items())]


def _is_for(document: MemoryDocument, agent_id: str) -> bool:
    owner: Any = document.metadata.get("agent_id", document.metadata.get("agentId"))
    if owner is not None:
        return owner == agent_id
    folder, slash, _ = document.id.partition("/")
    return not slash or folder == agent_id

"""Memory as seed 002 has it: stores of documents, loaded into an agent's context.

Names are looked up on first use, so that one of them costs only what it needs.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers know it; importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any, Final

    from treering.memory.agent_files import AgentFiles, Skill
    from treering.memory.embedding import StaticEmbedder
    from treering.memory.loading import load_agent_memory
    from treering.memory.middleware import AgentMemoryMiddleware, create_agent_memory_middleware
    from treering.memory.stores import FilesystemMemoryStore, InMemoryMemoryStore, MemoryFileWarning
    from treering.views.memory.context import MemoryContext, memory_context
    from treering.views.memory.documents import MemoryDocument, Provenance
    from treering.views.memory.embedding import Embedder, FunctionEmbedder

__all__ = [
    "AgentFiles",
    "AgentMemoryMiddleware",
    "Embedder",
    "FilesystemMemoryStore",
    "FunctionEmbedder",
    "InMemoryMemoryStore",
    "MemoryContext",
    "MemoryDocument",
    "MemoryFileWarning",
    "Provenance",
    "Skill",
    "StaticEmbedder",
    "create_agent_memory_middleware",
    "load_agent_memory",
    "memory_context",
]

_HOMES: Final = {
    "AgentFiles": "treering.memory.agent_files",
    "AgentMemoryMiddleware": "treering.memory.middleware",
    "Embedder": "treering.views.memory.embedding",
    "FilesystemMemoryStore": "treering.memory.stores",
    "FunctionEmbedder": "treering.views.memory.embedding",
    "InMemoryMemoryStore": "treering.memory.stores",
    "MemoryContext": "treering.views.memory.context",
    "MemoryDocument": "treering.views.memory.documents",
    "MemoryFileWarning": "treering.memory.stores",
    "Provenance": "treering.views.memory.documents",
    "Skill": "treering.memory.agent_files",
    "StaticEmbedder": "treering.memory.embedding",
    "create_agent_memory_middleware": "treering.memory.middleware",
    "load_agent_memory": "treering.memory.loading",
    "memory_context": "treering.views.memory.context",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'treering.memory' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

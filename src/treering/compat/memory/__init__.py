"""Memory as seed 002 has it: stores of documents, loaded into an agent's context.

Names are looked up on first use, so that one of them costs only what it needs.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers know it; importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any, Final

    from treering.compat.memory.agent_files import AgentFiles, Skill
    from treering.compat.memory.middleware import AgentMemoryMiddleware, create_agent_memory_middleware
    from treering.compat.memory.stores import (
        FilesystemMemoryStore,
        InMemoryMemoryStore,
        MemoryFileWarning,
        load_agent_memory,
    )
    from treering.memory.context import MemoryContext, memory_context
    from treering.memory.documents import MemoryDocument, Provenance
    from treering.memory.vectors import Embedder, FunctionEmbedder
    from treering.memory.word_vectors import StaticEmbedder

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
    "AgentFiles": "treering.compat.memory.agent_files",
    "AgentMemoryMiddleware": "treering.compat.memory.middleware",
    "Embedder": "treering.memory.vectors",
    "FilesystemMemoryStore": "treering.compat.memory.stores",
    "FunctionEmbedder": "treering.memory.vectors",
    "InMemoryMemoryStore": "treering.compat.memory.stores",
    "MemoryContext": "treering.memory.context",
    "MemoryDocument": "treering.memory.documents",
    "MemoryFileWarning": "treering.compat.memory.stores",
    "Provenance": "treering.memory.documents",
    "Skill": "treering.compat.memory.agent_files",
    "StaticEmbedder": "treering.memory.word_vectors",
    "create_agent_memory_middleware": "treering.compat.memory.middleware",
    "load_agent_memory": "treering.compat.memory.stores",
    "memory_context": "treering.memory.context",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'treering.compat.memory' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

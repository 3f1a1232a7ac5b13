"""The memory API of agent-sdk and the agent files of CianaParrot.

Names are imported on first use, so that importing one of them does not load the others.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # known to type checkers; importing typing would cost more than everything else
if TYPE_CHECKING:
    from typing import Any, Final

    from treering.compat.memory.agent_files import AgentFiles, Skill
    from treering.compat.memory.middleware import AgentMemoryMiddleware, create_agent_memory_middleware
    from treering.compat.memory.stores import (
        FilesystemMemoryStore,
        InMemoryMemoryStore,
        load_agent_memory,
    )
    from treering.memory.documents import MemoryContext, MemoryDocument, Provenance, memory_context
    from treering.memory.markdown import MemoryFileWarning
    from treering.memory.vectors import Embedder, FunctionEmbedder, StaticEmbedder

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

_MODULES: Final = {
    "AgentFiles": "treering.compat.memory.agent_files",
    "AgentMemoryMiddleware": "treering.compat.memory.middleware",
    "Embedder": "treering.memory.vectors",
    "FilesystemMemoryStore": "treering.compat.memory.stores",
    "FunctionEmbedder": "treering.memory.vectors",
    "InMemoryMemoryStore": "treering.compat.memory.stores",
    "MemoryContext": "treering.memory.documents",
    "MemoryDocument": "treering.memory.documents",
    "MemoryFileWarning": "treering.memory.markdown",
    "Provenance": "treering.memory.documents",
    "Skill": "treering.compat.memory.agent_files",
    "StaticEmbedder": "treering.memory.vectors",
    "create_agent_memory_middleware": "treering.compat.memory.middleware",
    "load_agent_memory": "treering.compat.memory.stores",
    "memory_context": "treering.memory.documents",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'treering.compat.memory' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Google ADK on a treering store: sessions, artifacts, memory and runs."""

from treering.adapters.adk.service import (
    TreeringArtifactService,
    TreeringMemoryService,
    TreeringPlugin,
    TreeringSessionService,
    thread_id_of,
)

__all__ = [
    "TreeringArtifactService",
    "TreeringMemoryService",
    "TreeringPlugin",
    "TreeringSessionService",
    "thread_id_of",
]

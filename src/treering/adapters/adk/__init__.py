"""Google ADK on a treering store: sessions, artifacts and memory."""

from treering.adapters.adk.service import (
    TreeringArtifactService,
    TreeringMemoryService,
    TreeringSessionService,
    thread_id_of,
)

__all__ = ["TreeringArtifactService", "TreeringMemoryService", "TreeringSessionService", "thread_id_of"]

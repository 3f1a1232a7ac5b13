"""pydantic-ai on a treering store: conversations, checkpoints and runs; memory is in `pydantic_ai.memory`."""

from treering.adapters.pydantic_ai.conversations import (
    TreeringCheckpoints,
    TreeringConversationStore,
    TreeringEffects,
    TreeringRuns,
    load_history,
    save_run,
)

__all__ = [
    "TreeringCheckpoints",
    "TreeringConversationStore",
    "TreeringEffects",
    "TreeringRuns",
    "load_history",
    "save_run",
]

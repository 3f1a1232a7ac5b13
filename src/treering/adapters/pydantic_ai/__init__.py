"""pydantic-ai on a treering store: conversations and checkpoints; memory is in `pydantic_ai.memory`."""

from treering.adapters.pydantic_ai.conversations import (
    TreeringCheckpoints,
    TreeringConversationStore,
    TreeringEffects,
    load_history,
    save_run,
)

__all__ = [
    "TreeringCheckpoints",
    "TreeringConversationStore",
    "TreeringEffects",
    "load_history",
    "save_run",
]

"""Sandboxes: a program or a CLI agent in a home of its own, whose files are kept moment by moment.

Names are looked up on first use, so that a config costs nothing but itself.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers know it; importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any, Final

    from treering.blobs.location import AccessKeys
    from treering.sandbox.aio import AsyncSandbox
    from treering.sandbox.config import StorageConfig
    from treering.sandbox.profiles import AgentProfile, register
    from treering.sandbox.records import CheckpointInfo, Forgotten, Pruned, RunResult
    from treering.sandbox.sandbox import CheckpointWarning, Sandbox
    from treering.sandbox.storage import (
        Depot,
        depot_in,
        download_files,
        forget_checkpoints,
        list_checkpoints,
        open_depot,
        prune_storage,
    )

__all__ = [
    "AccessKeys",
    "AgentProfile",
    "AsyncSandbox",
    "CheckpointInfo",
    "CheckpointWarning",
    "Depot",
    "Forgotten",
    "Pruned",
    "RunResult",
    "Sandbox",
    "StorageConfig",
    "depot_in",
    "download_files",
    "forget_checkpoints",
    "list_checkpoints",
    "open_depot",
    "prune_storage",
    "register",
]

_HOMES: Final = {
    "AgentProfile": "treering.sandbox.profiles",
    "AsyncSandbox": "treering.sandbox.aio",
    "CheckpointInfo": "treering.sandbox.records",
    "CheckpointWarning": "treering.sandbox.sandbox",
    "Depot": "treering.sandbox.storage",
    "Forgotten": "treering.sandbox.records",
    "AccessKeys": "treering.blobs.location",
    "Pruned": "treering.sandbox.records",
    "RunResult": "treering.sandbox.records",
    "Sandbox": "treering.sandbox.sandbox",
    "StorageConfig": "treering.sandbox.config",
    "depot_in": "treering.sandbox.storage",
    "download_files": "treering.sandbox.storage",
    "forget_checkpoints": "treering.sandbox.storage",
    "list_checkpoints": "treering.sandbox.storage",
    "open_depot": "treering.sandbox.storage",
    "prune_storage": "treering.sandbox.storage",
    "register": "treering.sandbox.profiles",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'treering.sandbox' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

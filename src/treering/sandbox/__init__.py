"""Sandboxes: a program or a CLI agent in a home of its own, with checkpoints of its files.

Names are imported on first use, so that a `StorageConfig` is cheap to import.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # recognised by type checkers; importing typing would cost more than everything else
if TYPE_CHECKING:
    from typing import Any, Final

    from treering.blobs.location import AccessKeys
    from treering.sandbox.aio import AsyncSandbox
    from treering.sandbox.profiles import AgentProfile, register
    from treering.sandbox.providers import SandboxPlace, SandboxProvider, register_provider
    from treering.sandbox.sandbox import CheckpointWarning, RunResult, Sandbox
    from treering.sandbox.storage import (
        CheckpointInfo,
        CheckpointStorage,
        ForgetResult,
        OutputFile,
        PruneResult,
        SessionOutput,
        StorageConfig,
        download_files,
        forget_checkpoints,
        list_checkpoints,
        open_storage,
        prune_storage,
        storage_in,
    )

__all__ = [
    "AccessKeys",
    "AgentProfile",
    "AsyncSandbox",
    "CheckpointInfo",
    "CheckpointStorage",
    "CheckpointWarning",
    "ForgetResult",
    "OutputFile",
    "PruneResult",
    "RunResult",
    "Sandbox",
    "SandboxPlace",
    "SandboxProvider",
    "SessionOutput",
    "StorageConfig",
    "download_files",
    "forget_checkpoints",
    "list_checkpoints",
    "open_storage",
    "prune_storage",
    "register",
    "register_provider",
    "storage_in",
]

_ELSEWHERE: Final = {
    "AgentProfile": "treering.sandbox.profiles",
    "AsyncSandbox": "treering.sandbox.aio",
    "CheckpointWarning": "treering.sandbox.sandbox",
    "AccessKeys": "treering.blobs.location",
    "RunResult": "treering.sandbox.sandbox",
    "Sandbox": "treering.sandbox.sandbox",
    "SandboxPlace": "treering.sandbox.providers",
    "SandboxProvider": "treering.sandbox.providers",
    "register": "treering.sandbox.profiles",
    "register_provider": "treering.sandbox.providers",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'treering.sandbox' has no attribute {name!r}")
    value = getattr(import_module(_ELSEWHERE.get(name, "treering.sandbox.storage")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

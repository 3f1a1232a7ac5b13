"""Savers: the checkpointers of agent-sdk, with `save`, `load`, `list`, `delete` and `exists`.

Names are imported on first use, so that a saver loads only the storage that it needs.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers know this name; importing typing would cost more than the rest
if TYPE_CHECKING:
    from typing import Any, Final

    from treering.compat.savers.checkpoint import Checkpoint
    from treering.compat.savers.file_saver import FileSaver
    from treering.compat.savers.kv_saver import KeyValueStoreSaver
    from treering.compat.savers.migrate import (
        Migration,
        MigrationProgress,
        amigrate_checkpoints,
        migrate_checkpoints,
    )
    from treering.compat.savers.saver import Saver
    from treering.compat.savers.store_saver import MemorySaver, PostgresSaver, SqliteSaver

__all__ = [
    "Checkpoint",
    "FileSaver",
    "KeyValueStoreSaver",
    "MemorySaver",
    "Migration",
    "MigrationProgress",
    "PostgresSaver",
    "Saver",
    "SqliteSaver",
    "amigrate_checkpoints",
    "migrate_checkpoints",
]

_MODULES: Final = {
    "Checkpoint": "checkpoint",
    "FileSaver": "file_saver",
    "KeyValueStoreSaver": "kv_saver",
    "MemorySaver": "store_saver",
    "Migration": "migrate",
    "MigrationProgress": "migrate",
    "PostgresSaver": "store_saver",
    "Saver": "saver",
    "SqliteSaver": "store_saver",
    "amigrate_checkpoints": "migrate",
    "migrate_checkpoints": "migrate",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'treering.compat.savers' has no attribute {name!r}")
    value = getattr(import_module(f"treering.compat.savers.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

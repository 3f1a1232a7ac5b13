"""Savers: `save`, `load`, `list`, `delete`, `exists` for checkpoints of an agent, as seed 002 has them.

Names are looked up on first use, so that a saver costs only the storage that it needs.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers know it; importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any, Final

    from treering.savers.checkpoint import Checkpoint
    from treering.savers.files import FileSaver
    from treering.savers.keyvalues import KeyValueStoreSaver
    from treering.savers.migration import (
        Migration,
        MigrationProgress,
        amigrate_checkpoints,
        migrate_checkpoints,
    )
    from treering.savers.saver import Saver
    from treering.savers.stores import MemorySaver, PostgresSaver, SqliteSaver

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

_HOMES: Final = {
    "Checkpoint": "checkpoint",
    "FileSaver": "files",
    "KeyValueStoreSaver": "keyvalues",
    "MemorySaver": "stores",
    "Migration": "migration",
    "MigrationProgress": "migration",
    "PostgresSaver": "stores",
    "Saver": "saver",
    "SqliteSaver": "stores",
    "amigrate_checkpoints": "migration",
    "migrate_checkpoints": "migration",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'treering.savers' has no attribute {name!r}")
    value = getattr(import_module(f"treering.savers.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Failpoints for test authors: let something go wrong at a named place (see `treering.core.failpoints`)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from treering.core.failpoints import ENVIRONMENT, EXIT_CODE, Injected, arm, declared, disarm, hits

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["ENVIRONMENT", "EXIT_CODE", "Injected", "arm", "armed", "declared", "disarm", "hits"]


@contextmanager
def armed(name: str, action: str) -> Generator[None]:
    """Let ``action`` happen at a failpoint inside the block, and nowhere after it."""
    arm(name, action)
    try:
        yield
    finally:
        disarm(name)

"""Failpoints for test authors: inject failures at named places (see `treering.core.failpoints`)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from treering.core.failpoints import ENVIRONMENT, EXIT_CODE, Injected, arm, declared, disarm, hits

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["ENVIRONMENT", "EXIT_CODE", "Injected", "arm", "armed", "declared", "disarm", "hits"]


@contextmanager
def armed(name: str, action: str) -> Generator[None]:
    """Arm a failpoint inside the block."""
    arm(name, action)
    try:
        yield
    finally:
        disarm(name)

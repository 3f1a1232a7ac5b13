"""The ground that threads grow on: what every one of them has in common with its store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.views.hooks import Hooks
    from treering.views.workspaces.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Ground:
    """One space of an engine, the clock, and the store's own hooks and workspace."""

    engine: Engine
    space: str
    clock: Clock
    hooks: Hooks
    workspace: Workspace

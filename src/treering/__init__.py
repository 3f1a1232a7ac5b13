"""treering: the persistence layer for AI agents.

Names are imported on first use, so that ``import treering`` costs next to nothing: no engine, ORM or web
framework is loaded before it is needed.
"""

from __future__ import annotations

import gc
from importlib import import_module

TYPE_CHECKING = False  # type checkers treat this name as true; importing typing would cost more than the rest
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Final

    from treering import errors
    from treering.aio import AsyncStore
    from treering.api import open, open_async
    from treering.core.retention import Keep
    from treering.deploys import assert_deployable, check_deploy
    from treering.importers.transfer import pull, pull_async, push, push_async
    from treering.limits.tool_budgets import Budget, Budgets
    from treering.replays.capture import instrument, record
    from treering.replays.replay import replay
    from treering.replays.rerun import rerun, rerun_async
    from treering.runs.span import carry
    from treering.state.user_sessions import UserSession
    from treering.store import Store
    from treering.threads.upcasting import upcast

__version__ = "0.1.0"

__all__ = [
    "AsyncStore",
    "Budget",
    "Budgets",
    "Keep",
    "Store",
    "UserSession",
    "__version__",
    "assert_deployable",
    "carry",
    "check_deploy",
    "errors",
    "instrument",
    "open",
    "open_async",
    "pull",
    "pull_async",
    "push",
    "push_async",
    "record",
    "replay",
    "rerun",
    "rerun_async",
    "upcast",
]

_MODULES: Final = {
    "AsyncStore": "treering.aio",
    "Budget": "treering.limits.tool_budgets",
    "Budgets": "treering.limits.tool_budgets",
    "Keep": "treering.core.retention",
    "Store": "treering.store",
    "UserSession": "treering.state.user_sessions",
    "assert_deployable": "treering.deploys",
    "carry": "treering.runs.span",
    "check_deploy": "treering.deploys",
    "instrument": "treering.replays.capture",
    "open": "treering.api",
    "open_async": "treering.api",
    "pull": "treering.importers.transfer",
    "pull_async": "treering.importers.transfer",
    "push": "treering.importers.transfer",
    "push_async": "treering.importers.transfer",
    "record": "treering.replays.capture",
    "replay": "treering.replays.replay",
    "rerun": "treering.replays.rerun",
    "rerun_async": "treering.replays.rerun",
    "upcast": "treering.threads.upcasting",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(_import_without_gc(_MODULES[name]), name)
    elif name == "errors":
        value = import_module("treering.errors")
    else:
        raise AttributeError(f"module 'treering' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _import_without_gc(module: str) -> ModuleType:
    """Import a module while the collector waits: it would find thousands of new objects, and no garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if was_enabled:
            gc.enable()

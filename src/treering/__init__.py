"""treering: the persistence layer for AI agents. Every step kept; grow again from any ring.

Names are looked up on first use, so that ``import treering`` costs next to nothing: no engine, no ORM and
no web framework is loaded before something asks for it.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as type checkers know it; importing typing would cost more than all the rest
if TYPE_CHECKING:
    from typing import Any, Final

    from treering import errors
    from treering.aio import AsyncStore
    from treering.api import open, open_async
    from treering.core.retention import Keep
    from treering.runs.span import carry
    from treering.state.user_sessions import UserSession
    from treering.store import Store
    from treering.threads.tool_budgets import Budget, Budgets

    __version__: str

__all__ = [
    "AsyncStore",
    "Budget",
    "Budgets",
    "Keep",
    "Store",
    "UserSession",
    "__version__",
    "carry",
    "errors",
    "open",
    "open_async",
]

_HOMES: Final = {
    "AsyncStore": "treering.aio",
    "Budget": "treering.threads.tool_budgets",
    "Budgets": "treering.threads.tool_budgets",
    "Keep": "treering.core.retention",
    "Store": "treering.store",
    "UserSession": "treering.state.user_sessions",
    "carry": "treering.runs.span",
    "open": "treering.api",
    "open_async": "treering.api",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name == "errors":
        value = import_module("treering.errors")
    elif name == "__version__":
        value = import_module("importlib.metadata").version("treering")
    else:
        raise AttributeError(f"module 'treering' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""LangChain on a treering store: memory for agents (`MemoryMiddleware`), tool calls that happen once
(`EffectMiddleware`), the compact view of a thread (`CompactMiddleware`) and recording (`TreeringTracer`).

Names are imported on first use: the tracer needs only ``langchain-core``, which LangGraph depends on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treering.adapters.langchain.middleware import CompactMiddleware, EffectMiddleware, MemoryMiddleware
    from treering.adapters.langchain.tracing import TreeringTracer

__all__ = ["CompactMiddleware", "EffectMiddleware", "MemoryMiddleware", "TreeringTracer"]

_MODULES = {
    "CompactMiddleware": "middleware",
    "EffectMiddleware": "middleware",
    "MemoryMiddleware": "middleware",
    "TreeringTracer": "tracing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

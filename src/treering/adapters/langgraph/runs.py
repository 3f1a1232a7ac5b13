"""Runs of graphs: each call of a graph that saves to treering is recorded as a run of its thread.

A checkpointer learns nothing of models, tokens and errors, and LangGraph does not tell it when a call of its
graph begins. So the methods that all calls of a graph go through (`Pregel.stream` and `astream`) add a
`TreeringTracer` of that call to its callbacks, as if the caller had passed it. Calls inside of it (subgraphs,
tools that are graphs) inherit the tracer, and a caller's own `TreeringTracer` is not doubled. The saver finds
the tracer again in the config that it is given, and saves the checkpoint as one of that run.

**Invariant:** a call without a saver that records runs is passed on as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any, cast

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables.config import RunnableConfig, merge_configs, var_child_runnable_config
from langgraph.pregel import Pregel  # pyright: ignore[reportMissingTypeStubs]

from treering.adapters.langchain.tracing import TreeringTracer
from treering.runs.span import current_node

_is_recording = False


def record_graphs() -> None:
    """Let every call of a graph from now on ask its saver for a tracer."""
    global _is_recording  # noqa: PLW0603
    if not _is_recording:
        graph_class = cast("Any", Pregel)
        graph_class.stream = _recorded(graph_class.stream)
        graph_class.astream = _recorded(graph_class.astream)
        _is_recording = True


def _recorded(stream: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stream)
    def recorded(self: Any, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        return stream(self, input, _with_tracer(self, config), **options)

    return recorded


def _with_tracer(graph: Any, config: RunnableConfig | None) -> RunnableConfig | None:
    make = getattr(graph.checkpointer, "new_tracer", None)
    outer = var_child_runnable_config.get()
    if make is None or _tracer_of(merge_configs(outer, graph.config, config)) is not None:
        return config
    tracer = make()
    if tracer is None:
        return config
    callbacks = merge_configs(outer, graph.config, config, {"callbacks": [tracer]}).get("callbacks")
    return cast("RunnableConfig", {**(config or {}), "callbacks": callbacks})


def _tracer_of(config: RunnableConfig) -> TreeringTracer | None:
    callbacks = config.get("callbacks")
    handlers = callbacks.handlers if isinstance(callbacks, BaseCallbackManager) else callbacks or []
    return next((each for each in handlers if isinstance(each, TreeringTracer)), None)


@contextmanager
def run_of(config: RunnableConfig) -> Generator[None]:
    """What is saved inside is of the run that the call with this config records, if there is one."""
    tracer = _tracer_of(config) if current_node.get() is None else None
    root = tracer.root if tracer is not None else None
    if root is None:
        yield
        return
    token = current_node.set(root)
    try:
        yield
    finally:
        current_node.reset(token)

"""A talk with graphs on one checkpointer, by sync or async calls, with everything that they answered."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.adapters.langgraph.scripts import config


class Talk:
    """Calls of one graph at a time, with what they answered."""

    def __init__(self, saver, *, awaits: bool, **options: Any) -> None:
        self.saver = saver
        self.options = options
        """Given to every invocation, like ``durability``."""
        self.threads: dict[str, Any] = {}
        self.log: list[Any] = []
        self.graph: Any = None
        self.awaits = awaits

    def compile(self, builder, **options) -> Any:
        self.graph = builder.compile(checkpointer=self.saver, **options)
        return self.graph

    def say(self, given, thread="t", *, at=None, **options):
        """Invoke the graph; an error is an answer too."""
        self.threads[thread] = self.graph
        where = at or config(thread)
        try:
            if self.awaits:
                answer = asyncio.run(self.graph.ainvoke(given, where, **self.options | options))
            else:
                answer = self.graph.invoke(given, where, **self.options | options)
        except (ValueError, RecursionError) as error:
            answer = f"{type(error).__name__}: {error}"
        self.log.append(answer)
        return answer

    def state(self, thread="t", *, at=None, subgraphs=False):
        where = at or config(thread)
        if self.awaits:
            return asyncio.run(self.graph.aget_state(where, subgraphs=subgraphs))
        return self.graph.get_state(where, subgraphs=subgraphs)

    def history(self, thread="t", graph=None, **options):
        graph, where = graph or self.graph, config(thread)

        async def awaited():
            return [each async for each in graph.aget_state_history(where, **options)]

        return asyncio.run(awaited()) if self.awaits else list(graph.get_state_history(where, **options))

    def update(self, values, thread="t", *, at=None, as_node=None):
        where = at or config(thread)
        if self.awaits:
            return asyncio.run(self.graph.aupdate_state(where, values, as_node=as_node))
        return self.graph.update_state(where, values, as_node=as_node)

    def kept(self, thread=None, **options):
        """What the checkpointer lists."""
        where = None if thread is None else config(thread)

        async def awaited():
            return [each async for each in self.saver.alist(where, **options)]

        return asyncio.run(awaited()) if self.awaits else list(self.saver.list(where, **options))

"""Memory for LangChain agents: `MemoryMiddleware` adds documents to the system message of each model call.

Documents are read again before each call and are not part of the saved conversation, so an edit takes effect
with the next call, and an expired document is no longer shown. `TreeringTracer` records what agents and
chains do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from treering.adapters.langchain.tracing import TreeringTracer
from treering.compat.memory.middleware import create_agent_memory_middleware
from treering.errors import MissingExtra
from treering.memory.documents import MemoryContext, MemoryDocument
from treering.sync_async import lent

try:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
    from langchain_core.messages import SystemMessage
    from langchain_core.tools import StructuredTool
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"langchain", "langchain_core", "langgraph"}:
        raise MissingExtra("treering.adapters.langchain", "langchain") from error
    raise

__all__ = ["MemoryMiddleware", "TreeringTracer"]


class MemoryMiddleware(AgentMiddleware[Any, Any, Any]):
    """Memory for ``create_agent(model, middleware=[MemoryMiddleware(store.memory)])``.

    ``store`` is ``store.memory`` (plain or async), a store of `treering.compat.memory`, or `AgentFiles`,
    whose skills become a tool. The other arguments are those of `create_agent_memory_middleware`. ``last`` is
    what the model was shown last, with what was omitted.
    """

    def __init__(
        self,
        store: Any,
        *,
        auto_load: bool = True,
        max_documents: int | None = None,
        max_tokens: int | None = None,
        filter: Callable[[MemoryDocument], bool] | None = None,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._loader = create_agent_memory_middleware(
            store=store,
            auto_load=auto_load,
            max_documents=max_documents,
            max_tokens=max_tokens,
            filter=filter,
            order=order,
        )
        self.tools = [StructuredTool.from_function(function) for function in self._loader.tools]
        self.last: MemoryContext | None = None

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with the documents after its system message."""
        return handler(self._with_memory(request, self._loader.context()))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Async twin of `wrap_model_call`."""
        with lent(asyncio.get_running_loop()):
            context = await asyncio.to_thread(self._loader.context)
        return await handler(self._with_memory(request, context))

    def _with_memory(self, request: ModelRequest[Any], context: MemoryContext) -> ModelRequest[Any]:
        self.last = context
        if not context.text:
            return request
        before = request.system_message
        blocks: list[Any] = [] if before is None else list(before.content_blocks)
        content = [*blocks, {"type": "text", "text": f"\n\n{context.text}" if blocks else context.text}]
        return request.override(system_message=SystemMessage(content=content))

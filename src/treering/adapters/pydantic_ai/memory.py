"""Memory for pydantic-ai: documents in the instructions, and search results for the newest prompt.

Both are built for each model call. Search results are put before the newest prompt in the request, not in
the stored conversation: nothing accumulates, and an edited document takes effect with the next call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from treering.compat.memory.middleware import create_agent_memory_middleware
from treering.errors import InvalidInput, MissingExtra
from treering.memory.documents import MemoryContext, MemoryDocument, memory_context

try:
    from anyio import to_thread
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.tools import RunContext
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] in {"anyio", "pydantic_ai"}:
        raise MissingExtra("treering.adapters.pydantic_ai", "pydantic-ai") from error
    raise

_FOUND: Final = "What is remembered that may matter for this:"


def memory_instructions(
    store: Any,
    *,
    auto_load: bool = True,
    max_documents: int | None = None,
    max_tokens: int | None = None,
    filter: Callable[[MemoryDocument], bool] | None = None,
    order: Sequence[str] | None = None,
) -> Callable[[], Awaitable[str | None]]:
    """Return documents as one of an agent's instructions: ``Agent(model, instructions=[..., this])``.

    The arguments are those of `create_agent_memory_middleware`.
    """
    loader = create_agent_memory_middleware(
        store=store,
        auto_load=auto_load,
        max_documents=max_documents,
        max_tokens=max_tokens,
        filter=filter,
        order=order,
    )

    async def remembered() -> str | None:
        return (await to_thread.run_sync(loader.context)).text or None

    return remembered


class TreeringMemory(AbstractCapability[Any]):
    """A capability: ``Agent(model, capabilities=[TreeringMemory(store.memory)])``.

    Documents with ``auto_load`` are in the instructions (as many as ``max_documents`` and ``max_tokens``
    allow); up to ``recall`` others that match the newest prompt are put before it. ``last`` is the last
    search result.
    """

    def __init__(
        self,
        store: Any,
        *,
        recall: int = 5,
        max_documents: int | None = None,
        max_tokens: int | None = None,
        filter: Callable[[MemoryDocument], bool] | None = None,
    ) -> None:
        self._memory: Any = getattr(store, "sync", store)
        if recall < 0:
            raise InvalidInput(f"recall is {recall}; give 0 or more")
        if recall and not callable(getattr(self._memory, "search", None)):
            raise InvalidInput(f"{type(store).__name__} has no search; pass store.memory, or recall=0")
        self._instructions = memory_instructions(
            self._memory, max_documents=max_documents, max_tokens=max_tokens, filter=filter
        )
        self._recall = recall
        self._filter = filter
        self.last: MemoryContext | None = None

    def get_instructions(self) -> Callable[[], Awaitable[str | None]]:
        """Return the documents with ``auto_load``."""
        return self._instructions

    async def before_model_request(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - pydantic-ai's signature
        request_context: ModelRequestContext,
    ) -> ModelRequestContext:
        """Put documents that match the newest prompt before it in the request."""
        place = _newest_prompt(request_context.messages) if self._recall else None
        if place is None:
            return request_context
        at, text = place
        self.last = await to_thread.run_sync(self._found, text)
        request = request_context.messages[at]
        if self.last.text and isinstance(request, ModelRequest):
            part = UserPromptPart(f"{_FOUND}\n\n{self.last.text}")
            messages = list(request_context.messages)
            messages[at] = replace(request, parts=[part, *request.parts])
            request_context.messages = messages
        return request_context

    def _found(self, text: str) -> MemoryContext:
        found = self._memory.search(text, limit=self._recall)
        wanted = [each for each in found.documents if not each.auto_load] if found.ranked else []
        rank = [each.id for each in wanted]
        return memory_context(wanted, auto_load=False, filter=self._filter, order=rank)


def _newest_prompt(messages: Sequence[ModelMessage]) -> tuple[int, str] | None:
    """Return the position and text of the user's newest prompt."""
    for at in range(len(messages) - 1, -1, -1):
        for part in messages[at].parts:
            if isinstance(part, UserPromptPart):
                content = part.content
                texts = (
                    [content]
                    if isinstance(content, str)
                    else [each for each in content if isinstance(each, str)]
                )
                return at, "\n".join(texts)
    return None

"""Memory in the context of our own loop (`treering.agent`): read anew before each call of the model.

The model is shown one more system message behind those that are there; the conversation that is kept does not
have it, so that an edit of a document, or the end of its time, counts from the next call on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from treering.errors import InvalidInput
from treering.memory.context import MemoryContext, Readable, memory_context
from treering.memory.documents import MemoryDocument

Message = dict[str, Any]


class AgentMemoryMiddleware:
    """Shows documents to the model. ``last`` is what it was shown last, with what was cut."""

    def __init__(
        self,
        store: Readable,
        *,
        auto_load: bool,
        max_documents: int | None,
        max_tokens: int | None,
        filter: Callable[[MemoryDocument], bool] | None,
        order: Sequence[str],
    ) -> None:
        self._store = store
        self._auto_load = auto_load
        self._max_documents = max_documents
        self._max_tokens = max_tokens
        self._filter = filter
        self._order = tuple(order)
        self.last: MemoryContext | None = None
        self.tools: list[Callable[..., Any]] = list(getattr(store, "tools", ()))

    def context(self) -> MemoryContext:
        """What the model would be shown now."""
        return memory_context(
            self._store,
            auto_load=self._auto_load,
            max_documents=self._max_documents,
            max_tokens=self._max_tokens,
            filter=self._filter,
            order=self._order,
        )

    def before_model(self, messages: list[Message], context: Any) -> list[Message] | None:
        """The messages with the documents among them; as they are when there is nothing to load."""
        del context
        self.last = self.context()
        if not self.last.text:
            return None
        at = next((at for at, each in enumerate(messages) if each.get("role") != "system"), len(messages))
        return [*messages[:at], {"role": "system", "content": self.last.text}, *messages[at:]]


def create_agent_memory_middleware(
    *,
    store: Any,
    auto_load: bool = True,
    max_documents: int | None = None,
    max_tokens: int | None = None,
    filter: Callable[[MemoryDocument], bool] | None = None,
    order: Sequence[str] | None = None,
) -> AgentMemoryMiddleware:
    """Middleware for `create_agent` that loads memory into the context.

    ``store`` is ``store.memory`` (plain or async), one of the stores here, `AgentFiles`, or whatever has a
    ``query()`` of documents. With ``auto_load`` only documents that ask for it are loaded, else all.
    """
    plain = getattr(store, "sync", store)
    if not callable(getattr(plain, "query", None)) or isinstance(plain, Iterable):
        raise InvalidInput(f"{type(store).__name__} is no store of memory; pass one with query()")
    return AgentMemoryMiddleware(
        plain,
        auto_load=auto_load,
        max_documents=max_documents,
        max_tokens=max_tokens,
        filter=filter,
        order=getattr(plain, "order", ()) if order is None else order,
    )

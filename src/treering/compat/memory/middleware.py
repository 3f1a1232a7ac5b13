"""Memory middleware for `treering.agent`: load documents before each call of the model.

They are added as one more system message, which only the model sees. The stored conversation does not
contain it, so an edited or expired document takes effect with the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from treering.errors import InvalidInput
from treering.memory.documents import (
    MemoryContext,
    MemoryDocument,
    memory_context,
    parse_document,
)
from treering.sync_async import collect

Message = dict[str, Any]


class AgentMemoryMiddleware:
    """Adds documents to what the model sees. ``last`` is the most recent context, with what was omitted."""

    def __init__(
        self,
        store: Any,
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
        """Return the context that the model would see now."""
        return memory_context(
            documents_of(self._store),
            auto_load=self._auto_load,
            max_documents=self._max_documents,
            max_tokens=self._max_tokens,
            filter=self._filter,
            order=self._order,
        )

    def before_model(self, messages: list[Message], context: Any) -> list[Message] | None:
        """Return the messages with the context added, or ``None`` if there is nothing to load."""
        del context
        self.last = self.context()
        if not self.last.text:
            return None
        at = next((at for at, each in enumerate(messages) if each.get("role") != "system"), len(messages))
        return [*messages[:at], {"role": "system", "content": self.last.text}, *messages[at:]]


def documents_of(store: Any) -> list[MemoryDocument]:
    """Return all documents of a memory store, whose ``query`` may be plain or async, and may return dicts."""
    return [
        each if isinstance(each, MemoryDocument) else parse_document(each) for each in collect(store.query)
    ]


def create_agent_memory_middleware(
    *,
    store: Any,
    auto_load: bool = True,
    max_documents: int | None = None,
    max_tokens: int | None = None,
    filter: Callable[[MemoryDocument], bool] | None = None,
    order: Sequence[str] | None = None,
) -> AgentMemoryMiddleware:
    """Create middleware for `create_agent` that loads memory into the context.

    ``store`` is ``store.memory`` (sync or async), a store of this package, `AgentFiles`, or any object with a
    ``query()``, plain or ``async``, that returns documents (or dicts with ``id``, ``content`` and
    ``metadata``). With ``auto_load`` only documents marked so are loaded, else all.
    """
    plain = getattr(store, "sync", store)
    if not callable(getattr(plain, "query", None)) or isinstance(plain, Iterable):
        raise InvalidInput(f"{type(store).__name__} is not a memory store; pass an object with query()")
    return AgentMemoryMiddleware(
        plain,
        auto_load=auto_load,
        max_documents=max_documents,
        max_tokens=max_tokens,
        filter=filter,
        order=getattr(plain, "order", ()) if order is None else order,
    )

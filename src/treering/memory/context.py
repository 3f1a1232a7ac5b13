"""Select the documents for an agent's context: which, in which order, and which did not fit.

The result depends only on the documents and the arguments. Documents are ordered by id, those in ``order``
first. Each is included whole or omitted with a reason; a shorter one after it may still fit.
**Invariant:** expired documents are never included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, Protocol

import msgspec

from treering.errors import InvalidInput
from treering.memory.documents import MemoryDocument

Reason = Literal["max_documents", "max_tokens"]

_BYTES_PER_TOKEN: Final = 4


class DocumentSource(Protocol):
    """A store whose documents can be loaded into a context."""

    def query(self) -> Iterable[MemoryDocument]:
        """Return all documents."""
        ...


class OmittedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document that did not fit, and the limit it exceeded."""

    id: str
    reason: Reason
    tokens: int


class MemoryContext(msgspec.Struct, frozen=True, kw_only=True):
    """The text for the system prompt (empty if there is nothing to load) and the documents in it.

    ``tokens`` is an estimate of four bytes of UTF-8 per token, unless a counter was given.
    """

    text: str
    documents: tuple[MemoryDocument, ...]
    omitted: tuple[OmittedDocument, ...] = ()
    tokens: int = 0


def memory_context(
    store: DocumentSource | Iterable[MemoryDocument],
    *,
    auto_load: bool = True,
    max_documents: int | None = None,
    max_tokens: int | None = None,
    filter: Callable[[MemoryDocument], bool] | None = None,
    order: Sequence[str] = (),
    count_tokens: Callable[[str], int] | None = None,
    now: datetime | None = None,
) -> MemoryContext:
    """Build the text to put into an agent's context.

    With ``auto_load`` only documents marked so are considered, else all of them; ``filter`` restricts them
    further.
    """
    for name, limit in (("max_documents", max_documents), ("max_tokens", max_tokens)):
        if limit is not None and limit < 0:
            raise InvalidInput(f"{name} is {limit}; use 0 or more, or omit it for no limit")
    at = now or datetime.now(UTC)
    count = count_tokens or estimate_tokens
    wanted = [
        document
        for document in (store if isinstance(store, Iterable) else store.query())
        if not document.is_expired(at)
        and (document.auto_load or not auto_load)
        and (filter is None or filter(document))
    ]
    rank = {name: index for index, name in enumerate(order)}
    wanted.sort(key=lambda document: (rank.get(document.id, len(rank)), document.id))
    included: list[MemoryDocument] = []
    omitted: list[OmittedDocument] = []
    used = 0
    for document in wanted:
        tokens = count(_section(document))
        if max_documents is not None and len(included) >= max_documents:
            omitted.append(OmittedDocument(id=document.id, reason="max_documents", tokens=tokens))
        elif max_tokens is not None and used + tokens > max_tokens:
            omitted.append(OmittedDocument(id=document.id, reason="max_tokens", tokens=tokens))
        else:
            included.append(document)
            used += tokens
    text = "\n\n".join(map(_section, included))
    return MemoryContext(text=text, documents=tuple(included), omitted=tuple(omitted), tokens=used)


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


def _section(document: MemoryDocument) -> str:
    # The content must not be able to close its section and open another one.
    body = document.content.strip().replace("</memory>", "<\\/memory>")
    name = document.id.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return f'<memory id="{name}">\n{body}\n</memory>'

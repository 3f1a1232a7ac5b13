"""Documents for an agent's context: which of them, in which order, and what did not fit.

Pure, once the documents are read: the same documents give the same text. They come in order of their ids,
those of ``order`` first. A document is taken whole or not at all; what was left out is reported with the
reason, and a shorter one behind it may still fit. **Invariant:** what has expired is never loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, Protocol

import msgspec

from treering.errors import InvalidInput
from treering.memory.documents import MemoryDocument

Reason = Literal["max_documents", "max_tokens"]

_BYTES_A_TOKEN: Final = 4


class Readable(Protocol):
    """A store that documents can be asked of."""

    def query(self) -> Iterable[MemoryDocument]:
        """All documents."""
        ...


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A document that was left out, and why."""

    id: str
    reason: Reason
    tokens: int


class MemoryContext(msgspec.Struct, frozen=True, kw_only=True):
    """A text for the system prompt (empty when there is nothing to load) and what it is made of.

    ``tokens`` is an estimate: four bytes of UTF-8 each, unless a counter was given.
    """

    text: str
    documents: tuple[MemoryDocument, ...]
    cut: tuple[Cut, ...] = ()
    tokens: int = 0


def memory_context(
    store: Readable | Iterable[MemoryDocument],
    *,
    auto_load: bool = True,
    max_documents: int | None = None,
    max_tokens: int | None = None,
    filter: Callable[[MemoryDocument], bool] | None = None,
    order: Sequence[str] = (),
    count_tokens: Callable[[str], int] | None = None,
    now: datetime | None = None,
) -> MemoryContext:
    """The text to put into an agent's context.

    With ``auto_load`` only documents that ask for it, else all; of these the ones that ``filter`` accepts.
    """
    for name, limit in (("max_documents", max_documents), ("max_tokens", max_tokens)):
        if limit is not None and limit < 0:
            raise InvalidInput(f"{name} is {limit}; use 0 or more, or leave it out for no limit")
    moment = now or datetime.now(UTC)
    count = count_tokens or estimated_tokens
    known = store if isinstance(store, Iterable) else store.query()
    wanted = [
        document
        for document in known
        if not document.is_expired(moment)
        and (document.auto_load or not auto_load)
        and (filter is None or filter(document))
    ]
    rank = {name: at for at, name in enumerate(order)}
    wanted.sort(key=lambda document: (rank.get(document.id, len(rank)), document.id))
    taken: list[MemoryDocument] = []
    cut: list[Cut] = []
    used = 0
    for document in wanted:
        tokens = count(_section(document))
        if max_documents is not None and len(taken) >= max_documents:
            cut.append(Cut(id=document.id, reason="max_documents", tokens=tokens))
        elif max_tokens is not None and used + tokens > max_tokens:
            cut.append(Cut(id=document.id, reason="max_tokens", tokens=tokens))
        else:
            taken.append(document)
            used += tokens
    text = "\n\n".join(map(_section, taken))
    return MemoryContext(text=text, documents=tuple(taken), cut=tuple(cut), tokens=used)


def estimated_tokens(text: str) -> int:
    """About how many tokens a text has."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_A_TOKEN)


def _section(document: MemoryDocument) -> str:
    # What a document holds must not be able to end its own section and begin another one.
    body = document.content.strip().replace("</memory>", "<\\/memory>")
    name = document.id.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return f'<memory id="{name}">\n{body}\n</memory>'

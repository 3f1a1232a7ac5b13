"""How a document lies in the store: a ref with what is known about it, and content of its own.

The ref holds all metadata, so that a query reads no content; the content is text at an address, the same one
as long as it does not change. Every change is also an event with the same facts, which is what history is
read from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.core.address import Address
from treering.core.clock import from_datetime, to_datetime
from treering.core.content import Content
from treering.core.encoding import decode, decode_json, encode_json
from treering.core.scopes import Scope, namespace_prefix, parse_scope
from treering.views.memory.documents import MemoryDocument, Provenance

if TYPE_CHECKING:
    from treering.core.draft import Draft
    from treering.core.engine import Engine

SAVED: Final = "memory.saved"
DELETED: Final = "memory.deleted"
EMBEDDED: Final = "memory.embedded"
"""A text that was there already got a vector."""
MEMORY_KINDS: Final = (SAVED, DELETED)

WORDS: Final = "memory"
TRIGRAMS: Final = "memory.trigrams"

_ROOT: Final = "memory/"
_KNOWN: Final = frozenset({"tags", "auto_load", "created_at", "updated_at", "expires_at"})


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A document without its content."""

    address: Address
    digest: str
    created_at_us: int
    updated_at_us: int
    expires_at_us: int | None = None
    auto_load: bool = False
    tags: tuple[str, ...] = ()
    extra: dict[str, Any] = {}
    provenance: Provenance | None = None
    wide: bool = False
    """The content has characters of a language without spaces, and is indexed by trigrams as well."""

    def facts(self) -> dict[str, Any]:
        """What the ref and the journal keep."""
        facts: dict[str, Any] = {
            "address": str(self.address),
            "digest": self.digest,
            "created": self.created_at_us,
            "updated": self.updated_at_us,
        }
        if self.expires_at_us is not None:
            facts["expires"] = self.expires_at_us
        if self.auto_load:
            facts["auto_load"] = True
        if self.tags:
            facts["tags"] = list(self.tags)
        if self.extra:
            facts["extra"] = self.extra
        if self.provenance is not None:
            facts["provenance"] = msgspec.to_builtins(self.provenance)
        if self.wide:
            facts["wide"] = True
        return facts

    def encoded(self) -> bytes:
        """The value of the ref."""
        return encode_json(self.facts(), keep_order=True)

    def is_expired(self, now_us: int) -> bool:
        """Whether its time is over."""
        return self.expires_at_us is not None and self.expires_at_us <= now_us

    def says_the_same(self, other: Stored) -> bool:
        """Whether a person would see no difference: content, tags, flags and metadata of their own."""
        return (
            self.digest == other.digest
            and self.tags == other.tags
            and self.auto_load == other.auto_load
            and self.expires_at_us == other.expires_at_us
            and encode_json(self.extra) == encode_json(other.extra)
        )

    def document(self, id: str, version: int, content: str) -> MemoryDocument:
        """The document as it is given out."""
        metadata: dict[str, Any] = {
            "tags": list(self.tags),
            "auto_load": self.auto_load,
            "created_at": to_datetime(self.created_at_us),
            "updated_at": to_datetime(self.updated_at_us),
        }
        if self.expires_at_us is not None:
            metadata["expires_at"] = to_datetime(self.expires_at_us)
        metadata |= self.extra
        return MemoryDocument(
            id=id, content=content, metadata=metadata, version=version, provenance=self.provenance
        )


def stored(data: bytes) -> Stored:
    """What `Stored.encoded` wrote."""
    return from_facts(decode_json(data))


def from_facts(facts: Mapping[str, Any]) -> Stored:
    """What `Stored.facts` gave."""
    provenance = facts.get("provenance")
    return Stored(
        address=Address(facts["address"]),
        digest=facts["digest"],
        created_at_us=facts["created"],
        updated_at_us=facts["updated"],
        expires_at_us=facts.get("expires"),
        auto_load=facts.get("auto_load", False),
        tags=tuple(facts.get("tags", ())),
        extra=facts.get("extra", {}),
        provenance=None if provenance is None else msgspec.convert(provenance, Provenance),
        wide=facts.get("wide", False),
    )


def kept(
    draft: Draft,
    document: MemoryDocument,
    *,
    scope: str,
    before: Stored | None,
    now_us: int,
    provenance: Provenance | None,
) -> Stored:
    """Put a document into a draft. Content that is as it was keeps its place."""
    content = Content("text", document.content.encode())
    digest = content.name[:32]
    address = before.address if before is not None and before.digest == digest else None
    if address is None:
        address = draft.put(content, scope=scope)
    metadata = document.metadata
    created: datetime | None = metadata.get("created_at")
    if before is not None:
        created_us = before.created_at_us
    else:
        created_us = now_us if created is None else from_datetime(created)
    expires: datetime | None = metadata.get("expires_at")
    return Stored(
        address=address,
        digest=digest,
        created_at_us=created_us,
        updated_at_us=now_us,
        expires_at_us=None if expires is None else from_datetime(expires),
        auto_load=bool(metadata.get("auto_load")),
        tags=tuple(metadata.get("tags") or ()),
        extra={key: value for key, value in metadata.items() if key not in _KNOWN},
        provenance=provenance,
        wide=is_wide(document.content),
    )


def contents(engine: Engine, space: str, records: Iterable[Stored]) -> list[str]:
    """The texts of documents, fetched together."""
    addresses = [each.address for each in records]
    return [decode(content) for content in engine.get(space, addresses)] if addresses else []


def prefix_of(namespace: str) -> str:
    """What the names of a namespace's refs start with."""
    return _ROOT + namespace_prefix(namespace)


def parse_name(name: str) -> tuple[str, str]:
    """Namespace and id of a ref's name."""
    namespace, _, document = name[len(_ROOT) :].partition("/")
    return parse_scope(f"{namespace}/memory/x").namespace, document


def scope_of(namespace: str, id: str) -> str:
    """What is forgotten together: one document with all its versions."""
    return str(Scope(namespace, "memory", id))


def is_wide(text: str) -> bool:
    """Whether the text has characters of languages that put no spaces between words."""
    return any(
        "\u3040" <= each <= "\u30ff"  # kana
        or "\u3400" <= each <= "\u9fff"  # Han
        or "\uac00" <= each <= "\ud7af"  # Hangul
        or "\u0e00" <= each <= "\u0eff"  # Thai and Lao
        or "\u1000" <= each <= "\u109f"  # Burmese
        or "\u1780" <= each <= "\u17ff"  # Khmer
        or "\U00020000" <= each <= "\U0003ffff"
        for each in text
    )

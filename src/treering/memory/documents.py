"""What a memory is made of: the document, its versions, where each of them came from.

``metadata`` is one dict, as agents and front matter have it: ``tags``, ``auto_load``, ``created_at``,
``updated_at`` and ``expires_at`` mean something here, every other key is the owner's and comes back as it was
given. **Invariant:** times are aware datetimes in UTC, tags a list without repetition, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from treering.core.clock import from_datetime, to_datetime, to_iso
from treering.core.content import Address, Content
from treering.core.encoding import decode, decode_json, encode_json
from treering.core.ids import Scope, check_id, namespace_prefix, parse_scope
from treering.errors import InvalidInput

if TYPE_CHECKING:
    from treering.core.batch import Draft
    from treering.core.engine import Engine


MAX_DOCUMENT_BYTES: Final = 16 * 1024 * 1024
MAX_METADATA_BYTES: Final = 32 * 1024

Trust = Literal["low", "medium", "high"]
TagMatch = Literal["any", "all"]
Operation = Literal["saved", "deleted"]

_TRUST_ORDER: Final[tuple[Trust, ...]] = ("low", "medium", "high")
_CAMEL: Final = {
    "autoLoad": "auto_load",
    "createdAt": "created_at",
    "updatedAt": "updated_at",
    "expiresAt": "expires_at",
}


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a version came from.

    ``source`` is yours to word (a URL, a person, a tool). ``trust`` of a version is never more than that of
    the documents named in ``derived_from``. Inside ``with store.run()`` the run is filled in.
    """

    run: str | None = None
    step: int | None = None
    source: str | None = None
    trust: Trust | None = None
    derived_from: tuple[str, ...] = ()


class MemoryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A text that agents remember. ``version`` is 0 as long as it is in no store that counts."""

    id: str
    content: str
    metadata: dict[str, Any] = {}
    version: int = 0
    provenance: Provenance | None = None

    @property
    def tags(self) -> list[str]:
        """What it is tagged with."""
        return list(self.metadata.get("tags") or ())

    @property
    def auto_load(self) -> bool:
        """Whether it belongs into every context."""
        return bool(self.metadata.get("auto_load"))

    @property
    def created_at(self) -> datetime | None:
        """When its first version was saved."""
        return self.metadata.get("created_at")

    @property
    def updated_at(self) -> datetime | None:
        """When this version was saved."""
        return self.metadata.get("updated_at")

    @property
    def expires_at(self) -> datetime | None:
        """From when on it is no longer loaded or found."""
        return self.metadata.get("expires_at")

    def is_expired(self, now: datetime) -> bool:
        """Whether its time is over."""
        return self.expires_at is not None and self.expires_at <= now


class MemoryVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a document, out of the journal; ``document`` is ``None`` where it was deleted."""

    id: str
    version: int
    operation: Operation
    document: MemoryDocument | None
    provenance: Provenance | None
    changed_at_us: int
    seq: int

    @property
    def changed_at(self) -> str:
        """When it happened, ISO 8601 with offset."""
        return to_iso(self.changed_at_us)


class MemoryDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What changed between two versions: ``text`` is a unified diff, empty when the content is the same."""

    id: str
    old: int
    new: int
    text: str
    added_tags: tuple[str, ...]
    removed_tags: tuple[str, ...]
    changed_metadata: tuple[str, ...]


class MemoryHit(msgspec.Struct, frozen=True, kw_only=True):
    """A document that was found; a higher score is a better match."""

    document: MemoryDocument
    namespace: str
    score: float


class MemorySearch(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found, best first.

    ``ranked`` is false when the question has nothing that could be ranked by; ``note`` then says why, and the
    hits (if any) hold the question literally, newest first.
    """

    hits: tuple[MemoryHit, ...]
    ranked: bool = True
    note: str = ""

    @property
    def documents(self) -> list[MemoryDocument]:
        """The documents alone."""
        return [hit.document for hit in self.hits]

    def __iter__(self) -> Iterator[MemoryHit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


def as_document(given: MemoryDocument | Mapping[str, Any]) -> MemoryDocument:
    """A document from a dict with ``id``, ``content`` and ``metadata``; camelCase names are understood."""
    if isinstance(given, MemoryDocument):
        return msgspec.structs.replace(given, metadata=checked_metadata(given.metadata))
    unknown = sorted(set(given) - {"id", "content", "metadata"})
    if unknown or "id" not in given or "content" not in given:
        raise InvalidInput(
            f"a memory document has id, content and metadata; got {', '.join(map(repr, given)) or 'nothing'}"
        )
    metadata: Any = given.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise InvalidInput(f"metadata of memory {given['id']!r} is a {type(metadata).__name__}; pass a dict")
    renamed = {_CAMEL.get(key, key): value for key, value in cast("Mapping[str, Any]", metadata).items()}
    return MemoryDocument(
        id=check_id(given["id"], "memory id"),
        content=checked_content(given["id"], given["content"]),
        metadata=checked_metadata(renamed),
    )


def checked_content(id: str, content: Any) -> str:
    """Text that can be kept."""
    if not isinstance(content, str):
        raise InvalidInput(f"content of memory {id!r} is a {type(content).__name__}; pass a str")
    try:
        size = len(content.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"content of memory {id!r} is not valid Unicode: {error}; repair it") from None
    if size > MAX_DOCUMENT_BYTES:
        raise InvalidInput(
            f"memory {id!r} has {size:,} bytes, the limit is {MAX_DOCUMENT_BYTES:,}; "
            "split it, or keep the file in a workspace and remember where it is"
        )
    return content


def checked_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata whose known keys have their types and whose size is bearable."""
    result = dict(metadata)
    if "tags" in result:
        result["tags"] = checked_tags(result["tags"])
    if "auto_load" in result and not isinstance(result["auto_load"], bool):
        raise InvalidInput(f"auto_load is {result['auto_load']!r}; use true or false")
    for key in ("created_at", "updated_at", "expires_at"):
        if result.get(key) is not None:
            result[key] = as_time(result[key], key)
    size = len(encode_json(result))
    if size > MAX_METADATA_BYTES:
        raise InvalidInput(
            f"metadata takes {size:,} bytes, the limit is {MAX_METADATA_BYTES:,}; move it into the content"
        )
    return result


def checked_tags(tags: Any) -> list[str]:
    """Tags, each once, in order."""
    if tags is None:
        return []
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidInput(f"tags are {tags!r}; pass a list of strings")
    given = [check_id(tag, "tag") for tag in cast("Iterable[Any]", tags)]
    return sorted(set(given)) if isinstance(tags, (set, frozenset)) else list(dict.fromkeys(given))


def as_time(value: Any, what: str) -> datetime:
    """An aware datetime in UTC from a datetime, a date or ISO text; what has no offset is taken as UTC."""
    moment: Any = value
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise InvalidInput(f"{what} is {value!r}; use a datetime or ISO 8601 text") from None
    if not isinstance(moment, datetime):
        if not isinstance(moment, date):
            raise InvalidInput(f"{what} is {value!r}; use a datetime or ISO 8601 text")
        moment = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    aware = moment.astimezone(UTC)
    return datetime(  # a plain one: parsers hand over subclasses of their own
        aware.year, aware.month, aware.day, aware.hour, aware.minute, aware.second, aware.microsecond, UTC
    )


def has_tags(document_tags: Iterable[str], wanted: Iterable[str], match: TagMatch) -> bool:
    """Whether a document has any (or all) of the wanted tags; wanting none is always met."""
    wanted_set = set(wanted)
    if not wanted_set:
        return True
    found = wanted_set & set(document_tags)
    return bool(found) if match == "any" else found == wanted_set


def least_trust(trusts: Iterable[Trust | None]) -> Trust | None:
    """The least of those that are known."""
    known = [_TRUST_ORDER.index(trust) for trust in trusts if trust is not None]
    return _TRUST_ORDER[min(known)] if known else None


# -----------------------------------------------------------------------------------------------------------
# How a document lies in the store: a ref with what is known about it, and content of its own.
#
# The ref holds all metadata, so that a query reads no content; the content is text at an address, the same
# one as long as it does not change. Every change is also an event with the same facts, which is what
# history is read from.


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

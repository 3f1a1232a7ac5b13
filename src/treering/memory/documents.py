"""Memory documents: their public types, validation, stored form, and selection for an agent's context.

``metadata`` is one dict, as in front matter: ``tags``, ``auto_load``, ``created_at``, ``updated_at`` and
``expires_at`` have a meaning here, and every other key belongs to the caller and round-trips unchanged.
**Invariant:** times are aware datetimes in UTC; tags are a list without duplicates, in the given order.

A document is stored as one ref (`DocumentRecord`) that holds all metadata and the address of the content, so
that a query need not read content. Each change is also an event with the same data, from which the history
is read.

`memory_context` selects the documents for a context: which, in which order, and which did not fit. The result
depends only on the documents and the arguments. Documents are ordered by id, those in ``order`` first. Each
is included whole or omitted with a reason; a shorter one after it may still fit. **Invariant:** expired
documents are never included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, cast

import msgspec

from treering.core.clock import from_datetime, to_datetime
from treering.core.content import Address, Content
from treering.core.encoding import decode, decode_json, encode_json
from treering.core.ids import Scope, check_id, namespace_prefix, parse_scope
from treering.errors import Corrupt, InvalidInput

if TYPE_CHECKING:
    from treering.core.batch import Draft
    from treering.core.engine import Engine

MAX_DOCUMENT_BYTES: Final = 16 * 1024 * 1024
MAX_METADATA_BYTES: Final = 32 * 1024

Trust = Literal["low", "medium", "high"]
TagMatch = Literal["any", "all"]
Operation = Literal["saved", "deleted"]

SAVED: Final = "memory.saved"
DELETED: Final = "memory.deleted"
EMBEDDED: Final = "memory.embedded"
"""Existing text was given a vector."""
MEMORY_KINDS: Final = (SAVED, DELETED)
READ: Final = "memory.read"
"""A run read documents: which ones, and what it had searched for."""

WORDS: Final = "memory"
"""Name of the text index by words."""
TRIGRAMS: Final = "memory.trigrams"
"""Name of the text index by trigrams."""

REF_ROOT: Final = "memory/"
LAST_CHARACTER: Final = "\U0010ffff"

_TRUST_ORDER: Final[tuple[Trust, ...]] = ("low", "medium", "high")
_CAMEL_CASE: Final = {
    "autoLoad": "auto_load",
    "createdAt": "created_at",
    "updatedAt": "updated_at",
    "expiresAt": "expires_at",
}
_RESERVED_KEYS: Final = frozenset({"tags", "auto_load", "created_at", "updated_at", "expires_at"})


class Provenance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a version came from.

    ``source`` is free text (a URL, a person, a tool). The ``trust`` of a version is never higher than that
    of the documents in ``derived_from``. Inside ``with store.run()`` the run is filled in.
    """

    run: str | None = None
    step: int | None = None
    source: str | None = None
    trust: Trust | None = None
    derived_from: tuple[str, ...] = ()


class MemoryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A text that agents remember. ``version`` is 0 unless it was read from a store with versions."""

    id: str
    content: str
    metadata: dict[str, Any] = {}
    version: int = 0
    provenance: Provenance | None = None

    @property
    def tags(self) -> list[str]:
        """The tags."""
        return list(self.metadata.get("tags") or ())

    @property
    def auto_load(self) -> bool:
        """Whether it is loaded into every context."""
        return bool(self.metadata.get("auto_load"))

    @property
    def created_at(self) -> datetime | None:
        """When the first version was saved."""
        return self.metadata.get("created_at")

    @property
    def updated_at(self) -> datetime | None:
        """When this version was saved."""
        return self.metadata.get("updated_at")

    @property
    def expires_at(self) -> datetime | None:
        """From when on it is neither loaded nor found."""
        return self.metadata.get("expires_at")

    def is_expired(self, now: datetime) -> bool:
        """Whether it has expired."""
        return self.expires_at is not None and self.expires_at <= now


class MemoryPage(msgspec.Struct, frozen=True, kw_only=True):
    """Documents by id, and the cursor of the next page; ``None`` if there is none."""

    documents: tuple[MemoryDocument, ...]
    cursor: str | None


class MemoryVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a document, from the journal; ``document`` is ``None`` if it was deleted."""

    id: str
    version: int
    operation: Operation
    document: MemoryDocument | None
    provenance: Provenance | None
    changed_at_us: int
    seq: int

    @property
    def changed_at(self) -> datetime:
        """When it happened, in UTC."""
        return to_datetime(self.changed_at_us)


class MemoryDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The changes between two versions; ``text`` is a unified diff, empty if the content is the same."""

    id: str
    old: int
    new: int
    text: str
    added_tags: tuple[str, ...]
    removed_tags: tuple[str, ...]
    changed_metadata: tuple[str, ...]


class MemoryHit(msgspec.Struct, frozen=True, kw_only=True):
    """A search result; a higher score is a better match."""

    document: MemoryDocument
    namespace: str
    score: float


class MemorySearch(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a search, best first.

    ``ranked`` is false if the query has no terms to rank by. ``note`` then says why, and the hits are the
    documents that contain the query literally, newest first.
    """

    hits: tuple[MemoryHit, ...]
    ranked: bool = True
    note: str = ""

    @property
    def documents(self) -> list[MemoryDocument]:
        """The documents of the hits."""
        return [hit.document for hit in self.hits]

    def __iter__(self) -> Iterator[MemoryHit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)


def parse_document(document: MemoryDocument | Mapping[str, Any]) -> MemoryDocument:
    """Validate a document, given as such or as a dict with ``id``, ``content`` and ``metadata``.

    Metadata keys of a dict may be in camelCase.
    """
    if isinstance(document, MemoryDocument):
        validate_content(document.id, document.content)
        return msgspec.structs.replace(document, metadata=validate_metadata(document.metadata))
    unknown = sorted(set(document) - {"id", "content", "metadata"})
    if unknown or "id" not in document or "content" not in document:
        raise InvalidInput(
            "a memory document has id, content and metadata; "
            f"got {', '.join(map(repr, document)) or 'nothing'}"
        )
    metadata: Any = document.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise InvalidInput(
            f"metadata of memory {document['id']!r} is a {type(metadata).__name__}; pass a dict"
        )
    renamed = {_CAMEL_CASE.get(key, key): value for key, value in cast("Mapping[str, Any]", metadata).items()}
    return MemoryDocument(
        id=check_id(document["id"], "memory id"),
        content=validate_content(document["id"], document["content"]),
        metadata=validate_metadata(renamed),
    )


def validate_content(id: str, content: Any) -> str:
    """Return the content if it is valid text of an acceptable size."""
    if not isinstance(content, str):
        raise InvalidInput(f"content of memory {id!r} is a {type(content).__name__}; pass a str")
    try:
        size = len(content.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput(f"content of memory {id!r} is not valid Unicode: {error}") from None
    if size > MAX_DOCUMENT_BYTES:
        raise InvalidInput(
            f"memory {id!r} has {size:,} bytes, the limit is {MAX_DOCUMENT_BYTES:,}; "
            "split it, or store the file in a workspace and save its path"
        )
    return content


def validate_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with its reserved keys normalised, if it is of an acceptable size."""
    result = dict(metadata)
    if "tags" in result:
        result["tags"] = validate_tags(result["tags"])
    if "auto_load" in result and not isinstance(result["auto_load"], bool):
        raise InvalidInput(f"auto_load is {result['auto_load']!r}; use true or false")
    for key in ("created_at", "updated_at", "expires_at"):
        if result.get(key) is not None:
            result[key] = parse_time(result[key], key)
    size = len(encode_json(result))
    if size > MAX_METADATA_BYTES:
        raise InvalidInput(
            f"metadata takes {size:,} bytes, the limit is {MAX_METADATA_BYTES:,}; move it into the content"
        )
    return result


def validate_tags(tags: Any) -> list[str]:
    """Return the tags without duplicates, in order."""
    if tags is None:
        return []
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise InvalidInput(f"tags are {tags!r}; pass a list of strings")
    checked = [check_id(tag, "tag") for tag in cast("Iterable[Any]", tags)]
    return sorted(set(checked)) if isinstance(tags, (set, frozenset)) else list(dict.fromkeys(checked))


def parse_time(value: Any, what: str) -> datetime:
    """Return an aware datetime in UTC, from a datetime, a date or ISO 8601 text; default offset UTC."""
    time: Any = value
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            raise InvalidInput(f"{what} is {value!r}; use a datetime or ISO 8601 text") from None
    if not isinstance(time, datetime):
        if not isinstance(time, date):
            raise InvalidInput(f"{what} is {value!r}; use a datetime or ISO 8601 text")
        time = datetime(time.year, time.month, time.day, tzinfo=UTC)
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    utc = time.astimezone(UTC)
    # A plain datetime: YAML parsers return subclasses.
    return datetime(utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.microsecond, UTC)


def matches_tags(document_tags: Iterable[str], wanted: Iterable[str], match: TagMatch) -> bool:
    """Whether a document has any (or all) of the wanted tags; no wanted tags match every document."""
    wanted_set = set(wanted)
    if not wanted_set:
        return True
    common = wanted_set & set(document_tags)
    return bool(common) if match == "any" else common == wanted_set


def lowest_trust(trusts: Iterable[Trust | None]) -> Trust | None:
    """Return the lowest trust, ignoring ``None``."""
    known = [_TRUST_ORDER.index(trust) for trust in trusts if trust is not None]
    return _TRUST_ORDER[min(known)] if known else None


class DocumentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A document as stored in its ref: everything but the content."""

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
    """Whether the content is indexed by trigrams as well; see `needs_trigrams`."""

    def to_dict(self) -> dict[str, Any]:
        """Return what the ref and the journal store."""
        data: dict[str, Any] = {
            "address": str(self.address),
            "digest": self.digest,
            "created": self.created_at_us,
            "updated": self.updated_at_us,
        }
        if self.expires_at_us is not None:
            data["expires"] = self.expires_at_us
        if self.auto_load:
            data["auto_load"] = True
        if self.tags:
            data["tags"] = list(self.tags)
        if self.extra:
            data["extra"] = self.extra
        if self.provenance is not None:
            data["provenance"] = msgspec.to_builtins(self.provenance)
        if self.wide:
            data["wide"] = True
        return data

    def encode(self) -> bytes:
        """Return the value of the ref."""
        return encode_json(self.to_dict(), keep_order=True)

    def is_expired(self, now_us: int) -> bool:
        """Whether it has expired."""
        return self.expires_at_us is not None and self.expires_at_us <= now_us

    def is_same(self, other: DocumentRecord) -> bool:
        """Whether content, tags, flags and own metadata are equal; times and provenance may differ."""
        return (
            self.digest == other.digest
            and self.tags == other.tags
            and self.auto_load == other.auto_load
            and self.expires_at_us == other.expires_at_us
            and encode_json(self.extra) == encode_json(other.extra)
        )

    def to_document(self, id: str, version: int, content: str) -> MemoryDocument:
        """Return the document."""
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


def decode_record(data: bytes) -> DocumentRecord:
    """Decode the value of a document's ref. Raise `Corrupt` if it cannot be read."""
    try:
        return record_from_dict(decode_json(data))
    except (KeyError, TypeError, AttributeError, ValueError) as error:  # ValueError: also of msgspec
        raise Corrupt(f"a document cannot be read ({error!r}); restore it from a backup") from None


def record_from_dict(data: Mapping[str, Any]) -> DocumentRecord:
    """Build a record from what `DocumentRecord.to_dict` returned."""
    provenance = data.get("provenance")
    return DocumentRecord(
        address=Address(data["address"]),
        digest=data["digest"],
        created_at_us=data["created"],
        updated_at_us=data["updated"],
        expires_at_us=data.get("expires"),
        auto_load=data.get("auto_load", False),
        tags=tuple(data.get("tags", ())),
        extra=data.get("extra", {}),
        provenance=None if provenance is None else msgspec.convert(provenance, Provenance),
        wide=data.get("wide", False),
    )


def put_document(
    draft: Draft,
    document: MemoryDocument,
    *,
    scope: str,
    before: DocumentRecord | None,
    now_us: int,
    provenance: Provenance | None,
) -> DocumentRecord:
    """Put the content of a document into a draft, unless it is unchanged, and return the new record."""
    content = Content("text", document.content.encode())
    digest = content.name[:32]
    is_unchanged = before is not None and before.digest == digest
    address = before.address if before is not None and is_unchanged else draft.put(content, scope=scope)
    metadata = document.metadata
    created: datetime | None = metadata.get("created_at")
    if before is not None:
        created_us = before.created_at_us
    else:
        created_us = now_us if created is None else from_datetime(created)
    expires: datetime | None = metadata.get("expires_at")
    return DocumentRecord(
        address=address,
        digest=digest,
        created_at_us=created_us,
        updated_at_us=now_us,
        expires_at_us=None if expires is None else from_datetime(expires),
        auto_load=bool(metadata.get("auto_load")),
        tags=tuple(metadata.get("tags") or ()),
        extra={key: value for key, value in metadata.items() if key not in _RESERVED_KEYS},
        provenance=provenance,
        wide=needs_trigrams(document.content),
    )


def read_contents(engine: Engine, space: str, records: Iterable[DocumentRecord]) -> list[str]:
    """Return the texts of documents, fetched in one request."""
    addresses = [each.address for each in records]
    return [decode(content) for content in engine.get(space, addresses)] if addresses else []


def ref_prefix(namespace: str) -> str:
    """Return the prefix of the ref names of a namespace."""
    return REF_ROOT + namespace_prefix(namespace)


def parse_ref_name(name: str) -> tuple[str, str]:
    """Return the namespace and the document id of a ref name."""
    namespace, _, document = name[len(REF_ROOT) :].partition("/")
    return parse_scope(f"{namespace}/memory/x").namespace, document


def document_scope(namespace: str, id: str) -> str:
    """Return the scope of a document: what `forget` erases, all its versions included."""
    return str(Scope(namespace, "memory", id))


def needs_trigrams(text: str) -> bool:
    """Whether the text has characters of a script without spaces between words."""
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

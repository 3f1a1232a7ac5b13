"""How records are stored in rows: the columns of the journal, links as one text, composed keys.

A row leaves out what it would repeat. A body or a single link into the row's own commit omits the name of the
commit (``0.3``). A span with the id of its row is ``""``, and so is a thread that the scope names already. A
parent omits the prefix that it shares with the row's id. A run is a number that follows from its name, so
writing it needs no lookup; the table ``run`` has the names. If two runs of a space ever have the same number
(for a million runs, a chance of one in 37 million), the second one is refused.

The data of a journal row is JSON, and JSON contains no control characters other than tab and line breaks. So
each of the others can stand for a phrase that many rows have in common (`Dictionary`). The phrases belong to
the store: they are written into its ``meta`` table when it is created and never change after that, so every
process that opens the store, whatever it has imported, reads and writes the same codes. What the phrases of a
new store are is up to whoever opens it (`treering.api` collects them from the packages that know the data).

**Invariant:** `Dictionary.expand` returns exactly what `compress` was given.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast
from zlib import crc32

import msgspec

from treering.core.batch import Event, Listing, Usage
from treering.core.clock import day_of
from treering.core.content import HEADER_SIZE, KINDS, Address, Kind, slot_address
from treering.core.digests import checksum, event_checksum, event_form, joined, numbered, ref_form
from treering.core.ids import thread_of_scope, thread_scope_of
from treering.core.records import Record, Ref
from treering.errors import Corrupt, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


EVENT_COLUMNS: Final = (
    "space", "seq", "day", "id", "commit_no", "kind", "ts_us", "scope", "run", "span", "parent", "thread",
    "agent", "name", "model", "role", "status", "input_tokens", "cache_read_tokens", "cache_write_tokens",
    "cache_write_1h_tokens", "output_tokens", "reasoning_tokens", "other_tokens", "cost_nanos", "currency",
    "duration_us", "data", "body", "links", "salt", "checksum",
)  # fmt: skip

RECORD_SELECT: Final = (
    "SELECT e.seq, c.batch, c.committed_at_us, e.id, e.kind, e.ts_us, s.name, u.name, e.span, e.parent, "
    "e.thread, e.agent, e.name, e.model, e.role, e.status, "
    "e.input_tokens, e.cache_read_tokens, e.cache_write_tokens, "
    "e.cache_write_1h_tokens, e.output_tokens, e.reasoning_tokens, e.other_tokens, e.cost_nanos, e.currency, "
    "e.duration_us, e.data, e.body, e.links, e.salt, e.checksum FROM event e "
    "LEFT JOIN commits c ON c.space = e.space AND c.no = e.commit_no "
    "LEFT JOIN scope s ON s.space = e.space AND s.no = e.scope "
    "LEFT JOIN run u ON u.space = e.space AND u.no = e.run"
)
"""The joins are outer ones, so that a row whose commit or scope is missing is not passed over."""

LISTING_COLUMNS: Final = ("listed_in", "listed_us", "namespace", "agent", "status", "thread")

REF_SELECT: Final = (
    "SELECT r.name, s.name, r.version, r.value, r.links, r.seq, r.changed_at_us, "
    f"{', '.join(f'r.{name}' for name in LISTING_COLUMNS)}, r.salt, r.checksum "
    "FROM ref r LEFT JOIN scope s ON s.space = r.space AND s.no = r.scope"
)

RUN: Final = (
    "INSERT INTO run (space, no, name) VALUES (?, ?, ?) "
    "ON CONFLICT (space, no) DO UPDATE SET name = NULL WHERE run.name <> excluded.name"
)
"""Inserts the name of a run; fails if another run has its number."""

SAME: Final = ""
"""As a span: the id of the row. As a thread: the one that the scope belongs to."""

SAME_HEAD: Final = "\x1f"
"""Stands for the prefix that a parent shares with the row's id, up to the first dot."""

_NO_USAGE: Final = (None,) * len(Usage.__struct_fields__)


def join_links(links: Sequence[Address]) -> str | None:
    """Return addresses as one text, separated by line breaks, which ids do not contain."""
    return "\n".join(links) if links else None


def split_links(text: Any) -> tuple[Address, ...]:
    """Return the addresses in a text of `join_links`."""
    if not text:
        return ()
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - in a damaged database
        raise Corrupt(f"the links of a row are not text but {text[:80]!r}; run verify, then restore a backup")
    return tuple(map(Address, text.split("\n")))


def frame_of(value: Any, where: str) -> bytes:
    """Return the bytes in a column; in a damaged database it may hold anything."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, memoryview):
        return cast("memoryview[int]", value).tobytes()
    raise Corrupt(f"{where}: its row does not hold bytes; restore it from a backup or a copy")


def kind_of(number: Any, where: str) -> Kind:
    """Return the kind of content that a column names."""
    if isinstance(number, int) and 0 <= number < len(KINDS):
        return KINDS[number]
    raise Corrupt(f"{where}: {number!r} is not a kind of content; restore it from a backup or a copy")


@lru_cache(maxsize=4096)
def run_number(run: str) -> int:
    """Return the number of a run, as rows of the journal have it."""
    return int.from_bytes(blake2b(run.encode(), digest_size=8).digest(), "big", signed=True)


@lru_cache(maxsize=4096)
def run_key(run: str) -> str:
    """Return the key of a run in roll-ups: its number in eleven characters."""
    return key_of_number(run_number(run))


def key_of_number(number: int) -> str:
    """Return the key of the run with this number."""
    return urlsafe_b64encode(number.to_bytes(8, "big", signed=True))[:11].decode()


def number_of_key(key: str) -> int:
    """Return the number in a `run_key`; 0 if a damaged row has none."""
    try:
        return int.from_bytes(urlsafe_b64decode(key + "=")[:8], "big", signed=True)
    except ValueError:
        return 0


def space_number(name: str) -> int:
    """Return the number of a space on PostgreSQL, which follows from its name.

    So it is the same in every database, and the rows of a space can move to another one as they are.
    """
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def run_rows(space: int, runs: Iterable[str | None]) -> list[tuple[int, int, str]]:
    """Return the rows for `RUN` with the names of these runs."""
    return [(space, run_number(run), run) for run in dict.fromkeys(runs) if run is not None]


def event_row(
    event: Event,
    *,
    space: int,
    scope: int,
    seq: int,
    commit_no: int,
    batch: str,
    committed_at_us: int,
    salt: bytes,
    form: bytes,
    dictionary: Dictionary,
) -> tuple[Any, ...]:
    """Return the row of an event, in the order of `EVENT_COLUMNS`; ``form`` is its canonical form."""
    own_slots = f"s:{batch}:"
    usage = event.usage
    body = event.body
    if body is not None and body.startswith(own_slots):
        body = body[len(own_slots) :]
    links = event.links
    if len(links) == 1 and links[0].startswith(own_slots):
        linked = links[0][len(own_slots) :]
    else:
        linked = "\n".join(links) if links else None
    span, parent = event.span, event.parent
    if parent is not None:
        head = event.id.find(".") + 1
        if head and parent.startswith(event.id[:head]):
            parent = SAME_HEAD + parent[head:]
    run, data = event.run, event.data
    if data is not None:
        data = dictionary.compress(data)
    thread = event.thread
    if thread is not None and thread_scope_of(thread) == event.scope:
        thread = SAME
    return (
        space, seq, day_of(event.ts_us), event.id, commit_no, event.kind, event.ts_us, scope,
        None if run is None else run_number(run), SAME if span == event.id else span, parent, thread,
        event.agent, event.name, event.model, event.role, event.status,
        *(_NO_USAGE if usage is None else msgspec.structs.astuple(usage)),
        event.cost_nanos, event.currency, event.duration_us, data, body, linked, salt,
        event_checksum(event, form, salt, seq=seq, batch=batch, committed_at_us=committed_at_us),
    )  # fmt: skip


def record_of(row: tuple[Any, ...], dictionary: Dictionary) -> Record:
    """Return the record in a row of `RECORD_SELECT`, or raise `Corrupt` if it is not as it was written."""
    try:
        record = read_record(row, dictionary)
        is_good = event_sum(record, row[-2]) == row[-1]
    except (AttributeError, TypeError, ValueError) as error:
        raise Corrupt(f"{_event_name(row)} cannot be read ({error}); {_RESTORE}") from error
    if not is_good:
        raise Corrupt(f"{_event_name(row)} is not as it was written: its checksum differs; {_RESTORE}")
    return record


def event_sum(record: Record, salt: bytes) -> int:
    """Return the checksum that the row of a record has to have."""
    return event_checksum(
        record.event,
        event_form(record.event),
        salt,
        seq=record.seq,
        batch=record.batch,
        committed_at_us=record.committed_at_us,
    )


def _event_name(row: tuple[Any, ...]) -> str:
    return f"event {row[3]!r} (number {row[0]})"


_RESTORE: Final = "run verify, then restore it from a backup or a copy"


def read_record(row: tuple[Any, ...], dictionary: Dictionary) -> Record:
    """Return the record in a row of `RECORD_SELECT`, without comparing its checksum."""
    (
        seq, batch, committed_at_us, event_id, kind, ts_us, scope, run, span, parent, thread, agent, name,
        model, role, status, input_, cache_read, cache_write, cache_write_1h, output, reasoning, other,
        cost_nanos, currency, duration_us, data, body, links, _, _,
    ) = row  # fmt: skip
    usage = None
    if input_ is not None:
        if None in (cache_read, cache_write, cache_write_1h, output, reasoning, other):
            raise Corrupt(f"event {event_id!r} has only some of its token counts; run verify")
        usage = Usage(
            input=input_,
            cache_read=cache_read,
            cache_write=cache_write,
            cache_write_1h=cache_write_1h,
            output=output,
            reasoning=reasoning,
            other=other,
        )
    if data is not None:
        data = dictionary.expand(data if type(data) is bytes else frame_of(data, f"event {event_id!r}"))
    if type(parent) is str and parent[:1] == SAME_HEAD:
        parent = f"{str(event_id).partition('.')[0]}.{parent[1:]}"
    return Record(
        seq=seq,
        batch=batch,
        committed_at_us=committed_at_us,
        event=Event(
            id=event_id,
            kind=kind,
            ts_us=ts_us,
            scope=scope,
            run=run,
            span=event_id if span == SAME else span,
            parent=parent,
            thread=thread_of_scope(scope or "") if thread == SAME else thread,
            agent=agent,
            name=name,
            model=model,
            role=role,
            status=status,
            usage=usage,
            cost_nanos=cost_nanos,
            currency=currency,
            duration_us=duration_us,
            data=data,
            body=full_body(batch, body),
            links=_event_links(batch, links),
        ),
    )


def _event_links(batch: str, links: Any) -> tuple[Address, ...]:
    if is_short(links):
        return (cast("Address", full_body(batch, links)),)
    return split_links(links)


def is_short(address: Any) -> TypeGuard[str]:
    """Whether an event's body or link omits the name of its own commit."""
    return isinstance(address, str) and address[:1].isdecimal()


def full_body(batch: str, body: str | None) -> Address | None:
    """Return the full address of a body that may be stored in short form."""
    if body is None:
        return None
    try:
        if body[0].isdecimal():
            part, _, index = body.partition(".")
            return slot_address(batch, int(part), int(index))
    except (AttributeError, IndexError, TypeError, ValueError):
        raise Corrupt(f"an event of commit {batch!r} has {body[:80]!r} for a body; run verify") from None
    return Address(body)


def ref_of(row: tuple[Any, ...]) -> Ref:
    """Return the ref in a row of `REF_SELECT` (a deleted one has an empty value).

    Raises `Corrupt` if it is not as it was written.
    """
    try:
        ref = read_ref(row)
        form = ref_row_form(row, ref)
        is_good = ref_checksum(ref.seq, ref.changed_at_us, row[-2], form) == row[-1]
    except (AttributeError, TypeError, ValueError) as error:
        raise Corrupt(f"ref {row[0]!r} cannot be read ({error}); {_RESTORE}") from error
    if not is_good:
        raise Corrupt(f"ref {row[0]!r} is not as it was written: its checksum differs; {_RESTORE}")
    return ref


def ref_row_form(row: tuple[Any, ...], ref: Ref) -> bytes:
    """Return the canonical form of the ref in a row of `REF_SELECT`."""
    return ref_form(
        ref.name, ref.scope, ref.version, None if row[3] is None else ref.value, ref.links, ref.listing
    )


def ref_checksum(seq: int, changed_at_us: int, salt: bytes, form: bytes) -> int:
    """Return the checksum of a ref; ``form`` is its canonical form."""
    return numbered(crc32(salt, crc32(form)), seq=seq, at_us=changed_at_us)


def list_checksum(
    space: int,
    no: int,
    list_id: str,
    scope: str,
    parent: int | None,
    start: int,
    length: int,
    depth: int,
    seq: int,
    salt: bytes,
) -> int:
    """Return the checksum of a list, which has the name of its scope and the number of its parent."""
    row = checksum(space, no, list_id, scope, parent, start, length, depth, salt)
    return numbered(row, seq=seq)


def item_checksum(space: int, key: int, kind: int | None, frame: bytes | None, address: str | None) -> int:
    """Return the checksum of an item; that of its bytes is in the header of its frame."""
    return checksum(space, key, kind, frame[:HEADER_SIZE] if isinstance(frame, bytes) else frame, address)


def body_checksum(space: int, key: int, scope: str, frame: bytes, salt: bytes) -> int:
    """Return the checksum of a body; that of its bytes is in the header of its frame."""
    part = key & ((1 << BODY_PART_BITS) - 1)
    return numbered(checksum(space, part, scope, frame[:HEADER_SIZE], salt), seq=key >> BODY_PART_BITS)


def text_checksum(
    space: int,
    no: int,
    collection: str,
    tokens: str,
    name: str,
    namespace: str,
    scope: str,
    source: str,
    salt: bytes,
) -> int:
    """Return the checksum of a row of the search index, and of its collection."""
    return checksum(space, no, collection, tokens, name, namespace, scope, source, salt)


COMMIT_COLUMNS: Final = (
    "batch", "no", "first_seq", "last_seq", "committed_at_us", "receipt", "links", "leaves", "digest",
    "checksum",
)  # fmt: skip


def commit_checksum(row: Sequence[Any]) -> int:
    """Return the checksums of a commit as one number: of its receipt, and of everything.

    ``row`` has the values of `COMMIT_COLUMNS`.
    """
    batch, no, first_seq, last_seq, committed_at_us, receipt, links, leaves, digest, *_ = row
    receipt_sum = receipt_checksum(batch, no, first_seq, last_seq, committed_at_us, receipt)
    return joined(receipt_sum, crc32(leaves, crc32(digest, checksum(batch, links))))


def receipt_checksum(
    batch: str, no: int, first_seq: int, last_seq: int, committed_at_us: int, receipt: bytes | None
) -> int:
    """Return the checksum of what a receipt is read from."""
    return numbered(checksum(batch, receipt), seq=no + 2 * first_seq + 4 * last_seq, at_us=committed_at_us)


RECEIPT_WEIGHT: Final = 7
"""How much `receipt_checksum` adds to the sequence number if all three numbers grow by one."""


def read_ref(row: tuple[Any, ...]) -> Ref:
    """Return the ref in a row of `REF_SELECT`, without comparing its checksum."""
    name, scope, version, value, links, seq, changed_at_us, *listed, _, _ = row
    if listed[0] is None and tuple(listed) != _NOT_LISTED:
        raise Corrupt(f"ref {name!r} is in no list, but says where: {listed}; {_RESTORE}")
    return Ref(
        name=name,
        scope=scope,
        version=version,
        value=value if type(value) is bytes else frame_of(value or b"", f"ref {name!r}"),
        links=split_links(links),
        seq=seq,
        changed_at_us=changed_at_us,
        listing=listing_of(listed),
    )


def listing_row(listing: Listing | None, at_us: int) -> tuple[Any, ...]:
    """Return the columns of a ref that say where it is listed; ``at_us`` is when it was set."""
    if listing is None:
        return _NOT_LISTED
    listed_us = at_us if listing.at_us is None else listing.at_us
    return listing.list, listed_us, listing.namespace, listing.agent, listing.status, listing.thread


_NOT_LISTED: Final = (None,) * 6


def listing_of(columns: Sequence[Any]) -> Listing | None:
    """Return where a ref is listed, from its columns."""
    listed_in, at_us, namespace, agent, status, thread = columns
    if listed_in is None:
        return None
    return Listing(
        list=listed_in, namespace=namespace, at_us=at_us, agent=agent, status=status, thread=thread
    )


# Composed integer keys: the bodies of a commit and the items of a list are each one range of a primary key.

BODY_PART_BITS: Final = 16
"""A commit has at most 65,536 bodies (erasure scopes)."""

ITEM_POSITION_BITS: Final = 32
"""A list has at most 4 billion items, and there can be 2 billion lists."""

ITEM_POSITION_MASK: Final = (1 << ITEM_POSITION_BITS) - 1


def body_key(commit_no: int, part: int) -> int:
    """Return the key of a commit's ``part``-th body."""
    return commit_no << BODY_PART_BITS | part


def item_key(list_no: int, position: int) -> int:
    """Return the key of the item at ``position`` of a list."""
    return list_no << ITEM_POSITION_BITS | position


CODES: Final = bytes(code for code in range(1, 32) if code not in b"\t\n\r")
"""A store has at most this many phrases."""

_RAW: Final = b"\x00"
"""Precedes data that is stored as it is."""
_TEXT: Final = bytes(byte for byte in range(256) if byte not in _RAW + CODES)
_SHORT: Final = 400
_BYTES: Final = frozenset({bytes})


class Dictionary:
    """The phrases of one store; empty until the store is open."""

    def __init__(self, phrases: Sequence[str] = ()) -> None:
        self.define(phrases)

    def define(self, phrases: Sequence[str]) -> None:
        """Set the phrases. Of two that match at one place the first is used, so list longer ones first."""
        if len(phrases) > len(CODES):
            raise InvalidInput(f"a store has at most {len(CODES)} phrases, not {len(phrases)}")
        encoded = [phrase.encode() for phrase in phrases]
        self._code_of = {phrase: CODES[at : at + 1] for at, phrase in enumerate(encoded)}
        self._phrase_of = {code[0]: (code, phrase) for phrase, code in self._code_of.items()}
        self._any_phrase = re.compile(b"(" + b"|".join(map(re.escape, encoded)) + b")")

    def compress(self, data: bytes) -> bytes:
        """Return data as it is stored."""
        if data.translate(None, _TEXT):
            return _RAW + data  # not JSON
        if not self._code_of:
            return data
        if len(data) <= _SHORT:
            parts = self._any_phrase.split(data)
            parts[1::2] = map(self._code_of.__getitem__, parts[1::2])
            return b"".join(parts)
        for phrase, code in self._code_of.items():  # on long data many times as fast as a regular expression
            data = data.replace(phrase, code)
        return data

    def expand(self, data: bytes) -> bytes:
        """Return data as it was given to `compress`."""
        codes = data.translate(None, _TEXT)
        if not codes:
            return data
        if data[:1] == _RAW:
            return data[1:]
        for code in set(codes):
            if code not in self._phrase_of:
                raise Corrupt(f"the data of a row has the code {code}, which stands for nothing; run verify")
            data = data.replace(*self._phrase_of[code])
        return data

    def expand_all(self, many: list[Any]) -> list[bytes] | None:
        """Expand many at once, faster if none has a code; ``None`` if one of them is not bytes."""
        if not _BYTES.issuperset(map(type, many)):
            return None
        return list(map(self.expand, many)) if b"".join(many).translate(None, _TEXT) else many


def encode_phrases(phrases: Sequence[str]) -> str:
    """Return phrases as they are stored in ``meta``."""
    return msgspec.json.encode(list(phrases)).decode()


def decode_phrases(stored: str) -> list[str]:
    """Return the phrases in ``meta``."""
    try:
        return msgspec.json.decode(stored, type=list[str])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Corrupt(f"the dictionary of the store cannot be read ({error}); restore a backup") from error

"""Digests: the checksum of each row, and the commitments that make tampering evident.

Two questions, two answers. *Is this row as it was written?* Every row that a read returns has a `crc32` over
what it means: its names, not the internal numbers, so a renamed scope is noticed too. Reads compare it, and a
row that differs raises `Corrupt`. *Is this history as it was written?* An operator can recompute a checksum,
so every row also has a **leaf**, the SHA-256 of a random salt and of the row in canonical form, and every
commit has a **digest** over all of its leaves. A seal (`core.seals`) is a Merkle root over such digests.

The salt is stored in the row itself, or, for the items of a list, in the row of the list. Whatever erases the
row erases the salt, and a leaf without its salt says nothing about the row. So leaves may be kept, copied
and published, and an erased row leaves the digest of its commit as it was. The leaves of refs, appends,
bodies and texts are kept with the commit (`CommitLeaves`), because such rows are replaced or swept. Those of
events are computed from their rows, which never change, and kept only once the rows are erased.

**Invariant:** the canonical form of a row depends on its meaning only: it is the same in every engine, in a
copy and in a backup. It holds no sequence numbers: what seals a commit adds them, and its time.
"""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal
from zlib import crc32

import msgspec

from treering.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from treering.core.batch import Event, Listing, Text
    from treering.core.content import Address, Content

SALT_SIZE: Final = 16

LeafKind = Literal["batch", "event", "body", "append", "ref", "text"]


def _plain(value: Any) -> Any:
    """Return a value of a subclass of text, bytes or number as what it is stored as."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, int):
        return int(value)
    raise NotImplementedError


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


def new_salts(count: int) -> list[bytes]:
    """Return so many random salts."""
    drawn = os.urandom(SALT_SIZE * count)
    return [drawn[at : at + SALT_SIZE] for at in range(0, len(drawn), SALT_SIZE)]


# Canonical forms


def event_form(event: Event) -> bytes:
    """Return an event in canonical form: JSON, without fields that are not set."""
    return _encode(event)


def body_form(part: int, scope: str, contents: Iterable[Content]) -> bytes:
    """Return a body in canonical form; contents by their hash."""
    return _encode([part, scope, [content_form(content) for content in contents]])


def content_form(content: Content | Address) -> str:
    """Return content as it appears in other forms: an address, or kind and hash."""
    return content if isinstance(content, str) else f"{content.kind}:{content.name}"


def item_form(item: Content | Address) -> bytes:
    """Return a list item in canonical form: what it is, its length, and its bytes."""
    if isinstance(item, str):
        data = item.encode()
        return b"address %d\n%b" % (len(data), data)
    return b"%b %d\n%b" % (item.kind.encode(), len(item.data), item.data)


def items_hash(items: Iterable[Content | Address]) -> bytes:
    """Return the hash of a run of list items."""
    digest = sha256()
    for item in items:
        digest.update(item_form(item))
    return digest.digest()


def append_form(list_id: str, scope: str, parent: str | None, at: int, count: int, items: bytes) -> bytes:
    """Return an append in canonical form; ``parent`` only at the start of the list."""
    return _encode([list_id, scope, parent, at, count, items.hex()])


def ref_form(
    name: str, scope: str, version: int, value: bytes | None, links: Sequence[str], listing: Listing | None
) -> bytes:
    """Return a change of a ref in canonical form; ``value`` is ``None`` if it deletes the ref."""
    listed = None
    if listing is not None:
        listed = [
            listing.list,
            listing.at_us,
            listing.namespace,
            listing.agent,
            listing.status,
            listing.thread,
        ]
    return _encode([name, scope, version, value, links, listed])


def text_form(text: Text) -> bytes:
    """Return an index entry in canonical form; without a source, it removes the entry."""
    return _encode([text.collection, text.name, text.namespace, text.scope, text.source])


# Leaves, digests and Merkle trees


def leaf(kind: LeafKind, salt: bytes, form: bytes) -> bytes:
    """Return the commitment to a row: 32 bytes that say nothing about it without the salt."""
    return sha256(b"\x00%b\n%b%b" % (kind.encode(), salt, form)).digest()


def batch_leaf(batch: str) -> bytes:
    """Return the commitment to the id of a batch, which is never erased and has no salt."""
    return leaf("batch", b"", batch.encode())


@lru_cache(maxsize=1024)
def list_tag(list_id: str, salt: bytes) -> bytes:
    """Return what tells the appends to one list from those to others, but not to which one."""
    return sha256(b"\x02" + salt + list_id.encode()).digest()[:8]


NO_ROOT: Final = bytes(32)
"""The root of no leaves."""


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root of a binary Merkle tree; an odd node at the end of a level moves up as it is."""
    if len(leaves) < 2:  # noqa: PLR2004 - most often: a commit has few rows of a kind
        return leaves[0] if leaves else NO_ROOT
    level = list(leaves)
    while len(level) > 1:
        pairs = [sha256(b"\x01" + level[at] + level[at + 1]).digest() for at in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def merkle_path(leaves: Sequence[bytes], index: int) -> list[tuple[Literal["left", "right"], bytes]]:
    """Return the siblings on the way from a leaf to the root, with the side that each is on."""
    path: list[tuple[Literal["left", "right"], bytes]] = []
    level = list(leaves)
    while len(level) > 1:
        sibling = index ^ 1
        if sibling < len(level):
            path.append(("left" if sibling < index else "right", level[sibling]))
        pairs = [sha256(b"\x01" + level[at] + level[at + 1]).digest() for at in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
        index //= 2
    return path


class AppendLeaf(msgspec.Struct, frozen=True, array_like=True):
    """The leaf of an append, and which list it belongs to (see `list_tag`)."""

    tag: bytes
    at: int
    count: int
    leaf: bytes


class CommitLeaves(msgspec.Struct, frozen=True, array_like=True):
    """The leaves of a commit, by kind. Those of events are only here once the event is erased."""

    events: int = 0
    """How many events the commit added to the journal."""
    erased: dict[int, bytes] = {}
    """Leaves of erased events by their position in the commit."""
    bodies: tuple[bytes, ...] = ()
    appends: tuple[AppendLeaf, ...] = ()
    refs: tuple[bytes, ...] = ()
    texts: tuple[bytes, ...] = ()

    def digest(self, batch: str, events_root: bytes) -> bytes:
        """Return the digest of the commit, over its batch id and the count and root of each kind."""
        counts = (self.events, len(self.bodies), len(self.appends), len(self.refs), len(self.texts))
        parts = (
            b"treering commit 1 %d %d %d %d %d\n" % counts,
            batch_leaf(batch),
            events_root,
            merkle_root(self.bodies),
            merkle_root([each.leaf for each in self.appends]),
            merkle_root(self.refs),
            merkle_root(self.texts),
        )
        return sha256(b"".join(parts)).digest()


_encode_leaves = msgspec.msgpack.Encoder().encode
_decode_leaves = msgspec.msgpack.Decoder(CommitLeaves).decode


def encode_leaves(leaves: CommitLeaves) -> bytes:
    """Return leaves as they are stored."""
    return _encode_leaves(leaves)


def decode_leaves(stored: Any, where: str) -> CommitLeaves:
    """Return stored leaves."""
    try:
        return _decode_leaves(bytes(stored))
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise Corrupt(f"the leaves of {where} cannot be read ({error}); run verify") from error


# Checksums


def checksum(*parts: Any) -> int:
    """Return the checksum of a row from its parts: text, bytes, numbers and ``None``."""
    return crc32(_encode(parts))


MODULUS: Final = 4_294_967_291
"""The largest prime below 2^32."""
SEQ_WEIGHT: Final = 7


def numbered(row: int, *, seq: int, at_us: int = 0) -> int:
    """Return the checksum of a row together with the numbers that its commit got.

    They are added, and not hashed with the rest, so that a database which assigns numbers while it writes can
    bring the checksum in line with them.
    """
    return (row + SEQ_WEIGHT * seq + at_us) % MODULUS


def event_checksum(
    event: Event, form: bytes, salt: bytes, *, seq: int, batch: str, committed_at_us: int
) -> int:
    """Return the checksums of an event as one number: of what a brief read returns, and of everything."""
    first = brief_checksum(seq, event.id, event.kind, event.ts_us, event.scope, event.data)
    row = crc32(batch.encode(), crc32(salt, crc32(form)))
    return joined(first, numbered(row, seq=seq, at_us=committed_at_us))


def brief_checksum(seq: int, event_id: str, kind: str, ts_us: int, scope: str, data: bytes | None) -> int:
    """Return the checksum of the part of an event that a brief read returns."""
    return numbered(crc32(data or b"", checksum(ts_us, event_id, kind, scope, data is None)), seq=seq)


def joined(first: int, second: int) -> int:
    """Return two checksums as one signed number."""
    both = first << 32 | second
    return both - (1 << 64) if both >> 63 else both


def first_of(both: int) -> int:
    """Return the first of two joined checksums."""
    return both >> 32 & 0xFFFFFFFF


def second_of(both: int) -> int:
    """Return the second of two joined checksums."""
    return both & 0xFFFFFFFF

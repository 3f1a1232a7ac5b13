"""The protocol of the gateway: one method of the engine contract each, what goes in and what comes back.

A call is ``POST /gateway/<method>?namespace=<name>`` with the header ``treering-protocol``; its body is one
message (and for `stage` the contents behind it), its answer is frames (see `wire`). The records are those of
the core, so this file is a table. **Invariant:** no message names a space that the server believes: which
space is meant comes from the key and the namespace, and the ``space`` fields inside of records are replaced
on arrival.

A method is *repeatable* when sending it twice does no harm and answers the same: those are tried again after
a lost connection. A *slow* one may take minutes; its answer begins at once and ticks until there is news.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from treering.core.batch import Batch, Receipt
from treering.core.content import Address, Content
from treering.core.engine import Caps
from treering.core.query import Erasure, EventQuery, SearchQuery, SumQuery
from treering.core.records import (
    Checked,
    Erased,
    Lease,
    ListInfo,
    Page,
    Problem,
    Ref,
    SearchResult,
    Slice,
    SpaceStats,
    Sum,
    Swept,
)
from treering.errors import InvalidInput, TooLarge

VERSION: Final = 1
"""Goes up when an older client or server would misunderstand; new methods and new fields do not count."""

HEADER: Final = "treering-protocol"
MEDIA_TYPE: Final = "application/vnd.treering.frames"
DEFAULT_NAMESPACE: Final = "default"
"""The namespace of a client that means the space of its project itself."""

MAX_REQUEST_BYTES: Final = 64 * 1024 * 1024
"""No request is larger, neither as it is sent nor unfolded, and so no single content."""
MAX_ANSWER_FRAME: Final = 1 << 30
PIECE_BYTES: Final = 4 * 1024 * 1024
"""Contents in an answer, and slices of an export, come in pieces of about this size."""
MAX_WAIT_SECONDS: Final = 20.0
"""How long one `wait` stays with the server; proxies cut what is silent for longer."""
TICK_SECONDS: Final = 5.0


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What the server is, and what the key opens."""

    protocol: int
    version: str
    caps: Caps
    project: str
    scope: str
    max_request_bytes: int


class Nothing(msgspec.Struct, frozen=True):
    """No arguments."""


class Commits(msgspec.Struct, frozen=True):
    """Batches to commit in this order, each for itself."""

    batches: tuple[Batch, ...]


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """An error, by the name of its class."""

    kind: str
    detail: str
    more: dict[str, Any] = {}


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A batch that was committed."""

    receipt: Receipt


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that is wanted."""

    name: str
    holder: str
    seconds: float


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that is held, to be prolonged or given back."""

    lease: Lease
    seconds: float = 0.0


class Names(msgspec.Struct, frozen=True):
    """Objects or refs, by name."""

    names: tuple[str, ...]


class Addresses(msgspec.Struct, frozen=True):
    """Contents that are wanted."""

    addresses: tuple[Address, ...]


class OneList(msgspec.Struct, frozen=True, kw_only=True):
    """A list, and which of its items."""

    list: str
    start: int = 0
    stop: int = 0


class Prefix(msgspec.Struct, frozen=True, kw_only=True):
    """Names that start alike, a page of them."""

    prefix: str
    after: str | None
    limit: int


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the journal."""

    query: EventQuery
    after: str | None
    limit: int


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """News that are waited for."""

    after_seq: int
    seconds: float


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """How to sweep."""

    dry_run: bool
    grace_seconds: float


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """How closely to check."""

    read_content: bool


class Behind(msgspec.Struct, frozen=True, kw_only=True):
    """An export behind a position."""

    after: str | None


class Found(msgspec.Struct, frozen=True, kw_only=True, tag="problem"):
    """A problem that a check found."""

    problem: Problem


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="checked"):
    """How far a check is."""

    checked: Checked


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One method: who may call it, its arguments, and what each message of its answer holds."""

    name: str
    scope: Literal["read", "write", "admin"]
    args: Any
    reply: Any
    repeatable: bool = True
    slow: bool = False


METHODS: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        Method(name="hello", scope="read", args=Nothing, reply=Hello),
        # Writing
        Method(name="commit", scope="write", args=Commits, reply=tuple[Done | Failure, ...]),
        Method(name="stage", scope="write", args=Nothing, reply=list[str]),
        Method(name="claim", scope="write", args=Claim, reply=Lease | None),
        Method(name="heartbeat", scope="write", args=Held, reply=Lease | None),
        Method(name="release", scope="write", args=Held, reply=None),
        # Reading
        Method(name="missing", scope="read", args=Names, reply=list[str]),
        Method(name="get", scope="read", args=Addresses, reply=list[Content]),
        Method(name="lineage", scope="read", args=OneList, reply=list[ListInfo]),
        Method(name="read_list", scope="read", args=OneList, reply=list[Content]),
        Method(name="refs", scope="read", args=Names, reply=list[Ref]),
        Method(name="scan_refs", scope="read", args=Prefix, reply=list[Ref]),
        Method(name="scan", scope="read", args=Scan, reply=Page),
        Method(name="wait", scope="read", args=Wait, reply=int),
        Method(name="sums", scope="read", args=SumQuery, reply=list[Sum]),
        Method(name="search", scope="read", args=SearchQuery, reply=SearchResult),
        Method(name="scan_scopes", scope="read", args=Prefix, reply=list[str]),
        Method(name="spaces", scope="read", args=Nothing, reply=list[str]),
        Method(name="stats", scope="read", args=Nothing, reply=SpaceStats, slow=True),
        # Looking after it. An erasure or a sweep that is done twice would report only what was left to do.
        Method(name="erase", scope="admin", args=Erasure, reply=Erased, slow=True, repeatable=False),
        Method(name="sweep", scope="admin", args=Sweep, reply=Swept, slow=True, repeatable=False),
        Method(name="check", scope="admin", args=Check, reply=list[Found | Progress], slow=True),
        Method(name="reindex", scope="admin", args=Nothing, reply=None, slow=True),
        Method(name="export", scope="admin", args=Behind, reply=list[Slice], slow=True),
        Method(name="load", scope="admin", args=Slice, reply=None, slow=True),
    )
}


# -----------------------------------------------------------------------------------------------------------
# The wire: messages of the gateway as frames, in requests and in answers alike.
#
# A frame is a tag ``u8``, a length ``u32`` (big-endian) and that many bytes. The tag says what they are: a
# message (MessagePack), a tick (nothing; the other side is still at work), a problem (JSON, the answer ends
# with it) or the end. Its highest bit says that the bytes are compressed with zstd. **Invariant:** an answer
# without its end or its problem was cut off and is never taken for a whole one, and no frame unfolds to more
# than the reader's limit.


if sys.version_info >= (3, 14) and not TYPE_CHECKING:
    from compression import zstd
else:
    from backports import zstd

MESSAGE: Final = 1
TICK: Final = 2
PROBLEM: Final = 3
END: Final = 4
_ZSTD: Final = 0x80

COMPRESS_FROM: Final = 4096
"""Below this many bytes, compressing takes longer than sending."""
_LEVEL: Final = 1

HEAD: Final = struct.Struct(">BI")

Read = Callable[[int], bytes]
"""Reads exactly so many bytes, or fewer where there are no more."""


class CutOff(Exception):
    """The bytes ended in the middle."""


def frame(tag: int, data: bytes = b"") -> bytes:
    """A frame, compressed when it is long enough and shrinks."""
    if len(data) >= COMPRESS_FROM:
        packed = zstd.compress(data, _LEVEL)
        if len(packed) < len(data):
            return HEAD.pack(tag | _ZSTD, len(packed)) + packed
    return HEAD.pack(tag, len(data)) + data


def frames(read: Read, *, limit: int) -> Iterator[tuple[int, bytes]]:
    """The tags and bytes of frames, until the source ends behind one of them."""
    while head := read(HEAD.size):
        if len(head) < HEAD.size:
            raise CutOff
        tag, length = HEAD.unpack(head)
        if length > limit:
            raise _too_large(limit)
        data = read(length) if length else b""
        if len(data) < length:
            raise CutOff
        yield tag & ~_ZSTD, _inflate(data, limit) if tag & _ZSTD else data


def reader(data: bytes) -> Read:
    """Reads from bytes at hand."""
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        piece = data[position : position + size]
        position += len(piece)
        return piece

    return read


def _inflate(data: bytes, limit: int) -> bytes:
    # Not zstd.decompress: it goes on into frames behind the first, whose sizes nobody has looked at.
    decompressor = zstd.ZstdDecompressor()
    try:
        size: int | None = cast("Any", zstd.get_frame_info(data)).decompressed_size
        if size is not None and size > limit:
            raise _too_large(limit)
        whole = decompressor.decompress(data, (limit if size is None else size) + 1)
    except zstd.ZstdError as error:
        raise InvalidInput(f"a compressed frame is damaged ({error}); send it again") from None
    if len(whole) > limit:
        raise _too_large(limit)
    if not decompressor.eof or decompressor.unused_data:
        raise InvalidInput("a compressed frame is cut, or has something behind it; send it again")
    return whole


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"a frame is larger than {limit:,} bytes; send less at once (nothing was written)")

"""The gateway protocol: the methods of the engine contract as HTTP requests, and their encoding.

A call is ``POST /gateway/<method>?namespace=<name>`` with the header ``treering-protocol``. Its body is one
message (for `stage`, followed by the contents), its response is a sequence of frames. Messages contain
records of `core`. **Invariant:** the server trusts no space in a message: it is derived from the key and the
namespace, and ``space`` fields in records are overwritten on arrival.

A method is *repeatable* if sending it twice is harmless and returns the same; it is retried after a lost
connection. A *slow* method may take minutes; its response starts immediately and ticks until there is a
result.

A frame is a tag ``u8``, a length ``u32`` (big-endian) and that many bytes. The tag marks a message
(MessagePack), a tick (empty: still working), a problem (JSON, ends the response) or the end. The highest bit
means that the bytes are compressed with zstd. **Invariant:** a response without an end or a problem is
truncated and never taken for a complete one, and no frame decompresses to more than the reader's limit.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import msgspec

from treering.core.batch import Batch, Receipt
from treering.core.content import Address, Content
from treering.core.engine import Caps
from treering.core.query import Erasure, EventQuery, ListQuery, SearchQuery, SqlQuery, SumQuery
from treering.core.records import (
    Archive,
    Archived,
    Checked,
    CommitDigest,
    Erased,
    Lease,
    ListInfo,
    Page,
    Problem,
    Ref,
    RefPage,
    SearchResult,
    Slice,
    SpaceStats,
    Sum,
    Swept,
)
from treering.errors import InvalidInput, TooLarge

VERSION: Final = 1
"""Incremented for incompatible changes; new methods and new fields are compatible."""

HEADER: Final = "treering-protocol"
MEDIA_TYPE: Final = "application/vnd.treering.frames"
DEFAULT_NAMESPACE: Final = "default"
"""The namespace for the space of the project itself."""

MAX_REQUEST_BYTES: Final = 64 * 1024 * 1024
"""Size limit of a request, both as sent and decompressed, and therefore of a single content."""
MAX_ANSWER_FRAME: Final = 1 << 30
MAX_NAMES: Final = 50_000
"""How many objects or refs a request may name, and how many contents it may have."""
MAX_BATCHES: Final = 1024
"""How many batches a request may commit."""
MAX_VALUES: Final = 4_000_000
"""How many values a message to the server may have: decoding it holds Python's global lock."""
PIECE_BYTES: Final = 4 * 1024 * 1024
"""Approximate size of the pieces in which contents and exports are sent."""
MAX_WAIT_SECONDS: Final = 20.0
"""Maximum duration of a `wait` request; proxies drop connections that are silent for longer."""
TICK_SECONDS: Final = 5.0


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The server, and what the key gives access to."""

    protocol: int
    version: str
    caps: Caps
    project: str
    scope: str
    max_request_bytes: int


class NoArguments(msgspec.Struct, frozen=True):
    """No arguments."""


class CommitRequest(msgspec.Struct, frozen=True):
    """Batches to commit in this order, each separately."""

    batches: Annotated[tuple[Batch, ...], msgspec.Meta(max_length=MAX_BATCHES)]


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """An error, by the name of its class."""

    kind: str
    detail: str
    more: dict[str, Any] = {}


class Committed(msgspec.Struct, frozen=True, tag="done"):
    """A committed batch."""

    receipt: Receipt


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A lease to claim."""

    name: str
    holder: str
    seconds: float


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A held lease to extend or release."""

    lease: Lease
    seconds: float = 0.0


class NamesRequest(msgspec.Struct, frozen=True):
    """Objects or refs, by name."""

    names: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_NAMES)]


class AddressesRequest(msgspec.Struct, frozen=True):
    """Contents to read."""

    addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=MAX_NAMES)]


class ListRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A list and a range of its items."""

    list: str
    start: int = 0
    stop: int = 0


class DigestsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A page of commits with their digests."""

    after_seq: int
    limit: int


class PrefixRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A page of names with a prefix."""

    prefix: str
    after: str | None
    limit: int


class ScanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the journal."""

    query: EventQuery
    after: str | None
    limit: int


class ListRefsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list of refs."""

    query: ListQuery
    after: str | None
    limit: int


class WaitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence number to wait for."""

    after_seq: int
    seconds: float


class SweepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a sweep."""

    dry_run: bool
    grace_seconds: float


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a check."""

    read_content: bool
    since: Annotated[int, msgspec.Meta(ge=0)] = 0
    processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1


class ArchiveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The moment before which to archive."""

    before_us: int


class QueryReply(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a query in SQL; the rows as canonical JSON, which keeps their types."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: bytes
    truncated: bool
    seconds: float


class ExportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The position after which to export."""

    after: str | None


class ProblemFound(msgspec.Struct, frozen=True, kw_only=True, tag="problem"):
    """A problem found by a check."""

    problem: Problem


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="checked"):
    """The progress of a check."""

    checked: Checked


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """A method: the required scope, its arguments, and the type of each message of its response."""

    name: str
    scope: Literal["read", "write", "admin"]
    args: Any
    reply: Any
    repeatable: bool = True
    slow: bool = False


METHODS: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        Method(name="hello", scope="read", args=NoArguments, reply=Hello),
        # Writing
        Method(name="commit", scope="write", args=CommitRequest, reply=tuple[Committed | Failure, ...]),
        Method(name="stage", scope="write", args=NoArguments, reply=list[str]),
        Method(name="claim", scope="write", args=ClaimRequest, reply=Lease | None),
        Method(name="heartbeat", scope="write", args=LeaseRequest, reply=Lease | None),
        Method(name="release", scope="write", args=LeaseRequest, reply=None),
        # Reading
        Method(name="missing", scope="read", args=NamesRequest, reply=list[str]),
        Method(name="get", scope="read", args=AddressesRequest, reply=list[Content]),
        Method(name="lineage", scope="read", args=ListRequest, reply=list[ListInfo]),
        Method(name="read_list", scope="read", args=ListRequest, reply=list[Content]),
        Method(name="refs", scope="read", args=NamesRequest, reply=list[Ref]),
        Method(name="scan_refs", scope="read", args=PrefixRequest, reply=list[Ref]),
        Method(name="list_refs", scope="read", args=ListRefsRequest, reply=RefPage),
        Method(name="scan", scope="read", args=ScanRequest, reply=Page),
        Method(name="wait", scope="read", args=WaitRequest, reply=int),
        Method(name="sums", scope="read", args=SumQuery, reply=list[Sum]),
        Method(name="search", scope="read", args=SearchQuery, reply=SearchResult),
        Method(name="scan_scopes", scope="read", args=PrefixRequest, reply=list[str]),
        Method(name="spaces", scope="read", args=NoArguments, reply=list[str]),
        Method(name="stats", scope="read", args=NoArguments, reply=SpaceStats, slow=True),
        Method(name="query", scope="read", args=SqlQuery, reply=QueryReply, slow=True),
        Method(name="archive_info", scope="read", args=NoArguments, reply=Archive),
        # Maintenance. Repeating an erasure or a sweep would report only what was left to do.
        Method(name="erase", scope="admin", args=Erasure, reply=Erased, slow=True, repeatable=False),
        Method(name="sweep", scope="admin", args=SweepRequest, reply=Swept, slow=True, repeatable=False),
        Method(
            name="check", scope="admin", args=CheckRequest, reply=list[ProblemFound | Progress], slow=True
        ),
        Method(
            name="commit_digests", scope="admin", args=DigestsRequest, reply=list[CommitDigest], slow=True
        ),
        Method(name="archive_before", scope="admin", args=ArchiveRequest, reply=Archived, slow=True),
        Method(name="reindex", scope="admin", args=NoArguments, reply=None, slow=True),
        Method(name="export", scope="admin", args=ExportRequest, reply=list[Slice], slow=True),
        Method(name="load", scope="admin", args=Slice, reply=None, slow=True),
    )
}


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
"""Compressing less than this takes longer than sending it."""
_LEVEL: Final = 1

HEAD: Final = struct.Struct(">BI")

Read = Callable[[int], bytes]
"""Reads exactly that many bytes, or fewer at the end."""


class Truncated(Exception):
    """The data ends in the middle of a frame."""


def frame(tag: int, data: bytes = b"") -> bytes:
    """Return a frame, compressed if it is large enough and shrinks."""
    if len(data) >= COMPRESS_FROM:
        packed = zstd.compress(data, _LEVEL)
        if len(packed) < len(data):
            return HEAD.pack(tag | _ZSTD, len(packed)) + packed
    return HEAD.pack(tag, len(data)) + data


def frames(read: Read, *, limit: int) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and data of each frame until the source ends."""
    while head := read(HEAD.size):
        if len(head) < HEAD.size:
            raise Truncated
        tag, length = HEAD.unpack(head)
        if length > limit:
            raise _too_large(limit)
        data = read(length) if length else b""
        if len(data) < length:
            raise Truncated
        yield tag & ~_ZSTD, _inflate(data, limit) if tag & _ZSTD else data


def reader(data: bytes) -> Read:
    """Return a `Read` function for bytes in memory."""
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        piece = data[position : position + size]
        position += len(piece)
        return piece

    return read


def _inflate(data: bytes, limit: int) -> bytes:
    # Not zstd.decompress: it would continue with further frames, whose sizes were not checked.
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
        raise InvalidInput("a compressed frame is truncated or has trailing bytes; send it again")
    return whole


def inflated_size(data: bytes) -> int:
    """Return how large the frames say that they are when they are decompressed.

    A frame that does not say it counts as the largest request.
    """
    total = at = 0
    while at + HEAD.size <= len(data):
        tag, length = HEAD.unpack_from(data, at)
        at += HEAD.size
        total += length
        if tag & _ZSTD:
            try:
                size: int | None = cast("Any", zstd.get_frame_info(data[at : at + length])).decompressed_size
            except zstd.ZstdError:  # it is refused when it is read
                size = 0
            total += MAX_REQUEST_BYTES if size is None else size
        at += length
    return total


def check_values(data: bytes) -> None:
    """Raise `TooLarge` if a message has more than `MAX_VALUES` values, without decoding it.

    Decoding holds Python's global lock until it is done; this does not.
    """
    if len(data) <= MAX_VALUES:  # a value has a byte at least
        return
    at = count = 0
    while at < len(data):
        first = data[at]
        size = _VALUE_SIZES[first]
        if size < 0:  # the length follows, in so many bytes
            at -= size
            size = int.from_bytes(data[at + size + 1 : at + 1], "big") + 1 + (0xC7 <= first <= 0xC9)  # noqa: PLR2004
        at += size
        count += 1
        if count > MAX_VALUES:
            raise TooLarge(f"a message has more than {MAX_VALUES:,} values; send less (nothing was written)")


def _value_sizes() -> list[int]:
    """Return how far the next value is behind the first byte of one; negative for bytes of a length.

    The elements of an array or a map are values of their own.
    """
    sizes = [1] * 256
    for length in range(32):
        sizes[0xA0 + length] = 1 + length
    for first, size in zip(range(0xCA, 0xD4), (5, 9, 2, 3, 5, 9, 2, 3, 5, 9), strict=True):  # numbers
        sizes[first] = size
    for first, size in zip(range(0xD4, 0xD9), (3, 4, 6, 10, 18), strict=True):  # extensions
        sizes[first] = size
    for first, size in ((0xC4, 1), (0xC5, 2), (0xC6, 4), (0xC7, 1), (0xC8, 2), (0xC9, 4)):  # bytes
        sizes[first] = -size
    for first, size in ((0xD9, 1), (0xDA, 2), (0xDB, 4)):  # text
        sizes[first] = -size
    for first, size in ((0xDC, 3), (0xDD, 5), (0xDE, 3), (0xDF, 5)):  # arrays and maps
        sizes[first] = size
    return sizes


_VALUE_SIZES: Final = _value_sizes()


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"a frame exceeds {limit:,} bytes; send less at once (nothing was written)")

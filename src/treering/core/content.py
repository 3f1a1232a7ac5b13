"""Content: its kinds, the names and addresses derived from it, and the frames and bodies that hold its bytes.

The name of an object is a SHA-256. For plain bytes (files, chunks) it is what `sha256sum` prints. JSON, text
and trees are hashed with their kind as a prefix, so equal bytes of different kinds are different objects,
and the name of an object determines how its bytes are decoded.

An address is short text that says where content is stored. ``o:<sha256>`` is an object.
``s:<batch>:<part>.<index>`` is a slot: small content in the body of the commit that stored it. Writers choose
batch ids, so the address is known before the commit. ``l:<list>`` is an append-only list. An address never
changes its meaning, and what it refers to is immutable (a list only grows). **Invariant:** an address has
exactly one spelling, so addresses can be compared and used as keys.

A frame is the envelope around all stored bytes. It has a header of eight bytes: format version, compression
codec, key id (0: not encrypted; reserved so that encryption needs no new format), and a CRC-32 of header and
payload. **Invariant:** a truncated frame, or one with a flipped bit, raises `Corrupt` with its location; it
is never returned as data. Payloads are compressed only where that pays, so tiny ones stay cheap to read.

Content below `INLINE_LIMIT` is not worth a row and a hash of its own. It is stored in the body of its commit
and addressed by its position there. A body holds content of a single erasure scope, so that forgetting a
thread deletes whole frames and never has to rewrite one.
"""

from __future__ import annotations

import re
import struct
import sys
import threading
from hashlib import sha256
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, Literal, NewType, cast
from zlib import crc32

import msgspec

from treering.errors import Corrupt, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

if sys.version_info >= (3, 14) and not TYPE_CHECKING:
    from compression import zstd
else:
    from backports import zstd


Kind = Literal["bytes", "json", "text", "tree"]
"""How content is decoded. ``tree`` is the only kind that links to other objects (see `core.tree`)."""

KINDS: Final[tuple[Kind, ...]] = ("bytes", "json", "text", "tree")
"""The index in this tuple is the number stored on disk: only ever append."""

KIND_NUMBERS: Final[dict[str, int]] = {kind: number for number, kind in enumerate(KINDS)}

_HASH_PREFIXES: Final[dict[str, bytes]] = {kind: kind.encode() + b"\0" for kind in KINDS if kind != "bytes"}


class Content(msgspec.Struct, frozen=True, gc=False):
    """Bytes and their kind."""

    kind: Kind
    data: bytes

    @property
    def name(self) -> str:
        """The object name of this content: SHA-256, 64 hex digits."""
        return object_name(self.kind, self.data)


def object_name(kind: Kind, data: bytes | memoryview) -> str:
    """Return the name of ``data`` as content of ``kind``."""
    if kind == "bytes":  # the common case
        return sha256(data).hexdigest()
    digest = sha256(_HASH_PREFIXES[kind])
    digest.update(data)
    return digest.hexdigest()


Address = NewType("Address", str)


class ObjectAddress(msgspec.Struct, frozen=True):
    """The address of an object: its SHA-256 name."""

    name: str


class SlotAddress(msgspec.Struct, frozen=True):
    """The address of the ``index``-th content in the ``part``-th body of a commit."""

    batch: str
    part: int
    index: int


class ListAddress(msgspec.Struct, frozen=True):
    """The address of an append-only list."""

    list: str


ParsedAddress = ObjectAddress | SlotAddress | ListAddress

_OBJECT_NAME: Final = re.compile("[0-9a-f]{64}")
_SLOT: Final = re.compile(r"(.+):(0|[1-9][0-9]{0,4})\.(0|[1-9][0-9]{0,8})", re.DOTALL)


def object_address(name: str) -> Address:
    """Return the address of an object."""
    return Address("o:" + name)


def slot_address(batch: str, part: int, index: int) -> Address:
    """Return the address of small content in a commit."""
    return Address(f"s:{batch}:{part}.{index}")


def list_address(list_id: str) -> Address:
    """Return the address of a list."""
    return Address("l:" + list_id)


def is_object_name(text: str) -> bool:
    """Whether a text is a valid object name: 64 lower-case hex digits."""
    return _OBJECT_NAME.fullmatch(text) is not None


def parse_address(address: str) -> ParsedAddress:
    """Parse an address; raise `InvalidInput` if it is malformed."""
    form, rest = address[:2], address[2:]
    if form == "l:" and rest:
        return ListAddress(rest)
    if form == "o:" and _OBJECT_NAME.fullmatch(rest):
        return ObjectAddress(rest)
    if form == "s:" and (slot := _SLOT.fullmatch(rest)):
        batch, part, index = slot.groups()
        return SlotAddress(batch, int(part), int(index))
    raise InvalidInput(
        f"not an address: {address[:80]!r}; expected o:<sha256>, s:<batch>:<part>.<index> or l:<list>"
    )


VERSION: Final = 1
RAW: Final = 0
ZSTD: Final = 1

COMPRESS_FROM: Final = 2048
"""Smaller payloads stay uncompressed: compressing one costs as much as the rest of its commit."""

PROBE_FROM: Final = 64 * 1024
"""Payloads of this size or more are sampled in three places first. Data that does not shrink there (video,
archives, ciphertext) rarely shrinks at all, and compressing all of it would cost more than storing it."""

MAX_PAYLOAD: Final = 1 << 30
"""No frame decompresses to more than this; a hostile one is rejected before memory is allocated."""

_SAMPLE: Final = 4096

_HEAD: Final = struct.Struct(">BBH")
_CRC: Final = struct.Struct(">I")
HEADER_SIZE: Final = _HEAD.size + _CRC.size

_RAW_HEAD: Final = _HEAD.pack(VERSION, RAW, 0)
_ZSTD_HEAD: Final = _HEAD.pack(VERSION, ZSTD, 0)
_RAW_WORD: Final = int.from_bytes(_RAW_HEAD, "big")
_RAW_HEAD_CRC: Final = crc32(_RAW_HEAD)
_ZSTD_HEAD_CRC: Final = crc32(_ZSTD_HEAD)


class _Compressors(threading.local):
    """One compressor per thread: creating a context costs more than compressing a kilobyte."""

    def __init__(self) -> None:
        self.zstd = zstd.ZstdCompressor(level=3)


_compressors = _Compressors()


def seal(data: bytes | memoryview, *, compress_from: int = COMPRESS_FROM) -> bytes:
    """Put ``data`` into a frame, compressed if it is large enough and shrinks."""
    return b"".join(seal_pieces(data, compress_from=compress_from))


def seal_pieces(
    data: bytes | memoryview, *, compress_from: int = COMPRESS_FROM
) -> tuple[bytes, bytes | memoryview]:
    """Return the frame as two pieces, header and payload, which avoids copying incompressible data."""
    if len(data) >= compress_from and (len(data) < PROBE_FROM or _shrinks(data)):
        packed = _compressors.zstd.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
        if len(packed) < len(data):
            return _ZSTD_HEAD + _CRC.pack(crc32(packed, _ZSTD_HEAD_CRC)), packed
    return _RAW_HEAD + _CRC.pack(crc32(data, _RAW_HEAD_CRC)), data


def _shrinks(data: bytes | memoryview) -> bool:
    """Whether three samples of the data shrink when compressed together."""
    middle = len(data) // 2
    samples = b"".join((data[:_SAMPLE], data[middle : middle + _SAMPLE], data[len(data) - _SAMPLE :]))
    return len(_compressors.zstd.compress(samples, zstd.ZstdCompressor.FLUSH_FRAME)) < len(samples)


def unseal(
    frame: bytes | memoryview,
    where: str,
    *,
    limit: int = MAX_PAYLOAD,
    upto: int | None = None,
    has_name: bool = False,
) -> bytes:
    """Return the data in a frame; ``where`` is its location for error messages.

    ``upto`` asks for only that many of the first bytes (the result may be longer). ``has_name`` skips the
    checksum: the caller compares the data with its hash.
    """
    if len(frame) < HEADER_SIZE:
        raise Corrupt(f"{where}: frame is truncated ({len(frame)} bytes); restore it from a backup or a copy")
    head = frame[:4]
    payload = frame[HEADER_SIZE:]  # copies bytes, but not a memoryview
    is_raw = head == _RAW_HEAD
    is_known = is_raw or head == _ZSTD_HEAD
    if not (has_name and is_known):
        before = _RAW_HEAD_CRC if is_raw else crc32(head)
        if crc32(payload, before) != _CRC.unpack_from(frame, 4)[0]:
            raise Corrupt(f"{where}: checksum does not match; restore it from a backup or a copy")
    if is_raw:
        return bytes(payload)
    if is_known:
        return _inflate(payload, where, limit, upto)
    version, codec, key_id = _HEAD.unpack(head)
    raise Corrupt(
        f"{where}: frame has version {version}, codec {codec}, key {key_id}, "
        "which this version of treering cannot read; upgrade it"
    )


def unseal_all(headers: Sequence[bytes], payloads: list[bytes], where: str) -> list[bytes]:
    """Return the data of many frames, each split behind its header. Raises the same errors as `unseal`.

    Most small contents are uncompressed, so all frames are checked as if they were: computing the checksums
    together takes half the time of one call each. Only the others are passed to `unseal`.
    """
    count = len(payloads)
    joined = b"".join(headers)
    if len(headers) == count and len(joined) == count * HEADER_SIZE:
        words = struct.unpack(f">{2 * count}I", joined)
        sums = list(map(crc32, payloads, repeat(_RAW_HEAD_CRC)))
        heads, given = words[::2], words[1::2]
        if heads.count(_RAW_WORD) == count and sums == list(given):
            return payloads
        are_good = [
            head == _RAW_WORD and own == other for head, own, other in zip(heads, sums, given, strict=True)
        ]
    else:
        are_good = [False] * count
    return [
        payload if is_good else unseal(header + payload, where)
        for is_good, header, payload in zip(are_good, headers, payloads, strict=True)
    ]


def _inflate(payload: bytes | memoryview, where: str, limit: int, upto: int | None) -> bytes:
    # Not zstd.decompress: it would continue with further frames, whose sizes were not checked.
    decompressor = zstd.ZstdDecompressor()
    try:
        size: int | None = cast("Any", zstd.get_frame_info(payload)).decompressed_size
        if size is not None and size > limit:
            raise Corrupt(f"{where}: frame would decompress to {size} bytes, the limit is {limit}")
        if size is not None and upto is not None and upto < size:
            return decompressor.decompress(payload, upto)
        data = decompressor.decompress(payload, (limit if size is None else size) + 1)
    except zstd.ZstdError as error:
        raise Corrupt(f"{where}: compressed data is damaged ({error}); restore it from a backup") from error
    if len(data) > limit:
        raise Corrupt(f"{where}: frame would decompress to more than the limit of {limit} bytes")
    if not decompressor.eof or decompressor.unused_data:
        raise Corrupt(
            f"{where}: compressed data is truncated or has trailing bytes; restore it from a backup"
        )
    return data


INLINE_LIMIT: Final = 4096
"""Content of this many bytes or more becomes an object, named by its hash and deduplicated."""

_COUNT: Final = struct.Struct(">I")
_ENTRY: Final = struct.Struct(">BI")


def pack_body(contents: Sequence[Content]) -> bytes:
    """Lay contents one behind the other, after a directory of their kinds and lengths."""
    parts = [_COUNT.pack(len(contents))]
    parts += [_ENTRY.pack(KIND_NUMBERS[content.kind], len(content.data)) for content in contents]
    parts += [content.data for content in contents]
    return b"".join(parts)


def unpack_body(raw: bytes, where: str) -> list[Content]:
    """Take all contents out of a body, in order."""
    try:
        (count,) = _COUNT.unpack_from(raw)
        start = _COUNT.size + count * _ENTRY.size
        contents: list[Content] = []
        for number, length in _ENTRY.iter_unpack(raw[_COUNT.size : start]):
            contents.append(Content(KINDS[int(number)], raw[start : start + length]))
            start += length
    except (struct.error, IndexError) as error:
        raise Corrupt(f"{where}: body directory is damaged; restore it from a backup") from error
    if start != len(raw) or len(contents) != count:
        raise Corrupt(f"{where}: body is {len(raw)} bytes where its directory says {start}")
    return contents

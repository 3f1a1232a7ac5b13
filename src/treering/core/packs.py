"""Packs: many objects in one self-describing file.

A file per object wastes a directory entry and an fsync on each; a row per object fills the database with
bytes that it never searches. So objects are stored in packs: a magic number, frames (`core.content`), an
index frame that lists every object, and a trailer with the position of the index. Consecutive small objects
share a frame of about 128 KiB, because compressing them together saves a fifth over compressing each alone.
A large object has its own frame.

Frames are contiguous in the file, and objects within their frame, so the index holds only lengths and
offsets follow from them: nothing can disagree. The index also contains a salt, so that no two packs have the
same name (the SHA-256 of the whole file), and deleting a pack by name can never delete one written later.
**Invariant:** content read from a pack hashes to the requested name; otherwise reading it raises `Corrupt`
with the names of the pack and the object.
"""

from __future__ import annotations

import struct
from collections import deque
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from treering.core.content import (
    KIND_NUMBERS,
    KINDS,
    MAX_PAYLOAD,
    Content,
    Kind,
    object_name,
    seal,
    seal_pieces,
    unseal,
)
from treering.errors import Corrupt, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence
    from concurrent.futures import Executor, Future

GROUP_SIZE: Final = 128 * 1024
"""Small objects share a frame of up to this many uncompressed bytes; an object of this size has its own."""

PACK_SIZE: Final = 20 * 1024 * 1024
"""Target size of a pack. Only a single large object makes a larger pack. Writing one takes up to twice as
much memory (filling, sending)."""

PACK_OBJECTS: Final = 32_768
"""Maximum number of objects in a pack, so that one transaction can insert all their rows."""

SALT_SIZE: Final = 16
HEAD: Final = b"treering pack 1\n"
_TAIL: Final = b"\ntreering index\n"
_TRAILER: Final = struct.Struct(f">I{len(_TAIL)}s")
TRAILER_SIZE: Final = _TRAILER.size

_GAP: Final = 128 * 1024
"""Frames closer together than this are read in one request, which is cheaper than two."""

_SPAN: Final = 16 * 1024 * 1024
"""Approximate maximum size of one read request."""

_COUNTS: Final = struct.Struct(f">{SALT_SIZE}sII")
_FRAME: Final = struct.Struct(">II")
_OBJECT: Final = struct.Struct(">32sBI")


class PackEntry(NamedTuple):
    """An object's position: ``size`` bytes at ``inner_offset`` in the decompressed frame at ``offset``."""

    name: str
    kind: Kind
    size: int
    offset: int
    length: int
    inner_offset: int


class FrameRead(NamedTuple):
    """A frame of a pack to read, and the objects wanted from it."""

    offset: int
    length: int
    entries: list[PackEntry]


class Pack(msgspec.Struct, frozen=True, kw_only=True):
    """A finished pack: its bytes, its name (their SHA-256) and the position of each object.

    The bytes are kept in ``pieces``: joining them would take their memory twice.
    """

    name: str
    size: int
    pieces: tuple[bytes, ...]
    entries: tuple[PackEntry, ...]

    @property
    def data(self) -> bytes:
        """The bytes of the file, joined."""
        return b"".join(self.pieces)

    @property
    def index(self) -> bytes:
        """The index frame."""
        return self.pieces[-2]


_Pieces = tuple[bytes, ...]


class _Group:
    """A frame being built: its objects, and its bytes once they are compressed."""

    __slots__ = ("frame", "objects", "raw_size")

    def __init__(self, objects: list[_Object], raw_size: int, frame: _Pieces | Future[_Pieces]) -> None:
        self.objects = objects
        self.raw_size = raw_size
        self.frame = frame


class _Object(NamedTuple):
    name: str
    kind: Kind
    size: int


class PackWriter:
    """Collects objects until it is `full`; `finish` returns the pack.

    With an executor, frames are compressed in the background while the caller reads and hashes the next
    object. Memory use is bounded by one pack plus the frames still being compressed.
    """

    def __init__(self, *, salt: bytes, executor: Executor | None = None, limit: int = PACK_SIZE) -> None:
        if len(salt) != SALT_SIZE:
            raise ValueError(f"a salt has {SALT_SIZE} bytes, got {len(salt)}")
        self._salt = salt
        self._executor = executor
        self._limit = limit
        self._groups: list[_Group] = []
        self._running: deque[_Group] = deque()
        self._size = len(HEAD)
        self._count = 0
        self._open: list[_Object] = []
        self._open_data: list[bytes] = []
        self._open_size = 0

    @property
    def full(self) -> bool:
        """Whether the pack has reached its limits; uncompressed data counts with its full size."""
        if self._size + self._open_size < self._limit:  # an upper bound: uncompressed sizes
            return self._count >= PACK_OBJECTS
        while self._running and _done(self._running[0]):
            group = self._running.popleft()
            self._size += _length(group) - group.raw_size
        return self._size + self._open_size >= self._limit or self._count >= PACK_OBJECTS

    @property
    def empty(self) -> bool:
        """Whether nothing was added yet."""
        return not self._count

    def add(self, content: Content, *, name: str | None = None) -> str:
        """Add an object and return its name; passing ``name`` avoids hashing. Duplicates are not detected."""
        name = content.name if name is None else name
        data = content.data
        entry = _Object(name, content.kind, len(data))
        self._count += 1
        if len(data) >= GROUP_SIZE:
            self._seal([entry], data)
            return name
        self._open.append(entry)
        self._open_data.append(data)
        self._open_size += len(data)
        if self._open_size >= GROUP_SIZE:
            self._close_group()
        return name

    def add_frame(self, frame: bytes, entries: Sequence[PackEntry]) -> None:
        """Add a frame of another pack unchanged, with all its objects."""
        objects = [_Object(entry.name, entry.kind, entry.size) for entry in entries]
        self._groups.append(_Group(objects, len(frame), (frame,)))
        self._size += len(frame)
        self._count += len(objects)

    def finish(self) -> Pack:
        """Return the pack. The writer cannot be used afterwards."""
        self._close_group()
        entries: list[PackEntry] = []
        offset = len(HEAD)
        lengths: list[int] = []
        for group in self._groups:
            length = _length(group)
            inner_offset = 0
            for name, kind, size in group.objects:
                entries.append(PackEntry(name, kind, size, offset, length, inner_offset))
                inner_offset += size
            lengths.append(length)
            offset += length
        index = seal(self._index(lengths))
        frames = chain.from_iterable(map(_pieces, self._groups))
        pieces = (HEAD, *frames, index, _TRAILER.pack(len(index), _TAIL))
        self._groups.clear()
        digest = sha256()
        for piece in pieces:
            digest.update(piece)
        return Pack(
            name=digest.hexdigest(),
            size=offset + len(index) + TRAILER_SIZE,
            pieces=pieces,
            entries=tuple(entries),
        )

    def _close_group(self) -> None:
        if self._open:
            objects, data = self._open, self._open_data
            self._open, self._open_data, self._open_size = [], [], 0
            self._seal(objects, data[0] if len(data) == 1 else b"".join(data))

    def _seal(self, objects: list[_Object], raw: bytes) -> None:
        if len(raw) > MAX_PAYLOAD:
            raise InvalidInput(
                f"an object of {len(raw)} bytes is above the limit of {MAX_PAYLOAD}; split it into chunks"
            )
        if self._executor is None:
            group = _Group(objects, len(raw), _sealed(raw))
            self._size += _length(group)
        else:
            group = _Group(objects, len(raw), self._executor.submit(_sealed, raw))
            self._running.append(group)
            self._size += len(raw)
        self._groups.append(group)

    def _index(self, lengths: list[int]) -> bytes:
        objects = [each for group in self._groups for each in group.objects]
        parts = [_COUNTS.pack(self._salt, len(lengths), len(objects))]
        parts += [
            _FRAME.pack(length, len(group.objects))
            for length, group in zip(lengths, self._groups, strict=True)
        ]
        parts += [_OBJECT.pack(bytes.fromhex(name), KIND_NUMBERS[kind], size) for name, kind, size in objects]
        return b"".join(parts)


def check_head(data: bytes, *, pack: str) -> None:
    """Raise `Corrupt` unless the bytes start with the header of a pack."""
    if data[: len(HEAD)] != HEAD:
        raise Corrupt(f"pack {pack}: not a pack (wrong header); restore it from a backup or a copy")


def index_span(tail: bytes, *, size: int, pack: str) -> tuple[int, int]:
    """Return the start and end of the index frame, given the last bytes of a pack of ``size`` bytes."""
    if len(tail) < TRAILER_SIZE or size < len(HEAD) + TRAILER_SIZE:
        raise Corrupt(f"pack {pack}: truncated ({size} bytes); restore it from a backup or a copy")
    length, mark = _TRAILER.unpack(tail[-TRAILER_SIZE:])
    stop = size - TRAILER_SIZE
    if mark != _TAIL or length > stop - len(HEAD):
        raise Corrupt(f"pack {pack}: its trailer is damaged or missing; restore it from a backup or a copy")
    return stop - length, stop


def read_index(frame: bytes, *, start: int, pack: str) -> tuple[PackEntry, ...]:
    """Return all objects of a pack from the index frame that starts at ``start``."""
    raw = unseal(frame, f"index of pack {pack}")
    try:
        _, frames, objects = _COUNTS.unpack_from(raw)
        middle = _COUNTS.size + frames * _FRAME.size
        if len(raw) != middle + objects * _OBJECT.size:
            raise struct.error("counts and length disagree")
        listed = _OBJECT.iter_unpack(raw[middle:])
        entries: list[PackEntry] = []
        offset = len(HEAD)
        for length, count in _FRAME.iter_unpack(raw[_COUNTS.size : middle]):
            inner_offset = 0
            for _ in range(count):
                name, kind, size = next(listed)
                entries.append(PackEntry(name.hex(), KINDS[kind], size, offset, length, inner_offset))
                inner_offset += size
            offset += length
    except (struct.error, IndexError, StopIteration) as error:
        raise Corrupt(f"pack {pack}: its index is damaged ({error}); restore it from a backup") from error
    if offset != start or len(entries) != objects:
        raise Corrupt(f"pack {pack}: its frames end at {offset}, but its index starts at {start}")
    return tuple(entries)


def read_pack(data: bytes, *, pack: str) -> tuple[PackEntry, ...]:
    """Return all objects of a pack held in memory."""
    check_head(data, pack=pack)
    start, stop = index_span(data, size=len(data), pack=pack)
    return read_index(data[start:stop], start=start, pack=pack)


def read_entry(frame: bytes, entry: PackEntry, *, pack: str) -> Content:
    """Return one object from its frame, verified."""
    (content,) = read_frame(frame, [entry], pack=pack)
    return content


def read_frame(frame: bytes | memoryview, entries: Sequence[PackEntry], *, pack: str) -> list[Content]:
    """Return objects of one frame, each verified by its name. Decompresses only as far as needed."""
    where = f"object {entries[0].name} in pack {pack}" if entries else f"pack {pack}"
    raw = unseal(frame, where, upto=max((each.inner_offset + each.size for each in entries), default=0))
    found: list[Content] = []
    for name, kind, size, _, _, start in entries:
        data = raw[start : start + size]  # slicing all of it makes no copy
        if object_name(kind, data) != name:
            raise Corrupt(
                f"object {name} in pack {pack}: its bytes have another hash; "
                "restore it from a backup or a copy"
            )
        found.append(Content(kind, data))
    return found


def filter_pack(data: bytes, keep: Container[str], *, pack: str, salt: bytes) -> Pack | None:
    """Return a pack with only the objects to keep, or ``None`` if there are none.

    Frames that stay complete are copied unchanged; only frames that lose an object are compressed again.
    """
    writer = PackWriter(salt=salt)
    for (offset, length), entries in group_by_frame(read_pack(data, pack=pack)).items():
        frame = data[offset : offset + length]
        kept = [entry for entry in entries if entry.name in keep]
        if len(kept) == len(entries):
            writer.add_frame(frame, entries)
        elif kept:
            for entry, content in zip(kept, read_frame(frame, kept, pack=pack), strict=True):
                writer.add(content, name=entry.name)
    return None if writer.empty else writer.finish()


def group_by_frame(entries: Iterable[PackEntry]) -> dict[tuple[int, int], list[PackEntry]]:
    """Group entries by their frame (offset, length), in file order."""
    frames: dict[tuple[int, int], list[PackEntry]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.inner_offset)):
        frames.setdefault((entry.offset, entry.length), []).append(entry)
    return frames


def coalesce_frames(frames: dict[tuple[int, int], list[PackEntry]]) -> Iterator[list[FrameRead]]:
    """Yield groups of frames that are close enough to read in one request."""
    run: list[FrameRead] = []
    for (offset, length), entries in frames.items():
        if run and (
            offset - run[-1].offset - run[-1].length > _GAP or offset + length - run[0].offset > _SPAN
        ):
            yield run
            run = []
        run.append(FrameRead(offset, length, entries))
    if run:
        yield run


def _sealed(raw: bytes) -> _Pieces:
    head, payload = seal_pieces(raw)
    return head, bytes(payload)


def _pieces(group: _Group) -> _Pieces:
    frame = group.frame
    if isinstance(frame, tuple):
        return frame
    group.frame = frame.result()
    return group.frame


def _length(group: _Group) -> int:
    return sum(map(len, _pieces(group)))


def _done(group: _Group) -> bool:
    return isinstance(group.frame, tuple) or group.frame.done()

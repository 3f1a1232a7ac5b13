"""A pack: many objects in one file that explains itself.

A file per object wastes a directory entry and an fsync on each; a row per object makes the database carry
bytes that it never looks at. So objects are written in packs: a magic, frames (`core.frame`), an index
frame that names every object in them, and a trailer that says where the index begins. Small objects that
come one behind the other share a frame of about 128 KiB, because compressing them together saves a fifth
over compressing each alone; a large object has a frame to itself.

Frames lie back to back and objects lie back to back within their frame, so the index holds lengths only
and places follow from them: there is no second spelling that could disagree. It also holds a salt, so
that no two packs ever have the same name (the SHA-256 of the whole file): deleting a pack by its name
can never hit another one that was written since. **Invariant:** content leaves a pack only when its
bytes hash to the name it was asked for by; anything else raises `Corrupt` and names pack and object.
"""

from __future__ import annotations

import struct
from collections import deque
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from treering.core.content import KIND_NUMBERS, KINDS, Content, Kind, object_name
from treering.core.frame import MAX_PAYLOAD, seal, seal_pieces, unseal
from treering.errors import Corrupt, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence
    from concurrent.futures import Executor, Future

GROUP_SIZE: Final = 128 * 1024
"""Small objects share a frame up to this many raw bytes; an object this large has its own."""

PACK_SIZE: Final = 20 * 1024 * 1024
"""A writer is full at this size; only an object that is large by itself makes a larger pack. Writing one
takes up to twice as much memory (filling, sending)."""

PACK_OBJECTS: Final = 32_768
"""A writer is full with this many objects, too, so that one transaction takes all their rows."""

SALT_SIZE: Final = 16
HEAD: Final = b"treering pack 1\n"
_TAIL: Final = b"\ntreering index\n"
_TRAILER: Final = struct.Struct(f">I{len(_TAIL)}s")
TRAILER_SIZE: Final = _TRAILER.size

_GAP: Final = 128 * 1024
"""Frames closer together than this are read in one request: a request costs more than the bytes between."""

_SPAN: Final = 16 * 1024 * 1024
"""One request reads at most about this much."""

_COUNTS: Final = struct.Struct(f">{SALT_SIZE}sII")
_FRAME: Final = struct.Struct(">II")
_OBJECT: Final = struct.Struct(">32sBI")


class PackEntry(NamedTuple):
    """Where an object lies: ``size`` bytes at ``inner_offset`` of what the frame at ``offset`` unfolds to."""

    name: str
    kind: Kind
    size: int
    offset: int
    length: int
    inner_offset: int


class FrameRead(NamedTuple):
    """A frame of a pack, and the objects in it that someone wants."""

    offset: int
    length: int
    entries: list[PackEntry]


class Pack(msgspec.Struct, frozen=True, kw_only=True):
    """A finished pack: the bytes of its file, the SHA-256 of them as its name, and what lies where.

    The bytes are in ``pieces``, as they came: joining them would take their memory twice.
    """

    name: str
    size: int
    pieces: tuple[bytes, ...]
    entries: tuple[PackEntry, ...]

    @property
    def data(self) -> bytes:
        """The bytes of the file in one piece, for those who read in it."""
        return b"".join(self.pieces)

    @property
    def index(self) -> bytes:
        """The index frame."""
        return self.pieces[-2]


_Pieces = tuple[bytes, ...]


class _Group:
    """A frame in the making: what it holds, and its bytes as soon as they are compressed."""

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
    """Takes objects until it is `full`, then gives the pack away and may start the next one.

    With an executor, frames are compressed there while the caller hashes or reads the next object.
    Memory stays within one pack and the frames that are still being compressed.
    """

    def __init__(self, *, salt: bytes, executor: Executor | None = None, limit: int = PACK_SIZE) -> None:
        if len(salt) != SALT_SIZE:
            raise ValueError(f"a salt has {SALT_SIZE} bytes, not {len(salt)}")
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
        """Whether the pack has its size; what is not compressed yet counts with its raw size."""
        if self._size + self._open_size < self._limit:  # with raw sizes, which are the larger ones
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
        """Put an object in; ``name`` saves hashing it again. An object is added once: nothing checks that."""
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
        """Take over a frame of another pack as it is, with everything that lies in it."""
        objects = [_Object(entry.name, entry.kind, entry.size) for entry in entries]
        self._groups.append(_Group(objects, len(frame), (frame,)))
        self._size += len(frame)
        self._count += len(objects)

    def finish(self) -> Pack:
        """The pack of all that was added. The writer is spent."""
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
                f"an object of {len(raw)} bytes is more than the {MAX_PAYLOAD} allowed; cut it into chunks"
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
    """Whether these bytes begin like a pack."""
    if data[: len(HEAD)] != HEAD:
        raise Corrupt(f"pack {pack}: does not begin like a pack; restore it from a backup or a copy")


def index_span(tail: bytes, *, size: int, pack: str) -> tuple[int, int]:
    """Where the index frame of a pack of ``size`` bytes begins and ends, by the last bytes of the pack."""
    if len(tail) < TRAILER_SIZE or size < len(HEAD) + TRAILER_SIZE:
        raise Corrupt(f"pack {pack}: cut short ({size} bytes); restore it from a backup or a copy")
    length, mark = _TRAILER.unpack(tail[-TRAILER_SIZE:])
    stop = size - TRAILER_SIZE
    if mark != _TAIL or length > stop - len(HEAD):
        raise Corrupt(f"pack {pack}: its end is damaged or missing; restore it from a backup or a copy")
    return stop - length, stop


def read_index(frame: bytes, *, start: int, pack: str) -> tuple[PackEntry, ...]:
    """All objects of a pack, out of the index frame that begins at ``start``."""
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
        raise Corrupt(f"pack {pack}: its frames end at {offset} where its index begins at {start}")
    return tuple(entries)


def read_pack(data: bytes, *, pack: str) -> tuple[PackEntry, ...]:
    """All objects of a pack that is in memory as a whole."""
    check_head(data, pack=pack)
    start, stop = index_span(data, size=len(data), pack=pack)
    return read_index(data[start:stop], start=start, pack=pack)


def read_entry(frame: bytes, entry: PackEntry, *, pack: str) -> Content:
    """One object out of the frame that holds it, verified."""
    (content,) = read_frame(frame, [entry], pack=pack)
    return content


def read_frame(frame: bytes | memoryview, entries: Sequence[PackEntry], *, pack: str) -> list[Content]:
    """Objects of one frame, which is unfolded once and as far as needed; each is verified by its name."""
    where = f"object {entries[0].name} in pack {pack}" if entries else f"pack {pack}"
    raw = unseal(frame, where, upto=max((each.inner_offset + each.size for each in entries), default=0))
    found: list[Content] = []
    for name, kind, size, _, _, start in entries:
        data = raw[start : start + size]  # all of it is not copied
        if object_name(kind, data) != name:
            raise Corrupt(
                f"object {name} in pack {pack}: the bytes do not hash to this name; "
                "restore it from a backup or a copy"
            )
        found.append(Content(kind, data))
    return found


def filter_pack(data: bytes, keep: Container[str], *, pack: str, salt: bytes) -> Pack | None:
    """A pack of the objects to keep out of another one; ``None`` when none of them is to be kept.

    Frames that stay whole are taken over as they are; only those that lose an object are compressed anew.
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
    """Entries by the frame (offset, length) that they lie in, in the order of the file."""
    frames: dict[tuple[int, int], list[PackEntry]] = {}
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.inner_offset)):
        frames.setdefault((entry.offset, entry.length), []).append(entry)
    return frames


def coalesce_frames(frames: dict[tuple[int, int], list[PackEntry]]) -> Iterator[list[FrameRead]]:
    """Frames of one pack in runs that are worth one request each."""
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

"""Where each object of a bucket lies, so that nobody has to open every pack to find out.

A pack ends with an index of its own (`treering.core.packs`). Each commit copies those of its new packs into
one more file below ``index/``; reading them all says where everything is. So that they stay few, a writer who
finds many small ones writes them together into one file and removes them: first the new one, then the old
ones, so at any moment every pack is in at least one. Whoever listed a file that is gone lists again.
**Invariant:** a pack is durable before an index names it.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final

import msgspec

from treering.core.frame import MAX_PAYLOAD, seal, unseal
from treering.core.ids import new_id
from treering.core.packs import TRAILER_SIZE, Pack, PackEntry, index_span, read_index
from treering.core.storage import BlobInfo, Blobs
from treering.errors import Corrupt, NewerStore, NotFound

FOLDER: Final = "index"
PACKS: Final = "packs"
MANY: Final = 24
"""So many small index files are written together into one."""

_SUFFIX: Final = ".pack"
_SMALL: Final = 4 << 20
_VERSION: Final = 1
_TRIES: Final = 5
_AT_ONCE: Final = 8
_PAGE: Final = 1000


class Indexed(msgspec.Struct, frozen=True, array_like=True):
    """A pack's own index as it stands in the pack: the frame, and where it begins."""

    pack: str
    start: int
    frame: bytes


class At(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An object: in which pack, and where in it."""

    pack: str
    entry: PackEntry


class BucketIndex:
    """All that the index files of a bucket say. `refresh` reads what others wrote since."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._lock = Lock()
        self._read: dict[str, tuple[Indexed, ...]] = {}
        self._sizes: dict[str, int] = {}
        self._packs: set[str] = set()
        self._places: dict[str, At] = {}
        self._loaded = False

    def find(self, name: str) -> At | None:
        """Where an object is; ``None`` if no index that was read names it."""
        self._load()
        return self._places.get(name)

    def refresh(self) -> None:
        """Read the index files that came since."""
        with self._lock:
            self._refresh()

    def add(self, packs: Iterable[Indexed]) -> None:
        """Write down where the objects of new packs are; durable when this returns."""
        new = tuple(packs)
        if not new:
            return
        with self._lock:
            self._refresh_once()
            self._write(new)
            small = [name for name, size in self._sizes.items() if size < _SMALL]
            if len(small) >= MANY:
                self._merge(small)

    def rebuild(self) -> int:
        """Write down again what packs say of themselves and no index does; how many packs that were.

        Brings back what a lost index file named, and the packs of writers that died.
        """
        with self._lock:
            self._refresh()
            lost = [each for each in _listed(self._blobs, PACKS) if _pack_of(each.name) not in self._packs]
            with ThreadPoolExecutor(_AT_ONCE, "treering-index") as pool:
                found = tuple(pool.map(self._look_into, lost))
            if found:
                self._write(found)
        return len(found)

    def _look_into(self, info: BlobInfo) -> Indexed:
        pack = _pack_of(info.name)
        tail = self._blobs.get(info.name, start=max(0, info.size - TRAILER_SIZE), stop=info.size)
        start, stop = index_span(tail, size=info.size, pack=pack)
        frame = self._blobs.get(info.name, start=start, stop=stop)
        read_index(frame, start=start, pack=pack)  # a damaged one raises here, and is not written down
        return Indexed(pack, start, frame)

    def _load(self) -> None:
        if not self._loaded:
            with self._lock:
                self._refresh_once()

    def _refresh_once(self) -> None:
        if not self._loaded:
            self._refresh()

    def _refresh(self) -> None:
        for tries_left in reversed(range(_TRIES)):
            listed = {each.name: each for each in _listed(self._blobs, FOLDER)}
            wanted = [name for name in listed if name not in self._read]
            try:
                with ThreadPoolExecutor(_AT_ONCE, "treering-index") as pool:
                    found = list(pool.map(self._blobs.get, wanted))
            except NotFound:  # merged since it was listed
                if not tries_left:
                    raise
                continue
            for name, data in zip(wanted, found, strict=True):
                self._take(name, _decoded(name, data), size=len(data))
            for name in [name for name in self._read if name not in listed]:
                del self._read[name], self._sizes[name]  # what it said is in another file now
            self._loaded = True
            return

    def _write(self, packs: tuple[Indexed, ...]) -> None:
        data = seal(msgspec.msgpack.encode((_VERSION, packs)))
        name = f"{FOLDER}/{new_id()}"
        self._blobs.put(name, data)
        self._take(name, packs, size=len(data))

    def _merge(self, names: list[str]) -> None:
        together: dict[str, Indexed] = {}
        for name in names:
            together.update({each.pack: each for each in self._read[name]})
        self._write(tuple(together.values()))
        self._blobs.delete(names)
        for name in names:
            del self._read[name], self._sizes[name]

    def _take(self, name: str, packs: tuple[Indexed, ...], *, size: int) -> None:
        self._read[name] = packs
        self._sizes[name] = size
        for each in packs:
            if each.pack in self._packs:
                continue
            self._packs.add(each.pack)
            for entry in read_index(each.frame, start=each.start, pack=each.pack):
                self._places[entry.name] = At(each.pack, entry)


def pack_blob(pack: str) -> str:
    """The file of a pack."""
    return f"{PACKS}/{pack[:2]}/{pack}{_SUFFIX}"


def _pack_of(name: str) -> str:
    return name.rpartition("/")[2].removesuffix(_SUFFIX)


def _listed(blobs: Blobs, folder: str) -> list[BlobInfo]:
    found: list[BlobInfo] = []
    while True:
        page = blobs.list(folder, after=found[-1].name if found else None, limit=_PAGE)
        found += page
        if len(page) < _PAGE:
            return found


def indexed(pack: Pack) -> Indexed:
    """What the index says of a pack."""
    return Indexed(pack.name, pack.size - TRAILER_SIZE - len(pack.index), pack.index)


def _decoded(name: str, data: bytes) -> tuple[Indexed, ...]:
    where = f"index file {name}"
    raw = unseal(data, where, limit=MAX_PAYLOAD)
    try:
        version, packs = _outer.decode(raw)
        if version > _VERSION:
            raise NewerStore(f"{where} has version {version}; upgrade treering to read this bucket")
        return _packs.decode(packs)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{where} is damaged ({error}); restore it from a backup or a copy") from error


_outer: Final = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_packs: Final = msgspec.msgpack.Decoder(tuple[Indexed, ...])

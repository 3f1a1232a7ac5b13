"""Where each object of a bucket lies, so that nobody has to open every pack to find out.

A pack ends with an index of its own (`treering.core.packs`). Each commit copies those of its new packs into
one more file below ``index/``; reading them all says where everything is. So that they stay few, a writer who
finds many small ones writes them together into one file and removes them: first the new one, then the old
ones, so at any moment every pack is in at least one. Whoever listed a file that is gone lists again.

Packs that are condemned (`treering.sandbox.condemned`) stay named until they are deleted, because readers may
still need them; nobody who writes may count on them. **Invariant:** a pack is durable before an index names
it, and an object that lies in several packs is found in one that is not condemned, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
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
        self._packs: dict[str, Indexed] = {}
        self._places: dict[str, At] = {}
        self._condemned: frozenset[str] = frozenset()
        self._loaded = False

    def find(self, name: str) -> At | None:
        """Where an object is; ``None`` if no index that was read names it."""
        self._load()
        return self._places.get(name)

    def holds(self, name: str) -> bool:
        """Whether an object is stored where it will stay: in a pack that is not condemned."""
        place = self.find(name)
        return place is not None and place.pack not in self._condemned

    def named(self) -> Mapping[str, Indexed]:
        """Every pack that an index file names."""
        self._load()
        return self._packs

    def refresh(self, *, condemned: Collection[str] | None = None) -> None:
        """Read the index files that came since, and let go of packs that none names any more."""
        with self._lock:
            self._refresh()
            if condemned is not None:
                self._condemn(frozenset(condemned))

    def condemn(self, packs: Collection[str]) -> None:
        """Count on all packs but these."""
        self._load()
        with self._lock:
            self._condemn(frozenset(packs))

    def add(self, packs: Iterable[Indexed]) -> None:
        """Write down where the objects of new packs are; durable when this returns."""
        new = tuple(packs)
        if new:
            with self._lock:
                self._refresh_once()
                self._write(new)

    def gather(self) -> None:
        """Write many small index files together into one, if there are many."""
        with self._lock:
            small = [name for name, size in self._sizes.items() if size < _SMALL]
            if len(small) >= MANY:
                self._replace(small, without=())

    def drop(self, packs: Collection[str]) -> None:
        """Name these packs no longer."""
        with self._lock:
            self._refresh()
            naming = [name for name, held in self._read.items() if any(each.pack in packs for each in held)]
            if naming:
                self._replace(naming, without=packs)
                self._place_all()

    def rebuild(self, condemned: Callable[[], Collection[str]]) -> int:
        """Write down again what packs say of themselves and no index does; how many packs that were.

        Brings back what a lost index file named, and the packs of writers that died. ``condemned`` is asked
        after the index was read: whatever was taken out of the index is condemned by then.
        """
        with self._lock:
            self._refresh()
            skipped = condemned()
            lost = [
                each
                for each in listed(self._blobs, PACKS)
                if (pack := pack_of(each.name)) not in self._packs and pack not in skipped
            ]
            with ThreadPoolExecutor(_AT_ONCE, "treering-index") as pool:
                found = tuple(pool.map(self._look_into, lost))
            if found:
                self._write(found)
        return len(found)

    def _look_into(self, info: BlobInfo) -> Indexed:
        pack = pack_of(info.name)
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
            files = dict.fromkeys(each.name for each in listed(self._blobs, FOLDER))
            wanted = [name for name in files if name not in self._read]
            try:
                with ThreadPoolExecutor(_AT_ONCE, "treering-index") as pool:
                    found = list(pool.map(self._blobs.get, wanted))
            except NotFound:  # merged since it was listed
                if not tries_left:
                    raise
                continue
            for name, data in zip(wanted, found, strict=True):
                self._take(name, _decoded(name, data), size=len(data))
            gone = [name for name in self._read if name not in files]
            for name in gone:  # what it said is in another file now, or dropped
                del self._read[name], self._sizes[name]
            if gone and self._packs.keys() != {each.pack for held in self._read.values() for each in held}:
                self._place_all()
            self._loaded = True
            return

    def _write(self, packs: tuple[Indexed, ...]) -> None:
        data = seal(msgspec.msgpack.encode((_VERSION, packs)))
        name = f"{FOLDER}/{new_id()}"
        self._blobs.put(name, data)
        self._take(name, packs, size=len(data))

    def _replace(self, names: list[str], *, without: Collection[str]) -> None:
        """Let one new file say what these say: first the new one, then the old ones go."""
        together = {each.pack: each for name in names for each in self._read[name]}
        kept = tuple(each for pack, each in together.items() if pack not in without)
        if kept:
            self._write(kept)
        self._blobs.delete(names)
        for name in names:
            del self._read[name], self._sizes[name]

    def _take(self, name: str, packs: tuple[Indexed, ...], *, size: int) -> None:
        self._read[name] = packs
        self._sizes[name] = size
        for each in packs:
            if each.pack not in self._packs:
                self._packs[each.pack] = each
                self._place(each, self._places)

    def _place(self, held: Indexed, places: dict[str, At]) -> None:
        is_condemned = held.pack in self._condemned
        for entry in entries_of(held):
            if not is_condemned or entry.name not in places:
                places[entry.name] = At(held.pack, entry)

    def _place_all(self) -> None:
        self._packs = {each.pack: each for held in self._read.values() for each in held}
        places: dict[str, At] = {}
        for each in self._packs.values():
            self._place(each, places)
        self._places = places  # all at once: other threads are reading

    def _condemn(self, packs: frozenset[str]) -> None:
        if packs != self._condemned:
            self._condemned = packs
            self._place_all()


def entries_of(held: Indexed) -> tuple[PackEntry, ...]:
    """What lies in a pack."""
    return read_index(held.frame, start=held.start, pack=held.pack)


def pack_blob(pack: str) -> str:
    """The file of a pack."""
    return f"{PACKS}/{pack[:2]}/{pack}{_SUFFIX}"


def pack_of(name: str) -> str:
    """The pack of a file."""
    return name.rpartition("/")[2].removesuffix(_SUFFIX)


def listed(blobs: Blobs, folder: str) -> list[BlobInfo]:
    """Everything below a folder."""
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

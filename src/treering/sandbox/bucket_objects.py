"""Objects of a bucket that has nothing besides it: packs, and the index that says what lies where.

Objects are gathered into packs and sent in the background, two at a time. `flush` sends the rest and then
writes the index; only then does a checkpoint name them. Dying in between leaves packs that no index names:
waste, never a lack. What lies in a condemned pack can be read, but counts as not stored for whoever writes
(`treering.sandbox.bucket_objects`). **Invariant:** content is given back only when it hashes to its name.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from threading import Lock
from typing import Final

import msgspec

from treering.core.content import Address, Content
from treering.core.frame import MAX_PAYLOAD, seal, unseal
from treering.core.ids import new_id
from treering.core.packs import (
    SALT_SIZE,
    TRAILER_SIZE,
    FrameRead,
    Pack,
    PackEntry,
    PackWriter,
    coalesce_frames,
    group_by_frame,
    index_span,
    read_frame,
    read_index,
)
from treering.core.storage import BlobInfo, Blobs, ETag
from treering.errors import Conflict, Corrupt, InvalidInput, NewerStore, NotFound
from treering.workspaces.scan import CachedFolder, CachedWorkspace

# -----------------------------------------------------------------------------------------------------------
# Where each object of a bucket lies, so that nobody has to open every pack to find out.
#
# A pack ends with an index of its own (`treering.core.packs`). Each commit copies those of its new packs
# into one more file below ``index/``; reading them all says where everything is. So that they stay few, a
# writer who finds many small ones writes them together into one file and removes them: first the new one,
# then the old ones, so at any moment every pack is in at least one. Whoever listed a file that is gone
# lists again.
#
# Packs that are condemned (`treering.sandbox.bucket_objects`) stay named until they are deleted, because
# readers may still need them; nobody who writes may count on them. **Invariant:** a pack is durable before
# an index names it, and an object that lies in several packs is found in one that is not condemned, if
# there is one.


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


# -----------------------------------------------------------------------------------------------------------
# Reading packs of a bucket: several requests at once, and some ahead of being asked for.
#
# A bucket answers late but answers many at once. So ranges are fetched by threads that do nothing else;
# unfolding and checking is for whoever asks, because threads that make short calls stand in each other's
# way. What was announced is held until it is asked for, a bounded number of ranges; frames of many small
# objects are held longer, as those are asked for bit by bit.


_BUCKET_READING_AT_ONCE: Final = 8
_RANGE: Final = 6 << 20
"""One request reads about this much: servers that keep objects in pieces of 4 MiB are slow at less."""
_COMING: Final = 16
"""So many ranges that were announced are held; an older one is fetched again if it is asked for after all."""
_KEPT_BYTES: Final = 32 << 20
_KEPT_FRAME: Final = 512 * 1024

_Key = tuple[str, int, int]


class PackGone(Corrupt):
    """A pack that an index names is not there: it was lost, or its objects lie elsewhere since."""


class PackReader:
    """Frames of packs, as they are stored. Any number of threads may ask."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._pool = ThreadPoolExecutor(_BUCKET_READING_AT_ONCE, "treering-read")
        self._lock = Lock()
        self._coming: OrderedDict[_Key, Future[bytes]] = OrderedDict()
        self._frames: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._kept_bytes = 0

    def expect(self, pack: str, run: list[FrameRead]) -> None:
        """Begin to fetch neighbouring frames."""
        key = _key(pack, run)
        with self._lock:
            if key in self._coming or all((pack, each.offset) in self._frames for each in run):
                return
            while len(self._coming) >= _COMING:
                self._coming.popitem(last=False)[1].cancel()
            self._coming[key] = self._pool.submit(self._fetch, key)

    def read(self, pack: str, run: list[FrameRead]) -> list[bytes | memoryview]:
        """Neighbouring frames, in one request or none."""
        with self._lock:
            kept = [self._frames.get((pack, each.offset)) for each in run]
            coming = self._coming.pop(_key(pack, run), None)
        frames: list[bytes | memoryview] = [frame for frame in kept if frame is not None]
        if len(frames) == len(run):
            return frames
        try:
            data = memoryview(self._fetch(_key(pack, run)) if coming is None else coming.result())
        except NotFound:
            raise PackGone(
                f"object {run[0].entries[0].name}: its pack {pack} is not in {self._blobs.url}; "
                "restore it from a backup or a copy"
            ) from None
        start = run[0].offset
        frames = [data[each.offset - start : each.offset - start + each.length] for each in run]
        with self._lock:
            for each, frame in zip(run, frames, strict=True):
                self._keep((pack, each.offset), frame)
        return frames

    def close(self) -> None:
        """Let go of the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _fetch(self, key: _Key) -> bytes:
        pack, start, stop = key
        return self._blobs.get(pack_blob(pack), start=start, stop=stop)

    def _keep(self, key: tuple[str, int], frame: bytes | memoryview) -> None:
        if len(frame) > _KEPT_FRAME or key in self._frames:
            return
        self._frames[key] = bytes(frame)
        self._kept_bytes += len(frame)
        while self._kept_bytes > _KEPT_BYTES:
            _, oldest = self._frames.popitem(last=False)
            self._kept_bytes -= len(oldest)


def ranges(run: list[FrameRead]) -> Iterator[list[FrameRead]]:
    """A run in pieces that are worth a request each: several at once are faster than one."""
    piece: list[FrameRead] = []
    for frame in run:
        if piece and frame.offset + frame.length - piece[0].offset > _RANGE:
            yield piece
            piece = []
        piece.append(frame)
    if piece:
        yield piece


def _key(pack: str, run: list[FrameRead]) -> _Key:
    return pack, run[0].offset, run[-1].offset + run[-1].length


# -----------------------------------------------------------------------------------------------------------
# Condemned packs: those that will be deleted, in one small file that everybody reads who writes to a bucket.
#
# There is no lock to take, so a writer may find an object in a pack just when a `prune` finds the same pack
# to be of no use. Therefore a pack is first written down here, and deleted by a later round that looked at
# all checkpoints again. A writer reads this file before it looks for what is stored already, counts on
# nothing that lies in a condemned pack, and reads it again after its checkpoint can be seen: if the file is
# another one by then, the checkpoint is withdrawn and made anew. **Invariant:** a pack that is written down
# here is never taken back: it leaves the file when it is deleted and no index names it. Every version of
# the file has bytes of its own, so an equal ETags means that nothing happened in between.


FILE: Final = "condemned.json"
_CONDEMNED_VERSION: Final = 1


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    run: str
    packs: dict[str, int | None]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The file as it was read: packs, and since when (``None``: since the file was written)."""

    packs: Mapping[str, int | None] = {}
    etag: ETag | None = None


def read_verdict(blobs: Blobs) -> Verdict:
    """Which packs are condemned now."""
    held = blobs.read(FILE)
    if held is None:
        return Verdict()
    try:
        stored = msgspec.json.decode(held.data, type=_Stored)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{blobs.url}/{FILE} is damaged ({error}); restore it from a copy") from error
    if stored.version > _CONDEMNED_VERSION:
        raise NewerStore(f"{blobs.url}/{FILE} has version {stored.version}; upgrade treering to use it")
    return Verdict(packs=stored.packs, etag=held.etag)


def dated(blobs: Blobs, verdict: Verdict) -> dict[str, int]:
    """Since when each pack is condemned, on the clock of the bucket."""
    found = blobs.stat(FILE)
    written_us = 0 if found is None else found.modified_us
    return {pack: written_us if since is None else since for pack, since in verdict.packs.items()}


def write_verdict(blobs: Blobs, before: Verdict, packs: Mapping[str, int | None]) -> None:
    """Let the file say this from now on, if it is still as it was read; `Conflict` otherwise."""
    data = msgspec.json.encode(_Stored(version=_CONDEMNED_VERSION, run=new_id(), packs=dict(packs)))
    try:
        blobs.put_if(FILE, data, expect=before.etag)
    except Conflict:
        raise busy(blobs) from None


def busy(blobs: Blobs) -> Conflict:
    """What a prune says that meets another one."""
    return Conflict(
        f"{blobs.url}: someone else prunes this at the same time; nothing was deleted, try again later"
    )


# -----------------------------------------------------------------------------------------------------------

_AHEAD: Final = 8
_FLYING: Final = 2


class BucketObjects:
    """Content by name in one bucket or folder. ``space`` is there for the contract; a bucket has only one."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._index = BucketIndex(blobs)
        self._reader = PackReader(blobs)
        self._sealing = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "treering-seal")
        self._sending = ThreadPoolExecutor(_FLYING, "treering-send")
        self._flying: list[Future[Indexed]] = []
        self._sent: list[Indexed] = []
        self._pending: set[str] = set()
        self._writer: PackWriter | None = None
        self._verdict = Verdict()

    @property
    def index(self) -> BucketIndex:
        """What lies in which pack."""
        return self._index

    def begin(self) -> None:
        """Begin to write: nothing is staged, and what is condemned by now is not counted on."""
        self.give_up()
        self._heed(read_verdict(self._blobs))

    def is_settled(self) -> bool:
        """Whether nothing was condemned since `begin`. If not, what was staged has to be staged again."""
        now = read_verdict(self._blobs)
        if now.etag == self._verdict.etag:
            return True
        self.give_up()
        self._heed(now)
        return False

    def _heed(self, verdict: Verdict) -> None:
        if verdict.etag != self._verdict.etag:
            self._index.refresh(condemned=verdict.packs)
            self._verdict = verdict

    def stage(self, space: str, contents: Iterable[Content]) -> list[str]:  # noqa: ARG002 - the contract
        """Take objects in. They are durable after `flush`, not before."""
        names: list[str] = []
        for content in contents:
            name = content.name
            names.append(name)
            if name in self._pending or self._index.holds(name):
                continue
            self._pending.add(name)
            if self._writer is None:
                self._writer = PackWriter(salt=os.urandom(SALT_SIZE), executor=self._sealing)
            self._writer.add(content, name=name)
            if self._writer.full:
                self._send()
        return names

    def flush(self) -> None:
        """Make everything that was staged durable, and known to whoever reads the bucket."""
        if self._writer is not None:
            self._send()
        self._settle(0)
        sent, self._sent = self._sent, []
        self._index.add(sent)
        self._pending.clear()

    def give_up(self) -> None:
        """Forget what was staged and not flushed."""
        self._writer = None
        for future in self._flying:
            future.cancel()
        self._flying.clear()
        self._sent.clear()
        self._pending.clear()

    def missing(self, space: str, names: Sequence[str]) -> set[str]:  # noqa: ARG002 - the contract
        """Which of these objects are neither staged nor stored where they will stay."""
        lacking = {name for name in names if name not in self._pending and not self._index.holds(name)}
        if not lacking:
            return lacking
        self._index.refresh()
        return {name for name in lacking if not self._index.holds(name)}

    def has_all_of(self, known: CachedWorkspace) -> bool:
        """Whether all that is known of a folder is stored; before the first prune, its roots say so."""
        return self._verdict.etag is None or all(map(self._index.holds, _names_in(known.folder)))

    def get(self, space: str, addresses: Sequence[Address]) -> list[Content]:  # noqa: ARG002 - the contract
        """Verified content, in the order asked for."""
        names = [_name(address) for address in addresses]
        try:
            return self._get(names)
        except PackGone:  # pruned since the index was read: what is needed of it was copied before
            self._index.refresh(condemned=read_verdict(self._blobs).packs)
            return self._get(names)

    def _get(self, names: list[str]) -> list[Content]:
        if lacking := self._unknown(names):
            self._index.refresh()
            if lacking := self._unknown(names):
                raise NotFound(
                    f"{self._blobs.url}: no index names object {min(lacking)}; "
                    "reindex() brings lost ones back"
                )
        if self._pending.intersection(names):
            self.flush()
        wanted = self._runs(names)
        if len(wanted) > 1:
            for pack, run in wanted[:_AHEAD]:
                self._reader.expect(pack, run)
        found: dict[str, Content] = {}
        for (pack, run), after in zip_longest(wanted, wanted[_AHEAD:]):
            if after is not None:
                self._reader.expect(after[0], after[1])
            for each, frame in zip(run, self._reader.read(pack, run), strict=True):
                contents = read_frame(frame, each.entries, pack=pack)
                found.update(zip([entry.name for entry in each.entries], contents, strict=True))
        return [found[name] for name in names]

    def _unknown(self, names: list[str]) -> list[str]:
        return [name for name in names if name not in self._pending and self._index.find(name) is None]

    def expect(self, names: Sequence[str]) -> None:
        """Begin to fetch these objects, if they are there; nothing is promised."""
        for pack, run in self._runs(names):
            self._reader.expect(pack, run)

    def _runs(self, names: Sequence[str]) -> list[tuple[str, list[FrameRead]]]:
        """What has to be read for these objects, in pieces that are worth a request each."""
        by_pack: dict[str, dict[str, PackEntry]] = {}
        for name in names:
            place = self._index.find(name)
            if place is not None:
                by_pack.setdefault(place.pack, {})[name] = place.entry
        return [
            (pack, piece)
            for pack, entries in by_pack.items()
            for run in coalesce_frames(group_by_frame(entries.values()))
            for piece in ranges(run)
        ]

    def reindex(self) -> int:
        """Write down again what packs say of themselves; how many no index had named."""
        return self._index.rebuild(lambda: read_verdict(self._blobs).packs)

    def close(self) -> None:
        """Let go of the threads."""
        for pool in (self._sealing, self._sending):
            pool.shutdown(cancel_futures=True)
        self._reader.close()

    def _send(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._settle(_FLYING - 1)
            self._flying.append(self._sending.submit(self._put, writer))

    def _put(self, writer: PackWriter) -> Indexed:
        pack = writer.finish()
        self._blobs.put(pack_blob(pack.name), pack.pieces)
        return indexed(pack)

    def _settle(self, most: int) -> None:
        """Wait until at most so many packs are on their way."""
        while len(self._flying) > most:
            self._sent.append(self._flying.pop(0).result())


def _name(address: Address) -> str:
    if not address.startswith("o:"):
        raise InvalidInput(f"a bucket holds objects, and {address[:80]!r} is none")
    return address[2:]


def _names_in(folder: CachedFolder) -> Iterator[str]:
    pending = [folder]
    while pending:
        each = pending.pop()
        if each.tree:
            yield each.tree
        for file in each.files.values():
            yield from file.content
        pending += each.folders.values()

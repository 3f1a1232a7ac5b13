"""A repository of checkpoints in a bucket or a folder, with no database and no server beside it.

::

    treering.json.gz         the state: checkpoints, packs, dropped packs
    packs/ab/<sha256>.pack   files, trees and chunks, many in each pack

`BucketObjects` stores and reads objects, so `treering.workspaces` takes, compares, restores and verifies
snapshots here exactly as in a store. What is particular to a bucket is how a commit and a deletion become
atomic:

Only the state ever changes, and only by compare-and-swap. Packs are written once, before the state names
them, and each ends with its own index (`treering.core.packs`). **Invariant:** a pack that the state names is
stored.

**Saving** uploads packs, then swaps in a state that names them and the checkpoint. A writer that dies before
the swap leaves packs that nothing names. Of several writers that swap at once one wins, and the others repeat
the swap on the new state.

**Pruning** marks the objects of all checkpoints, copies the live ones out of packs that are mostly garbage,
and swaps in a state that no longer names those packs and has a higher ``generation``. A checkpoint that was
added in the meantime makes the swap fail; the pruner marks that checkpoint as well and tries again. A writer
that relied on a dropped pack finds another generation at its own swap, and stages its files again. So neither
locks nor clocks are needed for safety, and an acknowledged checkpoint is always complete. Dropped packs are
deleted after a grace period, for the sake of readers that still use an older state. See
``docs/decisions/0014-deleting-from-a-bucket.md``.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import islice, zip_longest
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from treering.core import failpoints
from treering.core.clock import SECOND_US, SystemClock
from treering.core.content import Address, Content, object_address
from treering.core.ids import new_id
from treering.core.packs import (
    SALT_SIZE,
    TRAILER_SIZE,
    FrameRead,
    PackEntry,
    PackWriter,
    coalesce_frames,
    group_by_frame,
    read_frame,
    read_index,
)
from treering.core.storage import BlobInfo, Blobs, ETag, list_all
from treering.core.tree import links_of
from treering.errors import Conflict, Corrupt, InvalidInput, MissingObjects, NewerStore, NotFound
from treering.files import make_folder, open_private
from treering.sandbox.archive import SandboxArchive, StagedSandbox
from treering.sandbox.storage import CheckpointInfo, PruneResult
from treering.workspaces.scan import CachedFolder, CachedWorkspace, StatCache
from treering.workspaces.snapshot import SnapshotWriter

STATE: Final = "treering.json.gz"
PACKS: Final = "packs"
GRACE_SECONDS: Final = 86_400.0
"""Longer than any restore should take."""

_VERSION: Final = 1
_SPACE: Final = "default"
_SUFFIX: Final = ".pack"
_SMALL_PACK: Final = 1 << 20
_MANY_SMALL_PACKS: Final = 24
"""A prune merges small packs when there are this many: each costs a request to open the bucket."""
_THREADS: Final = 8
_RANGE: Final = 6 << 20
"""The size of one read: servers that store objects in pieces of 4 MiB are slow with smaller ones."""
_READ_AHEAD: Final = 8
_CACHED_BYTES: Final = 96 << 20
_UPLOADS: Final = 2
_TREES_AT_ONCE: Final = 500
_COPY_BYTES: Final = 16 << 20

_COPIED: Final = failpoints.declare("prune.copied", "live objects of the packs to drop are copied")
_DROPPED: Final = failpoints.declare(
    "prune.dropped", "the state names the packs no longer; no file is deleted yet"
)
_DELETED: Final = failpoints.declare("prune.deleted", "the packs are deleted")
_UPLOADED: Final = failpoints.declare(
    "bucket.uploaded", "the packs of a checkpoint are stored, the checkpoint is not"
)


class BucketState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The one blob that changes: what the bucket contains.

    ``checkpoints`` are ordered from oldest to newest. ``packs`` maps the name of a pack to the offset of its
    index, ``dropped`` those to be deleted to the time they were dropped. ``generation`` grows whenever packs
    are dropped.
    """

    version: int = _VERSION
    generation: int = 0
    checkpoints: tuple[CheckpointInfo, ...] = ()
    packs: dict[str, int] = {}
    dropped: dict[str, int] = {}


class BucketStorage:
    """The checkpoints of one bucket or folder.

    ``cache`` is a local folder for caches, which may be deleted.
    """

    def __init__(self, blobs: Blobs, *, cache: Path | None) -> None:
        self._blobs = blobs
        self._objects = BucketObjects(blobs, cache=cache)
        writer = SnapshotWriter(self._objects, _SPACE, StatCache(cache), has_all_of=self._objects.has_all_of)
        self._archive = SandboxArchive(self._objects, _SPACE, writer)

    @property
    def url(self) -> str:
        """The URL of the bucket, without secrets."""
        return self._blobs.url

    @property
    def archive(self) -> SandboxArchive:
        """The files."""
        return self._archive

    def prepare(self) -> None:
        """Refuse a bucket that ignores conditional writes, or that a newer treering has written."""
        self._objects.begin()
        if not self._blobs.conditional:
            self._blobs.put_if(STATE, b"", expect=None)  # raises, and says what is wrong with the server

    def commit(self, staged: StagedSandbox, make: Callable[[str], CheckpointInfo]) -> CheckpointInfo:
        """Upload what is staged, then add the checkpoint; raise `MissingObjects` if a prune came first."""
        objects = self._objects
        packs = objects.upload()
        failpoints.hit(_UPLOADED)
        info = make(f"ckpt_{new_id()}")

        def add(state: BucketState) -> BucketState:
            if info in state.checkpoints:  # an earlier swap succeeded, and its answer was lost
                return state
            if state.generation != objects.generation:
                objects.begin()
                raise MissingObjects(staged.requires)
            return msgspec.structs.replace(
                state,
                checkpoints=(*state.checkpoints, info),
                packs=state.packs | packs,
            )

        _update(self._blobs, add)
        return info

    def newest_first(self, *, tag: str | None, limit: int) -> list[CheckpointInfo]:
        """Return the newest checkpoints, in one request."""
        return list(islice(self.each(tag=tag), limit))

    def get(self, id: str) -> CheckpointInfo:
        """Return one checkpoint; raise `NotFound` if it does not exist."""
        found = next((each for each in self.each(tag=None) if each.id == id), None)
        if found is None:
            raise NotFound(f"checkpoint {id!r} not found in {self.url}. List them with list_checkpoints()")
        return found

    def each(self, *, tag: str | None) -> Iterator[CheckpointInfo]:
        """Iterate over all checkpoints, newest first."""
        state, _ = _read_state(self._blobs)
        return (each for each in reversed(state.checkpoints) if tag is None or each.tag == tag)

    def forget(self, infos: Iterable[CheckpointInfo]) -> None:
        """Remove checkpoints; those that do not exist are ignored."""
        ids = {info.id for info in infos}

        def remove(state: BucketState) -> BucketState:
            left = tuple(each for each in state.checkpoints if each.id not in ids)
            return state if left == state.checkpoints else msgspec.structs.replace(state, checkpoints=left)

        _update(self._blobs, remove)

    def prune(
        self, *, grace_seconds: float | None, dry_run: bool, as_if_without: Collection[str] = ()
    ) -> PruneResult:
        """Delete what no checkpoint needs; see `prune`."""
        grace = GRACE_SECONDS if grace_seconds is None else grace_seconds
        return prune(self._objects, grace_seconds=grace, dry_run=dry_run, as_if_without=as_if_without)

    def close(self) -> None:
        """Stop the threads."""
        self._objects.close()


def cache_folder(url: str) -> Path | None:
    """Return where this machine keeps its caches for a bucket."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - may lack a home
    key = sha256(url.encode()).hexdigest()[:32]
    return Path(base) / "treering" / "buckets" / key if Path(base).is_absolute() else None


def _read_state(blobs: Blobs) -> tuple[BucketState, ETag | None]:
    """Return the state and its ETag; an empty state and ``None`` for a bucket that was never written."""
    blob = blobs.read(STATE)
    if blob is None:
        return BucketState(), None
    try:
        state = msgspec.json.decode(gzip.decompress(blob.data), type=BucketState)
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise Corrupt(
            f"{blobs.url}/{STATE} is damaged ({error}); restore it from a copy of the bucket"
        ) from error
    if state.version > _VERSION:
        raise NewerStore(f"{blobs.url} has format {state.version}; upgrade treering to use it")
    return state, blob.etag


def _write_state(blobs: Blobs, state: BucketState, *, expect: ETag | None) -> None:
    blobs.put_if(STATE, gzip.compress(msgspec.json.encode(state), mtime=0), expect=expect)


def _update(blobs: Blobs, change: Callable[[BucketState], BucketState]) -> BucketState:
    """Apply a change to the state, repeating it when another process was faster; return the new state."""
    while True:
        state, etag = _read_state(blobs)
        changed = change(state)
        if changed is state:
            return state
        try:
            _write_state(blobs, changed, expect=etag)
        except Conflict:
            continue
        return changed


class ObjectLocation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The pack that has an object, and where in it."""

    pack: str
    entry: PackEntry


class PackIndex:
    """Where each object of the bucket is: the indexes of all packs that the state names.

    A pack never changes, so its index is read once and cached in a local folder. `exclude` hides packs that
    are about to be dropped.
    """

    def __init__(self, blobs: Blobs, *, cache: Path | None) -> None:
        self._blobs = blobs
        self._cache = cache
        self._lock = Lock()
        self._locations: dict[str, ObjectLocation] = {}
        self._excluded: frozenset[str] = frozenset()
        self.packs: dict[str, tuple[PackEntry, ...]] = {}
        self.lost: frozenset[str] = frozenset()
        """Packs that the state names and that do not exist."""

    def find(self, name: str) -> ObjectLocation | None:
        """Return where an object is; ``None`` if no pack has it."""
        return self._locations.get(name)

    def holds(self, name: str) -> bool:
        """Return whether an object is in a pack that is not excluded."""
        location = self._locations.get(name)
        return location is not None and location.pack not in self._excluded

    def refresh(self) -> tuple[BucketState, ETag | None]:
        """Read the state and the indexes of packs that are new; return the state."""
        with self._lock, ThreadPoolExecutor(_THREADS, "treering-index") as pool:
            while True:
                state, etag = _read_state(self._blobs)
                new = {name: start for name, start in state.packs.items() if name not in self.packs}
                read = dict(zip(new, pool.map(self._read_pack_index, new, new.values()), strict=True))
                lost = frozenset(name for name, entries in read.items() if entries is None)
                if lost == self.lost:
                    break
                self.lost = lost  # unless it was pruned since the state was read: read that again
            if new or self.packs.keys() != state.packs.keys():
                packs = self.packs | {name: entries for name, entries in read.items() if entries is not None}
                self.packs = {name: packs[name] for name in state.packs if name in packs}
                self._locate_all()
        return state, etag

    def exclude(self, packs: Collection[str]) -> None:
        """Treat the objects of these packs as missing, until this is called again."""
        with self._lock:
            self._excluded = frozenset(packs)
            self._locate_all()

    def _read_pack_index(self, pack: str, start: int) -> tuple[PackEntry, ...] | None:
        cached = None if self._cache is None else self._cache / "packs" / pack
        if cached is not None:
            with suppress(OSError, Corrupt):
                return read_index(cached.read_bytes(), start=start, pack=pack)
        try:
            frame = self._blobs.get(pack_blob(pack), start=start)[:-TRAILER_SIZE]
        except NotFound:
            return None
        entries = read_index(frame, start=start, pack=pack)
        if cached is not None:
            with suppress(OSError):  # no fsync: a torn file fails its checksum
                make_folder(cached.parent)
                with open_private(cached, "wb") as file:
                    file.write(frame)
        return entries

    def _locate_all(self) -> None:
        locations: dict[str, ObjectLocation] = {}
        for pack, entries in self.packs.items():
            is_excluded = pack in self._excluded
            for entry in entries:
                if not is_excluded or entry.name not in locations:
                    locations[entry.name] = ObjectLocation(pack, entry)
        self._locations = locations  # replaced as a whole: other threads are reading


def pack_blob(pack: str) -> str:
    """Return the name of a pack's blob."""
    return f"{PACKS}/{pack[:2]}/{pack}{_SUFFIX}"


def pack_name(blob: str) -> str:
    """Return the pack of a blob."""
    return blob.rpartition("/")[2].removesuffix(_SUFFIX)


class BucketObjects:
    """The objects of a bucket, as the `ObjectStore` that snapshots need. The space is ignored: there is one.

    Staged objects are collected in packs, which are uploaded in the background, two at a time. They cannot be
    read before the state names them.
    """

    def __init__(self, blobs: Blobs, *, cache: Path | None = None) -> None:
        self.blobs = blobs
        self.index = PackIndex(blobs, cache=cache)
        self.generation = -1
        self._reader = PackReader(blobs)
        self._sealing = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "treering-seal")
        self._sending = ThreadPoolExecutor(_UPLOADS, "treering-send")
        self._uploads: list[Future[tuple[str, int]]] = []
        self._staged: set[str] = set()
        self._writer: PackWriter | None = None

    def begin(self) -> None:
        """Start to stage: discard what an earlier failure left staged, and read the current state."""
        self._discard()
        self.generation = self.index.refresh()[0].generation

    def stage(self, space: str, contents: Iterable[Content]) -> list[str]:  # noqa: ARG002
        """Take objects that are not stored yet. They are durable after `upload`."""
        names: list[str] = []
        for content in contents:
            name = content.name
            names.append(name)
            if name in self._staged or self.index.holds(name):
                continue
            self._staged.add(name)
            if self._writer is None:
                self._writer = PackWriter(salt=os.urandom(SALT_SIZE), executor=self._sealing)
            self._writer.add(content, name=name)
            if self._writer.full:
                self._send()
        return names

    def upload(self) -> dict[str, int]:
        """Upload everything that is staged; return the packs for the state."""
        if self._writer is not None:
            self._send()
        packs = dict(upload.result() for upload in self._uploads)
        self._uploads.clear()
        self._staged.clear()
        return packs

    def missing(self, space: str, names: Sequence[str]) -> set[str]:  # noqa: ARG002
        """Return which of these objects are neither staged nor stored."""
        return {name for name in names if name not in self._staged and not self.index.holds(name)}

    def has_all_of(self, cached: CachedWorkspace) -> bool:
        """Return whether all objects of a cached workspace are stored. Before the first prune they are."""
        return self.generation == 0 or all(map(self.index.holds, _object_names(cached.folder)))

    def get(self, space: str, addresses: Sequence[Address]) -> list[Content]:  # noqa: ARG002
        """Return verified content, in the order of the addresses."""
        names = [_object_name(address) for address in addresses]
        if any(self.index.find(name) is None for name in names):
            self.index.refresh()
        try:
            return self._get(names)
        except PackGone:  # pruned since the state was read: its live objects have been copied
            self.index.refresh()
            return self._get(names)

    def _get(self, names: list[str]) -> list[Content]:
        if unknown := [name for name in names if self.index.find(name) is None]:
            if self.index.lost:
                raise _pack_gone(self.blobs, min(unknown), min(self.index.lost))
            raise NotFound(f"object {min(unknown)} not found in {self.blobs.url}")
        reads = self._reads(names)
        if len(reads) > 1:
            for pack, frames in reads[:_READ_AHEAD]:
                self._reader.prefetch(pack, frames)
        found: dict[str, Content] = {}
        for (pack, frames), ahead in zip_longest(reads, reads[_READ_AHEAD:]):
            if ahead is not None:
                self._reader.prefetch(ahead[0], ahead[1])
            for frame, data in zip(frames, self._reader.read(pack, frames), strict=True):
                contents = read_frame(data, frame.entries, pack=pack)
                found.update(zip([entry.name for entry in frame.entries], contents, strict=True))
        return [found[name] for name in names]

    def expect(self, names: Sequence[str]) -> None:
        """Start fetching these objects, if they are stored."""
        for pack, frames in self._reads(names):
            self._reader.prefetch(pack, frames)

    def _reads(self, names: Sequence[str]) -> list[tuple[str, list[FrameRead]]]:
        """Return what to read for these objects: runs of frames that are worth a request each."""
        by_pack: dict[str, dict[str, PackEntry]] = {}
        for name in names:
            location = self.index.find(name)
            if location is not None:
                by_pack.setdefault(location.pack, {})[name] = location.entry
        return [
            (pack, part)
            for pack, entries in by_pack.items()
            for run in coalesce_frames(group_by_frame(entries.values()))
            for part in _split_run(run)
        ]

    def close(self) -> None:
        """Stop the threads."""
        for pool in (self._sealing, self._sending):
            pool.shutdown(cancel_futures=True)
        self._reader.close()

    def _send(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            running = [upload for upload in self._uploads if not upload.done()]
            if len(running) >= _UPLOADS:
                running[0].result()
            self._uploads.append(self._sending.submit(self._put, writer))

    def _put(self, writer: PackWriter) -> tuple[str, int]:
        pack = writer.finish()
        self.blobs.put(pack_blob(pack.name), pack.pieces)
        return pack.name, pack.size - TRAILER_SIZE - len(pack.index)

    def _discard(self) -> None:
        self._writer = None
        for upload in self._uploads:
            upload.cancel()
        self._uploads.clear()
        self._staged.clear()


def _object_name(address: Address) -> str:
    if not address.startswith("o:"):
        raise InvalidInput(f"a bucket has objects only, and {address[:80]!r} is not one")
    return address[2:]


def _object_names(folder: CachedFolder) -> Iterator[str]:
    pending = [folder]
    while pending:
        each = pending.pop()
        if each.tree:
            yield each.tree
        for file in each.files.values():
            if not file.is_inline:
                yield from file.content
        pending += each.folders.values()


class PackGone(Corrupt):
    """A pack that the state names does not exist: it is lost, or was pruned since the state was read."""


def _pack_gone(blobs: Blobs, name: str, pack: str) -> PackGone:
    return PackGone(
        f"object {name}: its pack {pack} is not in {blobs.url}; restore it from a backup or a copy"
    )


class PackReader:
    """Reads frames of packs, in threads and ahead of time: a bucket has high latency but answers in parallel.

    The threads only fetch; the caller decompresses and verifies. Fetched frames are cached up to a total
    size, first in, first out, since the frames of small objects are read again and again.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._pool = ThreadPoolExecutor(_THREADS, "treering-read")
        self._lock = Lock()
        self._frames: OrderedDict[tuple[str, int], _CachedFrame] = OrderedDict()
        self._bytes = 0

    def prefetch(self, pack: str, run: list[FrameRead]) -> list[_CachedFrame]:
        """Start to fetch neighbouring frames in one request, unless all of them are cached."""
        with self._lock:
            cached = [self._frames.get((pack, frame.offset)) for frame in run]
            found = [each for each in cached if each is not None]
            if len(found) == len(run):
                return found
            start, stop = run[0].offset, run[-1].offset + run[-1].length
            data = self._pool.submit(self._fetch, pack, start, stop)
            found = [_CachedFrame(data, frame.offset - start, frame.length) for frame in run]
            for frame, each in zip(run, found, strict=True):
                before = self._frames.pop((pack, frame.offset), None)
                self._bytes += each.length - (0 if before is None else before.length)
                self._frames[pack, frame.offset] = each
            while self._bytes > _CACHED_BYTES:
                self._bytes -= self._frames.popitem(last=False)[1].length
        return found

    def read(self, pack: str, run: list[FrameRead]) -> list[memoryview]:
        """Return neighbouring frames."""
        try:
            return [frame.read() for frame in self.prefetch(pack, run)]
        except BaseException as error:
            with self._lock:
                for frame in run:
                    if (each := self._frames.pop((pack, frame.offset), None)) is not None:
                        self._bytes -= each.length
            if not isinstance(error, NotFound):
                raise
            raise _pack_gone(self._blobs, run[0].entries[0].name, pack) from None

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _fetch(self, pack: str, start: int, stop: int) -> bytes:
        return self._blobs.get(pack_blob(pack), start=start, stop=stop)


class _CachedFrame(NamedTuple):
    data: Future[bytes]
    start: int
    length: int

    def read(self) -> memoryview:
        return memoryview(self.data.result())[self.start : self.start + self.length]


def _split_run(run: list[FrameRead]) -> Iterator[list[FrameRead]]:
    """Split a run of frames into parts of about 6 MiB: several parallel reads are faster than one."""
    part: list[FrameRead] = []
    for frame in run:
        if part and frame.offset + frame.length - part[0].offset > _RANGE:
            yield part
            part = []
        part.append(frame)
    if part:
        yield part


def prune(
    objects: BucketObjects, *, grace_seconds: float, dry_run: bool, as_if_without: Collection[str] = ()
) -> PruneResult:
    """Drop packs of which at most half is needed, and delete those that were dropped ``grace_seconds`` ago.

    Packs that the state does not name are deleted once they are as old, since their writer may not be done
    before. Without a grace period, all of this happens at once.
    """
    if grace_seconds < 0:
        raise InvalidInput(f"grace_seconds={grace_seconds} must not be negative")
    blobs, index = objects.blobs, objects.index
    if _read_state(blobs)[1] is None:
        raise NotFound(f"no checkpoints found at {blobs.url}; check the URL")
    objects.begin()
    now_us = SystemClock().now_us() if dry_run else _bucket_time_us(blobs)
    until_us = now_us - round(grace_seconds * SECOND_US)
    live: set[str] = set()
    copied: set[str] = set()
    copies: dict[str, int] = {}
    garbage: set[str] | None = None
    while True:
        state, etag = index.refresh()
        if state.generation != objects.generation:
            raise _pruned_by_another(blobs)
        stored = {pack_name(each.name): each for each in list_all(blobs, PACKS)}
        with _marking(objects):
            _mark(objects, {each.hash for each in state.checkpoints if each.id not in as_if_without}, live)
        if garbage is None:
            garbage = _packs_to_drop(index, stored, live)
        index.exclude(garbage)
        moving = [name for name in live - copied if not index.holds(name)]
        orphans = {
            pack
            for pack, each in stored.items()
            if pack not in state.packs.keys() | state.dropped.keys() | copies.keys()
            and each.modified_us <= until_us
        }
        due = {pack for pack, since_us in state.dropped.items() if since_us <= until_us}
        due |= garbage if not grace_seconds else set()
        waiting = (state.dropped.keys() | garbage) - due
        result = PruneResult(
            deleted=len((due | orphans) & stored.keys()),
            freed_bytes=_total_size(stored, due | orphans),
            waiting=len(waiting & stored.keys()),
            waiting_bytes=_total_size(stored, waiting),
            copied_bytes=sum(_object_size(index, name) for name in (*moving, *copied)),
            dry_run=dry_run,
        )
        if not dry_run:
            with _marking(objects):
                copies |= _copy(objects, moving)
            copied.update(moving)
            failpoints.hit(_COPIED)
        index.exclude(())
        gone = garbage | index.lost
        if dry_run or not (gone or due or orphans):
            return result
        after = BucketState(
            generation=state.generation + bool(gone or orphans),
            checkpoints=state.checkpoints,
            packs={pack: start for pack, start in state.packs.items() if pack not in gone} | copies,
            dropped={pack: state.dropped.get(pack, now_us) for pack in waiting},
        )
        try:
            _write_state(blobs, after, expect=etag)
        except Conflict:  # a checkpoint was added or removed: mark again
            continue
        failpoints.hit(_DROPPED)
        blobs.delete(pack_blob(pack) for pack in due | orphans)
        failpoints.hit(_DELETED)
        return result


def _mark(objects: BucketObjects, roots: Collection[str], live: set[str]) -> None:
    """Add everything below these roots to ``live``."""
    pending = [name for name in roots if name not in live]
    live.update(pending)
    while pending:
        some, pending = pending[:_TREES_AT_ONCE], pending[_TREES_AT_ONCE:]
        trees = objects.get(_SPACE, [object_address(name) for name in some])
        for name in {name for tree in trees for name in links_of(tree)} - live:
            location = objects.index.find(name)
            if location is None:
                raise NotFound(f"object {name} not found")
            live.add(name)
            if location.entry.kind == "tree":
                pending.append(name)


@contextmanager
def _marking(objects: BucketObjects) -> Generator[None]:
    """Translate what it means that something a checkpoint needs is missing: another prune, or damage."""
    try:
        yield
    except (Corrupt, NotFound) as error:
        if _read_state(objects.blobs)[0].generation != objects.generation:
            raise _pruned_by_another(objects.blobs) from error
        raise Corrupt(
            f"{objects.blobs.url}: a checkpoint is incomplete ({error}), so nothing was deleted. Find it "
            "with check(), then forget it or restore the bucket from a copy"
        ) from error


def _pruned_by_another(blobs: Blobs) -> Conflict:
    return Conflict(f"{blobs.url} is pruned by someone else right now; nothing was deleted, try again later")


def _packs_to_drop(index: PackIndex, stored: Mapping[str, BlobInfo], live: Collection[str]) -> set[str]:
    """Return the packs of which at most half is needed, and the small ones if there are many."""
    small = {pack for pack in index.packs if pack in stored and stored[pack].size < _SMALL_PACK}
    chosen = small if len(small) >= _MANY_SMALL_PACKS else set[str]()
    for pack, entries in index.packs.items():
        needed = (  # an object that is in two packs counts where it is read
            entry.size
            for entry in entries
            if entry.name in live and (location := index.find(entry.name)) and location.pack == pack
        )
        if sum(needed) * 2 <= sum(entry.size for entry in entries):
            chosen.add(pack)
    return chosen


def _copy(objects: BucketObjects, names: Iterable[str]) -> dict[str, int]:
    """Store objects once more, in new packs."""
    some: list[str] = []
    size = 0
    for name in (*names, None):
        if name is not None:
            some.append(name)
            size += _object_size(objects.index, name)
        if some and (name is None or size >= _COPY_BYTES):
            objects.stage(_SPACE, objects.get(_SPACE, [object_address(each) for each in some]))
            some, size = [], 0
    return objects.upload()


def _object_size(index: PackIndex, name: str) -> int:
    location = index.find(name)
    return 0 if location is None else location.entry.size


def _total_size(stored: Mapping[str, BlobInfo], packs: Iterable[str]) -> int:
    return sum(stored[pack].size for pack in packs if pack in stored)


def _bucket_time_us(blobs: Blobs) -> int:
    """Return the time by the clock of the bucket, which also dates its blobs."""
    blobs.put("clock", b"")
    found = blobs.stat("clock")
    return SystemClock().now_us() if found is None else found.modified_us

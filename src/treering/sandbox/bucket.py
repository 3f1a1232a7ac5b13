"""Checkpoints in a bucket or a folder that has nothing besides it: no database, no server.

::

    format.json                          the version of this layout
    packs/ab/<sha256>.pack               the files, many objects each
    index/<id>                           what lies in which pack
    checkpoints/<9999999999 - n>.json    one small entry a checkpoint; the newest is listed first
    tags/<tag>/<9999999999 - n>          where those of one session are
    condemned.json                       packs that will be deleted; there since the first prune

Everything is written once under a name of its own; only the numbers of checkpoints are contended, and those
are taken by conditional writes. The order is packs, index, tag, checkpoint: whatever can be read is whole.
What is deleted, when, and why no writer is hurt by it: `treering.sandbox.bucket`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from treering.core import failpoints
from treering.core.clock import SECOND_US, SystemClock
from treering.core.content import object_address
from treering.core.ids import file_name, new_id
from treering.core.storage import BlobInfo, Blobs, ETag
from treering.core.tree import links_of
from treering.errors import Conflict, Corrupt, InvalidInput, MissingObjects, NewerStore, NotFound
from treering.sandbox.archive import Archive, Archived
from treering.sandbox.bucket_objects import (
    PACKS,
    BucketIndex,
    BucketObjects,
    Verdict,
    busy,
    dated,
    entries_of,
    listed,
    pack_blob,
    pack_of,
    read_verdict,
    write_verdict,
)
from treering.sandbox.records import CheckpointInfo, Pruned
from treering.workspaces.scan import StatCache
from treering.workspaces.snapshot import SnapshotWriter

# -----------------------------------------------------------------------------------------------------------
# The checkpoints of a bucket, in the order they were made: one small JSON file each, and no other state.
#
# Checkpoint number *n* is the file ``checkpoints/<9999999999 - n>.json``, so the newest is listed first. It
# is written only if no such file is there: of several writers who want the same number one gets it, and the
# others take the next. Nothing is overwritten, no clock decides what is newest, and nothing has to be
# locked.
#
# ``tags/<tag>/<same number>`` is an empty file that is written before, so that the checkpoints of one
# session are found without reading all others. A writer who died or lost the race leaves one that points at
# nothing or at another's checkpoint; readers compare the tag and pass over it.
#
# A checkpoint is forgotten by making its file empty, if it is still as it was read; so its number is not
# given again, and nobody removes what another one wrote there. Empty files go later (`litter`), never that
# of the highest number. **Invariant:** a checkpoint that can be read has its tag's file, and everything
# that it names is stored.


FORMAT: Final = "format.json"
VERSION: Final = 2
"""Since 2 there may be empty entries and condemned packs, which writers of version 1 would not heed."""
CHECKPOINTS: Final = "checkpoints"
TAGS: Final = "tags"

_LAST: Final = 9_999_999_999
_DIGITS: Final = len(str(_LAST))
_PREFIX: Final = "ckpt_"
_AT_ONCE: Final = 8
_PAGE: Final = 1000
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class _Format(msgspec.Struct, frozen=True, kw_only=True):
    treering: str
    version: int


class BucketLog:
    """Every checkpoint of one bucket or folder."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._ready = False

    def prepare(self) -> None:
        """See that this bucket can be written by several writers, before anything is sent to it."""
        if self._ready:
            return
        if not self._blobs.conditional:
            self._blobs.put_if(FORMAT, b"", expect=None)  # raises, and says what is wrong with the server
        version, etag = self._format()
        if version < VERSION:
            written = msgspec.json.encode(_Format(treering="bucket", version=VERSION))
            try:
                self._blobs.put_if(FORMAT, written, expect=etag)
            except Conflict:  # another writer came first
                self._format()
        self._ready = True

    def expect(self) -> None:
        """`NotFound` where no checkpoint was ever written: a misspelt place is not made."""
        if not self._format()[0]:
            raise NotFound(f"{self._blobs.url} is no storage of checkpoints; check the URL")

    def append(self, make: Callable[[str], CheckpointInfo]) -> CheckpointInfo:
        """Write the next checkpoint; ``make`` is given its id, and called again when a number was taken."""
        self.prepare()
        number = self._newest() + 1
        while True:
            info = make(f"{_PREFIX}{new_id()}_{_spelled(number)}")
            mark = _mark(info.tag, number)
            self._blobs.put(mark, b"")
            try:
                self._blobs.put(_entry(number), msgspec.json.encode(info), if_absent=True)
            except Conflict:
                winner = self._read(number)
                if winner is None or winner.tag != info.tag:
                    self._blobs.delete([mark])
                number += 1
            else:
                return info

    def newest_first(self, *, tag: str | None = None, limit: int) -> list[CheckpointInfo]:
        """The last checkpoints, of one session if a tag is given, in about ``limit`` requests."""
        return list(islice(self.each(tag=tag, at_once=limit), limit))

    def each(self, *, tag: str | None = None, at_once: int = _PAGE) -> Iterator[CheckpointInfo]:
        """All checkpoints, newest first; ``at_once`` are read ahead."""
        self._format()
        return (each for each in self._each(tag, at_once) if tag is None or each.tag == tag)

    def forget(self, info: CheckpointInfo) -> None:
        """Let there be no such checkpoint; one that is not there is no error."""
        self.prepare()
        number = _number(info.id) or 0
        held = self._blobs.read(_entry(number))
        if held is None or (found := self._decoded(number, held.data)) is None or found.id != info.id:
            return
        try:
            self._blobs.put_if(_entry(number), b"", expect=held.etag)
        except Conflict:  # someone else forgot it
            return
        self._blobs.delete([_mark(info.tag, number)])

    def litter(self, *, before_us: int) -> list[str]:
        """Files that forgotten checkpoints and writers that died before a time have left."""
        entries = listed(self._blobs, CHECKPOINTS)
        numbers = {_place(each.name) for each in entries if each.size}
        marks = [each for each in listed(self._blobs, TAGS) if _place(each.name) not in numbers]
        empty = [each for each in entries[1:] if not each.size]
        return [each.name for each in (*empty, *marks) if each.modified_us < before_us]

    def get(self, id: str) -> CheckpointInfo:
        """A checkpoint by its id; one request."""
        number = _number(id)
        found = None if number is None else self._read(number)
        if found is None or found.id != id:
            raise NotFound(
                f"{self._blobs.url} holds no checkpoint {id!r}; list_checkpoints() shows what it has"
            )
        return found

    def _newest(self) -> int:
        page = self._blobs.list(CHECKPOINTS, limit=1)
        return _LAST - _place(page[0].name) if page else 0

    def _each(self, tag: str | None, at_once: int) -> Iterator[CheckpointInfo]:
        folder = CHECKPOINTS if tag is None else f"{TAGS}/{file_name(tag)}"
        page: list[BlobInfo] = []
        with ThreadPoolExecutor(_AT_ONCE, "treering-list") as pool:
            while True:
                page = self._blobs.list(folder, after=page[-1].name if page else None, limit=_PAGE)
                numbers = [_LAST - _place(each.name) for each in page if each.size or tag is not None]
                for start in range(0, len(numbers), at_once):
                    for found in pool.map(self._read, numbers[start : start + at_once]):
                        if found is not None:
                            yield found
                if len(page) < _PAGE:
                    return

    def _read(self, number: int) -> CheckpointInfo | None:
        try:
            data = self._blobs.get(_entry(number))
        except NotFound:
            return None
        return self._decoded(number, data)

    def _decoded(self, number: int, data: bytes) -> CheckpointInfo | None:
        if not data:  # forgotten
            return None
        try:
            return msgspec.json.decode(data, type=CheckpointInfo)
        except msgspec.MsgspecError as error:
            raise Corrupt(
                f"{self._blobs.url}/{_entry(number)} is no checkpoint ({error}); restore it from a copy"
            ) from error

    def _format(self) -> tuple[int, ETag | None]:
        """The version of the layout and the ETag of its file; 0 when there is none."""
        held = self._blobs.read(FORMAT)
        if held is None:
            return 0, None
        try:
            found = msgspec.json.decode(held.data, type=_Format)
        except msgspec.MsgspecError as error:
            raise InvalidInput(
                f"{self._blobs.url} has a {FORMAT} that is not treering's; choose another prefix"
            ) from error
        if found.version > VERSION:
            raise NewerStore(f"{self._blobs.url} has format {found.version}; upgrade treering to use it")
        return found.version, held.etag


def _mark(tag: str, number: int) -> str:
    return f"{TAGS}/{file_name(tag)}/{_key(number)}"


def _key(number: int) -> str:
    return f"{_LAST - number:0{_DIGITS}}"


def _entry(number: int) -> str:
    return f"{CHECKPOINTS}/{_key(number)}.json"


def _place(name: str) -> int:
    key = name.rpartition("/")[2].removesuffix(".json")
    if len(key) != _DIGITS or not key.isascii() or not key.isdigit():
        raise Corrupt(f"{name} is not the name of a checkpoint; remove it from the bucket")
    return int(key)


def _spelled(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits


def _number(id: str) -> int | None:
    """The number in an id: what stands behind its last underscore."""
    if not id.startswith(_PREFIX):
        raise InvalidInput(f"{id[:80]!r} is not a checkpoint's id: those begin with {_PREFIX!r}")
    last = id.removeprefix(_PREFIX).rpartition("_")[2]
    if not last or set(last) - set(_ALPHABET) or len(last) > _DIGITS:
        return None
    number = int(last, len(_ALPHABET))
    return number if 0 < number <= _LAST else None


# -----------------------------------------------------------------------------------------------------------
# Pruning a bucket: packs that no checkpoint needs are deleted, beside writers that take no locks.
#
# A round looks at all checkpoints, follows their trees, and *condemns* the packs that hold nothing of it,
# or little (`treering.sandbox.bucket_objects`). What is needed of a condemned pack, whoever needs it, is
# first copied into new packs; so a pack that turns out to be needed after all costs a copy and no more. A
# round deletes only packs that an earlier one condemned at least the grace ago. Packs that are younger than
# the grace are left alone: their writer may not be done.
#
# Why no checkpoint that was acknowledged ever lacks a pack: its writer read which packs are condemned
# before it looked for anything, counted on none of them, and read the same again after its entry could be
# seen. So each pack that it counts on was condemned later than that, if at all, and every round that may
# delete the pack begins later still: it sees the entry, and copies. No clock takes part in this; the grace
# only spares readers and slow writers. ``docs/decisions/0014-deleting-from-a-bucket.md`` has the argument
# in full.
#
# The order is: copies and their index, the file of the condemned, the index without what goes, the packs.
# Dying anywhere leaves waste that a later round finds.


GRACE_SECONDS: Final = 86_400.0
"""Longer than any upload and any restore should take."""

_SPACE: Final = "default"
_CLOCK: Final = "clock"
_HALF: Final = 0.5
_MARK_AGE_US: Final = 3600 * SECOND_US
_TREES: Final = 500
_COPY_BYTES: Final = 16 << 20

_COPIED: Final = failpoints.declare("prune.copied", "what is needed of the packs to be condemned is copied")
_CONDEMNED: Final = failpoints.declare("prune.condemned", "packs are condemned, nothing is deleted yet")
_UNNAMED: Final = failpoints.declare("prune.unnamed", "no index names the packs that go; they are there yet")
_DELETED: Final = failpoints.declare(
    "prune.deleted", "packs are deleted; what is left of forgotten ones is not"
)


def prune(
    blobs: Blobs,
    log: BucketLog,
    objects: BucketObjects,
    *,
    grace_seconds: float,
    dry_run: bool,
    as_if_without: Collection[str] = (),
) -> Pruned:
    """Condemn what no checkpoint needs, and delete what was condemned ``grace_seconds`` ago.

    Without any grace both are done at once: in two rounds, since the second has to look again.
    """
    if grace_seconds < 0:
        raise InvalidInput(f"grace_seconds={grace_seconds} is not acceptable; give seconds from 0 on")
    log.expect()
    if not dry_run:
        log.prepare()
    grace_us = round(grace_seconds * SECOND_US)
    first = _round(blobs, log, objects, as_if_without, grace_us=grace_us, dry_run=dry_run)
    if dry_run or grace_us or not first.waiting:
        return first
    second = _round(blobs, log, objects, (), grace_us=0, dry_run=False)
    return Pruned(
        deleted=first.deleted + second.deleted,
        freed_bytes=first.freed_bytes + second.freed_bytes,
        waiting=second.waiting,
        waiting_bytes=second.waiting_bytes,
        copied_bytes=first.copied_bytes + second.copied_bytes,
    )


def _round(
    blobs: Blobs,
    log: BucketLog,
    objects: BucketObjects,
    without: Collection[str],
    *,
    grace_us: int,
    dry_run: bool,
) -> Pruned:
    objects.give_up()
    verdict = read_verdict(blobs)
    since = dated(blobs, verdict)
    index = objects.index
    index.refresh(condemned=since)
    packs = {pack_of(each.name): each for each in listed(blobs, PACKS)}
    lost = index.named().keys() - packs.keys()
    index.condemn({*since, *lost})
    now_us = SystemClock().now_us() if dry_run else _now_us(blobs)

    with _following(blobs, verdict):
        roots = {each.hash for each in log.each() if each.id not in without}
        needed = _reached(objects, roots, lost=lost)
    aged = {
        pack: each
        for pack, each in packs.items()
        if pack not in since and (not grace_us or each.modified_us <= now_us - grace_us)
    }
    chosen = _useless(index, aged, needed)
    due = [pack for pack, when in since.items() if pack in packs and when <= now_us - grace_us]
    index.condemn({*since, *lost, *chosen})
    moving = [name for name in needed if not index.holds(name)]
    waiting = [pack for pack in (*since, *chosen) if pack in packs and pack not in due]
    report = Pruned(
        deleted=len(due),
        freed_bytes=_size(packs, due),
        waiting=len(waiting),
        waiting_bytes=_size(packs, waiting),
        copied_bytes=sum(_stored_size(index, name) for name in moving),
        dry_run=dry_run,
    )
    if dry_run:
        index.condemn(since)
        return report

    with _following(blobs, verdict):
        _copy(objects, moving)
    failpoints.hit(_COPIED)
    over = [
        pack
        for pack, when in since.items()
        if pack not in packs and pack not in index.named() and when <= now_us - 2 * grace_us
    ]
    litter = log.litter(before_us=now_us - max(grace_us, _MARK_AGE_US))
    if chosen or over or litter or due:  # whoever is at work sees that something goes
        left: dict[str, int | None] = {pack: when for pack, when in since.items() if pack not in over}
        write_verdict(blobs, verdict, left | dict.fromkeys(chosen))
    failpoints.hit(_CONDEMNED)
    index.drop({*due, *lost})
    failpoints.hit(_UNNAMED)
    blobs.delete(pack_blob(pack) for pack in due)
    failpoints.hit(_DELETED)
    blobs.delete(litter)
    return report


@contextmanager
def _following(blobs: Blobs, verdict: Verdict) -> Generator[None]:
    """What it means when something that a checkpoint needs is not there: another prune, or damage."""
    try:
        yield
    except (Corrupt, NotFound) as error:
        if read_verdict(blobs).etag != verdict.etag:
            raise busy(blobs) from error
        raise Corrupt(
            f"{blobs.url}: a checkpoint cannot be followed ({error}), so nothing was deleted; check() tells "
            "which one, reindex() may bring back what it lacks, and forgetting it lets a prune work"
        ) from error


def _reached(objects: BucketObjects, roots: set[str], *, lost: Collection[str]) -> set[str]:
    """Everything that checkpoints with these roots need."""
    index = objects.index
    needed = set(roots)
    pending = list(roots)
    while pending:
        some, pending = pending[:_TREES], pending[_TREES:]
        trees = objects.get(_SPACE, [object_address(name) for name in some])
        for name in {name for tree in trees for name in links_of(tree)} - needed:
            place = index.find(name)
            if place is None or place.pack in lost:
                raise NotFound(f"object {name} is not to be found")
            needed.add(name)
            if place.entry.kind == "tree":
                pending.append(name)
    return needed


def _useless(index: BucketIndex, packs: dict[str, BlobInfo], needed: set[str]) -> list[str]:
    """Packs of which less than half is needed; one that no index names is not needed at all."""
    named = index.named()
    chosen: list[str] = []
    for pack in packs:
        all_bytes = needed_bytes = 0
        for entry in entries_of(named[pack]) if pack in named else ():
            all_bytes += entry.size
            place = index.find(entry.name)
            if entry.name in needed and place is not None and place.pack == pack:
                needed_bytes += entry.size
        if needed_bytes <= all_bytes * _HALF:
            chosen.append(pack)
    return chosen


def _copy(objects: BucketObjects, names: Iterable[str]) -> None:
    """Store objects once more, in packs that are not condemned."""
    some: list[str] = []
    size = 0
    for name in (*names, None):
        if name is not None:
            some.append(name)
            size += _stored_size(objects.index, name)
        if some and (name is None or size >= _COPY_BYTES):
            objects.stage(_SPACE, objects.get(_SPACE, [object_address(each) for each in some]))
            some, size = [], 0
    objects.flush()


def _stored_size(index: BucketIndex, name: str) -> int:
    place = index.find(name)
    return 0 if place is None else place.entry.size


def _size(packs: dict[str, BlobInfo], some: Iterable[str]) -> int:
    return sum(packs[pack].size for pack in some)


def _now_us(blobs: Blobs) -> int:
    """The time on the clock that also says when packs were written."""
    blobs.put(_CLOCK, b"")
    found = blobs.stat(_CLOCK)
    return SystemClock().now_us() if found is None else found.modified_us


# -----------------------------------------------------------------------------------------------------------

_BUCKET_STORAGE_SPACE: Final = "default"

_ENTERED: Final = failpoints.declare(
    "bucket.entered", "a checkpoint can be seen, and it is not yet known whether a prune took part of it"
)
_FORGOTTEN: Final = failpoints.declare("bucket.forgotten", "a checkpoint is forgotten, others are not yet")


class BucketStorage:
    """One bucket or folder. ``cache`` is where stat caches may lie; it may be lost at any time."""

    def __init__(self, blobs: Blobs, *, cache: Path | None) -> None:
        self._blobs = blobs
        self._objects = BucketObjects(blobs)
        self._log = BucketLog(blobs)
        writer = SnapshotWriter(
            self._objects, _BUCKET_STORAGE_SPACE, StatCache(cache), has_all_of=self._objects.has_all_of
        )
        self._archive = Archive(self._objects, _BUCKET_STORAGE_SPACE, writer)

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        return self._blobs.url

    @property
    def archive(self) -> Archive:
        """The files."""
        return self._archive

    def prepare(self) -> None:
        """Refuse a bucket that ignores conditions, or that a newer treering wrote."""
        self._log.prepare()
        self._objects.begin()  # drops what an earlier failure left half staged

    def commit(self, archived: Archived, make: Callable[[str], CheckpointInfo]) -> CheckpointInfo:
        """Send what is staged, then write the entry; `MissingObjects` if a prune got in between."""
        self._objects.flush()
        info = self._log.append(make)
        failpoints.hit(_ENTERED)
        if not self._objects.is_settled():
            self._log.forget(info)
            raise MissingObjects(archived.requires)
        self._objects.index.gather()
        return info

    def newest_first(self, *, tag: str | None, limit: int) -> list[CheckpointInfo]:
        """The last checkpoints."""
        return self._log.newest_first(tag=tag, limit=limit)

    def get(self, id: str) -> CheckpointInfo:
        """One checkpoint."""
        return self._log.get(id)

    def each(self, *, tag: str | None) -> Iterator[CheckpointInfo]:
        """All checkpoints, newest first."""
        return self._log.each(tag=tag)

    def forget(self, infos: Iterable[CheckpointInfo]) -> None:
        """Let there be no such checkpoints."""
        for info in infos:
            self._log.forget(info)
            failpoints.hit(_FORGOTTEN)

    def prune(
        self, *, grace_seconds: float | None, dry_run: bool, as_if_without: Collection[str] = ()
    ) -> Pruned:
        """Delete what no checkpoint needs."""
        return prune(
            self._blobs,
            self._log,
            self._objects,
            grace_seconds=GRACE_SECONDS if grace_seconds is None else grace_seconds,
            dry_run=dry_run,
            as_if_without=as_if_without,
        )

    def reindex(self) -> int:
        """Bring back packs that no index names; how many."""
        return self._objects.reindex()

    def close(self) -> None:
        """Let go of the threads."""
        self._objects.close()


def cache_of(url: str) -> Path | None:
    """Where this machine keeps what it saw of folders, for one bucket."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - may lack a home
    key = sha256(url.encode()).hexdigest()[:32]
    return Path(base) / "treering" / "buckets" / key if Path(base).is_absolute() else None

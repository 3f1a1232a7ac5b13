"""Pruning a bucket: packs that no checkpoint needs are deleted, beside writers that take no locks.

A round looks at all checkpoints, follows their trees, and *condemns* the packs that hold nothing of it, or
little (`treering.sandbox.condemned`). What is needed of a condemned pack, whoever needs it, is first copied
into new packs; so a pack that turns out to be needed after all costs a copy and no more. A round deletes only
packs that an earlier one condemned at least the grace ago. Packs that are younger than the grace are left
alone: their writer may not be done.

Why no checkpoint that was acknowledged ever lacks a pack: its writer read which packs are condemned before it
looked for anything, counted on none of them, and read the same again after its entry could be seen. So each
pack that it counts on was condemned later than that, if at all, and every round that may delete the pack
begins later still: it sees the entry, and copies. No clock takes part in this; the grace only spares readers
and slow writers. ``docs/decisions/0014-deleting-from-a-bucket.md`` has the argument in full.

The order is: copies and their index, the file of the condemned, the index without what goes, the packs. Dying
anywhere leaves waste that a later round finds.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from typing import Final

from treering.core import failpoints
from treering.core.address import object_address
from treering.core.clock import SECOND_US, SystemClock
from treering.core.storage import BlobInfo, Blobs
from treering.core.tree import links_of
from treering.errors import Corrupt, InvalidInput, NotFound
from treering.sandbox.bucket_index import PACKS, BucketIndex, entries_of, listed, pack_blob, pack_of
from treering.sandbox.bucket_log import BucketLog
from treering.sandbox.bucket_objects import BucketObjects
from treering.sandbox.condemned import Verdict, busy, dated, read_verdict, write_verdict
from treering.sandbox.records import Pruned

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
        if read_verdict(blobs).stamp != verdict.stamp:
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

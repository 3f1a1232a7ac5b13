"""Condemned packs: those that will be deleted, in one small file that everybody reads who writes to a bucket.

There is no lock to take, so a writer may find an object in a pack just when a `prune` finds the same pack to
be of no use. Therefore a pack is first written down here, and deleted by a later round that looked at all
checkpoints again. A writer reads this file before it looks for what is stored already, counts on nothing
that lies in a condemned pack, and reads it again after its checkpoint can be seen: if the file is another
one by then, the checkpoint is withdrawn and made anew. **Invariant:** a pack that is written down here is
never taken back: it leaves the file when it is deleted and no index names it. Every version of the file has
bytes of its own, so an equal stamp means that nothing happened in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from treering.core.ids import new_id
from treering.core.storage import Blobs, Stamp
from treering.errors import Conflict, Corrupt, NewerStore

FILE: Final = "condemned.json"
_VERSION: Final = 1


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    run: str
    packs: dict[str, int | None]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The file as it was read: packs, and since when (``None``: since the file was written)."""

    packs: Mapping[str, int | None] = {}
    stamp: Stamp | None = None


def read_verdict(blobs: Blobs) -> Verdict:
    """Which packs are condemned now."""
    held = blobs.read(FILE)
    if held is None:
        return Verdict()
    try:
        stored = msgspec.json.decode(held.data, type=_Stored)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{blobs.url}/{FILE} is damaged ({error}); restore it from a copy") from error
    if stored.version > _VERSION:
        raise NewerStore(f"{blobs.url}/{FILE} has version {stored.version}; upgrade treering to use it")
    return Verdict(packs=stored.packs, stamp=held.stamp)


def dated(blobs: Blobs, verdict: Verdict) -> dict[str, int]:
    """Since when each pack is condemned, on the clock of the bucket."""
    found = blobs.stat(FILE)
    written_us = 0 if found is None else found.modified_us
    return {pack: written_us if since is None else since for pack, since in verdict.packs.items()}


def write_verdict(blobs: Blobs, before: Verdict, packs: Mapping[str, int | None]) -> None:
    """Let the file say this from now on, if it is still as it was read; `Conflict` otherwise."""
    data = msgspec.json.encode(_Stored(version=_VERSION, run=new_id(), packs=dict(packs)))
    try:
        blobs.put_if(FILE, data, expect=before.stamp)
    except Conflict:
        raise busy(blobs) from None


def busy(blobs: Blobs) -> Conflict:
    """What a prune says that meets another one."""
    return Conflict(
        f"{blobs.url}: someone else prunes this at the same time; nothing was deleted, try again later"
    )

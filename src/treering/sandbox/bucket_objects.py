"""Objects of a bucket that has nothing besides it: packs, and the index that says what lies where.

Objects are gathered into packs and sent in the background, two at a time. `flush` sends the rest and then
writes the index; only then does a checkpoint name them. Dying in between leaves packs that no index names:
waste, never a lack. What lies in a condemned pack can be read, but counts as not stored for whoever writes
(`treering.sandbox.condemned`). **Invariant:** content is given back only when it hashes to its name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import zip_longest
from typing import Final

from treering.core.address import Address
from treering.core.content import Content
from treering.core.packs import (
    SALT_SIZE,
    FrameAt,
    PackEntry,
    PackWriter,
    frames_of,
    neighbours_of,
    read_frame,
)
from treering.core.storage import Blobs
from treering.errors import InvalidInput, NotFound
from treering.sandbox.bucket_index import BucketIndex, Indexed, indexed, pack_blob
from treering.sandbox.bucket_reading import PackGone, PackReader, ranges
from treering.sandbox.condemned import Verdict, read_verdict
from treering.views.workspaces.known import Known, KnownFolder

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
        if now.stamp == self._verdict.stamp:
            return True
        self.give_up()
        self._heed(now)
        return False

    def _heed(self, verdict: Verdict) -> None:
        if verdict.stamp != self._verdict.stamp:
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

    def has_all_of(self, known: Known) -> bool:
        """Whether all that is known of a folder is stored; before the first prune, its roots say so."""
        return self._verdict.stamp is None or all(map(self._index.holds, _names_in(known.folder)))

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

    def _runs(self, names: Sequence[str]) -> list[tuple[str, list[FrameAt]]]:
        """What has to be read for these objects, in pieces that are worth a request each."""
        by_pack: dict[str, dict[str, PackEntry]] = {}
        for name in names:
            place = self._index.find(name)
            if place is not None:
                by_pack.setdefault(place.pack, {})[name] = place.entry
        return [
            (pack, piece)
            for pack, entries in by_pack.items()
            for run in neighbours_of(frames_of(entries.values()))
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


def _names_in(folder: KnownFolder) -> Iterator[str]:
    pending = [folder]
    while pending:
        each = pending.pop()
        if each.tree:
            yield each.tree
        for file in each.files.values():
            yield from file.content
        pending += each.folders.values()

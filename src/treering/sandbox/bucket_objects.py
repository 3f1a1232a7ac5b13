"""Objects of a bucket that has nothing besides it: packs, and the index that says what lies where.

Objects are gathered into packs and sent in the background, one at a time, each in several parts at once.
`flush` sends the rest and then writes the index; only then does a checkpoint name them. Dying in between
leaves packs that no index names: waste, never a lack. Nothing is deleted, so what was once found stays found.
**Invariant:** content is given back only when it hashes to its name.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from threading import Lock
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
from treering.errors import Corrupt, InvalidInput, NotFound
from treering.sandbox.bucket_index import BucketIndex, Indexed, indexed, pack_blob

_FLYING: Final = 1  # a pack goes up in several parts at once; two packs would only take more memory
_READING: Final = 8
_PIECE: Final = 2 << 20
_KEPT_BYTES: Final = 32 << 20
_KEPT_FRAME: Final = 512 * 1024


class BucketObjects:
    """Content by name in one bucket or folder. ``space`` is there for the contract; a bucket has only one."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._index = BucketIndex(blobs)
        self._frames = _Frames()
        self._sealing = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "treering-seal")
        self._sending = ThreadPoolExecutor(_FLYING, "treering-send")
        self._reading = ThreadPoolExecutor(_READING, "treering-read")
        self._flying: list[Future[Indexed]] = []
        self._sent: list[Indexed] = []
        self._pending: set[str] = set()
        self._writer: PackWriter | None = None

    def stage(self, space: str, contents: Iterable[Content]) -> list[str]:  # noqa: ARG002 - the contract
        """Take objects in. They are durable after `flush`, not before."""
        names: list[str] = []
        for content in contents:
            name = content.name
            names.append(name)
            if name in self._pending or self._index.find(name) is not None:
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
        """Which of these objects are neither stored nor staged."""
        lacking = {name for name in names if name not in self._pending and self._index.find(name) is None}
        if not lacking:
            return lacking
        self._index.refresh()
        return {name for name in lacking if self._index.find(name) is None}

    def get(self, space: str, addresses: Sequence[Address]) -> list[Content]:
        """Verified content, in the order asked for."""
        names = [_name(address) for address in addresses]
        if lacking := self.missing(space, names):
            raise NotFound(
                f"{self._blobs.url}: no index names object {min(lacking)}; reindex() brings lost ones back"
            )
        if self._pending.intersection(names):
            self.flush()
        by_pack: dict[str, dict[str, PackEntry]] = {}
        for name in names:
            place = self._index.find(name)
            if place is not None:
                by_pack.setdefault(place.pack, {})[name] = place.entry
        packs: list[str] = []
        runs: list[list[FrameAt]] = []
        for pack, entries in by_pack.items():
            for run in chain.from_iterable(map(_pieces, neighbours_of(frames_of(entries.values())))):
                packs.append(pack)
                runs.append(run)
        if len(runs) == 1:
            found = dict(self._run(packs[0], runs[0]))
        else:
            found = dict(chain.from_iterable(self._reading.map(self._run, packs, runs)))
        return [found[name] for name in names]

    def reindex(self) -> int:
        """Write down again what packs say of themselves; how many no index had named."""
        return self._index.rebuild()

    def close(self) -> None:
        """Let go of the threads."""
        for pool in (self._sealing, self._sending, self._reading):
            pool.shutdown(cancel_futures=True)

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

    def _run(self, pack: str, run: list[FrameAt]) -> list[tuple[str, Content]]:
        """The wanted objects of neighbouring frames, in one request or none."""
        kept = [self._frames.get((pack, each.offset)) for each in run]
        frames: list[bytes | memoryview] = [each for each in kept if each is not None]
        if len(frames) != len(run):
            start, stop = run[0].offset, run[-1].offset + run[-1].length
            try:
                data = memoryview(self._blobs.get(pack_blob(pack), start=start, stop=stop))
            except NotFound:
                raise Corrupt(
                    f"object {run[0].entries[0].name}: its pack {pack} is not in {self._blobs.url}; "
                    "restore it from a backup or a copy"
                ) from None
            frames = [data[each.offset - start : each.offset - start + each.length] for each in run]
            for each, frame in zip(run, frames, strict=True):
                self._frames.put((pack, each.offset), frame)
        return [
            (entry.name, content)
            for each, frame in zip(run, frames, strict=True)
            for entry, content in zip(each.entries, read_frame(frame, each.entries, pack=pack), strict=True)
        ]


class _Frames:
    """Small frames that were read last: one holds many small objects, which are asked for bit by bit."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, key: tuple[str, int]) -> bytes | None:
        with self._lock:
            if (frame := self._held.get(key)) is not None:
                self._held.move_to_end(key)
            return frame

    def put(self, key: tuple[str, int], frame: bytes | memoryview) -> None:
        if len(frame) > _KEPT_FRAME:
            return
        with self._lock:
            if key not in self._held:
                self._held[key] = bytes(frame)
                self._bytes += len(frame)
            while self._bytes > _KEPT_BYTES:
                _, oldest = self._held.popitem(last=False)
                self._bytes -= len(oldest)


def _pieces(run: list[FrameAt]) -> Iterator[list[FrameAt]]:
    """A run in pieces that are worth a connection each: several at once are faster than one."""
    piece: list[FrameAt] = []
    for frame in run:
        if piece and frame.offset + frame.length - piece[0].offset > _PIECE:
            yield piece
            piece = []
        piece.append(frame)
    if piece:
        yield piece


def _name(address: Address) -> str:
    if not address.startswith("o:"):
        raise InvalidInput(f"a bucket holds objects, and {address[:80]!r} is none")
    return address[2:]

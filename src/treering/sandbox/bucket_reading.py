"""Reading packs of a bucket: several requests at once, and some ahead of being asked for.

A bucket answers late but answers many at once. So ranges are fetched by threads that do nothing else;
unfolding and checking is for whoever asks, because threads that make short calls stand in each other's way.
What was announced is held until it is asked for, a bounded number of ranges; frames of many small objects are
held longer, as those are asked for bit by bit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Final

from treering.core.packs import FrameAt
from treering.core.storage import Blobs
from treering.errors import Corrupt, NotFound
from treering.sandbox.bucket_index import pack_blob

_AT_ONCE: Final = 8
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
        self._pool = ThreadPoolExecutor(_AT_ONCE, "treering-read")
        self._lock = Lock()
        self._coming: OrderedDict[_Key, Future[bytes]] = OrderedDict()
        self._frames: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._kept_bytes = 0

    def expect(self, pack: str, run: list[FrameAt]) -> None:
        """Begin to fetch neighbouring frames."""
        key = _key(pack, run)
        with self._lock:
            if key in self._coming or all((pack, each.offset) in self._frames for each in run):
                return
            while len(self._coming) >= _COMING:
                self._coming.popitem(last=False)[1].cancel()
            self._coming[key] = self._pool.submit(self._fetch, key)

    def read(self, pack: str, run: list[FrameAt]) -> list[bytes | memoryview]:
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


def ranges(run: list[FrameAt]) -> Iterator[list[FrameAt]]:
    """A run in pieces that are worth a request each: several at once are faster than one."""
    piece: list[FrameAt] = []
    for frame in run:
        if piece and frame.offset + frame.length - piece[0].offset > _RANGE:
            yield piece
            piece = []
        piece.append(frame)
    if piece:
        yield piece


def _key(pack: str, run: list[FrameAt]) -> _Key:
    return pack, run[0].offset, run[-1].offset + run[-1].length

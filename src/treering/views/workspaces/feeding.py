"""Feeding: the contents of many files in order, fetched a batch ahead of whoever writes or checks them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Self

from treering.core.tree import FileEntry

if TYPE_CHECKING:
    from treering.core.content import Content
    from treering.views.workspaces.stored import Snapshot

BATCH_BYTES: Final = 4 * 1024 * 1024
BATCH_OBJECTS: Final = 500


class Feed:
    """The contents of files in their order, fetched one batch ahead."""

    def __init__(self, snapshot: Snapshot, files: Iterable[FileEntry]) -> None:
        self._snapshot = snapshot
        self._batches = batches(files)
        self._pool = ThreadPoolExecutor(1, "treering-fetch")
        self._pieces = self._stream()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def take(self, entry: FileEntry) -> Iterator[bytes]:
        """The pieces of the next file."""
        for _ in entry.content:
            yield next(self._pieces)

    def _stream(self) -> Iterator[bytes]:
        ahead = self._fetch()
        while ahead is not None:
            names, future = ahead
            contents = future.result()
            ahead = self._fetch()
            for name in names:
                yield contents[name].data

    def _fetch(self) -> tuple[list[str], Future[dict[str, Content]]] | None:
        names = next(self._batches, None)
        return None if names is None else (names, self._pool.submit(self._snapshot.contents, names))


def batches(files: Iterable[FileEntry]) -> Iterator[list[str]]:
    """The objects of files in order, in runs that are worth one read and fit into memory."""
    names: list[str] = []
    size = 0.0
    for entry in files:
        for name in entry.content:
            names.append(name)
            size += entry.size / len(entry.content)
            if size >= BATCH_BYTES or len(names) >= BATCH_OBJECTS:
                yield names
                names, size = [], 0.0
    if names:
        yield names

"""The two small storage contracts below the engines: blobs and key-value stores.

**Blobs** are named bytes in a folder or a bucket. Most are immutable (packs, manifests): they are written
once, read by range, listed and deleted. A few are small and change (refs): they are read together with an
ETag, and written only while that ETag is current. `treering.testing.blobs_suite` tests what every store must
do.

**Key-value stores** are brought by users, for savers that keep their checkpoints there. A store has four
methods, plain or ``async``; `treering.sync_async` calls either kind from either side.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NewType, Protocol

import msgspec

from treering.errors import Unreachable

ETag = NewType("ETag", str)
"""Identifies the content of a blob when it was read. Opaque; equal contents may have equal ETags."""

BlobData = bytes | bytearray | memoryview | tuple[bytes, ...] | Path
"""The data of a blob: bytes, in one or several pieces, or a file with them."""


class BlobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A blob without its bytes. ``modified_us`` is the store's time, possibly only to the second."""

    name: str
    size: int
    modified_us: int


class VersionedBlob(msgspec.Struct, frozen=True, kw_only=True):
    """All bytes of a small blob, with their ETag."""

    data: bytes
    etag: ETag


class Blobs(Protocol):
    """Named bytes.

    A name is a relative path of ordinary components (see `treering.blobs.blob`), and is never also the folder
    of another name: ``a`` and ``a/b`` cannot both exist. A write is atomic, and durable when the call
    returns. A read sees every write that returned before it began. Any number of threads and processes may
    use a store.
    """

    @property
    def url(self) -> str:
        """Its location, without secrets."""
        ...

    @property
    def conditional(self) -> bool:
        """Whether ``if_absent`` and `put_if` are supported; if not, both raise `Unsupported`.

        A bucket is tested once, at the first use that needs to know.
        """
        ...

    def put(self, name: str, data: BlobData, *, if_absent: bool = False) -> None:
        """Write a blob, replacing an existing one; with ``if_absent`` an existing one raises `Conflict`.

        A file is read in pieces of bounded size, except by a bucket with ``if_absent``, which must send it
        in one request.
        """
        ...

    def get(self, name: str, *, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes from ``start`` up to ``stop``; raise `NotFound` if there is no blob."""
        ...

    def read(self, name: str) -> VersionedBlob | None:
        """Return the whole blob with its ETag, read atomically; None if there is no blob."""
        ...

    def put_if(self, name: str, data: bytes, *, expect: ETag | None) -> ETag:
        """Write the blob only while its ETag is ``expect`` (None: no blob), otherwise raise `Conflict`.

        Of several racing calls with the same ``expect``, one wins. A caller that must know whether it was
        the winner includes something unique in the bytes: after a lost response, finding equal bytes counts
        as having written them.
        """
        ...

    def stat(self, name: str) -> BlobInfo | None:
        """Return the size and time of a blob; None if there is none."""
        ...

    def list(self, folder: str = "", *, after: str | None = None, limit: int = 1000) -> list[BlobInfo]:
        """Return the next blobs at any depth below ``folder``; fewer than ``limit`` are the last ones.

        ``after`` is the last name of the previous page. Within one folder, names are sorted by their UTF-8
        bytes; how folders are interleaved depends on the store, but does not change. A blob that exists
        throughout the listing is returned exactly once, whatever is written or deleted meanwhile.
        """
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete blobs. Missing ones are ignored."""
        ...


MAX_LISTED: Final = 10_000_000
"""How many blobs a listing may have: packs of 200 TB."""
_PAGE: Final = 1000


def list_all(blobs: Blobs, folder: str) -> Iterator[BlobInfo]:
    """Yield all blobs below a folder, a page at a time.

    Raises `Unreachable` if the server names the same ones again, or more than there can be: it would go on
    without end.
    """
    after: str | None = None
    count = 0
    while True:
        page = blobs.list(folder, after=after, limit=_PAGE)
        names = {each.name for each in page}
        count += len(page)
        if len(names) < len(page) or after in names or count > MAX_LISTED:
            raise Unreachable(
                f"{blobs.url} lists blobs of {folder!r} repeatedly or without end ({count:,} so far); "
                "check the server of the bucket"
            )
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].name


class KeyValueStore(Protocol):
    """A store of values under keys. Each method may be plain or ``async``.

    Values are anything that `treering.core.encoding` can encode: JSON, bytes, and a few more types.
    """

    def get(self, key: str, /) -> Any:
        """Return the value of a key, or None (or an awaitable of that)."""
        ...

    def set(self, key: str, value: Any, /) -> Awaitable[None] | None:
        """Set the value of a key. Durable when the call is done."""
        ...

    def delete(self, key: str, /) -> Awaitable[None] | None:
        """Delete a key. A missing one is ignored."""
        ...

    def list(
        self, prefix: str = "", /
    ) -> Iterable[str | bytes] | Awaitable[Iterable[str | bytes]] | AsyncIterable[str | bytes]:
        """List all keys with a prefix, in any order."""
        ...


class SwappingStore(KeyValueStore, Protocol):
    """A key-value store with compare-and-swap, which several processes can write to safely."""

    def compare_and_swap(self, key: str, old: Any, new: Any, /) -> bool | Awaitable[bool]:
        """Replace ``old`` by ``new`` atomically; return False and change nothing if the value is not ``old``.

        ``None`` stands for no value: as ``old``, the key must not exist; as ``new``, the key is deleted.
        """
        ...

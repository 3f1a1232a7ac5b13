"""The two small contracts for storage below the engines: blobs and key-value pairs.

**Blobs** are named bytes in a folder or a bucket. Most are immutable (packs, manifests): written once,
read by range, listed, deleted. A few are small and move (refs): read together with a stamp, written back
only while that stamp still holds. What every store must do is pinned by `treering.testing.blobs_suite`.

**Key-value pairs** serve the savers of seed 002, where a user brings a store of their own. Four methods,
with or without ``async``; `treering.sync_async` calls either kind from either side.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any, NewType, Protocol

import msgspec

Stamp = NewType("Stamp", str)
"""Stands for what a blob held when it was read. Opaque; equal content may have equal stamps."""

BlobData = bytes | bytearray | memoryview | tuple[bytes, ...] | Path
"""What a blob is made of: bytes at hand, in one piece or in several, or the file that holds them."""


class BlobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A blob without its bytes. ``modified_us`` is on the clock of the store, to the second at worst."""

    name: str
    size: int
    modified_us: int


class Stamped(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of a small blob and the stamp that belongs to exactly these bytes."""

    data: bytes
    stamp: Stamp


class Blobs(Protocol):
    """Named bytes.

    A name is a relative path of ordinary components (see `treering.blobs.blob`), and is never also the
    folder of another name: ``a`` and ``a/b`` do not both exist. A write is all or nothing: no reader ever
    sees a part of it, and it is durable when the call returns. A read sees every write that returned
    before it began. Any number of threads and processes may use one store.
    """

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        ...

    @property
    def conditional(self) -> bool:
        """Whether ``if_absent`` and `put_if` are honoured; without, both raise `Unsupported`.

        A bucket is asked by trying, once, at the first use that needs to know.
        """
        ...

    def put(self, name: str, data: BlobData, *, if_absent: bool = False) -> None:
        """Write a blob, over whatever is there; with ``if_absent`` a taken name raises `Conflict`.

        A file is read in pieces of bounded size, except by a bucket under ``if_absent``, which has to
        send it as a whole.
        """
        ...

    def get(self, name: str, *, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes from ``start`` up to ``stop``, as a slice would cut them; `NotFound` without a blob."""
        ...

    def read(self, name: str) -> Stamped | None:
        """The whole blob with its stamp, in one step; None without a blob."""
        ...

    def put_if(self, name: str, data: bytes, *, expect: Stamp | None) -> Stamp:
        """Write the blob only while it is as ``expect`` says (None: absent), else raise `Conflict`.

        Of any number of racing calls with one expectation, one wins. Whoever has to know *which* one
        writes something of their own into the bytes: after a lost answer, equal bytes count as written.
        """
        ...

    def stat(self, name: str) -> BlobInfo | None:
        """Size and time of a blob; None without a blob."""
        ...

    def list(self, folder: str = "", *, after: str | None = None, limit: int = 1000) -> list[BlobInfo]:
        """The next blobs at any depth below ``folder``; fewer than ``limit`` means that these were the last.

        ``after`` is the last name of the page before. Within one folder names come in the order of their
        UTF-8 bytes; how folders are interleaved is up to the store, but fixed. A blob that exists from
        the first page to the last is listed exactly once, whatever is written or deleted meanwhile.
        """
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Remove blobs; a name that is not there is no error."""
        ...


class KeyValueStore(Protocol):
    """Anything that keeps values under keys. Each method may be plain or ``async``.

    Values are what `treering.core.encoding` encodes: whatever JSON holds, bytes, and a few types more.
    """

    def get(self, key: str, /) -> Any:
        """The value under a key, None without one (or an awaitable of that)."""
        ...

    def set(self, key: str, value: Any, /) -> Awaitable[None] | None:
        """Keep a value under a key, instead of the one before. Durable when the call is done."""
        ...

    def delete(self, key: str, /) -> Awaitable[None] | None:
        """Forget a key; one that is not there is no error."""
        ...

    def list(self, prefix: str = "", /) -> Iterable[str] | Awaitable[Iterable[str]]:
        """All keys that begin with ``prefix``, in any order."""
        ...


class SwappingStore(KeyValueStore, Protocol):
    """A key-value store that can also compare and swap, so that several processes may write to it."""

    def compare_and_swap(self, key: str, old: Any, new: Any, /) -> bool | Awaitable[bool]:
        """Let ``new`` take the place of ``old`` in one step; False, and nothing done, if it is not there.

        ``None`` stands for no value: as ``old`` the key must be absent, as ``new`` it is deleted.
        """
        ...

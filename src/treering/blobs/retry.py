"""Any blob store, tried again for a while when it cannot be reached.

After a failure that may pass, the wait before the next try is drawn at random from zero up to a bound that
doubles each time, so that clients that failed together do not come back together. When the next wait would
pass the deadline, the last error is raised, with a note of how often it was tried.

A conditional write is special. When its answer was lost, it may have succeeded, and then the second try
meets its own first one and is told of a conflict. So after such a failure a conflict is believed only if
the blob holds something else than what was to be written. **Invariant:** a write that took effect is never
reported as lost to someone else, unless someone else has overwritten it since.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from treering.blobs.blob import whole_of
from treering.core.storage import BlobData, BlobInfo, Blobs, ETag, VersionedBlob
from treering.errors import Conflict, StoreFull, TreeringError

T = TypeVar("T")


class RetryingBlobs:
    """``blobs``, with patience. Clock, sleep and randomness may be given, so that tests are exact."""

    def __init__(
        self,
        blobs: Blobs,
        *,
        deadline_seconds: float = 60,
        first_wait_seconds: float = 0.1,
        longest_wait_seconds: float = 8,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._blobs = blobs
        self._deadline_seconds = deadline_seconds
        self._first_wait_seconds = first_wait_seconds
        self._longest_wait_seconds = longest_wait_seconds
        self._monotonic = monotonic
        self._sleep = sleep
        self._uniform = uniform

    @property
    def url(self) -> str:
        """Where the store is."""
        return self._blobs.url

    @property
    def conditional(self) -> bool:
        """Whether the store honours conditions."""
        return self._patiently(lambda: self._blobs.conditional)

    def put(self, name: str, data: BlobData, *, if_absent: bool = False) -> None:
        """See `treering.core.storage.Blobs`."""
        if if_absent:
            self.put_if(name, whole_of(data), expect=None)
        else:
            self._patiently(lambda: self._blobs.put(name, data))

    def put_if(self, name: str, data: bytes, *, expect: ETag | None) -> ETag:
        """See `treering.core.storage.Blobs`."""

        def own_etag() -> ETag | None:
            held = self._blobs.read(name)
            return held.etag if held is not None and held.data == data else None

        return self._patiently(lambda: self._blobs.put_if(name, data, expect=expect), settle=own_etag)

    def get(self, name: str, *, start: int = 0, stop: int | None = None) -> bytes:
        """See `treering.core.storage.Blobs`."""
        return self._patiently(lambda: self._blobs.get(name, start=start, stop=stop))

    def read(self, name: str) -> VersionedBlob | None:
        """See `treering.core.storage.Blobs`."""
        return self._patiently(lambda: self._blobs.read(name))

    def stat(self, name: str) -> BlobInfo | None:
        """See `treering.core.storage.Blobs`."""
        return self._patiently(lambda: self._blobs.stat(name))

    def list(self, folder: str = "", *, after: str | None = None, limit: int = 1000) -> list[BlobInfo]:
        """See `treering.core.storage.Blobs`."""
        return self._patiently(lambda: self._blobs.list(folder, after=after, limit=limit))

    def delete(self, names: Iterable[str]) -> None:
        """See `treering.core.storage.Blobs`."""
        kept = tuple(names)
        return self._patiently(lambda: self._blobs.delete(kept))

    def _patiently(self, call: Callable[[], T], *, settle: Callable[[], T | None] | None = None) -> T:
        """The result of ``call``; ``settle`` gives it where a lost answer hid that it had succeeded."""
        started = self._monotonic()
        failures = 0
        while True:
            try:
                return call()
            except Conflict:
                # The question itself may fail to be answered, and is then asked again like any other.
                if not failures or settle is None:
                    raise
                settled = self._patiently(settle)
                if settled is None:
                    raise
                return settled
            except TreeringError as error:
                failures += 1
                wait = self._uniform(0, self._bound(failures))
                spent = self._monotonic() - started
                if (
                    not error.retryable
                    or isinstance(error, StoreFull)
                    or spent + wait > self._deadline_seconds
                ):
                    if failures > 1:
                        error.add_note(f"tried {failures} times in {spent:.1f} s")
                    raise
                self._sleep(wait)

    def _bound(self, failures: int) -> float:
        return min(self._longest_wait_seconds, self._first_wait_seconds * 2 ** (failures - 1))

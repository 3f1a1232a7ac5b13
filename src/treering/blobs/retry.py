"""Retries for blob stores that cannot be reached: exponential backoff with full jitter, up to a deadline.

After a retryable error, the wait before the next attempt is random between zero and a bound that doubles each
time, so that clients that failed together do not retry together. If the next wait would exceed the deadline,
the last error is raised, with a note of the number of attempts.

Conditional writes need more. If the response is lost, the write may have succeeded, and then the next attempt
conflicts with the first one. So after a lost response, a conflict is raised only if the blob holds other
bytes than the ones written. **Invariant:** a write that took effect is never reported as a conflict, unless
someone else has overwritten it since.
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
    """A blob store that retries. Clock, sleep and randomness can be injected by tests."""

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
        """Its location, without secrets."""
        return self._blobs.url

    @property
    def conditional(self) -> bool:
        """Whether the store supports conditional writes."""
        return self._retry(lambda: self._blobs.conditional)

    def put(self, name: str, data: BlobData, *, if_absent: bool = False) -> None:
        """See `treering.core.storage.Blobs`."""
        if if_absent:
            self.put_if(name, whole_of(data), expect=None)
        else:
            self._retry(lambda: self._blobs.put(name, data))

    def put_if(self, name: str, data: bytes, *, expect: ETag | None) -> ETag:
        """See `treering.core.storage.Blobs`."""

        def own_etag() -> ETag | None:
            held = self._blobs.read(name)
            return held.etag if held is not None and held.data == data else None

        return self._retry(lambda: self._blobs.put_if(name, data, expect=expect), resolve_conflict=own_etag)

    def get(self, name: str, *, start: int = 0, stop: int | None = None) -> bytes:
        """See `treering.core.storage.Blobs`."""
        return self._retry(lambda: self._blobs.get(name, start=start, stop=stop))

    def read(self, name: str) -> VersionedBlob | None:
        """See `treering.core.storage.Blobs`."""
        return self._retry(lambda: self._blobs.read(name))

    def stat(self, name: str) -> BlobInfo | None:
        """See `treering.core.storage.Blobs`."""
        return self._retry(lambda: self._blobs.stat(name))

    def list(self, folder: str = "", *, after: str | None = None, limit: int = 1000) -> list[BlobInfo]:
        """See `treering.core.storage.Blobs`."""
        return self._retry(lambda: self._blobs.list(folder, after=after, limit=limit))

    def delete(self, names: Iterable[str]) -> None:
        """See `treering.core.storage.Blobs`."""
        names = tuple(names)
        return self._retry(lambda: self._blobs.delete(names))

    def _retry(self, call: Callable[[], T], *, resolve_conflict: Callable[[], T | None] | None = None) -> T:
        """Call with retries; ``resolve_conflict`` returns the result if an earlier attempt succeeded."""
        started = self._monotonic()
        failures = 0
        while True:
            try:
                return call()
            except Conflict:
                # Reading the blob may fail as well, and is then retried like any other call.
                if not failures or resolve_conflict is None:
                    raise
                etag = self._retry(resolve_conflict)
                if etag is None:
                    raise
                return etag
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
                        error.add_note(f"{failures} attempts in {spent:.1f} s")
                    raise
                self._sleep(wait)

    def _bound(self, failures: int) -> float:
        return min(self._longest_wait_seconds, self._first_wait_seconds * 2 ** (failures - 1))

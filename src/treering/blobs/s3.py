"""Blobs as objects of a bucket, on any S3-compatible server.

Requests are synchronous obstore calls on the calling thread. Small blobs take one request; blobs larger than
`SINGLE_REQUEST_BYTES` are uploaded in parts, each retried separately. A conditional write is always a single
request and is never retried here, because after a lost response it is unknown whether it succeeded;
`treering.blobs.retry` finds out.

Some gateways accept the headers of a conditional write, ignore them, answer 200 and lose updates. Therefore
the first operation that depends on conditions probes the bucket with an object of its own. **Invariant:** no
conditional write is sent to a bucket that has not passed this test. Others ignore the Range header; a part of
the first object is therefore read back before its write is reported as successful.

The client's threads do not survive a fork: calls in a child would block, or take responses meant for the
parent. A child of a process that has used S3 gets `Unsupported` instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Generator, Iterable
from datetime import timedelta
from http import HTTPStatus
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from treering.blobs.blob import RESERVED, check_folder, check_name, check_range, size_of, whole_of
from treering.core.clock import from_datetime
from treering.core.storage import BlobData, BlobInfo, ETag, VersionedBlob
from treering.errors import (
    Conflict,
    InvalidInput,
    MissingExtra,
    NotFound,
    ReadOnly,
    StoreFull,
    TreeringError,
    Unreachable,
    Unsupported,
)

try:
    from obstore import exceptions as obstore_errors
    from obstore.store import S3Store
except ModuleNotFoundError as error:
    raise MissingExtra("storage in an S3 bucket", "s3") from error

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode

SINGLE_REQUEST_BYTES: Final = 32 << 20
"""Blobs up to this size, which includes packs, are sent in one request."""

PART_BYTES: Final = 8 << 20
"""Larger ones are sent in parts of at least this size."""

_MAX_PARTS: Final = 9_000  # S3 allows 10,000
_PARTS_AT_ONCE: Final = 4
_PART_TRIES: Final = 4
_PAGE: Final = 1000
_RANGE: Final = (1, 2)

# obstore has classes for a few errors; for the others, parse the text (its version is pinned).
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_NOT_PARTIAL: Final = "NotPartial"
_BARE_REDIRECT: Final = "BareRedirect"
_RANGE_NOT_SATISFIABLE: Final = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
_RETRYABLE_CODES: Final = frozenset({"RequestTimeout", "SlowDown", "InternalError"})
_RETRYABLE_STATUSES: Final = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)
_UNSUPPORTED_STATUSES: Final = frozenset({HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})

_used_in: set[int] = set()


class S3Blobs:
    """The blobs of a bucket, below ``prefix``. Other settings come from the environment (``AWS_*``).

    ``provider`` returns credentials on demand, instead of a fixed pair of keys.
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        endpoint: str | None = None,
        region: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        session_token: str | None = None,
        provider: Callable[[], Any] | None = None,
        timeout_seconds: float = 120,
    ) -> None:
        self._bucket = bucket
        self._prefix = "".join(f"{part}/" for part in check_folder(prefix))
        given = {
            "endpoint": endpoint,
            "region": region,
            "access_key_id": access_key_id,
            "secret_access_key": secret_access_key,
            "session_token": session_token,
            "credential_provider": provider,
        }
        timeout = timedelta(seconds=timeout_seconds)
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        settings["client_options"] = {
            "timeout": timeout,
            "connect_timeout": min(timeout, timedelta(seconds=10)),
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
        }
        try:
            self._store = S3Store(bucket, **settings, retry_config={"max_retries": 0})
            self._uploads = S3Store(
                bucket, **settings, retry_config={"max_retries": _PART_TRIES, "retry_timeout": timeout}
            )
        except (obstore_errors.BaseError, ValueError) as error:
            raise InvalidInput(f"cannot open {self.url}: {_first_line(error)}") from error
        self._conditional: bool | None = None
        self._has_ranges = False
        self._probing = Lock()

    @property
    def url(self) -> str:
        """Bucket and prefix."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def conditional(self) -> bool:
        """Whether the bucket supports conditional writes; the first call tests it."""
        with self._probing:
            if self._conditional is None:
                self._conditional = self.probe()
        return self._conditional

    def put(self, name: str, data: BlobData, *, if_absent: bool = False) -> None:
        """See `treering.core.storage.Blobs`."""
        key, size = self._key(name), size_of(data)
        if if_absent:
            self.put_if(name, whole_of(data), expect=None)
        elif size <= SINGLE_REQUEST_BYTES:
            with self._translated(name, writing=True):
                self._store.put(key, whole_of(data), use_multipart=False)
        else:
            with self._translated(name, writing=True):
                part = max(PART_BYTES, -(-size // _MAX_PARTS))
                self._uploads.put(
                    key, data, use_multipart=True, chunk_size=part, max_concurrency=_PARTS_AT_ONCE
                )
        self._check_ranges(name, size)

    def put_if(self, name: str, data: bytes, *, expect: ETag | None) -> ETag:
        """See `treering.core.storage.Blobs`."""
        key = self._key(name)
        if not self.conditional:
            raise Unsupported(
                f"{self.url}: this server ignores conditions of writes, so blob {name!r} was not "
                "written; use a server that supports If-Match and If-None-Match"
            )
        mode: PutMode = "create" if expect is None else {"e_tag": expect}
        with self._translated(name, writing=True, conditional=True):
            return _etag(self._store.put(key, data, mode=mode)["e_tag"])

    def get(self, name: str, *, start: int = 0, stop: int | None = None) -> bytes:
        """See `treering.core.storage.Blobs`."""
        check_range(name, start, stop)
        key = self._key(name)
        options: GetOptions = {}
        if stop is not None and stop <= start:
            return self._empty_range(name)
        if stop is not None:
            options["range"] = (start, stop)
        elif start:
            options["range"] = {"offset": start}
        with self._translated(name):
            try:
                return self._store.get(key, options=options).bytes().to_bytes()
            except obstore_errors.GenericError as error:
                if _status(error) != _RANGE_NOT_SATISFIABLE:
                    raise
        return self._empty_range(name)

    def read(self, name: str) -> VersionedBlob | None:
        """See `treering.core.storage.Blobs`."""
        try:
            with self._translated(name):
                found = self._store.get(self._key(name))
                return VersionedBlob(data=found.bytes().to_bytes(), etag=_etag(found.meta["e_tag"]))
        except NotFound:
            return None

    def stat(self, name: str) -> BlobInfo | None:
        """See `treering.core.storage.Blobs`."""
        try:
            with self._translated(name):
                return self._info(self._store.head(self._key(name)))
        except NotFound:
            return None

    def list(self, folder: str = "", *, after: str | None = None, limit: int = 1000) -> list[BlobInfo]:
        """See `treering.core.storage.Blobs`. Across folders, names have the order of the server."""
        below = self._prefix + "".join(f"{part}/" for part in check_folder(folder))
        offset = None if after is None else self._key(after)
        page: list[BlobInfo] = []
        with self._translated(folder):
            # The types of another overload come from Arrow, which is not installed or needed.
            pages = self._store.list(below or None, offset=offset, chunk_size=_PAGE)  # pyright: ignore[reportUnknownMemberType]
            for found in pages:
                infos = (self._info(meta) for meta in found)
                page += (info for info in infos if not info.name.startswith(f"{RESERVED}/"))
                if len(page) >= limit:
                    break
        return page[:limit]

    def delete(self, names: Iterable[str]) -> None:
        """See `treering.core.storage.Blobs`."""
        keys = [self._key(name) for name in names]
        if keys:
            with self._translated("", writing=True), contextlib.suppress(FileNotFoundError):
                self._store.delete(keys)

    def probe(self) -> bool:
        """Test whether the bucket supports conditional writes, with a temporary object."""
        name = f"{RESERVED}/probe-{secrets.token_hex(8)}"
        key = self._prefix + name
        try:
            with self._translated(name, writing=True, conditional=True):
                etag = self._store.put(key, b"1", mode="create")["e_tag"]
            supported = (
                self._rejects(key, mode="create")
                and self._rejects(key, mode={"e_tag": '"00000000000000000000000000000000"'})
                and not self._rejects(key, mode={"e_tag": etag})
            )
        except Unsupported:
            supported = False
        with self._translated(name, writing=True):
            self._store.delete([key])
        return supported

    def _check_ranges(self, name: str, size: int) -> None:
        """After the first write, refuse a server that ignores ranges: nothing could be read from it."""
        if self._has_ranges or size < len(_RANGE):
            return
        try:
            piece = self.get(name, start=_RANGE[0], stop=_RANGE[-1])
        except Unsupported:
            piece = b""
        if len(piece) != _RANGE[-1] - _RANGE[0]:
            raise Unsupported(
                f"{self.url}: this server ignores the Range header of requests, so what is stored there "
                "could not be read; use a server that supports it"
            )
        self._has_ranges = True

    def _rejects(self, key: str, *, mode: PutMode) -> bool:
        try:
            with self._translated("", writing=True, conditional=True):
                self._store.put(key, b"2", mode=mode)
        except Conflict:
            return True
        return False

    def _empty_range(self, name: str) -> bytes:
        if self.stat(name) is None:
            raise NotFound(f"{self.url} has no blob {name!r}")
        return b""

    def _key(self, name: str) -> str:
        check_name(name)
        return self._prefix + name

    def _info(self, meta: ObjectMeta) -> BlobInfo:
        return BlobInfo(
            name=meta["path"].removeprefix(self._prefix),
            size=meta["size"],
            modified_us=from_datetime(meta["last_modified"]),
        )

    @contextlib.contextmanager
    def _translated(self, name: str, *, writing: bool = False, conditional: bool = False) -> Generator[None]:
        _refuse_after_fork(self.url)
        try:
            yield
        except (obstore_errors.BaseError, FileNotFoundError, ValueError) as error:
            where = f"{self.url}/{name}" if name else self.url
            raise _translate(error, where, writing=writing, conditional=conditional) from error


def _translate(error: Exception, where: str, *, writing: bool, conditional: bool) -> TreeringError:
    status, code = _status(error), _code(error)
    reason = f"{status or ''} {code or ''}".strip() or _first_line(error)
    if isinstance(error, FileNotFoundError) or status == HTTPStatus.NOT_FOUND:
        return _missing(code, where, writing=writing, conditional=conditional)
    if isinstance(error, obstore_errors.AlreadyExistsError | obstore_errors.PreconditionError):
        if conditional:
            return Conflict(f"{where} has changed; read it again")
        return Unreachable(f"{where}: another write is in progress ({reason}); try again")
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        if writing and code in {"AccessDenied", None}:
            return ReadOnly(
                f"{where}: these credentials have no write access ({reason}); check the bucket's policy"
            )
        return InvalidInput(
            f"{where}: the server rejects these credentials ({reason}); check the keys and the region"
        )
    if status == HTTPStatus.INSUFFICIENT_STORAGE:
        return StoreFull(f"{where}: the server has no space left ({reason}); free some and try again")
    if (
        isinstance(error, obstore_errors.NotSupportedError)
        or status in _UNSUPPORTED_STATUSES
        or _NOT_PARTIAL in str(error)
    ):
        return Unsupported(f"{where}: this server does not support the request ({reason})")
    if isinstance(error, ValueError) or _is_final(error):
        return InvalidInput(
            f"{where}: the server rejects the request ({reason}); check bucket, region and endpoint"
        )
    return Unreachable(f"{where}: invalid response ({reason}); check the endpoint and try again")


def _missing(code: str | None, where: str, *, writing: bool, conditional: bool) -> TreeringError:
    if conditional and code != "NoSuchBucket":
        return Conflict(f"{where} no longer exists; read it again")
    if writing or code == "NoSuchBucket":
        return InvalidInput(f"{where}: bucket not found; create it, or correct its name")
    return NotFound(f"{where} does not exist")


def _is_final(error: Exception) -> bool:
    if _BARE_REDIRECT in str(error):  # the response of AWS for a bucket in another region
        return True
    status = _status(error)
    if status is None or status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _RETRYABLE_STATUSES:
        return False
    return _code(error) not in _RETRYABLE_CODES


def _status(error: Exception) -> int | None:
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _code(error: Exception) -> str | None:
    found = _CODE.search(str(error))
    return found[1] if found else None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def _etag(e_tag: str | None) -> ETag:
    if not e_tag:
        raise Unsupported("this server returns no ETag, so conditional writes are impossible")
    return ETag(e_tag)


def _refuse_after_fork(url: str) -> None:
    if os.getpid() in _used_in:
        return
    if _used_in:
        raise Unsupported(
            f"{url}: S3 was in use when this process was forked, which its client does not survive; "
            "start workers with multiprocessing's 'spawn' or 'forkserver', or use S3 in the children only"
        )
    _used_in.add(os.getpid())

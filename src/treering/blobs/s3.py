"""Blobs as objects of a bucket, behind anything that speaks the S3 protocol.

Requests go through obstore's synchronous calls, from whichever thread asks. Small blobs are one request;
past `WHOLE` bytes they go up in parts, each tried again by itself. A conditional write is always a single
request that is never repeated here, because an answer that was lost leaves open whether it was the one
that succeeded; `treering.blobs.retry` knows how to find out.

Some gateways accept the headers of a conditional write, ignore them, answer 200 and lose updates. So the
first use that depends on conditions tries them on an object of its own. **Invariant:** no conditional write
is sent to a bucket that was not seen to honour one.

The client's threads do not survive a fork: in a child its calls would wait for ever, and could take the
parent's answers. A child whose parent has used S3 is therefore refused with `Unsupported`.
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
    from obstore import exceptions as refusals
    from obstore.store import S3Store
except ModuleNotFoundError as error:
    raise MissingExtra("storage in an S3 bucket", "s3") from error

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode

WHOLE: Final = 32 << 20
"""Blobs of up to this many bytes are sent in one request: a pack is, and parts would be five."""

PART: Final = 8 << 20
"""Larger ones are sent in parts of at least this many bytes."""

_MAX_PARTS: Final = 9_000  # S3 allows 10,000
_PARTS_AT_ONCE: Final = 4
_PART_TRIES: Final = 4
_PAGE: Final = 1000

# obstore tells a few refusals apart by class; for the rest, the text of its pinned version is all there is.
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_NOT_PARTIAL: Final = "NotPartial"
_BARE_REDIRECT: Final = "BareRedirect"
_PAST_THE_END: Final = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
_TRY_AGAIN_CODES: Final = frozenset({"RequestTimeout", "SlowDown", "InternalError"})
_TRY_AGAIN_STATUSES: Final = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)
_NOT_OFFERED: Final = frozenset({HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})

_used_in: set[int] = set()


class S3Blobs:
    """The blobs of one bucket, below ``prefix``. What is not given comes from the environment (``AWS_*``).

    ``provider`` gives keys when they are needed, instead of a pair that is passed.
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
        except (refusals.BaseError, ValueError) as error:
            raise InvalidInput(f"{self.url} cannot be opened: {_first_line(error)}") from error
        self._conditional: bool | None = None
        self._probing = Lock()

    @property
    def url(self) -> str:
        """Bucket and prefix."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def conditional(self) -> bool:
        """Whether the bucket was seen to honour conditions; the first look tries it out."""
        with self._probing:
            if self._conditional is None:
                self._conditional = self.probe()
        return self._conditional

    def put(self, name: str, data: BlobData, *, if_absent: bool = False) -> None:
        """See `treering.core.storage.Blobs`."""
        key, size = self._key(name), size_of(data)
        if if_absent:
            self.put_if(name, whole_of(data), expect=None)
        elif size <= WHOLE:
            with self._translated(name, writing=True):
                self._store.put(key, whole_of(data), use_multipart=False)
        else:
            with self._translated(name, writing=True):
                part = max(PART, -(-size // _MAX_PARTS))
                self._uploads.put(
                    key, data, use_multipart=True, chunk_size=part, max_concurrency=_PARTS_AT_ONCE
                )

    def put_if(self, name: str, data: bytes, *, expect: ETag | None) -> ETag:
        """See `treering.core.storage.Blobs`."""
        key = self._key(name)
        if not self.conditional:
            raise Unsupported(
                f"{self.url}: this server accepts conditional writes and ignores the condition, so blob "
                f"{name!r} was not written; use a bucket that honours If-Match and If-None-Match"
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
            return self._nothing_of(name)
        if stop is not None:
            options["range"] = (start, stop)
        elif start:
            options["range"] = {"offset": start}
        with self._translated(name):
            try:
                return self._store.get(key, options=options).bytes().to_bytes()
            except refusals.GenericError as error:
                if _status(error) != _PAST_THE_END:
                    raise
        return self._nothing_of(name)

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
        """See `treering.core.storage.Blobs`. Across folders, names come in the order of the server."""
        below = self._prefix + "".join(f"{part}/" for part in check_folder(folder))
        offset = None if after is None else self._key(after)
        page: list[BlobInfo] = []
        with self._translated(folder):
            # Arrow's types, which another overload names, are not installed and not needed.
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
        """Try out whether the bucket honours conditions, on an object that is removed again."""
        name = f"{RESERVED}/probe-{secrets.token_hex(8)}"
        key = self._prefix + name
        try:
            with self._translated(name, writing=True, conditional=True):
                etag = self._store.put(key, b"1", mode="create")["e_tag"]
            honoured = (
                self._refuses(key, mode="create")
                and self._refuses(key, mode={"e_tag": '"00000000000000000000000000000000"'})
                and not self._refuses(key, mode={"e_tag": etag})
            )
        except Unsupported:
            honoured = False
        with self._translated(name, writing=True):
            self._store.delete([key])
        return honoured

    def _refuses(self, key: str, *, mode: PutMode) -> bool:
        try:
            with self._translated("", writing=True, conditional=True):
                self._store.put(key, b"2", mode=mode)
        except Conflict:
            return True
        return False

    def _nothing_of(self, name: str) -> bytes:
        if self.stat(name) is None:
            raise NotFound(f"{self.url} holds no blob {name!r}")
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
        except (refusals.BaseError, FileNotFoundError, ValueError) as error:
            where = f"{self.url}/{name}" if name else self.url
            raise _meaning(error, where, writing=writing, conditional=conditional) from error


def _meaning(error: Exception, where: str, *, writing: bool, conditional: bool) -> TreeringError:
    status, code = _status(error), _code(error)
    said = f"{status or ''} {code or ''}".strip() or _first_line(error)
    if isinstance(error, FileNotFoundError) or status == HTTPStatus.NOT_FOUND:
        return _missing(code, where, writing=writing, conditional=conditional)
    if isinstance(error, refusals.AlreadyExistsError | refusals.PreconditionError):
        if conditional:
            return Conflict(f"{where} is not as expected; read it again")
        return Unreachable(f"{where}: another write is under way ({said}); try again")
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        if writing and code in {"AccessDenied", None}:
            return ReadOnly(
                f"{where}: these credentials may not write here ({said}); check the bucket's policy"
            )
        return InvalidInput(f"{where}: the server refuses these credentials ({said}); check keys and region")
    if status == HTTPStatus.INSUFFICIENT_STORAGE:
        return StoreFull(f"{where}: the server has no space left ({said}); free some and try again")
    if isinstance(error, refusals.NotSupportedError) or status in _NOT_OFFERED or _NOT_PARTIAL in str(error):
        return Unsupported(f"{where}: this server does not offer what is needed here ({said})")
    if isinstance(error, ValueError) or _is_final(error):
        return InvalidInput(
            f"{where}: the server refuses the request ({said}); check bucket, region and endpoint"
        )
    return Unreachable(f"{where}: no proper answer ({said}); check the endpoint and try again")


def _missing(code: str | None, where: str, *, writing: bool, conditional: bool) -> TreeringError:
    if conditional and code != "NoSuchBucket":
        return Conflict(f"{where} is gone; read it again")
    if writing or code == "NoSuchBucket":
        return InvalidInput(f"{where}: there is no such bucket; create it first, or correct its name")
    return NotFound(f"{where} does not exist")


def _is_final(error: Exception) -> bool:
    if _BARE_REDIRECT in str(error):  # how AWS answers about a bucket of another region
        return True
    status = _status(error)
    if status is None or status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TRY_AGAIN_STATUSES:
        return False
    return _code(error) not in _TRY_AGAIN_CODES


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
        raise Unsupported("this server gives no ETag for what it stores, so nothing can be compared")
    return ETag(e_tag)


def _refuse_after_fork(url: str) -> None:
    if os.getpid() in _used_in:
        return
    if _used_in:
        raise Unsupported(
            f"{url}: S3 was in use when this process was forked, and its client does not survive that; "
            "start workers with multiprocessing's 'spawn' or 'forkserver', or use S3 in the children only"
        )
    _used_in.add(os.getpid())

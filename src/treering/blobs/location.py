"""Where blobs live: one text, read in one place.

===============================  ==================================================================
``s3://bucket/prefix``           a bucket; the server is ``endpoint=``, else what ``AWS_*`` says
``https://server/bucket/prefix`` a bucket of that server (R2, MinIO, ...), also with ``http://``
``./folder``, ``file:///folder`` a folder of this machine
===============================  ==================================================================

Keys never stand in a URL: they are passed by keyword or come from the environment, so that a location can
be stored and shown. **Invariant:** a text that is none of these forms is refused, never taken for a folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import msgspec

from treering.blobs.credentials import Keys, find_keys, find_region
from treering.blobs.folder import FolderBlobs
from treering.blobs.names import check_folder
from treering.blobs.retry import RetryingBlobs
from treering.core.storage import Blobs
from treering.errors import InvalidInput

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_AWS_HOST: Final = re.compile(r"(?P<bucket>.+\.)?s3[.-](?:(?P<region>[a-z0-9-]+)\.)?amazonaws\.com")


class FolderLocation(msgspec.Struct, frozen=True):
    """A folder of this machine."""

    path: Path


class BucketLocation(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket, perhaps of a server of one's own."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None


def parse_location(url: str | Path) -> FolderLocation | BucketLocation:
    """Read a location; anything else raises `InvalidInput` and names the accepted forms."""
    if isinstance(url, Path):
        return _from_path(url)
    scheme = _SCHEME.match(url)
    match scheme[1].lower() if scheme else "":
        case "s3":
            return _from_s3(url)
        case "https" | "http":
            return _from_https(url)
        case "file":
            return _from_file(url)
        case "" if url and "\0" not in url:
            return _from_path(Path(url))
        case _:
            raise _refusal(url)


def open_blobs(
    url: str | Path,
    *,
    bucket: str | None = None,
    prefix: str | None = None,
    endpoint: str | None = None,
    region: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    deadline_seconds: float = 60,
) -> Blobs:
    """The blobs at a location. What is passed here goes before what the URL or the environment says.

    Keys that are not passed are found as `treering.blobs.credentials` lists it. A bucket that cannot be
    reached is tried again until ``deadline_seconds`` are over.
    """
    place = parse_location(url)
    if isinstance(place, FolderLocation):
        if any((bucket, prefix, endpoint, region, access_key_id, secret_access_key, session_token)):
            raise InvalidInput(
                f"{place.path} is a folder, which needs no bucket, endpoint, region or keys; leave them out"
            )
        return FolderBlobs(place.path)
    given = _pair(access_key_id, secret_access_key, session_token)
    place = _overridden(place, bucket=bucket, prefix=prefix)
    from treering.blobs.s3 import S3Blobs

    found = find_keys(given)
    keys = found.keys
    blobs = S3Blobs(
        place.bucket,
        prefix=place.prefix,
        endpoint=endpoint or place.endpoint,
        region=find_region(region or place.region),
        access_key_id=None if keys is None else keys.access_key_id,
        secret_access_key=None if keys is None else keys.secret_access_key,
        session_token=None if keys is None else keys.session_token,
        provider=found.provider,
    )
    return RetryingBlobs(blobs, deadline_seconds=deadline_seconds)


def _pair(access_key_id: str | None, secret_access_key: str | None, session_token: str | None) -> Keys | None:
    if access_key_id is None and secret_access_key is None:
        return None
    if access_key_id is None or secret_access_key is None:
        raise InvalidInput("access_key_id and secret_access_key belong together; pass both or neither")
    return Keys(access_key_id=access_key_id, secret_access_key=secret_access_key, session_token=session_token)


def _overridden(place: BucketLocation, *, bucket: str | None, prefix: str | None) -> BucketLocation:
    if bucket is None and prefix is None:
        return place
    name = place.bucket if bucket is None else bucket
    return _bucket(
        f"s3://{name}",
        name,
        place.prefix if prefix is None else prefix,
        endpoint=place.endpoint,
        region=place.region,
    )


def _from_path(path: Path) -> FolderLocation:
    try:
        return FolderLocation(path.expanduser())
    except RuntimeError as error:
        raise InvalidInput(
            f"{str(path)!r} begins with a user who is not known here; write ./~name"
        ) from error


def _from_s3(url: str) -> BucketLocation:
    scheme, slashes, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not slashes or len(scheme) != len("s3"):
        raise _refusal(url)
    return _bucket(url, bucket, prefix)


def _from_https(url: str) -> BucketLocation:
    try:
        parts = urlsplit(url)
        server = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname
    except ValueError as error:
        raise _refusal(url) from error
    if not server or parts.query or parts.fragment or "@" in parts.netloc:
        raise _refusal(url)
    bucket, _, prefix = unquote(parts.path).removeprefix("/").partition("/")
    aws = _AWS_HOST.fullmatch(server)
    if aws is None:
        return _bucket(url, bucket, prefix, endpoint=f"{parts.scheme}://{server}")
    if aws["bucket"]:
        raise InvalidInput(f"{_shown(url)} has its bucket in the host name; write s3://bucket/prefix instead")
    return _bucket(url, bucket, prefix, region=aws["region"])


def _from_file(url: str) -> FolderLocation:
    parts = urlsplit(url)
    if (
        parts.netloc not in {"", "localhost"}
        or not parts.path.startswith("/")
        or parts.query
        or parts.fragment
    ):
        raise _refusal(url)
    return FolderLocation(Path(unquote(parts.path)))


def _bucket(
    url: str, bucket: str, prefix: str, *, endpoint: str | None = None, region: str | None = None
) -> BucketLocation:
    if _BUCKET.fullmatch(bucket) is None:
        raise _refusal(url)
    parts = check_folder(prefix)
    return BucketLocation(bucket=bucket, prefix="/".join(parts), endpoint=endpoint, region=region)


def _refusal(url: str) -> InvalidInput:
    return InvalidInput(
        f"{_shown(url)} is not a place for blobs; accepted are a folder (./folder), file:///folder, "
        "s3://bucket/prefix and https://server/bucket/prefix; keys are passed by keyword or environment"
    )


def _shown(url: str) -> str:
    # Whatever stands before an @ may be a secret.
    return repr(re.sub(r"//[^/]*@", "//***@", url)[:120])

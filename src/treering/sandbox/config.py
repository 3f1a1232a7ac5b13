"""Where a sandbox keeps its checkpoints.

=============================================  ==========================================================
``StorageConfig(url="s3://bucket/prefix")``    a bucket of yours, and nothing besides it
``StorageConfig(url="https://server/bucket")`` the same on R2, MinIO or any other server
``StorageConfig(bucket="b", endpoint=...)``    the same without a URL; explicit parts go before the URL's
``StorageConfig(url="./folder")``              a folder of this machine
``StorageConfig()``                            a treering server: ``TREERING_URL``, ``TREERING_API_KEY``
=============================================  ==========================================================

Keys come from ``credentials``, else from where `treering.blobs.location` finds them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from treering.blobs.location import AccessKeys
from treering.core.storage import Blobs
from treering.errors import InvalidInput

GATEWAY_URL: Final = "TREERING_URL"
GATEWAY_KEY: Final = "TREERING_API_KEY"

_SPELLINGS: Final = {
    "accessKeyId": "access_key_id",
    "secretAccessKey": "secret_access_key",
    "sessionToken": "session_token",
}


class _Url(msgspec.Struct, frozen=True):
    url: str | Path | None = None


class StorageConfig(_Url, frozen=True, kw_only=True):
    """A place for checkpoints; see the module. Nothing is opened or checked before it is used."""

    bucket: str | None = None
    prefix: str | None = None
    region: str | None = None
    endpoint: str | None = None
    credentials: AccessKeys | Mapping[str, str] | None = None
    api_key: str | None = None

    @property
    def is_gateway(self) -> bool:
        """Whether a treering server keeps the checkpoints."""
        return self.url is None and self.bucket is None

    def __repr__(self) -> str:
        names = ("url", "bucket", "prefix", "region", "endpoint")
        told = [f"{name}={value!r}" for name in names if (value := getattr(self, name)) is not None]
        return f"StorageConfig({', '.join(told)})"


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """A treering server and the key that opens it."""

    url: str
    api_key: str

    def __repr__(self) -> str:
        return f"Gateway(url={self.url!r}, api_key='***')"


def gateway_of(config: StorageConfig, *, environment: Mapping[str, str] = os.environ) -> Gateway:
    """The server that a config without URL means; `InvalidInput` names what is missing."""
    stray = [
        name for name in ("prefix", "region", "endpoint", "credentials") if getattr(config, name) is not None
    ]
    if stray:
        raise InvalidInput(f"StorageConfig has {stray[0]}= but neither url= nor bucket=; say which bucket")
    url = environment.get(GATEWAY_URL)
    if not url:
        raise InvalidInput(
            f"StorageConfig() without a URL means a treering server, and {GATEWAY_URL} is not set; "
            "set it, or pass url='s3://bucket/prefix'"
        )
    if not url.startswith(("https://", "http://")):
        raise InvalidInput(
            f"StorageConfig() without a URL means a treering server, and {GATEWAY_URL} is {url[:80]!r}, "
            "which is none; set it to https://..., or pass url="
        )
    key = config.api_key or environment.get(GATEWAY_KEY)
    if not key:
        raise InvalidInput(f"the treering server at {url} needs a key; set {GATEWAY_KEY}, or pass api_key=")
    return Gateway(url=url, api_key=key)


def open_bucket(config: StorageConfig) -> Blobs:
    """The bucket or folder of a config that has one."""
    from treering.blobs.location import open_blobs

    keys = _keys(config.credentials)
    return open_blobs(
        config.url if config.url is not None else f"s3://{config.bucket}",
        bucket=config.bucket,
        prefix=None if config.prefix is None else config.prefix.strip("/"),
        endpoint=config.endpoint,
        region=config.region,
        access_key_id=None if keys is None else keys.access_key_id,
        secret_access_key=None if keys is None else keys.secret_access_key,
        session_token=None if keys is None else keys.session_token,
    )


def _keys(given: AccessKeys | Mapping[str, str] | None) -> AccessKeys | None:
    if given is None or isinstance(given, AccessKeys):
        return given
    spelled: dict[str, Any] = {_SPELLINGS.get(name, name): value for name, value in given.items()}
    try:
        return msgspec.convert(spelled, AccessKeys)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"credentials= needs access_key_id and secret_access_key ({error}); leave it out to use the "
            "environment or a profile"
        ) from error

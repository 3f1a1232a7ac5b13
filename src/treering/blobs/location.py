"""Locations of blob stores, and the credentials for them.

===============================  ==================================================================
``s3://bucket/prefix``           a bucket; on the server ``endpoint=``, or as set by ``AWS_*``
``https://server/bucket/prefix`` a bucket on that server (R2, MinIO, ...), or ``http://``
``./folder``, ``file:///folder`` a local folder
===============================  ==================================================================

Keys are never part of a URL, so that a location can be stored and shown. **Invariant:** text in any other
form is rejected and never taken for a folder.

Credentials come from the first of these sources that exists:

1. keys passed by the caller
2. the environment: ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY`` (``AWS_SESSION_TOKEN``)
3. the profile ``AWS_PROFILE``, or ``default``, in ``~/.aws``: keys, SSO, roles, processes; read by boto3
4. a web identity: ``AWS_WEB_IDENTITY_TOKEN_FILE`` and ``AWS_ROLE_ARN``
5. the machine: credentials of a container, metadata of an instance

obstore handles the last two itself and renews them before they expire. **Invariant:** a profile chosen by
name is used or rejected; no other source silently replaces it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from treering.blobs.blob import check_folder
from treering.blobs.folder import FolderBlobs
from treering.blobs.retry import RetryingBlobs
from treering.core.storage import Blobs
from treering.errors import InvalidInput, MissingExtra

CredentialSource = Literal["given", "environment", "profile", "web identity", "machine"]

DEFAULT_REGION: Final = "us-east-1"
_DEFAULT_PROFILE: Final = "default"
_CREDENTIAL_OPTIONS: Final = frozenset(
    {
        "aws_access_key_id",
        "credential_process",
        "credential_source",
        "login_session",
        "role_arn",
        "sso_session",
        "sso_start_url",
        "source_profile",
        "web_identity_token_file",
    }
)


class AccessKeys(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of keys. Its repr does not show the secret."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return f"AccessKeys(access_key_id={self.access_key_id!r}, secret_access_key='***')"


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """The source of credentials, with a pair of keys or a function that returns one.

    With neither, obstore obtains the credentials itself.
    """

    source: CredentialSource
    keys: AccessKeys | None = None
    provider: Callable[[], Any] | None = None
    profile: str | None = None


def find_credentials(
    given: AccessKeys | None = None, *, environment: Mapping[str, str] = os.environ, home: Path | None = None
) -> Credentials:
    """Return the first source that exists; raise `InvalidInput` if one is incomplete."""
    if given is not None:
        return Credentials(source="given", keys=given)
    if (pair := _from_environment(environment)) is not None:
        return Credentials(source="environment", keys=pair)
    profile = environment.get("AWS_PROFILE") or None
    if _has_profile(profile or _DEFAULT_PROFILE, environment, home or _home(environment)):
        name = profile or _DEFAULT_PROFILE
        return Credentials(source="profile", provider=_from_profile(name), profile=name)
    if profile is not None:
        raise InvalidInput(
            f"AWS_PROFILE names the profile {profile!r}, which ~/.aws does not have (or which holds no "
            "credentials); run aws configure --profile, or unset AWS_PROFILE"
        )
    if environment.get("AWS_WEB_IDENTITY_TOKEN_FILE") and environment.get("AWS_ROLE_ARN"):
        return Credentials(source="web identity")
    return Credentials(source="machine")


def find_region(given: str | None, *, environment: Mapping[str, str] = os.environ) -> str:
    """Return the given region, or ``AWS_REGION``, ``AWS_DEFAULT_REGION``, or ``us-east-1``."""
    return given or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or DEFAULT_REGION


def _from_environment(environment: Mapping[str, str]) -> AccessKeys | None:
    access, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not access and not secret:
        return None
    if not access or not secret:
        missing = "AWS_SECRET_ACCESS_KEY" if access else "AWS_ACCESS_KEY_ID"
        raise InvalidInput(f"{missing} is not set; set both keys in the environment, or none")
    return AccessKeys(
        access_key_id=access,
        secret_access_key=secret,
        session_token=environment.get("AWS_SESSION_TOKEN") or None,
    )


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - may lack a home


def _has_profile(name: str, environment: Mapping[str, str], home: Path) -> bool:
    """Whether ``~/.aws`` has a profile with credentials; one with only a region does not count."""
    places = (
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
        ("AWS_CONFIG_FILE", "config", name if name == _DEFAULT_PROFILE else f"profile {name}"),
    )
    for variable, file, section in places:
        path = Path(environment.get(variable) or home / ".aws" / file).expanduser()
        parser = ConfigParser(interpolation=None, strict=False)
        try:
            parser.read(path, encoding="utf-8")
        except (ConfigError, UnicodeDecodeError, OSError) as error:
            raise InvalidInput(f"cannot read {path} ({str(error).partition(chr(10))[0]})") from error
        if parser.has_section(section) and _CREDENTIAL_OPTIONS & set(parser.options(section)):
            return True
    return False


def _from_profile(name: str) -> Callable[[], Any]:
    try:
        import boto3  # pyright: ignore[reportMissingTypeStubs]
        from botocore.exceptions import BotoCoreError  # pyright: ignore[reportMissingTypeStubs]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ModuleNotFoundError as error:
        raise MissingExtra(f"the profile {name!r} of ~/.aws", "aws") from error
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=name))
    except (BotoCoreError, ValueError) as error:
        raise InvalidInput(
            f"the profile {name!r} of ~/.aws gives no credentials ({error}); "
            "run aws sso login or aws configure"
        ) from error


_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_AWS_HOST: Final = re.compile(r"(?P<bucket>.+\.)?s3[.-](?:(?P<region>[a-z0-9-]+)\.)?amazonaws\.com")


class FolderLocation(msgspec.Struct, frozen=True):
    """A local folder."""

    path: Path


class BucketLocation(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket, on AWS or on the server ``endpoint``."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None


def parse_location(url: str | Path) -> FolderLocation | BucketLocation:
    """Parse a location; raise `InvalidInput` with the accepted forms for anything else."""
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
    """Open the blobs at a location. Arguments take precedence over the URL and the environment.

    Credentials that are not passed are found as described in `treering.blobs.location`. Requests to a bucket
    that cannot be reached are retried for ``deadline_seconds``.
    """
    location = parse_location(url)
    if isinstance(location, FolderLocation):
        if any((bucket, prefix, endpoint, region, access_key_id, secret_access_key, session_token)):
            raise InvalidInput(
                f"{location.path} is a folder, which takes no bucket, endpoint, region or keys; omit them"
            )
        return FolderBlobs(location.path)
    given = _access_keys(access_key_id, secret_access_key, session_token)
    location = _overridden(location, bucket=bucket, prefix=prefix)
    from treering.blobs.s3 import S3Blobs

    credentials = find_credentials(given)
    keys = credentials.keys
    blobs = S3Blobs(
        location.bucket,
        prefix=location.prefix,
        endpoint=endpoint or location.endpoint,
        region=find_region(region or location.region),
        access_key_id=None if keys is None else keys.access_key_id,
        secret_access_key=None if keys is None else keys.secret_access_key,
        session_token=None if keys is None else keys.session_token,
        provider=credentials.provider,
    )
    return RetryingBlobs(blobs, deadline_seconds=deadline_seconds)


def _access_keys(
    access_key_id: str | None, secret_access_key: str | None, session_token: str | None
) -> AccessKeys | None:
    if access_key_id is None and secret_access_key is None:
        return None
    if access_key_id is None or secret_access_key is None:
        raise InvalidInput("pass both access_key_id and secret_access_key, or neither")
    return AccessKeys(
        access_key_id=access_key_id, secret_access_key=secret_access_key, session_token=session_token
    )


def _overridden(location: BucketLocation, *, bucket: str | None, prefix: str | None) -> BucketLocation:
    if bucket is None and prefix is None:
        return location
    name = location.bucket if bucket is None else bucket
    return _bucket(
        f"s3://{name}",
        name,
        location.prefix if prefix is None else prefix,
        endpoint=location.endpoint,
        region=location.region,
    )


def _from_path(path: Path) -> FolderLocation:
    try:
        return FolderLocation(path.expanduser())
    except RuntimeError as error:
        raise InvalidInput(f"{str(path)!r} starts with an unknown user; write ./~name") from error


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
        raise InvalidInput(f"{_shown(url)} has the bucket in its host name; write s3://bucket/prefix instead")
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
        f"{_shown(url)} is not a location for blobs; use a folder (./folder), file:///folder, "
        "s3://bucket/prefix or https://server/bucket/prefix, and pass keys by keyword or environment"
    )


def _shown(url: str) -> str:
    # Anything before an @ may be a secret.
    return repr(re.sub(r"//[^/]*@", "//***@", url)[:120])

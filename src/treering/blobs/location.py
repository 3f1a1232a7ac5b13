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

# -----------------------------------------------------------------------------------------------------------
# Whose keys open a bucket: the first of these that there is.
#
# 1. keys that the caller passes
# 2. the environment: ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY`` (``AWS_SESSION_TOKEN``)
# 3. the profile ``AWS_PROFILE``, or ``default``, of ``~/.aws``: keys, SSO, roles, processes; read by boto3
# 4. a web identity: ``AWS_WEB_IDENTITY_TOKEN_FILE`` and ``AWS_ROLE_ARN``
# 5. the machine's own: a container's credentials, an instance's metadata
#
# The last two are obstore's own affair; it asks again before they expire. **Invariant:** a profile that was
# asked for by name is used or refused; nothing else quietly stands in for it.


Source = Literal["given", "environment", "profile", "web identity", "machine"]

DEFAULT_REGION: Final = "us-east-1"
_DEFAULT_PROFILE: Final = "default"
_SIGNS_IN: Final = frozenset(
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


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of keys. Its text never shows the secret."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None = None

    def __repr__(self) -> str:
        return f"Keys(access_key_id={self.access_key_id!r}, secret_access_key='***')"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Where keys come from: the pair itself, a function that gives one when asked, or neither.

    With neither, obstore signs in by itself.
    """

    source: Source
    keys: Keys | None = None
    provider: Callable[[], Any] | None = None
    profile: str | None = None


def find_keys(
    given: Keys | None = None, *, environment: Mapping[str, str] = os.environ, home: Path | None = None
) -> Found:
    """The first source that there is; `InvalidInput` when one is there by half."""
    if given is not None:
        return Found(source="given", keys=given)
    if (pair := _from_environment(environment)) is not None:
        return Found(source="environment", keys=pair)
    profile = environment.get("AWS_PROFILE") or None
    if _has_profile(profile or _DEFAULT_PROFILE, environment, home or _home(environment)):
        name = profile or _DEFAULT_PROFILE
        return Found(source="profile", provider=_from_profile(name), profile=name)
    if profile is not None:
        raise InvalidInput(
            f"AWS_PROFILE names the profile {profile!r}, which ~/.aws does not have (or which holds no "
            "credentials); run aws configure --profile, or unset AWS_PROFILE"
        )
    if environment.get("AWS_WEB_IDENTITY_TOKEN_FILE") and environment.get("AWS_ROLE_ARN"):
        return Found(source="web identity")
    return Found(source="machine")


def find_region(given: str | None, *, environment: Mapping[str, str] = os.environ) -> str:
    """The region: as given, else ``AWS_REGION``, ``AWS_DEFAULT_REGION``, or ``us-east-1``."""
    return given or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or DEFAULT_REGION


def _from_environment(environment: Mapping[str, str]) -> Keys | None:
    access, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not access and not secret:
        return None
    if not access or not secret:
        missing = "AWS_SECRET_ACCESS_KEY" if access else "AWS_ACCESS_KEY_ID"
        raise InvalidInput(f"the environment has half a pair of keys: {missing} is not set; set both or none")
    return Keys(
        access_key_id=access,
        secret_access_key=secret,
        session_token=environment.get("AWS_SESSION_TOKEN") or None,
    )


def _home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111 - may lack a home


def _has_profile(name: str, environment: Mapping[str, str], home: Path) -> bool:
    """Whether ``~/.aws`` has a profile that says how to sign in; one with a region only does not."""
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
            raise InvalidInput(f"{path} cannot be read ({str(error).partition(chr(10))[0]})") from error
        if parser.has_section(section) and _SIGNS_IN & set(parser.options(section)):
            return True
    return False


def _from_profile(name: str) -> Callable[[], Any]:
    try:
        import boto3  # pyright: ignore[reportMissingTypeStubs]
        from botocore.exceptions import BotoCoreError  # pyright: ignore[reportMissingTypeStubs]
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ModuleNotFoundError as error:
        raise MissingExtra(f"signing in with the profile {name!r} of ~/.aws", "aws") from error
    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=name))
    except (BotoCoreError, ValueError) as error:
        raise InvalidInput(
            f"the profile {name!r} of ~/.aws gives no credentials ({error}); "
            "run aws sso login or aws configure"
        ) from error


# -----------------------------------------------------------------------------------------------------------

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

    Keys that are not passed are found as `treering.blobs.location` lists it. A bucket that cannot be
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

"""Whose keys open a bucket: the first of these that there is.

1. keys that the caller passes
2. the environment: ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY`` (``AWS_SESSION_TOKEN``)
3. the profile ``AWS_PROFILE``, or ``default``, of ``~/.aws``: keys, SSO, roles, processes; read by boto3
4. a web identity: ``AWS_WEB_IDENTITY_TOKEN_FILE`` and ``AWS_ROLE_ARN``
5. the machine's own: a container's credentials, an instance's metadata

The last two are obstore's own affair; it asks again before they expire. **Invariant:** a profile that was
asked for by name is used or refused; nothing else quietly stands in for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from treering.errors import InvalidInput, MissingExtra

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

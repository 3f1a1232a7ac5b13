"""Fixtures for sandboxes: isolated caches and homes, and storages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.sandbox.storages import make_folders
from tests.servers.bucket import S3Bucket
from treering.sandbox import AgentProfile, StorageConfig
from treering.sandbox.archive import SandboxFolders


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate tests from the caches, sandboxes, sessions and keys of the user."""
    monkeypatch.setattr("treering.sandbox.run._GRACE_SECONDS", 60.0)  # under load, SIGTERM may take a while
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    (tmp_path / "user").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("TREERING_HOME", str(tmp_path / "treering-home"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("TREERING_URL", "TREERING_API_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


def config_of(s3: S3Bucket, prefix: str = "snapshots") -> StorageConfig:
    return StorageConfig(
        url=f"s3://{s3.bucket}/{prefix}/",
        endpoint=s3.endpoint,
        region=s3.region,
        credentials={"access_key_id": s3.access_key, "secret_access_key": s3.secret_key},
    )


@pytest.fixture
def bucket(s3: S3Bucket) -> StorageConfig:
    """A new bucket of a real S3 server."""
    return config_of(s3)


@pytest.fixture
def storage(tmp_path: Path) -> StorageConfig:
    """A new folder as a bucket."""
    return StorageConfig(tmp_path / "bucket")


@pytest.fixture(params=["folder", "s3"])
def config(request: pytest.FixtureRequest) -> StorageConfig:
    """A bucket of each kind in turn."""
    if request.param == "folder":
        return request.getfixturevalue("storage")
    request.applymarker(pytest.mark.s3)
    return request.getfixturevalue("bucket")


@pytest.fixture
def folders(tmp_path: Path) -> SandboxFolders:
    """A home with a workspace and an agent's settings."""
    return make_folders(tmp_path / "home")


SCRIBBLER = AgentProfile(
    name="scribbler",
    command=(sys.executable, str(Path(__file__).with_name("scribbler.py"))),
    with_model=("--model={model}",),
    with_session=("--continue",),
    settings=(".scribbler",),
    sessions=".scribbler/sessions/*.jsonl",
    credentials=(".scribbler/auth.json", ".scribbler/missing.json"),
    format="claude-code",
)
"""A small scripted agent."""

"""Locations of blobs: every accepted form, and an error with a hint for anything else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.blobs.folder import FolderBlobs
from treering.blobs.location import BucketLocation, FolderLocation, open_blobs, parse_location
from treering.errors import InvalidInput, MissingExtra

R2 = "https://acct.r2.cloudflarestorage.com"


@pytest.mark.parametrize(
    "url, expected",
    [
        ("s3://bucket", BucketLocation(bucket="bucket")),
        ("s3://bucket/", BucketLocation(bucket="bucket")),
        ("S3://my.bucket-1/a/b/", BucketLocation(bucket="my.bucket-1", prefix="a/b")),
        ("s3://bucket/with space/50%25", BucketLocation(bucket="bucket", prefix="with space/50%25")),
        (f"{R2}/bucket/a/b", BucketLocation(bucket="bucket", prefix="a/b", endpoint=R2)),
        (
            "http://127.0.0.1:9000/bucket",
            BucketLocation(bucket="bucket", endpoint="http://127.0.0.1:9000"),
        ),
        (
            "https://minio.example/bucket/with%20space/",
            BucketLocation(bucket="bucket", prefix="with space", endpoint="https://minio.example"),
        ),
        (
            "https://s3.eu-central-1.amazonaws.com/bucket/a",
            BucketLocation(bucket="bucket", prefix="a", region="eu-central-1"),
        ),
        ("https://s3.amazonaws.com/bucket", BucketLocation(bucket="bucket")),
        ("./folder", FolderLocation(Path("folder"))),
        ("/absolute/folder", FolderLocation(Path("/absolute/folder"))),
        ("~/blobs", FolderLocation(Path.home() / "blobs")),
        ("./odd:name", FolderLocation(Path("odd:name"))),
        ("file:///with%20space", FolderLocation(Path("/with space"))),
        ("file://localhost/folder", FolderLocation(Path("/folder"))),
        (Path("/folder"), FolderLocation(Path("/folder"))),
    ],
)
def test_every_form_is_accepted(url, expected):
    assert parse_location(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "s3:bucket",
        "s3:/bucket/prefix",
        "s3://",
        "s3:///prefix",
        "s3://b",
        "gs://bucket/prefix",
        "azure://container",
        "ftp://host/folder",
        "odd:name",
        "https://",
        "https://server",
        "https://server/",
        "https://server/bucket?versionId=1",
        "https://server/bucket#part",
        "https://server:port/bucket",
        "file://other-host/folder",
        "file:relative",
        "file:///folder?x",
        "nul\0byte",
    ],
)
def test_anything_else_is_rejected_with_the_accepted_forms(url):
    with pytest.raises(InvalidInput) as caught:
        parse_location(url)
    for form in ("./folder", "file:///folder", "s3://bucket/prefix", "https://server/bucket/prefix"):
        assert form in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket/a/../b", "s3://bucket//a", "https://server/bucket/a\\b"])
def test_a_prefix_is_a_name_like_any_other(url):
    with pytest.raises(InvalidInput):
        parse_location(url)


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/prefix", "https://key:secret@server/bucket"])
def test_keys_in_a_url_are_rejected_and_not_shown(url):
    with pytest.raises(InvalidInput, match="by keyword or environment") as caught:
        parse_location(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["bucket.s3.amazonaws.com", "bucket.s3.eu-west-1.amazonaws.com"])
def test_a_bucket_in_the_host_name_gets_a_hint(host):
    with pytest.raises(InvalidInput, match="s3://bucket/prefix"):
        parse_location(f"https://{host}/prefix")


def test_a_folder_is_opened_without_keys(tmp_path):
    blobs = open_blobs(tmp_path / "blobs")
    assert isinstance(blobs, FolderBlobs)
    assert blobs.url == (tmp_path / "blobs").as_uri()
    assert parse_location(blobs.url) == FolderLocation(tmp_path / "blobs")
    with pytest.raises(InvalidInput, match="omit them"):
        open_blobs(tmp_path, region="eu-central-1")


def test_one_key_of_a_pair_is_rejected():
    with pytest.raises(InvalidInput, match="pass both access_key_id"):
        open_blobs("s3://bucket", access_key_id="key")


def test_without_the_extra_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "treering.blobs.s3", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'treering\[s3\]'"):
        open_blobs("s3://bucket")


@given(st.text())
def test_any_text_is_accepted_or_rejected(text):
    try:
        place = parse_location(text)
    except InvalidInput:
        return
    assert isinstance(place, BucketLocation | FolderLocation)

"""Blobs in a bucket of a real S3 server: the public suite, and cases that are specific to buckets."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.servers.bucket import S3Bucket

from treering.blobs.location import open_blobs
from treering.core.storage import Blobs
from treering.errors import InvalidInput, Unreachable
from treering.testing.blobs_suite import BlobsSuite


def opened(bucket: S3Bucket, prefix: str = "", **options) -> Blobs:
    keys = {"access_key_id": bucket.access_key, "secret_access_key": bucket.secret_key}
    url = f"s3://{bucket.bucket}/{prefix}"
    return open_blobs(url, **{"endpoint": bucket.endpoint, "region": bucket.region, **keys, **options})


class TestS3Blobs(BlobsSuite):
    rounds = 2

    @pytest.fixture
    def blobs(self, s3: S3Bucket) -> Blobs:
        return opened(s3, "deep/prefix")


def test_a_bucket_needs_no_prefix(s3):
    blobs = opened(s3)
    blobs.put_if("refs/main", b"1", expect=None)
    assert [info.name for info in blobs.list()] == ["refs/main"]


def test_a_bucket_is_opened_by_the_url_of_its_server(s3):
    opened(s3, "pre").put("one", b"1")
    url = f"{s3.endpoint}/{s3.bucket}/pre/"
    blobs = open_blobs(url, access_key_id=s3.access_key, secret_access_key=s3.secret_key)
    assert blobs.get("one") == b"1"


def test_prefixes_of_one_bucket_are_separate(s3):
    opened(s3, "a").put("one", b"a")
    opened(s3, "ab").put("one", b"ab")
    assert [info.name for info in opened(s3, "a").list()] == ["one"]
    assert opened(s3, "a").get("one") == b"a"
    assert sorted(info.name for info in opened(s3).list()) == ["a/one", "ab/one"]


def test_probing_conditional_writes_leaves_nothing_behind(s3):
    assert opened(s3).conditional
    assert s3.obstore().list().collect() == []


def test_keys_come_from_the_environment_when_none_are_passed(s3, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    blobs = open_blobs(f"s3://{s3.bucket}", endpoint=s3.endpoint)
    blobs.put("one", b"1")
    assert blobs.get("one") == b"1"


def test_wrong_keys_are_rejected_immediately_and_not_shown(s3):
    blobs = opened(s3, secret_access_key="a-wrong-secret")
    for call in (
        lambda: blobs.get("one"),
        lambda: blobs.put("one", b""),
        blobs.list,
        lambda: blobs.stat("one"),
    ):
        with pytest.raises(InvalidInput, match="rejects these credentials") as caught:
            call()
        assert "a-wrong-secret" not in str(caught.value)


def test_a_missing_server_is_unreachable(s3):
    blobs = opened(s3, endpoint="http://127.0.0.1:1", deadline_seconds=0.5)
    with pytest.raises(Unreachable, match=s3.bucket) as caught:
        blobs.get("one")
    assert any("attempts" in note for note in caught.value.__notes__)


def test_a_forked_child_is_rejected_and_the_parent_continues(s3):
    script = f"""
import os, signal
from treering.blobs.location import open_blobs
from treering.errors import Unsupported
def opened():
    return open_blobs("s3://{s3.bucket}", endpoint="{s3.endpoint}", region="{s3.region}",
                      access_key_id="{s3.access_key}", secret_access_key="{s3.secret_key}")
blobs = opened()
blobs.put("one", b"1")
child = os.fork()
if child == 0:
    signal.alarm(20)
    for each in (blobs, opened()):
        try:
            each.get("one")
            os._exit(1)
        except Unsupported as error:
            assert "spawn" in str(error)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert blobs.get("one") == b"1"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

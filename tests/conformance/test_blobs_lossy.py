"""A server that responds 200 to conditional writes and loses updates is detected before it is used."""

from __future__ import annotations

import random

import pytest

import treering
from treering.blobs.location import open_blobs
from treering.core.storage import ETag
from treering.errors import InvalidInput, Unsupported


@pytest.fixture
def blobs(lossy_s3):
    return open_blobs(
        f"s3://{lossy_s3.bucket}/prefix",
        endpoint=lossy_s3.endpoint,
        access_key_id=lossy_s3.access_key,
        secret_access_key=lossy_s3.secret_key,
    )


def test_the_server_really_loses_updates(lossy_s3):
    store = lossy_s3.obstore()
    store.put("one", b"first")
    store.put("one", b"second", mode="create")
    store.put("one", b"third", mode={"e_tag": '"of-something-else"'})
    assert store.get("one").bytes() == b"third"


def test_the_store_is_detected_as_not_conditional(blobs, lossy_s3):
    assert not blobs.conditional
    assert lossy_s3.obstore().list().collect() == []


def test_every_conditional_write_is_rejected_and_writes_nothing(blobs):
    for attempt in (
        lambda: blobs.put("new", b"", if_absent=True),
        lambda: blobs.put_if("new", b"", expect=None),
        lambda: blobs.put_if("one", b"second", expect=ETag('"some"')),
    ):
        with pytest.raises(Unsupported, match="ignores conditions"):
            attempt()
    assert blobs.stat("new") is None


def test_no_write_is_acknowledged_that_could_not_be_read(blobs, tmp_path):
    """This server answers a request for a range with the whole object."""
    with pytest.raises(Unsupported, match="ignores the Range header"):
        blobs.put("packs/one", b"some bytes")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file.txt").write_bytes(random.Random(1).randbytes(3_000_000))
    with treering.open(tmp_path / "store", blobs=blobs) as store:
        for _ in range(2):
            with pytest.raises(Unsupported, match="use a server that supports it"):
                store.workspace.snapshot(folder)
        assert store.verify().ok
        assert list(store.workspace.snapshots()) == []


def test_listing_and_deleting_work(blobs, lossy_s3):
    lossy_s3.obstore(prefix="prefix").put("packs/one", b"some bytes")
    assert [info.name for info in blobs.list("packs")] == ["packs/one"]
    blobs.delete(["packs/one"])
    assert blobs.stat("packs/one") is None


def test_a_bucket_that_does_not_exist_is_named(lossy_s3):
    blobs = open_blobs(
        "s3://no-such-bucket",
        endpoint=lossy_s3.endpoint,
        access_key_id=lossy_s3.access_key,
        secret_access_key=lossy_s3.secret_key,
    )
    for call in (
        lambda: blobs.put("one", b""),
        lambda: blobs.get("one"),
        blobs.list,
        lambda: blobs.conditional,
    ):
        with pytest.raises(InvalidInput, match="bucket not found"):
            call()

"""Reading objects of a bucket: what was announced is fetched once, and nothing depends on it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from treering.blobs.folder import FolderBlobs
from treering.core.content import Content, object_address
from treering.errors import Corrupt
from treering.sandbox.bucket_objects import BucketObjects, PackReader

NOISE = [Content("bytes", random.Random(seed).randbytes(900_000)) for seed in range(40)]
SMALL = [Content("bytes", b"%d\n" % number * 300) for number in range(200)]
NAMES = [content.name for content in (*NOISE, *SMALL)]


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "bucket")


@pytest.fixture
def objects(blobs: FolderBlobs) -> Iterator[BucketObjects]:
    writer = BucketObjects(blobs)
    writer.stage("default", [*NOISE, *SMALL])
    writer.flush()
    writer.close()
    reader = BucketObjects(blobs)
    yield reader
    reader.close()


def read(objects: BucketObjects, names: list[str]) -> list[Content]:
    return objects.get("default", [object_address(name) for name in names])


def test_what_was_announced_is_fetched_once(objects: BucketObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[object] = []
    fetch = PackReader._fetch
    monkeypatch.setattr(PackReader, "_fetch", lambda self, key: fetched.append(key) or fetch(self, key))
    objects.expect(NAMES[:5])
    objects.expect(NAMES[:5])
    assert read(objects, NAMES[:5]) == NOISE[:5]
    assert len(fetched) == len(set(fetched)) == 1
    objects.expect(NAMES[40:90])
    assert read(objects, NAMES[40:90]) == SMALL[:50]
    assert read(objects, NAMES[60:]) == SMALL[20:]  # their frames are kept for a while
    assert len(fetched) == len(set(fetched)) <= 3


def test_more_than_can_be_held_is_announced(objects: BucketObjects) -> None:
    for name in random.Random(1).sample(NAMES, len(NAMES)):
        objects.expect([name])
    assert read(objects, NAMES) == [*NOISE, *SMALL]
    objects.expect(["0" * 64])  # nothing is promised


def test_a_pack_that_went_is_told_when_it_is_read(objects: BucketObjects, blobs: FolderBlobs) -> None:
    assert objects.missing("default", NAMES) == set()
    blobs.delete([each.name for each in blobs.list("packs")])
    objects.expect(NAMES[:3])
    with pytest.raises(Corrupt, match=r"its pack [0-9a-f]{64} is not in"):
        read(objects, NAMES[:3])

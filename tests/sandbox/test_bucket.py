"""A bucket or a folder alone: other machines continue from it; racing writers and faults do no harm."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

import treering
import treering.sandbox
from tests.sandbox.conftest import config_of
from tests.sandbox.rough_road import rough_road
from tests.sandbox.storages import make_folders, save, whole
from tests.servers.bucket import S3Bucket
from tests.workspaces.pictures import picture
from treering.blobs.folder import FolderBlobs
from treering.blobs.retry import RetryingBlobs
from treering.blobs.s3 import S3Blobs
from treering.core.content import Content, object_address
from treering.errors import Corrupt, InvalidInput, NewerStore, NotFound, Unsupported
from treering.sandbox import CheckpointInfo, CheckpointStorage, StorageConfig, list_checkpoints, open_storage
from treering.sandbox.archive import SandboxFolders
from treering.sandbox.bucket import STATE, BucketObjects, BucketStorage, PackReader, _update


def test_another_machine_has_only_the_config(
    config: StorageConfig, folders: SandboxFolders, tmp_path: Path
) -> None:
    first_machine = open_storage(config)
    one = save(first_machine, folders, comment="initial draft")
    was = picture(folders.home)
    (folders.workspace / "report.txt").write_text("Draft v1 - reviewed")
    two = save(first_machine, folders, parent=one)
    first_machine.close()
    shutil.rmtree(tmp_path / "home")
    shutil.rmtree(tmp_path / "caches", ignore_errors=True)

    listed = list_checkpoints(config)
    assert [each.id for each in listed] == [two.id, one.id]
    assert listed == [two, one]
    checkpoints = open_storage(config)
    assert checkpoints.find("latest") == two
    fresh = SandboxFolders(home=tmp_path / "b", workspace=tmp_path / "b" / "workspace", settings=(".claude",))
    checkpoints.restore(checkpoints.find(one.id), fresh)
    assert picture(fresh.home) == was
    assert checkpoints.download(two, "workspace/report.txt", tmp_path / "out") == ("workspace/report.txt",)
    assert (tmp_path / "out" / "workspace" / "report.txt").read_text() == "Draft v1 - reviewed"
    assert checkpoints.cat(one, ".claude/projects/1.jsonl") == b'{"type": "user"}\n'
    three = save(checkpoints, fresh, parent=one)
    assert three.hash == one.hash
    assert [each.parent_id for each in list_checkpoints(config)] == [one.id, one.id, None]
    checkpoints.close()


def test_an_unchanged_sandbox_gets_a_checkpoint_of_its_own(
    config: StorageConfig, folders: SandboxFolders
) -> None:
    checkpoints = open_storage(config)
    one = save(checkpoints, folders)
    again = save(checkpoints, folders, parent=one)
    assert again.id != one.id
    assert again.hash == one.hash
    checkpoints.close()


def test_checkpoints_are_filtered_by_session(config: StorageConfig, folders: SandboxFolders) -> None:
    checkpoints = open_storage(config)
    odd = "a/b ü~"
    made = [save(checkpoints, folders, tag=odd if number % 3 == 0 else "other") for number in range(7)]
    wanted = [each.id for each in reversed(made) if each.tag == odd]
    assert [each.id for each in checkpoints.list(tag=odd)] == wanted
    assert [each.id for each in checkpoints.list(tag=odd, limit=2)] == wanted[:2]
    assert checkpoints.list(tag="nobody") == []
    assert [each.id for each in checkpoints.list(limit=2)] == [made[6].id, made[5].id]
    for limit in (0, 501):
        with pytest.raises(InvalidInput, match="1 to 500"):
            checkpoints.list(limit=limit)
    checkpoints.close()


def test_missing_checkpoints_raise(config: StorageConfig, folders: SandboxFolders) -> None:
    checkpoints = open_storage(config)
    assert checkpoints.list() == []
    with pytest.raises(NotFound, match="no checkpoint yet"):
        checkpoints.find("latest")
    one = save(checkpoints, folders)
    for wrong in ("ckpt_x", "ckpt_01m7hywa66fqw2a8j4ka69nwmg_9", one.id[:-2] + "zz", "ckpt_01_1"):
        with pytest.raises(NotFound, match="list_checkpoints"):
            checkpoints.find(wrong)
    with pytest.raises(InvalidInput, match="start with 'ckpt_'"):
        checkpoints.find("draft")
    checkpoints.close()


def test_writers_at_the_same_time_lose_nothing(config: StorageConfig, tmp_path: Path) -> None:
    def work(writer: int) -> list[CheckpointInfo]:
        folders = make_folders(tmp_path / f"home-{writer}")
        checkpoints = open_storage(config)
        made: list[CheckpointInfo] = []
        for step in range(4):
            (folders.workspace / "report.txt").write_text(f"writer {writer} step {step}")
            made.append(save(checkpoints, folders, tag=f"w-{writer}", parent=made[-1] if made else None))
        checkpoints.close()
        return made

    with ThreadPoolExecutor(5) as pool:
        made = [each for some in pool.map(work, range(5)) for each in some]
    listed = list_checkpoints(config, limit=500)
    assert sorted(each.id for each in listed) == sorted(each.id for each in made)
    assert len({each.id for each in listed}) == 20
    checkpoints = open_storage(config)
    for writer in range(5):
        own = checkpoints.list(tag=f"w-{writer}")
        assert [checkpoints.cat(each, "workspace/report.txt").decode() for each in own] == [
            f"writer {writer} step {step}" for step in (3, 2, 1, 0)
        ]
        assert [each.parent_id for each in own] == [*(each.id for each in own[1:]), None]
    checkpoints.close()


def counted(blobs: object, calls: list[str]) -> Callable[..., None]:
    for verb in ("put", "put_if", "get", "read", "list", "stat", "delete"):
        real = getattr(blobs, verb)

        def call(*args, verb=verb, real=real, **options):
            calls.append(verb)
            return real(*args, **options)

        setattr(blobs, verb, call)
    return calls.clear


def test_requests_stay_few(tmp_path: Path, folders: SandboxFolders, s3: S3Bucket) -> None:
    """An incremental checkpoint takes two writes, and a listing one read."""
    calls: list[str] = []
    blobs = plain(s3)
    reset = counted(blobs, calls)
    checkpoints = CheckpointStorage(
        BucketStorage(blobs, cache=None), now_iso=lambda: "2026-01-01T00:00:00+00:00"
    )
    rng = random.Random(3)
    for number in range(400):
        (folders.workspace / f"f{number:03}").write_bytes(rng.randbytes(5000))
    save(checkpoints, folders)
    for number in range(30):
        (folders.workspace / f"f{number:03}").write_bytes(rng.randbytes(5000))
        reset()
        save(checkpoints, folders)
        assert calls.count("put") + calls.count("put_if") == 2
    reset()
    assert len(checkpoints.list(limit=10)) == 10
    assert len(checkpoints.list(limit=10, tag="s-1")) == 10
    assert calls == ["read"] * 2
    other = CheckpointStorage(BucketStorage(plain(s3), cache=None), now_iso=lambda: "")
    other.restore(
        other.find("latest"), SandboxFolders(home=tmp_path / "b", workspace=tmp_path / "b" / "workspace")
    )
    assert picture(tmp_path / "b") == picture(folders.home)
    other.close()
    checkpoints.close()


def plain(s3: S3Bucket, *, port: int | None = None, timeout_seconds: float = 30) -> S3Blobs:
    return S3Blobs(
        s3.bucket,
        prefix="snapshots",
        endpoint=s3.endpoint if port is None else f"http://127.0.0.1:{port}",
        region=s3.region,
        access_key_id=s3.access_key,
        secret_access_key=s3.secret_key,
        timeout_seconds=timeout_seconds,
    )


def test_a_server_that_ignores_conditions_is_refused_before_anything_is_sent(
    lossy_s3: S3Bucket, folders: SandboxFolders
) -> None:
    checkpoints = open_storage(config_of(lossy_s3))
    with pytest.raises(Unsupported, match="ignores conditions"):
        save(checkpoints, folders)
    assert lossy_s3.obstore().list().collect() == []
    checkpoints.close()


@pytest.mark.parametrize(
    "fates",
    [
        ("through", "error", "error"),
        ("through", "refused", "cut", "cut"),
        ("through", "unanswered"),
    ],
    ids=["500s", "cut", "unanswered"],
)
def test_a_rough_road_costs_time_and_nothing_else(
    s3: S3Bucket, folders: SandboxFolders, tmp_path: Path, fates: tuple[str, ...]
) -> None:
    rng = random.Random(4)
    (folders.workspace / "big.bin").write_bytes(rng.randbytes(9_500_000))  # past 8 MiB it goes up in parts
    with rough_road(s3.endpoint, seed=5, fates=fates) as road:

        def checkpoints() -> CheckpointStorage:
            patient = RetryingBlobs(
                plain(s3, port=road.port, timeout_seconds=0.7),
                first_wait_seconds=0.01,
                longest_wait_seconds=0.02,
            )
            return CheckpointStorage(
                BucketStorage(patient, cache=None), now_iso=lambda: "2026-01-01T00:00:00+00:00"
            )

        made: list[CheckpointInfo] = []
        pictures: list[dict] = []
        for step in range(4):
            (folders.workspace / "report.txt").write_text(f"step {step}")
            writer = checkpoints()  # with connections of its own
            made.append(save(writer, folders, parent=made[-1] if made else None))
            writer.close()
            pictures.append(picture(folders.home))
        reader = checkpoints()
        assert reader.list() == made[::-1]
        reader.close()
        for number in (0, 3):
            home = tmp_path / f"back-{number}"
            reader = checkpoints()
            reader.restore(
                reader.find(made[number].id), SandboxFolders(home=home, workspace=home / "workspace")
            )
            reader.close()
            assert picture(home) == pictures[number]
    assert set(road.met) == set(fates)


def test_a_damaged_pack_is_found_and_nothing_of_it_written(folders: SandboxFolders, tmp_path: Path) -> None:
    checkpoints = open_storage(StorageConfig(tmp_path / "bucket"))
    one = save(checkpoints, folders)
    (pack,) = (tmp_path / "bucket" / "packs").rglob("*.pack")
    data = bytearray(pack.read_bytes())
    data[40] ^= 1
    pack.write_bytes(data)
    other = open_storage(StorageConfig(tmp_path / "bucket"))
    with pytest.raises(Corrupt, match=pack.stem):
        other.restore(one, SandboxFolders(home=tmp_path / "b", workspace=tmp_path / "b" / "workspace"))
    pack.unlink()
    other = open_storage(StorageConfig(tmp_path / "bucket"))
    with pytest.raises(Corrupt, match="is not in"):
        other.restore(one, SandboxFolders(home=tmp_path / "b", workspace=tmp_path / "b" / "workspace"))


def test_a_writer_that_died_leaves_waste_and_no_lack(
    folders: SandboxFolders, tmp_path: Path, monkeypatch
) -> None:
    """What was written before the state is not seen, and does no harm."""
    config = StorageConfig(tmp_path / "bucket")
    for step, dies_at in enumerate(("packs/", STATE)):

        def dying(real, dies_at=dies_at):
            def put(self, name, *args, **options):
                if name.startswith(dies_at):
                    raise KeyboardInterrupt
                return real(self, name, *args, **options)

            return put

        (folders.workspace / "report.txt").write_text(f"step {step}")
        checkpoints = open_storage(config)
        with monkeypatch.context() as patch:
            for verb in ("put", "put_if"):
                patch.setattr(FolderBlobs, verb, dying(getattr(FolderBlobs, verb)))
            with pytest.raises(KeyboardInterrupt):
                save(checkpoints, folders)
        other = open_storage(config)
        assert len(other.list()) == step
        info = save(other, folders)
        assert other.cat(info, "workspace/report.txt") == f"step {step}".encode()
        assert len(other.list(tag="s-1")) == step + 1


def test_a_newer_layout_and_a_damaged_state_are_refused(folders: SandboxFolders, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    newer = gzip.compress(b'{"version": 2}')
    for data, error in ((newer, NewerStore), (b"{}", Corrupt), (newer[:-9], Corrupt)):
        (tmp_path / "bucket" / STATE).write_bytes(data)
        checkpoints = open_storage(StorageConfig(tmp_path / "bucket"))
        with pytest.raises(error):
            checkpoints.list()
        with pytest.raises(error):
            save(checkpoints, folders)
        checkpoints.close()
    assert [each.name for each in (tmp_path / "bucket").iterdir() if each.name != ".drafts"] == [STATE]


def test_the_state_is_compressed_json_that_anyone_can_read(folders: SandboxFolders, tmp_path: Path) -> None:
    checkpoints = open_storage(StorageConfig(tmp_path / "bucket"))
    info = save(checkpoints, folders, agent_type="claude", workspace_mode="knowledge", comment="first")
    state = json.loads(gzip.decompress((tmp_path / "bucket" / STATE).read_bytes()))
    (entry,) = state["checkpoints"]
    assert entry["id"] == info.id
    assert entry["comment"] == "first"
    assert "parent_id" not in entry
    assert [f"{each}.pack" for each in state["packs"]] == [
        each.name for each in (tmp_path / "bucket" / "packs").rglob("*.pack")
    ]


def test_the_local_cache_of_indexes_may_be_damaged(
    storage: StorageConfig, folders: SandboxFolders, tmp_path: Path
) -> None:
    checkpoints = open_storage(storage)
    one = save(checkpoints, folders)
    checkpoints.close()
    assert whole(storage, [one])
    (cached,) = (tmp_path / "caches").rglob("packs/*")
    for damaged in (b"", cached.read_bytes()[:-1]):
        cached.write_bytes(damaged)
        assert whole(storage, [one])
        assert len(cached.read_bytes()) > len(damaged)


def test_a_store_keeps_checkpoints_in_the_same_way(folders: SandboxFolders, tmp_path: Path) -> None:
    """The same interface over a treering store, with the same hashes as in a bucket."""
    bucket = open_storage(StorageConfig(tmp_path / "bucket"))
    with treering.open(tmp_path / "store") as store:
        checkpoints = treering.sandbox.storage_in(store)
        one = save(checkpoints, folders)
        assert one.hash == save(bucket, folders).hash
        (folders.workspace / "report.txt").write_text("later")
        two = save(checkpoints, folders, tag="s-2", parent=one)
        assert checkpoints.list() == [two, one]
        assert checkpoints.list(tag="s-1") == [one]
        assert checkpoints.find("latest") == two
        store.gc(grace_seconds=0)
        home = tmp_path / "b"
        checkpoints.restore(checkpoints.find(one.id), SandboxFolders(home=home, workspace=home / "workspace"))
        assert (home / "workspace" / "report.txt").read_text() == "Draft v1"
        assert store.verify().ok
        with pytest.raises(NotFound, match="list_checkpoints"):
            checkpoints.find("ckpt_01")


def test_a_check_names_what_cannot_be_restored(folders: SandboxFolders, tmp_path: Path) -> None:
    (folders.workspace / "big.bin").write_bytes(random.Random(6).randbytes(400_000))
    checkpoints = open_storage(StorageConfig(tmp_path / "bucket"))
    one = save(checkpoints, folders)
    whole = checkpoints.check(one)
    assert (whole.ok, whole.files, whole.size_bytes) == (True, one.files, one.size_bytes)
    (pack,) = (tmp_path / "bucket" / "packs").rglob("*.pack")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1  # in the middle of the one large file
    pack.write_bytes(data)
    found = open_storage(StorageConfig(tmp_path / "bucket")).check(one)
    assert [each.path for each in found.problems] == ["workspace/big.bin"]


def test_threads_share_a_storage(config: StorageConfig, tmp_path: Path) -> None:
    checkpoints = open_storage(config)

    def work(number: int) -> CheckpointInfo:
        folders = make_folders(tmp_path / f"home-{number}")
        (folders.workspace / "report.txt").write_text(f"thread {number}")
        return save(checkpoints, folders, tag=f"t-{number}")

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(work, range(8)))
    for number, info in enumerate(made):
        assert checkpoints.cat(info, "workspace/report.txt") == f"thread {number}".encode()
    checkpoints.close()


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
    packs = writer.upload()
    _update(blobs, lambda state: msgspec.structs.replace(state, packs=packs))
    writer.close()
    reader = BucketObjects(blobs)
    reader.begin()
    yield reader
    reader.close()


def read(objects: BucketObjects, names: list[str]) -> list[Content]:
    return objects.get("default", [object_address(name) for name in names])


def test_prefetched_objects_are_fetched_once(objects: BucketObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[object] = []
    fetch = PackReader._fetch
    monkeypatch.setattr(PackReader, "_fetch", lambda self, *key: fetched.append(key) or fetch(self, *key))
    objects.expect(NAMES[:5])
    objects.expect(NAMES[:5])
    assert read(objects, NAMES[:5]) == NOISE[:5]
    assert len(fetched) == len(set(fetched)) == 1
    objects.expect(NAMES[40:90])
    assert read(objects, NAMES[40:90]) == SMALL[:50]
    assert read(objects, NAMES[60:]) == SMALL[20:]  # their frames are cached
    assert len(fetched) == len(set(fetched)) <= 3


def test_prefetching_more_than_the_cache_holds_does_no_harm(objects: BucketObjects) -> None:
    for name in random.Random(1).sample(NAMES, len(NAMES)):
        objects.expect([name])
    assert read(objects, NAMES) == [*NOISE, *SMALL]
    objects.expect(["0" * 64])  # ignored


def test_a_missing_pack_is_named_when_it_is_read(objects: BucketObjects, blobs: FolderBlobs) -> None:
    assert objects.missing("default", NAMES) == set()
    blobs.delete([each.name for each in blobs.list("packs")])
    objects.expect(NAMES[:3])
    with pytest.raises(Corrupt, match=r"its pack [0-9a-f]{64} is not in"):
        read(objects, NAMES[:3])

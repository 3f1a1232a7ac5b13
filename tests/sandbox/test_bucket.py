"""A bucket or a folder alone: another machine lists, restores and goes on; writers and faults do no harm."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

import treering
import treering.sandbox
from tests.sandbox.conftest import config_of
from tests.sandbox.rough_road import rough_road
from tests.sandbox.storages import make_place, save
from tests.servers.bucket import S3Bucket
from tests.workspaces.pictures import picture
from treering.blobs.folder import FolderBlobs
from treering.blobs.retry import RetryingBlobs
from treering.blobs.s3 import S3Blobs
from treering.errors import Corrupt, InvalidInput, NewerStore, NotFound, Unsupported
from treering.sandbox import CheckpointInfo, Depot, StorageConfig, list_checkpoints, open_depot
from treering.sandbox.archive import Place
from treering.sandbox.bucket import BucketStorage
from treering.sandbox.bucket_objects import MANY
from treering.sandbox.config import open_bucket


def test_another_machine_has_only_the_config(config: StorageConfig, place: Place, tmp_path: Path) -> None:
    first_machine = open_depot(config)
    one = save(first_machine, place, comment="initial draft")
    was = picture(place.home)
    (place.workspace / "report.txt").write_text("Draft v1 - reviewed")
    two = save(first_machine, place, parent=one)
    first_machine.close()
    shutil.rmtree(tmp_path / "home")
    shutil.rmtree(tmp_path / "caches", ignore_errors=True)

    listed = list_checkpoints(config)
    assert [each.id for each in listed] == [two.id, one.id]
    assert listed == [two, one]
    depot = open_depot(config)
    assert depot.find("latest") == two
    fresh = Place(home=tmp_path / "b", workspace=tmp_path / "b" / "workspace", settings=(".claude",))
    depot.restore(depot.find(one.id), fresh)
    assert picture(fresh.home) == was
    assert depot.download(two, "workspace/report.txt", tmp_path / "out") == ("workspace/report.txt",)
    assert (tmp_path / "out" / "workspace" / "report.txt").read_text() == "Draft v1 - reviewed"
    assert depot.cat(one, ".claude/projects/1.jsonl") == b'{"type": "user"}\n'
    three = save(depot, fresh, parent=one)
    assert three.hash == one.hash
    assert [each.parent_id for each in list_checkpoints(config)] == [one.id, one.id, None]
    depot.close()


def test_an_entry_is_written_also_when_nothing_changed(config: StorageConfig, place: Place) -> None:
    depot = open_depot(config)
    one = save(depot, place)
    again = save(depot, place, parent=one)
    assert again.id != one.id
    assert again.hash == one.hash
    depot.close()


def test_sessions_are_told_apart(config: StorageConfig, place: Place) -> None:
    depot = open_depot(config)
    odd = "a/b ü~"
    made = [save(depot, place, tag=odd if number % 3 == 0 else "other") for number in range(7)]
    wanted = [each.id for each in reversed(made) if each.tag == odd]
    assert [each.id for each in depot.list(tag=odd)] == wanted
    assert [each.id for each in depot.list(tag=odd, limit=2)] == wanted[:2]
    assert depot.list(tag="nobody") == []
    assert [each.id for each in depot.list(limit=2)] == [made[6].id, made[5].id]
    for limit in (0, 501):
        with pytest.raises(InvalidInput, match="1 to 500"):
            depot.list(limit=limit)
    depot.close()


def test_what_is_not_there_is_said_so(config: StorageConfig, place: Place) -> None:
    depot = open_depot(config)
    assert depot.list() == []
    with pytest.raises(NotFound, match="no checkpoint yet"):
        depot.find("latest")
    one = save(depot, place)
    for wrong in ("ckpt_x", "ckpt_01m7hywa66fqw2a8j4ka69nwmg_9", one.id[:-2] + "zz", "ckpt_01_1"):
        with pytest.raises(NotFound, match="list_checkpoints"):
            depot.find(wrong)
    with pytest.raises(InvalidInput, match="begin with 'ckpt_'"):
        depot.find("draft")
    depot.close()


def test_writers_at_the_same_time_lose_nothing(config: StorageConfig, tmp_path: Path) -> None:
    def work(writer: int) -> list[CheckpointInfo]:
        place = make_place(tmp_path / f"home-{writer}")
        depot = open_depot(config)
        made: list[CheckpointInfo] = []
        for step in range(4):
            (place.workspace / "report.txt").write_text(f"writer {writer} step {step}")
            made.append(save(depot, place, tag=f"w-{writer}", parent=made[-1] if made else None))
        depot.close()
        return made

    with ThreadPoolExecutor(5) as pool:
        made = [each for some in pool.map(work, range(5)) for each in some]
    listed = list_checkpoints(config, limit=500)
    assert sorted(each.id for each in listed) == sorted(each.id for each in made)
    assert sorted(int(each.id.rpartition("_")[2], 36) for each in listed) == list(range(1, 21))
    depot = open_depot(config)
    for writer in range(5):
        own = depot.list(tag=f"w-{writer}")
        assert [depot.cat(each, "workspace/report.txt").decode() for each in own] == [
            f"writer {writer} step {step}" for step in (3, 2, 1, 0)
        ]
        assert [each.parent_id for each in own] == [*(each.id for each in own[1:]), None]
    depot.close()


def counted(blobs: object, calls: list[str]) -> Callable[..., None]:
    for verb in ("put", "put_if", "get", "read", "list", "stat", "delete"):
        real = getattr(blobs, verb)

        def call(*args, verb=verb, real=real, **options):
            calls.append(verb)
            return real(*args, **options)

        setattr(blobs, verb, call)
    return calls.clear


def test_requests_stay_few(tmp_path: Path, place: Place, s3: S3Bucket) -> None:
    """An incremental checkpoint is at most 5 writes; a listing is a page, however many there are."""
    calls: list[str] = []
    blobs = plain(s3)
    reset = counted(blobs, calls)
    depot = Depot(BucketStorage(blobs, cache=None), now_iso=lambda: "2026-01-01T00:00:00+00:00")
    rng = random.Random(3)
    for number in range(400):
        (place.workspace / f"f{number:03}").write_bytes(rng.randbytes(5000))
    save(depot, place)
    writes = 0
    for number in range(MANY * 2):
        (place.workspace / f"f{number:03}").write_bytes(rng.randbytes(5000))
        reset()
        save(depot, place)
        # S3 sends a put with if_absent through put_if: one request, seen twice here.
        writes = max(writes, calls.count("put"))
    assert writes <= 5
    assert len(blobs.list("index")) < MANY + 2
    reset()
    assert len(depot.list(limit=10)) == 10
    assert calls.count("list") == 1
    assert len(calls) <= 10 + 2
    reset()
    assert len(depot.list(limit=10, tag="s-1")) == 10
    assert len(calls) <= 10 + 2
    other = Depot(BucketStorage(plain(s3), cache=None), now_iso=lambda: "")
    other.restore(other.find("latest"), Place(home=tmp_path / "b", workspace=tmp_path / "b" / "workspace"))
    assert picture(tmp_path / "b") == picture(place.home)
    other.close()
    depot.close()


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
    lossy_s3: S3Bucket, place: Place
) -> None:
    depot = open_depot(config_of(lossy_s3))
    with pytest.raises(Unsupported, match="ignores conditions"):
        save(depot, place)
    assert lossy_s3.obstore().list().collect() == []
    depot.close()


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
    s3: S3Bucket, place: Place, tmp_path: Path, fates: tuple[str, ...]
) -> None:
    rng = random.Random(4)
    (place.workspace / "big.bin").write_bytes(rng.randbytes(9_500_000))  # past 8 MiB it goes up in parts
    with rough_road(s3.endpoint, seed=5, fates=fates) as road:

        def depot() -> Depot:
            patient = RetryingBlobs(
                plain(s3, port=road.port, timeout_seconds=0.7),
                first_wait_seconds=0.01,
                longest_wait_seconds=0.02,
            )
            return Depot(BucketStorage(patient, cache=None), now_iso=lambda: "2026-01-01T00:00:00+00:00")

        made: list[CheckpointInfo] = []
        pictures: list[dict] = []
        for step in range(4):
            (place.workspace / "report.txt").write_text(f"step {step}")
            writer = depot()  # with connections of its own
            made.append(save(writer, place, parent=made[-1] if made else None))
            writer.close()
            pictures.append(picture(place.home))
        reader = depot()
        assert reader.list() == made[::-1]
        reader.close()
        for number in (0, 3):
            home = tmp_path / f"back-{number}"
            reader = depot()
            reader.restore(reader.find(made[number].id), Place(home=home, workspace=home / "workspace"))
            reader.close()
            assert picture(home) == pictures[number]
    assert set(road.met) == set(fates)


def test_a_damaged_pack_is_found_and_nothing_of_it_written(place: Place, tmp_path: Path) -> None:
    depot = open_depot(StorageConfig(tmp_path / "bucket"))
    one = save(depot, place)
    (pack,) = (tmp_path / "bucket" / "packs").rglob("*.pack")
    data = bytearray(pack.read_bytes())
    data[40] ^= 1
    pack.write_bytes(data)
    other = open_depot(StorageConfig(tmp_path / "bucket"))
    with pytest.raises(Corrupt, match=pack.stem):
        other.restore(one, Place(home=tmp_path / "b", workspace=tmp_path / "b" / "workspace"))
    pack.unlink()
    other = open_depot(StorageConfig(tmp_path / "bucket"))
    with pytest.raises(Corrupt, match="is not in"):
        other.restore(one, Place(home=tmp_path / "b", workspace=tmp_path / "b" / "workspace"))


def test_a_writer_that_died_leaves_waste_and_no_lack(place: Place, tmp_path: Path, monkeypatch) -> None:
    """Whatever was written before the entry of a checkpoint is not seen, and is used again."""
    config = StorageConfig(tmp_path / "bucket")
    real = FolderBlobs.put
    for step, dies_at in enumerate(("packs/", "index/", "tags/", "checkpoints/")):

        def put(self, name, data, *, if_absent=False, dies_at=dies_at):
            if name.startswith(dies_at):
                raise KeyboardInterrupt
            real(self, name, data, if_absent=if_absent)

        (place.workspace / "report.txt").write_text(f"step {step}")
        depot = open_depot(config)
        with monkeypatch.context() as patch:
            patch.setattr(FolderBlobs, "put", put)
            with pytest.raises(KeyboardInterrupt):
                save(depot, place)
        other = open_depot(config)
        assert len(other.list()) == step
        info = save(other, place)
        assert other.cat(info, "workspace/report.txt") == f"step {step}".encode()
        assert len(other.list(tag="s-1")) == step + 1


def test_a_newer_layout_and_a_foreign_one_are_refused(place: Place, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    for text, error in (('{"treering": "bucket", "version": 3}', NewerStore), ('{"x": 1}', InvalidInput)):
        (tmp_path / "bucket" / "format.json").write_text(text)
        depot = open_depot(StorageConfig(tmp_path / "bucket"))
        with pytest.raises(error):
            depot.list()
        with pytest.raises(error):
            save(depot, place)
    assert [each.name for each in (tmp_path / "bucket").iterdir() if each.name != ".drafts"] == [
        "format.json"
    ]


def test_the_entries_are_json_that_anyone_can_read(place: Place, tmp_path: Path) -> None:
    depot = open_depot(StorageConfig(tmp_path / "bucket"))
    info = save(depot, place, agent_type="claude", workspace_mode="knowledge", comment="first")
    (file,) = (tmp_path / "bucket" / "checkpoints").iterdir()
    told = msgspec.json.decode(file.read_bytes())
    assert told["id"] == info.id
    assert told["comment"] == "first"
    assert "parent_id" not in told


def test_a_store_keeps_checkpoints_in_the_same_way(place: Place, tmp_path: Path) -> None:
    """The same depot over a treering store; equal files have the hash that they have in a bucket."""
    bucket = open_depot(StorageConfig(tmp_path / "bucket"))
    with treering.open(tmp_path / "store") as store:
        depot = treering.sandbox.depot_in(store)
        one = save(depot, place)
        assert one.hash == save(bucket, place).hash
        (place.workspace / "report.txt").write_text("later")
        two = save(depot, place, tag="s-2", parent=one)
        assert depot.list() == [two, one]
        assert depot.list(tag="s-1") == [one]
        assert depot.find("latest") == two
        store.gc(grace_seconds=0)
        home = tmp_path / "b"
        depot.restore(depot.find(one.id), Place(home=home, workspace=home / "workspace"))
        assert (home / "workspace" / "report.txt").read_text() == "Draft v1"
        assert store.verify().ok
        with pytest.raises(NotFound, match="list_checkpoints"):
            depot.find("ckpt_01")


def test_a_lost_index_is_built_again_out_of_the_packs(config: StorageConfig, place: Place) -> None:
    depot = open_depot(config)
    one = save(depot, place)
    (place.workspace / "report.txt").write_text("later")
    two = save(depot, place)
    blobs = open_bucket(config)
    blobs.delete([each.name for each in blobs.list("index")])
    other = open_depot(config)
    with pytest.raises(Corrupt, match="reindex"):
        other.cat(one, "workspace/report.txt")
    assert other.reindex() == 2
    assert other.reindex() == 0
    for info in (one, two):
        assert open_depot(config).check(info).ok
    depot.close()
    other.close()


def test_a_check_names_what_cannot_be_restored(place: Place, tmp_path: Path) -> None:
    (place.workspace / "big.bin").write_bytes(random.Random(6).randbytes(400_000))
    depot = open_depot(StorageConfig(tmp_path / "bucket"))
    one = save(depot, place)
    whole = depot.check(one)
    assert (whole.ok, whole.files, whole.size_bytes) == (True, one.files, one.size_bytes)
    (pack,) = (tmp_path / "bucket" / "packs").rglob("*.pack")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1  # in the middle of the one large file
    pack.write_bytes(data)
    found = open_depot(StorageConfig(tmp_path / "bucket")).check(one)
    assert [each.path for each in found.problems] == ["workspace/big.bin"]


def test_threads_share_a_depot(config: StorageConfig, tmp_path: Path) -> None:
    depot = open_depot(config)

    def work(number: int) -> CheckpointInfo:
        place = make_place(tmp_path / f"home-{number}")
        (place.workspace / "report.txt").write_text(f"thread {number}")
        return save(depot, place, tag=f"t-{number}")

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(work, range(8)))
    for number, info in enumerate(made):
        assert depot.cat(info, "workspace/report.txt") == f"thread {number}".encode()
    depot.close()

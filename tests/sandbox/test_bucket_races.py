"""Savers and pruners of a bucket beside each other, without locks; and those that die half way."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sandbox.storages import grown, held, make_place, save, whole, write
from treering.blobs.retry import RetryingBlobs
from treering.core.retention import Keep
from treering.errors import Conflict, Corrupt
from treering.sandbox import (
    CheckpointInfo,
    StorageConfig,
    list_checkpoints,
    open_depot,
    prune_storage,
)
from treering.sandbox.archive import Place
from treering.sandbox.bucket import BucketLog
from treering.sandbox.bucket_objects import read_verdict, write_verdict
from treering.sandbox.config import open_bucket

REPOSITORY = Path(__file__).parents[2]


@contextmanager
def before_each_put(of: str, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Do something once, right before a writer sends the next file of a folder of the bucket."""
    met: list[str] = []

    def patched(real: Callable[..., object]) -> Callable[..., object]:
        def put(self: object, name: str, *args: object, **more: object) -> object:
            if name.startswith(of) and not met:
                met.append(name)
                act()
            return real(self, name, *args, **more)

        return put

    with monkeypatch.context() as patch:
        for verb in ("put", "put_if"):
            patch.setattr(RetryingBlobs, verb, patched(getattr(RetryingBlobs, verb)))
        yield met


@pytest.mark.s3
@pytest.mark.parametrize("moment", ["packs/", "index/", "tags/", "checkpoints/"])
def test_a_prune_in_the_middle_of_a_save_costs_the_writer_time_and_nothing_else(
    bucket: StorageConfig, place: Place, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    depot = open_depot(bucket)
    write(place, "shared.bin", 1)
    one = save(depot, place)
    (place.workspace / "shared.bin").unlink()
    two = save(depot, place, parent=one)
    write(place, "shared.bin", 1)  # the writer will count on the pack of the first
    write(place, "new.bin", 2)

    def meanwhile() -> None:
        other = open_depot(bucket)
        other.forget(one.id)
        assert other.prune(grace_seconds=0).deleted >= 1
        other.close()

    with before_each_put(moment, meanwhile, monkeypatch) as met:
        three = save(depot, place, parent=two)
    assert met
    depot.close()
    assert [each.id for each in list_checkpoints(bucket)] == [three.id, two.id]
    assert [each.id for each in list_checkpoints(bucket, tag="s-1")] == [three.id, two.id]
    assert whole(bucket, [two, three])


@pytest.mark.s3
def test_a_prune_between_the_entry_and_the_last_look_is_noticed(
    bucket: StorageConfig, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    depot = open_depot(bucket)
    one = grown(depot, place, 1)[0]
    write(place, "data.bin", 7)
    real = BucketLog.append
    numbers: list[str] = []

    def append(self: BucketLog, make: Callable[[str], CheckpointInfo]) -> CheckpointInfo:
        info = real(self, make)
        numbers.append(info.id)
        if len(numbers) == 1:
            other = open_depot(bucket)
            other.forget(one.id)
            other.prune(grace_seconds=0)
            other.close()
        return info

    monkeypatch.setattr(BucketLog, "append", append)
    two = save(depot, place)
    depot.close()
    assert len(numbers) == 2
    assert [each.id for each in list_checkpoints(bucket)] == [two.id]
    assert whole(bucket, [two])


def test_writers_readers_and_pruners_at_the_same_time(config: StorageConfig, tmp_path: Path) -> None:
    """Whatever was acknowledged and not forgotten is whole, though every prune has no grace at all."""
    stop = threading.Event()
    problems: list[BaseException] = []
    kept: list[CheckpointInfo] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - told below
                problems.append(error)

        return run

    def writer(number: int) -> None:
        place = make_place(tmp_path / f"home-{number}")
        depot = open_depot(config)
        rng = random.Random(number)
        for step in range(6):
            for _ in range(2):  # contents that others write and forget as well
                write(place, f"f{rng.randrange(4)}.bin", rng.randrange(6), 30_000)
            while True:
                try:
                    info = save(depot, place, tag=f"w-{number}")
                    break
                except Conflict:  # a prune came thrice in between; the next try is another save
                    pass
            if step % 3 == 2:
                kept.append(info)
            else:
                depot.forget(info.id)
        depot.close()

    def pruner() -> None:
        while not stop.is_set():
            # It may meet another prune, or a checkpoint that its writer is about to withdraw.
            with contextlib.suppress(Conflict, Corrupt):
                prune_storage(config, grace_seconds=0)

    BucketLog(open_bucket(config)).prepare()  # else a pruner that comes first finds no storage
    writers = [threading.Thread(target=guarded(lambda n=n: writer(n))) for n in range(3)]
    pruners = [threading.Thread(target=guarded(pruner)) for _ in range(2)]
    for each in (*writers, *pruners):
        each.start()
    for each in writers:
        each.join()
    stop.set()
    for each in pruners:
        each.join()
    assert problems == []
    assert sorted(each.id for each in list_checkpoints(config)) == sorted(each.id for each in kept)
    assert whole(config, kept)
    prune_storage(config, grace_seconds=0)
    assert whole(config, kept)


POINTS = ("prune.copied", "prune.condemned", "prune.unnamed", "prune.deleted", "bucket.forgotten")


@pytest.mark.parametrize("point", [*(f"{each}=kill:1" for each in POINTS), "prune.condemned=kill:2"])
def test_a_pruner_that_dies_leaves_nothing_broken(config: StorageConfig, place: Place, point: str) -> None:
    depot = open_depot(config)
    for number in range(4):
        write(place, f"f{number}.bin", 100 + number)
    made = grown(depot, place, 4)
    for number in range(1, 4):
        (place.workspace / f"f{number}.bin").unlink()
    last = save(depot, place, parent=made[-1])
    died = subprocess.run(
        [sys.executable, "-c", PRUNER, json.dumps(told(config)), *(each.id for each in made)],
        cwd=REPOSITORY,
        env=os.environ | {"TREERING_FAILPOINTS": point},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    write(place, "f1.bin", 101)  # what the dead one may have deleted half
    new = save(depot, place, parent=last)
    assert whole(config, [last, new])
    depot.forget(keep=Keep(last=2))
    depot.prune(grace_seconds=0)
    depot.close()
    assert whole(config, [last, new])
    assert held(config) < 400_000


PRUNER = """
import json, sys
from treering.sandbox import StorageConfig, forget_checkpoints, prune_storage
config = StorageConfig(**json.loads(sys.argv[1]))
forget_checkpoints(config, *sys.argv[2:])
prune_storage(config, grace_seconds=0)
"""


def told(config: StorageConfig) -> dict[str, object]:
    names = ("url", "endpoint", "region", "credentials")
    given = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
    return given | {"url": str(config.url)}


def test_a_writer_that_dies_before_its_last_look_leaves_a_checkpoint_that_is_kept_or_forgotten(
    storage: StorageConfig, place: Place
) -> None:
    script = (
        "import json, sys; from pathlib import Path; from treering.sandbox import StorageConfig, open_depot;"
        "from treering.sandbox.archive import Place; from treering.sandbox.records import Label;"
        "home = Path(sys.argv[2]);"
        "open_depot(StorageConfig(**json.loads(sys.argv[1]))).save("
        "Place(home=home, workspace=home / 'workspace'), Label(tag='t-1'))"
    )
    died = subprocess.run(
        [sys.executable, "-c", script, json.dumps(told(storage)), str(place.home)],
        cwd=REPOSITORY,
        env=os.environ | {"TREERING_FAILPOINTS": "bucket.entered=kill"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    prune_storage(storage, grace_seconds=0)
    assert whole(storage, list_checkpoints(storage))
    assert len(list_checkpoints(storage)) == 1


def test_two_pruners_do_not_undo_each_other(storage: StorageConfig) -> None:
    blobs = open_bucket(storage)
    before = read_verdict(blobs)
    write_verdict(blobs, before, {"a": None})
    with pytest.raises(Conflict, match="someone else prunes"):
        write_verdict(blobs, before, {"b": None})
    assert read_verdict(blobs).packs == {"a": None}


def test_of_two_writers_of_one_session_both_are_found_by_it(
    storage: StorageConfig, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who loses the race for a number leaves the mark of the one who won it."""
    depot, other = open_depot(storage), open_depot(storage)
    real = BucketLog._newest

    def newest(self: BucketLog) -> int:
        found = real(self)
        monkeypatch.setattr(BucketLog, "_newest", real)
        save(other, place)
        return found

    monkeypatch.setattr(BucketLog, "_newest", newest)
    save(depot, place)
    assert len(depot.list(tag="s-1")) == len(depot.list()) == 2
    depot.close()
    other.close()

"""Forgetting checkpoints of a bucket and freeing what only they needed, beside writers without locks."""

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

import treering
from tests.sandbox.conftest import config_of
from tests.sandbox.test_bucket import make_place, save
from tests.server.running import running
from tests.workspaces.pictures import picture
from treering.blobs.retry import RetryingBlobs
from treering.core.address import object_address
from treering.core.query import EventQuery
from treering.core.retention import Keep
from treering.core.tree import links_of
from treering.errors import Conflict, Corrupt, InvalidInput, NotFound
from treering.sandbox import (
    CheckpointInfo,
    Depot,
    StorageConfig,
    depot_in,
    forget_checkpoints,
    list_checkpoints,
    open_depot,
    prune_storage,
)
from treering.sandbox.archive import Place
from treering.sandbox.bucket_log import BucketLog
from treering.sandbox.bucket_objects import BucketObjects
from treering.sandbox.condemned import FILE, read_verdict, write_verdict
from treering.sandbox.config import open_bucket
from treering.server.settings import Settings

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(params=["folder", "s3"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> StorageConfig:
    if request.param == "folder":
        return StorageConfig(tmp_path / "bucket")
    request.applymarker(pytest.mark.s3)
    return config_of(request.getfixturevalue("s3"))


@pytest.fixture
def folder(tmp_path: Path) -> StorageConfig:
    return StorageConfig(tmp_path / "bucket")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return make_place(tmp_path / "home")


def write(place: Place, name: str, seed: int, size: int = 60_000) -> None:
    (place.workspace / name).write_bytes(random.Random(seed).randbytes(size))


def grown(depot: Depot, place: Place, count: int, *, tag: str = "s-1") -> list[CheckpointInfo]:
    """Checkpoints of which each replaces one file of 60 kB."""
    made: list[CheckpointInfo] = []
    for number in range(count):
        write(place, "data.bin", number)
        made.append(save(depot, place, tag=tag, parent=made[-1] if made else None))
    return made


def held(config: StorageConfig) -> int:
    return sum(each.size for each in open_bucket(config).list("packs"))


def whole(config: StorageConfig, infos: list[CheckpointInfo]) -> bool:
    """Whether another machine could restore all of these."""
    depot = open_depot(config)
    try:
        return all(depot.check(depot.find(each.id)).ok for each in infos)
    finally:
        depot.close()


def test_forgotten_checkpoints_are_gone_and_a_prune_frees_their_files(
    config: StorageConfig, place: Place, tmp_path: Path
) -> None:
    depot = open_depot(config)
    made = grown(depot, place, 5)
    was = picture(place.home)
    before = held(config)

    plan = depot.forget(keep=Keep(last=1), dry_run=True)
    assert [each.id for each in plan.dropped] == [each.id for each in made[3::-1]]
    assert (plan.kept, plan.dry_run) == (1, True)
    assert len(depot.list()) == 5
    done = forget_checkpoints(config, keep=Keep(last=1))
    assert done.dropped == plan.dropped
    assert [each.id for each in list_checkpoints(config)] == [made[4].id]
    assert [each.id for each in list_checkpoints(config, tag="s-1")] == [made[4].id]
    with pytest.raises(NotFound, match="list_checkpoints"):
        depot.find(made[0].id)

    foreseen = prune_storage(config, grace_seconds=0, dry_run=True)
    assert foreseen.waiting_bytes > 200_000
    assert held(config) == before
    pruned = prune_storage(config, grace_seconds=0)
    assert pruned.freed_bytes == foreseen.waiting_bytes
    assert pruned.waiting == 0
    assert held(config) < before * 0.5
    assert whole(config, [made[4]])
    fresh = Place(home=tmp_path / "b", workspace=tmp_path / "b" / "workspace", settings=(".claude",))
    depot.restore(depot.find("latest"), fresh)  # whose index is older than the prune
    assert picture(fresh.home) == was
    assert prune_storage(config, grace_seconds=0).freed_bytes == 0
    depot.close()


def test_the_first_machine_goes_on_after_a_prune_by_another(config: StorageConfig, place: Place) -> None:
    """What it knew of its folder may lie in packs that are gone; then it is sent again."""
    depot = open_depot(config)
    write(place, "old.bin", 1)
    one = save(depot, place)
    (place.workspace / "old.bin").unlink()
    two = save(depot, place, parent=one)
    forget_checkpoints(config, one.id)
    prune_storage(config, grace_seconds=0)
    write(place, "old.bin", 1)  # the content that was just deleted
    three = save(depot, place, parent=two)
    depot.close()
    assert whole(config, [two, three])
    other = open_depot(config)
    four = save(other, place, parent=three)  # by what this machine wrote down of the folder
    other.close()
    assert four.hash == three.hash
    assert whole(config, [four])


def test_a_root_that_outlives_its_files_is_not_trusted(
    folder: StorageConfig, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stat cache names a tree that is still in a pack, and files of it that are not."""
    monkeypatch.setattr("treering.views.workspaces.known._TICK_NS", -(10**12))  # no file is too young
    depot = open_depot(folder)
    base = save(depot, place)
    write(place, "gone.bin", 2)
    gone = save(depot, place, tag="s-2", parent=base)
    depot.close()
    objects = BucketObjects(open_bucket(folder))
    (root,) = objects.get("default", [object_address(gone.hash)])
    below = objects.get("default", [object_address(each) for each in links_of(root)])
    forget_checkpoints(folder, gone.id)
    prune_storage(folder, grace_seconds=0)
    objects.begin()
    objects.stage("default", [root, *(each for each in below if each.kind == "tree")])
    objects.flush()
    objects.close()
    again = open_depot(folder)
    back = save(again, place, parent=base)
    again.close()
    assert back.hash == gone.hash
    assert whole(folder, [base, back])


def test_packs_are_condemned_first_and_deleted_after_the_grace(
    folder: StorageConfig, place: Place, tmp_path: Path
) -> None:
    depot = open_depot(folder)
    made = grown(depot, place, 4)
    depot.forget(made[0].id, made[1].id)
    assert depot.prune() == depot.prune(grace_seconds=86_400)
    assert depot.prune().waiting == 0  # everything is younger than a day

    age(tmp_path / "bucket", seconds=90_000)
    before = held(folder)
    first = depot.prune()
    assert first.waiting >= 1
    assert first.deleted == 0
    second = depot.prune()
    assert (second.deleted, second.waiting) == (0, first.waiting)
    assert held(folder) >= before
    age(tmp_path / "bucket", seconds=90_000)
    third = depot.prune()
    assert third.deleted == first.waiting
    assert held(folder) < before
    depot.close()
    assert whole(folder, made[2:])
    age(tmp_path / "bucket", seconds=200_000)
    prune_storage(folder)
    assert read_verdict(open_bucket(folder)).packs == {}  # nobody can remember those any more


def age(bucket: Path, *, seconds: float) -> None:
    """Let everything in a bucket, also what it says of times, be so much older."""
    for file in bucket.rglob("*"):
        if file.is_file() and ".drafts" not in file.parts:
            stat = file.stat()
            os.utime(file, (stat.st_atime - seconds, stat.st_mtime - seconds))
    state = bucket / FILE
    if state.exists():
        modified = state.stat().st_mtime_ns
        told = json.loads(state.read_bytes())
        told["packs"] = {
            pack: None if since is None else since - round(seconds * 1e6)
            for pack, since in told["packs"].items()
        }
        state.write_text(json.dumps(told))
        os.utime(state, ns=(modified, modified))


def test_a_pack_of_which_little_is_needed_is_copied(config: StorageConfig, place: Place) -> None:
    for number in range(8):
        write(place, f"f{number}.bin", number)
    depot = open_depot(config)
    one = save(depot, place)
    for number in range(1, 8):
        (place.workspace / f"f{number}.bin").unlink()
    two = save(depot, place)
    depot.forget(one.id)
    pruned = depot.prune(grace_seconds=0)
    assert 60_000 < pruned.copied_bytes < 120_000
    assert held(config) < 150_000
    depot.close()
    assert whole(config, [two])


def test_a_pack_of_which_much_is_needed_stays(folder: StorageConfig, place: Place) -> None:
    for number in range(8):
        write(place, f"f{number}.bin", number)
    depot = open_depot(folder)
    one = save(depot, place)
    (place.workspace / "f0.bin").unlink()
    two = save(depot, place)
    depot.forget(one.id)
    assert depot.prune(grace_seconds=0).copied_bytes == 0
    depot.close()
    assert whole(folder, [two])


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
    folder: StorageConfig, place: Place
) -> None:
    script = (
        "import json, sys; from pathlib import Path; from treering.sandbox import StorageConfig, open_depot;"
        "from treering.sandbox.archive import Place; from treering.sandbox.records import Label;"
        "home = Path(sys.argv[2]);"
        "open_depot(StorageConfig(**json.loads(sys.argv[1]))).save("
        "Place(home=home, workspace=home / 'workspace'), Label(tag='t-1'))"
    )
    died = subprocess.run(
        [sys.executable, "-c", script, json.dumps(told(folder)), str(place.home)],
        cwd=REPOSITORY,
        env=os.environ | {"TREERING_FAILPOINTS": "bucket.entered=kill"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    prune_storage(folder, grace_seconds=0)
    assert whole(folder, list_checkpoints(folder))
    assert len(list_checkpoints(folder)) == 1


def test_a_number_is_not_given_again(config: StorageConfig, place: Place) -> None:
    depot = open_depot(config)
    one, two = grown(depot, place, 2)
    depot.forget(two.id)
    depot.forget(one.id)
    assert depot.list() == []
    prune_storage(config, grace_seconds=0)
    three = save(depot, place)
    assert int(three.id.rpartition("_")[2], 36) == 3
    assert depot.find("latest") == three
    with pytest.raises(NotFound):
        depot.forget(two.id)
    depot.close()
    assert whole(config, [three])


def test_forgetting_what_another_one_forgot_touches_no_newer_one(folder: StorageConfig, place: Place) -> None:
    depot = open_depot(folder)
    (one,) = grown(depot, place, 1)
    log = BucketLog(open_bucket(folder))
    log.forget(one)
    log.forget(one)
    two = save(depot, place)
    log.forget(one)
    assert depot.list() == [two]
    depot.close()


def test_litter_of_the_forgotten_goes(folder: StorageConfig, place: Place, tmp_path: Path) -> None:
    depot = open_depot(folder)
    made = grown(depot, place, 4)
    depot.forget(*(each.id for each in made[:3]))
    (tmp_path / "bucket" / "tags" / "s-9").mkdir()
    (tmp_path / "bucket" / "tags" / "s-9" / "9999999998").touch()  # of a writer that died
    age(tmp_path / "bucket", seconds=90_000)
    depot.prune(grace_seconds=0)
    assert len(list((tmp_path / "bucket" / "checkpoints").iterdir())) == 1
    assert [each.name for each in (tmp_path / "bucket" / "tags").rglob("99*")] == ["9999999995"]
    assert depot.list() == [made[3]]
    depot.close()


def test_policies_count_all_checkpoints_or_those_of_each_session(folder: StorageConfig, place: Place) -> None:
    depot = open_depot(folder)
    tags = ["a-0", "a-1", "a-0", "a-1", "b-0", "b-1"]
    made = [save(depot, place, tag=tag, comment="release" if n == 1 else None) for n, tag in enumerate(tags)]
    ids = [each.id for each in made]

    def left(keep: Keep, *, tag: str | None = None, per_session: bool = False) -> list[int]:
        plan = depot.forget(keep=keep, tag=tag, per_session=per_session, dry_run=True)
        gone = {each.id for each in plan.dropped}
        return [number for number, each in enumerate(ids) if each not in gone]

    assert left(Keep(last=2)) == [4, 5]
    assert left(Keep(last=1), per_session=True) == [2, 3, 4, 5]
    assert left(Keep(last=1, tagged=("release",))) == [1, 5]
    assert left(Keep(last=1, tagged=("a-0",))) == [0, 2, 5]
    assert left(Keep(last=1, tagged=("a",))) == [0, 1, 2, 3, 5]
    assert left(Keep(last=1), tag="a-0") == [1, 2, 3, 4, 5]
    assert left(Keep(within="1h")) == [0, 1, 2, 3, 4, 5]
    assert left(Keep()) == [0, 1, 2, 3, 4, 5]
    done = depot.forget(tag="a-1")
    assert [each.id for each in done.dropped] == [ids[3], ids[1]]
    for wrong in ({}, {"ids": (ids[0],), "tag": "a-0"}):
        with pytest.raises(InvalidInput, match="forget what"):
            depot.forget(*wrong.pop("ids", ()), **wrong)
    with pytest.raises(InvalidInput, match="from 0 on"):
        depot.prune(grace_seconds=-1)
    depot.close()


def test_two_pruners_do_not_undo_each_other(folder: StorageConfig) -> None:
    blobs = open_bucket(folder)
    before = read_verdict(blobs)
    write_verdict(blobs, before, {"a": None})
    with pytest.raises(Conflict, match="someone else prunes"):
        write_verdict(blobs, before, {"b": None})
    assert read_verdict(blobs).packs == {"a": None}


def test_nothing_is_deleted_while_a_checkpoint_cannot_be_followed(
    folder: StorageConfig, place: Place, tmp_path: Path
) -> None:
    depot = open_depot(folder)
    made = grown(depot, place, 3)
    depot.forget(made[0].id)
    newest = max((tmp_path / "bucket" / "packs").rglob("*.pack"), key=lambda each: each.stat().st_mtime_ns)
    newest.rename(tmp_path / "away")
    before = held(folder)
    with pytest.raises(Corrupt):
        prune_storage(folder, grace_seconds=0)
    assert held(folder) == before
    (tmp_path / "away").rename(newest)
    prune_storage(folder, grace_seconds=0)
    depot.close()
    assert whole(folder, made[1:])


def test_reindexing_does_not_bring_condemned_packs_back(
    folder: StorageConfig, place: Place, tmp_path: Path
) -> None:
    depot = open_depot(folder)
    made = grown(depot, place, 3)
    depot.forget(made[0].id, made[1].id)
    age(tmp_path / "bucket", seconds=90_000)
    condemned = depot.prune().waiting
    assert condemned
    blobs = open_bucket(folder)
    blobs.delete([each.name for each in blobs.list("index")])
    other = open_depot(folder)
    assert other.reindex() == len(blobs.list("packs")) - condemned
    other.close()
    depot.close()
    assert whole(folder, [made[2]])


def test_a_bucket_of_the_first_layout_is_taken_over(
    folder: StorageConfig, place: Place, tmp_path: Path
) -> None:
    """Writers of version 1 know of no condemned packs, so they are kept out from the first write on."""
    depot = open_depot(folder)
    made = grown(depot, place, 2)
    (tmp_path / "bucket" / "format.json").write_text('{"treering":"bucket","version":1}')
    assert prune_storage(folder, dry_run=True).deleted == 0
    assert json.loads((tmp_path / "bucket" / "format.json").read_text())["version"] == 1
    forget_checkpoints(folder, made[0].id)
    assert json.loads((tmp_path / "bucket" / "format.json").read_text())["version"] == 2
    depot.close()


def test_of_two_writers_of_one_session_both_are_found_by_it(
    folder: StorageConfig, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who loses the race for a number leaves the mark of the one who won it."""
    depot, other = open_depot(folder), open_depot(folder)
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


def test_a_store_forgets_checkpoints_in_the_same_words(place: Place, tmp_path: Path) -> None:
    with treering.open(tmp_path / "store") as store:
        depot = depot_in(store)
        made = grown(depot, place, 4)
        assert len(depot.forget(keep=Keep(last=2), dry_run=True).dropped) == 2
        assert depot.list() == made[::-1]
        done = depot.forget(keep=Keep(last=2))
        assert done.dropped == (made[1], made[0])
        assert depot.list() == [made[3], made[2]]
        assert depot.prune(grace_seconds=0).dry_run is False
        assert store.stats().bytes["objects"] < 150_000
        assert depot.forget(made[2].id).kept == 1
        assert all(depot.check(each).ok for each in depot.list())
        told = store.engine.scan(store.space, EventQuery(kinds=("retention",)))
        assert len(told.records) == 2
        assert store.verify().ok


def test_a_server_forgets_checkpoints_in_the_same_words(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(treering.open(tmp_path / "served"), Settings(api_key="tr-key", project="default")) as url:
        monkeypatch.setenv("TREERING_URL", url)
        monkeypatch.setenv("TREERING_API_KEY", "tr-key")
        depot = open_depot(StorageConfig())
        made = grown(depot, place, 3)
        depot.close()
        done = forget_checkpoints(None, keep=Keep(last=1))
        assert done.dropped == (made[1], made[0])
        prune_storage(grace_seconds=0)
        assert list_checkpoints() == [made[2]]
        assert whole(StorageConfig(), [made[2]])

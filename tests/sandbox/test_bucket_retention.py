"""Forgetting checkpoints of a bucket and freeing what only they needed, beside writers without locks."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import treering
from tests.sandbox.storages import grown, held, save, whole, write
from tests.server.running import running
from tests.workspaces.pictures import picture
from treering.core.content import object_address
from treering.core.query import EventQuery
from treering.core.retention import Keep
from treering.core.tree import links_of
from treering.errors import Corrupt, InvalidInput, NotFound
from treering.sandbox import (
    StorageConfig,
    depot_in,
    forget_checkpoints,
    list_checkpoints,
    open_depot,
    prune_storage,
)
from treering.sandbox.archive import Place
from treering.sandbox.bucket import BucketLog
from treering.sandbox.bucket_objects import FILE, BucketObjects, read_verdict
from treering.sandbox.config import open_bucket
from treering.server.settings import Settings


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

    preview = prune_storage(config, grace_seconds=0, dry_run=True)
    assert preview.waiting_bytes > 200_000
    assert held(config) == before
    pruned = prune_storage(config, grace_seconds=0)
    assert pruned.freed_bytes == preview.waiting_bytes
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
    storage: StorageConfig, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stat cache names a tree that is still in a pack, and files of it that are not."""
    monkeypatch.setattr("treering.workspaces.scan._TICK_NS", -(10**12))  # no file is too young
    depot = open_depot(storage)
    base = save(depot, place)
    write(place, "gone.bin", 2)
    gone = save(depot, place, tag="s-2", parent=base)
    depot.close()
    objects = BucketObjects(open_bucket(storage))
    (root,) = objects.get("default", [object_address(gone.hash)])
    below = objects.get("default", [object_address(each) for each in links_of(root)])
    forget_checkpoints(storage, gone.id)
    prune_storage(storage, grace_seconds=0)
    objects.begin()
    objects.stage("default", [root, *(each for each in below if each.kind == "tree")])
    objects.flush()
    objects.close()
    again = open_depot(storage)
    back = save(again, place, parent=base)
    again.close()
    assert back.hash == gone.hash
    assert whole(storage, [base, back])


def test_packs_are_condemned_first_and_deleted_after_the_grace(
    storage: StorageConfig, place: Place, tmp_path: Path
) -> None:
    depot = open_depot(storage)
    made = grown(depot, place, 4)
    depot.forget(made[0].id, made[1].id)
    assert depot.prune() == depot.prune(grace_seconds=86_400)
    assert depot.prune().waiting == 0  # everything is younger than a day

    age(tmp_path / "bucket", seconds=90_000)
    before = held(storage)
    first = depot.prune()
    assert first.waiting >= 1
    assert first.deleted == 0
    second = depot.prune()
    assert (second.deleted, second.waiting) == (0, first.waiting)
    assert held(storage) >= before
    age(tmp_path / "bucket", seconds=90_000)
    third = depot.prune()
    assert third.deleted == first.waiting
    assert held(storage) < before
    depot.close()
    assert whole(storage, made[2:])
    age(tmp_path / "bucket", seconds=200_000)
    prune_storage(storage)
    assert read_verdict(open_bucket(storage)).packs == {}  # nobody can remember those any more


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


def test_a_pack_of_which_much_is_needed_stays(storage: StorageConfig, place: Place) -> None:
    for number in range(8):
        write(place, f"f{number}.bin", number)
    depot = open_depot(storage)
    one = save(depot, place)
    (place.workspace / "f0.bin").unlink()
    two = save(depot, place)
    depot.forget(one.id)
    assert depot.prune(grace_seconds=0).copied_bytes == 0
    depot.close()
    assert whole(storage, [two])


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


def test_forgetting_what_another_one_forgot_touches_no_newer_one(
    storage: StorageConfig, place: Place
) -> None:
    depot = open_depot(storage)
    (one,) = grown(depot, place, 1)
    log = BucketLog(open_bucket(storage))
    log.forget(one)
    log.forget(one)
    two = save(depot, place)
    log.forget(one)
    assert depot.list() == [two]
    depot.close()


def test_litter_of_the_forgotten_goes(storage: StorageConfig, place: Place, tmp_path: Path) -> None:
    depot = open_depot(storage)
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


def test_policies_count_all_checkpoints_or_those_of_each_session(
    storage: StorageConfig, place: Place
) -> None:
    depot = open_depot(storage)
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


def test_the_policy_of_a_store_counts_the_checkpoints_of_its_sandboxes(tmp_path: Path, place: Place) -> None:
    with treering.open(str(tmp_path / "agents")) as store:
        depot = depot_in(store)
        tags = ["a-0", "a-1", "a-2", "b-0", "b-1"]
        made = []
        for number, tag in enumerate(tags):
            write(place, "data.bin", number)
            made.append(save(depot, place, tag=tag, comment="release" if number == 1 else None))
        store.thread("t").checkpoint([{"role": "user", "content": "hi"}])
        before = store.stats().total_bytes
        done = store.gc(keep=Keep(last=2, tagged=("release",)), grace_seconds=0)
        assert done.dropped == {"sandbox_checkpoint": 2}
        assert done.kept == {"checkpoint": 1, "sandbox_checkpoint": 3}
        assert [each.id for each in depot.list()] == [made[4].id, made[3].id, made[1].id]
        assert all(depot.check(each).ok for each in depot.list())
        assert before - store.stats().total_bytes > 100_000
        store.gc(keep=Keep(last=1, tagged=("b",)))
        assert [each.id for each in depot.list()] == [made[4].id, made[3].id]


def test_nothing_is_deleted_while_a_checkpoint_cannot_be_followed(
    storage: StorageConfig, place: Place, tmp_path: Path
) -> None:
    depot = open_depot(storage)
    made = grown(depot, place, 3)
    depot.forget(made[0].id)
    newest = max((tmp_path / "bucket" / "packs").rglob("*.pack"), key=lambda each: each.stat().st_mtime_ns)
    newest.rename(tmp_path / "away")
    before = held(storage)
    with pytest.raises(Corrupt):
        prune_storage(storage, grace_seconds=0)
    assert held(storage) == before
    (tmp_path / "away").rename(newest)
    prune_storage(storage, grace_seconds=0)
    depot.close()
    assert whole(storage, made[1:])


def test_reindexing_does_not_bring_condemned_packs_back(
    storage: StorageConfig, place: Place, tmp_path: Path
) -> None:
    depot = open_depot(storage)
    made = grown(depot, place, 3)
    depot.forget(made[0].id, made[1].id)
    age(tmp_path / "bucket", seconds=90_000)
    condemned = depot.prune().waiting
    assert condemned
    blobs = open_bucket(storage)
    blobs.delete([each.name for each in blobs.list("index")])
    other = open_depot(storage)
    assert other.reindex() == len(blobs.list("packs")) - condemned
    other.close()
    depot.close()
    assert whole(storage, [made[2]])


def test_a_bucket_of_the_first_layout_is_taken_over(
    storage: StorageConfig, place: Place, tmp_path: Path
) -> None:
    """Writers of version 1 know of no condemned packs, so they are kept out from the first write on."""
    depot = open_depot(storage)
    made = grown(depot, place, 2)
    (tmp_path / "bucket" / "format.json").write_text('{"treering":"bucket","version":1}')
    assert prune_storage(storage, dry_run=True).deleted == 0
    assert json.loads((tmp_path / "bucket" / "format.json").read_text())["version"] == 1
    forget_checkpoints(storage, made[0].id)
    assert json.loads((tmp_path / "bucket" / "format.json").read_text())["version"] == 2
    depot.close()


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

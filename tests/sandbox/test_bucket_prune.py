"""Forget checkpoints of a bucket, and free what only they needed."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

import treering
from tests.sandbox.storages import grown, held, save, whole, write
from tests.server.running import running
from tests.workspaces.pictures import picture
from treering.core.content import Content, object_address
from treering.core.query import EventQuery
from treering.core.retention import Keep
from treering.core.tree import links_of
from treering.errors import Corrupt, InvalidInput, NotFound
from treering.sandbox import (
    CheckpointInfo,
    StorageConfig,
    forget_checkpoints,
    list_checkpoints,
    open_storage,
    prune_storage,
    storage_in,
)
from treering.sandbox.archive import SandboxFolders
from treering.sandbox.bucket import (
    _MANY_SMALL_PACKS,
    BucketObjects,
    BucketState,
    BucketStorage,
    _read_state,
    _update,
)
from treering.sandbox.storage import open_bucket
from treering.server.settings import Settings


def test_forgotten_checkpoints_are_gone_and_a_prune_frees_their_files(
    config: StorageConfig, folders: SandboxFolders, tmp_path: Path
) -> None:
    checkpoints = open_storage(config)
    made = grown(checkpoints, folders, 5)
    was = picture(folders.home)
    before = held(config)

    plan = checkpoints.forget(keep=Keep(last=1), dry_run=True)
    assert [each.id for each in plan.dropped] == [each.id for each in made[3::-1]]
    assert (plan.kept, plan.dry_run) == (1, True)
    assert len(checkpoints.list()) == 5
    done = forget_checkpoints(config, keep=Keep(last=1))
    assert done.dropped == plan.dropped
    assert [each.id for each in list_checkpoints(config)] == [made[4].id]
    assert [each.id for each in list_checkpoints(config, tag="s-1")] == [made[4].id]
    with pytest.raises(NotFound, match="list_checkpoints"):
        checkpoints.find(made[0].id)

    preview = prune_storage(config, grace_seconds=0, dry_run=True)
    assert preview.freed_bytes > 200_000
    assert held(config) == before
    pruned = prune_storage(config, grace_seconds=0)
    assert pruned.freed_bytes == preview.freed_bytes
    assert pruned.waiting == 0
    assert held(config) < before * 0.5
    assert whole(config, [made[4]])
    fresh = SandboxFolders(home=tmp_path / "b", workspace=tmp_path / "b" / "workspace", settings=(".claude",))
    checkpoints.restore(checkpoints.find("latest"), fresh)  # whose index is older than the prune
    assert picture(fresh.home) == was
    assert prune_storage(config, grace_seconds=0).freed_bytes == 0
    checkpoints.close()


def test_a_machine_continues_after_a_prune_by_another(config: StorageConfig, folders: SandboxFolders) -> None:
    """Its stat cache may rely on packs that were deleted; then the files are uploaded again."""
    checkpoints = open_storage(config)
    write(folders, "old.bin", 1)
    one = save(checkpoints, folders)
    (folders.workspace / "old.bin").unlink()
    two = save(checkpoints, folders, parent=one)
    forget_checkpoints(config, one.id)
    prune_storage(config, grace_seconds=0)
    write(folders, "old.bin", 1)  # the content that was just deleted
    three = save(checkpoints, folders, parent=two)
    checkpoints.close()
    assert whole(config, [two, three])
    other = open_storage(config)
    four = save(other, folders, parent=three)  # by what this machine wrote down of the folder
    other.close()
    assert four.hash == three.hash
    assert whole(config, [four])


def test_a_root_that_outlives_its_files_is_not_trusted(
    storage: StorageConfig, folders: SandboxFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stat cache names a tree that is stored in some pack, and files of it that are not."""
    monkeypatch.setattr("treering.workspaces.scan._TICK_NS", -(10**12))  # no file counts as changed just now
    checkpoints = open_storage(storage)
    base = save(checkpoints, folders)
    write(folders, "gone.bin", 2)
    gone = save(checkpoints, folders, tag="s-2", parent=base)
    checkpoints.close()
    objects = BucketObjects(open_bucket(storage))
    (root,) = objects.get("default", [object_address(gone.hash)])
    below = objects.get("default", [object_address(each) for each in links_of(root)])
    forget_checkpoints(storage, gone.id)
    prune_storage(storage, grace_seconds=0)
    objects.begin()
    objects.stage("default", [root, *(each for each in below if each.kind == "tree")])
    change_state(storage, packs=objects.upload())
    objects.close()
    again = open_storage(storage)
    back = save(again, folders, parent=base)
    again.close()
    assert back.hash == gone.hash
    assert whole(storage, [base, back])


def test_packs_are_dropped_first_and_deleted_after_the_grace(
    storage: StorageConfig, folders: SandboxFolders, tmp_path: Path
) -> None:
    checkpoints = open_storage(storage)
    made = grown(checkpoints, folders, 4)
    checkpoints.forget(made[0].id, made[1].id)
    before = held(storage)
    first = checkpoints.prune()
    assert first.waiting >= 1
    assert first.deleted == 0
    second = checkpoints.prune()
    assert (second.deleted, second.waiting) == (0, first.waiting)
    assert held(storage) >= before
    age(tmp_path / "bucket", storage, seconds=90_000)
    third = checkpoints.prune()
    assert (third.deleted, third.waiting) == (first.waiting, 0)
    assert held(storage) < before
    assert read_state(storage).dropped == {}
    checkpoints.close()
    assert whole(storage, made[2:])


def test_packs_that_nothing_names_are_deleted_after_the_grace(
    storage: StorageConfig, folders: SandboxFolders, tmp_path: Path
) -> None:
    """They are of a writer that died, or of one that is not done yet."""
    checkpoints = open_storage(storage)
    (one,) = grown(checkpoints, folders, 1)
    dead = BucketObjects(open_bucket(storage))
    dead.begin()
    dead.stage("default", [Content("bytes", b"x" * 9000)])
    dead.upload()
    dead.close()
    before = held(storage)
    assert checkpoints.prune().deleted == 0
    assert held(storage) == before
    age(tmp_path / "bucket", storage, seconds=90_000)
    assert checkpoints.prune().deleted == 1
    assert held(storage) < before
    checkpoints.close()
    assert whole(storage, [one])


def test_many_small_packs_are_merged_by_a_prune(storage: StorageConfig, folders: SandboxFolders) -> None:
    checkpoints = open_storage(storage)
    made: list[CheckpointInfo] = []
    for number in range(_MANY_SMALL_PACKS):
        write(folders, f"f{number}.bin", number, 500)
        made.append(save(checkpoints, folders))
    assert len(read_state(storage).packs) == _MANY_SMALL_PACKS
    assert checkpoints.prune(grace_seconds=0).copied_bytes > 0
    checkpoints.close()
    assert len(read_state(storage).packs) == 1
    assert whole(storage, made)


def age(bucket: Path, config: StorageConfig, *, seconds: float) -> None:
    """Make everything in a bucket older, including the times in its state."""
    dropped = read_state(config).dropped
    change_state(config, dropped={pack: since - round(seconds * 1e6) for pack, since in dropped.items()})
    for file in bucket.rglob("*"):
        if file.is_file() and ".drafts" not in file.parts:
            stat = file.stat()
            os.utime(file, (stat.st_atime - seconds, stat.st_mtime - seconds))


def read_state(config: StorageConfig) -> BucketState:
    return _read_state(open_bucket(config))[0]


def change_state(config: StorageConfig, **changes: dict[str, int]) -> None:
    def change(state: BucketState) -> BucketState:
        merged = {name: getattr(state, name) | value for name, value in changes.items()}
        return msgspec.structs.replace(state, **merged)

    _update(open_bucket(config), change)


def test_a_pack_that_is_mostly_garbage_is_replaced(config: StorageConfig, folders: SandboxFolders) -> None:
    for number in range(8):
        write(folders, f"f{number}.bin", number)
    checkpoints = open_storage(config)
    one = save(checkpoints, folders)
    for number in range(1, 8):
        (folders.workspace / f"f{number}.bin").unlink()
    two = save(checkpoints, folders)
    checkpoints.forget(one.id)
    pruned = checkpoints.prune(grace_seconds=0)
    assert 60_000 < pruned.copied_bytes < 120_000
    assert held(config) < 150_000
    checkpoints.close()
    assert whole(config, [two])


def test_a_pack_that_is_mostly_needed_stays(storage: StorageConfig, folders: SandboxFolders) -> None:
    for number in range(8):
        write(folders, f"f{number}.bin", number)
    checkpoints = open_storage(storage)
    one = save(checkpoints, folders)
    (folders.workspace / "f0.bin").unlink()
    two = save(checkpoints, folders)
    checkpoints.forget(one.id)
    assert checkpoints.prune(grace_seconds=0).copied_bytes == 0
    checkpoints.close()
    assert whole(storage, [two])


def test_forgetting_twice_changes_nothing(storage: StorageConfig, folders: SandboxFolders) -> None:
    checkpoints = open_storage(storage)
    one, two = grown(checkpoints, folders, 2)
    backend = BucketStorage(open_bucket(storage), cache=None)
    backend.forget([one])
    backend.forget([one])
    assert checkpoints.list() == [two]
    checkpoints.forget(two.id)
    with pytest.raises(NotFound):
        checkpoints.forget(two.id)
    assert checkpoints.list() == []
    backend.close()
    checkpoints.close()


def test_policies_count_all_checkpoints_or_those_of_each_session(
    storage: StorageConfig, folders: SandboxFolders
) -> None:
    checkpoints = open_storage(storage)
    tags = ["a-0", "a-1", "a-0", "a-1", "b-0", "b-1"]
    made = [
        save(checkpoints, folders, tag=tag, comment="release" if n == 1 else None)
        for n, tag in enumerate(tags)
    ]
    ids = [each.id for each in made]

    def left(keep: Keep, *, tag: str | None = None, per_session: bool = False) -> list[int]:
        plan = checkpoints.forget(keep=keep, tag=tag, per_session=per_session, dry_run=True)
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
    done = checkpoints.forget(tag="a-1")
    assert [each.id for each in done.dropped] == [ids[3], ids[1]]
    for wrong in ({}, {"ids": (ids[0],), "tag": "a-0"}):
        with pytest.raises(InvalidInput, match="nothing to forget"):
            checkpoints.forget(*wrong.pop("ids", ()), **wrong)
    with pytest.raises(InvalidInput, match="must not be negative"):
        checkpoints.prune(grace_seconds=-1)
    checkpoints.close()


def test_the_policy_of_a_store_counts_the_checkpoints_of_its_sandboxes(
    tmp_path: Path, folders: SandboxFolders
) -> None:
    with treering.open(str(tmp_path / "agents")) as store:
        checkpoints = storage_in(store)
        tags = ["a-0", "a-1", "a-2", "b-0", "b-1"]
        made = []
        for number, tag in enumerate(tags):
            write(folders, "data.bin", number)
            made.append(save(checkpoints, folders, tag=tag, comment="release" if number == 1 else None))
        store.thread("t").checkpoint([{"role": "user", "content": "hi"}])
        before = store.stats().total_bytes
        done = store.gc(keep=Keep(last=2, tagged=("release",)), grace_seconds=0)
        assert done.dropped == {"sandbox_checkpoint": 2}
        assert done.kept == {"checkpoint": 1, "sandbox_checkpoint": 3}
        assert [each.id for each in checkpoints.list()] == [made[4].id, made[3].id, made[1].id]
        assert all(checkpoints.check(each).ok for each in checkpoints.list())
        assert before - store.stats().total_bytes > 100_000
        store.gc(keep=Keep(last=1, tagged=("b",)))
        assert [each.id for each in checkpoints.list()] == [made[4].id, made[3].id]


def test_nothing_is_deleted_while_a_checkpoint_is_incomplete(
    storage: StorageConfig, folders: SandboxFolders, tmp_path: Path
) -> None:
    checkpoints = open_storage(storage)
    made = grown(checkpoints, folders, 3)
    checkpoints.forget(made[0].id)
    newest = max((tmp_path / "bucket" / "packs").rglob("*.pack"), key=lambda each: each.stat().st_mtime_ns)
    newest.rename(tmp_path / "away")
    before = held(storage)
    with pytest.raises(Corrupt):
        prune_storage(storage, grace_seconds=0)
    assert held(storage) == before
    (tmp_path / "away").rename(newest)
    prune_storage(storage, grace_seconds=0)
    checkpoints.close()
    assert whole(storage, made[1:])


def test_a_store_forgets_checkpoints_in_the_same_way(folders: SandboxFolders, tmp_path: Path) -> None:
    with treering.open(tmp_path / "store") as store:
        checkpoints = storage_in(store)
        made = grown(checkpoints, folders, 4)
        assert len(checkpoints.forget(keep=Keep(last=2), dry_run=True).dropped) == 2
        assert checkpoints.list() == made[::-1]
        done = checkpoints.forget(keep=Keep(last=2))
        assert done.dropped == (made[1], made[0])
        assert checkpoints.list() == [made[3], made[2]]
        assert checkpoints.prune(grace_seconds=0).dry_run is False
        assert store.stats().bytes["objects"] < 150_000
        assert checkpoints.forget(made[2].id).kept == 1
        assert all(checkpoints.check(each).ok for each in checkpoints.list())
        reported = store.engine.scan(store.space, EventQuery(kinds=("retention",)))
        assert len(reported.records) == 2
        assert store.verify().ok


def test_a_server_forgets_checkpoints_in_the_same_way(
    folders: SandboxFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(
        treering.open(tmp_path / "served"), Settings(api_key="tr-key-0123456789", project="default")
    ) as url:
        monkeypatch.setenv("TREERING_URL", url)
        monkeypatch.setenv("TREERING_API_KEY", "tr-key-0123456789")
        checkpoints = open_storage(StorageConfig())
        made = grown(checkpoints, folders, 3)
        checkpoints.close()
        done = forget_checkpoints(None, keep=Keep(last=1))
        assert done.dropped == (made[1], made[0])
        prune_storage(grace_seconds=0)
        assert list_checkpoints() == [made[2]]
        assert whole(StorageConfig(), [made[2]])

"""Writers and pruners of one bucket at the same time, without locks; and those that die half way."""

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

from tests.sandbox.storages import grown, held, make_folders, save, whole, write
from treering.blobs.folder import FolderBlobs
from treering.blobs.retry import RetryingBlobs
from treering.core.retention import Keep
from treering.errors import Conflict
from treering.sandbox import (
    CheckpointInfo,
    StorageConfig,
    list_checkpoints,
    open_storage,
    prune_storage,
)
from treering.sandbox.archive import SandboxFolders
from treering.sandbox.bucket import STATE, BucketState, _update
from treering.sandbox.storage import open_bucket

REPOSITORY = Path(__file__).parents[2]


@contextmanager
def before_next_put(of: str, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Do something once, right before the next write of a blob whose name starts with ``of``."""
    met: list[str] = []

    def patched(real: Callable[..., object]) -> Callable[..., object]:
        def put(self: object, name: str, *args: object, **more: object) -> object:
            if name.startswith(of) and not met:
                met.append(name)
                act()
            return real(self, name, *args, **more)

        return put

    with monkeypatch.context() as patch:
        for blobs in (RetryingBlobs, FolderBlobs):
            for verb in ("put", "put_if"):
                patch.setattr(blobs, verb, patched(getattr(blobs, verb)))
        yield met


@pytest.mark.s3
@pytest.mark.parametrize("moment", ["packs/", STATE])
def test_a_prune_in_the_middle_of_a_save_costs_the_writer_time_and_nothing_else(
    bucket: StorageConfig, folders: SandboxFolders, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = open_storage(bucket)
    write(folders, "shared.bin", 1)
    one = save(checkpoints, folders)
    (folders.workspace / "shared.bin").unlink()
    two = save(checkpoints, folders, parent=one)
    write(folders, "shared.bin", 1)  # the writer will count on the pack of the first
    write(folders, "new.bin", 2)

    def meanwhile() -> None:
        other = open_storage(bucket)
        other.forget(one.id)
        assert other.prune(grace_seconds=0).deleted >= 1
        other.close()

    with before_next_put(moment, meanwhile, monkeypatch) as met:
        three = save(checkpoints, folders, parent=two)
    assert met
    checkpoints.close()
    assert [each.id for each in list_checkpoints(bucket)] == [three.id, two.id]
    assert [each.id for each in list_checkpoints(bucket, tag="s-1")] == [three.id, two.id]
    assert whole(bucket, [two, three])


def test_writers_readers_and_pruners_at_the_same_time(config: StorageConfig, tmp_path: Path) -> None:
    """Every acknowledged checkpoint is complete, although no prune has a grace period."""
    problems: list[BaseException] = []
    kept: list[CheckpointInfo] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - asserted below
                problems.append(error)

        return run

    def writer(number: int) -> None:
        folders = make_folders(tmp_path / f"home-{number}")
        checkpoints = open_storage(config)
        rng = random.Random(number)
        for step in range(6):
            for _ in range(2):  # contents that others write and forget as well
                write(folders, f"f{rng.randrange(4)}.bin", rng.randrange(6), 30_000)
            while True:
                try:
                    info = save(checkpoints, folders, tag=f"w-{number}")
                    break
                except Conflict:  # three prunes in a row came first; try another save
                    pass
            if step % 3 == 2:
                kept.append(info)
            else:
                checkpoints.forget(info.id)
        checkpoints.close()

    def pruner() -> None:
        for _ in range(15):
            with contextlib.suppress(Conflict):  # it may meet the other one
                prune_storage(config, grace_seconds=0)

    _update(open_bucket(config), lambda _: BucketState(generation=1))  # there is a bucket from the start
    writers = [threading.Thread(target=guarded(lambda n=n: writer(n))) for n in range(3)]
    pruners = [threading.Thread(target=guarded(pruner)) for _ in range(2)]
    for each in (*writers, *pruners):
        each.start()
    for each in (*writers, *pruners):
        each.join()
    assert problems == []
    assert sorted(each.id for each in list_checkpoints(config)) == sorted(each.id for each in kept)
    assert whole(config, kept)
    prune_storage(config, grace_seconds=0)
    assert whole(config, kept)


@pytest.mark.parametrize("point", ["prune.copied", "prune.dropped", "prune.deleted"])
def test_a_pruner_that_dies_leaves_nothing_broken(
    config: StorageConfig, folders: SandboxFolders, point: str
) -> None:
    checkpoints = open_storage(config)
    for number in range(4):
        write(folders, f"f{number}.bin", 100 + number)
    made = grown(checkpoints, folders, 4)
    for number in range(1, 4):
        (folders.workspace / f"f{number}.bin").unlink()
    last = save(checkpoints, folders, parent=made[-1])
    died = subprocess.run(
        [sys.executable, "-c", PRUNER, json.dumps(options_of(config)), *(each.id for each in made)],
        cwd=REPOSITORY,
        env=os.environ | {"TREERING_FAILPOINTS": f"{point}=kill"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    write(folders, "f1.bin", 101)  # content of a pack that may be half deleted
    new = save(checkpoints, folders, parent=last)
    assert whole(config, [last, new])
    checkpoints.forget(keep=Keep(last=2))
    checkpoints.prune(grace_seconds=0)
    checkpoints.close()
    assert whole(config, [last, new])
    assert held(config) < 400_000


PRUNER = """
import json, sys
from treering.sandbox import StorageConfig, forget_checkpoints, prune_storage
config = StorageConfig(**json.loads(sys.argv[1]))
forget_checkpoints(config, *sys.argv[2:])
prune_storage(config, grace_seconds=0)
"""


def options_of(config: StorageConfig) -> dict[str, object]:
    names = ("url", "endpoint", "region", "credentials")
    given = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
    return given | {"url": str(config.url)}


def test_a_writer_that_dies_before_its_checkpoint_leaves_only_garbage(
    storage: StorageConfig, folders: SandboxFolders
) -> None:
    died = subprocess.run(
        [sys.executable, "-c", WRITER, json.dumps(options_of(storage)), str(folders.home)],
        cwd=REPOSITORY,
        env=os.environ | {"TREERING_FAILPOINTS": "bucket.uploaded=kill"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert held(storage) > 0
    assert list_checkpoints(storage) == []
    checkpoints = open_storage(storage)
    one = save(checkpoints, folders)
    assert checkpoints.prune(grace_seconds=0).deleted == 1
    checkpoints.close()
    assert whole(storage, [one])


WRITER = """
import json, sys
from pathlib import Path
from treering.sandbox import StorageConfig, open_storage
from treering.sandbox.archive import SandboxFolders
from treering.sandbox.storage import CheckpointMetadata
home = Path(sys.argv[2])
folders = SandboxFolders(home=home, workspace=home / "workspace")
open_storage(StorageConfig(**json.loads(sys.argv[1]))).save(folders, CheckpointMetadata(tag="t-1"))
"""


def test_of_two_pruners_one_gives_up(
    storage: StorageConfig, folders: SandboxFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = open_storage(storage)
    made = grown(checkpoints, folders, 3)
    checkpoints.forget(made[0].id)
    with (
        before_next_put(STATE, lambda: prune_storage(storage, grace_seconds=0), monkeypatch) as met,
        pytest.raises(Conflict, match="pruned by someone else"),
    ):
        checkpoints.prune(grace_seconds=0)
    assert met
    checkpoints.close()
    assert whole(storage, made[1:])


def test_a_prune_marks_a_checkpoint_that_is_added_meanwhile(
    storage: StorageConfig, folders: SandboxFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new checkpoint needs what only a forgotten one needed."""
    checkpoints = open_storage(storage)
    write(folders, "shared.bin", 1)
    one = save(checkpoints, folders)
    (folders.workspace / "shared.bin").unlink()
    two = save(checkpoints, folders)
    write(folders, "shared.bin", 1)
    checkpoints.forget(one.id)
    added: list[CheckpointInfo] = []
    writer = open_storage(storage)
    with before_next_put(STATE, lambda: added.append(save(writer, folders)), monkeypatch):
        checkpoints.prune(grace_seconds=0)
    writer.close()
    checkpoints.close()
    assert [each.id for each in list_checkpoints(storage)] == [added[0].id, two.id]
    assert whole(storage, [two, *added])


def test_of_two_writers_both_succeed(
    storage: StorageConfig, folders: SandboxFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, other = open_storage(storage), open_storage(storage)
    with before_next_put(STATE, lambda: save(other, folders), monkeypatch) as met:
        save(checkpoints, folders)
    assert met
    assert len(checkpoints.list(tag="s-1")) == len(checkpoints.list()) == 2
    checkpoints.close()
    other.close()

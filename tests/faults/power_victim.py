"""Programs whose file operations are recorded, and what they were promised; see `tests.faults.power`.

python -m tests.faults.power_victim SCENARIO FOLDER [DURABILITY]
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import treering
from tests.faults.loads import linking, load, pieces, thread_scope
from tests.faults.power import PROMISES
from treering.core.batch import Draft
from treering.core.retention import Keep
from treering.sandbox import StorageConfig
from treering.sandbox.archive import SandboxFolders
from treering.sandbox.storage import CheckpointMetadata, open_storage
from treering.store import Store
from treering.testing.batches import noise

Promise = Callable[[str], None]


def main() -> None:
    scenario, folder, *options = sys.argv[1:]
    file = os.open(Path(folder) / PROMISES, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def promise(text: str) -> None:
        os.write(file, text.encode() + b"\n")

    durability: Any = options[0] if options else "full"
    SCENARIOS[scenario](Path(folder), promise, durability)


def commits(root: Path, promise: Promise, durability: Any) -> None:
    """Commits of every size, through the commit log and past it, with a second opening in between."""
    for opening in range(2):
        with treering.open(root / "store", durability=durability) as store:
            promise("store")
            for number in range(6 * opening, 6 * opening + 6):
                store.commit(load(number))
                promise(f"batch-w-{number}")
                _append(store, number, promise)
            if opening == 0:
                store.verify()


def packs(root: Path, promise: Promise, durability: Any) -> None:
    """Objects in packs, which garbage collection and forgetting rewrite."""
    with treering.open(root / "store", durability=durability) as store:
        promise("store")
        for number in range(3):
            store.engine.stage(store.space, pieces(number))
            store.commit(linking(number, "01"))
            promise(f"linking-w-{number}-01")
            gone = Draft(store.space)
            gone.set_ref("gone", b"", scope=thread_scope("gone"))
            store.commit(gone)
            store.gc(grace_seconds=0)
            store.engine.stage(store.space, pieces(0, writer=f"v{number}"))
            store.commit(linking(0, writer=f"v{number}", thread=f"gone{number}"))
            store.forget(thread=f"gone{number}")
            promise(f"forgotten v{number}")
            store.commit(load(number))
            promise(f"batch-w-{number}")


def repository(root: Path, promise: Promise, durability: Any) -> None:
    """Checkpoints of a sandbox in a folder, some of them dropped and pruned."""
    del durability
    config = StorageConfig(root / "repository")
    with tempfile.TemporaryDirectory() as outside, open_storage(config) as storage:
        home = Path(outside) / "home"
        workspace = Path(outside) / "work"
        for folder in (home, workspace):
            folder.mkdir()
        folders = SandboxFolders(home=home, workspace=workspace)
        for number in range(6):
            (workspace / f"file{number}.txt").write_text(f"file {number}\n" * 100)
            (workspace / "large.bin").write_bytes(noise(300_000, seed=number).data)
            info = storage.save(folders, CheckpointMetadata(tag="session"))
            promise(f"checkpoint {info.id} {number}")
            if number in (2, 4):
                promise(f"dropping {number}")
                storage.forget(keep=Keep(last=2))
                storage.prune(grace_seconds=0)


def backups(root: Path, promise: Promise, durability: Any) -> None:
    """Backups of a store that grows."""
    with treering.open(root / "store", durability=durability) as store:
        for number in range(3):
            store.commit(load(number))
            store.engine.stage(store.space, pieces(number))
            store.commit(linking(number))
            store.backup(root / f"backup{number}")
            promise(f"backup {number}")


def _append(store: Store, number: int, promise: Promise) -> None:
    store.thread("talk").append({"role": "user", "content": f"message {number}"})
    promise(f"message {number}")


SCENARIOS = {each.__name__: cast("Any", each) for each in (commits, packs, repository, backups)}

if __name__ == "__main__":
    main()

"""Helpers for tests of storages: a home to save, checkpoints of it, and a look into the bucket."""

from __future__ import annotations

import random
from pathlib import Path

from treering.sandbox import CheckpointInfo, CheckpointStorage, StorageConfig, open_storage
from treering.sandbox.archive import SandboxFolders
from treering.sandbox.storage import CheckpointMetadata, open_bucket


def make_folders(home: Path) -> SandboxFolders:
    (home / "workspace" / "src").mkdir(parents=True)
    (home / "workspace" / "report.txt").write_text("Draft v1")
    (home / "workspace" / "src" / "main.py").write_text("print(1)\n" * 500)
    (home / ".claude" / "projects").mkdir(parents=True)
    (home / ".claude" / "projects" / "1.jsonl").write_text('{"type": "user"}\n')
    return SandboxFolders(home=home, workspace=home / "workspace", settings=(".claude",))


def save(
    checkpoints: CheckpointStorage,
    folders: SandboxFolders,
    *,
    tag: str = "s-1",
    parent: CheckpointInfo | None = None,
    **more,
):
    return checkpoints.save(
        folders, CheckpointMetadata(tag=tag, parent_id=None if parent is None else parent.id, **more)
    )


def write(folders: SandboxFolders, name: str, seed: int, size: int = 60_000) -> None:
    (folders.workspace / name).write_bytes(random.Random(seed).randbytes(size))


def grown(
    checkpoints: CheckpointStorage, folders: SandboxFolders, count: int, *, tag: str = "s-1"
) -> list[CheckpointInfo]:
    """Take checkpoints that each replace one file of 60 kB."""
    made: list[CheckpointInfo] = []
    for number in range(count):
        write(folders, "data.bin", number)
        made.append(save(checkpoints, folders, tag=tag, parent=made[-1] if made else None))
    return made


def held(config: StorageConfig) -> int:
    return sum(each.size for each in open_bucket(config).list("packs"))


def whole(config: StorageConfig, infos: list[CheckpointInfo]) -> bool:
    """Return whether another machine could restore all of these."""
    checkpoints = open_storage(config)
    try:
        return all(checkpoints.check(checkpoints.find(each.id)).ok for each in infos)
    finally:
        checkpoints.close()

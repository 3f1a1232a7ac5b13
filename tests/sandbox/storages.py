"""What tests of buckets do: a home to save, checkpoints of it, and a look at what the bucket holds."""

from __future__ import annotations

import random
from pathlib import Path

from treering.sandbox import CheckpointInfo, Depot, StorageConfig, open_depot
from treering.sandbox.archive import Place
from treering.sandbox.config import open_bucket
from treering.sandbox.records import Label


def make_place(home: Path) -> Place:
    (home / "workspace" / "src").mkdir(parents=True)
    (home / "workspace" / "report.txt").write_text("Draft v1")
    (home / "workspace" / "src" / "main.py").write_text("print(1)\n" * 500)
    (home / ".claude" / "projects").mkdir(parents=True)
    (home / ".claude" / "projects" / "1.jsonl").write_text('{"type": "user"}\n')
    return Place(home=home, workspace=home / "workspace", settings=(".claude",))


def save(depot: Depot, place: Place, *, tag: str = "s-1", parent: CheckpointInfo | None = None, **more):
    return depot.save(place, Label(tag=tag, parent_id=None if parent is None else parent.id, **more))


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

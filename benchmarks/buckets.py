"""Checkpoints in a bucket alone against restic, on a real S3 server of this machine (SeaweedFS).

The tree and its edits are those of `benchmarks.workspaces`. A restore is done as another machine would: ours
reads the index from the bucket, restic keeps its cache of indexes, as it does by default. What writes much is
done in turns, and the median counts: creating 20,000 files takes from 1 to 40 s here, whoever does it. That
may have to do with files that were deleted shortly before; so nothing is removed before the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter

from tests.servers.bucket import S3Bucket
from tests.servers.fleet import Fleet
from tests.servers.seaweed import SeaweedServer

from benchmarks.report import Measurement, Section, at_most
from benchmarks.workspaces import BINARIES, FILES, edit_tree, make_tree
from treering.blobs.s3 import S3Blobs
from treering.sandbox.archive import SandboxFolders
from treering.sandbox.bucket import BucketStorage
from treering.sandbox.storage import CheckpointMetadata, CheckpointStorage

EDITS = int(os.environ.get("TREERING_BENCH_TURNS", "3"))
LARGE_TURNS = 5


def run(scratch: Path) -> Section:
    """Measure both in turns."""
    tree = scratch / "tree"
    make_tree(tree)
    fleet = Fleet.open()
    try:
        server = SeaweedServer(**fleet.address("seaweed"))
        kinds = [Ours, Restic] if shutil.which("restic") else [Ours]
        seconds: defaultdict[tuple[str, str], list[float]] = defaultdict(list)

        def time(what: str) -> None:
            for peer in peers:
                os.sync()  # nobody pays for what the one before left to be written
                began = perf_counter()
                getattr(peer, what)()
                took = perf_counter() - began
                seconds[what, peer.name].append(took)

        peers: list[Peer] = []
        for turn in range(LARGE_TURNS):  # each into a bucket of its own
            for peer in peers:
                peer.end()
            peers = [kind(server.create_bucket(), scratch / f"turn-{turn}", tree) for kind in kinds]
            time("first")
        ours = peers[0]
        assert isinstance(ours, Ours)
        for _ in range(EDITS):
            time("unchanged")
        for number in range(1, EDITS + 1):
            edit_tree(tree, number)
            ours.requests.clear()
            time("edit")
        puts = ours.requests["put"]
        for _ in range(LARGE_TURNS):
            time("restore")
        time("listed")
        ours.end()
    finally:
        fleet.close()
    rows = [
        _row("first checkpoint", seconds, "first", 0.6, median),
        _row("nothing changed", seconds, "unchanged", 0.4),
        _row("1 % edit", seconds, "edit", 0.4),
        _row("whole restore, verified, on another machine", seconds, "restore", 0.7, median),
    ]
    target, met = at_most(puts / 5, 1)
    rows.append(
        Measurement(
            claim="PUTs of an incremental checkpoint",
            ours=str(puts),
            peer="5 allowed",
            ratio=puts / 5,
            target=target,
            met=met,
        )
    )
    return Section(
        title="Buckets",
        about=f"{FILES + BINARIES:,} files and 40 links to SeaweedFS on this machine, in turns. First "
        f"checkpoint and restore: median of {LARGE_TURNS}; the others: best of {EDITS}.",
        measurements=[row for row in rows if row is not None],
    )


class Peer:
    """Something that keeps a folder in a bucket."""

    name = ""

    def __init__(self, bucket: S3Bucket, scratch: Path, tree: Path) -> None:
        self.bucket = bucket
        self.scratch = scratch
        self.tree = tree
        self.restored = 0
        scratch.mkdir(exist_ok=True)

    def first(self) -> None: ...
    def edit(self) -> None:
        self.first()

    def unchanged(self) -> None:
        self.first()

    def restore(self) -> None: ...
    def listed(self) -> None: ...
    def end(self) -> None: ...

    def new_folder(self) -> Path:
        self.restored += 1
        return self.scratch / f"{self.name}-{self.restored}"


class Ours(Peer):
    name = "treering"

    def __init__(self, bucket: S3Bucket, scratch: Path, tree: Path) -> None:
        super().__init__(bucket, scratch, tree)
        self.requests: Counter[str] = Counter()
        self.storage = self._opened()
        self.home = scratch / "home"
        self.home.mkdir()

    def first(self) -> None:
        self.storage.save(
            SandboxFolders(home=self.home, workspace=self.tree), CheckpointMetadata(tag="bench")
        )

    def restore(self) -> None:
        target = self.new_folder()
        elsewhere = self._opened()
        elsewhere.restore(
            elsewhere.find("latest"), SandboxFolders(home=target / "home", workspace=target / "tree")
        )
        elsewhere.close()

    def listed(self) -> None:
        self.storage.list()

    def end(self) -> None:
        self.storage.close()

    def _opened(self) -> CheckpointStorage:
        blobs = S3Blobs(
            self.bucket.bucket,
            endpoint=self.bucket.endpoint,
            region=self.bucket.region,
            access_key_id=self.bucket.access_key,
            secret_access_key=self.bucket.secret_key,
        )
        put = blobs.put

        def counted(*args, **options) -> None:
            self.requests["put"] += 1
            put(*args, **options)

        blobs.put = counted
        return CheckpointStorage(
            BucketStorage(blobs, cache=None), now_iso=lambda: "2026-01-01T00:00:00+00:00"
        )


class Restic(Peer):
    name = "restic"

    def __init__(self, bucket: S3Bucket, scratch: Path, tree: Path) -> None:
        super().__init__(bucket, scratch, tree)
        self._run("init", "--repository-version", "2")

    def first(self) -> None:
        self._run("backup", ".")

    def restore(self) -> None:
        self._run("restore", "latest", "--target", str(self.new_folder()))

    def listed(self) -> None:
        self._run("snapshots")

    def _run(self, *arguments: str) -> None:
        environment = {
            **os.environ,
            "RESTIC_PASSWORD": "benchmark",
            "RESTIC_REPOSITORY": f"s3:{self.bucket.endpoint}/{self.bucket.bucket}",
            "RESTIC_CACHE_DIR": str(self.scratch / "restic-cache"),
            "AWS_ACCESS_KEY_ID": self.bucket.access_key,
            "AWS_SECRET_ACCESS_KEY": self.bucket.secret_key,
        }
        subprocess.run(
            ["restic", "-q", *arguments],
            env=environment,
            check=True,
            cwd=self.tree,
            stdout=subprocess.DEVNULL,
        )


def _row(
    claim: str,
    seconds: Mapping[tuple[str, str], list[float]],
    what: str,
    limit: float,
    choose: Callable[[list[float]], float] = min,
) -> Measurement | None:
    if (what, "restic") not in seconds:
        return None
    ours, theirs = choose(seconds[what, "treering"]), choose(seconds[what, "restic"])
    target, met = at_most(ours / theirs, limit)
    return Measurement(
        claim=claim,
        ours=f"{ours:.2f} s",
        peer=f"restic {theirs:.2f} s",
        ratio=ours / theirs,
        target=target,
        met=met,
    )

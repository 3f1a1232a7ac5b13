"""A workspace of a million tiny files: how long, how much memory, how much disk. Run by its name only.

restic takes the first snapshot and the unchanged one as well, in turns with ours. Each step is a process of
its own, so that its peak of memory is its own. ``TREERING_BENCH_TINY`` makes it smaller.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from benchmarks.report import Measurement, Section, at_most

FILES = int(os.environ.get("TREERING_BENCH_TINY", "1000000"))

_STEP = """
import json, os, sys, time, treering
store, tree, step = sys.argv[1:]
with treering.open(store) as opened:
    began, ticks = time.perf_counter(), os.times()
    if step == "restore":
        newest = next(opened.workspace.snapshots(last=1)).id
        opened.workspace.restore(newest, tree + "-restored")
    elif step == "back":
        newest, before = [each.id for each in opened.workspace.snapshots(last=2)]
        opened.workspace.restore(before, tree, delete=True)
    else:
        opened.workspace.snapshot(tree)
    took, after = time.perf_counter() - began, os.times()
with open("/proc/self/status") as status:  # not ru_maxrss, which begins with what the parent had
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
print(json.dumps([took, after.user + after.system - ticks.user - ticks.system, peak]))
"""


def run(scratch: Path) -> Section:
    """Measure one step after the other."""
    tree, store, peer = scratch / "tree", scratch / "store", scratch / "restic"
    make_tree(tree)
    has_peer = shutil.which("restic") is not None
    if has_peer:
        _restic(peer, tree, "init", "--repository-version", "2")
    rows: list[Measurement] = []
    for claim, step, seconds in (("first snapshot", "first", None), ("nothing changed", "unchanged", 3)):
        ours = _step(store, tree, step)
        if seconds is not None:
            rows.append(_limited(claim, ours.seconds, seconds, "s"))
        else:
            rows.append(_limited(f"{claim}, memory", ours.peak / 1e6, 300, "MB"))
        if has_peer:
            theirs = _restic(peer, tree, "backup", ".")
            rows.append(_compared(f"{claim}, against restic", ours, theirs))
        else:
            rows.append(_told(claim, ours))
        if step == "first":
            disk = sum(path.lstat().st_size for path in store.rglob("*") if path.is_file())
    for number in range(0, FILES, max(1, FILES // 100)):
        _path(tree, number).write_text(f"edited {number}\n")
    rows.append(_told("100 files edited", _step(store, tree, "edit")))
    rows.append(_told("one step back, in place", _step(store, tree, "back")))
    rows.append(_told("whole restore, verified", _step(store, tree, "restore")))
    rows.append(
        Measurement(
            claim="disk after the first snapshot",
            ours=f"{disk / 1e6:.0f} MB",
            peer="-",
            ratio=0,
            target="-",
            met=True,
            note=f"{disk / FILES:.0f} B a file",
        )
    )
    return Section(
        title="A million tiny files",
        about=f"{FILES:,} files of 40 to 400 bytes, all different, 100 in a folder.",
        measurements=rows,
    )


def make_tree(root: Path) -> None:
    """The tree, the same every time."""
    for number in range(FILES):
        path = _path(root, number)
        if number % 100 == 0:
            path.parent.mkdir(parents=True)
        path.write_text(f"file {number}\n" * (3 + number % 25))


def _path(root: Path, number: int) -> Path:
    return root / f"a{number // 10_000:03}" / f"b{number // 100 % 100:02}" / f"f{number % 100:02}"


class Step(NamedTuple):
    """What a process took, and its peak of memory in bytes."""

    seconds: float
    cpu: float
    peak: int

    def __str__(self) -> str:
        return f"{self.cpu:.1f} s of CPU, peak {self.peak / 1e6:.0f} MB"


def _step(store: Path, tree: Path, step: str) -> Step:
    command = [sys.executable, "-c", _STEP, str(store), str(tree), step]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Step(*json.loads(done.stdout))


def _restic(repository: Path, tree: Path, *arguments: str) -> Step:
    environment = {**os.environ, "RESTIC_PASSWORD": "benchmark", "RESTIC_REPOSITORY": str(repository)}
    environment["RESTIC_CACHE_DIR"] = f"{repository}-cache"
    began = perf_counter()
    process = subprocess.Popen(["restic", "-q", *arguments], env=environment, cwd=tree)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0
    return Step(perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def _compared(claim: str, ours: Step, theirs: Step) -> Measurement:
    ratio = ours.seconds / theirs.seconds
    target, met = at_most(ratio, 0.6)
    return Measurement(
        claim=claim,
        ours=f"{ours.seconds:.1f} s",
        peer=f"restic {theirs.seconds:.1f} s",
        ratio=ratio,
        target=target,
        met=met,
        note=f"{ours}; restic {theirs}",
    )


def _limited(claim: str, measured: float, limit: float, unit: str) -> Measurement:
    target, met = at_most(measured / limit, 1)
    return Measurement(
        claim=claim,
        ours=f"{measured:.1f} {unit}",
        peer=f"{limit} {unit} allowed",
        ratio=measured / limit,
        target=target,
        met=met,
    )


def _told(claim: str, step: Step) -> Measurement:
    return Measurement(
        claim=claim, ours=f"{step.seconds:.1f} s", peer="-", ratio=0, target="-", met=True, note=str(step)
    )

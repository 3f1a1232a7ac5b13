"""A workspace of a million tiny files: how long, how much memory, how much disk. Run by its name only.

There is no peer and no limit: the numbers are told once, so that nobody has to guess. Each step is a process
of its own, so that its peak of memory is its own. ``TREERING_BENCH_TINY`` makes it smaller.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.report import Measurement, Section

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
    tree, store = scratch / "tree", scratch / "store"
    make_tree(tree)
    rows = [_step("first snapshot", store, tree, "first"), _step("nothing changed", store, tree, "unchanged")]
    disk = sum(path.lstat().st_size for path in store.rglob("*") if path.is_file())
    for number in range(0, FILES, max(1, FILES // 100)):
        _path(tree, number).write_text(f"edited {number}\n")
    rows.append(_step("100 files edited", store, tree, "edit"))
    rows.append(_step("one step back, in place", store, tree, "back"))
    rows.append(_step("whole restore, verified", store, tree, "restore"))
    rows.append(
        _told("disk after the first snapshot", f"{disk / 1e6:.0f} MB", f"{disk / FILES:.0f} B a file")
    )
    return Section(
        title="A million tiny files",
        about=f"{FILES:,} files of 40 to 400 bytes, all different, 100 in a folder. Measured, not compared.",
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


def _step(claim: str, store: Path, tree: Path, step: str) -> Measurement:
    command = [sys.executable, "-c", _STEP, str(store), str(tree), step]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    took, cpu, peak = json.loads(done.stdout)
    return _told(claim, f"{took:.1f} s", f"{cpu:.1f} s of CPU; peak {peak / 1e6:.0f} MB")


def _told(claim: str, ours: str, note: str) -> Measurement:
    return Measurement(claim=claim, ours=ours, peer="-", ratio=0, target="-", met=True, note=note)

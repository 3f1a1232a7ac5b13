"""A file of any size is uploaded and downloaded without either side holding it in memory."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.server.test_serving import Server

MEGABYTES = 200
BOUND = 100
"""How much memory each side may use beyond its idle use: half of the file."""

CLIENT = """
import resource, sys
import treering

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

url, folder, back = sys.argv[1:]
with treering.open(url) as store:
    idle = peak()
    taken = store.workspace.snapshot(folder)
    sent = peak()
    store.workspace.restore(taken, back)
    print(sent - idle, peak() - idle)
"""


def peak_of(process: int) -> int:
    """Return the peak memory of a process, in megabytes."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise AssertionError("the kernel does not tell")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_neither_side_holds_a_large_file_in_memory(tmp_path):
    large = tmp_path / "in" / "large.bin"
    large.parent.mkdir()
    dice = random.Random(7)
    with large.open("wb") as file:
        for _ in range(MEGABYTES):
            file.write(dice.randbytes(1 << 20))
    with Server(tmp_path / "store") as server:
        idle = peak_of(server.process.pid)
        command = [sys.executable, "-c", CLIENT, server.url, str(large.parent), str(tmp_path / "back")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert peak_of(server.process.pid) - idle < BOUND
    sent, restored = map(int, done.stdout.split())
    assert sent < BOUND
    assert restored < BOUND
    assert same(large, tmp_path / "back" / "large.bin")


def same(one: Path, other: Path) -> bool:
    with one.open("rb") as left, other.open("rb") as right:
        while piece := left.read(1 << 20):
            if right.read(1 << 20) != piece:
                return False
        return not right.read(1)

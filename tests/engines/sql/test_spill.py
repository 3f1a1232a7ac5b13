"""Sets and queues that spill to disk."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from treering.engines.sql.spill import SpillDatabase, SpillQueue, SpillSet


@pytest.fixture
def spill():
    with SpillDatabase() as opened:
        yield opened


def test_a_key_is_new_once(spill):
    seen = SpillSet(spill, "number", "number")
    assert sorted(seen.add({3: 1, 1: 1})) == [1, 3]
    assert seen.add({3: 2, 2: 2}) == [2]
    assert seen.add({}) == []
    assert len(seen) == 3


def test_the_first_owner_stays(spill):
    seen = SpillSet(spill, "bytes", "bytes")
    seen.add({b"a": 1})
    seen.add({b"a": 2, b"b": 2})
    assert seen.among([b"a", b"b", b"c"]) == {b"a": 1, b"b": 2}


@pytest.mark.parametrize("count", [1, 511, 512, 513, 3000])
def test_any_number_of_keys_at_a_time(spill, count):
    seen = SpillSet(spill, "bytes", "bytes")
    keys = [number.to_bytes(32, "big") for number in range(count)]
    assert sorted(seen.add(dict.fromkeys(keys, 7))) == keys
    assert seen.among([*keys, b"other"]) == dict.fromkeys(keys, 7)
    assert seen.add(dict.fromkeys(keys, 8)) == []


def test_pages_are_in_order_and_skip_nothing(spill):
    seen = SpillSet(spill, "text", "text")
    names = sorted(f"name {number}" for number in range(25))
    seen.add(dict.fromkeys(names, 0))
    found, after = [], None
    while page := seen.page(after, 4):
        found += [key for key, _ in page]
        after = page[-1][0]
    assert found == names


def test_a_stack_gives_back_all_that_was_put_on_it(spill):
    todo = SpillQueue(spill, "todo")
    todo.push("list", [1, 2], {1: 10, 2: 20})
    todo.push("tree", [b"t"], {b"t": 30})
    assert todo.pop(2) == {"list": {2: 20}, "tree": {b"t": 30}}
    assert todo.pop(2) == {"list": {1: 10}}
    assert todo.pop(2) == {}


def test_a_full_disk_is_a_typed_error(tmp_path):
    script = """
import resource, signal, hashlib
from treering.engines.sql.spill import SpillDatabase, SpillSet
from treering.errors import StoreFull
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    with SpillDatabase() as spill:
        seen = SpillSet(spill, "seen", "bytes")
        for first in range(0, 2_000_000, 5000):
            seen.add({hashlib.sha256(b"%d" % n).digest(): 0 for n in range(first, first + 5000)})
except StoreFull as error:
    print(error)
"""
    environment = {**os.environ, "SQLITE_TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert "temporary files" in done.stdout


def test_memory_stays_flat(tmp_path):
    """A million names are 40 MB in the file and next to nothing in the process; the file has no name."""
    script = """
import resource, hashlib
from treering.engines.sql.spill import SpillDatabase, SpillSet
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with SpillDatabase() as spill:
    seen = SpillSet(spill, "seen", "bytes")
    def fill(start, stop):
        for first in range(start, stop, 5000):
            seen.add({hashlib.sha256(b"%d" % n).digest(): 0 for n in range(first, first + 5000)})
    fill(0, 100_000)
    before = peak()
    fill(100_000, 400_000)
    print(len(seen), peak() - before)
"""
    environment = {**os.environ, "SQLITE_TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    count, grown = map(int, done.stdout.split())
    assert count == 400_000
    assert grown < 20_000 * (1024 if sys.platform == "darwin" else 1)
    assert not list(tmp_path.iterdir())

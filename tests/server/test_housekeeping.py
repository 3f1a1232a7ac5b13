"""A server gives the space of large bodies back, and does not look for cycles among what stays."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from treering.server.background import tune_memory

young, *older = gc.get_threshold()
tune_memory()
assert gc.isenabled()
assert gc.get_freeze_count() > 1000
assert gc.get_threshold()[0] > young
assert list(gc.get_threshold()[1:]) == older
"""


def test_a_server_settles_in():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr

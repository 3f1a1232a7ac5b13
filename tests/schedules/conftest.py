from __future__ import annotations

import pytest

from treering.blobs.folder import FolderBlobs
from treering.core.clock import ManualClock
from treering.engines.memory.engine import MemoryEngine
from treering.engines.sqlite.engine import open_sqlite
from treering.store import Store


@pytest.fixture
def clock():
    # 2026-02-24T10:00:00Z, a Tuesday
    return ManualClock(1_771_927_200_000_000)


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path, clock):
    """A store whose time stands still until the test moves it."""
    if request.param == "memory":
        engine = MemoryEngine(clock=clock)
    else:
        engine = open_sqlite(tmp_path, blobs=FolderBlobs(tmp_path / "blobs", clock=clock), clock=clock)
    with Store(engine, clock=clock) as opened:
        yield opened

"""A server on a memory store, remote engines connected to it, and keys."""

from __future__ import annotations

import pytest
from tests.server.running import running

import treering
from treering.core.clock import SystemClock
from treering.engines.remote.engine import open_remote
from treering.server.auth import Keys


@pytest.fixture
def store():
    return treering.open("memory:")


@pytest.fixture
def url(store):
    with running(store) as url:
        yield url


@pytest.fixture
def opened(url):
    """A function that opens remote engines; they are closed afterwards."""
    made = []

    def open_one(api_key=None, where=None):
        made.append(open_remote(where or url, api_key=api_key))
        return made[-1]

    yield open_one
    for each in made:
        each.close()


@pytest.fixture
def keys(store):
    made = Keys(store.engine, clock=SystemClock())
    return lambda project, scope="admin": made.create(project=project, scope=scope).token

"""Stores that a history is brought from, and those that it is brought to."""

from __future__ import annotations

import pytest

import treering
from tests.importers.jsonl_histories import grow


@pytest.fixture
def source():
    with treering.open("memory:") as store:
        yield grow(store)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def target(request, tmp_path):
    if request.param == "postgres":
        request.applymarker(pytest.mark.postgres)
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if request.param == "memory" else tmp_path / "target"
    with treering.open(url) as store:
        yield store


@pytest.fixture
def empty():
    with treering.open("memory:") as store:
        yield store

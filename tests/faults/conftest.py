"""Fixtures: a location for a store of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.stores import StoreLocation, postgres_location, sqlite_location

KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture(params=KINDS)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> StoreLocation:
    """An empty location for a store."""
    if request.param == "sqlite":
        return sqlite_location(tmp_path / "store")
    return postgres_location(request.getfixturevalue("empty_postgres_url"), tmp_path / "packs")

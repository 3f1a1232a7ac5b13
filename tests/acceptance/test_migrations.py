"""Orchestrator: migrations are managed through Alembic.

``alembic upgrade head`` from any released version and ``alembic revision --autogenerate`` work from a
checkout; autogenerate on head is empty; a fresh schema equals a migrated one. (The corners are in
tests/engines/sql/migrations.)
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.sql.migrations.databases import REPOSITORY, Database
from tests.engines.sql.migrations.shape import shape_of
from treering.engines.sql import schema

RELEASED = sorted((REPOSITORY / "tests/engines/sql/migrations/golden").glob("*.sqlite.sql"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone, so that new revisions do not land in this one."""
    folder = tmp_path / "clone"
    shutil.copytree(REPOSITORY / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "alembic.ini", folder)
    return folder


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def two_stores(request: pytest.FixtureRequest, tmp_path: Path):
    """Two empty databases of a kind."""
    if request.param == "sqlite":
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
        yield [Database("sqlite", str(tmp_path / name / schema.SQLITE_FILE)) for name in ("one", "two")]
        return
    server = request.getfixturevalue("postgres_server")
    urls = [server.create_database() for _ in range(2)]
    yield [Database("postgresql", url) for url in urls]
    for url in urls:
        server.drop_database(url)


@pytest.mark.parametrize("dump", RELEASED, ids=lambda dump: dump.name.partition(".")[0])
def test_a_store_of_any_released_version_comes_to_head(checkout: Path, dump: Path):
    folder = checkout / ".treering"
    folder.mkdir()
    old = sqlite3.connect(folder / schema.SQLITE_FILE)
    old.executescript(dump.read_text(encoding="utf-8"))
    old.close()

    alembic(checkout, "upgrade head")

    database = Database("sqlite", str(folder / schema.SQLITE_FILE))
    assert database.version() == schema.SCHEMA_VERSION
    assert database.ensure_schema() == "golden"
    assert database.rows("SELECT id FROM event ORDER BY seq") == [("e1",), ("e2",), ("e3",)]


def test_migrations_fresh_stores_and_the_definition_agree(checkout: Path, two_stores: list[Database]):
    migrated, fresh = two_stores
    alembic(checkout, "upgrade head", store=migrated)
    fresh.ensure_schema()
    assert shape_of(migrated) == shape_of(fresh)

    alembic(checkout, "revision --autogenerate -m description", store=fresh)
    created = (
        checkout
        / f"src/treering/engines/sql/migrations/versions/{int(schema.SCHEMA_VERSION) + 1:04d}_description.py"
    )
    body = created.read_text().partition("def upgrade() -> None:\n")[2].partition("\n\n\n")[0]
    assert [line.strip() for line in body.splitlines() if not line.strip().startswith("#")] == ["pass"]


def alembic(checkout: Path, command: str, store: Database | None = None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TREERING_URL"}
    if store is not None:
        environment["TREERING_URL"] = store.place
    tool = Path(sys.executable).with_name("alembic")
    done = subprocess.run(
        [tool, *command.split()],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr

"""Fixtures: an empty database of each kind, and two migrations that do not exist yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.sql.migrations.databases import Database
from treering.engines.sql import schema
from treering.engines.sql.migrations import upgrade

NOW = schema.SCHEMA_VERSION
NEXT, LAST = (f"{int(NOW) + step:04d}" for step in (1, 2))

NEXT_STEP = f'''
"""Every ref has a colour."""

import sqlalchemy as sa
from alembic import op

revision = "{NEXT}"
down_revision = "{NOW}"


def upgrade():
    with op.batch_alter_table("ref") as batch:
        batch.add_column(sa.Column("colour", sa.Text(), nullable=True))
    op.execute("UPDATE ref SET colour = 'green'")
'''

LAST_STEP = f'''
"""A table of leaves."""

import sqlalchemy as sa
from alembic import op

revision = "{LAST}"
down_revision = "{NEXT}"


def upgrade():
    op.create_table("leaf", sa.Column("no", sa.Integer(), primary_key=True))
    op.create_index("ref_colour", "ref", ["colour"])
'''


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database."""
    if request.param == "sqlite":
        return sqlite_database(tmp_path / "first")
    return Database("postgresql", request.getfixturevalue("empty_postgres_url"))


@pytest.fixture
def second_database(database: Database, request: pytest.FixtureRequest, tmp_path: Path):
    """Another empty database of the same kind."""
    if database.dialect == "sqlite":
        yield sqlite_database(tmp_path / "second")
    else:
        server = request.getfixturevalue("postgres_server")
        url = server.create_database()
        yield Database("postgresql", url)
        server.drop_database(url)


@pytest.fixture
def future(tmp_path: Path) -> Path:
    """A folder with the two migrations that a later treering has."""
    folder = tmp_path / "future versions 100%"
    folder.mkdir()
    (folder / f"{NEXT}_colour.py").write_text(NEXT_STEP)
    (folder / f"{LAST}_leaf.py").write_text(LAST_STEP)
    return folder


@pytest.fixture
def later(future: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This treering is the later one, whose schema is two versions on."""
    monkeypatch.setattr(schema, "SCHEMA_VERSION", LAST)
    monkeypatch.setattr(upgrade, "VERSION_FOLDERS", (*upgrade.VERSION_FOLDERS, future))


def sqlite_database(folder: Path) -> Database:
    folder.mkdir()
    return Database("sqlite", str(folder / schema.SQLITE_FILE))

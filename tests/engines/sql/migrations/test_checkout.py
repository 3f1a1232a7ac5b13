"""The plain commands, as a developer types them in a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.sql.migrations.conftest import NEXT, NOW
from tests.engines.sql.migrations.databases import REPOSITORY, Database
from treering.engines.sql import schema

pytestmark = pytest.mark.slow


class Checkout:
    """A copy of what the commands need, so that a new revision does not land in this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("alembic.ini", "ARCHITECTURE.md"):
            shutil.copy(REPOSITORY / part, folder)
        ignored = shutil.ignore_patterns("__pycache__", "static")
        for part in ("src", "scripts", "docs"):
            shutil.copytree(REPOSITORY / part, folder / part, ignore=ignored)
        self.versions = folder / "src/treering/engines/sql/migrations/versions"
        self.tables = folder / "src/treering/engines/sql/tables.py"

    def run(self, *command: str, url: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "TREERING_URL"}
        if url is not None:
            environment["TREERING_URL"] = url
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    def alembic(self, *arguments: str, url: str | None = None) -> str:
        done = self.run("-m", "alembic", *arguments, url=url)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def add_a_column(self) -> None:
        text = self.tables.read_text()
        changed = text.replace(
            '    _name("tokens"),\n', '    _name("tokens"),\n    _name("colour", null=True),\n'
        )
        assert changed != text
        self.tables.write_text(changed)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    folder = tmp_path / "checkout"
    folder.mkdir()
    return Checkout(folder)


def test_a_change_of_the_tables_becomes_a_migration(checkout: Checkout, database: Database):
    database.ensure_schema()
    checkout.add_a_column()
    checkout.alembic("revision", "--autogenerate", "-m", "add colour", url=database.place)
    added = checkout.versions / f"{NEXT}_add_colour.py"
    assert "add_column" in added.read_text()
    assert "drop" not in added.read_text()
    assert f"{NOW} -> {NEXT}" in checkout.alembic("upgrade", "head", url=database.place)
    assert database.version() == NEXT
    assert "colour" in database.columns("collection")
    assert "No new upgrade operations" in checkout.alembic("check", url=database.place)


def test_the_store_can_be_named_on_the_command_line(checkout: Checkout, tmp_path: Path):
    named, other = tmp_path / "named", tmp_path / "other"
    checkout.alembic("-x", f"url=sqlite:///{named}", "upgrade", "head", url=str(other))
    assert Database("sqlite", str(named / schema.SQLITE_FILE)).version() == schema.SCHEMA_VERSION
    assert not other.exists()


def test_the_default_store_is_migrated_forward_only(checkout: Checkout):
    assert f"-> {NOW}" in checkout.alembic("upgrade", "head")
    refused = checkout.run("-m", "alembic", "downgrade", "base")
    assert refused.returncode != 0
    assert "downgrades are not supported" in refused.stderr
    database = Database("sqlite", str(checkout.folder / ".treering" / schema.SQLITE_FILE))
    assert database.ensure_schema("mine") == "mine"


def test_generated_files_that_are_stale_are_named(checkout: Checkout):
    checkout.add_a_column()
    stale = checkout.run("scripts/generate.py", "--check")
    assert stale.returncode == 1
    for word in ("engines/sql/sqlite.sql", "engines/sql/postgres.sql", "python scripts/generate.py"):
        assert word in stale.stderr
    assert checkout.run("scripts/generate.py").returncode == 0
    current = checkout.run("scripts/generate.py", "--check")
    assert (current.returncode, current.stderr) == (0, "")
    assert "colour" in (checkout.folder / "src/treering/engines/sql/sqlite.sql").read_text()

"""A process that opens a database, for tests that need several of them or one that dies.

python -m tests.engines.sql.migrations.opener DIALECT LOCATION ID [--wait] [--versions FOLDER --to VERSION]

It prepares the database and prints the id of the store; with ``--wait`` it says "ready" before, and waits
for a line of input.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.engines.sql.migrations.databases import Database
from treering.engines.sql import schema


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dialect")
    parser.add_argument("location")
    parser.add_argument("id")
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--versions", type=Path)
    parser.add_argument("--to", default=schema.SCHEMA_VERSION)
    given = parser.parse_args()
    if given.versions:
        learn(given.versions, given.to)
    if given.wait:
        print("ready", flush=True)
        sys.stdin.readline()
    print(Database(given.dialect, given.location).ensure_schema(given.id))


def learn(folder: Path, version: str) -> None:
    """Become a treering that has more migrations."""
    from treering.engines.sql.migrations import upgrade

    schema.SCHEMA_VERSION = version
    upgrade.VERSION_FOLDERS = (*upgrade.VERSION_FOLDERS, folder)


if __name__ == "__main__":
    main()

"""Write the generated files, or check that they are current.

    python scripts/generate.py            write stale files
    python scripts/generate.py --check    write nothing; exit 1 and name stale files

To add a generated file, add a line to `GENERATED`: its path, and ``module:function`` of a function without
arguments that returns its text. The module is in this folder.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

GENERATED: Final = (
    ("src/treering/engines/sql/sqlite.sql", "generate_schema:sqlite"),
    ("src/treering/engines/sql/postgres.sql", "generate_schema:postgres"),
    ("src/treering/aio.py", "generate_aio:aio"),
    ("docs/reference/cli.md", "generate_cli_page:page"),
    ("docs/reference/errors.md", "generate_format_page:errors_page"),
    ("docs/reference/format.md", "generate_format_page:format_page"),
    ("docs/reference/python.md", "generate_python_page:page"),
    ("docs/reference/rest.md", "generate_rest_page:page"),
    ("clients/typescript/src/api.ts", "generate_typescript:api"),
)

ROOT: Final = Path(__file__).resolve().parent.parent
COMMAND: Final = "python scripts/generate.py"

sys.path.insert(0, str(ROOT / "src"))  # this checkout's package, whichever is installed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the generated files, or check that they are current.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is stale")
    check = parser.parse_args(arguments).check

    stale = [(path, text) for path, text in rendered() if not is_current(path, text)]
    for path, text in stale:
        shown = path.relative_to(ROOT)
        if check:
            print(f"{shown} is stale; run: {COMMAND}", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
            print(f"wrote {shown}")
    return 1 if check and stale else 0


def rendered():
    for path, source in GENERATED:
        module, function = source.split(":")
        yield ROOT / path, getattr(import_module(module), function)()


def is_current(path: Path, text: str) -> bool:
    return path.exists() and path.read_bytes() == text.encode()


if __name__ == "__main__":
    sys.exit(main())

"""docs/reference/format.md and errors.md: what ARCHITECTURE.md says of the bytes, and the table of errors."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Final

from pages import HEAD, cell, table

ROOT: Final = Path(__file__).resolve().parent.parent
SECTIONS: Final = (
    "Terms",
    "What is on disk",
    "In which order things are written",
    "Rules that hold everywhere",
)

FORMAT: Final = """# On-disk format

What a store is made of, exact enough to read it without treering. It only grows: what an older version wrote
stays readable, and a store of a newer one is refused before it is touched.
"""

ERRORS: Final = """# Errors

Every error that treering raises on purpose is a class of `treering.errors`, and the class says what follows:
the exit code of the command line, the HTTP status of the server (whose problems have the type
`urn:treering:error:<class>`), and whether the same call may succeed later. An error of a server is raised as
the same class by whoever opened the store over HTTP.
"""


def format_page() -> str:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    found = {part.partition("\n")[0].strip(): part for part in text.split("\n## ")[1:]}
    return "\n".join([HEAD, FORMAT, *(f"## {found[name].rstrip()}\n" for name in SECTIONS)])


def errors_page() -> str:
    from treering import errors

    kinds = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.TreeringError) and kind.__module__ == "treering.errors"
    ]
    rows = [
        (
            f"`{kind.__name__}`",
            str(kind.exit_code),
            str(kind.http_status),
            "yes" if kind.retryable else "",
            cell((kind.__doc__ or "").partition("\n\n")[0]),
        )
        for kind in sorted(kinds, key=lambda each: (each.exit_code, each.__name__))
    ]
    return "\n".join([HEAD, ERRORS, *table(("class", "exit code", "HTTP", "retry", "means"), rows)]) + "\n"

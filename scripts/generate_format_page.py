"""Generate docs/reference/format.md (from ARCHITECTURE.md) and docs/reference/errors.md."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Final

from pages import HEAD, cell, table

ROOT: Final = Path(__file__).resolve().parent.parent
SECTIONS: Final = (
    "Glossary",
    "On disk",
    "Order of writes",
    "Invariants",
)

FORMAT: Final = """# On-disk format

The format of a store, in enough detail to read it without treering. From the first release on it only grows:
newer versions read what older ones wrote, and refuse a store of a newer version before touching it.
"""

ERRORS: Final = """# Errors

Every error that treering raises on purpose is a class of `treering.errors`. The class determines the exit
code of the command line, the HTTP status of the server (whose problems have the type
`urn:treering:error:<class>`), and whether a retry may succeed. A store opened over HTTP raises the server's
errors as the same classes.
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

"""Statements in the form that PostgreSQL wants: numbered parameters, and several in one.

The shared statements mark a parameter by ``?``. Each text is translated once and remembered; there are
only as many texts as the code has statements (value lists come in a few sizes).
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARAMETER: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\?")
_GUARD: Final = re.compile(
    r"WITH moved AS \(UPDATE (?P<table>\w+) SET (?P<column>\w+) = (?P<value>\$\d+)(?P<others>.*) "
    r"WHERE (?P<key>\w+ = \S+) AND (?P<condition>.*) RETURNING no\) SELECT 1 / count\(\*\) FROM moved"
)
_CHANGE: Final = re.compile(r"(?P<kind>INSERT INTO|UPDATE) (?P<table>\w+) .*", re.DOTALL)
_FIRST_ROW: Final = re.compile(
    r"(?P<head>INSERT INTO \w+ \((?P<columns>[^)]*)\) VALUES \()(?P<values>[^)]*)(?P<tail>.*)", re.DOTALL
)

MAX_PARAMETERS: Final = 4096
"""How many values one statement takes at most; the protocol's own limit is 65,535."""


@lru_cache(maxsize=4096)
def numbered(sql: str) -> bytes:
    """The statement with ``$1``, ``$2`` ... for ``?``, as it goes over the wire."""
    return _numbered(sql, count(1)).encode()


def _numbered(sql: str, numbers: Iterator[int]) -> str:
    return _PARAMETER.sub(lambda found: f"${next(numbers)}" if found[0] == "?" else found[0], sql)


@lru_cache(maxsize=1024)
def bundled(statements: tuple[str, ...]) -> str | None:
    """One statement that does what these do, with the same parameters; ``None`` if none means the same.

    The first is a condition (`Current.advanced`): an update of one row, and a count that fails if it did not
    take place. The second is an insert that names that row, and fails in one statement without it; where
    there is one that is not as expected, the update divides by zero itself. To count takes the
    server longer. The others come behind these two, and do not see each other's rows: what
    is updated has to be a table that no other one changes.
    """
    numbers = count(1)
    guard, *changes = [_numbered(sql, numbers) for sql in statements]
    moved, first = _GUARD.fullmatch(guard), _FIRST_ROW.fullmatch(changes[0]) if changes else None
    found = [_CHANGE.fullmatch(each) for each in changes]
    tables = [(change["kind"], change["table"]) for change in found if change is not None]
    names = [table for _, table in tables]
    is_mixed = any(kind == "UPDATE" and names.count(table) > 1 for kind, table in tables)
    if moved is None or first is None or is_mixed or len(tables) < len(changes):
        return None
    columns, values = first["columns"].split(", "), first["values"].split(", ")
    if moved["table"] not in columns:
        return None
    values[columns.index(moved["table"])] = "(SELECT no FROM moved)"
    divided = f"{moved['value']} / (CASE WHEN {moved['condition']} THEN 1 ELSE 0 END){moved['others']}"
    update = f"UPDATE {moved['table']} SET {moved['column']} = {divided} WHERE {moved['key']} RETURNING no"
    parts = [f"moved AS ({update})"]
    parts += [f"c{place} AS ({sql})" for place, sql in enumerate(changes[1:], 1)]
    return f"WITH {', '.join(parts)} {first['head']}{', '.join(values)}{first['tail']}"

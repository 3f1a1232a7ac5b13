"""Statements in the form that PostgreSQL wants: numbered parameters, and many rows at once.

The shared statements mark a parameter by ``?``. Each text is translated once and remembered; there are
only as many texts as the code has statements (value lists come in a few sizes).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_PARAMETER: Final = re.compile(r"'[^']*'|\"[^\"]*\"|\?")
_INSERT: Final = re.compile(
    r"(?P<head>INSERT INTO .* VALUES )(?P<row>\((?:\?, )*\?\))(?P<tail>.*)", re.DOTALL
)

_GUARD: Final = re.compile(r"(?P<head>WITH .*\))(?P<tail> SELECT .*)")
_CHANGE: Final = re.compile(r"(?P<kind>INSERT INTO|UPDATE) (?P<table>\w+) .*", re.DOTALL)

MAX_PARAMETERS: Final = 4096
"""How many values one statement takes at most; the protocol's own limit is 65,535."""


@lru_cache(maxsize=4096)
def numbered(sql: str) -> bytes:
    """The statement with ``$1``, ``$2`` ... for ``?``, as it goes over the wire."""
    count = 0

    def number(found: re.Match[str]) -> str:
        nonlocal count
        if found[0] != "?":
            return found[0]
        count += 1
        return f"${count}"

    return _PARAMETER.sub(number, sql).encode()


@lru_cache(maxsize=1024)
def bundled(statements: tuple[str, ...]) -> str | None:
    """One statement that does what these do; ``None`` where that would mean something else.

    The first is a condition, ``WITH ... SELECT``, which still comes before all changes. The others do not
    see each other's rows in one statement: what is updated has to be a table that no other one changes.
    """
    guard = _GUARD.fullmatch(statements[0])
    changes = [_CHANGE.fullmatch(each) for each in statements[1:]]
    tables = [(change["kind"], change["table"]) for change in changes if change is not None]
    names = [table for _, table in tables]
    is_mixed = any(kind == "UPDATE" and names.count(table) > 1 for kind, table in tables)
    if guard is None or is_mixed or len(tables) < len(changes):
        return None
    parts = [f"c{number} AS ({sql})" for number, sql in enumerate(statements[1:])]
    return ", ".join((guard["head"], *parts)) + guard["tail"]


@lru_cache(maxsize=1024)
def for_rows(sql: str, count: int, *, distinct: bool) -> str | None:
    """The same INSERT for ``count`` rows in one statement; ``None`` where that would mean something else.

    ``DO UPDATE`` may not touch a row twice in one statement, so rows have to be ``distinct`` for it.
    """
    found = _INSERT.fullmatch(sql)
    if found is None or "?" in found["tail"] or ("DO UPDATE" in found["tail"] and not distinct):
        return None
    return found["head"] + ", ".join([found["row"]] * count) + found["tail"]

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
def for_rows(sql: str, count: int, *, distinct: bool) -> str | None:
    """The same INSERT for ``count`` rows in one statement; ``None`` where that would mean something else.

    ``DO UPDATE`` may not touch a row twice in one statement, so rows have to be ``distinct`` for it.
    """
    found = _INSERT.fullmatch(sql)
    if found is None or "?" in found["tail"] or ("DO UPDATE" in found["tail"] and not distinct):
        return None
    return found["head"] + ", ".join([found["row"]] * count) + found["tail"]

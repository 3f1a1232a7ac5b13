"""Helpers for the generated pages of docs/."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

HEAD: Final = "<!-- Written by scripts/generate.py: change what it is made from, not this page. -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; none without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines] if lines else []


def cell(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*")

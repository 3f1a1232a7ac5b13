"""What the generated pages of docs/ have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

HEAD: Final = "<!-- Written by scripts/generate.py: change what it is made from, not this page. -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; none if there is nothing to tell."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines] if lines else []


def cell(text: str) -> str:
    """Text that stays in its cell, and is read as it is written."""
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;").replace("*", r"\*")

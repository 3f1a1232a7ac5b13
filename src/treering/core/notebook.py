"""Tables for notebooks: what ``_repr_html_`` of runs, threads, costs and diffs returns.

**Invariant:** whatever a value holds is escaped: nothing that an agent, model or tool wrote becomes markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

_MAX_CHARS: Final = 200


def table(title: str, rows: Iterable[Sequence[Any]], *, head: Sequence[str] = ()) -> str:
    """Return a table with a title; the first cell of a row is its name. Long values are shortened."""
    columns = "".join(f"<th>{_cell(each)}</th>" for each in head)
    body = "".join(
        f"<tr><th style='text-align:left'>{_cell(first)}</th>"
        + "".join(f"<td style='text-align:left'>{_cell(each)}</td>" for each in rest)
        + "</tr>"
        for first, *rest in rows
    )
    top = f"<thead><tr>{columns}</tr></thead>" if columns else ""
    caption = f"<caption style='text-align:left'><b>{_cell(title)}</b></caption>"
    return f"<table class='treering'>{caption}{top}<tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}\N{HORIZONTAL ELLIPSIS}")

"""How commands speak: data on stdout, as text or JSON; progress on stderr, and only to a person."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Final

import typer

_STEERING: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON leaves as it is and a terminal obeys: the second set of controls, and changes of direction."""


def show(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a result: ``value`` for programs, ``lines`` for people."""
    if as_json:
        import msgspec

        from treering.core.text import readable_json

        typer.echo(clean_json(msgspec.json.format(readable_json(value), indent=2)))
    else:
        for line in lines:
            typer.echo(line)


def say(text: str) -> None:
    """Tell a person something that is not data."""
    typer.echo(text, err=True)


def rows(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines with aligned columns; the first row is the head."""
    widths = [max(map(_cells, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(_filled, row, widths)).rstrip() for row in table]


def clean(text: str) -> str:
    """Text that cannot steer a terminal: control characters are shown, not sent."""
    return "".join(each if each.isprintable() or each in "\n\t" else _visible(each) for each in text)


def clean_json(data: bytes) -> str:
    """JSON that says the same and cannot steer a terminal."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode())


def _filled(text: str, width: int) -> str:
    return text + " " * (width - _cells(text))


def _cells(text: str) -> int:
    """How many columns of a terminal a text takes: some characters are two wide, some stand upon others."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 1 + (east_asian_width(each) in "WF") for each in text)


def _visible(character: str) -> str:
    return character.encode("unicode_escape").decode()


@contextmanager
def progress(title: str) -> Generator[Callable[[int, int | None], None] | None]:
    """A bar on a terminal, fed with (done, total); without a terminal there is nothing to feed.

    One that is not fed moves and shows the time, for work that cannot say how far it is.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, shown="")

        def update(done: int, total: int | None) -> None:
            known = None if total is None else max(done, total)
            bar.update(task, completed=done, total=known, shown=f"{done:,}")

        yield update


def size(count: int) -> str:
    """Bytes as a person reads them."""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:  # noqa: PLR2004 - decimal units
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def counts(numbers: dict[str, int]) -> str:
    """Several counts in one line, without those that are zero."""
    told = [f"{number:,} {name.replace('_', ' ')}" for name, number in numbers.items() if number]
    return ", ".join(told) or "nothing"

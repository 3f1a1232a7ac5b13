"""Output of commands: data on stdout as text or JSON; messages and progress on stderr."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from treering.secret_scan import FoundSecret

_WARNED: Final = 10
_CONTROLS: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that JSON leaves unescaped but a terminal obeys: C1 controls, bidirectional overrides."""


def show(value: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print a result: ``value`` as JSON, or ``lines`` of text."""
    if as_json:
        import msgspec

        from treering.core.text import readable_json

        typer.echo(clean_json(msgspec.json.format(readable_json(value), indent=2)))
    else:
        for line in lines:
            typer.echo(line)


def plain(value: Any) -> Any:
    """Return a struct as plain data for `show`."""
    import msgspec

    return msgspec.to_builtins(value, str_keys=True)


def say(text: str) -> None:
    """Print a message on stderr."""
    typer.echo(text, err=True)


def rows(table: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with aligned columns; the first row is the header."""
    widths = [max(map(_cells, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(_pad, row, widths)).rstrip() for row in table]


def clean(text: str) -> str:
    """Escape control characters, so that stored text cannot control the terminal."""
    return "".join(each if each.isprintable() or each in "\n\t" else _escape(each) for each in text)


def clean_json(data: bytes) -> str:
    """Return equivalent JSON that cannot control the terminal."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode())


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _cells(text))


def _cells(text: str) -> int:
    """Return the width of a text in terminal columns: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 1 + (east_asian_width(each) in "WF") for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


@contextmanager
def progress(title: str) -> Generator[Callable[[int, int | None], None] | None]:
    """Show a progress bar; yield a function that takes (done, total), or ``None`` without a terminal.

    Until it is called, the bar pulses and shows the elapsed time.
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
    """Format a number of bytes."""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:  # noqa: PLR2004 - decimal units
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def counts(numbers: dict[str, int]) -> str:
    """Format several counts in one line, leaving out zeros."""
    parts = [f"{number:,} {name.replace('_', ' ')}" for name, number in numbers.items() if number]
    return ", ".join(parts) or "nothing"


def warn_of_secrets(secrets: Sequence[FoundSecret]) -> None:
    """Say on stderr which files or records seem to hold keys or passwords."""
    for each in secrets[:_WARNED]:
        say(f"warning: secret in {clean(str(each))}")
    if len(secrets) > _WARNED:
        say(f"warning: ... and {len(secrets) - _WARNED:,} more secrets")

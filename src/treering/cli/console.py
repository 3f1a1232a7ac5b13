"""Output of commands: data on stdout as text or JSON; messages on stderr (and `treering.cli.progress`).

Colours are in the text from the start: `typer.echo` takes them out where there is no terminal, or where
NO_COLOR is set.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import typer

if TYPE_CHECKING:
    from treering.secret_scan import FoundSecret

_WARNED: Final = 10
_CONTROLS: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that JSON leaves unescaped but a terminal obeys: C1 controls, bidirectional overrides."""
_COLOUR = r"(?:0?[0-47]|2[2-47]|[34][0-79]|9[0-7]|10[0-7]|[34]8;5;\d{1,3})"
_COLOURS: Final = re.compile(rf"\x1b\[(?:{_COLOUR}(?:;{_COLOUR})*)?m")
"""What sets colours and weights, and neither hides text nor makes it blink."""
_WIDEST: Final = 60
"""Of a column on a terminal."""
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")

_STATUS: Final = {
    **dict.fromkeys(("ok", "done", "active", "info"), "green"),
    **dict.fromkeys(("running", "started", "planned", "unfinished"), "cyan"),
    **dict.fromkeys(("warning", "warn", "skipped", "paused", "unknown", "pending", "interrupted"), "yellow"),
    **dict.fromkeys(("error", "failed", "crashed", "broken", "critical", "damaged"), "red"),
    **dict.fromkeys(("cancelled", "abandoned"), "bright_black"),
}

T = TypeVar("T")


class _Page(Protocol):
    @property
    def cursor(self) -> str | None: ...


P = TypeVar("P", bound=_Page)


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
    from treering.core import text

    return text.plain(value)


def say(text: str) -> None:
    """Print a message on stderr."""
    typer.echo(text, err=True)


def rows(table: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with aligned columns; the first row is the header.

    On a terminal, a long text leaves room for the columns beside it. What goes to a file or program is whole.
    """
    if is_terminal():
        table = [[*map(_cut, row[:-1]), row[-1]] for row in table]
    widths = [max(map(_cells, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(_pad, row, widths)).rstrip() for row in table]


def status_text(word: str, shown: str | None = None) -> str:
    """Return a status in its colour; ``shown`` is the text, if that says more than the status."""
    return typer.style(shown or word, fg=_STATUS.get(word))


def dim(text: str) -> str:
    """Return a text that matters less."""
    return typer.style(text, dim=True)


def limited(found: Iterable[T], limit: int) -> list[T]:
    """Return the first ``limit`` of what was found (0: all), and say on stderr if that left some out."""
    rest = iter(found)
    shown = list(islice(rest, limit or None))
    if limit and next(rest, None) is not None:
        say(f"note: only {limit:,} are shown (--limit 0 shows all)")
    return shown


def each_of(read: Callable[..., P]) -> Iterator[P]:
    """Iterate over the pages that a function returns for a cursor."""
    cursor: str | None = None
    while True:
        page = read(cursor=cursor)
        yield page
        cursor = page.cursor
        if cursor is None:
            return


def clean(text: str) -> str:
    """Escape control characters, so that stored text cannot control the terminal."""
    return "".join(each if each.isprintable() or each in "\n\t" else _escape(each) for each in text)


def clean_json(data: bytes) -> str:
    """Return equivalent JSON that cannot control the terminal."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode())


def coloured(text: str) -> str:
    """Escape control characters, but keep colours, which end with each line."""
    pieces = zip_longest(_COLOURS.split(text), _COLOURS.findall(text), fillvalue="")
    kept = "".join(clean(before) + colour for before, colour in pieces)
    return "\n".join(line + "\x1b[0m" * ("\x1b" in line) for line in kept.split("\n"))


def is_terminal() -> bool:
    """Whether a person reads the output as it is printed."""
    return sys.stdout.isatty()


def _cut(text: str) -> str:
    return text if _cells(text) <= _WIDEST or "\x1b" in text else text[: _WIDEST - 1] + "…"


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _cells(text))


def _cells(text: str) -> int:
    """Return the width of a text in terminal columns: wide characters take two, combining ones and colours
    none.
    """
    text = _STYLE.sub("", text)
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(each) else 1 + (east_asian_width(each) in "WF") for each in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


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

"""The terminal: data on stdout as text or JSON; messages, and progress of long operations, on stderr.

Colours are in the text from the start: `typer.echo` takes them out where there is no terminal, or where
NO_COLOR is set.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import typer

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from rich.progress import TaskID

    from treering.secret_scan import FoundSecret
    from treering.threads.checkpoint import CheckpointRecord
    from treering.threads.directory import ThreadInfo

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


def text_of(path: Path) -> str:
    """Return the text of a file that an option names. Raise `InvalidInput` if it cannot be read."""
    from treering.errors import InvalidInput

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise InvalidInput(f"{path} cannot be read: {why}; name another file") from None


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
    parts = [counted(number, name.replace("_", " ")) for name, number in numbers.items() if number]
    return ", ".join(parts) or "nothing"


def counted(number: int, plural: str) -> str:
    """Format a number with its noun, given in the plural: ``1 thread``, ``1,200 threads``."""
    from treering.core import text

    return text.counted(number, plural)


def warn_of_secrets(secrets: Sequence[FoundSecret]) -> None:
    """Say on stderr which files or records seem to hold keys or passwords."""
    for each in secrets[:_WARNED]:
        say(f"warning: secret in {clean(str(each))}")
    if len(secrets) > _WARNED:
        say(f"warning: ... and {len(secrets) - _WARNED:,} more secrets")


_LINE: Final = 72
_WIDE: Final = 100


def as_json(value: Any) -> str:
    """Return a stored value as one line of JSON, without loss (see `treering.core.encoding`)."""
    from treering.core.encoding import encode_json

    return encode_json(value, keep_order=True).decode()


def raw(value: Any) -> Any:
    """Return a stored value for use inside printed JSON."""
    import msgspec

    from treering.core.encoding import encode_json

    return msgspec.Raw(encode_json(value, keep_order=True))


def pasteable(verb: str, thread: ThreadInfo, *words: str) -> str:
    """Return a command for a thread, quoted for a shell."""
    import shlex

    whose = ("--user-namespace", thread.namespace) if thread.namespace else ()
    return clean(shlex.join(["treering", verb, thread.id, *words, *whose]))


def speaker(message: Any) -> str:
    """Return who wrote a message."""
    from treering.runs.messages import read_message

    found = read_message(message)
    return clean(found.role if found.name is None or found.role == "tool" else f"{found.role} {found.name}")


def words(message: Any) -> str:
    """Return what a message says: its text, tool calls, results and attachments."""
    from treering.runs.messages import message_text, read_message

    return clean(message_text(read_message(message)))


def lines_of(message: Any, most: int | None) -> list[str]:
    """Return the lines of what a message says, in colours that it has.

    Of more than ``most`` lines, or of lines too long for them, only the beginning, and how much there is.
    """
    from treering.runs.messages import message_text, read_message

    text = message_text(read_message(message))
    whole = coloured(text).split("\n")
    if most is None or (len(whole) <= most and len(text) <= most * _WIDE):
        return whole
    shown = coloured(text[: most * _WIDE]).split("\n")[:most]
    left = len(whole) - len(shown)
    rest = f"{left:,} more lines of {len(whole):,}" if left else "more"
    return [*shown, dim(f"… {rest} ({size(len(text.encode()))}; --full shows all)")]


def one_line(text: str, limit: int = _LINE) -> str:
    """Return the beginning of a text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def said(message: Any, limit: int = _LINE) -> str:
    """Return who says a message, and the beginning of what it says on one line."""
    from treering.runs.messages import preview

    return f"{speaker(message)}: {clean(preview(message, limit))}"


def said_value(value: Any, limit: int = _LINE) -> str:
    """Return the beginning of an input or output on one line: the last message, if it holds messages."""
    from treering.runs.messages import preview_of, preview_value, read_messages

    messages = read_messages(value)
    return clean(preview_of(messages[-1], limit) if messages else preview_value(value, limit))


def gist(message: Any) -> dict[str, str] | None:
    """Return who says a message, and the beginning of what it says, for JSON; ``None`` for no message."""
    from treering.runs.messages import preview, read_message

    return None if message is None else {"role": read_message(message).role, "text": preview(message)}


def money(nanos: dict[str, int]) -> list[dict[str, Any]]:
    """Return nano-units by currency as amounts, for JSON."""
    from treering.runs.money import from_nanos

    return [{"currency": each, "amount": float(from_nanos(nanos[each]))} for each in sorted(nanos)]


def when(time: str | int | datetime) -> str:
    """Format a time for people, to the second, in the local time zone and with its name.

    ``time`` is ISO 8601, microseconds or a datetime; other text, such as ``-``, is returned as it is.
    """
    moment = _moment(time)
    return str(time) if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def clock_time(time: str | int | datetime) -> tuple[str, str]:
    """Return the local day with its time zone, and the time of that day to the millisecond."""
    moment = _moment(time)
    if moment is None:
        return str(time), ""
    local = moment.astimezone()
    return local.strftime("%Y-%m-%d %Z"), local.strftime("%H:%M:%S.") + f"{local.microsecond // 1000:03}"


def local_time(text: str) -> str:
    """Return a time that a person typed with its UTC offset: without one, it is in the local time zone.

    Other text is returned as it is.
    """
    from datetime import datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    is_time = "-" in text and moment.tzinfo is None  # 12 is a step, and 20261116 may be one
    return moment.astimezone().isoformat() if is_time else text


def _moment(time: str | int | datetime) -> datetime | None:
    from datetime import UTC, datetime

    from treering.core.clock import to_datetime

    if isinstance(time, int):
        return to_datetime(time)
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def summary(checkpoint: CheckpointRecord, last_message: Any = None) -> dict[str, Any]:
    """Return a checkpoint without its content, for JSON, given its last message."""
    return {
        "id": checkpoint.id,
        "thread": checkpoint.thread,
        "namespace": checkpoint.namespace,
        "parent": checkpoint.parent,
        "step": checkpoint.step,
        "created_at": checkpoint.created_at.isoformat(),
        "note": checkpoint.note,
        "tags": list(checkpoint.tags),
        "message_count": checkpoint.message_count,
        "last_message": gist(last_message),
        "pending_interrupt": raw(checkpoint.pending_interrupt),
        "metadata": raw(checkpoint.metadata),
        "snapshot": checkpoint.snapshot,
    }


class Progress:
    """What an operation reports while it works; a bar on a terminal, nothing elsewhere.

    An operation that knows how much there is passes a total of bytes or else of items, and the bar shows the
    rate and the time that is left. Without a total it shows what was done so far, and the rate.
    """

    def __init__(self, bar: Any = None, task: TaskID | None = None) -> None:
        self._bar = bar
        self._task = task

    @property
    def is_shown(self) -> bool:
        """Whether there is a bar; if not, nothing needs to be counted for it."""
        return self._bar is not None

    def update(
        self,
        done: int,
        total: int | None = None,
        *,
        bytes: int | None = None,
        total_bytes: int | None = None,
        phase: str | None = None,
    ) -> None:
        """Say how far it is: items, and bytes if they are known. ``phase`` renames the bar."""
        if self._bar is None:
            return
        by_bytes = bytes is not None and (total_bytes is not None or total is None)
        completed, whole = (bytes, total_bytes) if by_bytes else (done, total)
        self._bar.update(
            self._task,
            completed=completed,
            total=None if whole is None else max(completed or 0, whole),
            items=_items(done, total) if done or total else "",
            bytes=bytes,
            total_bytes=total_bytes,
            **({} if phase is None else {"description": phase}),
        )


@contextmanager
def progress(title: str) -> Generator[Progress]:
    """Show a progress bar while the block runs. Until it is updated, it pulses and shows the elapsed time."""
    if not sys.stderr.isatty():
        yield Progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column
    from rich.text import Text

    class Figures(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(figures(task))

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        Figures(table_column=Column(no_wrap=True)),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, items="", bytes=None, total_bytes=None)
        yield Progress(bar, task)


def figures(task: Any) -> str:
    """Return the figures behind a bar: items, bytes, rate, and the time that is left or has passed."""
    from treering.cli.console import size

    fields = task.fields
    parts = [fields["items"]] if fields["items"] else []
    if fields["bytes"] is not None:
        whole = "" if fields["total_bytes"] is None else f" of {size(fields['total_bytes'])}"
        parts.append(f"{size(fields['bytes'])}{whole}")
    seconds = task.elapsed or 0
    if seconds and fields["bytes"] is not None:
        parts.append(f"{size(round(fields['bytes'] / seconds))}/s")
    elif seconds and task.completed:
        parts.append(f"{task.completed / seconds:,.0f}/s")
    left = task.time_remaining
    if left is not None and not task.finished:
        parts.append(f"{_clock(left)} left")
    elif task.elapsed is not None:
        parts.append(_clock(task.elapsed))
    return "  ".join(parts)


def _items(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None else f"{done:,} of {max(done, total):,}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

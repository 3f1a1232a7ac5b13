"""Progress of long operations, on stderr and only on a terminal: a bar with counts, bytes, rate and ETA."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import TaskID


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
            items=_items(done, total),
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

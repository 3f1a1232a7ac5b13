"""The report of an import: counts per file of what was found, what is new and what was stored already.

A dry run reports the same numbers as the real run that would follow. The importers of coding sessions also
sum up tokens and costs by project and day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from treering.core.batch import Usage
from treering.core.clock import day_of, to_datetime
from treering.core.query import day_start_us
from treering.runs.prices import prices


def added(one: Usage | None, other: Usage) -> Usage:
    """Return the sum of two counts, class by class."""
    return _by_class(one or Usage(), other, 1)


def without(one: Usage, other: Usage | None) -> Usage:
    """Return the difference of two counts, in no class below zero."""
    return one if other is None else _by_class(one, other, -1)


def covers(whole: Usage, part: Usage) -> bool:
    """Return whether a count is at least another one in every class."""
    return all(getattr(whole, name) >= getattr(part, name) for name in Usage.__struct_fields__)


def _by_class(one: Usage, other: Usage, sign: int) -> Usage:
    return Usage(
        **{name: max(getattr(one, name) + sign * getattr(other, name), 0) for name in Usage.__struct_fields__}
    )


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What one project used on one day."""

    project: str
    day: str
    runs: int = 0
    usage: Usage = Usage()
    nanos: dict[str, int] = {}
    """Money by currency, in nano-units."""
    unpriced_tokens: int = 0


class Tally:
    """Sums usage by project and day while sessions are read."""

    def __init__(self, given: Iterable[Spent] = ()) -> None:
        self._days: dict[tuple[str, str], Spent] = {}
        for each in given:
            self.add(each)

    def add(self, spent: Spent) -> None:
        """Add a sum from elsewhere."""
        known = self._at(spent.project, spent.day)
        nanos = dict(known.nanos)
        for currency, amount in spent.nanos.items():
            nanos[currency] = nanos.get(currency, 0) + amount
        self._days[spent.project, spent.day] = Spent(
            project=spent.project,
            day=spent.day,
            runs=known.runs + spent.runs,
            usage=added(known.usage, spent.usage),
            nanos=nanos,
            unpriced_tokens=known.unpriced_tokens + spent.unpriced_tokens,
        )

    def run(self, project: str, ts_us: int) -> None:
        """Count a run."""
        self.add(Spent(project=project, day=_day(ts_us), runs=1))

    def used(self, project: str, ts_us: int, model: str | None, usage: Usage) -> None:
        """Add the tokens of a message, at their price."""
        priced = None if model is None else prices.price(model, usage, ts_us)
        self.add(
            Spent(
                project=project,
                day=_day(ts_us),
                usage=usage,
                nanos={} if priced is None else {priced.currency: priced.nanos},
                unpriced_tokens=usage.total if priced is None else 0,
            )
        )

    @property
    def spent(self) -> tuple[Spent, ...]:
        """All sums, by day and project."""
        return tuple(sorted(self._days.values(), key=lambda each: (each.day, each.project)))

    def _at(self, project: str, day: str) -> Spent:
        return self._days.get((project, day)) or Spent(project=project, day=day)


def _day(ts_us: int) -> str:
    return to_datetime(day_start_us(day_of(ts_us))).date().isoformat()


Progress = Callable[[int, int | None], None]
"""Called from time to time with how much is done and, where known, of how much."""


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One file (or table, or folder of files) of a source."""

    path: str
    """Its path inside the source."""
    holds: str
    """What is counted, in the plural: ``checkpoints``, ``counters``."""
    found: int
    new: int = 0
    """Written now; in a dry run, what would be written."""
    known: int = 0
    """Stored already, by an earlier import."""
    left_out: int = 0
    """Found and not imported; ``note`` says why."""
    note: str = ""


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """One import, file by file."""

    importer: str
    source: str
    dry_run: bool
    files: tuple[FileReport, ...]
    lines: int = 0
    """Lines that were read; files that have not changed since the last import are not read again."""
    seconds: float = 0.0
    """The duration, where it is measured."""
    unknown: dict[str, int] = {}
    """Lines of unknown types, which were stored as they are, by type."""
    bad: tuple[str, ...] = ()
    """Lines that could not be read and were skipped: file, number and reason."""
    spent: tuple[Spent, ...] = ()
    """What all sessions of the source used, by project and day."""

    @property
    def new(self) -> int:
        """How much was written over all files; 0 if everything was stored already."""
        return sum(each.new for each in self.files)

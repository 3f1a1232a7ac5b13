"""Verification: read everything in a space and report problems.

The engine rehashes content, follows every link and recomputes derived data; this module collects its report.
Nothing is repaired, and reading continues after a problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from treering.core.engine import Engine
from treering.core.records import Checked, Problem
from treering.errors import Corrupt
from treering.maintenance.stats import is_unwritten

MAX_PROBLEMS: Final = 1000
"""Problems listed in a report; further ones are only counted, which bounds its size."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The report of `verify`. ``more`` is the number of problems not listed in ``problems``."""

    ok: bool
    problems: tuple[Problem, ...]
    checked: Checked
    more: int = 0

    def with_problems(self, further: Iterable[Problem]) -> Verification:
        """Return a report with further problems."""
        problems = [*self.problems, *_stop_at_corrupt(further)]
        more = self.more + len(problems[MAX_PROBLEMS:])
        return msgspec.structs.replace(
            self, ok=not problems, problems=tuple(problems[:MAX_PROBLEMS]), more=more
        )


def _stop_at_corrupt(further: Iterable[Problem]) -> Iterator[Problem]:
    try:
        yield from further
    except Corrupt as error:  # nothing behind this can be reached
        yield Problem(kind="corrupt", where="threads", detail=str(error))


def verify(
    engine: Engine,
    space: str,
    *,
    read_content: bool = True,
    on_progress: Callable[[Checked], None] | None = None,
) -> Verification:
    """Check one space. ``read_content=False`` checks only rows and links, which is fast."""
    problems: list[Problem] = []
    checked = Checked()
    more = 0
    try:
        for report in () if is_unwritten(engine, space) else engine.check(space, read_content=read_content):
            if isinstance(report, Checked):
                checked = report
                if on_progress is not None:
                    on_progress(report)
            elif len(problems) < MAX_PROBLEMS:
                problems.append(report)
            else:
                more += 1
    except Corrupt as error:  # nothing behind this can be reached
        problems.append(Problem(kind="corrupt", where=engine.url, detail=str(error)))
    return Verification(ok=not problems, problems=tuple(problems), checked=checked, more=more)

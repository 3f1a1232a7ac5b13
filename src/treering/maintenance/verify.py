"""Verification: read everything that a space holds and say what is wrong with it.

The engine rehashes content, follows every link and recounts what is derived; this file gathers its report.
A store with problems is still read: nothing is repaired and nothing is hidden.
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
"""A report names this many problems and counts the rest, so that a ruined store still gives one."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify` found; ``more`` problems were counted but are not in ``problems``."""

    ok: bool
    problems: tuple[Problem, ...]
    checked: Checked
    more: int = 0

    def with_problems(self, further: Iterable[Problem]) -> Verification:
        """The same with what else was found wrong."""
        problems = [*self.problems, *_until_corrupt(further)]
        more = self.more + len(problems[MAX_PROBLEMS:])
        return msgspec.structs.replace(
            self, ok=not problems, problems=tuple(problems[:MAX_PROBLEMS]), more=more
        )


def _until_corrupt(further: Iterable[Problem]) -> Iterator[Problem]:
    try:
        yield from further
    except Corrupt as error:  # what lies behind this cannot be reached
        yield Problem(kind="corrupt", where="threads", detail=str(error))


def verify(
    engine: Engine,
    space: str,
    *,
    read_content: bool = True,
    on_progress: Callable[[Checked], None] | None = None,
) -> Verification:
    """Check one space. Without ``read_content`` only rows and links are followed, which is quick."""
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
    except Corrupt as error:  # what lies behind this cannot be reached
        problems.append(Problem(kind="corrupt", where=engine.url, detail=str(error)))
    return Verification(ok=not problems, problems=tuple(problems), checked=checked, more=more)

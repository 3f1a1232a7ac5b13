"""Verification: read everything in a space and report problems.

The engine rehashes content, follows every link and recomputes derived data; this module collects its report.
Nothing is repaired, and reading continues after a problem.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import msgspec

from treering.core.batch import Draft
from treering.core.clock import from_datetime
from treering.core.encoding import encode_json
from treering.core.engine import Engine
from treering.core.ids import MAINTENANCE_SCOPE
from treering.core.query import EventQuery
from treering.core.records import Checked, Problem
from treering.errors import Corrupt, InvalidInput

VERIFIED_REF: Final = "audit/verified"
"""Holds the number up to which the last ``since="last"`` found everything sound."""

_LARGE: Final = 100_000
"""From so many sequence numbers on, starting processes pays."""

Since = int | datetime | Literal["last"]
"""Behind which commits a check begins: a sequence number, a time, or the end of the last such check."""

_AGE: Final = re.compile(r"([0-9]{1,6})([mhdw])")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

MAX_PROBLEMS: Final = 1000
"""Problems listed in a report; further ones are only counted, which bounds its size."""


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The report of `verify`. ``more`` is the number of problems not listed in ``problems``.

    ``since`` is the sequence number behind which commits were checked (0 for all of them), and ``last_seq``
    that of the last commit when the check began.
    """

    ok: bool
    problems: tuple[Problem, ...]
    checked: Checked
    more: int = 0
    since: int = 0
    last_seq: int = 0

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
    since: Since = 0,
    processes: int | None = None,
    on_progress: Callable[[Checked], None] | None = None,
) -> Verification:
    """Check one space. ``read_content=False`` checks only rows and links, which is fast.

    ``processes`` is by default the number of processors for a large space, and 1 for a small one.
    """
    last_seq = engine.wait(space, 0, seconds=0)  # 0 where nothing was ever written
    if isinstance(since, datetime):
        after = _seq_before(engine, space, since, last_seq)
    else:
        after = _verified(engine, space) if since == "last" else since
    if after < 0 or after > last_seq:
        raise InvalidInput(f"since={after}, but the numbers of the commits in {space!r} end at {last_seq}")
    if processes is None:
        processes = (os.cpu_count() or 1) if last_seq - after >= _LARGE else 1
    if processes < 1:
        raise InvalidInput(f"processes={processes}; pass 1 or more")
    problems: list[Problem] = []
    checked = Checked()
    more = 0
    try:
        for report in (
            engine.check(space, read_content=read_content, since=after, processes=processes)
            if last_seq
            else ()
        ):
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
    return Verification(
        ok=not problems,
        problems=tuple(problems),
        checked=checked,
        more=more,
        since=after,
        last_seq=last_seq,
    )


def parse_since(text: str, *, now_us: int) -> Since:
    """Read where a check begins: ``1234``, ``last``, an age such as ``36h``, or a time in ISO 8601.

    A time without an offset is in UTC.
    """
    if text == "last":
        return "last"
    if re.fullmatch("[0-9]{1,18}", text):
        return int(text)
    try:
        if age := _AGE.fullmatch(text):
            now = datetime.fromtimestamp(now_us / 1e6, UTC)
            return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"since={text!r} is not a sequence number, last, an age (30m, 36h, 7d, 2w) or a time "
            "(2026-11-20, 2026-11-20T08:00+01:00)"
        ) from None


def _seq_before(engine: Engine, space: str, moment: datetime, last_seq: int) -> int:
    """Return the highest sequence number that was committed before a moment; 0 if there is none.

    The times of commits never decrease, so this is a binary search. Numbers whose events were erased are
    skipped, so the check may begin a little earlier, never later.
    """
    if moment.tzinfo is None:
        raise InvalidInput(f"since={moment.isoformat()} has no time zone; pass an aware datetime")
    until_us = from_datetime(moment)
    low, high = 0, last_seq
    while low < high:
        middle = (low + high + 1) // 2
        records = engine.scan(space, EventQuery(), after=str(middle - 1), limit=1).records
        if records and records[0].committed_at_us < until_us:
            low = max(records[0].seq, middle)
        else:
            high = middle - 1
    return min(low, last_seq)


def _verified(engine: Engine, space: str) -> int:
    """Return up to where the space was found sound; 0 if that is not known."""
    ref = engine.refs(space, [VERIFIED_REF]).get(VERIFIED_REF)
    if ref is None:
        return 0
    try:
        return msgspec.json.decode(ref.value, type=int)
    except msgspec.DecodeError as error:
        raise Corrupt(f"ref {VERIFIED_REF!r} cannot be read ({error}); run verify without since") from error


def remember(engine: Engine, space: str, found: Verification) -> None:
    """Let the next check with ``since="last"`` begin where this one ended, if nothing was wrong."""
    if found.ok and found.last_seq > found.since:
        draft = Draft(space)
        draft.set_ref(VERIFIED_REF, encode_json(found.last_seq), scope=MAINTENANCE_SCOPE)
        engine.commit(draft.batch())

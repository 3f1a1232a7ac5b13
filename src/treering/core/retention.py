"""Retention: one policy for checkpoints, runs, memory versions and snapshots.

Each rule of a `Keep` names the entries that it wants (the newest 50, the newest of each of the last 30
days that have one, everything younger than a week, everything tagged ``release``), and an entry that any
rule wants is kept, with the reasons written down. Calendar rules count buckets that hold something, in
UTC, so a pause never eats into them. ``max_bytes`` comes last and takes the oldest away again until the
sum fits. **Invariant:** the newest entry, a pinned one and (whatever the size) one with a tag that the
policy names are never dropped; a `Keep` without rules keeps everything; and the decision depends on the
entries, the policy and ``now_us`` alone, never on the order in which the entries came.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Final

import msgspec

from treering.core.clock import DAY_US, SECOND_US, day_of, to_datetime
from treering.errors import InvalidInput


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """What to keep; everything else may go. `Keep()` keeps everything."""

    last: int | None = None
    hourly: int | None = None
    daily: int | None = None
    weekly: int | None = None
    monthly: int | None = None
    tagged: tuple[str, ...] = ()
    within: timedelta | str | None = None
    """An age, as a timedelta or as text like ``"30d"`` or ``"1d12h"`` (units s, m, h, d, w)."""
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            number: object = getattr(self, name)
            if number is not None and (type(number) is not int or number < 1):
                raise InvalidInput(f"keep {name}={number!r} is not acceptable; give a whole number from 1 on")
        if type(self.tagged) is not tuple or not all(type(tag) is str and tag for tag in self.tagged):
            raise InvalidInput(
                f"keep tagged={self.tagged!r} is not acceptable; give a tuple of tags, ('release',)"
            )
        if self.within is not None:
            _age_us(self.within)

    @classmethod
    def parse(cls, text: str) -> Keep:
        """Read ``last=50,daily=30,within=30d,tagged=release,max_bytes=10GB``; ``tagged`` may come again."""
        numbers: dict[str, int] = {}
        within: str | None = None
        tags: list[str] = []
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name == "tagged":
                tags.append(value)
            elif name == "within" and within is None:
                within = value
            elif name in _NUMBERS and name not in numbers:
                numbers[name] = _number(name, value)
            else:
                known = ", ".join((*_NUMBERS, "within", "tagged"))
                raise InvalidInput(f"keep rule {part!r} is unknown or there twice; the rules are {known}")
        return cls(**numbers, within=within, tagged=tuple(tags))


class RetentionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a policy may keep or drop."""

    id: str
    ts_us: int
    tags: frozenset[str] = frozenset()
    size_bytes: int = 0
    pinned: bool = False


class KeptEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that stays, and every rule that wants it."""

    entry: RetentionEntry
    reasons: tuple[str, ...]


class RetentionDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What stays and what goes, each newest first."""

    kept: tuple[KeptEntry, ...]
    dropped: tuple[RetentionEntry, ...]


def select(entries: Iterable[RetentionEntry], keep: Keep, *, now_us: int) -> RetentionDecision:
    """Decide about every entry; nothing is changed by it."""
    newest_first = [_Case(entry) for entry in sorted(entries, key=_age_order, reverse=True)]
    _collect_reasons(newest_first, keep, now_us)
    if keep.max_bytes is not None:
        _fit(newest_first, keep.max_bytes)
    return RetentionDecision(
        kept=tuple(
            KeptEntry(entry=case.entry, reasons=tuple(case.reasons)) for case in newest_first if case.reasons
        ),
        dropped=tuple(case.entry for case in newest_first if not case.reasons),
    )


class _Case:
    """An entry while it is being decided; without a reason in the end, it goes."""

    __slots__ = ("entry", "reasons")

    def __init__(self, entry: RetentionEntry) -> None:
        self.entry = entry
        self.reasons: list[str] = []


def _age_order(entry: RetentionEntry) -> tuple[int, str]:
    return entry.ts_us, entry.id


def _collect_reasons(newest_first: list[_Case], keep: Keep, now_us: int) -> None:
    if newest_first:
        newest_first[0].reasons.append("newest")
    for case in newest_first:
        if case.entry.pinned:
            case.reasons.append("pinned")
        if not case.entry.tags.isdisjoint(keep.tagged):
            case.reasons.append("tagged")
    for case in newest_first[: keep.last or 0]:
        case.reasons.append("last")
    if keep.within is not None:
        since_us = now_us - _age_us(keep.within)
        for case in newest_first:
            if case.entry.ts_us >= since_us:
                case.reasons.append("within")
    for name, bucket_of in _CALENDAR.items():
        _keep_newest_of_each(newest_first, name, bucket_of, getattr(keep, name) or 0)
    if msgspec.structs.replace(keep, max_bytes=None) == Keep():
        for case in newest_first:
            case.reasons.append("no rule")


def _keep_newest_of_each(
    newest_first: list[_Case], name: str, bucket_of: Callable[[int], int], count: int
) -> None:
    seen: set[int] = set()
    for case in newest_first:
        if len(seen) == count:
            return
        bucket = bucket_of(case.entry.ts_us)
        if bucket not in seen:
            seen.add(bucket)
            case.reasons.append(name)


def _fit(newest_first: list[_Case], max_bytes: int) -> None:
    total = sum(case.entry.size_bytes for case in newest_first if case.reasons)
    for case in reversed(newest_first):
        if total <= max_bytes:
            return
        if case.reasons and _PROTECTED.isdisjoint(case.reasons):
            total -= case.entry.size_bytes
            case.reasons.clear()


def _month_of(ts_us: int) -> int:
    moment = to_datetime(ts_us)
    return moment.year * 12 + moment.month


def _age_us(age: object) -> int:
    if isinstance(age, timedelta):
        span_us = age // timedelta(microseconds=1)
    elif isinstance(age, str) and _AGE.fullmatch(age):
        span_us = sum(int(count) * _UNITS_US[unit] for count, unit in _AGE_PART.findall(age))
    else:
        span_us = 0
    if span_us <= 0:
        raise InvalidInput(
            f"keep within={age!r} is not acceptable; give an age like '30d', '12h' or a timedelta"
        )
    return span_us


def _number(name: str, text: str) -> int:
    found = _SIZE.fullmatch(text) if name == "max_bytes" else _COUNT.fullmatch(text)
    if found is None:
        raise InvalidInput(f"keep {name}={text!r} is not acceptable; give a whole number from 1 on")
    return int(found["count"]) * _SIZE_UNITS[found.groupdict().get("unit") or ""]


_PROTECTED: Final = frozenset({"newest", "pinned", "tagged"})

_CALENDAR: Final[dict[str, Callable[[int], int]]] = {
    "hourly": lambda ts_us: ts_us // (3600 * SECOND_US),
    "daily": day_of,
    "weekly": lambda ts_us: (day_of(ts_us) + 3) // 7,  # 1970-01-01 was a Thursday; weeks begin on Monday
    "monthly": _month_of,
}
_NUMBERS: Final = ("last", *_CALENDAR, "max_bytes")

_UNITS_US: Final = {"s": SECOND_US, "m": 60 * SECOND_US, "h": 3600 * SECOND_US, "d": DAY_US, "w": 7 * DAY_US}
_AGE_PART: Final = re.compile(r"([0-9]{1,9})([smhdw])")
_AGE: Final = re.compile(r"(?:[0-9]{1,9}[smhdw])+")
_COUNT: Final = re.compile(r"(?P<count>[0-9]{1,18})")
_SIZE: Final = re.compile(r"(?P<count>[0-9]{1,18})(?P<unit>[KMGT]i?B|)")
_SIZE_UNITS: Final = {"": 1} | {
    unit: 1000**power if unit[1] == "B" else 1024**power
    for power in range(1, 5)
    for unit in ("KMGT"[power - 1] + "B", "KMGT"[power - 1] + "iB")
}


# -----------------------------------------------------------------------------------------------------------
# What a graph's step is made of beside its own content: the steps before it that it is read with.
#
# A delta channel is not stored at every step: it is made of the last step that holds it whole and of what was
# written on each one since. A fork begins as a copy of another thread's step, and what tasks wrote there is
# its own. So a policy that keeps such a step has to keep those others as well. **Invariant:** whatever stays
# can be read.


class DeltaStep(msgspec.Struct, frozen=True, gc=False):
    """What a step's row says of it: its parent, what it is a copy of, and its channels."""

    parent: str | None
    copy_of: str | None
    open: frozenset[str]
    """Delta channels that it does not hold."""
    held: frozenset[str]
    """Channels that it holds whole, where others may need that."""


def delta_dependencies(kept: Iterable[str], steps: Mapping[str, DeltaStep]) -> set[str]:
    """Those of the steps that kept ones are read with, and that are not kept themselves."""
    stays = set(kept)
    needed: set[str] = set()
    waiting = [each for each in stays if each in steps]
    while waiting:
        step = steps[waiting.pop()]
        for each in _ancestors_of(step, steps, stays):
            if each not in stays:
                stays.add(each)
                needed.add(each)
                waiting.append(each)
    return needed


def _ancestors_of(step: DeltaStep, steps: Mapping[str, DeltaStep], stays: set[str]) -> Iterable[str]:
    if step.copy_of is not None:
        yield step.copy_of
    missing, parent = step.open, step.parent
    while missing and parent is not None and (found := steps.get(parent)) is not None:
        is_kept = parent in stays
        yield parent
        missing -= found.held
        if is_kept and missing <= found.open:
            return  # it is kept with all that it needs itself
        parent = found.parent

"""Retention: one policy for checkpoints, runs, memory versions and snapshots.

Each rule of a `Keep` selects entries (the newest 50, the newest of each of the last 30 days that have one,
everything younger than a week, everything tagged ``release``). An entry selected by any rule is kept, and the
reasons are recorded. Calendar rules count non-empty UTC buckets, so a pause uses none of them up.
``max_bytes`` applies last and drops the oldest entries until the sum fits. **Invariant:** the newest entry,
pinned entries and (whatever the size) entries with a tag named by the policy are never dropped; a `Keep`
without rules keeps everything; and the decision depends only on the entries, the policy and ``now_us``, not
on the order of the entries.

An entry may be stored as a delta: reading it needs the last entry that holds each value completely, and every
entry in between. `delta_dependencies` finds those, so that a policy never drops what a kept entry is read
from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from treering.core.clock import DAY_US, SECOND_US, day_of, from_datetime, to_datetime
from treering.errors import InvalidInput


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """What to keep; everything else may be dropped. `Keep()` keeps everything."""

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
                raise InvalidInput(f"keep {name}={number!r} is invalid; use a whole number of at least 1")
        if type(self.tagged) is not tuple or not all(type(tag) is str and tag for tag in self.tagged):
            raise InvalidInput(
                f"keep tagged={self.tagged!r} is invalid; use a tuple of tags, such as ('release',)"
            )
        if self.within is not None:
            age_us(self.within)

    @classmethod
    def parse(cls, text: str) -> Keep:
        """Parse ``last=50,daily=30,within=30d,tagged=release,max_bytes=10GB``; ``tagged`` may be repeated."""
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
                raise InvalidInput(f"keep rule {part!r} is unknown or repeated; the rules are: {known}")
        return cls(**numbers, within=within, tagged=tuple(tags))


class RetentionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate for retention."""

    id: str
    ts_us: int
    tags: frozenset[str] = frozenset()
    size_bytes: int = 0
    pinned: bool = False


class KeptEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that is kept, and every rule that selected it."""

    entry: RetentionEntry
    reasons: tuple[str, ...]


class RetentionDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What to keep and what to drop, each newest first."""

    kept: tuple[KeptEntry, ...]
    dropped: tuple[RetentionEntry, ...]


def select(entries: Iterable[RetentionEntry], keep: Keep, *, now_us: int) -> RetentionDecision:
    """Decide which entries to keep. Changes nothing."""
    newest_first = [_Case(entry) for entry in sorted(entries, key=_age_order, reverse=True)]
    _collect_reasons(newest_first, keep, now_us)
    if keep.max_bytes is not None:
        _limit_bytes(newest_first, keep.max_bytes)
    return RetentionDecision(
        kept=tuple(
            KeptEntry(entry=case.entry, reasons=tuple(case.reasons)) for case in newest_first if case.reasons
        ),
        dropped=tuple(case.entry for case in newest_first if not case.reasons),
    )


class _Case:
    """An entry and the reasons to keep it; one without reasons is dropped."""

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
        since_us = now_us - age_us(keep.within)
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


def _limit_bytes(newest_first: list[_Case], max_bytes: int) -> None:
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


def age_us(age: object, name: str = "keep within") -> int:
    """Return an age such as ``30d`` in microseconds; ``name`` is what an error calls it."""
    if isinstance(age, timedelta):
        span_us = age // timedelta(microseconds=1)
    elif isinstance(age, str) and _AGE.fullmatch(age):
        span_us = sum(int(count) * _UNITS_US[unit] for count, unit in _AGE_PART.findall(age))
    else:
        span_us = 0
    if span_us <= 0:
        raise InvalidInput(f"{name}={age!r} is invalid; use an age like '30d' or '12h', or a timedelta")
    return span_us


def cut_off_us(before: str | datetime | timedelta, now_us: int) -> int:
    """Return a cut-off in microseconds: of a moment, a date, or an age such as ``30d``.

    Raises:
        InvalidInput: It is none of these.
    """
    if isinstance(before, str):
        try:
            before = datetime.fromisoformat(before)
        except ValueError:
            return now_us - age_us(before, "before")
    if isinstance(before, datetime):
        return from_datetime(before if before.tzinfo is not None else before.replace(tzinfo=UTC))
    return now_us - age_us(before, "before")


def _number(name: str, text: str) -> int:
    found = _SIZE.fullmatch(text) if name == "max_bytes" else _COUNT.fullmatch(text)
    if found is None:
        raise InvalidInput(f"keep {name}={text!r} is invalid; use a whole number of at least 1")
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


class DeltaStep(msgspec.Struct, frozen=True, gc=False):
    """An entry that may be stored as a delta: its parent, the entry it was copied from, and its values."""

    parent: str | None
    copy_of: str | None
    open: frozenset[str]
    """Names of values that it does not hold completely."""
    held: frozenset[str]
    """Names of values that it holds completely, if later entries may need them."""

    def revised(self, now: DeltaStep) -> DeltaStep:
        """Return what may be needed of an entry that was replaced: whatever either form of it needs."""
        return DeltaStep(
            parent=self.parent, copy_of=self.copy_of, open=self.open | now.open, held=self.held & now.held
        )


def delta_dependencies(kept: Iterable[str], steps: Mapping[str, DeltaStep]) -> set[str]:
    """Return the entries that kept ones are read from, without those already kept."""
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
            return  # its own dependencies are kept as well
        parent = found.parent

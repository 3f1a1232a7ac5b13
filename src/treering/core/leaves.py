"""How values that JSON has no form for are told in it: moments, spans of time, bytes, large numbers."""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import datetime, time, timedelta
from typing import Any


def to_iso(moment: datetime | time) -> object:
    """A moment in ISO 8601, with its fold where it has one."""
    offset = moment.utcoffset()
    if moment.tzinfo is not None and (offset is None or offset.microseconds):
        # Python's own parser reads an offset below one second as UTC.
        raise ValueError(f"its time zone gives the offset {offset}, and only whole seconds can be kept")
    return [moment.isoformat(), 1] if moment.fold else moment.isoformat()


def datetime_from_iso(plain: str | list[Any]) -> datetime:
    """The moment of `to_iso`."""
    text, fold = (plain, 0) if isinstance(plain, str) else plain
    return datetime.fromisoformat(text).replace(fold=fold)


def time_from_iso(plain: str | list[Any]) -> time:
    """The time of day of `to_iso`."""
    text, fold = (plain, 0) if isinstance(plain, str) else plain
    return time.fromisoformat(text).replace(fold=fold)


def from_hex(digits: str) -> int:
    """A number out of its hexadecimal digits."""
    return int(digits, 16)


def to_days(span: timedelta) -> list[int]:
    """Days, seconds and microseconds of a span."""
    return [span.days, span.seconds, span.microseconds]


def from_days(parts: list[int]) -> timedelta:
    """The span of `to_days`."""
    days, seconds, microseconds = parts
    return timedelta(days, seconds, microseconds)


def to_base64(data: bytes) -> str:
    """Bytes as text."""
    return b64encode(data).decode()


def from_base64(text: str) -> bytes:
    """The bytes of `to_base64`; what is no base64 is an error."""
    return b64decode(text, validate=True)


def from_pairs(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dict whose keys may be anything."""
    return dict(pairs)

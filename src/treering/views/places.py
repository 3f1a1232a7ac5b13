"""Places on the line that leads to a thread's head, by the words of the API, the command line and REST alike.

A place is a step (``12``), so many moments back (``"~1"``) or a time (a `datetime`, or ISO 8601 text; without
an offset it is UTC), which names the newest moment of then.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from treering.core.clock import from_datetime
from treering.errors import InvalidInput, NotFound
from treering.views.checkpoints import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.views.checkpoints import Checkpoint

_DIGITS: Final = 15
"""Numbers of more digits are no steps: those have 53 bits."""


def find_place(line: Iterator[Checkpoint], place: str | int | datetime, thread_id: str) -> Checkpoint:
    """The checkpoint of a thread's line, newest first, that a place names; else `NotFound`."""
    if isinstance(place, str):
        back = place.removeprefix("~")
        if back != place and _is_number(back or "1"):
            count = int(back or 1)
            found = next(islice(line, count, None), None)
            return found or _refuse(thread_id, f"moment {count} before its head")
        place = int(place) if _is_number(place) else _time(place)
    if isinstance(place, datetime):
        until_us = from_datetime(place)
        found = next((each for each in line if each.created_at_us <= until_us), None)
        return found or _refuse(thread_id, f"moment at or before {place.isoformat()}")
    if type(place) is not int:
        raise InvalidInput(f"{place!r} is no moment; give its id, its step or a datetime")
    return next((each for each in line if each.step == place), None) or _refuse(thread_id, f"step {place}")


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{text[:80]!r} is no place in a thread; use a step (12), steps back (~1), "
            f"a checkpoint ({PREFIX}...) or a time (2026-11-16T08:00)"
        ) from None


def _refuse(thread_id: str, what: str) -> Checkpoint:
    raise NotFound(f"thread {thread_id!r} has no {what}; its history (`treering log`) shows what there is")

"""Finding a moment by what a person types.

Three ways to say which one: a checkpoint's id or the beginning of it (``ckpt_01k9``), a thread (its head),
and a thread with ``@`` and a place on the line to its head: a step (``alice@12``), so many moments back
(``alice@~1``) or a time (``alice@2026-11-16T08:00``). Thread ids may hold an ``@`` of their own: the whole
text is tried as a thread before it is cut. What is not there raises `NotFound` and says what comes near.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from treering.core.clock import DAY_US, day_of
from treering.core.ids import time_of
from treering.core.pages import each_record
from treering.core.query import EventQuery
from treering.errors import InvalidInput, NotFound
from treering.views.checkpoints import KIND, PREFIX, read_checkpoint
from treering.views.directory import list_threads, thread_info
from treering.views.journal import Journal
from treering.views.places import find_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.engine import Engine
    from treering.views.checkpoints import Checkpoint
    from treering.views.directory import ThreadInfo

_ID_CHARS: Final = 26
_MIN_CHARS: Final = 4
_MS_US: Final = 1000
_NEAR: Final = 3
_CANDIDATES: Final = 5


class Finder:
    """Finds threads of one namespace of a space, and checkpoints of any."""

    def __init__(self, engine: Engine, space: str, namespace: str = "") -> None:
        self._engine = engine
        self._space = space
        self._namespace = namespace

    def thread(self, text: str) -> ThreadInfo:
        """A thread by its whole id."""
        info = self._known(text)
        if info is None:
            raise NotFound(self._no_thread(text))
        return info

    def moment(self, text: str) -> Checkpoint:
        """A checkpoint by any of the ways to say it."""
        info = self._known(text)
        if info is not None:
            return self._journal(info).by_id(info.head)
        name, at, place = text.rpartition("@")
        if not at and text.startswith(PREFIX):
            return self.checkpoint(text)
        thread = self._known(name) if at else None
        if thread is None:
            raise NotFound(self._no_thread(text))
        return self.within(thread, place)

    def within(self, thread: ThreadInfo, place: str) -> Checkpoint:
        """A checkpoint by its place in a thread: ``12``, ``~1``, ``ckpt_...`` or an ISO time."""
        if place.startswith(PREFIX):
            return self.checkpoint(place)
        return find_place(self._line(thread), place, thread.id)

    def checkpoint(self, prefix: str) -> Checkpoint:
        """The one checkpoint of the space whose id begins like this."""
        known = prefix.removeprefix(PREFIX)
        if len(known) < _MIN_CHARS:
            raise InvalidInput(
                f"{prefix!r} is too short; give at least {_MIN_CHARS} characters behind {PREFIX}"
            )
        found = list(islice(self._beginning(known), _CANDIDATES + 1))
        if not found:
            raise NotFound(f"there is no checkpoint {prefix!r}; `treering log <thread>` shows what there is")
        if len(found) > 1:
            some = ", ".join(each.id for each in found[:_CANDIDATES])
            more = ", ..." if len(found) > _CANDIDATES else ""
            raise InvalidInput(
                f"{prefix!r} is the beginning of several checkpoints: {some}{more}; give more of it"
            )
        return found[0]

    def _beginning(self, known: str) -> Iterator[Checkpoint]:
        try:
            first_us = time_of(known.ljust(_ID_CHARS, "0"))
            last_us = time_of(known.ljust(_ID_CHARS, "z"))
        except InvalidInput:
            return
        # Most events have the very time of their id; all that is promised is the same UTC day.
        found = False
        for since_us, until_us in (
            (first_us, last_us + _MS_US),
            (day_of(first_us) * DAY_US, (day_of(last_us) + 1) * DAY_US),
        ):
            for checkpoint in self._between(since_us, until_us, PREFIX + known):
                found = True
                yield checkpoint
            if found:
                return

    def _between(self, since_us: int, until_us: int, prefix: str) -> Iterator[Checkpoint]:
        query = EventQuery(
            kinds=(KIND,),
            ids=(prefix,) if len(prefix) == len(PREFIX) + _ID_CHARS else (),
            since_us=since_us,
            until_us=until_us,
            order="time",
        )
        for record in each_record(self._engine, self._space, query):
            if record.event.id.startswith(prefix):
                yield read_checkpoint(self._engine, self._space, record)

    def _known(self, text: str) -> ThreadInfo | None:
        return thread_info(self._engine, self._space, text, self._namespace) if text else None

    def _journal(self, thread: ThreadInfo) -> Journal:
        return Journal(self._engine, self._space, thread.namespace)

    def _line(self, thread: ThreadInfo) -> Iterator[Checkpoint]:
        journal = self._journal(thread)
        return journal.line(journal.by_id(thread.head))

    def _no_thread(self, text: str) -> str:
        from difflib import get_close_matches

        where = f" in namespace {self._namespace!r}" if self._namespace else ""
        everywhere = list_threads(self._engine, self._space, namespace=None, prefix="")
        elsewhere = sorted({each.namespace for each in everywhere if each.id == text})
        if elsewhere:
            names = ", ".join(repr(name) for name in elsewhere[:_NEAR])
            return f"there is no thread {text!r}{where or ' without a namespace'}; there is one in {names}"
        here = [each.id for each in everywhere if each.namespace == self._namespace]
        near = get_close_matches(text, here, n=_NEAR, cutoff=0.5)
        near += [name for name in here if text and text in name and name not in near][: _NEAR - len(near)]
        if near:
            return f"there is no thread {text!r}{where}; did you mean {' or '.join(map(repr, near))}?"
        return f"there is no thread {text!r}{where}; `treering threads` lists what there is"

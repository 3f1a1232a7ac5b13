"""What of a timeline is wanted: of which span, agent and kind, how it ended, and with which words.

Agent and kind are asked of the journal. How a span ended and what it was given may stand in two rows, that of
its beginning and that of its end, so those are looked at together. **Invariant:** a span is shown whole,
beginning and end, or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.pages import each_record
from treering.core.query import EventQuery
from treering.errors import InvalidInput, NotFound
from treering.views.asked_words import AskedWords
from treering.views.event_index import EventIndex, pieces_of
from treering.views.recording.runs import RUNNING
from treering.views.recording.spans import MESSAGE, OPEN, SPAN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from treering.core.batch import Event
    from treering.core.engine import Engine
    from treering.core.records import Record

_SUFFIX: Final = ":open"


class Only(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of a timeline; those that are left out do not filter, and those given must all hold."""

    span: str | None = None
    """This span, and everything below it."""
    agent: str | None = None
    kind: str | None = None
    """``message``, or the kind of a span: ``tool``, ``llm``, ``agent``, ..."""
    status: str | None = None
    """How a span ended: ``ok``, ``error``, ...; ``running`` for one that has not."""
    text: str | None = None
    """Words that all stand in its name, its input or its output, compared by their stems."""


class Sieve:
    """Lets through what is wanted of a journal's records."""

    def __init__(self, engine: Engine, space: str, only: Only, whole: EventQuery) -> None:
        self._engine = engine
        self._space = space
        self._only = only
        self._whole = whole
        self._words = None if only.text is None else AskedWords(only.text)
        if self._words is not None and not self._words.stems:
            raise InvalidInput(f"text is {only.text!r}, which has no words to look for")
        self._below = None if only.span is None else frozenset(self._subtree(only.span))

    @property
    def query(self) -> EventQuery:
        """What is asked of the journal; `pick` does the rest."""
        kind = self._only.kind
        kinds = () if kind is None else (kind, SPAN + kind, OPEN + kind)
        if kind == MESSAGE:  # also calls of models that say whose message came out of them
            kinds = (MESSAGE, SPAN + "llm")
        return msgspec.structs.replace(self._whole, agent=self._only.agent, kinds=kinds)

    def pick(self, records: Sequence[Record]) -> Iterable[Record]:
        """Those records that pass, in their order."""
        if self._below is not None:
            records = [each for each in records if each.event.span in self._below]
        if self._only.kind == MESSAGE:
            records = [each for each in records if each.event.role is not None]
        if not records or (self._words is None and self._only.status is None):
            return records
        together: dict[str, list[Record]] = {}
        for record in (*records, *self._other_halves(records)):
            together.setdefault(_name(record.event), []).append(record)
        passing = self._with_status(together) & self._with_words(together)
        return [each for each in records if _name(each.event) in passing]

    def _with_status(self, together: dict[str, list[Record]]) -> set[str]:
        wanted = self._only.status
        return {name for name, rows in together.items() if wanted in (None, _status(rows))}

    def _with_words(self, together: dict[str, list[Record]]) -> set[str]:
        asked = self._words
        if asked is None:
            return set(together)
        found = {
            name: asked.found_in(" ".join(row.event.name or "" for row in rows))
            for name, rows in together.items()
        }
        pieces = pieces_of([row for rows in together.values() for row in rows])
        for piece, text in EventIndex(self._engine, self._space).contents(pieces):
            name = _name(piece.record.event)
            found[name] |= asked.found_in(text)
        return {name for name, stems in found.items() if stems == asked.stems}

    def _other_halves(self, records: Sequence[Record]) -> Sequence[Record]:
        """The beginnings and ends of these spans that are not among them; both have the time of the start."""
        here = {each.event.id for each in records}
        spans = [each.event for each in records if _is_open(each.event) or _is_announced(each.event)]
        halves = [each for each in spans if _other(each) not in here]
        if not halves:
            return ()
        times = [each.ts_us for each in halves]
        query = msgspec.structs.replace(
            self._whole,
            ids=tuple(_other(each) for each in halves),
            since_us=min(times),
            until_us=max(times) + 1,
        )
        return self._engine.scan(self._space, query, limit=len(halves)).records

    def _subtree(self, span: str) -> Iterator[str]:
        """A span and all that are below it, whatever order their clocks give them."""
        children: dict[str | None, set[str]] = {}
        known: set[str] = set()
        for event in (each.event for each in each_record(self._engine, self._space, self._whole)):
            if event.span is not None and event.kind.startswith((SPAN, OPEN)):
                children.setdefault(event.parent, set()).add(event.span)
                known.add(event.span)
        if span not in known:
            raise NotFound(f"there is no span {span!r} here; the timeline's refs name those that there are")
        waiting, seen = [span], {span}
        while waiting:
            each = waiting.pop()
            yield each
            new = children.get(each, set()) - seen
            seen |= new
            waiting += new


def _name(event: Event) -> str:
    """What the rows of one span have in common; any other row is for itself."""
    return event.span or event.id if event.kind.startswith((SPAN, OPEN)) else event.id


def _other(event: Event) -> str:
    return _name(event) if _is_open(event) else _name(event) + _SUFFIX


def _status(rows: Sequence[Record]) -> str | None:
    ended = [each.event for each in rows if not _is_open(each.event)]
    return ended[0].status if ended else RUNNING


def _is_open(event: Event) -> bool:
    return event.kind.startswith(OPEN)


def _is_announced(event: Event) -> bool:
    """Whether a span has a row for its beginning too; at worst that is looked for in vain."""
    return event.kind.startswith(SPAN) and event.data is not None and b'"announced":true' in event.data

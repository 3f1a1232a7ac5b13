"""Searching what agents said and did: hits with the text around them, the ones with the most words first.

Words are compared by their stems and without accents, and common words are left out, as in every search of
treering; what is asked in a script without spaces is found wherever its characters stand. The index
(`event_index`) names blocks of events; the events of the best blocks are read and looked at one by one, and
so is what is not indexed yet.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from treering.core.clock import to_iso
from treering.core.query import MAX_PAGE, EventQuery, SearchQuery
from treering.core.stems import folded, stem, words
from treering.errors import InvalidInput, ReadOnly
from treering.views.asked_words import AskedWords
from treering.views.event_index import COLLECTION, EventIndex, is_unspaced, pieces_of, searched
from treering.views.thread_keys import thread_of_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from treering.core.engine import Engine
    from treering.core.records import Record
    from treering.views.event_index import Block, Piece

MAX_HITS: Final = 1000
_FIRST_BLOCKS: Final = 32
_BLOCKS_AT_ONCE: Final = 8
_BEFORE: Final = 60
_SNIPPET: Final = 200
_SPACES: Final = re.compile(r"\s+")


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A message, an input or an output that holds some of the words."""

    run: str
    span: str | None
    """The span it belongs to, if any."""
    event: str
    seq: int
    ts_us: int
    kind: str
    """``message``, or the kind of the span: ``tool``, ``llm``, ``agent``, ..."""
    part: Literal["content", "input", "output"]
    agent: str | None
    thread: str | None
    namespace: str
    """That of the thread."""
    name: str | None
    role: str | None
    matched: int
    """How many of the words it holds."""
    snippet: str

    @property
    def ts(self) -> str:
        """ISO 8601 with offset."""
        return to_iso(self.ts_us)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Hits, those with the most words first and among them the newest. ``words`` are what was looked for.

    ``is_partial``: so much holds the words that not all of it was looked at; more may pass the filters.
    """

    hits: tuple[Hit, ...]
    words: tuple[str, ...]
    is_partial: bool = False


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for; filters that are left empty do not filter."""

    text: str
    run: str | None = None
    agent: str | None = None
    kind: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    limit: int = 20


def search(engine: Engine, space: str, wanted: Wanted) -> Found:
    """Find events by their words, among all that were acknowledged before; brings the index up to date."""
    if not 1 <= wanted.limit <= MAX_HITS:
        raise InvalidInput(f"limit is {wanted.limit}; use 1 to {MAX_HITS}")
    asked = AskedWords(wanted.text)
    if not asked.stems:
        return Found(hits=(), words=())
    index = EventIndex(engine, space)
    with suppress(ReadOnly):  # the tail is longer then, and is read all the same
        index.catch_up()
    looking = _Looking(index, wanted, asked)
    for records in index.tail():
        looking.look_at(records)
    is_partial = not _look_at_blocks(engine, space, index, wanted, looking)
    best = sorted(looking.found, key=_Seen.order)[: wanted.limit]
    return Found(hits=tuple(each.hit() for each in best), words=asked.terms, is_partial=is_partial)


def _look_at_blocks(engine: Engine, space: str, index: EventIndex, wanted: Wanted, looking: _Looking) -> bool:
    """Read blocks, the best first, until there are enough hits or no more blocks; says whether that was so.

    A filter may make that many blocks.
    """
    text = " ".join(searched(wanted.text))
    seen, asked = 0, _FIRST_BLOCKS
    while True:
        query = SearchQuery(collection=COLLECTION, text=text, namespace=wanted.run, limit=asked)
        found = engine.search(space, query).hits
        for start in range(seen, len(found), _BLOCKS_AT_ONCE):
            if looking.has_enough:
                return True
            some = found[start : start + _BLOCKS_AT_ONCE]
            for block in index.blocks([(hit.namespace, hit.name) for hit in some]):
                if (part := _part(block, wanted)) is not None:
                    looking.look_at(index.records(block, part))
        if len(found) < asked:
            return True
        if asked >= MAX_PAGE:
            return looking.has_enough
        seen, asked = len(found), min(asked * 8, MAX_PAGE)


def _part(block: Block, wanted: Wanted) -> EventQuery | None:
    """What of a block can pass the filters, so that nothing else is fetched; ``None`` if nothing can."""
    since_us, until_us = block.since_us, block.until_us + 1
    if wanted.since_us is not None:
        since_us = max(since_us, wanted.since_us)
    if wanted.until_us is not None:
        until_us = min(until_us, wanted.until_us)
    if since_us >= until_us:
        return None
    kinds = () if wanted.kind is None else (wanted.kind, f"span.{wanted.kind}", f"open.{wanted.kind}")
    return msgspec.structs.replace(
        block.query, since_us=since_us, until_us=until_us, agent=wanted.agent, kinds=kinds
    )


class _Looking:
    def __init__(self, index: EventIndex, wanted: Wanted, asked: AskedWords) -> None:
        self._index = index
        self._wanted = wanted
        self._asked = asked
        self.found: list[_Seen] = []

    @property
    def has_enough(self) -> bool:
        """Enough hits with every word; those with fewer may be topped by a later block."""
        whole = sum(len(each.matched) == len(self._asked.stems) for each in self.found)
        return whole >= self._wanted.limit or len(self.found) >= 4 * self._wanted.limit

    def look_at(self, records: Iterable[Record]) -> None:
        """Take the events that hold some of the words."""
        chosen = [record for record in records if _passes(record, self._wanted)]
        for piece, text in self._index.contents(pieces_of(chosen)):
            matched = self._asked.found_in(text)
            if matched:
                self.found.append(_Seen(piece, text, matched))


class _Seen:
    """Something that matches, before it is known whether it is among the best."""

    __slots__ = ("matched", "piece", "text")

    def __init__(self, piece: Piece, text: str, matched: frozenset[str]) -> None:
        self.piece = piece
        self.text = text
        self.matched = matched

    def order(self) -> tuple[int, int, int]:
        """The most words first, then the newest."""
        record = self.piece.record
        return -len(self.matched), -record.event.ts_us, -record.seq

    def hit(self) -> Hit:
        """As it is shown."""
        event = self.piece.record.event
        kind = _kind(event.kind)
        thread, namespace = thread_of_key(event.thread)
        output: Literal["content", "output"] = "content" if kind == "message" else "output"
        return Hit(
            run=event.run or "",
            span=event.span,
            event=event.id,
            seq=self.piece.record.seq,
            ts_us=event.ts_us,
            kind=kind,
            part="input" if self.piece.is_input else output,
            agent=event.agent,
            thread=thread,
            namespace=namespace,
            name=event.name,
            role=event.role,
            matched=len(self.matched),
            snippet=_snippet(self.text, self.matched),
        )


def _passes(record: Record, wanted: Wanted) -> bool:
    event = record.event
    return (
        (wanted.run is None or event.run == wanted.run)
        and (wanted.agent is None or event.agent == wanted.agent)
        and (wanted.kind is None or _kind(event.kind) == wanted.kind)
        and (wanted.since_us is None or event.ts_us >= wanted.since_us)
        and (wanted.until_us is None or event.ts_us < wanted.until_us)
    )


def _kind(kind: str) -> str:
    form, dot, rest = kind.partition(".")
    return rest if dot else form


def _snippet(text: str, matched: frozenset[str]) -> str:
    """The text around the first word that matches, on one line."""
    at = next(_places(text, matched), 0)
    start = max(at - _BEFORE, 0)
    if start:
        start = text.find(" ", start, at) + 1 or start
    cut = _SPACES.sub(" ", text[start : start + _SNIPPET]).strip()
    return ("…" if start else "") + cut + ("…" if start + _SNIPPET < len(text) else "")


def _places(text: str, matched: frozenset[str]) -> Iterator[int]:
    """Where words with these stems begin."""
    yield from (at for each in matched if is_unspaced(each) and (at := folded(text).find(each)) >= 0)
    for found in re.finditer(r"[^\W_]+", text):
        if any(stem(word) in matched for word in words(found.group())):
            yield found.start()

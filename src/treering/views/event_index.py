"""The index of what was said and done: the words of messages, and of what went into and came out of spans.

An entry for every event would cost as much as the event. So the index is of *blocks*: the events of one run
that lie close together, about a thousand at most, with each of their words once. A search asks for blocks and
then reads the events of the best ones, which gives the exact places and the text around them.

It is derived and filled behind the writers: nobody who records waits for it. A ref says up to which sequence
number the journal was indexed; `catch_up` takes the next page of events, writes its blocks and moves that
ref in one commit, so any number of processes may do it at once. What is behind the last whole page is read
as it is by whoever searches. A block lies in the scope of its events: whoever forgets a thread or a run
forgets its words, and a block names content of its events, so that the commit is refused when those were
forgotten in between. **Invariant:** an event behind the position is in a block, or has no words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from treering.core.address import Address
from treering.core.batch import ABSENT, Text
from treering.core.draft import Draft
from treering.core.encoding import decode_json, encode, encode_json
from treering.core.pages import each_record, record_pages, ref_pages
from treering.core.query import Erasure, EventQuery
from treering.core.scopes import Scope
from treering.core.stems import words
from treering.core.terms import text_of
from treering.errors import Corrupt, MissingObjects, NotFound, RefMoved
from treering.views.recording.given import input_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from treering.core.batch import Event, Expect
    from treering.core.content import Content
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref

COLLECTION: Final = "timeline"
POSITION: Final = "index/timeline"
BLOCKS: Final = "index/block/"
PAGE: Final = 1000
"""Events that one commit indexes."""

_SCOPE: Final = str(Scope("", "ledger", "index"))
_FORMS: Final = frozenset({"message", "span", "open"})
_UNSPACED: Final = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
)
"""Thai, Lao, Burmese, Khmer, kana and Han."""
_LONGEST_WORD: Final = 64
"""Longer ones are data in disguise (base64, hashes of hashes), and nobody types them."""


class Piece(msgspec.Struct, frozen=True):
    """One content of an event: what a span was given, or (not ``is_input``) what came out or was said."""

    record: Record
    address: Address
    is_input: bool


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one run that are found together: where they begin and end, by number and by time."""

    run: str
    first_seq: int
    last_seq: int
    since_us: int
    until_us: int

    @property
    def name(self) -> str:
        """What its text is called."""
        return str(self.first_seq)

    @property
    def query(self) -> EventQuery:
        """A range of the run's index in which all its events lie."""
        return EventQuery(run=self.run, since_us=self.since_us, until_us=self.until_us + 1, order="time")


class EventIndex:
    """The index of one space's timeline."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space

    @property
    def through(self) -> int:
        """The sequence number up to which the journal is indexed."""
        return self._position()[0]

    def catch_up(self, *, everything: bool = False) -> int:
        """Index what was committed since, in whole pages; says how many events those were.

        ``everything`` also takes the last page, which is not full yet. Better leave it to grow: a search
        reads it anyway, and few large blocks take less than many small ones.
        """
        events = 0
        while True:
            through, version = self._position()
            page = self._engine.scan(self._space, EventQuery(), after=str(through), limit=PAGE)
            if not page.records or (len(page.records) < PAGE and not everything):
                return events
            try:
                self._index(page.records, version)
            except (RefMoved, MissingObjects, NotFound):
                continue  # someone else indexes too and was quicker, or something was just forgotten
            events += len(page.records)

    def tail(self) -> Iterator[Sequence[Record]]:
        """The events that are not indexed yet, in commit order, by pages."""
        return record_pages(self._engine, self._space, EventQuery(), after=str(self.through), limit=PAGE)

    def blocks(self, names: Sequence[tuple[str, str]]) -> list[Block]:
        """The blocks behind texts, given as (run, name); what was forgotten meanwhile is left out."""
        refs = self._engine.refs(self._space, [_ref(run, name) for run, name in names])
        return [_block(refs[key]) for run, name in names if (key := _ref(run, name)) in refs]

    def records(self, block: Block, part: EventQuery | None = None) -> Iterator[Record]:
        """The events of a block, or those of a part of its range."""
        found = each_record(self._engine, self._space, part or block.query, limit=PAGE)
        return (each for each in found if block.first_seq <= each.seq <= block.last_seq)

    def contents(self, pieces: Sequence[Piece]) -> Iterator[tuple[Piece, str]]:
        """The text of each piece; what is gone or damaged has none here (`verify` tells)."""
        try:
            found: Sequence[Content | None] = self._engine.get(self._space, [each.address for each in pieces])
        except (NotFound, Corrupt):
            found = [self._content(each.address) for each in pieces]
        for piece, content in zip(pieces, found, strict=True):
            if content is not None:
                yield piece, text_of(content)

    def take_out(self, run: str) -> list[str]:
        """Take a run's words out, for who removes it without its scope; gives the refs to be erased too."""
        refs: list[str] = []
        for page in ref_pages(self._engine, self._space, f"{BLOCKS}{run}/"):
            draft = Draft(self._space)
            for ref in page:
                name = _block(ref).name
                draft.text(Text(collection=COLLECTION, name=name, scope=_SCOPE, source=None))
                refs.append(ref.name)
            self._engine.commit(draft.batch())
        return refs

    def _index(self, records: Sequence[Record], version: Expect) -> None:
        draft = Draft(self._space)
        groups: dict[tuple[str, str], list[Piece]] = {}
        for piece in pieces_of(records):
            event = piece.record.event
            groups.setdefault((event.scope, event.run or ""), []).append(piece)
        unsure: list[tuple[str, Block]] = []
        for (scope, run), pieces in groups.items():
            vocabulary: set[str] = set()
            there: list[Piece] = []
            for piece, text in self.contents(pieces):
                vocabulary.update(searched(text))
                there.append(piece)
            block = self._write(draft, scope, run, there, vocabulary)
            if block is not None:
                unsure.append((scope, block))
        draft.set_ref(POSITION, encode_json({"seq": records[-1].seq}), scope=_SCOPE, expect=version)
        self._engine.commit(draft.batch())
        for scope, block in unsure:
            self._make_sure(scope, block)

    def _write(
        self, draft: Draft, scope: str, run: str, pieces: Sequence[Piece], vocabulary: set[str]
    ) -> Block | None:
        """Put a block into the batch; gives it back if the commit alone cannot tell that it was forgotten."""
        kept = sorted(word for word in vocabulary if len(word) <= _LONGEST_WORD)
        if not kept:
            return None
        times = [piece.record.event.ts_us for piece in pieces]
        block = Block(
            run=run,
            first_seq=pieces[0].record.seq,
            last_seq=pieces[-1].record.seq,
            since_us=min(times),
            until_us=max(times),
        )
        source = draft.put(encode(" ".join(kept)), scope=scope)
        draft.text(
            Text(collection=COLLECTION, name=block.name, scope=scope, source=source, namespace=block.run)
        )
        slot = next((piece.address for piece in pieces if piece.address.startswith("s:")), None)
        links = () if slot is None else (slot,)
        value = encode_json(msgspec.structs.asdict(block))
        draft.set_ref(_ref(run, block.name), value, scope=scope, links=links)
        return block if slot is None else None

    def _make_sure(self, scope: str, block: Block) -> None:
        """Large contents may be shared and outlive their scope; then only looking again can tell."""
        if next(self.records(block), None) is not None:
            return
        refs = tuple(self.take_out(block.run))
        is_empty = not self._engine.scan(self._space, EventQuery(scope=scope), limit=1).records
        scopes = (scope,) if is_empty else ()  # then nothing but the words just written is left in it
        self._engine.erase(self._space, Erasure(refs=refs, scopes=scopes, secure=True))

    def _content(self, address: Address) -> Content | None:
        try:
            return self._engine.get(self._space, [address])[0]
        except (NotFound, Corrupt):
            return None

    def _position(self) -> tuple[int, Expect]:
        found = self._engine.refs(self._space, [POSITION]).get(POSITION)
        if found is None:
            return 0, ABSENT
        return int(decode_json(found.value)["seq"]), found.version


def searched(text: str) -> Iterator[str]:
    """The words of a text; of a script without spaces, every two characters that stand side by side."""
    for word in words(text):
        if not is_unspaced(word):
            yield word
        else:
            yield from (word[at : at + 2] for at in range(max(len(word) - 1, 1)))


def is_unspaced(word: str) -> bool:
    """Whether a word is of a script that puts no spaces between words."""
    return not word.isascii() and _UNSPACED.search(word) is not None


def pieces_of(records: Sequence[Record]) -> list[Piece]:
    """What of these events is searched: messages, and what went into and came out of spans."""
    pieces: list[Piece] = []
    for record in records:
        event = record.event
        form = event.kind.partition(".")[0]
        if form not in _FORMS or event.run is None:
            continue
        if form == "span" and (given := _input_of(event)) is not None:
            pieces.append(Piece(record, given, is_input=True))
        if event.body is not None:
            pieces.append(Piece(record, event.body, is_input=form == "open"))
    return pieces


def _input_of(event: Event) -> Address | None:
    if event.data is None or b'"input"' not in event.data:
        return None
    return input_of(event, decode_json(event.data))


def _ref(run: str, name: str) -> str:
    return f"{BLOCKS}{run}/{name}"


def _block(ref: Ref) -> Block:
    try:
        return msgspec.convert(decode_json(ref.value), Block)
    except (msgspec.ValidationError, ValueError) as error:
        raise Corrupt(f"the index entry {ref.name!r} cannot be read ({error}); run verify") from None

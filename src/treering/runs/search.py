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

from treering.core.batch import ABSENT, Draft, Text
from treering.core.clock import to_iso
from treering.core.content import Address
from treering.core.encoding import decode_json, encode, encode_json
from treering.core.ids import Scope, thread_of_key
from treering.core.paging import each_record, record_pages, ref_pages
from treering.core.query import MAX_PAGE, Erasure, EventQuery, SearchQuery
from treering.core.text import folded, query_terms, stem, text_of, words
from treering.errors import Corrupt, InvalidInput, MissingObjects, NotFound, ReadOnly, RefMoved
from treering.runs.span import input_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from treering.core.batch import Event, Expect
    from treering.core.content import Content
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref


# -----------------------------------------------------------------------------------------------------------
# The index of what was said and done: the words of messages, and of what went into and came out of spans.
#
# An entry for every event would cost as much as the event. So the index is of *blocks*: the events of one
# run that lie close together, about a thousand at most, with each of their words once. A search asks for
# blocks and then reads the events of the best ones, which gives the exact places and the text around them.
#
# It is derived and filled behind the writers: nobody who records waits for it. A ref says up to which
# sequence number the journal was indexed; `catch_up` takes the next page of events, writes its blocks and
# moves that ref in one commit, so any number of processes may do it at once. What is behind the last whole
# page is read as it is by whoever searches. A block lies in the scope of its events: whoever forgets a
# thread or a run forgets its words, and a block names content of its events, so that the commit is refused
# when those were forgotten in between. **Invariant:** an event behind the position is in a block, or has no
# words.


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


# -----------------------------------------------------------------------------------------------------------
# The words of a question, looked for in a text: by their stems, without accents, common words left out.
#
# A script without spaces has no words to stem; what is asked in it is found wherever its characters stand.


class AskedWords:
    """What a person typed, ready to be compared with many texts. Nothing worth looking for: ``not stems``."""

    def __init__(self, text: str) -> None:
        self.terms = tuple(query_terms(folded(text)))
        asked = [word for term in self.terms for word in words(term)]
        self.stems = frozenset(word if is_unspaced(word) else stem(word) for word in asked)
        self._candidates = _candidates(self.stems)
        self._unspaced = [each for each in self.stems if is_unspaced(each)]

    def found_in(self, text: str) -> frozenset[str]:
        """Those of the ``stems`` that a text holds."""
        plain = folded(text)
        matched = self.stems.intersection(map(stem, self._candidates.findall(plain)))
        return matched.union(each for each in self._unspaced if each in plain)


def _candidates(stems: Iterable[str]) -> re.Pattern[str]:
    """Words that may have one of the stems; cutting and stemming every word takes ten times as long."""
    beginnings = "|".join(sorted({re.escape(_beginning(each)) for each in stems}))
    return re.compile(rf"(?<![^\W_])(?:{beginnings})[^\W_]*")


def _beginning(word: str) -> str:
    """Letters that every word of a stem begins with: a stem is its words' beginning but for its last two."""
    return word[:-2] if word.isascii() else word if is_unspaced(word) else ""


# -----------------------------------------------------------------------------------------------------------

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

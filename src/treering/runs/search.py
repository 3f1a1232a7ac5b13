"""Search what agents said and did. Hits with the most of the words come first, with the text around them.

Words are compared by their stems and without accents, and common words are ignored, as in every search of
treering. In scripts without spaces, the query is found anywhere in a text.

An index entry for every event would cost as much as the event. So the index is of *blocks*: up to about a
thousand events of one run that are close together, with each of their words once. A search asks the index for
blocks, then reads the events of the best ones.

The index is derived data, filled behind the writers: recording never waits for it. A ref holds the sequence
number up to which the journal is indexed; `EventIndex.catch_up` indexes the next page of events and moves
that ref in one commit, so any number of processes may do so at once. The recorder of a process does so while
it has nothing to write, and a server in the background. A block is in the scope of its events, so forgetting
a thread or a run forgets its words, and it refers to content of its events, so that the commit fails if they
were forgotten meanwhile. **Invariant:** an event up to the position is in a block, or contains no words.

A search indexes a few pages itself and reads the newest events behind them directly. If there are more, it
says how many events it did not look at, rather than index a whole store before it answers.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from treering.core.batch import ABSENT, Draft, Text
from treering.core.clock import to_datetime
from treering.core.content import Address
from treering.core.encoding import decode, decode_json, encode, encode_json
from treering.core.ids import Scope, thread_of_key
from treering.core.query import (
    MAX_PAGE,
    Erasure,
    EventQuery,
    SearchQuery,
    each_record,
    last_seq,
    ref_pages,
)
from treering.core.text import folded, query_terms, stem, text_of, words
from treering.errors import Corrupt, InvalidInput, MissingObjects, NotFound, ReadOnly, RefMoved
from treering.runs.messages import message_text, read_messages
from treering.runs.span import MESSAGE, OPEN, SPAN, RunRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from treering.core.batch import Expect
    from treering.core.content import Content
    from treering.core.engine import Engine
    from treering.core.records import Record, Ref

    OnPage = Callable[["IndexProgress"], None]

COLLECTION: Final = "timeline"
POSITION: Final = "index/timeline"
BLOCKS: Final = "index/block/"
PAGE: Final = 1000
"""Events that one commit indexes."""
_PAGES_A_SEARCH: Final = 3
"""Pages that a search indexes before it answers."""
_TAIL: Final = 3 * PAGE
"""Events behind the index that a search reads: the newest ones."""

_SCOPE: Final = str(Scope("", "ledger", "index"))
_UNSPACED: Final = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
)
"""Thai, Lao, Burmese, Khmer, kana and Han characters."""
_MAX_WORD: Final = 64
"""Longer ones are encoded data, such as base64, which nobody searches for."""


class SearchableContent(msgspec.Struct, frozen=True):
    """A content that is searched: the input of a span (``is_input``), its output, or a message."""

    row: RunRow
    address: Address
    is_input: bool


class IndexBlock(msgspec.Struct, frozen=True, kw_only=True):
    """Events of one run that are indexed together: a range of sequence numbers and of time."""

    run: str
    first_seq: int
    last_seq: int
    since_us: int
    until_us: int

    @property
    def name(self) -> str:
        """The name of its text in the index."""
        return str(self.first_seq)

    @property
    def query(self) -> EventQuery:
        """The range of the run's index that contains its events."""
        return EventQuery(run=self.run, since_us=self.since_us, until_us=self.until_us + 1, order="time")


class IndexProgress(NamedTuple):
    """How many events were indexed, and how many commits and events the index was behind at first."""

    events: int
    behind: int


class Tail(NamedTuple):
    """The newest events behind the index, and how many more there are between the two."""

    records: list[Record]
    unread: int


class EventIndex:
    """The search index of one space's timeline."""

    def __init__(self, engine: Engine, space: str) -> None:
        self._engine = engine
        self._space = space

    @property
    def through(self) -> int:
        """The sequence number up to which the journal is indexed."""
        return self._position()[0]

    @property
    def behind(self) -> int:
        """How many events of the journal are behind the position."""
        return max(last_seq(self._engine, self._space) - self.through, 0)

    def catch_up(
        self, *, everything: bool = False, pages: int | None = None, on_page: OnPage | None = None
    ) -> int:
        """Index new events, in whole pages, at most ``pages`` of them, and return how many.

        ``everything`` also indexes the last, partial page. Usually it is better left to grow: a search reads
        it anyway, and a few large blocks take less space than many small ones. ``on_page`` is called after
        each page.
        """
        events = 0
        behind = 0 if on_page is None else self.behind
        while pages is None or events < pages * PAGE:
            through, version = self._position()
            page = self._engine.scan(self._space, EventQuery(), after=str(through), limit=PAGE)
            if not page.records or (len(page.records) < PAGE and not everything):
                return events
            try:
                self._index(page.records, version)
            except (RefMoved, MissingObjects, NotFound):
                continue  # another process was faster, or an event was just forgotten
            events += len(page.records)
            if on_page is not None:
                on_page(IndexProgress(events, behind))
        return events

    def tail(self) -> Tail:
        """Return the events that are not indexed yet; if there are many, the newest ones."""
        through = self.through
        if last_seq(self._engine, self._space) - through <= _TAIL:
            new = each_record(self._engine, self._space, EventQuery(), after=str(through), limit=PAGE)
            return Tail(list(new), 0)
        newest = each_record(self._engine, self._space, EventQuery(newest_first=True), limit=PAGE)
        records = list(islice(takewhile(lambda each: each.seq > through, newest), _TAIL))
        return Tail(records, max(records[-1].seq - 1 - through, 0) if records else 0)

    def blocks(self, names: Sequence[tuple[str, str]]) -> list[IndexBlock]:
        """Return the blocks of texts given as (run, name), without those that were forgotten meanwhile."""
        refs = self._engine.refs(self._space, [_ref(run, name) for run, name in names])
        return [_block(refs[key]) for run, name in names if (key := _ref(run, name)) in refs]

    def records(self, block: IndexBlock, part: EventQuery | None = None) -> Iterator[Record]:
        """Iterate over the events of a block, or over a part of them."""
        found = each_record(self._engine, self._space, part or block.query, limit=PAGE)
        return (each for each in found if block.first_seq <= each.seq <= block.last_seq)

    def texts(self, contents: Sequence[SearchableContent]) -> Iterator[tuple[SearchableContent, str]]:
        """Fetch the text of each content, as `fetch` does."""
        return ((each, text_of(content)) for each, content in self.fetch(contents))

    def fetch(self, contents: Sequence[SearchableContent]) -> Iterator[tuple[SearchableContent, Content]]:
        """Fetch each content; missing or corrupt ones are skipped, for `verify` to report."""
        try:
            fetched: Sequence[Content | None] = self._engine.get(
                self._space, [each.address for each in contents]
            )
        except (NotFound, Corrupt):
            fetched = [self._fetch(each.address) for each in contents]
        for each, content in zip(contents, fetched, strict=True):
            if content is not None:
                yield each, content

    def remove(self, run: str) -> list[str]:
        """Remove a run's words from the index, and return the refs that are to be erased with the run."""
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
        groups: dict[tuple[str, str], list[SearchableContent]] = {}
        for content in searchable(map(RunRow, records)):
            event = content.row.event
            groups.setdefault((event.scope, event.run or ""), []).append(content)
        unguarded: list[tuple[str, IndexBlock]] = []
        for (scope, run), contents in groups.items():
            vocabulary: set[str] = set()
            indexed: list[SearchableContent] = []
            for content, text in self.texts(contents):
                vocabulary.update(index_terms(text))
                indexed.append(content)
            block = self._write(draft, scope, run, indexed, vocabulary)
            if block is not None:
                unguarded.append((scope, block))
        draft.set_ref(POSITION, encode_json({"seq": records[-1].seq}), scope=_SCOPE, expect=version)
        self._engine.commit(draft.batch())
        for scope, block in unguarded:
            self._remove_if_forgotten(scope, block)

    def _write(
        self,
        draft: Draft,
        scope: str,
        run: str,
        contents: Sequence[SearchableContent],
        vocabulary: set[str],
    ) -> IndexBlock | None:
        """Add a block to the batch; return it if the commit would not fail when its events are forgotten."""
        kept = sorted(word for word in vocabulary if len(word) <= _MAX_WORD)
        if not kept:
            return None
        times = [each.row.event.ts_us for each in contents]
        block = IndexBlock(
            run=run,
            first_seq=contents[0].row.seq,
            last_seq=contents[-1].row.seq,
            since_us=min(times),
            until_us=max(times),
        )
        source = draft.put(encode(" ".join(kept)), scope=scope)
        draft.text(
            Text(collection=COLLECTION, name=block.name, scope=scope, source=source, namespace=block.run)
        )
        slot = next((each.address for each in contents if each.address.startswith("s:")), None)
        links = () if slot is None else (slot,)
        value = encode_json(msgspec.structs.asdict(block))
        draft.set_ref(_ref(run, block.name), value, scope=scope, links=links)
        return block if slot is None else None

    def _remove_if_forgotten(self, scope: str, block: IndexBlock) -> None:
        """Remove a block again if its events are gone: large contents are shared and outlive their scope."""
        if next(self.records(block), None) is not None:
            return
        refs = tuple(self.remove(block.run))
        is_empty = not self._engine.scan(self._space, EventQuery(scope=scope), limit=1).records
        scopes = (scope,) if is_empty else ()  # only the words just written are left in it
        self._engine.erase(self._space, Erasure(refs=refs, scopes=scopes, secure=True))

    def _fetch(self, address: Address) -> Content | None:
        try:
            return self._engine.get(self._space, [address])[0]
        except (NotFound, Corrupt):
            return None

    def _position(self) -> tuple[int, Expect]:
        found = self._engine.refs(self._space, [POSITION]).get(POSITION)
        if found is None:
            return 0, ABSENT
        return int(decode_json(found.value)["seq"]), found.version


def index_terms(text: str) -> Iterator[str]:
    """Iterate over the words of a text; in a script without spaces, over each pair of characters."""
    for word in words(text):
        if not is_unspaced(word):
            yield word
        else:
            yield from (word[at : at + 2] for at in range(max(len(word) - 1, 1)))


def is_unspaced(word: str) -> bool:
    """Return whether a word is in a script without spaces between words."""
    return not word.isascii() and _UNSPACED.search(word) is not None


def searchable(rows: Iterable[RunRow]) -> list[SearchableContent]:
    """Return the contents of rows that are searched: messages, and the inputs and outputs of spans."""
    contents: list[SearchableContent] = []
    for row in rows:
        event = row.event
        if event.run is None or not (row.is_span or row.is_open or event.kind == MESSAGE):
            continue
        if row.is_span and (address := row.input) is not None:
            contents.append(SearchableContent(row, address, is_input=True))
        if event.body is not None:
            contents.append(SearchableContent(row, event.body, is_input=row.is_open))
    return contents


def _ref(run: str, name: str) -> str:
    return f"{BLOCKS}{run}/{name}"


def _block(ref: Ref) -> IndexBlock:
    try:
        return msgspec.convert(decode_json(ref.value), IndexBlock)
    except (msgspec.ValidationError, ValueError) as error:
        raise Corrupt(
            f"the index entry {ref.name!r} is corrupt ({error}). Rebuild the index with: treering reindex"
        ) from None


class QueryWords:
    """The words of a query, ready to be compared with many texts. Without words, ``stems`` is empty."""

    def __init__(self, text: str) -> None:
        self.terms = tuple(query_terms(folded(text)))
        query_words = [word for term in self.terms for word in words(term)]
        self.stems = frozenset(word if is_unspaced(word) else stem(word) for word in query_words)
        self._candidates = _candidates(self.stems)
        self._unspaced = [each for each in self.stems if is_unspaced(each)]

    def found_in(self, text: str) -> frozenset[str]:
        """Return those of the ``stems`` that a text contains."""
        plain = folded(text)
        matched = self.stems.intersection(map(stem, self._candidates.findall(plain)))
        return matched.union(each for each in self._unspaced if each in plain)


def _candidates(stems: Iterable[str]) -> re.Pattern[str]:
    """A pattern for words that may have one of the stems; stemming every word takes ten times as long."""
    prefixes = "|".join(sorted({re.escape(_prefix(each)) for each in stems}))
    return re.compile(rf"(?<![^\W_])(?:{prefixes})[^\W_]*")


def _prefix(word: str) -> str:
    """A prefix of all words with this stem: a stem differs from its words in the last two letters at most."""
    return word[:-2] if word.isascii() else word if is_unspaced(word) else ""


MAX_HITS: Final = 1000
_FIRST_BLOCKS: Final = 32
_BLOCKS_AT_ONCE: Final = 8
_SNIPPET_BEFORE: Final = 60
_SNIPPET: Final = 200
_SPACES: Final = re.compile(r"\s+")


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A message, an input or an output that contains some of the words."""

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
    """The namespace of the thread."""
    name: str | None
    role: str | None
    matched: int
    """How many of the words it contains."""
    snippet: str

    @property
    def ts(self) -> datetime:
        """In UTC."""
        return to_datetime(self.ts_us)


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Hits, those with the most words first, then the newest. ``words`` are the words searched for.

    ``is_partial``: too many events contain the words to read all of them; more may match the filters.
    ``not_indexed``: so many events were not looked at, because they are not in the index yet.
    """

    hits: tuple[Hit, ...]
    words: tuple[str, ...]
    is_partial: bool = False
    not_indexed: int = 0


class TimelineSearch(msgspec.Struct, frozen=True, kw_only=True):
    """What to search for. Unset fields do not filter."""

    text: str
    run: str | None = None
    agent: str | None = None
    kind: str | None = None
    since_us: int | None = None
    until_us: int | None = None
    limit: int = 20

    def matches(self, row: RunRow) -> bool:
        """Return whether a row passes the filters."""
        event = row.event
        return (
            (self.run is None or event.run == self.run)
            and (self.agent is None or event.agent == self.agent)
            and (self.kind is None or row.span_kind == self.kind)
            and (self.since_us is None or event.ts_us >= self.since_us)
            and (self.until_us is None or event.ts_us < self.until_us)
        )

    def part_of(self, block: IndexBlock) -> EventQuery | None:
        """Return the part of a block that can pass the filters; ``None`` if nothing can."""
        since_us, until_us = block.since_us, block.until_us + 1
        if self.since_us is not None:
            since_us = max(since_us, self.since_us)
        if self.until_us is not None:
            until_us = min(until_us, self.until_us)
        if since_us >= until_us:
            return None
        kinds = () if self.kind is None else (self.kind, SPAN + self.kind, OPEN + self.kind)
        return msgspec.structs.replace(
            block.query, since_us=since_us, until_us=until_us, agent=self.agent, kinds=kinds
        )


def search(engine: Engine, space: str, query: TimelineSearch) -> SearchResult:
    """Search all committed events, or all but those between the index and the newest ones."""
    if not 1 <= query.limit <= MAX_HITS:
        raise InvalidInput(f"limit={query.limit}; use 1 to {MAX_HITS}")
    query_words = QueryWords(query.text)
    if not query_words.stems:
        return SearchResult(hits=(), words=())
    index = EventIndex(engine, space)
    with suppress(ReadOnly):
        index.catch_up(pages=_PAGES_A_SEARCH)
    matches = _Matches(index, query, query_words)
    tail = index.tail()
    matches.scan(tail.records)
    is_partial = not _scan_blocks(engine, space, index, query, matches)
    best = sorted(matches.found, key=_Match.order)[: query.limit]
    read = index.fetch([each.content for each in best])
    said = {content.address: _said(found) for content, found in read}
    return SearchResult(
        hits=tuple(each.hit(said.get(each.content.address, ""), query_words) for each in best),
        words=query_words.terms,
        is_partial=is_partial,
        not_indexed=tail.unread,
    )


def _said(content: Content) -> str:
    """Return what the messages in a content say; nothing if it holds none."""
    try:
        messages = read_messages(decode(content))
    except Corrupt:
        return ""
    return "\n".join(map(message_text, messages or ()))


def _scan_blocks(
    engine: Engine, space: str, index: EventIndex, query: TimelineSearch, matches: _Matches
) -> bool:
    """Read blocks, the best first, until there are enough hits or no more blocks.

    Return ``False`` if neither was the case: with a rare filter, too many blocks have the words.
    """
    terms = " ".join(index_terms(query.text))
    scanned, limit = 0, _FIRST_BLOCKS
    while True:
        block_query = SearchQuery(collection=COLLECTION, text=terms, namespace=query.run, limit=limit)
        found = engine.search(space, block_query).hits
        for start in range(scanned, len(found), _BLOCKS_AT_ONCE):
            if matches.has_enough:
                return True
            some = found[start : start + _BLOCKS_AT_ONCE]
            for block in index.blocks([(hit.namespace, hit.name) for hit in some]):
                if (part := query.part_of(block)) is not None:
                    matches.scan(index.records(block, part))
        if len(found) < limit:
            return True
        if limit >= MAX_PAGE:
            return matches.has_enough
        scanned, limit = len(found), min(limit * 8, MAX_PAGE)


class _Matches:
    """The contents found so far."""

    def __init__(self, index: EventIndex, query: TimelineSearch, query_words: QueryWords) -> None:
        self._index = index
        self._query = query
        self._words = query_words
        self.found: list[_Match] = []

    @property
    def has_enough(self) -> bool:
        """Whether enough contents have every word; those with fewer may be beaten by a later block."""
        complete = sum(len(each.stems) == len(self._words.stems) for each in self.found)
        return complete >= self._query.limit or len(self.found) >= 4 * self._query.limit

    def scan(self, records: Iterable[Record]) -> None:
        """Add the contents of records that have some of the words."""
        rows = [row for row in map(RunRow, records) if self._query.matches(row)]
        for content, text in self._index.texts(searchable(rows)):
            stems = self._words.found_in(text)
            if stems:
                self.found.append(_Match(content, text, stems))


class _Match:
    """A content that has some of the words; a `Hit` if it is among the best."""

    __slots__ = ("content", "stems", "text")

    def __init__(self, content: SearchableContent, text: str, stems: frozenset[str]) -> None:
        self.content = content
        self.text = text
        self.stems = stems

    def order(self) -> tuple[int, int, int]:
        """The most words first, then the newest."""
        row = self.content.row
        return -len(self.stems), -row.event.ts_us, -row.seq

    def hit(self, said: str, query_words: QueryWords) -> Hit:
        """Return the match as a `Hit`, with a snippet of what messages say if the words are in that."""
        text = said if query_words.found_in(said) >= self.stems else self.text
        row = self.content.row
        event = row.event
        thread, namespace = thread_of_key(event.thread)
        output: Literal["content", "output"] = "content" if event.kind == MESSAGE else "output"
        return Hit(
            run=event.run or "",
            span=event.span,
            event=event.id,
            seq=row.seq,
            ts_us=event.ts_us,
            kind=row.span_kind,
            part="input" if self.content.is_input else output,
            agent=event.agent,
            thread=thread,
            namespace=namespace,
            name=event.name,
            role=event.role,
            matched=len(self.stems),
            snippet=snippet_of(text, self.stems),
        )


def snippet_of(text: str, stems: frozenset[str]) -> str:
    """Return the text around the first word that matches, on one line."""
    at = next(_positions(text, stems), 0)
    start = max(at - _SNIPPET_BEFORE, 0)
    if start:
        start = text.find(" ", start, at) + 1 or start
    cut = _SPACES.sub(" ", text[start : start + _SNIPPET]).strip()
    return ("…" if start else "") + cut + ("…" if start + _SNIPPET < len(text) else "")


def _positions(text: str, stems: frozenset[str]) -> Iterator[int]:
    """The positions of words with these stems."""
    yield from (at for each in stems if is_unspaced(each) and (at := folded(text).find(each)) >= 0)
    for found in re.finditer(r"[^\W_]+", text):
        if any(stem(word) in stems for word in words(found.group())):
            yield found.start()

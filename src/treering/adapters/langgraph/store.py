"""LangGraph's long-term memory on a treering store: `TreeringStore`, a `BaseStore`, sync and async.

Items are found by key, by filter and by words. The index needs no embedding model and no extension, and is
updated in the same commit as the items. A search with a query returns the items that match it, ranked; it
never fills the page with others. With ``index={"embed": ...}`` a query ranks by meaning instead.

An item is a ref with its times and the address of its value, named ``langgraph/<label>/<label>//<key>`` with
``/``, ``%`` and control characters escaped. So the items of a namespace are one range of refs, those of its
sub-namespaces follow, and no label or key can be mistaken for another.

**Invariant:** the puts of one batch are one commit, and its reads see the state before it.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Final, cast

import msgspec
from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    get_text_at_path,
    tokenize_path,
    validate_op_namespace,
)

from treering.adapters.langgraph.item_vectors import NOTHING, Embedded, ItemVectors, digest_of, vectors_ref
from treering.adapters.shared import Opened, StoreOrUrl
from treering.core.batch import Draft, Text, Tokens
from treering.core.clock import Clock, SystemClock, to_datetime
from treering.core.content import Address, Content
from treering.core.encoding import decode, encode_json
from treering.core.forks import refuse_outside
from treering.core.ids import Scope, check_id
from treering.core.query import MAX_PAGE, SearchQuery, ref_pages
from treering.core.records import Ref
from treering.core.text import text_of
from treering.errors import Closed, InvalidInput, RefMoved, TreeringError
from treering.memory.documents import needs_trigrams
from treering.memory.search import why_unrankable
from treering.sync_async import Closing, Done

ROOT: Final = "langgraph/"

_log: Final = logging.getLogger("treering.langgraph")

_UNSAFE: Final = re.compile(r"[%/\x00-\x1f\x7f-\x9f]")
_ESCAPED: Final = re.compile(r"%([0-9a-f]{2})")

Namespace = tuple[str, ...]


class ItemRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of an item's ref."""

    value: str
    created_at_us: int
    updated_at_us: int
    ttl_minutes: float | None = None
    expires_at_us: int | None = None
    text: str | None = None
    """The address of the indexed text, if that is not the value itself."""
    indexed: bool = True
    vectors: tuple[str, ...] = ()
    """The embedders that it may have vectors of."""
    needs_trigrams: bool = msgspec.field(default=False, name="wide")

    def encoded(self) -> bytes:
        """Return the record as the bytes of a ref."""
        return msgspec.json.encode(self)

    def is_expired(self, now_us: int) -> bool:
        """Whether its time to live is over."""
        return self.expires_at_us is not None and self.expires_at_us <= now_us


FoundItem = tuple[Ref, ItemRecord, dict[str, Any], float | None]
"""The ref of an item, its record, its value and its score."""


def decode_record(data: bytes) -> ItemRecord:
    """Decode the bytes of a ref."""
    return msgspec.json.decode(data, type=ItemRecord)


def range_of(namespace: Namespace) -> str:
    """Return the prefix of the names of all items in exactly this namespace."""
    return prefix_of(namespace) + "/"


def prefix_of(namespace: Namespace) -> str:
    """Return the prefix of the names of all items in this namespace and below it."""
    return ROOT + "".join(_quote(label) + "/" for label in namespace)


def name_of(namespace: Namespace, key: str) -> str:
    """Return the name of an item's ref."""
    return check_id(range_of(namespace) + _quote(key), "the name of a store item")


def scope_of(namespace: Namespace, key: str) -> str:
    """Return the scope of an item. To `Store.forget`, ("users", "alice") is ``users/alice``."""
    scope = str(Scope("/".join(map(_quote, namespace)), "store", _quote(key)))
    return check_id(scope, "the scope of a store item")


def parse_name(name: str) -> tuple[Namespace, str]:
    """Return the namespace and the key of a name."""
    labels, _, key = name[len(ROOT) :].rpartition("//")
    return tuple(map(_unquote, labels.split("/"))), _unquote(key)


def accepts(value: Mapping[str, Any], filter: Mapping[str, Any] | None) -> bool:
    """Whether an item's value matches a filter, as LangGraph's own stores do."""
    return not filter or all(_compare(value.get(key), wanted) for key, wanted in filter.items())


def matches(namespace: Namespace, kind: str, path: tuple[str, ...]) -> bool:
    """Whether a namespace starts (``prefix``) or ends (``suffix``) with a path; ``*`` matches any label."""
    if len(namespace) < len(path):
        return False
    if kind == "prefix":
        pairs = zip(namespace, path, strict=False)
    elif kind == "suffix":
        pairs = zip(reversed(namespace), reversed(path), strict=False)
    else:
        raise InvalidInput(f"match type {kind!r} is not supported; use prefix or suffix")
    return all(wanted in ("*", label) for label, wanted in pairs)


def texts(value: Mapping[str, Any], fields: Sequence[str]) -> list[str]:
    """Return the texts at these paths of a value."""
    found: list[str] = []
    for field in fields:
        path = "$" if field == "$" else tokenize_path(field)
        found += get_text_at_path(value, path)
    return found


def item(namespace: Namespace, key: str, value: dict[str, Any], record: ItemRecord) -> Item:
    """Return an item in LangGraph's form."""
    return Item(
        value=value,
        key=key,
        namespace=namespace,
        created_at=to_datetime(record.created_at_us),
        updated_at=to_datetime(record.updated_at_us),
    )


def search_item(
    namespace: Namespace, key: str, value: dict[str, Any], record: ItemRecord, score: float | None
) -> SearchItem:
    """Return a search result in LangGraph's form."""
    return SearchItem(
        namespace=namespace,
        key=key,
        value=value,
        created_at=to_datetime(record.created_at_us),
        updated_at=to_datetime(record.updated_at_us),
        score=score,
    )


def _compare(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, Mapping):
        given = cast("Mapping[str, Any]", wanted)
        if any(key.startswith("$") for key in given):
            return all(_operate(value, operator, each) for operator, each in given.items())
        if not isinstance(value, Mapping):
            return False
        inner = cast("Mapping[str, Any]", value)
        return all(_compare(inner.get(key), each) for key, each in given.items())
    if isinstance(wanted, (list, tuple)):
        wants = cast("list[Any]", wanted)
        has = cast("list[Any]", value)
        return (
            isinstance(value, (list, tuple))
            and len(has) == len(wants)
            and all(_compare(one, other) for one, other in zip(has, wants, strict=True))
        )
    return value == wanted


def _operate(value: Any, operator: str, wanted: Any) -> bool:
    if operator == "$eq":
        return value == wanted
    if operator == "$ne":
        return value != wanted
    if operator not in {"$gt", "$gte", "$lt", "$lte"}:
        raise InvalidInput(f"filter operator {operator!r} is not supported; use $eq $ne $gt $gte $lt $lte")
    pair = _comparable(value, wanted)
    if pair is None:
        return False
    one, other = pair
    if operator in {"$gt", "$gte"}:
        return one > other or (operator == "$gte" and one == other)
    return one < other or (operator == "$lte" and one == other)


def _comparable(value: Any, wanted: Any) -> tuple[Any, Any] | None:
    """Both as numbers if they are numbers, else both as texts if they are texts, else ``None``."""
    try:
        return float(value), float(wanted)
    except (TypeError, ValueError):
        return (value, wanted) if isinstance(value, str) and isinstance(wanted, str) else None


def _quote(text: str) -> str:
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02x}", text)


def _unquote(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


_PAGE: Final = 500
_LAST_CHAR: Final = "\U0010ffff"
_MINUTE_US: Final = 60_000_000
_FEW: Final = 8
_SWEEP_MINUTES: Final = 5.0
_INDEXES: Final[tuple[tuple[str, Tokens], ...]] = (
    ("langgraph.store", "words"),
    ("langgraph.store.trigrams", "trigrams"),
)


class UnrankedWarning(UserWarning):
    """A query contains nothing to rank by, so the search returned nothing."""


class TtlSweeper(Future[None]):
    """Calls a sweep every few seconds, in a thread, until it is stopped or cancelled."""

    def __init__(self, sweep: Callable[[], int], seconds: float | None) -> None:
        super().__init__()
        self._sweep = sweep
        self._stopping = Event()
        self._has_stopped = Event()
        self.add_done_callback(lambda _: self._stopping.set())
        if seconds is None:
            self._has_stopped.set()
            self.set_result(None)
        else:
            Thread(target=self._work, args=(seconds,), name="treering-ttl", daemon=True).start()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop, and wait for it; return whether it has stopped."""
        self._stopping.set()
        return self._has_stopped.wait(timeout)

    def __await__(self) -> Generator[Any, None, TtlSweeper]:
        """Return it at once: the async stores of LangGraph are awaited to start theirs."""
        yield from ()
        return self

    def _work(self, seconds: float) -> None:
        while not self._stopping.wait(seconds):
            try:
                self._sweep()
            except Closed:
                break
            except TreeringError:
                _log.warning("expired items could not be removed; trying again later", exc_info=True)
        self._has_stopped.set()
        with suppress(InvalidStateError):  # it was cancelled
            self.set_result(None)


def _fields_of(index: Mapping[str, Any]) -> list[str]:
    """Return the fields of an `IndexConfig`; LangGraph's `SqliteStore` calls them ``text_fields``."""
    given: Any = index.get("fields") or index.get("text_fields") or "$"
    fields = [given] if isinstance(given, str) else given
    if not isinstance(fields, Sequence) or not all(isinstance(field, str) for field in cast("Any", fields)):
        raise InvalidInput(
            f"index={{'fields': {given!r}}} are no fields; pass a list of paths such as 'text'"
        )
    return list(cast("Sequence[str]", fields))


class TreeringStore(Closing, BaseStore):
    """A LangGraph store: ``builder.compile(store=TreeringStore(store))``.

    Takes an open store (sync or async), or a URL or folder, which it then opens and `close` closes.
    ``index={"fields": [...]}`` names the fields to search (default: the whole value); with ``"embed"``, as in
    LangGraph's `IndexConfig`, a search ranks by meaning: a LangChain `Embeddings`, a function (sync or async)
    or a name such as ``openai:text-embedding-3-small``. `embed_items` adds vectors to items that have none.

    ``ttl`` is LangGraph's `TTLConfig`. An expired item is invisible to every reader; `sweep_ttl` removes it,
    and `start_ttl_sweeper` does so every few minutes.
    """

    supports_ttl = True

    def __init__(
        self,
        store: StoreOrUrl | None = None,
        *,
        index: Mapping[str, Any] | None = None,
        ttl: TTLConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._fields = _fields_of(index or {})
        self.ttl_config = ttl
        self._clock = clock or SystemClock()
        self._opened = Opened(store)
        self._engine = self._opened.store.engine
        self._space = self._opened.store.space
        self._vectors: ItemVectors | None = None
        if index is not None and index.get("embed") is not None:
            self._vectors = ItemVectors(self._engine, self._space, index, self._fields)
        self._sweeper: TtlSweeper | None = None

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run all operations: reads first, then every put in one commit."""
        given = list(ops)
        return self._run(given, NOTHING if self._vectors is None else self._vectors.embed(given))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Async twin of `batch`."""
        given = list(ops)
        embedded = NOTHING if self._vectors is None else await self._vectors.aembed(given)
        return await self._opened.bridge.call(self._run, given, embedded)

    def _run(self, given: Sequence[Op], embedded: Embedded) -> list[Result]:
        for op in given:
            validate_op_namespace(op)
        results: list[Result] = [None] * len(given)
        gets = {at: op for at, op in enumerate(given) if isinstance(op, GetOp)}
        for at, found in zip(gets, self._get(list(gets.values())), strict=True):
            results[at] = found
        for at, op in enumerate(given):
            if isinstance(op, SearchOp):
                results[at] = self._search(op, embedded)
            elif isinstance(op, ListNamespacesOp):
                results[at] = self._list_namespaces(op)
        puts = {(op.namespace, op.key): op for op in given if isinstance(op, PutOp)}
        if puts:
            self._put(list(puts.values()), embedded)
        return results

    def embed_items(self) -> int:
        """Add vectors to the items that have none of this embedder; return their number.

        For items that were put before ``index`` had an embedder, or with another one.
        """
        vectors = self._required_vectors()
        return sum(
            self._add_vectors(vectors.embed(puts), puts, rows) for puts, rows in self._without_vectors()
        )

    async def aembed_items(self) -> int:
        """Async twin of `embed_items`."""
        vectors, bridge = self._required_vectors(), self._opened.bridge
        count, pages = 0, self._without_vectors()
        while (page := await bridge.call(next, pages, None)) is not None:
            puts, rows = page
            count += await bridge.call(self._add_vectors, await vectors.aembed(puts), puts, rows)
        return count

    def sweep_ttl(self) -> int:
        """Remove expired items; return their number."""
        now_us = self._clock.now_us()
        count = 0
        for page in self._pages(ROOT):
            expired = [
                (ref, record)
                for ref in page
                for record in [decode_record(ref.value)]
                if record.is_expired(now_us)
            ]
            draft = Draft(self._space)
            for ref, record in expired:
                self._delete(draft, ref, record, expect=ref.version)
            if expired:
                try:
                    self._engine.commit(draft.batch())
                except RefMoved:  # one of them was just put again: leave the others to the next sweep
                    continue
                count += len(expired)
        return count

    async def asweep_ttl(self) -> int:
        """Async twin of `sweep_ttl`."""
        return await self._opened.bridge.call(self.sweep_ttl)

    def setup(self) -> Awaitable[None]:
        """Do nothing: a store makes its tables when it is opened.

        For code that calls this on every store, or awaits it, as on LangGraph's own.
        """
        return Done()

    async def asetup(self) -> None:
        """Async twin of `setup`."""

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> TtlSweeper:
        """Remove expired items every few minutes (default: of the `TTLConfig`, or 5), in a thread.

        Returns a future that is done when the sweeper has stopped; cancelling it stops it, and so do
        `stop_ttl_sweeper` and `close`. It may be awaited as well, as in LangGraph's async stores.
        Without a ``ttl`` it is done at once.
        """
        if self._sweeper is None or self._sweeper.done():
            configured = (self.ttl_config or {}).get("sweep_interval_minutes")
            minutes = sweep_interval_minutes or configured or _SWEEP_MINUTES
            self._sweeper = TtlSweeper(self.sweep_ttl, minutes * 60 if self.ttl_config else None)
        return self._sweeper

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper and wait for it, at most so many seconds; return whether it has stopped."""
        return self._sweeper is None or self._sweeper.stop(timeout)

    async def astop_ttl_sweeper(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - LangGraph's
        """Async twin of `stop_ttl_sweeper`."""
        return await self._opened.bridge.call(self.stop_ttl_sweeper, timeout)

    def close(self) -> None:
        """Stop the sweeper, and close the store if it was opened here."""
        self.stop_ttl_sweeper()
        self._opened.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self.astop_ttl_sweeper()
        await self._opened.aclose()

    # Reading
    def _get(self, ops: Sequence[GetOp]) -> list[Item | None]:
        if not ops:
            return []
        names = [name_of(op.namespace, op.key) for op in ops]
        refs = self._engine.refs(self._space, names)
        now_us = self._clock.now_us()
        unexpired = {
            name: (ref, record)
            for name, ref in refs.items()
            for record in [decode_record(ref.value)]
            if not record.is_expired(now_us)
        }
        values = dict(zip(unexpired, self._values([record for _, record in unexpired.values()]), strict=True))
        wants = {name for name, op in zip(names, ops, strict=True) if op.refresh_ttl}
        self._refresh([unexpired[name] for name in unexpired if name in wants], now_us)
        return [
            item(op.namespace, op.key, values[name], unexpired[name][1]) if name in unexpired else None
            for name, op in zip(names, ops, strict=True)
        ]

    def _search(self, op: SearchOp, embedded: Embedded) -> list[SearchItem]:
        if op.limit < 0 or op.offset < 0:
            raise InvalidInput(f"limit is {op.limit} and offset {op.offset}; use 0 or more")
        now_us = self._clock.now_us()
        wanted = op.offset + op.limit
        if not op.query:
            found = self._newest(op, wanted, now_us)
        elif op.query in embedded.queries:
            found = self._similar(op, embedded.queries[op.query], wanted, now_us)
        else:
            found = self._ranked(op, op.query, wanted, now_us)
        chosen = found[op.offset : wanted]
        if op.refresh_ttl:
            self._refresh([(ref, record) for ref, record, _, _ in chosen], now_us)
        return [
            search_item(*parse_name(ref.name), value, record, score) for ref, record, value, score in chosen
        ]

    def _newest(self, op: SearchOp, wanted: int, now_us: int) -> list[FoundItem]:
        refs = [ref for page in self._pages(prefix_of(op.namespace_prefix)) for ref in page]
        unexpired = [
            (ref, record)
            for ref in refs
            for record in [decode_record(ref.value)]
            if not record.is_expired(now_us)
        ]
        unexpired.sort(key=lambda pair: (-pair[1].updated_at_us, pair[0].name))
        found: list[FoundItem] = []
        for start in range(0, len(unexpired), _PAGE):
            found += self._accepted([(*pair, None) for pair in unexpired[start : start + _PAGE]], op.filter)
            if len(found) >= wanted:
                break
        return found

    def _ranked(self, op: SearchOp, query: str, wanted: int, now_us: int) -> list[FoundItem]:
        reason = why_unrankable(query)
        if reason:
            warnings.warn(f"query {query[:60]!r} cannot be ranked: {reason}", UnrankedWarning, stacklevel=2)
            return []
        spaces = self._few_namespaces(op.namespace_prefix)
        limit = min(max(50, wanted * 4), MAX_PAGE)
        while True:
            scores, is_all = self._scores(query, spaces, op.namespace_prefix, limit)
            refs = self._engine.refs(self._space, list(scores))
            unexpired = [
                (refs[name], record, score)
                for name, score in scores.items()
                if name in refs
                for record in [decode_record(refs[name].value)]
                if not record.is_expired(now_us)
            ]
            found = self._accepted(unexpired, op.filter)
            if len(found) >= wanted or is_all or limit >= MAX_PAGE:
                return found
            limit = min(limit * 4, MAX_PAGE)

    def _similar(self, op: SearchOp, query: bytes, wanted: int, now_us: int) -> list[FoundItem]:
        below = prefix_of(op.namespace_prefix)[len(ROOT) :]
        scored = self._required_vectors().compare(below, query)
        found: list[FoundItem] = []
        for start in range(0, len(scored), _PAGE):
            page = scored[start : start + _PAGE]
            refs = self._engine.refs(self._space, [ROOT + name for name, _, _ in page])
            rows = [
                (refs[ROOT + name], record, score)
                for name, digest, score in page
                if ROOT + name in refs
                for record in [decode_record(refs[ROOT + name].value)]
                if not record.is_expired(now_us) and digest == digest_of(record.value)
            ]
            found += self._accepted(rows, op.filter)
            if len(found) >= wanted:
                break
        return found

    def _scores(
        self, query: str, spaces: Sequence[Namespace] | None, prefix: Namespace, limit: int
    ) -> tuple[dict[str, float], bool]:
        """Names and scores below a prefix, best first, and whether these are all matches."""
        merged: dict[str, float] = {}
        is_all = True
        indexes = _INDEXES if needs_trigrams(query) else _INDEXES[:1]
        begin = prefix_of(prefix)
        for collection, _ in indexes:
            for namespace in [None] if spaces is None else [prefix_of(each) for each in spaces]:
                search = SearchQuery(collection=collection, text=query, namespace=namespace, limit=limit)
                hits = self._engine.search(self._space, search).hits
                is_all = is_all and len(hits) < limit
                for hit in hits:
                    if hit.name.startswith(begin):
                        merged[hit.name] = max(merged.get(hit.name, hit.score), hit.score)
        return dict(sorted(merged.items(), key=lambda pair: -pair[1])), is_all

    def _accepted(
        self, rows: Sequence[tuple[Ref, ItemRecord, float | None]], filter: Mapping[str, Any] | None
    ) -> list[FoundItem]:
        values = self._values([record for _, record, _ in rows])
        return [
            (ref, record, value, score)
            for (ref, record, score), value in zip(rows, values, strict=True)
            if accepts(value, filter)
        ]

    def _list_namespaces(self, op: ListNamespacesOp) -> list[Namespace]:
        now_us = self._clock.now_us()
        conditions = op.match_conditions or ()
        found = [
            namespace
            for namespace in self._namespaces(ROOT)
            if all(matches(namespace, each.match_type, each.path) for each in conditions)
            and self._has_unexpired(namespace, now_us)
        ]
        if op.max_depth is not None:
            found = [namespace[: op.max_depth] for namespace in found]
        return sorted(set(found))[op.offset : op.offset + op.limit]

    def _namespaces(self, prefix: str) -> Iterator[Namespace]:
        after: str | None = None
        while page := self._engine.scan_refs(self._space, prefix, after=after, limit=1):
            namespace, _ = parse_name(page[0].name)
            yield namespace
            after = range_of(namespace) + _LAST_CHAR

    def _few_namespaces(self, prefix: Namespace) -> list[Namespace] | None:
        """The namespaces to search one by one; ``None`` if there are too many for that."""
        found: list[Namespace] = []
        for namespace in self._namespaces(prefix_of(prefix)):
            found.append(namespace)
            if len(found) > _FEW:
                return None
        return found

    def _has_unexpired(self, namespace: Namespace, now_us: int) -> bool:
        return any(
            not decode_record(ref.value).is_expired(now_us)
            for page in self._pages(range_of(namespace))
            for ref in page
        )

    # Writing
    def _put(self, ops: Sequence[PutOp], embedded: Embedded) -> None:
        names = [name_of(op.namespace, op.key) for op in ops]
        if names:
            refuse_outside(self._engine, self._space, f"{names[0]!r} of the LangGraph store")
        refs = self._engine.refs(self._space, names)
        now_us = self._clock.now_us()
        draft = Draft(self._space)
        for name, op in zip(names, ops, strict=True):
            ref = refs.get(name)
            before = None if ref is None else decode_record(ref.value)
            if op.value is None:
                if ref is not None and before is not None:
                    self._delete(draft, ref, before)
                continue
            self._set(draft, name, op, op.value, before, now_us, embedded)
        if not draft.is_empty:
            self._engine.commit(draft.batch())

    def _set(
        self,
        draft: Draft,
        name: str,
        op: PutOp,
        value: Mapping[str, Any],
        before: ItemRecord | None,
        now_us: int,
        embedded: Embedded,
    ) -> None:
        scope = scope_of(op.namespace, op.key)
        content = Content("json", encode_json(dict(value), keep_order=True))
        address = draft.put(content, scope=scope)
        links = [address]
        fields = self._fields if op.index is None else op.index
        source, words = address, ""
        if fields is not False and fields != ["$"]:
            words = "\n".join(texts(value, fields))
            source = draft.put(Content("text", words.encode()), scope=scope)
            links.append(source)
        elif fields is not False:
            words = text_of(content)
        record = ItemRecord(
            value=address,
            created_at_us=now_us if before is None or before.is_expired(now_us) else before.created_at_us,
            updated_at_us=now_us,
            ttl_minutes=op.ttl,
            expires_at_us=None if op.ttl is None else now_us + round(op.ttl * _MINUTE_US),
            text=None if source == address else source,
            indexed=fields is not False,
            vectors=self._put_vectors(draft, name, scope, address, op, embedded, before),
            needs_trigrams=needs_trigrams(words),
        )
        draft.set_ref(name, record.encoded(), scope=scope, links=tuple(links))
        self._index(draft, name, op.namespace, scope, source if record.indexed else None, record, before)

    def _put_vectors(
        self,
        draft: Draft,
        name: str,
        scope: str,
        address: Address,
        op: PutOp,
        embedded: Embedded,
        before: ItemRecord | None,
    ) -> tuple[str, ...]:
        """Write or delete the vectors of an item; return the embedders that it may have vectors of.

        Vectors of other embedders stay: their digest says that they are of an older value.
        """
        had = () if before is None else before.vectors
        vectors = self._vectors
        if vectors is None:
            return had
        others = tuple(each for each in had if each != vectors.id)
        found = [embedded.texts[text] for text in vectors.texts_of(op)]
        if found:
            vectors.put(draft, name[len(ROOT) :], scope, address, found)
            return (*others, vectors.id)
        if vectors.id in had:
            draft.delete_ref(vectors_ref(vectors.id, name[len(ROOT) :]), scope=scope)
        return others

    def _without_vectors(self) -> Iterator[tuple[list[PutOp], list[tuple[Ref, ItemRecord]]]]:
        """Yield the items that have no vectors, as if they were put again, with their rows."""
        vectors = self._required_vectors()
        for page in self._pages(ROOT):
            digests = vectors.digests([ref.name[len(ROOT) :] for ref in page])
            rows = [
                (ref, record)
                for ref in page
                for record in [decode_record(ref.value)]
                if record.indexed and digests.get(ref.name[len(ROOT) :]) != digest_of(record.value)
            ]
            values = self._values([record for _, record in rows])
            puts = [PutOp(*parse_name(ref.name), value) for (ref, _), value in zip(rows, values, strict=True)]
            wanted = [at for at, put in enumerate(puts) if vectors.texts_of(put)]
            if wanted:
                yield [puts[at] for at in wanted], [rows[at] for at in wanted]

    def _add_vectors(
        self, embedded: Embedded, puts: Sequence[PutOp], rows: Sequence[tuple[Ref, ItemRecord]]
    ) -> int:
        vectors, count = self._required_vectors(), 0
        for put, (ref, record) in zip(puts, rows, strict=True):
            draft = Draft(self._space)
            found = [embedded.texts[text] for text in vectors.texts_of(put)]
            vectors.put(draft, ref.name[len(ROOT) :], ref.scope, Address(record.value), found)
            known = tuple(dict.fromkeys((*record.vectors, vectors.id)))
            noted = msgspec.structs.replace(record, vectors=known)
            draft.set_ref(ref.name, noted.encoded(), scope=ref.scope, expect=ref.version, links=ref.links)
            try:
                self._engine.commit(draft.batch())
            except RefMoved:  # it was just put again, with its vectors
                continue
            count += 1
        return count

    def _required_vectors(self) -> ItemVectors:
        if self._vectors is None:
            raise InvalidInput('this TreeringStore has no embedder; pass index={"embed": ...}')
        return self._vectors

    def _delete(self, draft: Draft, ref: Ref, record: ItemRecord, *, expect: int | None = None) -> None:
        namespace, _ = parse_name(ref.name)
        draft.delete_ref(ref.name, scope=ref.scope, expect="any" if expect is None else expect)
        self._index(draft, ref.name, namespace, ref.scope, None, None, record)
        for embedder in record.vectors:
            draft.delete_ref(vectors_ref(embedder, ref.name[len(ROOT) :]), scope=ref.scope)

    def _index(
        self,
        draft: Draft,
        name: str,
        namespace: Namespace,
        scope: str,
        source: Address | None,
        record: ItemRecord | None,
        before: ItemRecord | None,
    ) -> None:
        was_indexed = before is not None and before.indexed
        had_trigrams = was_indexed and before is not None and before.needs_trigrams
        has_trigrams = source is not None and record is not None and record.needs_trigrams
        for (collection, tokens), is_in, was_in in zip(
            _INDEXES, (source is not None, has_trigrams), (was_indexed, had_trigrams), strict=True
        ):
            if is_in or was_in:
                draft.text(
                    Text(
                        collection=collection,
                        name=name,
                        scope=scope,
                        source=source if is_in else None,
                        namespace=prefix_of(namespace),
                        tokens=tokens,
                    )
                )

    def _refresh(self, rows: Sequence[tuple[Ref, ItemRecord]], now_us: int) -> None:
        """Restart the time to live of items that were read. One that moved was just written."""
        for ref, record in rows:
            if record.ttl_minutes is None:
                continue
            later = msgspec.structs.replace(
                record, expires_at_us=now_us + round(record.ttl_minutes * _MINUTE_US)
            )
            if later == record:
                continue
            draft = Draft(self._space)
            draft.set_ref(ref.name, later.encoded(), scope=ref.scope, expect=ref.version, links=ref.links)
            try:
                self._engine.commit(draft.batch())
            except RefMoved:
                continue

    def _values(self, records: Sequence[ItemRecord]) -> list[dict[str, Any]]:
        addresses = [Address(record.value) for record in records]
        return [decode(content) for content in self._engine.get(self._space, addresses)] if addresses else []

    def _pages(self, prefix: str) -> Iterator[list[Ref]]:
        return ref_pages(self._engine, self._space, prefix, limit=_PAGE)

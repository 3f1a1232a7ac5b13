"""Search in what was said: the messages of conversations, and what runs recorded.

Conversations have no index of their own (they are written far more often than they are searched), so the
newest messages of the newest threads are read and ranked by how rare the words are that they share with the
question. How far that reached is part of the answer. What runs recorded is asked of the store's own search.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from treering.core.terms import query_terms
from treering.errors import InvalidInput, NotFound
from treering.mcp.replies import excerpt
from treering.views.finding import Finder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.store import Store

MAX_THREADS: Final = 500
MAX_MESSAGES: Final = 20_000
_OF_ONE_THREAD: Final = 400
_EXCERPT: Final = 400
_STEM: Final = 4
_NOT_SAID: Final = frozenset({"role", "type", "kind", "id", "tool_call_id"})


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Hits, best first, and how much was looked at for them."""

    hits: list[dict[str, Any]]
    recorded: list[dict[str, Any]]
    """What runs recorded, best first."""
    threads: int
    messages: int
    complete: bool


class _Said(msgspec.Struct, frozen=True):
    thread: str
    namespace: str
    index: int
    checkpoint: str
    text: str
    terms: frozenset[str]


def search_history(
    store: Store, text: str, *, thread: str = "", namespace: str | None = None, limit: int = 10
) -> Found:
    """The messages that share the rarest words with a question."""
    terms = query_terms(text)
    if not terms:
        raise InvalidInput("the question has no word to look for; give some")
    stems = {_stem(term) for term in terms}
    holders: Counter[str] = Counter()
    said: list[_Said] = []
    looked = _Looked()
    for each in _messages(store, thread, namespace, looked):
        shared = frozenset(stem for stem in stems if stem in each.text.casefold())
        if shared:
            holders.update(shared)
            said.append(msgspec.structs.replace(each, terms=shared))

    def score(one: _Said) -> float:
        return sum(math.log(1 + looked.messages / holders[term]) for term in one.terms)

    said.sort(key=score, reverse=True)
    hits: list[dict[str, Any]] = [
        {
            "thread": each.thread,
            "namespace": each.namespace,
            "index": each.index,
            "checkpoint": each.checkpoint,
            "score": round(score(each), 3),
            "text": _around(each.text, each.terms),
        }
        for each in said[:limit]
    ]
    recorded = [] if thread else _recorded(store, text, limit)
    return Found(
        hits=hits,
        recorded=recorded,
        threads=looked.threads,
        messages=looked.messages,
        complete=looked.complete,
    )


def _recorded(store: Store, text: str, limit: int) -> list[dict[str, Any]]:
    found = store.timeline.search(text, limit=limit)
    facts = [msgspec.to_builtins(hit) for hit in found.hits]
    return [{key: value for key, value in each.items() if value not in (None, "", [])} for each in facts]


class _Looked:
    def __init__(self) -> None:
        self.threads = 0
        self.messages = 0
        self.complete = True


def _messages(store: Store, thread: str, namespace: str | None, looked: _Looked) -> Iterator[_Said]:
    if thread:
        chosen = [Finder(store.engine, store.space, namespace or "").thread(thread)]
    else:
        chosen = list(store.threads(namespace=namespace))
    seen: set[tuple[str, int]] = set()
    for info in chosen[:MAX_THREADS]:
        room = MAX_MESSAGES - looked.messages
        if room <= 0:
            looked.complete = False
            return
        try:
            moment = store.thread(info.id, info.namespace).head
        except NotFound:
            continue  # it went while we looked
        if moment is None:
            continue
        wanted = min(room, MAX_MESSAGES if thread else _OF_ONE_THREAD)
        count = moment.message_count
        looked.complete = looked.complete and count <= wanted
        looked.threads += 1
        for index, message in enumerate(moment.last_messages(wanted), max(count - wanted, 0)):
            words = "\n".join(_strings(message))
            looked.messages += 1
            # Forks share their past: what was said there is one hit, of the thread that changed last.
            if (words, index) in seen:
                continue
            seen.add((words, index))
            yield _Said(info.id, info.namespace, index, moment.id, words, frozenset())
    looked.complete = looked.complete and len(chosen) <= MAX_THREADS


def _strings(value: Any) -> Iterator[str]:
    """What is said in a message, without the names of its fields and who says it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in cast("dict[Any, Any]", value).items():
            if key not in _NOT_SAID:
                yield from _strings(each)
    elif isinstance(value, (list, tuple)):
        for each in cast("list[Any]", value):
            yield from _strings(each)


def _stem(term: str) -> str:
    """What a word's other forms begin with as well, near enough for a scan."""
    for ending in ("ing", "ed", "es", "s"):
        if term.endswith(ending) and len(term) - len(ending) >= _STEM:
            return term[: -len(ending)]
    return term


def _around(text: str, terms: frozenset[str]) -> str:
    """The text from a little before the first word that was asked for."""
    folded = text.casefold()
    places = [folded.find(term) for term in terms]
    start = max(min(place for place in places if place >= 0) - _EXCERPT // 4, 0)
    return ("…" if start else "") + excerpt(text[start:], _EXCERPT)

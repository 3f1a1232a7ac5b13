"""Search everything at once: threads, runs and memory, each kind on its own.

Runs and memory have an index. Messages of threads have none: what an agent says in a run is found there, and
its thread with it. Threads that no run wrote are searched among those that changed last, by their newest
messages. **Invariant:** a thread is found once, by the first of these that it has: its id, a message of its
own, a hit in one of its runs.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from treering.core.clock import to_datetime
from treering.errors import InvalidInput
from treering.memory.documents import MemoryHit
from treering.runs.messages import message_text, preview_of, read_message
from treering.runs.search import Hit, QueryWords, snippet_of
from treering.threads.checkpoint import MESSAGES, last_messages, read_list
from treering.threads.directory import thread_info, thread_page
from treering.threads.history import read_heads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.engine import Engine
    from treering.memory.memory import Memory
    from treering.runs.timeline import Timeline
    from treering.threads.directory import ThreadInfo

MOST: Final = 100
_RECENT: Final = 50
"""How many threads are searched by their own messages: those that changed last."""
_MESSAGES: Final = 50
"""How many messages of each, from the end."""
_CHARS: Final = 100_000
"""How much of a message."""


class ThreadHit(msgspec.Struct, frozen=True, kw_only=True):
    """A thread whose id or messages contain the words."""

    thread: str
    namespace: str
    updated_at_us: int
    part: Literal["id", "message", "run"]
    """What was found: its id, one of its messages, or something that a run of it said or did."""
    role: str | None = None
    snippet: str = ""
    """What was found, or the last message of a thread that was found by its id."""

    @property
    def updated_at(self) -> datetime:
        """When its head last moved, in UTC."""
        return to_datetime(self.updated_at_us)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of each kind, best first. ``words`` are the words searched for.

    ``is_partial`` and ``not_indexed`` are about runs; see `treering.runs.search.SearchResult`.
    """

    threads: tuple[ThreadHit, ...]
    runs: tuple[Hit, ...]
    memory: tuple[MemoryHit, ...]
    words: tuple[str, ...]
    is_partial: bool = False
    not_indexed: int = 0

    def __bool__(self) -> bool:
        """Whether there is any hit."""
        return bool(self.threads or self.runs or self.memory)


def search_everything(
    engine: Engine, space: str, text: str, *, timeline: Timeline, memory: Memory, limit: int
) -> Found:
    """Search threads, runs and the memory of all namespaces, for at most ``limit`` hits of each kind."""
    if not 1 <= limit <= MOST:
        raise InvalidInput(f"limit={limit}; use 1 to {MOST}")
    runs = timeline.search(text, limit=limit)
    threads: dict[tuple[str, str], ThreadHit] = {}
    for hit in _threads(engine, space, text.strip(), runs.hits):
        threads.setdefault((hit.thread, hit.namespace), hit)
        if len(threads) == limit:
            break
    return Found(
        threads=tuple(threads.values()),
        runs=runs.hits,
        memory=memory.search(text, limit=limit, everywhere=True).hits,
        words=runs.words,
        is_partial=runs.is_partial,
        not_indexed=runs.not_indexed,
    )


def _threads(engine: Engine, space: str, text: str, runs: tuple[Hit, ...]) -> Iterator[ThreadHit]:
    if text:
        named = thread_page(engine, space, namespace=None, containing=text, first=MOST).threads
        heads = read_heads(engine, space, [each.head for each in named])
        newest = last_messages(engine, space, heads.values())
        for info in named:
            said = read_message(newest[info.head]) if info.head in newest else None
            role, snippet = (None, "") if said is None else (said.role, preview_of(said))
            yield _hit(info, "id", role=role, snippet=snippet)
    words = QueryWords(text)
    if words.stems:
        yield from _by_messages(engine, space, words)
    for hit in runs:
        info = None if hit.thread is None else thread_info(engine, space, hit.thread, hit.namespace)
        if info is not None:
            yield _hit(info, "run", role=hit.role or hit.name, snippet=hit.snippet)


def _by_messages(engine: Engine, space: str, words: QueryWords) -> Iterator[ThreadHit]:
    """Yield threads whose newest messages contain the words; those with the most words first."""
    recent = thread_page(engine, space, namespace=None, first=_RECENT).threads
    heads = read_heads(engine, space, [each.head for each in recent])
    found: list[tuple[int, ThreadHit]] = []
    for info in recent:
        head = heads.get(info.head)
        prefix = None if head is None else head.lists.get(MESSAGES)
        if prefix is None or not prefix.length:
            continue
        newest_first = reversed(read_list(engine, space, prefix, last=_MESSAGES))
        said = [(each.role, message_text(each)[:_CHARS]) for each in map(read_message, newest_first)]
        matches = [(role, text, words.found_in(text)) for role, text in said]
        role, text, matched = max(matches, key=lambda each: len(each[2]))
        if matched:
            snippet = snippet_of(text, matched)
            found.append((len(matched), _hit(info, "message", role=role, snippet=snippet)))
    yield from (hit for _, hit in sorted(found, key=lambda each: -each[0]))


def _hit(
    info: ThreadInfo,
    part: Literal["id", "message", "run"],
    *,
    role: str | None = None,
    snippet: str = "",
) -> ThreadHit:
    return ThreadHit(
        thread=info.id,
        namespace=info.namespace,
        updated_at_us=info.updated_at_us,
        part=part,
        role=role,
        snippet=snippet,
    )

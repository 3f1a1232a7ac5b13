"""MCP tools for conversations: list, search, read, list checkpoints, fork."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from mcp_types import CallToolResult
from pydantic import Field

from treering.core.clock import to_iso
from treering.core.text import query_terms
from treering.errors import InvalidInput, NotFound
from treering.mcp.replies import excerpt, fitted, plain
from treering.runs.messages import message_text, preview_of, read_message
from treering.threads.checkpoint import Checkpoint
from treering.threads.directory import Finder, summarize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.mcp.replies import Replies
    from treering.store import Store
    from treering.threads.directory import ThreadSummary


# -----------------------------------------------------------------------------------------------------------
# Search in what was said: the messages of conversations, and what runs recorded.
#
# Conversations have no index of their own (they are written far more often than they are searched), so the
# newest messages of the newest threads are read and ranked by how rare the words are that they share with the
# question. How far that reached is part of the answer. What runs recorded is asked of the store's own search.


MAX_THREADS: Final = 500
MAX_MESSAGES: Final = 20_000
_OF_ONE_THREAD: Final = 400
_EXCERPT: Final = 400
_STEM: Final = 4


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Matches, best first, and how much was searched for them."""

    hits: list[dict[str, Any]]
    recorded: list[dict[str, Any]]
    """Matches in recorded runs, best first."""
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
    """Return the messages that share the rarest words with a query."""
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
        chosen = list(islice(store.threads(namespace=namespace), MAX_THREADS + 1))
    seen: set[tuple[str, int]] = set()
    for info in chosen[:MAX_THREADS]:
        room = MAX_MESSAGES - looked.messages
        if room <= 0:
            looked.complete = False
            return
        try:
            checkpoint = store.thread(info.id, info.namespace).head
        except NotFound:
            continue  # it went while we looked
        if checkpoint is None:
            continue
        wanted = min(room, MAX_MESSAGES if thread else _OF_ONE_THREAD)
        count = checkpoint.message_count
        looked.complete = looked.complete and count <= wanted
        looked.threads += 1
        for index, message in enumerate(checkpoint.last_messages(wanted), max(count - wanted, 0)):
            words = message_text(read_message(message))
            looked.messages += 1
            # Forks share their past: what was said there is one hit, of the thread that changed last.
            if (words, index) in seen:
                continue
            seen.add((words, index))
            yield _Said(info.id, info.namespace, index, checkpoint.id, words, frozenset())
    looked.complete = looked.complete and len(chosen) <= MAX_THREADS


def _stem(term: str) -> str:
    """What a word's other forms begin with as well, near enough for a scan."""
    for ending in ("ing", "ed", "es", "s"):
        if term.endswith(ending) and len(term) - len(ending) >= _STEM:
            return term[: -len(ending)]
    return term


def _around(text: str, terms: frozenset[str]) -> str:
    """Return an excerpt that starts shortly before the first word of the query."""
    folded = text.casefold()
    places = [folded.find(term) for term in terms]
    start = max(min(place for place in places if place >= 0) - _EXCERPT // 4, 0)
    return ("…" if start else "") + excerpt(text[start:], _EXCERPT)


# -----------------------------------------------------------------------------------------------------------

ThreadId = Annotated[str, Field(description="The thread's id; thread_list shows which there are")]
Whose = Annotated[str, Field(description="The user or project that the thread belongs to; empty for none")]
At = Annotated[
    str,
    Field(
        description="Which checkpoint: a step (12), steps back (~1), an id (ckpt_...) or an ISO time; "
        "empty for the newest"
    ),
]


class ThreadTools:
    """The tools for conversations."""

    def __init__(self, store: Store, replies: Replies) -> None:
        self._store = store
        self._replies = replies

    def history_search(
        self,
        text: Annotated[str, Field(description="What to look for, in plain words")],
        thread: Annotated[str, Field(description="Only in this thread; empty for all of them")] = "",
        namespace: Annotated[
            str | None, Field(description="Only threads of this user or project; left out, all")
        ] = None,
        limit: Annotated[int, Field(description="At most so many hits", ge=1, le=50)] = 10,
    ) -> CallToolResult:
        """Search what was said in past conversations and recorded runs, best match first.

        Each of `hits` names its thread and the message's index (read around it with thread_read); `recorded`
        are messages and tool calls of runs. The newest conversations are looked at first; `complete` is false
        when older ones were not reached.
        """
        found = search_history(self._store, text, thread=thread, namespace=namespace, limit=limit)
        facts: dict[str, Any] = {
            "complete": found.complete,
            "threads_searched": found.threads,
            "messages_searched": found.messages,
        }
        if found.recorded:
            facts["recorded"] = fitted(plain(found.recorded), self._replies.text_room(facts) // 2)
        return self._replies.listing(
            "hits", found.hits, facts=facts, more="there are more; ask for fewer (limit) or name a thread"
        )

    def thread_list(
        self,
        prefix: Annotated[str, Field(description="Only ids that begin so")] = "",
        namespace: Annotated[
            str | None, Field(description="Only of this user or project; left out, of everyone")
        ] = None,
        limit: Annotated[int, Field(description="At most so many", ge=1, le=200)] = 20,
    ) -> CallToolResult:
        """List the stored conversations, last changed first."""
        page = self._store.thread_page(namespace=namespace, prefix=prefix, first=limit)
        items = map(_about_thread, summarize(self._store.engine, self._store.space, page.threads))
        more = "there are more; narrow it by prefix"
        facts = {} if page.cursor is None else {"cut": more}
        return self._replies.listing("threads", items, facts=facts, more=more)

    def thread_read(
        self,
        thread: ThreadId,
        at: At = "",
        namespace: Whose = "",
        *,
        last: Annotated[int, Field(description="So many messages from the end", ge=0, le=500)] = 20,
        before: Annotated[
            int | None, Field(description="Only messages before this index (for older pages)", ge=0)
        ] = None,
        state: Annotated[bool, Field(description="Also the agent's state at that moment")] = False,
        raw: Annotated[bool, Field(description="Messages exactly as they were saved")] = False,
    ) -> CallToolResult:
        """Read a conversation: its newest messages, now or as it was at an earlier checkpoint.

        Each message has its role and text, with a line for each tool call, result and attachment. For older
        messages go on with `before` = first_index.
        """
        checkpoint = find_checkpoint(self._store, thread, at, namespace)
        end = checkpoint.message_count if before is None else min(before, checkpoint.message_count)
        start = max(end - last, 0)
        tail = checkpoint.last_messages(checkpoint.message_count - start)[: end - start]
        facts = about_checkpoint(checkpoint)
        if state:
            facts["state"] = fitted(plain(checkpoint.state), self._replies.text_room(facts) // 2)
        reply = with_messages(self._replies, facts, tail, start, raw=raw)
        if reply["messages"]:
            reply["first_index"] = reply["messages"][0]["index"]
        return self._replies.whole(reply)

    def checkpoint_list(
        self,
        thread: ThreadId,
        namespace: Whose = "",
        *,
        after: Annotated[str, Field(description="Go on behind this checkpoint id")] = "",
        limit: Annotated[int, Field(description="At most so many", ge=1, le=200)] = 20,
    ) -> CallToolResult:
        """List the checkpoints of a conversation, newest first: any of them can be read or forked from."""
        Finder(self._store.engine, self._store.space, namespace).thread(thread)
        checkpoints = self._store.thread(thread, namespace).history(last=limit, after=after or None)
        return self._replies.listing(
            "checkpoints",
            map(about_checkpoint, checkpoints),
            more="there are more; go on with after=<last id>",
        )

    def thread_fork(
        self,
        thread: ThreadId,
        new_thread: Annotated[str, Field(description="The id of the new thread")],
        at: At = "",
        namespace: Whose = "",
    ) -> CallToolResult:
        """Start a new conversation at any checkpoint of another one, to try something else.

        It shares the past and costs nothing; the thread that it came from stays as it is.
        """
        if new_thread == thread:
            raise InvalidInput(f"the fork needs an id of its own, not {thread!r}; choose another one")
        checkpoint = find_checkpoint(self._store, thread, at, namespace)
        forked = self._store.thread(thread, namespace).fork(new_thread, at=checkpoint)
        head = forked.head
        return self._replies.whole(
            {"thread": forked.id, "from": about_checkpoint(head) if head is not None else None}
        )


def find_checkpoint(store: Store, thread: str, at: str, namespace: str) -> Checkpoint:
    """A checkpoint of a thread; one that belongs to another thread is not taken for one of this."""
    finder = Finder(store.engine, store.space, namespace)
    info = finder.thread(thread)
    checkpoint = finder.within(info, at or "~0")
    return Checkpoint(store.engine, store.space, checkpoint, through=store.thread(thread, namespace))


def with_messages(
    replies: Replies, facts: dict[str, Any], messages: list[Any], start: int, *, raw: bool = False
) -> dict[str, Any]:
    """Facts and as many of the messages as there is room for, the newest ones, in order."""
    show = _as_saved if raw else _readable
    newest_first = ({"index": at, **show(each)} for at, each in reversed([*enumerate(messages, start)]))
    more = "older messages did not fit; go on with before=first_index"
    reply = replies.filled("messages", newest_first, facts=facts, more=more)
    reply["messages"].reverse()
    return reply


def _as_saved(message: Any) -> dict[str, Any]:
    return {"message": message}


def _readable(message: Any) -> dict[str, Any]:
    found = read_message(message)
    name = {} if found.name is None else {"name": found.name}
    return {"role": found.role, **name, "text": message_text(found)}


def _about_thread(thread: ThreadSummary) -> dict[str, Any]:
    info, head = thread.info, thread.head
    facts = {
        "id": info.id,
        "namespace": info.namespace,
        "step": info.step,
        "head": info.head,
        "created_at": to_iso(info.created_at_us),
        "updated_at": to_iso(info.updated_at_us),
    }
    if head is None:
        return {**facts, "damaged": True}
    last = read_message(thread.last_message)
    said = {} if thread.last_message is None else {"last_message": f"{last.role}: {preview_of(last)}"}
    waits = {} if head.pending_interrupt is None else {"pending_approval": True}
    return {**facts, "message_count": head.message_count, **said, **waits}


def about_checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint without its content and without empty fields."""
    facts = checkpoint.to_dict(content=False)
    return {key: value for key, value in facts.items() if value not in (None, "", [], {})}

"""The directory of threads: listing them, and finding threads and checkpoints by what a person types.

A thread is listed from its head alone, so no checkpoint is read. There are three ways to name a checkpoint:
by its id or the beginning of it (``ckpt_01k9``), by a thread (meaning its head), and by a thread, ``@`` and a
position (``alice@12``, ``alice@~1``, ``alice@2026-11-16T08:00``; see `find_position`). A thread id may
contain an ``@``: the whole text is tried as a thread before it is split.

A head whose checkpoint has a pending interrupt is listed with the status `writer.WAITING`, so the threads
that wait for a person (`WaitingThreads`) are found without reading the others.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.approvals.ballots import Asked
from treering.core.clock import to_datetime
from treering.core.query import (
    ListQuery,
    decode_list_cursor,
    each_listed,
    each_ref,
    encode_list_cursor,
    readable,
)
from treering.errors import NotFound
from treering.runs.cost import Cost, Costs
from treering.threads.checkpoint import PREFIX, CheckpointRecord, last_messages
from treering.threads.history import Journal, find_by_beginning, find_position, read_heads
from treering.threads.hooks import check_text
from treering.threads.writer import HEADS, THREADS, WAITING, head_ref, heads_prefix, read_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.threads.checkpoint import Checkpoint
    from treering.threads.thread import Thread
    from treering.workspaces.diff import FileChange

_SUGGESTIONS: Final = 3
_SUGGESTED_FROM: Final = 1_000
"""Suggestions are from so many threads, those that changed last."""
_MAX_SCANNED: Final = 2_000
"""How many threads a page with filters reads at most."""
_SCANNED_AT_ONCE: Final = 500


class ThreadInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A thread as its head describes it, without reading any of its checkpoints."""

    id: str
    namespace: str
    head: str
    step: int
    created_at_us: int
    updated_at_us: int

    @property
    def sort_key(self) -> tuple[int, str]:
        """What threads are sorted by, newest first; unique to each thread."""
        return self.updated_at_us, head_ref(self.id, self.namespace)

    @property
    def cursor(self) -> str:
        """The cursor of the page behind this thread."""
        return encode_list_cursor(*self.sort_key)

    @property
    def created_at(self) -> datetime:
        """When it was first saved, in UTC."""
        return to_datetime(self.created_at_us)

    @property
    def updated_at(self) -> datetime:
        """When its head last moved, or an imported thread last changed, in UTC."""
        return to_datetime(self.updated_at_us)


class ThreadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a list shows of a thread besides its head's position.

    ``head`` is its newest checkpoint, ``None`` if that cannot be read. ``last_message`` is as it was saved.
    """

    info: ThreadInfo
    head: CheckpointRecord | None
    last_message: Any
    cost: Cost


class ThreadPage(msgspec.Struct, frozen=True, kw_only=True):
    """Threads, last changed first, and the cursor of the next page; ``None`` if there is none."""

    threads: tuple[ThreadInfo, ...]
    cursor: str | None


def thread_page(
    engine: Engine,
    space: str,
    *,
    namespace: str | None,
    prefix: str = "",
    containing: str = "",
    first: int = 100,
    cursor: str | None = None,
) -> ThreadPage:
    """Return a page of the threads of a namespace (``None``: of all), last changed first.

    ``containing`` selects ids that have this text anywhere, in any case. A page costs the same in a store of
    any size. So with ``prefix`` or ``containing``, it may be short or empty and still have a cursor.
    """
    check_text("prefix", prefix)
    check_text("containing", containing)
    if namespace is not None:
        check_text("namespace", namespace)
    query = ListQuery(list=THREADS, namespace=namespace)
    if not prefix and not containing:
        page = engine.list_refs(space, query, after=cursor, limit=first)
        return ThreadPage(threads=tuple(readable(page.refs, _info)), cursor=page.cursor)
    part = containing.casefold()

    def matches(info: ThreadInfo) -> bool:
        return info.id.startswith(prefix) and part in info.id.casefold()

    if namespace is not None and prefix:
        named = engine.scan_refs(space, heads_prefix(namespace) + prefix, limit=_MAX_SCANNED)
        if len(named) < _MAX_SCANNED:
            return _page_of(filter(matches, readable(named, _info)), first, cursor)
    found: list[ThreadInfo] = []
    scanned = 0
    while True:
        page = engine.list_refs(space, query, after=cursor, limit=_SCANNED_AT_ONCE)
        cursor = page.cursor
        scanned += len(page.refs)
        for info in readable(page.refs, _info):
            if matches(info):
                found.append(info)
                if len(found) == first:
                    return ThreadPage(threads=tuple(found), cursor=info.cursor)
        if cursor is None or scanned >= _MAX_SCANNED:
            return ThreadPage(threads=tuple(found), cursor=cursor)


def _page_of(threads: Iterable[ThreadInfo], first: int, cursor: str | None) -> ThreadPage:
    """Return a page of threads that were all read."""
    behind = None if cursor is None else decode_list_cursor(cursor)
    ordered = sorted(threads, key=lambda each: each.sort_key, reverse=True)
    rest = [each for each in ordered if behind is None or each.sort_key < behind]
    page = tuple(rest[:first])
    return ThreadPage(threads=page, cursor=page[-1].cursor if len(page) < len(rest) else None)


def each_thread(
    engine: Engine, space: str, *, namespace: str | None, prefix: str = "", containing: str = ""
) -> Iterator[ThreadInfo]:
    """Iterate over threads, last changed first, a page at a time.

    A thread that is saved meanwhile moves to the front, so it may be passed over; `all_threads` meets each.
    """
    cursor = None
    while True:
        page = thread_page(
            engine, space, namespace=namespace, prefix=prefix, containing=containing, cursor=cursor
        )
        yield from page.threads
        if page.cursor is None:
            return
        cursor = page.cursor


def all_threads(engine: Engine, space: str, *, namespace: str | None) -> Iterator[ThreadInfo]:
    """Iterate over the threads of a namespace (``None``: of all) by name, whatever is saved meanwhile."""
    refs = each_ref(engine, space, HEADS if namespace is None else heads_prefix(namespace))
    return readable(refs, _info)


def summarize(engine: Engine, space: str, threads: Sequence[ThreadInfo]) -> list[ThreadSummary]:
    """Return what a list shows of these threads: newest checkpoint, last message and cost."""
    heads = read_heads(engine, space, [each.head for each in threads])
    messages = last_messages(engine, space, heads.values())
    costs = Costs(engine, space)
    return [
        ThreadSummary(
            info=each,
            head=heads.get(each.head),
            last_message=messages.get(each.head),
            cost=costs.of_thread(each.id, namespace=each.namespace).total,
        )
        for each in threads
    ]


def thread_info(engine: Engine, space: str, thread_id: str, namespace: str) -> ThreadInfo | None:
    """Return one thread, or ``None`` if it was never saved."""
    name = head_ref(thread_id, namespace)
    ref = engine.refs(space, [name]).get(name)
    return None if ref is None else _info(ref)


def saved_threads(
    engine: Engine, space: str, threads: Iterable[tuple[str | None, str]]
) -> set[tuple[str | None, str]]:
    """Return which of these threads, as (id, namespace), were ever saved."""
    names = {head_ref(thread, namespace): (thread, namespace) for thread, namespace in threads if thread}
    return {names[name] for name in engine.refs(space, list(names))} if names else set()


def _info(ref: Ref) -> ThreadInfo:
    value = read_head(ref)
    return ThreadInfo(
        id=value.thread,
        namespace=value.namespace,
        head=value.checkpoint,
        step=value.step,
        created_at_us=value.first_us,
        updated_at_us=ref.changed_at_us if value.updated_us is None else value.updated_us,
    )


class Finder:
    """Finds threads of one namespace of a store, and checkpoints of any."""

    def __init__(self, engine: Engine, space: str, namespace: str = "", *, local_times: bool = False) -> None:
        self._engine = engine
        self._space = space
        self._namespace = namespace
        self._local_times = local_times

    def thread(self, text: str) -> ThreadInfo:
        """Return a thread by its whole id. Raise `NotFound`, with suggestions, if there is none."""
        info = self._known(text)
        if info is None:
            raise NotFound(self._no_thread(text))
        return info

    def checkpoint(self, text: str) -> CheckpointRecord:
        """Return a checkpoint by any of the ways to name it."""
        info = self._known(text)
        if info is not None:
            return self._journal(info).by_id(info.head)
        name, at, position = text.rpartition("@")
        if not at and text.startswith(PREFIX):
            return self.by_prefix(text)
        thread = self._known(name) if at else None
        if thread is None:
            raise NotFound(self._no_thread(text))
        return self.within(thread, position)

    def within(self, thread: ThreadInfo, position: str) -> CheckpointRecord:
        """Return a checkpoint by its position in a thread: ``12``, ``~1``, ``ckpt_...`` or an ISO time."""
        if position.startswith(PREFIX):
            return self.by_prefix(position)
        journal = self._journal(thread)
        line = journal.line(journal.by_id(thread.head))
        return find_position(line, position, thread.id, local_times=self._local_times)

    def by_prefix(self, prefix: str) -> CheckpointRecord:
        """Return the one checkpoint of the store whose id begins with ``prefix``."""
        return find_by_beginning(self._engine, self._space, prefix)

    def _known(self, text: str) -> ThreadInfo | None:
        return thread_info(self._engine, self._space, text, self._namespace) if text else None

    def _journal(self, thread: ThreadInfo) -> Journal:
        return Journal(self._engine, self._space, thread.namespace)

    def _no_thread(self, text: str) -> str:
        from difflib import get_close_matches

        where = f" in namespace {self._namespace!r}" if self._namespace else ""
        everywhere = list(islice(each_thread(self._engine, self._space, namespace=None), _SUGGESTED_FROM))
        elsewhere = sorted({each.namespace for each in everywhere if each.id == text})
        if elsewhere:
            names = ", ".join(repr(name) for name in elsewhere[:_SUGGESTIONS])
            return f"thread {text!r} not found{where or ' without a namespace'}; there is one in {names}"
        here = [each.id for each in everywhere if each.namespace == self._namespace]
        near = get_close_matches(text, here, n=_SUGGESTIONS, cutoff=0.5)
        containing = [name for name in here if text and text in name and name not in near]
        near += containing[: _SUGGESTIONS - len(near)]
        if near:
            return f"thread {text!r} not found{where}; did you mean {' or '.join(map(repr, near))}?"
        return f"thread {text!r} not found{where}; list threads with: treering threads"


_AT_ONCE: Final = 100
_LOOKED_BACK: Final = 1_000
"""How many checkpoints are read at most to find where a run began."""


class WaitingThreads:
    """The threads of a store that wait for a person; answers them. See `treering.approvals`."""

    def __init__(self, engine: Engine, space: str, thread: Callable[[str, str], Thread]) -> None:
        self._engine = engine
        self._space = space
        self.thread = thread

    def each(self, namespace: str | None) -> Iterator[Asked]:
        """Yield the questions of a namespace (``None``: of all), oldest first."""
        query = ListQuery(list=THREADS, namespace=namespace, status=WAITING, oldest_first=True)
        refs = each_listed(self._engine, self._space, query)
        while batch := list(islice(refs, _AT_ONCE)):
            heads = read_heads(self._engine, self._space, [read_head(ref).checkpoint for ref in batch])
            for ref in batch:
                head = heads.get(read_head(ref).checkpoint)
                if head is not None and head.pending_interrupt is not None:
                    yield Asked(
                        thread_id=head.thread,
                        namespace=head.namespace,
                        checkpoint_id=head.id,
                        pending=head.pending_interrupt,
                        asked_us=ref.changed_at_us,
                    )

    def files(self, thread_id: str, namespace: str, checkpoint_id: str) -> list[FileChange]:
        """Return what changed in the files of a thread until a checkpoint, since its run began."""
        thread = self.thread(thread_id, namespace)
        asked = thread.at(checkpoint_id)
        run = asked.metadata.get("run")
        base: Checkpoint = asked
        for each in islice(thread.history(after=asked), _LOOKED_BACK):
            if run is not None and base.metadata.get("run") != run:
                break
            if each.snapshot is not None or run is not None:
                base = each
        return thread.workspace.diff(base.snapshot, asked.snapshot)

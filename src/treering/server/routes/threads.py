"""Threads and their moments: look, save, go back, fork, decide."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, Final

import msgspec
from msgspec import UNSET

from treering.errors import InvalidInput, NotFound
from treering.server.endpoints import OK, Call, Empty, endpoint
from treering.server.thread_shapes import (
    Answer,
    Back,
    ContentQuery,
    DeleteQuery,
    DiffQuery,
    ForkLine,
    History,
    HistoryQuery,
    Lineage,
    LineageQuery,
    MomentContent,
    MomentLine,
    NewFork,
    NewMoment,
    RewindLine,
    ThreadLine,
    ThreadList,
    ThreadsQuery,
    Where,
    moment_content,
    moment_line,
    thread_line,
)
from treering.views.branches import growth
from treering.views.differences import Difference
from treering.views.directory import ThreadInfo, thread_info
from treering.views.moments import Moment
from treering.views.threads import Thread


@endpoint("GET", "/threads", tag="threads")
def list_threads(call: Call[ThreadsQuery, None]) -> ThreadList:
    """The threads, the last changed first. One that changes while its list is paged moves to the front."""
    query = call.query
    found = list(call.store.threads(namespace=query.namespace, prefix=query.prefix))
    if query.cursor is None:
        rest = found
    else:
        behind = _place(query.cursor)
        rest = [each for each in found if each.place < behind]
    page = rest[: query.limit]
    return ThreadList(
        threads=tuple(map(thread_line, page)),
        total=len(found),
        next_cursor=_cursor(page[-1]) if len(page) < len(rest) else None,
    )


@endpoint("GET", "/threads/{id}", tag="threads")
def get_thread(call: Call[ContentQuery, None]) -> MomentContent:
    """A thread as it is now: its newest moment, whole or with its last messages."""
    return moment_content(_head(_thread(call)), call.query.last)


@endpoint("GET", "/threads/{id}/history", tag="threads")
def get_history(call: Call[HistoryQuery, None]) -> History:
    """The moments that lead to the head, newest first."""
    query = call.query
    thread = _thread(call)
    _head(thread)
    found = list(
        thread.history(last=query.limit + 1, after=query.cursor, tags=query.tag, everything=query.everything)
    )
    shown = found[: query.limit]
    return History(
        moments=tuple(moment_line(each.checkpoint) for each in shown),
        next_cursor=shown[-1].id if len(found) > query.limit else None,
    )


@endpoint("GET", "/threads/{id}/lineage", tag="threads")
def get_lineage(call: Call[LineageQuery, None]) -> Lineage:
    """How a thread grew: moments, what rewinds left behind, and the threads that were forked off."""
    query = call.query
    found = growth(call.store.engine, call.store.space, _info(call), limit=query.limit, before=query.cursor)
    return Lineage(
        thread=thread_line(found.thread),
        moments=tuple(map(moment_line, found.moments)),
        line=tuple(sorted(found.line)),
        rewinds=tuple(RewindLine(at=each.at, before=each.before, to=each.to) for each in found.rewinds),
        forks=tuple(
            ForkLine(thread=each.thread, namespace=each.namespace, at=each.at, head=each.head, step=each.step)
            for each in found.forks
        ),
        origin=None if found.origin is None else moment_line(found.origin),
        next_cursor=found.older,
    )


@endpoint("GET", "/threads/{id}/checkpoints/{checkpoint}", tag="threads")
def get_checkpoint(call: Call[ContentQuery, None]) -> MomentContent:
    """One moment by its id, step, `~1` or a time: messages, state and lists."""
    return moment_content(_at(_thread(call), call.path["checkpoint"]), call.query.last)


@endpoint("GET", "/threads/{id}/diff", tag="threads")
def diff_threads(call: Call[DiffQuery, None]) -> Difference:
    """What differs between two moments: messages, state (a JSON patch) and files."""
    query = call.query
    thread = _thread(call)
    other = thread if query.other is None else call.store.thread(query.other, query.namespace)
    return thread.diff(_at(thread, query.a), _at(other, query.b))


@endpoint("POST", "/threads/{id}/checkpoints", tag="threads", status=201)
def save_checkpoint(call: Call[Where, NewMoment]) -> MomentLine:
    """Save a moment. Whoever knows an older head gets a conflict and nothing is written."""
    body = call.body
    thread = _thread(call)
    if body.expect_head is not UNSET:
        head = thread.head
        if (None if head is None else head.id) != body.expect_head:
            from treering.errors import Conflict

            raise Conflict(
                f"thread {thread.id!r} is at {None if head is None else head.id!r} by now, "
                f"not at {body.expect_head!r}; load it again"
            )
    if body.append is not None:
        if body.messages is not None or body.lists is not None or body.pending_interrupt is not None:
            raise InvalidInput("append goes with state, metadata, note and tags; for the rest, give messages")
        saved = thread.append(
            *body.append,
            state=body.state,
            metadata=body.metadata,
            note=body.note,
            tags=body.tags,
            on_conflict="retry" if body.expect_head is UNSET else "raise",
        )
    else:
        saved = thread.checkpoint(
            messages=body.messages,
            state=body.state,
            lists=body.lists,
            pending_interrupt=body.pending_interrupt,
            metadata=body.metadata,
            note=body.note,
            tags=body.tags,
        )
    return _saved(saved)


@endpoint("POST", "/threads/{id}/fork", tag="threads", status=201)
def fork_thread(call: Call[Where, NewFork]) -> ThreadLine:
    """Begin a new thread at a moment of this one; it shares the past."""
    body = call.body
    thread = _thread(call)
    at = None if body.at is None else _at(thread, body.at)
    fork = thread.fork(body.new_id, at=at, namespace=body.namespace)
    found = thread_info(call.store.engine, call.store.space, fork.id, fork.namespace)
    if found is None:
        raise NotFound(f"thread {fork.id!r} was removed as soon as it was there")
    return thread_line(found)


@endpoint("POST", "/threads/{id}/rewind", tag="threads")
def rewind_thread(call: Call[Where, Back]) -> MomentLine:
    """Move the head back to a moment; what was behind it stays in the history."""
    thread = _thread(call)
    return moment_line(thread.rewind(_at(thread, call.body.to)).checkpoint)


@endpoint("POST", "/threads/{id}/resume", tag="threads")
def resume_thread(call: Call[Where, Answer]) -> MomentLine:
    """Answer the pending interrupt: approve, deny, or edit with a value."""
    body = call.body
    return _saved(_thread(call).resume(body.decision, interrupt_id=body.interrupt_id, value=body.value))


@endpoint("DELETE", "/threads/{id}", tag="threads")
def delete_thread(call: Call[DeleteQuery, None]) -> Empty:
    """Remove a thread and its moments."""
    thread = _thread(call)
    _head(thread)
    thread.delete(cascade=call.query.cascade)
    return OK


ENDPOINTS: Final = (
    list_threads,
    get_thread,
    get_history,
    get_lineage,
    get_checkpoint,
    diff_threads,
    save_checkpoint,
    fork_thread,
    rewind_thread,
    resume_thread,
    delete_thread,
)


def _cursor(thread: ThreadInfo) -> str:
    return urlsafe_b64encode(msgspec.json.encode(thread.place)).decode()


def _place(cursor: str) -> tuple[int, str, str, str]:
    try:
        return msgspec.json.decode(urlsafe_b64decode(cursor), type=tuple[int, str, str, str])
    except ValueError:
        raise InvalidInput(
            f"not a cursor: {cursor[:80]!r}; pass the next_cursor of the page before"
        ) from None


def _thread(call: Call[Any, Any]) -> Thread:
    return call.store.thread(call.path["id"], call.query.namespace)


def _info(call: Call[Any, Any]) -> ThreadInfo:
    found = thread_info(call.store.engine, call.store.space, call.path["id"], call.query.namespace)
    if found is None:
        raise _never_saved(call.path["id"])
    return found


def _head(thread: Thread) -> Moment:
    head = thread.head
    if head is None:
        raise _never_saved(thread.id)
    return head


def _never_saved(thread_id: str) -> NotFound:
    return NotFound(f"there is no thread {thread_id!r}; GET /threads lists those that there are")


def _at(thread: Thread, which: str) -> Moment:
    _head(thread)
    return thread.at(which)


def _saved(moment: Moment | None) -> MomentLine:
    if moment is None:  # only a hook vetoes, and a server has none
        raise NotFound("nothing was saved: a hook of the store vetoed it")
    return moment_line(moment.checkpoint)

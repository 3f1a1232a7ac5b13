"""Routes for threads and their checkpoints: read, save, rewind, fork, resume, delete."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from treering.core.clock import to_iso
from treering.core.query import Unreadable
from treering.effects.effects import Effect
from treering.errors import InvalidInput, NotFound
from treering.runs.messages import ReadMessage, preview, read_message
from treering.server.endpoints import Call, endpoint
from treering.server.routes.runs import Money, money
from treering.threads.checkpoint import Checkpoint, CheckpointRecord, last_messages
from treering.threads.compaction import Compaction
from treering.threads.diff import Difference
from treering.threads.directory import ThreadInfo, summarize, thread_info
from treering.threads.removal import Cleaned
from treering.threads.search import Found
from treering.threads.thread import Actions, Thread
from treering.threads.transcripts import Role, Transcript, TranscriptEvent
from treering.threads.tree import read_tree

if TYPE_CHECKING:
    from treering.store import Store

# -----------------------------------------------------------------------------------------------------------
# What goes in and comes out of the routes of threads, and how it is made of the views' own records.


Limit = Annotated[int, Meta(ge=1, le=500)]
Which = Annotated[str, Meta(min_length=1)]
"""A checkpoint: its id, its step, ``~1`` or a time."""


class Where(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The namespace of the thread."""

    namespace: str = ""


class ViewQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the view has to fit into. ``model`` names the model whose tokenizer counts, if it is installed."""

    namespace: str = ""
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    model: str | None = None
    full: bool = False


class Uncompact(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which compactions to remove."""

    namespace: str = ""
    everything: bool = False


class NewCompaction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands for the messages before a boundary (``summary``, or ``messages``), and what it cost."""

    summary: str = ""
    messages: list[Any] | None = None
    keep_last: Annotated[int, Meta(ge=0)] | None = None
    upto: Annotated[int, Meta(ge=0)] | None = None
    model: str | None = None
    usage: dict[str, int] | None = None
    cost: str | None = None
    note: str | None = None


class CompactionLine(Struct, frozen=True, kw_only=True):
    """A compaction: its text stands for the messages from ``keeps`` to ``upto``."""

    id: str
    created_at: str
    created_at_us: int
    source: str
    text: str
    messages: list[Any]
    keeps: int
    since: int
    upto: int
    tokens_before: int | None
    tokens_after: int | None
    is_exact: bool
    model: str | None
    usage: dict[str, int]
    cost: str | None
    currency: str | None


class Compactions(Struct, frozen=True, kw_only=True):
    """The compactions of a thread, oldest first."""

    compactions: tuple[CompactionLine, ...]


class View(Struct, frozen=True, kw_only=True):
    """What a model is to be given. ``left_out`` messages behind the summary did not fit."""

    messages: list[Any]
    compaction: CompactionLine | None
    left_out: int
    tokens: int | None
    tokenizer: str | None
    is_exact: bool


class PartialLine(Struct, frozen=True, kw_only=True):
    """What a model had said when its stream broke off, or has said so far if its run is ``running``."""

    run: str
    run_status: str | None
    started_at: str
    text: str
    chunks: int


class Partial(Struct, frozen=True, kw_only=True):
    """The half-streamed reply of a thread; ``null`` if it does not end with one."""

    partial: PartialLine | None


class ThreadsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter threads by id prefix, text in the id, and namespace (default: every namespace)."""

    prefix: str = ""
    containing: str = ""
    namespace: str | None = None
    limit: Limit = 50
    cursor: str | None = None


class EverythingQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to search for, and the most hits of each kind."""

    q: Annotated[str, Meta(min_length=1, max_length=1000)]
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


class Said(Struct, frozen=True, kw_only=True):
    """The beginning of a message on one line, and who says it."""

    role: str
    text: str


class ThreadLine(Struct, frozen=True, kw_only=True):
    """A thread, as its head describes it."""

    id: str
    namespace: str
    head: str
    step: int
    created_at: str
    updated_at: str


class ThreadOverview(ThreadLine, frozen=True, kw_only=True):
    """A thread in a list; ``is_damaged`` if its newest checkpoint cannot be read."""

    message_count: int
    last_message: Said | None
    note: str | None
    tags: tuple[str, ...]
    is_pending: bool
    is_damaged: bool
    tokens: int
    cost: tuple[Money, ...]
    unpriced_tokens: int


class ThreadList(Struct, frozen=True, kw_only=True):
    """Threads, last changed first."""

    threads: tuple[ThreadOverview, ...]
    next_cursor: str | None
    unreadable: tuple[Unreadable, ...] = ()
    """Entries that are left out, because they cannot be read."""


class CheckpointSummary(Struct, frozen=True, kw_only=True):
    """A checkpoint without its content."""

    id: str
    thread: str
    namespace: str
    parent: str | None
    step: int
    created_at: str
    note: str | None
    tags: tuple[str, ...]
    metadata: dict[str, Any]
    pending_interrupt: Any
    message_count: int
    last_message: Said | None
    snapshot: str | None


class CheckpointContent(Struct, frozen=True, kw_only=True):
    """A checkpoint with its content; ``first_message`` is the index of the first message returned.

    ``compactions`` are summaries that stand for some of the messages in the view of a model. ``readable`` has
    each message as a role and parts, whatever its format, if the request asked for it.
    """

    checkpoint: CheckpointSummary
    messages: list[Any]
    readable: list[ReadMessage] | None
    first_message: int
    compactions: tuple[CompactionLine, ...]
    state: dict[str, Any]
    lists: dict[str, list[Any]]


class ContentQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of a checkpoint to return: all messages or the last ones; ``readable`` adds their parts."""

    namespace: str = ""
    last: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    readable: bool = False


class HistoryQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter checkpoints; ``everything`` includes those that a rewind left behind."""

    namespace: str = ""
    limit: Limit = 100
    cursor: Which | None = None
    tag: tuple[str, ...] = ()
    everything: bool = False


class History(Struct, frozen=True, kw_only=True):
    """Checkpoints, newest first."""

    checkpoints: tuple[CheckpointSummary, ...]
    next_cursor: str | None


class LineageQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which page of the tree of a thread."""

    namespace: str = ""
    limit: Limit = 200
    cursor: Which | None = None


class RewindLine(Struct, frozen=True, kw_only=True):
    """The head moved back."""

    at: str
    before: str | None
    to: str


class ForkLine(Struct, frozen=True, kw_only=True):
    """Another thread that began at a checkpoint of this one."""

    thread: str
    namespace: str
    at: str
    head: str
    step: int


class Lineage(Struct, frozen=True, kw_only=True):
    """The tree of a thread: its checkpoints (newest first), those that lead to the head, rewinds, forks."""

    thread: ThreadLine
    checkpoints: tuple[CheckpointSummary, ...]
    line: tuple[str, ...]
    rewinds: tuple[RewindLine, ...]
    forks: tuple[ForkLine, ...]
    origin: CheckpointSummary | None
    next_cursor: str | None


class DiffQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two checkpoints to compare; ``other`` is the thread of ``b``, if it is another one.

    With ``readable``, each message is returned as a role and parts instead of as it was saved.
    """

    a: Which
    b: Which
    namespace: str = ""
    other: str | None = None
    readable: bool = False


class NewCheckpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to save. What is left out stays as it was; ``append`` adds messages to those that are stored."""

    messages: list[Any] | None = None
    append: list[Any] | None = None
    state: dict[str, Any] | None = None
    lists: dict[str, list[Any]] | None = None
    pending_interrupt: Any = None
    metadata: dict[str, Any] = {}
    note: str | None = None
    tags: tuple[str, ...] = ()
    expect_head: str | UnsetType | None = UNSET
    """The head that you last read (null: none yet). If the head has moved since, the save is a conflict."""


class NewFork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The id of the new thread, and the checkpoint where it begins (default: the head).

    ``messages`` and ``state`` begin it with other messages or another state, each as a whole.
    """

    new_id: Annotated[str, Meta(min_length=1)]
    at: Which | None = None
    namespace: str | None = None
    messages: list[Any] | None = None
    state: dict[str, Any] | None = None
    note: str | None = None


class Back(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The checkpoint to rewind to."""

    to: Which


class Rewound(CheckpointSummary, frozen=True, kw_only=True):
    """The checkpoint that is the head now, and the tool calls since then, which are not undone."""

    effects: tuple[Effect, ...]


class Answer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The decision about the pending interrupt."""

    decision: Literal["approve", "deny", "edit"]
    interrupt_id: str | None = None
    value: Any = None
    by: str | None = None
    """Who answers, on a server without keys; otherwise the name of the key."""
    reason: str | None = None


class TranscriptQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events: a page from the oldest on, or only the ``last`` ones."""

    namespace: str = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 1000
    cursor: str | None = None
    last: Annotated[int, Meta(ge=0, le=1000)] | None = None


class TranscriptEvents(Struct, frozen=True, kw_only=True):
    """Events of a transcript as its file has them, in the order in which they were executed."""

    events: tuple[dict[str, Any], ...]
    next_cursor: str | None


class NewTranscriptEvent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent said; or, with ``error``, how it failed."""

    agent_id: Annotated[str, Meta(min_length=1)]
    iter: Annotated[int, Meta(ge=0)]
    role: Role = "agent"
    content: str | dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    actions: Actions | None = None
    latency_ms: float | None = None
    error: str | None = None


class DeleteQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to delete; ``cascade`` also deletes forks that share its past."""

    namespace: str = ""
    cascade: bool = False


def thread_line(info: ThreadInfo) -> ThreadLine:
    """Return a thread as an item of a list."""
    return ThreadLine(
        id=info.id,
        namespace=info.namespace,
        head=info.head,
        step=info.step,
        created_at=to_iso(info.created_at_us),
        updated_at=to_iso(info.updated_at_us),
    )


def overviews(store: Store, threads: Sequence[ThreadInfo]) -> tuple[ThreadOverview, ...]:
    """Return threads as items of a list, with their newest checkpoint, last message and cost."""
    return tuple(
        ThreadOverview(
            **msgspec.structs.asdict(thread_line(each.info)),
            message_count=0 if each.head is None else each.head.message_count,
            last_message=_said(each.last_message),
            note=None if each.head is None else each.head.note,
            tags=() if each.head is None else tuple(each.head.tags),
            is_pending=each.head is not None and each.head.pending_interrupt is not None,
            is_damaged=each.head is None,
            tokens=each.cost.tokens,
            cost=money(each.cost.nanos),
            unpriced_tokens=each.cost.unpriced_tokens,
        )
        for each in summarize(store.engine, store.space, threads)
    )


def _said(message: Any) -> Said | None:
    return None if message is None else Said(role=read_message(message).role, text=preview(message))


def checkpoint_lines(store: Store, checkpoints: Sequence[CheckpointRecord]) -> tuple[CheckpointSummary, ...]:
    """Return checkpoints as items of a list, each with its last message."""
    messages = last_messages(store.engine, store.space, checkpoints)
    return tuple(checkpoint_line(each, messages.get(each.id)) for each in checkpoints)


def checkpoint_line(checkpoint: CheckpointRecord, last_message: Any = None) -> CheckpointSummary:
    """Return a checkpoint without its content, given its last message."""
    return CheckpointSummary(
        id=checkpoint.id,
        thread=checkpoint.thread,
        namespace=checkpoint.namespace,
        parent=checkpoint.parent,
        step=checkpoint.step,
        created_at=to_iso(checkpoint.created_at_us),
        note=checkpoint.note,
        tags=tuple(checkpoint.tags),
        metadata=checkpoint.metadata,
        pending_interrupt=checkpoint.pending_interrupt,
        message_count=checkpoint.message_count,
        last_message=_said(last_message),
        snapshot=checkpoint.snapshot,
    )


def compaction_line(made: Compaction) -> CompactionLine:
    """Return a compaction with its summary as text."""
    fields = made.to_dict()
    return CompactionLine(**{name: fields[name] for name in CompactionLine.__struct_fields__})


def checkpoint_content(checkpoint: Checkpoint, query: ContentQuery) -> CheckpointContent:
    """Return a checkpoint with its content, as much of it as was asked for."""
    messages = checkpoint.messages if query.last is None else checkpoint.last_messages(query.last)
    return CheckpointContent(
        checkpoint=checkpoint_line(checkpoint.record, messages[-1] if messages else None),
        messages=messages,
        readable=list(map(read_message, messages)) if query.readable else None,
        first_message=checkpoint.message_count - len(messages),
        compactions=tuple(map(compaction_line, checkpoint.compactions)),
        state=checkpoint.state,
        lists={name: checkpoint.items(name) for name in checkpoint.list_names if name != "messages"},
    )


# -----------------------------------------------------------------------------------------------------------


@endpoint("GET", "/threads", tag="threads")
def list_threads(call: Call[ThreadsQuery, None]) -> ThreadList:
    """List threads, last changed first. A thread that changes between two pages moves to the front.

    A page takes the same time in a store of any size. So with ``prefix`` or ``containing`` it may be short or
    empty: continue as long as there is a cursor.
    """
    query = call.query
    page = call.store.thread_page(
        namespace=query.namespace,
        prefix=query.prefix,
        containing=query.containing,
        first=query.limit,
        cursor=query.cursor,
    )
    return ThreadList(threads=overviews(call.store, page.threads), next_cursor=page.cursor)


@endpoint("GET", "/search/everything", tag="threads")
def search_everything(call: Call[EverythingQuery, None]) -> Found:
    """Find threads, runs and memory by their words, each kind on its own, best first."""
    return call.store.search(call.query.q, limit=call.query.limit)


@endpoint("GET", "/threads/{id}", tag="threads")
def get_thread(call: Call[ContentQuery, None]) -> CheckpointContent:
    """Return the newest checkpoint of a thread, with all or only the last messages."""
    return checkpoint_content(_head(_thread(call)), call.query)


@endpoint("GET", "/threads/{id}/history", tag="threads")
def get_history(call: Call[HistoryQuery, None]) -> History:
    """List the checkpoints that lead to the head, newest first."""
    query = call.query
    thread = _thread(call)
    _head(thread)
    found = list(
        thread.history(last=query.limit + 1, after=query.cursor, tags=query.tag, everything=query.everything)
    )
    shown = found[: query.limit]
    return History(
        checkpoints=checkpoint_lines(call.store, [each.record for each in shown]),
        next_cursor=shown[-1].id if len(found) > query.limit else None,
    )


@endpoint("GET", "/threads/{id}/lineage", tag="threads")
def get_lineage(call: Call[LineageQuery, None]) -> Lineage:
    """Return the tree of a thread: checkpoints, rewinds and forks."""
    query = call.query
    found = read_tree(
        call.store.engine, call.store.space, _info(call), limit=query.limit, before=query.cursor
    )
    return Lineage(
        thread=thread_line(found.thread),
        checkpoints=checkpoint_lines(call.store, found.checkpoints),
        line=tuple(sorted(found.line)),
        rewinds=tuple(
            RewindLine(at=to_iso(each.at_us), before=each.before, to=each.to) for each in found.rewinds
        ),
        forks=tuple(
            ForkLine(thread=each.thread, namespace=each.namespace, at=each.at, head=each.head, step=each.step)
            for each in found.forks
        ),
        origin=None if found.origin is None else checkpoint_line(found.origin),
        next_cursor=found.older,
    )


@endpoint("GET", "/threads/{id}/checkpoints/{checkpoint}", tag="threads")
def get_checkpoint(call: Call[ContentQuery, None]) -> CheckpointContent:
    """Return one checkpoint by its id, step, `~1` or a time: messages, state and lists."""
    return checkpoint_content(_at(_thread(call), call.path["checkpoint"]), call.query)


@endpoint("GET", "/threads/{id}/diff", tag="threads")
def diff_threads(call: Call[DiffQuery, None]) -> Difference:
    """Compare two checkpoints: messages, state (a JSON patch) and files."""
    query = call.query
    thread = _thread(call)
    other = thread if query.other is None else call.store.thread(query.other, query.namespace)
    found = thread.diff(_at(thread, query.a), _at(other, query.b))
    return _readable(found) if query.readable else found


@endpoint("POST", "/threads/{id}/checkpoints", tag="threads", status=201)
def save_checkpoint(call: Call[Where, NewCheckpoint]) -> CheckpointSummary:
    """Save a checkpoint. If `head` is no longer the head, this is a conflict and nothing is written."""
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
    return checkpoint_line(saved.record)


@endpoint("POST", "/threads/{id}/fork", tag="threads", status=201)
def fork_thread(call: Call[Where, NewFork]) -> ThreadLine:
    """Start a new thread at a checkpoint of this one. They share their past."""
    body = call.body
    thread = _thread(call)
    at = None if body.at is None else _at(thread, body.at)
    fork = thread.fork(
        body.new_id,
        at=at,
        namespace=body.namespace,
        messages=body.messages,
        state=body.state,
        note=body.note,
    )
    found = thread_info(call.store.engine, call.store.space, fork.id, fork.namespace)
    if found is None:
        raise NotFound(f"thread {fork.id!r} was removed as soon as it was there")
    return thread_line(found)


@endpoint("POST", "/threads/{id}/rewind", tag="threads")
def rewind_thread(call: Call[Where, Back]) -> Rewound:
    """Move the head back to a checkpoint. Later checkpoints stay stored, and side effects are not undone."""
    thread = _thread(call)
    target = _at(thread, call.body.to)
    effects = tuple(thread.effects_after(target))
    line = checkpoint_line(thread.rewind(target).record)
    return Rewound(**msgspec.structs.asdict(line), effects=effects)


@endpoint("POST", "/threads/{id}/resume", tag="threads", domain="approvals")
def resume_thread(call: Call[Where, Answer]) -> CheckpointSummary:
    """Answer the pending interrupt: approve, deny, or edit with a value."""
    body = call.body
    answered = _thread(call).resume(
        body.decision,
        interrupt_id=body.interrupt_id,
        value=body.value,
        by=call.access.speaks_as(body.by),
        reason=body.reason,
    )
    return checkpoint_line(answered.record)


@endpoint("GET", "/threads/{id}/view", tag="threads")
def get_view(call: Call[ViewQuery, None]) -> View:
    """Return what a model is to be given: instructions, the summary, and the newest messages that fit."""
    query = call.query
    shown = _head(_thread(call)).compact_view(
        budget_tokens=query.budget_tokens, tokenizer=query.model, full=query.full
    )
    return View(
        messages=shown.messages,
        compaction=None if shown.compaction is None else compaction_line(shown.compaction),
        left_out=shown.left_out,
        tokens=shown.tokens,
        tokenizer=shown.tokenizer,
        is_exact=shown.is_exact,
    )


@endpoint("GET", "/threads/{id}/compactions", tag="threads")
def list_compactions(call: Call[Where, None]) -> Compactions:
    """List the compactions of a thread, oldest first; the last one is in effect."""
    return Compactions(compactions=tuple(map(compaction_line, _head(_thread(call)).compactions)))


@endpoint("POST", "/threads/{id}/compactions", tag="threads", status=201)
def compact_thread(call: Call[Where, NewCompaction]) -> CheckpointSummary:
    """Let a summary stand for all messages but the last ones in the view; nothing is removed."""
    body = call.body
    saved = _thread(call).compact(
        body.summary if body.messages is None else body.messages,
        keep_last=body.keep_last,
        upto=body.upto,
        model=body.model,
        usage=body.usage,
        cost=body.cost,
        note=body.note,
    )
    return checkpoint_line(saved.record)


@endpoint("DELETE", "/threads/{id}/compactions", tag="threads")
def uncompact_thread(call: Call[Uncompact, None]) -> CheckpointSummary:
    """Remove the newest compaction, or all: the view shows what they stood for again."""
    return checkpoint_line(_thread(call).uncompact(everything=call.query.everything).record)


@endpoint("GET", "/threads/{id}/partial", tag="threads")
def get_partial(call: Call[Where, None]) -> Partial:
    """Return the reply that a model was streaming when its process died, if the thread ends there."""
    found = _thread(call).partial()
    if found is None:
        return Partial(partial=None)
    status = None
    with suppress(NotFound):  # an agent may leave its runs unrecorded
        status = call.store.runs.load(found.run_id).status
    return Partial(
        partial=PartialLine(
            run=found.run_id,
            run_status=status,
            started_at=to_iso(found.started_at_us),
            text=found.text,
            chunks=len(found.chunks),
        )
    )


@endpoint("DELETE", "/threads/{id}/partial", tag="threads")
def discard_partial(call: Call[Where, None]) -> None:
    """Forget the half-streamed reply of a thread."""
    thread = _thread(call)
    if not thread.discard_partial():
        raise NotFound(f"thread {thread.id!r} has no half-streamed reply")


@endpoint("GET", "/threads/{id}/transcript", tag="threads")
def get_transcript(call: Call[TranscriptQuery, None]) -> TranscriptEvents:
    """Return what agents said in a thread, oldest first; empty for a thread without a transcript."""
    query = call.query
    transcript = _transcript(call)
    if query.last is not None:
        if query.cursor is not None:
            raise InvalidInput("last= goes without cursor=; pages start at the oldest event")
        return _transcript_events(transcript.read(last=query.last), None)
    page = transcript.page(first=query.limit, cursor=query.cursor)
    return _transcript_events(page.events, page.cursor)


@endpoint("POST", "/threads/{id}/transcript", tag="threads", status=201)
def append_to_transcript(call: Call[Where, NewTranscriptEvent]) -> dict[str, Any]:
    """Add an event to the transcript of a thread. It is durable when this returns."""
    body = call.body
    transcript = _transcript(call)
    if body.error is not None:
        if any(each is not None for each in (body.content, body.metadata, body.actions, body.latency_ms)):
            raise InvalidInput("an event with an error has agent_id, iter and role besides, and nothing else")
        return transcript.append_error(body.agent_id, body.error, iter=body.iter, role=body.role).to_dict()
    return transcript.append(
        body.agent_id,
        body.content,
        iter=body.iter,
        role=body.role,
        metadata=body.metadata,
        actions=body.actions,
        latency_ms=body.latency_ms,
    ).to_dict()


@endpoint("DELETE", "/threads/{id}", tag="threads", domain="maintenance")
def delete_thread(call: Call[DeleteQuery, None]) -> Cleaned:
    """Delete a thread: checkpoints, transcript, and its lines in files on this server."""
    thread = _thread(call)
    _head(thread)
    return thread.delete(cascade=call.query.cascade)


ENDPOINTS: Final = (
    search_everything,
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
    get_view,
    list_compactions,
    compact_thread,
    uncompact_thread,
    get_partial,
    discard_partial,
    get_transcript,
    append_to_transcript,
    delete_thread,
)


def _readable(found: Difference) -> Difference:
    return msgspec.structs.replace(
        found,
        added=[(index, read_message(message)) for index, message in found.added],
        removed=[(index, read_message(message)) for index, message in found.removed],
        changed=[
            msgspec.structs.replace(each, before=read_message(each.before), after=read_message(each.after))
            for each in found.changed
        ],
    )


def _thread(call: Call[Any, Any]) -> Thread:
    return call.store.thread(call.path["id"], call.query.namespace)


def _transcript(call: Call[Any, Any]) -> Transcript:
    return call.store.transcript(call.path["id"], call.query.namespace)


def _transcript_events(events: Sequence[TranscriptEvent], cursor: str | None) -> TranscriptEvents:
    return TranscriptEvents(events=tuple(each.to_dict() for each in events), next_cursor=cursor)


def _info(call: Call[Any, Any]) -> ThreadInfo:
    found = thread_info(call.store.engine, call.store.space, call.path["id"], call.query.namespace)
    if found is None:
        raise _never_saved(call.path["id"])
    return found


def _head(thread: Thread) -> Checkpoint:
    head = thread.head
    if head is None:
        raise _never_saved(thread.id)
    return head


def _never_saved(thread_id: str) -> NotFound:
    return NotFound(f"thread {thread_id!r} not found. List threads with GET /threads or: treering threads")


def _at(thread: Thread, which: str) -> Checkpoint:
    _head(thread)
    return thread.at(which)

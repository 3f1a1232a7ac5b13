"""Commands for threads: threads, log, show, diff, fork, rewind, resume, transcript, delete.

A checkpoint is named by a checkpoint's id or the beginning of it, by a thread (its head), or by
``thread@place`` (see `treering.threads.directory`). Each command prints what the API gives back, as text or
as JSON.
"""

from __future__ import annotations

import getpass
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from treering.cli.console import (
    as_json,
    clean,
    counted,
    dim,
    gist,
    is_terminal,
    limited,
    lines_of,
    money,
    one_line,
    pasteable,
    plain,
    raw,
    rows,
    said,
    say,
    show,
    speaker,
    summary,
    warn_of_secrets,
    when,
    words,
)
from treering.cli.console import as_json as json_text
from treering.cli.options import JsonOption, LimitOption, StorePlace, UserNamespaceOption, takes_store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.text import Text
    from rich.tree import Tree

    from treering.store import Store
    from treering.threads.checkpoint import Checkpoint, CheckpointRecord
    from treering.threads.diff import Difference
    from treering.threads.directory import Finder, ThreadInfo, ThreadSummary
    from treering.threads.partial import PartialReply
    from treering.threads.thread import Thread
    from treering.threads.transcripts import TranscriptEvent
    from treering.threads.tree import ThreadTree


# -----------------------------------------------------------------------------------------------------------
# How a checkpoint, and the difference between two, read on a terminal.

_MOST_LINES: Final = 40
"""Of a message on a terminal."""


def checkpoint_lines(
    checkpoint: Checkpoint, messages: list[Any], state: dict[str, Any], *, most: int | None = None
) -> Iterator[str]:
    """A checkpoint, its messages (at most so many lines of each) and its state."""
    record = checkpoint.record
    # Names that begin with _ are a framework's own bookkeeping; --json has them too.
    metadata = {name: value for name, value in record.metadata.items() if not name.startswith("_")}
    whose = f" of {clean(checkpoint.namespace)}" if record.namespace else ""
    yield typer.style(f"{clean(checkpoint.thread_id)}{whose}, step {checkpoint.step}", bold=True)
    facts = {
        "checkpoint": record.id,
        "parent": record.parent or "",
        "saved": when(record.created_at),
        "note": record.note or "",
        "tags": ", ".join(record.tags),
        "files": (record.snapshot or "").removeprefix("o:"),
        "metadata": json_text(metadata) if metadata else "",
        "waits for": _waits_for(record.pending_interrupt) if record.pending_interrupt is not None else "",
    }
    yield from (f"  {name:<10}  {clean(fact)}" for name, fact in facts.items() if fact)
    for name, prefix in record.lists.items():
        if name != "messages":
            yield f"  {clean(name):<10}  {counted(prefix.length, 'items')}"
    count = record.message_count
    yield typer.style(f"messages ({count})", bold=True)
    if count > len(messages):
        yield f"  ... {count - len(messages)} earlier ones (--limit 0 shows all)"
    for index, message in enumerate(messages, count - len(messages)):
        yield from _said("", index, message, most)
    if state:
        yield typer.style("state", bold=True)
        yield from (f"  {clean(name)} = {clean(json_text(value))}" for name, value in state.items())


def difference_lines(changes: Difference) -> Iterator[str]:
    """The differences between two checkpoints."""
    from treering.core.ids import short_ids

    short = short_ids((changes.before, changes.after))
    common = f"{counted(changes.common, 'messages')} in common"
    yield f"{short[changes.before]} -> {short[changes.after]}, {common}"
    for index, message in changes.removed:
        yield from _coloured("red", _said("-", index, message))
    for each in changes.changed:
        yield from _coloured("red", _said("-", each.index, each.before))
        yield from _coloured("green", _said("+", each.index, each.after))
    for index, message in changes.added:
        yield from _coloured("green", _said("+", index, message))
    yield from _patched("state", changes.state)
    for name, patch in changes.lists.items():
        yield from _patched(f"list {name}", patch)
    if changes.is_empty:
        yield "nothing differs"


def _patched(what: str, patch: Sequence[dict[str, Any]]) -> Iterator[str]:
    for change in patch:
        is_removal = change["op"] == "remove"
        value = "" if is_removal else f" = {json_text(change['value'])}"
        sign = {"add": "+", "remove": "-", "replace": "~"}[change["op"]]
        colour = "red" if is_removal else "green"
        yield typer.style(clean(f"{sign} {what} {change['path']}{value}"), fg=colour)


def _said(sign: str, index: int, message: Any, most: int | None = None) -> Iterator[str]:
    first, *rest = lines_of(message, most)
    lead = f"{sign:<2}{index:>3} {speaker(message):<10} "
    yield (lead + first).rstrip()
    yield from (" " * len(lead) + line for line in rest)


def _coloured(colour: str, lines: Iterator[str]) -> Iterator[str]:
    return (typer.style(line, fg=colour) for line in lines)


# -----------------------------------------------------------------------------------------------------------

ThreadArgument = Annotated[str, typer.Argument(metavar="THREAD", help="The id of a thread.")]
_CHECKPOINT: Final = "A checkpoint (or its beginning), a thread, or thread@12, thread@~1, thread@TIME."
_LEFT_SHOWN: Final = 10
_UNREAD: Final = frozenset({"seq", "ts_us", "committed_at_us", "body"})
_DAMAGED: Final = 5


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (
        threads, log, show_any, diff, fork, rewind, compact, partial, resume, transcript, delete,
    ):  # fmt: skip
        app.command("show" if command is show_any else None)(command)


@takes_store
def threads(
    *,
    place: StorePlace,
    user_namespace: Annotated[
        str | None, typer.Option(metavar="USER", help="Show only the threads of this namespace [all].")
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Show only ids with this prefix.")] = "",
    containing: Annotated[
        str, typer.Option("--containing", "-c", metavar="TEXT", help="Show only ids that contain this text.")
    ] = "",
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List threads, newest first, with what was said last.

    Examples:
        treering threads
        treering threads --containing refund
        treering threads --user-namespace alice --json
    """
    from treering.runs.cost import format_cost
    from treering.threads.directory import summarize

    with place.existing() as opened:
        found = opened.threads(namespace=user_namespace, prefix=prefix, containing=containing)
        shown = limited(found, limit)
        summaries = summarize(opened.engine, opened.space, shown)
    listed: list[dict[str, Any]] = []
    table = [["THREAD", "NAMESPACE", "STEP", "MESSAGES", "COST", "UPDATED", "LAST MESSAGE"]]
    for each in summaries:
        info, head = each.info, each.head
        listed.append(
            {
                **_line(info),
                "message_count": 0 if head is None else head.message_count,
                "last_message": gist(each.last_message),
                "note": None if head is None else head.note,
                "tags": [] if head is None else list(head.tags),
                "is_pending": head is not None and head.pending_interrupt is not None,
                "is_damaged": head is None,
                "tokens": each.cost.tokens,
                "cost": money(each.cost.nanos),
                "unpriced_tokens": each.cost.unpriced_tokens,
            }
        )
        count = "?" if head is None else f"{head.message_count}"
        cost = format_cost(each.cost) if each.cost.tokens or each.cost.nanos else ""
        row = [info.id, info.namespace, f"{info.step}", count, cost, when(info.updated_at)]
        table.append([*map(clean, row), _newest(each)])
    is_filtered = bool(prefix or containing)
    lines = rows(table) if listed else ["no matching threads" if is_filtered else "no threads yet"]
    show(listed, lines, as_json=as_json)
    damaged = sum(each.head is None for each in summaries)
    if damaged:
        say(
            f"{counted(damaged, 'threads')} cannot be read; run `treering verify`, then restore from a backup"
        )
        raise typer.Exit(_DAMAGED)


def _line(thread: ThreadInfo) -> dict[str, Any]:
    """Return what the head of a thread says about it, for JSON."""
    return {
        "id": thread.id,
        "namespace": thread.namespace,
        "head": thread.head,
        "step": thread.step,
        "created_at": thread.created_at.isoformat(),
        "updated_at": thread.updated_at.isoformat(),
    }


def _newest(thread: ThreadSummary) -> str:
    """Return the last column of a thread: what it waits for, or what was said last."""
    if thread.head is None:
        return "damaged"
    if thread.head.pending_interrupt is not None:
        return f"pending approval: {_asked(thread.head.pending_interrupt)}"
    if thread.last_message is not None:
        return said(thread.last_message)
    return one_line(clean(thread.head.note or ""))


@takes_store
def log(
    thread: ThreadArgument,
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    limit: LimitOption = 50,
    before: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="Show only checkpoints older than this one.")
    ] = None,
    forks: Annotated[bool, typer.Option("--forks/--no-forks", help="Show forks.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Show the checkpoints of a thread, with rewinds and forks.

    Examples:
        treering log support/alice
        treering log support/alice --limit 10 --no-forks
    """
    from treering.threads.checkpoint import last_messages
    from treering.threads.tree import read_tree

    with place.existing() as opened:
        finder = _finder(opened, user_namespace)
        grown = read_tree(
            opened.engine,
            opened.space,
            finder.thread(thread),
            limit=limit or None,
            before=None if before is None else finder.by_prefix(before).id,
            with_forks=forks,
        )
        if not as_json:
            draw(opened, grown)
            return
        messages = last_messages(opened.engine, opened.space, grown.checkpoints)
    what = {
        "thread": _line(grown.thread),
        "checkpoints": [summary(each, messages.get(each.id)) for each in grown.checkpoints],
        "line": sorted(grown.line),
        "rewinds": [
            {"at": each.at.isoformat(), "before": each.before, "to": each.to} for each in grown.rewinds
        ],
        "forks": grown.forks,
        "origin": None if grown.origin is None else summary(grown.origin),
        "next_cursor": grown.older,
    }
    show(what, (), as_json=True)


@takes_store
def show_any(
    id: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help=f"{_CHECKPOINT} Or any other id that is listed.")
    ],
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="Show the last N messages; 0 for all.")
    ] = 20,
    full: Annotated[
        bool, typer.Option("--full", help="Show long messages whole, on a terminal too.", show_default=False)
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a checkpoint, or the run, span or snapshot of an id.

    Examples:
        treering show support/alice
        treering show support/alice@~1
        treering show ckpt_01k9xyabcdefgh --json
    """
    with place.existing() as opened:
        other = _other(opened, id, user_namespace)
        if other is not None:
            facts = ((name, words(value)) for name, value in other.facts.items())
            lines = [f"{name:<10}  {fact}" for name, fact in facts if fact not in ("", "null", "[]", "{}")]
            show(raw(other.value), lines, as_json=as_json)
            return
        found = _checkpoint(opened, _finder(opened, user_namespace), id)
        record = found.record
        own = opened.thread(record.thread, record.namespace)
        head, begun = own.head, own.partial()
        begun = begun if head is not None and head.id == record.id else None
        messages = found.last_messages(limit) if limit else found.messages
        state = found.state
        lists = {name: raw(found.items(name)) for name in found.list_names if name != "messages"}
    what = {
        "checkpoint": summary(record, messages[-1] if messages else None),
        "messages": raw(messages),
        "first_message": record.message_count - len(messages),
        "state": raw(state),
        "lists": lists,
        "partial": None if begun is None else _partial(begun),
    }
    most = _MOST_LINES if is_terminal() and not full else None
    lines = chain(checkpoint_lines(found, messages, state, most=most), _partial_lines(record.thread, begun))
    show(what, lines, as_json=as_json)


class _Other(NamedTuple):
    """What an id names besides threads and their checkpoints: for programs, and for people."""

    value: dict[str, Any]
    facts: dict[str, Any]


def _other(opened: Store, text: str, user_namespace: str) -> _Other | None:
    """Return what an id names if that is neither a thread nor a checkpoint of one."""
    from treering.cli.runs import run_values, seconds
    from treering.cli.workspaces import snapshot_by_name
    from treering.core.ids import only_match, short_id
    from treering.core.query import records_by_id
    from treering.runs.cost import format_cost
    from treering.runs.follow import live_event
    from treering.runs.run import RUN, find_run
    from treering.threads.checkpoint import KIND
    from treering.threads.directory import thread_info

    if thread_info(opened.engine, opened.space, text, user_namespace) is not None:
        return None
    rows = {row.event.id: row for row in records_by_id(opened.engine, opened.space, text)}
    # A span may have two rows, and so has a run; that of the end is the one without a suffix.
    whole = {name: row for name, row in rows.items() if name.partition(":")[0] not in rows.keys() - {name}}
    match = only_match(whole, text, "id")
    row = None if match is None else whole[match]
    if row is not None and row.event.kind == KIND:
        return None
    if row is not None and row.event.kind != RUN:
        event = plain(live_event(row))
        content = None if row.event.body is None else opened.timeline.content(row.event.body)[0]
        shown = {name: value for name, value in event.items() if name not in _UNREAD}
        time = {"time": when(row.event.ts_us)}
        return _Other(event | {"content": content}, time | shown | {"content": content})
    if text and find_run(opened.engine, opened.space, text) is not None:
        info = opened.runs.load(text)
        cost = opened.cost.of_run(info.id).total
        facts = {
            "run": info.id,
            "agent": info.agent,
            "status": info.status,
            "started": when(info.started_at),
            "took": seconds(info.duration_us),
            "tokens": f"{cost.tokens:,}",
            "cost": format_cost(cost),
            "thread": info.thread,
            "tags": ", ".join(info.tags),
            "meta": info.meta,
            "timeline": f"treering timeline {short_id(info.id)}",
        }
        begun = None if info.thread is None else opened.thread(info.thread, info.namespace).partial()
        if begun is not None and begun.run_id == info.id:
            facts["partial"] = f"a half-streamed reply; see it with: treering partial {info.thread}"
        (value,) = run_values(opened, opened.runs, [info])
        return _Other(value, facts)
    root = None if "@" in text else snapshot_by_name(opened, text)
    if root is None:
        return None
    files = [each.path for each in opened.workspace.ls(root)]
    facts = {"snapshot": root, "files": "\n            ".join(files)}
    return _Other({"id": root, "files": files}, facts)


@takes_store
def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help=_CHECKPOINT)],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="The other one.")],
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Compare two checkpoints or two snapshots.

    With --json the state and each list are a JSON patch (RFC 6902).

    Examples:
        treering diff support/alice@3 support/alice
        treering diff support/alice support/alice-bolder
    """
    from treering.cli.workspaces import file_lines, find_snapshot, snapshot_by_name
    from treering.threads.diff import difference

    with place.existing() as opened:
        if any(snapshot_by_name(opened, each) is not None for each in (before, after)):
            roots = [find_snapshot(opened, each, user_namespace) for each in (before, after)]
            changes = opened.workspace.diff(*roots)
            show(changes, file_lines(changes), as_json=as_json)
            return
        finder = _finder(opened, user_namespace)
        old, new = _checkpoint(opened, finder, before), _checkpoint(opened, finder, after)
        changes = difference(old, new, files=opened.workspace.diff(old.snapshot, new.snapshot))
    what = {
        "before": changes.before,
        "after": changes.after,
        "common": changes.common,
        "added": [[index, raw(message)] for index, message in changes.added],
        "removed": [[index, raw(message)] for index, message in changes.removed],
        "changed": [
            {"index": each.index, "before": raw(each.before), "after": raw(each.after)}
            for each in changes.changed
        ],
        "state": raw(changes.state),
        "lists": {name: raw(patch) for name, patch in changes.lists.items()},
        "files": changes.files,
    }
    show(what, [*difference_lines(changes), *file_lines(changes.files)], as_json=as_json)


@takes_store
def fork(
    thread: ThreadArgument,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The id of the new thread.")],
    *,
    at: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Where: a step, ~1, a checkpoint or a time [the head]."),
    ] = None,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Start a new thread at a checkpoint of another.

    Examples:
        treering fork support/alice support/alice-bolder
        treering fork support/alice retry --at 12
    """
    with place.existing() as opened:
        finder = _finder(opened, user_namespace)
        origin = finder.thread(thread)
        where = None if at is None else finder.within(origin, at).id
        forked = opened.thread(origin.id, origin.namespace or None).fork(new, at=where)
        head = _head(forked)
    line = f"{clean(new)} starts at step {head.step} of {clean(thread)} ({head.short_id})"
    show(summary(head.record), [line], as_json=as_json)


@takes_store
def partial(
    thread: ThreadArgument,
    *,
    discard: Annotated[
        bool, typer.Option("--discard", help="Discard it: the model is asked again.", show_default=False)
    ] = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show what a model had said when its stream broke off.

    The agent continues the reply with generate(partial="continue"); without it, the model is asked again.

    Examples:
        treering partial support/alice
        treering partial support/alice --discard
    """
    from treering.errors import NotFound

    with place.existing() as opened:
        own = opened.thread(thread, user_namespace or None)
        found = own.partial()
        if found is None:
            raise NotFound(
                f"thread {thread!r} does not end with a half-streamed reply. List threads with: "
                "treering threads"
            )
        if discard:
            own.discard_partial()
    lines = ["discarded:"] if discard else []
    show(_partial(found), [*lines, *_partial_lines(thread, found)], as_json=as_json)


def _partial(found: PartialReply) -> dict[str, Any]:
    return {
        "run": found.run_id,
        "started_at": found.started_at,
        "after": found.after,
        "unsaved": raw(found.unsaved),
        "text": found.text,
        "chunks": len(found.chunks),
    }


def _partial_lines(thread: str, found: PartialReply | None) -> Iterator[str]:
    if found is None:
        return
    yield typer.style(f"half-streamed reply (run {clean(found.run_id)}, {when(found.started_at)})", bold=True)
    for index, message in enumerate(found.unsaved, found.after):
        yield from _said("", index, message)
    yield from _said("", found.after + len(found.unsaved), {"role": "assistant", "content": found.text})
    yield dim(f'continue it with generate(thread_id="{clean(thread)}", partial="continue")')


@takes_store
def compact(
    thread: ThreadArgument,
    *,
    summary: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What stands for the messages; - reads it from stdin."),
    ] = None,
    keep_last: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Messages to keep after it [20].")
    ] = None,
    upto: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Or: the messages that it stands for.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="The model that made it.")] = None,
    cost: Annotated[str | None, typer.Option(metavar="USD", help="What it cost to make.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Remove the newest compaction instead.")] = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let a summary stand for the first messages of a thread.

    Nothing is removed: only what a model is given becomes shorter. Without --summary, list the compactions.

    Examples:
        treering compact support/alice
        treering compact support/alice --summary "Wants a refund for 4711." --keep-last 20
        treering compact support/alice --undo
    """
    if undo and summary is not None:
        raise typer.BadParameter("--undo removes a compaction, --summary makes one; use one of them")
    with place.existing() as opened:
        info = _finder(opened, user_namespace).thread(thread)
        own = opened.thread(info.id, info.namespace or None)
        if undo:
            own.uncompact()
        elif summary is not None:
            text = sys.stdin.read() if summary == "-" else summary
            keep = 20 if keep_last is None and upto is None else keep_last
            own.compact(text, keep_last=keep, upto=upto, model=model, cost=cost)
        made = _head(own).compactions
    table = [("MESSAGES", "TOKENS", "NOW", "COST", "MODEL", "SUMMARY")]
    table += [
        (
            f"{each.keeps}-{each.upto}",
            str(each.tokens_before or ""),
            str(each.tokens_after or ""),
            "" if each.cost is None else f"{each.cost.normalize():f} {each.currency}",
            clean(each.model or ""),
            one_line(each.text, 60),
        )
        for each in made
    ]
    show([each.to_dict() for each in made], rows(table) if made else ["no compactions"], as_json=as_json)


@takes_store
def rewind(
    thread: ThreadArgument,
    to: Annotated[str, typer.Argument(metavar="PLACE", help="Where to: a step, ~1, a checkpoint or a time.")],
    *,
    files: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also restore its files into this folder."),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="With --files: delete files that it does not have.")
    ] = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Move the head of a thread back. Later checkpoints stay stored.

    Examples:
        treering rewind support/alice ~1
        treering rewind support/alice 12 --files . --delete
    """
    import logging

    from treering.core.ids import short_ids
    from treering.threads.tree import left_behind

    logging.getLogger("treering.threads").setLevel(logging.ERROR)  # what a rewind warns of is printed here
    with place.existing() as opened:
        finder = _finder(opened, user_namespace)
        info = finder.thread(thread)
        target = finder.within(info, to)
        own = opened.thread(info.id, info.namespace or None)
        before = _head(own)
        left = left_behind(opened.engine, opened.space, before.record, target)
        effects = own.effects_after(target.id)
        # Files first: if they cannot be brought back, the conversation has not moved either.
        restored = None if files is None else own.at(target.id).restore(files, delete=delete)
        head = own.rewind(target.id)
    what = {
        "thread": info.id,
        "from": before.id,
        "to": target.id,
        "head": head.id,
        "step": target.step,
        "left_behind": [summary(each) for each in left],
        "effects": [{"id": each.id, "tool": each.tool, "status": each.status} for each in effects],
        **({} if restored is None else {"files": restored}),
    }
    short = short_ids(each.id for each in [before.record, *left])
    abandoned = "1 checkpoint" if len(left) == 1 else f"{counted(len(left), 'checkpoints')}"
    lines = [f"{clean(info.id)}: step {before.step} -> {target.step}, {abandoned} abandoned"]
    lines += [
        f"  {each.step:>3}  {short[each.id]}  {one_line(clean(each.note or ''))}".rstrip()
        for each in left[:_LEFT_SHOWN]
    ]
    lines += [f"  ... and {len(left) - _LEFT_SHOWN} more"] if len(left) > _LEFT_SHOWN else []
    lines += [f"to undo: {pasteable('rewind', info, short[before.id])}"] if left else []
    lines += [f"not undone: {clean(each.tool)} ({each.id}, {each.status})" for each in effects]
    if restored is not None and files is not None:
        from treering.cli.workspaces import restored_lines

        lines += restored_lines(restored, files)
    show(what, lines, as_json=as_json)


@takes_store
def resume(
    thread: ThreadArgument,
    decision: Annotated[str, typer.Argument(metavar="DECISION", help="approve, deny or edit.")],
    *,
    value: Annotated[
        str | None, typer.Option(metavar="JSON", help="With edit: the new value, or - for stdin.")
    ] = None,
    interrupt: Annotated[
        str | None, typer.Option(metavar="ID", help="Fail unless this is the pending interrupt.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who answers [the user of this machine].")
    ] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why.")] = None,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Answer the pending interrupt of a thread.

    Examples:
        treering resume support/alice approve
        treering resume support/alice edit --value '{"amount": 20}'
    """
    given = None if value is None else _value(sys.stdin.read() if value == "-" else value)
    with place.existing() as opened:
        info = _finder(opened, user_namespace).thread(thread)
        own = opened.thread(info.id, info.namespace or None)
        own.resume(
            decision,  # pyright: ignore[reportArgumentType] - it checks
            interrupt_id=interrupt,
            value=given,
            by=by or getpass.getuser(),
            reason=reason,
        )
        head = _head(own)
    if head.pending_interrupt is not None:
        show(summary(head.record), [f"{clean(thread)}: voted; others have to agree"], as_json=as_json)
        return
    line = f"{clean(thread)}: {decision}, saved as step {head.step} ({head.short_id}); its agent can go on"
    show(summary(head.record), [line], as_json=as_json)


@takes_store
def transcript(
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The id of a thread.")],
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, help="Show the last N events; 0 for all.")
    ] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write all as JSON Lines instead.")
    ] = None,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show what agents said in a thread.

    With --json, print one line per event, as the file of a transcript has it.

    Examples:
        treering transcript debate --limit 20
        treering transcript debate --output debate.jsonl
    """
    from treering.errors import InvalidInput
    from treering.secret_scan import scan_file

    if limit and output is not None:
        raise InvalidInput("--output writes the whole transcript; leave out --limit")
    with place.existing() as opened:
        found = opened.transcript(thread, user_namespace)
        if output is not None:
            count = found.export(output)
            warn_of_secrets(list(scan_file(output)))
            show(
                {"events": count, "file": str(output)},
                [f"{counted(count, 'events')} in {output}"],
                as_json=as_json,
            )
            return
        events = found.read(last=limit or None)
    if not events and not as_json:
        say("no events")
    for event in events:
        typer.echo(json_text(event.to_dict()) if as_json else _transcript_line(event))


def _transcript_line(event: TranscriptEvent) -> str:
    said = event.content if isinstance(event.content, str) else json_text(event.content)
    what = typer.style(clean(event.error), fg="red") if event.error is not None else one_line(clean(said))
    action = "" if event.actions is None else f"  {event.actions.type}"
    who = clean(event.agent_id if event.role == "agent" else f"{event.agent_id} ({event.role})")
    return f"{when(round(event.t * 1e6))}  {event.iter:>3}  {who:<20}  {what}{action}"


@takes_store
def delete(
    thread: ThreadArgument,
    *,
    cascade: Annotated[
        bool, typer.Option("--cascade", help="Also delete forks that share its past.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Delete a thread, with its transcript and its lines in files.

    Examples:
        treering delete support/alice-bolder
        treering delete support/alice --cascade --yes
    """
    with place.existing() as opened:
        info = _finder(opened, user_namespace).thread(thread)
        if sys.stdin.isatty() and not yes:
            typer.confirm(
                f"Delete {clean(info.id)} ({counted(info.step + 1, 'steps')})?", abort=True, err=True
            )
        deleted = opened.thread(info.id, info.namespace or None).delete(cascade=cascade)
    lines = [
        f"deleted {clean(info.id)}",
        *(f"  kept {clean(name)}: {why}" for name, why in deleted.kept.items()),
    ]
    result = {"deleted": info.id, "namespace": info.namespace, "kept": deleted.kept}
    show(result, lines, as_json=as_json)


def _finder(opened: Store, user_namespace: str) -> Finder:
    from treering.threads.directory import Finder

    return Finder(opened.engine, opened.space, user_namespace, local_times=True)


def _checkpoint(opened: Store, finder: Finder, text: str) -> Checkpoint:
    found = finder.checkpoint(text)
    return opened.thread(found.thread, found.namespace or None).at(found.id)


def _head(thread: Thread) -> Checkpoint:
    from treering.errors import NotFound

    head = thread.head
    if head is None:
        raise NotFound(f"thread {thread.id!r} was deleted while it was read")
    return head


def _value(text: str) -> Any:
    import msgspec

    from treering.errors import InvalidInput

    try:
        value = msgspec.json.decode(text.encode())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"--value is not JSON ({error}); put quotes around a text: '\"like this\"'"
        ) from None
    if value is None:
        raise InvalidInput("--value null is no value; use deny to refuse")
    return value


# -----------------------------------------------------------------------------------------------------------
# The tree that ``treering log`` draws.
#
# Oldest checkpoint at the top. The line to the head runs down the left; what a rewind left behind and the
# threads that were forked off hang below the checkpoint where they began.


_PIPE_WIDTH: Final = 10_000
"""A reader of a pipe gets whole lines."""


def draw(store: Store, growth: ThreadTree) -> None:
    """Print the tree."""
    from rich.console import Console

    console = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(_Drawing(store, growth).tree())


class _Drawing:
    def __init__(self, store: Store, growth: ThreadTree) -> None:
        from treering.core.ids import short_ids
        from treering.threads.checkpoint import last_messages

        self._growth = growth
        self._short = short_ids(each.id for each in growth.checkpoints)
        self._last = last_messages(store.engine, store.space, growth.checkpoints)
        self._children: dict[str | None, list[CheckpointRecord]] = {}
        for each in reversed(growth.checkpoints):
            parent = each.parent if each.parent in self._short else None
            self._children.setdefault(parent, []).append(each)

    def tree(self) -> Tree:
        from rich.text import Text
        from rich.tree import Tree

        growth = self._growth
        tree = Tree(_title(growth))
        if growth.older is not None:
            more = f"… older checkpoints: {pasteable('log', growth.thread, '--before', growth.older)}"
            tree.add(Text(more, style="dim"))
        roots = self._children.get(None, [])
        waiting: list[tuple[Tree, CheckpointRecord]] = []
        for each in roots:  # a fork that was rewound to before its beginning has several
            is_left = len(roots) > 1 and each.id not in growth.line
            waiting.append((tree.add(Text("abandoned", style="dim")) if is_left else tree, each))
        waiting.reverse()
        while waiting:
            self._grow(*waiting.pop(), waiting)
        return tree

    def _grow(
        self, trunk: Tree, first: CheckpointRecord, waiting: list[tuple[Tree, CheckpointRecord]]
    ) -> None:
        """Print one branch from its first checkpoint to its last; side branches follow later."""
        from rich.text import Text

        checkpoint: CheckpointRecord | None = first
        while checkpoint is not None:
            node = trunk.add(self._label(checkpoint))
            for fork in self._growth.forks:
                if fork.at == checkpoint.id:
                    name = f"{fork.namespace}: {fork.thread}" if fork.namespace else fork.thread
                    node.add(Text(clean(f"fork {name}, now at step {fork.step}"), style="cyan"))
            children = self._children.get(checkpoint.id, [])
            straight = self._straight(checkpoint, children)
            why = self._why(checkpoint)
            waiting += [
                (node.add(Text(why, style="dim")), child) for child in children if child is not straight
            ]
            checkpoint = straight

    def _straight(
        self, checkpoint: CheckpointRecord, children: list[CheckpointRecord]
    ) -> CheckpointRecord | None:
        """Return the child that continues the branch: the one that leads to the head, else the newest."""
        for child in children:
            if child.id in self._growth.line:
                return child
        if checkpoint.id in self._growth.line:
            return None
        return children[-1] if children else None

    def _why(self, checkpoint: CheckpointRecord) -> str:
        times = [each.at for each in self._growth.rewinds if each.to == checkpoint.id]
        return f"abandoned by the rewind of {when(times[-1])}" if times else "abandoned"

    def _label(self, checkpoint: CheckpointRecord) -> Text:
        from rich.text import Text

        is_head = checkpoint.id == self._growth.thread.head
        is_left = checkpoint.id not in self._growth.line
        label = Text(style="dim" if is_left else "")
        label.append(f"{checkpoint.step:>3}  ", style="bold")
        label.append(self._short[checkpoint.id], style="yellow")
        label.append(f"  {when(checkpoint.created_at)}  ")
        label.append(
            clean(" ".join(checkpoint.note.split())) if checkpoint.note else self._preview(checkpoint)
        )
        for tag in checkpoint.tags:
            label.append(f" [{clean(tag)}]", style="magenta")
        if checkpoint.pending_interrupt is not None:
            asked = _asked(checkpoint.pending_interrupt)
            label.append(
                f"  pending approval: {asked}" if is_head else f"  approval requested: {asked}", style="red"
            )
        if is_head:
            label.append("  ← head", style="bold green")
        return label

    def _preview(self, checkpoint: CheckpointRecord) -> str:
        last = self._last.get(checkpoint.id)
        if last is not None:
            return said(last)
        return "a message that cannot be read" if checkpoint.message_count else "no messages"


def _title(growth: ThreadTree) -> Text:
    from rich.text import Text

    thread = growth.thread
    title = Text(clean(thread.id), style="bold")
    if thread.namespace:
        title.append(f" of {clean(thread.namespace)}")
    if growth.origin is not None:
        title.append(f"  forked from {clean(growth.origin.thread)}@{growth.origin.step}", style="cyan")
    return title


def _waits_for(pending: Any) -> str:
    from treering.approvals.questions import interrupt_id

    named = interrupt_id(pending)
    return _asked(pending) if named is None else f"{_asked(pending)} (interrupt {named})"


def _asked(pending: Any) -> str:
    """Return what a pending interrupt asks for: the tool calls, or else its payload."""
    from treering.approvals.questions import read_question

    question = read_question(pending)
    calls = ", ".join(f"{each.tool}({json_text(each.arguments)})" for each in question.calls)
    return one_line(clean(calls or as_json(question.payload)))

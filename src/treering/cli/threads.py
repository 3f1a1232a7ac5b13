"""Commands for threads: threads, log, show, diff, fork, rewind, resume, delete.

A moment is named by a checkpoint's id or the beginning of it, by a thread (its head), or by ``thread@place``
(see `treering.views.finding`). Each command prints what the API gives back, as text or as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from treering.cli.console import clean, rows, say, show
from treering.cli.moments import difference_lines, moment_lines
from treering.cli.options import (
    JsonOption,
    StorePlace,
    UserNamespaceOption,
    takes_store,
)
from treering.cli.telling import message_count, one_line, pasteable, raw, summary, when

if TYPE_CHECKING:
    from treering.store import Store
    from treering.views.checkpoints import Checkpoint
    from treering.views.directory import ThreadInfo
    from treering.views.finding import Finder
    from treering.views.moments import Moment
    from treering.views.threads import Thread

ThreadArgument = Annotated[str, typer.Argument(metavar="THREAD", help="The id of a thread.")]
_MOMENT: Final = "A checkpoint (or its beginning), a thread, or thread@12, thread@~1, thread@TIME."
_LEFT_SHOWN: Final = 10
_DAMAGED: Final = 5


def add_to(app: typer.Typer) -> None:
    """Put the commands under the main one."""
    for command in (threads, log, show_moment, diff, fork, rewind, resume, delete):
        app.command("show" if command is show_moment else None)(command)


@takes_store
def threads(
    *,
    place: StorePlace,
    user_namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the threads of this user [everyone's].")
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Only ids that begin like this.")] = "",
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="How many, newest first; 0 for all.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List threads, newest first."""
    from itertools import islice

    with place.existing() as opened:
        found = opened.threads(namespace=user_namespace, prefix=prefix)
        shown = list(islice(found, limit or None))
        more = sum(1 for _ in found)
        heads = [_head_of(opened, each) for each in shown]
    listed = [
        {
            "id": each.id,
            "namespace": each.namespace,
            "step": each.step,
            "message_count": None if head is None else message_count(head),
            "created_at": each.created_at,
            "updated_at": each.updated_at,
            "head": each.head,
            "note": None if head is None else head.note,
            "tags": [] if head is None else list(head.tags),
            "pending_interrupt": raw(None if head is None else head.pending_interrupt),
            "damaged": head is None,
        }
        for each, head in zip(shown, heads, strict=True)
    ]
    table = [["THREAD", "NAMESPACE", "STEP", "MESSAGES", "UPDATED", "NOTE"]]
    for each, head in zip(shown, heads, strict=True):
        count = "?" if head is None else f"{message_count(head)}"
        told = [each.id, each.namespace, f"{each.step}", count, when(each.updated_at), _remark(head)]
        table.append([*map(clean, told)])
    lines = rows(table) if listed else [f"no threads{' that begin like this' if prefix else ''} yet"]
    show(listed, lines, as_json=as_json)
    if more and not as_json:
        say(f"... and {more} older (--limit 0 lists all)")
    if None in heads:
        say(f"{heads.count(None)} threads cannot be read; run `treering verify`, then restore from a backup")
        raise typer.Exit(_DAMAGED)


@takes_store
def log(
    thread: ThreadArgument,
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    limit: Annotated[int, typer.Option(metavar="N", min=0, help="The newest N moments; 0 for all.")] = 50,
    before: Annotated[
        str | None, typer.Option(metavar="CHECKPOINT", help="Only moments older than this one.")
    ] = None,
    forks: Annotated[bool, typer.Option("--forks/--no-forks", help="Look for threads forked off.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Draw how a thread grew, with rewinds and forks."""
    from treering.views.branches import growth

    with place.existing() as opened:
        finder = _finder(opened, user_namespace)
        grown = growth(
            opened.engine,
            opened.space,
            finder.thread(thread),
            limit=limit or None,
            before=None if before is None else finder.checkpoint(before).id,
            with_forks=forks,
        )
        if not as_json:
            from treering.cli.growing import draw

            draw(opened, grown)
            return
    what = {
        "thread": grown.thread.id,
        "namespace": grown.thread.namespace,
        "head": grown.thread.head,
        "forked_from": None if grown.origin is None else summary(grown.origin),
        "moments": [{**summary(each), "on_line": each.id in grown.line} for each in grown.moments],
        "rewinds": [{"at": each.at, "from": each.before, "to": each.to} for each in grown.rewinds],
        "forks": grown.forks,
        "older": grown.older,
    }
    show(what, (), as_json=True)


@takes_store
def show_moment(
    moment: Annotated[str, typer.Argument(metavar="MOMENT", help=_MOMENT)],
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    last: Annotated[int, typer.Option(metavar="N", min=0, help="The last N messages; 0 for all.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Show the messages, state and metadata of a moment."""
    with place.existing() as opened:
        found = _moment(opened, _finder(opened, user_namespace), moment)
        checkpoint = found.checkpoint
        messages = found.last_messages(last) if last else found.messages
        state = found.state
    what = {
        **summary(checkpoint),
        "messages": raw(messages),
        "lists": {name: stretch.length for name, stretch in checkpoint.lists.items()},
        "state": raw(state),
    }
    show(what, moment_lines(found, messages, state), as_json=as_json)


@takes_store
def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help=_MOMENT)],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="Likewise.")],
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Compare two moments (messages, state, files) or snapshots.

    With --json the state and each list are a JSON patch (RFC 6902).
    """
    from treering.cli.workspaces import file_lines, find_snapshot, snapshot_by_name
    from treering.views.differences import difference

    with place.existing() as opened:
        if any(snapshot_by_name(opened, each) is not None for each in (before, after)):
            roots = [find_snapshot(opened, each, user_namespace) for each in (before, after)]
            changes = opened.workspace.diff(*roots)
            show(changes, file_lines(changes), as_json=as_json)
            return
        finder = _finder(opened, user_namespace)
        old, new = _moment(opened, finder, before), _moment(opened, finder, after)
        told = difference(old, new, files=opened.workspace.diff(old.snapshot, new.snapshot))
    what = {
        "before": told.before,
        "after": told.after,
        "common": told.common,
        "added": [{"index": index, "message": raw(message)} for index, message in told.added],
        "removed": [{"index": index, "message": raw(message)} for index, message in told.removed],
        "changed": [
            {"index": each.index, "before": raw(each.before), "after": raw(each.after)}
            for each in told.changed
        ],
        "state": raw(told.state),
        "lists": {name: raw(patch) for name, patch in told.lists.items()},
        "files": told.files,
    }
    show(what, [*difference_lines(told), *file_lines(told.files)], as_json=as_json)


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
    """Begin a new thread at a moment of another one."""
    with place.existing() as opened:
        finder = _finder(opened, user_namespace)
        origin = finder.thread(thread)
        where = None if at is None else finder.within(origin, at).id
        forked = opened.thread(origin.id, origin.namespace or None).fork(new, at=where)
        head = _head(forked)
    line = f"{clean(new)} begins at step {head.step} of {clean(thread)} ({head.short_id})"
    show(summary(head.checkpoint), [line], as_json=as_json)


@takes_store
def rewind(
    thread: ThreadArgument,
    to: Annotated[str, typer.Argument(metavar="PLACE", help="Where to: a step, ~1, a checkpoint or a time.")],
    *,
    files: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Bring the files of then back into this folder, too."),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="With --files: remove what was not there then.")
    ] = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Move a thread's head back; nothing is lost."""
    from treering.views.branches import left_behind

    with place.existing() as opened:
        finder = _finder(opened, user_namespace)
        info = finder.thread(thread)
        target = finder.within(info, to)
        own = opened.thread(info.id, info.namespace or None)
        before = _head(own)
        left = left_behind(opened.engine, opened.space, before.checkpoint, target)
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
        **({} if restored is None else {"files": restored}),
    }
    lines = [f"{clean(info.id)}: step {before.step} -> {target.step}, {len(left)} moments left behind"]
    lines += [
        f"  {each.step:>3}  {each.id}  {one_line(clean(each.note or ''))}".rstrip()
        for each in left[:_LEFT_SHOWN]
    ]
    lines += [f"  ... and {len(left) - _LEFT_SHOWN} more"] if len(left) > _LEFT_SHOWN else []
    lines += [f"to undo: {pasteable('rewind', info, before.id)}"] if left else []
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
        str | None, typer.Option(metavar="ID", help="Only if this is what the thread waits for.")
    ] = None,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Answer what a thread waits for."""
    given = None if value is None else _value(sys.stdin.read() if value == "-" else value)
    with place.existing() as opened:
        info = _finder(opened, user_namespace).thread(thread)
        own = opened.thread(info.id, info.namespace or None)
        own.resume(decision, interrupt_id=interrupt, value=given)  # pyright: ignore[reportArgumentType] - it checks
        head = _head(own)
    line = f"{clean(thread)}: {decision}, saved as step {head.step} ({head.short_id}); its agent can go on"
    show(summary(head.checkpoint), [line], as_json=as_json)


@takes_store
def delete(
    thread: ThreadArgument,
    *,
    cascade: Annotated[bool, typer.Option("--cascade", help="Take forks along that share its past.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove a thread and its moments."""
    with place.existing() as opened:
        info = _finder(opened, user_namespace).thread(thread)
        if sys.stdin.isatty() and not yes:
            typer.confirm(f"Delete {clean(info.id)} ({info.step + 1} steps)?", abort=True, err=True)
        opened.thread(info.id, info.namespace or None).delete(cascade=cascade)
    show({"deleted": info.id, "namespace": info.namespace}, [f"deleted {clean(info.id)}"], as_json=as_json)


def _head_of(opened: Store, thread: ThreadInfo) -> Checkpoint | None:
    """The newest moment of a listed thread; ``None`` when it is damaged, which must not hide the others."""
    from treering.errors import Corrupt, NotFound
    from treering.views.journal import Journal

    try:
        return Journal(opened.engine, opened.space, thread.namespace).by_id(thread.head)
    except (Corrupt, NotFound):
        return None


def _remark(head: Checkpoint | None) -> str:
    if head is None:
        return "damaged"
    return "waits for a decision" if head.pending_interrupt is not None else one_line(head.note or "", 40)


def _finder(opened: Store, user_namespace: str) -> Finder:
    from treering.views.finding import Finder

    return Finder(opened.engine, opened.space, user_namespace)


def _moment(opened: Store, finder: Finder, text: str) -> Moment:
    found = finder.moment(text)
    return opened.thread(found.thread, found.namespace or None).at(found.id)


def _head(thread: Thread) -> Moment:
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
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"--value is not JSON ({error}); put quotes around a text: '\"like this\"'"
        ) from None
    if value is None:
        raise InvalidInput("--value null is no value; use deny to refuse")
    return value

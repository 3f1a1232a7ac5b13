"""Commands for workspaces: snapshot, snapshots, restore, ls, cat, download.

A snapshot is named by its id or the start of it, by ``latest`` (the newest in the store), or by a
checkpoint with files: a checkpoint, a thread, or ``thread@position`` (see `treering.threads.directory`).
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from treering.cli.console import (
    Progress,
    clean,
    counted,
    limited,
    plain,
    progress,
    rows,
    say,
    show,
    size,
    warn_of_secrets,
    when,
)
from treering.cli.options import (
    JsonOption,
    LimitOption,
    StorePlace,
    UserNamespaceOption,
    takes_store,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from treering.store import Store
    from treering.workspaces.diff import FileChange
    from treering.workspaces.restore import RestoreResult
    from treering.workspaces.scan import FileProgress
    from treering.workspaces.workspace import SnapshotInfo

LATEST: Final = "latest"
_BEGINNING: Final = re.compile("[0-9a-f]{6,64}")
_SHOWN: Final = 20

SnapshotArgument = Annotated[
    str, typer.Argument(metavar="SNAPSHOT", help="Snapshot id, latest, a checkpoint, or thread@position.")
]
_EXCLUDE: Final = typer.Option(metavar="PATTERN", help="Exclude, in .gitignore syntax; repeatable.")
_INCLUDE: Final = typer.Option(metavar="PATTERN", help="Include although excluded; repeatable.")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (snapshot, snapshots, restore, ls, cat, download, secrets):
        app.command()(command)


@takes_store
def snapshot(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to take a snapshot of.")],
    *,
    exclude: Annotated[list[str] | None, _EXCLUDE] = None,
    include: Annotated[list[str] | None, _INCLUDE] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the workspace [its path].")
    ] = None,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="Description.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="Tag; repeatable.")] = None,
    seconds: Annotated[
        float | None, typer.Option(metavar="N", help="Give up after this many seconds.")
    ] = None,
    allow_home: Annotated[bool, typer.Option("--allow-home", help="Allow a home folder.")] = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Take a snapshot of a folder.

    Examples:
        treering snapshot .
        treering snapshot ~/project --exclude "*.log" --note "before the upgrade"
    """
    done: list[SnapshotInfo] = []
    with (
        place.open() as opened,
        progress("reading") as bar,
    ):
        opened.workspace.snapshot(
            folder,
            exclude=exclude or (),
            include=include or (),
            name=name,
            note=note,
            tags=tag or (),
            seconds=seconds,
            allow_home=allow_home,
            on_progress=_bar(bar),
            on_done=done.append,
        )
    show(plain(done[0]), _snapshot_lines(done[0]), as_json=as_json)


@takes_store
def snapshots(
    *,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Filter by workspace.")] = None,
    limit: LimitOption = 50,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """List snapshots, newest first.

    Examples:
        treering snapshots
        treering snapshots --name /home/me/project --limit 5
    """
    from treering.core.ids import short_ids

    with place.existing() as opened:
        found = limited(opened.workspace.snapshots(name=name, last=limit + 1 if limit else None), limit)
    ids = short_ids(each.id for each in found)
    table = [("id", "taken", "files", "size", "workspace", "note")]
    table += [
        (
            ids[each.id],
            when(each.taken_at_us),
            f"{each.files:,}",
            size(each.size_bytes),
            clean(each.workspace),
            clean(each.note or ""),
        )
        for each in found
    ]
    show(plain(found), rows(table) if found else ["no snapshots"], as_json=as_json)


@takes_store
def restore(
    which: SnapshotArgument,
    target: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to restore into.")],
    *,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete files that are not in the snapshot.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")] = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Restore a snapshot; only what differs is written.

    Examples:
        treering restore latest ./copy
        treering restore support/alice@3 . --delete --dry-run
    """
    with place.existing() as opened, progress("writing") as bar:
        found = find_snapshot(opened, which, user_namespace)
        done = opened.workspace.restore(found, target, delete=delete, dry_run=dry_run, on_progress=_bar(bar))
    show(done, restored_lines(done, target), as_json=as_json)


@takes_store
def ls(
    which: SnapshotArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder in the snapshot.")] = "",
    *,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="List subfolders as well.")] = False,
    limit: LimitOption = 10_000,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the files of a snapshot.

    Examples:
        treering ls latest
        treering ls support/alice@3 src --recursive
    """
    with place.existing() as opened:
        found = find_snapshot(opened, which, user_namespace)
        listed = limited(opened.workspace.ls(found, path, recursive=recursive), limit)
    lines = [
        f"{each.mode_text}  {each.size:>12,}  {clean(each.path)}"
        + (f" -> {clean(each.target)}" if each.target is not None else "/" * (each.kind == "folder"))
        for each in listed
    ]
    show(listed, lines, as_json=as_json)


@takes_store
def cat(
    which: SnapshotArgument,
    path: Annotated[str, typer.Argument(metavar="PATH", help="File in the snapshot.")],
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
) -> None:
    """Print a file of a snapshot, unchanged.

    Examples:
        treering cat latest README.md
    """
    with place.existing() as opened:
        for piece in opened.workspace.stream(find_snapshot(opened, which, user_namespace), path):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


@takes_store
def download(
    which: SnapshotArgument,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Paths, folders or patterns.")],
    *,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Target folder.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")] = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write some files of a snapshot into a folder.

    Examples:
        treering download latest "*.md" --to ./notes
        treering download support/alice report.pdf --to . --overwrite
    """
    with place.existing() as opened, progress("writing") as bar:
        found = find_snapshot(opened, which, user_namespace)
        written = opened.workspace.download(found, files, to, overwrite=overwrite, on_progress=_bar(bar))
    show(list(written), [clean(each) for each in written], as_json=as_json)


@takes_store
def secrets(
    which: SnapshotArgument,
    *,
    limit: LimitOption = 1_000,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """List keys, tokens and passwords in a snapshot.

    Exits with 18 if there are any.

    Examples:
        treering secrets latest
        treering secrets support/alice@3 --json
    """
    from treering.errors import SecretsFound

    with place.existing() as opened, progress("reading") as bar:
        found = opened.workspace.secrets(find_snapshot(opened, which, user_namespace), on_progress=_bar(bar))
    shown = limited(found, limit)
    table = [
        ("file", "line", "rule", "begins with"),
        *((clean(each.path), str(each.line), each.rule, clean(each.hint)) for each in shown),
    ]
    show(shown, rows(table) if found else ["no secrets found"], as_json=as_json)
    if found:
        raise typer.Exit(SecretsFound.exit_code)


def find_snapshot(store: Store, text: str, user_namespace: str = "") -> str:
    """Return the id of the snapshot that a user names."""
    from treering.errors import NotFound
    from treering.threads.directory import Finder

    if (named := snapshot_by_name(store, text)) is not None:
        return named
    try:
        checkpoint = Finder(store.engine, store.space, user_namespace, local_times=True).checkpoint(text)
    except NotFound as error:
        raise NotFound(f"no snapshot {text!r} (list them with: treering snapshots); {error}") from None
    if checkpoint.snapshot is None:
        raise NotFound(f"checkpoint {checkpoint.id} has no files; save with workspace= to include them")
    return checkpoint.snapshot.removeprefix("o:")


def snapshot_by_name(store: Store, text: str) -> str | None:
    """Resolve ``latest``, a snapshot by its id, or a checkpoint of a sandbox; else return ``None``."""
    from treering.errors import NotFound

    if text == LATEST:
        return _latest(store)
    if text.startswith(("o:", "snap_")) or _BEGINNING.fullmatch(text):
        with suppress(NotFound):
            return store.workspace.find(text)
    return _of_sandbox(store, text)


def file_lines(changes: Iterable[FileChange]) -> list[str]:
    """Format the differences between two snapshots."""
    marks = {"added": "+", "removed": "-", "changed": "~"}
    lines: list[str] = []
    for each in changes:
        lines.append(f"{marks[each.change]} {clean(each.path)}")
        lines += [f"    {clean(line)}" for line in (each.text or "").splitlines()[2:]]
    return lines


def restored_lines(done: RestoreResult, target: Path) -> list[str]:
    """Format the result of a restore."""
    wrote, removed = ("would write", "remove") if done.dry_run else ("wrote", "removed")
    counted = f"{wrote} {len(done.written):,} and {removed} {len(done.removed):,}"
    lines = [f"{counted} in {clean(str(target))} ({size(done.bytes_written)})"]
    lines += [f"  + {clean(each)}" for each in done.written[:_SHOWN]]
    lines += [f"  - {clean(each)}" for each in done.removed[:_SHOWN]]
    more = max(0, len(done.written) - _SHOWN) + max(0, len(done.removed) - _SHOWN)
    lines += [f"  ... and {more:,} more"] if more else []
    if done.before is not None:
        from treering.core.ids import short_id

        lines.append(f"to undo: treering restore {short_id(done.before)} {clean(str(target))} --delete")
    return lines


def _of_sandbox(store: Store, text: str) -> str | None:
    """Return the root tree of a sandbox's checkpoint, by its id; ``None`` if a thread's has it."""
    from treering.core.ids import only_match
    from treering.core.query import records_by_id
    from treering.sandbox.storage import KIND as OF_SANDBOX
    from treering.sandbox.storage import storage_in
    from treering.threads.checkpoint import KIND, PREFIX

    if not text.startswith(PREFIX):
        return None
    found = records_by_id(store.engine, store.space, text, kinds=(KIND, OF_SANDBOX))
    kinds = {each.event.id: each.event.kind for each in found}
    match = only_match(kinds, text, "checkpoint")
    return storage_in(store).find(match).hash if match and kinds[match] == OF_SANDBOX else None


def _latest(store: Store) -> str:
    """Return the newest snapshot of the store, on its own or of a checkpoint."""
    from treering.core.query import EventQuery, each_record
    from treering.errors import NotFound
    from treering.threads.checkpoint import KIND, read_checkpoint

    newest = next(store.workspace.snapshots(last=1), None)
    query = EventQuery(
        kinds=(KIND,), newest_first=True, since_us=None if newest is None else newest.taken_at_us
    )
    for record in each_record(store.engine, store.space, query, limit=100):
        kept = read_checkpoint(store.engine, store.space, record).snapshot
        if kept is not None:
            return kept.removeprefix("o:")
    if newest is None:
        raise NotFound(f"{store.url} has no snapshot yet; take one with: treering snapshot FOLDER")
    return newest.id


def _snapshot_lines(info: SnapshotInfo) -> list[str]:
    for each in info.left_out[:_SHOWN]:
        say(f"left out ({each.reason}): {clean(each.path)}")
    for path in info.changed[:_SHOWN]:
        say(f"changed while it was read: {clean(path)}")
    warn_of_secrets(info.secrets)
    say(f"{counted(info.files, 'files')}, {size(info.size_bytes)}, {info.read_files:,} read")
    return [info.id]


def _bar(bar: Progress) -> Callable[[FileProgress], None] | None:
    if not bar.is_shown:
        return None

    def on_progress(so_far: FileProgress) -> None:
        bar.update(so_far.files, so_far.of_files, bytes=so_far.bytes, total_bytes=so_far.of_bytes)

    return on_progress

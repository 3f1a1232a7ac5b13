"""Commands that look after a store: verify, gc, forget, reindex, copy, stats, backup, migrate.

Each one opens a store that is there (a misspelt path must not make a new one), works on one namespace or
with ``--all`` on each of them, and prints what the API gives back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from treering.cli.console import counts, progress, show, size
from treering.cli.options import (
    AllOption,
    JsonOption,
    StoreBlobsOption,
    StoreOption,
    StorePlace,
    takes_store,
)
from treering.cli.storages import EndpointOption, StorageOption, collect, config_of, forgotten_lines
from treering.cli.storages import opened as opened_storage

if TYPE_CHECKING:
    from treering.core.records import Checked
    from treering.maintenance.copy import CopyProgress, CopyReport
    from treering.maintenance.gc import Collection
    from treering.maintenance.stats import Stats
    from treering.maintenance.verify import Verification
    from treering.store import Store

_PROBLEMS_FOUND: Final = 5
_SHOWN: Final = 20
_GRACE_SECONDS: Final = 3600.0


def add_to(app: typer.Typer) -> None:
    """Put the commands under the main one."""
    for command in (verify, gc, forget, reindex, copy, stats, backup, migrate):
        app.command()(command)


@takes_store
def verify(
    *,
    place: StorePlace,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Rehash and relink everything; exit 5 if it is bad."""
    with place.existing(every=every) as opened, progress("verifying") as update:

        def on_progress(checked: Checked) -> None:
            if update is not None:
                update(checked.bodies + checked.objects + checked.items + checked.events + checked.refs, None)

        results = _each(opened, lambda one: one.verify(on_progress=on_progress), every=every)
    _show(results, _verification_lines, every=every, as_json=as_json)
    if not all(result.ok for result in results.values()):
        raise typer.Exit(_PROBLEMS_FOUND)


@takes_store
def gc(
    *,
    place: StorePlace,
    every: AllOption = False,
    keep: Annotated[
        str | None,
        typer.Option(metavar="RULES", help="What to keep, like last=50,daily=30,within=30d,tagged=release."),
    ] = None,
    keep_runs: Annotated[
        str | None,
        typer.Option(metavar="RULES", help="Which runs to keep of each agent, and with them what they cost."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, say what would go.")] = False,
    grace: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Leave what is younger than this [3600; 86400 in a storage]."),
    ] = None,
    storage: StorageOption = None,
    endpoint: EndpointOption = None,
    per_session: Annotated[
        bool, typer.Option("--per-session", help="In a storage: keep so much of each session.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Drop by policy, then sweep the unreachable.

    With --storage, checkpoints of sandboxes in a bucket or folder, and the packs that only they needed.
    """
    from treering.core.retention import Keep
    from treering.errors import InvalidInput

    policy = None if keep is None else Keep.parse(keep)
    of_runs = None if keep_runs is None else Keep.parse(keep_runs)
    if grace is not None and grace < 0:
        raise InvalidInput(f"--grace {grace} is not acceptable; give seconds from 0 on")
    config = config_of(storage, endpoint)
    if config is not None:
        if every or of_runs is not None:
            raise InvalidInput("--all and --keep-runs are for stores; a storage holds checkpoints only")
        collect(
            config, policy, per_session=per_session, grace_seconds=grace, dry_run=dry_run, as_json=as_json
        )
        return
    if per_session:
        raise InvalidInput("--per-session goes with --storage; in a store each thread is decided by itself")
    seconds = _GRACE_SECONDS if grace is None else grace
    with place.existing(every=every) as opened, progress("collecting"):
        results = _each(
            opened,
            lambda one: one.gc(keep=policy, keep_runs=of_runs, dry_run=dry_run, grace_seconds=seconds),
            every=every,
        )
    _show(results, _collection_lines, every=every, as_json=as_json)


@takes_store
def forget(
    *,
    place: StorePlace,
    thread: Annotated[str | None, typer.Option(metavar="ID", help="The thread to forget.")] = None,
    user_namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Forget all of a user; with --thread: whose thread it is."),
    ] = None,
    scope: Annotated[str | None, typer.Option(metavar="TEXT", help="One erasure scope, by its text.")] = None,
    checkpoint: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="A checkpoint of a sandbox; may come again.")
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="TAG", help="All checkpoints of a sandbox's session.")
    ] = None,
    storage: StorageOption = None,
    endpoint: EndpointOption = None,
    cascade: Annotated[bool, typer.Option("--cascade", help="Take forks along that grow out of it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Erase a thread or a user for good.

    Or checkpoints of sandboxes: with --storage, gc frees their files later.
    """
    if checkpoint or session is not None or storage is not None:
        _forget_checkpoints(checkpoint or [], session, storage, endpoint, place, yes=yes, as_json=as_json)
        return
    with place.existing() as opened:
        if sys.stdin.isatty() and not yes:
            typer.confirm(f"Erase this from {opened.url} for good?", abort=True, err=True)
        with progress("erasing"):
            receipt = opened.forget(thread=thread, namespace=user_namespace, scope=scope, cascade=cascade)
    gone = {
        "scopes": receipt.scopes,
        "events": receipt.events,
        "refs": receipt.refs,
        "lists": receipt.lists,
        "bodies": receipt.bodies,
        "texts": receipt.texts,
        "objects": receipt.objects,
    }
    how = {"bytes": "its bytes were wiped from the files", "query": "no query finds it any more"}[
        receipt.proof
    ]
    lines = [f"forgot {counts(gone)} ({size(receipt.bytes)}); {how}"]
    lines += [f"  kept {name}: {why}" for name, why in receipt.kept.items()]
    show(receipt, lines, as_json=as_json)


def _forget_checkpoints(
    ids: list[str],
    session: str | None,
    storage: str | None,
    endpoint: str | None,
    place: StorePlace,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    with opened_storage(storage, endpoint, place) as depot:
        if sys.stdin.isatty() and not yes:
            typer.confirm(f"Forget these checkpoints of {depot.url} for good?", abort=True, err=True)
        done = depot.forget(*ids, tag=session)
    show(done, forgotten_lines(done), as_json=as_json)


@takes_store
def reindex(
    *,
    place: StorePlace,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Rebuild roll-ups and search index."""

    def rebuild(one: Store) -> dict[str, bool]:
        one.reindex()
        return {"reindexed": True}

    with place.existing(every=every) as opened, progress("rebuilding"):
        results = _each(opened, rebuild, every=every)
    _show(results, lambda _: ["roll-ups and search index are rebuilt"], every=every, as_json=as_json)


@takes_store
def copy(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Folder or URL to copy into.")],
    *,
    place: StorePlace,
    every: AllOption = False,
    blobs: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the target keeps large objects.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy into another store; again to resume."""
    with place.existing(every=every) as opened, progress("copying") as update:

        def on_progress(state: CopyProgress) -> None:
            if update is not None:
                update(state.rows, state.of_rows)

        results = _each(
            opened, lambda one: one.copy_to(target, blobs=blobs, on_progress=on_progress), every=every
        )
    _show(results, _copy_lines, every=every, as_json=as_json)


@takes_store
def stats(
    *,
    place: StorePlace,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """What uses the space, and how it grew."""
    with place.existing(every=every) as opened:
        results = _each(opened, lambda one: one.stats(), every=every)
    _show(results, _stats_lines, every=every, as_json=as_json)


def backup(
    path: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder for the backup.")],
    *,
    store: StoreOption = None,
    store_blobs: StoreBlobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the whole store while writers go on."""
    with StorePlace(store, store_blobs).existing(every=True) as opened, progress("backing up") as update:

        def on_progress(state: CopyProgress) -> None:
            if update is not None:
                update(state.rows, state.of_rows)

        report = opened.backup(path, on_progress=on_progress)
    held = counts({"spaces": len(report.spaces), "events": report.events, "objects": report.objects})
    show(report, [f"{report.path}: {held}, {size(report.bytes)}, opened and checked"], as_json=as_json)


def migrate(
    *, store: StoreOption = None, store_blobs: StoreBlobsOption = None, as_json: JsonOption = False
) -> None:
    """Bring the tables to this version."""
    from treering.api import migrate as migrate_store

    result = migrate_store(store, blobs=store_blobs)
    lines = [
        f"{result.url} is at schema {result.after} already"
        if result.before == result.after
        else f"{result.url}: schema {result.before} -> {result.after}"
    ]
    show(result, lines, as_json=as_json)


def _each(opened: Store, action: Callable[[Store], Any], *, every: bool) -> dict[str, Any]:
    """Do something to the store as it was opened, or to each of its namespaces."""
    from treering.maintenance.stats import user_spaces

    if not every:
        return {opened.space: action(opened)}
    return {name: action(opened.in_namespace(name)) for name in user_spaces(opened.engine)}


def _show(
    results: dict[str, Any], lines_of: Callable[[Any], list[str]], *, every: bool, as_json: bool
) -> None:
    if not every:
        (result,) = results.values()
        show(result, lines_of(result), as_json=as_json)
        return
    lines = [f"{name}: {line}" for name, result in results.items() for line in lines_of(result)]
    show(results, lines or ["this store is empty"], as_json=as_json)


def _verification_lines(result: Verification) -> list[str]:
    checked = result.checked
    read = counts(
        {
            "objects": checked.objects,
            "bodies": checked.bodies,
            "list items": checked.items,
            "events": checked.events,
            "refs": checked.refs,
        }
    )
    found = len(result.problems) + result.more
    lines = [f"{'ok' if result.ok else f'{found} problem(s)'}: checked {read} ({size(checked.bytes)})"]
    lines += [f"  {each.kind} {each.where}: {each.detail}" for each in result.problems[:_SHOWN]]
    if found > _SHOWN:
        lines.append(f"  ... and {found - _SHOWN} more" + (" (--json lists them)" if not result.more else ""))
    return lines


def _collection_lines(result: Collection) -> list[str]:
    would = "would " if result.dry_run else ""
    swept = result.swept
    removed = {"objects": swept.objects, "bodies": swept.bodies, "lists": swept.lists, "packs": swept.packs}
    dropped, kept = (
        {f"{kind}s": number for kind, number in each.items()} for each in (result.dropped, result.kept)
    )
    lines = [f"{would}drop {counts(dropped)}, keep {counts(kept)}"] if kept else []
    return [*lines, f"{would}sweep {counts(removed)} ({size(swept.bytes)})"]


def _copy_lines(result: CopyReport) -> list[str]:
    how = "went on with an earlier copy: " if result.resumed else ""
    sent = f"{how}{result.rows:,} rows, {size(result.bytes)}; equal up to {result.last_seq}"
    return [f"{result.source} -> {result.target}: {sent}"]


def _stats_lines(result: Stats) -> list[str]:
    lines = [f"{result.url}, namespace {result.space!r}", f"  {counts(result.rows)}"]
    lines += [f"  {kind:<10} {size(held):>10}" for kind, held in result.bytes.items() if held]
    lines.append(f"  {'all':<10} {size(result.total_bytes):>10}")
    if result.disk_bytes is not None:
        lines.append(f"  {'on disk':<10} {size(result.disk_bytes):>10}  (all namespaces)")
    lines += [f"  {day} {size(grown):>10}" for day, grown in list(result.growth_bytes.items())[-7:]]
    return lines

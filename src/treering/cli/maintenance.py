"""Commands that maintain a store: verify, check-deploy, gc, forget, index, copy, stats, backup, migrate ...

Each command opens an existing store (a misspelt path must not create a new one), works on one namespace, or
on each of them with ``--all``, and prints the result of the API. With ``--storage``, ``gc`` and ``forget``
work on checkpoints of sandboxes in a bucket or folder instead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import typer

from treering.cli.console import (
    clean,
    clean_json,
    counted,
    counts,
    limited,
    progress,
    rows,
    say,
    show,
    size,
    when,
)
from treering.cli.options import (
    AllOption,
    JsonOption,
    LimitOption,
    StoreBlobsOption,
    StoreOption,
    StorePlace,
    load_object,
    takes_store,
)
from treering.cli.sandbox import EndpointOption, StorageOption, config_of, open_checkpoints

if TYPE_CHECKING:
    from treering.core.records import Archive, Archived, Checked, SweepProgress
    from treering.core.retention import Keep
    from treering.maintenance.copy import CopyProgress, CopyReport
    from treering.maintenance.gc import Collection
    from treering.maintenance.stats import Stats
    from treering.maintenance.verify import Verification
    from treering.runs.search import IndexProgress
    from treering.sandbox.storage import ForgetResult, PruneResult, StorageConfig
    from treering.store import Store

_PROBLEMS_FOUND: Final = 5
_SHOWN: Final = 20
_GRACE_SECONDS: Final = 3600.0
_ALL_ROWS: Final = 1 << 40


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (
        verify,
        check_deploy,
        gc,
        archive,
        sql,
        forget,
        index,
        reindex,
        copy,
        stats,
        backup,
        migrate,
    ):
        app.command()(command)
    app.command("bind-role")(bind_role)
    app.command("move-project")(move_project)
    app.command()(cells)


@takes_store
def verify(
    *,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="SEQ|AGE|TIME|last",
            help="Only what was committed behind a number, in the last 36h or 7d, since a time (UTC), or "
            "since the check before with --since last.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Processes [one a processor, for a large store]."),
    ] = None,
    place: StorePlace,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Check all content, links and totals; exit 5 if damaged.

    Examples:
        treering verify
        treering verify --since last
        treering verify --since 1d
        treering verify --all --json
    """
    from treering.maintenance.verify import parse_since

    with place.existing(every=every) as opened, progress("verifying") as bar:

        def verify_one(one: Store) -> Verification:
            after = parse_since(since or "0", now_us=one.clock.now_us())
            total: int | None = None
            if bar.is_shown and after == 0:
                rows = one.stats().rows
                total = sum(rows[name] for name in ("objects", "items", "events", "refs"))

            def on_progress(checked: Checked) -> None:
                done = checked.objects + checked.items + checked.events + checked.refs
                bar.update(done, total, bytes=checked.bytes)

            return one.verify(since=after, processes=processes, on_progress=on_progress)

        results = _each(opened, verify_one, every=every)
    _show(results, _verification_lines, every=every, as_json=as_json)
    if not all(result.ok for result in results.values()):
        raise typer.Exit(_PROBLEMS_FOUND)


@takes_store
def check_deploy(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME", help="An agent, a graph, a function that returns one, or a check."
        ),
    ],
    *,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME", help="A function of a checkpoint that raises if it cannot go on."
        ),
    ] = None,
    threads: Annotated[
        str, typer.Option(metavar="PATTERN", help="Only threads whose ids match, with * and ?.")
    ] = "*",
    user_namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those of a user or project [all].")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Check N threads, chosen at random [all].")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Choose the same ones each time.")] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Name the threads that would break under new code.

    Loads each with that code, and writes nothing; exit 5 if any would break.

    Examples:
        treering check-deploy support.graph:build
        treering check-deploy support.agent:agent --check support.checks:state --sample 500 --json
    """
    from treering.deploys import check_deploy as check_store

    new_code = load_object(target, "MODULE:NAME")
    also = None if check is None else load_object(check, "--check")
    with place.existing() as opened:
        report = check_store(
            opened,
            new_code,
            check=also,
            threads=threads,
            namespace=user_namespace,
            sample=sample,
            seed=seed,
        )
    show(report, [clean(report.describe())], as_json=as_json)
    if not report.ok:
        raise typer.Exit(_PROBLEMS_FOUND)


@takes_store
def gc(
    *,
    place: StorePlace,
    every: AllOption = False,
    keep: Annotated[
        str | None,
        typer.Option(metavar="RULES", help="What to keep: last=50,daily=30,within=30d,tagged=release."),
    ] = None,
    keep_runs: Annotated[
        str | None,
        typer.Option(metavar="RULES", help="Which runs of each agent to keep, with their costs."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; change nothing.")
    ] = False,
    grace: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Keep anything newer than this [3600; 86400 with --storage]."),
    ] = None,
    storage: StorageOption = None,
    endpoint: EndpointOption = None,
    per_session: Annotated[
        bool, typer.Option("--per-session", help="With --storage: apply --keep to each session separately.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Drop history by policy, then remove unreachable data.

    With --storage: drop checkpoints of sandboxes in a bucket or folder, and packs no longer needed.

    Examples:
        treering gc --keep last=50,daily=30,tagged=release --dry-run
        treering gc --keep within=90d --keep-runs last=100
    """
    from treering.core.retention import Keep
    from treering.errors import InvalidInput

    policy = None if keep is None else Keep.parse(keep)
    of_runs = None if keep_runs is None else Keep.parse(keep_runs)
    if grace is not None and grace < 0:
        raise InvalidInput(f"--grace {grace} is negative; use 0 seconds or more")
    config = config_of(storage, endpoint)
    if config is not None:
        if every or of_runs is not None:
            raise InvalidInput("--all and --keep-runs cannot be combined with --storage")
        _collect_checkpoints(
            config, policy, per_session=per_session, grace_seconds=grace, dry_run=dry_run, as_json=as_json
        )
        return
    if per_session:
        raise InvalidInput("--per-session requires --storage; a store applies --keep to each thread")
    seconds = _GRACE_SECONDS if grace is None else grace
    with place.existing(every=every) as opened, progress("collecting") as bar:

        def on_progress(state: SweepProgress) -> None:
            bar.update(
                state.done, state.total, bytes=state.bytes, total_bytes=state.of_bytes, phase=state.phase
            )

        results = _each(
            opened,
            lambda one: one.gc(
                keep=policy,
                keep_runs=of_runs,
                dry_run=dry_run,
                grace_seconds=seconds,
                on_progress=on_progress if bar.is_shown else None,
            ),
            every=every,
        )
    _show(results, _collection_lines, every=every, as_json=as_json)


def _collect_checkpoints(
    config: StorageConfig,
    keep: Keep | None,
    *,
    per_session: bool,
    grace_seconds: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    from treering.sandbox.storage import open_storage

    with open_storage(config) as opened, progress("collecting"):
        forgotten = None
        if keep is not None:
            forgotten = opened.forget(keep=keep, per_session=per_session, dry_run=dry_run)
        would_go = forgotten.dropped if dry_run and forgotten is not None else ()
        pruned = opened.prune(
            grace_seconds=grace_seconds, dry_run=dry_run, as_if_without=[each.id for each in would_go]
        )
    lines = [] if forgotten is None else _forgotten_lines(forgotten)
    show({"forgotten": forgotten, "pruned": pruned}, [*lines, *_pruned_lines(pruned)], as_json=as_json)


@takes_store
def archive(
    *,
    before: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Archive days older than this: 30d, or a date."),
    ] = None,
    place: StorePlace,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Move finished days into Parquet files.

    Archived runs stay listed, readable and searchable. Without --before, list the files.

    Examples:
        treering archive --before 30d
        treering archive --json
    """
    if before is None:
        with place.existing(every=every) as opened:
            listed = _each(opened, lambda one: one.archived(), every=every)
        _show(listed, _archive_lines, every=every, as_json=as_json)
        return
    with place.existing(every=every) as opened, progress("archiving") as bar:

        def on_progress(state: Archived) -> None:
            bar.update(state.events, None, bytes=state.bytes)

        done = _each(opened, lambda one: one.archive(before=before, on_progress=on_progress), every=every)
    _show(done, _archived_lines, every=every, as_json=as_json)


def _archive_lines(found: Archive) -> list[str]:
    if not found.files:
        return ["nothing is archived; archive with: treering archive --before 30d"]
    head = f"{counts({'files': len(found.files), 'events': found.rows})}, {size(found.bytes)} in {found.url}"
    table = [[file.day, f"{file.rows:,}", size(file.bytes), file.path] for file in found.files]
    return [head, *rows([["day", "events", "size", "file"], *table])]


def _archived_lines(done: Archived) -> list[str]:
    if not done.events:
        return ["nothing to archive"]
    moved = counts({"events": done.events, "runs": done.runs, "files": done.files})
    days = done.days[0] if len(done.days) == 1 else f"{done.days[0]} to {done.days[-1]}"
    return [f"archived {moved} ({size(done.bytes)}) of {days}", "free the space with: treering gc"]


@takes_store
def sql(
    query: Annotated[str, typer.Argument(metavar="SELECT", help="One SELECT, or - to read it from stdin.")],
    *,
    format: Annotated[
        Literal["table", "csv", "jsonl"], typer.Option("--format", help="How rows are printed.")
    ] = "table",
    max_rows: Annotated[
        int, typer.Option("--max-rows", metavar="N", min=0, help="Print so many rows (0: all).")
    ] = 1000,
    seconds: Annotated[float, typer.Option(metavar="N", min=0.1, help="Give up after this time.")] = 30.0,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Query all runs in SQL, live and archived.

    Tables and views: runs, events, spans, tool_calls, messages, costs (docs/lake.md).

    Examples:
        treering sql "select agent, sum(cost) from runs where day > '2026-11-01' group by 1"
        treering sql "select name, count(*) from tool_calls where status = 'error' group by 1" --json
        treering sql "select * from costs" --format csv --max-rows 0
    """
    import csv
    import io

    import msgspec

    from treering.core.query import json_rows

    text = sys.stdin.read() if query == "-" else query
    with place.existing() as opened:
        found = opened.query(text, max_rows=max_rows or _ALL_ROWS, seconds=seconds)
    plain = json_rows(found)
    if found.truncated:
        say(f"note: only {max_rows:,} rows are shown (--max-rows 0 shows all)")
    if as_json:
        show([dict(zip(found.columns, row, strict=True)) for row in plain], (), as_json=True)
    elif format == "jsonl":
        for row in plain:
            record = msgspec.json.encode(dict(zip(found.columns, row, strict=True)))
            typer.echo(clean_json(record))
    elif format == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([found.columns, *plain])
        typer.echo(clean(out.getvalue()), nl=False)
    else:
        table = [
            ["" if each is None else clean(str(each)).replace("\n", " ") for each in row] for row in plain
        ]
        show(None, rows([list(found.columns), *table]), as_json=False)


@takes_store
def forget(
    *,
    place: StorePlace,
    thread: Annotated[str | None, typer.Option(metavar="THREAD", help="Thread to forget.")] = None,
    user_namespace: Annotated[
        str | None,
        typer.Option(metavar="USER", help="Forget all of a user; with --thread: whose thread it is."),
    ] = None,
    scope: Annotated[str | None, typer.Option(metavar="TEXT", help="Erasure scope to forget.")] = None,
    checkpoint: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Checkpoint of a sandbox; repeatable.")
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="TAG", help="All checkpoints of a sandbox session.")
    ] = None,
    storage: StorageOption = None,
    endpoint: EndpointOption = None,
    cascade: Annotated[bool, typer.Option("--cascade", help="Also erase forks that share its past.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Erase a thread or a user permanently.

    Or checkpoints of sandboxes; with --storage, a later gc deletes their files.

    Examples:
        treering forget --thread support/alice
        treering forget --user-namespace alice --yes
    """
    if checkpoint or session is not None or storage is not None:
        _forget_checkpoints(checkpoint or [], session, storage, endpoint, place, yes=yes, as_json=as_json)
        return
    with place.existing() as opened:
        if sys.stdin.isatty() and not yes:
            typer.confirm(f"Permanently erase this from {opened.url}?", abort=True, err=True)
        with progress("erasing"):
            receipt = opened.forget(thread=thread, namespace=user_namespace, scope=scope, cascade=cascade)
    gone = {
        "scopes": receipt.scopes,
        "threads and runs of sub-agents": receipt.below,
        "events": receipt.events,
        "refs": receipt.refs,
        "lists": receipt.lists,
        "bodies": receipt.bodies,
        "texts": receipt.texts,
        "objects": receipt.objects,
    }
    how = {"bytes": "its bytes were wiped from the files", "query": "no query returns it any more"}[
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
    with open_checkpoints(storage, endpoint, place) as opened:
        if sys.stdin.isatty() and not yes:
            typer.confirm(f"Permanently forget these checkpoints of {opened.url}?", abort=True, err=True)
        done = opened.forget(*ids, tag=session)
    show(done, _forgotten_lines(done), as_json=as_json)


@takes_store
def reindex(
    *,
    place: StorePlace,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Rebuild the roll-ups and the search index.

    Examples:
        treering reindex --all
    """

    def rebuild(one: Store) -> dict[str, bool]:
        one.reindex(on_progress=lambda at: bar.update(at.done, at.total, phase=f"rebuilding {at.what}"))
        return {"reindexed": True}

    with place.existing(every=every) as opened, progress("rebuilding") as bar:
        results = _each(opened, rebuild, every=every)
    _show(results, lambda _: ["rebuilt roll-ups and search index"], every=every, as_json=as_json)


@takes_store
def index(
    *,
    place: StorePlace,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Bring the search index up to date, with progress.

    A server and programs that record do so by themselves.

    Examples:
        treering index
        treering index --all
    """
    with place.existing(every=every) as opened, progress("indexing") as bar:

        def on_page(state: IndexProgress) -> None:
            bar.update(state.events, state.behind)

        results = _each(
            opened, lambda one: {"indexed_events": one.timeline.index(on_page=on_page)}, every=every
        )
    _show(results, lambda done: [f"indexed {done['indexed_events']:,} events"], every=every, as_json=as_json)


@takes_store
def copy(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Folder or URL of the target store.")],
    *,
    place: StorePlace,
    every: AllOption = False,
    blobs: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the target keeps large objects.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy into another store; run again to resume.

    Examples:
        treering copy postgresql://agents@db.example/agents
        treering copy ./other --all
    """
    with place.existing(every=every) as opened, progress("copying") as bar:

        def on_progress(state: CopyProgress) -> None:
            bar.update(state.rows, state.of_rows, bytes=state.bytes)

        results = _each(
            opened, lambda one: one.copy_to(target, blobs=blobs, on_progress=on_progress), every=every
        )
    _show(results, _copy_lines, every=every, as_json=as_json)


@takes_store
def stats(
    *,
    exact: Annotated[
        bool, typer.Option("--exact", help="Read every row of a large store instead of estimating.")
    ] = False,
    place: StorePlace,
    every: AllOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the size of the store and its growth.

    Examples:
        treering stats
        treering stats --exact
        treering stats --all --json
    """
    with place.existing(every=every) as opened:
        results = _each(opened, lambda one: one.stats(exact=exact), every=every)
    _show(results, _stats_lines, every=every, as_json=as_json)


def backup(
    path: Annotated[Path, typer.Argument(metavar="FOLDER", help="New folder for the backup.")],
    *,
    store: StoreOption = None,
    store_blobs: StoreBlobsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a consistent copy of the store while it is in use.

    Examples:
        treering backup /backups/agents-today
    """
    with StorePlace(store, store_blobs).existing(every=True) as opened, progress("backing up") as bar:

        def on_progress(state: CopyProgress) -> None:
            if state.of_bytes is not None:
                bar.update(0, None, bytes=state.bytes, total_bytes=state.of_bytes, phase=state.phase)
            elif state.phase == "verifying":
                bar.update(state.rows, state.of_rows, phase=state.phase)
            else:
                bar.update(state.rows, state.of_rows, bytes=state.bytes)

        report = opened.backup(path, on_progress=on_progress)
    held = counts({"spaces": len(report.spaces), "events": report.events, "objects": report.objects})
    show(report, [f"{report.path}: {held}, {size(report.bytes)}, verified"], as_json=as_json)


def migrate(
    *, store: StoreOption = None, store_blobs: StoreBlobsOption = None, as_json: JsonOption = False
) -> None:
    """Upgrade the database schema to this version.

    Examples:
        treering migrate
    """
    from treering.api import migrate as migrate_store

    result = migrate_store(store, blobs=store_blobs)
    lines = [
        f"{result.url} already has schema {result.after}"
        if result.before == result.after
        else f"{result.url}: schema {result.before} -> {result.after}"
    ]
    show(result, lines, as_json=as_json)


def _each(opened: Store, action: Callable[[Store], Any], *, every: bool) -> dict[str, Any]:
    """Apply an action to the opened namespace, or to each one of the store."""
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
    show(results, lines or ["the store is empty"], as_json=as_json)


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
    how = "resumed an earlier copy: " if result.resumed else ""
    sent = f"{how}{counted(result.rows, 'rows')}, {size(result.bytes)}; complete up to {result.last_seq}"
    return [f"{result.source} -> {result.target}: {sent}"]


def _stats_lines(result: Stats) -> list[str]:
    about = " (estimated since the last measurement; --exact reads every row)" if result.is_estimate else ""
    lines = [f"{result.url}, namespace {result.space!r}{about}", f"  {counts(result.rows)}"]
    lines += [f"  {kind:<10} {size(held):>10}" for kind, held in result.bytes.items() if held]
    lines.append(f"  {'all':<10} {size(result.total_bytes):>10}")
    if result.disk_bytes is not None:
        lines.append(f"  {'on disk':<10} {size(result.disk_bytes):>10}  (all namespaces)")
    lines += [f"  {day} {size(grown):>10}" for day, grown in list(result.growth_bytes.items())[-7:]]
    return lines


def _forgotten_lines(done: ForgetResult) -> list[str]:
    verb = "would drop" if done.dry_run else "dropped"
    return [
        f"{verb} {counted(len(done.dropped), 'checkpoints')}, keep {done.kept:,}",
        *(f"  {each.id}  {when(each.timestamp)}  {each.tag}" for each in done.dropped),
    ]


def _pruned_lines(done: PruneResult) -> list[str]:
    would = "would " if done.dry_run else ""
    lines = [f"{would}delete {counted(done.deleted, 'packs')} ({size(done.freed_bytes)})"]
    if done.waiting:
        lines.append(
            f"{would}drop {counted(done.waiting, 'packs')} ({size(done.waiting_bytes)}) "
            "to delete by a later gc"
        )
    if done.copied_bytes:
        lines.append(f"{would}copy {size(done.copied_bytes)} of objects still needed")
    return lines


@takes_store
def bind_role(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="A role of the PostgreSQL server.")],
    *,
    read_only: Annotated[bool, typer.Option("--read-only", help="Let it read only.")] = False,
    unbind: Annotated[bool, typer.Option("--unbind", help="Take the rights and the binding away.")] = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Let a PostgreSQL role see one namespace only.

    Row-level security does it. Run it as the owner of the tables. From the first binding on, other roles
    that do not own the tables see nothing unless they are bound too.

    Examples:
        treering bind-role acme_app --namespace acme
    """
    from treering.errors import Unsupported

    with place.existing() as opened:
        if not opened.url.startswith("postgresql://"):
            raise Unsupported(f"{opened.url} has no roles; select a PostgreSQL store with --store")
        from treering.engines.postgres import roles

        with cast("Any", opened.engine).sql_connection() as connection:
            if unbind:
                roles.unbind_role(connection, role)
            else:
                roles.bind_role(connection, role, opened.space, writes=not read_only)
        space = None if unbind else opened.space
    line = f"{role} sees nothing any more" if unbind else f"{role} sees namespace {space} only"
    show({"role": role, "namespace": space, "read_only": read_only}, [line], as_json=as_json)


@takes_store
def move_project(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="A PostgreSQL database, without a password.")
    ] = None,
    *,
    home: Annotated[bool, typer.Option("--home", help="Move back to the store's first database.")] = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Move a namespace to another database while it is used.

    Select the store by its first database. Writers wait for less than a second, at the end. An interrupted
    move is finished by running it again.

    Examples:
        treering move-project postgresql://db2/agents --namespace acme
        treering move-project --home --namespace acme
    """
    from treering.errors import InvalidInput

    if home == (url is not None):
        raise InvalidInput("give either the URL of a database, or --home")
    with place.existing() as opened:
        report = opened.move_project(url)
    line = (
        f"{report.project}: {report.source} -> {report.target}: "
        f"{counted(report.rows, 'rows')}, {size(report.bytes)} in {report.seconds:.1f} s; "
        f"writers waited {report.pause_seconds:.2f} s"
    )
    show(report, [line], as_json=as_json)


@takes_store
def cells(*, limit: LimitOption = 100, place: StorePlace, as_json: JsonOption = False) -> None:
    """List namespaces that live in other databases.

    Examples:
        treering cells
    """
    from treering.api import redacted

    with place.existing(every=True) as opened:
        found = dict(limited(opened.cells().items(), limit))
    plain = [
        {"namespace": name, "url": redacted(each.url) or None, "moving_to": each.to and redacted(each.to)}
        for name, each in found.items()
    ]
    lines = [
        f"{clean(name)}  {redacted(each.url) or 'home'}"
        + ("" if each.to is None else f"  moving to {redacted(each.to) or 'home'}")
        for name, each in found.items()
    ]
    show(plain, lines or ["all namespaces live in this database"], as_json=as_json)

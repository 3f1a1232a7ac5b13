"""Commands that move data: ``import``, ``export`` and ``hook``, and ``push``, ``pull`` and ``remote``.

Each row of `treering.importers.registry` has its ``import`` command here. A store that is not there yet is
made, but only once the source was read to its end; a dry run makes and changes nothing.

``treering hook claude-code`` reads the event of Claude Code from stdin. It always succeeds and prints
nothing, since Claude Code acts on the output of hooks; failures are logged in ``~/.treering/hooks.log``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from treering.cli.console import (
    clean,
    counted,
    counts,
    limited,
    progress,
    rows,
    say,
    show,
    size,
    warn_of_secrets,
)
from treering.cli.options import (
    Commands,
    JsonOption,
    LimitOption,
    NamespaceOption,
    StoreOption,
    StorePlace,
    UserNamespaceOption,
    load_object,
    takes_store,
)

if TYPE_CHECKING:
    from treering.importers.folder_exports import FolderExport
    from treering.importers.registry import ImportReport, Spent
    from treering.importers.transfer import ThreadTransfer, TransferReport
    from treering.store import Store
    from treering.threads.directory import ThreadInfo


DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Report what is new, and change nothing.")]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Import nothing if anything cannot be read, and name it.")
]

_IN_MEMORY: Final = 8_000_000
_SHOWN: Final = 20
_DAYS: Final = 14

app: Final = Commands(name="import", help="Import the data of other tools. Repeat it to catch up.")
exports: Final = Commands(name="export", help="Write histories, and the folders of other tools.")
_remotes: Final = Commands(name="remote", help="Short names for servers, for push and pull.")
hooks: Final = Commands(name="hook", help="Record an agent while it works, from its own hooks.")


def add_to(main: typer.Typer) -> None:
    """Put the commands under the main one."""
    main.add_typer(app)
    main.add_typer(exports)
    main.add_typer(hooks)
    main.command()(push)
    main.command()(pull)
    main.add_typer(_remotes)


@app.command(name="claude-code")
@takes_store
def claude_code(
    source: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="The projects folder, one project's folder, or one session file."
        ),
    ] = "~/.claude/projects",
    *,
    dry_run: DryRunOption = False,
    strict: StrictOption = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Your past sessions of Claude Code, and what they cost.

    Examples:
        treering import claude-code
        treering import claude-code ~/.claude/projects --dry-run
    """
    found = _there(source)
    _run("claude-code", found, place, dry_run=dry_run, strict=strict, as_json=as_json, is_sure=found.is_dir())


@app.command()
@takes_store
def codex(
    source: Annotated[
        str, typer.Argument(metavar="PATH", help="The sessions folder, or one session file.")
    ] = "~/.codex/sessions",
    *,
    dry_run: DryRunOption = False,
    strict: StrictOption = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Your past sessions of Codex, and what they cost.

    Examples:
        treering import codex
    """
    found = _there(source)
    _run("codex", found, place, dry_run=dry_run, strict=strict, as_json=as_json, is_sure=found.is_dir())


@app.command()
@takes_store
def jsonl(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A file written by `treering export jsonl`; - for stdin.")
    ],
    *,
    dry_run: DryRunOption = False,
    strict: StrictOption = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Threads that `treering export jsonl` wrote.

    Examples:
        treering import jsonl alice.jsonl
        treering export jsonl --all | treering import jsonl - --store ./other
    """
    source = _stdin() if file == "-" else _there(file)
    _run("jsonl", source, place, dry_run=dry_run, strict=strict, as_json=as_json)


@app.command()
@takes_store
def langgraph(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The file of a SqliteSaver, or a PostgresSaver's URL.")
    ],
    *,
    dry_run: DryRunOption = False,
    strict: StrictOption = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Whole histories from LangGraph's own savers.

    Examples:
        treering import langgraph checkpoints.db --dry-run
        treering import langgraph postgresql://db.example/graphs
    """
    found = source if source.startswith(("postgresql://", "postgres://")) else _there(source)
    _run("langgraph", found, place, dry_run=dry_run, strict=strict, as_json=as_json)


@app.command()
@takes_store
def agentry(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The outputs folder, or its checkpoints.db.")
    ],
    *,
    unpickler: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="Your own function that decodes pickled rows; it is executed."
        ),
    ] = None,
    skip_pickled: Annotated[bool, typer.Option("--skip-pickled", help="Skip pickled rows.")] = False,
    dry_run: DryRunOption = False,
    strict: StrictOption = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Threads of Agentry Lab.

    Examples:
        treering import agentry outputs
        treering import agentry checkpoints.db --skip-pickled
    """
    options: dict[str, Any] = {
        "unpickler": None if unpickler is None else load_object(unpickler, "--unpickler"),
        "skip_pickled": skip_pickled,
    }
    found = _there(source)
    _run("agentry", found, place, dry_run=dry_run, strict=strict, as_json=as_json, **options)


@app.command(name="orchestrator-log")
@takes_store
def orchestrator_log(
    source: Annotated[
        str, typer.Argument(metavar="PATH", help="A log file of JSON lines, or a folder of them.")
    ],
    *,
    dry_run: DryRunOption = False,
    strict: StrictOption = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Runs that the logs of the Orchestrator tell of.

    Examples:
        treering import orchestrator-log logs/ --dry-run
    """
    _run("orchestrator-log", _there(source), place, dry_run=dry_run, strict=strict, as_json=as_json)


@app.command()
@takes_store
def evolve(
    source: Annotated[
        str, typer.Argument(metavar="PATH", help="The observability folder, its sessions, or one file.")
    ] = "~/.evolve-sdk/observability/sessions",
    *,
    dry_run: DryRunOption = False,
    strict: StrictOption = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Session logs of Evolve, with their metadata.

    Examples:
        treering import evolve
    """
    _run("evolve", _there(source), place, dry_run=dry_run, strict=strict, as_json=as_json)


@app.command()
@takes_store
def ciana(
    data: Annotated[str, typer.Argument(metavar="DATA_DIR", help="The agent's data folder.")],
    *,
    workspace: Annotated[
        str | None, typer.Option(metavar="DIR", help="The agent's workspace folder, for its memory files.")
    ] = None,
    dry_run: DryRunOption = False,
    strict: StrictOption = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Chats of a CianaParrot agent.

    Examples:
        treering import ciana data --workspace workspace
    """
    found = _there(data)
    folder = None if workspace is None else _there(workspace)
    _run("ciana", found, place, dry_run=dry_run, strict=strict, as_json=as_json, workspace=folder)


@app.command()
@takes_store
def langfuse(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A file that Langfuse exported (JSON, JSON lines), or a folder of them."
        ),
    ],
    *,
    dry_run: DryRunOption = False,
    strict: StrictOption = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Traces that Langfuse exported.

    Examples:
        treering import langfuse observations.jsonl --dry-run
        treering import langfuse observations.jsonl
    """
    _run("langfuse", _there(source), place, dry_run=dry_run, strict=strict, as_json=as_json)


@app.command()
@takes_store
def phoenix(
    source: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A file of spans that Phoenix exported, or a folder of them."),
    ],
    *,
    dry_run: DryRunOption = False,
    strict: StrictOption = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Traces that Phoenix exported.

    Examples:
        treering import phoenix spans.jsonl --dry-run
        treering import phoenix spans.jsonl
    """
    _run("phoenix", _there(source), place, dry_run=dry_run, strict=strict, as_json=as_json)


@app.command()
@takes_store
def otlp(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A file of the Collector's file exporter (JSON or protobuf), or a folder of them.",
        ),
    ],
    *,
    dry_run: DryRunOption = False,
    strict: StrictOption = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Traces and logs from files of OpenTelemetry.

    Examples:
        treering import otlp traces.jsonl --dry-run
        treering import otlp traces.jsonl
    """
    _run("otlp", _there(source), place, dry_run=dry_run, strict=strict, as_json=as_json)


@app.command()
@takes_store
def plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The importer's name in its entry point.")],
    source: Annotated[str, typer.Argument(metavar="PATH", help="A file or folder.")],
    *,
    dry_run: DryRunOption = False,
    strict: StrictOption = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """What the importer of an installed package reads.

    Examples:
        treering import plugin crewai runs.json --dry-run
    """
    _run(name, _there(source), place, dry_run=dry_run, strict=strict, as_json=as_json)


# -----------------------------------------------------------------------------------------------------------
# The commands that write histories out: export.


@exports.command("jsonl")
@takes_store
def export_jsonl(
    threads: Annotated[
        list[str] | None, typer.Argument(metavar="[THREAD]...", help="The threads to export.")
    ] = None,
    *,
    every_thread: Annotated[
        bool, typer.Option("--all", help="Export every thread of the namespace.")
    ] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file to write; - for stdout.")
    ] = "-",
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Whole histories of threads, for `import jsonl`.

    Examples:
        treering export jsonl support/alice -o alice.jsonl
        treering export jsonl --all -o all.jsonl
    """
    from treering.errors import InvalidInput
    from treering.importers.jsonl_export import export_jsonl as write_histories

    if bool(threads) == every_thread:
        raise InvalidInput("name the threads to export, or all of them with --all")
    with place.existing() as opened, progress("exporting") as bar:
        chosen = _chosen(opened, threads or [], user_namespace)
        expected = sum(each.step + 1 for each in chosen)
        with _output(output) as file:
            written = 0

            def write(data: bytes) -> None:
                nonlocal written
                written += len(data)
                file.write(data)

            report = write_histories(
                opened, chosen, write, on_progress=lambda done, _: bar.update(done, expected, bytes=written)
            )
    held = counts(
        {
            "threads": report.threads,
            "checkpoints": report.checkpoints,
            "rewinds": report.rewinds,
            "events": report.events,
            "runs": report.runs,
        }
    )
    if report.left_out:
        say(f"note: not in the file, because their content is not of this thread: {counts(report.left_out)}")
    if report.snapshots:
        say(
            f"note: the files of {counted(len(report.snapshots), 'snapshots')} are not in it; "
            "`treering push` and `treering copy` take them along"
        )
    warn_of_secrets(report.secrets)
    if output != "-":
        show(report, [f"{output}: {held}"], as_json=as_json)


@exports.command("agentry")
@takes_store
def export_agentry(
    outputs: Annotated[
        str, typer.Argument(metavar="DIR", help="The folder to write; new, or empty.")
    ] = "outputs",
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """The outputs folder of Agentry Lab.

    Transcripts, and the newest state of each thread as JSON.

    Examples:
        treering export agentry outputs
    """
    from treering.importers.folder_exports import export_agentry as write_outputs

    with place.existing() as opened, progress("exporting"):
        _tell_folder(write_outputs(opened, outputs, namespace=user_namespace), as_json=as_json)


@exports.command("ciana")
@takes_store
def export_ciana(
    data: Annotated[str, typer.Argument(metavar="DIR", help="The folder to write; new, or empty.")] = "data",
    *,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """The data folder of CianaParrot, without its conversations.

    Counters of chats, scheduled tasks, user states and session logs.

    Examples:
        treering export ciana data
    """
    from treering.importers.folder_exports import export_ciana as write_data

    with place.existing() as opened, progress("exporting"):
        _tell_folder(write_data(opened, data, namespace=user_namespace), as_json=as_json)


def _tell_folder(report: FolderExport, *, as_json: bool) -> None:
    warn_of_secrets(report.secrets)
    lines = [
        f"  {each.path}: {each.count:,} {each.holds}{f' ({each.note})' if each.note else ''}"
        for each in report.files
    ]
    show(report, [report.folder, *lines], as_json=as_json)


@hooks.command(name="claude-code")
def hook_claude_code(
    *,
    install: Annotated[
        bool, typer.Option("--install", help="Add the hooks to Claude Code's settings.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the hooks.")] = False,
    settings: Annotated[
        str, typer.Option("--settings", metavar="FILE", help="Settings file.")
    ] = "~/.claude/settings.json",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until everything is recorded.")] = False,
    store: StoreOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Record sessions of Claude Code while they run.

    Without an option this is the hook itself, which reads stdin. --install makes Claude Code call it.

    Examples:
        treering hook claude-code --install
        treering hook claude-code --remove
    """
    from treering.importers.claude_code.hooks import hook_command, take_call
    from treering.importers.claude_code.hooks import install as install_hooks

    if not install and not remove:
        take_call(sys.stdin.buffer.read(), store, namespace=namespace, waits=wait)
        return
    path = Path(settings).expanduser()
    if remove:
        changed = install_hooks(path, None)
        say(f"{'removed from' if changed else 'not in'} {path}")
        return
    from treering.api import locate

    place = locate(store)
    # Hooks run in the project's folder. A URL out of the environment may hold a secret, and stays there.
    url = store if place.folder is None else str(place.folder.resolve())
    changed = install_hooks(path, hook_command(url, namespace=namespace, waits=wait))
    say(f"{'installed into' if changed else 'already in'} {path}; sessions go to {place.display}")


def _run(
    name: str,
    source: Any,
    place: StorePlace,
    *,
    dry_run: bool,
    strict: bool,
    as_json: bool,
    is_sure: bool = False,
    **options: Any,
) -> None:
    """Import; a store is only made once it is known that the source can be imported.

    ``is_sure`` says that a bad line stops nothing, so that there is no need to read everything twice.
    """
    from treering.api import locate, probe
    from treering.api import open as open_store
    from treering.importers.registry import find_importer

    function = partial(find_importer(name), source, strict=strict, **options)
    report: Any = None  # one of the two below makes it
    located = locate(place.store)
    is_there = probe(located).exists
    if not is_there and (dry_run or strict or not is_sure):
        with open_store("memory:", namespace=place.namespace) as empty:
            report = function(empty, dry_run=True)
    if not dry_run or is_there:
        with (
            place.open() as opened,
            progress("importing") as bar,
        ):
            report = function(opened, on_progress=bar.update, dry_run=dry_run)
        if not is_there:
            say(f"note: made a new store in {located.display}")
    if report.seconds and report.lines:
        speed = report.lines / report.seconds
        say(f"note: {counted(report.lines, 'lines')} in {report.seconds:.1f} s, {speed:,.0f} a second")
    show(report, _lines(report), as_json=as_json)


def _stdin() -> IO[bytes]:
    """What comes through the pipe, so that it can be read more than once."""
    import shutil
    import tempfile

    copy = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - gone with the process
    shutil.copyfileobj(sys.stdin.buffer, copy)
    return copy


def _there(source: str) -> Path:
    from treering.errors import NotFound

    path = Path(source).expanduser()
    if not path.exists():
        raise NotFound(f"there is nothing at {source!r}; give the path of what to import")
    return path


def _lines(report: ImportReport) -> list[str]:
    would = "would import" if report.dry_run else "imported"
    lines = [f"{report.source} ({report.importer})"]
    for each in report.files:
        summary = f"{would} {each.new:,}" if each.new or each.known or not each.left_out else "not imported"
        if each.known:
            summary += f", {each.known:,} there already"
        if each.left_out and (each.new or each.known):
            summary += f", {each.left_out:,} left out"
        note = f" ({each.note})" if each.note else ""
        lines.append(f"  {each.path}: {counted(each.found, each.holds)}, {summary}{note}")
    return [*lines, *_oddities(report), *_replays(report), *_spent(report)]


def _oddities(report: ImportReport) -> list[str]:
    lines = [f"  cannot be read: {clean(each)}" for each in report.bad[:_SHOWN]]
    if len(report.bad) > _SHOWN:
        lines.append(f"  ... and {len(report.bad) - _SHOWN:,} more")
    lines += [
        f"  kept, of the unknown type {clean(kind)}: {counted(count, 'lines')}"
        for kind, count in report.unknown.items()
    ]
    return lines


def _replays(report: ImportReport) -> list[str]:
    """How many runs can be replayed, and what the others lack."""
    if not report.runs:
        return []
    missing = list(report.not_replayable.items())
    lines = [f"  {counted(report.runs, 'runs')}, of which {report.runs - len(missing):,} can be replayed"]
    lines += [f"  not {clean(run)}: {clean(why)}" for run, why in missing[:_SHOWN]]
    if len(missing) > _SHOWN:
        lines.append(f"  ... and {len(missing) - _SHOWN:,} more")
    return lines


def _spent(report: ImportReport) -> list[str]:
    """What it cost, by project and by day."""
    if not report.spent:
        return []
    from treering.importers.registry import Tally

    total, projects, days = Tally(), Tally(), Tally()
    for each in report.spent:
        total.add(_renamed(each, project="total", day=""))
        projects.add(_renamed(each, day=""))
        days.add(_renamed(each, project=""))
    by_cost: list[Spent] = sorted(projects.spent, key=lambda each: -sum(each.nanos.values()))
    head = ("runs", "tokens", "cost")
    by_project = rows(
        [
            ("project", *head),
            *((clean(each.project), *_sums(each)) for each in [*by_cost, *total.spent]),
        ]
    )
    shown = days.spent[-_DAYS:]
    by_day = rows([("day", *head), *((each.day, *_sums(each)) for each in shown)])
    earlier = len(days.spent) - len(shown)
    return ["", *by_project, "", *by_day, *([f"and {earlier:,} earlier days"] if earlier else [])]


def _renamed(spent: Spent, **names: str) -> Spent:
    import msgspec

    return msgspec.structs.replace(spent, **names)


def _sums(spent: Spent) -> tuple[str, str, str]:
    from treering.runs.money import from_nanos

    amounts = [f"{from_nanos(nanos):,.4f} {currency}" for currency, nanos in sorted(spent.nanos.items())]
    if spent.unpriced_tokens:
        amounts.append(f"{counted(spent.unpriced_tokens, 'tokens')} unpriced")
    return f"{spent.runs:,}", f"{spent.usage.total:,}", ", ".join(amounts) or "0"


def _chosen(opened: Store, names: list[str], user_namespace: str) -> list[ThreadInfo]:
    from treering.threads.directory import Finder, all_threads

    if not names:
        found = all_threads(opened.engine, opened.space, namespace=user_namespace or None)
        return sorted(found, key=lambda each: (each.created_at_us, each.namespace, each.id))
    finder = Finder(opened.engine, opened.space, user_namespace)
    return [finder.thread(name) for name in dict.fromkeys(names)]


@contextmanager
def _output(name: str) -> Generator[BinaryIO]:
    """Where to write. A file appears under its name only when it is whole."""
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    from treering.errors import Unreachable

    path = Path(name)
    try:
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise Unreachable(
            f"{path} cannot be written: {error.strerror or error}; choose another file"
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


AddressArgument = Annotated[
    str,
    typer.Argument(
        metavar="REMOTE://PROJECT[/THREAD]",
        help="A project of a remote and a thread, or the project alone for all threads.",
        show_default=False,
    ),
]
AllowSecretsOption = Annotated[
    bool, typer.Option("--allow-secrets", help="Send what looks like keys and passwords as well.")
]


@takes_store
def push(
    address: AddressArgument,
    *,
    allow_secrets: AllowSecretsOption = False,
    dry_run: DryRunOption = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Send threads to a server, with their files and runs.

    What is there already is not sent again. A push that was interrupted is finished by the next one.

    Examples:
        treering push team://support/alice
        treering push team://support --dry-run
    """
    from treering.importers.transfer import push as push_threads

    with place.existing() as opened, progress("pushing") as bar:
        report = push_threads(
            opened,
            address,
            namespace=user_namespace,
            allow_secrets=allow_secrets,
            dry_run=dry_run,
            on_progress=lambda now: bar.update(now.number, now.of_threads, bytes=now.bytes),
        )
    _tell(report, "would push" if dry_run else "pushed", as_json=as_json)


@takes_store
def pull(
    address: AddressArgument,
    *,
    allow_secrets: AllowSecretsOption = False,
    dry_run: DryRunOption = False,
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Fetch threads from a server, with their files and runs.

    What is here already is not fetched again. A pull that was interrupted is finished by the next one.

    Examples:
        treering pull team://support/alice
        treering pull team://support
    """
    from treering.importers.transfer import pull as pull_threads

    with place.open() as opened, progress("pulling") as bar:
        report = pull_threads(
            opened,
            address,
            namespace=user_namespace,
            allow_secrets=allow_secrets,
            dry_run=dry_run,
            on_progress=lambda now: bar.update(now.number, now.of_threads, bytes=now.bytes),
        )
    _tell(report, "would pull" if dry_run else "pulled", as_json=as_json)


@_remotes.command("add")
def add(
    name: Annotated[str, typer.Argument(help="The short name, such as team.", show_default=False)],
    url: Annotated[str, typer.Argument(help="The URL of the server.", show_default=False)],
    *,
    key_env: Annotated[
        str | None,
        typer.Option(
            "--key-env", metavar="VARIABLE", help="The variable with the key for it [TREERING_API_KEY]."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Name a server, or change where a name points to.

    Examples:
        treering remote add team https://agents.example
    """
    from treering.importers.remotes import add_remote

    remote = add_remote(name, url, key_env=key_env)
    show(remote, [f"{remote.name} is {remote.url}; its key comes from {remote.key_env}"], as_json=as_json)


@_remotes.command("list")
def list_remotes(*, limit: LimitOption = 100, as_json: JsonOption = False) -> None:
    """List the names of servers.

    Examples:
        treering remote list
    """
    from treering.importers.remotes import remotes

    found = limited(remotes(), limit)
    table = [("NAME", "URL", "KEY"), *((each.name, each.url, f"${each.key_env}") for each in found)]
    show(found, rows(table) if found else [], as_json=as_json)
    if not found and not as_json:
        say("no remotes; add one with: treering remote add team https://server")


@_remotes.command("remove")
def remove(
    name: Annotated[str, typer.Argument(help="The short name.", show_default=False)],
    *,
    as_json: JsonOption = False,
) -> None:
    """Forget the name of a server. The server is not touched.

    Examples:
        treering remote remove team
    """
    from treering.importers.remotes import remove_remote

    remote = remove_remote(name)
    show(remote, [f"removed {remote.name} ({remote.url})"], as_json=as_json)


def _tell(report: TransferReport, done: str, *, as_json: bool) -> None:
    lines = [f"{clean(each.thread)}: {_summary(each, done)}" for each in report.threads]
    show(report, lines, as_json=as_json)
    for each in report.threads:
        warn_of_secrets(each.secrets)
        if each.left_out:
            say(
                f"note: left out of {clean(each.thread)}, because their content is not of this thread: "
                f"{counts(each.left_out)}"
            )
    if not report.threads and not as_json:
        say("no threads")


def _summary(each: ThreadTransfer, done: str) -> str:
    if not each.is_new:
        return "the other side is ahead" if each.is_ahead else "nothing new"
    numbers = {
        "checkpoints": each.checkpoints,
        "runs": each.runs,
        "events": each.events,
        "objects of files": each.files,
    }
    return f"{done} {counts(numbers)}{f' ({size(each.bytes)})' if each.bytes else ''}"

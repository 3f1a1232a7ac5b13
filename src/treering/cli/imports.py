"""Commands that bring in what others wrote: ``treering import <name> SOURCE``.

Each row of `treering.importers.table` has its command here. A store that is not there yet is made, but only
once the source was found; a dry run makes and changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from treering.cli.console import progress, say, show
from treering.cli.options import JsonOption, NamespaceOption, StoreBlobsOption, StoreOption

if TYPE_CHECKING:
    from treering.importers.report import ImportReport
    from treering.store import Store

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Change nothing, say what would come in.")]

app: Final = typer.Typer(
    name="import",
    help="Bring in what other tools wrote; again to catch up.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def add_to(main: typer.Typer) -> None:
    """Put the commands under the main one."""
    main.add_typer(app)


@app.command()
def jsonl(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `treering export` wrote; - for stdin.")],
    *,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    store_blobs: StoreBlobsOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Threads that `treering export` wrote."""
    source = sys.stdin.buffer if file == "-" else _there(file)
    with _target(store, store_blobs, namespace, dry_run=dry_run) as target:
        _run("jsonl", source, target, dry_run=dry_run, as_json=as_json)


@app.command()
def langgraph(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The file of a SqliteSaver, or a PostgresSaver's URL.")
    ],
    *,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    store_blobs: StoreBlobsOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Whole histories from LangGraph's own savers."""
    found = source if source.startswith(("postgresql://", "postgres://")) else _there(source)
    with _target(store, store_blobs, namespace, dry_run=dry_run) as target:
        _run("langgraph", found, target, dry_run=dry_run, as_json=as_json)


@app.command()
def agentry(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The outputs folder, or its checkpoints.db.")
    ],
    *,
    unpickler: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="Your own code that reads pickled rows; it is run."),
    ] = None,
    skip_pickled: Annotated[bool, typer.Option("--skip-pickled", help="Leave pickled rows out.")] = False,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    store_blobs: StoreBlobsOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Threads of Agentry Lab."""
    options = {"unpickler": None if unpickler is None else _function(unpickler), "skip_pickled": skip_pickled}
    found = _there(source)
    with _target(store, store_blobs, namespace, dry_run=dry_run) as target:
        _run("agentry", found, target, dry_run=dry_run, as_json=as_json, **options)


@app.command()
def ciana(
    data: Annotated[str, typer.Argument(metavar="DATA_DIR", help="The agent's data folder.")],
    *,
    workspace: Annotated[
        str | None, typer.Option(metavar="DIR", help="The agent's workspace folder, for its memory files.")
    ] = None,
    dry_run: DryRunOption = False,
    store: StoreOption = None,
    store_blobs: StoreBlobsOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Chats of a CianaParrot agent."""
    found = _there(data)
    folder = None if workspace is None else _there(workspace)
    with _target(store, store_blobs, namespace, dry_run=dry_run) as target:
        _run("ciana", found, target, dry_run=dry_run, as_json=as_json, workspace=folder)


def _run(name: str, source: Any, target: Store, *, dry_run: bool, as_json: bool, **options: Any) -> None:
    from treering.importers.table import importer, loaded

    with progress("importing") as update:
        report: ImportReport = loaded(importer(name).function)(
            source, target, on_progress=update, dry_run=dry_run, **options
        )
    show(report, _lines(report), as_json=as_json)


@contextmanager
def _target(url: str | None, blobs: str | None, namespace: str | None, *, dry_run: bool) -> Generator[Store]:
    """The store to import into; in a dry run one that is not there is taken as empty."""
    from treering.api import locate, look
    from treering.api import open as open_store

    place = locate(url)
    is_there = look(place).there
    if dry_run and not is_there:
        with open_store("memory:", namespace=namespace) as empty:
            yield empty
        return
    with open_store(url, blobs=blobs, namespace=namespace) as opened:
        if not is_there:
            say(f"note: made a new store in {place.shown}")
        yield opened


def _there(source: str) -> Path:
    from treering.errors import NotFound

    path = Path(source).expanduser()
    if not path.exists():
        raise NotFound(f"there is nothing at {source!r}; give the path of what to import")
    return path


def _function(name: str) -> Callable[[bytes], Any]:
    from importlib import import_module

    from treering.errors import InvalidInput

    module, _, function = name.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(f"--unpickler {name!r} cannot be loaded: {error}; use MODULE:FUNCTION") from None
    finally:
        sys.path.remove("")
    return found


def _lines(report: ImportReport) -> list[str]:
    would = "would import" if report.dry_run else "imported"
    lines = [f"{report.source} ({report.importer})"]
    for each in report.files:
        told = f"{would} {each.new:,}" if each.new or not each.left_out else "not imported"
        if each.known:
            told += f", {each.known:,} there already"
        if each.left_out and (each.new or each.known):
            told += f", {each.left_out:,} left out"
        note = f" ({each.note})" if each.note else ""
        lines.append(f"  {each.path}: {each.found:,} {each.holds}, {told}{note}")
    return lines

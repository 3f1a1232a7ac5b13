"""The command that writes histories out: export."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from treering.cli.console import counts, progress, say, show
from treering.cli.options import (
    JsonOption,
    StorePlace,
    UserNamespaceOption,
    takes_store,
)

if TYPE_CHECKING:
    from treering.store import Store
    from treering.views.directory import ThreadInfo


def add_to(app: typer.Typer) -> None:
    """Put the command under the main one."""
    app.command()(export)


@takes_store
def export(
    threads: Annotated[
        list[str] | None, typer.Argument(metavar="[THREAD]...", help="The threads to export.")
    ] = None,
    *,
    every_thread: Annotated[bool, typer.Option("--all", help="Every thread of the namespace.")] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write; - for stdout.")
    ] = "-",
    format: Annotated[str, typer.Option(metavar="NAME", help="The format; jsonl is the only one.")] = "jsonl",
    place: StorePlace,
    user_namespace: UserNamespaceOption = "",
    as_json: JsonOption = False,
) -> None:
    """Write whole histories, for `import jsonl`."""
    from treering.errors import InvalidInput
    from treering.importers.export import export_jsonl

    if format != "jsonl":
        raise InvalidInput(f"there is no format {format!r}; use jsonl")
    if bool(threads) == every_thread:
        raise InvalidInput("name the threads to export, or all of them with --all")
    with place.existing() as opened, progress("exporting") as update:
        chosen = _chosen(opened, threads or [], user_namespace)
        with _output(output) as file:
            report = export_jsonl(opened, chosen, file.write, on_progress=update)
    held = counts(
        {
            "threads": report.threads,
            "checkpoints": report.checkpoints,
            "rewinds": report.rewinds,
            "events": report.events,
        }
    )
    if report.left_out:
        say(f"note: not in the file, because their content is not of this thread: {counts(report.left_out)}")
    if report.snapshots:
        say(
            f"note: the files of {report.snapshots} snapshots are not in it; `treering copy` takes them along"
        )
    if output != "-":
        show(report, [f"{output}: {held}"], as_json=as_json)


def _chosen(opened: Store, names: list[str], user_namespace: str) -> list[ThreadInfo]:
    from treering.views.finding import Finder

    if not names:
        found = opened.threads(namespace=user_namespace or None)
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

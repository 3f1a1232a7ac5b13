"""``treering doctor``: what is configured, whether it can be reached, whether it is sound, what to do.

The exit code is 1 when something is broken, and 0 when there are only warnings and notes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from treering.cli.console import clean, rows, show
from treering.cli.options import (
    JsonOption,
    StorePlace,
    takes_store,
)

if TYPE_CHECKING:
    from treering.api import Place
    from treering.cli.doctor_checks import Finding

_MARKS: Final = {"ok": "ok", "note": "note", "warning": "WARNING", "broken": "BROKEN"}


def add_to(app: typer.Typer) -> None:
    """Put the command under the main one."""
    app.command("doctor")(doctor)


@takes_store
def doctor(
    *,
    verify: Annotated[bool, typer.Option(help="Follow every row and link; long for a large store.")] = True,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="FOLDER", help="Where MEMORY.md is, which git must not take.")
    ] = Path(),
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Say what is configured, reachable and sound, and what to do."""
    from treering.api import locate
    from treering.cli import doctor_checks as checks

    located = locate(place.store)
    found = [
        *checks.installation(),
        *checks.settings(place.store, located),
        *checks.clock(),
    ]
    found += _of_store(place, located, verify=verify)
    found += [*checks.private_files(folder), *checks.extras()]
    broken = sum(each.status == "broken" for each in found)
    warnings = sum(each.status == "warning" for each in found)
    told = {"ok": not broken, "broken": broken, "warnings": warnings, "findings": found}
    show(told, _lines(found, broken, warnings), as_json=as_json)
    if broken:
        raise typer.Exit(1)


def _of_store(place: StorePlace, located: Place, *, verify: bool) -> Iterator[Finding]:
    from treering.cli import doctor_checks as checks
    from treering.cli.doctor_checks import Finding
    from treering.errors import TreeringError
    from treering.maintenance.stats import user_spaces

    there = list(checks.presence(located))
    yield from there
    if there[-1].status != "ok":
        return
    if located.folder is not None:
        yield from checks.files(located.folder)
    try:
        with place.open() as store:
            spaces = user_spaces(store.engine)
            detail = f"opened; {len(spaces)} namespaces: {', '.join(spaces[:20]) or 'nothing is in it yet'}"
            yield Finding(what="reachable", status="ok", detail=detail)
            if verify:
                yield from checks.contents(store, spaces)
            if store.space in spaces:
                yield from checks.times(store)
                yield from checks.runs(store)
                yield from checks.schedules(store)
    except TreeringError as error:
        advice = "try again in a moment" if error.retryable else "see the message"
        yield Finding(
            what="reachable", status="broken", detail=f"{type(error).__name__}: {error}", advice=advice
        )


def _lines(found: list[Finding], broken: int, warnings: int) -> Iterator[str]:
    table = [("", "what", "how it stands")]
    for each in found:
        table.append((_MARKS[each.status], clean(each.what), clean(each.detail)))
        if each.advice:
            table.append(("", "", f"-> {clean(each.advice)}"))
    yield from rows(table)
    yield ""
    yield "all is well" if not broken and not warnings else f"{broken} broken, {warnings} warnings"

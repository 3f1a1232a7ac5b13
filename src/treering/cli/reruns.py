"""Commands that make recorded runs again: ``treering rerun`` and ``treering reruns``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treering.cli.console import clean, plain, rows, show
from treering.cli.options import JsonOption, StorePlace, takes_store
from treering.cli.render import one_line
from treering.cli.runs import RunArgument, run_id

if TYPE_CHECKING:
    from treering.replays.comparison import Compared, Comparison, Spread


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (rerun, reruns):
        app.command()(command)


@takes_store
def rerun(
    run: RunArgument,
    *,
    from_step: Annotated[
        int, typer.Option("--from", metavar="STEP", min=1, help="The first step to make for real.")
    ] = 1,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another model; may be repeated, for a variant each."),
    ] = None,
    prompt_file: Annotated[
        list[Path] | None,
        typer.Option("--prompt-file", metavar="FILE", help="Another system prompt; may be repeated."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of requests, such as temperature=0."),
    ] = None,
    repeat: Annotated[
        int, typer.Option("-n", "--repeat", metavar="N", min=1, help="How often to run each variant.")
    ] = 1,
    verify: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="A command to run in each folder, such as 'pytest -q'."),
    ] = None,
    entry: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="What to run: function, agent or graph [as recorded]."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where each rerun gets a folder [temporary].")
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="A field that may differ from the recording: metadata.user_id."),
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="Text that may differ: uuid, timestamp, date, time, number."),
    ] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Run a recorded run again from a step on, and compare.

    Steps before it are answered from the recording; the run works in a fork with its own files, thread and
    memory.

    Examples:
        treering rerun 01j9zq8 --from 12 --model gpt-5-mini -n 5 --verify "pytest -q"
        treering rerun 01j9zq8 --prompt-file terse.md --set temperature=0
    """
    from treering.replays.replay import Tolerance
    from treering.replays.rerun import rerun as make

    with place.existing() as opened:
        made = make(
            opened,
            run_id(opened, run),
            from_step=from_step,
            model=model or None,
            prompt=[each.read_text() for each in prompt_file] if prompt_file else None,
            parameters=_parameters(set_ or []),
            repeat=repeat,
            verify=verify,
            entry=entry,
            folder=folder,
            tolerance=Tolerance(ignore=tuple(ignore or ()), mask=tuple(mask or ())),
        )
    show(plain(made), lines_of(made), as_json=as_json)


@takes_store
def reruns(
    run: RunArgument,
    *,
    group: Annotated[str | None, typer.Option(metavar="ID", help="Which reruns [the newest].")] = None,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Compare a run with the reruns of it.

    Examples:
        treering reruns 01j9zq8
    """
    from treering.replays.comparison import compare_reruns

    with place.existing() as opened:
        found = compare_reruns(opened, run_id(opened, run), group=group)
    show(plain(found), lines_of(found), as_json=as_json)


def _parameters(given: list[str]) -> dict[str, Any]:
    import msgspec

    from treering.errors import InvalidInput

    found: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals or not name:
            raise InvalidInput(f"--set {each!r} is invalid; give NAME=VALUE, such as temperature=0")
        try:
            found[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            found[name] = text
    return found


def lines_of(made: Comparison) -> list[str]:
    """Return the table of a comparison."""
    from treering.core.ids import short_ids

    members = (made.original, *made.reruns)
    ids = short_ids(each.run for each in members)
    table = [("RUN", "VARIANT", "STATUS", "DEPARTS", "MESSAGES", "FILES", "VERIFY", "TOKENS", "COST", "TIME")]
    for each in members:
        is_original = each is made.original
        departs = "" if is_original else "never" if each.departure is None else f"step {each.departure.step}"
        table.append(
            (
                clean(ids[each.run]),
                clean(one_line(each.variant, 40)),
                each.status,
                departs,
                f"{each.messages}" if is_original else f"{each.messages} ({each.common_messages} same)",
                "" if is_original else f"{len(each.files)} differ" if each.files else "same",
                _verified(each),
                f"{each.tokens:,}",
                "?" if each.cost is None else f"${each.cost:.6f}",
                f"{each.took_us / 1e6:.2f}s",
            )
        )
    lines = [*rows(table), f"tokens, cost and time from step {made.from_step} on"]
    for each in made.reruns:
        if each.departure is not None:
            found = each.departure
            lines += [
                f"{clean(ids[each.run])} {found.what} otherwise at step {found.step}:",
                f"  - {clean(found.original)}",
                f"  + {clean(found.here)}",
            ]
        if each.error:
            lines.append(f"{clean(ids[each.run])} failed: {clean(one_line(each.error, 160))}")
        lines += [f"{clean(ids[each.run])} {file.change} {clean(file.path)}" for file in each.files]
    repeated = [each for each in made.variants if each.runs > 1]
    if repeated:
        summary = [("VARIANT", "RUNS", "OK", "VERIFIED", "TOKENS", "COST", "SECONDS")]
        summary += [
            (
                clean(one_line(each.variant, 40)),
                str(each.runs),
                str(each.ok),
                "" if each.verified is None else str(each.verified),
                _spread(each.tokens, "{:,.0f}"),
                _spread(each.cost, "${:.6f}"),
                _spread(each.seconds, "{:.2f}"),
            )
            for each in repeated
        ]
        lines += ["", *rows(summary)]
    return lines


def _verified(each: Compared) -> str:
    if each.verify is None:
        return ""
    return "ok" if each.verify.is_ok else f"exit {each.verify.exit_code}"


def _spread(found: Spread | None, form: str) -> str:
    return "" if found is None else f"{form.format(found.mean)} ± {form.format(found.deviation)}"

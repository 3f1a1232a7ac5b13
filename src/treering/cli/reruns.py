"""Commands that step through runs and make them again: ``treering step``, ``rerun`` and ``reruns``."""

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
    from treering.replays.steps import Step, StepView


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (step, rerun, reruns):
        app.command()(command)


@takes_store
def step(
    run: RunArgument,
    number: Annotated[
        int | None, typer.Argument(metavar="[N]", help="The number of a step.", show_default=False)
    ] = None,
    *,
    tool: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Go to a call of this tool; may be repeated.")
    ] = None,
    error: Annotated[bool, typer.Option("--error", help="Go to a step that failed.")] = False,
    cost_above: Annotated[
        float | None, typer.Option(metavar="AMOUNT", help="Go to where the cost passes this.")
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="Go to a step with this text.")] = None,
    back: Annotated[bool, typer.Option("--back", help="Look before step N, instead of behind it.")] = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Step through a run, forward and back.

    Each step shows what was said, state, files, memory and cost. Without a number, list the steps. With
    conditions, go to the next step that meets any of them.

    Examples:
        treering step last
        treering step last 12
        treering step last 12 --error --tool refund
    """
    from treering.errors import NotFound
    from treering.replays.steps import Breakpoint, each_step, find_step, step_view

    with place.existing() as opened:
        chosen = run_id(opened, run)
        if tool or error or text or cost_above is not None:
            wanted = Breakpoint(tool=tuple(tool or ()), error=error, cost_above=cost_above, text=text)
            last = sum(1 for _ in each_step(opened, chosen)) + 1 if back and number is None else number or 0
            found = find_step(opened, chosen, wanted, after=last, back=back)
            if found is None:
                raise NotFound(
                    f"no step {'before' if back else 'behind'} {last} of run {chosen!r} is like that"
                )
            number = found.number
        if number is None:
            steps = list(each_step(opened, chosen))
            table = [("STEP", "WHAT", "NAME", "STATUS", "TOKENS", "COST", "CALL")]
            table += [
                (
                    str(each.number),
                    each.role or each.type,
                    clean(one_line(each.name or each.model or "", 40)),
                    each.status or "",
                    f"{each.tokens_so_far:,}",
                    _amounts(each),
                    str(each.call),
                )
                for each in steps
            ]
            show(plain(steps), rows(table) if steps else ["no steps"], as_json=as_json)
            return
        view = step_view(opened, chosen, number)
    show(plain(view), _step_lines(view), as_json=as_json)


def _amounts(step: Step) -> str:
    return ", ".join(f"{amount:.6f} {currency}" for currency, amount in step.cost_so_far.items())


def _step_lines(view: StepView) -> list[str]:
    """Describe a step, and the run at that moment."""
    from treering.runs.messages import message_text

    step = view.step
    name = f" {clean(step.name)}" if step.name else ""
    lines = [f"step {step.number}: {step.role or step.type}{name} {step.status or ''}".rstrip()]
    lines.append(f"  so far       {step.tokens_so_far:,} tokens, {_amounts(step) or 'no cost'}")
    if view.error:
        lines.append(f"  error        {clean(one_line(view.error, 200))}")
    for label, value in (("input", view.input_value), ("output", view.output_value)):
        if value is not None:
            lines.append(f"  {label:<12} {clean(one_line(str(value), 200))}")
    found = view.messages
    if found is not None:
        lines.append(f"messages ({found.total}, {found.total - found.new} new)")
        for index, each in enumerate(found.messages, found.first):
            mark = "+" if index >= found.new else " "
            lines.append(f"{mark} {index:>3} {each.role:<10} {clean(one_line(message_text(each), 120))}")
    if view.state is not None:
        lines.append(f"state of {clean(view.state.thread)} ({view.state.checkpoint})")
        lines += [
            f"  {each['op']:<8} {clean(each['path'])} {clean(one_line(str(each.get('value', '')), 80))}"
            for each in view.state.changes
        ]
    if view.files is not None:
        lines.append(f"files ({view.files.snapshot[:12]})")
        lines += [f"  {each.change:<8} {clean(each.path)}" for each in view.files.changes]
    if view.memory:
        lines.append("memory")
        for each in view.memory:
            what = each.query or each.id or ""
            found_ids = f": {', '.join(each.found)}" if each.found else ""
            lines.append(f"  {each.what:<8} {clean(one_line(what + found_ids, 120))}")
    return lines


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
        except (msgspec.DecodeError, UnicodeDecodeError):
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

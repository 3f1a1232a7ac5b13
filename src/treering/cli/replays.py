"""Commands on recorded runs: ``treering step``, ``rerun`` and ``reruns``, and ``treering test``.

``step`` walks through a run, ``rerun`` makes it again from one of its steps, and ``test`` keeps runs as tests
and runs those that a change may affect.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treering.cli.console import clean, counted, limited, one_line, plain, rows, say, show, size, text_of
from treering.cli.options import Commands, JsonOption, LimitOption, StorePlace, takes_store
from treering.cli.runs import RunArgument, run_id

if TYPE_CHECKING:
    from treering.replays.comparison import Compared, Comparison, Spread
    from treering.replays.fixtures import RecordedTest
    from treering.replays.steps import Step, StepView

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of a recorded test, or its file.")
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--folder", metavar="DIR", help="Folder of recordings [tests/recordings, or those below here]."
    ),
]
_NONE_COLLECTED = 5
_LARGE = 1_000_000


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    group = Commands(help=run_tests.__doc__, invoke_without_command=True)
    group.info.no_args_is_help = False
    group.callback()(run_tests)
    for name, command in (("add", add), ("list", list_), ("show", show_), ("remove", remove)):
        group.command(name)(command)
    app.add_typer(group, name="test")
    for command in (step, rerun, reruns):
        app.command()(command)


def run_tests(
    context: typer.Context,
    *,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only those whose agent or recording has changed.")
    ] = False,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="COMMIT", help="What --changed compares with [the target of the pull request, or main]."
        ),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Run the agents for real, and write their recordings again.")
    ] = False,
    keyword: Annotated[
        str | None, typer.Option("-k", metavar="WORDS", help="Only tests with such a name.")
    ] = None,
) -> None:
    """Run, add, list and remove tests that replay recorded runs.

    Examples:
        treering test
        treering test --changed --base origin/main
        treering test --record -k refund
        treering test add last --name refund
    """
    if context.invoked_subcommand is not None:
        return
    import subprocess
    from importlib.util import find_spec

    from treering.errors import InvalidInput, MissingExtra

    if base is not None and not changed:
        raise InvalidInput("--base says what --changed compares with; give both")
    if find_spec("pytest") is None:
        raise MissingExtra("running recorded tests", "pytest")
    command = [sys.executable, "-m", "pytest", "-q", "--treering-only"]
    if changed:
        from treering.replays.changed import default_base

        base = base or default_base(Path.cwd())
        command += ["--treering-changed", base]
    command += ["--treering-record"] if record else []
    command += ["-k", keyword] if keyword else []
    code = subprocess.run(command, check=False).returncode  # noqa: S603 - pytest, with options of ours
    if code == _NONE_COLLECTED and changed:
        say(f"no recorded test is affected by what differs from {base}")
        code = 0
    raise typer.Exit(code)


@takes_store
def add(
    run: RunArgument,
    *,
    name: Annotated[str, typer.Option(metavar="NAME", help="What the test calls it: recorded(NAME).")],
    folder: FolderOption = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(metavar="NAMESPACE", help="Memory that the agent knew when the run began; repeatable."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="A field that may differ from the recording: metadata.user_id."),
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="Text that may differ: uuid, timestamp, date, time, number."),
    ] = None,
    entry: Annotated[
        str | None,
        typer.Option(metavar="MODULE:NAME", help="What to run: function, agent or graph [as recorded]."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a recording of this name.")] = False,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Keep a recorded run as a test.

    The recording is a file without secrets, which needs no store.

    Examples:
        treering test add last --name refund
        treering test add 01k9abcdefgh --name refund --mask uuid --mask timestamp
    """
    from treering.replays.fixtures import default_folder, record_test, write_test
    from treering.replays.replay import Tolerance

    with place.existing() as opened:
        made = record_test(
            opened,
            run_id(opened, run),
            name,
            memory=memory or (),
            tolerance=Tolerance(ignore=tuple(ignore or ()), mask=tuple(mask or ())),
            entry=entry,
        )
    written = write_test(made, default_folder() if folder is None else folder, replace=force)
    show(_to_json(written), _lines_of_added(written), as_json=as_json)
    if written.size > _LARGE:
        say(f"note: {size(written.size)} is much for a file that people review; a shorter run may do as well")
    if written.entry is None:
        say("note: the recording does not say what to run; pass agent= to recorded()")


def _lines_of_added(test: RecordedTest) -> list[str]:
    lines = [f"{clean(str(test.path))}: {_summary(test)}, {size(test.size)}"]
    if test.secrets:
        found = ", ".join(sorted({*test.secrets}))
        lines.append(f"{counted(len(test.secrets), 'secrets')} replaced: {found}")
    agent = "" if test.entry else ", agent=my_agent"
    tools = "[" + ", ".join(f'"{clean(each)}"' for each in test.tools) + "]"
    return [
        *lines,
        "",
        f"def test_{clean(test.name.replace('-', '_').replace('.', '_'))}(recorded):",
        f'    run = recorded("{clean(test.name)}"{agent})',
        f"    assert run.tools == {tools}",
    ]


def _summary(test: RecordedTest) -> str:
    models = sum(each.kind != "tool" for each in test.steps)
    parts = [f"{counted(len(test.steps), 'steps')} ({models} of models, {len(test.tools)} of tools)"]
    if test.files:
        parts.append(counted(len(test.files), "files"))
    if test.messages:
        parts.append(f"{counted(len(test.messages), 'messages')} before")
    if test.memory:
        parts.append(f"{len(test.memory)} memories")
    return ", ".join(parts)


def _to_json(test: RecordedTest) -> dict[str, Any]:
    from treering.core.clock import to_iso

    return {
        "name": test.name,
        "path": str(test.path),
        "size": test.size,
        "agent": test.agent,
        "entry": test.entry,
        "run": test.run,
        "recorded_at": to_iso(test.recorded_at_us),
        "steps": len(test.steps),
        "tools": test.tools,
        "models": test.models,
        "files": None if test.files is None else sorted(test.files),
        "final": test.final,
        "secrets": sorted({*test.secrets}),
    }


def list_(*, folder: FolderOption = None, limit: LimitOption = 20, as_json: JsonOption = False) -> None:
    """List the recorded tests below this folder.

    Examples:
        treering test list --json
    """
    from treering.replays.fixtures import read_test

    found = [read_test(path) for path in limited(_paths(folder), limit)]
    table = [("NAME", "AGENT", "STEPS", "TOOLS", "SIZE", "RECORDED", "FILE")]
    table += [
        (
            clean(each.name),
            clean(each.agent or ""),
            str(len(each.steps)),
            str(len(each.tools)),
            size(each.size),
            _to_json(each)["recorded_at"][:10],
            clean(_shown(each.path)),
        )
        for each in found
    ]
    lines = rows(table) if found else ["No recorded tests; make one with: treering test add RUN --name NAME"]
    show([_to_json(each) for each in found], lines, as_json=as_json)


def show_(name: NameArgument, *, folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """Show what a recorded test asks and answers, step by step.

    Examples:
        treering test show refund
    """
    from treering.replays.comparison import shown_answer, shown_request

    test = _find(name, folder)
    steps: list[dict[str, Any]] = [
        {
            "step": each.step,
            "kind": each.kind,
            "name": each.name,
            "asked": shown_request(each),
            "answered": shown_answer(each),
            "files": sorted(test.changes.get(each.step, {})),
        }
        for each in test.steps
    ]
    head = _to_json(test)
    lines = [
        f"{clean(test.name)}: {_summary(test)}, {size(test.size)}, {clean(_shown(test.path))}",
        f"recorded {head['recorded_at'][:19]} from run {clean(test.run)}"
        + (f", runs {clean(test.entry)}" if test.entry else ""),
    ]
    for each in steps:
        lines += [
            f"{each['step']:>3} {each['kind']} {clean(each['name'])}",
            f"      asked     {clean(one_line(each['asked'], 100))}",
            f"      answered  {clean(one_line(each['answered'], 100))}",
        ]
        lines += [f"      changed   {clean(path)}" for path in each["files"]]
    show(plain({**head, "steps": steps}), lines, as_json=as_json)


def remove(name: NameArgument, *, folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """Remove a recorded test.

    Examples:
        treering test remove refund
    """
    test = _find(name, folder)
    assert test.path is not None  # noqa: S101 - it was read from there
    test.path.unlink()
    show({"removed": str(test.path)}, [f"removed {clean(_shown(test.path))}"], as_json=as_json)


def _paths(folder: Path | None) -> list[Path]:
    from treering.replays.fixtures import SUFFIX, list_tests

    return list(list_tests(Path.cwd())) if folder is None else sorted(folder.glob(f"*{SUFFIX}"))


def _find(name: str, folder: Path | None) -> RecordedTest:
    from treering.errors import InvalidInput, NotFound
    from treering.replays.fixtures import read_test

    if Path(name).is_file():
        return read_test(Path(name))
    found = [path for path in _paths(folder) if path.stem == name]
    if not found:
        raise NotFound(
            f"there is no recorded test {name!r} below {folder or Path.cwd()}; see: treering test list"
        )
    if len(found) > 1:
        raise InvalidInput(
            f"{len(found)} recorded tests are called {name!r}: {', '.join(map(_shown, found))}; give the file"
        )
    return read_test(found[0])


def _shown(path: Path | None) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path is not None and path.is_relative_to(here) else str(path)


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
    limit: LimitOption = 500,
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
    from treering.replays.steps import Breakpoint, count_steps, each_step, find_step, step_view

    with place.existing() as opened:
        chosen = run_id(opened, run)
        if tool or error or text or cost_above is not None:
            wanted = Breakpoint(tool=tuple(tool or ()), error=error, cost_above=cost_above, text=text)
            last = count_steps(opened, chosen) + 1 if back and number is None else number or 0
            found = find_step(opened, chosen, wanted, after=last, back=back)
            if found is None:
                raise NotFound(
                    f"no step {'before' if back else 'behind'} {last} of run {chosen!r} is like that"
                )
            number = found.number
        if number is None:
            steps = limited(each_step(opened, chosen), limit)
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
    lines.append(f"  so far       {counted(step.tokens_so_far, 'tokens')}, {_amounts(step) or 'no cost'}")
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
            prompt=[text_of(each) for each in prompt_file] if prompt_file else None,
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
    limit: LimitOption = 50,
    place: StorePlace,
    as_json: JsonOption = False,
) -> None:
    """Compare a run with the reruns of it.

    Reruns that were made together are a group.

    Examples:
        treering reruns 01j9zq8
        treering reruns 01j9zq8 --group 5c1a90fe --limit 5
    """
    import msgspec

    from treering.replays.comparison import compare_reruns, list_reruns

    with place.existing() as opened:
        chosen = run_id(opened, run)
        found = compare_reruns(opened, chosen, group=group)
        groups = dict.fromkeys(about.group for _, about in list_reruns(opened, chosen))
    found = msgspec.structs.replace(found, reruns=tuple(limited(found.reruns, limit)))
    others = ", ".join(clean(each) for each in groups if each != found.group)
    more = ["", f"Other groups of reruns (--group): {others}"] if others else []
    show(plain(found), [*lines_of(found), *more], as_json=as_json)


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

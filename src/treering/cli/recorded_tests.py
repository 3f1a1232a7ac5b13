"""``treering test``: recorded runs as tests, and running those that a change may affect."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treering.cli.console import clean, limited, plain, rows, say, show, size
from treering.cli.help import Commands
from treering.cli.options import JsonOption, LimitOption, StorePlace, takes_store
from treering.cli.render import one_line
from treering.cli.runs import RunArgument, run_id

if TYPE_CHECKING:
    from treering.replays.fixtures import RecordedTest

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
        lines.append(f"{len(test.secrets)} secrets were replaced: {found}")
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
    parts = [f"{len(test.steps)} steps ({models} of models, {len(test.tools)} of tools)"]
    if test.files:
        parts.append(f"{len(test.files)} files")
    if test.messages:
        parts.append(f"{len(test.messages)} messages before")
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

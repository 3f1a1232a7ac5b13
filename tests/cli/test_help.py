"""The command line is one thing: the same options, the same words, and help that comes at once."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys

import pytest
from typer.main import get_command

from treering.cli.main import app, main, narrowed
from treering.cli.options import PANELS, split_examples, with_list

NO_JSON = {
    "approvals work": "works until it is stopped",
    "audit evidence": "prints JSON in any case",
    "audit check": "is the checker that works alone, and answers by its exit code",
    "audit key": "prints a key",
    "audit prove": "prints JSON in any case",
    "cat": "prints a file byte for byte",
    "hook claude-code": "is called by Claude Code, and says nothing",
    "mcp": "speaks JSON-RPC until it is stopped",
    "proxy mcp": "speaks JSON-RPC until it is stopped",
    "proxy models": "passes requests on until it is stopped",
    "serve": "runs until it is stopped",
    "ui": "runs until it is stopped",
    "worker": "runs until it is stopped",
}
"""Commands without --json, and why."""

NO_STORE = {
    "audit check": "needs only a proof and a seal",
    "audit key": "makes a key",
    "hook claude-code": "keeps conversations, which have no packs",
    "memory protect": "works on a git checkout",
    "remote add": "keeps the names of servers for all stores",
    "remote list": "keeps the names of servers for all stores",
    "remote remove": "keeps the names of servers for all stores",
    "test list": "works on the files of a project",
    "test remove": "works on the files of a project",
    "test show": "works on the files of a project",
}
"""Commands without --store or --store-blobs, and why."""

HEAVY = (
    "alembic asyncio boto3 httpx mcp msgspec numpy obstore orjson psycopg pydantic redis rich sqlalchemy "
    "sqlite3 sqlmodel starlette treering.api treering.core treering.engines treering.store uvicorn"
).split()
"""What no one should wait for who only wants to see the list of commands."""


def commands(command, path=()):
    """Every command that can be run, by the words that name it."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
        return
    for name, each in inner.items():
        yield from commands(each, (*path, name))


def groups():
    return [each.name or each.typer_instance.info.name for each in app.registered_groups]


WHOLE = get_command(app)
ALL = dict(commands(WHOLE))


def options_of(command) -> set[str]:
    return {word for each in command.params for word in (*each.opts, *each.secondary_opts)}


@pytest.mark.parametrize("name", ALL)
def test_a_command_speaks_json_or_says_why_not(name):
    assert ("--json" in options_of(ALL[name])) != (name in NO_JSON)


def test_the_list_of_exceptions_names_commands():
    assert set(NO_JSON) <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_every_command_and_option_is_explained(name):
    command = ALL[name]
    summary = command.help.partition("\n")[0]
    assert re.fullmatch(r"[A-Z].*\.", summary), summary
    assert len(summary) <= 62, f"the list of commands would cut it off: {summary}"
    for each in command.params:
        if each.name != "help":
            assert each.help, f"{name}: {each.name}"
            assert each.help.rstrip().endswith((".", ")", "]", "'")), f"{name}: {each.help}"


@pytest.mark.parametrize("name", ALL)
def test_what_works_on_a_store_says_which(name):
    is_told = {"--store", "--store-blobs"} <= options_of(ALL[name])
    assert is_told != (name in NO_STORE), "every command looks for its store in the same way"


def helped(line: list[str], *, whole: bool, capsys) -> str:
    with pytest.raises(SystemExit) as ended:
        (WHOLE if whole else narrowed(app, line))(args=[*line, "--help"], prog_name="treering")
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("line", ["", *groups(), *ALL])
def test_what_is_left_unbuilt_is_not_missed(line, capsys):
    words = line.split()
    assert helped(words, whole=False, capsys=capsys) == helped(words, whole=True, capsys=capsys)


def test_a_line_that_begins_with_an_option_is_left_alone():
    assert narrowed(app, ["--version", "threads"]) is app
    assert narrowed(app, ["--help"]) is not app


def test_a_misspelt_command_is_suggested_whether_or_not_it_was_built(capsys):
    for line, meant in (("thread", "threads"), ("memory lits", "list"), ("schedule", "schedules")):
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        assert ended.value.code == 2
        assert f"'{meant}'" in capsys.readouterr().err


def test_the_list_of_commands_is_not_cut_off(capsys):
    for line in ([], *([name] for name in groups())):
        result = helped(line, whole=False, capsys=capsys)
        listed = result.partition("--help")[2]
        assert re.search(r"^  \S+ +[A-Z].*\.$", listed, flags=re.MULTILINE), result
        assert "..." not in listed, result


def test_every_command_is_in_one_panel(capsys):
    listed = [name for names in PANELS.values() for name in names.split()]
    assert sorted(listed) == sorted(WHOLE.commands)
    shown = helped([], whole=False, capsys=capsys)
    assert re.findall(r"^(\S.*):$", shown, flags=re.MULTILINE) == ["Options", *PANELS, "Examples"]


@pytest.mark.parametrize("name", ALL)
def test_every_command_shows_examples_that_can_be_run(name, capsys):
    """Each example is parsed as the command line is; only what a shell does with pipes is left out."""
    _, examples = split_examples(inspect.cleandoc(ALL[name].help))
    assert examples, "show how it is used"
    shown = helped(name.split(), whole=False, capsys=capsys).partition("Examples:\n")[2].splitlines()
    assert [line.strip() for line in shown] == examples
    own = False
    for part in (part for line in examples for part in line.split(" | ")):
        command, path, words = WHOLE, "treering", shlex.split(part)
        assert words.pop(0) == "treering"
        while hasattr(command, "commands"):
            if words[0].startswith("-"):
                words = with_list(words)
            path = f"{path} {words[0]}"
            command = command.commands[words.pop(0)]
        own = own or path == f"treering {name}"
        with command.make_context(path, words):
            pass
    assert own, "an example is of the command itself"


LISTS = {
    "budgets list", "checkpoints", "cost", "effects list", "growth", "keys list", "log", "ls", "memory list",
    "memory search", "memory history", "output", "performance", "replay", "runs", "alerts list",
    "alerts rules", "reruns", "step",
    "schedules list", "schedules occurrences", "schedules preview", "search", "show", "snapshots",
    "state history", "state list", "tail", "threads", "timeline", "transcript",
}  # fmt: skip
"""Commands that print a list."""


@pytest.mark.parametrize("name", ALL)
def test_what_prints_a_list_takes_a_limit(name):
    is_list = name in LISTS or ALL[name].help.startswith("List ")
    assert ({"--limit", "-n"} <= options_of(ALL[name])) == is_list
    assert not {"--last", "--count"} & options_of(ALL[name]), "one word for one thing"


def test_help_loads_nothing_heavy():
    """What `treering --help` imports decides how long it takes: 0.15 s on the machine it was measured on."""
    code = (
        "import sys\n"
        "from treering.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "treering.cli.main" in loaded
    assert [name for name in loaded if name in HEAVY or name.startswith("treering.core.")] == []

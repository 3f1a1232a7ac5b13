"""The command line is one thing: the same options, the same words, and help that comes at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from typer.main import get_command

from treering.cli.main import app, main, narrowed

NO_JSON = {
    "cat": "prints a file byte for byte",
    "hook claude-code": "is called by Claude Code, and says nothing",
    "mcp": "speaks JSON-RPC until it is stopped",
    "proxy": "speaks JSON-RPC until it is stopped",
    "serve": "runs until it is stopped",
    "ui": "runs until it is stopped",
    "worker": "runs until it is stopped",
}
"""Commands without --json, and why."""

NO_STORE = {
    "hook claude-code": "keeps conversations, which have no packs",
    "memory protect": "works on a git checkout",
    "remote add": "keeps the names of servers for all stores",
    "remote list": "keeps the names of servers for all stores",
    "remote remove": "keeps the names of servers for all stores",
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
        assert "..." not in result.partition("Commands:")[2], result


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


def completed(*words: str) -> list[str]:
    """What bash would be offered for the last of these words."""
    asked = {
        "_TREERING_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv = ['treering']\nfrom treering.cli.main import main; main()",
        ],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout.split()


def test_a_shell_completes_commands_and_options():
    assert "snapshots" in completed("treering", "snap")
    assert "history" in completed("treering", "memory", "hi")
    assert "--dry-run" in completed("treering", "gc", "--d")

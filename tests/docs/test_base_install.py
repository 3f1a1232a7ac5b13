"""Without any extra: every command starts, and one that needs an extra says how to install it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from ruamel.yaml import YAML

from tests.docs.test_install import clean_environment
from tests.docs.walking import DOCS, ROOT
from treering.cli.main import app
from treering.errors import MissingExtra

UV = shutil.which("uv", path=str(Path(sys.executable).parent))

RUN_COMMANDS = """
import contextlib, importlib, io, json, pathlib, sys
import treering
from treering.errors import MissingExtra
from treering.cli.main import main

for name in ("folder/a.txt", "logs/a.jsonl", "graph.db", "server"):
    pathlib.Path(name).parent.mkdir(exist_ok=True)
    pathlib.Path(name).write_text("words")
pathlib.Path("markdown").mkdir()
pathlib.Path("markdown/a.md").write_text("---\\ntags: [x]\\n---\\nwords")
with treering.open(".treering") as store:
    store.thread("t").append({"role": "user", "content": "hi"})
    runs = []
    for _ in range(2):
        with store.run("planner", thread="t") as run:
            run.message("assistant", "hello", model="gpt-5", usage={"input": 5}, cost=1)
        runs.append(run.id)
for name, extra in json.load(open("modules.json")).items():
    try:
        module, _, member = name.partition(":")
        getattr(importlib.import_module(module), member)
        raise AssertionError(f"{name} needs nothing")
    except MissingExtra as error:
        assert error.extra == extra, (name, error.extra)
results = []
for words in json.load(open(sys.argv[1])):
    output = io.TextIOWrapper(io.BytesIO(), write_through=True)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            main([{"RUN": runs[0], "OTHER": runs[1]}.get(word, word) for word in words])
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException as error:
        code = f"{type(error).__name__}: {error}"
    results.append([code, output.buffer.getvalue().decode()])
json.dump(results, open(sys.argv[2], "w"))
"""

WORKING = [
    "threads", "log t", "show t", "diff t t", "fork t t2", "rewind t 0", "resume t yes", "transcript t",
    "snapshot folder", "snapshots", "restore latest out", "ls latest", "cat latest a.txt",
    "download latest a.txt --to got", "secrets latest", "run -- echo hi", "checkpoints", "output", "runs",
    "timeline RUN", "replay RUN", "rerun RUN -- true", "reruns RUN", "test list", "test show x",
    "test remove x", "test add RUN --name x",
    "compare RUN OTHER", "search hello", "tail --seconds 0.1", "cost",
    "performance", "growth", "push http://127.0.0.1:9", "pull http://127.0.0.1:9", "verify", "gc", "index",
    "reindex", "copy copied", "stats", "backup saved", "migrate", "worker", "doctor",
    "effects list", "effects show e", "effects resolve e --result 1", "effects retry e", "effects abandon e",
    "budgets list", "budgets set b --per run --tokens 9", "budgets remove b",
    "alerts list", "alerts rule a --what failed", "alerts rules", "alerts check", "alerts remove a",
    "alerts webhook w https://example.com/hook --secret-env TREERING_WEBHOOK_SECRET",
    "import claude-code logs", "import codex logs", "import jsonl logs", "import agentry logs",
    "import orchestrator-log logs", "import evolve logs", "import ciana logs",
    "export jsonl --all", "export agentry out1", "export ciana out2", "hook claude-code",
    "remote add r http://127.0.0.1:9", "remote list", "remote remove r",
    "memory save notes/b words", "memory get notes/b", "memory search words", "memory history notes/b",
    "memory diff notes/b 1", "memory restore notes/b 1", "memory delete notes/b", "memory forget notes/b",
    "memory context", "memory protect .", "memory list",
    "state set k 1", "state get k", "state add k 1", "state list", "state history k", "state delete k",
    "state watch --seconds 0.1",
    "schedules add hi --every 3600", "schedules list", "schedules show 00000000", "schedules cancel 00000000",
    "schedules pause 00000000", "schedules resume 00000000", "schedules run-now 00000000",
    "schedules occurrences", "keys create", "keys list", "keys revoke x", "delete t2", "forget --thread t",
]  # fmt: skip

MISSING = {
    "serve": "server",
    "serve --grpc-port 0": "server",
    "ui": "server",
    "mcp": "mcp",
    "test": "pytest",
    "proxy mcp server": "mcp",
    "proxy models": "proxy",
    'sql "select 1"': "lake",
    "memory embed": "embeddings",
    "memory sync markdown": "markdown",
    "import langgraph graph.db": "langgraph",
    "schedules preview '0 9 * * *'": "schedules",
    "schedules add hi --cron '0 9 * * *'": "schedules",
    "audit key private.pem": "audit",
    "audit seal --key server": "audit",
    "cost --currency EUR": "prices",
    "audit key key.pem": "audit",
    "threads --store postgresql://127.0.0.1/x": "postgres",
    "checkpoints --storage s3://bucket/prefix": "s3",
}
"""What needs an extra, and which."""
DOCTOR_HINT = "pip install 'treering[adk]' for each one you need"

MODULES = {
    "treering.adapters.adk:TreeringSessionService": "adk",
    "treering.adapters.claude.effects:TreeringEffectHooks": "claude-agent-sdk",
    "treering.adapters.claude.memory_tool:TreeringMemoryTool": "anthropic",
    "treering.adapters.claude.session_store:TreeringSessionStore": "claude-agent-sdk",
    "treering.adapters.deepagents:TreeringBackend": "deepagents",
    "treering.adapters.langchain:MemoryMiddleware": "langchain",
    "treering.adapters.langchain:TreeringTracer": "langchain",
    "treering.adapters.langgraph:TreeringSaver": "langgraph",
    "treering.adapters.openai_agents:TreeringSession": "openai-agents",
    "treering.adapters.opentelemetry:TreeringSpanExporter": "opentelemetry",
    "treering.adapters.pydantic_ai:TreeringConversationStore": "pydantic-ai",
    "treering.adapters.pydantic_ai_harness:TreeringStepStore": "pydantic-ai-harness",
    "treering.compat.models:Run": "models",
}
"""Adapters, and the extra of each."""


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """The interpreter of an environment with the wheel and nothing else that it does not ask for."""
    folder = tmp_path_factory.mktemp("base")
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    python = folder / ".venv" / "bin" / "python"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder / ".venv"], check=True)
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, wheel], check=True)
    return python


@pytest.mark.slow
def test_every_command_starts_without_extras_or_names_the_one_to_install(base, tmp_path):
    commands = [*MISSING, *WORKING]
    known = [each.split() for each in commands]
    commands[len(MISSING) : len(MISSING)] = [
        " ".join([*path, *"x" * required])
        for path, required in _commands()
        if path not in [words[: len(path)] for words in known]
    ]
    (tmp_path / "commands.json").write_text(json.dumps([shlex.split(each) for each in commands]))
    (tmp_path / "modules.json").write_text(json.dumps(MODULES))
    done = subprocess.run(
        [base, "-c", RUN_COMMANDS, "commands.json", "results.json"],
        cwd=tmp_path, env=clean_environment(base) | {"HOME": str(tmp_path)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    wrong = []
    for command, (code, output) in zip(commands, results, strict=True):
        extra = MISSING.get(command)
        if extra is None:
            is_right = isinstance(code, int) and "pip install" not in output.replace(DOCTOR_HINT, "")
        else:
            is_right = code == MissingExtra.exit_code and f"pip install 'treering[{extra}]'" in output
        if not is_right or "Traceback" in output or "ModuleNotFoundError" in output:
            wrong.append((command, code, output[-300:]))
    assert wrong == [], "\n".join(map(str, wrong))


def test_every_extra_is_documented():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    page = (DOCS / "install.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \|$", page, flags=re.MULTILINE))
    assert rows.keys() == project["optional-dependencies"].keys()


def test_the_compose_file_installs_what_its_services_need():
    """Each service runs something whose extra the image has: the server, and schedules for an agent."""
    text = (ROOT / "deploy" / "compose.yaml").read_text("utf-8")
    (extras,) = re.findall(r"pip install .*'treering\[(.+?)\]'", text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    services = YAML(typ="safe").load(text)["services"]
    needed = {MISSING[each["command"][1]] for each in services.values() if each["command"][0] == "treering"}
    assert {*needed, "schedules", "markdown", "prices"} <= set(extras.split(","))


def _commands() -> Iterator[tuple[list[str], int]]:
    """Every command, with the number of arguments that it requires."""

    def walk(command, path):
        if hasattr(command, "commands"):
            for name, below in command.commands.items():
                yield from walk(below, [*path, name])
        else:
            yield path, sum(each.required for each in command.params if each.param_type_name == "argument")

    yield from walk(typer.main.get_command(app), [])

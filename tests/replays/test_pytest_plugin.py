"""The pytest plugin, and ``treering test``, in a project of their own: as users have them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import treering
from tests.replays.provider import plan, provider
from treering.cli.main import main

ROOT = Path(__file__).parents[2]
ACTION = ROOT / ".github" / "actions" / "recorded-tests" / "action.yml"

AGENT = """
import json
from pathlib import Path

import httpx

from shop.tools import search_orders
from treering.agent import create_agent

PROMPT = Path(__file__).with_name("prompt.md").read_text()


def answer(url, question):
    def ask(messages, tools):
        said = [{"role": "system", "content": PROMPT}]
        said += [{name: each[name] for name in each if name != "usage"} for each in messages]
        body = {"model": "gpt-5", "messages": said, "tools": [each.as_openai() for each in tools]}
        reply = httpx.post(f"{url}/v1/chat/completions", json=body).json()
        return {**reply["choices"][0]["message"], "usage": reply["usage"]}

    return create_agent(model=ask, tools=[search_orders]).generate(prompt=question).text
"""

TOOLS = '''
def search_orders(customer: str) -> str:
    """Return the orders of a customer."""
    return f"{customer} has order 4711"
'''

TESTS = """
from shop.agent import answer


def test_refund(recorded):
    run = recorded("refund", agent=answer, real_tools=True)
    assert run.tools == ["search_orders"]
    assert run.final == "Order 4711."


def test_by_name(recorded):
    assert recorded("refund").final == "Order 4711."
"""

QUESTION = plan(("I look.", [("search_orders", {"customer": "alice"})]), "Order 4711.")


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {
        name: each
        for name, each in os.environ.items()
        if not name.startswith(("PYTEST", "GITHUB_")) and name not in {"CI", "BUILD_NUMBER"}
    }
    environment = {**kept, "PYTHONPATH": "", **variables}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p treering -p no:cacheprovider"}
"""The plugin without the many others that are installed here, which take seconds to import."""


def outcome(folder: Path, *options: str, **variables: str) -> tuple[int, str]:
    done = run(folder, "pytest", "-q", *options, **{**ALONE, **variables})
    return done.returncode, done.stdout + done.stderr


def git(folder: Path, *arguments: str) -> None:
    name = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *name, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A project with an agent, a recorded run of it, and the test that ``treering test add`` has made."""
    folder = tmp_path_factory.mktemp("project")
    for name, text in {
        "src/shop/__init__.py": "",
        "src/shop/agent.py": AGENT,
        "src/shop/tools.py": TOOLS,
        "src/shop/prompt.md": "You answer customers of a shop.\n",
        "src/other.py": "VALUE = 1\n",
        "tests/test_refund.py": TESTS,
        "tests/test_other.py": "import other\n\n\ndef test_other():\n    assert other.VALUE\n",
        "README.md": "A shop.\n",
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\n',
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / ".gitignore").write_text("__pycache__\n.treering\n")
    with provider() as server:
        script = (
            "import sys; sys.path.insert(0, 'src'); import treering; from shop.agent import answer\n"
            f"given = [{server.url!r}, {QUESTION!r}]\n"
            "with treering.record('.treering', agent='shop', entry=answer, arguments=given): answer(*given)"
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=folder, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    done = run(folder, "treering", "test", "add", "last", "--name", "refund", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tools"] == ["search_orders"]
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "one")
    return folder


@pytest.fixture
def project(made, tmp_path) -> Path:
    folder = tmp_path / "project"
    git(tmp_path, "clone", "-q", str(made), str(folder))
    git(folder, "checkout", "-q", "-b", "change")
    return folder


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_recorded_tests_pass_without_a_network_a_store_or_options(project) -> None:
    code, said = outcome(project)
    assert code == 0, said
    assert "3 passed" in said
    assert not (project / ".treering").exists()


def test_a_regression_fails_with_a_message_that_names_it(project) -> None:
    edit(project / "src" / "shop" / "prompt.md", "of a shop", "of two shops")
    edit(project / "src" / "shop" / "tools.py", "customer: str", "customer: int")
    code, said = outcome(project, "tests/test_refund.py::test_refund")
    assert code == 1
    assert "'refund' is not what was recorded (3 steps, " in said
    assert "pytest --treering-record tests/test_refund.py::test_refund" in said
    for each in (
        "step 1",
        "body.messages.0.content, body.tools.0.function.parameters.properties.customer.type",
        "of a shop",
        "of two shops",
        '"integer"',
    ):
        assert each in said
    assert "Traceback" not in said
    assert said.count("step 1: ") == 1
    assert "replays/recorded.py" not in said, "the message is not behind frames of ours"


def test_recordings_are_made_again_with_an_option(project) -> None:
    edit(project / "src" / "shop" / "prompt.md", "of a shop", "of two shops")
    recording = project / "tests" / "recordings" / "refund.jsonl"
    with provider() as server:
        text = recording.read_text()
        old = json.loads(text.splitlines()[0])["arguments"][0]
        recording.write_text(text.replace(old, server.url))
        code, said = outcome(project, "--treering-record", "tests/test_refund.py::test_refund")
        assert code == 0, said
        assert server.count == 2
    assert "tests/recordings/refund.jsonl: 3 steps" in said
    assert "of two shops" in recording.read_text()
    code, said = outcome(project)
    assert code == 0, said


def test_async_tests_await_it_and_one_without_a_recording_says_how_to_make_it(project) -> None:
    (project / "tests" / "test_new.py").write_text(
        "import asyncio\nfrom shop.agent import answer\n\n\ndef test_async(recorded):\n"
        "    async def work():\n        return await recorded.awaited('refund', agent=answer)\n"
        "    assert asyncio.run(work()).tools == ['search_orders']\n\n\n"
        "def test_new(recorded):\n    recorded('new')\n"
    )
    code, said = outcome(project, "tests/test_new.py", "-p", "xdist", "-n", "1")
    assert code == 1
    assert "1 failed, 1 passed" in said
    assert "treering test add RUN --name new" in said
    assert "pytest --treering-record tests/test_new.py::test_new" in said


def test_the_plugin_is_found_and_loads_nothing_else_of_treering(tmp_path) -> None:
    (found,) = entry_points(group="pytest11", name="treering")
    assert found.value == "treering.replays.pytest_plugin"
    (tmp_path / "test_plain.py").write_text(
        "import sys\n\n\ndef test_plain():\n"
        "    loaded = {each for each in sys.modules if each.startswith(('treering', 'msgspec', 'httpx'))}\n"
        "    assert loaded == {'treering', 'treering.replays', 'treering.replays.pytest_plugin'}\n"
    )
    code, said = outcome(tmp_path)
    assert code == 0, said


def test_the_command_runs_recorded_tests_only(project) -> None:
    done = run(project, "treering", "test", "-k", "by_name", **ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "2 deselected" in done.stdout


def test_base_is_for_changed_tests(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["test", "--base", "main"])
    assert ended.value.code == treering.errors.InvalidInput.exit_code
    assert "give both" in capsys.readouterr().err


def test_without_pytest_the_command_says_what_to_install(project) -> None:
    script = (
        "import sys; sys.modules['pytest'] = None\n"
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name == 'pytest' else find(name, package)\n"
        "from treering.cli.main import main; main(['test'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=project, capture_output=True, text=True, check=False
    )
    assert "pip install 'treering[pytest]'" in done.stderr
    assert done.returncode == treering.errors.MissingExtra.exit_code


# Managing them


def called(capsys, *arguments: str) -> str:
    with contextlib.suppress(SystemExit):
        main(list(arguments))
    return capsys.readouterr().out


def test_recordings_are_listed_shown_and_removed(project, capsys, monkeypatch) -> None:
    monkeypatch.chdir(project)
    lines = called(capsys, "test", "list").splitlines()
    assert lines[0].split() == ["NAME", "AGENT", "STEPS", "TOOLS", "SIZE", "RECORDED", "FILE"]
    assert lines[1].split()[:4] == ["refund", "shop", "3", "1"]
    (listed,) = json.loads(called(capsys, "test", "list", "--json"))
    assert listed["final"] == "Order 4711."
    shown = called(capsys, "test", "show", "refund")
    assert "shop.agent:answer" in shown
    assert 'asked     search_orders({"customer":"alice"})' in shown
    assert "answered  Order 4711." in shown
    assert json.loads(called(capsys, "test", "show", "refund", "--json"))["steps"][1]["kind"] == "tool"
    assert called(capsys, "test", "remove", "refund").strip() == "removed tests/recordings/refund.jsonl"
    assert "treering test add" in called(capsys, "test", "list")
    with pytest.raises(SystemExit) as ended:
        main(["test", "show", "refund"])
    assert ended.value.code == treering.errors.NotFound.exit_code
    assert "treering test list" in capsys.readouterr().err


def test_adding_shows_a_test_to_begin_with_and_never_replaces_silently(made, tmp_path, capsys) -> None:
    place = ["--store", str(made / ".treering"), "--folder", str(tmp_path)]
    shown = called(capsys, "test", "add", "last", "--name", "first-one", *place)
    assert f"{tmp_path}/first-one.jsonl: 3 steps (2 of models, 1 of tools), " in shown
    assert 'def test_first_one(recorded):\n    run = recorded("first-one")' in shown
    assert 'assert run.tools == ["search_orders"]' in shown
    with pytest.raises(SystemExit):
        main(["test", "add", "last", "--name", "first-one", *place])
    assert "--force" in capsys.readouterr().err
    called(capsys, "test", "add", "last", "--name", "first-one", "--force", *place)


# The GitHub Action


def test_the_action_runs_what_changed_and_fails_with_it(project) -> None:
    action = YAML(typ="safe").load(ACTION.read_text())
    defaults = {name: str(each.get("default", "")) for name, each in action["inputs"].items()}
    assert set(defaults) == {"python-version", "install", "changed", "base", "working-directory"}
    (step,) = [each for each in action["runs"]["steps"] if each.get("id") == "test"]
    bin_folder = Path(sys.executable).parent
    variables = {
        **ALONE,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "CHANGED": defaults["changed"],
        "BASE": "main",
        "GITHUB_STEP_SUMMARY": str(project / "summary.md"),
    }
    assert set(step["env"]) == {"CHANGED", "BASE"}

    def act() -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **variables}
        return subprocess.run(
            ["bash", "-e", "-c", step["run"]],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    done = act()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no recorded test is affected" in (project / "summary.md").read_text()
    edit(project / "src" / "shop" / "prompt.md", "of a shop", "of two shops")
    done = act()
    assert done.returncode == 1
    assert "of two shops" in (project / "summary.md").read_text()

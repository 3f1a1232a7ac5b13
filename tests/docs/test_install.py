"""A newcomer's first minutes: install the built wheel in an empty environment, run README and quickstart.

Nothing of the repository is visible to that environment, so a module or file that is missing from the wheel,
or a dependency that only the test environment has, fails here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import treering
from tests.docs.walking import BLOCK, DOCS, ROOT, alike, compare
from treering.cli.main import app

UV = shutil.which("uv", path=str(Path(sys.executable).parent))

RUN_BLOCKS = """
import contextlib, io, json, subprocess, sys
names, results = {"__name__": "__main__"}, []
for kind, body in json.load(open(sys.argv[1])):
    if kind == "python":
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(body, names)
        results.append(out.getvalue())
    else:
        done = subprocess.run(body, capture_output=True, text=True)
        results.append(done.stderr + done.stdout + (f"[{done.returncode}]" if done.returncode else ""))
json.dump(results, open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(UV, "build", "--quiet", "--wheel", "--out-dir", folder, ROOT)
    (result,) = folder.glob("*.whl")
    return result


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The interpreter of an environment that has the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("environment")
    run(UV, "venv", "--quiet", "--seed", "--python", sys.executable, folder / ".venv")  # --seed: with pip
    python = folder / ".venv" / "bin" / "python"
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "install", "--no-compile", f"{wheel}[prices,server]", env=clean_environment(python))
    return python


def run(*words, **options) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, timeout=110, **options
    )
    assert done.returncode == 0, done.stderr
    return done


def clean_environment(python: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TREERING_", "PYTHON"))}
    return kept | {"PATH": f"{python.parent}:{os.environ['PATH']}"}


def run_blocks(python: Path, folder: Path, blocks: list[tuple[str, object]]) -> list[str]:
    (folder / "blocks.json").write_text(json.dumps(blocks))
    run(
        *(python, "-c", RUN_BLOCKS, folder / "blocks.json", folder / "results.json"),
        cwd=folder,
        env=clean_environment(python),
    )
    return json.loads((folder / "results.json").read_text())


@pytest.mark.slow
def test_the_readme_and_the_quickstart_run_from_the_wheel_alone(installed, tmp_path):
    readme = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL)
    blocks, expected = [("python", readme[0])], [None]
    for block in BLOCK.finditer((DOCS / "quickstart.md").read_text("utf-8")):
        if block["unrun"]:
            continue
        if block["kind"] == "python":
            blocks.append(("python", block["body"]))
            expected.append(block["output"])
        for part in re.split(r"^\$ ", block["body"], flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            blocks.append(("console", shlex.split(command)))
            expected.append(output)
    assert sum(kind == "console" for kind, _ in blocks) >= 2
    (tmp_path / "readme").mkdir()
    run_blocks(installed, tmp_path / "readme", blocks[:1])
    for (kind, body), output, wanted in zip(
        blocks[1:], run_blocks(installed, tmp_path, blocks[1:]), expected[1:], strict=True
    ):
        if kind == "console":
            compare(alike(output), alike(wanted), str(body))
        elif wanted is not None:
            assert output == wanted


@pytest.mark.slow
def test_the_wheel_has_the_dashboard_types_and_migrations(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"treering/py.typed", "treering/aio.py", "treering/server/static/index.html"} <= names
    assert any(re.fullmatch(r"treering/engines/sql/migrations/versions/\w+\.py", name) for name in names)
    assert not [name for name in names if not name.startswith(("treering/", "treering-"))]


def test_the_page_on_the_package_index_has_no_relative_links(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
    headers, _, page = archive.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in headers
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_the_registry_entry_names_this_version_and_a_real_command():
    entry = json.loads((ROOT / "server.json").read_text("utf-8"))
    (package,) = entry["packages"]
    assert {entry["version"], package["version"]} == {treering.__version__}
    extra = re.fullmatch(r"treering\[(\w+)\]", package["runtimeArguments"][0]["value"])[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert extra in project["optional-dependencies"]
    assert package["packageArguments"][0]["value"] in {command.name for command in app.registered_commands}


def test_workflows_run_targets_that_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE))
    workflows = list((ROOT / ".github" / "workflows").glob("*.yml"))
    assert len(workflows) >= 3
    for workflow in workflows:
        for step in re.findall(r"run: make (\w+)", workflow.read_text("utf-8")):
            assert step in targets, workflow.name
        assert YAML(typ="safe").load(workflow)["jobs"]


def test_the_image_installs_extras_that_exist():
    (extras,) = re.findall(r"pip install .*'\.\[(.+?)\]'", (ROOT / "Dockerfile").read_text("utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()

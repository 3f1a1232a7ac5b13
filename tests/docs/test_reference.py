"""Nothing that can be set, called or read is missing from docs/, and nothing there is made up."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module

import pytest
from typer.main import get_command

from tests.docs.walking import DOCS, ROOT
from treering.cli.main import app
from treering.server.settings import Settings

SETTINGS = (DOCS / "settings.md").read_text("utf-8")
VARIABLE = re.compile(r"\bTREERING_[A-Z][A-Z_]*[A-Z]\b")
NOT_SETTINGS = {"TREERING_COMPLETE", "TREERING_WORKER"}
"""How a shell asks for completions (Typer's own, with an underscore in front), and what workers are told."""


def variables(*places: str) -> set[str]:
    found: set[str] = set()
    for place in places:
        path = ROOT / place
        for file in [path] if path.is_file() else path.rglob("*.py"):
            found |= set(VARIABLE.findall(file.read_text("utf-8")))
    return found


def test_every_environment_variable_is_told():
    assert variables("src", "hatch_build.py") - NOT_SETTINGS <= set(VARIABLE.findall(SETTINGS))


def test_no_environment_variable_is_made_up():
    known = variables("src", "hatch_build.py", "tests/conftest.py", "tests/web", "tests/servers")
    assert set(VARIABLE.findall(SETTINGS)) <= known


def test_every_setting_of_the_server_is_told():
    table = SETTINGS.partition("## The server")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == set(Settings.__struct_fields__)


def test_every_option_of_every_command_is_told():
    text = (DOCS / "reference" / "cli.md").read_text("utf-8")
    sections = dict(
        re.findall(r"^###? treering ([^\n]+)\n(.*?)(?=^##|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    )

    def check(command, path):
        if hasattr(command, "commands"):
            for name, each in command.commands.items():
                check(each, (*path, name))
            return
        result = sections[" ".join(path)]
        for each in command.params:
            if each.name != "help" and each.param_type_name == "option":
                assert all(f"`{name}`" in result for name in (*each.opts, *each.secondary_opts)), (path, each)

    check(get_command(app), ())
    assert len(sections) > 40


def test_every_command_has_its_place_in_the_guide():
    text = (DOCS / "cli.md").read_text("utf-8")
    named = {
        *re.findall(r"`(?:treering )?([a-z-]+)[^`]*`", text),
        *re.findall(r"^\$ treering (\w+)", text, re.MULTILINE),
    }
    assert set(get_command(app).commands) <= named


def generated():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        listed = import_module("generate").GENERATED
        return [(path, source) for path, source in listed if path.startswith("docs/")]
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.parametrize("path, source", generated())
def test_a_generated_page_is_current(path, source, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    module, function = source.split(":")
    text = getattr(import_module(module), function)()
    assert (ROOT / path).read_text("utf-8") == text, f"{path} is stale; run: python scripts/generate.py"


def test_the_reference_tells_each_view():
    text = (DOCS / "reference" / "python.md").read_text("utf-8")
    for heading in (
        "Store",
        "Thread",
        "Checkpoint",
        "Run",
        "Workspace",
        "Memory",
        "State",
        "Schedules",
        "Costs",
    ):
        assert f"\n## {heading}\n" in text
    assert "### Thread.fork\n" in text


def test_every_route_is_told():
    from treering.server.app import ROUTES

    text = (DOCS / "reference" / "rest.md").read_text("utf-8")
    for name in ROUTES:
        for each in getattr(import_module(f"treering.server.routes.{name}"), "ENDPOINTS", ()):
            assert f"### {each.method} {each.path}\n" in text


def pages_of(nav):
    for entry in nav:
        for result in [entry] if isinstance(entry, str) else entry.values():
            yield from pages_of(result) if isinstance(result, list) else [result]


def test_every_page_is_in_the_navigation_once():
    nav = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    result = list(pages_of(nav))
    assert len(result) == len(set(result))
    assert set(result) == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


def test_the_site_is_built_strictly(tmp_path):
    shutil.copytree(DOCS, tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    home = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert "one store for conversations" in home
    assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', home), "loaded from elsewhere"

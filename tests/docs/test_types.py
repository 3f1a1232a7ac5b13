"""The README, the pages below docs/ and the public API pass pyright's strict mode.

The ```python blocks of a page are one module, as they are one run; line numbers are those of the page.
Pyright starts once, for all pages and for `tests/test_typing.py`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.docs.walking import DOCS, ROOT

API = ROOT / "tests" / "test_typing.py"
PAGES = {
    path.relative_to(ROOT).as_posix(): path
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
    if "```python\n" in path.read_text("utf-8")
}

# Each block of a page is written to be read alone, so a later one may import and define the same names again.
OF_PAGES = {"reportDuplicateImport", "reportRedeclaration"}
OF_OTHERS = re.compile(
    "<!-- not run: needs (Agentry Lab|CianaParrot|a Langfuse server|mem0|the Orchestrator)"
)

PARTLY_TYPED = {"reportMissingTypeStubs", "reportUnknownMemberType"}  # LangGraph
ALLOWED: dict[str, set[str]] = {
    "docs/adapters/deepagents.md": {"reportUnknownVariableType"},  # create_deep_agent
    "docs/adapters/langgraph.md": PARTLY_TYPED,
    "docs/adapters/tracing.md": PARTLY_TYPED,
    "docs/coming-from/langgraph.md": PARTLY_TYPED,
    "docs/effects.md": {"reportUnknownMemberType", "reportUnknownVariableType"},  # LangChain's create_agent
    "docs/howto/langgraph.md": PARTLY_TYPED,
    "docs/weeks.md": {"reportUnknownMemberType", "reportUnknownVariableType"},  # LangChain's create_agent
    "docs/testing.md": {
        "reportMissingImports",
        "reportUnknownArgumentType",
        "reportUnknownVariableType",
    },  # own file
    "docs/services.md": {"reportWildcardImportFromLibrary"},  # what the code that moves here is written with
}
"""Rules that a page breaks because of what it shows: frameworks without types, or with partial ones."""


@pytest.fixture(scope="module")
def errors(tmp_path_factory) -> dict[str, list[tuple[str, str]]]:
    """The rule and the text of each error, by page."""
    folder = tmp_path_factory.mktemp("typed")
    modules = {API.name: API}
    (folder / API.name).write_text(API.read_text("utf-8"), "utf-8")
    for name, path in PAGES.items():
        module = re.sub(r"\W", "_", name) + ".py"
        modules[module] = path
        (folder / module).write_text(_python_of(path.read_text("utf-8")), "utf-8")
    settings = {
        "include": ["."], "typeCheckingMode": "strict", "pythonVersion": "3.11",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "venvPath": str(Path(sys.prefix).parent), "venv": Path(sys.prefix).name,
    }  # fmt: skip
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(modules)
    found = defaultdict(list)
    for each in report["generalDiagnostics"]:
        path, line = modules[Path(each["file"]).name], each["range"]["start"]["line"] + 1
        name, rule = path.relative_to(ROOT).as_posix(), each.get("rule", "syntax")
        found[name].append((rule, f"{name}:{line}: {rule}: {each['message']}"))
    return found


@pytest.mark.slow
def test_the_public_api_has_the_types_that_it_promises(errors):
    assert [text for _, text in errors[API.relative_to(ROOT).as_posix()]] == []


@pytest.mark.slow
def test_the_pages_pass_in_strict_mode(errors):
    wrong = [
        text
        for page in PAGES
        for rule, text in errors[page]
        if rule not in OF_PAGES | ALLOWED.get(page, set())
    ]
    assert wrong == [], "\n".join(wrong)


@pytest.mark.slow
def test_no_page_is_excepted_without_need(errors):
    """A rule that nothing breaks any more leaves the list."""
    for page, rules in ALLOWED.items():
        assert rules <= {rule for rule, _ in errors[page]}, page


def _python_of(text: str) -> str:
    """The page with every line blank that is not Python, or that is the code of another project."""
    lines, is_python, before = [], False, ""
    for line in text.splitlines():
        if line.startswith("```"):
            is_python = line == "```python" and not OF_OTHERS.match(before)
            lines.append("")
        else:
            lines.append(line if is_python else "")
        before = line
    return "\n".join(lines) + "\n"

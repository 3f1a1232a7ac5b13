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

UNTYPED_FRAMEWORK: dict[str, set[str]] = {
    "docs/effects.md": {"reportUnknownMemberType", "reportUnknownVariableType"},  # LangChain's create_agent
}
"""Rules that a page breaks because a framework that it shows has no types, or partial ones."""

NOT_YET = {
    "docs/adapters/adk.md",
    "docs/adapters/claude-agent-sdk.md",
    "docs/adapters/deepagents.md",
    "docs/adapters/langgraph.md",
    "docs/adapters/openai-agents.md",
    "docs/adapters/pydantic-ai.md",
    "docs/adapters/tracing.md",
    "docs/coming-from/agentry-lab.md",
    "docs/coming-from/cianaparrot.md",
    "docs/coming-from/langfuse-phoenix.md",
    "docs/coming-from/langgraph.md",
    "docs/coming-from/mem0.md",
    "docs/coming-from/orchestrator.md",
    "docs/howto/langgraph.md",
    "docs/howto/s3.md",
    "docs/import.md",
    "docs/otlp.md",
    "docs/sandbox.md",
    "docs/savers.md",
    "docs/services.md",
    "docs/storage.md",
    "docs/testing.md",
}
"""Pages with errors of their own. This set may only shrink."""


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
        for page in PAGES.keys() - NOT_YET
        for rule, text in errors[page]
        if rule not in OF_PAGES | UNTYPED_FRAMEWORK.get(page, set())
    ]
    assert wrong == [], "\n".join(wrong)


@pytest.mark.slow
def test_no_page_is_excepted_without_need(errors):
    """A page that has become right leaves `NOT_YET`, and a rule that nothing breaks leaves the list."""
    for page in NOT_YET:
        assert {rule for rule, _ in errors[page]} - OF_PAGES, f"{page} passes: take it out of NOT_YET"
    for page, rules in UNTYPED_FRAMEWORK.items():
        assert rules <= {rule for rule, _ in errors[page]}, page


def _python_of(text: str) -> str:
    """The page with every line blank that is not Python."""
    lines, is_python = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            is_python = line == "```python"
            lines.append("")
        else:
            lines.append(line if is_python else "")
    return "\n".join(lines) + "\n"

"""The pages for people who come from another project: theirs and ours side by side, and both true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.walking import DOCS, ROOT, needs_more, walk

FOLDER = DOCS / "coming-from"
PAGES = sorted(FOLDER.glob("*.md"))
NAMES = [page.stem for page in PAGES]
HEADINGS = ["Side by side", "What is better, and what is missing", "Import"]


def test_there_is_a_page_for_each_project_and_the_site_lists_it():
    assert set(NAMES) == {
        *("agentry-lab", "orchestrator", "agent-sdk", "evolve", "cianaparrot"),
        *("langgraph", "openai-sessions", "mem0", "langfuse-phoenix", "restic"),
    }
    listed = re.findall(r"coming-from/([\w-]+)\.md", (ROOT / "zensical.toml").read_text("utf-8"))
    assert sorted(listed) == NAMES


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_has_words_examples_and_what_is_missing(page):
    text = page.read_text("utf-8")
    table = text.partition("## ")[0]
    assert len(re.findall(r"^\| ", table, flags=re.MULTILINE)) >= 8
    headings = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert [each for each in headings if each in HEADINGS] == HEADINGS
    assert "**Missing:**" in text.partition("## What is better")[2]
    assert re.search(r"^```python\n", text, flags=re.MULTILINE)


def test_exporters_of_phoenix_and_langfuse_reach_a_server(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREERING_API_KEY", raising=False)
    text = (FOLDER / "langfuse-phoenix.md").read_text("utf-8")
    assert needs_more(text)
    assert f"tests/docs/{Path(__file__).name}" in text.partition("\n")[0]
    command = "import sys; from treering.cli.main import main; main(sys.argv[1:])"
    line = "serve --port 0 --store served".split()
    with subprocess.Popen(
        [sys.executable, "-c", command, *line], stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            address = re.search(r"http://\S+?(?=;)", server.stderr.readline())[0]
            assert 'server = "http://127.0.0.1:8787"' in text
            walk(text.replace("http://127.0.0.1:8787", address), capsys)
        finally:
            server.terminate()
            server.communicate(timeout=30)

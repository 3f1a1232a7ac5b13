"""What the pages show of the command line is what it prints (see `walking`)."""

from __future__ import annotations

import pytest

from tests.docs.walking import DOCS, compare, needs_more, walk

TEXTS = {page.relative_to(DOCS).as_posix(): page.read_text("utf-8") for page in sorted(DOCS.rglob("*.md"))}
PAGES = [name for name, text in TEXTS.items() if "```console" in text and not needs_more(text)]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_happens(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREERING_URL", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    assert walk(TEXTS[name], capsys)


def test_there_are_pages():
    assert set(PAGES) >= {"cli.md", "import.md", "quickstart.md", "operations.md", "howto/memory.md"}


def test_a_page_that_lies_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = "```python\nimport treering\ntreering.open('a').close()\nprint('ring')\n```\n"
    walk(f"{code}\n```text\nring\n```\n", capsys)
    for lie in (
        f"{code}\n```text\nbark\n```\n",
        "```console\n$ treering threads --store a\nno threads\n```\n",
        "```console\n$ treering threads --store nowhere\n...\n```\n",
    ):
        with pytest.raises(AssertionError):
            walk(lie, capsys)


def test_dots_stand_for_the_rest_and_not_for_failures():
    compare(["one", "two"], ["one", "..."], "$ x")
    for printed in (["two", "two"], ["one", "[3]"]):
        with pytest.raises(AssertionError):
            compare(printed, ["one", "..."], "$ x")

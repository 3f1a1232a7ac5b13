"""Markdown files: parsed without loss, edited line by line."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.errors import InvalidInput
from treering.memory.markdown import Markdown, edit_markdown, parse_markdown, read_front_matter

WRITTEN = """\
---
# who this is about
title:   'Alice''s tone'   # quoted on purpose
tags: [style,  alice]      # flow, with odd spaces

expires_at: 2027-01-01T00:00:00Z
nested:
    deep:
      - 1
      -   two   # a comment inside
auto_load: yes_really
# the last comment
---

Prefers *concise* replies.
"""


def test_a_file_is_split_into_head_and_body():
    parts = parse_markdown(WRITTEN, "a.md")
    assert parts.text == WRITTEN
    assert parts.body == "\nPrefers *concise* replies.\n"
    assert read_front_matter(parts, "a.md") == {
        "title": "Alice's tone",
        "tags": ["style", "alice"],
        "expires_at": datetime(2027, 1, 1, tzinfo=UTC),
        "nested": {"deep": [1, "two"]},
        "auto_load": "yes_really",
    }


def test_an_edit_without_changes_keeps_every_byte():
    parts = parse_markdown(WRITTEN, "a.md")
    assert edit_markdown(parts, read_front_matter(parts, "a.md"), parts.body, "a.md").text == WRITTEN


def test_an_edit_replaces_only_the_lines_of_changed_keys():
    parts = parse_markdown(WRITTEN, "a.md")
    metadata = read_front_matter(parts, "a.md")
    del metadata["expires_at"]
    metadata |= {"title": "Bob", "added": [1, 2]}
    after = edit_markdown(parts, metadata, "new body", "a.md")
    assert (
        after.text
        == """\
---
# who this is about
title: Bob  # quoted on purpose
tags: [style,  alice]      # flow, with odd spaces

nested:
    deep:
      - 1
      -   two   # a comment inside
auto_load: yes_really
# the last comment
added:
- 1
- 2
---
new body"""
    )


def test_windows_line_endings_and_a_byte_order_mark_are_kept():
    text = "\ufeff---\r\ntitle: a # x\r\nother: b\r\n---\r\nbody\r\n"
    parts = parse_markdown(text, "a.md")
    assert parts.text == text
    assert edit_markdown(parts, {"title": "c", "other": "b"}, parts.body, "a.md").text == text.replace(
        "title: a # x", "title: c  # x"
    )


def test_front_matter_is_added_only_when_needed():
    plain = Markdown("", "# A title\n")
    assert edit_markdown(plain, {}, "# A title\n\nmore", "a.md").text == "# A title\n\nmore"
    assert edit_markdown(plain, {"tags": ["x"]}, "text", "a.md").text == "---\ntags:\n- x\n---\ntext"


def test_a_body_that_looks_like_front_matter_round_trips():
    after = edit_markdown(Markdown("", ""), {}, "---\ntitle: no\n---\nrest", "a.md")
    again = parse_markdown(after.text, "a.md")
    assert (read_front_matter(again, "a.md"), again.body) == ({}, "---\ntitle: no\n---\nrest")


def test_a_horizontal_rule_is_not_front_matter():
    text = "---\nJust a rule above.\n"
    assert parse_markdown(text, "a.md") == Markdown("", text)


@pytest.mark.parametrize(
    "head, message",
    [
        ("title: [1, 2", "a.md: the front matter is not valid YAML: line"),
        ("a: 1\n b: 2", "not valid YAML"),
        ("- a\n- b", "write it as key: value"),
        ("a: 1\na: 2", "not valid YAML"),
        ("when: 2026-13-45", "not valid YAML"),
        ("\tx: 1", "not valid YAML"),
        ("a: !!python/object:os.system {}", "not valid YAML"),
    ],
)
def test_invalid_front_matter_names_file_and_line(head, message):
    with pytest.raises(InvalidInput, match=message):
        read_front_matter(parse_markdown(f"---\n{head}\n---\nbody", "a.md"), "a.md")


def test_unclosed_front_matter_is_rejected():
    with pytest.raises(InvalidInput, match="not closed"):
        parse_markdown("---\ntitle: x\n\nbody", "a.md")


def test_an_edit_keeps_the_values_of_anchors():
    text = "---\nbase: &base {a: 1}\nother: *base\n---\n"
    parts = parse_markdown(text, "a.md")
    metadata = read_front_matter(parts, "a.md") | {"base": {"a": 2}}
    after = edit_markdown(parts, metadata, "", "a.md")
    assert read_front_matter(after, "a.md") == {"base": {"a": 2}, "other": {"a": 1}}


KEYS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | TEXTS
    | st.dates(date(1990, 1, 1), date(2090, 1, 1)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
METADATA = st.dictionaries(KEYS, VALUES, max_size=5)


@given(first=METADATA, second=METADATA, body=TEXTS)
def test_what_is_written_reads_back(first, second, body):
    fresh = edit_markdown(Markdown("", ""), first, body, "a.md")
    assert read_front_matter(parse_markdown(fresh.text, "a.md"), "a.md") == first
    assert parse_markdown(fresh.text, "a.md").body == body
    after = edit_markdown(parse_markdown(fresh.text, "a.md"), second, body, "a.md")
    again = parse_markdown(after.text, "a.md")
    assert (read_front_matter(again, "a.md"), again.body) == (second, body)
    assert edit_markdown(again, second, body, "a.md").text == after.text


NINE = 9
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * NINE)}]\n" for at in range(1, 12)
)
MERGED = "a0: &a0 {k: v}\n" + "".join(
    f"a{at}: &a{at}\n  <<: [{', '.join([f'*a{at - 1}'] * NINE)}]\n" for at in range(1, 12)
)


@pytest.mark.parametrize(
    "head",
    [
        BOMB,
        MERGED,
        "a: &a [*a]\n",
        "a: " + "[" * 5000 + "\n",
        "a: " + "[" * 3000 + "]" * 3000 + "\n",
        "a:\n  " + "- " * 5000 + "x\n",
        "a: [" + "[]," * 60_000 + "]\n",
        "a: " + "x" * 300_000 + "\n",
    ],
    ids=["aliases", "merges", "itself", "open", "deep", "dashes", "values", "long"],
)
def test_front_matter_that_would_expand_without_end_is_refused(head):
    with pytest.raises(InvalidInput, match="front matter"):
        read_front_matter(parse_markdown(f"---\n{head}---\nbody", "a.md"), "a.md")


def test_a_few_aliases_are_read():
    parts = parse_markdown("---\na: &x [1, 2]\nb: *x\n---\n", "a.md")
    assert read_front_matter(parts, "a.md") == {"a": [1, 2], "b": [1, 2]}

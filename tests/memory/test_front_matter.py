"""Markdown files: read without loss, edited line by line."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.errors import InvalidInput
from treering.memory.markdown import Markdown, edited, metadata_of, split

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


def test_a_file_is_its_two_parts():
    parts = split(WRITTEN, "a.md")
    assert parts.text == WRITTEN
    assert parts.body == "\nPrefers *concise* replies.\n"
    assert metadata_of(parts, "a.md") == {
        "title": "Alice's tone",
        "tags": ["style", "alice"],
        "expires_at": datetime(2027, 1, 1, tzinfo=UTC),
        "nested": {"deep": [1, "two"]},
        "auto_load": "yes_really",
    }


def test_nothing_changes_where_nothing_was_edited():
    parts = split(WRITTEN, "a.md")
    assert edited(parts, metadata_of(parts, "a.md"), parts.body, "a.md").text == WRITTEN


def test_an_edit_changes_its_own_lines_only():
    parts = split(WRITTEN, "a.md")
    metadata = metadata_of(parts, "a.md")
    del metadata["expires_at"]
    metadata |= {"title": "Bob", "added": [1, 2]}
    after = edited(parts, metadata, "new body", "a.md")
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


def test_windows_line_ends_and_a_byte_order_mark_stay():
    text = "\ufeff---\r\ntitle: a # x\r\nother: b\r\n---\r\nbody\r\n"
    parts = split(text, "a.md")
    assert parts.text == text
    assert edited(parts, {"title": "c", "other": "b"}, parts.body, "a.md").text == text.replace(
        "title: a # x", "title: c  # x"
    )


def test_a_file_without_front_matter_gets_one_only_when_needed():
    plain = Markdown("", "# A title\n")
    assert edited(plain, {}, "# A title\n\nmore", "a.md").text == "# A title\n\nmore"
    assert edited(plain, {"tags": ["x"]}, "text", "a.md").text == "---\ntags:\n- x\n---\ntext"


def test_a_body_that_looks_like_front_matter_stays_a_body():
    after = edited(Markdown("", ""), {}, "---\ntitle: no\n---\nrest", "a.md")
    again = split(after.text, "a.md")
    assert (metadata_of(again, "a.md"), again.body) == ({}, "---\ntitle: no\n---\nrest")


def test_a_line_of_dashes_is_no_front_matter():
    text = "---\nJust a rule above.\n"
    assert split(text, "a.md") == Markdown("", text)


@pytest.mark.parametrize(
    "head, message",
    [
        ("title: [1, 2", "a.md: the front matter is not YAML: line"),
        ("a: 1\n b: 2", "not YAML"),
        ("- a\n- b", "write it as key: value"),
        ("a: 1\na: 2", "not YAML"),
        ("when: 2026-13-45", "not YAML"),
        ("\tx: 1", "not YAML"),
        ("a: !!python/object:os.system {}", "not YAML"),
    ],
)
def test_broken_front_matter_says_where_and_what(head, message):
    with pytest.raises(InvalidInput, match=message):
        metadata_of(split(f"---\n{head}\n---\nbody", "a.md"), "a.md")


def test_front_matter_that_never_ends_is_refused():
    with pytest.raises(InvalidInput, match="not closed"):
        split("---\ntitle: x\n\nbody", "a.md")


def test_anchors_are_kept_or_the_edit_is_refused():
    text = "---\nbase: &base {a: 1}\nother: *base\n---\n"
    parts = split(text, "a.md")
    metadata = metadata_of(parts, "a.md") | {"base": {"a": 2}}
    after = edited(parts, metadata, "", "a.md")
    assert metadata_of(after, "a.md") == {"base": {"a": 2}, "other": {"a": 1}}


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
    fresh = edited(Markdown("", ""), first, body, "a.md")
    assert metadata_of(split(fresh.text, "a.md"), "a.md") == first
    assert split(fresh.text, "a.md").body == body
    after = edited(split(fresh.text, "a.md"), second, body, "a.md")
    again = split(after.text, "a.md")
    assert (metadata_of(again, "a.md"), again.body) == (second, body)
    assert edited(again, second, body, "a.md").text == after.text

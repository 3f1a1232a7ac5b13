"""What messages say: Markdown, code, tool calls, images and terminal output, in every format, and safely."""

from __future__ import annotations

import base64

import pytest
from playwright.sync_api import expect
from tests.server.running import running
from tests.web.conftest import axe_findings, shot
from tests.web.showcase import ANSI, MARKDOWN, MESSAGES, png

import treering


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery") / "store"
    with treering.open(folder, durability="fast") as store:
        thread = store.thread("gallery")
        for message in MESSAGES:
            thread.append(message)
        with store.run(agent="clerk", id="gallery-run", thread=thread) as run:
            run.message("user", MESSAGES[0]["content"])
            with run.span("answer", kind="llm", model="fake-1", input={"messages": MESSAGES[:2]}) as call:
                call.output = MESSAGES[2]
            with run.tool("run", input={"command": "pytest -q"}) as call:
                call.output = ANSI
            run.message("assistant", MARKDOWN)
        with running(store) as url:
            yield url


def said(page, index):
    return page.locator(f".conversation .row:has(.said) >> nth={index}")


def opened(page, url, step):
    page.goto(f"{url}/ui/#/threads/gallery?at={step}")
    page.locator(".said").first.wait_for()


def at_top(page, gallery):
    page.goto(f"{gallery}/ui/#/threads/gallery")
    page.locator(".said").first.wait_for()
    page.locator(".inspector .rows").evaluate("e => { e.scrollTop = 0 }")
    page.locator(".heading").get_by_text("Refund for 4711").wait_for()


def test_markdown_is_rendered_and_nothing_in_it_is_run(page, gallery):
    at_top(page, gallery)
    text = page.locator(".markdown", has_text="Refund for 4711")
    expect(text.locator(".heading")).to_have_text("Refund for 4711")
    expect(text.locator("strong")).to_have_text("19.00 €")
    expect(text.locator("td.right")).to_have_text(["9.00", "10.00"])
    expect(text.locator("li.task [role=img]").first).to_have_attribute("aria-label", "done")
    expect(text.locator("pre.code .hljs-keyword").first).to_have_text("def")
    expect(text).to_contain_text("$s_1 + s_2$ and \\(a_1 * b_2\\)")
    expect(text.locator("a")).to_have_count(2)  # the invoice and the image: a script is no link
    expect(text).to_contain_text("<img src=x onerror")
    expect(text.locator("img")).to_have_count(0)
    assert page.title() != "owned"


def test_characters_that_hide_or_reorder_text_are_visible(page, gallery):
    at_top(page, gallery)
    expect(page.locator(".said.user").first).to_contain_text("⟦U+202E⟧gnp.exe")


def test_tool_calls_and_results_read_as_such(page, gallery):
    page.goto(f"{gallery}/ui/#/runs/gallery-run")
    page.locator(".turn").first.wait_for()
    call = page.locator(".turn.llm .part-card.call")
    expect(call.locator(".part-name")).to_contain_text("run")
    expect(call.locator("pre.code")).to_contain_text("git diff")
    expect(page.locator(".turn.llm details.thinking summary")).to_have_text("Thinking")
    expect(page.locator(".turn.llm .in .said.user")).to_contain_text("Refund order 4711")
    terminal = page.locator(".turn.tool .terminal")
    expect(terminal.locator(".ansi-green")).to_have_text("3 passed")
    expect(terminal.locator(".ansi-red.bold")).to_have_text("1 failed")
    expect(terminal).to_contain_text("␇")
    shot(page, "content_run")


def test_long_values_are_folded_and_can_be_searched(page, gallery):
    page.goto(f"{gallery}/ui/#/threads/gallery")
    failed = page.locator(".part-card.failed")
    expect(failed).to_contain_text("no such order")
    more = page.get_by_role("button", name="Show all (25.0 kB)")
    more.scroll_into_view_if_needed()
    more.click()
    expect(more).to_have_count(0)
    rows = page.locator(".inspector .rows")
    found = page.locator(".searchable input")
    for _ in range(40):
        if found.count():
            break
        rows.evaluate("e => { e.scrollTop -= 300 }")
        page.wait_for_timeout(20)
    found.fill("order 37")
    expect(page.locator(".searchable")).to_contain_text("order 37")
    expect(page.locator(".searchable")).not_to_contain_text("order 36")
    found.fill("nothing like it")
    expect(page.locator(".searchable")).to_contain_text("No matches")


def test_a_diff_is_a_diff_and_an_image_an_image(page, gallery):
    at_top(page, gallery)
    rows = page.locator(".inspector .rows")
    diff, image = page.locator(".diff-line.added"), page.locator(".picture img")
    for wanted in (diff, image):
        for _ in range(60):
            if wanted.count():
                break
            rows.evaluate("e => { e.scrollTop += 200 }")
            page.wait_for_timeout(20)
    expect(image).to_be_visible()
    assert image.evaluate("e => e.naturalWidth") == 24
    expect(page.get_by_role("link", name="a.txt")).to_have_attribute("download", "a.txt")


def diff_with(page, text):
    """The diff that has a text, once it was scrolled to."""
    found = page.locator(".diff").filter(has_text=text)
    rows = page.locator(".inspector .rows")
    for _ in range(60):
        if found.count():
            break
        rows.evaluate("e => { e.scrollTop += 150 }")
        page.wait_for_timeout(20)
    return found


def lines_of(diff):
    each = ".diff-line.{0} code"
    return {kind: diff.locator(each.format(kind)).all_inner_texts() for kind in ("removed", "added", "same")}


def test_what_is_written_around_a_diff_is_not_taken_for_it(page, gallery):
    at_top(page, gallery)
    diff = diff_with(page, "commit 4711")
    expect(diff.locator(".diff-line.note")).to_have_text(["commit 4711", " ", "    Count the refunds", " "])
    expect(diff.locator(".diff-line.skipped")).to_have_text(["report.md", "from line 1"])
    assert lines_of(diff) == {
        "removed": ["\u221211 refunds"],
        "added": ["+12 refunds"],
        "same": [" # Report"],
    }


def test_an_edit_and_a_patch_of_codex_are_diffs(page, gallery):
    at_top(page, gallery)
    edit = diff_with(page, "b = 3")
    assert lines_of(edit) == {"removed": ["\u2212b = 2"], "added": ["+b = 3"], "same": [" a = 1"]}
    patch = diff_with(page, "notes.md")
    expect(patch.locator(".diff-line.skipped")).to_have_text(["notes.md", "# Notes", "more.md"])
    assert lines_of(patch) == {"removed": ["\u2212old"], "added": ["+new", "+first"], "same": [" kept"]}


def test_a_message_can_be_seen_as_it_was_saved(page, gallery):
    at_top(page, gallery)
    message = page.locator(".said", has_text="Refund for 4711")
    message.hover()
    message.get_by_role("button", name="JSON").click()
    expect(page.locator(".said pre.code .hljs-attr").first).to_have_text('"role"')


def test_an_input_or_output_can_be_copied_and_seen_as_json(new_page, gallery):
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    page.goto(f"{gallery}/ui/#/runs/gallery-run")
    output = page.locator(".turn.tool .out .payload")
    output.hover()
    output.get_by_role("button", name="Copy").click()
    expect(output.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == ANSI
    given = page.locator(".turn.llm .in .payload")
    given.hover()
    given.get_by_role("button", name="JSON").last.click()
    expect(given.locator("pre.code")).to_contain_text('"messages"')


def test_an_image_that_is_stored_as_bytes_is_shown(page, own_store):
    store, url = own_store
    image = base64.b64decode(png()) + b"\0" * 5000  # so large that it is an object of its own
    store.thread("pictures").append(
        {
            "role": "user",
            "content": [{"type": "image", "source": {"media_type": "image/png", "data": image}}],
        },
        {"role": "tool", "tool_call_id": "t", "content": [image]},
    )
    page.goto(f"{url}/ui/#/threads/pictures")
    pictures = page.locator(".picture img")
    expect(pictures).to_have_count(2)
    for each in pictures.all():
        assert each.evaluate("e => e.decode().then(() => e.naturalWidth)") == 24


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_content_is_accessible_in_every_scheme_and_width(new_page, gallery, scheme, width):
    page = new_page(scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    at_top(page, gallery)
    page.locator(".hljs-keyword").first.wait_for()
    assert axe_findings(page) == []
    shot(page, f"content_{scheme}_{width}")
    page.goto(f"{gallery}/ui/#/runs/gallery-run")
    page.locator(".ansi-green").wait_for()
    assert axe_findings(page) == []
    shot(page, f"content_run_{scheme}_{width}")

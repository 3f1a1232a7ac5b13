"""What is hard to show is laid out well and accessible: on a desktop and a phone, in light and dark."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from playwright.sync_api import expect
from tests.server.running import running
from tests.web import showcase
from tests.web.conftest import axe_findings, layout_findings, shot


def thread(id: str, query: str = "") -> str:
    return f"#/threads/{quote(id, safe='')}{query}"


VIEWS = {
    "runs": ("#/runs", "researcher"),
    "runs-none": ("#/runs?agent=nobody", "No matching runs"),
    "search": ("#/runs?q=refund", "best first"),
    "run-live": ("#/runs/show-live", "Norway"),
    "run-crashed": ("#/runs/show-crashed", "unfinished"),
    "run-thousand": ("#/runs/show-thousand", "worker-1"),
    "run-thousand-cost": ("#/runs/show-thousand?tab=cost", "By token type"),
    "run-long-names": ("#/runs/show-long-names", "done done"),
    "run-long-names-cost": ("#/runs/show-long-names?tab=cost", "have no price"),
    "run-right-to-left": ("#/runs/show-right-to-left", showcase.ARABIC),
    "run-gallery": ("#/runs/show-gallery", "3 passed"),
    "compare": ("#/compare?runs=run-003,show-long-names", "in common"),
    "threads": ("#/threads", "show/huge-json"),
    "thread-right-to-left": (thread("show/right-to-left"), showcase.ARABIC),
    "thread-huge": (thread("show/huge-json"), "a_key_that_is_quite_long"),
    "thread-huge-state": (thread("show/huge-json", "?tab=state"), "400 items"),
    "thread-long-name": (thread(f"show/waits/{showcase.LONG}"), "Pending approval"),
    "thread-of-runs-only": (thread("work/coder"), "it has no checkpoints"),
    "memory": (f"#/memory/{quote(f'projects/{showcase.LONG}/decision-03', safe='')}", "We chose option"),
    "memory-right-to-left": (f"#/memory/{quote('עברית/שלום', safe='')}", showcase.HEBREW),
    "workspace": ("#/workspace", "a note that is rather long"),
    "schedules": ("#/schedules", "Look at every open ticket"),
    "approvals": ("#/approvals", "send_refund"),
    "effects-none": ("#/effects", "No effects"),
    "cost": ("#/cost?days=all", "By model"),
}


@pytest.fixture(scope="module")
def show_url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("showcase") / "store"
    with showcase.opened(folder) as store, running(store) as url:
        yield url


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_laid_out_well_and_accessible(name, new_page, show_url):
    fragment, text = VIEWS[name]
    page = new_page(expected=("404",) if name == "thread-of-runs-only" else ())
    page.goto(f"{show_url}/ui/{fragment}")
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.locator("main").get_by_text(text).first.wait_for(state="attached")
        page.locator("[role=status]:has-text('…')").first.wait_for(state="detached")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.locator(f"html[data-theme={scheme}]").wait_for()
            shot(page, f"show-{name}-{scheme}-{width}")
            assert axe_findings(page, rules=() if scheme == "light" else ("color-contrast",)) == []
        assert layout_findings(page) == []


def test_a_span_that_a_crash_cut_off_does_not_run(page, show_url):
    page.goto(f"{show_url}/ui/#/runs/show-crashed")
    expect(page.locator(".turn", has_text="embed").locator(".status")).to_have_text("unfinished")
    page.get_by_role("button", name="embed").first.click()
    page.get_by_role("link", name="Event").click()
    expect(page.locator(".details .status")).to_have_text("unfinished")


def test_a_cost_without_a_price_is_not_compared(page, show_url):
    page.goto(f"{show_url}/ui/#/compare?runs=run-003,show-long-names")
    expect(page.get_by_role("row", name="cost").get_by_role("cell").last).to_have_text("\u2013")
    expect(page.get_by_role("row", name="tokens").locator(".delta")).to_have_text("\u00d7 1,204")


def test_a_thread_of_which_nothing_was_saved_shows_its_runs(new_page, show_url):
    page = new_page(expected=("404",))
    page.goto(f"{show_url}/ui/{thread('work/coder')}")
    expect(page.locator("h1")).to_have_text("work/coder")
    expect(page.locator(".runs-of-thread li")).to_have_count(10)
    expect(page.locator(".lede")).to_contain_text("10 runs")


def test_documents_are_shown_as_markdown(page, show_url):
    page.goto(f"{show_url}/ui/{VIEWS['memory'][0]}")
    expect(page.locator(".text-body strong")).to_have_text("chose")
    expect(page.locator(".text-body .heading")).to_have_text("Decision 3")

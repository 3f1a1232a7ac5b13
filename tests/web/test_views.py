"""Every view shows what is really in the store, can be linked to, and is accessible in light and dark."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from tests.web.conftest import axe_findings, layout_findings, shot

VIEWS = {
    "runs": ("#/runs", "run-failed"),
    "runs-filtered": ("#/runs?agent=planner&status=ok", "run-000"),
    "search": ("#/runs?q=refund", "best first"),
    "run": ("#/runs/run-003", "Summarise what customers said"),
    "run-failed": ("#/runs/run-failed?span=rf-upload&tab=details", "ConnectionRefusedError"),
    "run-cost": ("#/runs/run-003?tab=cost", "By token type"),
    "run-replay": ("#/runs/run-003?at=100000", "Summarise what customers said"),
    "compare": ("#/compare?runs=run-003,run-015", "in common"),
    "compare-agents": ("#/compare?agents=coder,planner", "tokens a run"),
    "threads": ("#/threads", "support/alice-bolder"),
    "thread": ("#/threads/support%2Falice", "Pending approval"),
    "thread-state": ("#/threads/support%2Falice?tab=state", "ask for an account"),
    "thread-diff": ("#/threads/work%2Frefunds?tab=diff", "shop/limits.py"),
    "thread-files": ("#/threads/work%2Frefunds?tab=files&path=shop%2Frefund.py&file=1", "min(amount, LIMIT)"),
    "thread-long": ("#/threads/research%2Flong-horizon", "90 checkpoints"),
    "workspace": ("#/workspace", "before the limit"),
    "memory": ("#/memory/policy%2Fsummary", "the handbook"),
    "memory-search": ("#/memory?q=gift+cards", "policy/refunds"),
    "memory-versions": ("#/memory/alice%2Ftone?tab=versions", "and no emojis."),
    "memory-edit": ("#/memory/alice%2Ftone?tab=edit", "Load into every context"),
    "cost": ("#/cost?days=all", "By model"),
    "schedules": ("#/schedules", "Summarise the night"),
    "store": ("#/store", "Integrity"),
    "nowhere": ("#/attic", "Page not found"),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shows_its_data_and_is_accessible(name, page, sample_url):
    fragment, text = VIEWS[name]
    page.goto(f"{sample_url}/ui/{fragment}")
    page.get_by_text(text).first.wait_for()
    page.locator("[role=status]:has-text('…')").first.wait_for(state="detached")
    shot(page, f"{name}-light")
    assert layout_findings(page) == []
    assert axe_findings(page) == []
    page.emulate_media(color_scheme="dark")
    page.locator("html[data-theme=dark]").wait_for()
    shot(page, f"{name}-dark")
    assert axe_findings(page, rules=("color-contrast",)) == []


@pytest.mark.parametrize("width", [390, 820, 1024])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_fits_a_phone_a_tablet_and_a_small_window(name, width, page, sample_url):
    fragment, text = VIEWS[name]
    page.set_viewport_size({"width": width, "height": 844})
    page.goto(f"{sample_url}/ui/{fragment}")
    page.get_by_text(text).first.wait_for(state="attached")
    page.locator("[role=status]:has-text('…')").first.wait_for(state="detached")
    shot(page, f"{name}-{width}")
    assert layout_findings(page) == []
    if width == 390:
        assert axe_findings(page) == []


def test_on_a_phone_a_menu_leads_everywhere(page, sample_url):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{sample_url}/ui/#/runs")
    menu = page.get_by_role("button", name="Menu: Runs")
    expect(page.get_by_role("link", name="Memory")).to_be_hidden()
    menu.click()
    page.get_by_role("link", name="Memory").click()
    expect(page.locator("h1")).to_have_text("Memory")
    expect(page.get_by_role("link", name="Schedules")).to_be_hidden()


def test_on_a_phone_a_document_takes_the_place_of_the_list(page, sample_url):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{sample_url}/ui/#/memory")
    page.get_by_role("link", name="policy/refunds").click()
    expect(page.locator(".text-body")).to_contain_text("three to five working days")
    expect(page.locator(".documents")).to_be_hidden()
    page.get_by_role("link", name="All documents").click()
    expect(page.locator(".documents")).to_be_visible()


def test_on_a_phone_the_timeline_of_a_run_is_a_tab(page, sample_url):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{sample_url}/ui/#/runs/run-003")
    page.locator(".conversation").wait_for()
    expect(page.locator(".waterfall")).to_have_count(0)
    page.get_by_role("link", name="Timeline").click()
    page.locator(".waterfall .lane-title", has_text="search_docs").click()
    expect(page.locator(".details")).to_contain_text("refund policy")

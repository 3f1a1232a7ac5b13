"""Size: 50,000 events in one run, and a list of very many runs; only what is in sight is in the page."""

from __future__ import annotations

import pytest
from examples import sample_store
from playwright.sync_api import expect
from tests.server.running import running
from tests.web.conftest import shot

import treering

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def large_store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large_store") / "store"
    sample_store.add_large_run(folder, events=50_000)
    sample_store.add_many_runs(folder, runs=600)
    with treering.open(folder) as store, running(store) as url:
        yield url


def test_fifty_thousand_events_scroll(page, large_store):
    page.goto(f"{large_store}/ui/#/runs/run-large")
    lanes = page.get_by_role("region", name="Spans")
    lanes.wait_for()
    expect(lanes).to_have_attribute("data-total", "50000", timeout=60_000)
    assert page.locator(".waterfall .row").count() < 120
    lanes.evaluate("e => { e.scrollTop = e.scrollHeight / 2 }")
    expect(page.locator(".waterfall .row").first).to_contain_text(("measure", "think", "assistant", "day")[0])
    page.keyboard.press("End")
    expect(page.locator(".waterfall .row.selected")).to_be_visible()
    assert page.locator(".waterfall .row").count() < 120
    assert page.locator(".conversation .row").count() < 120
    shot(page, "large_store")


def test_a_selection_deep_in_a_large_run_has_a_url(page, large_store):
    page.goto(f"{large_store}/ui/#/runs/run-large?span=w30000&tab=details")
    expect(page.locator(".details")).to_contain_text("Tree 30000 has 0 rings.")
    expect(page.locator(".waterfall .row.selected")).to_be_visible(timeout=60_000)


def test_a_long_list_of_runs_is_fetched_as_one_scrolls(page, large_store):
    page.goto(f"{large_store}/ui/#/runs")
    rows = page.get_by_role("region", name="Runs")
    rows.wait_for()
    for total in (200, 400, 601):
        page.wait_for_function(
            """total => {
                const rows = document.querySelector('.rows');
                rows.scrollTop = rows.scrollHeight;
                return Number(rows.dataset.total) >= total;
            }""",
            arg=total,
        )
    expect(page.get_by_text("run-large")).to_be_visible()  # three days old, the oldest
    assert page.locator("[role=listitem]").count() < 80


def test_a_thread_of_more_checkpoints_than_a_page_is_read_to_its_root(page, tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as store, running(store) as url:
        thread = store.thread("long")
        for number in range(620):
            thread.append({"role": "user", "content": str(number)})
        page.goto(f"{url}/ui/#/threads/long")
        checkpoints = page.get_by_role("region", name="Checkpoints")
        expect(checkpoints).to_have_attribute("data-total", "500")
        page.keyboard.press("End")
        expect(checkpoints).to_have_attribute("data-total", "620")
        page.keyboard.press("End")
        expect(page.locator(".inspector .step")).to_have_text("0")
        page.close()


def test_a_key_pressed_as_soon_as_a_list_is_shown_is_not_lost(page, tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as store, running(store) as url:
        thread = store.thread("long")
        for number in range(40):
            thread.append({"role": "user", "content": str(number)})
        page.add_init_script(
            """new MutationObserver((_, watcher) => {
                if (!document.querySelector('.checkpoints')) return;
                watcher.disconnect();
                document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'End', bubbles: true}));
            }).observe(document, {childList: true, subtree: true})"""
        )
        page.goto(f"{url}/ui/#/threads/long")
        expect(page.locator(".inspector .step")).to_have_text("0")
        page.close()

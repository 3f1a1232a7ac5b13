"""The list of runs and the keys that lead everywhere."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from tests.web.conftest import axe_findings

from treering.sandbox import Sandbox


def test_filters_narrow_the_runs_and_are_in_the_url(page, sample_url):
    page.goto(f"{sample_url}/ui/#/runs")
    rows = page.locator(".runs-table [role=listitem]")
    rows.first.wait_for()
    page.get_by_label("Status").select_option("error")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("run-failed")
    expect(page).to_have_url(re.compile("status=error"))
    page.get_by_label("Agent").fill("planner")
    page.get_by_label("Agent").press("Enter")
    page.get_by_text("No matching runs").wait_for()
    page.get_by_role("link", name="Show all runs").click()
    expect(rows.nth(5)).to_be_visible()


def test_runs_are_narrowed_to_a_time_and_sorted(page, sample_url):
    page.goto(f"{sample_url}/ui/#/runs")
    rows = page.locator(".runs-table [role=listitem]")
    rows.nth(5).wait_for()
    page.get_by_label("Started").select_option("last 7 days")
    expect(page).to_have_url(re.compile("period=7d"))
    expect(page.get_by_text("run-003")).to_have_count(0)
    page.get_by_label("Started").select_option("between …")
    page.get_by_label("Until").fill("2001-01-01T00:00")
    page.get_by_text("No matching runs").wait_for()
    page.get_by_role("link", name="Show all runs").click()
    page.get_by_label("Sort by").select_option("longest")
    expect(rows.first).to_contain_text("9.", use_inner_text=True)
    expect(page).to_have_url(re.compile("sort=duration"))


def test_a_run_shows_its_question_its_answer_and_its_error(page, sample_url):
    page.goto(f"{sample_url}/ui/#/runs")
    row = page.locator(".runs-table [role=listitem]", has_text="run-failed")
    expect(row).to_contain_text("Publish version 1.4. → ConnectionRefusedError: the package index")
    row = page.locator(".runs-table [role=listitem]", has_text="run-035")
    expect(row).to_contain_text("Is the price list of September still valid? → No. It was replaced")


def test_keys_select_and_open_a_run(page, sample_url):
    page.goto(f"{sample_url}/ui/#/runs")
    page.locator(".runs-table [role=listitem]").first.wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(".row.selected")).to_contain_text("run-failed")
    page.keyboard.press("k")
    expect(page.locator(".row.selected")).to_contain_text("run-librarian")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("coder")


@pytest.mark.parametrize(
    "key, title",
    [
        ("r", "Runs"),
        ("t", "Threads"),
        ("w", "Workspace"),
        ("m", "Memory"),
        ("c", "Cost"),
        ("s", "Schedules"),
        ("o", "Store"),
    ],
)
def test_every_view_has_a_two_key_shortcut(key, title, new_page, sample_url):
    page = new_page(expected=("404",))
    page.goto(f"{sample_url}/ui/#/attic")
    page.get_by_text("Page not found").wait_for()
    page.keyboard.press("g")
    page.keyboard.press(key)
    expect(page.locator("h1")).to_have_text(title)


def test_help_lists_the_keys_and_closes(page, sample_url):
    page.goto(f"{sample_url}/ui/")
    page.locator("h1").wait_for()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(dialog).to_contain_text("compare selected runs")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_slash_goes_to_the_search_and_typing_stays_there(page, sample_url):
    page.goto(f"{sample_url}/ui/#/threads")
    page.get_by_text("support/alice-bolder").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("SEARCH/")
    expect(page.locator(".threads-table [role=listitem]")).to_have_count(1)
    expect(page).to_have_url(re.compile("containing=SEARCH"))


def test_the_theme_is_toggled_and_remembered(page, sample_url):
    page.goto(f"{sample_url}/ui/")
    page.get_by_role("button", name="Dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Light").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "light")


def test_search_leads_to_the_message(page, sample_url):
    page.goto(f"{sample_url}/ui/#/runs")
    page.get_by_label("Search").fill("invoice")
    hits = page.locator(".hit")
    expect(hits.first.locator("mark").first).to_have_text("invoice")
    hits.filter(has_text="user ·").first.click()
    expect(page.locator(".turn.chosen")).to_contain_text("invoice")
    page.go_back()
    hits.filter(has_text="input ·").first.click()
    expect(page.locator(".details")).to_contain_text("invoice")


def test_a_search_finds_threads_memory_and_runs_by_kind(page, own_store):
    store, url = own_store
    store.thread("invoice-desk").append({"role": "user", "content": "hello"})
    store.thread("work/bob").append({"role": "user", "content": "Where is the invoice of May?"})
    store.memory.save("billing", "Send the invoice by mail.")
    page.goto(f"{url}/ui/#/runs?q=invoice")
    hits = page.locator(".hit")
    hits.first.wait_for()
    expect(page.locator(".hit .group:not(:empty)")).to_have_text(["Threads", "Memory", "Runs"])
    expect(hits.nth(0)).to_contain_text("invoice-desk")
    expect(hits.nth(1).locator("mark")).to_have_text("invoice")
    hits.filter(has_text="billing").click()
    expect(page.locator(".text-body")).to_contain_text("Send the invoice by mail.")
    page.go_back()
    hits.filter(has_text="work/bob").click()
    expect(page.locator(".said").first).to_contain_text("Where is the invoice of May?")


def test_selected_runs_are_compared(page, sample_url):
    page.goto(f"{sample_url}/ui/#/runs?agent=support")
    rows = page.locator(".runs-table [role=listitem]")
    rows.nth(1).wait_for()
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.get_by_role("button", name="Compare 2").click()
    expect(page.locator("h1")).to_have_text("Compare")
    expect(page.locator("table.compare thead th")).to_have_count(3)
    expect(page.locator(".side-by-side")).to_be_visible()
    expect(page.locator("tr", has_text="cost").locator(".delta")).to_have_text(re.compile(r"^\W\d+ %$"))


def test_checkpoints_of_sandboxes_lead_to_their_files(page, own_store, tmp_path, monkeypatch):
    monkeypatch.setenv("TREERING_HOME", str(tmp_path / "home"))
    store, url = own_store
    page.goto(f"{url}/ui/#/workspace?tab=sandboxes")
    page.get_by_text("No checkpoints of sandboxes yet").wait_for()
    with Sandbox("program", store=store, session_tag_prefix="docs") as sandbox:
        command = ["sh", "-c", "echo hello > notes.txt; echo '# Plan' > output/plan.md"]
        done = sandbox.execute(command, checkpoint_comment="a draft")
    assert done.checkpoint is not None
    row = page.locator(".sandboxes-table [role=listitem]")  # appears without a reload
    expect(row).to_contain_text("a draft")
    row.get_by_role("link").click()
    expect(page.locator(".head")).to_contain_text(done.checkpoint.tag)
    page.locator("main").get_by_text("workspace").first.wait_for()
    expect(page).to_have_url(re.compile(done.checkpoint.hash))
    expect(page.locator(".head")).to_contain_text("Sandbox sbx_")
    page.get_by_role("link", name="plan.md").click()
    expect(page.locator(".preview")).to_contain_text("# Plan")
    page.get_by_role("link", name=done.checkpoint.tag).click()
    expect(row).to_have_count(1)
    assert axe_findings(page) == []

"""A run: waterfall, conversation, cost, replay, and addresses for all of it."""

from __future__ import annotations

import re

from playwright.sync_api import expect


def open_run(page, url, fragment=""):
    page.goto(f"{url}/ui/#/runs/run-003{fragment}")
    page.locator(".lane").first.wait_for()


def test_the_waterfall_nests_spans_and_closes_them(page, sample_url):
    open_run(page, sample_url)
    rows = page.locator(".waterfall .row")
    expect(rows).to_have_count(7)
    page.get_by_role("button", name="Collapse support").click()
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Expand support").click()
    expect(rows).to_have_count(7)
    page.locator("body").press("Shift+C")
    expect(rows).to_have_count(7)  # the root of the tree stays open


def test_a_span_is_selected_shown_and_linked_to(page, sample_url):
    open_run(page, sample_url)
    page.get_by_role("button", name="search_docs").first.click()
    expect(page).to_have_url(re.compile(r"span=r3t0-search"))
    page.get_by_role("link", name="Event").click()
    details = page.locator(".details")
    expect(details).to_contain_text("refund policy")
    expect(details).to_contain_text("Gift cards are refunded as gift cards.")
    page.reload()
    expect(page.locator(".details h2")).to_contain_text("search_docs")
    expect(page.locator(".waterfall .row.selected")).to_contain_text("search_docs")


def test_keys_step_through_the_events(page, sample_url):
    open_run(page, sample_url)
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator(".waterfall .row.selected")).to_contain_text("support")
    page.keyboard.press("2")
    expect(page.locator(".details h2")).to_contain_text("support")
    page.keyboard.press("k")
    expect(page.locator(".details h2")).to_contain_text("user")
    page.keyboard.press("3")
    expect(page.locator(".spending")).to_contain_text("By model")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator("h1")).to_have_text("Runs")


def test_the_conversation_has_messages_calls_and_their_content(page, sample_url):
    open_run(page, sample_url)
    said = page.locator(".conversation")
    expect(said).to_contain_text("Summarise what customers said about the new invoice.")
    expect(said).to_contain_text("A refund takes three to five working days.")
    expect(said).to_contain_text("Three asked for the due date to be larger")
    expect(said.locator(".turn")).to_have_count(5)


def test_zoom_moves_the_axis_and_comes_back(page, sample_url):
    open_run(page, sample_url)
    axis = page.locator(".axis")
    whole = axis.inner_text()
    page.get_by_role("button", name="Zoom in").click()
    expect(axis).not_to_have_text(whole)
    page.keyboard.press("0")
    expect(axis).to_have_text(whole, use_inner_text=True)


def test_replay_shows_only_what_had_happened(page, sample_url):
    open_run(page, sample_url, "?at=1")
    rows = page.locator(".waterfall .row")
    expect(rows).to_have_count(1)
    page.keyboard.press("]")
    expect(rows).to_have_count(3)
    page.keyboard.press("]")
    expect(rows).to_have_count(4)
    page.keyboard.press("[")
    expect(rows).to_have_count(3)
    expect(page).to_have_url(re.compile(r"at=\d+"))
    page.get_by_role("slider").evaluate("e => { e.value = 1000; e.dispatchEvent(new Event('input')) }")
    expect(rows).to_have_count(7)
    expect(page).not_to_have_url(re.compile("at="))


def test_replay_plays_to_the_end(page, sample_url):
    open_run(page, sample_url)
    page.get_by_label("Speed").select_option("4")
    page.get_by_role("button", name="Replay").click()
    page.get_by_role("button", name="Pause").wait_for()
    page.get_by_role("button", name="Replay").wait_for()
    expect(page.locator(".waterfall .row")).to_have_count(7)


def test_cost_is_broken_down(page, sample_url):
    open_run(page, sample_url, "?tab=cost")
    spending = page.locator(".spending")
    expect(spending).to_contain_text("gpt-5-mini")
    expect(spending).to_contain_text("read from cache")
    expect(spending.locator(".lede")).to_contain_text("$0.00")


def test_an_error_is_shown_with_its_traceback(page, sample_url):
    page.goto(f"{sample_url}/ui/#/runs/run-failed?span=rf-upload&tab=details")
    expect(page.locator(".details .trouble")).to_contain_text("ConnectionRefusedError")
    expect(page.locator(".details pre")).to_contain_text("Traceback")
    page.get_by_role("link", name="Conversation").click()
    expect(page.locator(".conversation .trouble").first).to_contain_text("the package index refused")

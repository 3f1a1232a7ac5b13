"""A thread: rings, forks, rewinds, decisions; each button does to the store what it says."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect


def open_thread(page, url, fragment=""):
    page.goto(f"{url}/ui/#/threads/support%2Falice{fragment}")
    page.locator(".checkpoints .row").first.wait_for()


def test_the_diagram_shows_the_checkpoints_of_every_fork(page, sample_url):
    open_thread(page, sample_url)
    expect(page.locator(".relative")).to_have_text(
        [re.compile("alice-formal"), re.compile("alice-bolder"), re.compile("alice-letter")]
    )
    expect(page.locator(".ring.left")).to_have_count(2)  # abandoned by the rewind
    for branch in range(4):
        expect(page.locator(f".ring.branch-{branch}").first).to_be_attached()


def test_a_ring_of_the_diagram_links_to_its_checkpoint(page, sample_url):
    open_thread(page, sample_url)
    page.locator(".ring.left").first.dispatch_event("click")
    expect(page).to_have_url(re.compile(r"at=ckpt_"))
    expect(page.locator(".inspector")).to_contain_text("abandoned by a rewind")
    page.reload()
    expect(page.locator(".inspector")).to_contain_text("abandoned by a rewind")
    expect(page.locator(".checkpoints .row.selected .tag")).to_have_text("abandoned")


def test_keys_step_through_the_checkpoints(page, sample_url):
    open_thread(page, sample_url)
    page.keyboard.press("End")
    expect(page.locator(".inspector .step")).to_have_text("0")
    page.keyboard.press("k")
    expect(page.locator(".inspector .step")).to_have_text("1")
    expect(page.locator(".inspector h2")).to_contain_text("first draft")
    expect(page.locator(".inspector .said")).to_have_count(2)


def test_any_two_checkpoints_are_compared(page, own_store):
    store, url = own_store
    first = store.thread("support/alice").at(1).id
    bolder = store.thread("support/alice-bolder").head.id
    open_thread(page, url, f"?at={bolder}&with={first}&tab=diff")
    found = page.locator(".differences")
    expect(found).to_contain_text("2 messages in common")
    expect(found.locator(".change.added")).to_have_count(3)
    expect(found.locator(".patch li.remove, .patch li.replace").first).to_be_visible()


def test_fork_makes_a_thread_that_shares_the_past(page, own_store):
    store, url = own_store
    open_thread(page, url)
    page.keyboard.press("End")
    page.get_by_role("button", name="Fork here").click()
    page.get_by_label("Thread id").fill("support/alice/again")
    page.get_by_role("dialog").get_by_role("button", name="Fork").click()
    expect(page.locator("h1")).to_have_text("support/alice/again")
    assert store.thread("support/alice/again").load().message_count == 1


def test_rewind_asks_first_and_then_moves_the_head(page, own_store):
    store, url = own_store
    before = store.thread("support/alice").head.id
    open_thread(page, url)
    page.locator(".checkpoint", has_text="first draft").click()
    page.get_by_role("button", name="Rewind here").click()
    page.get_by_role("button", name="Cancel").click()
    assert store.thread("support/alice").head.id == before
    page.get_by_role("button", name="Rewind here").click()
    page.get_by_role("dialog").get_by_role("button", name="Rewind").click()
    expect(page.locator(".inspector .tag.good")).to_have_text("head of support/alice")
    assert store.thread("support/alice").head.note == "first draft"


def test_a_decision_is_approved(page, own_store):
    store, url = own_store
    open_thread(page, url)
    page.get_by_role("button", name="Approve").click()
    expect(page.locator(".pending")).to_have_count(0)
    head = store.thread("support/alice").load()
    assert head.pending_interrupt is None
    assert head.metadata["resumed"]["decision"] == "approve"


def test_a_decision_is_denied(page, own_store):
    store, url = own_store
    open_thread(page, url)
    page.get_by_role("button", name="Deny").click()
    expect(page.locator(".pending")).to_have_count(0)
    assert store.thread("support/alice").load().metadata["resumed"]["decision"] == "deny"


def test_a_decision_is_edited_and_must_be_json(page, own_store):
    store, url = own_store
    open_thread(page, url)
    page.get_by_role("button", name="Edit", exact=True).click()
    text = page.get_by_label("Replacement value")
    payload = json.loads(text.input_value())
    text.fill("{")
    page.get_by_role("button", name="Approve edited").click()
    expect(page.locator(".pending [role=alert]")).to_contain_text("Invalid JSON")
    text.fill(json.dumps({**payload, "amount": 15}))
    page.get_by_role("button", name="Approve edited").click()
    expect(page.locator(".pending")).to_have_count(0)
    assert store.thread("support/alice").load().metadata["resumed"]["payload"]["amount"] == 15


def test_a_checkpoint_that_is_saved_now_appears_by_itself(page, own_store):
    store, url = own_store
    page.goto(f"{url}/ui/#/threads/work%2Frefunds")
    expect(page.locator(".checkpoints .row")).to_have_count(2)
    page.locator(".pulse.on").wait_for()
    store.thread("work/refunds").append({"role": "user", "content": "Thank you."}, note="thanks")
    expect(page.locator(".checkpoints .row")).to_have_count(3)

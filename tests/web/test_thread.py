"""A thread: rings, forks, rewinds, decisions; each button does to the store what it says."""

from __future__ import annotations

import json
import re

from playwright.sync_api import expect
from tests.adapters.langgraph.test_pending import ask, graph
from tests.web.conftest import axe_findings


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


def test_a_message_is_edited_in_a_fork_that_goes_on_from_it(page, own_store):
    store, url = own_store
    open_thread(page, url)
    message = page.locator(".said", has_text="Nothing came.")
    message.hover()
    message.get_by_role("button", name="Edit").click()
    dialog = page.get_by_role("dialog", name="Edit message 3")
    assert axe_findings(page) == []
    dialog.get_by_label("Message", exact=True).fill("It came, thank you.")
    dialog.get_by_role("button", name="Fork with this change").click()
    expect(page.locator("h1")).to_have_text("support/alice-edited")
    edited = store.thread("support/alice-edited").load()
    assert [each["content"] for each in edited.messages] == [
        "Where is my refund?",
        "It was sent on Monday.",
        "It came, thank you.",
    ]
    assert edited.state == store.thread("support/alice").load().state
    assert store.thread("support/alice").load().message_count == 5
    page.get_by_role("link", name="Diff").click()
    expect(page.locator(".change.added")).to_contain_text("It came, thank you.")


def test_what_follows_an_edited_message_can_be_kept(page, own_store):
    store, url = own_store
    open_thread(page, url)
    message = page.locator(".said", has_text="Where is my refund?")
    message.hover()
    message.get_by_role("button", name="Edit").click()
    page.get_by_label("Message", exact=True).fill("Where is my parcel?")
    page.get_by_label("Keep the 4 messages after it").check()
    page.get_by_label("Id of the new thread").fill("support/parcel")
    page.get_by_role("button", name="Fork with this change").click()
    expect(page.locator("h1")).to_have_text("support/parcel")
    messages = store.thread("support/parcel").load().messages
    assert [messages[0]["content"], len(messages)] == ["Where is my parcel?", 5]


def test_the_state_is_edited_in_a_fork(page, own_store):
    store, url = own_store
    open_thread(page, url, "?tab=state")
    page.get_by_role("button", name="Edit and fork").click()
    page.get_by_label("State (JSON)").fill("{")
    page.get_by_role("button", name="Fork with this change").click()
    expect(page.get_by_role("dialog")).to_contain_text("This is not JSON")
    page.get_by_label("State (JSON)").fill('{"todos": []}')
    page.get_by_role("button", name="Fork with this change").click()
    expect(page.locator("h1")).to_have_text("support/alice-edited")
    assert store.thread("support/alice-edited").load().state == {"todos": []}


def test_a_graph_that_waits_is_answered(page, own_store):
    store, url = own_store
    waits = graph(store, ask)
    config = {"configurable": {"thread_id": "graph"}}
    waits.invoke({"said": []}, config)
    page.goto(f"{url}/ui/#/threads/graph")
    pending = page.locator(".pending")
    expect(pending).to_contain_text("Send it?")
    pending.get_by_role("button", name="Answer").click()
    pending.get_by_label("Answer (JSON)").fill('{"amount": 7}')
    pending.get_by_role("button", name="Send answer").click()
    expect(pending).to_have_count(0)
    assert waits.invoke(None, config)["said"] == [{"amount": 7}]


def test_a_thread_shows_its_runs_and_what_they_cost(page, own_store):
    store, url = own_store
    for number in range(2):
        with store.run(agent="support", thread="support/alice", id=f"of-alice-{number}") as run:
            run.message("assistant", "Sent.", usage={"output": 50}, cost="0.25", currency="EUR")
    store.flush()
    open_thread(page, url)
    page.get_by_role("link", name="Runs", exact=True).last.click()
    expect(page.locator(".lede")).to_contain_text("€0.5000 2 runs, 100 tokens")
    page.locator(".runs-of-thread").get_by_role("link", name="support").first.click()
    expect(page.locator("h1")).to_have_text("support")
    expect(page.get_by_role("link", name="support/alice")).to_be_visible()


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
    expect(page.locator(".inspector .tag.good")).to_have_text("head")
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
    page.locator(".pending").get_by_role("button", name="Edit", exact=True).click()
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


def test_the_boundary_of_a_compaction_is_shown_and_opened(page, own_store):
    store, url = own_store
    thread = store.thread("support/alice")
    thread.compact("Alice wants a refund.", upto=2)
    open_thread(page, url)
    boundary = page.locator(".boundary")
    expect(boundary).to_contain_text("a model reads a summary of 2 messages")
    expect(page.locator(".inspector .said")).to_have_count(thread.load().message_count)
    boundary.locator("summary").click()
    expect(boundary.locator(".summary-text")).to_contain_text("Alice wants a refund.")
    assert axe_findings(page) == []

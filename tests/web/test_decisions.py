"""Questions and effects have pages of their own, where people decide; a run shows its sub-agents.

A thread shows the reply that broke off in its stream.
"""

from __future__ import annotations

from contextlib import suppress

from playwright.sync_api import expect
from tests.agent.test_subagents import Office
from tests.web.conftest import shot
from tests.web.test_waiting import aside

from treering.agent import create_agent
from treering.approvals.approvals import dashboard_link
from treering.approvals.policy import ApprovalPolicy
from treering.effects import Intent


def test_the_link_of_an_alert_opens_the_question_which_is_answered_there(page, own_store):
    store, url = own_store
    asked = aside(
        lambda: store.approvals.request(
            "refund", {"order": "4711", "amount": 900}, agent="support", policy=ApprovalPolicy(seconds=3600)
        )
    )
    page.goto(dashboard_link(url, asked.id))
    question = page.get_by_role("region", name="Question")
    expect(question).to_contain_text("refund")
    expect(question).to_contain_text("4711")
    expect(question).to_contain_text("support")
    expect(question).to_contain_text("cost so far")
    shot(page, "approval")
    question.get_by_role("button", name="Edit").click()
    question.get_by_role("textbox", name="Arguments").fill("{")
    question.get_by_role("button", name="Approve edited").click()
    expect(question.get_by_role("alert")).to_contain_text("Invalid JSON")
    question.get_by_role("textbox", name="Arguments").fill('{"order": "4711", "amount": 90}')
    question.get_by_role("textbox", name="Reason").fill("a typo")
    question.get_by_role("button", name="Approve edited").click()
    expect(question).to_contain_text("approved")
    answered = aside(lambda: store.approvals.load(asked.id))
    assert (answered.arguments, answered.reason) == ({"order": "4711", "amount": 90}, "a typo")


def test_an_unknown_effect_is_found_and_decided(page, own_store):
    store, url = own_store

    def leave() -> str:
        run = store.run("clerk").start()
        for order in ("4711", "4712"):
            intent = Intent(tool="pay", arguments={"order": order}, thread_id="shop", run_id=run.id)
            store.effects.plan(intent)
            attempt = store.effects.begin(intent.id)
            if order == "4711":
                attempt.leave(note="killed")
            else:
                files = [f"{number:03}.pdf" for number in range(101)]
                attempt.finish("tx_80", files=files, cost_nanos={"EUR": 250_000_000})
        run.end()
        store.flush()
        return run.id

    page.goto(f"{url}/ui/#/runs/{aside(leave)}")
    page.get_by_text("2 effects, 1 unknown").wait_for()
    listed = page.get_by_role("list", name="Effects of the run")
    expect(listed).to_contain_text("treering-")
    shot(page, "run_effects")
    listed.get_by_role("link").first.click()
    effect = page.get_by_role("region", name="Effect", exact=True)
    expect(effect).to_contain_text("0.25")
    effect.get_by_text("101 files changed by the call").click()
    expect(effect).to_contain_text("and 1 more")
    page.goto(f"{url}/ui/#/effects")
    rows = page.locator(".row").filter(has_text="pay")
    expect(rows).to_have_count(2)
    page.get_by_label("State").select_option("unknown")
    expect(rows).to_have_count(1)
    rows.get_by_role("link").click()
    expect(effect).to_contain_text("treering-")
    expect(effect).to_contain_text("killed")
    expect(effect).to_contain_text("Nothing was recorded")
    shot(page, "effect")
    effect.get_by_role("textbox").fill("tx_81")
    effect.get_by_role("button", name="It happened").click()
    expect(effect).to_contain_text("done")
    (found,) = aside(lambda: [each for each in store.effects.list() if each.result == "tx_81"])
    assert found.status == "done"


def test_a_run_shows_its_sub_agents_and_is_cancelled_with_them(page, own_store):
    store, url = own_store
    run = aside(
        lambda: Office(store, needs_approval=True).boss.generate(thread_id="office", prompt="Find it").run_id
    )
    aside(store.flush)
    page.goto(f"{url}/ui/#/runs/{run}")
    tree = page.get_by_role("list", name="Tree of runs")
    expect(tree.get_by_role("listitem")).to_have_count(2)
    expect(tree).to_contain_text("clerk")
    shot(page, "run_tree")
    page.get_by_role("button", name="Cancel all").click()
    page.get_by_role("button", name="Cancel the runs").click()
    expect(page.get_by_role("button", name="Cancel all")).to_have_count(0)
    assert {each.status for each in aside(lambda: list(store.runs.each(agent="clerk")))} == {"cancelled"}
    page.goto(f"{url}/ui/#/approvals?status=closed")
    page.locator(".row").filter(has_text="look_up").get_by_role("link").first.click()
    expect(page.get_by_role("region", name="Question")).to_contain_text("cancelled")


def test_a_half_streamed_reply_is_shown_and_discarded(page, own_store):
    store, url = own_store
    run: list[str] = []

    def break_off() -> None:
        def model(_messages, _tools):
            yield "Your refund is "
            raise KeyboardInterrupt

        agent = create_agent(model=model, checkpointer=store)
        store.thread("t").append({"role": "user", "content": "Hello"})
        with suppress(KeyboardInterrupt):
            agent.generate(thread_id="t", prompt="Where is my refund?")
        store.flush()
        run.extend(each.id for each in store.runs.each())

    aside(break_off)
    reply = page.get_by_role("region", name="Half-streamed reply")
    page.goto(f"{url}/ui/#/threads/t")
    expect(reply).to_contain_text("Your refund is")
    shot(page, "partial")
    reply.get_by_role("link").click()
    expect(page).to_have_url(f"{url}/ui/#/runs/{run[0]}")
    expect(reply).to_contain_text("Your refund is")
    reply.get_by_role("button", name="Discard").click()
    page.get_by_role("button", name="Discard the reply").click()
    expect(reply).to_have_count(0)
    assert aside(store.thread("t").partial) is None

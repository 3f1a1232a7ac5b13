"""What happens while someone looks: runs appear, grow and end without a reload."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

import treering


@pytest.fixture
def writer(own_store, tmp_path):  # noqa: ARG001 - it makes the folder
    """Another opener of the store, as an agent's process would be."""
    with treering.open(tmp_path / "store") as store:
        yield store


def test_a_run_appears_in_the_list_while_it_runs_and_ends_there(page, own_store, writer):
    page.goto(f"{own_store[1]}/ui/#/runs")
    page.locator(".pulse.on").wait_for()
    run = writer.run(agent="indexer", id="run-now").start()
    writer.flush()
    row = page.locator(".row", has_text="run-now")
    expect(row).to_contain_text("running")
    run.message("assistant", "Done.", model="gpt-5-mini", usage={"input": 10, "output": 5})
    run.end()
    writer.flush()
    expect(row).to_contain_text("ok")
    expect(row).to_contain_text("15")


def test_an_open_run_grows_span_by_span(page, own_store, writer):
    run = writer.run(agent="indexer", id="run-now").start()
    run.message("user", "Plant a tree.")
    writer.flush()
    page.goto(f"{own_store[1]}/ui/#/runs/run-now")
    lanes = page.locator(".waterfall .row")
    expect(lanes).to_have_count(1)
    page.locator(".pulse.on").wait_for()
    outer = run.span("dig", input={"depth": 40}).start()
    writer.flush()
    expect(lanes).to_have_count(2)
    expect(page.locator(".bar.open")).to_have_count(1)
    with outer.tool("spade", {"times": 3}) as call:
        call.output = "a hole"
    writer.flush()
    expect(lanes).to_have_count(3)
    expect(page.locator(".conversation")).to_contain_text("a hole")
    outer.end()
    run.end()
    writer.flush()
    expect(page.locator(".bar.open")).to_have_count(0)
    expect(page.locator(".figures .status").first).to_have_text("ok")


def test_a_tool_shows_its_output_as_it_ends(page, own_store, writer):
    run = writer.run(agent="indexer", id="run-now").start()
    calls = [run.tool(f"dig-{number}", {"depth": number}).start() for number in range(6)]
    writer.flush()
    page.goto(f"{own_store[1]}/ui/#/runs/run-now")
    page.locator(".pulse.on").wait_for()
    turns = page.locator(".conversation .turn")
    expect(turns.filter(has_text="depth")).to_have_count(6)
    for number, call in enumerate(calls):
        call.output = f"hole {number}"
        call.end()
    writer.flush()
    expect(turns.filter(has_text="hole")).to_have_count(6)
    turns.first.get_by_role("button").first.click()
    page.get_by_role("link", name="Event").click()
    expect(page.locator(".details")).to_contain_text("hole 0")
    run.end()


def test_a_memory_that_an_agent_changes_is_shown_changed(page, own_store, writer):
    page.goto(f"{own_store[1]}/ui/#/memory/alice%2Ftone")
    page.locator(".text-body").wait_for()
    page.locator(".pulse.on").wait_for()
    writer.memory.save("alice/tone", "Now likes long letters.")
    expect(page.locator(".text-body")).to_have_text("Now likes long letters.")


def test_a_new_document_appears_in_the_list(page, own_store, writer):
    page.goto(f"{own_store[1]}/ui/#/memory")
    page.get_by_text("policy/refunds").wait_for()
    page.locator(".pulse.on").wait_for()
    writer.memory.save("carol/shoes", "Size 39.")
    page.get_by_text("carol/shoes").wait_for()


def test_a_run_whose_process_died_is_drawn_up_to_its_last_event(page, own_store, tmp_path):
    with treering.open(tmp_path / "store") as dying:
        run = dying.run(agent="indexer", id="run-crashed").start()
        span = run.span("dig", id="dig").start()
        dying.flush()
        with span.tool("spade", {"times": 3}) as call:
            call.output = "a hole"
    page.goto(f"{own_store[1]}/ui/#/runs/run-crashed")
    expect(page.locator(".figures .status").first).to_have_text("crashed")
    expect(page.locator(".bar.open")).to_have_count(1)
    expect(page.locator(".replay-time")).to_contain_text("ms")  # not the time since then

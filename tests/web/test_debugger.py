"""Stepping through runs in a browser, breakpoints, and reruns that the dashboard starts and compares."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect
from tests.server.running import running
from tests.web.conftest import axe_findings, layout_findings, shot

import treering
from treering.replays.rerun import call_entry
from treering.server.settings import Settings

AGENT = '''
    from pathlib import Path

    import treering
    from treering.agent import create_agent


    def model(messages, tools):
        said = sum(each["role"] == "assistant" for each in messages)
        if said < 2:
            call = {"name": "write", "arguments": '{"text": "draft %d"}' % said}
            calls = [{"id": f"c{said}", "type": "function", "function": call}]
            return {"role": "assistant", "content": f"I write draft {said}.", "tool_calls": calls}
        return {"role": "assistant", "content": "The refund report is written."}


    def thorough(messages, tools):
        reply = model(messages, tools)
        if "tool_calls" in reply:
            return reply
        return {"role": "assistant", "content": "The refund report is written, and checked."}


    def agent(store, folder):
        with treering.open(store) as opened:

            def write(text: str) -> str:
                """Write the report."""
                with Path(folder, "report.md").open("a") as file:
                    file.write(text + "\\n")
                opened.memory.save("reports/last", text)
                opened.memory.search("draft")
                return f"wrote {text}"

            made = create_agent(model=model, tools=[write], checkpointer=opened)
            return made.generate(
                thread_id="reports/alice", prompt="Write the report.", checkpoint_after_tool_call=True
            ).text
'''


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    """The URL of a server that makes reruns, a recorded run, and the file of its agent."""
    folder = tmp_path_factory.mktemp("debugger")
    path = folder / "report_agent.py"
    path.write_text(textwrap.dedent(AGENT))
    (folder / "work").mkdir()
    arguments = [str(folder / "store"), str(folder / "work")]
    entry = f"{path}:agent"
    with treering.open(folder / "store") as store:
        with treering.record(
            store,
            agent="writer",
            workspace=folder / "work",
            thread="reports/alice",
            entry=entry,
            arguments=arguments,
        ) as run:
            call_entry(entry, arguments)
        store.flush()
        settings = Settings(reruns={"TREERING_URL": urlsplit(store.url).path.removeprefix("/")})
        with running(store, settings) as url:
            yield url, run.id, str(path)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server over a run of 10,000 steps."""
    with treering.open(tmp_path_factory.mktemp("long") / "store") as store:
        with store.run("counter") as run:
            for number in range(10_000):
                run.message("assistant", f"This is line {number + 1}.", usage={"input": 1})
        store.flush()
        with running(store) as url:
            yield url, run.id


def step_open(page, url: str, run: str, query: str = "") -> None:
    page.goto(f"{url}/ui/#/runs/{run}/steps{query}")
    page.locator(".step-head").wait_for()


def test_a_run_is_stepped_through_forward_and_back(page, recorded):
    url, run, _ = recorded
    page.goto(f"{url}/ui/#/runs/{run}")
    page.get_by_role("link", name="Step through").click()
    title, content = page.locator("h1"), page.locator(".side-body")
    expect(title).to_have_text("Step 1 of 5")
    expect(content).to_contain_text("2 messages, 2 new")
    page.locator(".stepping .primary").click()
    expect(title).to_have_text("Step 2 of 5")
    expect(content).to_contain_text("wrote draft 0")
    page.keyboard.press("]")
    expect(title).to_have_text("Step 3 of 5")
    expect(content).to_contain_text("4 messages, 2 new")
    page.keyboard.press("ArrowLeft")
    expect(title).to_have_text("Step 2 of 5")
    page.keyboard.press("End")
    expect(content).to_contain_text("The refund report is written.")
    page.get_by_role("button", name="First step").click()
    expect(title).to_have_text("Step 1 of 5")
    page.get_by_label("Go to step").fill("4")
    page.get_by_label("Go to step").press("Enter")
    expect(title).to_have_text("Step 4 of 5")
    page.reload()
    expect(title).to_have_text("Step 4 of 5")


def test_a_step_shows_files_state_and_memory_as_they_were(page, recorded):
    url, run, _ = recorded
    step_open(page, url, run, "?step=4")
    content = page.locator(".side-body")
    files = content.get_by_role("region", name="Files")
    expect(files).to_contain_text("report.md")
    expect(files.locator(".diff-line.added")).to_contain_text("draft 1")
    expect(content.get_by_role("region", name="State")).to_contain_text("/treering.agent")
    memory = content.locator(".accesses li")
    expect(memory).to_have_count(2)
    expect(memory.nth(0)).to_contain_text("reports/last (version 2)")
    expect(memory.nth(1)).to_contain_text("found reports/last")
    shot(page, "debugger")


def test_continue_runs_to_a_breakpoint(page, recorded):
    url, run, _ = recorded
    step_open(page, url, run)
    stops = page.get_by_role("form", name="Breakpoints")
    stops.get_by_label("tool").fill("write")
    stops.get_by_label("tool").press("Enter")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("h1")).to_have_text("Step 2 of 5")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("h1")).to_have_text("Step 4 of 5")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_text("No later step meets a condition.")).to_be_visible()
    page.get_by_role("button", name="Rewind").click()
    expect(page.locator("h1")).to_have_text("Step 2 of 5")
    expect(page).to_have_url(re.compile("tool=write"))


def test_a_step_is_edited_and_forked(page, recorded):
    url, run, _ = recorded
    step_open(page, url, run, "?step=3")
    page.get_by_role("button", name="Edit and fork …").click()
    page.get_by_label("Id of the new thread").fill("reports/edited")
    page.get_by_role("button", name="Fork with this change").click()
    expect(page).to_have_url(re.compile("threads/reports%2Fedited"))


def test_a_run_is_rerun_from_a_step_and_compared(new_page, recorded):
    page = new_page()
    url, run, path = recorded
    step_open(page, url, run, "?step=5")
    page.get_by_role("button", name="Rerun from here …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_label("First call to make for real")).to_have_value("5")
    dialog.get_by_label("Models, one a line").fill(f"{path}:thorough")
    dialog.get_by_label("Repetitions").fill("2")
    dialog.get_by_label("Verify with a command").fill("grep -q draft report.md")
    expect(dialog.locator(".command code")).to_contain_text(f"--from 5 --model {path}:thorough -n 2")
    assert axe_findings(page) == []
    dialog.get_by_role("button", name="Start the rerun").click()
    expect(page.locator("h1")).to_have_text("Reruns")
    expect(page.get_by_text("2 of 2 reruns done")).to_be_visible(timeout=90_000)
    table = page.locator("table", has_text="last answer")
    expect(table).to_contain_text("The refund report is written, and checked.")
    expect(table).to_contain_text("at step 5")
    variants = page.locator("table", has_text="ended well")
    expect(variants).to_contain_text("2 of 2")
    assert axe_findings(page) == []
    assert layout_findings(page) == []
    shot(page, "reruns")
    page.get_by_role("button", name="Rerun …").click()
    dialog.get_by_label("First call to make for real").fill("3")
    dialog.get_by_label("Models, one a line").fill(f"{path}:thorough\n{path}:model")
    dialog.get_by_label("Repetitions").fill("2")
    dialog.get_by_role("button", name="Start the rerun").click()
    expect(page.get_by_text("4 of 4 reruns done")).to_be_visible(timeout=90_000)
    expect(page.locator(".across tbody tr")).to_have_count(5)
    expect(page.get_by_label("Made together").locator("option")).to_have_count(2)
    assert axe_findings(page) == []
    assert layout_findings(page) == []
    shot(page, "reruns-many")
    page.set_viewport_size({"width": 390, "height": 900})
    assert layout_findings(page) == []
    shot(page, "reruns-phone")


def test_a_server_that_makes_no_reruns_shows_the_command(page, long_run):
    url, run = long_run
    page.goto(f"{url}/ui/#/runs/{run}/reruns")
    page.get_by_role("button", name="Rerun …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".command code")).to_have_text(f"treering rerun {run} --from 1")
    expect(dialog).to_contain_text("without --reruns")
    expect(dialog.get_by_role("button", name="Start the rerun")).to_have_count(0)


def test_ten_thousand_steps_are_stepped_through_without_loading_them_all(page, long_run):
    url, run = long_run
    asked: list[str] = []
    page.on("request", lambda sent: asked.append(sent.url) if "/steps?" in sent.url else None)
    step_open(page, url, run)
    expect(page.locator("h1")).to_have_text("Step 1 of 10,000")
    page.get_by_role("form", name="Breakpoints").get_by_label("text").fill("line 7654.")
    page.get_by_role("form", name="Breakpoints").get_by_label("text").press("Enter")
    page.keyboard.press("Escape")
    page.goto(f"{url}/ui/#/runs/{run}/steps?text=line%207654.")
    page.get_by_role("button", name="Continue").click()
    expect(page.locator("h1")).to_have_text("Step 7,654 of 10,000")
    expect(page.locator(".side-body")).to_contain_text("This is line 7654.")
    expect(page.locator(".step-line[aria-current]")).to_contain_text("7,654")
    assert page.locator(".step-line").count() < 80
    assert len(asked) <= 6, "only the pages that are looked at"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_the_debugger_is_accessible_and_fits(new_page, recorded, scheme, width):
    url, run, _ = recorded
    page = new_page(scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    step_open(page, url, run, "?step=4")
    page.locator(".diff-line").first.wait_for()
    shot(page, f"debugger-{scheme}-{width}")
    assert axe_findings(page) == []
    assert layout_findings(page) == []

"""No dead ends: wrong ids, a server that goes away and comes back, a key that is asked for."""

from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import expect
from tests.server.running import running
from tests.web.conftest import axe_findings, shot

import treering
from treering.server.settings import Settings


@pytest.mark.parametrize(
    "fragment",
    [
        "#/runs/no-such-run",
        "#/threads/no-such-thread",
        "#/memory/no-such-document",
        "#/workspace/0000000000000000000000000000000000000000000000000000000000000000",
        "#/schedules/00000000",
        "#/runs/run-003?span=no-such-span&tab=details",
        "#/compare?runs=run-003,no-such-run",
    ],
)
def test_a_wrong_id_is_told_with_a_way_out(fragment, new_page, garden_url):
    page = new_page(expected=("404",))
    page.goto(f"{garden_url}/ui/{fragment}")
    state = page.locator("[role=alert].state, .state:has-text('not in the list')").first
    state.wait_for()
    assert axe_findings(page) == []
    if link := state.get_by_role("link"):
        expect(link.first).to_be_visible()


def test_a_server_that_goes_away_and_comes_back(new_page, planted, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(planted, folder)
    page = new_page(expected=("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_NETWORK", "ERR_EMPTY"))
    with treering.open(folder) as store, running(store) as url:
        port = int(url.rpartition(":")[2])
        page.goto(f"{url}/ui/#/runs")
        page.get_by_text("run-failed").wait_for()
        page.locator(".pulse.on").wait_for()
    page.locator(".banner").wait_for()
    expect(page.locator(".banner")).to_contain_text("does not answer")
    expect(page.get_by_text("run-failed")).to_be_visible()  # what it said last stays
    page.goto(f"{url}/ui/#/runs/run-000")
    page.get_by_role("heading", name="The server does not answer").wait_for()
    shot(page, "server-gone")
    assert axe_findings(page) == []
    with treering.open(folder) as store, running(store, port=port):
        page.get_by_text("Where is my refund?").first.wait_for()
        expect(page.locator(".banner")).to_have_count(0)


def test_a_server_with_a_key_asks_for_it_once(new_page, planted, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(planted, folder)
    page = new_page(expected=("401",))
    with treering.open(folder) as store, running(store, Settings(api_key="rowan")) as url:
        page.goto(f"{url}/ui/#/runs/run-003")
        dialog = page.get_by_role("dialog", name="This server asks for a key")
        dialog.wait_for()
        shot(page, "key")
        assert axe_findings(page) == []
        dialog.get_by_label("API key").fill("birch")
        dialog.get_by_role("button", name="Go on").click()
        dialog.get_by_text("not known here").wait_for()
        page.keyboard.press("Escape")
        expect(dialog).to_be_visible()
        dialog.get_by_label("API key").fill("rowan")
        dialog.get_by_role("button", name="Go on").click()
        page.get_by_text("Summarise what customers said").first.wait_for()
        page.locator(".pulse.on").wait_for()
        page.reload()
        page.get_by_text("Summarise what customers said").first.wait_for()
        expect(dialog).to_have_count(0)
        page.close()


def test_an_empty_store_says_what_to_do(page, tmp_path):
    with treering.open(tmp_path / "store") as store, running(store) as url:
        for fragment, words in {
            "runs": "No runs yet",
            "threads": "No threads yet",
            "workspace": "No snapshots yet",
            "memory": "Nothing is remembered yet",
            "schedules": "Nothing is scheduled",
            "cost": "Nothing was used",
            "store": "What it holds",
        }.items():
            page.goto(f"{url}/ui/#/{fragment}")
            page.get_by_text(words).wait_for()
            shot(page, f"empty-{fragment}")
            assert axe_findings(page) == []
        page.close()


def test_what_agents_write_is_text_and_never_a_page(page, own_garden):
    store, url = own_garden
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    with store.run(agent=evil, id="run-evil", tags=("<b>x</b>",)) as run:
        run.message("assistant", evil)
        with run.tool("<i>tool</i>", {"<u>key</u>": evil}) as call:
            call.output = evil
    store.thread("<s>thread</s>").append({"role": evil, "content": evil}, note=evil)
    store.memory.save("evil", evil)
    store.flush()
    for fragment in ("runs", "runs/run-evil", "threads/%3Cs%3Ethread%3C%2Fs%3E", "memory/evil"):
        page.goto(f"{url}/ui/#/{fragment}")
        expect(page.locator("main")).to_contain_text("onerror=")
        assert page.title() != "owned"
        assert page.locator("img, main script, main b, main u, main s").count() == 0

"""No dead ends: wrong ids, a server that goes away and comes back, a key that is asked for."""

from __future__ import annotations

import re
import shutil

import pytest
from playwright.sync_api import expect
from tests.server.running import running
from tests.web.conftest import axe_findings, shot

import treering
from treering.core.batch import Draft
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
def test_a_wrong_id_shows_an_error_with_a_link(fragment, new_page, sample_url):
    page = new_page(expected=("404",))
    page.goto(f"{sample_url}/ui/{fragment}")
    state = page.locator("[role=alert].state, .state:has-text('not in the list')").first
    state.wait_for()
    assert axe_findings(page) == []
    if link := state.get_by_role("link"):
        expect(link.first).to_be_visible()


def test_a_server_that_goes_away_and_comes_back(new_page, sample_folder, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(sample_folder, folder)
    page = new_page(expected=("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_NETWORK", "ERR_EMPTY"))
    with treering.open(folder) as store, running(store) as url:
        port = int(url.rpartition(":")[2])
        page.goto(f"{url}/ui/#/runs")
        page.get_by_text("run-failed").wait_for()
        page.locator(".pulse.on").wait_for()
    page.locator(".banner").wait_for()
    expect(page.locator(".banner")).to_contain_text("Cannot reach the server")
    expect(page.get_by_text("run-failed")).to_be_visible()  # the last known data stays
    page.goto(f"{url}/ui/#/runs/run-000")
    page.get_by_role("heading", name="Cannot reach the server").wait_for()
    shot(page, "server-gone")
    assert axe_findings(page) == []
    with treering.open(folder) as store, running(store, port=port):
        page.get_by_text("Where is my refund?").first.wait_for()
        expect(page.locator(".banner")).to_have_count(0)


def test_a_server_with_a_key_asks_for_it_once(new_page, sample_folder, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(sample_folder, folder)
    page = new_page(expected=("401",))
    with treering.open(folder) as store, running(store, Settings(api_key="rowan-0123456789")) as url:
        page.goto(f"{url}/ui/#/runs/run-003")
        dialog = page.get_by_role("dialog", name="API key required")
        dialog.wait_for()
        shot(page, "key")
        assert axe_findings(page) == []
        dialog.get_by_label("API key").fill("birch")
        dialog.get_by_role("button", name="Continue").click()
        dialog.get_by_text("This key is unknown").wait_for()
        page.keyboard.press("Escape")
        expect(dialog).to_be_visible()
        dialog.get_by_label("API key").fill("rowan-0123456789")
        dialog.get_by_role("button", name="Continue").click()
        page.get_by_text("Summarise what customers said").first.wait_for()
        page.locator(".pulse.on").wait_for()
        page.reload()
        page.get_by_text("Summarise what customers said").first.wait_for()
        expect(dialog).to_have_count(0)
        page.close()


def fail_once(page, pattern):
    """The next answer at such an address is an error of the server."""
    result = {"title": "A disk is full", "detail": "make room, then ask again", "status": 500}
    page.route(
        re.compile(pattern),
        lambda route: route.fulfill(status=500, json=result, content_type="application/problem+json"),
        times=1,
    )
    # As soon as it follows the stream, the page would ask for everything once more.
    page.route(re.compile("/live"), lambda route: route.fulfill(status=503))


@pytest.fixture(scope="module")
def long_url(tmp_path_factory):
    """Lists of more than one page."""
    folder = tmp_path_factory.mktemp("long")
    with treering.open(folder / "store") as store:
        for number in range(130):
            with store.run(agent="a", id=f"run-{number:03}"):
                pass
        with store.run(agent="long", id="long") as run:
            for number in range(600):
                run.message("user", f"message {number}")
        store.flush()
        thread = store.thread("long")
        for number in range(520):
            thread.append({"role": "user", "content": f"message {number}"})
        with running(store) as url:
            yield url


@pytest.mark.parametrize(
    "fragment, label, before, after",
    [("runs", "Runs", 100, 131), ("threads/long", "Checkpoints", 500, 520)],
)
def test_a_later_page_that_fails_is_shown_and_can_be_retried(
    fragment, label, before, after, new_page, long_url
):
    page = new_page(expected=("500", "503"))
    fail_once(page, "cursor=")
    page.goto(f"{long_url}/ui/#/{fragment}")
    rows = page.get_by_role("region", name=label)
    expect(rows).to_have_attribute("data-total", str(before))
    page.keyboard.press("End")
    notice = page.locator(".stale-notice")
    expect(notice).to_contain_text("A disk is full: make room, then ask again")
    expect(rows).to_have_attribute("data-total", str(before))  # what is there stays
    shot(page, f"notice-{label.lower()}")
    assert axe_findings(page) == []
    notice.get_by_role("button", name="Try again").click()
    expect(rows).to_have_attribute("data-total", str(after))
    expect(notice).to_have_count(0)


def test_the_rest_of_a_run_that_cannot_be_read_is_shown_and_retried(new_page, long_url):
    page = new_page(expected=("500", "503"))
    fail_once(page, "spans.*cursor=")
    page.goto(f"{long_url}/ui/#/runs/long")
    notice = page.locator(".stale-notice")
    expect(notice).to_contain_text("A disk is full")
    shot(page, "notice-run")
    assert axe_findings(page) == []
    notice.get_by_role("button", name="Try again").click()
    page.get_by_text("600 events", exact=True).wait_for()
    expect(notice).to_have_count(0)


def test_one_lost_request_is_not_a_lost_server(new_page, own_store):
    store, url = own_store
    page = new_page(expected=("ERR_FAILED",))
    page.goto(f"{url}/ui/#/runs")
    page.get_by_text("run-failed").wait_for()
    page.locator(".pulse.on").wait_for()
    page.route(re.compile("/runs[?]"), lambda route: route.abort(), times=1)
    with store.run(agent="new", id="run-new"):
        store.flush()
        page.locator(".banner").wait_for()
    store.flush()
    page.get_by_text("run-new").wait_for()
    expect(page.locator(".banner")).to_have_count(0)


def test_an_empty_store_says_what_to_do(page, tmp_path):
    with treering.open(tmp_path / "store") as store, running(store) as url:
        for fragment, words in {
            "runs": "No runs yet",
            "threads": "No threads yet",
            "workspace": "No snapshots yet",
            "memory": "No documents yet",
            "schedules": "No scheduled tasks",
            "cost": "No usage",
            "store": "Integrity",
        }.items():
            page.goto(f"{url}/ui/#/{fragment}")
            page.get_by_text(words).wait_for()
            shot(page, f"empty-{fragment}")
            assert axe_findings(page) == []
        page.close()


def test_what_agents_write_is_rendered_as_text_never_as_html(page, own_store):
    store, url = own_store
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


def test_an_entry_that_cannot_be_read_is_named_above_the_rest_of_the_list(page, own_store):
    store, url = own_store
    draft = Draft(store.space)
    draft.set_ref("budget/broken", b"junk", scope="s")
    store.engine.commit(draft.batch())
    store.budgets.set("whole", per="store", tokens=10)
    page.goto(f"{url}/ui/#/cost?tab=budgets")
    page.get_by_text("whole").first.wait_for()
    banner = page.locator(".banner", has_text="1 entry cannot be read")
    banner.locator("summary").click()
    expect(banner.locator("li code")).to_have_text("budget/broken")
    store.budgets.set("broken", per="store", tokens=10)
    page.reload()
    page.get_by_text("broken").first.wait_for()
    expect(page.locator(".banner")).to_have_count(0)

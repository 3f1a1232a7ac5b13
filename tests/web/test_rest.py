"""Files, memory, schedules and the store: every button, with what it does to the store."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

from playwright.sync_api import expect


def test_files_are_browsed_shown_and_downloaded(page, own_store, tmp_path):
    store, url = own_store
    newest = next(iter(store.workspace.snapshots())).id
    page.goto(f"{url}/ui/#/workspace")
    page.get_by_text("with a limit").click()
    page.get_by_role("button", name="shop/").click()
    page.get_by_role("button", name="refund.py").click()
    expect(page.locator(".preview pre")).to_contain_text("min(amount, LIMIT)")
    expect(page).to_have_url(re.compile(r"path=shop%2Frefund.py"))
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download").click()
    target = tmp_path / "refund.py"
    saved.value.save_as(target)
    assert target.read_bytes() == store.workspace.cat(newest, "shop/refund.py")


def test_images_are_shown_and_bytes_are_not(page, sample_url):
    page.goto(f"{sample_url}/ui/#/workspace")
    page.get_by_text("with a limit").click()
    page.get_by_role("button", name="logo.png").click()
    picture = page.get_by_role("img", name="logo.png")
    picture.wait_for()
    page.wait_for_function("e => e.complete && e.naturalWidth === 96", arg=picture.element_handle())
    page.get_by_role("button", name="data.bin").click()
    page.get_by_text("No preview").wait_for()


def test_two_snapshots_are_compared(page, sample_url):
    page.goto(f"{sample_url}/ui/#/workspace")
    page.get_by_text("with a limit").click()
    page.get_by_role("link", name="Diff").click()
    expect(page.locator(".file-changes details")).to_have_count(2)
    expect(page.locator(".diff-line.added").first).to_contain_text("LIMIT = 500")
    page.get_by_label("From").select_option("")
    expect(page.locator(".file-changes details").nth(4)).to_be_visible()


def test_a_document_is_edited_and_its_versions_compared_and_restored(page, own_store):
    store, url = own_store
    page.goto(f"{url}/ui/#/memory/alice%2Ftone?tab=edit")
    page.get_by_label("Text", exact=True).fill("Likes letters.")
    page.get_by_role("button", name="Save new version").click()
    expect(page.locator(".text-body")).to_have_text("Likes letters.")
    saved = store.memory.get("alice/tone")
    assert (saved.content, saved.version, saved.tags) == ("Likes letters.", 3, ["style", "alice"])
    page.get_by_role("link", name="Versions").click()
    page.locator(".versions li").nth(2).get_by_label("from").check()
    expect(page.locator(".diff")).to_contain_text("Prefers concise replies.")
    page.locator(".versions li").nth(2).get_by_role("button", name="Restore").click()
    expect(page.locator(".versions li")).to_have_count(4)
    assert store.memory.get("alice/tone").content == "Prefers concise replies."


def test_an_edit_of_an_old_version_is_refused(new_page, own_store):
    store, url = own_store
    page = new_page(expected=("409",))
    page.goto(f"{url}/ui/#/memory/policy%2Frefunds?tab=edit")
    field = page.get_by_label("Text", exact=True)
    field.wait_for()
    store.memory.save("policy/refunds", "Someone else was quicker.")
    field.fill("Mine.")
    page.get_by_role("button", name="Save new version").click()
    expect(page.locator(".document [role=alert]")).to_contain_text("version")
    assert store.memory.get("policy/refunds").content == "Someone else was quicker."


def test_a_document_is_made_and_deleted(new_page, own_store):
    store, url = own_store
    page = new_page(expected=("404",))  # it is asked for once more when the journal says that it changed
    page.goto(f"{url}/ui/#/memory")
    page.get_by_text("policy/refunds").wait_for()
    page.keyboard.press("n")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("bob/greeting")
    dialog.get_by_label("Text", exact=True).fill("Says hello first.")
    dialog.get_by_label("Tags").fill("style, bob")
    dialog.get_by_role("button", name="Save").click()
    expect(page.locator(".document h2")).to_have_text("bob/greeting")
    assert store.memory.get("bob/greeting").tags == ["style", "bob"]
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("bob/greeting")).to_have_count(0)
    assert store.memory.get("bob/greeting") is None


def test_memory_is_searched_and_has_namespaces(page, sample_url):
    page.goto(f"{sample_url}/ui/#/memory")
    page.get_by_label("Search memory").fill("gift cards")
    expect(page.locator(".document-line").first).to_contain_text("policy/")
    page.get_by_label("Namespace").select_option("user/bob")
    expect(page.locator(".document-line")).to_have_count(1)
    expect(page.locator(".document-line")).to_contain_text("peanuts")


def test_a_task_is_paused_resumed_run_and_cancelled(page, own_store):
    store, url = own_store
    (task,) = [each for each in store.schedules.list_tasks() if each.prompt == "Look at the inbox"]
    page.goto(f"{url}/ui/#/schedules/{task.id}")
    expect(page.locator(".occurrences")).to_contain_text("ok")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").wait_for()
    assert store.schedules.load(task.id).status == "paused"
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Pause").wait_for()
    assert store.schedules.load(task.id).status == "active"
    page.get_by_role("button", name="Run now").click()
    page.get_by_text("waiting for a worker").wait_for()
    assert len(store.schedules.load(task.id).open_occurrences) == 1
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the task").click()
    page.get_by_text("This task is not in the list").wait_for()
    assert store.schedules.load(task.id).status == "cancelled"


def test_the_store_is_verified_and_garbage_collection_is_a_dry_run(page, own_store):
    store, url = own_store
    before = store.stats().rows
    page.goto(f"{url}/ui/#/store")
    page.get_by_role("button", name="Verify").click()
    page.get_by_text("No problems found.").wait_for()
    page.get_by_role("button", name="Dry run").click()
    page.get_by_text(re.compile("can be freed:")).wait_for()
    assert store.stats().rows == before


def test_seals_are_listed_and_compared_with_the_history(page, own_store, tmp_path):
    store, url = own_store
    page.goto(f"{url}/ui/#/store")
    page.get_by_text("No seals yet.").wait_for()
    store.audit.seal()
    page.reload()
    page.get_by_role("button", name="Compare with seals").click()
    page.get_by_text("As sealed.", exact=True).wait_for()
    with closing(sqlite3.connect(tmp_path / "store" / "treering.db")) as database, database:
        database.execute("UPDATE event SET status = 'error' WHERE seq = (SELECT min(seq) FROM event)")
    page.get_by_role("button", name="Compare with seals").click()
    expect(page.locator(".verdict.bad")).to_have_text("Not as sealed.")


def test_a_damaged_store_is_reported(page, own_store, tmp_path):
    _, url = own_store
    with closing(sqlite3.connect(tmp_path / "store" / "treering.db")) as database:
        number, frame = database.execute('SELECT "key", frame FROM body LIMIT 1').fetchone()
        broken = frame[:-1] + bytes((frame[-1] ^ 0xFF,))
        database.execute('UPDATE body SET frame = ? WHERE "key" = ?', (broken, number))
        database.commit()
    page.goto(f"{url}/ui/#/store")
    page.get_by_role("button", name="Verify").click()
    expect(page.locator(".verdict.bad")).to_contain_text("problem")


def test_snapshots_with_secrets_have_a_badge_and_say_where(page, own_store, tmp_path):
    store, url = own_store
    (tmp_path / "leak").mkdir()
    (tmp_path / "leak" / "env.txt").write_text(
        "A=1\nTOKEN=ghp_" + "q7Zx1Lw9Rt4Vb6Ny8Mk2" + "Jd5Hs3Gf0Pc7Xe1T\n"
    )
    store.workspace.snapshot(tmp_path / "leak", note="with a key in it")
    page.goto(f"{url}/ui/#/workspace")
    row = page.locator(".line", has_text="with a key in it")
    expect(row.locator(".tag.warn")).to_have_text("1 secret")
    expect(page.locator(".tag.warn")).to_have_count(1)
    row.click()
    page.locator(".secrets summary").click()
    expect(page.locator(".secrets li")).to_have_text("env.txt:2 github-token ghp_... of 40 characters")

    store.thread("leaky").checkpoint([{"role": "user", "content": "hi"}], workspace=tmp_path / "leak")
    page.goto(f"{url}/ui/#/threads/leaky")
    expect(page.locator(".checkpoint-head .tag.warn")).to_have_text("1 secret")

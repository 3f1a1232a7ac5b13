"""Memory, state, schedules, workspaces and care over HTTP."""

import os

import pytest

from treering.effects import Attempt, Intent
from treering.sandbox import Sandbox


def test_memory_keeps_versions_and_finds(client):
    path = "/memory/alice%2Ftone"
    first = client.put(
        path, json={"content": "Prefers concise replies.", "tags": ["style"], "if_version": 0}
    ).json()
    assert first["version"] == 1
    assert client.put(path, json={"content": "x", "if_version": 0}).status_code == 409
    second = client.put(path, json={"content": "Prefers long replies.", "metadata": {"by": "bob"}}).json()
    assert second["metadata"]["by"] == "bob"
    assert [each["version"] for each in client.get(f"{path}/history").json()["versions"]] == [2, 1]
    assert "-Prefers concise replies." in client.get(f"{path}/diff?a=1").json()["text"]
    assert client.post(f"{path}/restore", json={"version": 1}).json()["content"] == "Prefers concise replies."
    hits = client.get("/memory/search?q=concise").json()["hits"]
    assert [each["document"]["id"] for each in hits] == ["alice/tone"]
    assert client.get(f"{path}?version=2").json()["content"] == "Prefers long replies."
    assert client.delete(path).json() == {"ok": True}
    assert client.get(path).status_code == 404
    assert client.post(f"{path}/forget").status_code == 200
    assert client.get(f"{path}/history").json() == {"versions": []}


def test_memory_pages_in_order_of_ids(client):
    for name in "cab":
        client.put(f"/memory/{name}", json={"content": name, "tags": ["t"]})
    first = client.get("/memory?limit=2&tag=t").json()
    rest = client.get(f"/memory?limit=2&cursor={first['next_cursor']}").json()
    assert [each["id"] for each in first["documents"] + rest["documents"]] == ["a", "b", "c"]


def test_state_is_set_added_to_and_compared(client):
    assert client.put("/state/telegram%2F123", json={"value": 1}).json()["version"] == 1
    assert client.post("/state/telegram%2F123/add", json={"delta": 4}).json() == {"value": 5}
    assert client.post("/state/telegram%2F123/add", json={"delta": 4, "ceiling": 6}).status_code == 409
    assert client.put("/state/telegram%2F123", json={"value": 9, "if_version": 1}).status_code == 409
    assert [each["key"] for each in client.get("/state?prefix=tele").json()["entries"]] == ["telegram/123"]
    assert len(client.get("/state/telegram%2F123/history").json()["changes"]) == 2
    assert client.delete("/state/telegram%2F123").json() == {"ok": True}
    assert client.get("/state/telegram%2F123").status_code == 404


def test_schedules_are_made_paused_and_cancelled(client):
    wish = {"prompt": "Forecast?", "type": "cron", "value": "0 8 * * *", "tz": "Europe/Berlin"}
    made = client.post("/schedules", json=wish).json()
    path = f"/schedules/{made['task']['id']}"
    assert len(made["next"]) == 3
    assert client.post(f"{path}/pause").json()["next"] == []
    assert len(client.post(f"{path}/resume").json()["next"]) == 3
    assert client.post(f"{path}/run").status_code == 200
    assert client.get(f"{path}/occurrences").json()["next_cursor"] is None
    assert client.delete(path).status_code == 200
    assert client.get("/schedules").json() == {"schedules": [], "next_cursor": None, "unreadable": []}
    assert len(client.get("/schedules?all=true").json()["schedules"]) == 1
    assert client.post("/schedules", json=wish | {"value": "every day"}).status_code == 422
    assert client.post("/schedules/nothing/pause").status_code == 404


def test_checkpoints_of_sandboxes_are_listed_with_their_files(client, store, tmp_path, monkeypatch):
    monkeypatch.setenv("TREERING_HOME", str(tmp_path / "home"))
    with Sandbox("program", store=store, session_tag_prefix="docs") as sandbox:
        first = sandbox.execute(["sh", "-c", "echo one > notes.txt"], checkpoint_comment="draft").checkpoint
        second = sandbox.execute(["sh", "-c", "echo two > notes.txt"]).checkpoint
    page = client.get("/sandboxes/checkpoints?limit=1").json()
    rest = client.get(f"/sandboxes/checkpoints?limit=1&cursor={page['next_cursor']}").json()
    assert [each["id"] for each in page["checkpoints"] + rest["checkpoints"]] == [second.id, first.id]
    assert rest["checkpoints"][0]["comment"] == "draft"
    assert client.get("/sandboxes/checkpoints/latest").json()["parent_id"] == first.id
    found = client.get(f"/sandboxes/checkpoints/{first.id}").json()
    assert (found["tag"], found["agent_type"]) == (first.tag, "program")
    assert client.get("/sandboxes/checkpoints?tag=other").json() == {"checkpoints": [], "next_cursor": None}
    assert client.get(f"/sandboxes/checkpoints/ckpt_{'0' * 26}").status_code == 404
    assert client.get("/sandboxes/checkpoints/7").status_code == 422
    assert client.get(f"/snapshots/{first.hash}/cat?path=workspace/notes.txt").text == "one\n"
    (change,) = client.get(f"/snapshots/diff?a={first.hash}&b={second.hash}").json()["changes"]
    assert change["path"] == "workspace/notes.txt"


def test_snapshots_are_looked_into(client, store, tmp_path):
    folder = tmp_path / "ws"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "page.html").write_text("<script>alert(1)</script>")
    one = store.workspace.snapshot(folder, name="ws")
    (folder / "notes.txt").write_text("two\n")
    two = store.workspace.snapshot(folder, name="ws")
    assert [each["id"] for each in client.get("/snapshots?name=ws").json()["snapshots"]] == [two, one]
    assert [each["path"] for each in client.get(f"/snapshots/{two}/ls").json()["entries"]] == [
        "notes.txt",
        "src",
    ]
    page = client.get(f"/snapshots/{one}/cat?path=src/page.html")
    assert page.text == "<script>alert(1)</script>"
    assert page.headers["content-type"] == "application/octet-stream"
    assert "sandbox" in page.headers["content-security-policy"]
    (change,) = client.get(f"/snapshots/diff?a={one}&b={two}").json()["changes"]
    assert (change["path"], change["change"]) == ("notes.txt", "added")
    assert client.get(f"/snapshots/{two}/check").json()["problems"] == []
    assert client.get(f"/snapshots/{two}/secrets").json() == {"count": 0, "secrets": []}
    (folder / os.fsdecode(b"bad\xff")).touch()
    three = store.workspace.snapshot(folder)
    assert client.get(f"/snapshots/{three}/ls").json()["entries"][0]["path"] == "bad\\xff"
    assert client.get(f"/snapshots/{one}/cat?path=../../etc/passwd").status_code in {404, 422}
    assert client.get(f"/snapshots/{'0' * 64}/ls").status_code == 404


def test_the_store_is_looked_after(client, store):
    for step in range(5):
        store.thread("t").append({"n": step})
    assert client.get("/store/stats").json()["rows"]["events"] == 5
    assert client.post("/store/verify").json()["ok"] is True
    dry = client.post("/store/gc", json={"keep": {"last": 2}}).json()
    assert (dry["dry_run"], dry["dropped"]) == (True, {"checkpoint": 3})
    assert (
        client.post("/store/gc", json={"keep": {"last": 2}, "dry_run": False}).json()["dropped"]
        == dry["dropped"]
    )
    assert client.post("/store/reindex").json() == {"ok": True}
    assert client.post("/store/forget", json={"thread": "t"}).status_code == 200
    assert client.post("/store/forget", json={"thread": "t"}).status_code == 404
    assert client.post("/store/gc", json={"keep": {"within": "soon"}}).status_code == 422


@pytest.mark.parametrize("body, word", [(b"{", "JSON"), (b'{"content": 1}', "content"), (b"\xff", "JSON")])
def test_a_broken_body_says_what_is_wrong(client, body, word):
    answer = client.put("/memory/x", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert word in answer.json()["detail"]


def test_a_form_of_another_page_is_no_json(client):
    answer = client.post("/store/gc", content=b"{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 422


def test_effects_are_listed_and_decided_about(client, store):
    intents = [Intent(tool="pay", arguments={"amount": n}, thread_id="t", run_id="r") for n in range(3)]
    store.effects.plan(*intents)
    begun = store.effects.begin(intents[1].id)
    assert isinstance(begun, Attempt)
    begun.leave()
    first = client.get("/effects?thread=t&limit=2").json()
    rest = client.get(f"/effects?thread=t&limit=2&cursor={first['next_cursor']}").json()
    assert [each["effect"]["arguments"]["amount"] for each in first["effects"] + rest["effects"]] == [2, 1, 0]
    (unknown,) = client.get("/effects?status=unknown").json()["effects"]
    assert unknown["key"] == f"treering-{intents[1].id}"
    path = f"/effects/{intents[1].id}"
    done = client.post(f"{path}/decision", json={"decision": "happened", "result": "tx_81", "by": "alice"})
    assert (done.json()["effect"]["result"], done.json()["effect"]["decided_by"]) == ("tx_81", "alice")
    assert client.get(path).json() == done.json()
    assert client.post(f"{path}/decision", json={"decision": "retry"}).status_code == 409
    assert client.post(f"{path}/decision", json={"decision": "perhaps"}).status_code == 422
    assert client.get("/effects/nothing").status_code == 404


def test_a_rewind_lists_the_effects_that_it_does_not_undo(client, store):
    thread = store.thread("t")
    thread.append("pay")
    intent = Intent(tool="pay", arguments={}, thread_id="t")
    thread.append("paying", effects=[intent])
    store.effects.begin(intent.id).finish("tx_1")
    since = client.get(f"/effects?thread=t&checkpoint={thread.at(0).id}").json()
    assert [each["effect"]["id"] for each in since["effects"]] == [intent.id]
    assert client.get("/effects?checkpoint=x").status_code == 422
    assert client.get(f"/effects/{intent.id}/changes").json() == {"events": [], "files": [], "earlier": 0}
    rewound = client.post("/threads/t/rewind", json={"to": "0"}).json()
    assert (rewound["step"], [each["id"] for each in rewound["effects"]]) == (0, [intent.id])

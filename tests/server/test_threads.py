from urllib.parse import quote

import pytest

from treering.core.query import Erasure
from treering.threads.checkpoint import by_id


@pytest.fixture
def alice(client):
    path = "/threads/support%2Falice"
    for text in ("Where is my refund?", "Here.", "Thanks."):
        body = {"append": [{"role": "user", "content": text}], "state": {"last": text}}
        assert client.post(f"{path}/checkpoints", json=body).status_code == 201
    return path


def test_a_thread_is_saved_and_loaded(client, alice):
    loaded = client.get(alice).json()
    assert [each["content"] for each in loaded["messages"]] == ["Where is my refund?", "Here.", "Thanks."]
    assert loaded["state"] == {"last": "Thanks."}
    assert loaded["checkpoint"]["step"] == 2
    (line,) = client.get("/threads").json()["threads"]
    assert (line["id"], line["head"]) == ("support/alice", loaded["checkpoint"]["id"])


def test_the_list_tells_what_was_said_last_and_what_it_cost(client, alice, store):
    with store.run(thread="support/alice", agent="support") as run:
        run.message("assistant", "Done", usage={"input": 100}, cost="0.25", currency="EUR")
    store.flush()
    store.thread("waiting").checkpoint(messages=["May I?"], pending_interrupt={"payload": "pay"})
    waiting, line = client.get("/threads").json()["threads"]
    assert line["last_message"] == {"role": "user", "text": "Thanks."}
    assert (line["message_count"], line["is_pending"], line["tokens"]) == (3, False, 100)
    assert line["cost"] == [{"currency": "EUR", "amount": 0.25}]
    assert waiting["is_pending"]
    (found,) = client.get("/threads?containing=AIT").json()["threads"]
    assert found["id"] == "waiting"
    history = client.get(f"{alice}/history").json()["checkpoints"]
    assert [each["last_message"]["text"] for each in history] == ["Thanks.", "Here.", "Where is my refund?"]


def test_a_thread_that_cannot_be_read_is_listed_as_damaged(client, store):
    for name in ("support/alice", "fine"):
        store.thread(name).append("Hi")
    head = store.thread("support/alice").head
    (row,) = store.engine.scan(store.space, by_id(head.id)).records
    store.engine.erase(store.space, Erasure(event_seqs=(row.seq,)))
    listed = client.get("/threads").json()["threads"]
    assert {each["id"]: each["is_damaged"] for each in listed} == {"support/alice": True, "fine": False}


def test_only_the_tail_is_shown_when_asked(client, alice):
    tail = client.get(f"{alice}?last=1").json()
    assert (tail["first_message"], len(tail["messages"])) == (2, 1)


def test_threads_are_paged_while_others_change(client, store):
    names = [f"t{number}" for number in range(6)]
    for name in names:
        store.thread(name).append({"role": "user", "content": name})
    first = client.get("/threads?limit=2").json()
    assert [each["id"] for each in first["threads"]] == ["t5", "t4"]
    store.thread("t4").append({"role": "user", "content": "again"})
    store.thread("new").append({"role": "user", "content": "new"})
    store.thread("t3").delete()
    rest = client.get("/threads", params={"limit": 5, "cursor": first["next_cursor"]}).json()
    assert [each["id"] for each in rest["threads"]] == ["t2", "t1", "t0"]
    assert rest["next_cursor"] is None
    for made_up in ("x", "2", "e30="):
        assert client.get("/threads", params={"cursor": made_up}).status_code == 422


def test_history_pages_by_cursor(client, alice):
    first = client.get(f"{alice}/history?limit=2").json()
    rest = client.get(f"{alice}/history?limit=2&cursor={first['next_cursor']}").json()
    assert [each["step"] for each in first["checkpoints"] + rest["checkpoints"]] == [2, 1, 0]
    assert rest["next_cursor"] is None


def test_history_shows_a_hundred_checkpoints_unless_told_and_looks_for_tags_before_it_counts(client, store):
    for number in range(103):
        store.thread("long").append({"n": number}, tags=("even",) if number % 2 == 0 else ())

    def asked(**query):
        return client.get("/threads/long/history", params=query)

    page = asked().json()
    assert [each["step"] for each in page["checkpoints"]] == list(range(102, 2, -1))
    assert len(asked(cursor=page["next_cursor"]).json()["checkpoints"]) == 3
    tagged = asked(tag="even", limit=52).json()
    assert [each["step"] for each in tagged["checkpoints"]] == list(range(102, -1, -2))
    assert tagged["next_cursor"] is None
    assert len(asked(limit=500).json()["checkpoints"]) == 103
    assert {asked(limit=limit).status_code for limit in (0, 501)} == {422}


def test_rewinds_forks_and_shows_how_it_grew(client, alice):
    assert client.post(f"{alice}/rewind", json={"to": "0"}).json()["step"] == 0
    client.post(f"{alice}/checkpoints", json={"append": [{"role": "user", "content": "Another way"}]})
    fork = client.post(f"{alice}/fork", json={"new_id": "support/alice-bolder", "at": "1"})
    assert (fork.status_code, fork.json()["step"]) == (201, 1)
    grown = client.get(f"{alice}/lineage").json()
    assert len(grown["checkpoints"]) == 4
    assert len(grown["line"]) == 2
    assert len(grown["rewinds"]) == 1
    assert [each["thread"] for each in grown["forks"]] == ["support/alice-bolder"]
    origin = client.get("/threads/support%2Falice-bolder/lineage").json()["origin"]
    assert origin["thread"] == "support/alice"


def test_two_checkpoints_differ_in_messages_and_state(client, alice):
    result = client.get(f"{alice}/diff?a=0&b=2").json()
    assert [index for index, _ in result["added"]] == [1, 2]
    assert result["state"] == [{"op": "replace", "path": "/last", "value": "Thanks."}]


def test_checkpoints_of_two_threads_differ(client, alice):
    client.post(f"{alice}/fork", json={"new_id": "other", "at": "0"})
    client.post("/threads/other/checkpoints", json={"append": ["elsewhere"]})
    result = client.get(f"{alice}/diff?a=2&b=1&other=other").json()
    assert result["common"] == 1


def test_a_pending_interrupt_is_answered_once(client, alice):
    asked = {"append": [], "pending_interrupt": None}
    assert client.post(f"{alice}/resume", json={"decision": "approve"}).status_code == 409
    asked = {"pending_interrupt": {"id": "i1", "payload": {"tool": "rm"}}}
    assert client.post(f"{alice}/checkpoints", json=asked).status_code == 201
    answered = client.post(f"{alice}/resume", json={"decision": "deny", "interrupt_id": "i1"}).json()
    assert answered["metadata"]["resumed"]["decision"] == "deny"
    assert client.post(f"{alice}/resume", json={"decision": "approve"}).status_code == 409


@pytest.mark.parametrize(
    "lost", [{"messages": ["all"]}, {"lists": {"sources": ["a.md"]}}, {"pending_interrupt": {"tool": "rm"}}]
)
def test_what_an_append_cannot_save_is_refused_instead_of_lost(client, alice, lost):
    answer = client.post(f"{alice}/checkpoints", json={"append": ["x"], **lost})
    assert (answer.status_code, "append goes with" in answer.json()["detail"]) == (422, True)
    assert client.get(alice).json()["checkpoint"]["step"] == 2


def test_a_checkpoint_has_a_place(client, alice):
    before = client.get(f"{alice}/checkpoints/1").json()["checkpoint"]
    for place in ("~1", "~", before["created_at"]):
        assert client.get(f"{alice}/checkpoints/{quote(place)}").json()["checkpoint"]["id"] == before["id"]
    assert client.get(f"{alice}/checkpoints/yesterday").status_code == 422
    assert client.get(f"{alice}/checkpoints/~900").status_code == 404


def test_whoever_knows_an_older_head_gets_a_conflict(client, alice):
    old = client.get(f"{alice}/checkpoints/1").json()["checkpoint"]["id"]
    answer = client.post(f"{alice}/checkpoints", json={"append": ["x"], "expect_head": old})
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:treering:error:Conflict"
    assert len(client.get(alice).json()["messages"]) == 3


def test_a_deleted_thread_is_gone(client, alice):
    assert client.delete(alice).json()["kept"] == {}
    assert client.get(alice).status_code == 404
    assert client.delete(alice).status_code == 404


def test_erasing_takes_files_along_and_names_those_of_other_machines(
    client, alice, store, tmp_path, monkeypatch
):
    for erase in (
        lambda: client.delete(alice),
        lambda: client.post("/store/forget", json={"thread": "support/alice"}),
    ):
        store.thread("support/alice").append("hello")
        here = store.transcript("support/alice", outputs=tmp_path / "here")
        here.append("pro", "secret", iter=0)
        with monkeypatch.context() as patched:
            patched.setattr("treering.threads.line_files.host_name", lambda: "far-away")
            there = store.transcript("support/alice", outputs=tmp_path / "there")
            there.append("pro", "secret", iter=1)
        there.path.unlink()
        kept = erase().json()["kept"]
        assert kept == {str(there.path): "it was written on host 'far-away'; delete it there"}
        assert not here.path.exists()


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("get", "/threads/none", None, 404),
        ("get", "/threads/none/history", None, 404),
        ("get", "/threads/none/lineage", None, 404),
        ("get", "/threads/none/diff?a=0&b=1", None, 404),
        ("get", "/threads/none/diff?a=0", None, 422),
        ("post", "/threads/none/rewind", {"to": "0"}, 404),
        ("post", "/threads/none/fork", {"new_id": "x"}, 404),
        ("post", "/threads/none/fork", {"new_id": ""}, 422),
        ("post", "/threads/x/checkpoints", {"message": []}, 422),
        ("post", "/threads/a%00b/checkpoints", {}, 422),
        ("post", "/threads/%FF/checkpoints", {}, 422),
        ("delete", "/threads/none", None, 404),
        ("patch", "/threads/none", None, 405),
    ],
)
def test_wrong_calls_get_a_problem_and_write_nothing(client, store, method, path, body, status):
    answer = client.request(method, path, json=body) if body is not None else client.request(method, path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert list(store.threads()) == []


def test_a_transcript_is_read_in_pages_and_continued(client, store):
    path = "/threads/debate/transcript"
    assert client.get(path).json() == {"events": [], "next_cursor": None}
    log = store.transcript("debate")
    log.append("pro", "Yes.", iter=0)
    log.append("moderator", {"summary": "even"}, iter=0, role="moderator", actions={"type": "STOP"})
    said = {"agent_id": "con", "content": "No.", "iter": 1, "latency_ms": 12.5}
    assert client.post(path, json=said).json()["latency_ms"] == 12.5
    assert client.post(path, json={"agent_id": "con", "iter": 1, "error": "Timeout"}).status_code == 201
    assert [each.to_dict() for each in log.read()] == client.get(path).json()["events"]
    assert log.read(last=1)[0].error == "Timeout"
    pages, cursor = [], ""
    while cursor is not None:
        page = client.get(f"{path}?limit=3{cursor}").json()
        pages.append([each.get("content") for each in page["events"]])
        cursor = None if page["next_cursor"] is None else f"&cursor={page['next_cursor']}"
    assert pages == [["Yes.", {"summary": "even"}, "No."], [None]]
    assert len(client.get(f"{path}?last=2").json()["events"]) == 2
    for wrong in (
        {"agent_id": "con", "iter": 1},
        {"agent_id": "con", "iter": -1, "content": "x"},
        {"agent_id": "con", "iter": 1, "content": "x", "role": "king"},
        {"agent_id": "con", "iter": 1, "content": "x", "error": "x"},
        {"agent_id": "con", "iter": 1, "content": "x", "actions": {"type": "SING"}},
    ):
        assert client.post(path, json=wrong).status_code == 422
    assert len(log.read()) == 4
    assert client.get("/threads/debate/transcript?namespace=alice").json()["events"] == []

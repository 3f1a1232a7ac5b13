"""Compactions and half-streamed replies, over REST and on the command line."""

from __future__ import annotations

import pytest

from treering.threads.partial import PartialWriter


@pytest.fixture
def thread(store):
    made = store.thread("a/b")
    made.append(*({"role": "user", "content": f"message {number}"} for number in range(9)))
    return made


def test_a_thread_is_compacted_over_rest_and_nothing_is_removed(client, thread) -> None:
    path = "/threads/a%2Fb"
    given = {
        "summary": "seven messages",
        "keep_last": 2,
        "model": "gpt-5",
        "usage": {"input": 90, "output": 9},
    }
    assert client.post(f"{path}/compactions", json=given).status_code == 201
    (made,) = client.get(f"{path}/compactions").json()["compactions"]
    assert (made["upto"], made["model"], made["currency"]) == (7, "gpt-5", "USD")
    view = client.get(f"{path}/view?budget_tokens=40").json()
    assert len(view["messages"]) == 3
    assert (view["left_out"], view["is_exact"], view["compaction"]["id"]) == (0, False, made["id"])
    assert len(client.get(f"{path}/view?full=true").json()["messages"]) == 9
    assert client.get(f"{path}/view?budget_tokens=1").status_code == 422
    assert client.post(f"{path}/compactions", json={"summary": ""}).status_code == 422
    assert client.delete(f"{path}/compactions").status_code == 200
    assert client.get(f"{path}/compactions").json() == {"compactions": []}
    assert client.delete(f"{path}/compactions").status_code == 409
    assert thread.load().message_count == 9


def test_a_half_streamed_reply_is_shown_and_discarded_over_rest(client, store, thread) -> None:
    assert client.get("/threads/a%2Fb/partial").json() == {"partial": None}
    writer = PartialWriter(
        store.engine, store.space, "a/b", "", run_id="r", after=9, unsaved=[], clock=store.clock
    )
    for text in ("One ", "two"):
        writer.add(text)
    writer.flush()
    found = client.get("/threads/a%2Fb/partial").json()["partial"]
    assert (found["text"], found["chunks"], found["run"]) == ("One two", 2, "r")
    assert client.delete("/threads/a%2Fb/partial").status_code == 204
    assert client.delete("/threads/a%2Fb/partial").status_code == 404
    assert thread.partial() is None

"""The inbox over REST and through the gateway: who a key is, and what it may do."""

from __future__ import annotations

import httpx
import pytest

import treering
from tests.server.running import running
from treering.approvals import AlreadyAnswered
from treering.core.clock import SystemClock
from treering.errors import Forbidden
from treering.server.auth import Keys

ASK = {"id": "i", "payload": {"tool_call": {"name": "pay", "arguments": {"amount": 5}}}}


@pytest.fixture
def server():
    with treering.open("memory:") as store, running(store) as url:
        keys = Keys(store.engine, clock=SystemClock())
        tokens = {
            "agent": keys.create(scope="write", name="agent").token,
            "reader": keys.create(scope="read", name="reader").token,
            "bob": keys.create(scope="read", name="bob", approves=True).token,
            "carol": keys.create(scope="write", name="carol", approves=True).token,
            "boss": keys.create(scope="admin", name="boss").token,
        }
        yield store, url, tokens


@pytest.fixture
def ask(server):
    _, url, tokens = server

    def request(key, method, path, **body):
        headers = {"authorization": f"Bearer {tokens[key]}"}
        return httpx.request(method, url + path, json=body or None, headers=headers)

    return request


def test_the_key_says_who_answers(server, ask) -> None:
    store, *_ = server
    store.thread("t").checkpoint(pending_interrupt=ASK | {"approval": {"who": ["bob"], "quorum": 1}})
    (listed,) = ask("reader", "GET", "/approvals").json()["approvals"]
    assert (listed["approval"]["calls"][0]["tool"], listed["may_answer"]) == ("pay", False)
    path = f"/approvals/{listed['approval']['id']}"
    assert ask("bob", "GET", path).json()["may_answer"]
    assert not ask("carol", "GET", "/approvals?mine=true").json()["approvals"]
    for who in ("agent", "reader", "carol"):
        assert ask(who, "POST", path + "/answer", decision="approve", by="bob").status_code == 403, who
    done = ask("bob", "POST", path + "/answer", decision="approve", by="carol", reason="fine").json()
    assert (done["approval"]["status"], done["decided_by"], done["reason"]) == ("approved", ["bob"], "fine")
    late = ask("boss", "POST", path + "/answer", decision="deny")
    assert late.status_code == 409
    assert "approved by bob" in late.json()["detail"]
    assert [
        each["approval"]["id"] for each in ask("bob", "GET", "/approvals?status=answered").json()["approvals"]
    ]


def test_the_route_of_the_thread_takes_answers_of_approvers_only(server, ask) -> None:
    store, *_ = server
    store.thread("t").checkpoint(pending_interrupt=ASK)
    assert ask("agent", "POST", "/threads/t/resume", decision="approve").status_code == 403
    assert ask("bob", "POST", "/threads/t/resume", decision="approve", by="carol").status_code == 200
    assert store.thread("t").load().metadata["resumed"]["by"] == "bob"


def test_an_agent_asks_and_waits_with_its_own_key(server) -> None:
    _, url, tokens = server
    with (
        treering.open(url, api_key=tokens["agent"]) as agent,
        treering.open(url, api_key=tokens["bob"]) as bob,
    ):
        asked = agent.approvals.request("rm", {"path": "x"}, thread_id="t")
        assert asked.wait(seconds=0).is_open
        with pytest.raises(Forbidden, match="--approver"):
            agent.approvals.answer(asked.id, "approve", by="bob")
        with pytest.raises(Forbidden):
            agent.approvals.set_rule("mine", tool="rm", who=["agent"])
        with pytest.raises(Forbidden):  # a key that may only read and approve
            bob.thread("t").append("hello")
    with treering.open(url, api_key=tokens["carol"]) as carol:
        assert carol.approvals.answer(asked.id, "deny", by="carol").status == "denied"
        with pytest.raises(AlreadyAnswered):
            carol.approvals.answer(asked.id, "approve", by="carol")
    with treering.open(url, api_key=tokens["agent"]) as agent:
        assert agent.approvals.request("rm", {"path": "x"}, thread_id="t").wait(seconds=0).is_open


def test_questions_are_asked_and_paged_over_rest(ask) -> None:
    for number in range(3):
        body = {
            "tool": "rm",
            "arguments": {"n": number},
            "thread": "t",
            "policy": {"seconds": 60, "then": "deny"},
        }
        assert ask("agent", "POST", "/approvals", **body).status_code == 201
    first = ask("bob", "GET", "/approvals?limit=2").json()
    second = ask("bob", "GET", f"/approvals?limit=2&cursor={first['next_cursor']}").json()
    found = [each["arguments"]["n"] for each in first["approvals"] + second["approvals"]]
    assert (found, second["next_cursor"]) == ([0, 1, 2], None)
    assert first["approvals"][0]["approval"]["policy"] == {"seconds": 60.0, "then": "deny"}


def test_rules_are_set_over_rest(ask) -> None:
    assert ask("bob", "PUT", "/approval-rules/money", tool="pay").status_code == 403
    assert ask("boss", "PUT", "/approval-rules/money", tool="pay*", who=["bob"], quorum=2).status_code == 422
    assert ask("boss", "PUT", "/approval-rules/money", tool="pay*", who=["bob"]).status_code == 200
    assert [each["name"] for each in ask("reader", "GET", "/approval-rules").json()["rules"]] == ["money"]
    assert ask("boss", "DELETE", "/approval-rules/money").status_code == 200
    assert ask("boss", "DELETE", "/approval-rules/money").status_code == 404

"""treering approvals, as it is typed."""

from __future__ import annotations

import pytest

import treering


@pytest.fixture
def question(tmp_path):
    """A question about a payment."""
    with treering.open(tmp_path / ".treering") as store:
        call = {"name": "pay", "arguments": {"to": "\x1b[31mbob", "amount": 5}}
        store.thread("t").checkpoint(
            pending_interrupt={"id": "i", "payload": {"tool_call": call}, "approval": {"who": ["ann", "bob"]}}
        )
        (found,) = store.approvals.list()
    return found.id


def test_questions_are_listed_and_shown(run, question) -> None:
    header, line = run("approvals", "list").out.splitlines()
    assert header.split() == ["id", "asked", "status", "agent", "thread", "until", "for", "question"]
    assert (question in line, "ann, bob" in line, "\x1b" in line) == (True, True, False)
    assert run("approvals", "list", "--for", "carol").out == "no approvals\n"
    shown = run("approvals", "show", question[:8]).out
    assert 'call        pay {"to":"' in shown
    wrong = run("approvals", "list", "--status", "lost")
    assert (wrong.code, "status='lost' is invalid" in wrong.err) == (2, True)


def test_a_person_answers(run, question) -> None:
    refused = run("approvals", "approve", question, "--by", "carol")
    assert (refused.code != 0, "it is for ann, bob" in refused.err) == (True, True)
    done = run("approvals", "edit", question, "--value", '{"amount": 3}', "--by", "bob", "--reason", "less")
    assert done.out == f"{question}: approved; thread t can go on\n"
    found = run("approvals", "show", question, "--json").json
    assert (found["decided_by"], found["reason"], found["arguments"]) == (["bob"], "less", {"amount": 3})
    again = run("approvals", "deny", question, "--by", "ann")
    assert (again.code, "approved by bob" in again.err) == (4, True)
    assert run("approvals", "list").out == "no approvals\n"
    assert [
        each["approval"]["id"] for each in run("approvals", "list", "--status", "answered", "--json").json
    ] == [question]


def test_rules_are_set_and_removed(run, question) -> None:
    rule = [
        "approvals",
        "set-rule",
        "money",
        "--tool",
        "pay",
        "--for",
        "cfo",
        "--seconds",
        "60",
        "--then",
        "deny",
    ]
    assert run(*rule).out == "rule money is set\n"
    assert run("approvals", "rules").out.splitlines()[1].split() == [
        "money",
        "pay",
        "*",
        "*",
        "cfo",
        "60",
        "deny",
        "1",
    ]
    assert run("approvals", "show", question, "--json").json["approval"]["who"] == ["cfo"]
    assert run("approvals", "remove-rule", "money").code == 0
    assert run("approvals", "rules").out == "no rules\n"
    assert run("approvals", "remove-rule", "money").code == 3

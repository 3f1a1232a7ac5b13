"""treering effects, as it is typed."""

from __future__ import annotations

import pytest

import treering
from treering.effects import Intent


@pytest.fixture
def effect(tmp_path):
    """An effect that nobody knows the outcome of."""
    with treering.open(tmp_path / ".treering") as store:
        intent = Intent(tool="pay", arguments={"to": "\x1b[31mbob"}, thread_id="t", run_id="r")
        store.effects.plan(intent)
        store.effects.begin(intent.id).leave(note="killed")
    return intent.id


def test_effects_are_listed_and_shown(run, effect) -> None:
    header, line = run("effects", "list").out.splitlines()
    assert header.split() == ["id", "planned", "status", "attempts", "tool", "thread", "arguments"]
    assert (effect in line, "unknown" in line, "\x1b" in line) == (True, True, False)
    assert [each["effect"]["id"] for each in run("effects", "list", "--unknown", "--json").json] == [effect]
    assert run("effects").out == run("effects", "list").out
    assert run("effects", "--unknown", "--json").json == run("effects", "list", "--unknown", "--json").json
    assert run("effects", "list", "--thread", "u").out == "no effects\n"
    shown = run("effects", "show", effect[:14]).out
    assert f"key         treering-{effect}" in shown
    assert "note        killed" in shown
    assert shown.endswith("since then  nothing was recorded, and no file is known to have changed\n")
    assert effect in run("effects", "--run", "r").out
    assert run("effects", "list", "--run", "other").out == "no effects\n"
    wrong = run("effects", "list", "--status", "lost")
    assert (wrong.code, "status='lost' is invalid" in wrong.err) == (2, True)


def test_an_outcome_is_shown_with_its_cost_and_files(run, tmp_path) -> None:
    with treering.open(tmp_path / ".treering") as store:
        files = [f"{number:03}.txt" for number in range(102)]
        intent = Intent(id="paid", tool="pay", arguments={})
        store.effects.open(intent).finish("tx_1", files=files, cost_nanos={"EUR": 250_000_000})
    shown = run("effects", "show", "paid").out
    assert "cost        0.2500 EUR" in shown
    assert "099.txt and 2 more" in shown
    found = run("effects", "show", "paid", "--json").json["effect"]
    assert (len(found["files"]), found["file_count"], found["cost_nanos"]) == (100, 102, {"EUR": 250_000_000})


def test_a_person_decides(run, effect) -> None:
    done = run("effects", "resolve", effect, "--result", '{"tx": 81}', "--by", "alice")
    assert done.out == f"pay ({effect}) happened; its thread goes on with the result\n"
    found = run("effects", "show", effect, "--json").json["effect"]
    assert (found["status"], found["result"], found["decided_by"]) == ("done", {"tx": 81}, "alice")
    again = run("effects", "retry", effect)
    assert (again.code, "is not unknown" in again.err) == (4, True)
    assert run("effects", "list", "--unknown").out == "no effects\n"


@pytest.mark.parametrize("verb, status", [("retry", "planned"), ("abandon", "abandoned")])
def test_a_person_retries_or_gives_up(run, effect, verb, status) -> None:
    assert run("effects", verb, effect, "--note", "asked the bank").code == 0
    found = run("effects", "show", effect, "--json").json["effect"]
    assert (found["status"], found["note"]) == (status, "asked the bank")


def test_a_rewind_lists_the_effects_that_it_does_not_undo(run, tmp_path) -> None:
    with treering.open(tmp_path / ".treering") as store:
        thread = store.thread("t")
        thread.append("pay")
        intent = Intent(tool="pay", arguments={}, thread_id="t")
        thread.append("paying", effects=[intent])
        store.effects.begin(intent.id).finish("tx_1")
        thread.append("paid")
    rewound = run("rewind", "t", "0", "--json").json
    assert rewound["effects"] == [{"id": intent.id, "tool": "pay", "status": "done"}]
    run("rewind", "t", rewound["from"])
    assert run("rewind", "t", "0").out.endswith(f"not undone: pay ({intent.id}, done)\n")

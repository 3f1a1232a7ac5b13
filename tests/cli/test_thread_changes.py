"""Threads changed from the command line: forks, rewinds, decisions and deletions, each with what it says."""

from __future__ import annotations

import getpass
import shlex

import treering
from tests.cli.test_threads import ids
from treering.core.ids import short_id


class TestForkAndRewind:
    def test_a_fork_goes_back_to_before_its_beginning(self, treering_, desk):
        treering_("fork", "support/alice", "support/again", "--at", 1)
        with treering.open(desk) as store:
            left = store.thread("support/again").append({"role": "user", "content": "Left."})
        result = treering_("rewind", "support/again", 0, "--json").json
        assert (result["step"], result["from"]) == (0, left.id)
        with treering.open(desk) as store:
            head = store.thread("support/again").head
            assert (head.id, head.parent_id) == (result["head"], result["to"])
        drawn = treering_("log", "support/again").out.splitlines()
        assert drawn[0] == "support/again  forked from support/alice@1"
        assert drawn[1] == "├── abandoned"
        assert drawn[3].startswith("│   └──   2 ")
        assert drawn[-1].startswith("└──   0 ")
        assert drawn[-1].endswith("← head")

    def test_a_fork_at_a_step(self, treering_):
        ran = treering_("fork", "support/alice", "support/again", "--at", 0, "--json")
        assert ran.json["thread"] == "support/again"
        shown = treering_("show", "support/again", "--json").json
        assert [each["content"] for each in shown["messages"]] == ["Where is my refund?"]
        assert "starts at step 3" in treering_("fork", "support/alice", "x").out

    def test_a_name_that_is_taken(self, treering_):
        ran = treering_("fork", "support/alice", "support/alice-bolder")
        assert ran.code == 4
        assert "already exists" in ran.err

    def test_what_it_says_to_do_can_be_pasted(self, run, tmp_path):
        with treering.open(tmp_path / ".treering", durability="fast") as store:
            for text in ("one", "two", "three"):
                store.thread("it's mine", "bob").append(text)
        mine = ("it's mine", "--user-namespace", "bob")
        undo = run("rewind", mine[0], 0, *mine[1:]).out.splitlines()[-1].removeprefix("to undo: treering ")
        assert run(*shlex.split(undo)).out.startswith("it's mine: step 0 -> 2")
        older = (
            run("log", *mine, "--limit", 1).out.splitlines()[1].partition("older checkpoints: treering ")[2]
        )
        assert len(run(*shlex.split(older)).out.splitlines()) == 3

    def test_a_rewind_says_what_is_left_behind_and_how_to_undo_it(self, treering_, desk):
        before = ids(desk)
        ran = treering_("rewind", "support/alice", 0)
        assert ran.code == 0
        lines = ran.out.splitlines()
        assert lines[0] == "support/alice: step 3 -> 0, 3 checkpoints abandoned"
        abandoned = [before[5], before[4], before[1]]
        assert [line.split()[1] for line in lines[1:4]] == [short_id(each) for each in abandoned]
        assert treering_("show", "support/alice", "--json").json["checkpoint"]["step"] == 0
        undo = lines[-1].removeprefix("to undo: treering ").split()
        assert treering_(*undo).out.splitlines()[0] == "support/alice: step 0 -> 3, 0 checkpoints abandoned"
        assert treering_("show", "support/alice", "--json").json["checkpoint"]["id"] == before[5]

    def test_a_rewind_to_another_branch(self, treering_, desk):
        checkpoints = ids(desk)
        result = treering_("rewind", "support/alice", checkpoints[3], "--json").json
        assert [each["id"] for each in result["left_behind"]] == [checkpoints[5], checkpoints[4]]
        assert result["from"] == checkpoints[5]

    def test_one_step_back(self, treering_):
        assert treering_("rewind", "support/alice", "~1", "--json").json["step"] == 2


class TestResume:
    def test_each_decision(self, treering_):
        assert treering_("resume", "support/alice", "approve", "--interrupt", "pay-1", "--json").json[
            "metadata"
        ] == {
            "resumed": {
                "id": "pay-1",
                "decision": "approve",
                "payload": {"tool": "pay", "amount": 30},
                "by": getpass.getuser(),
            }
        }
        ran = treering_("resume", "support/alice", "deny")
        assert ran.code == 4
        assert "has no pending interrupt" in ran.err

    def test_edit_takes_a_value(self, treering_):
        assert treering_("resume", "support/alice", "edit").code == 2
        ran = treering_("resume", "support/alice", "edit", "--value", "{amount: 3}")
        assert ran.code == 2
        assert "not JSON" in ran.err
        edited = treering_("resume", "support/alice", "edit", "--value", '{"amount": 3}', "--json").json
        assert edited["metadata"]["resumed"]["payload"] == {"amount": 3}

    def test_a_value_from_stdin(self, process, desk):
        ran = process(
            "resume", "support/alice", "edit", "--value", "-", "--store", desk, "--json", given=b'"cash"'
        )
        assert ran.json["metadata"]["resumed"]["payload"] == "cash"

    def test_the_wrong_interrupt_and_the_wrong_word(self, treering_):
        ran = treering_("resume", "support/alice", "approve", "--interrupt", "other")
        assert (ran.code, "waits for interrupt 'pay-1'" in ran.err) == (4, True)
        assert treering_("resume", "support/alice", "perhaps").code == 2
        shown = treering_("show", "support/alice", "--json").json["checkpoint"]
        assert shown["pending_interrupt"]["id"] == "pay-1"


class TestDelete:
    def test_a_thread(self, treering_):
        assert treering_("delete", "notes", "--user-namespace", "bob").out == "deleted notes\n"
        assert treering_("show", "notes", "--user-namespace", "bob").code == 3

    def test_a_thread_whose_past_is_shared(self, treering_):
        assert treering_("delete", "support/alice").code == 4
        assert treering_("delete", "support/alice", "--cascade", "--json").json == {
            "deleted": "support/alice",
            "namespace": "",
            "kept": {},
        }

    def test_what_it_could_not_delete_is_named(self, treering_, desk, tmp_path):
        with treering.open(desk) as store:
            log = store.transcript("notes", "bob", outputs=tmp_path)
            log.append("pro", "secret", iter=0)
            with log.path.open("a") as file:
                file.write("{}\n")
        done = treering_("delete", "notes", "--user-namespace", "bob")
        assert done.out == (
            f"deleted notes\n  kept {log.path}: 1 line in it was not written by this thread\n"
        )
        assert log.path.read_text() == "{}\n"


def test_a_thread_is_compacted(run, tmp_path) -> None:
    with treering.open(tmp_path / ".treering") as store:
        store.thread("long").append(*({"role": "user", "content": f"message {n}"} for n in range(30)))
    assert run("compact", "long").out == "no compactions\n"
    made = run("compact", "long", "--summary", "Ten messages.", "--cost", "0.01", "--model", "gpt-5").out
    line = made.splitlines()[1]
    assert line.startswith("0-10      70      21   0.01 USD  gpt-5  Summary of the conversation so far")
    (found,) = run("compact", "long", "--json").json
    assert (found["upto"], float(found["cost"])) == (10, 0.01)
    assert run("compact", "long", "--undo").out == "no compactions\n"
    assert run("compact", "long", "--undo").code == 4
    assert run("compact", "long", "--undo", "--summary", "x").code == 2

"""Threads on the command line: what each command prints, and how it says that it cannot."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing, suppress
from threading import Thread

import pytest

import treering


def ids(desk, thread="support/alice"):
    """The ids of all checkpoints of a thread, oldest first."""
    with treering.open(desk) as store:
        return [checkpoint.id for checkpoint in store.thread(thread).history(everything=True)][::-1]


class TestThreads:
    def test_the_newest_comes_first(self, treering_):
        listed = treering_("threads", "--json").json
        assert [(each["id"], each["namespace"], each["step"]) for each in listed] == [
            ("notes", "bob", 0),
            ("support/alice", "", 3),
            ("support/alice-bolder", "", 2),
        ]
        assert [each["is_pending"] for each in listed] == [False, True, False]
        assert listed[1]["message_count"] == 3

    def test_a_table_for_people(self, treering_):
        head, first, second, third = treering_("threads").out.splitlines()
        assert head.split() == "THREAD NAMESPACE STEP MESSAGES COST UPDATED LAST MESSAGE".split()
        assert first.split()[:4] == ["notes", "bob", "0", "1"]
        assert second.startswith("support/alice ")
        assert second.endswith('pending approval: {"tool":"pay","amount":30}')
        assert third.startswith("support/alice-bolder")

    def test_some_of_them(self, treering_):
        bob = treering_("threads", "--user-namespace", "bob", "--json").json
        assert [each["id"] for each in bob] == ["notes"]
        by_text = treering_("threads", "--containing", "Bolder", "--json").json
        assert [each["id"] for each in by_text] == ["support/alice-bolder"]
        by_prefix = treering_("threads", "--prefix", "support/alice-", "--json").json
        assert [each["id"] for each in by_prefix] == ["support/alice-bolder"]
        ran = treering_("threads", "--limit", "1")
        assert len(ran.out.splitlines()) == 2
        assert ran.err == "note: only 1 are shown (--limit 0 shows all)\n"

    def test_the_last_message_and_the_cost_are_listed(self, run, tmp_path):
        with treering.open(tmp_path / ".treering", durability="fast") as store:
            call = {"id": "c1", "function": {"name": "look_up", "arguments": '{"order": 7}'}}
            thread = store.thread("refunds")
            thread.append(
                {"role": "user", "content": "Where is\nmy refund?"},
                {"role": "assistant", "tool_calls": [call]},
            )
            with store.run(thread=thread, agent="support") as recorded:
                recorded.message("assistant", "On its way", usage={"input": 100}, cost="0.25", currency="EUR")
            store.thread("noted").append(note="Only a note")
        refunds = run("threads", "--prefix", "refunds").out.splitlines()[1]
        assert refunds.split()[:5] == ["refunds", "0", "2", "0.25", "EUR"]
        assert refunds.endswith('assistant: → look_up({"order":7})')
        assert run("threads", "--prefix", "noted").out.splitlines()[1].endswith("Only a note")
        (listed,) = run("threads", "--prefix", "refunds", "--json").json
        assert listed["last_message"] == {"role": "assistant", "text": '→ look_up({"order":7})'}
        assert (listed["tokens"], listed["cost"]) == (100, [{"currency": "EUR", "amount": 0.25}])

    def test_a_damaged_thread_hides_no_other(self, treering_, desk):
        head = ids(desk)[-1]
        with closing(sqlite3.connect(desk / "treering.db")) as database, database:
            assert database.execute("DELETE FROM event WHERE id = ?", (head,)).rowcount == 1
        ran = treering_("threads", "--json")
        assert ran.code == 5
        assert [(each["id"], each["is_damaged"]) for each in ran.json] == [
            ("notes", False),
            ("support/alice", True),
            ("support/alice-bolder", False),
        ]
        assert treering_("threads").out.splitlines()[2].endswith("damaged")
        assert treering_("log", "support/alice").code != 0

    def test_none_at_all(self, run, tmp_path):
        treering.open(tmp_path / "empty").close()
        assert run("threads", "--store", tmp_path / "empty").out == "no threads yet\n"
        assert run("threads", "--store", tmp_path / "empty", "--json").json == []


class TestLog:
    def test_the_tree_shows_abandoned_checkpoints_and_forks(self, treering_, desk):
        lines = treering_("log", "support/alice").out.splitlines()
        assert lines[0] == "support/alice"
        result = [line.strip("├└│─ ").split() for line in lines[1:]]
        assert [(line[0], line[-1]) for line in result] == [
            ("0", "refund?"),
            ("1", "[release]"),
            ("fork", "2"),
            ("abandoned", result[3][-1]),
            ("2", "came."),
            ("3", "Hm."),
            ("2", "you."),
            ("3", "head"),
        ]
        assert "abandoned by the rewind of" in lines[4]
        assert "fork support/alice-bolder, now at step 2" in lines[3]
        assert lines[5].startswith("│       ├──")  # below the checkpoint that the rewind went to
        assert 'pending approval: {"tool":"pay","amount":30}' in lines[-1]
        for line, checkpoint in zip(
            (each for each in result if each[0].isdigit()),
            [ids(desk)[index] for index in (0, 1, 2, 3, 4, 5)],
            strict=True,
        ):
            assert checkpoint.startswith(line[1])

    def test_a_fork_says_where_it_comes_from(self, treering_):
        lines = treering_("log", "support/alice-bolder").out.splitlines()
        assert lines[0] == "support/alice-bolder  forked from support/alice@1"
        assert len(lines) == 3

    def test_as_json(self, treering_, desk):
        result = treering_("log", "support/alice", "--json").json
        checkpoints = ids(desk)
        assert [each["id"] for each in result["checkpoints"]] == checkpoints[::-1]
        assert result["line"] == sorted(set(checkpoints) - {checkpoints[2], checkpoints[3]})
        assert result["thread"]["head"] == checkpoints[-1]
        assert [(each["before"], each["to"]) for each in result["rewinds"]] == [
            (checkpoints[3], checkpoints[1])
        ]
        assert [(each["thread"], each["at"]) for each in result["forks"]] == [
            ("support/alice-bolder", checkpoints[1])
        ]
        assert result["next_cursor"] is None
        assert treering_("log", "support/alice", "--no-forks", "--json").json["forks"] == []

    def test_a_long_thread_comes_in_pages(self, run, tmp_path):
        with treering.open(tmp_path / "long", durability="fast") as store:
            thread = store.thread("long")
            for step in range(7):
                thread.append({"role": "user", "content": str(step)})
        steps, before = [], ()
        while True:
            page = run("log", "long", "--store", "long", "--limit", 3, *before, "--json").json
            steps.append([each["step"] for each in page["checkpoints"]])
            assert {each["id"] for each in page["checkpoints"]} <= set(page["line"])
            if page["next_cursor"] is None:
                break
            before = ("--before", page["next_cursor"])
        assert steps == [[6, 5, 4], [3, 2, 1], [0]]
        lines = run("log", "long", "--store", "long", "--limit", 3).out.splitlines()
        assert "older checkpoints: treering log long --before ckpt_" in lines[1]
        assert len(run("log", "long", "--store", "long", "--limit", 0).out.splitlines()) == 8

    def test_a_page_of_another_thread(self, treering_, desk):
        ran = treering_("log", "support/alice", "--before", ids(desk, "support/alice-bolder")[0])
        assert ran.code == 3
        assert "not found in thread 'support/alice'" in ran.err


class TestShow:
    def test_the_head(self, treering_):
        out = treering_("show", "support/alice").out
        assert "support/alice, step 3" in out
        assert "    0 user       Where is my refund?\n    1 assistant  It was sent on Monday.\n" in out
        assert 'waits for   {"tool":"pay","amount":30} (interrupt pay-1)' in out
        assert '  todos = ["check the bank"]' in out

    @pytest.mark.parametrize("way", ["step", "back", "id", "prefix", "time", "id of thread"])
    def test_each_way_to_name_a_checkpoint(self, treering_, desk, way):
        first = ids(desk)[0]
        with treering.open(desk) as store:
            time = store.thread("support/alice").at(0).created_at.isoformat()
            every_id = [
                checkpoint.id
                for info in store.threads(namespace=None)
                for checkpoint in store.thread(info.id, info.namespace).history(everything=True)
            ]
        prefixes = (first[:length] for length in range(18, len(first) + 1))
        unique = next(each for each in prefixes if sum(one.startswith(each) for one in every_id) == 1)
        name = {
            "step": "support/alice@0",
            "back": "support/alice@~3",
            "id": first,
            "prefix": unique,
            "time": f"support/alice@{time}",
            "id of thread": f"support/alice@{first}",
        }[way]
        result = treering_("show", name, "--json").json
        assert result["checkpoint"]["id"] == first
        assert result["messages"] == [{"role": "user", "content": "Where is my refund?"}]
        assert result["checkpoint"]["message_count"] == 1

    def test_only_the_end(self, treering_):
        out = treering_("show", "support/alice", "--limit", 1).out
        assert "2 earlier ones" in out
        assert "Thank you." in out
        assert "refund" not in out
        assert len(treering_("show", "support/alice", "--limit", 0, "--json").json["messages"]) == 3

    def test_a_thread_of_a_user(self, treering_):
        assert treering_("show", "notes").code == 3
        assert "there is one in 'bob'" in treering_("show", "notes").err
        assert (
            treering_("show", "notes", "--user-namespace", "bob", "--json").json["checkpoint"]["namespace"]
            == "bob"
        )

    def test_an_id_with_an_at_sign(self, run, tmp_path):
        with treering.open(tmp_path / "store", durability="fast") as store:
            store.thread("al@home").append({"role": "user", "content": "a"})
            store.thread("al@home").append({"role": "user", "content": "b"})
        assert run("show", "al@home", "--store", "store", "--json").json["checkpoint"]["step"] == 1
        assert run("show", "al@home@0", "--store", "store", "--json").json["checkpoint"]["step"] == 0

    def test_a_message_cannot_steer_the_terminal(self, run, tmp_path):
        with treering.open(tmp_path / "store", durability="fast") as store:
            store.thread("t").append({"role": "\x1b[2J", "content": "\x1b]0;owned\x07hi\r"}, note="n\u202e")
        for command in (("show", "t"), ("log", "t"), ("threads",)):
            out = run(*command, "--store", "store").out
            assert not {"\x1b", "\x07", "\r", "\u202e"} & set(out)
        assert "\\x1b]0;owned\\x07hi\\r" in run("show", "t", "--store", "store").out

    def test_messages_of_several_frameworks(self, run, tmp_path):
        with treering.open(tmp_path / "store", durability="fast") as store:
            store.thread("t").append(
                "only text",
                {"type": "ai", "content": "", "tool_calls": [{"name": "search", "args": {"q": "x"}}]},
                {"role": "assistant", "tool_calls": [{"function": {"name": "find", "arguments": '{"q":1}'}}]},
                {"role": "assistant", "content": [{"type": "tool_use", "name": "ls", "input": {}}]},
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "content": [{"type": "text", "text": "a\nb"}]}],
                },
                {"role": "tool", "parts": [1]},
                17,
            )
        lines = run("show", "t", "--store", "store").out.splitlines()
        start = lines.index("messages (7)") + 1
        assert [line.strip() for line in lines[start:]] == [
            "0 message    only text",
            '1 assistant  → search({"q":"x"})',
            '2 assistant  → find({"q":1})',
            "3 assistant  → ls({})",
            "4 tool       a",
            "b",
            "5 tool       [1]",
            "6 message    17",
        ]


class TestNotThere:
    @pytest.mark.parametrize("command", [("show",), ("log",), ("rewind", 0), ("fork", "new"), ("delete",)])
    def test_an_unknown_thread_suggests_near_names(self, treering_, command):
        verb, *rest = command
        ran = treering_(verb, "suport/alise", *rest)
        assert ran.code == 3
        assert ran.out == ""
        assert "did you mean 'support/alice'" in ran.err

    def test_an_unknown_step(self, treering_):
        ran = treering_("show", "support/alice@99")
        assert ran.code == 3
        assert "has no step 99" in ran.err

    def test_a_place_that_means_nothing(self, treering_):
        ran = treering_("show", "support/alice@yesterday")
        assert ran.code == 2
        assert "use a step" in ran.err

    def test_a_prefix_that_is_not_unique(self, treering_):
        ran = treering_("show", "ckpt_0" + ids_prefix(treering_))
        assert ran.code == 2
        assert "is ambiguous" in ran.err

    def test_a_prefix_that_is_too_short_or_unknown(self, treering_):
        assert treering_("show", "ckpt_01").code == 2
        assert treering_("show", "ckpt_0000000000").code == 3
        assert treering_("show", "ckpt_!!!!").code == 3

    def test_errors_as_json(self, treering_):
        ran = treering_("show", "nobody", "--json")
        assert json.loads(ran.err)["error"] == "NotFound"

    def test_an_unknown_store(self, run):
        for command in (("threads",), ("log", "t"), ("show", "t"), ("diff", "a", "b"), ("rewind", "t", "0")):
            assert run(*command, "--store", "nowhere").code == 3


def ids_prefix(treering_):
    """The part of the id that all checkpoints of the same hours have in common."""
    return treering_("show", "support/alice", "--json").json["checkpoint"]["id"][6:11]


class TestDiff:
    def test_messages_and_state(self, treering_, desk):
        left = ids(desk)[3]
        out = treering_("diff", "support/alice", left).out.splitlines()
        assert out[0].endswith("2 messages in common")
        assert out[1:] == [
            "-   2 user       Thank you.",
            "+   2 user       Nothing came.",
            "+   3 assistant  Hm.",
            "- state /todos",
            "~ state /tries = 2",
        ]
        assert treering_("diff", left, "support/alice").out.splitlines()[1] == "-   3 assistant  Hm."

    def test_as_json_with_a_patch(self, treering_):
        result = treering_("diff", "support/alice@0", "support/alice@1", "--json").json
        assert result["added"] == [[1, {"role": "assistant", "content": "It was sent on Monday."}]]
        assert result["state"] == [
            {"op": "add", "path": "/todos", "value": ["check the bank"]},
            {"op": "add", "path": "/tries", "value": 1},
        ]

    def test_two_threads(self, treering_):
        result = treering_("diff", "support/alice", "support/alice-bolder", "--json").json
        assert result["common"] == 2
        assert result["changed"][0]["after"]["content"] == "I am sending it again."

    def test_other_lists(self, treering_, desk):
        with treering.open(desk) as store:
            thread = store.thread("lists")
            thread.checkpoint(lists={"sources": ["a.md"]})
            thread.checkpoint(lists={"sources": ["b.md", "c.md"]})
        assert treering_("diff", "lists@0", "lists@1").out.splitlines()[1:] == [
            '~ list sources /0 = "b.md"',
            '+ list sources /- = "c.md"',
        ]
        result = treering_("diff", "lists@0", "lists@1", "--json").json
        assert result["lists"]["sources"][1] == {"op": "add", "path": "/-", "value": "c.md"}

    def test_nothing_differs(self, treering_):
        assert treering_("diff", "support/alice", "support/alice").out.splitlines()[1] == "nothing differs"


class TestEveryCommand:
    @pytest.mark.parametrize(
        "command", ["threads", "log", "show", "diff", "fork", "rewind", "resume", "delete"]
    )
    def test_it_has_a_help_page_with_the_common_options(self, run, command):
        ran = run(command, "--help")
        assert ran.code == 0
        for option in ("--store", "--json", "--namespace", "--user-namespace"):
            assert option in ran.out

    def test_a_pipe_gets_whole_lines(self, process, tmp_path):
        with treering.open(tmp_path / "store", durability="fast") as store:
            store.thread("t" * 200).append({"role": "user", "content": "x" * 60}, note="n" * 300)
        out = process("log", "t" * 200, "--store", "store").out
        assert "n" * 300 in out
        assert "…" not in out


def test_columns_stand_below_each_other_whatever_the_script(run, tmp_path):
    with treering.open(tmp_path / ".treering", durability="fast") as store:
        for name in ("plain", "日本語", "e\u0301te"):
            store.thread(name).append("Hi")
    head, *lines = run("threads").out.splitlines()
    start = head.index("LAST MESSAGE")
    assert [each.index("message: Hi") for each in lines] == [start + shift for shift in (1, -3, 0)]


def test_a_thread_is_shown_though_its_name_is_like_a_checkpoint(run, tmp_path):
    with treering.open(tmp_path / ".treering", durability="fast") as store:
        for text in ("one", "two"):
            store.thread("ckpt_x").append(text)
    assert "ckpt_x, step 1" in run("show", "ckpt_x").out
    assert "ckpt_x, step 0" in run("show", "ckpt_x@~1").out


@pytest.mark.parametrize(
    "command",
    [["threads"], ["threads", "--json"], ["log", "t"], ["export", "jsonl", "t"], ["show", "--help"]],
)
def test_a_reader_who_has_had_enough_ends_it_as_other_programs(process, tmp_path, command):
    with treering.open(tmp_path / ".treering", durability="fast") as store:
        store.thread("t").append("Hi")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        ran = process(*command, out=closed)
    assert (ran.code, ran.err) == (141, "")


def test_json_says_everything_and_steers_no_terminal(treering_, desk):
    odd = "\x1b[31m \x9b31m \x7f \u202e \u2066 \u2028 ü 名"
    with treering.open(desk) as store:
        store.thread("odd").append({"role": "user", "content": odd}, note=odd)
    shown = treering_("show", "odd", "--json")
    assert shown.json["messages"] == [{"role": "user", "content": odd}]
    assert "ü 名" in shown.out
    for out in (shown.out, treering_("threads", "--json").out, treering_("show", "\u202enope", "--json").err):
        assert set(out) - {"\n"} == {each for each in out if each.isprintable()}


def test_a_transcript_is_printed_and_written(run, tmp_path):
    with treering.open(tmp_path / "s") as store:
        log = store.transcript("debate")
        log.append("pro", "Yes.", iter=0)
        log.append("moderator", {"summary": "even"}, iter=0, role="moderator", actions={"type": "STOP"})
        log.append_error("con", "Timeout", iter=1)
        events = [each.to_dict() for each in log.read()]
    shown = run("transcript", "debate", "--store", "s").out.splitlines()
    assert ["pro" in shown[0], "STOP" in shown[1], "Timeout" in shown[2]] == [True] * 3
    printed = run("transcript", "debate", "--limit", 2, "--store", "s", "--json").out.splitlines()
    assert list(map(json.loads, printed)) == events[1:]
    assert run("transcript", "debate", "-o", tmp_path / "debate.jsonl", "--store", "s").code == 0
    assert list(map(json.loads, (tmp_path / "debate.jsonl").read_text().splitlines())) == events
    assert run("transcript", "nobody", "--store", "s").out == ""
    assert run("transcript", "debate", "--limit", 1, "-o", "x", "--store", "s").code == 2


@pytest.fixture
def on_terminal(process):
    """What a command shows on a terminal."""

    def call(*arguments):
        leader, follower = os.openpty()
        with os.fdopen(leader, "rb", 0) as screen, os.fdopen(follower, "wb", 0) as out:
            shown: list[bytes] = []

            def read():
                with suppress(OSError):  # the other side has closed it
                    while piece := screen.read(4096):
                        shown.append(piece)

            reader = Thread(target=read)
            reader.start()
            assert process(*arguments, out=out).code == 0
            out.close()
            reader.join(60)
        return b"".join(shown).decode().replace("\r\n", "\n")

    return call


def test_a_terminal_shows_the_beginning_of_long_messages_and_colours(tmp_path, on_terminal, process):
    program = "\x1b[32m3 passed\x1b[0m, \x1b[8mhidden\x1b[0m\n" + "line\n" * 500
    with treering.open(tmp_path / ".treering") as store:
        store.thread("t").append({"role": "tool", "content": program})
    shown = on_terminal("show", "t")
    assert "\x1b[32m3 passed\x1b[0m, \\x1b[8mhidden" in shown
    assert shown.count("line\n") == 39
    assert "… 462 more lines of 502 (2.5 KB; --full shows all)" in shown
    for whole in (on_terminal("show", "t", "--full"), process("show", "t").out):
        assert whole.count("line\n") == 500
    assert "\x1b[32m" not in process("show", "t").out


def test_a_long_id_leaves_room_on_a_terminal_and_is_whole_in_a_file(tmp_path, on_terminal, process):
    name = "tenants/acme/" + "x" * 100
    with treering.open(tmp_path / ".treering") as store:
        store.thread(name).append({"role": "user", "content": "hi"})
    assert f"{name[:59]}… " in on_terminal("threads")
    assert name in process("threads").out

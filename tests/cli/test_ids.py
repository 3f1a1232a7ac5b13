"""Every id that a command prints, whole or short, is one that a command accepts."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

import treering
from treering.core.ids import short_id
from treering.errors import InvalidInput

MADE = re.compile(
    r"\b(?:[a-z]+_)?(?=0[0-9a-z]{13,25}\b)[0-9a-hjkmnp-tv-z]{14,26}\b|\b[0-9a-f]{12}(?:[0-9a-f]{52})?\b"
)
"""Generated ids, whole or short, with their prefix, and hashes of files."""

TEXTS = (
    "threads",
    "log support/alice",
    "show support/alice",
    "show support/alice@1",
    "diff support/alice@0 support/alice@1",
    "fork support/alice support/again --at 1",
    "runs",
    "timeline last --everything",
    "timeline --thread support/alice --everything",
    "replay last",
    "search refund",
    "tail --after 0 --seconds 0",
    "cost --by run",
    "performance --by run",
    "snapshots",
    "checkpoints",
    "memory list",
    "memory history tone",
    "resume support/alice approve",
    "rewind support/alice 0",
)
LISTINGS = (
    *TEXTS[:3],
    "runs",
    "timeline last --everything",
    "tail --after 0 --seconds 0",
    "snapshots",
    "checkpoints",
)
FIELDS = frozenset(
    "id head parent from before to thread_head run span run_id checkpoint snapshot hash".split()
)
"""Fields of JSON that hold ids. Others are contents, or name what no command shows."""


@pytest.fixture
def rich(run, tmp_path):
    """A store with something of everything that has an id."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "note.txt").write_text("one")
    with treering.open(tmp_path / ".treering") as store:
        alice = store.thread("support/alice")
        with store.run(agent="planner", thread="support/alice") as own:
            own.message("user", "Where is my refund?")
            with own.tool("search_docs", {"q": "refunds"}) as call:
                call.output = ["page 3"]
            with own.span("gpt-5", kind="llm", model="gpt-5") as span:
                span.chunk("On page 3.")
                span.use({"input": 100, "output": 10}, cost=1)
            alice.checkpoint([{"role": "user", "content": "Where is my refund?"}], workspace=folder)
            alice.append({"role": "assistant", "content": "On page 3."})
        with store.run(agent="writer"):
            pass
        alice.interrupt({"tool": "pay"}, interrupt_id="pay-1")
        store.memory.save("tone", "Be kind.")
        store.memory.save("tone", "Be brief.")
        store.workspace.snapshot(folder, note="first")
        (folder / "note.txt").write_text("two")
        store.workspace.snapshot(folder)
    for _ in range(2):
        assert run("run", "--", sys.executable, "-c", "open('out.txt', 'w').write('done')").code == 0
    return run


def ids_in(value: Any, field: str = "") -> set[str]:
    """The ids in the id fields of JSON."""
    if isinstance(value, dict):
        return {found for name, each in value.items() if name != "data" for found in ids_in(each, name)}
    if isinstance(value, list):
        return {found for each in value for found in ids_in(each, field)}
    is_id = isinstance(value, str) and field in FIELDS and MADE.fullmatch(value.removeprefix("o:"))
    return {value} if is_id else set()


def test_show_accepts_every_id_that_a_command_prints(rich):
    printed: dict[str, str] = {}
    for command in TEXTS:
        ran = rich(*command.split())
        assert ran.code == 0, (command, ran.err)
        printed |= dict.fromkeys(MADE.findall(ran.out), command)
    assert {each[:5] for each in printed if "_" in each} == {"ckpt_", "snap_"}
    assert len(printed) > 20
    for each, command in printed.items():
        ran = rich("show", each, "--json")
        assert ran.code == 0, f"{each} of {command}: {ran.err}"
        assert (
            json.dumps(ran.json.get("checkpoint", ran.json)["id"]).startswith(f'"{each}') or each in ran.out
        ), command


@pytest.mark.parametrize("command", LISTINGS)
def test_show_accepts_every_id_in_json(rich, command):
    ran = rich(*command.split(), "--json")
    whole = [json.loads(each) for each in ran.out.splitlines()] if "tail" in command else ran.json
    found = ids_in(whole)
    assert found
    for each in found:
        ran = rich("show", each)
        assert ran.code == 0, f"{each}: {ran.err}"


def test_commands_accept_the_short_ids_that_others_print(rich):
    def column(command: str, name: str) -> list[str]:
        head, *lines = rich(*command.split()).out.splitlines()
        start = head.index(name)
        return [word for line in lines if (word := line[start:].partition(" ")[0])]

    *_, writer, planner = column("runs", "RUN")
    assert len(planner) == 14
    for command in (f"timeline {planner}", f"replay {planner}", f"compare {planner} {writer}"):
        assert rich(*command.split()).code == 0, command
    assert rich("search", "refund", "--run", planner, "--json").json["hits"]
    assert rich("cost", "--run", planner, "--json").json["total"]["cost"] == [
        {"currency": "USD", "amount": 1}
    ]
    assert rich("tail", "--after", 0, "--seconds", 0, "--run", planner).out.count("\n") > 3
    spans = column(f"timeline {planner} --everything", "SPAN")
    assert rich("timeline", planner, "--span", spans[0], "--json").json
    for snapshot in column("snapshots", "id"):
        assert len(snapshot) == 12
        assert "note.txt" in rich("ls", snapshot).out
    newest, oldest = column("checkpoints", "id")
    assert "out.txt" in rich("ls", newest, "-r").out
    assert "- " not in rich("diff", oldest, newest).out
    assert (
        rich("run", "--from", oldest, "--", sys.executable, "-c", "print(open('out.txt').read())").out
        == "done\n"
    )
    assert "ambiguous" in rich("ls", "ckpt_0").err or rich("ls", "ckpt_0").code == 2


def test_python_accepts_the_short_ids_that_it_shows(tmp_path):
    with treering.open(tmp_path / "store") as store:
        alice = store.thread("alice")
        checkpoints = [alice.append({"role": "user", "content": str(n)}) for n in range(20)]
        short = [each.short_id for each in checkpoints]
        assert len(set(short)) == 20
        assert all(each in repr(checkpoint) for each, checkpoint in zip(short, checkpoints, strict=True))
        assert [alice.at(each).id for each in short] == [each.id for each in checkpoints]
        assert [each.id for each in alice.history(after=short[2])] == [checkpoints[1].id, checkpoints[0].id]
        assert alice.fork("bob", at=short[3]).head.parent_id == checkpoints[3].id
        assert alice.rewind(short[5]).id == checkpoints[5].id
        with store.run("planner") as run:
            pass
        store.flush()
        assert store.runs.load(short_id(run.id)).id == run.id
        with pytest.raises(InvalidInput, match=r"'ckpt_0\w+' is ambiguous: ckpt_0\w+, ckpt_0\w+"):
            alice.at(short[0][:10])

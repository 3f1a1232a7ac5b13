"""Claude Code's own files (written by the real CLI, see `clis`) as threads and runs, each line once."""

from __future__ import annotations

import json
import os
import shutil
import sys
from decimal import Decimal
from pathlib import Path

import claude_agent_sdk
import pytest

import treering
from tests.importers.clis import AGAIN, COMPACTED, FIXTURES, PROMPT, drive_claude
from tests.importers.portraits import portrait
from treering.core.batch import Usage
from treering.core.encoding import encode
from treering.core.query import EventQuery
from treering.errors import InvalidInput, NotFound
from treering.importers.claude_code.sessions import import_claude_code
from treering.importers.jsonl_export import export_jsonl
from treering.importers.jsonl_import import import_jsonl
from treering.importers.streams import record_stream

PROJECTS = FIXTURES / "claude-code" / "projects"
(PROJECT,) = PROJECTS.iterdir()
(MAIN,) = PROJECT.glob("*.jsonl")
THREAD = f"claude-code/{MAIN.stem}"
USAGE = Usage(input=1535, cache_read=8450, cache_write=600, cache_write_1h=1500, output=225)
LONG_AGO = 1_700_000_000


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as opened:
        yield opened


@pytest.fixture
def projects(tmp_path):
    shutil.copytree(PROJECTS, tmp_path / "projects")
    return tmp_path / "projects"


@pytest.fixture
def main(projects):
    return projects / PROJECT.name / MAIN.name


def told_cost(path=MAIN):
    """What the CLI itself wrote down."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return Decimal(str([line for line in lines if line["type"] == "cost-state"][-1]["totalCostUSD"]))


def counts(report, holds="lines"):
    (found,) = [each for each in report.files if each.holds == holds]
    return found.found, found.new, found.known, found.left_out


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def test_a_session_costs_what_claude_code_says_it_cost(store):
    report = import_claude_code(PROJECTS, store)
    total = store.cost.of_thread(THREAD).total
    assert total.usage == USAGE
    assert total.amount("USD") == told_cost().quantize(Decimal("1e-9")) == Decimal("0.021765")
    assert [(each.project, each.day, each.runs, each.usage, each.nanos) for each in report.spent] == [
        ("/home/ada/shop", "2026-11-16", 3, USAGE, {"USD": 21_765_000})
    ]
    assert (report.bad, report.unknown) == ((), {})
    assert store.verify().ok


def test_every_prompt_is_a_run_and_subagents_are_below_their_call(store):
    import_claude_code(PROJECTS, store)
    first, second, third = reversed(list(store.runs.each()))
    assert [run.meta["prompt"] for run in (first, third)] == [PROMPT, AGAIN]
    assert {run.thread for run in (first, second, third)} == {THREAD}
    assert [run.status for run in (first, second, third)] == ["ok"] * 3
    assert str(first.started_at).startswith("2026-11-16 ")
    spans = {
        record.event.name: record.event
        for record in store.engine.scan(store.space, EventQuery(run=first.id)).records
        if record.event.kind.startswith("span.")
    }
    assert spans["general-purpose"].parent == spans["Agent"].id
    assert spans["Read"].parent == spans["general-purpose"].id
    assert spans["Read"].agent == "general-purpose"
    parts = {part.key: part.usage.output for part in store.cost.of_run(first.id).parts}
    assert parts == {"claude-code": 170, "general-purpose": 40}


def test_the_conversation_can_be_gone_on_with(store):
    import_claude_code(PROJECTS, store)
    thread = store.thread(THREAD)
    assert [(checkpoint.step, checkpoint.note) for checkpoint in thread.history(last=3)][-1] == (0, PROMPT)
    messages = thread.load().messages
    assert [message["role"] for message in messages[:3]] == ["user", "assistant", "user"]
    assert [block["type"] for block in messages[1]["content"]] == ["thinking", "text", "tool_use"]
    fork = thread.fork("another way", at=0)
    assert len(fork.load().messages) < len(messages)
    assert thread.load().state["project"] == "/home/ada/shop"


def test_a_dry_run_says_the_same_and_changes_nothing(store):
    planned = import_claude_code(PROJECTS, store, dry_run=True)
    assert list(store.runs.each()) == list(store.threads()) == []
    done = import_claude_code(PROJECTS, store)
    assert planned.files == done.files
    assert planned.spent == done.spent
    assert counts(done) == (84, 84, 0, 0)


def test_again_is_nothing_new_and_files_that_stayed_are_not_read(store):
    first = import_claude_code(PROJECTS, store)
    before = portrait(store, THREAD)
    again = import_claude_code(PROJECTS, store)
    assert (again.new, again.lines) == (0, 0)
    assert again.spent == first.spent
    assert counts(again) == (84, 0, 84, 0)
    assert portrait(store, THREAD) == before


def test_a_file_that_was_touched_is_read_and_nothing_is_written_twice(store, projects, main):
    import_claude_code(projects, store)
    before = portrait(store, THREAD)
    os.utime(main, (LONG_AGO, LONG_AGO))
    again = import_claude_code(projects, store)
    assert counts(again) == (84, 0, 84, 0)
    assert again.lines == 84
    assert portrait(store, THREAD) == before


@pytest.fixture(scope="module")
def at_once():
    with treering.open("memory:") as store:
        import_claude_code(PROJECTS, store)
        return portrait(store, THREAD)


@pytest.mark.parametrize("cut", range(1, 62, 3))
def test_wherever_a_first_import_ended_the_second_brings_the_rest(at_once, projects, main, cut):
    whole = lines_of(main)
    main.write_bytes(b"".join(whole[:cut]) + whole[cut][:20] if cut < len(whole) else b"".join(whole))
    with treering.open("memory:") as store:
        first = import_claude_code(projects, store)
        main.write_bytes(b"".join(whole))
        second = import_claude_code(projects, store)
        assert counts(first)[1] + counts(second)[1] == 84
        assert portrait(store, THREAD) == at_once
        assert store.cost.of_thread(THREAD).total.usage == USAGE
        assert second.spent == import_claude_code(projects, store).spent


def test_an_answer_that_is_still_growing_waits_until_it_is_whole_or_quiet(store, projects, main):
    whole = [json.loads(line) for line in lines_of(main)]
    at = next(number for number, line in enumerate(whole) if line["type"] == "assistant")
    whole[at]["message"]["stop_reason"] = None
    main.write_text("".join(json.dumps(line) + "\n" for line in whole[: at + 1]), "utf-8")
    shutil.rmtree(main.with_suffix(""))
    live = import_claude_code(projects, store)
    assert counts(live)[3] == 1
    (run,) = store.runs.each()
    assert run.status == "running"
    assert store.cost.of_thread(THREAD).total.tokens == 0
    os.utime(main, (LONG_AGO, LONG_AGO))
    assert counts(import_claude_code(projects, store))[1] == 1
    (run,) = store.runs.each()
    assert run.status == "ok"
    assert store.cost.of_thread(THREAD).total.tokens == 2102


def test_bad_lines_are_named_by_number_and_stop_nothing(store, main, projects):
    whole = lines_of(main)
    whole[4:4] = [b"{oops\n", b'"text"\n']
    main.write_bytes(b"".join(whole) + b'{"type": "user", "mess')
    report = import_claude_code(projects, store)
    assert [each.partition(": ")[0] for each in report.bad] == [
        f"{PROJECT.name}/{MAIN.name} line 5",
        f"{PROJECT.name}/{MAIN.name} line 6",
    ]
    assert counts(report) == (86, 84, 0, 2)
    assert store.cost.of_thread(THREAD).total.usage == USAGE


def test_half_an_emoji_loses_no_message(store, main, projects):
    """JavaScript cuts texts anywhere; what is left of a character is no text that JSON should hold."""
    text = main.read_text("utf-8").replace("It was checked.", "It was checked \\ud83d")
    main.write_text(text, "utf-8")
    report = import_claude_code(projects, store)
    assert report.bad == ()
    assert store.cost.of_thread(THREAD).total.usage == USAGE
    said = [block for message in store.thread(THREAD).load().messages for block in message["content"]]
    assert {"type": "text", "text": "It was checked \ud83d"} in said
    assert store.verify().ok


def test_types_that_are_not_known_are_counted_and_kept_as_they_are(store, main, projects):
    odd = b'{"type":"hologram","z":1,"a":[2]}'
    with main.open("ab") as file:
        file.write(odd + b"\n" + odd + b"\n")
    assert import_claude_code(projects, store).unknown == {"hologram": 2}
    kept = store.engine.scan(store.space, EventQuery(kinds=("claude-code.hologram",))).records
    assert store.timeline.content(*(each.event.body for each in kept)) == [odd.decode()] * 2


def test_lines_of_a_form_that_is_not_known_are_kept_too(store, main, projects):
    odd = [
        b'{"type":"assistant","uuid":7,"message":{"id":"msg_x"}}',
        b'{"type":"user","isMeta":null,"isSidechain":null,"uuid":"n","message":{"role":"user","content":[3]}}',
        b'{"kind":"nameless"}',
    ]
    with main.open("ab") as file:
        file.write(b"\n".join([*odd, b""]))
    report = import_claude_code(projects, store)
    assert report.bad == ()
    assert report.unknown == {"assistant of another form": 1, "line of another form": 1}
    assert counts(report)[0] == 87
    assert store.cost.of_thread(THREAD).total.usage == USAGE
    kinds = tuple(f"claude-code.{kind}" for kind in report.unknown)
    kept = store.engine.scan(store.space, EventQuery(kinds=kinds)).records
    assert [store.timeline.content(each.event.body)[0].encode() for each in kept] == [odd[0], odd[2]]
    os.utime(main, (LONG_AGO, LONG_AGO))
    assert counts(import_claude_code(projects, store)) == (87, 0, 87, 0)


def test_what_a_resumed_session_copied_is_counted_once(store, main, projects):
    """Older versions wrote the whole past again under a new session id."""
    copied = main.read_text("utf-8").replace(MAIN.stem, "11111111-2222-4333-8444-555555555555")
    uuid = "99999999-2222-4333-8444-555555555555"
    more = {
        "type": "user",
        "uuid": uuid,
        "parentUuid": None,
        "timestamp": "2026-11-16T11:00:00.000Z",
        "message": {"role": "user", "content": "One more."},
    }
    other = main.with_name("11111111-2222-4333-8444-555555555555.jsonl")
    other.write_text(copied + json.dumps(more) + "\n", "utf-8")
    report = import_claude_code(projects, store)
    assert store.cost.of_days().total.usage == USAGE
    assert sum(each.runs for each in report.spent) == 4
    assert [each.usage for each in report.spent] == [USAGE]
    assert len(list(store.runs.each())) == 4
    os.utime(other, (LONG_AGO, LONG_AGO))
    assert import_claude_code(projects, store).spent == report.spent


def test_what_was_recorded_live_is_not_counted_again(store):
    """The stream and the files of one session tell of the same answers, by the same ids."""
    usage = None
    for number in (0, 1):
        lines = (PROJECTS.parent / f"stream-{number}.jsonl").read_bytes().splitlines()
        with store.run(agent="claude-code") as run:
            usage = record_stream(run, "claude-code", lines, before=usage).usage
    store.flush()
    assert store.cost.of_days().total.usage == USAGE
    report = import_claude_code(PROJECTS, store)
    assert store.cost.of_days().total.usage == USAGE
    assert sum(each.usage.total for each in report.spent) == 0
    assert len(store.thread(THREAD).load().messages) == 12


def test_a_prompt_after_going_back_branches_off_where_it_went_back_to(store, main, projects):
    whole = [json.loads(line) for line in lines_of(main)]
    start = next(
        line for line in whole if line["type"] == "assistant" and line["message"]["id"] == "msg_main2"
    )
    again = next(line for line in whole if line["type"] == "user" and line["message"].get("content") == AGAIN)
    again["parentUuid"] = start["uuid"]
    main.write_text("".join(json.dumps(line) + "\n" for line in whole), "utf-8")
    import_claude_code(projects, store)
    head = store.thread(THREAD).load()
    said = json.dumps(head.messages)
    assert "The note is there" in said
    assert "It was checked." not in said
    assert head.step == 1


def sidechain(uuid, parent, kind, content, **message):
    return {
        "type": kind,
        "uuid": uuid,
        "parentUuid": parent,
        "isSidechain": True,
        "timestamp": "2025-08-01T10:00:05.000Z",
        "message": {"role": kind, "content": content, **message},
    }


def test_subagents_within_the_file_as_older_versions_have_them(store, tmp_path):
    def line(uuid, parent, kind, content, **message):
        return {**sidechain(uuid, parent, kind, content, **message), "isSidechain": False}

    usage = {"input_tokens": 10, "output_tokens": 5}
    task = {"type": "tool_use", "id": "toolu_1", "name": "Task", "input": {"prompt": "Look."}}
    done = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "seen"}
    model = {"model": "claude-sonnet-4-5", "usage": usage}
    lines = [
        line("u1", None, "user", "Find it."),
        line("a1", "u1", "assistant", [task], id="msg_1", stop_reason=None, **model),
        sidechain("s1", None, "user", "Look."),
        sidechain("s2", "s1", "assistant", [{"type": "text", "text": "Seen."}], id="msg_2", **model),
        line("r1", "a1", "user", [done]),
        line("a2", "r1", "assistant", "There.", id="msg_3", stop_reason="end_turn", **model),
    ]
    folder = tmp_path / "projects" / "-home-ada-old"
    folder.mkdir(parents=True)
    path = folder / "old.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines), "utf-8")
    os.utime(path, (LONG_AGO, LONG_AGO))
    import_claude_code(tmp_path / "projects", store)
    (run,) = store.runs.each()
    spans = {
        record.event.name: record.event
        for record in store.engine.scan(store.space, EventQuery(run=run.id)).records
        if record.event.kind.startswith("span.")
    }
    assert spans["subagent"].parent == spans["Task"].id == "toolu_1"
    assert store.cost.of_run(run.id).total.usage == Usage(input=30, output=15)
    assert {part.key for part in store.cost.of_run(run.id).parts} == {"claude-code", "subagent"}
    assert [message["role"] for message in store.thread("claude-code/old").load().messages] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ]


def test_forgetting_a_session_forgets_all_of_it(store):
    import_claude_code(PROJECTS, store)
    store.forget(thread=THREAD)
    assert portrait(store, THREAD)[1:] == ([], [])
    assert counts(import_claude_code(PROJECTS, store)) == (84, 84, 0, 0)
    assert store.cost.of_thread(THREAD).total.usage == USAGE


def test_one_project_and_one_session_can_be_imported_alone(store):
    assert counts(import_claude_code(MAIN, store))[1] == 84
    assert import_claude_code(PROJECT, store).new == 0


def test_nothing_to_import_says_where_sessions_are(store, tmp_path):
    with pytest.raises(NotFound, match="claude/projects"):
        import_claude_code(tmp_path / "nowhere", store)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match="claude/projects"):
        import_claude_code(tmp_path / "empty", store)


@pytest.mark.skipif(sys.platform == "win32", reason="the CLI's tools need a POSIX shell here")
def test_what_the_real_cli_writes_now_is_understood(store, tmp_path):
    """Not a stored file: this machine's Claude Code, driven now, with a scripted model."""
    cli = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
    if not cli.exists():
        pytest.skip("this build of the Claude Agent SDK brings no CLI")
    (printed,) = drive_claude(str(cli), tmp_path / "world", prompts=(PROMPT,))
    projects = tmp_path / "world" / "home" / ".claude" / "projects"
    report = import_claude_code(projects, store)
    assert (report.bad, report.unknown) == ((), {})
    reported = Decimal(str(json.loads(printed.splitlines()[-1])["total_cost_usd"]))
    assert store.cost.of_days().total.amount("USD") == reported.quantize(Decimal("1e-9"))
    assert {run.status for run in store.runs.each()} == {"ok"}


def test_links_count_nothing_twice_and_pipes_are_passed_over(store, projects):
    alone = import_claude_code(projects, store, dry_run=True)
    os.mkfifo(projects / "pipe.jsonl")
    (projects / "again").symlink_to(projects, target_is_directory=True)
    (projects / "twin").symlink_to(next(each for each in projects.iterdir() if each.is_dir()))
    assert counts(import_claude_code(projects, store, dry_run=True)) == counts(alone)


def test_a_file_of_another_tool_is_refused(store, tmp_path):
    theirs = FIXTURES / "codex/stream-0.jsonl"
    (tmp_path / "noise.jsonl").write_bytes(b"no JSON\n")
    for wrong in (theirs, tmp_path / "noise.jsonl"):
        for dry_run in (True, False):
            with pytest.raises(InvalidInput, match="has no line of"):
                import_claude_code(wrong, store, dry_run=dry_run)
    assert store.stats().rows["events"] == 0


def test_a_file_of_another_tool_among_others_is_left_out(store, main):
    shutil.copy(FIXTURES / "codex" / "stream-0.jsonl", main.parent / "theirs.jsonl")
    report = import_claude_code(main.parent.parent, store)
    assert counts(report, "sessions") == (2, 1, 0, 1)
    assert "1 have no line of claude-code" in {each.note for each in report.files}
    assert report.unknown == {}
    assert store.thread("claude-code/theirs").get() is None


COMPACTED_PROJECTS = FIXTURES / "claude-code-compacted" / "projects"
(COMPACTED_MAIN,) = COMPACTED_PROJECTS.rglob("*.jsonl")


class TestCompactions:
    """Claude Code compacted this session in the middle of a turn, and when it was told to."""

    def conversation(self, lines, tmp_path, *, first=()):
        """What the session becomes if it has these lines, and an import has seen others before."""
        file = tmp_path / "project" / COMPACTED_MAIN.name
        file.parent.mkdir(exist_ok=True)
        with treering.open("memory:") as store:
            for each in (first, lines):
                if each:
                    file.write_bytes(b"".join(each))
                    import_claude_code(file, store)
            os.utime(file, (LONG_AGO, LONG_AGO))
            import_claude_code(file, store)
            thread = store.thread(f"claude-code/{COMPACTED_MAIN.stem}")
            made = thread.load().compactions
            notes = [each.note for each in thread.history()]
            assert store.verify().ok
            return thread.load().messages, thread.load(view="compact").messages, made, notes

    def test_a_compaction_is_a_boundary_and_the_history_stays(self, tmp_path):
        lines = lines_of(COMPACTED_MAIN)
        messages, view, (first, second), notes = self.conversation(lines, tmp_path)
        others = [each for each in lines if b"compact_boundary" not in each and b"isCompactSum" not in each]
        assert encode(messages) == encode(self.conversation(others, tmp_path)[0])
        assert [(each.since, each.upto, each.source) for each in (first, second)] == [
            (0, 3, "claude-code"),  # all of the turn so far
            (3, 5, "claude-code"),  # all but the answer that the model still saw
        ]
        assert (first.tokens_before, first.tokens_after) == (186_054, 2_587)
        assert first.text.endswith(COMPACTED)
        assert view == [*second.messages, *messages[5:]]
        assert [note for note in notes if note.startswith("compact:")] == [
            "compact: 5 of 6 messages",
            "compact: 3 of 3 messages",
        ]

    def test_wherever_a_first_import_ended_the_compactions_are_the_same(self, tmp_path):
        lines = lines_of(COMPACTED_MAIN)
        whole = self.conversation(lines, tmp_path)
        for cut in range(5, len(lines), 9):
            assert self.conversation(lines, tmp_path, first=lines[:cut])[:3] == whole[:3]

    def test_they_are_exported_and_imported_again(self, tmp_path, store):
        thread = f"claude-code/{COMPACTED_MAIN.stem}"
        import_claude_code(COMPACTED_PROJECTS, store, is_over=True)
        with (tmp_path / "out.jsonl").open("wb") as file:
            export_jsonl(store, store.threads(), file.write)
        with treering.open("memory:") as other:
            import_jsonl(tmp_path / "out.jsonl", other)
            assert other.thread(thread).load().compactions == store.thread(thread).load().compactions
            assert len(other.thread(thread).load().compactions) == 2

    def test_older_versions_write_no_boundary(self, tmp_path):
        lines = [each for each in lines_of(COMPACTED_MAIN) if b"compact_boundary" not in each]
        _, view, made, _ = self.conversation(lines, tmp_path)
        assert [(each.since, each.upto) for each in made] == [(0, 3), (3, 6)]
        assert view[0] == made[-1].messages[0]

    def test_a_summary_of_nothing_that_is_here_is_a_message(self, tmp_path):
        lines = lines_of(COMPACTED_MAIN)
        start = max(at for at, line in enumerate(lines) if b"compact_boundary" in line)
        messages, view, made, _ = self.conversation(lines[start:], tmp_path)
        assert (made, view) == ([], messages)
        assert messages[0]["content"].endswith(COMPACTED)

    def test_a_prompt_from_before_a_boundary_sees_what_was_there(self, tmp_path):
        lines = lines_of(COMPACTED_MAIN)
        read = [json.loads(line) for line in lines]
        (answer,) = [each["uuid"] for each in read if "It is done." in json.dumps(each.get("message"))]
        back = {
            "type": "user",
            "uuid": "99999999-2222-4333-8444-555555555555",
            "parentUuid": answer,
            "timestamp": "2026-11-21T00:00:00.000Z",
            "message": {"role": "user", "content": "Or rather not."},
        }
        more = [*lines, json.dumps(back).encode() + b"\n"]
        messages, view, made, _ = self.conversation(more, tmp_path)
        assert [each.upto for each in made] == [3]
        assert view == [*made[0].messages, *messages[3:]]
        assert messages[-1]["content"] == "Or rather not."

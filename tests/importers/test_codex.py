"""Codex's own files (written by the real CLI, see `clis`) as threads and runs, each line once."""

from __future__ import annotations

import json
import os
import shutil
from decimal import Decimal

import pytest

import treering
from tests.importers.clis import AGAIN, COMPACTED, FIXTURES, PROMPT
from tests.importers.portraits import portrait
from treering.core.batch import Usage
from treering.core.encoding import encode
from treering.errors import InvalidInput, NotFound
from treering.importers.codex import import_codex

SESSIONS = FIXTURES / "codex" / "sessions"
(ROLLOUT,) = SESSIONS.rglob("rollout-*.jsonl")
THREAD = f"codex/{ROLLOUT.stem[28:]}"
USAGE = Usage(input=500, cache_read=4900, output=81, reasoning=20)
LINES = len(ROLLOUT.read_bytes().splitlines())
LONG_AGO = 1_700_000_000


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


@pytest.fixture
def rollout(tmp_path):
    return shutil.copy(ROLLOUT, tmp_path / ROLLOUT.name)


@pytest.fixture(scope="module")
def at_once():
    with treering.open("memory:") as store:
        import_codex(SESSIONS, store)
        return portrait(store, THREAD)


def counts(report):
    (found,) = [each for each in report.files if each.holds == "lines"]
    return found.found, found.new, found.known, found.left_out


def test_a_session_takes_what_codex_says_it_took(store):
    report = import_codex(SESSIONS, store)
    reported = json.loads(
        [line for line in ROLLOUT.read_text("utf-8").splitlines() if "token_count" in line][-1]
    )
    whole = reported["payload"]["info"]["total_token_usage"]
    total = store.cost.of_thread(THREAD).total
    assert total.usage == USAGE
    assert (USAGE.input + USAGE.cache_read, USAGE.output) == (whole["input_tokens"], whole["output_tokens"])
    # gpt-5-codex: 1.25 $ a million uncached, 0.125 $ cached, 10 $ of output
    expected = (500 * Decimal("1.25") + 4900 * Decimal("0.125") + 81 * 10) / 1_000_000
    assert total.amount("USD") == expected
    assert [(each.project, each.runs, each.usage) for each in report.spent] == [("/home/ada/shop", 2, USAGE)]
    assert (report.bad, report.unknown) == ((), {})
    assert store.verify().ok


def test_every_turn_is_a_run_with_its_messages_and_calls(store):
    import_codex(SESSIONS, store)
    second, first = store.runs.each()
    assert [run.status for run in (first, second)] == ["ok", "ok"]
    events = store.timeline.of_run(first.id).events
    reported = [(event.label, event.meta.get("status")) for event in events if event.type.startswith("tool")]
    assert sorted(reported, key=str) == sorted(
        [
            ("call exec_command", None),
            ("exec_command result", "ok"),
            ("call exec_command", None),
            ("exec_command result", "error"),
        ],
        key=str,
    )
    called = next(event for event in events if event.type == "tool.call")
    assert store.timeline.content(called.body) == [{"cmd": "echo ring > note.txt && cat note.txt"}]
    messages = [event for event in events if event.label == "assistant message"]
    (said,) = store.timeline.content(messages[0].body)
    assert [item["type"] for item in said] == ["reasoning", "message", "function_call"]


def test_the_conversation_can_be_gone_on_with(store):
    import_codex(SESSIONS, store)
    thread = store.thread(THREAD)
    assert [checkpoint.note for checkpoint in thread.history()] == [AGAIN, PROMPT]
    messages = thread.load().messages
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]


def test_a_dry_run_says_the_same_and_again_is_nothing_new(store):
    planned = import_codex(SESSIONS, store, dry_run=True)
    assert list(store.runs.each()) == []
    done = import_codex(SESSIONS, store)
    assert (planned.files, planned.spent) == (done.files, done.spent)
    assert counts(done) == (LINES, LINES, 0, 0)
    assert counts(import_codex(SESSIONS, store)) == (LINES, 0, LINES, 0)


@pytest.mark.parametrize("cut", range(1, LINES))
def test_wherever_a_first_import_ended_the_second_brings_the_rest(store, at_once, rollout, cut):
    whole = rollout.read_bytes().splitlines(keepends=True)
    rollout.write_bytes(b"".join(whole[:cut]) + whole[cut][:30])
    first = import_codex(rollout, store)
    rollout.write_bytes(b"".join(whole))
    second = import_codex(rollout, store)
    assert counts(first)[1] + counts(second)[1] == LINES
    assert portrait(store, THREAD) == at_once
    os.utime(rollout, (LONG_AGO, LONG_AGO))
    assert counts(import_codex(rollout, store)) == (LINES, 0, LINES, 0)


def without_records(lines):
    """As versions before the token records wrote it: only running counts, some of them told twice."""
    for line in lines:
        if b'"token_usage_record"' not in line:
            yield line
        if b'"token_count"' in line:
            yield line


def test_counts_that_are_told_again_are_counted_once(store, rollout):
    rollout.write_bytes(b"".join(without_records(rollout.read_bytes().splitlines(keepends=True))))
    import_codex(rollout, store)
    assert store.cost.of_thread(THREAD).total.usage == USAGE


def test_files_of_the_first_versions(store, tmp_path):
    """Items without a wrapping, no turns, no times, no tokens."""
    lines = [
        {"id": "s1", "timestamp": "2025-05-07T17:24:21.597Z", "instructions": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is here?"}]},
        {"record_type": "state"},
        {
            "type": "function_call",
            "name": "shell",
            "call_id": "c1",
            "arguments": '{"command": ["ls"]}',
        },
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": '{"output": "", "metadata": {"exit_code": 2}}',
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Nothing."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Sure?"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
    ]
    path = tmp_path / "rollout-2025-05-07-s1.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    os.utime(path, (LONG_AGO, LONG_AGO))
    report = import_codex(tmp_path, store)
    assert report.unknown == {"state": 1}
    second, first = sorted(store.runs.each(), key=lambda run: run.id, reverse=True)
    assert sorted(event.label for event in store.timeline.of_run(first.id).events) == [
        "assistant message",
        "assistant message",
        "call shell",
        "shell result",
        "user message",
    ]
    (failed,) = [e.meta for e in store.timeline.of_run(first.id).events if e.type == "tool.result"]
    assert failed == {"status": "error"}
    assert len(store.timeline.of_run(second.id).events) == 2


def test_bad_lines_are_named_by_number_and_unknown_ones_kept(store, rollout):
    with rollout.open("ab") as file:
        file.write(b'nonsense\n{"timestamp": "2026-11-16T12:00:00Z", "type": "aura", "payload": {}}\n')
    report = import_codex(rollout, store)
    assert [each.partition(": ")[0].rpartition(" ")[2] for each in report.bad] == [str(LINES + 1)]
    assert report.unknown == {"aura": 1}
    assert counts(report) == (LINES + 2, LINES + 1, 0, 1)


def test_nothing_to_import_says_where_sessions_are(store, tmp_path):
    with pytest.raises(NotFound, match="codex/sessions"):
        import_codex(tmp_path, store)


def test_a_file_of_another_tool_is_refused(store, tmp_path):
    theirs = FIXTURES / "claude-code/projects/-home-ada-shop/af8161f9-c55f-449f-99ef-b93f522b48e3.jsonl"
    (tmp_path / "noise.jsonl").write_bytes(b"no JSON\n")
    for wrong in (theirs, tmp_path / "noise.jsonl"):
        for dry_run in (True, False):
            with pytest.raises(InvalidInput, match="has no line of"):
                import_codex(wrong, store, dry_run=dry_run)
    assert store.stats().rows["events"] == 0


(COMPACTED_ROLLOUT,) = (FIXTURES / "codex-compacted").rglob("rollout-*.jsonl")


class TestCompactions:
    """Codex compacted this session in the middle of a turn, and before the next one."""

    def conversation(self, lines, tmp_path, *, first=()):
        file = tmp_path / COMPACTED_ROLLOUT.name
        with treering.open("memory:") as store:
            for each in (first, lines):
                if each:
                    file.write_bytes(b"".join(each))
                    import_codex(file, store)
            os.utime(file, (LONG_AGO, LONG_AGO))
            import_codex(file, store)
            thread = store.thread(f"codex/{COMPACTED_ROLLOUT.stem[28:]}")
            assert store.verify().ok
            loaded = thread.load()
            return loaded.messages, thread.load(view="compact").messages, loaded.compactions

    def test_a_compaction_is_a_boundary_and_the_history_stays(self, tmp_path):
        lines = COMPACTED_ROLLOUT.read_bytes().splitlines(keepends=True)
        messages, view, (first, second) = self.conversation(lines, tmp_path)
        others = [each for each in lines if b'"type": "compacted"' not in each]
        assert encode(messages) == encode(self.conversation(others, tmp_path)[0])
        assert [(each.since, each.upto, each.source) for each in (first, second)] == [
            (0, 6, "codex"),
            (6, 8, "codex"),
        ]
        # 1600 tokens at 1.25 $ a million, 30 at 10 $: the response with the summary
        assert (first.model, first.usage, first.cost) == (
            "gpt-5-codex",
            {"input": 1600, "output": 30},
            Decimal("0.0023"),
        )
        assert [each["content"] for each in view[:3]] == [PROMPT, second.messages[1]["content"], AGAIN]
        assert view[1]["content"].endswith(COMPACTED)
        assert view == [*second.messages, *messages[8:]]

    def test_wherever_a_first_import_ended_the_compactions_are_the_same(self, tmp_path):
        lines = COMPACTED_ROLLOUT.read_bytes().splitlines(keepends=True)
        whole = self.conversation(lines, tmp_path)
        for cut in range(5, len(lines), 7):
            assert self.conversation(lines, tmp_path, first=lines[:cut]) == whole

    @pytest.mark.parametrize(
        "payload, expected",
        [
            ({"message": "So far."}, [{"role": "user", "content": "So far."}]),  # the first versions
            (
                {
                    "message": "",
                    "replacement_history": [
                        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "P"}]},
                        {"type": "compaction", "encrypted_content": "gAAA"},  # made by OpenAI's servers
                    ],
                },
                [
                    {"role": "user", "content": "P"},
                    {
                        "role": "assistant",
                        "content": [{"type": "compaction", "encrypted_content": "gAAA"}],
                    },
                ],
            ),
            ({"message": None, "replacement_history": "?"}, None),
        ],
    )
    def test_each_form_of_a_compaction_is_read(self, tmp_path, payload, expected):
        lines = COMPACTED_ROLLOUT.read_bytes().splitlines(keepends=True)
        kept = [each for each in lines if b'"type": "compacted"' not in each]
        line = {"timestamp": "2026-11-21T00:00:00.000Z", "type": "compacted", "payload": payload}
        messages, view, made = self.conversation([*kept, json.dumps(line).encode() + b"\n"], tmp_path)
        assert [each.messages for each in made] == ([] if expected is None else [expected])
        assert view == (messages if expected is None else expected)
        assert [each.cost for each in made] == [None] * len(made)


def test_ids_and_models_that_no_row_can_have_are_replaced(store, rollout, tmp_path):
    lines = [json.loads(line) for line in ROLLOUT.read_text("utf-8").splitlines()]
    for line in lines:
        if line["type"] == "turn_context":
            line["payload"]["model"] = "m" * 5_000
        if line["payload"].get("type") == "task_started":
            line["payload"]["turn_id"] = "turn\0one"
    (tmp_path / ROLLOUT.name).write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    assert import_codex(rollout, store).bad == ()
    assert [run.status for run in store.runs.each()][-1] == "ok"
    assert import_codex(rollout, store).new == 0

"""Evolve: session logs and checkpoint metadata are imported."""

from __future__ import annotations

import json
import os

import pytest

import treering
from tests.importers.clis import FIXTURES
from treering.core.batch import Usage
from treering.core.query import EventQuery
from treering.errors import NotFound
from treering.importers.evolve import CHECKPOINT, import_evolve
from treering.sandbox.run import SessionLog, SessionMeta

TAG = "my-prefix-a1b2c3d4e5f60718"
META = {
    "tag": TAG,
    "provider": "e2b",
    "agent": "qwen",
    "model": "qwen-coder-plus-latest",
    "sandbox_id": "sbx_123",
    "timestamp": "2025-10-26T20:15:17.984Z",
}
LONG_AGO = 1_700_000_000


def update(kind, **fields):
    given = {"sessionId": "s", "update": {"sessionUpdate": kind, **fields}}
    return {"jsonrpc": "2.0", "method": "session/update", "params": given}


def chunk(text):
    return update("agent_message_chunk", content={"type": "text", "text": text})


LINES = [
    {"_meta": META},
    {"_prompt": {"text": "hello how are you?"}},
    chunk("I am "),
    chunk("fine."),
    {"_prompt": {"text": "list the files"}},
    update("tool_call", toolCallId="c1", title="ls", status="pending", rawInput={"path": "."}),
    update("tool_call_update", toolCallId="c1", status="completed", rawOutput="report.txt"),
    chunk("There is report.txt."),
]
THREAD = f"evolve/{TAG}"


@pytest.fixture
def store():
    with treering.open("memory:") as opened:
        yield opened


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "sessions"


def write(folder, lines, meta=META):
    folder.mkdir(exist_ok=True)
    name = "_".join(
        [meta["tag"], meta["provider"], meta["sandbox_id"], meta["agent"], "2025-10-26T20-15-17-984Z"]
    )
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def counts(report, holds="lines"):
    (found,) = [each for each in report.files if each.holds == holds]
    return found.found, found.new, found.known, found.left_out


def test_the_documents_file_becomes_a_thread_with_a_run_for_each_prompt(store, folder):
    os.utime(write(folder, LINES), (LONG_AGO, LONG_AGO))
    assert counts(import_evolve(folder, store)) == (8, 8, 0, 0)
    second, first = store.runs.each()
    assert [run.meta["prompt"] for run in (first, second)] == ["hello how are you?", "list the files"]
    assert {(run.agent, run.thread, run.meta["sandbox_id"]) for run in (first, second)} == {
        ("qwen", THREAD, "sbx_123")
    }
    assert str(first.started_at).startswith("2025-10-26 20:15:17.984")
    labels = [event.label for event in store.timeline.of_run(second.id).events]
    assert labels == ["user message", "call ls", "ls result", "assistant message"]
    assert [message["content"] for message in store.thread(THREAD).load().messages] == [
        "hello how are you?",
        "I am fine.",
        "list the files",
        "There is report.txt.",
    ]


def test_every_payload_is_kept_unchanged(store, folder):
    path = write(folder, LINES)
    os.utime(path, (LONG_AGO, LONG_AGO))
    import_evolve(folder, store)
    kinds = tuple(f"evolve.{kind}" for kind in ("meta", "prompt", "payload"))
    kept = [each.event for each in store.engine.scan(store.space, EventQuery(kinds=kinds)).records]
    kept.sort(key=lambda event: event.ts_us)
    assert store.timeline.content(*(event.body for event in kept)) == path.read_text("utf-8").splitlines()


def test_a_run_that_goes_on_waits_and_a_closed_file_is_whole(store, folder):
    write(folder, LINES)
    assert counts(import_evolve(folder, store)) == (8, 4, 0, 4)
    assert [run.meta["prompt"] for run in store.runs.each()] == ["hello how are you?"]
    write(folder, [*LINES, {"_sessionEnd": {"timestamp": "2025-10-26T20:20:00Z"}}])
    assert counts(import_evolve(folder, store)) == (9, 5, 4, 0)
    assert len(list(store.runs.each())) == 2
    assert counts(import_evolve(folder, store)) == (9, 0, 9, 0)


def test_a_dry_run_changes_nothing_and_bad_lines_have_numbers(store, folder):
    path = write(folder, LINES)
    with path.open("a", encoding="utf-8") as file:
        file.write('stdout noise\n{"_sessionEnd": {}}\n{"torn')
    report = import_evolve(folder, store, dry_run=True)
    assert [each.partition(": ")[0].rpartition("line ")[2] for each in report.bad] == ["9"]
    assert counts(report) == (10, 9, 0, 1)
    assert list(store.runs.each()) == []
    assert counts(import_evolve(folder, store)) == (10, 9, 0, 1)


def test_a_bad_first_line_is_made_up_for_by_the_name_of_the_file(store, folder):
    path = write(folder, LINES)
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join(['{"_meta": {"tag"\n', *lines[1:]]), "utf-8")
    os.utime(path, (LONG_AGO, LONG_AGO))
    report = import_evolve(folder, store)
    assert [each.partition(": ")[0].rpartition("line ")[2] for each in report.bad] == ["1"]
    assert counts(report) == (8, 7, 0, 1)
    second, first = store.runs.each()
    assert {(run.agent, run.thread, run.meta["sandbox_id"]) for run in (first, second)} == {
        ("qwen", THREAD, "sbx_123")
    }
    assert str(first.started_at).startswith("2025-10-26 20:15:17.984")


def test_metadata_that_cannot_be_read_and_other_files_are_counted(store, folder):
    write(folder, LINES)
    (folder / "torn.json").write_text('{"id": "c', "utf-8")
    (folder / "odd.json").write_text('{"id": "c", "hash": "h", "tag": 7, "timestamp": ""}', "utf-8")
    (folder / "package.json").write_text('{"name": "of something else"}', "utf-8")
    (folder / "other.jsonl").write_text('{"no": "meta"}\n', "utf-8")
    report = import_evolve(folder, store)
    assert counts(report, "checkpoints") == (2, 0, 0, 2)
    assert counts(report, "other files") == (1, 0, 0, 1)
    assert [each.partition(": ")[0] for each in report.bad] == ["odd.json", "torn.json"]


def test_runs_of_claude_in_a_sandbox_are_counted_as_claude_counts(store, folder):
    """Two runs in one sandbox: the second goes on with the session, and its totals include the first."""
    streams = [FIXTURES / "claude-code" / f"stream-{number}.jsonl" for number in (0, 1)]
    meta = {**META, "agent": "claude", "model": "claude-sonnet-4-5"}
    lines = [{"_meta": meta}]
    for number, stream in enumerate(streams):
        lines.append({"_prompt": {"text": f"prompt {number}"}})
        lines += [json.loads(line) for line in stream.read_text("utf-8").splitlines()]
    write(folder, [*lines, {"_sessionEnd": {}}], meta)
    import_evolve(folder, store)
    total = store.cost.of_thread(THREAD).total
    assert total.usage == Usage(input=1535, cache_read=8450, cache_write=600, cache_write_1h=1500, output=225)
    assert total.nanos == {"USD": 21_765_000}
    again = import_evolve(folder, store)
    assert [each.nanos for each in again.spent if each.nanos] == [{"USD": 21_765_000}]


def test_what_our_own_sandboxes_log_comes_in_as_well(store, folder):
    meta = SessionMeta(**META)
    log = SessionLog(folder, meta)
    log.prompt("hello how are you?")
    for line in LINES[2:4]:
        log.payload(json.dumps(line).encode())
    log.payload(b"warning: no colour")
    log.close()
    report = import_evolve(folder, store)
    assert (report.bad, report.unknown) == ((), {})
    assert counts(report) == (6, 6, 0, 0)
    assert [message["content"] for message in store.thread(THREAD).load().messages] == [
        "hello how are you?",
        "I am fine.",
    ]
    (kept,) = store.engine.scan(store.space, EventQuery(kinds=("evolve.stdout",))).records
    assert "no colour" in store.timeline.content(kept.event.body)[0]


def test_the_metadata_of_checkpoints_comes_along_with_its_lineage(store, folder):
    write(folder, [*LINES, {"_sessionEnd": {}}])
    first = {
        "id": "ckpt_m5abc_xyz123",
        "hash": "ab" * 32,
        "tag": TAG,
        "timestamp": "2025-10-26T20:16:00.000Z",
        "sizeBytes": 1234,
        "agentType": "qwen",
        "model": "qwen-coder-plus-latest",
        "workspaceMode": "knowledge",
        "comment": "initial draft",
    }
    second = {**first, "id": "ckpt_m5def_abc456", "parentId": first["id"], "comment": "reviewed"}
    for each in (first, second):
        (folder / f"{each['id']}.json").write_text(json.dumps(each), "utf-8")
    (folder / "notes.json").write_text("{}", "utf-8")
    assert counts(import_evolve(folder, store), "checkpoints") == (2, 2, 0, 0)
    assert counts(import_evolve(folder, store), "checkpoints") == (2, 0, 2, 0)
    records = store.engine.scan(store.space, EventQuery(kinds=(CHECKPOINT,))).records
    found = {each.event.id: json.loads(each.event.data) for each in records}
    assert found[second["id"]]["parent_id"] == first["id"]
    assert found[first["id"]]["comment"] == "initial draft"
    store.forget(thread=THREAD)
    assert not store.engine.scan(store.space, EventQuery(kinds=(CHECKPOINT,))).records


def test_a_folder_without_them_is_refused(store, tmp_path):
    with pytest.raises(NotFound, match="session log"):
        import_evolve(tmp_path, store)

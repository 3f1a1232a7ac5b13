"""Agentry Lab: the append-only transcript of a thread."""

from __future__ import annotations

import json
import multiprocessing

import pytest

import treering
from treering.errors import InvalidInput


def debate(store, outputs):
    log = store.transcript("solo_chat/demo", outputs=outputs)
    log.append(
        "pro", "Yes, because ...", iter=0, metadata={"model": "gpt-4o", "citations": ["a"]}, latency_ms=812.5
    )
    log.append("con", "No.", iter=0)
    log.append(
        "moderator",
        {"summary": "even", "drift": 0.1, "action": "STEP_BACK"},
        iter=0,
        role="moderator",
        actions={"type": "STEP_BACK", "rollback": 1, "clear_summaries": True},
    )
    log.append_error("pro", TimeoutError("provider took too long"), iter=1)
    log.append("user", "Go on", iter=1, role="user")
    return log


def test_a1_one_file_per_thread_that_people_can_read_and_tail(store, tmp_path):
    log = debate(store, tmp_path / "outputs")
    assert log.path.parent == tmp_path / "outputs" / "transcripts"
    assert log.path.name.startswith("solo_chat-demo~")
    lines = log.path.read_text().splitlines()
    assert len(lines) == 5
    with log.path.open() as tail:
        tail.seek(0, 2)
        log.append("con", "I agree", iter=2)
        assert json.loads(tail.readline())["content"] == "I agree"


def test_a2_the_schema_of_an_event(store, tmp_path):
    log = debate(store, tmp_path / "outputs")
    first, second, third, failed, user = map(json.loads, log.path.read_text().splitlines())
    assert list(first) == ["t", "iter", "agent_id", "role", "content", "metadata", "actions", "latency_ms"]
    assert isinstance(first["t"], float)
    assert (first["iter"], first["agent_id"], first["role"]) == (0, "pro", "agent")
    assert first["metadata"] == {"model": "gpt-4o", "citations": ["a"]}
    assert (second["metadata"], second["actions"]) == (None, None)
    assert third["content"] == {"summary": "even", "drift": 0.1, "action": "STEP_BACK"}
    assert third["actions"] == {"type": "STEP_BACK", "rollback": 1, "clear_summaries": True}
    assert list(failed) == ["t", "iter", "agent_id", "role", "error"]
    assert failed["error"] == "TimeoutError: provider took too long"
    assert user["role"] == "user"
    assert [event.to_dict() for event in log.read()] == [first, second, third, failed, user]


def test_a3_order_groups_and_the_last_events(store, tmp_path):
    log = debate(store, tmp_path / "outputs")
    assert [event.agent_id for event in log.read()] == ["pro", "con", "moderator", "pro", "user"]
    assert {number: len(events) for number, events in log.by_iter().items()} == {0: 3, 1: 2}
    assert [event.agent_id for event in log.read(last=2)] == ["pro", "user"]
    assert [event.agent_id for event in log.read(first=2)] == ["pro", "con"]
    with pytest.raises(InvalidInput, match="not both"):
        log.read(first=1, last=1)


@pytest.mark.parametrize("damage", ["torn", "lost", "gone"])
def test_a3_a_damaged_file_is_put_right_by_the_next_event(store, tmp_path, damage):
    log = debate(store, tmp_path / "outputs")
    whole = log.path.read_bytes()
    if damage == "torn":
        log.path.write_bytes(whole + b'{"t": 17')
    elif damage == "lost":
        log.path.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    else:
        log.path.unlink()
    store.transcript("solo_chat/demo", outputs=tmp_path / "outputs").append("con", "next", iter=2)
    lines = log.path.read_bytes().splitlines(keepends=True)
    assert b"".join(lines[:-1]) == whole
    assert json.loads(lines[-1])["content"] == "next"
    log.append("pro", "and this one, from the object that was there before", iter=2)
    assert len(log.path.read_bytes().splitlines()) == 7


def talk(folder, outputs, who, count):
    with treering.open(folder, durability="fast") as store:
        log = store.transcript("t", outputs=outputs)
        for number in range(count):
            log.append(who, f"{number}", iter=number)


def test_a3_several_processes_write_one_file(tmp_path):
    treering.open(tmp_path / "store").close()
    context = multiprocessing.get_context("spawn")
    speakers = [
        context.Process(target=talk, args=(tmp_path / "store", tmp_path / "outputs", who, 25))
        for who in "abc"
    ]
    for speaker in speakers:
        speaker.start()
    for speaker in speakers:
        speaker.join()
    with treering.open(tmp_path / "store") as store:
        log = store.transcript("t", outputs=tmp_path / "outputs")
        result = [json.loads(line) for line in log.path.read_text().splitlines()]
        assert result == [event.to_dict() for event in log.read()]
        assert len(result) == 75


def test_export_and_delete(store, tmp_path):
    log = debate(store, tmp_path / "outputs")
    assert log.export(tmp_path / "copy.jsonl") == 5
    assert (tmp_path / "copy.jsonl").read_bytes() == log.path.read_bytes()
    thread = store.thread("solo_chat/demo")
    thread.checkpoint(state={"iter": 2})
    assert log.delete().transcript_events == 5
    assert not log.path.exists()
    assert log.read() == []
    assert thread.load().state == {"iter": 2}


def test_wrong_events_are_refused(store):
    log = store.transcript("t")
    for wrong in (
        {"agent_id": "", "content": "x", "iter": 0},
        {"agent_id": "a", "content": "x", "iter": -1},
        {"agent_id": "a", "content": "x", "iter": 0, "role": "chair"},
        {"agent_id": "a", "content": 3, "iter": 0},
        {"agent_id": "a", "content": "x", "iter": 0, "actions": {"type": "JUMP"}},
    ):
        with pytest.raises(InvalidInput):
            log.append(**wrong)
    assert log.read() == []
    assert log.path is None

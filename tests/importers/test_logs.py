"""Transcripts and session logs: line by line, once each; a bad line is skipped and named."""

from __future__ import annotations

import json

import pytest

import treering
from treering.importers.logs import load_session, load_transcript

EVENTS = [
    {"t": 10.5, "iter": 0, "agent_id": "pro", "role": "agent", "content": "Yes.", "latency_ms": 3.5},
    {
        "t": 11.0,
        "iter": 0,
        "agent_id": "mod",
        "role": "moderator",
        "content": {"drift": 0.1},
        "metadata": {"model": "m"},
        "actions": {"type": "STEP_BACK", "rollback": 2, "clear_summaries": True},
    },
    {"t": 12.0, "iter": 1, "agent_id": "pro", "role": "agent", "error": "TimeoutError: too late"},
]
SAID = {
    "role": "user",
    "content": "hi",
    "ts": "2026-02-24T14:30:00.123456+00:00",
    "channel": "telegram",
    "user_id": 7,
}


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as opened:
        yield opened


@pytest.fixture
def path(tmp_path):
    return tmp_path / "debate.jsonl"


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def told(reports):
    return [(each.found, each.new, each.known, each.left_out) for each in reports]


def test_a_transcript_is_imported_completely(store, path):
    write(path, *EVENTS)
    assert told(load_transcript(path, store, dry_run=True)) == [(3, 3, 0, 0)]
    assert store.transcript("debate").read() == []
    assert told(load_transcript(path, store)) == [(3, 3, 0, 0)]
    read = [event.to_dict() for event in store.transcript("debate").read()]
    assert [{**event, **given} for event, given in zip(read, EVENTS, strict=True)] == read
    assert read[1]["actions"] == EVENTS[1]["actions"]


def test_a_file_that_grew_is_imported_from_where_it_ended(store, path):
    write(path, *EVENTS)
    load_transcript(path, store)
    write(path, *EVENTS, EVENTS[0], EVENTS[0])  # the same words again are an event again
    assert told(load_transcript(path, store)) == [(5, 2, 3, 0)]
    assert told(load_transcript(path, store)) == [(5, 0, 5, 0)]
    assert [event.t for event in store.transcript("debate").read()] == [10.5, 11.0, 12.0, 10.5, 10.5]
    store.transcript("debate").append("pro", "goes on here", iter=2)
    assert told(load_transcript(path, store)) == [(5, 0, 5, 0)]


def test_an_incomplete_last_line_is_skipped(store, path):
    write(path, *EVENTS)
    path.write_bytes(path.read_bytes() + b'{"t": 13.0, "iter"')
    (report,) = load_transcript(path, store)
    assert told([report]) == [(4, 3, 0, 1)]
    assert "incomplete" in report.note


@pytest.mark.parametrize(
    "line",
    [
        "{torn",
        "17",
        '{"t": 1}',
        json.dumps({**EVENTS[0], "role": "cook"}),
        json.dumps({**EVENTS[0], "iter": -1}),
        json.dumps({**EVENTS[0], "t": -1.0}),
        json.dumps({**EVENTS[0], "t": 1e13}),
    ],
)
def test_a_bad_line_is_named_and_skipped(store, path, line):
    path.write_text(f"{json.dumps(EVENTS[0])}\n\n{line}\n{json.dumps(EVENTS[1])}\n", encoding="utf-8")
    (report,) = load_transcript(path, store)
    assert told([report]) == [(3, 2, 0, 1)]
    (bad,) = report.bad
    assert bad.startswith("line 3: ")
    assert [event.t for event in store.transcript("debate").read()] == [10.5, 11.0]


def test_keys_that_only_another_program_knows_come_back_out(store, path):
    odd = {"score": 3, "judges": ["a", None]}
    write(path, {**EVENTS[0], **odd}, {**EVENTS[2], "metadata": {"model": "m"}, "retry": 2})
    load_transcript(path, store)
    first, failed = store.transcript("debate").read()
    assert first.extra == odd
    assert first.to_dict() == {**EVENTS[0], "metadata": None, "actions": None, **odd}
    assert failed.to_dict() == {**EVENTS[2], "metadata": {"model": "m"}, "retry": 2}


def test_what_the_store_wrote_itself_is_not_imported_again(store, tmp_path):
    log = store.transcript("debate", outputs=tmp_path)
    log.append("pro", "Yes.", iter=0, metadata={"score": 1})
    log.append_error("pro", "too late", iter=1)
    assert told(load_transcript(log.path, store)) == [(2, 0, 2, 0)]
    assert len(log.read()) == 2


def test_a_transcript_that_was_imported_goes_on_in_its_own_file(store, tmp_path):
    path = tmp_path / "transcripts" / "debate.jsonl"
    path.parent.mkdir()
    write(path, *EVENTS)
    before = path.read_bytes()
    load_transcript(path, store)
    store.transcript("debate", outputs=tmp_path).append("pro", "goes on", iter=2)
    assert path.read_bytes().startswith(before)
    assert len(path.read_bytes().splitlines()) == 4


def test_many_lines_take_few_commits(store, path):
    write(path, *({**EVENTS[0], "t": float(number)} for number in range(1200)))
    seen = []
    load_transcript(path, store, on_progress=lambda done, of: seen.append((done, of)))
    assert seen == [(500, 1200), (1000, 1200), (1200, 1200)]
    assert store.stats().rows["commits"] == 3
    assert [event.t for event in store.transcript("debate").read()] == [
        float(number) for number in range(1200)
    ]


def test_a_session_log(store, tmp_path):
    path = tmp_path / "telegram_7_s2.jsonl"
    write(path, SAID, {**SAID, "role": "assistant", "content": "hello", "user_id": None})
    assert told(load_session(path, store)) == [(2, 2, 0, 0)]
    assert told(load_session(path, store)) == [(2, 0, 2, 0)]
    chat = store.chat("telegram", 7)
    chat.synchronise(at_least=2)
    assert [(line.role, line.content, line.ts.isoformat(), line.user_id) for line in chat.log().read()] == [
        ("user", "hi", SAID["ts"], "7"),
        ("assistant", "hello", SAID["ts"], None),
    ]
    old = {**SAID, "ts": "0001-01-01T00:00:00"}
    write(path, {**SAID, "ts": "yesterday"}, {**SAID, "role": ""}, {"role": "user"}, old)
    (report,) = load_session(path, store)
    assert [each.partition(":")[0] for each in report.bad] == ["line 1", "line 2", "line 3", "line 4"]

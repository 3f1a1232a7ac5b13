"""Exports in the form of Agentry Lab and CianaParrot: read as those programs do, and imported again."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest

import treering
from treering import UserSession
from treering.errors import Conflict
from treering.importers.agentry import import_agentry
from treering.importers.ciana import import_ciana
from treering.importers.folder_exports import export_agentry, export_ciana

ODD = "solo chat/démo:1"


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as opened:
        yield opened


@pytest.fixture
def other():
    with treering.open("memory:") as opened:
        yield opened


def debate(store):
    log = store.transcript("debate")
    log.append("pro", "Yes.", iter=0, metadata={"model": "gpt-5"}, latency_ms=3.5)
    log.append("mod", {"summary": "even"}, iter=0, role="moderator", actions={"type": "STOP"})
    log.append_error("pro", "timed out", iter=1)
    for number in range(2):
        history = [{"agent_id": "pro", "role": "agent", "content": str(each)} for each in range(number)]
        store.thread("debate").snapshot_state({"iter": number, "history": history, "stop_flag": False})
    store.transcript(ODD).append("pro", "No checkpoint.", iter=0)
    store.thread("plain").append({"role": "user", "content": "Hi"}, state={"n": 1})
    store.transcript("hidden", "user/bob").append("pro", "of Bob", iter=0)


def test_outputs_are_readable_without_treering_and_come_back(store, other, tmp_path):
    debate(store)
    report = export_agentry(store, tmp_path / "outputs")
    assert [(each.path, each.count) for each in report.files] == [("transcripts", 4), ("checkpoints.db", 2)]
    lines = (tmp_path / "outputs/transcripts/debate.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["agent_id"] for line in lines] == ["pro", "mod", "pro"]
    assert json.loads(lines[1])["actions"] == {"type": "STOP", "rollback": 1, "clear_summaries": False}
    with closing(sqlite3.connect(tmp_path / "outputs/checkpoints.db")) as database:
        found = dict(database.execute("SELECT thread_id, payload FROM checkpoints"))
    assert json.loads(found["debate"]) == {
        "iter": 1,
        "stop_flag": False,
        "history": [{"agent_id": "pro", "role": "agent", "content": "0"}],
    }
    assert json.loads(found["plain"]) == {"n": 1, "messages": [{"role": "user", "content": "Hi"}]}
    import_agentry(tmp_path / "outputs", other)
    for thread in ("debate", ODD):
        assert other.transcript(thread).read() == store.transcript(thread).read()
    assert other.thread("debate").load().state["iter"] == 1
    assert other.transcript("hidden", "user/bob").read() == []
    assert import_agentry(tmp_path / "outputs", store).new == 0  # nothing of it is new where it came from


def chats(store):
    telegram = store.chat("telegram", 123456)
    for _ in range(3):
        telegram.reset()
    telegram.log().append("user", "What's the weather?", user_id="123456")
    telegram.log().append("assistant", "Sunny.")
    store.chat("telegram", 789).log().append("user", "Hi", user_id="789")
    store.schedules.cron("0 8 * * *", prompt="weather", channel="telegram", chat_id="123456")
    store.schedules.interval(3600, prompt="mail", channel="telegram", chat_id="123456")
    done = store.schedules.once(datetime(2999, 1, 1, tzinfo=UTC), prompt="party", channel="t", chat_id="1")
    store.schedules.cancel_task(done.id)
    sessions = store.state.sessions(UserSession)
    sessions.save(123456, UserSession(mode="claude_code", active_project="p", active_effort="high"))


def test_data_is_readable_without_treering_and_comes_back(store, other, tmp_path):
    chats(store)
    report = export_ciana(store, tmp_path / "data")
    assert [each.count for each in report.files] == [1, 3, 1, 3]
    read = {each.stem: json.loads(each.read_text("utf-8")) for each in (tmp_path / "data").glob("*.json")}
    assert read["session_counters"] == {"telegram_123456": 3}
    assert read["cc_user_states"] == {
        "123456": {
            "mode": "claude_code",
            "active_project": "p",
            "active_project_path": "",
            "active_session_id": None,
            "active_model": None,
            "active_effort": "high",
        }
    }
    assert [(each["type"], each["value"], each["active"]) for each in read["scheduled_tasks"]] == [
        ("cron", "0 8 * * *", True),
        ("interval", "3600", True),
        ("once", "2999-01-01T00:00:00+00:00", False),
    ]
    assert list(read["scheduled_tasks"][0]) == [
        *("id", "prompt", "type", "value", "channel", "chat_id", "created_at", "last_run", "active")
    ]
    lines = (tmp_path / "data/sessions/telegram_123456_s3.jsonl").read_text("utf-8").splitlines()
    assert [list(json.loads(line)) for line in lines] == [["role", "content", "ts", "channel", "user_id"]] * 2
    assert json.loads(lines[1])["user_id"] is None
    import_ciana(tmp_path / "data", other)
    assert other.chat("telegram", 123456).thread.id == "telegram_123456_s3"
    assert other.chat("telegram", 123456).log().read() == store.chat("telegram", 123456).log().read()
    assert [each.to_dict() for each in other.schedules.list_tasks(all=True)] == read["scheduled_tasks"]
    assert other.state.sessions(UserSession).get(123456).active_effort == "high"
    assert import_ciana(tmp_path / "data", store).new == 0


def test_keys_that_only_another_program_knows_survive_an_import_and_an_export(store, tmp_path):
    line = {"role": "user", "content": "Hi", "ts": "2026-02-24T14:30:00.123456+00:00", "channel": "telegram"}
    line |= {"user_id": "7", "edited": True, "reply_to": {"id": 3}}
    (tmp_path / "old" / "sessions").mkdir(parents=True)
    (tmp_path / "old" / "sessions" / "telegram_7.jsonl").write_text(json.dumps(line) + "\n")
    import_ciana(tmp_path / "old", store)
    export_ciana(store, tmp_path / "new")
    assert json.loads((tmp_path / "new/sessions/telegram_7.jsonl").read_text()) == line


def test_a_time_zone_that_the_file_cannot_express_is_noted(store, tmp_path):
    store.schedules.cron("0 8 * * *", prompt="p", tz="Europe/Berlin")
    report = export_ciana(store, tmp_path / "data")
    assert report.files[1].note == "1 have a time zone, which the file cannot express"


@pytest.mark.parametrize("export", [export_agentry, export_ciana])
def test_a_folder_is_not_overwritten_and_appears_when_it_is_whole(store, tmp_path, export, monkeypatch):
    debate(store)
    (tmp_path / "there").mkdir()
    export(store, tmp_path / "there")
    with pytest.raises(Conflict, match="exists already"):
        export(store, tmp_path / "there")

    def broken(*_, **__):
        raise RuntimeError("interrupted")

    monkeypatch.setattr("treering.importers.folder_exports._write_logs", broken)
    with pytest.raises(RuntimeError, match="interrupted"):
        export(store, tmp_path / "half")
    assert {each.name for each in tmp_path.iterdir()} == {"store", "there"}


def test_a_namespace_has_an_export_of_its_own(store, other, tmp_path):
    debate(store)
    export_agentry(store, tmp_path / "bob", namespace="user/bob")
    import_agentry(tmp_path / "bob", other)
    assert [each.content for each in other.transcript("hidden").read()] == ["of Bob"]

"""The counters and tasks of a CianaParrot agent, and invalid data folders."""

from __future__ import annotations

import json

import pytest

import treering
from treering.errors import InvalidInput, NotFound
from treering.importers.ciana import import_ciana


@pytest.fixture
def store(tmp_path):
    with treering.open(tmp_path / "store", durability="fast") as opened:
        yield opened


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def bring(data, store, **options):
    return [
        (each.path, each.found, each.new, each.known, each.left_out)
        for each in import_ciana(data, store, **options).files
    ]


def count(data, counters):
    (data / "session_counters.json").write_text(json.dumps(counters), encoding="utf-8")


def test_counters_only_rise(store, data):
    for _ in range(4):
        store.chat("telegram", 1).reset()
    count(data, {"telegram_1": 2, "telegram_2": 5})
    assert bring(data, store, dry_run=True) == [("session_counters.json", 2, 1, 1, 0)]
    assert bring(data, store) == [("session_counters.json", 2, 1, 1, 0)]
    assert store.chat("telegram", 1).thread.id == "telegram_1_s4"
    assert store.chat("telegram", 2).thread.id == "telegram_2_s5"
    count(data, {"telegram_1": 9, "telegram_2": 5})
    assert bring(data, store) == [("session_counters.json", 2, 1, 1, 0)]
    assert store.chat("telegram", 1).reset().id == "telegram_1_s10"


def test_a_dry_run_does_not_change_counters(store, data):
    store.thread("telegram_1_s7").append("a thread without a counter")
    count(data, {"telegram_1": 3})
    before = store.stats().rows
    bring(data, store, dry_run=True)
    assert store.stats().rows == before
    bring(data, store)
    assert store.chat("telegram", 1).resets == 7


def test_unusual_chat_names(store, data):
    count(data, {"telegram_-100_5": 1, "my_channel_3": 2, "nochat": 4, "telegram_1_s3": 1, "scheduler_x": 1})
    report = import_ciana(data, store)
    assert [(each.found, each.new, each.left_out) for each in report.files] == [(5, 2, 3)]
    assert [each.partition(": ")[0] for each in report.bad] == [
        f"session_counters.json counter {name!r}" for name in ("nochat", "telegram_1_s3", "scheduler_x")
    ]
    assert store.chat("telegram", "-100_5").thread.id == "telegram_-100_5_s1"
    assert store.chat("my", "channel_3").thread.id == "my_channel_3_s2"  # parsed as the agent does


@pytest.mark.parametrize("text", ["[]", "{torn", "\xff"])
def test_a_file_that_cannot_be_read_costs_only_itself(store, data, text):
    (data / "session_counters.json").write_text(text, encoding="latin-1")
    with pytest.raises(InvalidInput, match=r"session_counters\.json.*nothing was imported"):
        bring(data, store)
    (data / "cc_user_states.json").write_text('{"1": {"mode": "claude_code"}}', encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"nothing was imported.*\n *session_counters\.json is not"):
        bring(data, store, strict=True)
    report = import_ciana(data, store)
    assert [(each.path, each.new, each.left_out) for each in report.files] == [
        ("cc_user_states.json", 1, 0),
        ("session_counters.json", 0, 1),
    ]
    assert report.bad[0].startswith("session_counters.json is not")


@pytest.mark.parametrize("value", ["-1", "1.5", "true", "9" * 30])
def test_an_invalid_counter_costs_only_itself(store, data, value):
    (data / "session_counters.json").write_text(f'{{"telegram_1": {value}, "telegram_2": 5}}')
    with pytest.raises(InvalidInput, match=r"counter 'telegram_1': .* is not a whole number"):
        bring(data, store, strict=True)
    assert bring(data, store) == [("session_counters.json", 2, 1, 0, 1)]
    assert store.chat("telegram", 2).resets == 5
    assert store.chat("telegram", 1).resets == 0


def test_a_missing_or_empty_folder(store, data, tmp_path):
    with pytest.raises(NotFound, match=r"looked for checkpoints\.db, session_counters\.json"):
        bring(data, store)
    with pytest.raises(NotFound, match="not found"):
        bring(tmp_path / "nowhere", store)
    count(data, {})
    with pytest.raises(NotFound, match="not found"):
        bring(data, store, workspace=tmp_path / "nowhere")


def test_invalid_tasks_are_skipped_and_reported(store, data):
    (data / "scheduled_tasks.json").write_text('[{"id": "a"}, {"id": "b"}]', encoding="utf-8")
    report = import_ciana(data, store)
    assert [(each.path, each.found, each.left_out) for each in report.files] == [
        ("scheduled_tasks.json", 2, 2),
    ]
    assert all(each.note for each in report.files)
    assert list(store.schedules.list_tasks()) == []
    (data / "scheduled_tasks.json").write_text("17", encoding="utf-8")
    with pytest.raises(InvalidInput, match="not a JSON array of tasks"):
        import_ciana(data, store)


def test_a_task_for_one_time_that_was_past_when_it_was_made_is_kept(store, data):
    """CianaParrot accepts such a time, and runs the task at once."""
    then = "2026-02-24T10:00:00+00:00"
    task = {"type": "once", "value": then, "created_at": then, "prompt": "p", "channel": "c", "chat_id": "1"}
    tasks = [
        {**task, "id": "a1b2c3d4", "active": True, "last_run": None},
        {**task, "id": "a1b2c3d5", "active": False, "last_run": then},
        {**task, "id": "a1b2c3d6", "active": False, "last_run": None},
    ]
    (data / "scheduled_tasks.json").write_text(json.dumps(tasks), encoding="utf-8")
    import_ciana(data, store)
    found = {each.id: each for each in store.schedules.list_tasks(all=True)}
    assert {name: each.status for name, each in found.items()} == {
        "a1b2c3d4": "active",
        "a1b2c3d5": "done",
        "a1b2c3d6": "cancelled",
    }
    assert found["a1b2c3d4"].next_run.isoformat() == then

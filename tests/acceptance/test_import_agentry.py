"""Agentry Lab: an existing ``outputs/`` folder is imported with one command.

The folder follows the documented format: the table ``checkpoints(thread_id, payload, updated_at)``
with snapshots of ``state.__dict__`` under the documented keys, and a transcript beside it.
"""

from __future__ import annotations

import json
import pickle
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

import treering

HISTORY = [
    {"agent_id": "pro", "role": "agent", "content": "Remote work saves time."},
    {"agent_id": "con", "role": "agent", "content": "It costs company."},
    {"agent_id": "moderator", "role": "moderator", "content": {"summary": "a tie", "drift": 0.1}},
]
SNAPSHOT = {
    "thread_id": "solo-chat",
    "cfg": None,
    "iter": 4,
    "stop_flag": False,
    "contracts": None,
    "history": HISTORY,
    "running_summary": "Both have a point.",
    "_tool_calls_run_total": 3,
    "_tool_calls_iteration": 1,
    "_tool_calls_run_by_id": {"ddgs_search": 3},
    "_tool_calls_iter_by_id": {"ddgs_search": 1},
}
EVENTS = [
    {"t": 1757000000.5, "iter": 0, "agent_id": "pro", "role": "agent", "content": "Remote work saves time."},
    {"t": 1757000002.0, "iter": 0, "agent_id": "con", "role": "agent", "content": "It costs company."},
]


class State:
    """The lab's live state object after a restart: counters at zero, configuration loaded anew."""

    def __init__(self, cfg):
        self.thread_id = "solo-chat"
        self.cfg = cfg
        self.contracts = cfg
        self.iter = 0
        self.stop_flag = False
        self.history = []
        self.running_summary = None
        self._tool_calls_run_total = 0
        self._tool_calls_iteration = 0
        self._tool_calls_run_by_id = {}
        self._tool_calls_iter_by_id = {}


@pytest.fixture
def outputs(tmp_path):
    folder = tmp_path / "outputs"
    (folder / "transcripts").mkdir(parents=True)
    transcript = "".join(json.dumps(event) + "\n" for event in EVENTS)
    (folder / "transcripts" / "solo-chat.jsonl").write_text(transcript, encoding="utf-8")
    with closing(sqlite3.connect(folder / "checkpoints.db")) as database, database:
        database.execute(
            "CREATE TABLE checkpoints(thread_id TEXT PRIMARY KEY, payload BLOB, updated_at REAL)"
        )
    return folder


def save(outputs, thread, payload, updated_at):
    with closing(sqlite3.connect(outputs / "checkpoints.db")) as database, database:
        database.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", (thread, payload, updated_at))


def treering_import(tmp_path, *arguments):
    command = [
        sys.executable,
        "-m",
        "treering",
        "import",
        "agentry",
        "outputs",
        "--json",
        "--store",
        "s",
    ]
    done = subprocess.run(
        [*command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, json.loads(done.stdout or done.stderr)


def test_an_imported_state_is_resumed(outputs, tmp_path):
    plain = {name: value for name, value in SNAPSHOT.items() if name not in ("cfg", "contracts")}
    save(outputs, "solo-chat", json.dumps(plain).encode(), 1757000010.25)
    save(outputs, "standup", json.dumps({"thread_id": "standup", "iter": 1}).encode(), 1757000020.0)

    code, report = treering_import(tmp_path)
    assert code == 0
    assert [(each["path"], each["found"], each["new"], each["left_out"]) for each in report["files"]] == [
        ("checkpoints.db", 2, 2, 0),
        ("transcripts/solo-chat.jsonl", 2, 2, 0),
    ]
    with treering.open(tmp_path / "s") as store:
        events = [event.to_dict() for event in store.transcript("solo-chat").read()]
        assert [{name: event[name] for name in EVENTS[0]} for event in events] == EVENTS
        assert [each.id for each in store.threads()] == ["standup", "solo-chat"]  # newest first
        thread = store.thread("solo-chat")
        assert str(thread.load().created_at) == "2025-09-04 15:33:30.250000+00:00"
        config = object()
        state = State(config)
        thread.restore_state(state)
        assert state.cfg is config
        assert state.contracts is config
        assert {name: getattr(state, name) for name in plain} == plain

    assert [each["new"] for each in treering_import(tmp_path)[1]["files"]] == [0, 0]


def test_pickled_rows_are_rejected_without_an_unpickler(outputs, tmp_path):
    save(outputs, "solo-chat", pickle.dumps(SNAPSHOT), 1757000010.25)
    code, report = treering_import(tmp_path)
    assert code == 2
    assert report["error"] == "InvalidInput"
    assert "'solo-chat'" in report["message"]
    assert "--unpickler" in report["message"]

    (tmp_path / "lab_pickles.py").write_text(
        "import pickle\n\ndef read(payload):\n    return pickle.loads(payload)\n", encoding="utf-8"
    )
    code, report = treering_import(tmp_path, "--unpickler", "lab_pickles:read")
    assert (code, report["files"][0]["new"]) == (0, 1)
    with treering.open(tmp_path / "s") as store:
        assert store.thread("solo-chat").head.items("history") == HISTORY

"""E9: an agent that survives, with all of E1-E8.

An existing ``data/`` and ``workspace/`` as the document describes them come in by one command; the agent
goes on with them, is killed with SIGKILL in the middle of a turn, and goes on again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

import treering
from tests.acceptance.chat_agent import build
from treering.cli.main import main
from treering.threads.transcripts import ThreadLog

ROOT = Path(__file__).resolve().parents[2]
SAID = {
    "telegram_123456": ["hello", "what's the weather?"],
    "telegram_123456_s3": ["start over"],
    "telegram_789012_s1": ["hi"],
    "scheduler_a1b2c3d4": ["Check the weather forecast and send me a summary"],
}
COUNTERS = {"telegram_123456": 3, "telegram_789012": 1}
LOG = {"role": "user", "content": "hello", "ts": "2026-02-24T14:30:00.123456+00:00", "channel": "telegram"}
TASK = {"id": "a1b2c3d4", "prompt": "Check", "type": "cron", "value": "0 8 * * *", "active": True}
CHECKPOINTS = sum(3 * len(said) for said in SAID.values())


@pytest.fixture
def data(tmp_path):
    """What the agent left behind, its conversations written by LangGraph's own saver."""
    folder = tmp_path / "data"
    (folder / "sessions").mkdir(parents=True)
    asyncio.run(converse(folder / "checkpoints.db"))
    write(folder / "session_counters.json", COUNTERS)
    write(folder / "scheduled_tasks.json", [TASK])
    write(folder / "cc_user_states.json", {"123456": {"mode": "claude_code"}})
    (folder / "sessions" / "telegram_123456.jsonl").write_text(json.dumps(LOG) + "\n", encoding="utf-8")
    workspace = tmp_path / "workspace"
    (workspace / "skills" / "weather").mkdir(parents=True)
    for name in ("IDENTITY.md", "AGENT.md", "MEMORY.md", "skills/weather/SKILL.md"):
        (workspace / name).write_text(f"# {name}\n", encoding="utf-8")
    return folder


async def converse(path: Path) -> None:
    async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
        graph = build().compile(checkpointer=saver)
        for thread, said in SAID.items():
            for text in said:
                config = {"configurable": {"thread_id": thread}}
                await graph.ainvoke({"messages": [HumanMessage(text)]}, config)


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


COMMAND = ("import", "ciana", "data", "--workspace", "workspace", "--store", "store", "--json")


@pytest.fixture
def bring(tmp_path, capsys, monkeypatch):
    """Run the command; how it ended, and per file what was found, what is new and what was left out."""

    def call(*options):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as ended:
            main([*COMMAND, *options])
        told = capsys.readouterr()
        if ended.value.code:
            return ended.value.code, told.err
        files = json.loads(told.out)["files"]
        return 0, {
            (each["path"], each["holds"]): (each["found"], each["new"], each["left_out"]) for each in files
        }

    return call


class Agent:
    """The agent in a process of its own."""

    def __init__(self, store: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.chat_agent", str(store)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.working = self.hears()["ready"]

    def told(self, chat: str, text: str):
        self._process.stdin.write(f"{chat} {text}\n")
        self._process.stdin.flush()
        return self.hears()

    def hears(self):
        return json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()
        assert self._process.returncode == -signal.SIGKILL


@pytest.fixture
def agents(tmp_path):
    started = []

    def start():
        started.append(Agent(tmp_path / "store"))
        return started[-1]

    yield start
    for each in started:
        if each._process.poll() is None:
            each._process.kill()
            each._process.communicate()


@pytest.mark.usefixtures("data")
def test_one_command_imports_everything_with_a_count_per_file(tmp_path, bring):
    code, planned = bring("--dry-run")
    assert code == 0
    assert not (tmp_path / "store").exists()
    assert planned.pop(("checkpoints.db", "writes"))[0] > 0
    assert planned == {
        ("checkpoints.db", "checkpoints"): (CHECKPOINTS, CHECKPOINTS, 0),
        ("session_counters.json", "counters"): (2, 2, 0),
        ("sessions/telegram_123456.jsonl", "session log entries"): (1, 1, 0),
        ("scheduled_tasks.json", "scheduled tasks"): (1, 1, 0),
        ("cc_user_states.json", "user states"): (1, 1, 0),
        **{
            (f"workspace/{name}", "memory files"): (1, 1, 0)
            for name in ("IDENTITY.md", "AGENT.md", "MEMORY.md", "skills/weather/SKILL.md")
        },
    }
    code, done = bring()
    done.pop(("checkpoints.db", "writes"))
    assert (code, done) == (0, planned)
    code, again = bring()
    assert code == 0
    assert {new for _, new, _ in again.values()} == {0}
    with treering.open(tmp_path / "store") as store:
        assert {each.id for each in store.threads()} == set(SAID)
        assert store.chat("telegram", 123456).thread.id == "telegram_123456_s3"
        assert store.chat("telegram", 789012).reset().id == "telegram_789012_s2"
        for thread, said in SAID.items():
            told = [
                each["content"] for each in store.thread(thread).load().messages if each["type"] == "human"
            ]
            assert told == said
        (entry,) = ThreadLog(store.engine, store.space, "telegram_123456", "", kind="chat.line").each()
        assert (entry.event.role, entry.content, entry.data["channel"]) == ("user", "hello", "telegram")
        assert store.verify().ok


@pytest.mark.usefixtures("data")
def test_an_agent_goes_on_with_what_was_imported_killed_or_not(tmp_path, agents, bring):
    assert bring()[0] == 0
    first = agents()
    assert first.told("telegram 123456", "and now?") == {
        "thread": "telegram_123456_s3",
        "says": "You said: start over, and now?",
    }
    assert first.told("telegram 123456", "/new") == {"thread": "telegram_123456_s4"}
    assert first.told("telegram 123456", "fresh")["says"] == "You said: fresh"
    assert first.told("slack c1", "hello there")["says"] == "You said: hello there"
    assert first.told("telegram 789012", "/hang") == {"hangs": 2}
    first.kill()

    second = agents()
    assert second.told("telegram 123456", "still there?") == {
        "thread": "telegram_123456_s4",
        "says": "You said: fresh, still there?",
    }
    assert second.told("slack c1", "you too?")["says"] == "You said: hello there, you too?"
    # The message that was being answered when the agent died was kept; nothing was answered twice.
    assert second.told("telegram 789012", "well?")["says"] == "You said: hi, /hang, well?"
    assert second.told("telegram 123456", "/new") == {"thread": "telegram_123456_s5"}
    second.kill()
    with treering.open(tmp_path / "store") as store:
        assert store.verify().ok


def test_an_agent_that_uses_everything_is_killed_and_goes_on(tmp_path, agents):
    chat, workspace = "telegram 123456", tmp_path / "workspace"
    first = agents()
    assert first.working == {}
    (workspace / "IDENTITY.md").write_text("I am Ciana.\n", encoding="utf-8")
    (workspace / "AGENT.md").write_text("I ask first.\n", encoding="utf-8")
    assert first.told(chat, "hello")["says"] == "You said: hello"
    assert first.told(chat, "/new") == {"thread": "telegram_123456_s1"}
    assert first.told(chat, "fresh")["says"] == "You said: fresh"
    assert first.told(chat, "/write MEMORY.md Alice likes parrots.") == {"wrote": "MEMORY.md"}
    assert first.told(chat, "/write host/documents/x.txt no") == {"refused": "ReadOnly"}
    assert first.told(chat, "/write ../store/x no") == {"refused": "InvalidInput"}
    assert first.told(chat, "/code /projects/myapp") == {"works on": "/projects/myapp"}
    due = datetime.now(UTC) + timedelta(seconds=3)
    task = first.told(chat, f"/later {due.isoformat()} Check the weather")["task"]
    assert first.told(chat, "/hang") == {"hangs": 2}
    first.kill()
    time.sleep(max(0, (due - datetime.now(UTC)).total_seconds()))  # nobody is there when it is due

    second = agents()
    assert second.working == {"123456": "/projects/myapp"}  # E7
    assert second.told(chat, "/who") == {  # E1, E2, E4, E6
        "thread": "telegram_123456_s1",
        "says": "I am Ciana. / I ask first. / Alice likes parrots.",
    }
    with treering.open(tmp_path / "store") as store:
        until = time.monotonic() + 60
        while not (reports := list(store.schedules.occurrences(task))):
            assert time.monotonic() < until
            time.sleep(0.05)
    assert second.told(chat, "/new") == {"thread": "telegram_123456_s2"}
    second.kill()

    third = agents()
    assert third.told(chat, "and now?")["thread"] == "telegram_123456_s2"
    third.kill()
    assert [(each.outcome, each.result) for each in reports] == [("ok", "You said: Check the weather")]  # E5
    assert (workspace / "sent" / "telegram_123456.txt").read_text() == "You said: Check the weather"  # E8
    assert not (tmp_path / "Documents" / "x.txt").exists()
    assert not (tmp_path / "store" / "x").exists()
    lines = (tmp_path / "sessions" / "telegram_123456_s1.jsonl").read_text(encoding="utf-8").splitlines()
    assert [(each["role"], each["content"]) for each in map(json.loads, lines)] == [  # E3
        ("user", "fresh"),
        ("assistant", "You said: fresh"),
        ("user", "/hang"),
        ("user", "/who"),
        ("assistant", "I am Ciana. / I ask first. / Alice likes parrots."),
    ]
    with treering.open(tmp_path / "store") as store:
        assert list(store.schedules.occurrences(task)) == reports
        assert store.thread(f"scheduler_{task}").load().messages[-1]["content"] == reports[0].result
        assert store.verify().ok


def test_a_lost_counter_never_leads_back_into_an_old_session(data, tmp_path, bring):
    (data / "session_counters.json").unlink()
    code, done = bring()
    assert code == 0
    assert ("session_counters.json", "counters") not in done
    with treering.open(tmp_path / "store") as store:
        assert store.chat("telegram", 123456).thread.id == "telegram_123456_s3"
        assert store.chat("telegram", 123456).reset().id == "telegram_123456_s4"


def test_a_bad_entry_is_left_out_and_strictly_refused_before_anything_is_written(data, tmp_path, bring):
    (data / "session_counters.json").write_text('{"telegram_1": "many"}', encoding="utf-8")
    code, told = bring("--strict")
    assert code == 2
    assert "session_counters.json" in told
    assert not (tmp_path / "store").exists()
    code, done = bring()
    assert code == 0
    assert done["session_counters.json", "counters"] == (1, 0, 1)


@pytest.mark.usefixtures("data")
def test_an_import_that_was_killed_is_finished_by_the_next(tmp_path, bring):
    killed = subprocess.run(
        [sys.executable, "-m", "treering", *COMMAND],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=100,
        env=os.environ | {"TREERING_FAILPOINTS": "commit.after_commit=kill:12"},
    )
    assert killed.returncode == -signal.SIGKILL
    code, rest = bring()
    assert code == 0
    found, new, _ = rest["checkpoints.db", "checkpoints"]
    assert found == CHECKPOINTS
    assert 0 < new < CHECKPOINTS
    assert {new for _, new, _ in bring()[1].values()} == {0}
    with treering.open(tmp_path / "store") as store:
        for thread, said in SAID.items():
            assert len(list(store.thread(thread).history())) == 3 * len(said)
        assert store.verify().ok

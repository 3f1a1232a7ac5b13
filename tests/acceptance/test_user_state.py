"""CianaParrot, user states: sessions by user id, restored at start-up, imported once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest

import treering
from treering import UserSession
from treering.errors import InvalidInput
from treering.importers.ciana import import_ciana

ENTRY = {
    "mode": "claude_code",
    "active_project": "2fUsers2fme2fProjects2fmyapp",
    "active_project_path": "/Users/me/Projects/myapp",
    "active_session_id": "abc12345-def6-7890-ghij-klmnopqrstuv",
    "active_model": "sonnet",
    "active_effort": "high",
}


def stored(store):
    return {entry.key: entry.value for entry in store.state.list("user_states/")}


def test_a_session_is_stored_in_the_documented_form(store):
    store.state.sessions(UserSession).save("123456", UserSession(**ENTRY))
    assert stored(store) == {"user_states/123456": ENTRY}
    assert store.state.sessions(UserSession).get(123456) == UserSession(**ENTRY)


def test_the_default_mode_is_never_stored_and_leaving_a_mode_deletes_the_entry(store):
    sessions = store.state.sessions(UserSession)
    assert sessions.get("1") == UserSession(mode="ciana")
    sessions.save("1", UserSession(mode="ciana", active_model="sonnet"))
    assert stored(store) == {}
    sessions.save("1", UserSession(**ENTRY))
    sessions.save("1", UserSession())
    assert stored(store) == {}
    sessions.save("1", UserSession(**ENTRY))
    assert sessions.leave("1")
    assert not sessions.leave("1")
    assert stored(store) == {}
    assert [change.operation for change in store.state.history("user_states/1")] == [
        "deleted",
        "set",
        "deleted",
        "set",
    ]


def test_update_enters_and_leaves_a_mode(store):
    sessions = store.state.sessions(UserSession)

    def enter(session):
        session.mode = "claude_code"
        session.active_project_path = "/p"

    assert sessions.update("1", enter).active_project_path == "/p"
    assert list(sessions.users()) == ["1"]
    assert sessions.update("1", lambda _: UserSession()).mode == "ciana"
    assert sessions.update("2", lambda session: session) == UserSession()
    assert stored(store) == {}


def test_restore_reports_invalid_entries_and_returns_the_others(store):
    sessions = store.state.sessions(UserSession)
    sessions.save("1", UserSession(**ENTRY))
    sessions.save("9", UserSession(mode="claude_code"))
    store.state.set("user_states/2", {**ENTRY, "active_effort": "extreme"})
    store.state.set("user_states/3", "not a session at all")
    restored = store.state.sessions(UserSession).restore()
    assert restored.sessions == {"1": UserSession(**ENTRY), "9": UserSession(mode="claude_code")}
    assert [bad.user_id for bad in restored.problems] == ["2", "3"]
    assert "'extreme'" in restored.problems[0].problem
    assert "leave()" in restored.problems[0].problem
    assert len(stored(store)) == 4, "invalid entries are left alone"


def test_an_invalid_session_is_rejected_before_it_is_stored(store):
    sessions = store.state.sessions(UserSession)
    with pytest.raises(InvalidInput, match=r"user '1' is not a valid UserSession: .*active_effort"):
        sessions.save("1", UserSession(mode="claude_code", active_effort="extreme"))
    with pytest.raises(InvalidInput, match="of type dict; pass a UserSession"):
        sessions.save("1", ENTRY)
    with pytest.raises(InvalidInput, match="user id"):
        sessions.save("", UserSession())
    assert stored(store) == {}


def test_a_custom_dataclass_can_be_a_session(store):
    @dataclass
    class Mine:
        mode: str = "idle"
        count: int = 0

    @dataclass
    class Strict:
        count: int

    mine = store.state.sessions(Mine, name="mine")
    mine.save(7, Mine("busy", 3))
    assert mine.restore().sessions == {"7": Mine("busy", 3)}
    mine.save(7, Mine())
    assert mine.restore().sessions == {}
    with pytest.raises(InvalidInput, match="Strict has no default mode"):
        store.state.sessions(Strict)


def test_concurrent_updates_lose_nothing(store):
    @dataclass
    class Counted:
        mode: str = "idle"
        count: int = 0

    sessions = store.state.sessions(Counted)

    def count(session):
        if session.count == 0 and not stored(store):
            sessions.save("1", Counted("busy", 10))  # a concurrent writer
        session.mode = "busy"
        session.count += 1

    assert sessions.update("1", count).count == 11


def test_the_async_api(tmp_path):
    async def use():
        async with treering.open_async(tmp_path / "store") as store:
            sessions = store.state.sessions(UserSession)
            await sessions.save("1", UserSession(**ENTRY))
            assert (await sessions.restore()).sessions == {"1": UserSession(**ENTRY)}
            assert await sessions.leave("1")
            assert [user async for user in sessions.users()] == []

    asyncio.run(use())


_AGENT = """
import sys, treering
from treering import UserSession
with treering.open(sys.argv[1]) as store:
    sessions = store.state.sessions(UserSession)
    print(sorted(sessions.restore().sessions), flush=True)
    for number in range(1000):
        sessions.save(number, UserSession(mode="claude_code", active_project=str(number)))
        print(number, flush=True)
"""


def test_sessions_survive_a_kill(tmp_path):
    command = [sys.executable, "-c", _AGENT, str(tmp_path / "store")]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    lines = [agent.stdout.readline().strip() for _ in range(12)]
    os.kill(agent.pid, signal.SIGKILL)
    agent.communicate()
    assert lines == ["[]", *map(str, range(11))]
    with treering.open(tmp_path / "store") as store:
        restored = store.state.sessions(UserSession).restore()
        assert {str(number) for number in range(11)} <= set(restored.sessions)
        assert all(session.active_project == user for user, session in restored.sessions.items())
        assert not restored.problems


def test_the_file_is_imported_once(store, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    states = {"123456": ENTRY, "7": {"mode": "ciana"}, "8": {**ENTRY, "active_effort": "extreme"}}
    (data / "cc_user_states.json").write_text(json.dumps(states))
    for dry_run in (True, False):
        (report,) = import_ciana(data, store, dry_run=dry_run).files
        assert (report.holds, report.found, report.new, report.left_out) == ("user states", 3, 1, 2)
        assert "'8'" in report.bad[0]
        assert bool(stored(store)) is not dry_run
    assert store.state.sessions(UserSession).restore().sessions == {"123456": UserSession(**ENTRY)}
    (again,) = import_ciana(data, store).files
    assert (again.new, again.known) == (0, 1)
    store.state.sessions(UserSession).save("123456", UserSession(**{**ENTRY, "active_model": "opus"}))
    (third,) = import_ciana(data, store).files
    assert (third.new, third.known) == (0, 1)
    assert store.state.sessions(UserSession).get("123456").active_model == "opus", "the store is newer"

"""Push, pull and remotes on the command line, against a real server."""

from __future__ import annotations

import pytest

import treering
from tests.importers.jsonl_histories import portrait
from tests.server.running import running

KEY = "0123456789abcdef-team-key"


@pytest.fixture
def team(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with treering.open(tmp_path / "team") as store, running(store) as url:
        yield url


@pytest.fixture
def laptop(tmp_path):
    with treering.open(tmp_path / "laptop") as store:
        with store.run(agent="support", thread="alice") as run:
            run.message("user", "hello")
        store.thread("alice").append({"role": "user", "content": "hello"})
        store.thread("bob").append({"role": "user", "content": "hi"})
    return tmp_path / "laptop"


def test_a_remote_is_added_listed_and_removed(run, team):
    assert run("remote", "list").err == "no remotes; add one with: treering remote add team https://server\n"
    added = run("remote", "add", "team", team, "--key-env", "TEAM_KEY")
    assert added.out == f"team is {team}; its key comes from TEAM_KEY\n"
    assert run("remote", "list", "--json").json == [{"name": "team", "url": team, "key_env": "TEAM_KEY"}]
    assert run("remote", "list").out.splitlines()[1].split() == ["team", team, "$TEAM_KEY"]
    assert run("remote", "remove", "team").code == 0
    gone = run("remote", "remove", "team")
    assert gone.code == 3
    assert "remote 'team' not found. Add it with: treering remote add team URL" in gone.err


def test_threads_go_to_the_team_and_come_back(run, team, laptop, tmp_path):
    run("remote", "add", "team", team)
    would = run("push", "team://default/alice", "--dry-run", "--store", laptop)
    assert would.out.startswith("alice: would push 1 checkpoint, 1 run")
    pushed = run("push", "team://default/alice", "--store", laptop)
    assert pushed.out.startswith("alice: pushed 1 checkpoint, 1 run")
    assert run("push", "team://default/alice", "--store", laptop).out == "alice: nothing new\n"
    report = run("push", "team://default", "--store", laptop, "--json").json
    assert [(each["thread"], each["checkpoints"]) for each in report["threads"]] == [("alice", 0), ("bob", 1)]
    assert run("pull", "team://default", "--store", tmp_path / "new").out.count("pulled 1 checkpoint") == 2
    with treering.open(laptop) as ours, treering.open(tmp_path / "new") as theirs:
        assert portrait(ours) == portrait(theirs)


def test_what_is_not_there_is_named(run, team, laptop):
    missing = run("push", "team://default/alice", "--store", laptop)
    assert (missing.code, "treering remote add team URL" in missing.err) == (3, True)
    run("remote", "add", "team", team)
    nobody = run("push", "team://default/nobody", "--store", laptop)
    assert (nobody.code, "thread 'nobody' not found" in nobody.err) == (3, True)
    assert run("push", "alice", "--store", laptop).code == 2
    elsewhere = run("pull", "team://elsewhere/alice", "--store", laptop)
    assert (elsewhere.code, "is for project 'default', not 'elsewhere'" in elsewhere.err) == (14, True)


def test_the_key_comes_from_the_variable_that_the_remote_names(run, tmp_path, laptop, monkeypatch):
    from treering.server.settings import Settings

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    settings = Settings(api_key=KEY)
    with treering.open(tmp_path / "locked") as store, running(store, settings) as url:
        run("remote", "add", "team", url, "--key-env", "TEAM_KEY")
        monkeypatch.setenv("TEAM_KEY", "not-the-key-of-this-server")
        assert run("push", "team://default/alice", "--store", laptop).code == 13
        monkeypatch.setenv("TEAM_KEY", KEY)
        assert run("push", "team://default/alice", "--store", laptop).code == 0
    written = (tmp_path / "config/treering/remotes.json").read_text()
    assert KEY not in written

from __future__ import annotations

import shutil
import subprocess

import pytest


def test_the_life_of_a_document(run):
    assert run("memory", "save", "alice/tone", "Concise.", "--tag", "style", "--auto-load").code == 0
    saved = run("memory", "save", "alice/tone", "Very concise.", "--tag", "style", "--json")
    assert (saved.json["version"], saved.json["metadata"]["tags"]) == (2, ["style"])
    assert run("memory", "get", "alice/tone").out == "Very concise.\n"
    assert run("memory", "get", "alice/tone", "--version", 1).out == "Concise.\n"
    assert "alice/tone  2" in run("memory", "list").out
    assert run("memory", "list", "--tag", "nothing", "--json").json == []
    found = run("memory", "search", "concise", "--json").json
    assert (found["ranked"], [hit["document"]["id"] for hit in found["hits"]]) == (True, ["alice/tone"])
    assert [each["version"] for each in run("memory", "history", "alice/tone", "--json").json] == [2, 1]
    assert "-Concise." in run("memory", "diff", "alice/tone", 1).out
    assert "version 3" in run("memory", "restore", "alice/tone", 1).out
    assert run("memory", "context").out.splitlines() == ['<memory id="alice/tone">', "Concise.", "</memory>"]
    assert run("memory", "delete", "alice/tone").code == 0
    assert run("memory", "get", "alice/tone").code == 3
    assert run("memory", "forget", "alice/tone", "--yes", "--json").json["events"] == 4
    assert run("memory", "history", "alice/tone").code == 3


def test_conflicts_and_unranked_searches_are_reported(run):
    run("memory", "save", "a", "one")
    refused = run("memory", "save", "a", "two", "--if-version", 0)
    assert (refused.code, "is at version 1" in refused.err) == (4, True)
    unranked = run("memory", "search", "???")
    assert (unranked.code, unranked.out) == (0, "")
    assert "not ranked" in unranked.err
    assert run("memory", "save", "a", "x", "--expires-at", "soon").code == 2


def test_semantic_search_needs_vectors(run):
    run("memory", "save", "pets", "Carol has a small dog called Rex.")
    assert run("memory", "search", "puppy").out == ""
    missing = run("memory", "search", "puppy", "--semantic")
    assert missing.out == ""
    assert "no document here has a vector" in missing.err
    assert run("memory", "embed", "--json").json == {"embedded": 1}
    assert run("memory", "embed").out == "0 vectors created\n"
    found = run("memory", "search", "puppy", "--semantic", "--json").json
    assert [hit["document"]["id"] for hit in found["hits"]] == ["pets"]


def test_user_namespaces(run):
    run("memory", "save", "a", "walnut", "--user-namespace", "alice")
    empty = run("memory", "list")
    assert "alice" in empty.err
    assert "a   1" in run("memory", "list", "--user-namespace", "alice").out
    assert "alice: a" in run("memory", "search", "walnut", "--everywhere").out


def test_a_document_is_read_from_stdin(process):
    assert process("memory", "save", "a", "-", given=b"lines\nof text\n").code == 0
    assert process("memory", "get", "a", "--json").json["content"] == "lines\nof text\n"


def test_a_folder_is_synced_and_conflicts_set_the_exit_code(run, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("from a file")
    run("memory", "save", "b", "from the store")
    done = run("memory", "sync", "notes")
    assert (done.code, done.out.splitlines()) == (0, ["imported  a", "exported  b", "0 unchanged"])
    (tmp_path / "notes" / "a.md").write_text("edited here")
    run("memory", "save", "a", "edited there")
    clash = run("memory", "sync", "notes")
    assert clash.code == 4
    assert "conflict: a" in clash.err


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_memory_is_kept_out_of_git(run, tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "MEMORY.md").write_text("private")
    assert run("memory", "protect", "--check").code == 1
    assert run("memory", "protect").code == 0
    assert run("memory", "protect", "--check", "--json").json["state"] == "ignored"

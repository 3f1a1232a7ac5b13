"""Sessions on every engine, and imports that are cut off anywhere: the next one brings the rest, once."""

from __future__ import annotations

import pytest

import treering
from tests.importers.clis import FIXTURES
from tests.importers.portraits import portrait
from treering.core.batch import Usage
from treering.errors import Busy
from treering.importers import recording
from treering.importers.claude_code.sessions import import_claude_code
from treering.importers.codex import import_codex

CLAUDE = FIXTURES / "claude-code" / "projects"
CODEX = FIXTURES / "codex" / "sessions"
(MAIN,) = CLAUDE.glob("*/*.jsonl")
(ROLLOUT,) = CODEX.rglob("*.jsonl")
IMPORTS = {
    "claude-code": (import_claude_code, CLAUDE, f"claude-code/{MAIN.stem}"),
    "codex": (import_codex, CODEX, f"codex/{ROLLOUT.stem[28:]}"),
}
SPENT = {
    "claude-code": Usage(input=1535, cache_read=8450, cache_write=600, cache_write_1h=1500, output=225),
    "codex": Usage(input=500, cache_read=4900, output=81, reasoning=20),
}


@pytest.mark.parametrize("tool", IMPORTS)
def test_a_session_is_the_same_on_every_engine(store, tool):
    function, source, thread = IMPORTS[tool]
    planned = function(source, store, dry_run=True)
    done = function(source, store)
    assert planned.files == done.files
    assert function(source, store).new == 0
    assert store.cost.of_thread(thread).total.usage == SPENT[tool]
    with treering.open("memory:") as plain:
        function(source, plain)
        assert portrait(store, thread) == portrait(plain, thread)
    assert store.verify().ok
    store.forget(thread=thread)
    assert list(store.runs.each()) == []
    assert store.cost.of_days().total.tokens == 0


@pytest.mark.parametrize("tool", IMPORTS)
def test_threads_and_runs_are_listed_by_the_time_of_what_they_hold(store, tool):
    function, source, thread = IMPORTS[tool]
    store.thread("mine").append("written today")
    with store.run("me", thread="mine"):
        pass
    store.flush()
    function(source, store)
    (mine, imported) = store.threads()
    assert (mine.id, imported.id) == ("mine", thread)
    runs = store.runs.page().runs
    assert runs[0].agent == "me"  # the newest
    assert imported.updated_at_us == runs[1].started_at_us == max(run.started_at_us for run in runs[1:])
    assert imported.created_at_us == min(run.started_at_us for run in runs)
    assert [each.id for each in store.thread_page(first=1).threads] == ["mine"]
    store.thread(thread).append({"role": "user", "content": "and on"})
    assert next(iter(store.threads())).id == thread  # continued here, so changed now


@pytest.mark.parametrize("tool", IMPORTS)
def test_a_tool_call_stands_after_the_message_that_made_it(store, tool):
    function, source, _ = IMPORTS[tool]
    function(source, store)
    calls = 0
    for run in store.runs.each():
        asked: set[str] = set()
        for event in store.timeline.of_run(run.id).events:
            if event.type == "message" and event.body is not None:
                (content,) = store.timeline.content(event.body)
                asked |= {str(block.get("call_id") or block.get("id")) for block in _blocks(content)}
            if event.type == "tool.call":
                calls += 1
                assert event.ref["tool_call_id"].rpartition("/")[2] in asked
    assert calls >= 2


def _blocks(content) -> list[dict]:
    blocks = content.get("content") if isinstance(content, dict) else content
    return [each for each in blocks if isinstance(each, dict)] if isinstance(blocks, list) else []


@pytest.mark.parametrize("tool", IMPORTS)
def test_an_import_that_was_cut_off_after_any_commit_is_finished_by_the_next(tool, monkeypatch):
    monkeypatch.setattr(recording, "_WRITES_PER_COMMIT", 7)
    function, source, thread = IMPORTS[tool]
    with treering.open("memory:") as store:
        function(source, store)
        whole = portrait(store, thread)
    cut = 0
    while True:
        with treering.open("memory:") as store:
            if not fails_after(cut, function, source, store):
                break
            function(source, store)
            assert portrait(store, thread) == whole, cut
            assert store.cost.of_thread(thread).total.usage == SPENT[tool]
            assert function(source, store).lines == 0
            assert store.verify().ok
        cut += 1
    assert cut > 5


def fails_after(commits, function, source, store):
    """Import into a store that breaks after so many commits; says whether it came to that."""
    left = [commits]
    commit = store.engine.commit

    def failing(batch):
        if not left[0]:
            raise Busy("the power is gone")
        left[0] -= 1
        return commit(batch)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store.engine, "commit", failing)
        try:
            function(source, store)
        except Busy:
            return True
    return False

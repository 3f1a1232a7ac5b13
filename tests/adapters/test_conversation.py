"""Threads to which adapters append new messages, and thread ids for any framework id."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treering
from treering.adapters.conversation import ConversationThread, escape_part, thread_id_for
from treering.core.batch import Draft
from treering.core.ids import check_id
from treering.errors import RefMoved
from treering.store import Store
from treering.threads.checkpoint import ListPrefix

ids = st.text(st.characters(), max_size=300) | st.text("ab/%~25FE\n", max_size=12)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with treering.open(tmp_path) as store:
        yield store
        assert store.verify().ok


class TestNames:
    @given(one=ids, two=ids)
    def test_two_names_are_never_quoted_alike(self, one: str, two: str) -> None:
        assert (escape_part(one) == escape_part(two)) == (one == two)

    @given(name=ids)
    def test_a_quoted_name_is_short_and_has_no_slash(self, name: str) -> None:
        assert "/" not in escape_part(name)
        assert len(escape_part(name)) <= 120
        check_id("x" + escape_part(name), "id")

    @given(name=ids)
    def test_any_string_has_a_thread_id(self, name: str) -> None:
        check_id(thread_id_for(name), "thread id")

    @pytest.mark.parametrize("name", ["support/alice", "a b", "ä", "100%", "x" * 400])
    def test_an_ordinary_id_is_its_own_thread_id(self, name: str) -> None:
        assert thread_id_for(name) == name

    @pytest.mark.parametrize("name", ["", " ", "a\nb", "\ud800", "x" * 401, "/" * 300])
    def test_another_id_gets_a_substitute(self, name: str) -> None:
        assert thread_id_for(name) != name
        assert thread_id_for(name) != thread_id_for(name + "x")

    def test_the_longest_ids_can_be_stored(self, store: Store) -> None:
        for name in ("x" * 400, "/" * 300, "/" * 130, "ä" * 5000):
            ConversationThread(store, thread_id_for(name)).save(None, ["hi"], after=None)


class TestSaving:
    def test_files_that_the_thread_saved_stay_with_it(self, store: Store, tmp_path: Path) -> None:
        (tmp_path / "work").mkdir()
        (tmp_path / "work" / "a.txt").write_text("kept")
        saved = store.thread("t").checkpoint(["a"], workspace=tmp_path / "work")
        assert saved.snapshot is not None
        conversation = ConversationThread(store, "t")
        head = conversation.head()
        assert head is not None
        conversation.save(head, ["b"], after=head.messages)
        after = store.thread("t").load()
        assert after.messages == ["a", "b"]
        assert after.snapshot == saved.snapshot

    def test_messages_can_be_appended_at_any_point(self, store: Store) -> None:
        transcript = ConversationThread(store, "t")
        first = transcript.save(None, ["a", "b", "c"], after=None)
        second = transcript.save(first, ["d"], after=first.messages)
        assert second.messages is not None
        third = transcript.save(second, ["x"], after=ListPrefix(second.messages.list, 2))
        empty = transcript.save(third, [], after=None)
        back = transcript.save(empty, ["e"], after=second.messages)
        thread = store.thread("t")
        lines = [checkpoint.messages for checkpoint in thread.history()]
        assert lines == [
            ["a", "b", "c", "d", "e"],
            [],
            ["a", "b", "x"],
            ["a", "b", "c", "d"],
            ["a", "b", "c"],
        ]
        assert transcript.head() == back
        assert store.stats().rows["items"] == 6

    def test_a_fork_continues_in_another_thread(self, store: Store) -> None:
        origin = ConversationThread(store, "origin").save(None, ["a", "b"], after=None)
        fork = ConversationThread(store, "fork")
        head = fork.save(None, [], after=origin.messages)
        fork.save(head, ["c"], after=head.messages)
        loaded = store.thread("fork").load()
        assert loaded is not None
        assert loaded.messages == ["a", "b", "c"]
        assert not ConversationThread(store, "origin").erase()

    def test_a_head_that_moved_refuses_all_of_it(self, store: Store) -> None:
        transcript = ConversationThread(store, "t")
        first = transcript.save(None, ["a"], after=None)
        transcript.save(first, ["b"], after=first.messages)

        def also(draft: Draft) -> None:
            draft.set_ref("beside", b"1", scope="/x/y")

        with pytest.raises(RefMoved):
            transcript.save(first, ["c"], after=first.messages, add_to_batch=also)
        with pytest.raises(RefMoved):
            transcript.save(None, ["c"], after=None)
        with pytest.raises(RefMoved):
            transcript.unlist(first)
        assert store.engine.refs(store.space, ["beside"]) == {}
        loaded = store.thread("t").load()
        assert loaded is not None
        assert loaded.messages == ["a", "b"]


@pytest.mark.parametrize(
    "module, package, extra",
    [("pydantic_ai", "pydantic_ai", "pydantic-ai"), ("adk", "google.adk", "adk")],
)
def test_a_missing_framework_is_named(module: str, package: str, extra: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import treering.adapters.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"treering.errors.MissingExtra: treering.adapters.{module} needs an optional dependency: "
        f"pip install 'treering[{extra}]'"
    )

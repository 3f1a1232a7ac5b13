"""Forgetting: what is deleted, what is kept, and that no byte of deleted data remains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.maintenance.conftest import ALICE, OpenStore, kinds_in, write_steps
from treering.core.batch import Text
from treering.core.content import list_address
from treering.core.encoding import decode_json, encode
from treering.core.ids import Scope
from treering.errors import Conflict, InvalidInput, NotFound
from treering.maintenance.forget import answers_to
from treering.store import Store


class TestForget:
    def test_a_thread_is_deleted_and_its_neighbours_are_kept(self, store: Store) -> None:
        write_steps(store, 6, thread="t1")
        write_steps(store, 3, thread="t2")
        receipt = store.forget(thread="t1", namespace="alice")
        assert (receipt.scopes, receipt.events, receipt.lists, receipt.refs) == (1, 6, 1, 1)
        assert store.engine.list_info(store.space, "t1/messages") is None
        assert [event.id for event in kinds_in(store, "checkpoint")] == ["t2-0", "t2-1", "t2-2"]
        assert store.verify().ok

    def test_all_threads_of_a_namespace_are_deleted(self, store: Store) -> None:
        write_steps(store, 2, thread="t1", namespace="alice")
        write_steps(store, 2, thread="t2", namespace="alice")
        write_steps(store, 2, thread="t3", namespace="alicia")
        assert store.forget(namespace="alice").scopes == 2
        assert {event.thread for event in kinds_in(store, "checkpoint")} == {"t3"}

    def test_a_scope_by_its_text(self, store: Store) -> None:
        write_steps(store, 2)
        assert store.forget(scope=ALICE).events == 2

    def test_a_thread_without_a_namespace(self, store: Store) -> None:
        write_steps(store, 2, thread="a/b", namespace="")
        assert store.forget(thread="a/b").events == 2

    def test_the_record_contains_no_name_but_can_be_checked_with_one(self, store: Store) -> None:
        write_steps(store, 2)
        receipt = store.forget(thread="t1", namespace="alice")
        (event,) = kinds_in(store, "forget")
        assert event.id == receipt.event
        assert b"alice" not in (event.data or b"")
        recorded = decode_json(event.data or b"")
        assert (recorded["what"], recorded["events"]) == ("thread", 2)
        known = {"salt": recorded["salt"], "digest": recorded["digest"]}
        assert answers_to(**known, thread="t1", namespace="alice")
        assert not answers_to(**known, thread="t2", namespace="alice")

    def test_forgetting_a_missing_thread_is_not_found(self, store: Store) -> None:
        write_steps(store, 1)
        for selector in ({"thread": "t1"}, {"namespace": "bob"}, {"scope": "alice/thread/t"}):
            with pytest.raises(NotFound, match="nothing is stored under"):
                store.forget(**selector)

    @pytest.mark.parametrize(
        "selector",
        [
            {},
            {"thread": "t", "scope": "a/thread/t"},
            {"namespace": "a", "scope": "a/thread/t"},
            {"scope": "no scope"},
            {"thread": ""},
            {"thread": "t", "namespace": ""},
            {"namespace": ""},
            {"thread": "a\0b"},
            {"thread": "x" * 10_000},
        ],
    )
    def test_an_ambiguous_selector_is_rejected(self, store: Store, selector: dict[str, str]) -> None:
        with pytest.raises(InvalidInput):
            store.forget(**selector)

    @pytest.mark.parametrize("thread", ["a/b%", "naïve 🌲", "100%"])
    def test_any_readable_name_can_be_forgotten(self, store: Store, thread: str) -> None:
        write_steps(store, 1, thread=thread)
        assert store.forget(thread=thread, namespace="alice").events == 1

    def test_a_fork_needs_cascade(self, store: Store) -> None:
        write_steps(store, 3)
        draft = store.draft()
        draft.append(
            "fork", encode("mine"), scope=str(Scope("bob", "thread", "f")), at=2, parent="t1/messages"
        )
        draft.set_ref(
            "fork/head", b"{}", scope=str(Scope("bob", "thread", "f")), links=(list_address("fork"),)
        )
        store.commit(draft)
        with pytest.raises(Conflict):
            store.forget(thread="t1", namespace="alice")
        assert kinds_in(store, "forget") == []
        store.forget(thread="t1", namespace="alice", cascade=True)
        assert store.engine.list_info(store.space, "fork") is None

    def test_no_byte_of_a_canary_remains_on_disk(self, open_kind: OpenStore, tmp_path: Path) -> None:
        store = open_kind("sqlite")
        canary = "canary-5f2c9"
        scope = str(Scope(canary, "thread", canary))
        write_steps(store, 3, namespace="bob")
        write_steps(store, 6, thread=canary, namespace=canary)
        draft = store.draft()
        source = draft.put(encode(f"my name is {canary}"), scope=scope)
        draft.set_ref(f"note/{canary}", b"1", scope=scope, links=(source,))
        draft.text(Text(collection="notes", name=canary, scope=scope, source=source, namespace=canary))
        store.commit(draft)
        receipt = store.forget(namespace=canary)
        assert receipt.proof == "bytes"
        store.close()
        files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
        assert files
        assert [path.name for path in files if canary.encode() in path.read_bytes()] == []

"""Erasure: forgotten data is gone, and data that had to be kept is reported."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from treering.core.batch import ABSENT, Batch, Delete, Draft, RefChange, Text
from treering.core.content import Content, list_address
from treering.core.ids import new_id
from treering.core.query import Erasure, SearchQuery
from treering.core.records import Erased
from treering.errors import Conflict, NotFound
from treering.testing import batches
from treering.testing.harness import EngineHarness, needs
from treering.testing.portrait import all_records, portrait, problems

if TYPE_CHECKING:
    from pathlib import Path

    from treering.core.content import Address
    from treering.core.engine import Engine

A, B, C = "/thread/a", "/thread/b", "/thread/c"


class ErasureTests(EngineHarness):
    """Guarantees of `erase`."""

    def test_erasing_a_scope_removes_all_its_data(self, engine: Engine, space: str) -> None:
        addresses = {scope: _fill(engine, space, scope) for scope in (A, B)}
        untouched = _of_scope(engine, space, B)
        erased = engine.erase(space, Erasure(scopes=(A,)))
        assert (erased.events, erased.refs, erased.lists, erased.bodies) == (2, 1, 1, 1)
        assert (erased.texts, erased.objects, erased.kept) == (1, 1, {})
        assert erased.bytes >= 5000
        for address in addresses[A][:2]:
            with pytest.raises(NotFound):
                engine.get(space, [address])
        assert engine.list_info(space, f"{A}/list") is None
        assert {record.event.scope for record in all_records(engine, space)} == {B}
        assert _of_scope(engine, space, B) == untouched
        assert not problems(engine, space)
        assert engine.erase(space, Erasure(scopes=(A,))) == Erased(proof=erased.proof)

    def test_erased_data_cannot_be_read_anywhere(self, engine: Engine, space: str) -> None:
        """Nor does an export contain it, even if its ref was deleted before."""
        canary = f"canary{random.Random(16).randrange(10**12)}"
        scope = _fill_with(engine, space, canary)
        _fill(engine, space, B)
        deletion = RefChange(name=f"{canary}/gone", scope=scope, change=Delete())
        engine.commit(Batch(id=new_id(), space=space, refs=(deletion,)))
        assert canary in _everything(engine, space)
        engine.erase(space, Erasure(scopes=(scope,), secure=True))
        assert canary not in _everything(engine, space)
        if engine.caps.search:
            assert not engine.search(space, SearchQuery(collection="notes", text=canary)).hits
        assert not problems(engine, space)

    def test_no_erased_byte_is_left_in_storage(
        self, engine: Engine, space: str, storage: Path | None
    ) -> None:
        """For engines that report their storage; the others are tested by queries."""
        canary = f"canary{random.Random(61).randrange(10**12)}"
        scope = _fill_with(engine, space, canary)
        for _ in range(20):
            _fill(engine, space, B)
        if storage is not None:
            assert _bytes_found(storage, canary)
        erased = engine.erase(space, Erasure(scopes=(scope,), secure=True))
        assert erased.proof == ("query" if storage is None else "bytes")
        if storage is not None:
            assert not _bytes_found(storage, canary)
        assert not problems(engine, space)

    def test_shared_objects_are_kept_and_listed(self, engine: Engine, space: str) -> None:
        shared, own = batches.noise(5000, seed=1), batches.noise(5000, seed=2)
        for scope, contents in ((A, [shared, own]), (B, [shared])):
            draft = Draft(space)
            links = tuple(draft.put(content, scope=scope) for content in contents)
            draft.set_ref(f"{scope}/head", b"", scope=scope, links=links)
            engine.commit(draft.batch())
        erased = engine.erase(space, Erasure(scopes=(A,)))
        assert erased.objects == 1
        assert list(erased.kept) == [shared.name]
        assert "shared with" in erased.kept[shared.name]
        assert engine.missing(space, [shared.name, own.name]) == {own.name}
        erased = engine.erase(space, Erasure(scopes=(B,)))
        assert (erased.objects, erased.kept) == (1, {})
        assert engine.stats(space).objects == 0

    def test_a_slot_linked_by_another_scope_is_kept_and_listed(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        slots = [draft.put(batches.words(f"{number}"), scope=A) for number in range(2)]
        draft.set_ref("a", b"", scope=A, links=tuple(slots))
        engine.commit(draft.batch())
        engine.commit(batches.events(space, batches.event(scope=B, body=slots[1])))
        erased = engine.erase(space, Erasure(scopes=(A,)))
        assert (erased.refs, erased.bodies) == (1, 0)
        assert list(erased.kept) == [slots[1]]
        assert "shared with" in erased.kept[slots[1]]
        assert engine.get(space, [slots[1]]) == [batches.words("1")]
        assert not problems(engine, space)

    def test_a_commit_may_contain_several_scopes(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        addresses = {scope: draft.put(batches.words(scope), scope=scope) for scope in (A, B, C)}
        for scope, address in addresses.items():
            draft.event(batches.event(scope=scope, body=address))
        engine.commit(draft.batch())
        erased = engine.erase(space, Erasure(scopes=(A, C)))
        assert (erased.events, erased.bodies) == (2, 2)
        assert engine.get(space, [addresses[B]]) == [batches.words(B)]

    def test_recent_unshared_content_is_erased_immediately(self, engine: Engine, space: str) -> None:
        """There is no grace period for an erasure."""
        _fill(engine, space, A)
        engine.erase(space, Erasure(scopes=(A,)))
        stats = engine.stats(space)
        assert (stats.objects, stats.lists, stats.events, stats.refs, stats.texts) == (0, 0, 0, 0, 0)

    def test_a_fork_of_an_erased_list_needs_cascade(self, engine: Engine, space: str) -> None:
        engine.commit(batches.append(space, "l", "a", "b", at=0, scope=A))
        engine.commit(batches.append(space, "fork", "x", at=1, parent="l", scope=B))
        engine.commit(batches.append(space, "fork of fork", "y", at=2, parent="fork", scope=C))
        engine.commit(batches.set_ref(space, "b", scope=B))
        before = portrait(engine, space)
        with pytest.raises(Conflict) as caught:
            engine.erase(space, Erasure(scopes=(A,)))
        assert B in str(caught.value)
        assert portrait(engine, space) == before
        erased = engine.erase(space, Erasure(scopes=(A,), cascade=True))
        assert (erased.lists, erased.refs) == (3, 1)
        assert not problems(engine, space)

    def test_a_fork_can_be_erased_alone(self, engine: Engine, space: str) -> None:
        shared = batches.noise(5000)
        engine.commit(batches.append(space, "l", "a", shared, at=0, scope=A))
        engine.commit(batches.append(space, "fork", "x", at=2, parent="l", scope=B))
        assert engine.erase(space, Erasure(scopes=(B,))).lists == 1
        assert engine.read_list(space, "l", 0, 9) == [batches.words("a"), shared]

    def test_a_record_that_links_an_erased_list_needs_cascade(self, engine: Engine, space: str) -> None:
        """A ref or event of another scope that links the list counts as a fork."""
        engine.commit(batches.append(space, "l", "a", at=0, scope=A))
        engine.commit(batches.set_ref(space, "b", scope=B, links=(list_address("l"),)))
        engine.commit(batches.events(space, batches.event(scope=C, links=(list_address("l"),))))
        with pytest.raises(Conflict) as caught:
            engine.erase(space, Erasure(scopes=(A,)))
        assert B in str(caught.value)
        assert C in str(caught.value)
        erased = engine.erase(space, Erasure(scopes=(A,), cascade=True))
        assert (erased.lists, erased.refs, erased.events) == (1, 1, 1)

    def test_single_events_are_erased_with_their_content(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        shared = draft.put(batches.noise(5000, seed=1), scope=A)
        lone = draft.put(batches.noise(5000, seed=2), scope=A)
        draft.event(batches.event(id="one", scope=A, links=(shared, lone)))
        draft.event(batches.event(id="two", scope=A, links=(shared,)))
        receipt = engine.commit(draft.batch())
        erased = engine.erase(space, Erasure(event_seqs=(receipt.first_seq, 999)))
        assert (erased.events, erased.objects) == (1, 1)
        assert list(erased.kept) == [shared[2:]]
        assert [record.event.id for record in all_records(engine, space)] == ["two"]
        assert not problems(engine, space)
        assert engine.commit(batches.events(space, batches.event(id="one"))).new_events == 1

    def test_single_refs_and_lists_can_be_erased(self, engine: Engine, space: str) -> None:
        large = batches.noise(5000)
        engine.commit(batches.append(space, "l", "a", at=0, scope=A))
        engine.commit(batches.append(space, "m", "a", at=0, scope=A))
        draft = Draft(space)
        links = (draft.put(large, scope=A), list_address("l"))
        draft.set_ref("r", b"", scope=A, links=links)
        draft.set_ref("s", b"", scope=A)
        engine.commit(draft.batch())
        erased = engine.erase(space, Erasure(refs=("r", "nothing"), lists=("l", "nothing")))
        assert (erased.refs, erased.lists, erased.objects) == (1, 1, 1)
        assert [ref.name for ref in engine.scan_refs(space, "")] == ["s"]
        assert engine.list_info(space, "l") is None
        assert engine.list_info(space, "m") is not None
        assert not problems(engine, space)

    def test_a_linked_list_is_not_erased(self, engine: Engine, space: str) -> None:
        engine.commit(batches.append(space, "l", "a", at=0, scope=A))
        engine.commit(batches.set_ref(space, "r", scope=A, links=(list_address("l"),)))
        with pytest.raises(Conflict, match=A):
            engine.erase(space, Erasure(lists=("l",)))
        assert engine.erase(space, Erasure(lists=("l",), refs=("r",))).lists == 1

    def test_an_erased_ref_leaves_no_tombstone(self, engine: Engine, space: str) -> None:
        """Its name may be what must be forgotten, so its versions start from 1 again."""
        engine.commit(batches.set_ref(space, "head", scope=A))
        engine.commit(batches.set_ref(space, "head", scope=A))
        engine.erase(space, Erasure(scopes=(A,)))
        assert engine.commit(batches.set_ref(space, "head", expect=ABSENT)).versions == {"head": 1}

    def test_a_replay_does_not_restore_erased_data(self, engine: Engine, space: str) -> None:
        """The batch is still recognised, but its receipt no longer names erased data."""
        draft = Draft(space)
        batches.full_load(draft, scope=A)
        first = engine.commit(draft.batch())
        engine.erase(space, Erasure(scopes=(A,)))
        again = engine.commit(draft.batch())
        assert (again.batch, again.first_seq, again.last_seq) == (
            first.batch,
            first.first_seq,
            first.last_seq,
        )
        assert not again.versions
        assert not all_records(engine, space)
        assert not engine.scan_refs(space, "")

    def test_an_erasure_is_not_seen_by_followers(self, engine: Engine, space: str) -> None:
        for number in range(6):
            engine.commit(batches.events(space, batches.event(id=f"{number}", scope=(A, B)[number % 2])))
        engine.erase(space, Erasure(scopes=(A,)))
        assert [(record.seq, record.event.id) for record in all_records(engine, space, limit=2)] == [
            (2, "1"),
            (4, "3"),
            (6, "5"),
        ]

    def test_data_is_kept_if_its_name_was_created_again(self, engine: Engine, space: str) -> None:
        _fill(engine, space, A)
        before = portrait(engine, space)
        plan = Erasure(scopes=(A,), absent=("nobody", f"{A}/head"))
        with pytest.raises(Conflict, match="/thread/a/head"):
            engine.erase(space, plan)
        assert portrait(engine, space) == before
        gone = RefChange(name=f"{A}/head", scope=A, change=Delete())
        engine.commit(Batch(id=new_id(), space=space, refs=(gone,)))
        assert engine.erase(space, plan).lists == 1
        assert not engine.scan_scopes(space, A)

    def test_erasing_nothing_changes_nothing(self, engine: Engine, space: str) -> None:
        _fill(engine, space, A)
        before = portrait(engine, space)
        for plan in (
            Erasure(),
            Erasure(scopes=("nobody",)),
            Erasure(refs=("x",), lists=("y",), event_seqs=(99,)),
        ):
            erased = engine.erase(space, plan)
            assert erased == Erased(proof=erased.proof)
        assert portrait(engine, space) == before

    @needs("search")
    def test_other_texts_are_still_found(self, engine: Engine, space: str) -> None:
        engine.commit(batches.index_text(space, "a", "a quiet forest", scope=A))
        engine.commit(batches.index_text(space, "b", "a loud forest", scope=B))
        assert engine.erase(space, Erasure(scopes=(A,), secure=True)).texts == 1
        hits = engine.search(space, SearchQuery(collection="notes", text="forest")).hits
        assert [hit.name for hit in hits] == ["b"]


def _fill(engine: Engine, space: str, scope: str) -> list[Address]:
    draft = Draft(space)
    small = draft.put(batches.words(f"a note of {scope}"), scope=scope)
    large = draft.put(Content("bytes", random.Random(scope).randbytes(5000)), scope=scope)
    key = f"{scope}/list"
    info = engine.list_info(space, key)
    at = info.length if info is not None else 0
    draft.append(key, batches.words(f"said in {scope}"), small, large, scope=scope, at=at)
    draft.event(batches.call(scope=scope, body=small, links=(large, list_address(key))))
    draft.event(batches.event(scope=scope))
    draft.set_ref(f"{scope}/head", b"", scope=scope, links=(list_address(key),))
    draft.text(Text(collection="notes", name=scope, scope=scope, source=small))
    engine.commit(draft.batch())
    return [small, large, list_address(key)]


def _fill_with(engine: Engine, space: str, canary: str) -> str:
    """Write a word everywhere a word can be stored, uncompressed; the scope is named after it."""
    scope = f"/thread/{canary}"
    draft = Draft(space)
    small = draft.put(batches.words(canary), scope=scope)
    noise = random.Random(1).randbytes(4000)
    large = draft.put(Content("bytes", noise + canary.encode() + noise[::-1]), scope=scope)
    draft.append(f"{canary}/list", batches.words(f"item {canary}"), large, scope=scope, at=0)
    draft.event(
        batches.call(
            id=f"{canary}-1",
            scope=scope,
            body=small,
            links=(large,),
            name=canary,
            agent=canary,
            model=canary,
            run=canary,
            thread=canary,
            data=b'{"x":"%s"}' % canary.encode(),
        )
    )
    draft.set_ref(
        f"{canary}/head", canary.encode(), scope=scope, links=(small, list_address(f"{canary}/list"))
    )
    draft.set_ref(f"{canary}/gone", canary.encode(), scope=scope)
    draft.text(Text(collection="notes", name=canary, namespace=canary, scope=scope, source=small))
    engine.commit(draft.batch())
    return scope


def _everything(engine: Engine, space: str) -> str:
    """Return everything that a portrait and an export contain."""
    return repr([portrait(engine, space), list(engine.export(space))])


def _of_scope(engine: Engine, space: str, scope: str) -> object:
    contents = portrait(engine, space)
    return (
        [record for record in contents["records"] if record.event.scope == scope],
        [ref for ref in contents["refs"].values() if ref.scope == scope],
        [contents["items"][name] for name, info in contents["lists"].items() if info.scope == scope],
        [body for body in contents["bodies"].values() if body[0] == scope],
    )


def _bytes_found(folder: Path, canary: str) -> list[str]:
    return [
        path.name
        for path in sorted(folder.rglob("*"))
        if path.is_file() and canary.encode() in path.read_bytes()
    ]

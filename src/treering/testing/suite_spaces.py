"""Spaces: no operation in one reads, detects or changes another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from treering.core.batch import Draft
from treering.core.content import Address, list_address, object_address
from treering.core.query import Erasure, EventQuery, SearchQuery, SumQuery
from treering.errors import InvalidInput, MissingObjects, NotFound
from treering.testing import batches
from treering.testing.harness import EngineHarness, needs
from treering.testing.portrait import portrait, problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from treering.core.engine import Engine


class SpaceTests(EngineHarness):
    """Guarantees of spaces."""

    def test_names_are_independent_between_spaces(self, engine: Engine, space: str) -> None:
        """Names that differ only in case or by a suffix are different spaces, too."""
        spaces = [space, space.upper(), f"{space}.b", f"{space}-b"]
        for number, each in enumerate(spaces):
            draft = Draft(each, id="the same batch")
            body = draft.put(batches.words(f"content of {number}"), scope="s")
            draft.append("list", batches.words(f"item of {number}"), scope="s", at=0)
            draft.event(batches.call(id="the same event", name=f"{number}", body=body))
            draft.set_ref("head", b"%d" % number, scope="s", links=(body,), expect="absent")
            assert engine.commit(draft.batch()).first_seq == 1
        for number, each in enumerate(spaces):
            assert engine.get(each, [Address("s:the same batch:0.0")]) == [
                batches.words(f"content of {number}")
            ]
            assert engine.read_list(each, "list", 0, 9) == [batches.words(f"item of {number}")]
            assert [record.event.name for record in engine.scan(each, EventQuery()).records] == [f"{number}"]
            assert engine.refs(each, ["head"])["head"].value == b"%d" % number
            assert [ref.value for ref in engine.scan_refs(each, "")] == [b"%d" % number]
        assert set(spaces) <= set(engine.spaces())
        assert engine.spaces() == sorted(engine.spaces())

    def test_content_of_another_space_cannot_be_read_or_detected(self, engine: Engine, space: str) -> None:
        other = f"{space}-other"
        content = batches.noise(5000)
        draft = Draft(space)
        small = draft.put(batches.words("x"), scope="s")
        draft.put(content, scope="s")
        draft.append("l", batches.words("y"), scope="s", at=0)
        engine.commit(draft.batch())
        assert engine.missing(other, [content.name]) == {content.name}
        for address in (object_address(content.name), small):
            with pytest.raises(NotFound):
                engine.get(other, [address])
        with pytest.raises(NotFound):
            engine.read_list(other, "l", 0, 1)
        with pytest.raises(MissingObjects):
            engine.commit(batches.set_ref(other, "r", links=(object_address(content.name),)))
        for address in (small, list_address("l")):
            with pytest.raises(NotFound):
                engine.commit(batches.set_ref(other, "r", links=(address,)))
        with pytest.raises(NotFound):
            engine.commit(batches.append(other, "fork", "x", at=1, parent="l"))
        assert other not in engine.spaces()

    def test_equal_content_is_stored_once_per_space(self, engine: Engine, space: str) -> None:
        """And deleting it in one does not delete it in the other."""
        other = f"{space}-other"
        content = batches.noise(5000)
        for each in (space, other):
            engine.stage(each, [content])
        assert engine.sweep(space, grace_seconds=0).objects == 1
        assert engine.get(other, [object_address(content.name)]) == [content]

    def test_maintenance_of_one_space_does_not_affect_another(self, engine: Engine, space: str) -> None:
        other = f"{space}-other"
        for each in (space, other):
            draft = Draft(each)
            batches.full_load(draft)
            engine.commit(draft.batch())
            engine.stage(each, [batches.noise(6000, seed=9)])
        before = portrait(engine, other)
        stats = engine.stats(other)
        engine.sweep(space, grace_seconds=0)
        engine.reindex(space)
        engine.erase(space, Erasure(scopes=(batches.SCOPE,), secure=True))
        assert portrait(engine, other) == before
        assert engine.stats(other) == stats
        assert not problems(engine, other)
        assert engine.stats(space).events == 0

    @needs("claim")
    def test_a_lease_belongs_to_one_space(self, engine: Engine, space: str) -> None:
        other = f"{space}-other"
        lease = engine.claim(space, "job", holder="a", seconds=60)
        assert lease is not None
        assert engine.claim(other, "job", holder="b", seconds=60) is not None
        engine.commit(batches.fenced(batches.set_ref(space, "r"), "job", lease.token))

    @needs("search", "sums", "follow")
    def test_derived_data_belongs_to_one_space(self, engine: Engine, space: str) -> None:
        other = f"{space}-other"
        draft = Draft(space)
        batches.full_load(draft)
        engine.commit(draft.batch())
        engine.commit(batches.index_text(other, "mine", "something else"))
        assert engine.search(other, SearchQuery(collection="notes", text="small note")).hits == ()
        assert engine.sums(other, SumQuery(grain="day")) == []
        assert engine.wait(other, 0, seconds=0) == 1

    def test_an_unknown_space_is_empty_and_reading_does_not_create_it(
        self, engine: Engine, space: str
    ) -> None:
        assert engine.refs(space, ["r"]) == {}
        assert engine.scan_refs(space, "") == []
        assert engine.scan(space, EventQuery()).records == ()
        assert engine.missing(space, ["a" * 64]) == {"a" * 64}
        assert engine.list_info(space, "l") is None
        assert engine.lineage(space, "l") == []
        assert engine.scan_scopes(space, "") == []
        assert space not in engine.spaces()

    def test_maintenance_of_an_unknown_space_is_not_found(self, engine: Engine, space: str) -> None:
        """The name is probably misspelt."""
        uses: dict[str, Callable[[], object]] = {
            "erase": lambda: engine.erase(space, Erasure(scopes=("s",))),
            "sweep": lambda: engine.sweep(space),
            "check": lambda: list(engine.check(space)),
            "reindex": lambda: engine.reindex(space),
            "stats": lambda: engine.stats(space),
            "export": lambda: list(engine.export(space)),
        }
        for use in uses.values():
            with pytest.raises(NotFound, match=space):
                use()

    def test_scopes_can_be_listed(self, engine: Engine, space: str) -> None:
        """Scopes of stored data, in code point order, filtered by a prefix."""
        names = [
            f"{user}/{kind}/{number}"
            for user in ("a", "b%2Fc")
            for kind in ("run", "thread")
            for number in "12"
        ]
        draft = Draft(space)
        for number, name in enumerate(reversed(names)):
            match number % 4:
                case 0:
                    draft.event(batches.event(scope=name))
                case 1:
                    draft.set_ref(f"r{number}", b"", scope=name)
                case 2:
                    draft.append(f"l{number}", batches.words("x"), scope=name, at=0)
                case _:
                    draft.put(batches.words("x"), scope=name)
        engine.commit(draft.batch())
        assert engine.scan_scopes(space, "") == sorted(names)
        assert engine.scan_scopes(space, "a/thread/") == ["a/thread/1", "a/thread/2"]
        assert engine.scan_scopes(space, "b%") == sorted(names)[4:]
        assert engine.scan_scopes(space, "", after="a/run/2", limit=3) == sorted(names)[2:5]
        assert engine.scan_scopes(f"{space}-other", "") == []
        engine.erase(space, Erasure(scopes=("a/thread/1",)))
        assert "a/thread/1" not in engine.scan_scopes(space, "")
        with pytest.raises(InvalidInput, match="limit"):
            engine.scan_scopes(space, "", limit=0)

    @pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "ü", "x" * 121, "nul\0"])
    def test_the_name_of_a_space_is_validated(self, engine: Engine, name: str) -> None:
        with pytest.raises(InvalidInput, match="space"):
            engine.commit(batches.set_ref(name, "r"))
        with pytest.raises(InvalidInput, match="space"):
            engine.stage(name, [batches.noise(10)])

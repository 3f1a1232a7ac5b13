"""Lists: append-only, with parents, so that a fork shares its past."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from treering.core.batch import Append, Batch, Draft, Receipt
from treering.core.content import object_address
from treering.core.ids import new_id
from treering.core.records import MAX_LIST_DEPTH, ListInfo
from treering.errors import Conflict, InvalidInput, ListMoved, NotFound
from treering.testing import batches
from treering.testing.harness import EngineHarness, at_once
from treering.testing.portrait import problems

if TYPE_CHECKING:
    from treering.core.content import Content
    from treering.core.engine import Engine


class ListTests(EngineHarness):
    """Guarantees of lists."""

    def test_a_list_reads_back_in_order(self, engine: Engine, space: str) -> None:
        engine.commit(batches.append(space, "l", "a", "b", at=0))
        engine.commit(batches.append(space, "l", "c", at=2))
        assert _read(engine, space, "l") == ["a", "b", "c"]
        assert _read(engine, space, "l", 1, 2) == ["b"]
        assert _read(engine, space, "l", 2, 99) == ["c"]
        assert _read(engine, space, "l", 3, 99) == _read(engine, space, "l", 2, 1) == []
        assert engine.list_info(space, "l") == ListInfo(
            list="l", scope=batches.SCOPE, parent=None, start=0, length=3, depth=0
        )

    def test_a_missing_list(self, engine: Engine, space: str) -> None:
        assert engine.list_info(space, "l") is None
        assert engine.lineage(space, "l") == []
        with pytest.raises(NotFound, match="'l'"):
            engine.read_list(space, "l", 0, 1)

    def test_items_are_content_of_any_kind_or_addresses(self, engine: Engine, space: str) -> None:
        kept = batches.noise(6000)
        engine.stage(space, [kept])
        draft = Draft(space)
        small = draft.put(batches.words("slot"), scope=batches.SCOPE)
        large = batches.noise(7000, seed=1)
        draft.append(
            "l", batches.words(""), small, object_address(kept.name), large, scope=batches.SCOPE, at=0
        )
        engine.commit(draft.batch())
        expected = [batches.words(""), batches.words("slot"), kept, large]
        assert engine.read_list(space, "l", 0, 9) == expected

    def test_appending_at_another_length_is_a_conflict(self, engine: Engine, space: str) -> None:
        engine.commit(batches.append(space, "l", "a", "b", at=0))
        for at in (0, 1, 3):
            with pytest.raises(ListMoved, match="'l'"):
                engine.commit(batches.append(space, "l", "x", at=at))
        with pytest.raises(Conflict, match="'new'"):
            engine.commit(batches.append(space, "new", "x", at=2))
        assert _read(engine, space, "l") == ["a", "b"]

    def test_of_racing_appends_one_wins(self, engine: Engine, space: str) -> None:
        for length in range(6):
            racing = [batches.append(space, "l", f"{racer}", at=length) for racer in range(5)]
            outcomes = at_once(*[lambda batch=batch: engine.commit(batch) for batch in racing])
            winners = [f"{racer}" for racer, outcome in enumerate(outcomes) if isinstance(outcome, Receipt)]
            assert len(winners) == 1
            assert _read(engine, space, "l", length, length + 9) == winners

    def test_a_fork_shares_its_past_and_then_diverges(self, engine: Engine, space: str) -> None:
        engine.commit(batches.append(space, "l", "a", "b", "c", at=0))
        engine.commit(batches.append(space, "fork", "x", at=2, parent="l"))
        engine.commit(batches.append(space, "l", "d", at=3))
        engine.commit(batches.append(space, "fork", "y", at=3))
        assert _read(engine, space, "l") == ["a", "b", "c", "d"]
        assert _read(engine, space, "fork") == ["a", "b", "x", "y"]
        assert engine.lineage(space, "fork") == [
            ListInfo(list="fork", scope=batches.SCOPE, parent="l", start=2, length=4, depth=1),
            ListInfo(list="l", scope=batches.SCOPE, parent=None, start=0, length=4, depth=0),
        ]

    def test_a_fork_may_start_empty(self, engine: Engine, space: str) -> None:
        engine.commit(batches.append(space, "l", "a", "b", at=0))
        engine.commit(batches.append(space, "fork", at=1, parent="l"))
        assert _read(engine, space, "fork") == ["a"]
        engine.commit(batches.append(space, "fork", "x", at=1, parent="l"))
        assert _read(engine, space, "fork") == ["a", "x"]

    def test_a_range_of_a_list_never_changes(self, engine: Engine, space: str) -> None:
        """During forks, appends and sweeps, every existing range reads the same."""
        chance = random.Random(11)
        model: dict[str, list[str]] = {"l0": []}
        engine.commit(batches.append(space, "l0", at=0))
        depths = {"l0": 0}
        for step in range(60):
            name = chance.choice(list(model))
            items = [f"{step}.{number}" for number in range(chance.randint(0, 3))]
            if chance.random() < 0.5 or depths[name] >= 8:
                engine.commit(batches.append(space, name, *items, at=len(model[name])))
                model[name] += items
            else:
                at = chance.randint(0, len(model[name]))
                child = f"l{step + 1}"
                engine.commit(batches.append(space, child, *items, at=at, parent=name))
                model[child] = model[name][:at] + items
                depths[child] = depths[name] + 1
        for name, items in model.items():
            assert _read(engine, space, name) == items
            info = engine.list_info(space, name)
            assert info is not None
            assert (info.length, info.depth) == (len(items), depths[name])
            start = chance.randint(0, len(items))
            stop = chance.randint(0, len(items) + 2)
            assert _read(engine, space, name, start, stop) == items[start:stop]
        assert not problems(engine, space)

    def test_a_batch_may_append_twice_and_fork_its_own_list(self, engine: Engine, space: str) -> None:
        def grow(list_id: str, *items: str, at: int, parent: str | None = None) -> Append:
            contents = tuple(map(batches.words, items))
            return Append(list=list_id, scope=batches.SCOPE, at=at, items=contents, parent=parent)

        appends = (grow("l", "a", at=0), grow("l", "b", at=1), grow("fork", "x", at=1, parent="l"))
        engine.commit(Batch(id=new_id(), space=space, lists=appends))
        assert _read(engine, space, "l") == ["a", "b"]
        assert _read(engine, space, "fork") == ["a", "x"]
        out_of_order = (grow("l", "c", at=2), grow("l", "d", at=2))
        with pytest.raises(InvalidInput, match="'l'"):
            engine.commit(Batch(id=new_id(), space=space, lists=out_of_order))

    def test_a_fork_needs_a_parent_that_is_long_enough(self, engine: Engine, space: str) -> None:
        engine.commit(batches.append(space, "l", "a", "b", at=0))
        with pytest.raises(Conflict, match="'l'"):
            engine.commit(batches.append(space, "fork", "x", at=3, parent="l"))
        with pytest.raises(NotFound, match="'nothing'"):
            engine.commit(batches.append(space, "fork", "x", at=1, parent="nothing"))
        assert engine.list_info(space, "fork") is None

    def test_a_list_keeps_its_parent(self, engine: Engine, space: str) -> None:
        engine.commit(batches.append(space, "l", "a", "b", at=0))
        engine.commit(batches.append(space, "m", "a", "b", at=0))
        engine.commit(batches.append(space, "fork", "x", at=1, parent="l"))
        for wrong in (("fork", "m", 2), ("m", "l", 2)):
            with pytest.raises(Conflict, match="parent"):
                engine.commit(batches.append(space, wrong[0], "y", at=wrong[2], parent=wrong[1]))
        engine.commit(batches.append(space, "fork", "y", at=2, parent="l"))

    def test_a_list_keeps_its_scope(self, engine: Engine, space: str) -> None:
        """Items are erased with their list, so they must not belong to another scope."""
        engine.commit(batches.append(space, "l", "a", at=0))
        with pytest.raises(Conflict, match="scope"):
            engine.commit(batches.append(space, "l", "b", at=1, scope=batches.OTHER_SCOPE))
        engine.commit(batches.append(space, "fork", "b", at=1, parent="l", scope=batches.OTHER_SCOPE))
        info = engine.list_info(space, "fork")
        assert info is not None
        assert info.scope == batches.OTHER_SCOPE

    def test_the_depth_of_a_lineage_is_limited(self, engine: Engine, space: str) -> None:
        engine.commit(batches.append(space, "l0", "a", at=0))
        for depth in range(1, MAX_LIST_DEPTH + 1):
            engine.commit(batches.append(space, f"l{depth}", f"{depth}", at=depth, parent=f"l{depth - 1}"))
        deepest = f"l{MAX_LIST_DEPTH}"
        assert _read(engine, space, deepest) == ["a", *map(str, range(1, MAX_LIST_DEPTH + 1))]
        assert len(engine.lineage(space, deepest)) == MAX_LIST_DEPTH + 1
        with pytest.raises(InvalidInput, match="flatten"):
            engine.commit(batches.append(space, "too deep", "x", at=1, parent=deepest))

    def test_a_fork_and_a_rewind_write_the_same_few_bytes_however_long_the_past(
        self, engine: Engine, space: str
    ) -> None:
        costs: list[int] = []
        for length in (10, 1000):
            name = f"long-{length}"
            items = [batches.words(f"message {number} " + "x" * 100) for number in range(length)]
            engine.commit(batches.append(space, name, *items, at=0))
            engine.commit(batches.set_ref(space, f"{name}/head", b"%d" % length))
            before = _stored(engine, space)
            engine.commit(batches.append(space, f"{name}/fork", "one more", at=length, parent=name))
            engine.commit(batches.set_ref(space, f"{name}/head", b"%d" % (length // 2)))
            costs.append(_stored(engine, space) - before)
        assert max(costs) < 4096
        assert abs(costs[0] - costs[1]) < 64


def _read(engine: Engine, space: str, list_id: str, start: int = 0, stop: int = 1 << 30) -> list[str]:
    return [_text(content) for content in engine.read_list(space, list_id, start, stop)]


def _text(content: Content) -> str:
    return content.data.decode()


def _stored(engine: Engine, space: str) -> int:
    return sum(engine.stats(space).bytes.values())

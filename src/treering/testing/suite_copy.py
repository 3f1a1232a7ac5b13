"""Copies: an export loads into an equal space, and exporting blocks nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from treering.core.batch import Batch, Delete, Draft, RefChange, event_links
from treering.core.content import list_address
from treering.core.ids import new_id
from treering.core.query import Erasure, EventQuery
from treering.engines.memory.engine import MemoryEngine
from treering.errors import Unsupported
from treering.testing import batches
from treering.testing.harness import EngineHarness, needs
from treering.testing.portrait import portrait, problems

if TYPE_CHECKING:
    from pathlib import Path

    from treering.core.engine import Engine
    from treering.core.records import Slice


class CopyTests(EngineHarness):
    """Guarantees of export, load and snapshots."""

    def test_an_export_loads_into_an_equal_space(self, engine: Engine, space: str) -> None:
        """Including sequence numbers, versions, times, tombstones and receipts."""
        batch = _history(engine, space)
        copy = f"{space}-copy"
        for part in engine.export(space):
            engine.load(copy, part)
        engine.reindex(copy)
        assert portrait(engine, copy) == portrait(engine, space)
        assert not problems(engine, copy)
        again = engine.commit(Batch(id=batch, space=copy))
        assert again == engine.commit(Batch(id=batch, space=space))
        news = batches.set_ref(space, "gone")
        assert engine.commit(news).versions == engine.commit(_in(copy, news)).versions == {"gone": 3}

    def test_loading_twice_changes_nothing(self, engine: Engine, space: str) -> None:
        _history(engine, space)
        copy = f"{space}-copy"
        slices = list(engine.export(space))
        for part in slices:
            engine.load(copy, part)
            engine.load(copy, part)
        for part in slices:
            engine.load(copy, part)
        engine.reindex(copy)
        assert portrait(engine, copy) == portrait(engine, space)

    def test_exports_load_into_other_engines_and_back(self, engine: Engine, space: str) -> None:
        _history(engine, space)
        other = MemoryEngine()
        for part in engine.export(space):
            other.load(space, part)
        other.reindex(space)
        assert portrait(other, space) == portrait(engine, space)
        assert not problems(other, space)
        back = f"{space}-back"
        for part in other.export(space):
            engine.load(back, part)
        engine.reindex(back)
        assert portrait(engine, back) == portrait(engine, space)
        assert not problems(engine, back)

    def test_an_export_continues_after_any_position(self, engine: Engine, space: str) -> None:
        _history(engine, space, size=700)
        slices = list(engine.export(space))
        assert len(slices) > 1
        for number, part in enumerate(slices):
            assert list(engine.export(space, after=part.position)) == slices[number + 1 :]

    def test_an_export_is_in_loadable_order(self, engine: Engine, space: str) -> None:
        _history(engine, space, size=50)
        known: set[str] = set()
        for part in engine.export(space):
            known |= _addresses_in(part)
            assert _links_in(part) <= known

    def test_no_iterator_blocks_the_store(self, engine: Engine, space: str) -> None:
        """Readers pause half-way while commits, a sweep and an erasure run; then they finish."""
        _history(engine, space, size=600)
        export = engine.export(space)
        check = engine.check(space)
        first_slice = next(export)
        next(check, None)
        page = engine.scan(space, EventQuery(), limit=10)
        for number in range(100):
            engine.commit(batches.set_ref(space, f"later/{number}"))
        engine.commit(batches.events(space, batches.event(scope="/x")))
        engine.sweep(space, grace_seconds=0)
        engine.erase(space, Erasure(scopes=("/x",), secure=True))
        assert len(list(export)) + bool(first_slice) > 1
        list(check)
        assert engine.scan(space, EventQuery(), after=page.cursor, limit=10).records

    def test_an_iterator_may_be_abandoned(self, engine: Engine, space: str) -> None:
        _history(engine, space, size=100)
        for _ in range(20):
            next(engine.export(space))
            next(engine.check(space))
        engine.commit(batches.set_ref(space, "after"))
        assert not problems(engine, space)

    def test_stats_count_what_is_stored(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        batches.full_load(draft)
        receipt = engine.commit(draft.batch())
        stats = engine.stats(space)
        assert stats.space == space
        assert (stats.commits, stats.events, stats.refs, stats.lists, stats.items) == (1, 2, 1, 1, 3)
        assert (stats.objects, stats.texts) == (1, 1)
        assert sum(stats.bytes.values()) > 5000
        assert all(size >= 0 for size in stats.bytes.values())
        assert list(stats.growth_bytes) == [receipt.committed_at_us // 86_400_000_000]

    @needs("backup")
    def test_a_snapshot_is_a_consistent_store(self, engine: Engine, space: str, tmp_path: Path) -> None:
        _history(engine, space)
        before = portrait(engine, space)
        engine.snapshot_to(tmp_path / "snapshot")
        engine.commit(batches.set_ref(space, "after the snapshot"))
        copy = self.open_snapshot(tmp_path / "snapshot")
        try:
            assert portrait(copy, space) == before
            assert not problems(copy, space)
            copy.commit(batches.set_ref(space, "in the snapshot"))
        finally:
            copy.close()
        assert not engine.refs(space, ["in the snapshot"])

    def test_without_backup_a_snapshot_is_unsupported(self, engine: Engine, tmp_path: Path) -> None:
        if not engine.caps.backup:
            with pytest.raises(Unsupported):
                engine.snapshot_to(tmp_path / "snapshot")


def _history(engine: Engine, space: str, *, size: int = 5) -> str:
    """Write forks, tombstones, moved refs, repeated events and texts; return the id of one batch."""
    engine.commit(batches.append(space, "l", "a", "b", batches.noise(5000), at=0))
    engine.commit(batches.append(space, "fork", "x", at=2, parent="l"))
    engine.commit(batches.append(space, "deep", "y", at=3, parent="fork", scope=batches.OTHER_SCOPE))
    engine.commit(batches.set_ref(space, "deep", links=(list_address("deep"), list_address("l"))))
    engine.commit(batches.set_ref(space, "gone"))
    engine.commit(Batch(id=new_id(), space=space, refs=(RefChange(name="gone", scope="s", change=Delete()),)))
    engine.commit(batches.events(space, batches.call(id="twice"), batches.call(id="twice")))
    engine.commit(batches.index_text(space, "text", "an old tree", namespace="n"))
    draft = Draft(space)
    batches.full_load(draft)
    engine.commit(draft.batch())
    bulk = Draft(space)
    for number in range(size):
        body = bulk.put(batches.words(f"body {number}"), scope=f"/run/{number % 3}")
        bulk.event(batches.call(scope=f"/run/{number % 3}", body=body))
        bulk.set_ref(
            f"bulk/{number}", b"", scope="s", links=(bulk.put(batches.noise(4100, seed=number), scope="s"),)
        )
    engine.commit(bulk.batch())
    return draft.id


def _in(space: str, batch: Batch) -> Batch:
    return Batch(id=batch.id, space=space, refs=batch.refs)


def _addresses_in(part: Slice) -> set[str]:
    slots = {f"s:{row.batch}:{row.part}.{index}" for row in part.bodies for index in range(len(row.slots))}
    return (
        {f"o:{content.name}" for content in part.objects}
        | slots
        | {f"l:{row.info.list}" for row in part.lists}
    )


def _links_in(part: Slice) -> set[str]:
    found: set[str] = {item.item for item in part.items if isinstance(item.item, str)}
    found |= {f"l:{item.list}" for item in part.items}
    found |= {f"l:{row.info.parent}" for row in part.lists if row.info.parent is not None}
    found |= {text.source for text in part.texts}
    for row in part.refs:
        found |= set(row.ref.links)
    for record in (row.record for row in part.events):
        # Lists come after the journal: an event may link a list that is yet to be loaded.
        found |= {address for address in event_links(record.event) if not address.startswith("l:")}
    return found

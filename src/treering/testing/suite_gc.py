"""Sweep: unreachable data is deleted and reachable data is kept, even during writes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from treering.core.batch import Batch, Delete, Draft, RefChange
from treering.core.content import list_address, object_address
from treering.core.ids import new_id
from treering.core.tree import FileEntry, FolderEntry, Tree, encode_tree
from treering.errors import MissingObjects, NotFound
from treering.testing import batches
from treering.testing.harness import EngineHarness, at_once, needs
from treering.testing.portrait import portrait, problems

if TYPE_CHECKING:
    from treering.core.content import Content
    from treering.core.engine import Engine
    from treering.testing.harness import OpenEngine


class SweepTests(EngineHarness):
    """Guarantees of garbage collection."""

    def test_everything_reachable_is_kept(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        batches.full_load(draft)
        engine.commit(draft.batch())
        before = portrait(engine, space)
        swept = engine.sweep(space, grace_seconds=0)
        assert (swept.objects, swept.bodies, swept.lists, swept.kept_objects) == (0, 0, 0, 1)
        assert portrait(engine, space) == before

    def test_a_tree_keeps_everything_it_links(self, engine: Engine, space: str) -> None:
        """A large tree is an object; a small one is in a slot or a list."""
        root, inner, files = _folders()
        lone_file = batches.noise(5000, seed=77)
        small = encode_tree(Tree(entries=(_file("lone", lone_file),)))
        draft = Draft(space)
        draft.require(*engine.stage(space, [*files, inner, root, lone_file]))
        slot = draft.put(small, scope="s")
        draft.append("l", small, scope="s", at=0)
        draft.set_ref("snapshot", b"", scope="s", links=(object_address(root.name),))
        draft.set_ref("slot", b"", scope="s", links=(slot,))
        draft.set_ref("list", b"", scope="s", links=(list_address("l"),))
        engine.commit(draft.batch())
        assert engine.sweep(space, grace_seconds=0).objects == 0
        engine.commit(batches.set_ref(space, "snapshot"))
        assert engine.sweep(space, grace_seconds=0).objects == len(files) + 2
        engine.commit(batches.set_ref(space, "slot"))
        assert engine.sweep(space, grace_seconds=0).objects == 0
        engine.commit(batches.set_ref(space, "list"))
        assert engine.sweep(space, grace_seconds=0).objects == 1

    def test_content_that_lost_its_ref_is_removed(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        large = draft.put(batches.noise(5000), scope="s")
        small = draft.put(batches.words("x"), scope="s")
        draft.append("l", batches.words("y"), scope="s", at=0)
        draft.set_ref("r", b"", scope="s", links=(large, small, list_address("l")))
        engine.commit(draft.batch())
        change = RefChange(name="r", scope="s", change=Delete())
        engine.commit(Batch(id=new_id(), space=space, refs=(change,)))
        swept = engine.sweep(space, grace_seconds=0)
        assert (swept.objects, swept.bodies, swept.lists, swept.kept_objects) == (1, 1, 1, 0)
        assert swept.bytes >= 5000
        for address in (large, small):
            with pytest.raises(NotFound):
                engine.get(space, [address])
        assert engine.list_info(space, "l") is None
        assert not problems(engine, space)

    def test_a_body_is_kept_while_one_of_its_slots_is_linked(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        slots = [draft.put(batches.words(f"{number}"), scope="s") for number in range(3)]
        draft.set_ref("r", b"", scope="s", links=(slots[1],))
        engine.commit(draft.batch())
        assert engine.sweep(space, grace_seconds=0).bodies == 0
        assert len(engine.get(space, slots)) == 3
        engine.commit(batches.set_ref(space, "r"))
        assert engine.sweep(space, grace_seconds=0).bodies == 1

    def test_a_fork_keeps_its_past(self, engine: Engine, space: str) -> None:
        kept = batches.noise(5000)
        engine.commit(batches.append(space, "l", "a", kept, "c", at=0))
        engine.commit(batches.append(space, "fork", "x", at=2, parent="l"))
        engine.commit(batches.append(space, "dead end", "y", at=1, parent="l"))
        engine.commit(batches.set_ref(space, "head", links=(list_address("fork"),)))
        swept = engine.sweep(space, grace_seconds=0)
        assert swept.lists == 1
        assert engine.list_info(space, "dead end") is None
        assert engine.read_list(space, "fork", 0, 9) == [batches.words("a"), kept, batches.words("x")]

    def test_a_dry_run_only_reports(self, engine: Engine, space: str) -> None:
        engine.stage(space, [batches.noise(5000)])
        engine.commit(batches.append(space, "l", "a", at=0))
        before = portrait(engine, space)
        swept = engine.sweep(space, dry_run=True, grace_seconds=0)
        assert (swept.objects, swept.lists, swept.dry_run) == (1, 1, True)
        assert portrait(engine, space) == before
        real = engine.sweep(space, grace_seconds=0)
        assert (real.objects, real.bodies, real.lists) == (swept.objects, swept.bodies, swept.lists)

    def test_staged_objects_that_no_commit_requires_are_deleted(self, engine: Engine, space: str) -> None:
        (name,) = engine.stage(space, [batches.noise(5000)])
        assert engine.sweep(space, grace_seconds=0).objects == 1
        assert engine.missing(space, [name]) == {name}
        assert engine.stats(space).objects == 0

    def test_recent_data_is_kept(self, engine: Engine, space: str) -> None:
        """A writer may be about to link staged objects, and lists and bodies of a commit."""
        (name,) = engine.stage(space, [batches.noise(5000)])
        draft = Draft(space)
        small = draft.put(batches.words("x"), scope="s")
        other = batches.noise(5000, seed=1)
        draft.append("l", batches.words("a"), other, scope="s", at=0)
        engine.commit(draft.batch())
        swept = engine.sweep(space, grace_seconds=600)
        assert (swept.objects, swept.bodies, swept.lists) == (0, 0, 0)
        links = (small, object_address(name), list_address("l"))
        engine.commit(batches.set_ref(space, "r", links=links))
        assert engine.sweep(space, grace_seconds=0).objects == 0
        assert engine.read_list(space, "l", 0, 9) == [batches.words("a"), other]

    def test_deleted_content_can_be_staged_again(self, engine: Engine, space: str) -> None:
        content = batches.noise(5000)
        engine.stage(space, [content])
        engine.sweep(space, grace_seconds=0)
        batch = batches.set_ref(space, "r", links=(object_address(content.name),))
        with pytest.raises(MissingObjects):
            engine.commit(batch)
        engine.stage(space, [content])
        engine.commit(batch)
        assert engine.get(space, [object_address(content.name)]) == [content]

    def test_a_sweep_of_an_empty_space(self, engine: Engine, space: str) -> None:
        engine.commit(Batch(id=new_id(), space=space))
        swept = engine.sweep(space, grace_seconds=0)
        assert (swept.objects, swept.bodies, swept.lists, swept.bytes, swept.kept_objects) == (0, 0, 0, 0, 0)

    def test_a_sweep_during_commits_is_safe(self, engine: Engine, space: str) -> None:
        """The worst case: content is unlinked, swept and required again at once, without a grace period."""
        self._race(engine, engine, space)

    @needs("shared_writers")
    def test_a_sweep_by_another_engine_is_safe(
        self, engine: Engine, space: str, open_engine: OpenEngine
    ) -> None:
        self._race(engine, open_engine(), space)

    def _race(self, writing: Engine, sweeping: Engine, space: str) -> None:
        contents = [batches.noise(5000, seed=number) for number in range(3)]
        writing.commit(Batch(id=new_id(), space=space))
        done = threading.Event()

        def write(writer: int) -> int:
            retries = 0
            for number in range(25):
                content = contents[(writer + number) % 3]
                draft = Draft(space)
                if number % 2:
                    address = draft.put(content, scope="s")
                else:
                    address = object_address(content.name)
                    draft.require(content.name)
                draft.set_ref(f"r{writer}", b"", scope="s", links=(address,))
                while True:
                    try:
                        writing.commit(draft.batch())
                        break
                    except MissingObjects:
                        retries += 1
                        assert retries < 10_000
                        writing.stage(space, [content])
                assert writing.get(space, [address]) == [content]
                if number % 5 == 4:
                    writing.commit(batches.set_ref(space, f"r{writer}"))
            return retries

        def sweep() -> None:
            while not done.is_set():
                sweeping.sweep(space, grace_seconds=0)

        def write_all() -> list[int | Exception]:
            try:
                return at_once(*[lambda writer=writer: write(writer) for writer in range(3)])
            finally:
                done.set()

        written, swept = at_once(write_all, sweep)
        assert swept is None
        assert isinstance(written, list)
        assert not [outcome for outcome in written if isinstance(outcome, Exception)]
        assert not problems(writing, space)


def _file(name: str, *contents: Content) -> FileEntry:
    size = sum(len(content.data) for content in contents)
    return FileEntry(name=name, mode=0o644, size=size, content=tuple(content.name for content in contents))


def _folders() -> tuple[Content, Content, list[Content]]:
    files = [batches.noise(5000, seed=100 + number) for number in range(4)]
    inner = encode_tree(Tree(entries=(_file("a", files[0]), _file("b", files[1], files[2]))))
    root = encode_tree(
        Tree(entries=(_file("c", files[3]), FolderEntry(name="inner", mode=0o755, tree=inner.name)))
    )
    return root, inner, files

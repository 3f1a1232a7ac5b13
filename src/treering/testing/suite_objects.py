"""Objects and slots: every address that a store returns can be resolved and verified."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from treering.core.batch import Batch, Draft
from treering.core.content import KINDS, Address, Content, list_address, object_address, slot_address
from treering.core.ids import new_id
from treering.core.records import Checked
from treering.errors import InvalidInput, MissingObjects, NotFound
from treering.testing import batches
from treering.testing.harness import EngineHarness
from treering.testing.portrait import problems

if TYPE_CHECKING:
    from collections.abc import Iterator

    from treering.core.engine import Engine


class ObjectTests(EngineHarness):
    """Guarantees of content."""

    def test_content_reads_back_as_it_was_put(self, engine: Engine, space: str) -> None:
        """Any kind and size, in the order of the addresses, including duplicates."""
        draft = Draft(space)
        contents = [
            Content("text", b""),
            Content("json", b'{"a":1}'),
            Content("bytes", bytes(range(256))),
            Content("text", b"a" * 4095),
            Content("text", b"a" * 4096),
            Content("bytes", b"a" * 4096),
            Content("json", b"[" + b"1," * 100_000 + b"1]"),
            batches.noise(3_000_000),
        ]
        addresses = [draft.put(content, scope=f"/s/{number % 2}") for number, content in enumerate(contents)]
        for number, address in enumerate(addresses):
            draft.set_ref(f"r{number}", b"", scope="s", links=(address,))
        engine.commit(draft.batch())
        assert engine.get(space, addresses) == contents
        assert engine.get(space, [addresses[6], addresses[0], addresses[6]]) == [
            contents[6],
            contents[0],
            contents[6],
        ]
        assert engine.get(space, []) == []
        assert not problems(engine, space)

    @pytest.mark.parametrize("kind", KINDS)
    def test_equal_bytes_of_different_kinds_are_different_objects(
        self, engine: Engine, space: str, kind: str
    ) -> None:
        """Trees are read back unchanged, too; an empty one is ``[1, []]`` in MessagePack."""
        contents = [Content(each, b"\x92\x01\x90") for each in KINDS]
        names = engine.stage(space, contents)
        assert len(set(names)) == len(KINDS)
        (content,) = engine.get(space, [object_address(names[[each.kind for each in contents].index(kind)])])
        assert content.kind == kind

    @pytest.mark.parametrize(
        "address", [object_address("a" * 64), slot_address("nobody", 0, 0)], ids=["object", "slot"]
    )
    def test_missing_content_is_not_found(self, engine: Engine, space: str, address: Address) -> None:
        engine.commit(batches.set_ref(space, "r"))
        with pytest.raises(NotFound) as caught:
            engine.get(space, [address])
        assert address[:20] in str(caught.value)

    def test_a_slot_past_the_end_is_not_found(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        address = draft.put(batches.words("x"), scope="s")
        engine.commit(draft.batch())
        assert engine.get(space, [address]) == [batches.words("x")]
        for part, index in ((0, 1), (1, 0)):
            with pytest.raises(NotFound):
                engine.get(space, [slot_address(draft.id, part, index)])

    @pytest.mark.parametrize(
        "address", ["", "o:short", "o:" + "G" * 64, "s:x", "s:x:1", "x:y", list_address("l")]
    )
    def test_an_invalid_address_of_content_is_rejected(
        self, engine: Engine, space: str, address: str
    ) -> None:
        engine.commit(batches.set_ref(space, "r"))
        with pytest.raises(InvalidInput):
            engine.get(space, [Address(address)])

    def test_many_contents_are_read_at_once(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        contents = [batches.words(f"content {number}") for number in range(1500)]
        contents += [batches.noise(4200, seed=number) for number in range(50)]
        addresses = [draft.put(content, scope=f"/s/{number % 3}") for number, content in enumerate(contents)]
        engine.commit(draft.batch())
        assert engine.get(space, addresses) == contents

    def test_equal_content_is_stored_once(self, engine: Engine, space: str) -> None:
        content = batches.noise(50_000)
        for number in range(3):
            draft = Draft(space)
            draft.set_ref(f"r{number}", b"", scope="s", links=(draft.put(content, scope="s"),))
            engine.commit(draft.batch())
        engine.stage(space, [content])
        assert engine.stats(space).objects == 1

    def test_a_commit_names_all_missing_objects(self, engine: Engine, space: str) -> None:
        here, missing = (
            batches.noise(5000, seed=1),
            [batches.noise(5000, seed=2), batches.noise(5000, seed=3)],
        )
        engine.stage(space, [here])
        batch = Batch(
            id=new_id(),
            space=space,
            requires=(here.name, missing[0].name),
            refs=batches.set_ref(space, "r", links=(object_address(missing[1].name),)).refs,
        )
        with pytest.raises(MissingObjects) as caught:
            engine.commit(batch)
        assert set(caught.value.hashes) == {content.name for content in missing}
        assert engine.missing(space, [here.name, *caught.value.hashes]) == set(caught.value.hashes)
        engine.stage(space, missing)
        assert engine.commit(batch).versions == {"r": 1}

    def test_a_batch_may_link_its_own_content(self, engine: Engine, space: str) -> None:
        content = batches.noise(5000)
        draft = Draft(space)
        draft.put(content, scope="s")
        draft.require(content.name)
        draft.append("l", object_address(content.name), scope="s", at=0)
        draft.set_ref("r", b"", scope="s", links=(object_address(content.name), list_address("l")))
        engine.commit(draft.batch())
        assert engine.read_list(space, "l", 0, 1) == [content]

    def test_slots_of_earlier_commits_can_be_linked(self, engine: Engine, space: str) -> None:
        draft = Draft(space)
        address = draft.put(batches.words("x"), scope="s")
        draft.event(batches.event(body=address))
        engine.commit(draft.batch())
        engine.commit(batches.set_ref(space, "r", links=(address,)))
        with pytest.raises(NotFound):
            engine.commit(batches.set_ref(space, "r", links=(slot_address("nobody", 0, 0),)))
        assert engine.refs(space, ["r"])["r"].links == (address,)

    def test_staging_takes_an_iterator_and_returns_names_in_order(self, engine: Engine, space: str) -> None:
        contents = [batches.noise(20_000, seed=number) for number in range(40)]
        taken: list[int] = []

        def one_by_one() -> Iterator[Content]:
            for number, content in enumerate(contents):
                taken.append(number)
                yield content

        names = [content.name for content in contents]
        assert engine.missing(space, names) == set(names)
        assert engine.stage(space, one_by_one()) == names
        assert taken == list(range(40))
        assert engine.missing(space, [*names, "f" * 64]) == {"f" * 64}
        assert engine.get(space, [object_address(name) for name in names]) == contents
        assert engine.stage(space, contents) == names
        assert engine.stage(space, []) == []

    def test_staged_content_is_in_no_list_ref_or_journal(self, engine: Engine, space: str) -> None:
        engine.stage(space, [batches.noise(5000)])
        stats = engine.stats(space)
        assert (stats.objects, stats.events, stats.refs, stats.lists, stats.commits) == (1, 0, 0, 0, 0)

    def test_a_check_reads_everything_and_reports_how_much(self, engine: Engine, space: str) -> None:
        for number in range(5):
            draft = Draft(space)
            batches.full_load(draft, key=f"k{number}" + "x" * number)
            engine.commit(draft.batch())
        found = list(engine.check(space))
        assert [type(each) for each in found] == [Checked] * len(found)
        last = found[-1]
        assert isinstance(last, Checked)
        assert (last.objects, last.bodies, last.items, last.events, last.refs) == (5, 5, 15, 10, 5)
        assert last.bytes > 5 * 5000
        quick = list(engine.check(space, read_content=False))[-1]
        assert isinstance(quick, Checked)
        assert (quick.events, quick.refs) == (10, 5)

    def test_an_empty_space_checks_clean(self, engine: Engine, space: str) -> None:
        engine.commit(Batch(id=new_id(), space=space))
        assert list(engine.check(space))[-1] == Checked()

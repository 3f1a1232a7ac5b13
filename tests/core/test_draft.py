"""A draft returns addresses that are valid once its batch is committed."""

from hypothesis import given
from hypothesis import strategies as st

from treering.core.batch import ABSENT, Add, Delete, Draft, Event, Fence, Set, Text, validate_batch
from treering.core.content import Content, ObjectAddress, SlotAddress, parse_address
from treering.core.frame import INLINE_LIMIT

SIZES = st.sampled_from([0, 1, 100, INLINE_LIMIT - 1, INLINE_LIMIT, INLINE_LIMIT + 1, 3 * INLINE_LIMIT])
PUTS = st.lists(st.tuples(SIZES, st.sampled_from(["/a/1", "/b/2", "/c/3"]), st.integers(0, 2)), max_size=15)


def content_in(batch, address):
    match parse_address(address):
        case ObjectAddress(name):
            return batch.objects[name]
        case SlotAddress(batch.id, part, index):
            return batch.parts[part].slots[index]


@given(PUTS)
def test_every_address_resolves_to_its_content(puts):
    draft = Draft("space")
    placed = []
    for size, scope, seed in puts:
        content = Content("bytes", bytes([seed]) * size)
        placed.append((draft.put(content, scope=scope), content, scope))
    draft.set_ref("all", b"", scope="/a/1", links=tuple(address for address, _, _ in placed))
    batch = draft.batch()
    validate_batch(batch)
    for address, content, scope in placed:
        assert content_in(batch, address) == content
        place = parse_address(address)
        assert isinstance(place, ObjectAddress) == (len(content.data) >= INLINE_LIMIT)
        if isinstance(place, SlotAddress):
            assert batch.parts[place.part].scope == scope
    assert all(content.name == name for name, content in batch.objects.items())
    scopes = [part.scope for part in batch.parts]
    assert len(scopes) == len(set(scopes)), "one body a scope, never mixed"


def test_large_items_become_objects_and_small_ones_stay_in_the_list():
    draft = Draft("space")
    small, large = Content("text", b"s"), Content("text", b"l" * INLINE_LIMIT)
    slot = draft.put(small, scope="s")
    draft.append("list", small, large, slot, scope="s", at=0)
    (append,) = draft.batch().lists
    assert append.items == (small, "o:" + large.name, slot)
    assert draft.batch().objects == {large.name: large}


def test_everything_is_in_the_batch_in_order():
    draft = Draft("space", id="batch")
    event, text = (
        Event(id="e", kind="k", ts_us=1, scope="s"),
        Text(collection="c", name="n", scope="s", source=None),
    )
    draft.require("a" * 64, "b" * 64)
    draft.require("a" * 64)
    draft.event(event)
    draft.set_ref("r1", b"1", scope="s", expect=ABSENT)
    draft.delete_ref("r2", scope="s", expect=3)
    draft.add_to_ref("r3", Add(delta=1), scope="s")
    draft.fence("lease", 7)
    draft.text(text)
    batch = draft.batch()
    validate_batch(batch)
    assert (batch.id, batch.space, batch.requires) == ("batch", "space", ("a" * 64, "b" * 64))
    assert [(change.name, change.change, change.expect) for change in batch.refs] == [
        ("r1", Set(value=b"1"), ABSENT),
        ("r2", Delete(), 3),
        ("r3", Add(delta=1), "any"),
    ]
    assert (batch.events, batch.fences, batch.texts) == ((event,), (Fence(lease="lease", token=7),), (text,))


def test_each_draft_has_its_own_id():
    assert Draft("space").id != Draft("space").id

"""Invalid batches are rejected before any engine sees them; a draft returns addresses that are valid once its
batch is committed; and a walk along the links visits everything reachable once.
"""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treering.core.batch import (
    ABSENT,
    MAX_EVENTS,
    MAX_INLINE_BYTES,
    MAX_PARTS,
    Add,
    Append,
    Batch,
    BatchPart,
    Delete,
    Draft,
    Event,
    Fence,
    RefChange,
    Set,
    Text,
    Usage,
    content_links,
    event_links,
    mark_reachable,
    validate_batch,
)
from treering.core.content import (
    INLINE_LIMIT,
    Content,
    ObjectAddress,
    SlotAddress,
    list_address,
    object_address,
    parse_address,
    slot_address,
)
from treering.core.ids import check_id
from treering.core.tree import FileEntry, FolderEntry, LinkEntry, Tree, encode_tree
from treering.errors import InvalidInput

WORDS = (
    "id",
    "kind",
    "scope",
    "run",
    "span",
    "parent",
    "thread",
    "agent",
    "name",
    "model",
    "role",
    "status",
    "currency",
)
TEXTS = st.one_of(
    st.text(max_size=10),
    st.text(alphabet="ab |\n\0é\u200d👩\ud800", max_size=6),
    st.integers(500, 520).map("x".__mul__),
)


def event(**fields):
    return Event(**{"id": "e", "kind": "k", "ts_us": 1, "scope": "s"} | fields)


def batch(**fields):
    return Batch(**{"id": "batch", "space": "space"} | fields)


def ref(**fields):
    return RefChange(**{"name": "r", "scope": "s", "change": Set(value=b"")} | fields)


def append(**fields):
    return Append(**{"list": "l", "scope": "s", "at": 0} | fields)


def text(**fields):
    return Text(**{"collection": "c", "name": "n", "scope": "s", "source": None} | fields)


@given(st.sampled_from(WORDS), TEXTS)
def test_the_text_fields_of_an_event_are_checked_like_ids(field, word):
    """Checking all fields at once agrees with checking each."""
    candidate = batch(events=(event(**{field: word}),))
    try:
        check_id(word, field)
    except InvalidInput:
        with pytest.raises(InvalidInput):
            validate_batch(candidate)
    else:
        validate_batch(candidate)


@given(st.dictionaries(st.sampled_from(WORDS), TEXTS))
def test_one_invalid_field_is_found_among_many(words):
    bad = False
    for word in words.values():
        try:
            check_id(word, "word")
        except InvalidInput:
            bad = True
    candidate = batch(events=(event(), event(**words)))
    if bad:
        with pytest.raises(InvalidInput):
            validate_batch(candidate)
    else:
        validate_batch(candidate)


NUMBERS = st.integers(-(1 << 65), 1 << 65) | st.sampled_from([-1, 0, (1 << 53) - 1, 1 << 53])


@given(st.sampled_from(["ts_us", "duration_us", *Usage.__struct_fields__]), NUMBERS)
def test_numbers_are_not_negative_and_have_53_bits(field, number):
    fields = {"usage": Usage(**{field: number})} if field in Usage.__struct_fields__ else {field: number}
    candidate = batch(events=(event(**fields),))
    if 0 <= number < 1 << 53:
        validate_batch(candidate)
    else:
        with pytest.raises(InvalidInput, match="number"):
            validate_batch(candidate)


@given(NUMBERS)
def test_a_cost_may_be_negative(number):
    candidate = batch(events=(event(cost_nanos=number),))
    if abs(number) < 1 << 53:
        validate_batch(candidate)
    else:
        with pytest.raises(InvalidInput, match="number"):
            validate_batch(candidate)


@pytest.mark.parametrize(
    "candidate, message",
    [
        (batch(id="x" * 201), "201 characters"),
        (batch(id=""), "batch id"),
        (batch(space="a/b"), "space"),
        (batch(requires=("abc",)), "object name"),
        (batch(requires=("A" * 64,)), "object name"),
        (batch(objects={"abc": Content("bytes", b"")}), "object name"),
        (batch(parts=(BatchPart(scope="", slots=()),)), "scope"),
        (batch(parts=(BatchPart(scope="s", slots=()),) * (MAX_PARTS + 1)), "parts"),
        (batch(lists=(append(list="\n"),)), "list id"),
        (batch(lists=(append(scope="\n"),)), "scope"),
        (batch(lists=(append(parent="\n"),)), "parent"),
        (batch(lists=(append(parent="l"),)), "its own parent"),
        (batch(lists=(append(at=-1),)), "'l' cannot grow at -1"),
        (batch(lists=(append(at=1 << 32),)), "cannot grow"),
        (batch(lists=(append(items=(Content("text", b""),)), append(at=0))), "start where"),
        (batch(lists=(append(items=(list_address("m"),)),)), "is the list"),
        (batch(lists=(append(items=("nonsense",)),)), "not an address"),
        (batch(events=(event(body=list_address("m")),)), "is the list"),
        (batch(events=(event(body="nonsense"),)), "not an address"),
        (batch(events=(event(links=("nonsense",)),)), "not an address"),
        (batch(events=(event(data=b"x" * (MAX_INLINE_BYTES + 1)),)), "body"),
        (batch(events=(event(),) * (MAX_EVENTS + 1)), "events"),
        (batch(events=(event(links=(slot_address("batch", 0, 0),)),)), "own slot 0.0"),
        (batch(refs=(ref(), ref(name="q"), ref())), "'r' more than once"),
        (batch(refs=(ref(name=""),)), "ref name"),
        (batch(refs=(ref(scope="\0"),)), "scope"),
        (batch(refs=(ref(expect=0),)), "expects 0"),
        (batch(refs=(ref(expect=-1),)), "expects -1"),
        (batch(refs=(ref(expect="always"),)), "expects 'always'"),
        (batch(refs=(ref(expect=None),)), "expects None"),
        (batch(refs=(ref(expect=True),)), "expects True"),
        (batch(refs=(ref(expect=[1]),)), "expects \\[1\\]"),
        (batch(refs=(ref(change=Set(value=b"x" * (MAX_INLINE_BYTES + 1))),)), "object"),
        (batch(refs=(ref(change=Set(value=b"", links=("x",))),)), "not an address"),
        (batch(refs=(ref(change=Add(delta=1 << 53)),)), "add"),
        (batch(refs=(ref(change=Add(delta=1, ceiling=-(1 << 53))),)), "add"),
        (batch(fences=(Fence(lease="", token=1),)), "lease"),
        (batch(texts=(text(collection=""),)), "collection"),
        (batch(texts=(text(name=""),)), "text name"),
        (batch(texts=(text(namespace="\n"),)), "namespace"),
        (batch(texts=(text(tokens="letters"),)), "letters"),
        (batch(texts=(text(source=list_address("l")),)), "is the list"),
        (batch(texts=(text(), text(name="m"), text())), "more than once"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_rejected_and_why(candidate, message):
    with pytest.raises(InvalidInput, match=message):
        validate_batch(candidate)


def test_linked_slots_of_the_batch_must_be_in_it():
    parts = (BatchPart(scope="a", slots=(Content("text", b"x"),)), BatchPart(scope="b", slots=()))
    validate_batch(batch(parts=parts, events=(event(body=slot_address("batch", 0, 0)),)))
    for part, index in ((0, 1), (1, 0), (2, 0)):
        address = slot_address("batch", part, index)
        for candidate in (
            batch(parts=parts, events=(event(body=address),)),
            batch(parts=parts, events=(event(links=(address,)),)),
            batch(parts=parts, refs=(ref(change=Set(value=b"", links=(address,))),)),
            batch(parts=parts, lists=(append(items=(address,)),)),
            batch(parts=parts, texts=(text(source=address),)),
        ):
            with pytest.raises(InvalidInput, match="own slot"):
                validate_batch(candidate)


def test_unusual_but_valid_batches():
    foreign = (slot_address("other", 9, 9), object_address("a" * 64))
    validate_batch(batch())
    validate_batch(
        batch(lists=(append(items=(Content("text", b""),)), append(at=1), append(list="m", at=7, parent="l")))
    )
    validate_batch(
        batch(events=(event(), event(), event(name="two words", links=(*foreign, list_address("l")))))
    )
    validate_batch(batch(refs=(ref(expect=1), ref(name="q", change=Add(delta=-5, ceiling=0)))))
    validate_batch(batch(texts=(text(), text(name="m", namespace="", source=foreign[0]))))


def test_a_rejected_batch_is_not_modified():
    candidate = batch(events=(event(id="\0"),))
    before = msgspec.msgpack.encode(candidate)
    with pytest.raises(InvalidInput):
        validate_batch(candidate)
    assert msgspec.msgpack.encode(candidate) == before


GRAPHS = st.dictionaries(st.integers(0, 12), st.lists(st.integers(0, 12), max_size=4))


@given(GRAPHS, st.lists(st.integers(0, 12), max_size=4))
def test_everything_reachable_is_visited_once(graph, roots):
    seen, expanded = set(), []

    def is_new(address):
        if address in seen:
            return False
        seen.add(address)
        return True

    def links(address):
        expanded.append(address)
        return graph.get(address, [])

    mark_reachable(roots, is_new=is_new, links=links)
    expected, frontier = set(roots), list(roots)
    while frontier:
        for found in graph.get(frontier.pop(), []):
            if found not in expected:
                expected.add(found)
                frontier.append(found)
    assert seen == expected
    assert sorted(expanded) == sorted(expected)


def test_a_long_chain_needs_no_recursion():
    seen = set()

    def is_new(address):
        is_first = address not in seen
        seen.add(address)
        return is_first

    mark_reachable([0], is_new=is_new, links=lambda number: [number + 1] if number < 100_000 else [])
    assert len(seen) == 100_001


def test_an_event_links_its_body_and_its_links():
    body, link = slot_address("b", 0, 0), object_address("a" * 64)
    event = Event(id="e", kind="k", ts_us=0, scope="s", body=body, links=(link, body))
    assert list(event_links(event)) == [body, link, body]
    assert list(event_links(Event(id="e", kind="k", ts_us=0, scope="s"))) == []


def test_only_a_tree_links_other_content():
    files, folder = ["a" * 64, "b" * 64], "c" * 64
    tree = encode_tree(
        Tree(
            entries=(
                FileEntry(name="file", mode=0o644, size=2, content=tuple(files)),
                FolderEntry(name="folder", mode=0o755, tree=folder),
                LinkEntry(name="link", target="file"),
            )
        )
    )
    assert set(content_links(tree)) == {object_address(name) for name in [*files, folder]}
    assert list(content_links(Content("bytes", tree.data))) == []


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

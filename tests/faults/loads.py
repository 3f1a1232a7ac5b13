"""What victims write, and how to check afterwards what was stored.

Every batch is derived from its number, so a test that kills a victim knows what each of its batches
contains. **Invariant:** a batch is stored completely and unchanged, or not at all (`fate`); anything in
between is a torn commit.
"""

from __future__ import annotations

from typing import Literal

from treering.core.batch import Add, Append, Batch, Draft, Event, Set, Text
from treering.core.content import Address, Content, list_address, object_address, slot_address
from treering.core.engine import Engine
from treering.core.ids import Scope
from treering.core.query import EventQuery, SearchQuery
from treering.errors import NotFound
from treering.testing.batches import call, event, events, noise, words

SPACE = "default"
TOTAL = "total"
"""A ref that counts the loads; a torn or repeated load would make it wrong."""

SIZES = (5_000, 400_000, 400_000, 400_000)
"""Contents that are staged together: large enough for a pack."""

EVERY_PART = "0123"

Fate = Literal["whole", "absent"]


def load(number: int, *, writer: str = "w", thread: str | None = None) -> Batch:
    """Return a batch with one of everything, all of it linked. Loads of one writer are in order.

    If the thread is not named like its writer, its name is in everything except the id of the batch: that is
    kept when a thread is forgotten, so that a repeated batch does not restore it.
    """
    thread = thread or writer
    key = f"{thread}/{number}"
    scope = thread_scope(thread)
    draft = Draft(SPACE, id=f"batch-{writer}-{number}")
    small = draft.put(words(f"a note about {word(thread, number)}"), scope=scope)
    large = draft.put(noise(5000, seed=_seed(key)), scope=scope)
    said = words(f"said {word(thread, number)}")
    draft.append(f"{thread}/log", said, small, large, scope=scope, at=3 * number)
    draft.event(call(id=f"{key}-call", scope=scope, thread=thread, body=small, links=(large,), data=b"{}"))
    draft.event(call(id=f"{key}-more", scope=scope, thread=thread))
    draft.set_ref(
        f"head/{key}", key.encode(), scope=scope, links=(small, large, list_address(f"{thread}/log"))
    )
    draft.text(Text(collection="notes", name=key, scope=scope, source=small))
    draft.add_to_ref(TOTAL, Add(delta=1), scope=thread_scope("total"))
    return draft.batch()


def pieces(number: int, *, writer: str = "w") -> list[Content]:
    """Return a small content and three large ones, which are staged together in a pack."""
    return [noise(size, seed=_seed(f"{writer}/{number}/{size + part}")) for part, size in enumerate(SIZES)]


def linking(number: int, parts: str = EVERY_PART, *, writer: str = "w", thread: str | None = None) -> Batch:
    """Return a batch that requires and links some of these pieces, given by their indexes."""
    draft = Draft(SPACE, id=f"linking-{writer}-{number}-{parts}")
    contents = pieces(number, writer=writer)
    names = [contents[int(part)].name for part in parts]
    draft.require(*names)
    draft.set_ref(
        f"linked/{thread or writer}/{number}/{parts}",
        b"",
        scope=thread_scope(thread or writer),
        links=tuple(map(object_address, names)),
    )
    return draft.batch()


def batch_of(batch_id: str) -> Batch:
    """Return the batch of an id."""
    kind, writer, number, *parts = batch_id.split("-")
    match kind:
        case "linking":
            return linking(int(number), parts[0], writer=writer)
        case "checkpoint":
            return checkpoint(int(number), writer=writer)
        case _:
            return load(int(number), writer=writer)


def checkpoint(number: int, *, writer: str = "w") -> Batch:
    """Return a batch with an event that retention decides on."""
    moment = event("checkpoint", id=f"{writer}.{number}", scope=thread_scope(writer), thread=writer)
    return events(SPACE, moment, id=f"checkpoint-{writer}-{number}")


def word(thread: str, number: int) -> str:
    """Return a word that occurs in one load only."""
    return f"zq{thread}q{number}z"


def thread_scope(thread: str) -> str:
    """Return the erasure scope of a thread."""
    return str(Scope("", "thread", thread))


def fate(engine: Engine, batch: Batch) -> Fate:
    """Return whether a batch is stored, unchanged. A torn one fails the test."""
    signs: dict[str, bool] = {}
    names = [change.name for change in batch.refs if isinstance(change.change, Set)]
    found = engine.refs(batch.space, names)
    for change in batch.refs:
        if isinstance(change.change, Set):
            ref = found.get(change.name)
            signs[f"ref {change.name}"] = ref is not None and ref.value == change.change.value
            if ref is not None:
                assert ref.links == change.change.links
                _resolve(engine, batch.space, ref.links)
    for append in batch.lists:
        signs[f"list {append.list}"] = _holds(engine, batch, append)
    for expected in batch.events:
        signs[f"event {expected.id}"] = _recorded(engine, batch.space, expected)
    for name, content in batch.objects.items():
        signs[f"object {name}"] = _stored(engine, batch.space, object_address(name), content)
    for number, part in enumerate(batch.parts):
        for index, content in enumerate(part.slots):
            address = slot_address(batch.id, number, index)
            signs[address] = _stored(engine, batch.space, address, content)
    for text in batch.texts:
        query = SearchQuery(collection=text.collection, text=_text_of(batch, text))
        hits = engine.search(batch.space, query).hits
        signs[f"text {text.name}"] = text.name in {hit.name for hit in hits}
    assert len(set(signs.values())) == 1, f"{batch.id} is torn: {signs}"
    return "whole" if all(signs.values()) else "absent"


def total(engine: Engine, space: str = SPACE) -> int:
    """Return how many loads the store has counted."""
    ref = engine.refs(space, [TOTAL]).get(TOTAL)
    return 0 if ref is None else int(ref.value)


def _holds(engine: Engine, batch: Batch, append: Append) -> bool:
    try:
        found = engine.read_list(batch.space, append.list, append.at, append.at + len(append.items))
    except NotFound:
        return False
    if not found:
        return False
    wanted = [_content_of(batch, item) if isinstance(item, str) else item for item in append.items]
    assert found == wanted, f"{append.list} holds something else at {append.at}"
    return True


def _recorded(engine: Engine, space: str, expected: Event) -> bool:
    records = engine.scan(space, EventQuery(ids=(expected.id,))).records
    assert [record.event for record in records] in ([], [expected])
    return bool(records)


def _stored(engine: Engine, space: str, address: Address, content: Content) -> bool:
    try:
        (found,) = engine.get(space, [address])
    except NotFound:
        return False
    assert found == content, f"{address} holds something else"
    return True


def _resolve(engine: Engine, space: str, links: tuple[Address, ...]) -> None:
    engine.get(space, [link for link in links if not link.startswith("l:")])
    for link in links:
        assert not link.startswith("l:") or engine.list_info(space, link[2:]) is not None


def _content_of(batch: Batch, address: Address) -> Content:
    if address.startswith("o:"):
        return batch.objects[address[2:]]
    part, _, index = address.rpartition(":")[2].partition(".")
    return batch.parts[int(part)].slots[int(index)]


def _text_of(batch: Batch, text: Text) -> str:
    assert text.source is not None
    return _content_of(batch, text.source).data.decode().split()[-1]


def _seed(key: str) -> int:
    return int.from_bytes(key.encode(), "big")

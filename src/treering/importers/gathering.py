"""Events of a thread with the content that they point at, for those who take them elsewhere.

What a task of a graph wrote may lie in a list, where the moment that came next has it (see
`adapters.langgraph_pending`). Elsewhere that list is another one, so such content is taken out of it and goes
along as if it had come with the event. A list that was written whole is not: a task that is sent the whole
conversation names the beginning of a list of an earlier moment, and where that moment goes along, the event
says which list of which moment that is. What goes along grows with what was said, not with its square.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
import orjson
from msgspec import structs

from treering.core.address import Address, ListAt, SlotAt, list_address, parse_address, slot_address
from treering.core.batch import Event
from treering.core.content import Content
from treering.views.graphs import BEGUN, HOLDER, WRITES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from treering.core.engine import Engine
    from treering.core.records import Record


class Along(msgspec.Struct, frozen=True):
    """Where a list is in what goes along: its name in a moment, and how many of its items are there."""

    checkpoint: str
    name: str
    length: int


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """An event, its content by address, and the lists of moments that it names."""

    event: Event
    contents: dict[Address, Content]
    lists: dict[str, Along] = {}


def gathered(engine: Engine, space: str, record: Record, along: Mapping[str, Along]) -> Gathered | None:
    """An event with its content; ``None`` for one that points at what is not its own.

    ``along`` are the lists of the moments that went along before it.
    """
    event = record.event
    addresses = list(dict.fromkeys([*event.links] if event.body is None else [*event.links, event.body]))
    places = {address: parse_address(address) for address in addresses}
    if any(isinstance(place, SlotAt) and place.batch != record.batch for place in places.values()):
        return None
    own = [address for address in addresses if not isinstance(places[address], ListAt)]
    if len(own) < len(addresses) and event.kind != WRITES:
        return None
    contents = dict(zip(own, engine.get(space, own) if own else (), strict=True))
    if len(own) < len(addresses):
        return _taken_out(engine, space, record, contents, along)
    return Gathered(event=event, contents=contents)


def _taken_out(
    engine: Engine,
    space: str,
    record: Record,
    contents: dict[Address, Content],
    along: Mapping[str, Along],
) -> Gathered:
    """What a task wrote, with no list in it but those that go along; what lay in others is added to it."""
    event = record.event
    given = event.data if event.body is None else contents[event.body].data
    told: dict[str, Any] = orjson.loads(given or b"{}")
    slots = [place.index for place in map(parse_address, contents) if isinstance(place, SlotAt)]
    free = max(slots, default=-1) + 1
    added: list[Address] = []
    lists: dict[str, Along] = {}

    def add(content: Content) -> int:
        address = slot_address(record.batch, 0, free + len(added))
        contents[address] = content
        added.append(address)
        return free + len(added) - 1

    def own(place: Any) -> Any:
        if not isinstance(place, list):
            return place
        list_id, position = cast("list[Any]", place)
        return add(engine.read_list(space, list_id, position, position + 1)[0])

    def own_begun(place: Any) -> Any:
        list_id, count, rest = place
        there = along.get(list_id)
        if there is not None and count <= there.length:
            known = lists.get(list_id)
            most = count if known is None else max(count, known.length)
            lists[list_id] = structs.replace(there, length=most)
            return [list_id, count, [*map(own, rest)]]
        first = engine.read_list(space, list_id, 0, count) if count else []
        return ["", 0, [*map(add, first), *map(own, rest)]]

    for entry in told["writes"]:
        if entry[2] == "l":
            entry[3] = [own(each) for each in entry[3]]
        elif entry[2] in BEGUN:
            entry[3] = own_begun(entry[3])
        elif entry[2] == HOLDER:
            entry[3] = [own(entry[3][0]), [own_begun(each) for each in entry[3][1]]]
        elif entry[2] != "v":
            entry[3] = own(entry[3])
    data = orjson.dumps(told)
    if event.body is not None:
        contents[event.body] = Content("json", data)
    links = [each for each in event.links if not each.startswith("l:")]
    event = structs.replace(
        event,
        data=data if event.body is None else None,
        links=(*links, *added, *map(list_address, lists)),
    )
    return Gathered(event=event, contents=contents, lists=lists)

"""Events of a thread with the content that they point at, for those who take them elsewhere.

What a task of a graph wrote may lie in a list, where the moment that came next has it (see
`adapters.langgraph_pending`). Elsewhere that list is another one, so such content is taken out of it and goes
along as if it had come with the event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import orjson
from msgspec import structs

from treering.core.address import Address, ListAt, SlotAt, parse_address, slot_address
from treering.core.content import Content
from treering.views.graphs import BEGUN, HOLDER, WRITES

if TYPE_CHECKING:
    from treering.core.batch import Event
    from treering.core.engine import Engine
    from treering.core.records import Record


def gathered(engine: Engine, space: str, record: Record) -> tuple[Event, dict[Address, Content]] | None:
    """An event and its content by address; ``None`` for one that points at what is not its own."""
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
        event = _taken_out(engine, space, record, contents)
    return event, contents


def _taken_out(engine: Engine, space: str, record: Record, contents: dict[Address, Content]) -> Event:
    """What a task wrote, with no list in it; what lay in one is added to the contents."""
    event = record.event
    given = event.data if event.body is None else contents[event.body].data
    told: dict[str, Any] = orjson.loads(given or b"{}")
    slots = [place.index for place in map(parse_address, contents) if isinstance(place, SlotAt)]
    free = max(slots, default=-1) + 1
    added: list[Address] = []

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
    return structs.replace(event, data=data if event.body is None else None, links=(*links, *added))

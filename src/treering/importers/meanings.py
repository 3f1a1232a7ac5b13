"""What the lines of an exported history stand for: moments and events that can be stored.

Values are read as they will be stored, so a line that gets through here can be written.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from treering.core.address import Address, SlotAt, list_address, object_address, parse_address
from treering.core.batch import Event, Usage
from treering.core.clock import from_datetime
from treering.core.encoding import encode_json
from treering.core.ids import check_id
from treering.errors import InvalidInput
from treering.importers.histories import COLUMNS, REWIND, ListMade, Made
from treering.importers.lines import NOTHING, CheckpointLine, EventLine, RewindLine, content_of, value_of
from treering.views.checkpoints import KIND
from treering.views.journal import thread_scope

_MAX_INDEX: Final = 100_000


def made_of(line: CheckpointLine) -> Made:
    """The moment that a line stands for."""
    state = line.state
    metadata: object = value_of(line.metadata)
    return Made(
        id=line.id,
        thread=line.thread,
        namespace=line.namespace,
        parent=line.parent,
        step=line.step,
        created_at_us=time_us(line.created_at),
        lists={
            name: ListMade(keep=change.keep, add=[value_of(each) for each in change.add])
            for name, change in line.lists.items()
        },
        state={name: value_of(each) for name, each in state.set.items()},
        whole=state.whole,
        dropped=state.drop,
        changed={
            name: ({key: value_of(each) for key, each in change.set.items()}, change.drop)
            for name, change in state.change.items()
        },
        pending_interrupt=value_of(line.pending_interrupt),
        metadata=metadata if isinstance(metadata, dict) else {},  # pyright: ignore[reportUnknownArgumentType]
        note=line.note,
        tags=line.tags,
        snapshot=line.snapshot,
    )


def rewind_of(line: RewindLine) -> Event:
    """The event that a rewind is."""
    return Event(
        id=line.id,
        kind=REWIND,
        ts_us=time_us(line.at),
        scope=thread_scope(line.thread, line.namespace),
        data=encode_json(value_of(line.told)),
    )


def event_of(line: EventLine) -> Event:
    """Any other event; `InvalidInput` when it points at content that the line does not bring."""
    if line.type in (KIND, REWIND):
        raise InvalidInput(f"an event cannot be a {line.type}")
    for address, each in line.slots.items():
        content_of(each)
        place = parse_address(address)
        if not isinstance(place, SlotAt) or place.index > _MAX_INDEX:
            raise InvalidInput(f"content cannot lie at {address!r}")
    brought = set(line.slots)
    brought |= {object_address(content_of(each).name) for each in line.objects}
    brought |= {list_address(check_id(each, "list id")) for each in line.lists}
    if missing := {*line.links, *([line.body] if line.body is not None else [])} - brought:
        raise InvalidInput(f"the event does not bring its content at {min(missing)!r}")
    columns: dict[str, Any] = dict(line.columns)
    usage = columns.pop("usage", None)
    if unknown := columns.keys() - set(COLUMNS):
        raise InvalidInput(f"an event has no column {min(unknown)!r}")
    event = Event(
        id=check_id(line.id, "event id"),
        kind=check_id(line.type, "event kind"),
        ts_us=time_us(line.at),
        scope=thread_scope(check_id(line.thread, "thread id"), line.namespace),
        usage=None if usage is None else msgspec.convert(usage, Usage),
        data=None if line.data == NOTHING else bytes(line.data),
        body=None if line.body is None else Address(line.body),
        links=tuple(map(Address, line.links)),
        **columns,
    )
    return msgspec.convert(msgspec.to_builtins(event, builtin_types=(bytes,)), Event)


def check_values(line: CheckpointLine) -> None:
    """Raise if any value of a moment cannot be stored."""
    for change in line.lists.values():
        for item in change.add:
            value_of(item)
    for value in line.state.set.values():
        value_of(value)
    for changed in line.state.change.values():
        for value in changed.set.values():
            value_of(value)
    value_of(line.pending_interrupt)
    if not isinstance(value_of(line.metadata), dict):
        raise InvalidInput("metadata is not an object")


def time_us(text: str) -> int:
    """Microseconds of an ISO time."""
    return from_datetime(datetime.fromisoformat(text))

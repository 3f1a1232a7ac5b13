"""Where the input of a span is: the data of its row says which of the row's links.

The address itself stands in the row once, among the links. Rows that were written before that spell it out in
their data as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from treering.core.address import Address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from treering.core.batch import Event

INPUT: Final = "input"
INPUT_SIZE: Final = "input_size"


def told_input(size: int) -> dict[str, int]:
    """What the data of a row says of an input of so many bytes, to which the row's first link leads."""
    return {INPUT: 0, INPUT_SIZE: size}


def input_of(event: Event, data: Mapping[str, Any]) -> Address | None:
    """The address of a span's input; ``None`` when its row has none."""
    told = data.get(INPUT)
    if type(told) is int and INPUT_SIZE in data and 0 <= told < len(event.links):
        return event.links[told]
    return Address(told) if isinstance(told, str) and told in event.links else None

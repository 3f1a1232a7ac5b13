"""Lists of messages inside of other values: stored once, wherever they are sent along.

LangGraph's ready-made agent sends the whole state with each call of a tool, and many a client hands in the
whole conversation with every question. The messages in there are those of a list that is stored already. So
such a value is stored with a mark in place of the list; which list that is, and how much of it, is told
beside it. A mark is a text that stands nowhere else in what is stored of the value. **Invariant:** a value
that is filled again is what was given.
"""

from __future__ import annotations

from copy import copy
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from treering.adapters.langgraph.messages import kind_of
from treering.adapters.langgraph.values import Packed, is_list_of_messages
from treering.core.encoding import codecs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from treering.adapters.langgraph.values import Values

LEAST: Final = 4
"""How many messages are worth a mark."""
_DEEPEST: Final = 6

Found = TypeVar("Found")


class Holed(msgspec.Struct, frozen=True):
    """A value with marks in it, which are this text and a number; of a step, also what belongs there.

    That is, for each mark, the name of a list of the step, how many of its items, and what comes behind them.
    """

    mark: str
    value: Any
    lists: list[list[Any]] = []


codecs.register(
    Holed,
    "langgraph-holed",
    lambda holed: [holed.mark, holed.value, holed.lists],
    lambda plain: Holed(*plain),
)


def holed(
    values: Values, value: Any, find: Callable[[list[Any]], Found | None]
) -> tuple[Holed, list[Found]] | None:
    """A value without the lists that ``find`` knows, and what it says of each; ``None`` if it knows none."""
    if not values.is_readable or not may_hold(value):
        return None
    number = 0
    while True:
        mark = f"treering-list-{number}-"
        found: list[Found] = []

        def marked(items: list[Any], mark: str = mark, found: list[Found] = found) -> Any:
            known = find(items) if len(items) >= LEAST else None
            if known is None:
                return items
            found.append(known)
            return f"{mark}{len(found) - 1}"

        with_marks = _walked(value, is_list_of_messages, marked)
        if not found:
            return None
        plain = values.plain(with_marks)
        data = plain.data if type(plain) is Packed else values.encode(plain).data
        if data.count(mark.encode()) == len(found):
            return Holed(mark, plain), found
        number += 1


def filled(values: Values, value: Holed, lists: Sequence[list[Any]]) -> Any:
    """The value that was given, with these lists in the place of its marks."""
    marks = {f"{value.mark}{number}": items for number, items in enumerate(lists)}
    return _walked(
        values.unpacked(value.value), lambda each: kind_of(each) is str and each in marks, marks.get
    )


def _walked(
    value: Any, is_wanted: Callable[[Any], bool], change: Callable[[Any], Any], depth: int = 0
) -> Any:
    """A value with what is wanted in it changed; it is copied only on the way there."""
    if is_wanted(value):
        return change(value)
    kind = kind_of(value)
    if depth >= _DEEPEST:
        return value
    if kind is dict:
        changed = {key: _walked(each, is_wanted, change, depth + 1) for key, each in value.items()}
        return value if all(changed[key] is each for key, each in value.items()) else changed
    if kind is list and not depth:
        items = [_walked(each, is_wanted, change, depth + 1) for each in value]
        return value if all(map(is_, items, value)) else items
    if _is_send(kind):
        arg = _walked(value.arg, is_wanted, change, depth + 1)
        if arg is not value.arg:
            value = copy(value)
            value.arg = arg
    return value


def may_hold(value: Any) -> bool:
    """Whether there may be a list of messages inside of a value."""
    kind = kind_of(value)
    if kind is list and value:
        return _is_send(kind_of(value[0]))
    return kind is dict or _is_send(kind)


def _is_send(kind: type) -> bool:
    return kind.__name__ == "Send" and kind.__module__ == "langgraph.types"

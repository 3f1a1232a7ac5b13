"""List channels of a LangGraph state: what of a list is new, and how it is written.

LangGraph hands over the whole list at every step. What was saved last is remembered here, item by item:
the object itself and a likeness of it. An item that is the same object and still equal to its likeness was
saved before. Lists of plain data are compared whole. Of messages, all are compared with those of last time
(the same objects, as a rule), and their contents; what lies deeper is compared in the last `_NEAR` at every
step and in the rest in turns, `_TURN` at a step, because looking into a thousand messages costs as much as
all the rest of a step. So a message that was replaced, or given another content, is noticed at once wherever
it stands; one that was changed inside (which LangGraph asks nodes not to do) at once in a list of up to
`_NEAR` + `_TURN`, and in a longer one when its turn comes.

Everything behind the first item that differs is written: behind the list's tail, or as a child list that
shares what is common. A message that was stored as a task's write is not stored again: it is in its place
already, or its place in the list is the address of it. **Invariant:** what is remembered of an item is
exactly what was encoded of it, never what it has become since.
"""

from __future__ import annotations

import marshal
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from treering.adapters.langgraph.messages import MESSAGE_CLASSES, copied, is_like, kind_of, likeness
from treering.adapters.langgraph.pending import Begun, Recent, settle
from treering.adapters.langgraph.rows import APART_LISTS, MESSAGE_LISTS
from treering.core.frame import INLINE_LIMIT
from treering.core.ids import new_id
from treering.core.lists import MAX_DEPTH, branch_point
from treering.errors import Corrupt, NotFound
from treering.threads.checkpoint_record import ListPrefix

if TYPE_CHECKING:
    from treering.adapters.langgraph.values import Values
    from treering.core.batch import Draft
    from treering.core.content import Address, Content
    from treering.core.engine import Engine
    from treering.graphs.graph import Step

_NEAR: Final = 64
_TURN: Final = 64
_PAGE: Final = 512
_PLAIN: Final = frozenset({str, int, float, bool, type(None), bytes})
_CONTAINERS: Final = frozenset({dict, list, tuple})
_extra_of: Final = attrgetter("__pydantic_extra__")


class Known(msgspec.Struct, frozen=True):
    """A list as it was saved: where it lies, its items, and a likeness of each.

    A list that grows hands its items on to the longer one, so there may be more than its own here.
    """

    stretch: ListPrefix
    held: list[Any]
    fields: list[dict[str, Any]]
    """Where its messages keep their fields, which is read much faster than they are; none for plain data."""
    contents: list[Any]
    """The objects that were the contents of its messages; none for plain data."""
    likenesses: list[Any]
    is_messages: bool
    is_apart: bool = False
    """It was branched off at least once: what tasks write is not simply what comes next in it."""
    looked: int = 0
    """Up to where messages were last compared with their likenesses."""

    @property
    def items(self) -> list[Any]:
        """Its own items."""
        return self.held[: self.stretch.length]

    def first(self, count: int) -> Known:
        """The same list when it was shorter."""
        if count == self.stretch.length:
            return self
        return Known(
            ListPrefix(self.stretch.list, count),
            self.held[:count],
            self.fields[:count],
            self.contents[:count],
            self.likenesses[:count],
            self.is_messages,
            self.is_apart,
        )


class _Opaque(msgspec.Struct, frozen=True):
    """The likeness of an object that cannot be copied: what was encoded of it."""

    data: bytes


def is_list(values: Values, value: Any, before: Known | None) -> bool:
    """Whether a channel's value is kept as a list: messages, a large list, or one that goes on growing."""
    if kind_of(value) is not list or not value:
        return False
    if kind_of(value[0]) in MESSAGE_CLASSES:
        return True
    if before is not None and not before.is_messages and len(value) >= before.stretch.length:
        return _common(values, before, value) > 0
    return len(values.encode(value).data) >= INLINE_LIMIT


def write_list(
    draft: Draft,
    engine: Engine,
    values: Values,
    before: Known | None,
    items: list[Any],
    *,
    scope: str,
    recent: Recent,
    is_tail: bool,
) -> Known:
    """Make a channel hold exactly these items, writing only what is new.

    ``is_tail`` says that the list of ``before`` may be appended to; else what is new goes to a child list.
    """
    same = 0 if before is None else _common(values, before, items)
    tail = items[same:]
    is_messages = MESSAGE_CLASSES.issuperset(map(kind_of, tail)) and (
        same == 0 or (before is not None and before.is_messages)
    )
    if before is not None and before.is_messages != is_messages:
        before, same, tail = None, 0, list(items)
    is_longer = before is not None and 0 < same == before.stretch.length and is_tail
    list_id = before.stretch.list if before is not None and is_longer else new_id()
    contents: list[Content | Address] = []
    likenesses: list[Any] = []
    there = same
    for position, item in enumerate(tail, same):
        if is_messages:
            pending = recent.find(item, scope)
            if pending is not None:
                known: Any = pending.known
                spot = (list_id, position)
                contents.append(settle(draft, pending, spot))
                there += there == position and pending.spot == spot
            else:
                known = likeness(item)
                contents.append(values.encode_message(item, known))
        else:
            known = _frozen(item)
            content = values.encode(item if known is None else known)
            contents.append(content)
            known = _Opaque(content.data) if known is None else known
        likenesses.append(known)
    if before is None or same == 0:
        draft.append(list_id, *contents, scope=scope, at=0)
        stretch = ListPrefix(list_id, len(tail))
        return Known(stretch, tail, *_looked_at(tail, is_messages=is_messages), likenesses, is_messages)
    if is_longer:
        stretch = ListPrefix(list_id, same + len(tail))
        if there < stretch.length:
            draft.append(list_id, *contents[there - same :], scope=scope, at=there)
    else:
        stretch = _branched(draft, engine, before.stretch, same, contents, list_id, scope)
    is_apart = before.is_apart or not is_longer
    looked = (before.looked + _TURN) % max(same, 1)
    held, fields, held_contents, known_as = before.held, before.fields, before.contents, before.likenesses
    if len(held) != same:
        held, fields = held[:same], fields[:same]
        held_contents, known_as = held_contents[:same], known_as[:same]
    held += tail
    known_as += likenesses
    if is_messages:
        more = [item.__dict__ for item in tail]
        fields += more
        held_contents += [each["content"] for each in more]
    return Known(stretch, held, fields, held_contents, known_as, is_messages, is_apart, looked)


def read_list(engine: Engine, space: str, values: Values, step: Step, channel: str) -> Known:
    """A list of a step, with likenesses to compare it with; one that lost items is `Corrupt`."""
    stretch = step.checkpoint.lists[channel]
    is_messages = channel in step.graph.get(MESSAGE_LISTS, ())
    where = f"channel {channel!r} of checkpoint {step.graph_id!r}"
    items: list[Any] = []
    likenesses: list[Any] = []
    for start in range(0, stretch.length, _PAGE):
        stop = min(start + _PAGE, stretch.length)
        try:
            contents = engine.read_list(space, stretch.list, start, stop)
        except NotFound as error:
            raise _severed(stretch, where, str(error)) from error
        if len(contents) != stop - start:
            raise _severed(stretch, where, f"{stop - start - len(contents)} of its items are not stored")
        if is_messages:
            for message, known in values.decode_known(contents):
                items.append(message)
                likenesses.append(known)
        else:
            items += map(values.decode, contents)
    if not is_messages:
        likenesses = [_frozen_or_opaque(values, item) for item in items]
    is_apart = channel in step.graph.get(APART_LISTS, ())
    looked_at = _looked_at(items, is_messages=is_messages)
    return Known(stretch, items, *looked_at, likenesses, is_messages, is_apart)


def _looked_at(items: list[Any], *, is_messages: bool) -> tuple[list[dict[str, Any]], list[Any]]:
    """What messages keep their fields in, and their contents."""
    fields: list[dict[str, Any]] = [item.__dict__ for item in items] if is_messages else []
    return fields, [each["content"] for each in fields]


def begun(values: Values, before: Known, items: list[Any]) -> Begun | None:
    """A list as what it begins with of another one, and the rest; ``None`` if they have nothing in common."""
    if not before.stretch.length or (
        before.is_messages
        and items[0] is not before.held[0]  # mostly it is one that was just made
        and not _is_like(values, before, items[0], 0)
    ):
        return None
    same, _ = _compared(values, before, items)
    rest = items[same:]
    if not same or (before.is_messages and not MESSAGE_CLASSES.issuperset(map(kind_of, rest))):
        return None
    return Begun(before.stretch.list, items[:same], rest)


def _common(values: Values, before: Known, items: list[Any]) -> int:
    """How many items both begin with; what is remembered of them are these, from now on."""
    same, is_at_once = _compared(values, before, items)
    if is_at_once:
        return same
    # As good as those that were there, and the ones that come next time.
    before.held[:same] = items[:same]
    before.fields[:same], before.contents[:same] = _looked_at(items[:same], is_messages=before.is_messages)
    return same


def _compared(values: Values, before: Known, items: list[Any]) -> tuple[int, bool]:
    """How many items both begin with, and whether one look told that for all of them."""
    count = min(before.stretch.length, len(items))
    mine = items if count == len(items) else items[:count]
    if _are_same_messages(before, mine) if before.is_messages else _is_same_data(before, mine):
        return count, True
    same = 0
    while same < count and _is_like(values, before, items[same], same):
        same += 1
    return same, False


def _is_same_data(before: Known, mine: list[Any]) -> bool:
    known = before.likenesses
    return _prints(mine) == _prints(known if len(known) == len(mine) else known[: len(mine)])


def _are_same_messages(before: Known, mine: list[Any]) -> bool:
    """Whether these are the first messages that were saved, as far as it is looked into at one step."""
    held, fields, contents = before.held, before.fields, before.contents
    if len(held) != len(mine):
        held, fields, contents = held[: len(mine)], fields[: len(mine)], contents[: len(mine)]
    try:
        # The same objects as a rule, which takes a look at each; others count if they are equal.
        if mine != held or [each["content"] for each in fields] != contents:
            return False
    except Exception:  # noqa: BLE001 - whatever an item of another kind raises when it is compared
        return False
    known = before.likenesses
    near = len(mine) - _NEAR
    if near <= 0:
        return not any(map(_extra_of, mine)) and fields == (
            known if len(known) == len(mine) else known[: len(mine)]
        )
    turn = before.looked if before.looked < near else 0
    stop = min(turn + _TURN, near)
    return (
        not any(map(_extra_of, mine[near:]))
        and fields[near:] == known[near : len(mine)]
        and not any(map(_extra_of, mine[turn:stop]))
        and fields[turn:stop] == known[turn:stop]
    )


def _is_like(values: Values, before: Known, item: Any, index: int) -> bool:
    known = before.likenesses[index]
    if before.is_messages:
        return type(item) is type(before.held[index]) and is_like(item, known)
    if type(known) is _Opaque:
        return values.encode(item).data == known.data
    return values.encode(item) == values.encode(known)


def _prints(items: list[Any]) -> object:
    """Something that is equal only for equal plain data (it tells 1 from True); never stored."""
    try:
        return marshal.dumps(items, 2)
    except ValueError:
        return object()


def _frozen(item: Any) -> Any:
    """A copy of plain data that nobody else can change; ``None`` for None and for what is not plain."""
    kind = kind_of(item)
    if kind in _PLAIN:
        return item
    return copied(item) if kind in _CONTAINERS and _is_plain(item) else None


def _frozen_or_opaque(values: Values, item: Any) -> Any:
    known = _frozen(item)
    return _Opaque(values.encode(item).data) if known is None else known


def _is_plain(value: Any) -> bool:
    kind = kind_of(value)
    if kind in _PLAIN:
        return True
    if kind is dict:
        return all(map(_is_plain, value.values()))
    return kind in _CONTAINERS and all(map(_is_plain, value))


def _branched(
    draft: Draft,
    engine: Engine,
    stretch: ListPrefix,
    at: int,
    contents: list[Content | Address],
    list_id: str,
    scope: str,
) -> ListPrefix:
    if not contents:
        return ListPrefix(stretch.list, at)
    lineage = engine.lineage(draft.space, stretch.list)
    if not lineage:
        raise _severed(stretch, "its channel", "it is not stored")
    parent = branch_point(lineage, at)
    if parent.depth >= MAX_DEPTH:
        past = engine.read_list(draft.space, stretch.list, 0, at)
        draft.append(list_id, *past, *contents, scope=scope, at=0)
    else:
        draft.append(list_id, *contents, scope=scope, at=at, parent=parent.list)
    return ListPrefix(list_id, at + len(contents))


def _severed(stretch: ListPrefix, where: str, problem: str) -> Corrupt:
    return Corrupt(
        f"{where}: list {stretch.list!r} should have {stretch.length} items: {problem}; "
        "run verify, then restore it from a backup"
    )

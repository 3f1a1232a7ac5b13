"""How the channels of a LangGraph checkpoint are stored, so that a step costs what is new in it.

LangGraph passes the whole state at every step. A channel whose version did not change keeps the address that
the parent's row has. Small values of LangGraph's own channels go into the checkpoint's row. A list of
messages, a large list and a list that grows become a treering list; everything else is a state value.

**Lists.** For every list that was saved or loaded, a `StoredList` mirrors what is stored in it, from the
first item on: the objects, and a fingerprint of each. The items of a channel are compared with the mirror,
and only what follows the common prefix is written: behind the end of the list, or, where the list has already
gone on differently, into a child list that shares the prefix. Plain data is compared whole. Of messages,
identity and content are compared for all of them; what is nested deeper is compared in the last `_NEAR` at
every step, and in the others in turn, `_TURN` at a step, because looking into a thousand messages costs as
much as the rest of the step. So a message that was replaced, or whose content changed, is noticed at once;
one that was changed inside (LangGraph asks nodes not to do that) is noticed at once in a list of up to
`_NEAR` + `_TURN` messages, and later in a longer one.

**Embedded lists.** LangGraph's ready-made agent sends the whole state along with each tool call. The messages
in it are those of a stored list, so the value is stored with a placeholder in place of the list, and beside
it the name of the list and how many of its items. A placeholder is a text that occurs nowhere else in the
value.

**Materialised channels.** Of a `DeltaChannel` LangGraph passes only every 100th value whole. The messages
that tasks wrote are appended to the parent's list, so that treering's own views show the conversation at
every checkpoint. LangGraph is never given such a list.

**Invariant:** a mirror holds exactly what is stored, never what an object has become since; a value that is
read back equals the value that was given; a materialised channel is exact or absent.
"""

from __future__ import annotations

import marshal
from copy import copy
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from langchain_core.messages import RemoveMessage

from treering.adapters.langgraph.values import (
    MESSAGE_CLASSES,
    DeltaSnapshot,
    Packed,
    copy_value,
    fingerprint,
    is_list_of_messages,
    matches,
    type_of,
)
from treering.core.content import INLINE_LIMIT
from treering.core.encoding import codecs
from treering.core.ids import new_id
from treering.errors import Corrupt, NotFound
from treering.threads.checkpoint import ListPrefix
from treering.threads.writer import ListChange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from treering.adapters.langgraph.values import Fingerprint, ValueCodec
    from treering.core.content import Content
    from treering.core.engine import Engine
    from treering.graphs.graph import Step
    from treering.threads.checkpoint import StateValue

# Keys under which a checkpoint's row has fields that few checkpoints have, and says more about its channels.
MORE: Final = "more"
NO_UPDATED: Final = "no_updated"
"""LangGraph's own ``updated_channels`` is not there, which is not the same as ``None``."""
INLINE: Final = "values"
MESSAGE_LISTS: Final = "messages"
DELTA: Final = "delta"
"""The delta channels that LangGraph passed whole."""
MATERIALISED: Final = "shadows"
EMBEDDED: Final = "holed"
"""The state values that refer to lists of the same checkpoint."""
BRANCHED: Final = "apart"
"""The lists that have branched off another one."""

_INTERNAL: Final = ("branch:", "__")
"""What the names of LangGraph's own channels start with."""
_SMALL_TEXT: Final = 256
_NEAR: Final = 64
_TURN: Final = 64
_PAGE: Final = 512
_PLAIN: Final = frozenset({str, int, float, bool, type(None), bytes})
_CONTAINERS: Final = frozenset({dict, list, tuple})
_NONE: Final[list[Any]] = []
_extra_of: Final = attrgetter("__pydantic_extra__")


class StoredList:
    """What is known to be stored in one list: every item from the first on, and a fingerprint of each.

    The checkpoints whose channels are prefixes of the list share one mirror, which only ever grows. Callers
    hold the lock of the thread.
    """

    __slots__ = (
        "_checked",
        "_contents",
        "_fields",
        "fingerprints",
        "id",
        "is_branch",
        "is_messages",
        "items",
    )

    def __init__(
        self,
        list_id: str,
        items: list[Any],
        fingerprints: list[Any],
        *,
        is_messages: bool,
        is_branch: bool = False,
    ) -> None:
        self.id = list_id
        self.items = items
        self.fingerprints = fingerprints
        self.is_messages = is_messages
        self.is_branch = is_branch
        """It branched off another list, so tasks' messages are not assumed to be what comes next in it."""
        self._checked = 0
        # Reading a message's fields through its class is slow, so they are kept at hand.
        self._fields: list[dict[str, Any]] = [item.__dict__ for item in items] if is_messages else []
        self._contents: list[Any] = [fields["content"] for fields in self._fields]

    def extend(self, items: Sequence[Any], fingerprints: Sequence[Any]) -> None:
        """Add items that were just stored at the end."""
        self.items += items
        self.fingerprints += fingerprints
        if self.is_messages:
            fields = [item.__dict__ for item in items]
            self._fields += fields
            self._contents += [each["content"] for each in fields]

    def branch(self, list_id: str, at: int, items: list[Any], fingerprints: list[Any]) -> StoredList:
        """Return the mirror of a child list, which shares the first ``at`` items."""
        return StoredList(
            list_id,
            [*self.items[:at], *items],
            [*self.fingerprints[:at], *fingerprints],
            is_messages=self.is_messages,
            is_branch=True,
        )

    def replace_objects(self, items: list[Any]) -> None:
        """Replace the first items by equal objects, which the next step will most likely bring again."""
        count = len(items)
        self.items[:count] = items
        if self.is_messages:
            fields = [item.__dict__ for item in items]
            self._fields[:count] = fields
            self._contents[:count] = [each["content"] for each in fields]

    def count_stored(self, codec: ValueCodec, items: list[Any], length: int) -> int:
        """Return how many of these items, from the first on, are stored in the list.

        ``length`` is how many of them the parent had, which are most likely the same objects.
        """
        same = self.count_common(codec, items, length)
        if self.is_messages and same > _NEAR:
            self._checked = (self._checked + _TURN) % same
        if same < min(length, len(items)):
            self.replace_objects(items[:same])
        if same == length:
            stop = min(len(self.items), len(items))
            while same < stop and self.has_at(codec, items[same], same):
                same += 1
        return same

    def count_common(self, codec: ValueCodec, items: list[Any], length: int) -> int:
        """Return how many of these items equal the first ``length`` items, up to the first difference."""
        count = min(length, len(items))
        mine = items if count == len(items) else items[:count]
        if self._starts_with(mine):
            return count
        same = 0
        while same < count and self.has_at(codec, items[same], same):
            same += 1
        if same == count:
            self.replace_objects(mine)
        return same

    def has_at(self, codec: ValueCodec, item: Any, position: int) -> bool:
        """Whether an item equals the one that is stored at a position."""
        stored = self.fingerprints[position]
        if self.is_messages:
            return type(item) is type(self.items[position]) and matches(item, stored)
        if type(stored) is _Encoded:
            return codec.encode(item).data == stored.data
        return codec.encode(item) == codec.encode(stored)

    def _starts_with(self, items: list[Any]) -> bool:
        """Compare with the first items, as deep as one step does."""
        stored = self.fingerprints
        count = len(items)
        if not self.is_messages:
            return _dump(items) == _dump(stored if len(stored) == count else stored[:count])
        own, fields, contents = self.items, self._fields, self._contents
        if len(own) != count:
            own, fields, contents = own[:count], fields[:count], contents[:count]
        try:
            # Mostly the same objects, which takes one look at each; others count if they are equal.
            if items != own or [each["content"] for each in fields] != contents:
                return False
        except Exception:  # noqa: BLE001 - whatever an item of another class raises when it is compared
            return False
        near = count - _NEAR
        if near <= 0:
            return not any(map(_extra_of, items)) and fields == (
                stored if len(stored) == count else stored[:count]
            )
        start = self._checked if self._checked < near else 0
        stop = min(start + _TURN, near)
        return (
            not any(map(_extra_of, items[near:]))
            and fields[near:] == stored[near:count]
            and not any(map(_extra_of, items[start:stop]))
            and fields[start:stop] == stored[start:stop]
        )


class _Encoded(msgspec.Struct, frozen=True):
    """The fingerprint of an object that cannot be copied: its encoding."""

    data: bytes


class SharedPrefix(msgspec.Struct, frozen=True):
    """A list whose first items are those of a stored list; ``rest`` are the others."""

    list_id: str
    items: list[Any]
    rest: list[Any]


def shared_prefix(
    codec: ValueCodec, stored: StoredList, length: int, items: list[Any]
) -> SharedPrefix | None:
    """Split a list behind what it has in common with a stored one; ``None`` if that is nothing."""
    if not length or (
        stored.is_messages
        and items[0] is not stored.items[0]  # most lists that a node writes are new
        and not stored.has_at(codec, items[0], 0)
    ):
        return None
    same = stored.count_common(codec, items, length)
    rest = items[same:]
    if not same or (stored.is_messages and not MESSAGE_CLASSES.issuperset(map(type_of, rest))):
        return None
    return SharedPrefix(stored.id, items[:same], rest)


class ChannelChanges:
    """Works out how the channels of one checkpoint differ from what is stored.

    ``is_tail`` says that the parent's lists may be appended to. The mirrors are brought up to date by
    `committed`, which the caller calls once the changes are stored.
    """

    def __init__(
        self,
        codec: ValueCodec,
        parent: Step | None,
        parent_lists: Mapping[str, StoredList],
        *,
        is_tail: bool,
    ) -> None:
        self._codec = codec
        self._parent = parent
        self._is_tail = is_tail
        self.stored: dict[str, StoredList] = dict(parent_lists)
        """The lists that the next checkpoint may continue."""
        self.unchanged_lists: dict[str, ListPrefix] = {}
        self.unchanged_state: dict[str, StateValue] = {}
        self.lists: dict[str, ListChange] = {}
        self.state: dict[str, Any] = {}
        self.positions: dict[int, tuple[str, int, Fingerprint]] = {}
        """Where the messages that this checkpoint adds will be, by the id of the object."""
        self._lengths: dict[str, int] = {}
        self._added: dict[str, tuple[StoredList, list[Any], list[Any]]] = {}
        self._inline: dict[str, Any] = {}
        self._messages: list[str] = []
        self._delta: list[str] = []
        self._materialised: list[str] = []
        self._embedded: list[str] = []

    def add(self, values: Mapping[str, Any], versions: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Take all channel values of the checkpoint; ``new`` are the versions of those that changed."""
        holders: dict[str, Any] = {}
        for channel, given in values.items():
            value = given
            if type(given) is DeltaSnapshot:
                value = given.value
                self._delta.append(channel)
            elif channel not in new and self._keep(channel, versions):
                continue
            if channel.startswith(_INTERNAL) and _is_small(value):
                self._inline[channel] = value
            elif may_embed_lists(value):
                holders[channel] = value
            else:
                self._add(channel, value)
        for channel, value in holders.items():  # last, when all lists are known
            extracted = extract_lists(self._codec, value, self._find_list)
            if extracted is None:
                self._add(channel, value)
            else:
                self._embedded.append(channel)
                self._add(channel, EmbeddedLists(extracted[0].mark, extracted[0].value, extracted[1]))

    def materialise(self, channel: str, items: list[Any]) -> None:
        """Add a delta channel of messages that LangGraph did not pass."""
        self._add_list(channel, items)
        self._materialised.append(channel)

    def keep_materialised(self, stored: Step) -> None:
        """Keep the lists that a checkpoint, which this one replaces, has for treering's own views."""
        for channel in stored.graph.get(MATERIALISED, ()):
            if channel not in self.lists and channel not in self.state:
                self.unchanged_lists[channel] = stored.checkpoint.lists[channel]
                self._materialised.append(channel)
                self._messages.append(channel)

    def describe(self, graph: dict[str, Any]) -> None:
        """Add what the row says about channels to the framework's own fields."""
        names = {*self.lists, *self.unchanged_lists}
        described = {
            INLINE: self._inline,
            MESSAGE_LISTS: self._messages,
            DELTA: self._delta,
            MATERIALISED: self._materialised,
            EMBEDDED: self._embedded,
            BRANCHED: [name for name, each in self.stored.items() if name in names and each.is_branch],
        }
        graph.update({name: value for name, value in described.items() if value})

    def committed(self) -> None:
        """Bring the mirrors up to date: the changes are stored."""
        for stored, items, fingerprints in self._added.values():
            stored.extend(items, fingerprints)

    def _keep(self, channel: str, versions: Mapping[str, Any]) -> bool:
        """Keep a channel where the parent has it, if its version is the same there.

        A value with embedded lists is written again: it refers to lists of its own checkpoint.
        """
        parent = self._parent
        if (
            parent is None
            or channel not in versions
            or parent.graph["versions"].get(channel) != versions[channel]
        ):
            return False
        record = parent.checkpoint
        if channel in record.lists:
            self.unchanged_lists[channel] = record.lists[channel]
            self._lengths[channel] = record.lists[channel].length
            if channel in parent.graph.get(MESSAGE_LISTS, ()):
                self._messages.append(channel)
            return True
        if channel in record.state and channel not in parent.graph.get(EMBEDDED, ()):
            self.unchanged_state[channel] = record.state[channel]
            return True
        return False

    def _add(self, channel: str, value: Any) -> None:
        if self._is_list(channel, value):
            self._add_list(channel, value)
        else:
            self.stored.pop(channel, None)
            self.state[channel] = self._codec.pack(value)

    def _is_list(self, channel: str, value: Any) -> bool:
        """Whether a value is stored as a list: messages, a large list, or one that goes on growing."""
        if type_of(value) is not list or not value:
            return False
        if type_of(value[0]) in MESSAGE_CLASSES:
            return True
        stored, length = self.stored.get(channel), self._length(channel)
        if stored is not None and not stored.is_messages and len(value) >= length:
            return stored.count_common(self._codec, value, length) > 0
        return len(self._codec.encode(value).data) >= INLINE_LIMIT

    def _length(self, channel: str) -> int:
        """How many items a channel had in the parent; if it had none there, how many its list has."""
        stored = self.stored.get(channel)
        if stored is None:
            return 0
        prefix = self._parent.checkpoint.lists.get(channel) if self._parent is not None else None
        return prefix.length if prefix is not None and prefix.list == stored.id else len(stored.items)

    def _add_list(self, channel: str, items: list[Any]) -> None:
        """Make a channel hold exactly these items, adding only those that are not stored."""
        codec, stored = self._codec, self.stored.get(channel)
        same = 0 if stored is None else stored.count_stored(codec, items, self._length(channel))
        tail = items[same:]
        is_messages = MESSAGE_CLASSES.issuperset(map(type_of, tail)) and (
            same == 0 or (stored is not None and stored.is_messages)
        )
        if stored is not None and stored.is_messages != is_messages:
            stored, same, tail = None, 0, list(items)
        contents, fingerprints = _encoded(codec, tail, is_messages=is_messages)
        if stored is None or same == 0:
            stored = StoredList(new_id(), tail, fingerprints, is_messages=is_messages)
            self.lists[channel] = ListChange(contents=contents, list_id=stored.id)
        else:
            base = ListPrefix(stored.id, same)
            if tail and not (self._is_tail and same == len(stored.items)):
                stored = stored.branch(new_id(), same, tail, fingerprints)
                self.lists[channel] = ListChange(base, same, contents, list_id=stored.id, branch=True)
            else:
                self.lists[channel] = ListChange(base, same, contents)
                if tail:
                    self._added[stored.id] = (stored, tail, fingerprints)
        self.stored[channel] = stored
        self._lengths[channel] = len(items)
        if is_messages:
            self._messages.append(channel)
            for position, (item, fields) in enumerate(zip(tail, fingerprints, strict=True), same):
                self.positions[id(item)] = (stored.id, position, fields)

    def _find_list(self, items: list[Any]) -> list[Any] | None:
        """Return the list of this checkpoint that these items share most with, how many, and the rest."""
        best: list[Any] | None = None
        for name, length in self._lengths.items():
            stored = self.stored.get(name)
            if stored is None or not stored.is_messages:
                continue
            _, new_items, new_fingerprints = self._added.get(stored.id, (stored, _NONE, _NONE))
            before = length - len(new_items)
            shared = shared_prefix(self._codec, stored, before, items)
            if shared is None:
                continue
            count = len(shared.items)
            if count == before:
                for item, new, fields in zip(items[count:], new_items, new_fingerprints, strict=False):
                    if type(item) is not type(new) or not matches(item, fields):
                        break
                    count += 1
            if best is None or count > best[1]:
                best = [name, count, self._codec.pack(items[count:])]
        return best


LEAST_EMBEDDED: Final = 4
"""The shortest list of messages that is worth a placeholder."""
_DEEPEST: Final = 6

Shared = TypeVar("Shared")


class EmbeddedLists(msgspec.Struct, frozen=True):
    """A value with placeholders, which are the text ``mark`` followed by a number.

    In a checkpoint, ``lists`` says what belongs there, in the order of the numbers: the name of a list of the
    checkpoint, how many of its items, and the items that follow them.
    """

    mark: str
    value: Any
    lists: list[list[Any]] = []


codecs.register(
    EmbeddedLists,
    "langgraph-holed",
    lambda value: [value.mark, value.value, value.lists],
    lambda args: EmbeddedLists(*args),
)


def extract_lists(
    codec: ValueCodec, value: Any, find: Callable[[list[Any]], Shared | None]
) -> tuple[EmbeddedLists, list[Shared]] | None:
    """Replace the lists of messages that ``find`` knows by placeholders, and return what it found.

    ``None`` if it knows none of them.
    """
    if not codec.is_readable or not may_embed_lists(value):
        return None
    attempt = 0
    while True:
        mark = f"treering-list-{attempt}-"
        found: list[Shared] = []

        def replace(items: list[Any], mark: str = mark, found: list[Shared] = found) -> Any:
            shared = find(items) if len(items) >= LEAST_EMBEDDED else None
            if shared is None:
                return items
            found.append(shared)
            return f"{mark}{len(found) - 1}"

        marked = _replaced(value, is_list_of_messages, replace)
        if not found:
            return None
        plain = codec.pack(marked)
        data = plain.data if type(plain) is Packed else codec.encode(plain).data
        if data.count(mark.encode()) == len(found):
            return EmbeddedLists(mark, plain), found
        attempt += 1  # the value contains such a text itself


def fill_lists(codec: ValueCodec, value: EmbeddedLists, lists: Sequence[list[Any]]) -> Any:
    """Return the value with these lists in the place of its placeholders."""
    marks = {f"{value.mark}{number}": items for number, items in enumerate(lists)}
    return _replaced(
        codec.unpack(value.value), lambda each: type_of(each) is str and each in marks, marks.get
    )


def may_embed_lists(value: Any) -> bool:
    """Whether a value is of a type in which lists of messages are looked for."""
    kind = type_of(value)
    if kind is list and value:
        return _is_send(type_of(value[0]))
    return kind is dict or _is_send(kind)


def _replaced(
    value: Any, is_wanted: Callable[[Any], bool], replace: Callable[[Any], Any], depth: int = 0
) -> Any:
    """Replace parts of a value, copying only the containers on the way to them."""
    if is_wanted(value):
        return replace(value)
    kind = type_of(value)
    if depth >= _DEEPEST:
        return value
    if kind is dict:
        changed = {key: _replaced(each, is_wanted, replace, depth + 1) for key, each in value.items()}
        return value if all(changed[key] is each for key, each in value.items()) else changed
    if kind is list and not depth:
        items = [_replaced(each, is_wanted, replace, depth + 1) for each in value]
        return value if all(map(is_, items, value)) else items
    if _is_send(kind):
        arg = _replaced(value.arg, is_wanted, replace, depth + 1)
        if arg is not value.arg:
            value = copy(value)
            value.arg = arg
    return value


def _is_send(kind: type) -> bool:
    return kind.__name__ == "Send" and kind.__module__ == "langgraph.types"


def materialisable(parent: Step, metadata: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """The delta channels that LangGraph did not pass, and whose messages the parent holds (or none)."""
    changed = metadata.get("counters_since_delta_snapshot") or ()
    held = set(parent.checkpoint.lists) & set(parent.graph.get(MESSAGE_LISTS, ()))
    versions = parent.graph["versions"]
    return [name for name in changed if name not in values and (name in held or name not in versions)]


def merge_messages(items: Sequence[Any], written: Iterable[Any]) -> list[Any] | None:
    """Merge messages that tasks wrote into a list, as LangGraph does; ``None`` if they lack distinct ids."""
    merged: dict[Any, Any] = {message.id: message for message in items}
    if len(merged) != len(items):
        return None
    for message in written:
        if not isinstance(message, RemoveMessage):
            merged[message.id] = message
        elif message.id == REMOVE_ALL:
            merged.clear()
        else:
            merged.pop(message.id, None)
    return None if None in merged else list(merged.values())


REMOVE_ALL: Final = "__remove_all__"
"""The id of a `RemoveMessage` that stands for all messages (LangGraph's REMOVE_ALL_MESSAGES)."""


def read_list(engine: Engine, space: str, codec: ValueCodec, step: Step, channel: str) -> StoredList:
    """Read a list of a step. Raises `Corrupt` if items are missing."""
    prefix = step.checkpoint.lists[channel]
    is_messages = channel in step.graph.get(MESSAGE_LISTS, ())
    where = f"channel {channel!r} of checkpoint {step.graph_id!r}"
    items: list[Any] = []
    fingerprints: list[Any] = []
    for start in range(0, prefix.length, _PAGE):
        stop = min(start + _PAGE, prefix.length)
        try:
            contents = engine.read_list(space, prefix.list, start, stop)
        except NotFound as error:
            raise _incomplete(prefix, where, str(error)) from error
        if len(contents) != stop - start:
            raise _incomplete(prefix, where, f"{stop - start - len(contents)} of them are not stored")
        if is_messages:
            for message, fields in codec.decode_messages(contents):
                items.append(message)
                fingerprints.append(fields)
        else:
            items += map(codec.decode, contents)
    if not is_messages:
        fingerprints = [_fingerprint_of(codec, item)[0] for item in items]
    is_branch = channel in step.graph.get(BRANCHED, ())
    return StoredList(prefix.list, items, fingerprints, is_messages=is_messages, is_branch=is_branch)


def _incomplete(prefix: ListPrefix, where: str, problem: str) -> Corrupt:
    return Corrupt(
        f"{where}: list {prefix.list!r} should have {prefix.length} items: {problem}; "
        "run verify, then restore it from a backup"
    )


def has_whole(step: Step, channel: str) -> bool:
    """Whether a step stores a channel whole, as LangGraph passed it."""
    return (
        (channel in step.checkpoint.lists and channel not in step.graph.get(MATERIALISED, ()))
        or channel in step.checkpoint.state
        or channel in step.graph.get(INLINE, ())
    )


def count_tasks(updated: Iterable[str] | None, values: Mapping[str, Any]) -> int | None:
    """Return how many tasks a checkpoint starts; ``None`` if it does not say.

    The channels that the last step updated start them: one each for a node that an edge leads to, and one for
    every `Send`.
    """
    if updated is None:
        return None
    tasks = sum(name == "__start__" or name.startswith(("branch:to:", "join:")) for name in updated)
    sends = values.get("__pregel_tasks") if "__pregel_tasks" in updated else None
    return tasks + (len(sends) if isinstance(sends, list) else 0)  # pyright: ignore[reportUnknownArgumentType]


def _encoded(codec: ValueCodec, items: list[Any], *, is_messages: bool) -> tuple[list[Content], list[Any]]:
    contents: list[Content] = []
    fingerprints: list[Any] = []
    for item in items:
        if is_messages:
            fields = fingerprint(item)
            contents.append(codec.encode_message(item, fields))
            fingerprints.append(fields)
        else:
            copied, content = _fingerprint_of(codec, item)
            contents.append(content or codec.encode(copied))
            fingerprints.append(copied)
    return contents, fingerprints


def _fingerprint_of(codec: ValueCodec, item: Any) -> tuple[Any, Content | None]:
    """The fingerprint of an item that is no message, and its content if that had to be encoded for it."""
    if type_of(item) in _PLAIN and item is not None:
        return item, None
    if type_of(item) in _CONTAINERS and _is_plain(item):
        return copy_value(item), None
    content = codec.encode(item)
    return _Encoded(content.data), content


def _is_plain(value: Any) -> bool:
    kind = type_of(value)
    if kind in _PLAIN:
        return True
    if kind is dict:
        return all(map(_is_plain, value.values()))
    return kind in _CONTAINERS and all(map(_is_plain, value))


def _is_small(value: Any) -> bool:
    """Whether a value is small enough for the row."""
    return (
        value is None
        or value == []
        or type(value) in (bool, int)
        or (type(value) is str and len(value) <= _SMALL_TEXT)
    )


def _dump(items: list[Any]) -> object:
    """Plain data in a form that is equal only for equal data (1 is not True); never stored."""
    try:
        return marshal.dumps(items, 2)
    except ValueError:
        return object()

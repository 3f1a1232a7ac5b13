"""List channels: how a growing list is stored without being written again.

A `ListChange` says what a channel holds next: the first items of an existing list, then new ones. Only the
new ones are written: behind the list's tail where nothing follows there yet, else as a child list that shares
the common prefix. A list that became shorter writes nothing at all.

Callers that are given whole lists find the common prefix with a `Channel`. It remembers a fingerprint of
every item that was last saved; fingerprints tell ``1`` from ``True`` and notice an item that was changed in
place.
"""

from __future__ import annotations

import marshal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from treering.core.encoding import decode_all, encode
from treering.core.ids import new_id
from treering.core.records import MAX_LIST_DEPTH, branch_point
from treering.errors import Corrupt, NotFound
from treering.threads.checkpoint_record import ListPrefix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treering.core.batch import Draft
    from treering.core.content import Address, Content
    from treering.core.engine import Engine

    def _type_of(_value: object, /) -> type[object]: ...
else:
    _type_of = type  # under a name that keeps the checker from narrowing Any to something less known


_PAGE: Final = 1000
_COMPARED_AS_TEXT: Final = frozenset({bool, float, int, type(None)})


@dataclass(frozen=True, slots=True)
class ListChange:
    """What a list channel holds next: the first ``keep`` items of ``base``, then ``contents``.

    Without a ``base`` a list of its own begins, named ``list_id`` if that is given. An item is content, or
    the address of content that is stored already or comes with the same batch. ``branch`` says that something
    is known to follow the end of ``base`` already.
    """

    base: ListPrefix | None = None
    keep: int = 0
    contents: Sequence[Content | Address] = ()
    list_id: str | None = None
    branch: bool = False


def behind(prefix: ListPrefix | None, items: Sequence[Any]) -> ListChange:
    """Return the change that puts items behind a prefix (into a list of their own, without one)."""
    return ListChange(prefix, 0 if prefix is None else prefix.length, encode_items(items))


def encode_items(items: Sequence[Any]) -> list[Content]:
    """Encode the items of a list, each as a content of its own."""
    return [encode(item, keep_order=True) for item in items]


def write_list(
    draft: Draft, engine: Engine, change: ListChange, *, scope: str, append: bool = True
) -> ListPrefix:
    """Add what is new in a list to the batch, and return what its channel holds then.

    ``append`` lets items go behind the list's tail; the commit raises `ListMoved` if something follows there
    already. Without it they go into a child list.
    """
    base, keep, contents = change.base, change.keep, change.contents
    if base is not None and not contents:
        return base if keep == base.length else ListPrefix(base.list, keep)
    if base is not None and keep == base.length and append and not change.branch:
        draft.append(base.list, *contents, scope=scope, at=keep)
        return ListPrefix(base.list, keep + len(contents))
    list_id = change.list_id or new_id()
    if base is None or keep == 0:
        draft.append(list_id, *contents, scope=scope, at=0)
        return ListPrefix(list_id, len(contents))
    lineage = engine.lineage(draft.space, base.list)
    if not lineage:
        raise _incomplete(base, "it is not stored")
    parent = branch_point(lineage, keep)
    if parent.depth >= MAX_LIST_DEPTH:
        prefix = engine.read_list(draft.space, base.list, 0, keep)
        draft.append(list_id, *prefix, *contents, scope=scope, at=0)
    else:
        draft.append(list_id, *contents, scope=scope, at=keep, parent=parent.list)
    return ListPrefix(list_id, keep + len(contents))


def read(engine: Engine, space: str, prefix: ListPrefix, *, last: int | None = None) -> list[Any]:
    """Return the items of a prefix, or only its last ones. Raise `Corrupt` if some of them are missing."""
    start = 0 if last is None else max(prefix.length - last, 0)
    items: list[Any] = []
    for first in range(start, prefix.length, _PAGE):  # in pages, to bound memory
        stop = min(first + _PAGE, prefix.length)
        try:
            contents = engine.read_list(space, prefix.list, first, stop)
        except NotFound as error:
            raise _incomplete(prefix, str(error)) from error
        if len(contents) != stop - first:
            raise _incomplete(prefix, f"{stop - first - len(contents)} of its items are not stored")
        items += decode_all(contents)
    return items


def _incomplete(prefix: ListPrefix, problem: str) -> Corrupt:
    return Corrupt(
        f"list {prefix.list!r} should have {prefix.length} items: {problem}; "
        "run verify, then restore it from a backup"
    )


@dataclass(frozen=True, slots=True)
class First:
    """The first ``count`` items that a channel holds, in place of the items themselves."""

    count: int


@dataclass(slots=True)
class Channel:
    """A list channel as it was last saved, and a fingerprint of each item (``None``: not read yet)."""

    prefix: ListPrefix | None
    fingerprints: list[int] | None = None

    def append(self, items: Sequence[Any]) -> tuple[ListChange, list[int] | None]:
        """Put items behind what the channel holds, which is neither read nor compared.

        Returns the change, and the fingerprints of all items after it.
        """
        known = self.fingerprints
        if known is not None and self.prefix is not None:
            del known[self.prefix.length :]  # left by a save that failed
            known.extend(_fingerprints(items))
        return behind(self.prefix, items), known

    def replace(self, engine: Engine, space: str, items: Sequence[Any]) -> tuple[ListChange, list[int]]:
        """Make the channel hold exactly ``items``; what it begins with already is not written again."""
        fingerprints = _fingerprints(items)
        if self.prefix is None:
            return behind(None, items), fingerprints
        known = self.fingerprints
        if known is None:
            known = [fingerprint(item) for item in read(engine, space, self.prefix)]
        del known[self.prefix.length :]
        keep = common_length(known, fingerprints)
        return ListChange(self.prefix, keep, encode_items(items[keep:])), fingerprints

    def shorten(self, prefix: ListPrefix, count: int) -> tuple[ListChange, list[int] | None]:
        """Keep only the first ``count`` items of ``prefix``, which the channel holds."""
        known = None if self.fingerprints is None else self.fingerprints[:count]
        return ListChange(prefix, min(count, prefix.length)), known


def fingerprint(value: Any) -> int:
    """Return a hash of a value as it is now, types and all; valid within this process only, never stored.

    Python caches the hash of a str, so comparing a conversation again costs a pass over its structure, not
    over its text.
    """
    kind = _type_of(value)
    if kind is str:
        return hash(value)
    if kind is dict:
        return hash((kind, *value, *map(type, value), *map(fingerprint, value.values())))
    if kind is list:
        return hash((kind, *map(fingerprint, value)))
    if kind in _COMPARED_AS_TEXT:  # hash(-1) == hash(-2), and hash(1) == hash(True)
        return hash((kind, repr(value)))
    try:
        return hash(marshal.dumps(value, 2))
    except ValueError:
        return hash(encode(value, keep_order=True).data)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many fingerprints both begin with."""
    if one == other[: len(one)]:
        return len(one)
    same = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        same += 1
    return same


def _fingerprints(items: Sequence[Any]) -> list[int]:
    try:
        return [*map(fingerprint, items)]
    except RecursionError:
        encode_items(items)  # raises the error that names what is nested too deeply
        raise
